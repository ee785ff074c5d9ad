//! Direct writes beside dirty pages: bytes that are stored past the page cache while another program has pages of
//! them mapped.
//!
//! Before the kernel sends a direct write, it writes out and drops the pages in its range. But a program that has the
//! file mapped may bring such a page back before the bytes are stored, and change other bytes of it: when the kernel
//! then writes that page out, the page has old bytes where new ones are stored. So a direct write is announced here,
//! from before it is stored until all older pages are dropped. Guarantee: a page that the kernel writes out replaces
//! no announced bytes; only the rest of the page is stored. If a program changes the same bytes by a mapping at the
//! same time, the direct write wins. An announcement waits for pages in its range that are being stored, so its
//! caller must hold nothing that these wait for; other calls do not wait.

use std::{collections::HashMap, ops::Range, sync::Arc};

use pando_fs::waiting;
use parking_lot::{Condvar, Mutex};

/// Locks, a count. They are held for changes in memory only.
const SHARDS: usize = 64;

/// What was left out of pages; none touch.
type LeftOut = Arc<Mutex<Vec<Range<u64>>>>;

/// Announcements and page writes in progress in a file.
#[derive(Default)]
struct FileInUse {
    /// Ranges that are announced; of each, which bytes of pages were left out.
    announced: Vec<(Range<u64>, LeftOut)>,
    /// Pages that are being stored, by number.
    storing: Vec<(u64, Range<u64>)>,
}

#[derive(Default)]
struct ShardState {
    files: HashMap<u64, FileInUse>,
    /// Numbers that were given to pages.
    numbers: u64,
    /// Announcements that wait, a count.
    waiting: usize,
}

impl ShardState {
    fn forget(&mut self, ino: u64, change: impl FnOnce(&mut FileInUse)) {
        if let Some(file) = self.files.get_mut(&ino) {
            change(file);
            if file.announced.is_empty() && file.storing.is_empty() {
                self.files.remove(&ino);
            }
        }
    }

    /// Whether pages of these numbers are being stored.
    fn is_storing(&self, ino: u64, numbers: &[u64]) -> bool {
        let is_one = |(number, _): &(u64, _)| numbers.contains(number);
        self.files.get(&ino).is_some_and(|file| file.storing.iter().any(is_one))
    }
}

/// The same for the files of a shard.
#[derive(Default)]
struct Shard {
    state: Mutex<ShardState>,
    /// Pages have been stored.
    stored: Condvar,
}

/// What is announced on a mount.
pub(crate) struct PastPages(Vec<Shard>);

/// Pages that are being stored, until this is dropped: also if that panics.
struct Storing<'a> {
    shard: &'a Shard,
    ino: u64,
    number: u64,
}

/// A range that is announced, until this is dropped.
pub(crate) struct Announcement {
    of: Arc<PastPages>,
    ino: u64,
    left_out: LeftOut,
}

impl Default for PastPages {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| Shard::default()).collect())
    }
}

/// Whether two ranges have bytes in common.
fn meet(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

impl PastPages {
    fn shard(&self, ino: u64) -> Option<&Shard> {
        self.0.get(ino as usize % SHARDS)
    }

    /// Before these bytes of a file are stored. Waits for pages with some of them that are being stored.
    pub(crate) fn announce(self: &Arc<Self>, ino: u64, range: Range<u64>) -> Announcement {
        let left_out = LeftOut::default();
        let announcement = Announcement { of: self.clone(), ino, left_out: left_out.clone() };
        let Some(shard) = self.shard(ino) else { return announcement };
        // From now on the range is left out of pages that are written.
        let older: Vec<u64> = {
            let mut state = shard.state.lock();
            let file = state.files.entry(ino).or_default();
            file.announced.push((range.clone(), left_out));
            let meeting = file.storing.iter().filter(|(_, pages)| meet(pages, &range));
            meeting.map(|(number, _)| *number).collect()
        };
        if !older.is_empty() {
            waiting::announce();
            let mut state = shard.state.lock();
            state.waiting += 1;
            shard.stored.wait_while(&mut state, |state| state.is_storing(ino, &older));
            state.waiting -= 1;
        }
        announcement
    }

    /// Stores pages by `store`, which gets the parts that nothing was announced of, in order. What it notes of them is
    /// noted before anybody stores something that is announced from now on.
    pub(crate) fn store_pages<E>(
        &self,
        ino: u64,
        pages: Range<u64>,
        mut store: impl FnMut(Range<u64>) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(shard) = self.shard(ino) else { return store(pages) };
        let mut state = shard.state.lock();
        state.numbers += 1;
        let number = state.numbers;
        let file = state.files.entry(ino).or_default();
        file.storing.push((number, pages.clone()));
        let mut rest = vec![pages];
        for (range, left_out) in &file.announced {
            let cut = |part: Range<u64>| {
                if !meet(&part, range) {
                    return [part, 0..0];
                }
                add(&mut left_out.lock(), part.start.max(range.start)..part.end.min(range.end));
                [part.start..range.start.max(part.start), range.end.min(part.end)..part.end]
            };
            rest = rest.into_iter().flat_map(cut).filter(|part| !part.is_empty()).collect();
        }
        drop(state);
        let _storing = Storing { shard, ino, number };
        rest.into_iter().try_for_each(&mut store)
    }
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        let mut state = self.shard.state.lock();
        state.forget(self.ino, |file| file.storing.retain(|(number, _)| *number != self.number));
        if state.waiting > 0 {
            self.shard.stored.notify_all();
        }
    }
}

/// Adds a range to a list, and merges it with ranges that it touches.
fn add(ranges: &mut Vec<Range<u64>>, mut new: Range<u64>) {
    ranges.retain(|range| {
        let apart = range.end < new.start || new.end < range.start;
        if !apart {
            new = new.start.min(range.start)..new.end.max(range.end);
        }
        apart
    });
    ranges.push(new);
}

impl Announcement {
    /// Ends it: which bytes of pages were left out.
    pub(crate) fn end(self) -> Vec<Range<u64>> {
        let left_out = self.left_out.clone();
        drop(self);
        std::mem::take(&mut *left_out.lock())
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        let Some(shard) = self.of.shard(self.ino) else { return };
        let is_other = |(_, left_out): &(_, LeftOut)| !Arc::ptr_eq(left_out, &self.left_out);
        shard.state.lock().forget(self.ino, |file| file.announced.retain(is_other));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

    use std::{sync::mpsc, time::Duration};

    use pando_fs::waiting;

    use super::*;

    fn stored(past: &PastPages, ino: u64, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut parts = Vec::new();
        past.store_pages(ino, pages, |part| {
            parts.push(part);
            Ok::<_, ()>(())
        })
        .unwrap();
        parts
    }

    #[test]
    fn pages_are_stored_but_for_what_is_announced() {
        let past = Arc::new(PastPages::default());
        assert_eq!(stored(&past, 7, 0..100), [0..100]);
        let first = past.announce(7, 10..20);
        let second = past.announce(7, 15..30);
        assert_eq!(stored(&past, 7, 0..100), [0..10, 30..100]);
        assert_eq!(stored(&past, 7, 12..30), []);
        assert_eq!(stored(&past, 7, 30..40), [30..40]);
        // Another file, of the same shard and of another.
        assert_eq!(stored(&past, 7 + SHARDS as u64, 0..40), [0..40]);
        assert_eq!(stored(&past, 8, 0..40), [0..40]);
        assert_eq!(stored(&past, 7, 10..11), []);
        assert_eq!(first.end(), [10..20]);
        assert_eq!(stored(&past, 7, 0..40), [0..15, 30..40]);
        let unmet = past.announce(7, 200..201);
        assert_eq!(stored(&past, 7, 0..40), [0..15, 30..40]);
        assert_eq!((unmet.end(), second.end()), (vec![], vec![15..30]));
        assert_eq!(stored(&past, 7, 0..40), [0..40]);
        assert!(past.0.iter().all(|shard| shard.state.lock().files.is_empty()));
    }

    /// Storing a page may wait for a device. Only writes to the same range wait for it, and they announce that they
    /// wait.
    #[test]
    fn an_announcement_waits_for_pages_that_are_being_stored_in_its_range_only() {
        const PATIENCE: Duration = Duration::from_secs(20);
        let past = Arc::new(PastPages::default());
        let (tell, told) = mpsc::channel();
        let announce = |ino, range| {
            let (past, tell) = (past.clone(), tell.clone());
            move || {
                let waits = tell.clone();
                waiting::on_wait(Some(Box::new(move || waits.send("waits").unwrap())));
                let announced = past.announce(ino, range);
                tell.send("announced").unwrap();
                waiting::on_wait(None);
                announced.end()
            }
        };
        std::thread::scope(|s| {
            let thread = past
                .store_pages(7, 0..100, |part| {
                    assert_eq!(part, 0..100);
                    for (ino, range) in [(7 + SHARDS as u64, 0..100), (8, 0..100), (7, 100..200)] {
                        s.spawn(announce(ino, range));
                        assert_eq!(told.recv_timeout(PATIENCE), Ok("announced"), "of {ino}");
                    }
                    let thread = s.spawn(announce(7, 99..100));
                    assert_eq!(told.recv_timeout(PATIENCE), Ok("waits"));
                    // Others that are stored meanwhile do not wait.
                    assert_eq!(stored(&past, 7, 0..100), [0..99]);
                    assert_eq!(stored(&past, 7 + SHARDS as u64, 0..100), [0..100]);
                    let quiet = told.recv_timeout(Duration::from_millis(100));
                    assert_eq!(quiet, Err(mpsc::RecvTimeoutError::Timeout));
                    Err::<(), _>(thread)
                })
                .unwrap_err();
            assert_eq!(told.recv_timeout(PATIENCE), Ok("announced"));
            assert_eq!(thread.join().unwrap(), [99..100]);
        });
        assert_eq!(stored(&past, 7, 0..100), [0..100]);
    }
}
