//! The state of the garbage collector between two of its steps. May use: a survey of the DAG. No I/O.

use std::sync::Arc;

use bytes::Bytes;

use crate::dag::{
    gc::{collapse::CollapseSurvey, prune::PruneSurvey},
    tree::Tree,
};

/// Most walks for deletes, a count, that a call of `Engine::settle` makes while other threads write. The first walk
/// pushes down what waited when the call began, except what did not fit into its edits.
const SETTLE_WALKS: u32 = 4;
/// The same with the walks for messages that may follow.
const SETTLE_WALKS_IN_ALL: u32 = 2 * SETTLE_WALKS;

/// If `settle` has freed too little, so many deletes are admitted before it is tried again, a count: the first time.
const MIN_DELETES_UNTIL_RETRY: u32 = 4;
/// The same after many failures, a count: it doubles up to this.
const MAX_DELETES_UNTIL_RETRY: u32 = 512;

/// A call of `Engine::settle` in progress.
pub(crate) struct Settling {
    /// The number of the newest batch whose deletes it has to push down.
    pub until: u64,
    /// Walks for deletes and messages that have ended while other threads wrote, a count.
    pub walks: u32,
}

/// The state of garbage collection.
#[derive(Default)]
pub(crate) struct GcProgress {
    /// The key at which the walk for deletes or messages continues.
    pub from: Bytes,
    /// Whether the walk for deletes or messages has begun.
    pub begun: bool,
    /// Number of the newest record of the log when the walk began.
    pub since: u64,
    /// The walk has pushed something down, which may now wait at a lower node.
    pub any: bool,
    /// A step has changed something that `Engine::settle` has not counted yet.
    pub changed: bool,
    /// A step has changed something since the last checkpoint that was made where space is short.
    pub unfreed: bool,
    /// What the next step looks for.
    pub stage: GcStage,
    /// Nodes were lowered since the other stages ran.
    pub lowered: bool,
    pub settling: Option<Settling>,
    /// The walk for entries and edges that no path shows.
    pub prune: Option<GcWalk<PruneSurvey>>,
    /// The walk for nodes of which little is shown.
    pub collapse: Option<GcWalk<CollapseSurvey>>,
}

/// What garbage collection looks for, in this order. A stage that has changed something leads back to the first one.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(crate) enum GcStage {
    /// Deletes that wait in the DAG.
    #[default]
    Deletes,
    /// Entries and edges that no path shows.
    Unseen,
    /// Edges and levels that the root does not need.
    Root,
    /// Messages that wait in the DAG, if ordinary writes are refused or soon will be. After all deletes have arrived:
    /// carrying messages down takes space at first, which only deletes may have to give, and it gives little as long as
    /// what deletes remove still shares the leaves.
    Messages,
    /// Nodes of which so little is shown that leaves can replace them.
    Little,
    /// Nodes that can take over the edges of their children, so that the DAG becomes lower.
    Tall,
}

impl GcStage {
    pub fn next(self) -> Option<GcStage> {
        match self {
            GcStage::Deletes => Some(GcStage::Unseen),
            GcStage::Unseen => Some(GcStage::Root),
            GcStage::Root => Some(GcStage::Messages),
            GcStage::Messages => Some(GcStage::Little),
            GcStage::Little => Some(GcStage::Tall),
            GcStage::Tall => None,
        }
    }
}

/// The result of one bounded step of garbage collection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum GcStep {
    /// The next step continues the same stage.
    GoesOn,
    /// The walk has ended and changed something, so the other stages may find more.
    Changed,
    /// The walk has ended and changed nothing.
    Nothing,
}

/// A walk over one version. It holds that version, and so the space of its nodes.
pub(crate) struct GcWalk<S> {
    pub base: Arc<Tree>,
    pub survey: S,
    /// The survey is complete: only the changes that it found are left to do.
    pub looked: bool,
    pub changed: bool,
}

impl<S> GcWalk<S> {
    pub fn over(base: Arc<Tree>, survey: S) -> Self {
        Self { base, survey, looked: false, changed: false }
    }
}

impl GcProgress {
    /// Ends the walks, and returns what they held, which the caller drops while it holds no lock. New walks begin anew;
    /// only one for deletes, which holds nothing, continues.
    pub fn let_go(&mut self) -> impl Sized + use<> {
        self.begun &= self.stage != GcStage::Messages;
        self.stage = GcStage::default();
        let (prune, collapse) = (self.prune.take(), self.collapse.take());
        self.has_changed(prune.as_ref().is_some_and(|walk| walk.changed));
        self.has_changed(collapse.as_ref().is_some_and(|walk| walk.changed));
        (prune, collapse)
    }

    /// Notes that a walk for deletes or messages has ended, while `newest` is the newest record of the log and
    /// `written` the newest batch. Returns whether another walk must follow: what was pushed down may wait at lower
    /// nodes, and more may have been flushed behind the walk. A call of `Engine::settle` does not follow what other
    /// threads write.
    pub fn has_walked(&mut self, newest: u64, written: u64) -> bool {
        self.begun = false;
        let most = if self.stage == GcStage::Messages { SETTLE_WALKS_IN_ALL } else { SETTLE_WALKS };
        match &mut self.settling {
            Some(settling) if settling.until != written => {
                settling.walks += 1;
                self.any && settling.walks < most
            }
            _ => self.any || self.since != newest,
        }
    }

    /// Whether a call of `Engine::settle` has made all its walks while other threads wrote.
    pub fn has_settled(&self) -> bool {
        self.settling.as_ref().is_some_and(|settling| settling.walks >= SETTLE_WALKS_IN_ALL)
    }

    /// Whether a call of `Engine::settle` is in progress and other threads have written since it began. `written` is
    /// the newest batch.
    pub fn settles_beside(&self, written: u64) -> bool {
        self.settling.as_ref().is_some_and(|settling| settling.until != written)
    }

    /// Notes whether a walk has `changed` something when it ends or is ended: the next checkpoint frees what it
    /// replaced.
    pub fn has_changed(&mut self, changed: bool) {
        self.changed |= changed;
        self.unfreed |= changed;
    }
}

/// Whether garbage collection frees more space than it takes, where space is short.
#[derive(Default)]
pub(crate) struct GcYield {
    /// Number of the newest batch.
    msn: u64,
    /// Most bytes that were free since.
    most: u64,
}

impl GcYield {
    /// Whether to go on, with `free` bytes free and `msn` as the newest batch. Not if steps since that batch have
    /// used up more than `spare` bytes.
    pub fn goes_on(&mut self, msn: u64, free: u64, spare: u64) -> bool {
        if self.msn != msn {
            *self = GcYield { msn, most: free };
        }
        self.most = self.most.max(free);
        free + spare >= self.most
    }
}

/// What is known of the last deletes: those that a full store admits into the last part of its reserve.
#[derive(Debug, Default)]
pub(crate) struct LastDeletes {
    /// Deletes that are admitted before `settle` is tried again, a count. It walks the whole store, and would do so
    /// for each delete while a snapshot holds what they delete.
    pub until_retry: u32,
    /// The value of `until_retry` after the next `settle` that frees too little.
    next: u32,
}

impl LastDeletes {
    /// Whether the last `settle` has freed too little, although deletes were admitted.
    pub fn were_in_vain(&self) -> bool {
        self.next > 0
    }

    /// Notes that `settle` has freed too little.
    pub fn settled_in_vain(&mut self) {
        self.next = (2 * self.next).clamp(MIN_DELETES_UNTIL_RETRY, MAX_DELETES_UNTIL_RETRY);
        self.until_retry = self.next;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{CreateOptions, Db, Options, device::MemDevice};

    /// A call of `settle` ends although other threads go on writing and deleting.
    #[test]
    fn walks_of_a_call_come_to_an_end_beside_writers() {
        let progress = |until: Option<u64>, any| GcProgress {
            since: 7,
            any,
            settling: until.map(|until| Settling { until, walks: 0 }),
            ..GcProgress::default()
        };
        // Without other writers: walks follow as long as one finds something, or something new has come.
        for until in [None, Some(7)] {
            let mut busy = progress(until, true);
            assert!((0..100).all(|_| busy.has_walked(7, 7)) && !busy.has_settled());
            assert!(!progress(until, false).has_walked(7, 7));
            // A record of the log's own.
            assert!(progress(until, false).has_walked(8, 7));
        }
        assert!(progress(None, false).has_walked(8, 8));
        // Beside other writers: a bounded number of walks, and none for deletes that came later.
        let mut beside = progress(Some(7), true);
        for (stage, all) in [(GcStage::Deletes, false), (GcStage::Messages, true)] {
            beside.stage = stage;
            let walks = (8..100).take_while(|newest| beside.has_walked(*newest, *newest)).count();
            assert_eq!((walks as u32 + 1, beside.has_settled()), (SETTLE_WALKS, all));
        }
        assert!(!progress(Some(7), false).has_walked(8, 8));
        assert!(beside.settles_beside(8) && !beside.settles_beside(7));
    }

    /// Otherwise the nodes that it replaced would stay until another thread makes a checkpoint.
    #[test]
    fn a_walk_that_is_let_go_says_what_it_has_changed() {
        let device = Arc::new(MemDevice::new(64 << 20));
        let options = Options { background: false, ..Options::default() };
        Db::create(device.clone(), &CreateOptions::default(), &options).unwrap();
        let db = Db::open(device, options).unwrap();
        let base = db.engine().superversion.read().tree.clone();
        for changed in [true, false] {
            let walk = GcWalk { changed, ..GcWalk::over(base.clone(), PruneSurvey::default()) };
            let mut progress = GcProgress { prune: Some(walk), ..GcProgress::default() };
            drop(progress.let_go());
            assert_eq!((progress.changed, progress.unfreed), (changed, changed));
        }
        db.close().unwrap();
    }
}
