//! Coalescing batches: the operations of several small consecutive batches become those of one record of the log.
//!
//! Guarantees: pure; the operations of the result have, one after the other, the effect of the operations that went in,
//! on any store to which nothing else was applied in between. May use: operations, the merge function. No I/O.

use bytes::Bytes;

use crate::{batch::Op, limits::MAX_MERGED, merge::Merge};

/// Most operations of a batch that is coalesced with others, a count: each key is compared with each.
const MAX_OPS: usize = 8;
/// Most keys of coalesced batches, a count.
const MAX_KEYS: usize = 96;
/// Most bytes of the record of coalesced batches, without the values that are stored outside it: each further batch
/// encodes the whole record anew, in memory.
const MAX_COALESCED_BYTES: usize = 24 << 10;
/// A record with more bytes than this takes changes of the keys that it has, but no further keys.
const MAX_BYTES_FOR_MORE_KEYS: usize = 4 << 10;

/// The newest batch, with those that were coalesced with it.
#[derive(Default)]
pub(crate) struct NewestBatch {
    /// The number of its record (MSN).
    pub msn: u64,
    /// The operations of all of them, at most one for each key.
    pub ops: Vec<Op>,
    /// Keys of the batches before these: see [`Earlier::keys`].
    pub earlier: Vec<Bytes>,
}

/// The batches right before a new one.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    /// Operations of those that the new batch may be coalesced with.
    pub ops: Vec<Op>,
    /// Keys of records that cannot be replaced any more. The first upsert of such a key becomes a put of the whole
    /// value, so that the tree need not read the value and write it again. Later ones stay upserts: a caller that syncs
    /// after each would otherwise log the whole value each time.
    pub keys: Vec<Bytes>,
}

impl Earlier {
    /// The same for a batch that gets a record of its own: only keys, without those of which the record has the whole
    /// value.
    pub fn over(&self) -> Earlier {
        let new = self.ops.iter().filter_map(key).filter(|key| !self.keys.contains(key));
        Earlier { ops: Vec::new(), keys: new.cloned().collect() }
    }

    /// The operation on `key` and its index. The search begins at the end, because a file that grows is changed where
    /// it was changed last.
    fn find(&self, key: &Bytes) -> Option<(usize, &Op)> {
        self.ops.iter().enumerate().rev().find(|(_, op)| self::key(op).is_some_and(|old| is_same(old, key)))
    }
}

/// Whether two keys are equal. The keys of a batch mostly begin alike, so their ends are compared first.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.last_chunk::<8>() == b.last_chunk::<8>() && a == b
}

/// The result of coalescing a batch.
pub(crate) struct Coalesced {
    /// Changes of the operations before it: the one at the given index is replaced; without an index, one is added.
    changes: Vec<(Option<usize>, Op)>,
    /// The operations of the new batch, for the memtable. The value of a put shares its memory with the record, so
    /// that it is in memory once.
    pub newest: Vec<Op>,
}

impl Coalesced {
    /// All operations of the record, one for each key, if `before` are the operations that it had; and those of the
    /// new batch.
    pub fn onto(self, mut before: Vec<Op>) -> (Vec<Op>, Vec<Op>) {
        for (at, op) in self.changes {
            match at.and_then(|at| before.get_mut(at)) {
                Some(slot) => *slot = op,
                None => before.push(op),
            }
        }
        (before, self.newest)
    }
}

/// The key of an operation on one key.
fn key(op: &Op) -> Option<&Bytes> {
    match op {
        Op::Put(key, _) | Op::Delete(key) | Op::Upsert(key, _) => Some(key),
        _ => None,
    }
}

/// The put or delete with the result of an upsert; `None` if the value is too long to be stored whole.
fn applied(key: &Bytes, value: Option<Bytes>) -> Option<Op> {
    match value {
        Some(value) if value.len() > MAX_MERGED => None,
        Some(value) => Some(Op::Put(key.clone(), value)),
        None => Some(Op::Delete(key.clone())),
    }
}

/// Coalesces the operations `ops` of a batch with those right `before` it. `None` if the batch has to get a record of
/// its own. `standing` returns the value that a key has in the memtables, if they show it; values of at least `aside`
/// bytes are stored outside the record.
pub(crate) fn coalesce(
    before: &Earlier,
    ops: &[Op],
    aside: usize,
    standing: impl Fn(&[u8]) -> Option<Bytes>,
    merge: &dyn Merge,
) -> Option<Coalesced> {
    let repeated = |(i, op): (usize, &Op)| ops.iter().take(i).any(|other| key(other) == key(op));
    if ops.len() > MAX_OPS || ops.iter().enumerate().any(repeated) {
        return None;
    }
    let in_record = |op: &Op| match op {
        Op::Put(key, value) if value.len() >= aside => key.len(),
        Op::Put(key, value) | Op::Upsert(key, value) => key.len() + value.len(),
        op => key(op).map_or(0, Bytes::len),
    };
    let keys = &before.keys;
    let (mut count, mut bytes) = (before.ops.len(), before.ops.iter().map(in_record).sum::<usize>());
    let may_add = count == 0 || bytes <= MAX_BYTES_FOR_MORE_KEYS;
    let mut coalesced =
        Coalesced { changes: Vec::with_capacity(ops.len()), newest: Vec::with_capacity(ops.len()) };
    for op in ops {
        let key = key(op)?;
        let (at, old) = before.find(key).unzip();
        let both = match (old, op) {
            (Some(Op::Put(_, value)), Op::Upsert(_, change)) => {
                applied(key, merge.apply(Some(value), change))?
            }
            (Some(Op::Delete(_)), Op::Upsert(_, change)) => applied(key, merge.apply(None, change))?,
            (Some(Op::Upsert(_, first)), Op::Upsert(_, second)) => {
                let both = merge.combine(first, second)?;
                match merge.constant(&both) {
                    Some(value) => Op::Put(key.clone(), value),
                    None => Op::Upsert(key.clone(), both),
                }
            }
            (None, Op::Upsert(_, change)) if keys.iter().any(|old| is_same(old, key)) => {
                match standing(key).and_then(|value| merge.apply(Some(&value), change)) {
                    Some(value) if value.len() <= MAX_MERGED => Op::Put(key.clone(), value),
                    _ => op.clone(),
                }
            }
            _ => op.clone(),
        };
        coalesced.newest.push(match &both {
            Op::Upsert(..) => op.clone(),
            other => other.clone(),
        });
        bytes += in_record(&both);
        match old {
            Some(old) => bytes -= in_record(old),
            None if may_add => count += 1,
            None => return None,
        }
        coalesced.changes.push((at, both));
    }
    (count <= MAX_KEYS && bytes <= MAX_COALESCED_BYTES).then_some(coalesced)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use std::collections::BTreeMap;

    use super::*;
    use crate::merge::{PatchMerge, patch};

    type Store = BTreeMap<Bytes, Bytes>;

    fn apply(store: &mut Store, ops: &[Op]) {
        for op in ops {
            let (key, value) = match op {
                Op::Put(key, value) => (key, Some(value.clone())),
                Op::Delete(key) => (key, None),
                Op::Upsert(key, change) => (key, PatchMerge.apply(store.get(key).map(|v| &v[..]), change)),
                other => panic!("{other:?}"),
            };
            match value {
                Some(value) => _ = store.insert(key.clone(), value),
                None => _ = store.remove(key),
            }
        }
    }

    fn random_op(rng: &mut StdRng) -> Op {
        let key = Bytes::from(format!("k{}", rng.random_range(0..5)));
        let data = vec![rng.random_range(0..255); rng.random_range(1..40)];
        match rng.random_range(0..6) {
            0 => Op::Put(key, data.into()),
            1 => Op::Delete(key),
            2 => Op::Upsert(key, patch::truncate(rng.random_range(0..60))),
            _ => Op::Upsert(key, patch::write(rng.random_range(0..60), &data)),
        }
    }

    /// This holds for any store before them, and also if an upsert becomes a put because the record of its key was
    /// written.
    #[test]
    fn a_coalesced_record_has_the_effect_of_all_its_batches() {
        let rng = &mut StdRng::seed_from_u64(3);
        let (mut count, mut whole) = (0, 0);
        for _ in 0..20_000 {
            let mut store = Store::new();
            let first: Vec<Op> = (0..rng.random_range(0..5)).map(|_| random_op(rng)).collect();
            apply(&mut store, &first);
            let base = store.clone();
            let mut before = Earlier::default();
            for _ in 0..rng.random_range(1..6) {
                let ops: Vec<Op> = (0..rng.random_range(1..4)).map(|_| random_op(rng)).collect();
                if rng.random_range(0..4) == 0 {
                    before.keys = vec!["k1".into(), "k3".into()];
                }
                let standing = |key: &[u8]| store.get(key).cloned();
                let Some(coalesced) = coalesce(&before, &ops, 30, standing, &PatchMerge) else { break };
                count += 1;
                let puts = |ops: &[Op]| ops.iter().filter(|op| matches!(op, Op::Put(..))).count();
                whole += usize::from(puts(&coalesced.newest) > puts(&ops));
                let (all, newest) = coalesced.onto(before.ops.clone());
                let mut table = store.clone();
                apply(&mut table, &newest);
                apply(&mut store, &ops);
                assert_eq!(table, store, "{before:?} {ops:?}");
                let mut replayed = base.clone();
                apply(&mut replayed, &all);
                assert_eq!(replayed, store, "{all:?}");
                before.ops = all;
            }
        }
        assert!(count > 10_000 && whole > 1000, "{count} {whole}");
    }

    #[test]
    fn batches_about_ranges_or_with_a_key_twice_are_not_coalesced() {
        let put = || Op::Put("a".into(), "1".into());
        let none = |_: &[u8]| None;
        for ops in [vec![put(), put()], vec![Op::DeleteRange("a".into(), None)], vec![put(); 9]] {
            assert!(coalesce(&Earlier::default(), &ops, 30, none, &PatchMerge).is_none(), "{ops:?}");
        }
    }
}
