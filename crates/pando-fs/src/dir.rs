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

/// The position at which a listing continues.
enum From {
    /// With the first entry.
    Begin,
    /// Behind this name.
    Behind(Box<[u8]>),
    /// With the first name that is not less.
    At(Vec<u8>),
}

/// A file with holes: its inode, or its number of dense blocks and the prefix of its data.
type Sparse = Result<InodeRef, (u64, Bytes)>;

/// A name and its attributes.
type NameAttr = (Box<[u8]>, Attr);

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

    fn list(&self, dh: DirHandle, ino: Ino, cookie: u64, max: usize, plus: bool) -> Result<Vec<DirEntry>> {
        let open = self.dirs.get(dh.0)?;
        if open.inode.ino != ino {
            return Err(Error::BadHandle(dh.0));
        }
        let max = max.min(MAX_ENTRIES);
        let mut out = Vec::new();
        // Only once: a second call with this cookie scans again, because the caller may know of new entries.
        if open.end.swap(0, Ordering::Relaxed) == cookie && cookie != 0 {
            return Ok(out);
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
            self.list_family(&open.inode, family, cookie, max - out.len(), plus, &mut out)?;
            return Ok(out);
        }
        if self.snapshots_visible && cookie < SNAPSHOTS_COOKIE && out.len() < max && !open.inode.frozen {
            self.show_snapshots(&open.inode, plus, &mut out)?;
        }
        if out.len() < max {
            let from = self.find(&open, cookie)?;
            let (found, ended) = self.scan(&open.inode, &from, max - out.len(), plus)?;
            if !found.is_empty() {
                let names = found.into_iter().map(|(name, attr)| {
                    let cookie = position::cookie(&name);
                    out.push(entry(attr, OsStr::from_bytes(&name), cookie));
                    (cookie, name)
                });
                let part = Arc::new(NameList::from_iter(names));
                self.positions.listed(&part);
                *open.last.lock() = part;
            }
            if ended && let Some(last) = out.last() {
                open.end.store(last.cookie, Ordering::Relaxed);
            }
        }
        if cookie == 0 {
            self.accessed(&open.inode);
        }
        Ok(out)
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

    /// Up to `max` entries, and whether there are no more.
    fn scan(&self, dir: &InodeRef, from: &From, max: usize, plus: bool) -> Result<(Vec<NameAttr>, bool)> {
        // The entries need to stay as they are only if inodes are taken into memory.
        let (at, names) = match plus {
            true => self.hold_names(dir, false).map(|(at, names)| (at, Some(names)))?,
            false => (self.hold_dir(dir)?, None),
        };
        let departures = self.table.departures();
        let (lo, hi) = match from {
            From::Begin => path::listing(&at.contents, None),
            From::Behind(name) => path::listing(&at.contents, Some(name)),
            From::At(name) => path::listing_between(&at.contents, name, None),
        };
        // The lineage, whose link area has the records of linked files, with a view of the same moment: the directory
        // may be moved once its locks are released.
        let links = match self.has_links() && !plus {
            true => Some((self.db.snapshot(), self.domain(&at).contents)),
            false => None,
        };
        let mut cursor = match &links {
            Some((view, _)) => view.range(&lo, Some(&hi)),
            None => self.db.range(&lo, Some(&hi)),
        };
        let at = match plus {
            true => Ok(at),
            false => Err(at.contents.clone()), // lets the place go: the cursor has its own view
        };
        let contents = at.as_ref().map_or_else(|contents| contents.clone(), |at| at.contents.clone());
        let mut out: Vec<NameAttr> = Vec::new();
        // Files with holes, whose blocks are counted when nothing is held any more.
        let mut sparse: Vec<(usize, Sparse)> = Vec::new();
        let mut ended = false;
        for _ in 0..max {
            let Some((key, value)) = cursor.next_ref()? else {
                ended = true;
                break;
            };
            let damaged = || Error::Damaged { what: dir.label(), detail: "impossible name of an entry" };
            let name = path::name_of(&contents, key).ok_or_else(damaged)?;
            let attr = match &at {
                Ok(at) => {
                    let inode = match self.enter(at, name, value, departures)? {
                        Some(inode) => inode,
                        None => match self.child(at, name)? {
                            Some(inode) => inode,
                            None => continue,
                        },
                    };
                    let attr = inode.count_lookup();
                    if inode.kind == FileKind::Regular && inode.peek(|s| s.is_uncounted()) {
                        sparse.push((out.len(), Ok(inode)));
                    }
                    attr
                }
                Err(_) => {
                    let what = || String::from_utf8_lossy(name).into_owned();
                    let (record, link) = match &links {
                        Some((view, root)) => record_in(view, root, what, value)?,
                        None => {
                            let damaged = |detail| Error::Damaged { what: what(), detail };
                            (Record::decode(value).map_err(damaged)?, None)
                        }
                    };
                    if let Some(dense) = record.dense {
                        let path = match (link, &links) {
                            (Some(id), Some((_, root))) => path::linked(root, id),
                            _ => path::entry(&contents, name)?,
                        };
                        sparse.push((out.len(), Err((dense, path::data(&path)))));
                    }
                    attr_of(self.lineages.identity(&self.db, dir.lineage, &record)?.0, &record)
                }
            };
            out.push((name.into(), attr));
        }
        drop((at, names));
        for (i, inode) in sparse {
            let Some((_, attr)) = out.get_mut(i) else { continue };
            *attr = match inode {
                Ok(inode) => self.attr(&inode),
                Err((dense, data)) => {
                    let map = BlockMap::read(&self.db, &data, dense)?;
                    Attr { blocks: map.units(dense, attr.size), ..*attr }
                }
            };
        }
        Ok((out, ended))
    }
}

fn entry(attr: Attr, name: &OsStr, cookie: u64) -> DirEntry {
    DirEntry { ino: attr.ino, kind: attr.kind, name: OsString::from(name), cookie, attr }
}
