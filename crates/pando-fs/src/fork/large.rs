//! Merges of more than one batch: made on copies of the tree in a hidden volume, which replace its contents in one
//! batch.
//!
//! Guarantees that such a merge is atomic, that changes which other calls make in the directory meanwhile are kept, and
//! that those calls wait for short moments only. See `docs/versions.md`.

use pando_db::{Batch, Snapshot};

use crate::{
    diff::side::Side,
    error::{Error, Result},
    fork::{
        apply::Apply,
        bounds::Merging,
        exchange::Exchange,
        hidden::{Hidden, write_in_parts},
        landing::Landing,
        places::{Places, Planned, stays},
        replay::{Replay, Replayed},
        report::MergeReport,
        step::{Step, Trees},
        text::TextBudget,
        works::{BEFORE, MERGED, WAITING, Works},
    },
    format::FEATURE_WORKS,
    inode::InodeRef,
    path::{self, system},
    record::Record,
    removals::Unremoved,
    types::CloneReport,
    volume::Fs,
};

/// How often such a merge begins, a count.
const BEGINNINGS: u32 = 4;
/// How often changes of other calls are replayed, a count.
const ROUNDS: u32 = 12;
/// Most operations of one batch in the hidden volume, a count.
const BATCH_OPS: usize = 1 << 13;
/// Most changed paths that are replayed while other calls wait, a count: the first time, and ever. It doubles each
/// time.
const LAST_PATHS: usize = 2000;
const MOST_LAST_PATHS: usize = 8 * LAST_PATHS;
/// The least of these, where batches are small, a count.
const FEW_PATHS: usize = 4;

/// The result of a replay while both trees were held.
enum Looked {
    Done(CloneReport, bool),
    Clash,
    /// There is more to replay: up to this moment.
    More(Snapshot),
}

impl Places {
    fn copies(&self, view: &Snapshot, works: Works) -> Trees {
        let (mark, next) = (path::snapshot(self.fork.number), path::snapshot(works.next));
        let (entry, contents) = works.copy(MERGED);
        let ours = Side::of_place(view, None, (&entry, &contents), self.ours.root.clone());
        Trees {
            base: Side::of_place(view, None, (&mark, &mark), mark.clone()),
            theirs: Side::of_place(view, None, (&next, &next), next.clone()),
            ours: ours.named(&self.ours.contents),
        }
    }
}

/// Adds a copy of what is in a directory, but for linked files of its lineage.
fn copy_contents(batch: &mut Batch, from: &[u8], to: &[u8]) {
    for (from, to) in path::without_links(from).into_iter().zip(path::without_links(to)) {
        batch.clone_prefix(from, to);
    }
}

/// Adds a copy of linked files: prefixes of their paths.
fn copy_area(batch: &mut Batch, from: &[u8], to: &[u8]) {
    batch.clone_prefix(path::meta(from), path::meta(to)).clone_prefix(path::data(from), path::data(to));
}

impl Fs {
    /// Merges what is too much for one batch.
    pub(crate) fn merge_large(
        &self,
        merging: Merging<'_>,
        (fork, into): (&InodeRef, &InodeRef),
        mut planned: Option<Planned>,
    ) -> Result<(MergeReport, CloneReport)> {
        self.need_feature(FEATURE_WORKS)?;
        for _ in 0..BEGINNINGS {
            let works = Works { work: self.fresh_volume()?, next: self.fresh_volume()? };
            let done = self.merge_beside(merging, (fork, into), planned.take(), works);
            if !matches!(&done, Ok(Some((report, _))) if report.merged) {
                self.drop_beside(works);
            }
            if let Some(done) = done? {
                return Ok(done);
            }
        }
        Err(Error::MergeDisturbed(into.label()))
    }

    /// Removes what is left of a merge that was not made; what this cannot remove is removed later.
    fn drop_beside(&self, works: Works) {
        for number in [works.work, works.next] {
            self.remove_now_or_later(Unremoved::Work(number));
        }
    }

    /// Makes the copies, while both trees are held.
    fn begin_beside(
        &self,
        (fork, into): (&InodeRef, &InodeRef),
        works: Works,
    ) -> Result<(Places, Record, Snapshot)> {
        self.with_attempts(|tries| {
            let (places, _held) = self.hold_both(tries, fork, into)?;
            let (mut batch, top) = (Batch::new(), into.peek(|s| s.record.clone()));
            for number in [works.work, works.next] {
                batch.put(system::work(number), Vec::new());
            }
            let (entry, contents) = works.copy(MERGED);
            copy_contents(&mut batch, &places.ours.contents, &contents);
            copy_contents(&mut batch, &places.ours.contents, &works.copy(BEFORE[0]).1);
            batch.put(path::meta(&entry), top.encode());
            if top.has_outside() {
                let own = path::attrs_under(&path::data(&places.ours.entry));
                // Two copies: one for the merge, and one that keeps the state before it.
                for entry in [&entry, &works.copy(BEFORE[0]).0] {
                    batch.clone_prefix(own.clone(), path::attrs_under(&path::data(entry)));
                }
            }
            if self.has_links() {
                copy_area(&mut batch, &path::all_linked(&places.ours.root), &works.area(0));
            }
            self.freeze_fork(&mut batch, works.next, &places.theirs, &fork.peek(|s| s.record.clone()))?;
            let now = self.now();
            batch.put(system::cloned(), now.encode());
            self.db.write(batch).map_err(Error::from)?;
            self.tree_cloned(now);
            Ok((places, top, self.db.snapshot()))
        })
    }

    /// `None` if it has to begin again.
    fn merge_beside(
        &self,
        merging: Merging<'_>,
        dirs: (&InodeRef, &InodeRef),
        planned: Option<Planned>,
        works: Works,
    ) -> Result<Option<(MergeReport, CloneReport)>> {
        let (places, top, view) = self.begin_beside(dirs, works)?;
        let mut trees = places.copies(&view, works);
        let plan = match planned {
            Some((was, then, plan)) if was == places && places.same(&then, &view)? => plan,
            _ => self.plan_of(&mut trees, &places, merging, TextBudget::new(false))?,
        };
        if let Some(report) = stays(&plan, merging.options) {
            return Ok(Some((report, CloneReport::default())));
        }
        self.may_leave_from(dirs.1, plan.steps.iter().filter_map(Step::leaves))?;
        let brought = self.brought(&plan.steps, &mut trees, dirs.1)?;
        // Checked before the work, which would be in vain.
        self.has_room(dirs.1.ino, brought)?;
        let now = self.now();
        let limit = self.merge_steps.clamp(1, BATCH_OPS);
        let mut apply = Apply::new(self, &mut trees, dirs.1, now);
        apply.bounds = Some(merging.bounds);
        apply.hidden = Some(Hidden::new(works.copy(WAITING).1, limit, places.ours.root.clone()));
        apply.steps(&plan.steps)?;
        apply.flush_all()?;
        let Some(mut hidden) = apply.hidden.take() else { return Ok(None) };
        drop(apply);
        drop((trees, view));
        let landing = Landing::of(&plan.steps)?;
        let (work, mut before) = (works.copy(MERGED).1, BEFORE.map(|name| works.copy(name).1));
        let mut areas = [0, 1].map(|at| works.area(at));
        let mut most = self.merge_steps.clamp(FEW_PATHS, LAST_PATHS);
        for _ in 0..ROUNDS {
            merging.bounds.go_on()?;
            // A caller of `with_attempts` may run twice, but not behind the locks.
            let looked = self.with_attempts(|tries| {
                let (here, _held) = self.hold_both(tries, dirs.0, dirs.1)?;
                if here.fork != places.fork || here.ours != places.ours {
                    return Ok(Looked::Clash);
                }
                let view = self.db.snapshot();
                let trees = [&before[0], &here.ours.contents, &work];
                let area = path::all_linked(&here.ours.root);
                let mut replay = Replay::new(self, &landing, &mut hidden, &view, trees, [&areas[0], &area]);
                match replay.run(Some(most))? {
                    Replayed::Clash => return Ok(Looked::Clash),
                    Replayed::More => {}
                    Replayed::All => {
                        // This is in the hidden volume as well, so it need not be in the last batch.
                        write_in_parts(self, replay.batch)?;
                        let exchange = Exchange {
                            fs: self,
                            places: &here,
                            works,
                            steps: &plan.steps,
                            landing: &landing,
                            hidden: &hidden,
                            into: dirs.1,
                            top: &top,
                            view: &view,
                            brought,
                            now,
                        };
                        return Ok(match exchange.run()? {
                            Some((report, counts)) => Looked::Done(report, counts),
                            None => Looked::Clash,
                        });
                    }
                }
                let mut batch = Batch::new();
                copy_contents(&mut batch, &here.ours.contents, &before[1]);
                if !hidden.watched.is_empty() {
                    copy_area(&mut batch, &area, &areas[1]);
                }
                self.db.write(batch).map_err(Error::from)?;
                Ok(Looked::More(self.db.snapshot()))
            })?;
            match looked {
                Looked::Clash => return Ok(None),
                Looked::Done(report, counts) => {
                    if counts {
                        self.count_names_soon();
                    }
                    self.strip_soon();
                    return Ok(Some((MergeReport { changes: plan.changes, merged: true }, report)));
                }
                Looked::More(view) => {
                    let trees = [&before[0], &before[1], &work];
                    let linked = [&areas[0], &areas[1]];
                    let mut replay = Replay::new(self, &landing, &mut hidden, &view, trees, linked);
                    if replay.run(None)? == Replayed::Clash {
                        return Ok(None);
                    }
                    before.swap(0, 1);
                    areas.swap(0, 1);
                    most = (2 * most).min(MOST_LAST_PATHS);
                }
            }
        }
        Err(Error::MergeDisturbed(dirs.1.label()))
    }
}
