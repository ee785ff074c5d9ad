//! Checking a whole store: the DAG, the table and the space between.

use std::sync::Arc;

use crate::{
    dag::{self, read::view::View},
    db::{
        cursor::Snapshot,
        engine::{Engine, report::Finding},
        handle::Db,
    },
    error::Result,
    key::Span,
    waiting,
};

impl Db {
    /// Verifies the store in its present state, including what is in memory only: every checksum; the shape of every
    /// node, its ranges, references, heights and the order of its messages; the count of references to each node;
    /// and the allocated space. `docs/invariants.md` marks what the check finds with C. The store stays in use
    /// meanwhile. What is cached is read from the device all the same; the log and the superblock are verified when a
    /// store is opened, not here. Cost: all nodes and pages are read.
    pub fn check(&self) -> Result<CheckReport> {
        check(self.engine())
    }
}

/// The result of [`crate::Db::check`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// All damage that was found; empty if the store is clean. Includes damage to the log that opening the store has
    /// found, even if it was repaired.
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
    let notes = engine.recovery.notes.clone();
    Ok(CheckReport { findings, notes, nodes: report.nodes, pages: report.pages, bytes: report.bytes })
}

/// Nodes without a reference that are not in the list of those to be reclaimed: they would take space until the store
/// is opened again. Where something could not be read this says nothing, because such a node is left as it is.
fn forgotten_nodes(engine: &Engine) -> Vec<Finding> {
    // Who changes the tree, or takes nodes from the list, holds this lock.
    let _unchanged = waiting::take(|| engine.flushing.try_lock(), || engine.flushing.lock());
    if engine.pager.damage_found() > 0 {
        return Vec::new();
    }
    let table = engine.superversion.read().tree.table.clone();
    let listed = engine.orphans.lock();
    let mut findings = Vec::new();
    table.for_each(|id, entry| {
        if entry.count == 0 && !listed.contains(&id) {
            let what = format!("node {id}: nothing refers to it, and it is not to be reclaimed");
            findings.push(Finding { what, keys: None });
        }
    });
    findings
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
    skip_ranges.filter(is_false).map(finding).collect()
}
