//! Families of snapshots: the snapshots of one directory, and the directory `.snapshots` that shows them.
//!
//! A family belongs to the inode number of its directory, which stays when the directory is renamed and differs in
//! every clone. It has a number of its own, under which the snapshots are listed, and a file number for the directory
//! `.snapshots` in which they show. A lookup by name finds that directory; no listing shows it unless the mount says
//! so. Below it are the trees of the snapshots, each in its own volume, with a lineage of its own; nothing in them
//! can be changed ([`Inode::frozen`](crate::inode::Inode::frozen)). A lookup of a snapshot holds `names` of
//! `.snapshots` shared; a call that makes, renames or deletes one holds it exclusively.

use std::{ffi::OsString, os::unix::ffi::OsStringExt};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::{
    error::{Error, Result},
    format::FEATURE_SNAPSHOTS,
    inode::{InodeRef, Link},
    lineage::number::number,
    path::{self, system},
    record::{Record, get_time, put_time},
    types::{FileKind, Ino, SnapshotId, SnapshotInfo, Time},
    volume::Fs,
};

/// The name under which the snapshots of a directory are seen in it.
pub(crate) const SNAPSHOTS: &[u8] = b".snapshots";
/// Version of the records of families and snapshots.
const FAMILY_VERSION: u8 = 1;
/// Flag of a snapshot that is kept until it is released.
const KEEP: u8 = 1;
/// Flag bit of a snapshot that was received: behind its note stands which one it was.
const RECEIVED: u8 = 2;
/// Flag bit of a snapshot that a stored policy had made.
const AUTOMATIC: u8 = 4;
/// Bits of the mode of `.snapshots`. Writing to a snapshot fails with an error of its own (EROFS), whatever the mode.
const DIR_MODE: u16 = 0o755;

/// What is stored of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Family {
    pub id: u64,
    /// File number of `.snapshots`.
    pub fileno: u64,
    /// When the set of its snapshots changed last.
    pub changed: Time,
}

impl Family {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(FAMILY_VERSION);
        out.put_u64_le(self.id);
        out.put_u64_le(self.fileno);
        put_time(&mut out, self.changed);
        out.freeze()
    }

    pub(crate) fn decode(mut value: &[u8]) -> Result<Self, &'static str> {
        if value.len() != 29 || value.get_u8() != FAMILY_VERSION {
            return Err("not the record of a family of snapshots");
        }
        let (id, fileno) = (value.get_u64_le(), value.get_u64_le());
        let changed = get_time(&mut value).ok_or("impossible time")?;
        if fileno == 0 || fileno >> 40 != 0 {
            return Err("impossible file number");
        }
        Ok(Self { id, fileno, changed })
    }
}

/// The stored form of a snapshot's record; its number is in the key.
pub(crate) fn encode_snapshot(info: &SnapshotInfo) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(FAMILY_VERSION);
    let received = if info.received.is_some() { RECEIVED } else { 0 };
    let automatic = if info.automatic { AUTOMATIC } else { 0 };
    out.put_u8(received | automatic | if info.keep { KEEP } else { 0 });
    put_time(&mut out, info.created);
    out.put_u64_le(info.valid_for_secs.unwrap_or(0));
    out.put_u32_le(info.uid);
    let name = info.name.as_encoded_bytes();
    for part in [name, info.source.as_encoded_bytes(), info.note.as_bytes()] {
        out.put_u16_le(part.len() as u16);
        out.put_slice(part);
    }
    if let Some(id) = &info.received {
        out.put_slice(&id.store);
        out.put_u32_le(id.number);
        put_time(&mut out, id.created);
    }
    out.freeze()
}

/// The reverse.
pub(crate) fn decode_snapshot(number: u32, mut value: &[u8]) -> Result<SnapshotInfo, &'static str> {
    const CUT: &str = "cut record of a snapshot";
    if value.len() < 26 || value.get_u8() != FAMILY_VERSION {
        return Err("not the record of a snapshot");
    }
    let flags = value.get_u8();
    if flags & !(KEEP | RECEIVED | AUTOMATIC) != 0 {
        return Err("unknown flags of a snapshot");
    }
    let created = get_time(&mut value).ok_or("impossible time")?;
    let (valid, uid) = (value.get_u64_le(), value.get_u32_le());
    let mut part = || -> Result<Vec<u8>, &'static str> {
        let len = usize::from(value.try_get_u16_le().map_err(|_| CUT)?);
        let (part, rest) = value.split_at_checked(len).ok_or(CUT)?;
        value = rest;
        Ok(part.to_vec())
    };
    let (name, source, note) = (part()?, part()?, part()?);
    let received = match flags & RECEIVED != 0 {
        true => Some(decode_id(&mut value).ok_or(CUT)?),
        false => None,
    };
    Ok(SnapshotInfo {
        number,
        name: OsString::from_vec(name),
        source: OsString::from_vec(source),
        note: String::from_utf8(note).map_err(|_| "a note that is no text")?,
        created,
        keep: flags & KEEP != 0,
        valid_for_secs: (valid > 0).then_some(valid),
        uid,
        received,
        automatic: flags & AUTOMATIC != 0,
    })
}

fn decode_id(value: &mut &[u8]) -> Option<SnapshotId> {
    let (store, rest) = value.split_first_chunk::<16>()?;
    *value = rest;
    let number = value.try_get_u32_le().ok()?;
    Some(SnapshotId { store: *store, number, created: get_time(value)? })
}

pub(crate) fn damaged(what: impl Into<String>) -> impl FnOnce(&'static str) -> Error {
    let what = what.into();
    move |detail| Error::Damaged { what, detail }
}

impl Fs {
    /// Whether a snapshot was ever made in this store. No I/O.
    pub fn had_snapshots(&self) -> bool {
        self.has_feature(FEATURE_SNAPSHOTS)
    }

    /// Whether the directory with this number has snapshots, or had some: if that cannot be read, it may have. One
    /// point query.
    pub fn has_snapshots(&self, dir: Ino) -> bool {
        !matches!(self.family(dir), Ok(None))
    }

    /// The family of the directory with this number, if it has one. One point query.
    pub(crate) fn family(&self, source: Ino) -> Result<Option<Family>> {
        let Some(value) = self.db.get(&system::family(source))? else { return Ok(None) };
        Family::decode(&value).map(Some).map_err(damaged("families of snapshots"))
    }

    /// The directory `.snapshots` of a family, whose directory is `source` if that is in memory.
    pub(crate) fn family_dir(&self, source: Option<&InodeRef>, family: &Family) -> Result<InodeRef> {
        let mut record = Record::new(FileKind::Directory, DIR_MODE, family.fileno, family.changed);
        if let Some(source) = source {
            (record.uid, record.gid) = source.peek(|s| (s.record.uid, s.record.gid));
        }
        let ino = number(0, family.fileno);
        let entered = self.table.enter(ino, 0, None, Link::Snapshots(family.id), record);
        entered.ok_or(Error::Stale(ino))
    }

    /// The root of a snapshot. The caller holds `names` of its `.snapshots`.
    pub(crate) fn snapshot_root(&self, number: u32) -> Result<Option<InodeRef>> {
        let what = || format!("snapshot {number}");
        loop {
            let departures = self.table.departures();
            let Some(value) = self.db.get(&path::meta(&path::snapshot(number)))? else { return Ok(None) };
            let record = Record::decode(&value).map_err(damaged(what()))?;
            if record.kind != FileKind::Directory || record.clone_id == 0 {
                return Err(damaged(what())("not the root of a snapshot"));
            }
            let (ino, lineage) = self.lineages.identity(&self.db, 0, &record)?;
            let link = Link::Snapshot(number);
            if let Some(inode) = self.table.enter(ino, lineage, Some(departures), link, record) {
                return Ok(Some(inode));
            }
        }
    }

    /// The number of the snapshot of a family that has this name.
    pub(crate) fn snapshot_named(&self, family: u64, name: &[u8]) -> Result<Option<u32>> {
        let Some(value) = self.db.get(&system::snapshot_name(family, name))? else { return Ok(None) };
        let bytes = <[u8; 4]>::try_from(&value[..]);
        let wrong = || damaged("names of snapshots")("a number of a wrong length");
        bytes.map(|bytes| Some(u32::from_le_bytes(bytes))).map_err(|_| wrong())
    }

    /// The snapshots of a family from a number on, at most `max`, by number.
    pub(crate) fn snapshots_from(&self, family: u64, from: u32, max: usize) -> Result<Vec<SnapshotInfo>> {
        let prefix = system::snapshots(family);
        let (lo, hi) = (system::snapshot(family, from), path::behind(&prefix));
        let mut out = Vec::new();
        let mut pairs = self.db.range(&lo, hi.as_deref());
        while out.len() < max
            && let Some((key, value)) = pairs.next_ref()?
        {
            let number =
                system::snapshot_number(key).ok_or_else(|| damaged("snapshots")("impossible key"))?;
            out.push(decode_snapshot(number, value).map_err(damaged(format!("snapshot {number}")))?);
        }
        Ok(out)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_damage_is_an_error() {
        let family = Family { id: 7, fileno: 9, changed: Time { secs: -1, nanos: 5 } };
        assert_eq!(Family::decode(&family.encode()), Ok(family));
        let info = SnapshotInfo {
            number: 3,
            name: "before".into(),
            source: "/a/b".into(),
            note: "why".into(),
            created: Time { secs: 1, nanos: 2 },
            keep: true,
            valid_for_secs: Some(60),
            uid: 1000,
            received: Some(SnapshotId { store: [7; 16], number: 5, created: Time { secs: 3, nanos: 4 } }),
            automatic: true,
        };
        let bytes = encode_snapshot(&info);
        assert_eq!(decode_snapshot(3, &bytes), Ok(info.clone()));
        for cut in 0..bytes.len() {
            assert!(decode_snapshot(3, &bytes[..cut]).is_err(), "{cut}");
        }
        for cut in 0..family.encode().len() {
            assert!(Family::decode(&family.encode()[..cut]).is_err());
        }
        let plain =
            SnapshotInfo { keep: false, valid_for_secs: None, note: String::new(), received: None, ..info };
        assert_eq!(decode_snapshot(3, &encode_snapshot(&plain)), Ok(plain));
    }
}
