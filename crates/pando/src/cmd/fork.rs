//! `pando fork`, `pando forks`, `pando discard`: clones that remember what they were cloned from.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pando_fs::{DiffOptions, ForkInfo, Time};
use pando_fuse::tool::{self, Visible};
use serde::Serialize;

use crate::{
    cmd::{clone, diff, past, snapshot::show_age},
    exit, place,
    report::VERSION,
    size,
    tree::Progress,
};

/// Changes of a fork that are counted, a count; if there are more, the output says so.
const MAX_COUNTED_CHANGES: usize = 10_000;

/// Clone a directory tree, and remember what it was: to compare, merge or discard it later
#[derive(clap::Args)]
#[command(
    after_help = "A fork serves those who give every task its own copy of a working tree. It is a clone, and costs what
a clone costs. What it was at first is kept beside it, read-only and in no directory, and goes when
the fork goes. A fork may be removed in any way. A clone of a fork is no fork. pando clone --track
does the same. If SRC is a symbolic link to a directory, the directory is meant.
Everything that was written before the command is in it. Of what programs write meanwhile, pages are
taken as the kernel hands them over, so a later write may be in it and an earlier one not, unless
fsync, close or the mount option writeback=off puts them in order.

Examples: pando fork /mnt/grove/project /mnt/grove/task
          pando fork --exclude .trees /mnt/grove/repo /mnt/grove/repo/.trees/a
          pando diff /mnt/grove/task
          pando merge /mnt/grove/task
          pando discard /mnt/grove/task"
)]
pub struct Args {
    /// Replace DST if it exists, atomically
    #[arg(long)]
    replace: bool,
    /// Leave out what lies at REL in the directory SRC; may be given several times. If nothing lies there, that is
    /// said, and is no failure
    #[arg(long, value_name = "REL")]
    exclude: Vec<PathBuf>,
    /// A directory in a mounted Pando file system
    src: PathBuf,
    /// The new name, in the same mount
    dst: PathBuf,
}

/// Remove a fork, and forget what it was made of
#[derive(clap::Args)]
#[command(
    after_help = "This does what pando rm -r does, needs the same rights, and refuses what is not a fork.

Example: pando discard /mnt/grove/task"
)]
pub struct DiscardArgs {
    /// Forks in a mounted Pando file system
    #[arg(required = true, value_name = "FORK")]
    forks: Vec<PathBuf>,
}

/// List the forks of a directory, or all, with what they have changed
#[derive(clap::Args)]
#[command(
    after_help = "The forks that you made are listed; all of them if you are root. CHANGED is the number of differences
that pando diff FORK would list, and BYTES the bytes that were added, removed or changed; finding
them takes time in proportion. STATE is 'same' if nothing changed, 'changed', 'orphan' if what the
fork was made of is gone, or 'hidden' if you may not look into it.

Examples: pando forks /mnt/grove/project
          pando forks -H /mnt/grove | cut -f1
          pando forks --json /mnt/grove"
)]
pub struct ForkListArgs {
    /// The directory that they are forks of; the root of a mount for all forks in it
    #[arg(default_value = ".", value_name = "SRC")]
    source: PathBuf,
    /// No header, and fields with one tab between, for scripts; '-' is what is not known or not there, and control
    /// characters and backslashes of names are written as \ooo
    #[arg(short = 'H')]
    script: bool,
    /// Print JSON, with a version of its format
    #[arg(long, conflicts_with = "script")]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let src = place::followed(&past::place(&args.src)?)?;
    clone::clone_as(&src, &args.dst, (args.replace, true), &args.exclude).map(|_| ())
}

pub fn discard(args: &DiscardArgs) -> Result<()> {
    exit::each(&args.forks, |path| {
        let fail = || format!("discard {}", path.display());
        tool::discard(&place::removable_path(path).with_context(fail)?).with_context(fail)?;
        Ok(())
    })
}

#[derive(Serialize)]
struct ForkReport {
    version: u32,
    forks: Vec<ForkLine>,
}

#[derive(Serialize)]
struct ForkLine {
    path: super::ReportName,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    source: Option<super::ReportName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_hex: Option<String>,
    created: String,
    created_seconds: i64,
    /// When it was made, or merged last.
    since_seconds: i64,
    uid: u32,
    state: &'static str,
    /// How many files and directories differ, at most `MAX_COUNTED_CHANGES`; none if that cannot be told.
    changed: Option<usize>,
    changed_bytes: Option<u64>,
    /// More differ than are counted.
    changed_more: bool,
}

/// The differences of a fork that are counted.
#[derive(Default, Clone, Copy)]
struct Changes {
    count: usize,
    bytes: u64,
    /// There are more.
    more: bool,
}

fn changes(fork: &Path) -> Option<Changes> {
    let options = DiffOptions { ranges: true, no_renames: false };
    let mut counted = Changes::default();
    for change in tool::diff_fork(fork, options, &|| true).ok()? {
        if counted.count == MAX_COUNTED_CHANGES {
            counted.more = true;
            break;
        }
        let change = change.ok()?;
        counted.count += 1;
        counted.bytes += diff::bytes(&change);
    }
    Some(counted)
}

fn line(mount: &Visible, info: &ForkInfo) -> ForkLine {
    let path = mount.show(&info.path);
    let changes = changes(&path);
    let state = match (changes, &info.source) {
        (None, _) => "hidden",
        (_, None) => "orphan",
        (Some(Changes { count: 0, .. }), _) => "same",
        _ => "changed",
    };
    let source = info.source.as_ref().map(|source| mount.show(source));
    ForkLine {
        path: path.clone().into(),
        path_hex: super::hex_unless_text(&path),
        source: source.clone().map(Into::into),
        source_hex: source.as_ref().and_then(super::hex_unless_text),
        created: info.created.to_utc(),
        created_seconds: info.created.secs,
        since_seconds: info.since.secs,
        uid: info.uid,
        state,
        changed: changes.map(|counted| counted.count),
        changed_bytes: changes.map(|counted| counted.bytes),
        changed_more: changes.is_some_and(|counted| counted.more),
    }
}

pub fn list(args: &ForkListArgs) -> Result<()> {
    let fail = || format!("forks of {}", args.source.display());
    let mount = Visible::around(&args.source).with_context(fail)?;
    let found = tool::forks(&args.source).with_context(fail)?;
    let progress = Progress::of_request("comparing");
    let lines: Vec<ForkLine> = found.iter().map(|info| line(&mount, info)).collect();
    drop(progress);
    match args.json {
        true => crate::cmd::print_json(&ForkReport { version: VERSION, forks: lines }),
        false => crate::cmd::print(&text(&lines, args.script)),
    }
}

fn text(lines: &[ForkLine], script: bool) -> String {
    let now = Time::now().secs;
    let mut rows: Vec<Vec<String>> = Vec::new();
    if !script {
        rows.push(["FORK", "AGE", "CHANGED", "BYTES", "STATE", "SOURCE"].map(String::from).to_vec());
    }
    for line in lines {
        let age = u64::try_from(now.saturating_sub(line.created_seconds)).unwrap_or(0);
        let count = |n: usize| format!("{n}{}", if line.changed_more { "+" } else { "" });
        let bytes = |n: u64| if script { n.to_string() } else { size::show(n) };
        rows.push(vec![
            super::field(&line.path.0, script),
            if script { line.created.clone() } else { show_age(age) },
            line.changed.map_or("-".into(), count),
            line.changed_bytes.map_or("-".into(), bytes),
            line.state.into(),
            line.source.as_ref().map_or("-".into(), |source| super::field(&source.0, script)),
        ]);
    }
    let widths = super::widths(&rows);
    let mut out = String::new();
    for row in &rows {
        let shown = match script {
            true => row.join("\t"),
            false => {
                let cell =
                    |(i, c): (usize, &String)| format!("{c:<width$}  ", width = widths.get(i).unwrap_or(&0));
                row.iter().enumerate().map(cell).collect::<String>().trim_end().to_owned()
            }
        };
        out += &shown;
        out.push('\n');
    }
    out
}
