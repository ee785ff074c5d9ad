//! Where the garbage collector is, from one of its steps to the next. May use: a survey of the DAG. No I/O.

use std::sync::Arc;

use bytes::Bytes;

use crate::dag::{
    gc::{collapse::CollapseSurvey, prune::PruneSurvey},
    tree::Tree,
};

/// Walks for deletes, a count, that a call of `Engine::settle` makes beside others who go on writing: what waited when
/// it began is carried down by the first, but for what an edit had no room for.
const SETTLE_WALKS: u32 = 4;

/// Deletes that are let in after settling has given too little, before it is tried again: at first.
const MIN_DELETES_UNTIL_RETRY: u32 = 4;
/// The same at most.
const MAX_DELETES_UNTIL_RETRY: u32 = 512;

/// A call of `Engine::settle` that is under way.
pub(crate) struct Settling {
    /// The newest batch that it is about.
    pub until: u64,
    /// Walks for deletes that have ended, a count, while others wrote.
    pub walks: u32,
}

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
    /// Where the next step goes on.
    pub stage: GcStage,
    /// Steps have made nodes lower since other walks have looked.
    pub lowered: bool,
    pub settling: Option<Settling>,
    /// The walk for what nothing shows.
    pub prune: Option<GcWalk<PruneSurvey>>,
    /// The walk for nodes that show little.
    pub collapse: Option<GcWalk<CollapseSurvey>>,
}

/// What garbage collection looks for, one after the other: what has changed something leads back to the first.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(crate) enum GcStage {
    /// Deletes that wait in the DAG.
    #[default]
    Deletes,
    /// What nothing shows any more.
    Unseen,
    /// What the root does not need.
    Root,
    /// Nodes that show so little that leaves can take their place.
    Little,
    /// Nodes that can take over the edges of others.
    Tall,
}

impl GcStage {
    pub fn next(self) -> Option<GcStage> {
        match self {
            GcStage::Deletes => Some(GcStage::Unseen),
            GcStage::Unseen => Some(GcStage::Root),
            GcStage::Root => Some(GcStage::Little),
            GcStage::Little => Some(GcStage::Tall),
            GcStage::Tall => None,
        }
    }
}

/// What one bounded step of garbage collection came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum GcStep {
    /// The next step goes on with the same.
    GoesOn,
    /// The walk is at its end and has changed something, so that there may be more for the others.
    Changed,
    /// The walk is at its end and came to nothing.
    Nothing,
}

/// A walk over one version. That is held meanwhile, and so is its space.
pub(crate) struct GcWalk<S> {
    pub base: Arc<Tree>,
    pub survey: S,
    /// All has been looked at: what was found is left to do.
    pub looked: bool,
    pub changed: bool,
}

impl<S> GcWalk<S> {
    pub fn over(base: Arc<Tree>, survey: S) -> Self {
        Self { base, survey, looked: false, changed: false }
    }
}

impl GcProgress {
    /// Lets go of what walks hold: they begin anew. The caller drops it where it holds no lock.
    pub fn let_go(&mut self) -> impl Sized + use<> {
        self.stage = GcStage::default();
        let (prune, collapse) = (self.prune.take(), self.collapse.take());
        self.has_changed(prune.as_ref().is_some_and(|walk| walk.changed));
        self.has_changed(collapse.as_ref().is_some_and(|walk| walk.changed));
        (prune, collapse)
    }

    /// A walk for deletes has come to its end, where `newest` is the newest record of the log and `written` the newest
    /// batch; whether another one is to follow, for what was carried down may have to go on, and deletes may have come
    /// in behind it. Those of others who go on writing are none of whoever settles.
    pub fn has_walked(&mut self, newest: u64, written: u64) -> bool {
        self.begun = false;
        match &mut self.settling {
            Some(settling) if settling.until != written => {
                settling.walks += 1;
                self.any && settling.walks < SETTLE_WALKS
            }
            _ => self.any || self.since != newest,
        }
    }

    /// Whether a call of `Engine::settle` has done what it is about, while others went on writing.
    pub fn has_settled(&self) -> bool {
        self.settling.as_ref().is_some_and(|settling| settling.walks >= SETTLE_WALKS)
    }

    /// Whether that is under way beside others who write: `written` is the newest batch.
    pub fn settles_beside(&self, written: u64) -> bool {
        self.settling.as_ref().is_some_and(|settling| settling.until != written)
    }

    /// Notes whether a walk that ends, at its end or before, has `changed` something: the next checkpoint frees it.
    pub fn has_changed(&mut self, changed: bool) {
        self.changed |= changed;
        self.unfreed |= changed;
    }
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

/// What is known of the deletes that a full store takes into the last of what is kept back.
#[derive(Debug, Default)]
pub(crate) struct LastDeletes {
    /// Deletes that may be let in before it is tried again whether settling gives anything back: that looks at all of
    /// the store, and where a snapshot holds what is deleted each delete would.
    pub until_retry: u32,
    /// The same after the next time that settling gives too little.
    next: u32,
}

impl LastDeletes {
    /// Whether settling has given too little since it gave enough, although deletes were let in.
    pub fn were_in_vain(&self) -> bool {
        self.next > 0
    }

    /// Settling has given too little.
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

    /// Whoever settles is not kept by those who go on writing and deleting.
    #[test]
    fn walks_of_a_call_come_to_an_end_beside_writers() {
        let progress = |until: Option<u64>, any| GcProgress {
            since: 7,
            any,
            settling: until.map(|until| Settling { until, walks: 0 }),
            ..GcProgress::default()
        };
        // Alone, or in the background: as long as there is something, or something has come.
        for until in [None, Some(7)] {
            let mut busy = progress(until, true);
            assert!((0..100).all(|_| busy.has_walked(7, 7)) && !busy.has_settled());
            assert!(!progress(until, false).has_walked(7, 7));
            // A record of the log's own.
            assert!(progress(until, false).has_walked(8, 7));
        }
        assert!(progress(None, false).has_walked(8, 8));
        // Beside others: some walks at most, and none for what has only come since.
        let mut beside = progress(Some(7), true);
        let walks = (8..100).take_while(|newest| beside.has_walked(*newest, *newest)).count();
        assert_eq!((walks as u32 + 1, beside.has_settled()), (SETTLE_WALKS, true));
        assert!(!progress(Some(7), false).has_walked(8, 8));
        assert!(beside.settles_beside(8) && !beside.settles_beside(7));
    }

    /// Else what it has replaced stays until somebody else makes a checkpoint.
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
