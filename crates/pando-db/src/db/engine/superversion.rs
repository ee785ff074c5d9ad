//! The view that readers share, in a slot beside the superversion's lock.
//!
//! Guarantees: a view taken after a write has returned shows that write; taking a view waits for no thread while
//! other threads read as well. Publishing a view shares the active memtable with readers, and then a writer must copy
//! what it changes in it (a path of the persistent map for each key). So a view is published only if another thread
//! than the writer reads, or has read a few changes ago. A thread that reads and writes in turn finds the slot empty,
//! and makes its view under the lock, for which no other thread waits. Such a view is not published either:
//! publishing and withdrawing it would cost a walk over the debt slots of all threads (`arc_swap`). A reader of
//! single keys does not free what was replaced while it read.
//!
//! May use: the superversion, views. No I/O.
//!
//! Two kinds of reader still take the lock of the superversion: one that finds the slot empty (shared), and a cursor
//! that has passed many tombstones and notes their range (exclusive, for a search among the skip ranges).

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

use arc_swap::{ArcSwapOption, Guard};
use smallvec::SmallVec;

use crate::{
    dag::{memtable::Memtable, read::view::View, tree::Tree},
    db::engine::{coalesce::NewestBatch, skip_ranges::SkipRanges, watch::Watched},
    locks::{Mutex, RwLock},
    thread,
};

/// In the place of the number of a thread: none has read since the last change.
const NOBODY: u64 = 0;
/// In the place of the number of a thread: more than one has read since the last change.
const SEVERAL: u64 = u64::MAX;
/// Changes without a reader after which views are published no more. Some, because a reader may not run for a
/// millisecond, and finds no view then but in the superversion, whose lock a thread may hold that does not run
/// either.
const LINGER_CHANGES: u32 = 16;

/// What foreground calls read and write.
pub(crate) struct Superversion {
    pub active: Memtable,
    /// Oldest first; the flusher takes from the front.
    pub sealed: VecDeque<Arc<Memtable>>,
    pub tree: Arc<Tree>,
    pub skip_ranges: SkipRanges,
    /// Keys that batches expect something of, while they look them up.
    pub watched: Watched,
    /// The newest batch, if the next one may be coalesced with it.
    pub newest_batch: Option<NewestBatch>,
}

impl Superversion {
    pub fn seal(&mut self) {
        if !self.active.is_empty() {
            let before = self.sealed.back().map_or(self.tree.msn, |table| table.msn);
            assert!(before < self.active.first_msn, "a table is sealed that is not newer than those before");
            let ends = self.sealed.back().map_or(self.tree.log_end, |table| table.log_end);
            assert!(
                ends.pos <= self.active.log_end.pos,
                "a table is sealed that ends before others in the log"
            );
            let next = Memtable::new(self.active.msn, self.active.log_end);
            self.sealed.push_back(Arc::new(std::mem::replace(&mut self.active, next)));
        }
    }

    /// Takes in a table of batches that are newer than all before, as a sealed one.
    pub fn push(&mut self, table: Memtable) {
        self.seal();
        assert!(self.active.msn < table.first_msn, "a table is taken in that is not newer than those before");
        self.active = Memtable::new(table.msn, table.log_end);
        self.sealed.push_back(Arc::new(table));
    }

    /// What readers see of it now.
    pub fn view(&self) -> View {
        let active = (!self.active.is_empty()).then(|| Arc::new(self.active.clone()));
        let tables = active.into_iter().chain(self.sealed.iter().rev().cloned()).collect();
        View::new(tables, self.tree.clone(), self.active.msn, self.skip_ranges.known())
    }
}

/// The published view, and which threads have taken one since the last change.
#[derive(Default)]
pub(crate) struct SuperversionSlot {
    slot: ArcSwapOption<View>,
    /// The slot holds a view. Changed with it, under the superversion's lock.
    published: AtomicBool,
    /// The view that the only reader since the last change has made for itself. Filled under the superversion's lock,
    /// and emptied with the slot.
    unpublished: Mutex<Option<Arc<View>>>,
    /// Whether there is one. Changed with it, under the superversion's lock, so that a writer takes no further lock
    /// if no thread reads.
    has_unpublished: AtomicBool,
    /// How often the superversion has changed.
    changes: AtomicU64,
    reader: AtomicU64,
    /// For how many more changes a view is published even if no thread reads. Changed under the superversion's lock.
    linger: AtomicU32,
    /// Views that were replaced while a reader used them.
    left: Mutex<Old>,
    has_left: AtomicBool,
}

/// Views to be dropped outside the lock.
pub(crate) type Old = SmallVec<[Arc<View>; 2]>;

impl SuperversionSlot {
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
    fn has_reader(&self) -> bool {
        let reader = self.reader.load(Ordering::Relaxed);
        reader != NOBODY && reader != thread::number()
    }

    /// True if a view is to be published: another thread than the calling one reads, or did so lately.
    pub fn wanted(&self) -> bool {
        self.has_reader() || self.linger.load(Ordering::Relaxed) > 0
    }

    /// Empties the slot. The caller holds the superversion's lock for writing.
    pub fn withdraw(&self) -> Old {
        self.replace(None)
    }

    /// After a change of the superversion, under its lock: publishes a new view if one is wanted, or none. What the
    /// caller gets is to be dropped outside the lock.
    pub fn changed(&self, superversion: &Superversion) -> Old {
        let (reads, linger) = (self.has_reader(), self.linger.load(Ordering::Relaxed));
        let fresh = (reads || linger > 0).then(|| Arc::new(superversion.view()));
        let left = if reads { LINGER_CHANGES } else { linger.saturating_sub(1) };
        self.linger.store(left, Ordering::Relaxed);
        self.reader.store(NOBODY, Ordering::Relaxed);
        self.replace(fresh)
    }

    fn replace(&self, fresh: Option<Arc<View>>) -> Old {
        let mut old = self.left_by_readers();
        if self.has_unpublished.load(Ordering::Relaxed) {
            self.has_unpublished.store(false, Ordering::Relaxed);
            old.extend(self.unpublished.lock().take());
        }
        // A swap is expensive even if it changes nothing: it walks over the debt slots of all threads of the process.
        let publishes = fresh.is_some();
        if self.published.swap(publishes, Ordering::Relaxed) || publishes {
            old.extend(self.slot.swap(fresh));
        }
        self.changes.fetch_add(1, Ordering::Release);
        old
    }

    /// Views whose last references readers have left here.
    pub fn left_by_readers(&self) -> Old {
        // Mostly there are none. A view that is left from now on is dropped with the next change.
        if !self.has_left.swap(false, Ordering::Acquire) {
            return Old::default();
        }
        std::mem::take(&mut *self.left.lock())
    }

    /// Drops a view that was taken when the slot had changed `changes` times. If it was replaced since, the reader
    /// may have the last reference. Then the reader leaves the view to the writer's threads, which have allocated it,
    /// because freeing it would wait for them in the allocator; only if another thread uses the list of such views at
    /// this moment, the reader frees it itself.
    fn let_go(&self, changes: u64, view: impl FnOnce() -> Option<Arc<View>>) {
        if self.changes.load(Ordering::Acquire) != changes
            && let Some(mut left) = self.left.try_lock()
        {
            left.extend(view());
            self.has_left.store(true, Ordering::Release);
        }
    }

    /// A consistent view of everything written so far. O(1), or O(number of memtables) after a write.
    pub fn view(&self, superversion: &RwLock<Superversion>) -> Arc<View> {
        self.mark();
        self.slot.load_full().unwrap_or_else(|| self.fresh_view(superversion))
    }

    /// Calls `read` with such a view, without a reference count that threads would share.
    pub fn with_view<T>(&self, superversion: &RwLock<Superversion>, read: impl FnOnce(&View) -> T) -> T {
        self.mark();
        let changes = self.changes.load(Ordering::Acquire);
        let published = self.slot.load();
        if let Some(view) = &*published {
            let result = read(view);
            self.let_go(changes, || Guard::into_inner(published));
            return result;
        }
        let fresh = self.fresh_view(superversion);
        let result = read(&fresh);
        self.let_go(changes, || Some(fresh));
        result
    }

    /// The view of a reader that found none in the slot.
    fn fresh_view(&self, superversion: &RwLock<Superversion>) -> Arc<View> {
        let alone = self.reader.load(Ordering::Relaxed) == thread::number();
        // A view that a reader made for itself is valid until the next change, for any thread.
        if alone && let Some(own) = &*self.unpublished.lock() {
            return own.clone();
        }
        // Under the lock, so that it cannot replace a newer one.
        let superversion = superversion.read();
        let fresh = Arc::new(superversion.view());
        if alone {
            *self.unpublished.lock() = Some(fresh.clone());
            self.has_unpublished.store(true, Ordering::Relaxed);
        } else {
            self.published.store(true, Ordering::Relaxed);
            self.slot.store(Some(fresh.clone()));
        }
        fresh
    }

    /// Changes the superversion, and what readers see of it from then on.
    pub fn change<T>(
        &self,
        superversion: &RwLock<Superversion>,
        change: impl FnOnce(&mut Superversion) -> T,
    ) -> T {
        let mut superversion = superversion.write();
        let result = change(&mut superversion);
        let old = self.changed(&superversion);
        drop(superversion);
        // What only the old version reached is freed here, outside the lock.
        drop(old);
        result
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, mpsc};

    use crate::{CreateOptions, Db, Options, device::MemDevice};

    fn store() -> Db {
        let device = Arc::new(MemDevice::new(64 << 20));
        let options = Options { background: false, ..Options::default() };
        let create = CreateOptions { node_size: 4096, log_size: Some(1 << 20), ..Default::default() };
        Db::create(device.clone(), &create, &options).unwrap();
        Db::open(device, options).unwrap()
    }

    #[test]
    fn a_view_is_published_for_some_changes_after_somebody_else_has_read() {
        let db = store();
        let published_by_a_write = || {
            db.put("a", "1").unwrap();
            db.engine().views.slot.load().is_some()
        };
        assert!(!published_by_a_write(), "nobody reads");
        db.get(b"a").unwrap();
        assert!(!published_by_a_write(), "nobody else reads");
        std::thread::scope(|scope| _ = scope.spawn(|| db.get(b"a").unwrap()).join());
        let published = (0..100).take_while(|_| published_by_a_write()).count();
        assert_eq!(published, 1 + super::LINGER_CHANGES as usize);
        assert!(!published_by_a_write());
    }

    #[test]
    fn the_only_reader_makes_a_view_once_a_change_and_publishes_none() {
        let db = store();
        let view = || db.engine().view();
        db.put("a", "1").unwrap();
        let first = view();
        assert!(Arc::ptr_eq(&first, &view()), "the second read makes a view anew");
        assert!(db.engine().views.slot.load().is_none(), "the view is published for nobody");
        db.put("a", "2").unwrap();
        let second = view();
        assert!(first.msn < second.msn, "the view is from before the write");
        assert!(Arc::ptr_eq(&second, &view()));
        // A second reader gets what the writes so far have left, and so does the first then.
        let others = std::thread::scope(|scope| scope.spawn(view).join().unwrap());
        assert_eq!(others.msn, second.msn);
        assert!(db.engine().views.slot.load().is_some(), "two read, and each makes views of its own");
        assert!(Arc::ptr_eq(&others, &view()));
    }

    #[test]
    fn what_a_reader_has_had_to_the_end_goes_with_the_next_change() {
        let db = store();
        db.put("a", "1").unwrap();
        let left = || db.engine().views.left.lock().len();
        let (reads, reading) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        std::thread::scope(|scope| {
            let db = &db;
            scope.spawn(move || {
                for _ in 0..2 {
                    db.engine().with_view(|view| {
                        reads.send(view.tree.msn).unwrap();
                        goes_on.recv().unwrap();
                    });
                    reads.send(0).unwrap();
                }
            });
            // Nothing has changed: nothing is left.
            reading.recv().unwrap();
            go_on.send(()).unwrap();
            reading.recv().unwrap();
            assert_eq!(left(), 0);
            reading.recv().unwrap();
            db.put("b", "2").unwrap();
            go_on.send(()).unwrap();
            reading.recv().unwrap();
            assert_eq!(left(), 1, "the reader has freed it, or the writer could not");
        });
        db.put("c", "3").unwrap();
        assert_eq!(left(), 0);
    }
}
