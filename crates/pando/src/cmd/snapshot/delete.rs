//! Deleting snapshots: what is said of it, and what a dry run tells of the space that would come back.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context, Result, bail};
use pando_fs::SnapshotInfo;
use pando_fuse::{asked::Asked, client::ControlError, control::Usage, tool};

use crate::{
    cmd::snapshot::{about, ask, snapshots},
    place, size,
};

/// How long prune waits for the space of a snapshot that it has deleted before it deletes another one.
const ROOM_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// Deletes some of the snapshots of a directory, `all` of which are needed for a dry run only.
pub fn delete(dir: &Path, all: &[SnapshotInfo], which: &[&SnapshotInfo], dry_run: bool) -> Result<()> {
    if !dry_run {
        let which: Vec<_> = which.iter().map(|info| (*info, None)).collect();
        return delete_each(dir, &which, false, false);
    }
    let mut sized = Vec::new();
    for info in which {
        match if info.keep { Spent::Refused } else { spent(dir, info)? } {
            Spent::Gone => {}
            Spent::Refused => sized.push((*info, None)),
            Spent::Known(used) => sized.push((*info, Some(used.exclusive))),
        }
    }
    delete_each(dir, &sized, true, false)?;
    say_together(dir, &all.iter().collect::<Vec<_>>(), which, false)
}

/// Says what would come back if all of `which` that are not kept were deleted, unless it is one. What several share
/// with each other is not in the figures of each. `all` are those among which the daemon looks for them.
pub fn say_together(dir: &Path, all: &[&SnapshotInfo], which: &[&SnapshotInfo], gone: bool) -> Result<()> {
    let mut sorted = all.to_vec();
    sorted.sort_by_key(|info| info.number);
    let goes: BTreeSet<u32> = which.iter().filter(|info| !info.keep).map(|info| info.number).collect();
    if goes.len() < 2 {
        return Ok(());
    }
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    let mut joined = false;
    for info in sorted {
        match (goes.contains(&info.number), ranges.last_mut().filter(|_| joined)) {
            (true, Some((_, last))) => *last = info.number,
            (true, None) => ranges.push((info.number, info.number)),
            (false, _) => {}
        }
        joined = goes.contains(&info.number);
    }
    // Who may delete them may be refused a look into them.
    let together = tool::usage_of_snapshots(dir, ranges, gone).ok().flatten();
    crate::cmd::print(&match together {
        Some(used) => format!("together: {} would come back\n", size::show(used.exclusive)),
        None => "together: not known; what they share with each other alone would come back too\n".into(),
    })
}

/// Deletes those that are not kept, or says what each alone takes. Somebody may have taken one of a directory that is
/// `gone` meanwhile, so all that can be are deleted.
pub fn delete_each(
    dir: &Path,
    which: &[(&SnapshotInfo, Option<u64>)],
    dry_run: bool,
    gone: bool,
) -> Result<()> {
    let (mut said, mut unprinted) = (String::new(), None);
    let work = |(info, alone): &(&SnapshotInfo, Option<u64>)| -> Result<()> {
        let (number, name) = (info.number, crate::cmd::field(&info.name, false));
        let about = || match gone {
            true => format!("snapshot {number} {name} of {}, which is gone", info.source.display()),
            false => format!("snapshot {name} of {}", dir.display()),
        };
        match (info.keep, dry_run) {
            (true, true) => said += &format!("would leave {number} {name}: it is kept\n"),
            (true, false) => crate::exit::tell!("pando: {}: is kept, and was left", about()),
            (false, true) => {
                let alone = alone.map_or("-".into(), size::show);
                said += &format!("would delete {number} {name}: {alone} of its own\n");
            }
            (false, false) => {
                let done = match gone {
                    true => place::retried(|| Ok(tool::delete_gone_snapshot(dir, number)?)),
                    false => ask(dir, &Asked::Delete(number)),
                };
                match done {
                    // Another prune or delete, or the policy, was faster.
                    Err(e) if is_gone(&e) => {}
                    done => {
                        done.with_context(about)?;
                        // What cannot be printed, because the disk is full for instance, is deleted all the same.
                        let printed = crate::cmd::print(&format!("deleted {number} {name}\n"));
                        unprinted = unprinted.take().or(printed.err());
                    }
                }
            }
        }
        Ok(())
    };
    if gone { crate::exit::each(which, work) } else { which.iter().try_for_each(work) }?;
    unprinted.map_or(Ok(()), Err)?;
    crate::cmd::print(&said)
}

/// Whether there is no such snapshot any more. That the directory is not there is something else.
fn is_gone(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<ControlError>();
    matches!(cause, Some(ControlError::Refused { errno: libc::ENOENT, .. }))
}

/// What is known of the space of a snapshot.
pub enum Spent {
    Known(Usage),
    /// The caller may not see all that is in it.
    Refused,
    /// It was deleted meanwhile.
    Gone,
}

pub fn spent(dir: &Path, info: &SnapshotInfo) -> Result<Spent> {
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

/// Deletes the oldest snapshots that are not kept until so much is free, or none is left.
pub fn make_room(dir: &Path, percent: u8) -> Result<()> {
    let free = || rustix::fs::statvfs(dir).map(|s| (s.f_bfree, s.f_blocks)).with_context(|| about(dir));
    let is_short = |(free, all): (u64, u64)| u128::from(free) * 100 < u128::from(all) * u128::from(percent);
    let mut all = snapshots(dir)?;
    all.retain(|info| !info.keep);
    all.sort_by_key(|info| (info.created, info.number));
    let mut unprinted = None;
    for info in &all {
        let before = free()?;
        if !is_short(before) {
            return unprinted.map_or(Ok(()), Err);
        }
        if let Err(e) = delete(dir, &[], &[info], false) {
            // It may be deleted, and only not printed, because the disk is full.
            if snapshots(dir)?.iter().any(|left| left.number == info.number) {
                return Err(e);
            }
            unprinted = unprinted.or(Some(e));
        }
        // What it alone had is given back behind.
        let begun = std::time::Instant::now();
        while begun.elapsed() < ROOM_PATIENCE && free()?.0 <= before.0 {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
    match is_short(free()?) {
        true => bail!("{}: less than {percent}% is free, and no snapshot is left to delete", dir.display()),
        false => unprinted.map_or(Ok(()), Err),
    }
}
