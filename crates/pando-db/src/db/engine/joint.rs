//! Joining batches: the operations of several small batches in a row become those of one record of the log.
//!
//! Guarantees: pure; the operations that come out have, one after the other, the effect of those that went in, for any
//! store in which the first ones were the last that was done. May use: operations, the merge function. No I/O.

use bytes::Bytes;

use crate::{batch::Op, limits::MAX_MERGED, merge::Merge};

/// Most operations of a batch that is joined to others, a count: each key is compared with each.
const MAX_OPS: usize = 8;
/// Most keys of joined batches, a count.
const MAX_KEYS: usize = 96;
/// Most bytes of the record of joined batches, values outside of it left out: each batch that is joined encodes the
/// whole record anew, in memory.
const MAX_JOINT_BYTES: usize = 24 << 10;
/// A record with more bytes than this takes changes of its own keys, but no further keys.
const MAX_BYTES_FOR_MORE_KEYS: usize = 4 << 10;

/// The newest batch, which others may have been joined to.
#[derive(Default)]
pub(crate) struct Joint {
    /// Its number.
    pub msn: u64,
    /// Its operations, at most one for each key.
    pub ops: Vec<Op>,
    /// Keys of batches right before it that it was not joined to: see [`Earlier::keys`].
    pub earlier: Vec<Bytes>,
}

/// What came right before a batch.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    /// Operations of the batches that it may be joined to.
    pub ops: Vec<Op>,
    /// Keys of records that cannot be replaced any more. The first upsert of such a key becomes a put of the whole
    /// value, so that the tree need not read the value and write it again. Later ones stay upserts: a caller that syncs
    /// after each would otherwise log the whole value each time.
    pub keys: Vec<Bytes>,
}

impl Earlier {
    /// What the next batch has to know of these if it is not joined to them: their keys, but for those whose value was
    /// made whole.
    pub fn over(&self) -> Earlier {
        let new = self.ops.iter().filter_map(key).filter(|key| !self.keys.contains(key));
        Earlier { ops: Vec::new(), keys: new.cloned().collect() }
    }

    /// The operation on `key`. The search begins with the last one: a file that grows is changed where it was last.
    fn find(&self, key: &Bytes) -> Option<(usize, &Op)> {
        self.ops.iter().enumerate().rev().find(|(_, op)| self::key(op).is_some_and(|old| is_same(old, key)))
    }
}

/// Whether two keys are equal. Those of a batch begin alike as a rule, so their ends are looked at first.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.last_chunk::<8>() == b.last_chunk::<8>() && a == b
}

/// What becomes of batches that are joined.
pub(crate) struct Joined {
    /// Changes of the operations before: the one at this place becomes another one; without a place, one is added.
    changes: Vec<(Option<usize>, Op)>,
    /// What the newest batch does, as the memtable takes it in. The value of a put is the same memory as that in the
    /// record, so that it is kept once.
    pub newest: Vec<Op>,
}

impl Joined {
    /// All operations of the record, one for each key, where `before` were the ones before; and those of the newest
    /// batch.
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

/// The put or delete that says what an upsert has made of a value; `None` if the value is too long to be kept whole.
fn applied(key: &Bytes, value: Option<Bytes>) -> Option<Op> {
    match value {
        Some(value) if value.len() > MAX_MERGED => None,
        Some(value) => Some(Op::Put(key.clone(), value)),
        None => Some(Op::Delete(key.clone())),
    }
}

/// Joins the operations `ops` of a batch to those right `before` it. `None` if the batch gets a record of its own.
/// `standing` gives the value that a key is known to have in memory; values of at least `aside` bytes do not stand in
/// the record.
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
        joined.newest.push(match &both {
            Op::Upsert(..) => op.clone(),
            other => other.clone(),
        });
        bytes += in_record(&both);
        match old {
            Some(old) => bytes -= in_record(old),
            None if may_add => count += 1,
            None => return None,
        }
        joined.changes.push((at, both));
    }
    (count <= MAX_KEYS && bytes <= MAX_JOINT_BYTES).then_some(joined)
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
