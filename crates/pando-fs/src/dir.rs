//! Listing directories.
//!
//! A listing is a scan of the directory's run of entries; the records are in
//! the same run, so attributes cost nothing more. Cookies name positions by
//! the name after which to go on, never by a count, so that entries made or
//! removed meanwhile neither repeat nor hide others. A handle remembers the names of the
//! last parts that it gave out, and of older parts where they began: seeking far back
//! counts from there, which is exact if the directory has not changed. Uses
//! `place`, `name`, keys and lineages.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

use parking_lot::Mutex;

use crate::{
    error::{Error, Result},
    handle::OpenDir,
    inode::attr_of,
    path,
    types::{Attr, DirEntry, DirHandle, Ino},
    volume::Fs,
};

/// Most entries of one call.
const MOST: usize = 4096;
/// So many parts keep all their names.
const WHOLE_PARTS: usize = 64;

const DOT: u64 = 1;
const DOT_DOT: u64 = 2;
/// A cookie is the number of a part, from 1, times this, plus the place in the part.
const PART: u64 = 1 << 16;

/// What a directory handle has given out.
#[derive(Debug, Default)]
pub(crate) struct Position {
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    /// The name after which it begins; `None`: the first of all.
    after: Option<Box<[u8]>>,
    /// Its names, or none if it is old.
    names: Vec<Box<[u8]>>,
}

/// The last name that a scan skipped.
type Skipped = Option<Box<[u8]>>;
/// A name and its attributes.
type Found = (Box<[u8]>, Attr);

impl Position {
    /// Where to go on after `cookie`: behind a name, and so many entries further.
    fn find(&self, cookie: u64) -> Option<(Option<Box<[u8]>>, usize)> {
        if cookie <= DOT_DOT {
            return Some((None, 0));
        }
        let part = self.parts.get((cookie / PART).checked_sub(1)? as usize)?;
        let place = (cookie % PART) as usize;
        Some(match part.names.get(place) {
            Some(name) => (Some(name.clone()), 0),
            None => (part.after.clone(), place + 1),
        })
    }

    /// Remembers a part; its number is that of the cookies.
    fn add(&mut self, part: Part) -> u64 {
        self.parts.push(part);
        let old = self.parts.len().checked_sub(WHOLE_PARTS + 1);
        if let Some(old) = old.and_then(|i| self.parts.get_mut(i)) {
            old.names = Vec::new();
        }
        self.parts.len() as u64
    }
}

impl Fs {
    /// Opens a directory for listing.
    pub fn opendir(&self, ino: Ino) -> Result<DirHandle> {
        let inode = self.dir(ino)?;
        Ok(DirHandle(self.dirs.add(OpenDir { inode, position: Mutex::default() })))
    }

    /// Closes a directory.
    pub fn releasedir(&self, dh: DirHandle) {
        self.dirs.remove(dh.0);
    }

    /// The next entries, at most `max`, behind the one with `cookie` (0: from the start); none at
    /// the end. `.` and `..` come first. One scan, whatever `max`.
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
        let mut position = open.position.lock();
        if cookie == 0 {
            *position = Position::default();
        }
        let max = max.min(MOST);
        let mut out = Vec::new();
        if cookie < DOT && max > 0 {
            out.push(entry(open.inode.attr(), OsStr::new("."), DOT));
        }
        if cookie < DOT_DOT && out.len() < max {
            let parent = open.inode.parent()?;
            let attr = parent.as_ref().map_or_else(|| open.inode.attr(), |p| p.attr());
            out.push(entry(attr, OsStr::new(".."), DOT_DOT));
        }
        if out.len() < max {
            let (after, skip) = position
                .find(cookie)
                .ok_or_else(|| Error::Invalid(format!("directory position {cookie}: never given out")))?;
            let (skipped, found) = self.scan(&open, after.as_deref(), skip, max - out.len(), plus)?;
            if !found.is_empty() {
                let after = skipped.or(after);
                let names = found.iter().map(|(name, _)| name.clone()).collect();
                let part = position.add(Part { after, names });
                out.extend(
                    found.into_iter().enumerate().map(|(i, (name, attr))| {
                        entry(attr, OsStr::from_bytes(&name), part * PART + i as u64)
                    }),
                );
            }
        }
        drop(position);
        if cookie == 0 {
            self.accessed(&open.inode);
        }
        Ok(out)
    }

    /// Up to `max` entries behind `after` and `skip` more; and the name of the last one skipped.
    fn scan(
        &self,
        open: &OpenDir,
        after: Option<&[u8]>,
        skip: usize,
        max: usize,
        plus: bool,
    ) -> Result<(Skipped, Vec<Found>)> {
        let dir = &open.inode;
        // Only who takes inodes into memory needs the entries to stay as they are.
        let (at, _names) = match plus {
            true => self.hold_names(dir, false).map(|(at, names)| (at, Some(names)))?,
            false => (self.hold_dir(dir)?, None),
        };
        let departures = self.table.departures();
        let (lo, hi) = path::listing(&at.contents, after);
        let mut cursor = self.db.range(&lo, Some(&hi));
        let at = match plus {
            true => Ok(at),
            false => Err(at.contents.clone()), // lets the place go: the cursor has its own view
        };
        let contents = at.as_ref().map_or_else(|contents| contents.clone(), |at| at.contents.clone());
        let mut out = Vec::new();
        let mut skipped = None;
        for i in 0..skip + max {
            let Some((key, value)) = cursor.next_ref()? else { break };
            let damaged = || Error::Damaged { what: dir.label(), detail: "impossible name of an entry" };
            let name = path::name_of(&contents, key).ok_or_else(damaged)?;
            if i < skip {
                skipped = Some(name.into());
                continue;
            }
            let attr = match &at {
                Ok(at) => match self.enter(at, name, value, departures)? {
                    Some(inode) => inode.count_lookup(),
                    None => match self.child(at, name)? {
                        Some(inode) => inode.count_lookup(),
                        None => continue,
                    },
                },
                Err(_) => {
                    let record = self.decode(name, value)?;
                    attr_of(self.lineages.identity(&self.db, dir.lineage, &record)?.0, &record)
                }
            };
            out.push((name.into(), attr));
        }
        Ok((skipped, out))
    }
}

fn entry(attr: Attr, name: &OsStr, cookie: u64) -> DirEntry {
    DirEntry { ino: attr.ino, kind: attr.kind, name: OsString::from(name), cookie, attr }
}
