//! Batches that are made one: what two of them come to, key by key.
//!
//! Guarantees: pure; the operations that come out have, one after the other, the effect of those that went in, for any
//! store in which the first ones were the last that was done. May use: operations, the merge function. No I/O.

use bytes::Bytes;

use crate::{batch::Op, limits::MAX_MERGED, merge::Merge};

/// Operations of a batch that is made one with others; looking for equal keys compares all with all.
const MAX_OPS: usize = 8;
/// Keys of what batches are made.
const MAX_KEYS: usize = 96;
/// Bytes in the record itself of what batches are made, and how many of them let no more keys in. Each batch that is
/// joined writes them anew, in memory.
const MAX_BYTES: usize = 24 << 10;
const MAX_BYTES_FOR_MORE_KEYS: usize = 4 << 10;

/// The newest batch, which others may have been joined to.
#[derive(Default)]
pub(crate) struct Joint {
    /// Its number.
    pub msn: u64,
    /// Its operations, at most one for each key.
    pub ops: Vec<Op>,
    /// Keys of batches right before it that it was not made one with: see [`Earlier::keys`].
    pub earlier: Vec<Bytes>,
}

/// What came right before a batch.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    /// Operations that it may be made one with.
    pub ops: Vec<Op>,
    /// Keys of records that cannot be replaced any more. What is joined to such a key becomes a put of the whole value,
    /// once: a change of it would be logged, and the value read and written again in the tree. Not more often, because
    /// who syncs after every part would log the value for each.
    pub keys: Vec<Bytes>,
}

impl Earlier {
    /// What it is to a batch behind it that it is not made one with.
    pub fn over(&self) -> Earlier {
        let new = self.ops.iter().filter_map(key).filter(|key| !self.keys.contains(key));
        Earlier { ops: Vec::new(), keys: new.cloned().collect() }
    }

    /// The operation on `key`. The last ones are looked at first, as what grows is what came last.
    fn find(&self, key: &Bytes) -> Option<(usize, &Op)> {
        self.ops.iter().enumerate().rev().find(|(_, op)| self::key(op).is_some_and(|old| is_same(old, key)))
    }
}

/// Whether two keys are equal. Those of a batch begin alike as a rule, so their ends are looked at first.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.last_chunk::<8>() == b.last_chunk::<8>() && a == b
}

/// What batches that are made one come to.
pub(crate) struct Joined {
    /// What comes of the operations before: the one at a place becomes another, or one is added (no place).
    changes: Vec<(Option<usize>, Op)>,
    /// What the newest batch does, as an in-memory table takes it in; puts are those of all, to the address.
    pub newest: Vec<Op>,
}

impl Joined {
    /// All operations, one for each key, where `before` were the ones before; and the newest.
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

fn key(op: &Op) -> Option<&Bytes> {
    match op {
        Op::Put(key, _) | Op::Delete(key) | Op::Upsert(key, _) => Some(key),
        _ => None,
    }
}

/// The put or delete of what an upsert has made of a value.
fn settled(key: &Bytes, value: Option<Bytes>) -> Option<Op> {
    match value {
        Some(value) if value.len() > MAX_MERGED => None,
        Some(value) => Some(Op::Put(key.clone(), value)),
        None => Some(Op::Delete(key.clone())),
    }
}

/// The operations `ops` of a batch right behind `before`. `None` if they are better left apart. `standing` is the
/// value that a key is known to have in memory; values of at least `aside` bytes do not stand in the record.
pub(crate) fn join(
    before: &Earlier,
    ops: &[Op],
    aside: usize,
    standing: impl Fn(&[u8]) -> Option<Bytes>,
    merge: &dyn Merge,
) -> Option<Joined> {
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
    let mut joined = Joined { changes: Vec::with_capacity(ops.len()), newest: Vec::with_capacity(ops.len()) };
    for op in ops {
        let key = key(op)?;
        let (at, old) = before.find(key).unzip();
        let both = match (old, op) {
            (Some(Op::Put(_, value)), Op::Upsert(_, change)) => {
                settled(key, merge.apply(Some(value), change))?
            }
            (Some(Op::Delete(_)), Op::Upsert(_, change)) => settled(key, merge.apply(None, change))?,
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
        joined.newest.push(match &both {
            Op::Upsert(..) => op.clone(),
            settled => settled.clone(),
        });
        bytes += in_record(&both);
        match old {
            Some(old) => bytes -= in_record(old),
            None if may_add => count += 1,
            None => return None,
        }
        joined.changes.push((at, both));
    }
    (count <= MAX_KEYS && bytes <= MAX_BYTES).then_some(joined)
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

    /// Whatever was there before, and also where a value is made whole because its record was written.
    #[test]
    fn what_batches_are_made_has_the_effect_of_all_of_them() {
        let rng = &mut StdRng::seed_from_u64(3);
        let (mut joins, mut whole) = (0, 0);
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
                let Some(joined) = join(&before, &ops, 30, standing, &PatchMerge) else { break };
                joins += 1;
                let puts = |ops: &[Op]| ops.iter().filter(|op| matches!(op, Op::Put(..))).count();
                whole += usize::from(puts(&joined.newest) > puts(&ops));
                let (all, newest) = joined.onto(before.ops.clone());
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
        assert!(joins > 10_000 && whole > 1000, "{joins} {whole}");
    }

    #[test]
    fn batches_about_ranges_or_with_a_key_twice_stay_apart() {
        let put = || Op::Put("a".into(), "1".into());
        let none = |_: &[u8]| None;
        for ops in [vec![put(), put()], vec![Op::DeleteRange("a".into(), None)], vec![put(); 9]] {
            assert!(join(&Earlier::default(), &ops, 30, none, &PatchMerge).is_none(), "{ops:?}");
        }
    }
}
