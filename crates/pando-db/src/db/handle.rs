//! The engine's public handle, [`Db`]: each call in terms of the modules below.

use std::{ops::RangeInclusive, path::PathBuf, sync::Arc, thread::JoinHandle};

use bytes::Bytes;

use crate::{
    batch::Batch,
    db::{
        background::threads,
        cursor::{Cursor, Snapshot},
        engine::{Engine, report::Finding, throttle::DelaysPutOff},
        recover::open,
    },
    device::{Device, Medium, New},
    error::{Error, Result},
    locks::Mutex,
    options::{Codec, CreateOptions, Options},
};

/// An open store. Cheap to clone: all clones are one store, and any may be used from any thread.
///
/// Dropping the last clone without [`Db::close`] makes the log durable and makes no checkpoint: the next opening
/// replays the log. Errors of that are not reported.
#[derive(Clone)]
pub struct Db {
    inner: Arc<Inner>,
}

struct Inner {
    engine: Arc<Engine>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Db {
    /// Makes an empty store: in a new file at a path, or on a device, overwriting what is there. Does not open it.
    ///
    /// ```no_run
    /// # use pando_db::{CreateOptions, Db, Options};
    /// Db::create("grove.pando", &CreateOptions::default(), &Options::default())?;
    /// let db = Db::open("grove.pando", Options::default())?;
    /// # Ok::<(), pando_db::Error>(())
    /// ```
    ///
    /// A file may exist if its first 72 KiB are zeros; other contents are refused with [`Error::Invalid`] (to
    /// overwrite them, make a [`crate::device::FileDevice`] with `force`), a store that is open with
    /// [`Error::Locked`]. So a program that wants a store whether there is one or not asks whether the file exists, and
    /// of two that make it at the same time only one does. Of `options` only [`Options::merge`] is kept: its name is
    /// stored. Cost: some small writes and flushes; in a file the space of the log is reserved. A crash meanwhile
    /// leaves zeros at the beginning, and this can be repeated.
    pub fn create(medium: impl Medium, create: &CreateOptions, options: &Options) -> Result<()> {
        check(options)?;
        let path = medium.path();
        let make = || {
            let New { device, made } = medium.for_new(create.size)?;
            open::create(&device, create, options).inspect_err(|_| {
                if let Some(path) = made {
                    // The error that led here is the one to tell.
                    let _ = std::fs::remove_file(path);
                }
            })
        };
        make().map_err(about(path))
    }

    /// [`Error::Invalid`] if no store can be made on this device with these options. Changes nothing.
    pub(crate) fn check_create(device: &dyn Device, create: &CreateOptions) -> Result<()> {
        open::checked_log_size(device, create).map(|_| ())
    }

    /// Opens the store at a path or on a device: its last checkpoint, and every batch of the log behind it.
    ///
    /// [`Error::Io`] if there is no file at the path; [`Error::Format`] if it holds no store, or one whose upserts have
    /// another meaning than [`Options::merge`]; [`Error::Invalid`] for options out of their ranges; [`Error::Locked`]
    /// if the store is open, in this process (by this path or this device) or in another, unless both only read
    /// ([`Options::read_only`]). A [`Snapshot`] or [`Cursor`] that outlives the last [`Db`] keeps it open. Cost: the
    /// whole translation table (some 30 bytes a node) and the log are read.
    pub fn open(medium: impl Medium, options: Options) -> Result<Db> {
        check(&options)?;
        let path = medium.path();
        let engine = medium.for_old(options.read_only).and_then(|device| open::open(device, options));
        let engine = Arc::new(engine.map_err(about(path))?);
        let threads = if engine.options.background && !engine.options.read_only {
            threads::spawn(&engine)?
        } else {
            Vec::new()
        };
        Ok(Db { inner: Arc::new(Inner { engine, threads: Mutex::new(threads) }) })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.inner.engine
    }

    /// The value of `key`. Cost: O(log n) small reads, fewer with a warm cache.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let engine = self.engine();
        engine.with_view(|view| view.get(key, &engine.pager, &*engine.merge))
    }

    /// A consistent view that later changes do not affect. O(1).
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { engine: self.engine().clone(), view: self.engine().view() }
    }

    /// The pairs in `[lo, hi)` (`None`: no upper bound) as of now, in order, from either end.
    pub fn range(&self, lo: &[u8], hi: Option<&[u8]>) -> Cursor {
        self.snapshot().into_range(lo, hi)
    }

    /// The pairs whose keys begin with `prefix`, as of now.
    pub fn prefix(&self, prefix: &[u8]) -> Cursor {
        self.snapshot().into_prefix(prefix)
    }

    /// Most memory for pages that cursors have read ahead and that have not been used yet, in bytes: an eighth of
    /// [`Options::cache_bytes`], which includes it. See [`Cursor::read_ahead`].
    pub fn max_readahead_bytes(&self) -> u64 {
        self.engine().pager.max_readahead_bytes()
    }

    /// Most bytes of a batch: those of its keys and values, and 12 for each operation. Not more than a quarter of the
    /// log ([`CreateOptions::log_size`]). [`Error::TooLarge`] for one of more.
    pub fn max_batch(&self) -> usize {
        self.engine().max_batch()
    }

    /// Applies all operations of `batch` in order, all or none. Visible when the call returns;
    /// durable after the next [`Db::sync`], or within [`Options::sync_interval`].
    ///
    /// Errors leave the store as it was: [`Error::Conflict`] (see [`Batch::expect`]), [`Error::NoSpace`],
    /// [`Error::Overlap`], [`Error::TooLarge`], [`Error::ReadOnly`], [`Error::Stopped`], and [`Error::Invalid`] for a
    /// clone in a store that has been cloned into itself some 200 times over.
    pub fn write(&self, batch: Batch) -> Result<()> {
        self.engine().write(batch)
    }

    /// Fails as [`Db::write`] would now if a key, or an operation, in `batch` is too large, or its clones and renames
    /// would make a key longer than [`crate::MAX_KEY`]. Changes nothing, and does not look whether there is room. The
    /// call reads only if such long keys may be there.
    pub fn check_lengths(&self, batch: &Batch) -> Result<()> {
        self.engine().check_lengths(batch)
    }

    fn one(&self, fill: impl FnOnce(&mut Batch)) -> Result<()> {
        let mut batch = Batch::new();
        fill(&mut batch);
        self.write(batch)
    }

    /// Sets `key` to `value`.
    pub fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<()> {
        self.one(|b| _ = b.put(key, value))
    }

    /// Removes `key`.
    pub fn delete(&self, key: impl Into<Bytes>) -> Result<()> {
        self.one(|b| _ = b.delete(key))
    }

    /// Applies `op` to the value of `key` without reading it. [`Options::merge`] says what operations mean; by
    /// default they are those of [`crate::patch`]:
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use pando_db::{CreateOptions, Db, Options, device::MemDevice, patch};
    /// # let device = Arc::new(MemDevice::new(64 << 20));
    /// # Db::create(device.clone(), &CreateOptions::default(), &Options::default())?;
    /// # let db = Db::open(device, Options::default())?;
    /// db.put("greeting", "hello world")?;
    /// db.upsert("greeting", patch::write(6, b"grove"))?;
    /// assert_eq!(db.get(b"greeting")?.as_deref(), Some(&b"hello grove"[..]));
    /// # Ok::<(), pando_db::Error>(())
    /// ```
    pub fn upsert(&self, key: impl Into<Bytes>, op: impl Into<Bytes>) -> Result<()> {
        self.one(|b| _ = b.upsert(key, op))
    }

    /// Applies `op` to every value that exists under `prefix`, without reading any, and creates none. One message,
    /// however many values there are: it is applied to each of them when the value is read, or when the message
    /// reaches the value in the DAG. See [`crate::Batch::upsert_prefix`] and [`crate::Merge`].
    pub fn upsert_prefix(&self, prefix: impl Into<Bytes>, op: impl Into<Bytes>) -> Result<()> {
        self.one(|b| _ = b.upsert_prefix(prefix, op))
    }

    /// Copies every key under `src` to `dst`, replacing what is there: if there is no key under `src`, none is left
    /// under `dst`. O(log n), whatever the size. See [`crate::Batch::clone_prefix`] for what is refused.
    /// [`Error::TooLarge`], with nothing changed, if a key would be longer than [`crate::MAX_KEY`]. The call reads
    /// only if such long keys may be there: see [`crate::Stats::length_searches`].
    pub fn clone_prefix(&self, src: impl Into<Bytes>, dst: impl Into<Bytes>) -> Result<()> {
        self.one(|b| _ = b.clone_prefix(src, dst))
    }

    /// Moves every key under `src` to `dst`, replacing what is there: if there is no key under `src`, none is left
    /// under `dst`. O(log n), whatever the size. [`Error::Overlap`] if one is a prefix of the other.
    /// [`Error::TooLarge`], with nothing changed, if a key would be longer than [`crate::MAX_KEY`]. The call reads
    /// only if such long keys may be there: see [`crate::Stats::length_searches`].
    pub fn rename_prefix(&self, src: impl Into<Bytes>, dst: impl Into<Bytes>) -> Result<()> {
        self.one(|b| _ = b.rename_prefix(src, dst))
    }

    /// Removes every key under `prefix`. One message.
    pub fn delete_prefix(&self, prefix: impl Into<Bytes>) -> Result<()> {
        self.one(|b| _ = b.delete_prefix(prefix))
    }

    /// Returns when every batch written so far is durable. Calls that wait at the same time share one flush.
    pub fn sync(&self) -> Result<()> {
        self.engine().log.sync()
    }

    /// Makes a checkpoint: writes what has changed to its place in the tree, so that the log before it is not needed
    /// any more. [`Db::sync`] is enough, and cheaper, to make batches durable.
    pub fn checkpoint(&self) -> Result<()> {
        self.engine().checkpoint()
    }

    /// Does all work that is left from earlier writes, so that the space of what was deleted is free when it returns:
    /// flushes deletes that wait in the DAG to where they free something, reclaims nodes that nothing refers to any
    /// more, lowers a DAG that is too high, and makes checkpoints. Other stores call this compaction or vacuuming;
    /// data that was not deleted is not written anew, and there is no need to call it: the same is done in the
    /// background when nothing has been written for a while, and before a write is refused for lack of space. Beside
    /// other threads that go on writing it covers what was deleted before the call. Cost: in proportion to what only
    /// the deleted trees own, and the headers of all interior nodes that are not cached.
    #[doc(alias = "compact")]
    #[doc(alias = "vacuum")]
    #[doc(alias = "reclaim")]
    pub fn settle(&self) -> Result<()> {
        let engine = self.engine();
        engine.check_running()?;
        if engine.options.read_only {
            return Err(Error::ReadOnly);
        }
        engine.settle(&|| Ok(false)).map(|_| ())
    }

    /// As [`Db::settle`], but ends when `enough` says so, which is asked between steps.
    pub fn settle_until(&self, enough: impl Fn() -> bool) -> Result<()> {
        let engine = self.engine();
        engine.check_running()?;
        if engine.options.read_only {
            return Err(Error::ReadOnly);
        }
        engine.settle(&|| Ok(enough())).map(|_| ())
    }

    /// Until what it gives is dropped, writes are not delayed for the backlog of others, up to a tenth of a second in
    /// all, which later writes make up for. For a caller who waits for writes that other threads make, as a server does
    /// before a clone: that wait is then bounded by those writes and not by who wrote before. Where memory, the log or
    /// the device are full, writes wait all the same.
    pub fn put_off_delays(&self) -> DelaysPutOff<'_> {
        self.engine().throttle.put_off()
    }

    /// (available, total) bytes: what ordinary writes may still take, and the size of the space for nodes and values.
    /// Cheap.
    pub fn space(&self) -> (u64, u64) {
        let engine = self.engine();
        let total = engine.space.free_bytes() + engine.space.used_bytes();
        (engine.available(), total)
    }

    /// What opening the store has found damaged, or perhaps damaged, in the log or a superblock, and has repaired or
    /// passed over. [`Db::check`] reports the same among its findings and notes.
    pub fn warnings(&self) -> Vec<String> {
        let recovery = &self.engine().recovery;
        recovery.findings.iter().map(Finding::to_string).chain(recovery.notes.iter().cloned()).collect()
    }

    /// Makes the store `size` bytes long, and the device too if it is shorter, while the store is in use.
    pub fn grow(&self, size: u64) -> Result<()> {
        self.engine().grow(size)
    }

    /// Makes a last checkpoint and stops. Succeeds only if all that was written is durable: in a store that is too full
    /// for the checkpoint it is in the log, which the next opening replays. Later changes by any clone, and a second
    /// close, fail with [`Error::Stopped`]; reads go on. A file stays locked until the last clone, snapshot and cursor
    /// are gone; a device of another kind may be opened again at once, and then they may read anything.
    pub fn close(&self) -> Result<()> {
        let engine = self.engine();
        // Done first, because a batch that is accepted after the last checkpoint would be lost.
        engine.log.close();
        let result = match engine.check_running() {
            Ok(()) if engine.options.read_only => Ok(()),
            Ok(()) => engine.log.sync().and_then(|()| match engine.checkpoint_clean() {
                // Everything is in the log; the next open replays it.
                Err(Error::NoSpace) => Ok(()),
                other => other,
            }),
            Err(stopped) => Err(stopped),
        };
        engine.discard_at_close();
        self.inner.stop_threads();
        engine.log.stop("it was closed".into());
        *engine.in_use.lock() = None;
        result
    }
}

/// Adds what file or device an error is about.
fn about(path: Option<PathBuf>) -> impl FnOnce(Error) -> Error {
    move |error| match path {
        Some(path) => error.of(&path),
        None => error,
    }
}

/// Greatest budget, bytes: sums of it and of parts of it stay numbers.
const MAX_CACHE_BYTES: u64 = 16 << 40;

/// Levels of zstd, a count.
const ZSTD_LEVELS: RangeInclusive<u8> = 1..=19;
/// Nice values that background threads may add, a count of the levels of nice(2).
const NICE_VALUES: RangeInclusive<i32> = 0..=19;

/// Error for options out of their ranges.
fn check(options: &Options) -> Result<()> {
    let wrong = |what: String| Err(Error::Invalid(what));
    if !(1..=MAX_CACHE_BYTES).contains(&options.cache_bytes) {
        return wrong(format!("a cache of {} bytes; up to 16 TiB are possible", options.cache_bytes));
    }
    if options.memtable_bytes == 0 {
        return wrong("a memtable of 0 bytes".into());
    }
    if options.sync_interval.is_zero() {
        return wrong("flushes of the log without a pause".into());
    }
    if let Codec::Zstd(level) = options.codec
        && !ZSTD_LEVELS.contains(&level)
    {
        return wrong(format!("zstd level {level}; 1 to 19 are possible"));
    }
    if !NICE_VALUES.contains(&options.background_nice) {
        let nice = options.background_nice;
        return wrong(format!("a nice value of {nice} for background threads; 0 to 19 are possible"));
    }
    Ok(())
}

impl Inner {
    fn stop_threads(&self) {
        self.engine.signal.ask_shutdown();
        for thread in self.threads.lock().drain(..) {
            // A thread that panicked has printed why; there is nothing to take from it.
            let _ended = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop_threads();
        if self.engine.log.stopped().is_none() && !self.engine.options.read_only {
            let _best_effort = self.engine.log.sync();
        }
    }
}

impl std::fmt::Debug for Db {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Db").field("options", &self.engine().options).finish_non_exhaustive()
    }
}
