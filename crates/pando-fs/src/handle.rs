//! Open files and directories.
//!
//! A handle keeps its inode in memory. Guarantee: numbers are never 0 and never
//! used twice in one mount. No I/O.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::{Mutex, RwLock};

use crate::{
    error::{Error, Result},
    inode::InodeRef,
    position::NameList,
    readahead::ReadStream,
};

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub inode: InodeRef,
    /// Flags of `open(2)`.
    pub flags: i32,
    /// Set-id bits stay when it is written by this handle.
    pub keeps_set_id: bool,
    /// Where it is read.
    pub stream: ReadStream,
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDir {
    pub inode: InodeRef,
    /// What was listed last.
    pub last: Mutex<Arc<NameList>>,
    /// The cookie behind which there were no more entries, until it is asked for. 0: none.
    pub end: AtomicU64,
}

/// The open things of one sort.
#[derive(Debug)]
pub(crate) struct Handles<T> {
    last: AtomicU64,
    open: RwLock<HashMap<u64, Arc<T>>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { last: AtomicU64::new(0), open: RwLock::default() }
    }
}

impl<T> Handles<T> {
    /// A number for `value`.
    pub(crate) fn add(&self, value: T) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.write().insert(number, Arc::new(value));
        number
    }

    /// What has this number.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<T>> {
        self.open.read().get(&number).cloned().ok_or(Error::BadHandle(number))
    }

    /// Takes a number back.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        self.open.write().remove(&number)
    }

    /// How many are open.
    pub(crate) fn len(&self) -> u64 {
        self.open.read().len() as u64
    }

    /// All open handles.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.open.read().values().cloned().collect()
    }
}
