//! `pando snapshot policies`: the policies for snapshots of all directories in a tree.

use std::path::PathBuf;

use anyhow::{Context, Result};
use pando_fs::StoredPolicy;
use pando_fuse::tool::{self, Visible};
use serde::Serialize;

use crate::{
    cmd::snapshot::{
        policy::{Shown, fields, shown},
        select::show_age,
    },
    report::VERSION,
};

/// List the policies for snapshots of a directory and of all below it
#[derive(clap::Args)]
#[command(
    after_help = "Only root may do this. KEEP has the --keep-* options of pando snapshot policy: last 5, hourly 24.

Examples: pando snapshot policies /mnt/grove
          pando snapshot policies -H /mnt/grove | cut -f1,3
          pando snapshot policies --json /mnt/grove/project"
)]
pub struct Args {
    /// A directory in a mounted Pando file system
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// No header, and fields with one tab between, for scripts: directory, user, and each option as name=value
    #[arg(short = 'H')]
    script: bool,
    /// Print JSON, with a version of its format
    #[arg(long, conflicts_with = "script")]
    json: bool,
}

#[derive(Serialize)]
struct PoliciesReport<'a> {
    version: u32,
    policies: Vec<Shown<'a>>,
}

pub fn run(args: &Args) -> Result<()> {
    let fail = || format!("policies in {}", args.dir.display());
    let mount = Visible::around(&args.dir).with_context(fail)?;
    let found = tool::policies(&args.dir).with_context(fail)?;
    let found: Vec<(PathBuf, u32, StoredPolicy)> =
        found.into_iter().map(|info| (mount.show(&info.path), info.uid, info.policy)).collect();
    if args.json {
        let policies = found.iter().map(|(path, uid, policy)| shown(path, *uid, policy)).collect();
        return crate::cmd::print_json(&PoliciesReport { version: VERSION, policies });
    }
    crate::cmd::print(&text(&found, args.script))
}

/// What is kept, in the words of the options.
fn kept(policy: &StoredPolicy) -> String {
    let all = fields(0, policy, false);
    let kept =
        all.iter().filter_map(|(name, count)| Some(format!("{} {count}", name.strip_prefix("keep-")?)));
    let kept = kept.collect::<Vec<_>>().join(", ");
    if kept.is_empty() { "all".into() } else { kept }
}

fn text(found: &[(PathBuf, u32, StoredPolicy)], script: bool) -> String {
    let mut out = String::new();
    if !script {
        let row = ["EVERY", "ON-FSYNC", "VALID-FOR", "MIN-FREE", "USER"];
        out += &row.map(|name| format!("{name:>9} ")).concat();
        out += " DIRECTORY (KEEP)\n";
    }
    for (path, uid, policy) in found {
        let path = crate::cmd::field(path, script);
        if script {
            let options = fields(*uid, policy, true);
            let options = options.iter().skip(1).map(|(name, value)| format!("\t{name}={value}"));
            out += &format!("{path}\t{uid}{}\n", options.collect::<String>());
            continue;
        }
        let age = |secs: u64| if secs > 0 { show_age(secs) } else { "-".into() };
        let least = policy.min_free_percent;
        let row = [
            age(policy.every_secs.into()),
            age(policy.on_sync_secs.into()),
            age(policy.valid_for_secs.unwrap_or(0)),
            if least > 0 { format!("{least}%") } else { "-".into() },
            uid.to_string(),
        ];
        out += &row.map(|field| format!("{field:>9} ")).concat();
        out += &format!(" {path} ({})\n", kept(policy));
    }
    out
}

#[cfg(test)]
mod tests {
    use pando_fs::SnapshotPolicy;

    use super::*;

    #[test]
    fn lists_are_for_people_and_for_scripts() {
        let keep = SnapshotPolicy { hourly: 24, one_of: 10, ..SnapshotPolicy::default() };
        let a = StoredPolicy { every_secs: 3600, min_free_percent: 10, keep, ..StoredPolicy::default() };
        let b = StoredPolicy { on_sync_secs: 60, valid_for_secs: Some(86_400), ..StoredPolicy::default() };
        let found = [("/m/a\t".into(), 0, a), ("/m/b".into(), 1000, b)];
        assert_eq!(
            text(&found, true),
            "/m/a\\011\t0\tevery=3600\tmin-free=10\tkeep-hourly=24\tkeep-one-of=10\n\
             /m/b\t1000\ton-fsync=60\tvalid-for=86400\n"
        );
        let shown = text(&found, false);
        let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["1h", "-", "-", "10%", "0", "/m/a?", "(hourly", "24,", "one-of", "10)"]);
        assert_eq!(rows[2], ["-", "1m", "1d", "-", "1000", "/m/b", "(all)"]);
    }
}
