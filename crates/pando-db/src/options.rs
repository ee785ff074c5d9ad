//! How a store is created and opened: every tunable with its default, range and unit.

use std::{sync::Arc, time::Duration};

use crate::merge::{Merge, PatchMerge};

/// Methods that set one field each and give the options back.
macro_rules! setters {
    ($options:ident: $($field:ident($type:ty) $as:expr;)*) => {
        impl $options {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $as;
                    self
                }
            )*
        }
    };
}

/// What is fixed when a store is created.
///
/// ```
/// let create = pando_db::CreateOptions::default().size(1 << 30).node_size(256 << 10);
/// assert_eq!(create.log_size, None);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CreateOptions {
    /// Size in bytes of a file that is made for the store, which is sparse: it takes space as it fills, and
    /// [`crate::Db::grow`] makes it larger. `None` chooses 16 GiB, or the size of a file that exists. A device given as
    /// such, or the path of a block device, keeps its own.
    pub size: Option<u64>,
    /// Target size of a node in bytes: 4 KiB to 16 MiB, default 1 MiB.
    pub node_size: u32,
    /// Size of the redo log in bytes, from 64 KiB to 1 GiB; `None` chooses 1/16 of the device, 1 MiB to 64 MiB. A batch
    /// has at most a quarter of it. The store needs room for it and for 32 nodes.
    pub log_size: Option<u64>,
    /// Identity of the store, kept in the superblock, and reported by [`crate::identify`]. Zero, the default,
    /// chooses one at random.
    pub uuid: [u8; 16],
    /// A name for the store, kept in the superblock: at most 64 bytes, none of them zero. Default empty.
    pub label: String,
}

impl Default for CreateOptions {
    fn default() -> Self {
        Self { size: None, node_size: 1 << 20, log_size: None, uuid: [0; 16], label: String::new() }
    }
}

setters! { CreateOptions:
    size(u64) Some(size);
    node_size(u32) node_size;
    log_size(u64) Some(log_size);
    uuid([u8; 16]) uuid;
    label(impl Into<String>) label.into();
}

/// How pages are compressed when they are written. Each page says how it was, so this may change from one
/// opening of a store to the next. A page that would not become an eighth shorter is stored as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Codec {
    /// No compression: for data that is compressed already.
    None,
    /// Fast, and half of the size for text.
    #[default]
    Lz4,
    /// A third smaller than LZ4 for text, for several times the work. The level is 1 (fast) to 19.
    Zstd(u8),
}

/// How a store is opened; nothing here changes what is on disk.
///
/// ```
/// let options = pando_db::Options::default().cache_bytes(64 << 20).read_only(true);
/// assert!(options.background);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Budget for cached data, dirty data and tables in memory, in bytes: 1 to 16 TiB, default 256 MiB.
    pub cache_bytes: u64,
    /// Meaning of upserts; must be the one that the store was created with.
    pub merge: Arc<dyn Merge>,
    /// Whether background threads flush memtables, make checkpoints and write the log. Without them the same work
    /// happens inside the calls that cause it, so that a single-threaded run is deterministic. Default true.
    pub background: bool,
    /// The nice value that the background threads add to that of the process, as in nice(2): 0 to 19, default 10.
    /// Their work can wait longer than a caller; where processors are scarce, readers keep most of their speed beside
    /// a writer. Without effect where threads have no priority of their own.
    pub background_nice: i32,
    /// Refuse every change, and write nothing: the log is replayed in memory, the file stays as it is. Several may
    /// have a store open so at once, as long as nobody has it open for writing. Default false.
    pub read_only: bool,
    /// Open a store even if durable records of its log are damaged beyond repair, which is otherwise refused. What
    /// can be verified of the log is replayed; the rest is left out, and [`crate::Db::check`] reports it. So the
    /// state may not be that after any batch. Default false.
    pub salvage: bool,
    /// How long a write may stay in memory before the log is flushed without a call of [`crate::Db::sync`]: not
    /// zero, and 1 ms if it is shorter; default 1 s.
    pub sync_interval: Duration,
    /// How long after a checkpoint the next one is made, if there is anything in the log; default 30 s.
    pub checkpoint_interval: Duration,
    /// Size in bytes at which the memtable is sealed, at most a 28th of `cache_bytes` (or 512 KiB if that is more).
    /// As a rule there are up to seven memtables at once. Not 0; default 8 MiB.
    pub memtable_bytes: usize,
    /// How pages are compressed; default LZ4.
    pub codec: Codec,
    /// Pending bytes that justify a private copy of a shared node; `None` is a sixteenth of
    /// the node size (copy-on-abundant-write, FAST'20 section 3).
    pub abundant_bytes: Option<usize>,
    /// Most memory of the cache, in bytes, for pages of large values that were written and have not been read since;
    /// pages of one or two values get an eighth of that. `None`, the default, sets no bound. With a bound, pages that
    /// long requests read for the first time are not cached either. The option is for programs whose data is also
    /// cached elsewhere, as the kernel caches that of a mounted file system.
    pub written_bytes: Option<u64>,
    /// Whether freed space is given back to the file system or device underneath (hole punching or discard), after
    /// checkpoints and when the store is closed. Some is kept for the next writes. Default true.
    pub discard: bool,
    /// Give back all but what must be kept, at once and in single blocks. For tests: it makes everything
    /// else slow.
    pub(crate) discard_eagerly: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 256 << 20,
            merge: Arc::new(PatchMerge),
            background: true,
            background_nice: 10,
            read_only: false,
            salvage: false,
            sync_interval: Duration::from_secs(1),
            checkpoint_interval: Duration::from_secs(30),
            memtable_bytes: 8 << 20,
            codec: Codec::default(),
            abundant_bytes: None,
            written_bytes: None,
            discard: true,
            discard_eagerly: false,
        }
    }
}

setters! { Options:
    cache_bytes(u64) cache_bytes;
    merge(Arc<dyn Merge>) merge;
    background(bool) background;
    background_nice(i32) background_nice;
    read_only(bool) read_only;
    salvage(bool) salvage;
    sync_interval(Duration) sync_interval;
    checkpoint_interval(Duration) checkpoint_interval;
    memtable_bytes(usize) memtable_bytes;
    codec(Codec) codec;
    abundant_bytes(usize) Some(abundant_bytes);
    written_bytes(u64) Some(written_bytes);
    discard(bool) discard;
}

#[cfg(any(test, feature = "sim"))]
impl Options {
    /// Gives freed space back at once, all but what must be kept, in single blocks: for tests, it makes everything
    /// else slow. Default false.
    #[must_use]
    pub fn discard_eagerly(mut self, eagerly: bool) -> Self {
        self.discard_eagerly = eagerly;
        self
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("cache_bytes", &self.cache_bytes)
            .field("merge", &self.merge.name())
            .field("background", &self.background)
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}
