//! Where the garbage collector is, from one of its steps to the next. May use: a survey of the DAG. No I/O.

use std::sync::Arc;

use bytes::Bytes;

use crate::dag::{
    gc::{collapse::CollapseSurvey, prune::PruneSurvey},
    tree::Tree,
};

/// Where garbage collection is.
#[derive(Default)]
pub(crate) struct GcProgress {
    /// Where the walk for deletes goes on.
    pub from: Bytes,
    /// The walk for deletes has begun.
    pub begun: bool,
    /// Newest batch when the walk began.
    pub since: u64,
    /// Something was done in this walk: what was carried down may have to go on.
    pub any: bool,
    /// A step has changed something that `Engine::settle` has not counted.
    pub changed: bool,
    /// A step has changed something since the last checkpoint that was made where space is short.
    pub unfreed: bool,
    /// The last step made nodes lower, and the next may, too: no other walk comes between.
    pub lowering: bool,
    /// The walk for what nothing shows, and the version that it walks. That is held meanwhile, and so is its
    /// space.
    pub survey: Option<(Arc<Tree>, PruneSurvey)>,
    /// The same of the walk for nodes that show little.
    pub collapse: Option<(Arc<Tree>, CollapseSurvey)>,
}

/// Whether garbage collection is worth its space where that is short.
#[derive(Default)]
pub(crate) struct GcWorth {
    /// Number of the newest batch.
    msn: u64,
    /// Most bytes that were free since.
    most: u64,
}

impl GcWorth {
    /// With so much `free` and nothing newer than `msn`; not, if steps have used up more than `spare`.
    pub fn goes_on(&mut self, msn: u64, free: u64, spare: u64) -> bool {
        if self.msn != msn {
            *self = GcWorth { msn, most: free };
        }
        self.most = self.most.max(free);
        free + spare >= self.most
    }
}
