//! The metadata record of an entry and its bytes.
//!
//! Layout, little-endian: version (u8, 1), kind (u8), permission bits (u16),
//! uid, gid (u32), size (u64), file number (u64), then access, modification,
//! change and creation time (i64 seconds, u32 nanoseconds each); after these
//! 76 bytes any number of extensions: tag (u8), length (u16), value. Fields
//! that are rarely set are extensions; unknown tags are kept as they are.
//! Decoding never panics and refuses what this version did not write.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::{
    account::Account,
    attrs::{self, Attrs},
    types::{FileKind, Ino, Time},
};

const RECORD_VERSION: u8 = 1;
/// Size of the fields that every record has, bytes.
const FIXED_BYTES: usize = 76;

/// Extension tags. 17 was set apart once and is not used.
mod tag {
    pub const SYMLINK: u8 = 1;
    pub const RDEV: u8 = 2;
    pub const CLONE: u8 = 3;
    pub const PIN: u8 = 4;
    pub const NLINK: u8 = 5;
    pub const DENSE: u8 = 6;
    pub const ATTRS: u8 = 16;
    pub const ACCOUNT: u8 = 18;
}

/// First byte of the values of metadata that are no records.
const NAME_VALUE: u8 = 2;
const INDEXED_VALUE: u8 = 3;
const UNCOUNTED_VALUE: u8 = 4;

/// What stands under a name of a file that has, or had, several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkName {
    pub kind: FileKind,
    /// Number of the file in the link area of its lineage.
    pub id: u64,
}

impl LinkName {
    /// The value under the name.
    pub(crate) fn encode(self) -> Bytes {
        let mut out = BytesMut::with_capacity(10);
        out.put_u8(NAME_VALUE);
        out.put_u8(self.kind as u8);
        out.put_u64_le(self.id);
        out.freeze()
    }

    /// The value in the index of names.
    pub(crate) fn encode_index(self) -> Bytes {
        let mut out = BytesMut::with_capacity(9);
        out.put_u8(INDEXED_VALUE);
        out.put_u64_le(self.id);
        out.freeze()
    }
}

/// A value of the metadata region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stored {
    Record(Box<Record>),
    /// A name of a linked file.
    Name(LinkName),
    /// An entry of the index of such names: the link id.
    Indexed(u64),
    /// Says that names have to be counted.
    Uncounted,
}

impl Stored {
    /// The value that says so.
    pub(crate) const UNCOUNTED: &'static [u8] = &[UNCOUNTED_VALUE];

    /// Decodes a record; the error says what is wrong with the bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        const CUT: &str = "name of a linked file of a wrong length";
        let id = |bytes: &[u8]| Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| CUT)?));
        match bytes.split_first() {
            Some((&NAME_VALUE, rest)) => {
                let (&kind, rest) = rest.split_first().ok_or(CUT)?;
                let kind = kind_of(kind).filter(|kind| *kind != FileKind::Directory);
                Ok(Self::Name(LinkName { kind: kind.ok_or("unknown kind of linked file")?, id: id(rest)? }))
            }
            Some((&INDEXED_VALUE, rest)) => Ok(Self::Indexed(id(rest)?)),
            Some((&UNCOUNTED_VALUE, [])) => Ok(Self::Uncounted),
            _ => Record::decode(bytes).map(|record| Self::Record(Box::new(record))),
        }
    }
}

/// An inode number that holds while the record is in one lineage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pin {
    pub lineage: u32,
    pub ino: Ino,
}

/// What is stored about an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub nlink: u32,
    pub size: u64,
    pub fileno: u64,
    /// For a directory that is the root of a clone, or was moved here from another lineage; otherwise 0.
    pub clone_id: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub crtime: Time,
    pub pin: Option<Pin>,
    /// For a file with holes: the number of blocks that exist from its beginning without a gap; see `blockmap`.
    pub dense: Option<u64>,
    /// Target of a symbolic link.
    pub symlink: Option<Bytes>,
    /// Extended attributes.
    pub attrs: Attrs,
    /// For a directory whose tree is counted (quotas).
    pub account: Option<Account>,
    /// Extensions that this version does not know, encoded.
    pub unknown: Bytes,
}

impl Record {
    /// A fresh record with one name and all times `now`.
    pub(crate) fn new(kind: FileKind, perm: u16, fileno: u64, now: Time) -> Self {
        Self {
            kind,
            perm: perm & 0o7777,
            uid: 0,
            gid: 0,
            rdev: 0,
            nlink: 1,
            size: 0,
            fileno,
            clone_id: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            pin: None,
            dense: None,
            symlink: None,
            attrs: Attrs::default(),
            account: None,
            unknown: Bytes::new(),
        }
    }

    /// Whether there are keys under the data prefix of an entry with this record: blocks of a file, or extended
    /// attributes of anything.
    pub(crate) fn has_data(&self) -> bool {
        self.kind == FileKind::Regular && self.size > 0 || self.has_outside()
    }

    /// Whether a program in this file has capabilities, which a change of its content or owner takes away.
    pub(crate) fn may_do_more(&self) -> bool {
        !self.attrs.is_empty() && self.attrs.get(attrs::CAPABILITY).is_some()
    }

    /// Whether extended attributes have keys of their own.
    pub(crate) fn has_outside(&self) -> bool {
        self.attrs.outside().0 > 0
    }

    /// The bytes of the record.
    pub(crate) fn encode(&self) -> Bytes {
        let extra = self.symlink.as_ref().map_or(0, |s| s.len() + 3)
            + self.unknown.len()
            + self.attrs.bytes().len()
            + 72;
        let mut out = BytesMut::with_capacity(FIXED_BYTES + extra);
        out.put_u8(RECORD_VERSION);
        out.put_u8(self.kind as u8);
        out.put_u16_le(self.perm);
        out.put_u32_le(self.uid);
        out.put_u32_le(self.gid);
        out.put_u64_le(self.size);
        out.put_u64_le(self.fileno);
        for t in [self.atime, self.mtime, self.ctime, self.crtime] {
            put_time(&mut out, t);
        }
        debug_assert_eq!(out.len(), FIXED_BYTES);
        if let Some(target) = &self.symlink {
            put_extension(&mut out, tag::SYMLINK, target);
        }
        if self.rdev != 0 {
            put_extension(&mut out, tag::RDEV, &self.rdev.to_le_bytes());
        }
        if self.clone_id != 0 {
            put_extension(&mut out, tag::CLONE, &self.clone_id.to_le_bytes());
        }
        if let Some(pin) = self.pin {
            let mut value = [0; 12];
            value[..4].copy_from_slice(&pin.lineage.to_le_bytes());
            value[4..].copy_from_slice(&pin.ino.to_le_bytes());
            put_extension(&mut out, tag::PIN, &value);
        }
        if let Some(dense) = self.dense {
            put_extension(&mut out, tag::DENSE, &dense.to_le_bytes());
        }
        if self.nlink != 1 {
            put_extension(&mut out, tag::NLINK, &self.nlink.to_le_bytes());
        }
        if !self.attrs.is_empty() {
            put_extension(&mut out, tag::ATTRS, self.attrs.bytes());
        }
        if let Some(account) = &self.account {
            let mut value = BytesMut::with_capacity(Account::MAX_BYTES);
            account.encode(&mut value);
            put_extension(&mut out, tag::ACCOUNT, &value);
        }
        out.put_slice(&self.unknown);
        out.freeze()
    }

    /// The record in `bytes`; the error says what is wrong with them.
    pub(crate) fn decode(mut bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() < FIXED_BYTES {
            return Err("shorter than a record");
        }
        if bytes.get_u8() != RECORD_VERSION {
            return Err("record of an unknown version");
        }
        let kind = kind_of(bytes.get_u8()).ok_or("unknown kind of file")?;
        let perm = bytes.get_u16_le();
        if perm & !0o7777 != 0 {
            return Err("impossible permission bits");
        }
        let mut r = Self::new(kind, perm, 0, Time::default());
        r.uid = bytes.get_u32_le();
        r.gid = bytes.get_u32_le();
        r.size = bytes.get_u64_le();
        r.fileno = bytes.get_u64_le();
        if r.size > crate::limits::MAX_FILE_SIZE {
            return Err("impossible size");
        }
        if r.fileno == 0 || r.fileno >> 40 != 0 {
            return Err("impossible file number");
        }
        for t in [&mut r.atime, &mut r.mtime, &mut r.ctime, &mut r.crtime] {
            *t = get_time(&mut bytes).ok_or("impossible time")?;
        }
        let mut unknown = BytesMut::new();
        while !bytes.is_empty() {
            if bytes.len() < 3 {
                return Err("cut extension");
            }
            let (tag, len) = (bytes.get_u8(), usize::from(bytes.get_u16_le()));
            let Some((value, rest)) = bytes.split_at_checked(len) else { return Err("cut extension") };
            bytes = rest;
            let bad = |_| "extension of a wrong length";
            match tag {
                tag::SYMLINK => r.symlink = Some(Bytes::copy_from_slice(value)),
                tag::RDEV => r.rdev = u32::from_le_bytes(value.try_into().map_err(bad)?),
                tag::CLONE => r.clone_id = u64::from_le_bytes(value.try_into().map_err(bad)?),
                tag::DENSE => {
                    let dense = u64::from_le_bytes(value.try_into().map_err(bad)?);
                    if dense > r.size.div_ceil(crate::limits::BLOCK_SIZE) {
                        return Err("more blocks than the size has");
                    }
                    r.dense = Some(dense);
                }
                tag::ATTRS => r.attrs = Attrs::decode(value)?,
                tag::ACCOUNT => {
                    let mut rest = value;
                    r.account = Some(Account::decode(&mut rest).ok_or("not an account")?);
                    if !rest.is_empty() {
                        return Err("extension of a wrong length");
                    }
                }
                tag::NLINK => r.nlink = u32::from_le_bytes(value.try_into().map_err(bad)?),
                tag::PIN => {
                    let mut value: &[u8] = <&[u8; 12]>::try_from(value).map_err(bad)?;
                    r.pin = Some(Pin { lineage: value.get_u32_le(), ino: value.get_u64_le() });
                }
                _ => put_extension(&mut unknown, tag, value),
            }
        }
        if r.account.is_some() && kind != FileKind::Directory {
            return Err("an account of something that is no directory");
        }
        if (kind == FileKind::Symlink) != r.symlink.is_some() {
            return Err("a target without a symbolic link, or the reverse");
        }
        r.unknown = unknown.freeze();
        Ok(r)
    }
}

fn kind_of(byte: u8) -> Option<FileKind> {
    use FileKind::*;
    [Regular, Directory, Symlink, CharDevice, BlockDevice, Fifo, Socket]
        .into_iter()
        .find(|k| *k as u8 == byte)
}

fn put_extension(out: &mut BytesMut, tag: u8, value: &[u8]) {
    assert!(value.len() <= usize::from(u16::MAX), "an extension is bounded by its 16-bit length");
    out.put_u8(tag);
    out.put_u16_le(value.len() as u16);
    out.put_slice(value);
}

impl Time {
    /// The time as records have it.
    pub(crate) fn encode(self) -> Bytes {
        let mut out = BytesMut::new();
        put_time(&mut out, self);
        out.freeze()
    }
}

pub(crate) fn put_time(out: &mut BytesMut, t: Time) {
    out.put_i64_le(t.secs);
    out.put_u32_le(t.nanos);
}

pub(crate) fn get_time(bytes: &mut &[u8]) -> Option<Time> {
    if bytes.len() < 12 {
        return None;
    }
    let t = Time { secs: bytes.get_i64_le(), nanos: bytes.get_u32_le() };
    (t.nanos < 1_000_000_000).then_some(t)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn full() -> Record {
        let mut r = Record::new(FileKind::Symlink, 0o4755, 77, Time { secs: -3, nanos: 999_999_999 });
        r.uid = 1;
        r.gid = 2;
        r.size = 6;
        r.rdev = 0x801;
        r.clone_id = 1 << 40;
        r.nlink = 3;
        r.mtime = Time { secs: 9, nanos: 1 };
        r.pin = Some(Pin { lineage: 5, ino: 6 });
        r.dense = Some(1);
        r.attrs = Attrs::default().with(b"user.a", b"value").with_outside((2, 30));
        r.symlink = Some(Bytes::from_static(b"target"));
        r
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let mut dir = Record::new(FileKind::Directory, 0o755, 1, Time::default());
        dir.account = Some(Account { limit: Some(1 << 30), used: 4096, stale: true });
        for r in [full(), Record::new(FileKind::Regular, 0o644, 1, Time::default()), dir.clone()] {
            assert_eq!(Record::decode(&r.encode()), Ok(r));
        }
        dir.kind = FileKind::Regular;
        assert!(Record::decode(&dir.encode()).is_err(), "only directories have accounts");
    }

    #[test]
    fn names_of_linked_files_are_decoded_and_damaged_ones_are_errors() {
        let name = LinkName { kind: FileKind::Fifo, id: 77 };
        assert_eq!(Stored::decode(&name.encode()), Ok(Stored::Name(name)));
        assert_eq!(Stored::decode(&name.encode_index()), Ok(Stored::Indexed(77)));
        assert_eq!(Stored::decode(Stored::UNCOUNTED), Ok(Stored::Uncounted));
        assert!(matches!(Stored::decode(&full().encode()), Ok(Stored::Record(r)) if *r == full()));
        for value in [name.encode(), name.encode_index()] {
            assert!((0..value.len()).all(|cut| Stored::decode(&value[..cut]).is_err()));
            assert!(Record::decode(&value).is_err());
        }
        assert!(Stored::decode(&LinkName { kind: FileKind::Directory, id: 1 }.encode()).is_err());
    }

    #[test]
    fn unknown_extensions_survive() {
        let mut bytes = BytesMut::from(&full().encode()[..]);
        put_extension(&mut bytes, 200, b"from the future");
        let r = Record::decode(&bytes).unwrap();
        assert_eq!(r.encode(), bytes.freeze());
    }

    #[test]
    fn damaged_bytes_are_errors_never_panics() {
        let good = full().encode();
        for cut in 0..good.len() {
            let _ = Record::decode(&good[..cut]);
        }
        for (at, value) in [(0, 9), (1, 0), (3, 0xff), (19, 0xff), (27, 0xff)] {
            let mut bad = good.to_vec();
            bad[at] = value;
            assert!(Record::decode(&bad).is_err(), "byte {at}");
        }
        assert!(Record::decode(&good[..FIXED_BYTES]).is_err(), "a symlink needs its target");
    }
}
