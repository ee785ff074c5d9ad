//! The encoding of extended attributes: of those that are stored in a record, and of those that have keys of their own.
//!
//! A record holds small attributes itself ([`Attrs`]): count of the others (u32), bytes of their names with a zero
//! behind each (u32), then each attribute: length of its name (u8), length of its value (u16), name, value.
//! The others have one key each under the data prefix of their file ([`key_number`]): a [`Bucket`], which is a list of
//! attributes whose names have the same hash: length of the name (u8), length of the value (u32), name, value.
//!
//! Pure functions, little-endian. Decoding never panics and refuses what this version did not write.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::path;

/// Longest value of an attribute, bytes.
pub(crate) const MAX_VALUE_BYTES: usize = 64 << 10;
/// Longest name of an attribute, with its namespace, bytes.
pub(crate) const MAX_ATTR_NAME_BYTES: usize = 255;
/// Longest list of the names of a file, each with a zero behind it, bytes.
pub(crate) const MAX_LIST_BYTES: usize = 64 << 10;
/// Longest value that may be stored in a record, bytes.
const MAX_INLINE_BYTES: usize = 1 << 10;
/// Most bytes of attributes in a record, an added one included; attributes of the system have more room, bytes.
const INLINE_BYTES: usize = 2 << 10;
const INLINE_SYSTEM_BYTES: usize = 4 << 10;
/// Most bytes of attributes in any record: a capability always fits in, besides.
const MOST_BYTES: usize = INLINE_SYSTEM_BYTES + EACH_BYTES + CAPABILITY.len() + MAX_CAPABILITY_BYTES;
/// Bytes of the counts that come first, and of what comes before each attribute.
const COUNTS_BYTES: usize = 8;
const EACH_BYTES: usize = 3;

/// The capabilities of a program. This attribute is always in the record: a write removes it, and need not read
/// another key to find out that there is none.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
/// Longest value of capabilities, bytes: those that the kernel makes have at most 24.
pub(crate) const MAX_CAPABILITY_BYTES: usize = 256;

/// The extended attributes of a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Attrs(Bytes);

impl Attrs {
    /// The attributes in `bytes`, which may be none at all; the error says what is wrong with them.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        const CUT_ATTRS: &str = "cut extended attributes";
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        // Attributes that decode can always be encoded again, with a capability added.
        if bytes.len() > MOST_BYTES {
            return Err("more extended attributes than a record holds");
        }
        let mut rest = bytes.get(COUNTS_BYTES..).ok_or(CUT_ATTRS)?;
        while !rest.is_empty() {
            let (name, value) =
                (rest.try_get_u8().map_err(|_| CUT_ATTRS)?, rest.try_get_u16_le().map_err(|_| CUT_ATTRS)?);
            if name == 0 {
                return Err("extended attribute without a name");
            }
            if usize::from(value) > MAX_INLINE_BYTES {
                return Err("extended attribute longer than one in a record");
            }
            let len = usize::from(name) + usize::from(value);
            rest = rest.get(len..).ok_or(CUT_ATTRS)?;
        }
        Ok(Self(Bytes::copy_from_slice(bytes)))
    }

    /// The bytes; none if there is no attribute.
    pub(crate) fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// True if the file has no attribute at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many attributes have keys of their own, and the bytes of their names with a zero behind each.
    pub(crate) fn outside(&self) -> (u32, u32) {
        let mut head = self.0.get(..COUNTS_BYTES).unwrap_or(&[0; COUNTS_BYTES]);
        (head.get_u32_le(), head.get_u32_le())
    }

    /// Names and values in the record.
    pub(crate) fn inline(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = self.0.get(COUNTS_BYTES..).unwrap_or_default();
        std::iter::from_fn(move || {
            let (&name, tail) = rest.split_first()?;
            let (value, tail) = tail.split_at_checked(2)?;
            let value = u16::from_le_bytes(value.try_into().ok()?);
            let (name, tail) = tail.split_at_checked(name.into())?;
            let (value, tail) = tail.split_at_checked(value.into())?;
            rest = tail;
            Some((name, value))
        })
    }

    /// The value of an attribute in the record.
    pub(crate) fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.inline().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Bytes of all names, with a zero behind each.
    pub(crate) fn list_bytes(&self) -> usize {
        self.inline().map(|(name, _)| name.len() + 1).sum::<usize>() + self.outside().1 as usize
    }

    fn encode<'a>(
        (count, bytes): (u32, u32),
        inline: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        room: usize,
    ) -> Self {
        let mut out = BytesMut::with_capacity(room);
        out.put_u32_le(count);
        out.put_u32_le(bytes);
        for (name, value) in inline {
            assert!(
                name.len() <= MAX_ATTR_NAME_BYTES && value.len() <= MAX_INLINE_BYTES,
                "checked by `fits`"
            );
            out.put_u8(name.len() as u8);
            out.put_u16_le(value.len() as u16);
            out.put_slice(name);
            out.put_slice(value);
        }
        if count == 0 && out.len() == COUNTS_BYTES {
            return Self::default();
        }
        Self(out.freeze())
    }

    /// These attributes without `name` in the record.
    pub(crate) fn without(&self, name: &[u8]) -> Self {
        Self::encode(self.outside(), self.inline().filter(|(n, _)| *n != name), self.0.len())
    }

    /// These attributes with `name` in the record, which must fit.
    pub(crate) fn with(&self, name: &[u8], value: &[u8]) -> Self {
        let others = self.inline().filter(|(n, _)| *n != name);
        let room = self.0.len().max(COUNTS_BYTES) + EACH_BYTES + name.len() + value.len();
        Self::encode(self.outside(), others.chain([(name, value)]), room)
    }

    /// These attributes with other counts of those outside the record.
    pub(crate) fn with_outside(&self, outside: (u32, u32)) -> Self {
        Self::encode(outside, self.inline(), self.0.len().max(COUNTS_BYTES))
    }

    /// Whether an attribute that is not in the record is to be put there.
    pub(crate) fn fits(&self, name: &[u8], value: &[u8]) -> bool {
        let most = match name {
            CAPABILITY => return value.len() <= MAX_CAPABILITY_BYTES,
            _ if name.starts_with(b"system.") || name.starts_with(b"security.") => INLINE_SYSTEM_BYTES,
            _ => INLINE_BYTES,
        };
        value.len() <= MAX_INLINE_BYTES && self.0.len() + EACH_BYTES + name.len() + value.len() <= most
    }
}

/// The number that ends the key of the attribute `name`, where a block has its number.
pub(crate) fn key_number(name: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in name {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    // Spreads the last bytes over all bits.
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash = (hash ^ hash >> 33).wrapping_mul(factor);
    }
    path::ATTRS_BEGIN | (hash ^ hash >> 33) >> 8
}

/// Attributes under one key.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub attrs: Vec<(Bytes, Bytes)>,
}

impl Bucket {
    /// The bucket in the value of a key.
    pub(crate) fn decode(value: &Bytes) -> Result<Self, &'static str> {
        const CUT_ATTR: &str = "cut extended attribute";
        let mut rest = value.clone();
        let mut attrs = Vec::new();
        while !rest.is_empty() {
            let name = usize::from(rest.try_get_u8().map_err(|_| CUT_ATTR)?);
            let value = rest.try_get_u32_le().map_err(|_| CUT_ATTR)? as usize;
            if name == 0 || name.saturating_add(value) > rest.len() {
                return Err(CUT_ATTR);
            }
            if value > MAX_VALUE_BYTES {
                return Err("extended attribute longer than any");
            }
            let name = rest.split_to(name);
            attrs.push((name, rest.split_to(value)));
        }
        Ok(Self { attrs })
    }

    /// The value of a key; `None` if nothing is left.
    pub(crate) fn encode(&self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        for (name, value) in &self.attrs {
            assert!(
                name.len() <= MAX_ATTR_NAME_BYTES && value.len() <= MAX_VALUE_BYTES,
                "checked before it is set"
            );
            out.put_u8(name.len() as u8);
            out.put_u32_le(value.len() as u32);
            out.put_slice(name);
            out.put_slice(value);
        }
        (!out.is_empty()).then(|| out.freeze())
    }

    /// Bytes of all values and names.
    pub(crate) fn len(&self) -> usize {
        self.attrs.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    pub(crate) fn get(&self, name: &[u8]) -> Option<&Bytes> {
        self.attrs.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Removes an attribute. Returns whether it was there.
    pub(crate) fn remove(&mut self, name: &[u8]) -> bool {
        let before = self.attrs.len();
        self.attrs.retain(|(n, _)| *n != name);
        self.attrs.len() != before
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn attributes_in_a_record_are_set_replaced_and_removed() {
        let none = Attrs::default();
        let one = none.with(b"user.a", b"1");
        let two = one.with(b"user.b", b"").with_outside((3, 40));
        assert_eq!(two.inline().collect::<Vec<_>>(), [(&b"user.a"[..], &b"1"[..]), (b"user.b", b"")]);
        assert_eq!((two.outside(), two.list_bytes()), ((3, 40), 54));
        assert_eq!(Attrs::decode(two.bytes()).unwrap(), two);
        let replaced = two.with(b"user.a", b"22");
        assert_eq!((replaced.get(b"user.a"), replaced.get(b"user.c")), (Some(&b"22"[..]), None));
        let left = replaced.without(b"user.a").without(b"user.b");
        assert!(!left.is_empty(), "some are outside");
        assert_eq!(left.with_outside((0, 0)), none);
        assert!(none.bytes().is_empty() && none.fits(b"user.x", &[0; 1024]));
        assert!(!none.fits(b"user.x", &[0; 1025]) && !none.fits(CAPABILITY, &[0; 257]));
    }

    #[test]
    fn damaged_bytes_are_errors_never_panics() {
        let good = Attrs::default().with(b"user.name", b"value").with(b"user.b", b"x");
        let mut errors = 0;
        for cut in 1..good.bytes().len() {
            errors += u32::from(Attrs::decode(&good.bytes()[..cut]).is_err());
        }
        assert!(errors > 20, "{errors}");
        let mut nameless = good.bytes().to_vec();
        nameless[8] = 0;
        assert!(Attrs::decode(&nameless).is_err());
        let bucket = Bucket { attrs: vec![(Bytes::from_static(b"user.n"), Bytes::from_static(b"v"))] };
        let bytes = bucket.encode().unwrap();
        assert_eq!(Bucket::decode(&bytes).unwrap(), bucket);
        for cut in 1..bytes.len() {
            assert!(Bucket::decode(&bytes.slice(..cut)).is_err());
        }
    }

    #[test]
    fn numbers_of_keys_lie_behind_those_of_maps() {
        for name in [&b"user.a"[..], b"user.b", b"security.selinux", b""] {
            assert_eq!(key_number(name) >> 56, path::ATTRS_BEGIN >> 56);
        }
        assert_ne!(key_number(b"user.a"), key_number(b"user.b"));
    }
}
