//! `pando snapshot`: make, list and delete snapshots of a directory of a mounted file system.

mod delete;
mod policies;
mod policy;
mod select;
mod table;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pando_fs::{NewSnapshot, SnapshotInfo, SnapshotPolicy, Time};
use pando_fuse::{asked::Asked, control::Usage, tool};
use serde::Serialize;

use crate::{cmd::ReportName, exit, place, report::VERSION};
use delete::{DeleteMode, Going, Spending, Spent, delete, delete_each, make_room, mounted, tell_dry};
pub use select::show_age;
use select::{Age, about, select};
use table::Column;

/// Make, list and delete read-only snapshots of any directory
#[derive(clap::Args)]
#[command(
    after_help = "A snapshot costs what a clone costs, whatever the size of the directory. It is seen as
DIR/.snapshots/NAME, which is in no listing of DIR. A user who may clone DIR may do all of this.
SEL is a name, a number, or a range of either: A..B, A.., ..B

Examples: pando snapshot create /mnt/grove/project before-upgrade
          pando snapshot list /mnt/grove/project
          ls /mnt/grove/project/.snapshots/before-upgrade
          pando snapshot prune /mnt/grove/project --keep-hourly 24 --keep-daily 7 --dry-run
          pando snapshot policy /mnt/grove/project --every 1h --keep-hourly 24 --keep-daily 7
          pando snapshot policies /mnt/grove
          pando rollback /mnt/grove/project before-upgrade"
)]
pub struct Args {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(clap::Subcommand)]
enum SnapshotCommand {
    /// Make a snapshot, atomically
    #[command(
        after_help = "AGE is a number with s, m, h, d, w or y behind it: seconds to years. If DIR is a symbolic link to
a directory, the snapshot is of that directory, as with all commands here. A crash of the machine may
take a snapshot of the last seconds, as any change; pando sync makes it durable.
Everything that was written before the command is in it. Of what programs write meanwhile, pages are
taken as the kernel hands them over, so a later write may be in it and an earlier one not, unless
fsync, close or the mount option writeback=off puts them in order.

Examples: pando snapshot create /mnt/grove/project before-upgrade
          pando snapshot create /mnt/grove/project --valid-for 2w --note 'before the upgrade'"
    )]
    Create {
        /// A directory in a mounted Pando file system
        dir: PathBuf,
        /// Its name. Default: the time in UTC, like 2026-11-24T13:45:00Z
        name: Option<String>,
        /// Refuse to delete it until it is released
        #[arg(long)]
        keep: bool,
        /// Keep it from prune and policies for so long, like 12h, 7d or 2w; then they delete it. Default: they decide
        #[arg(long, value_name = "AGE")]
        valid_for: Option<Age>,
        /// A few words about it. Default: none
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        note: String,
    },
    /// List the snapshots of a directory
    #[command(
        after_help = "COLUMN is number, name, age, created, refers, alone, flags, user, source or note. Refers
and alone are found out if they are asked for, as with --space.

Examples: pando snapshot list /mnt/grove/project
          pando snapshot list -H -o name /mnt/grove/project
          pando snapshot list --space -S alone /mnt/grove/project"
    )]
    List {
        /// A directory in a mounted Pando file system
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// No header, and fields with one tab between, for scripts; '-' is what is not known or not there, and control
        /// characters and backslashes of names are written as \ooo
        #[arg(short = 'H')]
        script: bool,
        /// Print JSON, with a version of its format
        #[arg(long, conflicts_with = "script")]
        json: bool,
        /// Also how many bytes each refers to, and how many would come back if it alone were deleted, as pando du
        /// counts them; with ~ (not with -H) if a part of these is an estimate
        #[arg(long)]
        space: bool,
        /// Show these columns, with commas between, in this order
        #[arg(
            short = 'o',
            value_name = "COLUMN,...",
            value_delimiter = ',',
            hide_possible_values = true,
            conflicts_with = "json"
        )]
        columns: Vec<Column>,
        /// Sort by a column, the least first; by age the youngest. Default: in the order in which they were made
        #[arg(short = 's', value_name = "COLUMN", hide_possible_values = true)]
        sort: Option<Column>,
        /// Sort by a column, the greatest first
        #[arg(short = 'S', value_name = "COLUMN", hide_possible_values = true, conflicts_with = "sort")]
        sort_descending: Option<Column>,
    },
    /// Delete snapshots; what they alone took is given back in the background
    #[command(
        after_help = "SEL is a name, a number, or a range of either: A..B, A.., ..B. AGE is a number with s, m, h,
d, w or y behind it: seconds to years. Snapshots that are kept are left; to name one is an error. One that
is mounted (pando mount -o snapshot=, or a bind mount) is not deleted, but the others are; the exit code
is 4 then. What is deleted is printed; if another command is faster, that is no error. With --dry-run the
bytes of each are those that would come back if it alone were deleted, with ~ if a part is an estimate;
the last line is for all of them together.

Examples: pando snapshot delete /mnt/grove/project before-upgrade
          pando snapshot delete /mnt/grove/project 3..7 --dry-run
          pando snapshot delete /mnt/grove/project --older-than 30d"
    )]
    Delete {
        #[command(flatten)]
        which: Which,
        /// Delete nothing; print what would be deleted
        #[arg(short = 'n', long)]
        dry_run: bool,
        /// With --dry-run: print JSON, with a version of its format
        #[arg(long, requires = "dry_run")]
        json: bool,
    },
    /// Give a snapshot another name
    #[command(after_help = "Example: pando snapshot rename /mnt/grove/project before-upgrade v1")]
    Rename {
        /// A directory in a mounted Pando file system
        dir: PathBuf,
        /// Its name or number
        sel: String,
        /// The new name
        name: String,
    },
    /// Keep snapshots from being deleted
    #[command(
        after_help = "SEL is a name, a number, or a range of either: A..B, A.., ..B. AGE is a number with s, m, h,
d, w or y behind it: seconds to years.

Example: pando snapshot keep /mnt/grove/project before-upgrade"
    )]
    Keep(Which),
    /// Let snapshots be deleted again
    #[command(
        after_help = "SEL is a name, a number, or a range of either: A..B, A.., ..B. AGE is a number with s, m, h,
d, w or y behind it: seconds to years.

Example: pando snapshot release /mnt/grove/project before-upgrade"
    )]
    Release(Which),
    /// Delete the snapshots that a policy does not keep
    #[command(
        after_help = "The options are the policy; the one that pando snapshot policy has stored is not used.

Examples: pando snapshot prune /mnt/grove/project --keep-hourly 24 --keep-daily 7 --dry-run
          pando snapshot prune /mnt/grove/project --keep-last 10 --min-free 20%"
    )]
    Prune {
        /// A directory in a mounted Pando file system
        dir: PathBuf,
        #[command(flatten)]
        keep: policy::Keep,
        /// Then delete the oldest that are left, one by one, while less than this is free in the file system (whatever
        /// quotas say), like 10%. Those that are kept, or still valid, stay
        #[arg(long, value_name = "PERCENT", value_parser = policy::percent, conflicts_with = "dry_run")]
        min_free: Option<u8>,
        /// Delete nothing; print what would be deleted. Not with --min-free
        #[arg(short = 'n', long)]
        dry_run: bool,
        /// With --dry-run: print JSON, with a version of its format
        #[arg(long, requires = "dry_run")]
        json: bool,
    },
    Policy(policy::Args),
    Policies(policies::Args),
    /// List the snapshots of directories that are gone
    #[command(
        after_help = "Snapshots stay when their directory is removed, or replaced, or is not there any more after a
rollback of one above it. pando snapshot adopt gives them to a directory that is there. Only root may
do this, where the root of the file system is mounted. REFERS and ALONE are the bytes that each refers
to, and those that would come back if it alone were deleted, as pando du counts them (~ if a part is an
estimate), or - if that cannot be told; USER is who made it. With -H these three are the last fields. It
reads the records of all files, and Ctrl-C ends it.
With --delete all of them are deleted that are not kept. What is kept is left: adopt it, and release it.

Examples: pando snapshot orphans /mnt/grove
          pando snapshot orphans -H /mnt/grove | cut -f1,5,7
          pando snapshot orphans --delete --dry-run /mnt/grove"
    )]
    Orphans {
        /// A directory in a mounted Pando file system, which is looked through as a whole
        #[arg(default_value = ".")]
        dir: PathBuf,
        /// No header, and fields with one tab between, for scripts; '-' is what is not known or not there, and control
        /// characters and backslashes of names are written as \ooo
        #[arg(short = 'H')]
        script: bool,
        /// Print JSON, with a version of its format
        #[arg(long, conflicts_with = "script")]
        json: bool,
        /// Delete them all, but for those that are kept; what they alone took is given back in the background
        #[arg(long, conflicts_with = "script")]
        delete: bool,
        /// Delete nothing; print what would be deleted
        #[arg(short = 'n', long, requires = "delete")]
        dry_run: bool,
    },
    /// Give a directory the snapshots of one that is gone
    #[command(
        after_help = "All snapshots of the directory that snapshot NUMBER was made of become those of DIR, which must
have none. Then they can be listed, read, cloned and deleted there, and DIR can be rolled back to
one. Only root may do this, where the root of the file system is mounted. NUMBER is as pando snapshot
orphans lists it.

Example: mkdir /mnt/grove/lost && pando snapshot adopt /mnt/grove/lost 17"
    )]
    Adopt {
        /// A directory in a mounted Pando file system
        dir: PathBuf,
        /// The number of one of the snapshots
        number: u32,
    },
}

#[derive(clap::Args)]
struct Which {
    /// A directory in a mounted Pando file system
    dir: PathBuf,
    /// Names, numbers, or ranges A..B
    #[arg(value_name = "SEL")]
    selections: Vec<String>,
    /// Of these, or of all if no SEL is given, only those that are older, like 90m, 12h or 30d
    #[arg(long, value_name = "AGE")]
    older_than: Option<Age>,
}

pub fn run(args: &Args) -> Result<()> {
    match &args.command {
        SnapshotCommand::Create { dir, name, keep, valid_for, note } => {
            let new = NewSnapshot {
                name: name.as_ref().map(Into::into),
                keep: *keep,
                valid_for_secs: valid_for.map(|age| age.0),
                note: note.clone(),
                ..NewSnapshot::default()
            };
            if name.as_ref().is_some_and(|name| name.is_empty()) {
                bail!("an empty name; leave it out for the time as the name");
            }
            if valid_for.is_some_and(|age| age.0 == 0) {
                bail!("--valid-for 0: give at least a second");
            }
            if note.len() > pando_fs::MAX_SNAPSHOT_NOTE {
                bail!("--note has at most {} bytes", pando_fs::MAX_SNAPSHOT_NOTE);
            }
            let made = place::retried(|| Ok(tool::make_snapshot(dir, new.clone())?));
            let (made, unstored) = made.with_context(|| about(dir))?;
            crate::cmd::warn_unstored(unstored, dir);
            let names = made.iter().map(|info| format!("{}\n", crate::cmd::field(&info.name, false)));
            crate::cmd::print(&names.collect::<String>())
        }
        SnapshotCommand::List { dir, script, json, space, columns, sort, sort_descending } => {
            let by = sort.map(|by| (by, false)).or(sort_descending.map(|by| (by, true)));
            let space = *space || columns.iter().chain(by.iter().map(|(by, _)| by)).any(|c| c.is_of_space());
            let columns = if columns.is_empty() { &table::usual(space, false, *script) } else { columns };
            let mut lines = lines(dir, space)?;
            if let Some((by, descending)) = by {
                table::sort(&mut lines, by, descending);
            }
            show(lines, columns, *script, *json)
        }
        SnapshotCommand::Delete { which, dry_run, json } => {
            let all = snapshots(&which.dir)?;
            let of = which.of(&all)?;
            let mode = DeleteMode { dry_run: *dry_run, json: *json, ..DeleteMode::default() };
            delete(&which.dir, &all, &of, mode)?;
            match of.iter().find(|info| info.keep && which.names(info)) {
                Some(kept) if !dry_run => bail!("{}: is kept; release it first", kept.name.display()),
                _ => Ok(()),
            }
        }
        SnapshotCommand::Rename { dir, sel, name } => {
            let all = snapshots(dir)?;
            let [info] = select(&all, std::slice::from_ref(sel), None, Time::now())?[..] else {
                bail!("{sel}: means several snapshots");
            };
            let asked = Asked::Rename(info.number, name.into());
            ask(dir, &asked).with_context(|| about(dir))
        }
        SnapshotCommand::Keep(which) => keep(which, true),
        SnapshotCommand::Release(which) => keep(which, false),
        SnapshotCommand::Prune { dir, keep, min_free, dry_run, json } => {
            let all = snapshots(dir)?;
            let policy = SnapshotPolicy::from(keep);
            if policy == SnapshotPolicy::default() && min_free.is_none() {
                bail!(
                    "{}: nothing is deleted without a policy; give one, like --keep-last 10",
                    dir.display()
                );
            }
            let gone = policy.expired(Time::now(), &all);
            let gone: Vec<_> = all.iter().filter(|info| gone.contains(&info.number)).collect();
            let mode = DeleteMode { dry_run: *dry_run, json: *json, by_rule: true, gone: false };
            delete(dir, &all, &gone, mode)?;
            min_free.map_or(Ok(()), |percent| make_room(dir, percent))
        }
        SnapshotCommand::Policy(args) => policy::run(args),
        SnapshotCommand::Policies(args) => policies::run(args),
        SnapshotCommand::Orphans { dir, script, json, delete, dry_run } => {
            if *delete && *json && !*dry_run {
                let text = "--json goes with --delete only for --dry-run";
                return Err(crate::exit::Coded(crate::exit::USAGE, text.into()).into());
            }
            let fail = || format!("snapshots of directories that are gone in {}", dir.display());
            let found = tool::gone_snapshots(dir).with_context(fail)?;
            if *delete {
                let mounted = if *dry_run { mounted(dir, true)? } else { Default::default() };
                let which = found.iter().map(|(info, used)| Going {
                    info,
                    alone: *used,
                    shown: mounted.get(&info.number).cloned(),
                });
                let which: Vec<_> = which.collect();
                let mode = DeleteMode { dry_run: *dry_run, json: *json, by_rule: false, gone: true };
                let all: Vec<_> = found.iter().map(|(info, _)| info).collect();
                return match *dry_run {
                    true => tell_dry(dir, &all, &which, mode),
                    false => delete_each(dir, &which, mode),
                };
            }
            let lines = found.into_iter().map(|(info, used)| line(info, used.as_ref())).collect();
            show(lines, &table::usual(true, true, *script), *script, *json)
        }
        SnapshotCommand::Adopt { dir, number } => {
            place::retried(|| Ok(tool::adopt_snapshots(dir, *number)?)).with_context(|| about(dir))
        }
    }
}

impl Which {
    fn of<'a>(&self, all: &'a [SnapshotInfo]) -> Result<Vec<&'a SnapshotInfo>> {
        select(all, &self.selections, self.older_than, Time::now())
    }

    /// Whether a snapshot is named itself, not as one of several.
    fn names(&self, info: &SnapshotInfo) -> bool {
        let number = info.number.to_string();
        self.selections.iter().any(|sel| *sel == number || info.name.to_str() == Some(sel))
    }
}

/// The snapshot of `dir` that `sel` means.
pub fn find(dir: &Path, sel: &str) -> Result<SnapshotInfo> {
    let all = snapshots(dir)?;
    match select(&all, &[sel.to_owned()], None, Time::now())?[..] {
        [info] => Ok(info.clone()),
        _ => bail!("{sel}: means several snapshots"),
    }
}

/// Has something done to the snapshots of a directory.
fn ask(dir: &Path, asked: &Asked) -> Result<()> {
    place::retried(|| Ok(tool::snapshot(dir, asked.clone()).map(drop)?))
}

/// The snapshots of a directory. An error for the directory that holds them, which has none of its own.
fn snapshots(dir: &Path) -> Result<Vec<SnapshotInfo>> {
    let found = place::retried(|| Ok(tool::list_snapshots(dir)?)).with_context(|| about(dir))?;
    if found.is_empty()
        && let Ok(whole) = dir.canonicalize()
        && let Some(source) = whole.parent().filter(|_| whole.ends_with(".snapshots"))
    {
        bail!("{}: holds the snapshots of {}; name that directory", dir.display(), source.display());
    }
    Ok(found)
}

/// The snapshots of a directory; none of one that the caller may not open, which is said on stderr.
pub fn snapshots_if_allowed(dir: &Path) -> Result<Vec<SnapshotInfo>> {
    match tool::list_snapshots(dir) {
        Err(e) if matches!(e.errno(), Some(libc::EACCES | libc::EPERM)) => {
            exit::tell!("pando: {}: permission denied: its snapshots are left out", dir.display());
            Ok(Vec::new())
        }
        found => found.with_context(|| about(dir)),
    }
}

fn keep(which: &Which, keep: bool) -> Result<()> {
    let all = snapshots(&which.dir)?;
    for info in which.of(&all)? {
        ask(&which.dir, &Asked::Keep(info.number, keep)).with_context(|| about(&which.dir))?;
    }
    Ok(())
}

#[derive(Serialize)]
struct SnapshotReport {
    version: u32,
    snapshots: Vec<SnapshotLine>,
}

#[derive(Serialize)]
struct SnapshotLine {
    number: u32,
    name: ReportName,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    created: String,
    created_seconds: i64,
    source: ReportName,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_hex: Option<String>,
    keep: bool,
    automatic: bool,
    valid_for_seconds: Option<u64>,
    uid: u32,
    note: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    refers: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    alone: Option<u64>,
    /// How much of `alone` is an estimate.
    #[serde(skip_serializing_if = "Option::is_none")]
    estimated: Option<u64>,
}

fn line(info: SnapshotInfo, used: Option<&Usage>) -> SnapshotLine {
    SnapshotLine {
        number: info.number,
        name_hex: crate::cmd::hex_unless_text(&info.name),
        name: info.name.into(),
        created: info.created.to_utc(),
        created_seconds: info.created.secs,
        source_hex: crate::cmd::hex_unless_text(&info.source),
        source: info.source.into(),
        keep: info.keep,
        automatic: info.automatic,
        valid_for_seconds: info.valid_for_secs,
        uid: info.uid,
        note: info.note,
        refers: used.map(|used| used.stored),
        alone: used.map(|used| used.exclusive),
        estimated: used.map(|used| used.estimated),
    }
}

/// The snapshots of a directory, with their sizes if `space` is asked for.
fn lines(dir: &Path, space: bool) -> Result<Vec<SnapshotLine>> {
    let mut lines = Vec::new();
    let all = snapshots(dir)?;
    let mut known = Spending::of(dir, if space { all.len() } else { 0 });
    for info in all {
        match space.then(|| known.spent(&info)).transpose()? {
            Some(Spent::Gone) => {}
            Some(Spent::Known(used)) => lines.push(line(info, Some(&used))),
            None | Some(Spent::Refused) => lines.push(line(info, None)),
        }
    }
    Ok(lines)
}

fn show(lines: Vec<SnapshotLine>, columns: &[Column], script: bool, json: bool) -> Result<()> {
    match json {
        true => crate::cmd::print_json(&SnapshotReport { version: VERSION, snapshots: lines }),
        false => crate::cmd::print(&table::text(&lines, columns, script, Time::now())),
    }
}
