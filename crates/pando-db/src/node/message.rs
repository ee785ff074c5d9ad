//! Point messages: what a leaf or a buffer says about one key.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use imbl::Vector;
use smallvec::SmallVec;

use crate::{
    codec::{peek_varint, put_varint},
    limits::MAX_MERGED,
    merge::Merge,
};

/// One message about one key. A leaf holds only `Put`s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Msg {
    /// The key has this value.
    Put(Bytes),
    /// The key has no value.
    Delete,
    /// These operations apply in order to the older value.
    Upsert(ValueChanges),
}

/// One operation of an upsert, whose meaning [`Merge`] defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValueChange {
    pub op: Bytes,
    /// Whether the operation applies only if the key has a value: it came with a range-upsert.
    pub if_present: bool,
}

impl ValueChange {
    /// Bytes of content, for accounting.
    fn len(&self) -> usize {
        self.op.len() + 2
    }

    fn apply(&self, old: Value, merge: &dyn Merge) -> Value {
        if self.if_present && old.is_none() {
            return None;
        }
        within_limit(merge.apply(old.as_deref(), &self.op)).unwrap_or(old)
    }

    /// One change equal to this one followed by `next`, if there is one. There is none for a plain and a conditional
    /// change, because the result of the first decides whether the second applies.
    fn then(&self, next: &ValueChange, merge: &dyn Merge) -> Option<ValueChange> {
        let op = match (self.if_present, next.if_present) {
            (false, false) => merge.combine(&self.op, &next.op),
            (true, true) => merge.combine_present(&self.op, &next.op),
            _ => None,
        };
        Some(ValueChange { op: op?, if_present: self.if_present })
    }
}

/// At least one change, oldest first. Adding one costs O(log n) however many there are, also where a reader
/// shares them: operations that nothing combines pile up in a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ValueChanges {
    One(ValueChange),
    Many(Arc<Many>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Many {
    list: Vector<ValueChange>,
    /// Their content, for accounting.
    bytes: usize,
}

impl ValueChanges {
    fn collect(changes: impl Iterator<Item = ValueChange>) -> Self {
        let list: Vector<ValueChange> = changes.collect();
        let bytes = list.iter().map(ValueChange::len).sum();
        ValueChanges::Many(Arc::new(Many { list, bytes }))
    }

    fn len_in_bytes(&self) -> usize {
        match self {
            ValueChanges::One(change) => change.len(),
            ValueChanges::Many(many) => many.bytes,
        }
    }

    pub fn iter(&self) -> Box<dyn Iterator<Item = &ValueChange> + '_> {
        match self {
            ValueChanges::One(change) => Box::new(std::iter::once(change)),
            ValueChanges::Many(many) => Box::new(many.list.iter()),
        }
    }

    /// These changes followed by `newer`; neighbours are combined where `merge` can. Cost: in proportion to `newer`.
    fn then(mut self, newer: ValueChanges, merge: &dyn Merge) -> ValueChanges {
        newer.iter().for_each(|next| self.add(next, merge));
        self
    }

    fn add(&mut self, next: &ValueChange, merge: &dyn Merge) {
        match self {
            ValueChanges::One(last) => match last.then(next, merge) {
                Some(both) => *last = both,
                None => {
                    let bytes = last.len() + next.len();
                    let list = Vector::from_iter([last.clone(), next.clone()]);
                    *self = ValueChanges::Many(Arc::new(Many { list, bytes }));
                }
            },
            ValueChanges::Many(many) => {
                let many = Arc::make_mut(many);
                let both = many.list.last().and_then(|last| last.then(next, merge));
                match (both, many.list.back_mut()) {
                    (Some(both), Some(last)) => {
                        many.bytes = many.bytes - last.len() + both.len();
                        *last = both;
                    }
                    _ => {
                        many.bytes += next.len();
                        many.list.push_back(next.clone());
                    }
                }
            }
        }
    }

    fn apply(&self, before: Value, merge: &dyn Merge) -> Value {
        match self {
            ValueChanges::One(change) => change.apply(before, merge),
            ValueChanges::Many(many) => {
                let mut value = before;
                let mut rest = many.list.iter().peekable();
                while let Some(change) = rest.next() {
                    if change.if_present {
                        value = change.apply(value, merge);
                        continue;
                    }
                    let mut run: SmallVec<[&[u8]; 8]> = SmallVec::from_iter([&change.op[..]]);
                    while let Some(next) = rest.next_if(|next| !next.if_present) {
                        run.push(&next.op);
                    }
                    value = match within_limit(merge.apply_all(value.as_deref(), &run)) {
                        Some(result) => result,
                        // Those of them that keep it short enough count.
                        None => run.iter().fold(value, |old, op| {
                            within_limit(merge.apply(old.as_deref(), op)).unwrap_or(old)
                        }),
                    };
                }
                value
            }
        }
    }
}

/// What messages about one key come to, once nothing older matters.
pub(crate) type Value = Option<Bytes>;

/// The result of an operation, unless it is too long to be stored: a page with it could not be read.
fn within_limit(result: Value) -> Option<Value> {
    match &result {
        Some(value) if value.len() > MAX_MERGED => None,
        _ => Some(result),
    }
}

impl Msg {
    pub fn upsert(op: Bytes) -> Self {
        Msg::Upsert(ValueChanges::One(ValueChange { op, if_present: false }))
    }

    /// What the operations of a range-upsert are to one of its keys.
    pub fn if_present(ops: &[Bytes]) -> Self {
        let change = |op: &Bytes| ValueChange { op: op.clone(), if_present: true };
        Msg::Upsert(match ops {
            [op] => ValueChanges::One(change(op)),
            ops => ValueChanges::collect(ops.iter().map(change)),
        })
    }

    /// True if what is older does not matter.
    pub fn is_final(&self) -> bool {
        !matches!(self, Msg::Upsert(_))
    }

    /// True if its key may have a value because of it.
    pub fn may_make_value(&self) -> bool {
        !matches!(self, Msg::Delete)
    }

    /// Bytes of key-independent content, for accounting.
    pub fn len(&self) -> usize {
        match self {
            Msg::Put(value) => value.len(),
            Msg::Delete => 0,
            Msg::Upsert(changes) => changes.len_in_bytes(),
        }
    }

    /// The value after this message, given the value before.
    pub fn resolve(&self, before: Value, merge: &dyn Merge) -> Value {
        match self {
            Msg::Put(value) => Some(value.clone()),
            Msg::Delete => None,
            Msg::Upsert(changes) => changes.apply(before, merge),
        }
    }

    /// The value after this message where there was none.
    pub fn into_value(self, merge: &dyn Merge) -> Value {
        match self {
            Msg::Put(value) => Some(value),
            other => other.resolve(None, merge),
        }
    }

    /// One message that equals `older` followed by `self`.
    pub fn over(self, older: Msg, merge: &dyn Merge) -> Msg {
        match (self, older) {
            (newer @ (Msg::Put(_) | Msg::Delete), _) => newer,
            (newer, Msg::Put(old)) => newer.resolve(Some(old), merge).into(),
            (newer, Msg::Delete) => newer.resolve(None, merge).into(),
            (Msg::Upsert(newer), Msg::Upsert(older)) => Msg::Upsert(older.then(newer, merge)),
        }
    }

    /// Kinds as pages have them.
    pub(crate) const PUT: u8 = 0;
    pub(crate) const DELETE: u8 = 1;
    const UPSERT: u8 = 2;

    pub(crate) fn kind(&self) -> u8 {
        match self {
            Msg::Put(_) => Self::PUT,
            Msg::Delete => Self::DELETE,
            Msg::Upsert(_) => Self::UPSERT,
        }
    }

    /// The encoded content: the value itself, or counted and marked operations.
    pub(crate) fn encode(&self) -> Bytes {
        match self {
            Msg::Put(value) => value.clone(),
            Msg::Delete => Bytes::new(),
            Msg::Upsert(changes) => {
                let mut out = BytesMut::with_capacity(self.len() + 8);
                for ValueChange { op, if_present } in changes.iter() {
                    put_varint(&mut out, (op.len() as u64) << 1 | u64::from(*if_present));
                    out.put_slice(op);
                }
                out.freeze()
            }
        }
    }

    /// Reads what `encode` wrote. Pages are checked when loaded, so a malformed rest is dropped
    /// here only where [`Msg::is_valid`] was not asked.
    pub(crate) fn decode(kind: u8, content: Bytes) -> Msg {
        match kind {
            Self::PUT => Msg::Put(content),
            Self::DELETE => Msg::Delete,
            _ => {
                let mut changes: SmallVec<[ValueChange; 1]> = SmallVec::new();
                let mut rest = content;
                while let Some((head, width)) = peek_varint(&rest) {
                    let end = (width as u64).saturating_add(head >> 1).min(rest.len() as u64) as usize;
                    changes.push(ValueChange { op: rest.slice(width..end), if_present: head & 1 != 0 });
                    rest = rest.slice(end..);
                }
                Msg::Upsert(match changes.len() {
                    1 => ValueChanges::One(changes.remove(0)),
                    _ => ValueChanges::collect(changes.into_iter()),
                })
            }
        }
    }

    /// True if `content` is well-formed for `kind`.
    pub(crate) fn is_valid(kind: u8, content: &[u8]) -> bool {
        match kind {
            Self::PUT => true,
            Self::DELETE => content.is_empty(),
            Self::UPSERT => {
                let mut rest = content;
                while !rest.is_empty() {
                    let Some((head, width)) = peek_varint(rest) else { return false };
                    let Some(next) =
                        usize::try_from(head >> 1).ok().and_then(|len| rest.get(width.checked_add(len)?..))
                    else {
                        return false;
                    };
                    rest = next;
                }
                true
            }
            _ => false,
        }
    }
}

impl From<Value> for Msg {
    fn from(value: Value) -> Self {
        value.map_or(Msg::Delete, Msg::Put)
    }
}
