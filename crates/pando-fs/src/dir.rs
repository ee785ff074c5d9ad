//! Listing directories.
//!
//! A listing is a scan of the directory's run of entries; the records are in the same run, so attributes cost nothing
//! more. A cookie stands for a name, behind which the listing continues, and not for a count, so that entries made or
//! removed meanwhile neither repeat nor hide others. `position` finds the name of a cookie.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    blockmap::BlockMap,
    domain::record_in,
    error::{Error, Result},
    family::SNAPSHOTS,
    handle::OpenDir,
    inode::{InodeRef, Link, attr_of},
    path,
    position::{self, NameList},
    record::Record,
    types::{Attr, DirEntry, DirHandle, FileKind, Ino},
    volume::Fs,
};

/// Most entries of one call.
const MAX_ENTRIES: usize = 4096;

/// The cookie of `.`, a number that no entry has.
const DOT_COOKIE: u64 = 1;
/// The cookie of `..`, a number that no entry has.
const DOT_DOT_COOKIE: u64 = 2;
/// Cookie of `.snapshots`, if that is listed.
const SNAPSHOTS_COOKIE: u64 = 3;

/// One entry of a listing without attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedEntry<'a> {
    /// Inode number.
    pub ino: Ino,
    /// Kind.
    pub kind: FileKind,
    /// Name, without a slash.
    pub name: &'a OsStr,
    /// A listing that begins at this cookie continues after this entry; never 0.
    pub cookie: u64,
}

/// The position at which a listing continues.
enum From {
    /// With the first entry.
    Begin,
    /// Behind this name.
    Behind(Box<[u8]>),
    /// With the first name that is not less.
    At(Vec<u8>),
}

impl From {
    /// Bounds of the entries that follow in the directory with these contents.
    fn bounds(&self, contents: &[u8]) -> (Bytes, Bytes) {
        match self {
            Self::Begin => path::listing(contents, None),
            Self::Behind(name) => path::listing(contents, Some(name)),
            Self::At(name) => path::listing_between(contents, name, None),
        }
    }
}

/// A name and its attributes.
type NameAttr = (Box<[u8]>, Attr);

/// An entry as it is stored.
struct ScannedEntry<'a> {
    /// The contents prefix of its directory.
    contents: &'a [u8],
    name: &'a [u8],
    ino: Ino,
    record: &'a Record,
    /// Of a linked file: the contents prefix of the root of its lineage, and its number in the link area.
    linked: Option<(&'a [u8], u64)>,
}

impl Fs {
    /// Opens a directory for listing.
    pub fn opendir(&self, ino: Ino) -> Result<DirHandle> {
        let inode = self.dir(ino)?;
        Ok(DirHandle(self.dirs.add(OpenDir { inode, last: Mutex::default(), end: AtomicU64::new(0) })))
    }

    /// Closes a directory.
    pub fn releasedir(&self, dh: DirHandle) {
        self.dirs.remove(dh.0);
    }

    /// The next entries, at most `max`, behind the one with `cookie` (0: from the start); none at
    /// the end. `.` and `..` come first. One scan, whatever `max`; none if the one before has come to the end and this
    /// asks for what is behind. So an entry that is made between the two may be left out, as POSIX allows.
    ///
    /// A cookie is a function of the name: it may come from any handle, of this mount or an earlier one. One
    /// that was given out long ago costs a scan of the names that begin like it.
    pub fn readdir(&self, dh: DirHandle, ino: Ino, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.list(dh, ino, cookie, max, false)
    }

    /// Like [`Fs::readdir`], and counts one reference of the kernel of each entry but `.` and
    /// `..`: forget those that are not delivered.
    pub fn readdir_plus(&self, dh: DirHandle, ino: Ino, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.list(dh, ino, cookie, max, true)
    }

    /// Calls `each` with the entries behind the one with `cookie`, at most `max`, until it returns false: what
    /// [`Fs::readdir`] gives, without attributes and without memory for each entry. The entries before an error are
    /// given. `each` must not call this file system.
    pub fn readdir_names(
        &self,
        dh: DirHandle,
        ino: Ino,
        cookie: u64,
        max: usize,
        mut each: impl FnMut(NamedEntry<'_>) -> bool,
    ) -> Result<()> {
        let open = self.open_dir(dh, ino)?;
        let mut out = Vec::new();
        let more = self.list_head(&open, cookie, max, false, &mut out)?;
        for e in &out {
            if !each(NamedEntry { ino: e.ino, kind: e.kind, name: &e.name, cookie: e.cookie }) {
                return Ok(());
            }
        }
        if more && out.len() < max {
            let from = self.find(&open, cookie)?;
            let mut names = NameList::default();
            let mut last = out.last().map_or(cookie, |e| e.cookie);
            let ended = self.scan(&open.inode, &from, max - out.len(), |e| {
                let cookie = position::cookie(e.name);
                let name = OsStr::from_bytes(e.name);
                let taken = each(NamedEntry { ino: e.ino, kind: e.record.kind, name, cookie });
                if taken {
                    names.push(cookie, e.name);
                    last = cookie;
                }
                Ok(taken)
            });
            self.listed(&open, names);
            if ended? && last != cookie {
                open.end.store(last, Ordering::Relaxed);
            }
        }
        if cookie == 0 {
            self.accessed(&open.inode);
        }
        Ok(())
    }

    fn list(&self, dh: DirHandle, ino: Ino, cookie: u64, max: usize, plus: bool) -> Result<Vec<DirEntry>> {
        let open = self.open_dir(dh, ino)?;
        let mut out = Vec::new();
        let listed = self.list_into(&open, cookie, max.min(MAX_ENTRIES), plus, &mut out);
        if listed.is_err() && plus {
            // Nobody sees these entries, so nobody forgets them.
            for e in out.iter().filter(|e| e.name != "." && e.name != "..") {
                self.forget(e.attr.ino, 1);
            }
        }
        listed.map(|()| out)
    }

    /// Adds the entries behind `cookie` to `out`, also those before an error.
    fn list_into(
        &self,
        open: &OpenDir,
        cookie: u64,
        max: usize,
        plus: bool,
        out: &mut Vec<DirEntry>,
    ) -> Result<()> {
        if self.list_head(open, cookie, max, plus, out)? && out.len() < max {
            let from = self.find(open, cookie)?;
            let max = max - out.len();
            let mut found = Vec::new();
            let ended = match plus {
                true => self.scan_plus(&open.inode, &from, max, &mut found),
                false => self.scan_attrs(&open.inode, &from, max, &mut found),
            };
            let mut names = NameList::default();
            for (name, attr) in found {
                let cookie = position::cookie(&name);
                names.push(cookie, &name);
                out.push(entry(attr, OsStr::from_bytes(&name), cookie));
            }
            let ended = ended?;
            self.listed(open, names);
            if ended && let Some(last) = out.last() {
                open.end.store(last.cookie, Ordering::Relaxed);
            }
        }
        if cookie == 0 {
            self.accessed(&open.inode);
        }
        Ok(())
    }

    /// The open directory of a handle.
    fn open_dir(&self, dh: DirHandle, ino: Ino) -> Result<Arc<OpenDir>> {
        let open = self.dirs.get(dh.0)?;
        match open.inode.ino == ino {
            true => Ok(open),
            false => Err(Error::BadHandle(dh.0)),
        }
    }

    /// Adds what comes before the entries of a directory, or all of a directory of snapshots, behind `cookie`; whether
    /// entries may follow.
    fn list_head(
        &self,
        open: &OpenDir,
        cookie: u64,
        max: usize,
        plus: bool,
        out: &mut Vec<DirEntry>,
    ) -> Result<bool> {
        // Only once: a second call with this cookie scans again, because the caller may know of new entries.
        if open.end.swap(0, Ordering::Relaxed) == cookie && cookie != 0 {
            return Ok(false);
        }
        if cookie < DOT_COOKIE && max > 0 {
            out.push(entry(open.inode.attr(), OsStr::new("."), DOT_COOKIE));
        }
        if cookie < DOT_DOT_COOKIE && out.len() < max {
            let parent = open.inode.parent()?;
            let attr = parent.as_ref().map_or_else(|| open.inode.attr(), |p| p.attr());
            out.push(entry(attr, OsStr::new(".."), DOT_DOT_COOKIE));
        }
        if let Some(family) = open.inode.peek(|s| match s.link {
            Link::Snapshots(family) => Some(family),
            _ => None,
        }) {
            self.list_family(&open.inode, family, cookie, max - out.len(), plus, out)?;
            return Ok(false);
        }
        if self.snapshots_visible && cookie < SNAPSHOTS_COOKIE && out.len() < max && !open.inode.frozen {
            self.show_snapshots(&open.inode, plus, out)?;
        }
        Ok(true)
    }

    /// Remembers names that were given out.
    fn listed(&self, open: &OpenDir, names: NameList) {
        if !names.is_empty() {
            let names = Arc::new(names);
            self.positions.listed(&names);
            *open.last.lock() = names;
        }
    }

    /// Adds `.snapshots` of a directory, if it has a family and nothing else of that name.
    fn show_snapshots(&self, dir: &InodeRef, plus: bool, out: &mut Vec<DirEntry>) -> Result<()> {
        let name = OsStr::from_bytes(SNAPSHOTS);
        let attr = match self.family(dir.ino)? {
            Some(_) => self.lookup(dir.ino, name)?,
            None => return Ok(()),
        };
        if !plus {
            self.forget(attr.ino, 1);
        }
        out.push(entry(attr, name, SNAPSHOTS_COOKIE));
        Ok(())
    }

    /// Adds up to `max` snapshots of a family, as its `.snapshots` lists them: by number, behind `cookie`.
    fn list_family(
        &self,
        dir: &InodeRef,
        family: u64,
        cookie: u64,
        max: usize,
        plus: bool,
        out: &mut Vec<DirEntry>,
    ) -> Result<()> {
        let (_at, _names) = self.hold_names(dir, false)?;
        // The cookie of a snapshot is behind those of `.` and `..` by its number.
        let from = u32::try_from(cookie.saturating_sub(DOT_DOT_COOKIE)).unwrap_or(u32::MAX).saturating_add(1);
        for info in self.snapshots_from(family, from, max)? {
            let Some(root) = self.snapshot_root(info.number)? else { continue };
            let attr = if plus { root.count_lookup() } else { root.attr() };
            out.push(entry(attr, &info.name, DOT_DOT_COOKIE + u64::from(info.number)));
        }
        Ok(())
    }

    /// Where to go on after `cookie`.
    fn find(&self, open: &OpenDir, cookie: u64) -> Result<From> {
        if cookie <= SNAPSHOTS_COOKIE {
            return Ok(From::Begin);
        }
        if !(position::FIRST_COOKIE..1 << 63).contains(&cookie) {
            return Err(Error::Invalid(format!("directory position {cookie}: of no entry")));
        }
        if let Some(name) = open.last.lock().find(cookie) {
            return Ok(From::Behind(name.into()));
        }
        if let Some(name) = self.positions.recent(cookie) {
            return Ok(From::Behind(name));
        }
        let contents = self.hold_dir(&open.inode)?.contents;
        let (least, above) = position::bounds(cookie);
        let (lo, hi) = path::listing_between(&contents, &least, above.as_deref());
        let mut cursor = self.db.range(&lo, Some(&hi));
        while let Some((key, _)) = cursor.next_ref()? {
            match path::name_of(&contents, key) {
                Some(name) if position::cookie(name) == cookie => return Ok(From::Behind(name.into())),
                _ => {}
            }
        }
        Ok(match self.positions.removed_before(&self.db, cookie) {
            Some(name) => From::Behind(name),
            None => From::At(least),
        })
    }

    /// Adds up to `max` entries with a reference each, also those before an error; whether there are no more.
    fn scan_plus(&self, dir: &InodeRef, from: &From, max: usize, out: &mut Vec<NameAttr>) -> Result<bool> {
        // The entries need to stay as they are, because inodes are taken into memory.
        let (at, names) = self.hold_names(dir, false)?;
        let departures = self.table.departures();
        let (lo, hi) = from.bounds(&at.contents);
        let mut cursor = self.db.range(&lo, Some(&hi));
        // Files with holes, whose blocks are counted when nothing is held any more.
        let mut sparse: Vec<(usize, InodeRef)> = Vec::new();
        let mut ended = false;
        for _ in 0..max {
            let Some((key, value)) = cursor.next_ref()? else {
                ended = true;
                break;
            };
            let name = path::name_of(&at.contents, key).ok_or_else(|| impossible_name(dir))?;
            let inode = match self.enter(&at, name, value, departures)? {
                Some(inode) => inode,
                None => match self.child(&at, name)? {
                    Some(inode) => inode,
                    None => continue,
                },
            };
            out.push((name.into(), inode.count_lookup()));
            if inode.kind == FileKind::Regular && inode.peek(|s| s.is_uncounted()) {
                sparse.push((out.len() - 1, inode));
            }
        }
        drop((at, names));
        for (i, inode) in sparse {
            if let Some((_, attr)) = out.get_mut(i) {
                *attr = self.attr(&inode);
            }
        }
        Ok(ended)
    }

    /// Adds up to `max` entries without references; whether there are no more.
    fn scan_attrs(&self, dir: &InodeRef, from: &From, max: usize, out: &mut Vec<NameAttr>) -> Result<bool> {
        self.scan(dir, from, max, |e| {
            let mut attr = attr_of(e.ino, e.record);
            if let Some(dense) = e.record.dense {
                let path = match e.linked {
                    Some((root, id)) => path::linked(root, id),
                    None => path::entry(e.contents, e.name)?,
                };
                let map = BlockMap::read(&self.db, &path::data(&path), dense)?;
                attr.blocks = map.units(dense, attr.size);
            }
            out.push((e.name.into(), attr));
            Ok(true)
        })
    }

    /// Calls `each` for up to `max` entries, as of one moment and with nothing held, until it returns false; whether
    /// there are no more.
    fn scan(
        &self,
        dir: &InodeRef,
        from: &From,
        max: usize,
        mut each: impl FnMut(&ScannedEntry<'_>) -> Result<bool>,
    ) -> Result<bool> {
        let (contents, links) = {
            let at = self.hold_dir(dir)?;
            // The lineage, whose link area has the records of linked files, with a view of the same moment: the
            // directory may be moved once its locks are released.
            let links = self.has_links().then(|| (self.db.snapshot(), self.domain(&at).contents));
            (at.contents.clone(), links)
        };
        let (lo, hi) = from.bounds(&contents);
        let mut cursor = match &links {
            Some((view, _)) => view.range(&lo, Some(&hi)),
            None => self.db.range(&lo, Some(&hi)),
        };
        for _ in 0..max {
            let Some((key, value)) = cursor.next_ref()? else { return Ok(true) };
            let name = path::name_of(&contents, key).ok_or_else(|| impossible_name(dir))?;
            let what = || String::from_utf8_lossy(name).into_owned();
            let (record, linked) = match &links {
                Some((view, root)) => {
                    let (record, id) = record_in(view, root, what, value)?;
                    (record, id.map(|id| (&root[..], id)))
                }
                None => {
                    let damaged = |detail| Error::Damaged { what: what(), detail };
                    (Record::decode(value).map_err(damaged)?, None)
                }
            };
            let ino = self.lineages.identity(&self.db, dir.lineage, &record)?.0;
            let scanned = ScannedEntry { contents: &contents, name, ino, record: &record, linked };
            if !each(&scanned)? {
                return Ok(false);
            }
        }
        Ok(false)
    }
}

/// The error for a key of an entry that names nothing.
fn impossible_name(dir: &InodeRef) -> Error {
    Error::Damaged { what: dir.label(), detail: "impossible name of an entry" }
}

fn entry(attr: Attr, name: &OsStr, cookie: u64) -> DirEntry {
    DirEntry { ino: attr.ino, kind: attr.kind, name: OsString::from(name), cookie, attr }
}
