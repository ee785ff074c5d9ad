//! The adapters, one file an engine. Pando is always there, the peers by their cargo features.

mod pando;

#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "lmdb")]
mod lmdb;
#[cfg(feature = "redb")]
mod redb;
#[cfg(feature = "rocksdb")]
mod rocks;

use crate::engine::Kind;

/// The name under which Pando appears.
pub const PANDO: &str = "pando";

/// LMDB without readahead; of interest where data is larger than the memory, and not otherwise.
pub const LMDB_RANDOM: &str = "lmdb-random";

/// All engines that were compiled in, Pando first.
pub fn all() -> Vec<Kind> {
    vec![
        Kind { name: PANDO, open: pando::open },
        #[cfg(feature = "rocksdb")]
        Kind { name: "rocksdb", open: rocks::open },
        #[cfg(feature = "lmdb")]
        Kind { name: "lmdb", open: lmdb::open },
        #[cfg(feature = "lmdb")]
        Kind { name: LMDB_RANDOM, open: lmdb::open_random },
        #[cfg(feature = "redb")]
        Kind { name: "redb", open: redb::open },
        #[cfg(feature = "fjall")]
        Kind { name: "fjall", open: fjall::open },
    ]
}
