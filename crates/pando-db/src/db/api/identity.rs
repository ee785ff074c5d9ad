//! What a store says of itself in its superblock: who it is and what it needs, without opening it.
//!
//! Takes no lock and reads 8 KiB, so it works while the store is open elsewhere; what a checkpoint has changed
//! meanwhile may be missing from it. Uses the superblock, and a device that has nothing but that.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use crate::{
    device::{Device, DeviceStats},
    error::{Error, Result},
    store::superblock,
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
    /// Name of what upserts mean: tells what program the store belongs to.
    pub merge: String,
    /// Whether it was closed in order. Not so while it is open for writing.
    pub clean: bool,
    /// Counts superblocks written.
    pub generation: u64,
}

/// Reads what the store in the file or block device at `path` says of itself.
///
/// [`Error::Io`] if it cannot be read; [`Error::Format`] if it is no store, or one of a version or with features
/// that are not known here; [`Error::Corrupt`] if no copy of its superblock is whole. Cost: two small reads.
pub fn identify(path: impl AsRef<Path>) -> Result<Identity> {
    // A copy that is being written may be seen half: the next time it is whole.
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
    let mut slots = Vec::new();
    file.rewind().and_then(|()| file.take(superblock::END).read_to_end(&mut slots)).map_err(fail)?;
    let newest = superblock::read(&Slots { bytes: slots, size })?.newest;
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
        clean: newest.clean,
        generation: newest.generation,
    })
}

/// The first bytes of a device, as a device of its size that has nothing else.
struct Slots {
    bytes: Vec<u8>,
    size: u64,
}

fn refuse<T>() -> io::Result<T> {
    Err(io::Error::from(io::ErrorKind::Unsupported))
}

impl Device for Slots {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let from = usize::try_from(offset).ok().and_then(|from| self.bytes.get(from..)?.get(..buf.len()));
        buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
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
