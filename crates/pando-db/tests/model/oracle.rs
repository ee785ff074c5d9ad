//! The oracle: what the engine's contents should be, as an ordered map.
//!
//! Everything is done in the most obvious way; the map is persistent, so that
//! a copy of a whole world costs nothing and every state since the last sync
//! can be kept.

use std::ops::Bound;

use bytes::Bytes;
use imbl::OrdMap;
use pando_db::{MAX_KEY, MAX_PREFIX_UPSERT, MAX_VALUE, Merge, Op};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::merge::ModelMerge;

pub type Pair = (Bytes, Bytes);

/// The contents of a store at one moment.
#[derive(Clone, Default)]
pub struct World {
    map: OrdMap<Bytes, Bytes>,
    /// Sum of the hashes of all pairs: equal worlds have equal digests.
    digest: u64,
    /// Bytes of all keys and values.
    bytes: usize,
}

/// Why a batch must be refused; nothing may have changed then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    Overlap,
    TooLarge,
}

/// What the engine must refuse about a batch whatever the contents are.
fn refusal_of(ops: &[Op]) -> Option<Refusal> {
    ops.iter().find_map(|op| {
        let too_large = |key: &Bytes, value: &Bytes| key.len() > MAX_KEY || value.len() > MAX_VALUE;
        match op {
            Op::Put(key, value) | Op::Upsert(key, value) => {
                too_large(key, value).then_some(Refusal::TooLarge)
            }
            Op::UpsertPrefix(prefix, change) => {
                (prefix.len() > MAX_KEY || change.len() > MAX_PREFIX_UPSERT).then_some(Refusal::TooLarge)
            }
            Op::ClonePrefix(src, dst) | Op::RenamePrefix(src, dst) => {
                if src.len().max(dst.len()) > MAX_KEY {
                    return Some(Refusal::TooLarge);
                }
                let within = dst.starts_with(src) && (matches!(op, Op::RenamePrefix(..)) || src.is_empty());
                (src.starts_with(dst) || within).then_some(Refusal::Overlap)
            }
            _ => None,
        }
    })
}

/// The least key above all that begin with `prefix`; `None` is infinity.
pub fn successor(prefix: &[u8]) -> Option<Bytes> {
    let mut key = prefix.to_vec();
    while let Some(last) = key.pop() {
        if last < 0xff {
            key.push(last + 1);
            return Some(key.into());
        }
    }
    None
}

impl World {
    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn digest(&self) -> u64 {
        self.digest
    }

    pub fn get(&self, key: &[u8]) -> Option<&Bytes> {
        self.map.get(key)
    }

    /// The pairs in `[lo, hi)`, in order.
    pub fn range<'a>(
        &'a self,
        lo: &[u8],
        hi: Option<&[u8]>,
    ) -> Box<dyn DoubleEndedIterator<Item = (&'a Bytes, &'a Bytes)> + 'a> {
        match hi {
            Some(hi) if hi <= lo => Box::new(std::iter::empty()),
            Some(hi) => Box::new(self.map.range::<_, [u8]>((Bound::Included(lo), Bound::Excluded(hi)))),
            None => Box::new(self.map.range::<_, [u8]>((Bound::Included(lo), Bound::Unbounded))),
        }
    }

    pub fn prefix<'a>(
        &'a self,
        prefix: &[u8],
    ) -> Box<dyn DoubleEndedIterator<Item = (&'a Bytes, &'a Bytes)> + 'a> {
        self.range(prefix, successor(prefix).as_deref())
    }

    /// What the engine must refuse about a batch, given this world: besides what is never right, a copy that would make
    /// a key too long.
    pub fn refusal(&self, ops: &[Op]) -> Option<Refusal> {
        let refusal = refusal_of(ops);
        if refusal.is_some() || !ops.iter().any(|op| matches!(op, Op::ClonePrefix(..) | Op::RenamePrefix(..)))
        {
            return refusal;
        }
        let mut world = self.clone();
        ops.iter().find_map(|op| {
            let refusal = world.copies_too_long(op).then_some(Refusal::TooLarge);
            world.apply(op);
            refusal
        })
    }

    /// True if `op` is a copy to a longer prefix that some key has no room for.
    fn copies_too_long(&self, op: &Op) -> bool {
        let (Op::ClonePrefix(src, dst) | Op::RenamePrefix(src, dst)) = op else { return false };
        let more = dst.len().saturating_sub(src.len());
        more > 0 && self.prefix(src).any(|(key, _)| key.len() + more > MAX_KEY)
    }

    /// The world after a batch that the engine must accept.
    pub fn after(&self, ops: &[Op]) -> Self {
        let mut world = self.clone();
        ops.iter().for_each(|op| world.apply(op));
        world
    }

    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Put(key, value) => self.insert(key.clone(), value.clone()),
            Op::Delete(key) => self.remove(key),
            Op::Upsert(key, change) => self.change(key, change),
            Op::UpsertPrefix(prefix, change) => {
                let keys: Vec<Bytes> = self.prefix(prefix).map(|(key, _)| key.clone()).collect();
                keys.iter().for_each(|key| self.change(key, change));
            }
            Op::DeleteRange(lo, hi) => self.remove_range(lo, hi.as_deref()),
            Op::ClonePrefix(src, dst) => self.copy(src, dst),
            Op::RenamePrefix(src, dst) => {
                self.copy(src, dst);
                self.remove_range(src, successor(src).as_deref());
            }
            _ => unreachable!("an operation that the model does not know"),
        }
    }

    fn change(&mut self, key: &Bytes, change: &[u8]) {
        let old = self.map.get(key).map(|value| &value[..]);
        match ModelMerge.apply(old, change) {
            Some(value) => self.insert(key.clone(), value),
            None => self.remove(key),
        }
    }

    fn copy(&mut self, src: &[u8], dst: &[u8]) {
        let pairs: Vec<Pair> = self
            .prefix(src)
            .map(|(key, value)| ([dst, &key[src.len()..]].concat().into(), value.clone()))
            .collect();
        self.remove_range(dst, successor(dst).as_deref());
        pairs.into_iter().for_each(|(key, value)| self.insert(key, value));
    }

    fn remove_range(&mut self, lo: &[u8], hi: Option<&[u8]>) {
        let keys: Vec<Bytes> = self.range(lo, hi).map(|(key, _)| key.clone()).collect();
        keys.iter().for_each(|key| self.remove(key));
    }

    fn insert(&mut self, key: Bytes, value: Bytes) {
        self.digest = self.digest.wrapping_add(hash(&key, &value));
        self.bytes += key.len() + value.len();
        if let Some(old) = self.map.insert(key.clone(), value) {
            self.forget(&key, &old);
        }
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some((key, old)) = self.map.remove_with_key(key) {
            self.forget(&key, &old);
        }
    }

    fn forget(&mut self, key: &[u8], value: &[u8]) {
        self.digest = self.digest.wrapping_sub(hash(key, value));
        self.bytes -= key.len() + value.len();
    }

    /// `Err` names the first place where `pairs`, a whole scan, differs from this world.
    pub fn compare(&self, pairs: &[Pair]) -> Result<(), String> {
        let mut theirs = pairs.iter();
        let mut ours = self.map.iter();
        loop {
            match (ours.next(), theirs.next()) {
                (None, None) => return Ok(()),
                (Some((key, value)), Some((k, v))) if key == k && value == v => (),
                (want, have) => {
                    let want = want.map(|(key, value)| pair(key, value));
                    let have = have.map(|(key, value)| pair(key, value));
                    return Err(format!(
                        "first difference: expected {}, found {} ({} keys expected, {} found)",
                        want.as_deref().unwrap_or("the end"),
                        have.as_deref().unwrap_or("the end"),
                        self.len(),
                        pairs.len()
                    ));
                }
            }
        }
    }
}

/// Digest of a whole scan, to be looked up among the digests of worlds.
pub fn digest(pairs: &[Pair]) -> u64 {
    pairs.iter().fold(0, |sum: u64, (key, value)| sum.wrapping_add(hash(key, value)))
}

fn hash(key: &[u8], value: &[u8]) -> u64 {
    xxh3_64_with_seed(value, xxh3_64_with_seed(key, key.len() as u64))
}

/// A pair for people to read.
pub fn pair(key: &[u8], value: &[u8]) -> String {
    format!("{} = {}", show(key), show(value))
}

/// A byte string for people to read, cut to what fits a line.
pub fn show(bytes: &[u8]) -> String {
    const MOST: usize = 60;
    match bytes.len() {
        0..=MOST => format!("\"{}\"", bytes.escape_ascii()),
        len => format!("\"{}\"... ({len} bytes)", bytes[..MOST].escape_ascii()),
    }
}
