//! POSIX access control lists, as the kernel passes them in `system.posix_acl_access` and `..._default`.
//!
//! The attribute is stored as it was set, but the bits of its entries for the owner, the mask and others are those of
//! the file's mode: they are filled in when the list is read ([`Acl::with_mode`]). So `chmod` of one file, or of a
//! whole tree, changes the list without writing it.
//!
//! Bytes: version 2 (u32), then 8 bytes an entry: tag and permissions (u16 each), id (u32), little-endian; in the order
//! of the tags and of the ids. Pure functions.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Names of the attributes.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Version of the encoding.
const ACL_VERSION: u32 = 2;
/// Bytes of the version, and of an entry.
const ACL_HEAD_BYTES: usize = 4;
const ACL_ENTRY_BYTES: usize = 8;

/// Tags of entries, which the kernel has chosen.
mod tag {
    /// Number of the entry of the owner.
    pub const USER_OBJ: u16 = 1;
    /// Number of the entry of another user.
    pub const USER: u16 = 2;
    /// Number of the entry of the file's group.
    pub const GROUP_OBJ: u16 = 4;
    /// Number of the entry of another group.
    pub const GROUP: u16 = 8;
    /// Number of the entry that limits all but the owner and the others.
    pub const MASK: u16 = 16;
    /// Number of the entry of everybody else.
    pub const OTHER: u16 = 32;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// The list in the value of an attribute; `Ok(None)` if that has no entries. EINVAL is for what is no list.
    pub(crate) fn decode(mut value: &[u8]) -> Result<Option<Self>, &'static str> {
        if value.is_empty() {
            return Ok(None);
        }
        if value.len() < ACL_HEAD_BYTES || !(value.len() - ACL_HEAD_BYTES).is_multiple_of(ACL_ENTRY_BYTES) {
            return Err("access control list of an impossible length");
        }
        if value.get_u32_le() != ACL_VERSION {
            return Err("access control list of an unknown version");
        }
        let mut entries: Vec<Entry> = Vec::new();
        while value.len() >= ACL_ENTRY_BYTES {
            entries.push(Entry { tag: value.get_u16_le(), perm: value.get_u16_le(), id: value.get_u32_le() });
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self(entries);
        if acl.is_valid() { Ok(Some(acl)) } else { Err("access control list that is not in order") }
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|e| e.tag == tag).count();
        let named = count(tag::USER) + count(tag::GROUP);
        let order = |e: &Entry| (e.tag, if matches!(e.tag, tag::USER | tag::GROUP) { e.id } else { 0 });
        let tags = [tag::USER_OBJ, tag::USER, tag::GROUP_OBJ, tag::GROUP, tag::MASK, tag::OTHER];
        self.0.iter().all(|e| tags.contains(&e.tag) && e.perm <= 7)
            && self.0.windows(2).all(|pair| matches!(pair, [a, b] if order(a) < order(b)))
            && [tag::USER_OBJ, tag::GROUP_OBJ, tag::OTHER].iter().all(|tag| count(*tag) == 1)
            && (named == 0 || count(tag::MASK) == 1)
            && count(tag::MASK) <= 1
    }

    /// The value of an attribute.
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(ACL_HEAD_BYTES + ACL_ENTRY_BYTES * self.0.len());
        out.put_u32_le(ACL_VERSION);
        for e in &self.0 {
            out.put_u16_le(e.tag);
            out.put_u16_le(e.perm);
            out.put_u32_le(e.id);
        }
        out.freeze()
    }

    fn perm(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    fn set(&mut self, tag: u16, perm: u16) {
        self.0.iter_mut().filter(|e| e.tag == tag).for_each(|e| e.perm = perm);
    }

    /// The tag whose bits are those of the group in the mode.
    fn group_class(&self) -> u16 {
        if self.perm(tag::MASK).is_some() { tag::MASK } else { tag::GROUP_OBJ }
    }

    /// The permission bits (0777) of a mode that are closest to the list.
    pub(crate) fn mode(&self) -> u16 {
        let bits = |tag| self.perm(tag).unwrap_or(0);
        bits(tag::USER_OBJ) << 6 | bits(self.group_class()) << 3 | bits(tag::OTHER)
    }

    /// True if the list says no more than a mode does.
    pub(crate) fn is_mode(&self) -> bool {
        self.0.iter().all(|e| matches!(e.tag, tag::USER_OBJ | tag::GROUP_OBJ | tag::OTHER))
    }

    /// The list with the permission bits of `mode` filled in.
    pub(crate) fn with_mode(mut self, mode: u16) -> Self {
        self.set(tag::USER_OBJ, mode >> 6 & 7);
        self.set(self.group_class(), mode >> 3 & 7);
        self.set(tag::OTHER, mode & 7);
        self
    }

    /// The list and the permission bits (0777) of a new file that is made with `mode` in a directory with this
    /// default list.
    pub(crate) fn inherited(&self, mode: u16) -> (Self, u16) {
        let bits = self.mode() & mode & 0o777;
        (self.clone().with_mode(bits), bits)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = ACL_VERSION.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            out.extend(tag.to_le_bytes());
            out.extend(perm.to_le_bytes());
            out.extend(id.to_le_bytes());
        }
        out
    }

    const NO: u32 = u32::MAX;

    #[test]
    fn lists_are_valid_in_order_and_complete_only() {
        let minimal = [(1, 6, NO), (4, 4, NO), (32, 0, NO)];
        let list = Acl::decode(&acl(&minimal)).unwrap().unwrap();
        assert!(list.is_mode());
        assert_eq!((list.mode(), &list.encode()[..]), (0o640, &acl(&minimal)[..]));
        assert_eq!(Acl::decode(b"").unwrap(), None);
        assert_eq!(Acl::decode(&acl(&[])).unwrap(), None);
        for bad in [
            &[(1, 6, NO), (4, 4, NO)][..],
            &[(1, 6, NO), (2, 7, 5), (4, 4, NO), (32, 0, NO)],
            &[(1, 6, NO), (2, 7, 5), (2, 7, 5), (4, 4, NO), (16, 7, NO), (32, 0, NO)],
            &[(4, 4, NO), (1, 6, NO), (32, 0, NO)],
            &[(1, 8, NO), (4, 4, NO), (32, 0, NO)],
            &[(1, 6, NO), (4, 4, NO), (32, 0, NO), (64, 0, NO)],
        ] {
            assert!(Acl::decode(&acl(bad)).is_err(), "{bad:?}");
        }
        assert!(Acl::decode(&acl(&minimal)[..27]).is_err());
        assert!(Acl::decode(&[3, 0, 0, 0]).is_err());
    }

    #[test]
    fn a_mode_changes_the_mask_and_not_the_group() {
        let list = Acl::decode(&acl(&[(1, 7, NO), (2, 7, 5), (4, 5, NO), (16, 7, NO), (32, 1, NO)]))
            .unwrap()
            .unwrap();
        assert!(!list.is_mode());
        assert_eq!(list.mode(), 0o771);
        let changed = list.clone().with_mode(0o640);
        assert_eq!(changed.mode(), 0o640);
        assert_eq!(changed.perm(tag::GROUP_OBJ), Some(5));
        let (inherited, bits) = list.inherited(0o666);
        assert_eq!((bits, inherited.perm(tag::MASK), inherited.perm(tag::USER)), (0o660, Some(6), Some(7)));
    }
}
