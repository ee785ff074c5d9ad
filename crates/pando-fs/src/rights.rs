//! Permission checks for calls on whole trees: who may clone, replace and remove them, and see their usage.
//!
//! To clone, the caller must own the source or be root, and may write to the directory of the destination. To replace
//! or remove an entry, the caller must be allowed to write to its directory, with the rule of the sticky bit. A tree
//! is removed without a check of each file, so every directory in it that is not empty must belong to the caller,
//! unless that is root. (An owner of all directories could change their modes and then remove the entries one by
//! one.)
//!
//! The rights come from a [`Caller`] whose user and groups are known, or from what the kernel has verified:
//! [`VerifiedRights`]. Guarantee: a check of a tree stays true until the tree is removed, if its lock `tree` is held
//! exclusively.

use pando_db::Snapshot;

use crate::{
    acl, attrs,
    error::{Error, Result},
    inode::Inode,
    key_text,
    mode::S_ISVTX,
    path,
    record::{Record, Stored},
    types::{Caller, FileKind, Ino, VerifiedRights},
    volume::Fs,
};

/// Permission bits of one class: write and search.
const WRITE_AND_SEARCH: u16 = 0o3;
/// Permission bits of one class: read and search.
const READ_AND_SEARCH: u16 = 0o5;
/// Permission bit of one class: read.
const READ_BIT: u16 = 0o4;

/// Where the rights of a call come from.
#[derive(Clone, Copy)]
pub(crate) enum Rights<'a> {
    /// Worked out here.
    Of(&'a Caller),
    /// Seen by the kernel.
    Verified(&'a VerifiedRights),
}

fn refused(name: String, why: &'static str) -> Error {
    Error::NotPermitted { name, why }
}

impl Rights<'_> {
    pub(crate) fn uid(self) -> u32 {
        match self {
            Rights::Of(c) => c.uid,
            Rights::Verified(s) => s.uid,
        }
    }

    pub(crate) fn all(self) -> bool {
        match self {
            Rights::Of(c) => c.is_root(),
            Rights::Verified(s) => s.root,
        }
    }

    /// Error unless the tree at `source` may be cloned.
    pub(crate) fn may_clone(self, source: &Inode) -> Result<()> {
        let owner = source.peek(|s| s.record.uid) == self.uid();
        let shown = matches!(self, Rights::Verified(s) if s.owns_source);
        match owner || shown || self.all() {
            true => Ok(()),
            false => Err(refused(source.label(), "only its owner, or root, may clone it")),
        }
    }

    /// Error unless entries may be made in `dir`.
    pub(crate) fn may_add(self, dir: &Inode) -> Result<()> {
        let may = match self {
            Rights::Of(c) => {
                let (perm, uid, gid) = dir.peek(|s| (s.record.perm, s.record.uid, s.record.gid));
                let shift = if c.uid == uid {
                    6
                } else if c.in_group(gid) {
                    3
                } else {
                    0
                };
                c.is_root() || perm >> shift & WRITE_AND_SEARCH == WRITE_AND_SEARCH
            }
            Rights::Verified(s) => s.adds_to == Some(dir.ino),
        };
        if may { Ok(()) } else { Err(Error::Access(dir.label())) }
    }

    /// Error unless the entry of `top` may be taken out of `dir`.
    pub(crate) fn may_remove(self, dir: &Inode, top: &Inode) -> Result<()> {
        match self {
            Rights::Verified(s) if s.removes == Some(top.ino) => Ok(()),
            Rights::Verified(VerifiedRights { removes: Some(_), .. }) => Err(Error::Stale(top.ino)),
            Rights::Verified(_) => Err(Error::Access(dir.label())),
            Rights::Of(c) => {
                self.may_add(dir)?;
                let (perm, dir_owner) = dir.peek(|s| (s.record.perm, s.record.uid));
                let owner = top.peek(|s| s.record.uid);
                if perm & S_ISVTX != 0 && !Fs::owns(c, owner) && !Fs::owns(c, dir_owner) {
                    let why = "its directory has the sticky bit and both belong to others";
                    return Err(refused(top.label(), why));
                }
                Ok(())
            }
        }
    }
}

impl Fs {
    /// Error unless the caller may remove everything in the directory `top`. `contents` is its contents prefix; the
    /// caller holds `tree` of it exclusively. One scan of the records in it, unless for root.
    pub(crate) fn may_empty(&self, rights: Rights<'_>, top: &Inode, contents: &[u8]) -> Result<()> {
        const WHY: &str = "holds entries and belongs to another user: only root, or who owns every directory \
                           in a tree, may remove it as a whole; the rm -r of the system removes one by one";
        if rights.all() || top.kind != FileKind::Directory {
            return Ok(());
        }
        let uid = rights.uid();
        if top.peek(|s| s.record.uid) != uid && !self.is_empty(contents)? {
            return Err(refused(top.label(), WHY));
        }
        directories_in(&self.db.snapshot(), contents, |inside, record| {
            if record.uid != uid {
                let below = path::contents_of(contents, inside).unwrap_or_default();
                if !self.is_empty(&below)? {
                    return Err(refused(top.label() + &key_text::describe_path(inside), WHY));
                }
            }
            Ok(())
        })
    }

    /// Fails unless `c` may list and search every directory below `ino`; `ino` itself must have been checked. If this
    /// depends on a group of which it is unknown whether `c` is in it, it fails. One scan of the records below.
    pub fn may_see_all(&self, c: &Caller, ino: Ino) -> Result<()> {
        let inode = self.table.get(ino)?;
        if inode.kind != FileKind::Directory {
            return Ok(());
        }
        // The tree of one moment, at the place where it is then.
        let (contents, view) = {
            let at = self.hold_dir(&inode)?;
            (at.contents.clone(), self.db.snapshot())
        };
        let may = |inside: &[u8], record: &Record| {
            may_list(c, (&view, &path::data(&[&contents[..], inside].concat()), record))
        };
        directories_in(&view, &contents, |inside, record| match may(inside, record) {
            true => Ok(()),
            false => {
                let name = inode.label() + &key_text::describe_path(inside);
                Err(refused(name, "is a directory that you may not look into; ask for those beside it"))
            }
        })
    }

    /// True if `ino` is in memory and is `top` or lies below it; or perhaps does so, as a file that has several names.
    pub fn lies_in(&self, ino: Ino, top: Ino) -> bool {
        let Some(inode) = self.table.find(ino) else { return false };
        if inode.ancestry().is_ok_and(|up| up.iter().any(|i| i.ino == top)) {
            return true;
        }
        // Any directory below the root of its lineage may hold a name of it.
        let top = self.table.find(top).and_then(|top| top.ancestry().ok());
        let root = inode.linked().map(|(root, _)| root.ino);
        top.is_some_and(|up| up.iter().any(|i| Some(i.ino) == root))
    }
}

/// Whether something with this record and data prefix has an access list. A long one has a key of its own: a point
/// query, if there are such attributes. What cannot be read may be one.
fn has_access_list(view: &Snapshot, data: &[u8], r: &Record) -> bool {
    let key = || path::block(data, attrs::key_number(acl::ACCESS));
    r.attrs.get(acl::ACCESS).is_some() || r.has_outside() && !matches!(view.get(&key()), Ok(None))
}

/// Whether the caller has permission bits `r` whichever groups it is in. Entries of an access list other than the
/// owner's are not considered.
fn surely_has(c: &Caller, (view, data, r): (&Snapshot, &[u8], &Record), bits: u16) -> bool {
    if c.uid != r.uid && has_access_list(view, data, r) {
        return false;
    }
    let class = |shift: u32| r.perm >> shift & bits == bits;
    match c.uid == r.uid {
        true => class(6),
        false if c.in_group(r.gid) => class(3),
        false => class(3) && class(0),
    }
}

/// Whether the caller may list and enter a directory, which has this data prefix and record in the view.
pub(crate) fn may_list(c: &Caller, dir: (&Snapshot, &[u8], &Record)) -> bool {
    surely_has(c, dir, READ_AND_SEARCH)
}

/// Whether the caller may read a file, which has this data prefix and record in the view.
pub(crate) fn may_read(c: &Caller, file: (&Snapshot, &[u8], &Record)) -> bool {
    surely_has(c, file, READ_BIT)
}

/// Calls `look` for every directory in the one with this contents prefix, with its path from there.
pub(crate) fn directories_in(
    view: &Snapshot,
    contents: &[u8],
    mut look: impl FnMut(&[u8], &Record) -> Result<()>,
) -> Result<()> {
    let prefix = path::meta(contents);
    let mut pairs = view.prefix(&prefix);
    while let Some((key, value)) = pairs.next_ref()? {
        let inside = key.get(prefix.len()..).unwrap_or_default();
        let damaged = |detail| Error::Damaged { what: key_text::describe_path(inside), detail };
        match Stored::decode(value).map_err(damaged)? {
            Stored::Record(record) if record.kind == FileKind::Directory && !inside.is_empty() => {
                look(inside, &record)?;
            }
            _ => {}
        }
    }
    Ok(())
}
