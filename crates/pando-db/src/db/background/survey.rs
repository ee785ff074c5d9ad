//! The driver of surveys: walks over a whole version that find nodes to change, and the changes. It serves pruning
//! (`dag/gc/prune.rs`) and the replacement of tall nodes by leaves (`dag/gc/collapse.rs`).
//!
//! Guarantees: a step reads some nodes without a lock, or changes some under one. A walk drops its version when it
//! ends. May use: surveys of the DAG.

use std::cell::Cell;

use crate::{
    dag::{
        edit::{Context, Edit},
        gc::{collapse::CollapseSurvey, prune::PruneSurvey, survey::Survey},
    },
    db::{
        background::gc_limits::{EDIT_NODES, STEP_NODES},
        engine::{
            Engine,
            gc_state::{GcProgress, GcStep, GcWalk},
        },
    },
    error::{Error, Result},
};

impl Engine {
    /// Goes on looking for what nothing shows any more, by one bounded step, or takes some of it out of nodes, until
    /// space is short for doing more. The first step of a walk begins it.
    pub fn prune_step(&self) -> Result<GcStep> {
        let mut begun = self.gc_progress.lock().prune.take();
        if self.is_tight()? {
            begun = None;
            self.checkpoint()?;
        }
        let cx = self.gc_context();
        let walk = match begun {
            Some(begun) => begun,
            None => {
                let base = self.superversion.read().tree.clone();
                let survey = Edit::new(&cx, &base).survey()?;
                GcWalk::over(base, survey)
            }
        };
        self.walk_on::<PruneSurvey>(&cx, walk, |gc_progress| &mut gc_progress.prune)
    }

    /// Goes on looking for nodes that show so little that leaves can take their place, where the DAG is higher than
    /// its data asks for, by one bounded step, or puts some of these there.
    pub fn collapse_step(&self) -> Result<GcStep> {
        let begun = self.gc_progress.lock().collapse.take();
        if self.is_short() {
            // Its version goes before the lock is taken.
            let changed = begun.is_some_and(|walk| walk.changed);
            self.gc_progress.lock().has_changed(changed);
            return Ok(GcStep::Nothing);
        }
        let cx = self.idle_context();
        let walk = match begun {
            Some(begun) => begun,
            // What waits to be reclaimed may keep what is to go.
            None if self.reclaim_step()? => return Ok(GcStep::GoesOn),
            None => {
                let base = self.superversion.read().tree.clone();
                let survey = Edit::new(&cx, &base).collapse_survey()?;
                let Some(survey) = survey else { return Ok(GcStep::Nothing) };
                GcWalk::over(base, survey)
            }
        };
        self.walk_on::<CollapseSurvey>(&cx, walk, |gc_progress| &mut gc_progress.collapse)
    }

    /// Makes one bounded step of a walk, and stores the walk if it continues. The walk ends early if space becomes
    /// short.
    fn walk_on<S: Survey>(
        &self,
        cx: &Context<'_>,
        mut walk: GcWalk<S>,
        place: fn(&mut GcProgress) -> &mut Option<GcWalk<S>>,
    ) -> Result<GcStep> {
        let ends = if walk.looked {
            self.change_some(cx, &mut walk)?;
            walk.survey.found().is_empty() || self.is_tight()?
        } else {
            walk.looked = !walk.survey.go_on(&Edit::new(cx, &walk.base), STEP_NODES)?;
            walk.looked && walk.survey.found().is_empty()
        };
        let mut gc_progress = self.gc_progress.lock();
        if !ends {
            *place(&mut gc_progress) = Some(walk);
            return Ok(GcStep::GoesOn);
        }
        // Before its end it is no step to count: a checkpoint in the middle makes other versions of the nodes.
        gc_progress.has_changed(walk.changed);
        Ok(if walk.changed { GcStep::Changed } else { GcStep::Nothing })
    }

    /// Changes some of the nodes that a walk has found, in one edit.
    fn change_some<S: Survey>(&self, cx: &Context<'_>, walk: &mut GcWalk<S>) -> Result<()> {
        let found = walk.survey.found();
        let most = EDIT_NODES.min(self.limits.edit_nodes).min(found.len());
        let some: Vec<_> = found.drain(..most).collect();
        let _turn = self.lock_for_edit()?;
        let changed = Cell::new(false);
        let change = |edit: &mut Edit<'_>| {
            for found in &some {
                changed.set(S::change(edit, found, &walk.base.table)? || changed.get());
            }
            Ok(())
        };
        match self.edit_with(cx, change, |_| ()) {
            Err(error) if error.is_damage() || matches!(error, Error::NoSpace) => (),
            other => {
                other?;
                walk.changed |= changed.get();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        sync::{
            Arc, OnceLock,
            atomic::{AtomicBool, Ordering::Relaxed},
        },
        thread,
        time::{Duration, Instant},
    };

    use crate::{
        CreateOptions, Db, Options,
        db::{
            background::gc_limits::STEP_NODES,
            engine::gc_state::{GcStage, GcStep},
            flush::reclaim::RECLAIM_NODES,
        },
        device::{Device, DeviceCall, HookedDevice, MemDevice},
    };

    /// Long enough for any machine; a test that fails takes as long.
    const PATIENCE: Duration = Duration::from_secs(30);
    const VALUES: u32 = 40_000;

    fn store(device: Arc<dyn Device>, options: Options) -> Db {
        let create = CreateOptions { node_size: 4096, log_size: Some(1 << 20), ..Default::default() };
        Db::create(device.clone(), &create, &options).unwrap();
        Db::open(device, options).unwrap()
    }

    fn write_all(db: &Db, round: u32) {
        for i in 0..VALUES {
            let value = (i ^ round).wrapping_mul(0x9e37_79b9).to_be_bytes().repeat(20);
            db.put(format!("a/{i:06}"), value).unwrap();
        }
    }

    /// It held the version until the next idle seconds, however long writes went on, and with it all that was replaced
    /// meanwhile.
    #[test]
    fn a_walk_lets_its_version_go_when_writes_resume() {
        let (store_of, waits) = (Arc::new(OnceLock::<Db>::new()), Arc::new(AtomicBool::new(false)));
        let (gate, known, waiting) = (Arc::new(AtomicBool::new(false)), store_of.clone(), waits.clone());
        let closed = gate.clone();
        let device = HookedDevice::new(Arc::new(MemDevice::new(256 << 20)), false, move |call| {
            let Some(db) = known.get() else { return Ok(()) };
            if matches!(call, DeviceCall::Read(_))
                && thread::current().name() == Some("pando-flush")
                && db.engine().gc_progress.lock().stage == GcStage::Unseen
            {
                let since = Instant::now();
                while closed.load(Relaxed) && since.elapsed() < PATIENCE {
                    waiting.store(true, Relaxed);
                    thread::sleep(Duration::from_millis(1));
                }
            }
            Ok(())
        });
        let db = store(Arc::new(device), Options { cache_bytes: 64 << 10, ..Options::default() });
        write_all(&db, 0);
        db.settle().unwrap();
        let before = db.engine().space.used_bytes();
        assert!(db.stats().unwrap().nodes_by_height[1..].iter().sum::<u64>() > STEP_NODES as u64);
        _ = store_of.set(db.clone());
        gate.store(true, Relaxed);
        db.delete("a/000777").unwrap();
        let since = Instant::now();
        while !waits.load(Relaxed) {
            assert!(since.elapsed() < PATIENCE, "no walk has begun");
            thread::sleep(Duration::from_millis(1));
        }
        // The step that has begun goes on when something has been written.
        let walked = Arc::downgrade(&db.engine().superversion.read().tree.clone());
        db.put("b/", "").unwrap();
        gate.store(false, Relaxed);
        write_all(&db, 1);
        db.checkpoint().unwrap();
        db.checkpoint().unwrap();
        let since = Instant::now();
        while walked.upgrade().is_some() {
            assert!(since.elapsed() < PATIENCE, "the version is held while writes go on");
            db.put("b/", "").unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        db.checkpoint().unwrap();
        let after = db.engine().space.used_bytes();
        assert!(after < before + before / 2, "{after} B are used, {before} B before");
        db.close().unwrap();
    }

    /// A step before a walk took out all that waited, however much that was.
    #[test]
    fn a_step_takes_a_bounded_number_of_nodes_out() {
        let db =
            store(Arc::new(MemDevice::new(256 << 20)), Options { background: false, ..Options::default() });
        for step in ["collapse_step", "lower_step"] {
            write_all(&db, 0);
            db.settle().unwrap();
            db.delete_prefix("a/").unwrap();
            db.checkpoint().unwrap();
            let (first, mut before) = (db.engine().reclaimed(), db.engine().reclaimed());
            loop {
                let result = match step {
                    "collapse_step" => db.engine().collapse_step(),
                    _ => db.engine().lower_step(),
                };
                let (goes_on, now) = (result.unwrap() == GcStep::GoesOn, db.engine().reclaimed());
                assert!(now - before <= RECLAIM_NODES as u64, "{step}: {} nodes at once", now - before);
                before = now;
                if !goes_on {
                    break;
                }
            }
            assert!(before - first > 2 * RECLAIM_NODES as u64, "{step}: {} nodes", before - first);
        }
        db.close().unwrap();
    }

    /// Between two steps of the walk for nodes that show little the others walked through the whole store.
    #[test]
    fn walks_go_on_one_after_the_other() {
        let db =
            store(Arc::new(MemDevice::new(256 << 20)), Options { background: false, ..Options::default() });
        let mut state = 88172645463325252u64;
        let mut random = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % n
        };
        for i in 0..20_000u64 {
            let (x, y) = (random(40), random(40));
            match random(20) {
                0 if x != y => db.clone_prefix(format!("d{x:02}/"), format!("d{y:02}/")).unwrap(),
                1 if x != y => {
                    let part = random(6);
                    db.clone_prefix(format!("d{x:02}/0{part}"), format!("d{y:02}/0{part}")).unwrap();
                }
                _ => db.put(format!("d{x:02}/{:03}", random(600)), i.to_be_bytes().repeat(12)).unwrap(),
            }
        }
        db.settle().unwrap();
        let stats = db.stats().unwrap();
        let nodes = stats.nodes_by_height.iter().sum::<u64>() as usize;
        let (mut steps, mut little) = (0, 0);
        while db.engine().gc_step().unwrap() {
            steps += 1;
            little += usize::from(db.engine().gc_progress.lock().stage == GcStage::Little);
        }
        println!("{steps} steps, {little} for nodes that show little: {:?}", stats.nodes_by_height);
        assert!(little > 3, "{little} steps: nothing was tested");
        assert!(steps < little + 3 * nodes.div_ceil(STEP_NODES), "{steps} steps for {nodes} nodes");
        db.close().unwrap();
    }
}
