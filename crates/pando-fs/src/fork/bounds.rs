//! The bounds of a merge: it ends if its caller does not wait any more, or if its plan takes too much memory.
//!
//! Guarantees that a merge which ends for these reasons ends soon and has changed nothing.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{
    error::{Error, Result},
    fork::report::MergeOptions,
    plan_memory::{PlanMemory, PlanShare},
};

/// How often each path of a plan is in memory while that is made, carried out and told, a count: see `fork_costs`.
const COPIES_OF_PATHS: usize = 2;
/// Memory of a step, or of its line in the report, besides its paths.
const STEP_BYTES: usize = 200;

/// The caller and the options of a merge.
#[derive(Clone, Copy)]
pub(crate) struct Merging<'a> {
    pub options: MergeOptions,
    /// The user who must own everything that the plan takes or changes; `None` for root.
    pub owner: Option<u32>,
    pub bounds: &'a Bounds<'a>,
}

/// The bounds of one merge.
pub(crate) struct Bounds<'a> {
    stop: &'a AtomicBool,
    share: PlanShare<'a>,
    /// What is merged.
    name: String,
}

impl<'a> Bounds<'a> {
    pub(crate) fn new(
        stop: &'a AtomicBool,
        memory: &'a PlanMemory,
        owner: Option<u32>,
        name: String,
    ) -> Self {
        Self { stop, share: memory.share(owner), name }
    }

    /// EINTR if the merge is to end.
    pub(crate) fn go_on(&self) -> Result<()> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::Interrupted(self.name.clone())),
            false => Ok(()),
        }
    }

    /// A new plan begins, and the one before is dropped.
    pub(crate) fn plan_begins(&self) {
        self.share.begin_anew();
    }

    /// Adds an item with a path of so many bytes to the memory of the plan. EFBIG if that is too much.
    pub(crate) fn plan_grows(&self, path_bytes: usize) -> Result<()> {
        self.share.take(STEP_BYTES + COPIES_OF_PATHS * path_bytes, || self.name.clone())
    }
}
