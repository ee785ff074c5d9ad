//! The identity of a store, read from its superblock without opening the store.
//!
//! Takes no lock and reads little, so it works while the store is open elsewhere; then the answer may be older than a
//! checkpoint that ends meanwhile. The superblock alone does not tell whether the store was closed: it stays as the
//! last close has written it until the next checkpoint, so the log is read as well. Uses the superblock, the log, and
//! a device that is only read.

use std::{
    fs::File,
    io::{self, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

use crate::{
    db::handle::Db,
    device::{Device, DeviceStats},
    error::{Error, Result},
    store::{
        log::{Log, Region},
        superblock::{self, Superblock},
    },
};

/// What a superblock says.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Identity of the store.
    pub uuid: [u8; 16],
    /// Name given by the user, at most 64 bytes; empty if none was.
    pub label: String,
    /// Version of the format.
    pub version: u32,
    /// Bits of features without which the store must not be opened.
    pub incompatible: u64,
    /// Bits of features that may be ignored.
    pub compatible: u64,
    /// When the store was made, nanoseconds since 1970.
    pub created_nanos: u64,
    /// Bytes of the store.
    pub size: u64,
    /// Target size of a node, bytes.
    pub node_size: u32,
    /// Bytes of the redo log.
    pub log_size: u64,
    /// Name of the meaning of upserts ([`Merge::name`](crate::Merge::name)), which tells what program the store
    /// belongs to.
    pub merge: String,
    /// Whether the store was closed by [`Db::close`]. False once an open store has written to its log.
    pub clean: bool,
    /// How many superblocks have been written.
    pub generation: u64,
}

impl Db {
    /// The UUID of the store: see [`Identity::uuid`]. Waits for a checkpoint that is being made.
    pub fn uuid(&self) -> [u8; 16] {
        self.engine().uuid()
    }
}

/// Reads the identity of the store in the file or block device at `path`.
///
/// [`Error::Io`] if it cannot be read; [`Error::Format`] if it is no store, or has a version or features that are not
/// known here; [`Error::Corrupt`] if no copy of its superblock is intact. Cost: two small reads, and up to 1 MiB of
/// the log if the superblock is that of a closed store.
pub fn identify(path: impl AsRef<Path>) -> Result<Identity> {
    // A copy that is being written may be read half, so the read is repeated.
    let mut attempts = 0;
    loop {
        match read(path.as_ref()) {
            Err(Error::Corrupt { .. }) if attempts < 3 => attempts += 1,
            other => return other,
        }
    }
}

fn read(path: &Path) -> Result<Identity> {
    let fail = |e| Error::io("read", 0, e);
    let mut file = File::open(path).map_err(fail)?;
    let size = file.seek(SeekFrom::End(0)).map_err(fail)?;
    let device: Arc<dyn Device> = Arc::new(ReadOnly { file, size });
    let newest = superblock::read(&*device)?.newest;
    let clean = newest.clean && is_log_empty(device, &newest)?;
    Ok(Identity {
        uuid: newest.uuid,
        label: newest.label,
        version: superblock::VERSION,
        incompatible: newest.incompatible,
        compatible: newest.compatible,
        created_nanos: newest.created,
        size: newest.device_size,
        node_size: newest.node_size,
        log_size: newest.log_size,
        merge: newest.merge,
        clean,
        generation: newest.generation,
    })
}

/// Whether nothing was logged since the superblock was written. For an open store the answer may be outdated.
fn is_log_empty(device: Arc<dyn Device>, superblock: &Superblock) -> Result<bool> {
    let &Superblock { log_base, log_size, log_start, next_msn, log_durable, clean, .. } = superblock;
    let region = Region { device, base: log_base, size: log_size, store: superblock.store() };
    let mut replay = Log::replay(region, log_start, next_msn, log_durable, clean, false);
    Ok(replay.next()?.is_none() && replay.missing().is_none())
}

/// A file or block device that refuses changes.
struct ReadOnly {
    file: File,
    size: u64,
}

fn refuse<T>() -> io::Result<T> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

impl Device for ReadOnly {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        refuse()
    }

    fn flush(&self) -> io::Result<()> {
        refuse()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn grow(&self, _: u64) -> io::Result<()> {
        refuse()
    }

    fn reserve(&self, _: u64, _: u64) -> io::Result<()> {
        refuse()
    }

    fn stats(&self) -> DeviceStats {
        DeviceStats::default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::{CreateOptions, Db, Options};

    use super::*;

    #[test]
    fn a_store_tells_who_it_is_open_or_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let create =
            CreateOptions::default().size(64 << 20).node_size(64 << 10).uuid([7; 16]).label("grove \u{e9}");
        Db::create(&path, &create, &Options::default()).unwrap();
        let before = identify(&path).unwrap();
        assert_eq!((before.uuid, &before.label[..], before.node_size), ([7; 16], "grove \u{e9}", 64 << 10));
        assert_eq!((before.size, before.clean), (64 << 20, true));
        let db = Db::open(&path, Options::default()).unwrap();
        db.put("a", "b").unwrap();
        db.sync().unwrap();
        assert!(!identify(&path).unwrap().clean);
        db.close().unwrap();
        let after = identify(&path).unwrap();
        assert!(after.clean && after.generation > before.generation);
        assert_eq!((after.uuid, after.label), (before.uuid, before.label));
        for (bytes, wanted) in [(&[][..], "few"), (&[1; 10_000], "no Pando store")] {
            std::fs::write(&path, bytes).unwrap();
            let told = identify(&path).unwrap_err();
            assert!(matches!(&told, Error::Format(why) if why.contains(wanted)), "{told}");
        }
        let bad = CreateOptions::default().size(64 << 20).label("x".repeat(65));
        assert!(matches!(
            Db::create(dir.path().join("b"), &bad, &Options::default()),
            Err(Error::Invalid(_))
        ));
    }
}
