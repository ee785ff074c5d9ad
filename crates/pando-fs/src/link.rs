//! Hard links: a further name for a file.
//!
//! With its second name a file moves to the link area of its lineage, and both names become small values that hold its
//! number there (`docs/decisions/hard-links.md`). Each call is one batch. Guarantees exact link counts in a lineage,
//! and that no link reaches from one lineage into another (EXDEV). Also gives the first name to a file that was made
//! without one.

use std::ffi::OsStr;

use pando_db::{Batch, waiting};

use crate::{
    bill::{Bill, Taken},
    error::{Error, Result, show},
    format::FEATURE_HARD_LINKS,
    inode::{InodeRef, Link},
    lock::Obstacle,
    merge::Change,
    path::{self, check_name, system},
    place::may_change,
    record::LinkName,
    rename::{End, LockedDirs},
    types::{Attr, Caller, FileKind, Ino},
    volume::Fs,
};

/// Most names that a file can have, a count.
const MAX_LINKS: u32 = i32::MAX as u32;

/// Where a file is before it gets another name.
enum Before {
    /// The file has one name, and the keys of a plain entry.
    Plain { parent: InodeRef, name: Box<[u8]> },
    /// The file is in the link area.
    Linked { root: InodeRef, id: u64 },
    /// The file was made without a name, and has none yet.
    Nameless,
}

impl Before {
    fn of(inode: &InodeRef) -> Result<Self> {
        inode.peek(|s| match &s.link {
            Link::At { parent, name } => Ok(Before::Plain { parent: parent.clone(), name: name.clone() }),
            Link::Linked { root, id } => Ok(Before::Linked { root: root.clone(), id: *id }),
            Link::Orphan if s.linkable => Ok(Before::Nameless),
            Link::Root | Link::Orphan | Link::Gone | Link::Snapshot(_) | Link::Snapshots(_) => {
                Err(Error::NotFound(format!("inode {:#x}, which has no name any more", inode.ino)))
            }
        })
    }

    fn is_still(&self, inode: &InodeRef) -> bool {
        inode.peek(|s| match (&s.link, self) {
            (Link::At { parent, name }, Before::Plain { parent: p, name: n }) => {
                parent.ino == p.ino && name == n
            }
            (Link::Linked { root, id }, Before::Linked { root: r, id: i }) => root.ino == r.ino && id == i,
            (Link::Orphan, Before::Nameless) => s.linkable,
            _ => false,
        })
    }
}

impl Fs {
    /// Gives the file `ino` the further name `newname` in `newparent`, which must not exist (EEXIST). One batch; the
    /// first time, the file's data moves in it by a message. EXDEV if the directory is in another clone
    /// than the file; EPERM for directories. Counts one reference of the kernel.
    pub fn link(&self, c: &Caller, ino: Ino, newparent: Ino, newname: &OsStr) -> Result<Attr> {
        let _ = c; // the kernel has checked the permissions
        self.writable()?;
        let to = check_name(newname)?;
        let inode = self.table.get(ino)?;
        if inode.kind == FileKind::Directory {
            let why = "directories have one name only";
            return Err(Error::NotPermitted { name: inode.label(), why });
        }
        let new = self.dir(newparent)?;
        may_change(&new, true)?;
        if !matches!(Before::of(&inode)?, Before::Nameless) {
            self.need_feature(FEATURE_HARD_LINKS)?;
        }
        self.with_attempts(|tries| {
            let before = Before::of(&inode)?;
            let old = match &before {
                Before::Plain { parent, .. } => parent,
                _ => &new,
            };
            let pair = self.attempt_pair(tries, old, &new)?;
            let _own = tries.exclusive(&inode.tree)?;
            if !before.is_still(&inode) {
                return Err(Obstacle::Taken { lock: inode.tree.clone(), exclusive: false });
            }
            let end = End::to_be(pair.second(), to)?;
            if self.db.get(&path::meta(&end.entry))?.is_some() {
                return Err(Error::Exists(show(newname)).into());
            }
            self.may_enter(&new, to)?;
            // No range of the link area is removed until the batch is written.
            let area = &self.counting.area;
            let _area = waiting::take(|| area.try_read(), || area.read());
            self.add_name(&inode, &before, &pair, &end)?;
            Ok(inode.count_lookup())
        })
    }

    /// Adds the name `end` to what is held exclusively.
    fn add_name(&self, inode: &InodeRef, before: &Before, pair: &LockedDirs, end: &End<'_>) -> Result<()> {
        let now = self.now();
        let mut batch = Batch::new();
        let mut record = inode.peek(|s| s.record.clone());
        record.ctime = now;
        let domain = self.domain(end.at);
        let mut bill = Bill::default();
        let link = match before {
            Before::Nameless => {
                let above = self.above(end.at);
                if !above.is_empty() {
                    let bytes = self.bytes_of(inode, &system::orphan_data(inode.ino))?;
                    bill.add(above, Taken::exact(bytes));
                }
                record.nlink = 1;
                self.leave_orphans(&mut batch, inode, &mut record, end)?;
                batch.put(path::meta(&end.entry), record.encode());
                Some(end.link())
            }
            Before::Plain { name, .. } => {
                let old = End::new(pair.first(), name)?;
                if !self.domain(old.at).is(&domain) {
                    return Err(Error::CrossesClone(inode.label()));
                }
                let id = record.fileno;
                let file = path::new_linked(&domain.contents, id)?;
                record.nlink = 2;
                let (old_above, new_above) = self.above(old.at).apart(self.above_links(end.at));
                if !old_above.is_empty() || !new_above.is_empty() {
                    let taken = Taken::exact(self.bytes_of(inode, &path::data(&old.entry))?);
                    bill.subtract(old_above, taken);
                    bill.add(new_above, taken);
                }
                if record.has_data() {
                    batch.rename_prefix(path::data(&old.entry), path::data(&file));
                }
                let name = LinkName { kind: inode.kind, id };
                batch.put(path::meta(&file), record.encode());
                for entry in [&old.entry, &end.entry] {
                    batch.put(path::meta(entry), name.encode());
                    batch.put(domain.index(entry)?, name.encode_index());
                }
                Some(Link::Linked { root: domain.root.clone(), id })
            }
            Before::Linked { root, id } => {
                if root.ino != domain.root.ino {
                    return Err(Error::CrossesClone(inode.label()));
                }
                if record.nlink >= MAX_LINKS {
                    return Err(Error::TooManyLinks(inode.label()));
                }
                record.nlink += 1;
                let mut change = Change { nlink: 1, ctime: Some(now), ..Change::default() };
                inode.peek(|s| s.save_atime(&mut change));
                let name = LinkName { kind: inode.kind, id: *id };
                batch.upsert(path::meta(&domain.linked(*id)), change.encode());
                batch.put(path::meta(&end.entry), name.encode());
                batch.put(domain.index(&end.entry)?, name.encode_index());
                None
            }
        };
        let touched = Change::modified(now);
        Self::change_dir(&mut batch, end.at, &touched);
        let reserved = self.reserve(&mut batch, bill)?;
        self.db.write(batch)?;
        reserved.paid();
        end.at.dir.change(|s| touched.apply(&mut s.record));
        inode.change(|s| {
            s.record = record;
            s.atime_unsaved = false;
            s.linkable = false;
        });
        if let Some(link) = link {
            inode.move_to(link);
        }
        Ok(())
    }

    /// Adds the move of a file without a name out of the orphan area, to `end`.
    fn leave_orphans(
        &self,
        batch: &mut Batch,
        inode: &InodeRef,
        record: &mut crate::record::Record,
        end: &End<'_>,
    ) -> Result<()> {
        let around = end.at.dir.lineage;
        if around != inode.lineage {
            // The file keeps its inode number, as a moved file does.
            let (from, kept) = (inode.lineage, (inode.ino, inode.lineage));
            let (file, clone) = (|| self.fresh_file(), || self.fresh_clone());
            self.lineages.moved(&self.db, batch, record, (from, around), kept, false, file, clone)?;
        }
        batch.delete(system::orphan_meta(inode.ino));
        if record.has_data() {
            batch.rename_prefix(system::orphan_data(inode.ino), path::data(&end.entry));
        }
        Ok(())
    }
}
