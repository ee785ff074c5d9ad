//! `pando merge`: takes over what a fork has changed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use pando_fs::{Aspects, MergeChange, MergeConflict, MergeKind, MergeOptions, MergeSide};
use pando_fuse::tool::{self, Visible};
use serde::Serialize;

use crate::{
    cmd::{counted, print, print_json},
    exit::{self, Coded},
    report::VERSION,
    tree::Progress,
};

/// Take over what a fork has changed since it was made, or merged last
#[derive(clap::Args)]
#[command(
    after_help = "SRC is what FORK was made of, or the directory of --into. What only the fork changed is taken over
into SRC; what only SRC changed, and what both changed alike, stays. What both changed differently is
a conflict: then all conflicts are listed, nothing is done, and the exit code is 7, unless --ours,
--theirs or --text settles them. A merge happens as a whole or not at all. Afterwards the fork counts
as made now, so that a further merge takes over only what is new. A line is printed for each thing
that is done, with paths from SRC and FORK:
  +  added: taken from the fork, with all that is in it
  -  removed
  M  changed to what it is in the fork: content, mode, owner and extended
     attributes, each on its own; all extended attributes of a file are one
  R  renamed, with all that is in it: its path before, and now
  X  removed, and replaced by something of another kind
  L  changed to the lines of both sides (with --text)
  !  the same, and lines that both changed differently stand in it between
     markers, as git sets them
  C  conflict, and why; with --ours or --theirs, which side was taken
What one side renamed and the other changed gets the new name and the change. What both sides renamed
differently is a conflict. If a name that the fork gave is taken by something else, or directories
would lie in each other, --ours and --theirs do not help: rename one of them first. What was renamed
into a directory that is new counts as removed and added. Changes of times alone are not merged. A
file whose content is merged is replaced by a new file; a program that has the old one open keeps the
old one. You must own all that changes, or be root. Set-id bits and capabilities stay only where
content, mode and owner are all of one side. For --text, a text file is one without zero bytes and
holes, of at most 1 MiB and 10,000 lines.

The other way round, to bring a fork up to date with SRC: make a new fork of SRC (with the same
--exclude), merge the old one into it, and let the new one take its place. The new fork then differs
from SRC in what the old one had changed, and a merge of it takes over just that:
          pando fork /mnt/grove/project /mnt/grove/new
          pando merge /mnt/grove/task --into /mnt/grove/new
          pando discard /mnt/grove/task && pando mv /mnt/grove/new /mnt/grove/task

Examples: pando merge --dry-run /mnt/grove/task
          pando merge /mnt/grove/task
          pando merge --text /mnt/grove/task
          pando merge --theirs /mnt/grove/task --into /mnt/grove/project"
)]
pub struct Args {
    /// A fork in a mounted Pando file system: see pando fork --help
    #[arg(value_name = "FORK")]
    fork: PathBuf,
    /// Merge into this directory; the changes are then not merged into another one later. Default: what the fork was
    /// made of
    #[arg(long, value_name = "SRC")]
    into: Option<PathBuf>,
    /// Only say what would be done; the exit code is 7 if there are conflicts that neither --ours nor --theirs decides
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Where both sides changed something, keep what is in SRC
    #[arg(long, conflicts_with = "theirs")]
    ours: bool,
    /// Where both sides changed something, take what is in the fork
    #[arg(long)]
    theirs: bool,
    /// Merge the lines of text files that both sides changed. Where lines conflict, both versions stand between
    /// markers and the exit code is 7; with --ours or --theirs, that side's whole file is taken
    #[arg(long)]
    text: bool,
    /// Print nothing but conflicts
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON, with a version of its format
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

#[derive(Serialize)]
struct MergeReport {
    version: u32,
    merged: bool,
    conflicts: usize,
    marked: usize,
    changes: Vec<MergeLine>,
}

#[derive(Serialize)]
struct MergeLine {
    kind: &'static str,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_hex: Option<String>,
    changed: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'static str>,
}

fn words(kind: MergeKind) -> (char, &'static str, Option<&'static str>) {
    match kind {
        MergeKind::Added => ('+', "added", None),
        MergeKind::Removed => ('-', "removed", None),
        MergeKind::Modified => ('M', "modified", None),
        MergeKind::Replaced => ('X', "replaced", None),
        MergeKind::Renamed => ('R', "renamed", None),
        MergeKind::Lines => ('L', "lines", None),
        MergeKind::Marked => ('!', "marked", Some("lines that conflict are marked in it")),
        MergeKind::Conflict(why) => (
            'C',
            "conflict",
            Some(match why {
                MergeConflict::Changed => "changed on both sides",
                MergeConflict::RemovedHere => "removed here, changed or renamed in the fork",
                MergeConflict::RemovedThere => "removed in the fork, changed or renamed here",
                MergeConflict::Kind => "of another kind on the other side",
                MergeConflict::Renamed => "renamed differently on both sides",
                MergeConflict::Taken => "something else has the name here: rename one",
                MergeConflict::Circle => "directories would lie in each other: move one",
                MergeConflict::MovedInto => "moved here into a directory that goes: move it out of it",
            }),
        ),
    }
}

fn line(change: &MergeChange) -> MergeLine {
    let (_, kind, why) = words(change.kind);
    let names = Aspects::NAMES.iter().filter(|(aspect, _)| change.aspects.contains(*aspect));
    MergeLine {
        kind,
        path: if change.path.is_empty() { ".".into() } else { change.path.to_string_lossy().into_owned() },
        path_hex: super::hex_unless_text(&change.path),
        from: change.from.as_ref().map(|from| from.to_string_lossy().into_owned()),
        from_hex: change.from.as_ref().and_then(super::hex_unless_text),
        changed: names.map(|(_, name)| *name).collect(),
        why,
    }
}

fn source_of(fork: &Path) -> Result<PathBuf> {
    let info = tool::fork_of(fork)?;
    let source =
        info.source.ok_or_else(|| anyhow!("what it was made of is gone; say where to with --into"))?;
    let visible = Visible::around(fork)?;
    let hidden = || {
        let shown = visible.show(&source);
        anyhow!(
            "what it was made of is {}, which no mount point shows; say where to with --into",
            shown.display()
        )
    };
    visible.find(&source).ok_or_else(hidden)
}

fn conflict(number: usize) -> String {
    counted(number, "conflict", "conflicts")
}

pub fn run(args: &Args) -> Result<()> {
    let fork = &args.fork;
    let fail = || format!("merge {}", fork.display());
    let into = match &args.into {
        Some(into) => into.clone(),
        None => source_of(fork).with_context(fail)?,
    };
    let prefer = match (args.ours, args.theirs) {
        (true, _) => Some(MergeSide::Ours),
        (_, true) => Some(MergeSide::Theirs),
        _ => None,
    };
    let options = MergeOptions { dry_run: args.dry_run, prefer, text: args.text };
    let about = || format!("merge {} into {}", fork.display(), into.display());
    let merged = {
        let _progress = Progress::of_request("merging");
        tool::merge(fork, &into, options, &|| true)
    };
    let mut report = merged.with_context(about)?;
    report.changes.sort_by(|a, b| a.path.cmp(&b.path));
    let lines: Vec<MergeLine> = report.changes.iter().map(line).collect();
    let count = |kind| lines.iter().filter(|line| line.kind == kind).count();
    let (conflicts, marked) = (count("conflict"), count("marked"));
    if args.json {
        print_json(&MergeReport {
            version: VERSION,
            merged: report.merged,
            conflicts,
            marked,
            changes: lines,
        })?;
    } else {
        let mut out = String::new();
        for (change, line) in report.changes.iter().zip(&lines) {
            let to = if change.path.is_empty() { ".".into() } else { super::escaped(&change.path) };
            let path = match &change.from {
                Some(from) => format!("{} -> {to}", super::escaped(from)),
                None => to,
            };
            let why = line.why.map(|why| format!(" ({why})")).unwrap_or_default();
            if line.why.is_some() || !args.quiet {
                out += &format!("{}\t{path}{why}\n", words(change.kind).0);
            }
        }
        print(&out)?;
    }
    let hard = |change: &&MergeChange| matches!(change.kind, MergeKind::Conflict(why) if !why.is_settled_by_a_side());
    let unsettled = report.changes.iter().filter(hard).count();
    if prefer.is_some() && unsettled > 0 {
        let text =
            format!("{} that no side decides: nothing was merged; rename or move one", conflict(unsettled));
        bail!(Coded(exit::CONFLICTS, text));
    }
    if (report.merged || prefer.is_some() || conflicts == 0) && marked == 0 {
        return Ok(());
    }
    if conflicts == 0 || report.merged {
        let verb = if report.merged { "stand" } else { "would stand" };
        bail!(Coded(
            exit::CONFLICTS,
            format!("{}: lines that conflict {verb} between markers", counted(marked, "file", "files"))
        ));
    }
    if args.json {
        bail!(Coded(exit::CONFLICTS, conflict(conflicts)));
    }
    let text =
        format!("{}: nothing was merged; settle them, or see --ours and --theirs", conflict(conflicts));
    bail!(Coded(exit::CONFLICTS, text))
}
