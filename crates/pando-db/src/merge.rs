//! Upserts: small mutations of a value that are stored as messages.
//!
//! An upsert is an opaque byte string `op`. A [`Merge`] says what it does to a
//! value. All methods MUST be pure functions of their arguments: they run at
//! any time, any number of times, in flushes, reads and recovery. A store that one of them makes panic while
//! it writes stops: what was synced is there when it is opened again.

use bytes::Bytes;

/// The meaning of upsert operations: for [`Options::merge`](crate::Options::merge), when a store is created and each
/// time it is opened.
///
/// ```
/// use std::sync::Arc;
/// use bytes::Bytes;
/// use pando_db::{CreateOptions, Db, Merge, Options, device::MemDevice};
///
/// /// Each operation adds a byte to a counter of one byte.
/// struct Add;
///
/// impl Merge for Add {
///     fn name(&self) -> &'static str {
///         "add"
///     }
///
///     fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
///         let number = |bytes: &[u8]| bytes.first().copied().unwrap_or(0);
///         Some(vec![old.map_or(0, number).wrapping_add(number(op))].into())
///     }
/// }
///
/// let options = Options::default().merge(Arc::new(Add));
/// let device = Arc::new(MemDevice::new(64 << 20));
/// Db::create(device.clone(), &CreateOptions::default(), &options)?;
/// let db = Db::open(device, options)?;
/// db.upsert("hits", vec![2])?;
/// db.upsert("hits", vec![3])?;
/// assert_eq!(db.get(b"hits")?.as_deref(), Some(&[5][..]));
/// # Ok::<(), pando_db::Error>(())
/// ```
pub trait Merge: Send + Sync + 'static {
    /// Name of this meaning. It is stored at creation and a store cannot be
    /// opened under another one. At most 32 bytes.
    fn name(&self) -> &'static str;
    /// The value after `op` is applied to `old` (`None`: no value). Returning `None` deletes.
    /// An `op` that this merge does not know leaves the value as it was. So does one whose result is longer
    /// than [`crate::MAX_MERGED`]: the engine drops that result.
    fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes>;
    /// The value after `ops` are applied in order: the same as [`Merge::apply`] one after the other, which is
    /// what this does unless it is overridden. Worth overriding where many small operations on a large value
    /// wait together, of which each would copy the value.
    fn apply_all(&self, old: Option<&[u8]>, ops: &[&[u8]]) -> Option<Bytes> {
        let Some((first, rest)) = ops.split_first() else { return old.map(Bytes::copy_from_slice) };
        rest.iter().fold(self.apply(old, first), |value, op| self.apply(value.as_deref(), op))
    }
    /// One operation equal to `first` followed by `second`, where that is shorter than keeping both. It
    /// must give the same for *every* value, and for none.
    fn combine(&self, first: &[u8], second: &[u8]) -> Option<Bytes> {
        let _ = (first, second);
        None
    }
    /// What `op` makes of every value, and of none, where that is the same: then it is stored like a put.
    fn constant(&self, op: &[u8]) -> Option<Bytes> {
        let _ = op;
        None
    }
    /// The same as [`Merge::combine`] for operations that came by [`crate::Batch::upsert_prefix`], which apply
    /// only to values that exist: for every value, the result must be what `first` and then `second` make of it,
    /// where `second` is left out if `first` has deleted the value. Nothing need be said of what it does
    /// without a value. Where `first` never deletes, [`Merge::combine`] is right here too.
    fn combine_present(&self, first: &[u8], second: &[u8]) -> Option<Bytes> {
        let _ = (first, second);
        None
    }
}

/// The built-in meaning: patches of a byte string. See [`patch`].
#[derive(Debug, Default, Clone, Copy)]
pub struct PatchMerge;

/// Operations that [`PatchMerge`] understands.
///
/// Encoding: a tag byte, then little-endian fields.
pub mod patch {
    use bytes::{BufMut, Bytes, BytesMut};

    /// Where a write may end at most, in bytes from the beginning of the value; one that goes further changes nothing.
    /// A value that is longer keeps what lies behind a write.
    pub const MAX_LEN: usize = 1 << 20;

    pub(crate) const WRITE: u8 = 1;
    pub(crate) const TRUNCATE: u8 = 2;

    /// Writes `data` at byte `offset`, zero-filling any gap; creates the value if absent.
    pub fn write(offset: u32, data: &[u8]) -> Bytes {
        let mut op = BytesMut::with_capacity(5 + data.len());
        op.put_u8(WRITE);
        op.put_u32_le(offset);
        op.put_slice(data);
        op.freeze()
    }

    /// Cuts the value to at most `len` bytes; an absent value stays absent.
    pub fn truncate(len: u32) -> Bytes {
        let mut op = BytesMut::with_capacity(5);
        op.put_u8(TRUNCATE);
        op.put_u32_le(len);
        op.freeze()
    }
}

impl Merge for PatchMerge {
    fn name(&self) -> &'static str {
        "patch"
    }

    fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
        let unchanged = || old.map(Bytes::copy_from_slice);
        let Some((&tag, rest)) = op.split_first() else { return unchanged() };
        let Some((number, data)) = rest.split_at_checked(4) else { return unchanged() };
        let Ok(number) = number.try_into().map(u32::from_le_bytes) else { return unchanged() };
        let number = number as usize;
        match tag {
            patch::WRITE if number.saturating_add(data.len()) <= patch::MAX_LEN => {
                let old = old.unwrap_or_default();
                let mut new = Vec::with_capacity(old.len().max(number + data.len()));
                new.extend_from_slice(&old[..old.len().min(number)]);
                new.resize(number, 0);
                new.extend_from_slice(data);
                if let Some(tail) = old.get(number + data.len()..) {
                    new.extend_from_slice(tail);
                }
                Some(new.into())
            }
            patch::TRUNCATE => old.map(|old| Bytes::copy_from_slice(&old[..old.len().min(number)])),
            _ => unchanged(),
        }
    }

    fn apply_all(&self, old: Option<&[u8]>, ops: &[&[u8]]) -> Option<Bytes> {
        let mut value = old.map(<[u8]>::to_vec);
        for op in ops {
            match PatchWrite::parse(op) {
                Some(write) => write.apply_to(value.get_or_insert_default()),
                None => value = self.apply(value.as_deref(), op).map(Vec::from),
            }
        }
        value.map(Bytes::from)
    }

    fn combine(&self, first: &[u8], second: &[u8]) -> Option<Bytes> {
        let (a, b) = (PatchWrite::parse(first)?, PatchWrite::parse(second)?);
        // Only a write that continues or overlaps the end of the first stays one contiguous write.
        let start = a.offset.min(b.offset);
        let touches = b.offset <= a.offset + a.data.len() && a.offset <= b.offset + b.data.len();
        if !touches {
            return None;
        }
        let end = (a.offset + a.data.len()).max(b.offset + b.data.len());
        let mut data = vec![0; end - start];
        data[a.offset - start..][..a.data.len()].copy_from_slice(a.data);
        data[b.offset - start..][..b.data.len()].copy_from_slice(b.data);
        Some(patch::write(u32::try_from(start).ok()?, &data))
    }

    fn combine_present(&self, first: &[u8], second: &[u8]) -> Option<Bytes> {
        // No patch deletes a value.
        self.combine(first, second).or_else(|| {
            let (a, b) = (truncation(first)?, truncation(second)?);
            Some(patch::truncate(a.min(b)))
        })
    }
}

/// The length that a truncation leaves at most.
fn truncation(op: &[u8]) -> Option<u32> {
    let (&tag, rest) = op.split_first()?;
    // What stands behind the number is not looked at by `apply` either.
    let len = u32::from_le_bytes(*rest.first_chunk()?);
    (tag == patch::TRUNCATE).then_some(len)
}

struct PatchWrite<'a> {
    offset: usize,
    data: &'a [u8],
}

impl<'a> PatchWrite<'a> {
    fn parse(op: &'a [u8]) -> Option<Self> {
        let (&tag, rest) = op.split_first()?;
        let (offset, data) = rest.split_at_checked(4)?;
        let offset = u32::from_le_bytes(offset.try_into().ok()?) as usize;
        (tag == patch::WRITE && offset.checked_add(data.len())? <= patch::MAX_LEN)
            .then_some(PatchWrite { offset, data })
    }

    fn apply_to(&self, value: &mut Vec<u8>) {
        let end = self.offset + self.data.len();
        if value.len() < end {
            value.resize(end, 0);
        }
        value[self.offset..end].copy_from_slice(self.data);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Operations are written behind the value, so that their order shows; "-" deletes.
    pub(crate) struct Text;

    impl Merge for Text {
        fn name(&self) -> &'static str {
            "text"
        }

        fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
            (op != b"-").then(|| [old.unwrap_or_default(), op].concat().into())
        }

        fn combine_present(&self, first: &[u8], second: &[u8]) -> Option<Bytes> {
            match (first, second) {
                (b"-", _) => Some(Bytes::from_static(b"-")),
                (_, b"-") => None,
                _ => Some([first, second].concat().into()),
            }
        }
    }

    #[test]
    fn a_write_fills_the_gap_with_zeros() {
        assert_eq!(PatchMerge.apply(None, &patch::write(2, b"ab")).as_deref(), Some(&b"\0\0ab"[..]));
        assert_eq!(
            PatchMerge.apply(Some(b"xyz123"), &patch::write(1, b"ab")).as_deref(),
            Some(&b"xab123"[..])
        );
    }

    #[test]
    fn truncate_cuts_and_never_creates() {
        assert_eq!(PatchMerge.apply(Some(b"xyz"), &patch::truncate(1)).as_deref(), Some(&b"x"[..]));
        assert_eq!(PatchMerge.apply(None, &patch::truncate(1)), None);
    }

    #[test]
    fn combined_writes_equal_their_sequence() {
        for (o1, o2) in [(0, 2), (2, 0), (1, 1), (0, 9)] {
            let (a, b) = (patch::write(o1, b"abcd"), patch::write(o2, b"XY"));
            let in_turn = PatchMerge.apply(PatchMerge.apply(Some(b"0123456789"), &a).as_deref(), &b);
            match PatchMerge.combine(&a, &b) {
                Some(both) => assert_eq!(PatchMerge.apply(Some(b"0123456789"), &both), in_turn),
                None => assert_eq!(o2, 9),
            }
        }
    }

    #[test]
    fn unknown_operations_change_nothing() {
        for op in [&b""[..], b"\x09", b"\x01\x01", b"\x01\xff\xff\xff\xffdata"] {
            assert_eq!(PatchMerge.apply(Some(b"v"), op).as_deref(), Some(&b"v"[..]));
        }
    }
}
