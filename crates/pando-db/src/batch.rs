//! Atomic batches: a list of operations that take effect all or not at all, in order.

use bytes::Bytes;

use crate::pool;

/// One operation of a batch. Keys are whole keys, prefixes are plain byte prefixes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Sets the value of a key.
    Put(Bytes, Bytes),
    /// Removes a key; absent keys are ignored.
    Delete(Bytes),
    /// Applies an upsert to a key, without reading it. See [`crate::Merge`].
    Upsert(Bytes, Bytes),
    /// Applies an upsert to every value that exists under a prefix, without reading any.
    UpsertPrefix(Bytes, Bytes),
    /// Removes every key in `[lo, hi)`; `None` is no upper bound.
    DeleteRange(Bytes, Option<Bytes>),
    /// Replaces all keys under the second prefix by a copy of those under the first.
    ClonePrefix(Bytes, Bytes),
    /// Like `ClonePrefix`, and then removes all keys under the first prefix.
    RenamePrefix(Bytes, Bytes),
}

/// A list of operations for [`crate::Db::write`].
///
/// ```
/// let mut batch = pando_db::Batch::new();
/// batch.put("a", "1").delete("b");
/// assert_eq!(batch.len(), 2);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    pub(crate) ops: Vec<Op>,
    expected: Expected,
    coalescible: bool,
    effect: Effect,
}

/// What must be so before the first operation of a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Keys, and the values that they have.
    pub values: Vec<(Bytes, Option<Bytes>)>,
    /// Prefixes of keys, below which there is none.
    pub empty: Vec<Bytes>,
}

impl Expected {
    /// True if it is nothing.
    pub fn is_nothing(&self) -> bool {
        self.values.is_empty() && self.empty.is_empty()
    }
}

/// What a batch says of the space that it takes, beyond what its operations show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Effect {
    #[default]
    Unsaid,
    /// By [`Batch::shrinks`].
    Shrinks,
    /// By [`Batch::releases`].
    Releases,
    /// By [`Batch::moves_once`].
    MovesOnce,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Its operations, and what it expects.
    pub(crate) fn into_parts(self) -> (Vec<Op>, Expected) {
        (self.ops, self.expected)
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// True if there is nothing to do: no operation, and nothing expected.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty() && self.expected.is_nothing()
    }

    /// The operations, in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// What is expected of keys; see [`Batch::expect`].
    pub fn expected(&self) -> &[(Bytes, Option<Bytes>)] {
        &self.expected.values
    }

    /// All that is expected.
    pub(crate) fn all_expected(&self) -> &Expected {
        &self.expected
    }

    /// Makes the batch conditional: all of it is refused with [`crate::Error::Conflict`] unless `key` has exactly
    /// this value (`None`: no value) before the first operation of the batch. Several keys may be expected. The check
    /// and the operations are one atomic step. A refused batch changes nothing and is not in the log.
    ///
    /// This is compare-and-set, and with several keys an optimistic transaction: read, decide, write with the values
    /// that were read as expectations, and begin again after a conflict. A batch without operations checks that all
    /// its keys have the expected values at one moment.
    ///
    /// Cost: a lookup for each key. While other threads change these very keys, the lookups are repeated.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use pando_db::{Batch, CreateOptions, Db, Error, Options, device::MemDevice};
    /// # fn main() -> pando_db::Result<()> {
    /// # let device = Arc::new(MemDevice::new(64 << 20));
    /// # Db::create(device.clone(), &CreateOptions::default(), &Options::default())?;
    /// # let db = Db::open(device, Options::default())?;
    /// // Adds one to a counter, whoever else does so at the same time.
    /// loop {
    ///     let old = db.get(b"counter")?;
    ///     let count = old.as_deref().map_or(0, |v| v.first().copied().unwrap_or(0));
    ///     let mut batch = Batch::new();
    ///     batch.expect("counter", old).put("counter", vec![count + 1]);
    ///     match db.write(batch) {
    ///         Err(Error::Conflict { .. }) => continue,
    ///         other => break other,
    ///     }
    /// }
    /// # }
    /// ```
    pub fn expect(&mut self, key: impl Into<Bytes>, value: Option<Bytes>) -> &mut Self {
        self.expected.values.push((key.into(), value));
        self
    }

    /// Makes the batch conditional, as [`Batch::expect`] does: it is refused with [`crate::Error::Conflict`], which
    /// names the first key, unless no key begins with `prefix`. For a batch that leaves out what there would be to do
    /// if there were any. Cost: a step of a cursor.
    pub fn expect_empty(&mut self, prefix: impl Into<Bytes>) -> &mut Self {
        self.expected.empty.push(prefix.into());
        self
    }

    /// Lets the store coalesce this batch with the ones right before and after it that allow it too, while they wait in
    /// memory to be logged: they share a record of the log then, so a crash leaves all of them or none. Meant for small
    /// changes of the same few keys that follow each other closely, such as the parts of a value that grows: only their
    /// result is written. Batches that expect something, or change ranges of keys, are never coalesced.
    pub fn may_coalesce(&mut self) -> &mut Self {
        self.coalescible = true;
        self
    }

    /// Whether the batch may be coalesced with its neighbours.
    pub(crate) fn can_be_coalesced(&self) -> bool {
        self.coalescible && self.expected.is_nothing()
    }

    /// Says that what the batch puts takes less space than what was there before, as an operation that cuts a value
    /// does. If it is small, a store that is full lets it in like deletes, into what is kept back for those.
    pub fn shrinks(&mut self) -> &mut Self {
        self.effect = Effect::Shrinks;
        self
    }

    /// Says that the batch deletes what keeps the space of other deleted data in use, as a snapshot does. If it is
    /// small, and deletes more than it puts, a full store lets it in where other deletes are refused because they have
    /// used up what is kept back for them.
    pub fn releases(&mut self) -> &mut Self {
        self.effect = Effect::Releases;
        self
    }

    /// Says that the batch can be repeated only as often as there is something to delete, though it moves keys: what
    /// it moves was named until then, and is deleted next. If it is small, and deletes, a full store lets it in where
    /// it refuses other batches that move, and stops where those of two edits are left for deletes.
    pub fn moves_once(&mut self) -> &mut Self {
        self.effect = Effect::MovesOnce;
        self
    }

    /// Which of these it says.
    pub(crate) fn effect(&self) -> Effect {
        self.effect
    }

    /// Adds one operation.
    pub fn push(&mut self, op: Op) -> &mut Self {
        self.ops.push(op);
        self
    }

    /// Sets `key` to `value`.
    pub fn put(&mut self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> &mut Self {
        self.push(Op::Put(key.into(), value.into()))
    }

    /// Like [`Batch::put`], with a copy of `value`. For values of 8 KiB and more this is cheaper than a copy that the
    /// caller makes, because it reuses memory of earlier values and pages.
    pub fn put_copy(&mut self, key: impl Into<Bytes>, value: &[u8]) -> &mut Self {
        self.push(Op::Put(key.into(), pool::copy(value)))
    }

    /// Removes `key`.
    pub fn delete(&mut self, key: impl Into<Bytes>) -> &mut Self {
        self.push(Op::Delete(key.into()))
    }

    /// Applies `op` to the value of `key`, blindly.
    pub fn upsert(&mut self, key: impl Into<Bytes>, op: impl Into<Bytes>) -> &mut Self {
        self.push(Op::Upsert(key.into(), op.into()))
    }

    /// Applies `op` to the value of every key that begins with `prefix` and has one at this moment,
    /// blindly; keys without a value stay without. One message, however many values there are.
    /// `op` has at most [`crate::MAX_PREFIX_UPSERT`] bytes, and all of a batch about 16 times as many.
    ///
    /// Operations that wait for the same keys are kept one by one unless [`crate::Merge::combine_present`] combines
    /// them, so a [`crate::Merge`] whose operations are often used on prefixes should implement it.
    pub fn upsert_prefix(&mut self, prefix: impl Into<Bytes>, op: impl Into<Bytes>) -> &mut Self {
        self.push(Op::UpsertPrefix(prefix.into(), op.into()))
    }

    /// Removes every key in `[lo, hi)`.
    pub fn delete_range(&mut self, lo: impl Into<Bytes>, hi: Option<Bytes>) -> &mut Self {
        self.push(Op::DeleteRange(lo.into(), hi))
    }

    /// Removes every key that begins with `prefix`, in O(1) messages.
    pub fn delete_prefix(&mut self, prefix: impl Into<Bytes>) -> &mut Self {
        let lo = prefix.into();
        let hi = crate::key::successor(&lo);
        self.push(Op::DeleteRange(lo, hi))
    }

    /// Copies every key under `src` to `dst`, replacing what is under `dst`. `dst` may lie below `src`, unless `src`
    /// is the empty prefix: the copy is made of the state before the operation, so it does not contain itself. If
    /// many copies lie below their source, each one also contains the older ones, unless its batch deletes from it
    /// the prefix under which the copies lie. `src` may neither be `dst` nor lie below it
    /// ([`crate::Error::Overlap`]). The batch is refused ([`crate::Error::TooLarge`]) if a key would be longer than
    /// [`crate::MAX_KEY`].
    pub fn clone_prefix(&mut self, src: impl Into<Bytes>, dst: impl Into<Bytes>) -> &mut Self {
        self.push(Op::ClonePrefix(src.into(), dst.into()))
    }

    /// Moves every key under `src` to `dst`, replacing what is under `dst`.
    /// Neither may be a prefix of the other ([`crate::Error::Overlap`]). The batch is refused
    /// ([`crate::Error::TooLarge`]) if a key would be longer than [`crate::MAX_KEY`].
    pub fn rename_prefix(&mut self, src: impl Into<Bytes>, dst: impl Into<Bytes>) -> &mut Self {
        self.push(Op::RenamePrefix(src.into(), dst.into()))
    }
}
