//! The view that readers share, in a slot beside the front lock.
//!
//! Guarantees: a view taken after a write has returned shows it; taking one waits for nobody while other
//! threads read as well. Publishing a view shares the active table with readers, and then a writer must copy
//! what it changes of it (a path of the persistent map for each key). So a view is published only if somebody
//! other than the writer reads; a thread that reads and writes in turn finds the slot empty, and makes its view
//! under the lock, which nobody else wants.
//!
//! May use: the front, views. No I/O.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::engine::{Engine, Front};
use crate::{dag::view::View, thread};

/// No thread has read since the last change.
const NOBODY: u64 = 0;
/// More than one has.
const SEVERAL: u64 = u64::MAX;

/// The published view, and who has taken one since it was published.
#[derive(Default)]
pub(crate) struct Views {
    slot: ArcSwapOption<View>,
    reader: AtomicU64,
    /// The one published before, of the same tree: readers that still use it need not be the ones who free what
    /// only it holds.
    former: Mutex<Option<Arc<View>>>,
}

/// Views to be dropped outside the lock.
pub(crate) type Old = [Option<Arc<View>>; 2];

impl Views {
    /// Notes that the calling thread reads.
    fn mark(&self) {
        let me = thread::number();
        match self.reader.load(Ordering::Relaxed) {
            reader if reader == me || reader == SEVERAL => (),
            NOBODY => self.reader.store(me, Ordering::Relaxed),
            _ => self.reader.store(SEVERAL, Ordering::Relaxed),
        }
    }

    /// True if another thread than the calling one has read since the last change.
    pub fn wanted(&self) -> bool {
        let reader = self.reader.load(Ordering::Relaxed);
        reader != NOBODY && reader != thread::number()
    }

    /// Empties the slot. The caller holds the front lock for writing.
    pub fn withdraw(&self) -> Old {
        [self.slot.swap(None), self.former.lock().take()]
    }

    /// After a change of the front, under its lock: publishes a new view if one is wanted, or none. What the
    /// caller gets is to be dropped outside the lock.
    pub fn changed(&self, front: &Front) -> Old {
        let fresh = self.wanted().then(|| Arc::new(front.view()));
        self.reader.store(NOBODY, Ordering::Relaxed);
        let mut former = self.former.lock();
        let older = former.take();
        let old = self.slot.swap(fresh);
        // What is in the old tree only is to be given back at once.
        if old.as_ref().is_some_and(|view| Arc::ptr_eq(&view.tree, &front.tree)) {
            *former = old;
            return [older, None];
        }
        [older, old]
    }
}

impl Front {
    fn view(&self) -> View {
        let active = (!self.active.is_empty()).then(|| Arc::new(self.active.clone()));
        let tables = active.into_iter().chain(self.sealed.iter().rev().cloned()).collect();
        View::new(tables, self.tree.clone())
    }
}

impl Engine {
    /// A consistent view of everything written so far. O(1), or O(number of in-memory tables) after a write.
    pub fn view(&self) -> Arc<View> {
        self.views.mark();
        self.views.slot.load_full().unwrap_or_else(|| self.fresh_view())
    }

    /// Reads such a view, and lets go of it: threads that do this do not even share a count.
    pub fn with_view<T>(&self, read: impl FnOnce(&View) -> T) -> T {
        self.views.mark();
        match &*self.views.slot.load() {
            Some(view) => read(view),
            None => read(&self.fresh_view()),
        }
    }

    fn fresh_view(&self) -> Arc<View> {
        let front = self.front.read();
        let fresh = Arc::new(front.view());
        // Under the lock, so that it cannot replace a newer one.
        self.views.slot.store(Some(fresh.clone()));
        fresh
    }

    /// Changes the front, and what readers see of it from then on.
    pub fn change<T>(&self, change: impl FnOnce(&mut Front) -> T) -> T {
        let mut front = self.front.write();
        let result = change(&mut front);
        let old = self.views.changed(&front);
        drop(front);
        // What only the old version reached is freed here, outside the lock.
        drop(old);
        result
    }
}
