//! Point messages: what a leaf or a buffer says about one key.

use bytes::{BufMut, Bytes, BytesMut};
use smallvec::{SmallVec, smallvec};

use super::codec::{peek_varint, put_varint};
use crate::merge::Merge;

/// One message about one key. A leaf holds only `Put`s.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Msg {
    /// The key has this value.
    Put(Bytes),
    /// The key has no value.
    Delete,
    /// These operations apply in order to whatever is older.
    Upsert(SmallVec<[Bytes; 1]>),
}

/// What messages about one key come to, once nothing older matters.
pub(crate) type Value = Option<Bytes>;

impl Msg {
    pub fn upsert(op: Bytes) -> Self {
        Msg::Upsert(smallvec![op])
    }

    pub fn is_put(&self) -> bool {
        matches!(self, Msg::Put(_))
    }

    /// True if what is older does not matter.
    pub fn is_final(&self) -> bool {
        !matches!(self, Msg::Upsert(_))
    }

    /// Bytes of key-independent content, for accounting.
    pub fn len(&self) -> usize {
        match self {
            Msg::Put(value) => value.len(),
            Msg::Delete => 0,
            Msg::Upsert(ops) => ops.iter().map(|op| op.len() + 2).sum(),
        }
    }

    /// The value after this message, given the value before.
    pub fn resolve(&self, before: Value, merge: &dyn Merge) -> Value {
        match self {
            Msg::Put(value) => Some(value.clone()),
            Msg::Delete => None,
            Msg::Upsert(ops) => ops.iter().fold(before, |old, op| merge.apply(old.as_deref(), op)),
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
            (Msg::Upsert(newer), Msg::Upsert(mut ops)) => {
                for op in newer {
                    let both = ops.last().and_then(|last| merge.combine(last, &op));
                    match both {
                        Some(both) => {
                            ops.pop();
                            ops.push(both);
                        }
                        None => ops.push(op),
                    }
                }
                Msg::Upsert(ops)
            }
        }
    }

    pub(super) fn kind(&self) -> u8 {
        match self {
            Msg::Put(_) => 0,
            Msg::Delete => 1,
            Msg::Upsert(_) => 2,
        }
    }

    /// The encoded content: the value itself, or counted operations.
    pub(super) fn encode(&self) -> Bytes {
        match self {
            Msg::Put(value) => value.clone(),
            Msg::Delete => Bytes::new(),
            Msg::Upsert(ops) => {
                let mut out = BytesMut::with_capacity(self.len() + 8);
                for op in ops {
                    put_varint(&mut out, op.len() as u64);
                    out.put_slice(op);
                }
                out.freeze()
            }
        }
    }

    /// Reads what `encode` wrote. Pages are checked when loaded, so a malformed rest is dropped
    /// here only where [`Msg::is_valid`] was not asked.
    pub(super) fn decode(kind: u8, content: Bytes) -> Msg {
        match kind {
            0 => Msg::Put(content),
            1 => Msg::Delete,
            _ => {
                let mut ops = SmallVec::new();
                let mut rest = content;
                while let Some((len, width)) = peek_varint(&rest) {
                    let end = (width as u64).saturating_add(len).min(rest.len() as u64) as usize;
                    ops.push(rest.slice(width..end));
                    rest = rest.slice(end..);
                }
                Msg::Upsert(ops)
            }
        }
    }

    /// True if `content` is well-formed for `kind`.
    pub(super) fn is_valid(kind: u8, content: &[u8]) -> bool {
        match kind {
            0 => true,
            1 => content.is_empty(),
            2 => {
                let mut rest = content;
                while !rest.is_empty() {
                    let Some((len, width)) = peek_varint(rest) else { return false };
                    let Some(next) =
                        usize::try_from(len).ok().and_then(|len| rest.get(width.checked_add(len)?..))
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
