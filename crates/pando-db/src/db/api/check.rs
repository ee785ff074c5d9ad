//! Checking a whole store: the DAG, the table and the space between.

use std::sync::Arc;

use crate::{
    dag::{self, check::MAX_PROBLEMS, read::view::View},
    db::{
        cursor::Snapshot,
        engine::{
            Engine,
            report::{Finding, Recovery},
        },
        handle::Db,
    },
    error::Result,
    key::Span,
    node::NodeId,
    store::{
        log::{Found, Log, Region},
        superblock::Superblock,
    },
    waiting,
};

/// Nodes without a reference, a count, that are looked up at a time while flushes wait.
const CANDIDATES: usize = 256;

impl Db {
    /// Verifies the store in its present state, including what is in memory only: every checksum; the shape of every
    /// node, its ranges, references, heights and the order of its messages; the count of references to each node;
    /// and the allocated space. `docs/invariants.md` marks what the check finds with C. The store stays in use
    /// meanwhile. What is cached is read from the device all the same; the log and the superblock are verified when a
    /// store is opened, not here, except what would repair the log: that is verified here if the store is open
    /// read-only. (One that is open for writing begins a new log soon.) Cost: all nodes and pages are read, and if it
    /// is open read-only the log.
    pub fn check(&self) -> Result<CheckReport> {
        check(self.engine())
    }
}

/// The result of [`crate::Db::check`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Damage that was found, of each kind at most 1000; empty if the store is clean. Includes damage to the log that
    /// opening the store has found, even if it was repaired, and damage beside the records of the log.
    pub findings: Vec<Finding>,
    /// What opening the store has found and repaired, and what may be damage or the trace of a crash.
    pub notes: Vec<String>,
    /// Nodes read.
    pub nodes: u64,
    /// Pages read and verified.
    pub pages: u64,
    /// Uncompressed bytes in these pages.
    pub bytes: u64,
}

fn check(engine: &Arc<Engine>) -> Result<CheckReport> {
    let view = engine.view();
    let report = dag::check::check(&view.tree, &engine.pager);
    let mut findings = engine.recovery.findings.clone();
    findings.extend(report.problems.into_iter().map(|p| Finding { what: p.what, keys: p.keys }));
    findings.extend(false_skip_ranges(engine, &view));
    findings.extend(forgotten_nodes(engine));
    let mut notes = engine.recovery.notes.clone();
    if engine.options.read_only {
        let guards = verify_guards(engine).unwrap_or_else(|e| {
            let what = format!("log: {e}");
            Recovery { findings: vec![Finding { what, keys: None }], notes: Vec::new() }
        });
        findings.extend(guards.findings);
        notes.extend(guards.notes);
    }
    Ok(CheckReport { findings, notes, nodes: report.nodes, pages: report.pages, bytes: report.bytes })
}

/// Reads the log of a store that is open read-only once more, and verifies what would repair its records. Footers were
/// verified when the store was opened.
fn verify_guards(engine: &Engine) -> Result<Recovery> {
    let superblock = engine.checkpointing.lock().superblock.clone();
    let (device, store) = (engine.device.clone(), superblock.store());
    let Superblock { log_base, log_size, log_start, next_msn, log_durable, clean, .. } = superblock;
    let region = Region { device, base: log_base, size: log_size, store };
    let mut replay = Log::replay(region, log_start, next_msn, log_durable, clean, engine.options.salvage);
    replay.verify_guards();
    while replay.next()?.is_some() {}
    let mut report = Recovery::default();
    for found in replay.found() {
        if let Found::Guard(wrong) = found {
            report.find_beside_records(&wrong.to_string(), wrong.was_durable);
        }
    }
    Ok(report)
}

/// Nodes without a reference that are not in the list of those to be reclaimed, of which at most [`MAX_PROBLEMS`] are
/// told: they would take space until the store is opened again. Where something could not be read this says nothing,
/// because such a node is left as it is.
fn forgotten_nodes(engine: &Engine) -> Vec<Finding> {
    forgotten(engine, (CANDIDATES, MAX_PROBLEMS))
}

/// The same by so many nodes at a time, and at most so many in all. The whole table is walked without a lock.
fn forgotten(engine: &Engine, (at_a_time, most): (usize, usize)) -> Vec<Finding> {
    let table = engine.superversion.read().tree.table.clone();
    let (mut candidates, mut findings) = (Vec::new(), Vec::new());
    let mut look = |candidates: &mut Vec<NodeId>| {
        let found = still_forgotten(engine, candidates);
        candidates.clear();
        findings.extend(found.into_iter().take(most - findings.len()).map(|id| Finding {
            what: format!("node {id}: nothing refers to it, and it is not to be reclaimed"),
            keys: None,
        }));
        findings.len() >= most
    };
    let mut is_enough = most == 0;
    table.for_each(|id, entry| {
        if entry.count == 0 && !is_enough {
            candidates.push(id);
            is_enough = candidates.len() >= at_a_time && look(&mut candidates);
        }
    });
    if !is_enough && !candidates.is_empty() {
        look(&mut candidates);
    }
    findings
}

/// Those of some nodes that had no reference a moment ago which are in the table still, have none, and are not listed.
fn still_forgotten(engine: &Engine, candidates: &[NodeId]) -> Vec<NodeId> {
    // Who changes the tree, or takes nodes from the list, holds this lock.
    let _unchanged = waiting::take(|| engine.flushing.try_lock(), || engine.flushing.lock());
    if engine.pager.damage_found() > 0 {
        return Vec::new();
    }
    let table = engine.superversion.read().tree.table.clone();
    let listed = engine.orphans.lock();
    let is_forgotten = |id: &NodeId| table.get(*id).is_some_and(|e| e.count == 0) && !listed.contains(id);
    candidates.iter().copied().filter(is_forgotten).collect()
}

/// Skip ranges that are not empty. Ranges that cannot be read are reported by the other checks.
fn false_skip_ranges(engine: &Arc<Engine>, view: &Arc<View>) -> Vec<Finding> {
    let unaided = View::new(view.tables.clone(), view.tree.clone(), view.msn, None);
    let unaided = Snapshot { engine: engine.clone(), view: Arc::new(unaided) };
    let skip_ranges = view.skip_ranges.iter().flat_map(|skip_ranges| skip_ranges.iter());
    let is_false = |gap: &Span| matches!(unaided.range(&gap.lo, gap.hi.as_deref()).next(), Some(Ok(_)));
    let finding = |gap: Span| Finding {
        what: "memory: a range is taken for empty and is not".into(),
        keys: Some((gap.lo, gap.hi)),
    };
    skip_ranges.filter(is_false).map(finding).take(MAX_PROBLEMS).collect()
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;
    use crate::{Batch, CreateOptions, Options, device::MemDevice};

    fn store() -> Db {
        let device = Arc::new(MemDevice::new(64 << 20));
        let options = Options { background: false, ..Options::default() };
        Db::create(device.clone(), &CreateOptions::default().node_size(4 << 10), &options).expect("memory");
        let db = Db::open(device, options).expect("a store");
        for tree in 0..2 {
            (0..4_000).for_each(|i| db.put(format!("{tree}/{i:05}"), vec![7; 400]).expect("room"));
            db.checkpoint().expect("room");
        }
        db
    }

    /// A flush that takes long, such as one that waits for a slow device, and a check beside it.
    #[test]
    fn a_check_does_not_wait_for_a_flush() {
        let db = store();
        let flush = db.engine().flushing.lock();
        let (said, heard) = mpsc::channel();
        std::thread::scope(|s| {
            s.spawn(|| said.send(db.check().map(|report| report.findings.len())));
            let found = heard.recv_timeout(Duration::from_secs(20));
            drop(flush);
            assert_eq!(found.expect("a check waits for the flush").expect("readable"), 0);
        });
    }

    #[test]
    fn a_check_lists_a_bounded_number_of_forgotten_nodes() {
        let db = store();
        let engine = db.engine();
        let mut batch = Batch::new();
        (0..2).for_each(|tree| _ = batch.delete_prefix(format!("{tree}/")));
        db.write(batch).expect("room");
        db.checkpoint().expect("room");
        // What takes a node out leaves those below it without a reference.
        while engine.orphans.lock().len() < 3 {
            assert!(engine.reclaim_step().expect("readable"), "vacuous: few nodes are without a reference");
        }
        assert!(forgotten_nodes(engine).is_empty(), "all are listed");
        let listed = std::mem::take(&mut *engine.orphans.lock());
        assert!(listed.len() > 2, "vacuous: {}", listed.len());
        for at_a_time in [1, 2, 1000] {
            for most in 0..=listed.len() + 1 {
                let found = forgotten(engine, (at_a_time, most));
                assert_eq!(found.len(), most.min(listed.len()), "{at_a_time} at a time");
            }
        }
    }
}
