//! `pando quota`: how much the tree of a directory may take.

use std::{path::PathBuf, str::FromStr};

use anyhow::{Context, Result};
use pando_fs::Quota;
use pando_fuse::tool::{self, Visible};
use serde::Serialize;

use crate::{
    report::VERSION,
    size::{Size, show},
    tree::Progress,
};

/// Limit what a directory tree may take, and list such limits
#[derive(clap::Subcommand)]
#[command(
    after_help = "A quota counts what du counts: each file once, without holes, and what it shares with clones in full.
A call that would exceed the limit fails with EDQUOT. A clone of a directory with a quota has the
same quota. Extended attributes and snapshots are not counted. Only root may set and list quotas.

Examples: pando quota set /mnt/grove/project 20G
          pando quota list /mnt/grove"
)]
pub enum QuotaCommand {
    Set(SetArgs),
    List(QuotaListArgs),
}

/// Limit what the tree of a directory takes
#[derive(clap::Args)]
#[command(
    after_help = "First all files that are there are counted. If they take more than SIZE already, nothing can be added.
Hard links do not reach out of a directory with a quota, nor into it (EXDEV); a directory in which
files have several names is refused: set the quota of a clone of it. What a rollback brings is counted
afterwards, in the background, and may be more than the limit. df DIR shows what is left. A program
that writes pages which the kernel keeps may hear of a used-up quota only when it syncs or closes the
file, and then by ENOSPC, as of a full disk.

Examples: pando quota set /mnt/grove/project 20G
          pando quota set /mnt/grove/project none"
)]
pub struct SetArgs {
    /// A directory in a mounted Pando file system
    dir: PathBuf,
    /// Most bytes that it may take, as for pando mkfs, like 20G; or 'none'
    size: Limit,
}

/// List the quotas of a directory and of all below it
#[derive(clap::Args)]
#[command(
    after_help = "USED is what is there now. A '~' before it says that it is being counted again, after a merge or a
rollback. Finding all quotas takes a look at each file. Snapshots have no quotas.

Examples: pando quota list /mnt/grove
          pando quota list -H /mnt/grove | cut -f1,2
          pando quota list --json /mnt/grove"
)]
pub struct QuotaListArgs {
    /// A directory in a mounted Pando file system
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// No header, and fields with one tab between, for scripts: directory, used, limit, exact or stale
    #[arg(short = 'H')]
    script: bool,
    /// Print JSON, with a version of its format
    #[arg(long, conflicts_with = "script")]
    json: bool,
}

/// A size, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(Option<u64>);

impl FromStr for Limit {
    type Err = <Size as FromStr>::Err;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Limit(None)),
            text => text.parse::<Size>().map(|size| Limit(Some(size.0))),
        }
    }
}

pub fn run(command: &QuotaCommand) -> Result<()> {
    match command {
        QuotaCommand::Set(args) => {
            let fail = || format!("quota of {}", args.dir.display());
            // The tree is counted first, unless it has a quota already.
            let _progress = Progress::of_request("counting");
            tool::set_quota(&args.dir, args.size.0).with_context(fail)
        }
        QuotaCommand::List(args) => list(args),
    }
}

#[derive(Serialize)]
struct QuotaReport {
    version: u32,
    quotas: Vec<QuotaLine>,
}

#[derive(Serialize)]
struct QuotaLine {
    path: crate::cmd::ReportName,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    limit: u64,
    used: u64,
    /// The count is exact; else it is being made again.
    exact: bool,
}

fn line(mount: &Visible, quota: &Quota) -> QuotaLine {
    let path = mount.show(quota.path.as_os_str());
    let path_hex = super::hex_unless_text(&path);
    QuotaLine { path: path.into(), path_hex, limit: quota.limit, used: quota.used, exact: !quota.stale }
}

fn list(args: &QuotaListArgs) -> Result<()> {
    let fail = || format!("quotas of {}", args.dir.display());
    let mount = Visible::around(&args.dir).with_context(fail)?;
    let found = tool::quotas(&args.dir).with_context(fail)?;
    let lines: Vec<QuotaLine> = found.iter().map(|quota| line(&mount, quota)).collect();
    match args.json {
        true => crate::cmd::print_json(&QuotaReport { version: VERSION, quotas: lines }),
        false => crate::cmd::print(&text(&lines, args.script)),
    }
}

fn text(lines: &[QuotaLine], script: bool) -> String {
    let mut out = String::new();
    if !script {
        out += &format!("{:>10} {:>10} {:>5}  DIRECTORY\n", "USED", "LIMIT", "USE%");
    }
    for line in lines {
        let path = crate::cmd::field(&line.path.0, script);
        if script {
            let state = if line.exact { "exact" } else { "stale" };
            out += &format!("{path}\t{}\t{}\t{state}\n", line.used, line.limit);
            continue;
        }
        let percent = match line.limit {
            0 => "-".into(),
            limit => format!("{}%", u128::from(line.used).saturating_mul(100).div_ceil(limit.into())),
        };
        let used = format!("{}{}", if line.exact { "" } else { "~" }, show(line.used));
        out += &format!("{used:>10} {:>10} {percent:>5}  {path}\n", show(line.limit));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_sizes_or_none() {
        assert_eq!("none".parse(), Ok::<_, <Size as FromStr>::Err>(Limit(None)));
        assert_eq!("20G".parse(), Ok::<_, <Size as FromStr>::Err>(Limit(Some(20 << 30))));
        assert!("much".parse::<Limit>().is_err());
    }

    #[test]
    fn lists_are_for_people_and_for_scripts() {
        let line = |used, limit, exact| QuotaLine { path: "/m/a".into(), path_hex: None, limit, used, exact };
        let lines = [line(1 << 30, 4 << 30, true), line(5, 0, false)];
        assert_eq!(text(&lines, true), "/m/a\t1073741824\t4294967296\texact\n/m/a\t5\t0\tstale\n");
        let shown = text(&lines, false);
        assert!(shown.contains("25%  /m/a") && shown.contains("~5"), "{shown}");
    }
}
