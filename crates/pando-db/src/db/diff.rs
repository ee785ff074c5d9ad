//! Differences between prefixes of snapshots: see [`Snapshot::diff`].

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;

use crate::{
    dag::read::diff::{Differ, Side},
    db::{cursor::Snapshot, handle::Db},
    error::{Error, Result},
};

/// A key whose value differs between two prefixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The key without the prefix.
    pub key: Bytes,
    /// Its value under the first prefix; `None` if it has none there.
    pub before: Option<Bytes>,
    /// Its value under the second prefix.
    pub after: Option<Bytes>,
}

/// The keys whose values differ between two prefixes, in order: see [`Snapshot::diff`]. After an error it ends.
///
/// Memory: that of two cursors.
pub struct Diff {
    before: Snapshot,
    differ: Differ,
    stop: Option<Arc<AtomicBool>>,
}

impl Diff {
    /// Ends with [`Error::Interrupted`] soon after `stop` is set by any thread: only the pages in progress are still
    /// read, however much is equal.
    #[must_use]
    pub fn stop_on(mut self, stop: &Arc<AtomicBool>) -> Self {
        self.stop = Some(stop.clone());
        self
    }

    /// Continues with the first difference whose key, without prefix, is at or above `key`, even if it was given
    /// before. Cost: none until the next difference is taken.
    pub fn seek(&mut self, key: &[u8]) {
        self.differ.seek(key);
    }
}

impl Iterator for Diff {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        let engine = &self.before.engine;
        let stop = self.stop.as_deref();
        let go_on = || match stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            true => Err(Error::Interrupted),
            false => Ok(()),
        };
        let found = self.differ.next(&engine.pager, &*engine.merge, &go_on).transpose()?;
        Some(found.map(|found| Change { key: found.key, before: found.before, after: found.after }))
    }
}

impl Snapshot {
    /// The changes that turn what this snapshot has under `prefix` into what `after` has under `after_prefix`: every
    /// key (without its prefix) whose value differs, with both values, in key order. The snapshots may be the same
    /// one, or of any two moments; [`Error::Invalid`] if they are of different stores.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use pando_db::{CreateOptions, Db, Options, device::MemDevice};
    /// # let device = Arc::new(MemDevice::new(64 << 20));
    /// # Db::create(device.clone(), &CreateOptions::default(), &Options::default())?;
    /// # let db = Db::open(device, Options::default())?;
    /// db.put("tree/aspen", "1")?;
    /// db.put("tree/oak", "2")?;
    /// db.clone_prefix("tree/", "copy/")?;
    /// db.put("copy/oak", "3")?;
    /// let now = db.snapshot();
    /// let changes: Vec<_> = now.diff(b"tree/", &now, b"copy/")?.collect::<Result<_, _>>()?;
    /// assert_eq!(changes.len(), 1);
    /// assert_eq!(changes[0].key, "oak");
    /// assert_eq!(changes[0].after.as_deref(), Some(&b"3"[..]));
    /// # Ok::<(), pando_db::Error>(())
    /// ```
    ///
    /// Cost: where one prefix is a clone of the other, or both are of a third one, in proportion to what differs
    /// and O(log n) for each place: nothing is read that both share. A leaf in which they differ is read as a whole.
    /// Between snapshots of different moments the headers of interior nodes are read besides. With nothing shared,
    /// that of two scans.
    pub fn diff(&self, prefix: &[u8], after: &Snapshot, after_prefix: &[u8]) -> Result<Diff> {
        if !Arc::ptr_eq(&self.engine, &after.engine) {
            return Err(Error::Invalid("snapshots of different stores have no difference".into()));
        }
        let side = |snapshot: &Snapshot, prefix: &[u8]| Side {
            view: snapshot.view.clone(),
            prefix: Bytes::copy_from_slice(prefix),
        };
        let differ = Differ::new(side(self, prefix), side(after, after_prefix));
        Ok(Diff { before: self.clone(), differ, stop: None })
    }
}

impl Db {
    /// The difference of two prefixes as of now: see [`Snapshot::diff`].
    pub fn diff(&self, before: &[u8], after: &[u8]) -> Result<Diff> {
        let now = self.snapshot();
        now.diff(before, &now, after)
    }
}
