//! Copies of trees.
//!
//! Kept are content and holes, modes, owners, times to the nanosecond, extended attributes, access control lists,
//! links of both kinds, device nodes, pipes and sockets. What the other side cannot have or the caller may not give is
//! counted (`lost`). A file with several names is read once. In memory are, besides the entries of the directories on
//! the way, the files of which not all names have been met: a path each, and some 100 bytes.

use std::{
    collections::{HashMap, hash_map::Entry},
    ffi::OsString,
    path::{Path, PathBuf},
    rc::Rc,
};

use anyhow::{Context, Result};
use pando_fs::FileKind;

use crate::{
    below::Attrs,
    tree::{
        CHUNK_BYTES, Count, EntryId, Meta, Piece, Progress, Sink, View,
        lost::{Losses, Lost, NotKept, errno, is_refusal},
    },
};

/// Files with further names: where their first one is in the copy.
#[derive(Default)]
struct Links {
    first: HashMap<(u64, u64), First>,
    /// The directory of the one that came last: neighbours share it.
    dir: Option<Rc<Path>>,
}

struct First {
    dir: Rc<Path>,
    name: OsString,
    /// Names that have not been met.
    left: u64,
}

impl Links {
    /// The first name of this file, if it has been met.
    fn get(&self, meta: &Meta) -> Option<PathBuf> {
        self.first.get(&(meta.dev, meta.ino)).map(|first| first.dir.join(&first.name))
    }

    /// A further name was met: nothing is remembered beyond the last one.
    fn met(&mut self, meta: &Meta) {
        if let Entry::Occupied(mut entry) = self.first.entry((meta.dev, meta.ino)) {
            entry.get_mut().left -= 1;
            if entry.get().left == 0 {
                entry.remove();
            }
        }
    }

    /// Notes a name that later names can be linked to.
    fn made(&mut self, meta: &Meta, path: &Path) {
        let left = match self.first.get(&(meta.dev, meta.ino)) {
            Some(first) => first.left,
            None => meta.nlink,
        };
        let (Some(dir), Some(name), true) = (path.parent(), path.file_name(), left > 1) else {
            self.first.remove(&(meta.dev, meta.ino));
            return;
        };
        let dir = match &self.dir {
            Some(last) if **last == *dir => last.clone(),
            _ => self.dir.insert(dir.into()).clone(),
        };
        let first = First { dir, name: name.to_owned(), left: left - 1 };
        self.first.insert((meta.dev, meta.ino), first);
    }
}

/// A callback for files that could not be copied completely.
pub type Told<'a> = &'a mut dyn FnMut(&Path, anyhow::Error) -> Result<()>;

/// A copy under way.
struct Copy<'a> {
    from: &'a dyn View,
    to: &'a dyn Sink,
    progress: &'a Progress,
    buf: Vec<u8>,
    links: Links,
    losses: Losses,
    not_kept: NotKept,
    count: Count,
}

/// Copies all of `from` to `to`; how much it was, and what could not be kept.
pub fn copy(from: &dyn View, to: &dyn Sink, progress: &Progress) -> Result<(Count, NotKept)> {
    copy_around(from, to, progress, &mut |_, error| Err(error))
}

/// Copies what can be read of `from` to `to`. `lost` is told of each file that is not whole (a hole is left where its
/// data could not be read) or is missing, and of each directory of which some or all is missing, and why; an error
/// that it gives ends the work.
pub fn copy_around(
    from: &dyn View,
    to: &dyn Sink,
    progress: &Progress,
    lost: Told<'_>,
) -> Result<(Count, NotKept)> {
    let root = PathBuf::new();
    let meta = from.meta(&root)?;
    let mut copy = Copy {
        from,
        to,
        progress,
        buf: vec![0; CHUNK_BYTES],
        links: Links::default(),
        losses: Vec::new(),
        not_kept: NotKept::default(),
        count: Count::default(),
    };
    // Directories get their attributes and times after everything in them has been made.
    let mut dirs = Vec::new();
    let mut todo = vec![(root, meta)];
    while let Some((path, meta)) = todo.pop() {
        progress.at(&path)?;
        let made = || format!("making {}", to.show(&path));
        if meta.kind != FileKind::Directory {
            copy.file(&path, &meta, lost)?;
            copy.tell(&path);
            continue;
        }
        copy.count.add(&meta);
        let id = to.mkdir(&path).with_context(made)?;
        if path.as_os_str().is_empty() {
            // What is made in the tree inherits from its top, and that from what is around it.
            to.clear_access_lists(&path).with_context(made)?;
        }
        let (mut entries, missing) = from.list_some(&path);
        if let Some(error) = missing {
            lost(&path, error)?;
        }
        // Sorted, so that neighbours are written one after the other and a copy of a tree is the same bytes each
        // time. The stack turns the order around.
        entries.sort_unstable_by(|a, b| b.0.cmp(&a.0));
        todo.extend(entries.into_iter().map(|(name, meta)| (path.join(name), meta)));
        dirs.push((path, id, meta));
    }
    for (path, id, meta) in dirs.iter().rev() {
        copy.close(path, *id, meta, lost)?;
        copy.tell(path);
    }
    Ok((copy.count, copy.not_kept))
}

impl Copy<'_> {
    /// Counts what was not kept of the entry at `path`.
    fn tell(&mut self, path: &Path) {
        if !self.losses.is_empty() {
            self.not_kept.add(|| self.to.show(path), &mut self.losses);
        }
    }

    /// Notes that `error` was in the way of something, if that is a refusal; the error if not.
    fn refused(&mut self, lost: Lost, error: anyhow::Error) -> Result<()> {
        match errno(&error) {
            Some(number) if is_refusal(number) => {
                self.losses.push((lost, error.root_cause().to_string()));
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Makes what is no directory.
    fn file(&mut self, path: &Path, meta: &Meta, lost: Told<'_>) -> Result<()> {
        let linked = meta.nlink > 1;
        if linked && let Some(first) = self.links.get(meta) {
            let link = self.to.link(&first, path);
            match link.with_context(|| format!("making {}", self.to.show(path))) {
                Ok(()) => {
                    self.links.met(meta);
                    self.count.add_name();
                    return self.progress.advance(0);
                }
                Err(error) => self.refused(Lost::HardLink, error)?,
            }
        }
        self.count.add(meta);
        let made = match meta.kind {
            FileKind::Regular => self.content(path, meta, lost)?,
            _ => self.other(path, meta, lost)?,
        };
        if made && linked {
            self.links.made(meta, path);
        }
        Ok(())
    }

    /// Makes a regular file; whether there is one now.
    fn content(&mut self, path: &Path, meta: &Meta, lost: Told<'_>) -> Result<bool> {
        let to = self.to;
        let made = || format!("making {}", to.show(path));
        let mut reader = match self.from.open(path) {
            Ok(reader) => reader,
            Err(error) => return lost(path, error).map(|()| false),
        };
        let mut writer = to.create(path).with_context(made)?;
        let mut told = false;
        loop {
            let piece = match reader.next(&mut self.buf) {
                Ok(piece) => piece,
                Err(error) => {
                    if !std::mem::replace(&mut told, true) {
                        lost(path, error)?;
                    }
                    match reader.pass() {
                        0 => break,
                        bytes => Piece::Hole(bytes),
                    }
                }
            };
            match piece {
                Piece::Data(n) => {
                    writer.write(self.buf.get(..n).unwrap_or_default()).with_context(made)?;
                    self.progress.advance(n as u64)?;
                }
                Piece::Hole(n) => {
                    writer.skip(n).with_context(made)?;
                    self.progress.advance(n)?;
                }
                Piece::End => break,
            }
        }
        if path.as_os_str().is_empty() {
            to.clear_access_lists(path).with_context(made)?;
        }
        let attrs = self.attrs(path, reader.attrs(), lost)?;
        writer.finish(meta, &attrs, &mut self.losses).with_context(made)?;
        Ok(true)
    }

    /// Makes what is neither a directory nor a regular file; whether it is there now.
    fn other(&mut self, path: &Path, meta: &Meta, lost: Told<'_>) -> Result<bool> {
        let done = match meta.kind {
            FileKind::Symlink => match self.from.readlink(path) {
                Ok(target) => self.to.symlink(path, &target),
                Err(error) => return lost(path, error).map(|()| false),
            },
            _ => self.to.special(path, meta),
        };
        match done.with_context(|| format!("making {}", self.to.show(path))) {
            Ok(id) => self.close(path, id, meta, lost).map(|()| true),
            Err(error) => self.refused(Lost::Special, error).map(|()| false),
        }
    }

    /// Gives what was made at `path`, and is `id`, its attributes, owner, mode and times.
    fn close(&mut self, path: &Path, id: EntryId, meta: &Meta, lost: Told<'_>) -> Result<()> {
        let attrs = self.attrs(path, self.from.attrs(path), lost)?;
        let made = || format!("making {}", self.to.show(path));
        self.to.set_meta(path, id, meta, &attrs, &mut self.losses).with_context(made)
    }

    /// The attributes that could be read.
    fn attrs(&mut self, path: &Path, read: Result<Attrs>, lost: Told<'_>) -> Result<Attrs> {
        let error = match read {
            Ok(attrs) => return Ok(attrs),
            Err(error) => error,
        };
        match errno(&error) {
            Some(libc::EPERM | libc::EACCES) => {
                self.losses.push((Lost::Attribute, error.root_cause().to_string()));
            }
            _ => lost(path, error)?,
        }
        Ok(Attrs::new())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt},
    };

    use super::{super::Writer, super::host::HostTree, *};

    /// A directory of the host in which no file has more than `most` names.
    struct FewLinks(HostTree, PathBuf, u64);

    impl Sink for FewLinks {
        fn show(&self, path: &Path) -> String {
            Sink::show(&self.0, path)
        }
        fn mkdir(&self, path: &Path) -> Result<EntryId> {
            self.0.mkdir(path)
        }
        fn create(&self, path: &Path) -> Result<Box<dyn Writer + '_>> {
            self.0.create(path)
        }
        fn symlink(&self, path: &Path, target: &OsString) -> Result<EntryId> {
            self.0.symlink(path, target)
        }
        fn special(&self, path: &Path, meta: &Meta) -> Result<EntryId> {
            self.0.special(path, meta)
        }
        fn link(&self, first: &Path, path: &Path) -> Result<()> {
            match fs::symlink_metadata(self.1.join(first))?.nlink() >= self.2 {
                true => Err(std::io::Error::from_raw_os_error(libc::EMLINK).into()),
                false => self.0.link(first, path),
            }
        }
        fn clear_access_lists(&self, path: &Path) -> Result<()> {
            self.0.clear_access_lists(path)
        }
        fn set_meta(
            &self,
            path: &Path,
            id: EntryId,
            meta: &Meta,
            attrs: &Attrs,
            losses: &mut Losses,
        ) -> Result<()> {
            self.0.set_meta(path, id, meta, attrs, losses)
        }
    }

    /// A directory of the host, in which somebody puts something else in the place of what was made at a path, before
    /// that gets its mode.
    struct Swapped<'a>(HostTree, PathBuf, &'a str, fn(&Path, &Path));

    impl Sink for Swapped<'_> {
        fn show(&self, path: &Path) -> String {
            Sink::show(&self.0, path)
        }
        fn mkdir(&self, path: &Path) -> Result<EntryId> {
            self.0.mkdir(path)
        }
        fn create(&self, path: &Path) -> Result<Box<dyn Writer + '_>> {
            self.0.create(path)
        }
        fn symlink(&self, path: &Path, target: &OsString) -> Result<EntryId> {
            self.0.symlink(path, target)
        }
        fn special(&self, path: &Path, meta: &Meta) -> Result<EntryId> {
            self.0.special(path, meta)
        }
        fn link(&self, first: &Path, path: &Path) -> Result<()> {
            self.0.link(first, path)
        }
        fn clear_access_lists(&self, path: &Path) -> Result<()> {
            self.0.clear_access_lists(path)
        }
        fn set_meta(
            &self,
            path: &Path,
            id: EntryId,
            meta: &Meta,
            attrs: &Attrs,
            losses: &mut Losses,
        ) -> Result<()> {
            if path == Path::new(self.2) {
                let at = if self.2.is_empty() { self.1.clone() } else { self.1.join(path) };
                fs::rename(&at, at.with_file_name("away")).unwrap();
                self.3(&at, &self.1.with_file_name("victim"));
            }
            self.0.set_meta(path, id, meta, attrs, losses)
        }
    }

    #[test]
    fn what_is_swapped_for_what_was_made_keeps_its_mode_and_times() {
        let link: fn(&Path, &Path) = |at, victim| std::os::unix::fs::symlink(victim, at).unwrap();
        let other: fn(&Path, &Path) = |at, victim| fs::rename(victim, at).unwrap();
        for (at, swap, dir) in [
            ("", link, false),
            ("d", link, false),
            ("pipe", link, false),
            ("", other, true),
            ("d", other, true),
            ("pipe", other, false),
        ] {
            let tmp = tempfile::tempdir().unwrap();
            let [a, b, victim] = ["a", "b", "victim"].map(|name| tmp.path().join(name));
            fs::create_dir_all(a.join("d")).unwrap();
            let mode = rustix::fs::Mode::from_raw_mode(0o777);
            let fifo = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, a.join("pipe"), fifo, mode, 0).unwrap();
            if dir {
                fs::create_dir(&victim).unwrap()
            } else {
                fs::write(&victim, "").unwrap()
            }
            let held = fs::File::open(&victim).unwrap();
            for path in [&a, &a.join("d"), &a.join("pipe")] {
                fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
            }
            fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
            let before = held.metadata().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
            let to = Swapped(HostTree::new(&b), b.clone(), at, swap);
            let (_, not_kept) = copy(&HostTree::new(&a), &to, &Progress::none()).unwrap();
            let after = held.metadata().unwrap();
            assert_eq!(after.mode(), before.mode(), "{at:?}: {:o}", after.mode());
            assert_eq!(after.modified().unwrap(), before.modified().unwrap(), "{at:?}");
            let said: Vec<String> = not_kept.lines().collect();
            assert!(said.len() == 1 && said[0].contains("something else"), "{at:?}: {said:?}");
        }
    }

    #[test]
    fn where_a_file_can_have_few_names_the_next_are_linked_to_a_copy() {
        let tmp = tempfile::tempdir().unwrap();
        let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
        fs::create_dir(&a).unwrap();
        fs::write(a.join("0"), "content").unwrap();
        (1..7).for_each(|i| fs::hard_link(a.join("0"), a.join(i.to_string())).unwrap());
        let to = FewLinks(HostTree::new(&b), b.clone(), 3);
        let (count, not_kept) = copy(&HostTree::new(&a), &to, &Progress::none()).unwrap();
        assert_eq!((count.files, count.linked, count.bytes), (7, 4, 21));
        let said: Vec<String> = not_kept.lines().collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("2 hard links became files of their own; the first: "), "{said:?}");
        let ino = |i: u64| fs::metadata(b.join(i.to_string())).unwrap().ino();
        let same: Vec<bool> = (1..7).map(|i| ino(i) == ino(i - 1)).collect();
        assert_eq!(same, [true, true, false, true, true, false]);
        (0..7).for_each(|i| assert_eq!(fs::read(b.join(i.to_string())).unwrap(), b"content"));
    }

    #[test]
    fn nothing_is_remembered_of_a_file_all_names_of_which_were_met() {
        let meta = |ino, nlink| {
            let tmp = tempfile::NamedTempFile::new().unwrap();
            Meta { ino, nlink, ..HostTree::new(tmp.path()).meta(Path::new("")).unwrap() }
        };
        let (three, two) = (meta(1, 3), meta(2, 2));
        let mut links = Links::default();
        links.made(&three, Path::new("d/a"));
        links.made(&two, Path::new("d/b"));
        assert!(Rc::ptr_eq(&links.first[&(three.dev, 1)].dir, &links.first[&(two.dev, 2)].dir));
        links.met(&two);
        assert_eq!(links.get(&two), None);
        links.met(&three);
        assert_eq!(links.get(&three), Some(PathBuf::from("d/a")));
        links.made(&three, Path::new("e/c"));
        assert_eq!(links.first.len(), 0);
    }
}
