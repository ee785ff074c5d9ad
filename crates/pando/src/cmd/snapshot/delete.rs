//! Deleting snapshots: what is said of it, and what a dry run tells of the space that would come back.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fs::{SnapshotInfo, Time};
use pando_fuse::{asked::Asked, client::ControlError, control::Usage, tool};
use serde::Serialize;

use crate::{
    cmd::{
        ReportName,
        snapshot::{about, ask, snapshots, table::marked},
    },
    exit, place,
    report::VERSION,
    size,
};

/// Of so many snapshots each is asked for by itself, because one walk over all may read more.
const FEW_ASKED: usize = 3;

/// What is done to snapshots that go.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeleteMode {
    /// Nothing: it is only told.
    pub dry_run: bool,
    /// As JSON.
    pub json: bool,
    /// They are those that no rule keeps: one that is mounted is left, which is no failure.
    pub by_rule: bool,
    /// Their directories are gone.
    pub gone: bool,
}

/// A snapshot that is to go.
pub struct Going<'a> {
    pub info: &'a SnapshotInfo,
    /// What it alone takes, if that is known.
    pub alone: Option<Usage>,
    /// Where it is mounted.
    pub shown: Option<PathBuf>,
}

/// What a dry run tells.
#[derive(Serialize)]
struct DryReport {
    version: u32,
    snapshots: Vec<DryLine>,
    /// What would come back if all of these were deleted.
    together: Option<u64>,
    /// How much of `together` is an estimate.
    together_estimated: Option<u64>,
}

#[derive(Serialize)]
struct DryLine {
    number: u32,
    name: ReportName,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_hex: Option<String>,
    action: &'static str,
    why: Option<&'static str>,
    alone: Option<u64>,
    /// How much of `alone` is an estimate.
    estimated: Option<u64>,
}

impl Going<'_> {
    fn plain(info: &SnapshotInfo) -> Going<'_> {
        Going { info, alone: None, shown: None }
    }

    /// Why it stays, in a word.
    fn stays(&self) -> Option<&'static str> {
        match (self.info.keep, &self.shown) {
            (true, _) => Some("kept"),
            (false, Some(_)) => Some("mounted"),
            (false, None) => None,
        }
    }

    fn dry_line(&self) -> DryLine {
        let (info, why) = (self.info, self.stays());
        let alone = self.alone.filter(|_| why.is_none());
        DryLine {
            number: info.number,
            name_hex: crate::cmd::hex_unless_text(&info.name),
            name: info.name.clone().into(),
            action: if why.is_some() { "leave" } else { "delete" },
            alone: alone.map(|used| used.exclusive),
            estimated: alone.map(|used| used.estimated),
            why,
        }
    }

    fn dry_text(&self) -> String {
        let (number, name) = (self.info.number, crate::cmd::field(&self.info.name, false));
        match (&self.shown, self.stays()) {
            (Some(dir), Some("mounted")) => {
                format!("would leave {number} {name}: it is mounted on {}\n", crate::cmd::field(dir, false))
            }
            (_, Some(_)) => format!("would leave {number} {name}: it is kept\n"),
            (_, None) => {
                let alone = self.alone.as_ref().map_or("-".into(), shown_alone);
                format!("would delete {number} {name}: {alone} of its own\n")
            }
        }
    }
}

/// Deletes some of the snapshots of a directory, `all` of which are needed for a dry run only.
pub fn delete(dir: &Path, all: &[SnapshotInfo], which: &[&SnapshotInfo], mode: DeleteMode) -> Result<()> {
    if !mode.dry_run {
        let which: Vec<_> = which.iter().map(|info| Going::plain(info)).collect();
        return delete_each(dir, &which, mode);
    }
    let mounted = mounted(dir, false)?;
    let mut known = Spending::of(dir, which.len());
    let mut sized = Vec::new();
    for info in which {
        let going = Going { shown: mounted.get(&info.number).cloned(), ..Going::plain(info) };
        match if going.stays().is_some() { Spent::Refused } else { known.spent(info)? } {
            Spent::Gone => {}
            Spent::Refused => sized.push(going),
            Spent::Known(used) => sized.push(Going { alone: Some(used), ..going }),
        }
    }
    tell_dry(dir, &all.iter().collect::<Vec<_>>(), &sized, mode)
}

/// Where snapshots of `dir`, or of directories that are gone, are mounted. Error if the caller may not delete them. A
/// daemon of an earlier version does not tell, and then a dry run tells of all others what it would do.
pub fn mounted(dir: &Path, gone: bool) -> Result<BTreeMap<u32, PathBuf>> {
    match place::retried(|| Ok(tool::mounted_snapshots(dir, gone)?)) {
        Err(e) if [libc::EROFS, libc::EINVAL].iter().any(|errno| failed_with(&e, *errno)) => {
            Ok(BTreeMap::new())
        }
        found => Ok(found.with_context(|| about(dir))?.into_iter().collect()),
    }
}

/// Tells what a deletion would do, and what would come back of all of them. `all` are those among which the daemon
/// looks for them.
pub fn tell_dry(dir: &Path, all: &[&SnapshotInfo], which: &[Going<'_>], mode: DeleteMode) -> Result<()> {
    let together = together(dir, all, which, mode.gone);
    if mode.json {
        let snapshots = which.iter().map(Going::dry_line).collect();
        return crate::cmd::print_json(&DryReport {
            version: VERSION,
            snapshots,
            together: together.map(|used| used.exclusive),
            together_estimated: together.map(|used| used.estimated),
        });
    }
    let mut said: String = which.iter().map(Going::dry_text).collect();
    if which.iter().filter(|going| going.stays().is_none()).count() > 1 {
        said += &match &together {
            Some(used) => format!("together: {} would come back\n", shown_alone(used)),
            None => "together: not known; what they share with each other alone would come back too\n".into(),
        };
    }
    crate::cmd::print(&said)
}

/// What would come back, with a mark if a part of it is an estimate.
fn shown_alone(used: &Usage) -> String {
    marked(size::show(used.exclusive), used.estimated > 0)
}

/// What would come back if all of `which` that go were deleted. What several share with each other is not in the
/// figures of each.
fn together(dir: &Path, all: &[&SnapshotInfo], which: &[Going<'_>], gone: bool) -> Option<Usage> {
    let mut sorted = all.to_vec();
    sorted.sort_by_key(|info| info.number);
    let going = which.iter().filter(|going| going.stays().is_none());
    let goes: BTreeMap<u32, Option<Usage>> = going.map(|going| (going.info.number, going.alone)).collect();
    if goes.len() < 2 {
        return goes.into_values().next().unwrap_or(Some(Usage::default()));
    }
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    let mut joined = false;
    for info in sorted {
        let goes = goes.contains_key(&info.number);
        match (goes, ranges.last_mut().filter(|_| joined)) {
            (true, Some((_, last))) => *last = info.number,
            (true, None) => ranges.push((info.number, info.number)),
            (false, _) => {}
        }
        joined = goes;
    }
    // Who may delete them may be refused a look into them.
    tool::usage_of_snapshots(dir, ranges, gone).ok().flatten()
}

/// Deletes those that are not kept. Somebody may have taken one of a directory that is gone meanwhile, so all that can
/// be are deleted; and so are the others where some are mounted.
pub fn delete_each(dir: &Path, which: &[Going<'_>], mode: DeleteMode) -> Result<()> {
    let mut unprinted = None;
    let work = |going: &Going<'_>| -> Result<()> {
        let info = going.info;
        let (number, name) = (info.number, crate::cmd::field(&info.name, false));
        let about = || match mode.gone {
            true => format!("snapshot {number} {name} of {}, which is gone", info.source.display()),
            false => format!("snapshot {name} of {}", dir.display()),
        };
        if info.keep {
            exit::tell!("pando: {}: is kept, and was left", about());
            return Ok(());
        }
        let done = match mode.gone {
            true => place::retried(|| Ok(tool::delete_gone_snapshot(dir, number)?)),
            false => ask(dir, &Asked::Delete(number)),
        };
        match done {
            // Another prune or delete, or the policy, was faster.
            Err(e) if is_refused(&e, libc::ENOENT) => Ok(()),
            Err(e) if mode.by_rule && is_refused(&e, libc::EBUSY) => {
                exit::tell!("pando: {} was left: {e:#}", about());
                Ok(())
            }
            done => {
                done.with_context(about)?;
                // What cannot be printed, because the disk is full for instance, is deleted all the same.
                let printed = crate::cmd::print(&format!("deleted {number} {name}\n"));
                unprinted = unprinted.take().or(printed.err());
                Ok(())
            }
        }
    };
    exit::each_unless(which, |e| !mode.gone && !is_refused(e, libc::EBUSY), work)?;
    unprinted.map_or(Ok(()), Err)
}

/// Whether it has failed with this error, for the daemon or on the way to it.
fn failed_with(error: &anyhow::Error, errno: i32) -> bool {
    error.downcast_ref::<ControlError>().is_some_and(|cause| cause.errno() == Some(errno))
}

/// Whether the daemon has refused it with this error. That the directory is not there is something else.
fn is_refused(error: &anyhow::Error, errno: i32) -> bool {
    let cause = error.downcast_ref::<ControlError>();
    matches!(cause, Some(ControlError::Refused { errno: found, .. }) if *found == errno)
}

/// What is known of the space of a snapshot.
pub enum Spent {
    Known(Usage),
    /// The caller may not see all that is in it.
    Refused,
    /// It was deleted meanwhile.
    Gone,
}

/// What the snapshots of a directory take.
pub struct Spending<'a> {
    dir: &'a Path,
    known: BTreeMap<u32, Option<Usage>>,
}

impl Spending<'_> {
    /// Of a directory of which so many are asked for. If they are more than a few, one request tells of all.
    pub fn of(dir: &Path, asked: usize) -> Spending<'_> {
        let together = asked > FEW_ASKED;
        // Where a daemon of an earlier version does not tell, each is asked for.
        let known = together.then(|| tool::usage_of_each_snapshot(dir).ok()).flatten();
        Spending { dir, known: known.unwrap_or_default() }
    }

    pub fn spent(&mut self, info: &SnapshotInfo) -> Result<Spent> {
        match self.known.remove(&info.number) {
            Some(Some(used)) => Ok(Spent::Known(used)),
            Some(None) => Ok(Spent::Refused),
            None => spent(self.dir, info),
        }
    }
}

fn spent(dir: &Path, info: &SnapshotInfo) -> Result<Spent> {
    let mut info = info.clone();
    loop {
        let path = dir.join(".snapshots").join(&info.name);
        let failed = match tool::usage(&path) {
            Ok(used) => return Ok(Spent::Known(used)),
            Err(e) => e,
        };
        match failed.errno() {
            Some(libc::EACCES | libc::EPERM) => return Ok(Spent::Refused),
            Some(libc::ENOENT | libc::ESTALE) => {}
            _ => return Err(failed).with_context(|| format!("{}", path.display())),
        }
        // It may have got another name.
        match snapshots(dir)?.into_iter().find(|now| now.number == info.number) {
            None => return Ok(Spent::Gone),
            Some(now) if now.name == info.name => {
                return Err(failed).with_context(|| format!("{}", path.display()));
            }
            Some(now) => info = now,
        }
    }
}

/// Deletes the oldest snapshots that are not kept, and whose period of validity is over if they have one, until so much
/// of the file system is free, or none is left.
pub fn make_room(dir: &Path, percent: u8) -> Result<()> {
    // What those that were deleted had is given back behind: the daemon waits for that, and knows what is free where a
    // quota tells something else.
    let is_free = || tool::becomes_free(dir, percent).with_context(|| about(dir));
    let now = Time::now().secs;
    let mut all = snapshots(dir)?;
    all.retain(|info| !info.keep && info.valid_until().is_none_or(|until| until <= now));
    all.sort_by_key(|info| (info.created, info.number));
    let mut unprinted = None;
    for info in &all {
        if is_free()? {
            return unprinted.map_or(Ok(()), Err);
        }
        let deleted = delete(dir, &[], &[info], DeleteMode { by_rule: true, ..DeleteMode::default() });
        let is_left = snapshots(dir)?.iter().any(|left| left.number == info.number);
        match deleted {
            Err(e) if is_left => return Err(e),
            // It is deleted, and only not printed, because the disk is full. (If it is left, it is mounted.)
            Err(e) => unprinted = unprinted.or(Some(e)),
            Ok(()) => {}
        }
    }
    match is_free()? {
        false => bail!("{}: less than {percent}% is free, and no snapshot is left to delete", dir.display()),
        true => unprinted.map_or(Ok(()), Err),
    }
}
