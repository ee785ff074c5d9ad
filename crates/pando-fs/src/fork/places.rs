//! The two trees of a merge: where they are, how both are held, and the plan for them.

use pando_db::{Batch, Snapshot};

use crate::{
    diff::side::Side,
    domain::copies_of_links,
    error::{Error, Result},
    fork::{
        bounds::Merging,
        no_fork,
        planner::Planner,
        report::{MergeChange, MergeKind, MergeOptions, MergeReport},
        step::{Plan, Trees},
        text::TextBudget,
    },
    forks::Fork,
    inode::{Ancestry, InodeRef, Link},
    lock::{Attempts, Guard, Obstacle, attempt_shared},
    path::{self},
    record::Record,
    volume::Fs,
};

/// Where a directory is.
#[derive(PartialEq, Eq)]
pub(crate) struct Place {
    pub entry: Vec<u8>,
    pub contents: Vec<u8>,
    /// Contents prefix of the root of the lineage.
    pub root: Vec<u8>,
}

/// Where both trees are, and the record of the fork.
#[derive(PartialEq, Eq)]
pub(crate) struct Places {
    pub fork: Fork,
    pub theirs: Place,
    pub ours: Place,
}

/// Where a directory seems to be, read without a lock.
struct Seen {
    place: Place,
    /// It, and the directories above.
    up: Ancestry,
    /// Which of them is the root of its lineage.
    root_at: usize,
}

impl Seen {
    fn of(dir: &InodeRef) -> Result<Self> {
        dir.must_be_dir()?;
        let up = dir.ancestry()?;
        let (mut contents, mut own, mut root, mut root_at) = (Vec::new(), 0, 0, up.len());
        for (at, inode) in up.iter().enumerate().rev() {
            let is_root = inode.peek(|s| match &s.link {
                Link::Root => Ok(true),
                Link::At { name, .. } => {
                    own = contents.len();
                    path::enter(&mut contents, name).map(|()| s.record.clone_id != 0)
                }
                _ => Err(Error::Stale(dir.ino)),
            })?;
            if is_root {
                (root, root_at) = (contents.len(), at);
            }
        }
        let root = contents.get(..root).unwrap_or_default().to_vec();
        let place = Place { entry: path::entry_of(&contents, own), contents, root };
        Ok(Self { place, up, root_at })
    }

    fn root(&self) -> Result<&InodeRef> {
        let damaged = Error::Damaged { what: "a merge".into(), detail: "a directory without a root above" };
        self.up.get(self.root_at).ok_or(damaged)
    }

    /// Whether it is still there.
    fn is(&self, other: &Self) -> bool {
        let inos = |seen: &Self| seen.up.iter().map(|inode| inode.ino).collect::<Vec<_>>();
        self.place == other.place && inos(self) == inos(other)
    }
}

/// A plan that was made beside other calls, and the state that it was made of.
pub(crate) type Planned = (Places, Snapshot, Plan);

impl Places {
    pub(crate) fn trees(&self, view: &Snapshot) -> Trees {
        let mark = path::snapshot(self.fork.number);
        let side = |p: &Place| Side::of_place(view, None, (&p.entry, &p.contents), p.root.clone());
        Trees {
            base: Side::of_place(view, None, (&mark, &mark), mark.clone()),
            theirs: side(&self.theirs),
            ours: side(&self.ours),
        }
    }

    /// Whether both trees are in `now` what they were in `then`.
    pub(crate) fn same(&self, then: &Snapshot, now: &Snapshot) -> Result<bool> {
        for place in [&self.theirs, &self.ours] {
            let meta = path::meta(&place.entry);
            if then.get(&meta)? != now.get(&meta)? {
                return Ok(false);
            }
            let own = path::attrs_under(&path::data(&place.entry));
            // Files with several names lie in an area of their lineage, perhaps outside of the tree.
            let area = path::all_linked(&place.root);
            let linked = [path::meta(&area), path::data(&area)];
            let inside = [path::meta(&place.contents), path::data(&place.contents), own];
            for prefix in inside.iter().chain(&linked) {
                if then.diff(prefix, now, prefix)?.next().transpose()?.is_some() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

impl Fs {
    /// Plans for trees that are those of these places, or copies of them.
    pub(crate) fn plan_of(
        &self,
        trees: &mut Trees,
        places: &Places,
        merging: Merging<'_>,
        text: TextBudget,
    ) -> Result<Plan> {
        let at = (places.theirs.contents.clone(), places.ours.contents.clone());
        Planner::new(trees, merging, text, at, self.has_links()).plan()
    }

    pub(crate) fn places_of(
        &self,
        fork: &InodeRef,
        into: &InodeRef,
        [theirs, ours]: [Place; 2],
    ) -> Result<Places> {
        if ours.contents.starts_with(&theirs.contents) {
            return Err(Error::Invalid(format!(
                "{}: is the fork, or lies in it; it is merged into what it was made of",
                into.label()
            )));
        }
        let found = self.fork_at(&theirs.contents)?.ok_or_else(|| no_fork(fork.label()))?;
        Ok(Places { fork: found, theirs, ours })
    }

    /// Holds both trees so that no call is in them, nor in the linked files of their lineages, and they stay where they
    /// are.
    pub(crate) fn hold_both(
        &self,
        tries: &mut Attempts,
        fork: &InodeRef,
        into: &InodeRef,
    ) -> Result<(Places, Vec<Guard>), Obstacle> {
        // Read without a lock: `tries` may hold one of these locks already, after waiting for it.
        let (theirs, ours) = (Seen::of(fork)?, Seen::of(into)?);
        let nested = theirs.place.contents.starts_with(&ours.place.contents);
        let outer = if nested { vec![&ours] } else { vec![&ours, &theirs] };
        // Each lock once, and whether exclusively.
        let mut wanted: Vec<(InodeRef, bool)> = Vec::new();
        let mut want = |inode: &InodeRef, exclusive| match wanted.iter_mut().find(|(i, _)| i.ino == inode.ino)
        {
            Some((_, is_exclusive)) => *is_exclusive |= exclusive,
            None => wanted.push((inode.clone(), exclusive)),
        };
        for seen in &outer {
            for (at, inode) in seen.up.iter().enumerate() {
                want(inode, at == 0);
            }
        }
        for seen in [&ours, &theirs] {
            // A call that changes such a file holds the tree of the root of its lineage.
            if self.has_link_area(&seen.place.root)? {
                want(seen.root()?, true);
            }
        }
        let mut held = Vec::new();
        for (inode, exclusive) in &wanted {
            held.push(match exclusive {
                true => tries.exclusive(&inode.tree)?,
                false => attempt_shared(&inode.tree)?,
            });
        }
        // Now that all above is held, nothing of it moves: is it all as it was seen?
        for (dir, seen) in [(fork, &theirs), (into, &ours)] {
            if !Seen::of(dir)?.is(seen) {
                return Err(Obstacle::Taken { lock: dir.names.clone(), exclusive: false });
            }
            let root = seen.root()?;
            let is_alone = wanted.iter().any(|(inode, exclusive)| *exclusive && inode.ino == root.ino);
            if !is_alone && self.has_link_area(&seen.place.root)? {
                return Err(Obstacle::Taken { lock: root.tree.clone(), exclusive: true });
            }
        }
        Ok((self.places_of(fork, into, [theirs.place, ours.place])?, held))
    }

    /// Adds the clone of the fork, which has this record, into the volume `number`.
    pub(crate) fn freeze_fork(
        &self,
        batch: &mut Batch,
        number: u32,
        fork: &Place,
        record: &Record,
    ) -> Result<()> {
        self.freeze(batch, number, (&fork.entry, &fork.contents), record)?;
        let mut around = false;
        // A fork is made as a root of a lineage, but may have been moved into another directory of that lineage since.
        if record.clone_id == 0 && self.has_links() {
            let damaged = || Error::Damaged { what: "a fork".into(), detail: "outside of its lineage" };
            let names = path::meta(&path::link_name(&fork.root, &fork.contents).ok_or_else(damaged)?);
            if self.db.prefix(&names).next().transpose()?.is_some() {
                for (from, to) in copies_of_links(&fork.root, names, &path::snapshot(number)) {
                    batch.clone_prefix(from, to);
                    around = true;
                }
            }
        }
        self.strip_later(batch, number, &fork.contents, around)
    }
}

/// The answer, if nothing is to be done.
pub(crate) fn stays(plan: &Plan, options: MergeOptions) -> Option<MergeReport> {
    let stops = |change: &MergeChange| match change.kind {
        MergeKind::Conflict(why) => options.prefer.is_none() || !why.is_settled_by_a_side(),
        _ => false,
    };
    (options.dry_run || plan.changes.iter().any(stops))
        .then(|| MergeReport { changes: plan.changes.clone(), merged: false })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{ffi::OsStr, sync::Arc};

    use pando_db::device::MemDevice;

    use super::*;
    use crate::types::{Caller, FormatOptions, MountOptions, ROOT};

    /// Somebody is in the directory, or anywhere in its lineage, whenever the merge does not wait for the end of that.
    #[test]
    fn both_trees_are_held_with_the_lock_that_was_waited_for() {
        for linked in [false, true] {
            let device = Arc::new(MemDevice::new(64 << 20));
            Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
            let fs = Fs::open(device, MountOptions::default().background(false)).unwrap();
            let (me, [s, f]) = (Caller::root(), ["s", "f"].map(OsStr::new));
            let top = fs.mkdir(&me, ROOT, s, 0o755).unwrap().ino;
            if linked {
                let file = fs.mknod(&me, top, OsStr::new("file"), 0o100_644, 0).unwrap().ino;
                fs.link(&me, file, ROOT, OsStr::new("name")).unwrap();
            }
            fs.fork_tree(&me, (ROOT, s), (ROOT, f), false, &[]).unwrap();
            let (fork, into) = (fs.dir(fs.lookup(ROOT, f).unwrap().ino).unwrap(), fs.dir(top).unwrap());
            let busy = if linked { fs.dir(ROOT).unwrap() } else { into.clone() };
            let mut runs = 0;
            let held = fs.with_attempts(|tries| {
                runs += 1;
                let free = tries.spare.is_none();
                let _somebody = free.then(|| attempt_shared(&busy.tree)).transpose()?;
                fs.hold_both(tries, &fork, &into).map(|(places, _held)| places.ours.contents)
            });
            assert_eq!((held.unwrap(), runs), (path::contents(b"", b"s").unwrap(), 2), "linked {linked}");
        }
    }
}
