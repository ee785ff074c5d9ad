//! Merges a fork: planned beside all other calls, then done in one batch while no call is in either tree.
//!
//! The plan is made of a frozen state, without a lock. Then both trees are held, and if nothing in them has changed
//! since, the plan is carried out; else it is made again, the last time while both are held. A plan of more than a
//! batch is for `large`. Guarantees that a merge is of one moment, and is done as a whole or not at all.

use std::sync::atomic::AtomicBool;

use pando_db::{Batch, Snapshot};

use crate::{
    account::AccountChange,
    bill::{Above, Bill, Taken},
    error::{Error, Result},
    fork::{
        apply::Apply,
        bounds::{Bounds, Merging},
        places::{Place, Places, stays},
        report::{MergeOptions, MergeReport},
        step::{Plan, Step},
        text::TextBudget,
    },
    forks::Fork,
    inode::InodeRef,
    lock::Obstacle,
    merge::Change,
    path::{self, system},
    place::may_change,
    types::{CloneReport, Ino, ROOT},
    volume::Fs,
};

/// How often a plan is made beside other calls before these have to wait, a count.
const PLAN_ATTEMPTS: u32 = 3;

/// The result of a plan while both trees were held.
enum Held {
    Done(MergeReport, CloneReport, bool),
    /// The plan is out of date.
    Old,
    /// The plan is too large for one batch.
    Large,
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

    /// As [`Fs::merge`], but can be stopped: if `stop` is set before the last step, nothing is changed (EINTR).
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
        let merging = Merging { options, owner, bounds: &bounds };
        match self.merge_dirs(merging, &fork, &into) {
            // The frozen state that the plan is made of holds what was deleted just before: without it, that can be
            // given back.
            Err(Error::Engine(pando_db::Error::NoSpace)) => {
                self.db.settle()?;
                self.merge_dirs(merging, &fork, &into)
            }
            done => done,
        }
    }

    fn merge_dirs(
        &self,
        merging: Merging<'_>,
        fork: &InodeRef,
        into: &InodeRef,
    ) -> Result<(MergeReport, CloneReport)> {
        let options = merging.options;
        for attempt in 0..=PLAN_ATTEMPTS {
            let mut planned = None;
            if attempt < PLAN_ATTEMPTS || options.dry_run {
                let (places, view) =
                    self.with_attempts(|_| Ok((self.places(fork, into)?, self.db.snapshot())))?;
                let mut plan = self.plan(&places, &view, merging, false)?;
                if let Some(report) = stays(&plan, options) {
                    if options.dry_run && stays(&plan, MergeOptions { dry_run: false, ..options }).is_none() {
                        self.fits(&mut places.trees(&view), &plan.steps)?;
                    }
                    return Ok((report, CloneReport::default()));
                }
                if plan.steps.len() > self.merge_steps {
                    return self.merge_large(merging, (fork, into), Some((places, view, plan)));
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
                        fresh = self.plan(&places, &now, merging, true)?;
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
                let merged = MergeReport { changes: plan.changes.clone(), merged: true };
                Ok(Held::Done(merged, report, counts))
            })?;
            match done {
                Held::Old => {}
                Held::Large => return self.merge_large(merging, (fork, into), planned),
                Held::Done(merged, report, counts) => {
                    if counts {
                        self.count_names_soon();
                    }
                    self.strip_soon();
                    return Ok((merged, report));
                }
            }
        }
        Err(Error::Stale(fork.ino)) // not reached: the last attempt plans while both are held
    }

    /// Plans the merge, while other calls change the trees, or while both trees are `held`.
    fn plan(&self, places: &Places, view: &Snapshot, merging: Merging<'_>, held: bool) -> Result<Plan> {
        self.plan_of(&mut places.trees(view), places, merging, TextBudget::new(held))
    }

    fn places(&self, fork: &InodeRef, into: &InodeRef) -> Result<Places, Obstacle> {
        let place = |dir: &InodeRef| -> Result<Place, Obstacle> {
            let at = self.attempt_dir(dir)?;
            let root = self.domain(&at).contents;
            Ok(Place { entry: at.entry.clone(), contents: at.contents.clone(), root })
        };
        Ok(self.places_of(fork, into, [place(fork)?, place(into)?])?)
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
        self.may_bring_steps(&places.ours.contents, &plan.steps)?;
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
        let accounts = self.lock_accounts();
        let mut account = Change::default();
        if accounts.is_some() {
            let mut record = into.peek(|s| s.record.clone());
            self.bring(into, &mut record, plan.brought)?;
            account.account = Some(AccountChange::Set(record.account));
            apply.batch.upsert(path::meta(&places.ours.entry), account.encode());
            self.ledger.mark();
        }
        let mut bill = Bill::default();
        bill.add(above, Taken { bytes: plan.brought, inexact: true });
        let reserved = self.reserve_alone(&accounts, &mut apply.batch, bill)?;
        let batch = std::mem::replace(&mut apply.batch, Batch::new());
        match self.db.write(batch) {
            Err(pando_db::Error::TooLarge { what: "batch", .. }) => return Ok(None),
            done => done?,
        }
        reserved.paid();
        drop(accounts);
        self.tree_cloned(now);
        let done = apply.done();
        into.change(|s| account.apply(&mut s.record));
        self.recount_later(into);
        Ok(Some(done))
    }
}
