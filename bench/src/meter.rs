//! Time, bytes and memory of a piece of work, and making files cold.
//!
//! Bytes are those of `/proc/self/io`: `write_bytes` counts pages of files as
//! they become dirty, whoever dirtied them in this process, and `read_bytes`
//! what was fetched from storage. Both are the same measure for every engine,
//! whatever its own counters mean.

use std::{
    fs::{self, File},
    path::Path,
    time::Instant,
};

use anyhow::Result;
use rustix::fs::{Advice, fadvise};

/// The number that follows `name` in a file of `/proc`; zero where there is none.
fn field(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Most memory that this process ever had, in bytes.
pub fn peak_memory() -> u64 {
    field("/proc/self/status", "VmHWM:") << 10
}

/// What this process has read from and written to storage so far, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Io {
    /// Fetched from storage.
    pub read: u64,
    /// Sent, or about to be sent, to storage.
    pub written: u64,
}

impl Io {
    /// The figures now; zero where the system does not keep them.
    pub fn now() -> Io {
        let field = |name| field("/proc/self/io", name);
        Io { read: field("read_bytes:"), written: field("write_bytes:") }
    }
}

/// A running measurement.
pub struct Meter {
    start: Instant,
    io: Io,
}

impl Meter {
    /// Begins to measure.
    pub fn start() -> Self {
        let io = Io::now();
        Self { start: Instant::now(), io }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Bytes since the start.
    pub fn io(&self) -> Io {
        let now = Io::now();
        Io { read: now.read - self.io.read, written: now.written - self.io.written }
    }
}

/// Takes every file under `dir` out of the page cache. Nobody may have them open and dirty.
pub fn evict(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            evict(&entry.path())?;
        } else {
            let file = File::open(entry.path())?;
            // Dirty pages cannot be dropped.
            file.sync_all()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
        }
    }
    Ok(())
}
