//! Compares two entries: their records, their content and their extended attributes.
//!
//! Guarantees: content is equal outside of the reported ranges, whatever blocks it is stored in; only blocks that
//! differ are read.

use std::ffi::OsString;

use bytes::Bytes;
use pando_db::Snapshot;

use crate::{
    attrs::{Bucket, key_number},
    diff::{
        change::{Aspects, ChangeKind, DiffOptions, FileChange},
        side::{Found, Side},
    },
    error::{Error, Result},
    limits::BLOCK_SIZE,
    path,
    types::FileKind,
};

/// Most ranges of one file, a count; the last then covers what follows.
const MAX_DIFF_RANGES: usize = 1 << 12;

/// In what two entries differ.
#[derive(Default)]
pub(crate) struct Compared {
    pub aspects: Aspects,
    pub ranges: Vec<(u64, u64)>,
    /// The content may differ, and was not compared: the caller may not read it.
    pub unread: bool,
}

impl Compared {
    /// The difference in words.
    pub(crate) fn change(
        self,
        kind: ChangeKind,
        a: &Found,
        b: &Found,
        path: OsString,
        from: Option<OsString>,
    ) -> FileChange {
        FileChange {
            kind,
            file: b.record.kind,
            path,
            from,
            aspects: self.aspects,
            size_before: a.record.size,
            size_after: b.record.size,
            ranges: self.ranges,
        }
    }

    fn add_range(&mut self, from: u64, to: u64) {
        let full = self.ranges.len() >= MAX_DIFF_RANGES;
        match self.ranges.last_mut() {
            Some(last) if last.1 == from || full => last.1 = to,
            _ => self.ranges.push((from, to)),
        }
    }
}

/// First and last place, and one more, at which two blocks differ; what they lack is zeros.
fn differing(before: &[u8], after: &[u8]) -> Option<(usize, usize)> {
    let at = |block: &[u8], i: usize| block.get(i).copied().unwrap_or(0);
    let len = before.len().max(after.len());
    let first = (0..len).find(|i| at(before, *i) != at(after, *i))?;
    let last = (first..len).rfind(|i| at(before, *i) != at(after, *i))?;
    Some((first, last + 1))
}

/// Compares two entries, of which neither need be of the kind of the other.
pub(crate) fn compare(
    a_side: &Side,
    a: &Found,
    b_side: &Side,
    b: &Found,
    options: DiffOptions,
) -> Result<Compared> {
    let mut found = Compared::default();
    let (x, y) = (&a.record, &b.record);
    found.aspects.add(Aspects::MODE, x.perm != y.perm);
    found.aspects.add(Aspects::OWNER, (x.uid, x.gid) != (y.uid, y.gid));
    found.aspects.add(Aspects::TIME, x.mtime != y.mtime);
    found.aspects.add(Aspects::TARGET, x.symlink != y.symlink);
    found.aspects.add(Aspects::DEVICE, x.rdev != y.rdev);
    let files = x.kind == FileKind::Regular && y.kind == FileKind::Regular;
    found.aspects.add(Aspects::SIZE, files && x.size != y.size);
    let may_read = a_side.may_read(a) && b_side.may_read(b);
    if files && may_read {
        compare_content(a_side, a, b, options, &mut found)?;
    } else {
        // If the caller may not read a file, only its attributes are reported. Its change time, which every caller
        // may see, says whether it may have been written to.
        found.unread = files && x.ctime != y.ctime;
    }
    let seen = |name: &[u8]| match namespace(name) {
        b"user." => may_read,
        b"trusted." => a_side.sees_all() && b_side.sees_all(),
        _ => true,
    };
    found.aspects.add(Aspects::XATTRS, xattrs_differ(a_side, a, b, seen)?);
    Ok(found)
}

fn compare_content(
    side: &Side,
    a: &Found,
    b: &Found,
    options: DiffOptions,
    found: &mut Compared,
) -> Result<()> {
    let both = a.record.size.min(b.record.size);
    let all = a.record.size.max(b.record.size);
    for change in side.view.diff(&a.data, &side.view, &b.data)?.stop_on(&side.stop) {
        let change = change?;
        let Some(block) = path::block_of(b"", &change.key).filter(|block| *block < path::MAP) else { break };
        let (before, after) = (change.before.unwrap_or_default(), change.after.unwrap_or_default());
        let start = block.saturating_mul(BLOCK_SIZE);
        if start >= both {
            break;
        }
        // What one has behind the end of the other is a difference anyway.
        let room = usize::try_from(both - start).unwrap_or(usize::MAX);
        let cut = |block: &Bytes| block.slice(..block.len().min(room));
        let Some((first, last)) = differing(&cut(&before), &cut(&after)) else { continue };
        found.aspects.add(Aspects::CONTENT, true);
        if !options.ranges {
            return Ok(());
        }
        found.add_range(start + first as u64, start + last as u64);
    }
    if both < all {
        found.aspects.add(Aspects::CONTENT, true);
        if options.ranges {
            found.add_range(both, all);
        }
    }
    Ok(())
}

fn bucket(value: &Bytes) -> Result<Bucket> {
    Bucket::decode(value).map_err(|detail| Error::Damaged { what: "extended attributes".into(), detail })
}

/// Whether `of`, or its attributes outside of the record, have this value under this name.
fn has(view: &Snapshot, of: &Found, name: &[u8], value: &[u8]) -> Result<bool> {
    if let Some(found) = of.record.attrs.get(name) {
        return Ok(found == value);
    }
    if !of.record.has_outside() {
        return Ok(false);
    }
    match view.get(&path::block(&of.data, key_number(name)))? {
        Some(stored) => Ok(bucket(&stored)?.get(name).is_some_and(|found| found == value)),
        None => Ok(false),
    }
}

/// The name of an attribute up to its first dot, which decides, for the kernel, who may see its value: `user.` is for
/// those who may read the file, `trusted.` for root, and the others are for all.
fn namespace(name: &[u8]) -> &[u8] {
    name.split_inclusive(|byte| *byte == b'.').next().unwrap_or(name)
}

/// Whether attributes differ whose names are `seen`.
fn xattrs_differ(side: &Side, a: &Found, b: &Found, seen: impl Fn(&[u8]) -> bool) -> Result<bool> {
    let view = &side.view;
    for (one, other) in [(a, b), (b, a)] {
        for (name, value) in one.record.attrs.inline() {
            if seen(name) && !has(view, other, name, value)? {
                return Ok(true);
            }
        }
    }
    if !a.record.has_outside() && !b.record.has_outside() {
        return Ok(false);
    }
    let changes = view.diff(&path::attrs_under(&a.data), view, &path::attrs_under(&b.data))?;
    for change in changes.stop_on(&side.stop) {
        let change = change?;
        for (value, other) in [(change.before, b), (change.after, a)] {
            let Some(value) = value else { continue };
            for (name, value) in bucket(&value)?.attrs {
                if seen(&name) && !has(view, other, &name, &value)? {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_differ_from_the_first_to_the_last_byte_that_does() {
        assert_eq!(differing(b"abcdef", b"abXdYf"), Some((2, 5)));
        assert_eq!(differing(b"abc", b"abc\0\0"), None);
        assert_eq!(differing(b"", b"\0\0x"), Some((2, 3)));
        assert_eq!(differing(b"abcd", b"ab"), Some((2, 4)));
        let mut found = Compared::default();
        (0..2 * MAX_DIFF_RANGES as u64).for_each(|i| found.add_range(i * 10, i * 10 + 5));
        assert_eq!(found.ranges.len(), MAX_DIFF_RANGES);
        assert_eq!(found.ranges.last().map(|r| r.1), Some((2 * MAX_DIFF_RANGES as u64 - 1) * 10 + 5));
    }
}
