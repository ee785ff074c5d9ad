//! Lookups: from names and paths to inodes, with their references.
//!
//! Guarantee: the record of an inode is read into memory while nobody can change its entry.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Component, Path},
};

use crate::{
    domain::linked_record,
    error::{Error, Result, show},
    family::SNAPSHOTS,
    inode::{InodeRef, Link},
    path::{self, check_name},
    place::DirAt,
    record::{LinkName, Stored},
    types::{Attr, FileKind, Ino, ROOT},
    volume::Fs,
};

/// How reserved names begin; 32 hexadecimal digits follow.
pub const RESERVED: &[u8] = b".pando-proof-";
/// Digits of a reserved name, a count.
const RESERVED_DIGITS: usize = 32;

/// Whether no entry can have this name: in mounts the server takes it for something else (rights are shown by it), and
/// could not reach the entry.
fn is_reserved(name: &[u8]) -> bool {
    let digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.strip_prefix(RESERVED).is_some_and(|rest| rest.len() == RESERVED_DIGITS && rest.iter().all(digit))
}

impl Fs {
    /// The directory that a call names by number.
    pub(crate) fn dir(&self, ino: Ino) -> Result<InodeRef> {
        let inode = self.table.get(ino)?;
        inode.must_be_dir()?;
        Ok(inode)
    }

    /// The entry `name`. The caller holds `names` of the directory.
    pub(crate) fn child(&self, at: &DirAt, name: &[u8]) -> Result<Option<InodeRef>> {
        let key = path::meta(&at.child(name)?);
        let mut departures = self.table.departures();
        let Some(mut value) = self.db.get(&key)? else { return Ok(None) };
        loop {
            if let Some(inode) = self.enter(at, name, &value, departures)? {
                return Ok(Some(inode));
            }
            departures = self.table.departures();
            value = match self.db.get(&key)? {
                Some(value) => value,
                None => return Ok(None),
            };
        }
    }

    /// Error if a new entry `name` would hide the snapshots of this directory, or if the name is reserved
    /// ([`is_reserved`]). A point query, only for the name of the snapshots. The caller holds `names` of the
    /// directory.
    pub(crate) fn may_enter(&self, dir: &InodeRef, name: &[u8]) -> Result<()> {
        if is_reserved(name) {
            let name = String::from_utf8_lossy(name);
            return Err(Error::Invalid(format!("{name}: a reserved name; give the file another one")));
        }
        match name == SNAPSHOTS && self.family(dir.ino)?.is_some() {
            true => Err(Error::Exists(String::from_utf8_lossy(name).into_owned())),
            false => Ok(()),
        }
    }

    /// The inode of an entry that was read after the table's `departures` were; `None`: read again.
    pub(crate) fn enter(
        &self,
        at: &DirAt,
        name: &[u8],
        value: &[u8],
        departures: u64,
    ) -> Result<Option<InodeRef>> {
        let what = || String::from_utf8_lossy(name).into_owned();
        let damaged = |detail| Error::Damaged { what: what(), detail };
        let (record, link) = match Stored::decode(value).map_err(damaged)? {
            Stored::Record(record) => (*record, Link::At { parent: at.dir.clone(), name: name.into() }),
            Stored::Name(LinkName { id, .. }) => {
                let domain = self.domain(at);
                let record = linked_record(&self.db.snapshot(), &domain.contents, id)?;
                (record, Link::Linked { root: domain.root, id })
            }
            _ => return Err(damaged("no record of an entry")),
        };
        let (ino, lineage) = self.lineages.identity(&self.db, at.dir.lineage, &record)?;
        let of_link = match &link {
            Link::Linked { root, id } => Some((root.clone(), *id)),
            _ => None,
        };
        let Some(inode) = self.table.enter(ino, lineage, Some(departures), link, record) else {
            return Ok(None);
        };
        let same = inode.peek(|s| match (&s.link, &of_link) {
            (Link::At { parent, name: n }, None) => parent.ino == at.dir.ino && **n == *name,
            (Link::Linked { root, id }, Some((r, i))) => root.ino == r.ino && id == i,
            _ => false,
        });
        match same {
            true => {
                if let Some((root, _)) = of_link {
                    self.look_whether_counted(at, root)?;
                }
                Ok(Some(inode))
            }
            false => Err(damaged("two entries have one inode number")),
        }
    }

    /// Asks for a census of the lineage around `at` if its names still have to be counted. One cursor step at the
    /// first lookup in a lineage, nothing later.
    fn look_whether_counted(&self, at: &DirAt, root: InodeRef) -> Result<()> {
        if self.is_read_only() || root.frozen || !self.counting.is_new(root.ino) {
            return Ok(());
        }
        let contents = self.domain(at).contents;
        let marks = path::meta(&path::all_uncounted(&contents));
        if self.db.prefix(&marks).next().transpose()?.is_some() {
            self.counting.wants(root);
            self.count_names_soon();
        }
        Ok(())
    }

    /// The entry `name` of `parent`. Counts one reference of the kernel: give it back with [`Fs::forget`].
    ///
    /// One point query of the engine. `.` and `..` are answered too.
    pub fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        let dir = self.dir(parent)?;
        match name.as_bytes() {
            b"." => return Ok(dir.count_lookup()),
            b".." => return Ok(dir.parent()?.unwrap_or(dir).count_lookup()),
            _ => {}
        }
        let bytes = check_name(name)?;
        let (at, _names) = self.hold_names(&dir, false)?;
        let found = match dir.peek(|s| if let Link::Snapshots(family) = s.link { Some(family) } else { None })
        {
            Some(family) => match self.snapshot_named(family, bytes)? {
                Some(number) => self.snapshot_root(number)?,
                None => None,
            },
            None => self.child(&at, bytes)?,
        };
        let found = match found {
            None if bytes == SNAPSHOTS && !dir.frozen => match self.family(dir.ino)? {
                Some(family) => Some(self.family_dir(Some(&dir), &family)?),
                None => None,
            },
            found => found,
        };
        let inode = found.ok_or_else(|| Error::NotFound(show(name)))?;
        inode.count_lookup();
        drop((at, _names));
        Ok(self.attr(&inode))
    }

    /// Takes the reference of an entry just listed: the same as [`Fs::lookup`].
    pub fn reference(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        self.lookup(parent, name)
    }

    /// Gives `n` references back. An inode without references and open handles may leave memory; later calls by its
    /// number fail with ESTALE until it is looked up again.
    pub fn forget(&self, ino: Ino, n: u64) {
        if ino != ROOT {
            self.table.forget(ino, n);
            if let Some(kept) = self.late_calls.forgotten(ino) {
                self.let_go(&kept);
            }
        }
    }

    /// What `path`, relative to the root, names. Symbolic links are not followed, `..` is
    /// refused. Counts one reference; forget it.
    pub fn resolve(&self, path: &Path) -> Result<Attr> {
        let mut attr = self.getattr(ROOT)?;
        for name in names(path)? {
            let next = self.lookup(attr.ino, name);
            self.forget(attr.ino, 1);
            attr = next.map_err(|e| match e {
                Error::NotFound(_) => Error::NotFound(path.display().to_string()),
                Error::NotDirectory(_) => Error::NotDirectory(path.display().to_string()),
                e => e,
            })?;
        }
        Ok(attr)
    }

    /// The directory that holds `path`, and the last name of it. Counts one reference of the
    /// directory; forget it. The root itself has no name: EINVAL.
    pub fn resolve_parent(&self, path: &Path) -> Result<(Ino, OsString)> {
        let mut names = names(path)?;
        let last =
            names.pop().ok_or_else(|| Error::Invalid(format!("{}: names the root", path.display())))?;
        let parent: std::path::PathBuf = names.iter().collect();
        let attr = self.resolve(&parent)?;
        if attr.kind != FileKind::Directory {
            self.forget(attr.ino, 1);
            return Err(Error::NotDirectory(parent.display().to_string()));
        }
        Ok((attr.ino, last.to_os_string()))
    }
}

fn names(path: &Path) -> Result<Vec<&OsStr>> {
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => names.push(name),
            Component::RootDir | Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Error::Invalid(format!("{}: give a path without ..", path.display())));
            }
        }
    }
    Ok(names)
}
