//! Positions in directories: the cookies of entries, and how a listing finds its position again from a cookie.
//!
//! The cookie of an entry is a function of its name alone ([`cookie`]), so it is the same for all handles, after
//! remounts and in clones, and whatever entries are made or removed beside it. A listing continues behind a name, so
//! the name of a cookie is looked up, in this order:
//! 1. the names that were given out lately, through any handle;
//! 2. the names that were removed lately (they cannot be found in the directory any more);
//! 3. the names of the directory: the cookie begins with bits of the name, in order, so only
//!    those are looked at that begin so;
//! 4. the names that were removed before, which are stored in a ring of the system region.
//!
//! Guarantee: no entry that stays in the directory is left out behind a cookie. A name found in 1, 2 or 4 serves in
//! any directory, because it is a name with this cookie. If no name is found (the entry was removed at a crash, or
//! 16,384 names ago), the listing continues with the first name that begins like the cookie, so entries may be listed
//! twice.

use std::{collections::VecDeque, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use pando_db::{Db, waiting};
use parking_lot::{Mutex, MutexGuard};

use crate::{limits::MAX_NAME, path::system};

/// Cookies of entries are not below this; `.` and `..` are.
pub(crate) const FIRST_COOKIE: u64 = 1 << 55;
/// Names that were given out and are remembered, over the mount.
const LISTED_NAMES: usize = 1 << 16;
/// Parts of listings that are remembered.
const LISTED_PARTS: usize = 1024;
/// Names of one stored part of what was removed.
const REMOVED_NAMES: usize = 256;
/// Nothing is stored with less room than this, bytes.
const MIN_FREE_BYTES: u64 = 4 << 20;
/// Stored parts; the ring has this many slots.
const STORED_SLOTS: u64 = 64;

/// The cookie of the entry `name`: below 2^63, and very probably unique in a directory.
///
/// Bits 62 to 48 are the first 15 bits of the name (of one byte: followed by zeros); the rest is the lower end of
/// FNV-1a of 64 bits with the finalizer of MurmurHash3. The function never changes, because clients (such as NFS)
/// store cookies.
pub(crate) fn cookie(name: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in name {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ hash >> 33).wrapping_mul(factor);
    }
    let first = |at: usize| u64::from(name.get(at).copied().unwrap_or(0));
    first(0) << 55 | first(1) >> 1 << 48 | (hash ^ hash >> 33) & 0xffff_ffff_ffff
}

/// Bounds of the names that begin like the cookie: at or above the first, below the second
/// (`None`: no bound).
pub(crate) fn bounds(cookie: u64) -> (Vec<u8>, Option<Vec<u8>>) {
    let (first, second) = ((cookie >> 55) as u8, (cookie >> 48 & 0x7f) as u8);
    let above = match (first, second) {
        (0xff, 0x7f) => None,
        (_, 0x7f) => Some(vec![first + 1]),
        _ => Some(vec![first, (second + 1) << 1]),
    };
    (if second == 0 { vec![first] } else { vec![first, second << 1] }, above)
}

/// Names with their cookies, in the order in which they came. The names lie in one piece of memory.
#[derive(Debug, Default)]
pub(crate) struct NameList {
    cookies: Vec<u64>,
    /// Where each name ends in `bytes`.
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

impl NameList {
    pub(crate) fn push(&mut self, cookie: u64, name: &[u8]) {
        self.cookies.push(cookie);
        self.bytes.extend_from_slice(name);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.cookies.is_empty()
    }

    /// How many names there are.
    fn len(&self) -> usize {
        self.cookies.len()
    }

    /// The name with this cookie.
    pub(crate) fn find(&self, cookie: u64) -> Option<&[u8]> {
        // Of two names with one cookie the first: behind it none is left out.
        self.name(self.cookies.iter().position(|c| *c == cookie)?)
    }

    fn name(&self, at: usize) -> Option<&[u8]> {
        let begin = match at.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.bytes.get(begin..*self.ends.get(at)?)
    }

    fn encode(&self, number: u64) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u64_le(number);
        for name in (0..self.len()).filter_map(|at| self.name(at)) {
            out.put_u8(name.len().min(MAX_NAME) as u8);
            out.put_slice(name.get(..name.len().min(MAX_NAME)).unwrap_or(name));
        }
        out.freeze()
    }

    /// Number and names of a stored part; what cannot be read of it is left out.
    fn decode(value: &[u8]) -> Option<(u64, Self)> {
        let (number, mut rest) = value.split_at_checked(8)?;
        let number = u64::from_le_bytes(number.try_into().ok()?);
        let mut part = Self::default();
        while let Some((&len, after)) = rest.split_first()
            && let Some((name, after)) = after.split_at_checked(len.into())
        {
            part.push(cookie(name), name);
            rest = after;
        }
        Some((number, part))
    }
}

/// What is remembered of names over the mount.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    listings: Mutex<Listed>,
    removed: Mutex<Removed>,
}

#[derive(Debug, Default)]
struct Listed {
    parts: VecDeque<Arc<NameList>>,
    names: usize,
}

#[derive(Debug, Default)]
struct Removed {
    /// Names that are not stored yet.
    latest: NameList,
    /// The stored names, read when they are first needed.
    stored: Option<(u64, VecDeque<NameList>)>,
}

impl Removed {
    /// Reads what is stored, if that was not done yet.
    fn stored(&mut self, db: &Db) -> &mut (u64, VecDeque<NameList>) {
        self.stored.get_or_insert_with(|| {
            // A slot that cannot be read is left out: the listing then continues by the beginning of the name.
            let values = (0..STORED_SLOTS)
                .filter_map(|slot| db.get(&system::removed_names(slot as u8)).ok().flatten());
            let mut parts: Vec<_> = values.filter_map(|value| NameList::decode(&value)).collect();
            parts.sort_unstable_by_key(|(number, _)| *number);
            let next = parts.last().map_or(0, |(number, _)| number.wrapping_add(1));
            (next, parts.into_iter().map(|(_, part)| part).collect())
        })
    }

    fn store(&mut self, db: &Db) {
        if self.latest.is_empty() {
            return;
        }
        let latest = std::mem::take(&mut self.latest);
        let (next, parts) = self.stored(db);
        // On a full or stopped store the memory of this mount is what there is: a delete must not wait for room.
        if db.space().0 >= MIN_FREE_BYTES {
            let _ = db.put(system::removed_names((*next % STORED_SLOTS) as u8), latest.encode(*next));
        }
        *next = next.wrapping_add(1);
        parts.push_back(latest);
        if parts.len() > STORED_SLOTS as usize {
            parts.pop_front();
        }
    }
}

impl Positions {
    /// Remembers a part of a listing.
    pub(crate) fn listed(&self, part: &Arc<NameList>) {
        let mut listings = self.listings.lock();
        listings.names += part.len();
        listings.parts.push_back(part.clone());
        while listings.names > LISTED_NAMES || listings.parts.len() > LISTED_PARTS {
            let Some(old) = listings.parts.pop_front() else { break };
            listings.names -= old.len();
        }
    }

    /// Remembers that an entry was removed or renamed. One write of some kilobytes for 256 names.
    pub(crate) fn removed(&self, db: &Db, name: &[u8]) {
        let mut removed = self.removed_names();
        removed.latest.push(cookie(name), name);
        if removed.latest.len() >= REMOVED_NAMES {
            removed.store(db);
        }
    }

    /// Waits while another thread stores such names, and so for the engine.
    fn removed_names(&self) -> MutexGuard<'_, Removed> {
        waiting::take(|| self.removed.try_lock(), || self.removed.lock())
    }

    /// Stores what is not stored yet of removed names.
    pub(crate) fn store(&self, db: &Db) {
        self.removed_names().store(db);
    }

    /// A name with this cookie that was given out or removed lately.
    pub(crate) fn recent(&self, cookie: u64) -> Option<Box<[u8]>> {
        let listings = self.listings.lock();
        if let Some(name) = listings.parts.iter().rev().find_map(|part| part.find(cookie)) {
            return Some(name.into());
        }
        drop(listings);
        self.removed_names().latest.find(cookie).map(Into::into)
    }

    /// A name with this cookie that was removed before.
    pub(crate) fn removed_before(&self, db: &Db, cookie: u64) -> Option<Box<[u8]>> {
        let mut removed = self.removed_names();
        let (_, parts) = removed.stored(db);
        parts.iter().rev().find_map(|part| part.find(cookie)).map(Into::into)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn cookies_lie_between_the_bounds_of_their_names_and_begin_in_order() {
        let names: [&[u8]; 9] =
            [b"\x01", b"\x01\x01", b"a", b"a\x01", b"ab", b"a\xff", b"b", b"\xff", b"\xff\xff\xff"];
        for pair in names.windows(2) {
            assert!(cookie(pair[0]) >> 48 <= cookie(pair[1]) >> 48, "{pair:?}");
        }
        for name in names {
            let c = cookie(name);
            assert!((FIRST_COOKIE..1 << 63).contains(&c));
            let (lo, hi) = bounds(c);
            assert!(*lo <= *name && hi.as_ref().is_none_or(|hi| name < &hi[..]), "{name:?}: {lo:?} {hi:?}");
            for other in names.iter().filter(|n| cookie(n) >> 48 != c >> 48) {
                assert!(
                    **other < *lo || hi.as_ref().is_some_and(|hi| *other >= &hi[..]),
                    "{other:?} {name:?}"
                );
            }
        }
    }

    #[test]
    fn cookies_never_change_and_differ() {
        assert_eq!(cookie(b"Cargo.toml"), 0x21b0_c079_bf5f_da35);
        let mut all: Vec<_> = (0..200_000).map(|i| cookie(format!("file-{i}").as_bytes())).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 200_000);
    }

    /// Behind the first of them no other is left out.
    #[test]
    fn of_names_with_one_cookie_the_first_is_found() {
        let mut part = NameList::default();
        [b"a", b"b", b"c"].iter().for_each(|name| part.push(7, *name));
        assert_eq!(part.find(7), Some(&b"a"[..]));
    }

    #[test]
    fn stored_parts_are_read_and_damaged_ones_do_no_harm() {
        let mut part = NameList::default();
        for name in [b"one", b"two"] {
            part.push(cookie(name), name);
        }
        let bytes = part.encode(7);
        let (number, read) = NameList::decode(&bytes).unwrap();
        assert_eq!((number, read.find(cookie(b"two"))), (7, Some(&b"two"[..])));
        for cut in 0..bytes.len() {
            if let Some((_, part)) = NameList::decode(&bytes[..cut]) {
                assert_eq!(part.find(cookie(b"two")), None);
            }
        }
    }
}
