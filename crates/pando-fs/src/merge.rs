//! The merge function of the file system: upserts are patches of data blocks, and changes of metadata records.
//!
//! [`FsMerge`] is pure. A data operation is a write of bytes at an offset of a
//! block, or a cut; bytes that a value lacks are zeros. A metadata operation
//! is a [`Change`]: fields to set, a size to reach at least, a link count to
//! add to. The same [`Change`] is applied to the record in memory, so that
//! memory and store cannot differ. No I/O.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pando_db::Merge;

use crate::{
    account::AccountChange,
    attrs::{self, Attrs},
    blockmap::{self, Edit},
    limits::BLOCK_SIZE,
    mode::{MODE_CHANGE_BYTES, ModeChange},
    record::{Record, get_time, put_time},
    types::{FileKind, Time},
};

const WRITE_OP: u8 = 1;
const CUT_OP: u8 = 2;
const CHANGE_OP: u8 = 16;
const SET_ATTRS_OP: u8 = 17;

/// The merge of a file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct FsMerge;

/// An operation that writes `data` at `offset` of a block.
pub(crate) fn write(offset: u32, data: &[u8]) -> Bytes {
    let mut op = BytesMut::with_capacity(5 + data.len());
    op.put_u8(WRITE_OP);
    op.put_u32_le(offset);
    op.put_slice(data);
    op.freeze()
}

/// An operation that leaves at most the first `len` bytes of a block, and nothing of it if 0.
pub(crate) fn cut(len: u32) -> Bytes {
    let mut op = BytesMut::with_capacity(5);
    op.put_u8(CUT_OP);
    op.put_u32_le(len);
    op.freeze()
}

/// An operation that gives a record these extended attributes, instead of all that it has.
pub(crate) fn set_attrs(attrs: &Attrs) -> Bytes {
    [&[SET_ATTRS_OP], &attrs.bytes()[..]].concat().into()
}

/// A change of size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    /// This size.
    Set(u64),
    /// At least this size.
    AtLeast(u64),
}

/// A blind change of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Change {
    pub size: Option<Size>,
    pub perm: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    pub ctime: Option<Time>,
    /// Added to the link count.
    pub nlink: i32,
    /// What the record says of holes from now on.
    pub dense: Option<Option<u64>>,
    /// Takes the file capabilities (`security.capability`) away.
    pub drop_capability: bool,
    /// What becomes of the mode, also of one that is set above; that of a symbolic link stays.
    pub mode: Option<ModeChange>,
    /// The change time of all but symbolic links, whatever is set above.
    pub ctime_but_links: Option<Time>,
    /// What becomes of the account of a directory, before `billed` is added.
    pub account: Option<AccountChange>,
    /// Bytes that are added to what the account says, if there is one.
    pub billed: i64,
}

impl Change {
    /// Content and inode changed at `now`.
    pub(crate) fn modified(now: Time) -> Self {
        Self { mtime: Some(now), ctime: Some(now), ..Self::default() }
    }

    /// Applies the change.
    pub(crate) fn apply(&self, r: &mut Record) {
        match self.size {
            Some(Size::Set(n)) => r.size = n,
            Some(Size::AtLeast(n)) => r.size = r.size.max(n),
            None => {}
        }
        r.perm = self.perm.unwrap_or(r.perm);
        r.uid = self.uid.unwrap_or(r.uid);
        r.gid = self.gid.unwrap_or(r.gid);
        r.atime = self.atime.unwrap_or(r.atime);
        r.mtime = self.mtime.unwrap_or(r.mtime);
        r.ctime = self.ctime.unwrap_or(r.ctime);
        r.nlink = r.nlink.saturating_add_signed(self.nlink);
        r.dense = self.dense.unwrap_or(r.dense);
        // A directory's means nothing, and stays as the kernel's own file systems keep it.
        let is_program = r.kind != FileKind::Directory;
        if self.drop_capability && is_program && r.attrs.get(attrs::CAPABILITY).is_some() {
            r.attrs = r.attrs.without(attrs::CAPABILITY);
        }
        if r.kind == FileKind::Directory {
            if let Some(change) = self.account {
                change.apply(&mut r.account);
            }
            if let Some(account) = &mut r.account {
                account.used = account.used.saturating_add(self.billed);
            }
        }
        if r.kind != FileKind::Symlink {
            let dir = r.kind == FileKind::Directory;
            r.perm = self.mode.map_or(r.perm, |mode| mode.apply(r.perm, dir));
            r.ctime = self.ctime_but_links.unwrap_or(r.ctime);
        }
    }

    /// The change that equals this one followed by `next`.
    fn then(&self, next: &Self) -> Self {
        let size = match (self.size, next.size) {
            (first, None) => first,
            (Some(Size::Set(a)), Some(Size::AtLeast(b))) => Some(Size::Set(a.max(b))),
            (Some(Size::AtLeast(a)), Some(Size::AtLeast(b))) => Some(Size::AtLeast(a.max(b))),
            (_, second) => second,
        };
        // What `next` sets for all files overrules what this one does to some.
        let mode = match (next.perm, &self.mode, &next.mode) {
            (None, Some(first), Some(second)) => Some(first.then(second)),
            (None, first, second) => second.or(*first),
            (Some(_), _, second) => *second,
        };
        let ctime_but_links = match next.ctime {
            None => next.ctime_but_links.or(self.ctime_but_links),
            Some(_) => next.ctime_but_links,
        };
        // What was added before an account is set is in what it is set to.
        let billed = match next.account {
            Some(AccountChange::Set(_)) => next.billed,
            _ => self.billed.saturating_add(next.billed),
        };
        let account = match (self.account, next.account) {
            // The whole account is one value: what was added to the first one comes before the second change.
            (Some(first), Some(second)) => Some(first.then(second)),
            (first, second) => second.or(first),
        };
        Self {
            size,
            perm: next.perm.or(self.perm),
            uid: next.uid.or(self.uid),
            gid: next.gid.or(self.gid),
            atime: next.atime.or(self.atime),
            mtime: next.mtime.or(self.mtime),
            ctime: next.ctime.or(self.ctime),
            nlink: self.nlink.saturating_add(next.nlink),
            dense: next.dense.or(self.dense),
            drop_capability: self.drop_capability || next.drop_capability,
            mode,
            ctime_but_links,
            account,
            billed,
        }
    }

    /// The change as an upsert: tag, mask (u16), the fields of the mask in order.
    pub(crate) fn encode(&self) -> Bytes {
        let mut op = BytesMut::with_capacity(64);
        op.put_u8(CHANGE_OP);
        op.put_u16_le(0);
        let mut mask = 0u16;
        if let Some(size) = self.size {
            let (bit, n) = match size {
                Size::Set(n) => (0, n),
                Size::AtLeast(n) => (1, n),
            };
            mask |= 1 << bit;
            op.put_u64_le(n);
        }
        if let Some(perm) = self.perm {
            mask |= 1 << 2;
            op.put_u16_le(perm);
        }
        for (bit, id) in [(3, self.uid), (4, self.gid)] {
            if let Some(id) = id {
                mask |= 1 << bit;
                op.put_u32_le(id);
            }
        }
        for (bit, time) in [(5, self.atime), (6, self.mtime), (7, self.ctime)] {
            if let Some(time) = time {
                mask |= 1 << bit;
                put_time(&mut op, time);
            }
        }
        if self.nlink != 0 {
            mask |= 1 << 8;
            op.put_i32_le(self.nlink);
        }
        match self.dense {
            Some(Some(dense)) => {
                mask |= 1 << 9;
                op.put_u64_le(dense);
            }
            Some(None) => mask |= 1 << 10,
            None => {}
        }
        if self.drop_capability {
            mask |= 1 << 11;
        }
        if let Some(mode) = self.mode {
            mask |= 1 << 12;
            op.put_slice(&mode.encode());
        }
        if let Some(time) = self.ctime_but_links {
            mask |= 1 << 13;
            put_time(&mut op, time);
        }
        if self.billed != 0 {
            mask |= 1 << 14;
            op.put_i64_le(self.billed);
        }
        if let Some(account) = self.account {
            mask |= 1 << 15;
            account.encode(&mut op);
        }
        op[1..3].copy_from_slice(&mask.to_le_bytes());
        op.freeze()
    }

    fn decode(op: &[u8]) -> Option<Self> {
        let (&CHANGE_OP, mut rest) = op.split_first()? else { return None };
        let mask = rest.try_get_u16_le().ok()?;
        let has = |bit: u32| mask >> bit & 1 != 0;
        let mut c = Self::default();
        if (has(0) && has(1)) || (has(9) && has(10)) {
            return None;
        }
        if has(0) {
            c.size = Some(Size::Set(rest.try_get_u64_le().ok()?));
        }
        if has(1) {
            c.size = Some(Size::AtLeast(rest.try_get_u64_le().ok()?));
        }
        if has(2) {
            c.perm = Some(rest.try_get_u16_le().ok()?);
        }
        for (bit, field) in [(3, &mut c.uid), (4, &mut c.gid)] {
            if has(bit) {
                *field = Some(rest.try_get_u32_le().ok()?);
            }
        }
        for (bit, field) in [(5, &mut c.atime), (6, &mut c.mtime), (7, &mut c.ctime)] {
            if has(bit) {
                *field = Some(get_time(&mut rest)?);
            }
        }
        if has(8) {
            c.nlink = rest.try_get_i32_le().ok()?;
        }
        if has(9) {
            c.dense = Some(Some(rest.try_get_u64_le().ok()?));
        } else if has(10) {
            c.dense = Some(None);
        }
        c.drop_capability = has(11);
        if has(12) {
            let (mode, left) = rest.split_first_chunk::<MODE_CHANGE_BYTES>()?;
            (c.mode, rest) = (Some(ModeChange::decode(mode)?), left);
        }
        if has(13) {
            c.ctime_but_links = Some(get_time(&mut rest)?);
        }
        if has(14) {
            c.billed = rest.try_get_i64_le().ok()?;
        }
        if has(15) {
            c.account = Some(AccountChange::decode(&mut rest)?);
        }
        rest.is_empty().then_some(c)
    }
}

fn decode_attrs(op: &[u8]) -> Option<Attrs> {
    let (&SET_ATTRS_OP, attrs) = op.split_first()? else { return None };
    Attrs::decode(attrs).ok()
}

/// A parsed write of bytes that lies within a block.
struct Write<'a> {
    offset: usize,
    data: &'a [u8],
}

impl<'a> Write<'a> {
    fn decode(op: &'a [u8]) -> Option<Self> {
        let (&WRITE_OP, mut data) = op.split_first()? else { return None };
        let offset = data.try_get_u32_le().ok()? as usize;
        (offset.checked_add(data.len())? <= BLOCK_SIZE as usize).then_some(Self { offset, data })
    }

    fn end(&self) -> usize {
        self.offset + self.data.len()
    }

    fn apply_to(&self, value: &mut Vec<u8>) {
        if value.len() < self.end() {
            value.resize(self.end(), 0);
        }
        if let Some(there) = value.get_mut(self.offset..self.end()) {
            there.copy_from_slice(self.data);
        }
    }
}

fn decode_cut(op: &[u8]) -> Option<usize> {
    let (&CUT_OP, len) = op.split_first()? else { return None };
    Some(u32::from_le_bytes(len.try_into().ok()?) as usize)
}

impl Merge for FsMerge {
    fn name(&self) -> &'static str {
        "pando-fs"
    }

    fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
        if let Some(w) = Write::decode(op) {
            let old = old.unwrap_or_default();
            let mut new = Vec::with_capacity(old.len().max(w.end()));
            new.extend_from_slice(old.get(..w.offset).unwrap_or(old));
            new.resize(w.offset, 0);
            new.extend_from_slice(w.data);
            new.extend_from_slice(old.get(w.end()..).unwrap_or_default());
            return Some(new.into());
        }
        if let Some(edit) = Edit::decode(op) {
            return blockmap::encode(&edit.apply(&blockmap::decode(old.unwrap_or_default())));
        }
        let old = old?;
        if let Some(len) = decode_cut(op) {
            return (len > 0).then(|| Bytes::copy_from_slice(old.get(..len).unwrap_or(old)));
        }
        if let (Some(change), Ok(mut record)) = (Change::decode(op), Record::decode(old)) {
            change.apply(&mut record);
            return Some(record.encode());
        }
        if let (Some(attrs), Ok(mut record)) = (decode_attrs(op), Record::decode(old)) {
            record.attrs = attrs;
            return Some(record.encode());
        }
        Some(Bytes::copy_from_slice(old))
    }

    /// Patches of one block that wait together copy it once, not once each.
    fn apply_all(&self, old: Option<&[u8]>, ops: &[&[u8]]) -> Option<Bytes> {
        let mut value = old.map(<[u8]>::to_vec);
        for op in ops {
            match Write::decode(op) {
                Some(write) => write.apply_to(value.get_or_insert_default()),
                None => value = self.apply(value.as_deref(), op).map(Vec::from),
            }
        }
        value.map(Bytes::from)
    }

    fn combine(&self, first: &[u8], second: &[u8]) -> Option<Bytes> {
        if let (Some(a), Some(b)) = (Change::decode(first), Change::decode(second)) {
            return Some(a.then(&b).encode());
        }
        if let (Some(a), Some(b)) = (decode_cut(first), decode_cut(second)) {
            return Some(cut(u32::try_from(a.min(b)).ok()?));
        }
        if let (Some(a), Some(b)) = (Edit::decode(first), Edit::decode(second)) {
            return Some(a.then(&b).encode());
        }
        if let (Some(_), Some(b)) = (decode_attrs(first), decode_attrs(second)) {
            return Some(set_attrs(&b));
        }
        let (a, b) = (Write::decode(first)?, Write::decode(second)?);
        // Two writes are one write only if no byte between them is left alone.
        if b.offset > a.end() || a.offset > b.end() {
            return None;
        }
        let start = a.offset.min(b.offset);
        let mut data = Vec::with_capacity(a.end().max(b.end()) - start);
        data.extend_from_slice(a.data.get(..b.offset.saturating_sub(start)).unwrap_or(a.data));
        data.extend_from_slice(b.data);
        data.extend_from_slice(a.data.get(b.end().saturating_sub(a.offset)..).unwrap_or_default());
        debug_assert_eq!(data.len(), a.end().max(b.end()) - start);
        Some(write(u32::try_from(start).ok()?, &data))
    }

    /// A write of all that a block can hold.
    fn constant(&self, op: &[u8]) -> Option<Bytes> {
        let write = Write::decode(op)?;
        (write.offset == 0 && write.data.len() as u64 == BLOCK_SIZE)
            .then(|| Bytes::copy_from_slice(write.data))
    }

    fn combine_present(&self, first: &[u8], second: &[u8]) -> Option<Bytes> {
        if first.first() == Some(&blockmap::EDIT_TAG) {
            return None; // it may delete, and what follows would do nothing then
        }
        // Only a cut to zero bytes deletes the block. An operation that begins with such a cut combines only with
        // another cut, to the same cut.
        self.combine(first, second)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{account::Account, types::FileKind};

    fn changes() -> Vec<Change> {
        let t = |n| Some(Time { secs: n, nanos: 5 });
        vec![
            Change { size: Some(Size::Set(100)), ..Change::default() },
            Change { size: Some(Size::AtLeast(7)), mtime: t(1), ctime: t(2), ..Change::default() },
            Change { size: Some(Size::AtLeast(700)), mtime: t(3), ..Change::default() },
            Change { perm: Some(0o600), uid: Some(1), gid: Some(2), atime: t(4), ..Change::default() },
            Change { nlink: 2, gid: Some(9), ..Change::default() },
            Change { nlink: -1, ..Change::default() },
            Change { size: Some(Size::Set(1 << 20)), dense: Some(Some(3)), ..Change::default() },
            Change { drop_capability: true, ..Change::default() },
            Change { size: Some(Size::Set(200_000)), dense: Some(None), ..Change::default() },
            Change { mode: mode("u+s,a+X"), ctime_but_links: t(6), ..Change::default() },
            Change { mode: mode("g=u,o-x"), ctime: t(7), ..Change::default() },
            Change { perm: Some(0o711), mode: mode("go=rX"), ctime_but_links: t(8), ..Change::default() },
            Change { billed: 4096, mtime: t(9), ..Change::default() },
            Change { billed: -512, account: Some(AccountChange::Stale(true)), ..Change::default() },
            Change { account: Some(AccountChange::Stale(false)), ..Change::default() },
            Change { billed: 1, account: Some(AccountChange::Set(account(70))), ..Change::default() },
            Change { account: Some(AccountChange::Set(None)), ..Change::default() },
            Change::default(),
        ]
    }

    fn account(used: i64) -> Option<Account> {
        Some(Account { limit: Some(100), used, stale: false })
    }

    fn mode(text: &str) -> Option<ModeChange> {
        ModeChange::parse(text, 0).map(Some).unwrap()
    }

    #[test]
    fn combined_changes_equal_their_sequence() {
        for kind in [FileKind::Regular, FileKind::Directory, FileKind::Symlink, FileKind::Fifo] {
            for perm in [0o644, 0o4751, 0o2610] {
                let mut r = Record::new(kind, perm, 9, Time::default());
                r.size = 50;
                r.symlink = (kind == FileKind::Symlink).then(|| Bytes::from_static(b"target"));
                r.attrs = Attrs::default().with(attrs::CAPABILITY, b"c").with(b"user.a", b"1");
                combined_is_in_turn(&r.encode());
                if kind == FileKind::Directory {
                    r.account = account(5);
                    combined_is_in_turn(&r.encode());
                }
            }
        }
    }

    fn combined_is_in_turn(base: &[u8]) {
        for a in changes() {
            for b in changes() {
                assert_eq!(Change::decode(&b.encode()), Some(b));
                let (a, b) = (a.encode(), b.encode());
                let once = FsMerge.apply(Some(base), &a);
                let twice = FsMerge.apply(once.as_deref(), &b);
                for both in [FsMerge.combine(&a, &b).unwrap(), FsMerge.combine_present(&a, &b).unwrap()] {
                    assert_eq!(FsMerge.apply(Some(base), &both), twice);
                }
            }
        }
    }

    #[test]
    fn a_change_of_all_files_leaves_the_mode_and_time_of_links_and_names_of_linked_files() {
        let (then, now) = (Time::default(), Time { secs: 9, nanos: 0 });
        let op = Change { mode: mode("777"), ctime_but_links: Some(now), ..Change::default() }.encode();
        let mut link = Record::new(FileKind::Symlink, 0o700, 9, then);
        link.symlink = Some(Bytes::from_static(b"target"));
        assert_eq!(FsMerge.apply(Some(&link.encode()), &op), Some(link.encode()));
        let pipe = Record::new(FileKind::Fifo, 0o600, 9, then).encode();
        let pipe = Record::decode(&FsMerge.apply(Some(&pipe), &op).unwrap()).unwrap();
        assert_eq!((pipe.perm, pipe.ctime, pipe.mtime), (0o777, now, then));
        let name = crate::record::LinkName { kind: FileKind::Regular, id: 7 };
        for value in [name.encode(), name.encode_index()] {
            assert_eq!(FsMerge.apply(Some(&value), &op), Some(value));
        }
    }

    #[test]
    fn attributes_are_set_as_a_whole_and_capabilities_dropped() {
        let base = Record::new(FileKind::Regular, 0o644, 9, Time::default()).encode();
        let (one, two) =
            (Attrs::default().with(b"user.a", b"1"), Attrs::default().with(attrs::CAPABILITY, b"c"));
        let of = |value: &Bytes| Record::decode(value).unwrap().attrs;
        let first = FsMerge.apply(Some(&base), &set_attrs(&one)).unwrap();
        assert_eq!(of(&first), one);
        let both = FsMerge.combine(&set_attrs(&one), &set_attrs(&two)).unwrap();
        assert_eq!(FsMerge.apply(Some(&base), &both), FsMerge.apply(Some(&first), &set_attrs(&two)));
        let drop = Change { drop_capability: true, ..Change::default() }.encode();
        let second = FsMerge.apply(Some(&base), &both).unwrap();
        assert_eq!((of(&second), FsMerge.apply(Some(&second), &drop)), (two, Some(base.clone())));
        assert_eq!(FsMerge.combine(&set_attrs(&one), &drop), None);
    }

    #[test]
    fn combined_data_operations_equal_their_sequence() {
        let olds: [Option<&[u8]>; 4] = [None, Some(b""), Some(b"0123456789"), Some(b"01234567890123456789")];
        let mut ops = Vec::new();
        for offset in 0..12 {
            for len in [1, 3, 8] {
                ops.push(write(offset, &vec![b'a' + offset as u8; len]));
            }
            ops.push(cut(offset));
        }
        let mut combined = 0;
        for a in &ops {
            for b in &ops {
                let Some(both) = FsMerge.combine(a, b) else { continue };
                combined += 1;
                for old in olds {
                    let once = FsMerge.apply(old, a);
                    let twice = FsMerge.apply(once.as_deref(), b);
                    assert_eq!(FsMerge.apply(old, &both), twice, "{a:?} {b:?} on {old:?}");
                    if old.is_some() {
                        // A range-upsert applies to values that exist, and not to ones that were deleted before.
                        let present = once.as_ref().and_then(|once| FsMerge.apply(Some(once), b));
                        let both = FsMerge.combine_present(a, b).unwrap();
                        assert_eq!(FsMerge.apply(old, &both), present, "{a:?} {b:?} on {old:?}");
                    }
                }
            }
        }
        assert!(combined > 500, "{combined}");
    }

    #[test]
    fn many_operations_at_once_equal_their_sequence() {
        let olds: [Option<&[u8]>; 4] = [None, Some(b""), Some(b"0123456789"), Some(b"01234567890123456789")];
        let one = |i: u32| match i % 7 {
            5 => cut(i % 13),
            6 => Change::default().encode(),
            _ => write(i * 5 % 17, &vec![b'a' + (i % 26) as u8; (i % 4) as usize]),
        };
        for first in 0..40 {
            let ops: Vec<Bytes> = (first..first + 9).map(one).collect();
            let ops: Vec<&[u8]> = ops.iter().map(|op| &op[..]).collect();
            for old in olds {
                let in_turn =
                    ops.iter().fold(old.map(Bytes::copy_from_slice), |v, op| FsMerge.apply(v.as_deref(), op));
                assert_eq!(FsMerge.apply_all(old, &ops), in_turn, "{ops:?} on {old:?}");
            }
        }
    }

    #[test]
    fn a_change_creates_nothing_and_unknown_operations_change_nothing() {
        let change = Change::modified(Time::default()).encode();
        assert_eq!(FsMerge.apply(None, &change), None);
        assert_eq!(FsMerge.apply(Some(b"no record"), &change).as_deref(), Some(&b"no record"[..]));
        for op in [&b""[..], b"\x09", b"\x01\x01", b"\x01\xff\xff\xff\xffdata", b"\x10\xff\xff", b"\x02\0"] {
            assert_eq!(FsMerge.apply(Some(b"v"), op).as_deref(), Some(&b"v"[..]), "{op:?}");
            assert_eq!(FsMerge.apply(None, op), None, "{op:?}");
        }
    }

    #[test]
    fn patches_fill_gaps_and_cuts_end_blocks() {
        assert_eq!(FsMerge.apply(None, &write(2, b"ab")).as_deref(), Some(&b"\0\0ab"[..]));
        assert_eq!(FsMerge.apply(Some(b"xyz123"), &write(1, b"ab")).as_deref(), Some(&b"xab123"[..]));
        assert_eq!(FsMerge.apply(Some(b"xyz"), &cut(1)).as_deref(), Some(&b"x"[..]));
        assert_eq!(FsMerge.apply(Some(b"xyz"), &cut(0)), None);
        assert_eq!(FsMerge.apply(None, &cut(1)), None);
    }
}
