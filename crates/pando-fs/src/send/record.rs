//! The records in the blocks of a stream: each is one change of a tree.
//!
//! Paths are from the top of the tree, with slashes between names; the empty one is the top. Records about content
//! apply to the file that was named last. Guarantee: no path of a decoded record leads out of the tree: there are no
//! empty names, no `.` nor `..`, no zeros. Pure; `docs/format.md` has the layout.

use crate::{
    send::frame::{BLOCK_BYTES, Fields},
    types::{FileKind, Time},
};

/// Most bytes of a path.
const PATH_BYTES: usize = 64 << 10;
/// Most bytes of content in one record.
pub(crate) const DATA_BYTES: usize = 256 << 10;

/// One change of a tree. A receiver applies them in order.
#[allow(missing_docs)] // fields are what their variant says of them
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamRecord<'a> {
    /// Make a directory.
    Dir { path: &'a [u8] },
    /// Make a regular file; what follows is its content.
    File { path: &'a [u8] },
    /// What follows is new content of this file.
    Open { path: &'a [u8] },
    /// Bytes of the file at an offset.
    Data { offset: u64, bytes: &'a [u8] },
    /// `len` bytes of the file at `offset` are a hole.
    Hole { offset: u64, len: u64 },
    /// The file is so long, bytes.
    Size { size: u64 },
    /// Make a symbolic link.
    Symlink { path: &'a [u8], target: &'a [u8] },
    /// Make a device node, pipe or socket.
    Special { path: &'a [u8], kind: FileKind, rdev: u32 },
    /// Give the file at `to` another name.
    Link { path: &'a [u8], to: &'a [u8] },
    /// Put this aside, under a number.
    Leave { path: &'a [u8], number: u64 },
    /// Put what was put aside here.
    Arrive { path: &'a [u8], number: u64 },
    /// Remove a file, or an empty directory.
    Remove { path: &'a [u8], dir: bool },
    /// The end of a phase: everything that leaves has left, or everything has reached its path.
    Phase,
    /// Owner and group.
    Owner { path: &'a [u8], uid: u32, gid: u32 },
    /// Take all extended attributes away.
    NoXattrs { path: &'a [u8] },
    /// An extended attribute.
    Xattr { path: &'a [u8], name: &'a [u8], value: &'a [u8] },
    /// Owner, group, permission bits, times; the last word about it.
    Meta { path: &'a [u8], uid: u32, gid: u32, perm: u16, atime: Time, mtime: Time },
    /// The end, and what came before it.
    End(Totals),
}

/// What a stream holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records before the last one.
    pub records: u64,
    /// Files, directories and names that are made.
    pub made: u64,
    /// Bytes of content.
    pub bytes: u64,
}

impl Totals {
    /// Counts a record.
    pub(crate) fn add(&mut self, record: &StreamRecord<'_>) {
        self.records += 1;
        match record {
            StreamRecord::Dir { .. } | StreamRecord::File { .. } | StreamRecord::Symlink { .. } => {
                self.made += 1
            }
            StreamRecord::Special { .. } | StreamRecord::Link { .. } => self.made += 1,
            StreamRecord::Data { bytes, .. } => self.bytes += bytes.len() as u64,
            _ => {}
        }
    }
}

const KINDS: [FileKind; 4] = [FileKind::CharDevice, FileKind::BlockDevice, FileKind::Fifo, FileKind::Socket];

fn put(out: &mut Vec<u8>, part: &[u8]) {
    out.extend_from_slice(&(part.len() as u32).to_le_bytes());
    out.extend_from_slice(part);
}

fn put_time(out: &mut Vec<u8>, time: Time) {
    out.extend_from_slice(&time.secs.to_le_bytes());
    out.extend_from_slice(&time.nanos.to_le_bytes());
}

impl<'a> StreamRecord<'a> {
    /// The path of what is there from then on and was not before.
    pub(crate) fn makes(&self) -> Option<&'a [u8]> {
        match self {
            StreamRecord::Dir { path }
            | StreamRecord::File { path }
            | StreamRecord::Symlink { path, .. }
            | StreamRecord::Special { path, .. }
            | StreamRecord::Link { path, .. }
            | StreamRecord::Arrive { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Appends the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut tagged = |tag: u8, path: &[u8]| {
            out.push(tag);
            put(out, path);
        };
        match self {
            StreamRecord::Dir { path } => tagged(1, path),
            StreamRecord::File { path } => tagged(2, path),
            StreamRecord::Open { path } => tagged(3, path),
            StreamRecord::Data { offset, bytes } => {
                out.push(4);
                out.extend_from_slice(&offset.to_le_bytes());
                put(out, bytes);
            }
            StreamRecord::Hole { offset, len } => {
                out.push(5);
                out.extend_from_slice(&offset.to_le_bytes());
                out.extend_from_slice(&len.to_le_bytes());
            }
            StreamRecord::Size { size } => {
                out.push(6);
                out.extend_from_slice(&size.to_le_bytes());
            }
            StreamRecord::Symlink { path, target } => {
                tagged(7, path);
                put(out, target);
            }
            StreamRecord::Special { path, kind, rdev } => {
                tagged(8, path);
                out.push(KINDS.iter().position(|k| k == kind).unwrap_or(KINDS.len()) as u8);
                out.extend_from_slice(&rdev.to_le_bytes());
            }
            StreamRecord::Link { path, to } => {
                tagged(9, path);
                put(out, to);
            }
            StreamRecord::Leave { path, number } => {
                tagged(10, path);
                out.extend_from_slice(&number.to_le_bytes());
            }
            StreamRecord::Arrive { path, number } => {
                tagged(11, path);
                out.extend_from_slice(&number.to_le_bytes());
            }
            StreamRecord::Remove { path, dir } => {
                tagged(12, path);
                out.push(u8::from(*dir));
            }
            StreamRecord::Phase => out.push(13),
            StreamRecord::Owner { path, uid, gid } => {
                tagged(14, path);
                out.extend_from_slice(&uid.to_le_bytes());
                out.extend_from_slice(&gid.to_le_bytes());
            }
            StreamRecord::NoXattrs { path } => tagged(15, path),
            StreamRecord::Xattr { path, name, value } => {
                tagged(16, path);
                put(out, name);
                put(out, value);
            }
            StreamRecord::Meta { path, uid, gid, perm, atime, mtime } => {
                tagged(17, path);
                out.extend_from_slice(&uid.to_le_bytes());
                out.extend_from_slice(&gid.to_le_bytes());
                out.extend_from_slice(&perm.to_le_bytes());
                put_time(out, *atime);
                put_time(out, *mtime);
            }
            StreamRecord::End(totals) => {
                out.push(18);
                for n in [totals.records, totals.made, totals.bytes] {
                    out.extend_from_slice(&n.to_le_bytes());
                }
            }
        }
    }

    /// The record at the head of `input`, which it is taken from; `None` if it makes no sense.
    pub fn decode(input: &mut &'a [u8]) -> Option<StreamRecord<'a>> {
        let mut r = Fields(input);
        let record = match r.take(1)?.first()? {
            1 => StreamRecord::Dir { path: r.inner_path()? },
            2 => StreamRecord::File { path: r.inner_path()? },
            3 => StreamRecord::Open { path: r.inner_path()? },
            4 => {
                let (offset, bytes) = (r.u64()?, r.part(DATA_BYTES)?);
                offset.checked_add(bytes.len() as u64)?;
                StreamRecord::Data { offset, bytes }
            }
            5 => {
                let (offset, len) = (r.u64()?, r.u64()?);
                offset.checked_add(len)?;
                StreamRecord::Hole { offset, len }
            }
            6 => StreamRecord::Size { size: r.u64()? },
            7 => StreamRecord::Symlink { path: r.inner_path()?, target: r.text(PATH_BYTES)? },
            8 => {
                let path = r.inner_path()?;
                let kind = *KINDS.get(usize::from(*r.take(1)?.first()?))?;
                StreamRecord::Special { path, kind, rdev: r.u32()? }
            }
            9 => StreamRecord::Link { path: r.inner_path()?, to: r.inner_path()? },
            10 => StreamRecord::Leave { path: r.inner_path()?, number: r.u64()? },
            11 => StreamRecord::Arrive { path: r.inner_path()?, number: r.u64()? },
            12 => StreamRecord::Remove { path: r.inner_path()?, dir: r.flag()? },
            13 => StreamRecord::Phase,
            14 => StreamRecord::Owner { path: r.path()?, uid: r.u32()?, gid: r.u32()? },
            15 => StreamRecord::NoXattrs { path: r.path()? },
            16 => StreamRecord::Xattr { path: r.path()?, name: r.text(255)?, value: r.part(BLOCK_BYTES)? },
            17 => StreamRecord::Meta {
                path: r.path()?,
                uid: r.u32()?,
                gid: r.u32()?,
                perm: u16::from_le_bytes(r.take(2)?.try_into().ok()?),
                atime: r.time()?,
                mtime: r.time()?,
            },
            18 => StreamRecord::End(Totals { records: r.u64()?, made: r.u64()?, bytes: r.u64()? }),
            _ => return None,
        };
        *input = r.0;
        Some(record)
    }
}

/// The kinds of fields that only records have.
impl<'a> Fields<'a> {
    fn flag(&mut self) -> Option<bool> {
        match self.take(1)? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn time(&mut self) -> Option<Time> {
        let time = Time { secs: self.u64()? as i64, nanos: self.u32()? };
        (time.nanos < 1_000_000_000).then_some(time)
    }

    fn part(&mut self, most: usize) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        if len > most { None } else { self.take(len) }
    }

    /// Bytes without a zero, at least one.
    fn text(&mut self, most: usize) -> Option<&'a [u8]> {
        self.part(most).filter(|part| !part.is_empty() && !part.contains(&0))
    }

    /// A path that stays in the tree.
    fn path(&mut self) -> Option<&'a [u8]> {
        let path = self.part(PATH_BYTES)?;
        let fine = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.contains(&0);
        (path.is_empty() || path.split(|b| *b == b'/').all(fine)).then_some(path)
    }

    /// The same, of something below the top.
    fn inner_path(&mut self) -> Option<&'a [u8]> {
        self.path().filter(|path| !path.is_empty())
    }
}
