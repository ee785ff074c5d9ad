//! Merging a fork: planned beside all others, then done in one batch while nobody is in either tree.
//!
//! The plan is made of a frozen state, without a lock. Then both trees are held, and if nothing in them has changed
//! since, the plan is carried out; else it is made again, the last time while both are held. A plan of more than a
//! batch is for `large`. Guarantees that a merge is of one moment, and all of it or nothing. Uses plans and what
//! carries them out.

use std::sync::atomic::AtomicBool;

use pando_db::{Batch, Snapshot};

use crate::{
    account::AccountChange,
    bill::{Above, Bill, Taken},
    diff::side::Side,
    domain::copies_of_links,
    error::{Error, Result},
    fork::{
        apply::Apply,
        bounds::{Bounds, Merging},
        no_fork,
        plan::Planner,
        step::{Plan, Step, Trees},
        text::TextBudget,
        told::{MergeChange, MergeKind, MergeOptions, MergeReport},
    },
    forks::Fork,
    inode::{Ancestry, InodeRef, Link},
    lock::{Attempts, Guard, Obstacle, attempt_shared},
    merge::Change,
    path::{self, system},
    place::may_change,
    record::Record,
    types::{CloneReport, Ino, ROOT},
    volume::Fs,
};

/// How often a plan is made beside others before they are held up, a count.
const ATTEMPTS: u32 = 3;

/// Where a directory is.
#[derive(PartialEq, Eq)]
pub(crate) struct Place {
    pub entry: Vec<u8>,
    pub contents: Vec<u8>,
    /// Contents prefix of the root of the lineage.
    pub root: Vec<u8>,
}

/// Where both are, and what is stored of the fork.
#[derive(PartialEq, Eq)]
pub(crate) struct Places {
    pub fork: Fork,
    pub theirs: Place,
    pub ours: Place,
}

/// Where a directory seems to be, to one who holds nothing.
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

    /// Whether it is there still.
    fn is(&self, other: &Self) -> bool {
        let inos = |seen: &Self| seen.up.iter().map(|inode| inode.ino).collect::<Vec<_>>();
        self.place == other.place && inos(self) == inos(other)
    }
}

/// A plan that was made beside others, and of what.
pub(crate) type Planned = (Places, Snapshot, Plan);

/// What became of a plan while both trees were held.
enum Held {
    Done(MergeReport, CloneReport, bool),
    /// It is none any more.
    Old,
    /// It is more than a batch.
    Large,
}

impl Places {
    fn trees(&self, view: &Snapshot) -> Trees {
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
    /// Merges what the fork has changed since its origin into the directory `into`, by three-way comparison: what only
    /// one side has changed is taken, what both changed alike is left; the rest are conflicts, and then nothing is
    /// done, unless [`MergeOptions::prefer`] says which side is right. Content, mode, owner, target and extended
    /// attributes of a file are merged one by one; times are no conflicts. Renames are followed on both
    /// sides: see `docs/versions.md`.
    ///
    /// The merge is atomic. If `into` is the directory that the fork was made of, the present state of the fork
    /// becomes its origin, so a later merge takes only what is new. `owner` must own everything that is taken,
    /// changed and removed, and the directories around it (EPERM); `None` allows everything. EINVAL if `fork` is no
    /// fork, or if `into` is the root, the fork, or lies in the fork. A merge of more than
    /// [`MountOptions::merge_steps`] changes fails with EBUSY if other calls keep changing the same files, and with
    /// EFBIG if it changes more linked files outside of `into` than a batch holds, or if its plan takes more memory
    /// than [`MountOptions::merge_plan_bytes`] leaves to `owner`.
    ///
    /// Cost: that of [`Fs::diff_fork`], and an operation for each change; a file or tree that was added as a whole is
    /// one operation. Calls on both trees wait while the batch is made; during a larger merge they wait for short
    /// moments only.
    ///
    /// [`MountOptions::merge_steps`]: crate::MountOptions::merge_steps
    /// [`MountOptions::merge_plan_bytes`]: crate::MountOptions::merge_plan_bytes
    pub fn merge(
        &self,
        owner: Option<u32>,
        fork: Ino,
        into: Ino,
        options: MergeOptions,
    ) -> Result<(MergeReport, CloneReport)> {
        self.merge_unless(owner, fork, into, options, &AtomicBool::new(false))
    }

    /// As [`Fs::merge`], until `stop` is set: then nothing is done (EINTR), unless all but its last step is done
    /// already.
    pub fn merge_unless(
        &self,
        owner: Option<u32>,
        fork: Ino,
        into: Ino,
        options: MergeOptions,
        stop: &AtomicBool,
    ) -> Result<(MergeReport, CloneReport)> {
        if !options.dry_run {
            self.writable()?;
        }
        let (fork, into) = (self.dir(fork)?, self.dir(into)?);
        if into.ino == ROOT {
            return Err(Error::Invalid("a fork is merged into a directory, not the root".into()));
        }
        may_change(&into, true)?;
        may_change(&fork, true)?;
        if let Some(owner) = owner
            && [&fork, &into].iter().any(|dir| dir.peek(|s| s.record.uid) != owner)
        {
            let why = "only who owns the fork and what it is merged into, or root, may merge it";
            return Err(Error::NotPermitted { name: fork.label(), why });
        }
        let bounds = Bounds::new(stop, &self.plan_memory, owner, fork.label());
        let who = Merging { options, owner, bounds: &bounds };
        match self.merge_dirs(who, &fork, &into) {
            // The frozen state that the plan is made of holds what was deleted just before: without it, that can be
            // given back.
            Err(Error::Engine(pando_db::Error::NoSpace)) => {
                self.db.settle()?;
                self.merge_dirs(who, &fork, &into)
            }
            done => done,
        }
    }

    fn merge_dirs(
        &self,
        who: Merging<'_>,
        fork: &InodeRef,
        into: &InodeRef,
    ) -> Result<(MergeReport, CloneReport)> {
        let options = who.options;
        for attempt in 0..=ATTEMPTS {
            let mut planned = None;
            if attempt < ATTEMPTS || options.dry_run {
                let (places, view) =
                    self.with_attempts(|_| Ok((self.places(fork, into)?, self.db.snapshot())))?;
                let mut plan = self.plan(&places, &view, who, false)?;
                if let Some(report) = stays(&plan, options) {
                    if options.dry_run && stays(&plan, MergeOptions { dry_run: false, ..options }).is_none() {
                        self.fits(&mut places.trees(&view), &plan.steps)?;
                    }
                    return Ok((report, CloneReport::default()));
                }
                if plan.steps.len() > self.merge_steps {
                    return self.merge_large(who, (fork, into), Some((places, view, plan)));
                }
                plan.brought = self.brought(&plan.steps, &mut places.trees(&view), into)?;
                planned = Some((places, view, plan));
            }
            // A caller of `with_attempts` may run twice.
            let done = self.with_attempts(|tries| {
                let (places, _held) = self.hold_both(tries, fork, into)?;
                let now = self.db.snapshot();
                let mut fresh;
                let (plan, view) = match &planned {
                    Some((was, view, plan)) if *was == places && places.same(view, &now)? => (plan, view),
                    Some(_) => return Ok(Held::Old),
                    None => {
                        fresh = self.plan(&places, &now, who, true)?;
                        if stays(&fresh, options).is_none() {
                            fresh.brought = self.brought(&fresh.steps, &mut places.trees(&now), into)?;
                        }
                        (&fresh, &now)
                    }
                };
                if let Some(report) = stays(plan, options) {
                    return Ok(Held::Done(report, CloneReport::default(), false));
                }
                if plan.steps.len() > self.merge_steps {
                    return Ok(Held::Large);
                }
                let parent = into.parent()?.ok_or(Error::Stale(into.ino))?;
                let above = self.above_in(&parent, path::directory_of(&places.ours.entry), false);
                let Some((report, counts)) = self.carry_out(&places, view, plan, into, above)? else {
                    return Ok(Held::Large);
                };
                let told = MergeReport { changes: plan.told.clone(), merged: true };
                Ok(Held::Done(told, report, counts))
            })?;
            match done {
                Held::Old => {}
                Held::Large => return self.merge_large(who, (fork, into), planned),
                Held::Done(told, report, counts) => {
                    if counts {
                        self.count_names_soon();
                    }
                    return Ok((told, report));
                }
            }
        }
        Err(Error::Stale(fork.ino)) // not reached: the last attempt plans while both are held
    }

    /// Plans beside others, or while both trees are `held`.
    fn plan(&self, places: &Places, view: &Snapshot, who: Merging<'_>, held: bool) -> Result<Plan> {
        self.plan_of(&mut places.trees(view), places, who, TextBudget::new(held))
    }

    /// Plans for trees that are those of these places, or copies of them.
    pub(crate) fn plan_of(
        &self,
        trees: &mut Trees,
        places: &Places,
        who: Merging<'_>,
        text: TextBudget,
    ) -> Result<Plan> {
        let at = (places.theirs.contents.clone(), places.ours.contents.clone());
        Planner::new(trees, who, text, at, self.has_links()).plan()
    }

    fn places(&self, fork: &InodeRef, into: &InodeRef) -> Result<Places, Obstacle> {
        let place = |dir: &InodeRef| -> Result<Place, Obstacle> {
            let at = self.attempt_dir(dir)?;
            let root = self.domain(&at).contents;
            Ok(Place { entry: at.entry.clone(), contents: at.contents.clone(), root })
        };
        Ok(self.places_of(fork, into, [place(fork)?, place(into)?])?)
    }

    fn places_of(&self, fork: &InodeRef, into: &InodeRef, [theirs, ours]: [Place; 2]) -> Result<Places> {
        if ours.contents.starts_with(&theirs.contents) {
            return Err(Error::Invalid(format!(
                "{}: is the fork, or lies in it; it is merged into what it was made of",
                into.label()
            )));
        }
        let found = self.fork_at(&theirs.contents)?.ok_or_else(|| no_fork(fork.label()))?;
        Ok(Places { fork: found, theirs, ours })
    }

    /// Holds both trees so that nobody is in them, nor in the files with several names of their lineages, and they stay
    /// where they are.
    pub(crate) fn hold_both(
        &self,
        tries: &mut Attempts,
        fork: &InodeRef,
        into: &InodeRef,
    ) -> Result<(Places, Vec<Guard>), Obstacle> {
        // Without a lock: one of these may be the one that was waited for, and it is to be used.
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

    /// Adds to the batch that the volume `number` has what the fork, which has this record, is at this place of the
    /// batch.
    pub(crate) fn freeze_fork(
        &self,
        batch: &mut Batch,
        number: u32,
        fork: &Place,
        record: &Record,
    ) -> Result<()> {
        self.freeze(batch, number, (&fork.entry, &fork.contents), record)?;
        // It is made as a root, but one that is moved into another directory of its lineage may be none any more.
        if record.clone_id == 0 && self.has_links() {
            let damaged = || Error::Damaged { what: "a fork".into(), detail: "outside of its lineage" };
            let names = path::meta(&path::link_name(&fork.root, &fork.contents).ok_or_else(damaged)?);
            if self.db.prefix(&names).next().transpose()?.is_some() {
                for (from, to) in copies_of_links(&fork.root, names, &path::snapshot(number)) {
                    batch.clone_prefix(from, to);
                }
            }
        }
        Ok(())
    }

    /// Writes the batch of a plan for the trees that are held; `None` if it is too much for one.
    fn carry_out(
        &self,
        places: &Places,
        view: &Snapshot,
        plan: &Plan,
        into: &InodeRef,
        above: Above,
    ) -> Result<Option<(CloneReport, bool)>> {
        self.may_leave_from(into, plan.steps.iter().filter_map(Step::leaves))?;
        let mut trees = places.trees(view);
        let now = self.now();
        let top = trees.theirs.top()?.record;
        let mut apply = Apply::new(self, &mut trees, into, now);
        apply.steps(&plan.steps)?;
        if self.is_source_of(&places.ours.contents, places.fork.number)? {
            let (old, place) = (places.fork, &places.theirs);
            let number = self.fresh_volume()?;
            self.freeze_fork(&mut apply.batch, number, place, &top)?;
            let fork = Fork { number, since: now, ..old };
            apply.batch.put(system::fork(&place.contents), fork.encode());
            apply.batch.delete(system::forked(&places.ours.contents, old.number));
            apply.batch.put(system::forked(&places.ours.contents, number), bytes::Bytes::new());
            apply.batch.delete_prefix(path::volume(old.number));
        }
        apply.batch.put(system::cloned(), now.encode());
        // It is counted later, for names of linked files.
        let turn = self.sole_turn();
        let mut account = Change::default();
        if turn.is_some() {
            let mut record = into.peek(|s| s.record.clone());
            self.bring(into, &mut record, plan.brought)?;
            account.account = Some(AccountChange::Set(record.account));
            apply.batch.upsert(path::meta(&places.ours.entry), account.encode());
            self.ledger.mark();
        }
        let mut bill = Bill::default();
        bill.add(above, Taken { bytes: plan.brought, guessed: true });
        let reserved = self.reserve_alone(&turn, &mut apply.batch, bill)?;
        let batch = std::mem::replace(&mut apply.batch, Batch::new());
        match self.db.write(batch) {
            Err(pando_db::Error::TooLarge { what: "batch", .. }) => return Ok(None),
            done => done?,
        }
        reserved.paid();
        drop(turn);
        {
            let mut cloned = self.cloned.lock();
            *cloned = now.max(*cloned);
        }
        let done = apply.done();
        into.change(|s| account.apply(&mut s.record));
        self.recount_later(into);
        Ok(Some(done))
    }
}

/// The answer, if nothing is to be done.
pub(crate) fn stays(plan: &Plan, options: MergeOptions) -> Option<MergeReport> {
    let stops = |change: &MergeChange| match change.kind {
        MergeKind::Conflict(why) => options.prefer.is_none() || !why.is_settled_by_a_side(),
        _ => false,
    };
    (options.dry_run || plan.told.iter().any(stops))
        .then(|| MergeReport { changes: plan.told.clone(), merged: false })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{ffi::OsStr, sync::Arc};

    use pando_db::device::MemDevice;

    use super::*;
    use crate::types::{Caller, FormatOptions, MountOptions};

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
