//! Calls on extended attributes: set, get, list, remove.
//!
//! Small attributes are stored in the record of their file, which is in memory, so that a query costs nothing; others
//! have keys of their own below the file's data prefix, which clones, renames and removals of trees carry along
//! (`attrs` has the bytes, `docs/decisions/extended-attributes.md` the reasons). Guarantees: each call is one batch;
//! the mode and the access list agree (`acl`); the limits are those of Linux.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use bytes::{BufMut, Bytes, BytesMut};
use pando_db::Batch;

use crate::{
    acl::{self, Acl},
    attrs::{self, Attrs, Bucket},
    error::{Error, Result, show},
    format::FEATURE_EXTENDED_ATTRIBUTES,
    inode::InodeRef,
    merge::{self, Change},
    mode::S_ISGID,
    path,
    place::{At, DirAt},
    record::Record,
    types::{Caller, FileKind, Ino},
    volume::Fs,
};

/// Flag bit of [`Fs::set_xattr`]: fail with EEXIST if the attribute exists.
pub const XATTR_CREATE: i32 = 1;
/// Flag bit of [`Fs::set_xattr`]: fail with ENODATA if the attribute does not exist.
pub const XATTR_REPLACE: i32 = 2;

/// Most bytes of attributes that share one key because the hashes of their names are the same.
const MAX_BUCKET_BYTES: usize = 256 << 10;

/// A namespace of attributes, which decides who may see them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Namespace {
    User,
    Trusted,
    Security,
    Access,
    Default,
}

fn namespace(name: &[u8]) -> Result<Namespace> {
    let beyond = |prefix: &[u8]| name.len() > prefix.len() && name.starts_with(prefix);
    Ok(match name {
        acl::ACCESS => Namespace::Access,
        acl::DEFAULT => Namespace::Default,
        _ if beyond(b"user.") => Namespace::User,
        _ if beyond(b"trusted.") => Namespace::Trusted,
        _ if beyond(b"security.") => Namespace::Security,
        b"user." | b"trusted." | b"security." => {
            return Err(Error::Invalid("a namespace is no name of an extended attribute".into()));
        }
        _ => return Err(Error::Unsupported("extended attributes outside of user, trusted and security")),
    })
}

/// Checks whether a name may be that of an attribute.
fn check(name: &OsStr) -> Result<(&[u8], Namespace)> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes.len() > attrs::MAX_ATTR_NAME_BYTES || bytes.contains(&0) {
        return Err(Error::AttributeName(show(name)));
    }
    Ok((bytes, namespace(bytes)?))
}

fn absent(name: &[u8]) -> Error {
    Error::NoAttribute(String::from_utf8_lossy(name).into_owned())
}

/// The prefix of the keys of attributes of an inode that is held.
fn prefix(inode: &InodeRef, at: &At) -> Bytes {
    match inode.kind {
        FileKind::Directory => path::data_of(&at.meta),
        _ => at.data.clone(),
    }
}

impl Fs {
    /// The attributes under one key.
    fn bucket(&self, prefix: &[u8], name: &[u8]) -> Result<(Bytes, Bucket)> {
        let key = path::block(prefix, attrs::key_number(name));
        let damaged = |detail| Error::Damaged { what: String::from_utf8_lossy(name).into_owned(), detail };
        let bucket = match self.db.get(&key)? {
            Some(value) => Bucket::decode(&value).map_err(damaged)?,
            None => Bucket::default(),
        };
        Ok((key, bucket))
    }

    /// The value of an attribute. No I/O if the record has it, or if there are no others.
    fn value(&self, inode: &InodeRef, name: &[u8]) -> Result<Option<Bytes>> {
        let in_record = |inode: &InodeRef| {
            inode.peek(|s| {
                let attrs = &s.record.attrs;
                if attrs.is_empty() {
                    return Ok(None);
                }
                let found = attrs.get(name).map(Bytes::copy_from_slice);
                if found.is_none() && s.record.has_outside() { Err(()) } else { Ok(found) }
            })
        };
        if let Ok(found) = in_record(inode) {
            return Ok(found);
        }
        let at = self.hold(inode, false)?;
        // The attribute may have changed before the lock was taken.
        match in_record(inode) {
            Ok(found) => Ok(found),
            Err(()) => Ok(self.bucket(&prefix(inode, &at), name)?.1.get(name).cloned()),
        }
    }

    /// Whether an extended attribute was ever set in this store. No I/O.
    pub fn has_attributes(&self) -> bool {
        self.has_feature(FEATURE_EXTENDED_ATTRIBUTES)
    }

    /// The value of an extended attribute; ENODATA if there is none.
    ///
    /// No I/O unless the file has attributes that are large, or many: then a point query at most.
    pub fn get_xattr(&self, c: &Caller, ino: Ino, name: &OsStr) -> Result<Bytes> {
        let inode = self.table.get(ino)?;
        let (name, namespace) = check(name)?;
        let hidden = match namespace {
            Namespace::Trusted => !c.has_trusted_attrs(),
            Namespace::User => !matches!(inode.kind, FileKind::Regular | FileKind::Directory),
            _ => false,
        };
        if hidden {
            return Err(absent(name));
        }
        let value = self.value(&inode, name)?.ok_or_else(|| absent(name))?;
        if namespace != Namespace::Access {
            return Ok(value);
        }
        let damaged = |detail| Error::Damaged { what: inode.label(), detail };
        let acl = Acl::decode(&value).map_err(damaged)?.ok_or_else(|| absent(name))?;
        Ok(acl.with_mode(inode.peek(|s| s.record.perm)).encode())
    }

    /// The names of all extended attributes that the caller may see, with a zero behind each, in no particular order.
    ///
    /// No I/O unless the file has attributes that are large, or many: then one scan of these.
    pub fn list_xattr(&self, c: &Caller, ino: Ino) -> Result<Bytes> {
        let inode = self.table.get(ino)?;
        let mut out = BytesMut::new();
        let mut add = |name: &[u8]| {
            if c.has_trusted_attrs() || !name.starts_with(b"trusted.") {
                out.put_slice(name);
                out.put_u8(0);
            }
        };
        if inode.peek(|s| s.record.attrs.is_empty()) {
            return Ok(Bytes::new());
        }
        let held = match inode.peek(|s| s.record.has_outside()) {
            true => Some(self.hold(&inode, false)?),
            false => None,
        };
        let attrs = inode.peek(|s| s.record.attrs.clone());
        attrs.inline().for_each(|(name, _)| add(name));
        if let Some(at) = held {
            let data = prefix(&inode, &at);
            let mut pairs = self
                .db
                .range(&path::block(&data, path::ATTRS_BEGIN), Some(&path::block(&data, path::ATTRS_END)));
            drop(at); // the cursor has its own view
            while let Some((_, value)) = pairs.next_ref()? {
                let damaged = |detail| Error::Damaged { what: inode.label(), detail };
                let bucket = Bucket::decode(&Bytes::copy_from_slice(value)).map_err(damaged)?;
                bucket.attrs.iter().for_each(|(name, _)| add(name));
            }
        }
        Ok(out.freeze())
    }

    /// Adds to a batch that the attribute `name` of an entry with these attributes has a value, or none, and gives what
    /// its record has then and whether it had the attribute. `prefix` is the entry's data prefix. Reads nothing unless
    /// the entry has attributes outside of its record.
    pub(crate) fn put_attr(
        &self,
        batch: &mut Batch,
        attrs: &Attrs,
        prefix: &[u8],
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(Attrs, bool)> {
        let in_record = attrs.get(name).is_some();
        let (count, bytes) = attrs.outside();
        let mut outside = match !in_record && count > 0 {
            true => Some(self.bucket(prefix, name)?),
            false => None,
        };
        let was_outside = outside.as_mut().is_some_and(|(_, bucket)| bucket.remove(name));
        let mut new = if in_record { attrs.without(name) } else { attrs.clone() };
        let listed = name.len() as u32 + 1;
        let mut counts = match was_outside {
            true => (count.saturating_sub(1), bytes.saturating_sub(listed)),
            false => (count, bytes),
        };
        let mut write = was_outside;
        if let Some(value) = value {
            if new.fits(name, value) {
                new = new.with(name, value);
            } else {
                let fresh = || (path::block(prefix, attrs::key_number(name)), Bucket::default());
                let (_, bucket) = match &mut outside {
                    Some(outside) => outside,
                    // If no attribute is outside, nothing has to be read.
                    None if count == 0 => outside.insert(fresh()),
                    None => outside.insert(self.bucket(prefix, name)?),
                };
                if bucket.len() + name.len() + value.len() > MAX_BUCKET_BYTES {
                    return Err(Error::TooManyAttributes(String::from_utf8_lossy(name).into_owned()));
                }
                bucket.attrs.push((Bytes::copy_from_slice(name), Bytes::copy_from_slice(value)));
                counts = (counts.0 + 1, counts.1 + listed);
                write = true;
            }
        }
        if let (true, Some((key, bucket))) = (write, outside) {
            match bucket.encode() {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            };
        }
        if counts != (count, bytes) {
            new = new.with_outside(counts);
        }
        if new.list_bytes() > attrs::MAX_LIST_BYTES {
            return Err(Error::TooManyAttributes(String::from_utf8_lossy(name).into_owned()));
        }
        Ok((new, in_record || was_outside))
    }

    /// Sets an extended attribute, in one batch. `flags` is 0, [`XATTR_CREATE`] or [`XATTR_REPLACE`]. Of the
    /// permissions only one is checked: whether the caller may have `trusted.` ([`Caller::trusted_attrs`]).
    ///
    /// Setting an access list sets the mode of the file; a list that says no more than a mode is not stored.
    ///
    /// Errors besides those of any change: EOPNOTSUPP for other namespaces than `user.`, `trusted.`, `security.` and
    /// those of access lists; EPERM for `user.` of what is neither file nor directory; ERANGE for a name and E2BIG for
    /// a value that is too long; ENOSPC if all names of the file would be more than 64 KiB.
    pub fn set_xattr(&self, c: &Caller, ino: Ino, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
        self.writable()?;
        let inode = self.table.get(ino)?;
        let (name, namespace) = check(name)?;
        if flags & !(XATTR_CREATE | XATTR_REPLACE) != 0 {
            return Err(Error::Invalid(format!("flags {flags:#x} for an extended attribute")));
        }
        let limit =
            if name == attrs::CAPABILITY { attrs::MAX_CAPABILITY_BYTES } else { attrs::MAX_VALUE_BYTES };
        if value.len() > limit {
            return Err(Error::AttributeValue(String::from_utf8_lossy(name).into_owned()));
        }
        may_have(c, &inode, name, namespace)?;
        let mut value = Some(value);
        let mut mode = None;
        if matches!(namespace, Namespace::Access | Namespace::Default) {
            let acl = Acl::decode(value.unwrap_or_default()).map_err(|e| Error::Invalid(e.into()))?;
            match (&acl, namespace) {
                (None, _) => value = None,
                (Some(acl), Namespace::Access) => {
                    mode = Some(acl.mode());
                    value = value.filter(|_| !acl.is_mode());
                }
                _ => {}
            }
        }
        self.change_attr(c, &inode, name, (value, mode), flags)
    }

    /// Removes an extended attribute; ENODATA if there is none. An access list that does not exist is removed with
    /// success, as elsewhere; the mode stays.
    pub fn remove_xattr(&self, c: &Caller, ino: Ino, name: &OsStr) -> Result<()> {
        self.writable()?;
        let inode = self.table.get(ino)?;
        let (name, namespace) = check(name)?;
        if matches!(namespace, Namespace::Access | Namespace::Default) {
            return self.change_attr(c, &inode, name, (None, None), 0);
        }
        may_have(c, &inode, name, namespace)?;
        self.change_attr(c, &inode, name, (None, None), XATTR_REPLACE)
    }

    /// Sets or removes an attribute and, for an access list, permission bits.
    fn change_attr(
        &self,
        c: &Caller,
        inode: &InodeRef,
        name: &[u8],
        (value, mode): (Option<&[u8]>, Option<u16>),
        flags: i32,
    ) -> Result<()> {
        if value.is_some() {
            self.need_feature(FEATURE_EXTENDED_ATTRIBUTES)?;
        }
        let at = self.hold(inode, true).inspect_err(|e| self.came_late(inode, e))?;
        let (attrs, perm, gid) = inode.peek(|s| (s.record.attrs.clone(), s.record.perm, s.record.gid));
        let mut batch = Batch::new();
        let (new, existed) = self.put_attr(&mut batch, &attrs, &prefix(inode, &at), name, value)?;
        if existed && flags & XATTR_CREATE != 0 {
            return Err(Error::Exists(String::from_utf8_lossy(name).into_owned()));
        }
        if !existed && flags & XATTR_REPLACE != 0 {
            return Err(absent(name));
        }
        if !existed && value.is_none() && mode.is_none() {
            return Ok(());
        }
        let mut change = Change { ctime: Some(self.now()), ..Change::default() };
        if let Some(mode) = mode {
            let mut kept = perm & !0o777;
            if !c.keeps_group_bit.unwrap_or_else(|| c.keeps_set_id() || c.in_group(gid)) {
                kept &= !S_ISGID;
            }
            change.perm = Some(kept | mode);
        }
        inode.peek(|s| s.save_atime(&mut change));
        if value.is_none() && mode.is_none() {
            batch.shrinks();
        }
        if new != attrs {
            batch.upsert(at.meta.clone(), merge::set_attrs(&new));
        }
        batch.upsert(at.meta.clone(), change.encode());
        self.db.write(batch)?;
        inode.change(|s| {
            s.record.attrs = new;
            s.apply(&change);
        });
        Ok(())
    }

    /// Gives `record`, of what is made in the directory `at` and has the data prefix `own`, the access lists that it
    /// inherits, and the mode. Adds what does not fit the record to the batch. Whether the directory has a default
    /// list; if not, the umask of the maker counts. The caller holds `names` of the directory.
    pub(crate) fn inherit(
        &self,
        batch: &mut Batch,
        at: &DirAt,
        own: &[u8],
        record: &mut Record,
    ) -> Result<bool> {
        let attrs = at.dir.peek(|s| s.record.attrs.clone());
        if attrs.is_empty() || record.kind == FileKind::Symlink {
            return Ok(false);
        }
        let default = match attrs.get(acl::DEFAULT) {
            Some(value) => Some(Bytes::copy_from_slice(value)),
            None if attrs.outside().0 == 0 => None,
            None => self.bucket(&path::data(&at.entry), acl::DEFAULT)?.1.get(acl::DEFAULT).cloned(),
        };
        let Some(default) = default else { return Ok(false) };
        let damaged = |detail| Error::Damaged { what: at.dir.label(), detail };
        let Some(acl) = Acl::decode(&default).map_err(damaged)? else { return Ok(false) };
        let (access, bits) = acl.inherited(record.perm);
        record.perm = record.perm & !0o777 | bits;
        let mut give = |name: &[u8], value: &[u8]| -> Result<()> {
            record.attrs = self.put_attr(batch, &record.attrs, own, name, Some(value))?.0;
            Ok(())
        };
        if !access.is_mode() {
            give(acl::ACCESS, &access.encode())?;
        }
        if record.kind == FileKind::Directory {
            give(acl::DEFAULT, &default)?;
        }
        Ok(true)
    }
}

/// Whether the caller may set such an attribute of such an inode, as far as the kernel does not check that.
fn may_have(c: &Caller, inode: &InodeRef, name: &[u8], namespace: Namespace) -> Result<()> {
    let refused = |why| Err(Error::NotPermitted { name: String::from_utf8_lossy(name).into_owned(), why });
    match namespace {
        Namespace::User if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) => {
            refused("only files and directories have attributes of users")
        }
        Namespace::Trusted if !c.has_trusted_attrs() => refused("only root may change trusted attributes"),
        Namespace::Access | Namespace::Default if inode.kind == FileKind::Symlink => {
            Err(Error::Unsupported("access lists of symbolic links"))
        }
        Namespace::Default if inode.kind != FileKind::Directory => Err(Error::Access(inode.label())),
        _ => Ok(()),
    }
}
