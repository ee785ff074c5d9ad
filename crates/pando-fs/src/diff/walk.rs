//! The walk over the differences, path by path.
//!
//! A job is a pair of directories, one of which may not exist; moved directories are jobs of their own, so everything
//! on either side is visited once.

use std::{
    collections::VecDeque,
    ffi::OsString,
    sync::{Arc, atomic::AtomicBool},
};

use bytes::Bytes;

use crate::{
    diff::{
        change::{Aspects, ChangeKind, DiffOptions, FileChange, shown},
        compare::compare,
        confirm::confirm_moves,
        links::LinkScan,
        moves::Moves,
        side::{DirPair, Found, Side, contents_of, go_on, identity},
        stream::{DiffStream, Spot},
    },
    error::Result,
    path,
    types::FileKind,
};

/// Something that is still to be done.
enum WalkJob {
    /// What differs below two directories.
    Tree(DirPair),
    /// What is below a directory that the other side lacks: whether that is the first tree, and the directory.
    Alone(bool, Vec<u8>),
    /// Linked files with names below two directories.
    Links(DirPair),
}

impl WalkJob {
    fn top() -> Self {
        WalkJob::Tree(DirPair::default())
    }
}

/// What is being done.
enum Running {
    Tree { pair: DirPair, stream: Box<DiffStream> },
    Links(Box<LinkScan>),
}

/// The differences of two trees, one by one: see [`crate::Fs::diff`]. After an error it ends.
pub struct TreeDiff {
    before: Side,
    after: Side,
    options: DiffOptions,
    moves: Moves,
    /// Whether there may be files with several names.
    links: bool,
    jobs: VecDeque<WalkJob>,
    current: Option<Running>,
    ready: VecDeque<FileChange>,
    begun: bool,
}

fn on_one_side(kind: ChangeKind, found: &Found, entry: &[u8]) -> FileChange {
    let size = found.record.size;
    FileChange {
        kind,
        file: found.record.kind,
        path: shown(entry),
        from: None,
        aspects: Aspects::default(),
        size_before: if kind == ChangeKind::Removed { size } else { 0 },
        size_after: if kind == ChangeKind::Added { size } else { 0 },
        ranges: Vec::new(),
    }
}

/// An entry on both sides: paths from the tops, and values.
struct CommonEntry<'a> {
    before: (&'a [u8], &'a Bytes),
    after: (&'a [u8], &'a Bytes),
}

impl TreeDiff {
    /// Of two directories, or else of two files, in a store with linked files or without.
    pub(crate) fn new(before: Side, mut after: Side, options: DiffOptions, dirs: bool, links: bool) -> Self {
        let jobs = VecDeque::from_iter(dirs.then(WalkJob::top));
        let (current, ready) = (None, VecDeque::new());
        after.stop = before.stop.clone();
        Self { before, after, options, moves: Moves::default(), links, jobs, current, ready, begun: false }
    }

    /// Compares the tops, and finds what moved.
    fn begin(&mut self) -> Result<()> {
        let (a, b) = (self.before.top()?, self.after.top()?);
        let found = compare(&self.before, &a, &self.after, &b, self.options)?;
        if !found.aspects.is_empty() {
            self.ready.push_back(found.change(ChangeKind::Modified, &a, &b, OsString::new(), None));
        }
        if !self.options.no_renames && !self.jobs.is_empty() {
            let stop = self.stop();
            let go_on = || go_on(&stop);
            self.moves = Moves::find(&mut self.before, &mut self.after, &go_on)?;
            confirm_moves(&mut self.moves, &self.before, &self.after, &go_on)?;
        }
        Ok(())
    }

    fn advance(&mut self) -> Result<Option<FileChange>> {
        if !std::mem::replace(&mut self.begun, true) {
            self.begin()?;
        }
        loop {
            go_on(&self.before.stop)?;
            if let Some(ready) = self.ready.pop_front() {
                return Ok(Some(ready));
            }
            if !self.step()? {
                return Ok(None);
            }
        }
    }
}

impl TreeDiff {
    /// What ends it when it is set: the next difference is an error then (EINTR), however far the search for it had
    /// come.
    pub fn stop(&self) -> Arc<AtomicBool> {
        self.before.stop.clone()
    }
}

impl Iterator for TreeDiff {
    type Item = Result<FileChange>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.advance();
        if found.is_err() {
            (self.current, self.begun) = (None, true);
            self.jobs.clear();
            self.ready.clear();
        }
        found.transpose()
    }
}

impl TreeDiff {
    /// Does a little of what is to be done; false if there is nothing more.
    fn step(&mut self) -> Result<bool> {
        match self.current.take() {
            Some(Running::Tree { pair, mut stream }) => {
                if let Some(spot) = stream.next()? {
                    self.spot(&pair, &mut stream, spot)?;
                    self.current = Some(Running::Tree { pair, stream });
                }
                Ok(true)
            }
            Some(Running::Links(mut scan)) => {
                if let Some((inside, value)) = scan.next(&self.before)? {
                    self.linked(&scan, &inside, &value)?;
                    self.current = Some(Running::Links(scan));
                }
                Ok(true)
            }
            None => self.begin_job(),
        }
    }

    fn begin_job(&mut self) -> Result<bool> {
        let Some(job) = self.jobs.pop_front() else { return Ok(false) };
        let nothing = path::snapshot(path::SNAPSHOTS_END);
        // The data of entries on one side only need not be compared.
        let both = matches!(job, WalkJob::Tree(_));
        let (pair, before, after) = match job {
            WalkJob::Tree(pair) => {
                if self.links {
                    self.jobs.push_front(WalkJob::Links(pair.clone()));
                }
                let (a, b) = (self.before.place(&pair.before), self.after.place(&pair.after));
                (pair, a, b)
            }
            WalkJob::Alone(true, dir) => {
                let place = self.before.place(&dir);
                (DirPair { before: dir.clone(), after: dir }, place, nothing)
            }
            WalkJob::Alone(false, dir) => {
                let place = self.after.place(&dir);
                (DirPair { before: dir.clone(), after: dir }, nothing, place)
            }
            WalkJob::Links(pair) => {
                let scan = LinkScan::new(pair, &mut self.before, &mut self.after)?;
                self.current = scan.map(|scan| Running::Links(Box::new(scan)));
                return Ok(true);
            }
        };
        let stream = DiffStream::new(&self.before.view, (&before, &after), both)?.stop_on(&self.before.stop);
        self.current = Some(Running::Tree { pair, stream: Box::new(stream) });
        Ok(true)
    }

    /// Whether the caller may see what is in the directory of an entry, on a side.
    fn sees(side: &mut Side, entry: &[u8]) -> Result<bool> {
        Ok(side.level(path::directory_of(entry))?.is_none_or(|level| level.sees))
    }

    fn spot(&mut self, pair: &DirPair, stream: &mut DiffStream, spot: Spot) -> Result<()> {
        let (path, records) = match spot {
            Spot::Entry { path, records, .. } => (path, records),
            Spot::Links(root) => {
                if !root.is_empty() {
                    self.links_of_roots(pair, &root)?;
                }
                return Ok(());
            }
        };
        let (a, b) = ([&pair.before[..], &path].concat(), [&pair.after[..], &path].concat());
        let (old, new) = match records {
            Some(records) => records,
            // Only its data differs.
            None => (self.before.value(&a)?, self.after.value(&b)?),
        };
        let hidden = old.is_some() && !Self::sees(&mut self.before, &a)?
            || new.is_some() && !Self::sees(&mut self.after, &b)?;
        if hidden {
            let dir = path::directory_of(&path);
            let dir_entry = path::entry_of_contents(&[&pair.after[..], dir].concat()).unwrap_or_default();
            self.unreadable(FileKind::Directory, shown(&dir_entry));
            stream.skip(dir);
            return Ok(());
        }
        match (old, new) {
            (Some(old), Some(new)) => {
                let both = CommonEntry { before: (&a, &old), after: (&b, &new) };
                self.both(pair, stream, &path, &both)
            }
            (Some(old), None) => {
                let id = identity(&a, &old)?;
                let contents = contents_of(&path);
                if self.moves.leaves(id, &a) {
                    // Told where it has gone.
                    if id.1 == FileKind::Directory {
                        stream.skip(&contents);
                    }
                    return Ok(());
                }
                if id.1 == FileKind::Directory {
                    stream.skip_data(&contents);
                }
                self.removed(&a, &old)
            }
            (None, Some(new)) => {
                let id = identity(&b, &new)?;
                let contents = contents_of(&path);
                match self.moves.source(id, &b).map(<[u8]>::to_vec) {
                    Some(from) => {
                        if id.1 == FileKind::Directory {
                            stream.skip(&contents);
                        }
                        self.moved(&from, &b, &new)
                    }
                    None => {
                        if id.1 == FileKind::Directory {
                            stream.skip_data(&contents);
                        }
                        self.added(&b, &new)
                    }
                }
            }
            (None, None) => Ok(()),
        }
    }

    /// An entry that has something on both sides.
    fn both(
        &mut self,
        pair: &DirPair,
        stream: &mut DiffStream,
        path: &[u8],
        both: &CommonEntry<'_>,
    ) -> Result<()> {
        let ((a, old), (b, new)) = (both.before, both.after);
        let (x, y) = (identity(a, old)?, identity(b, new)?);
        let (leaves, from) = match x == y {
            true => (false, None),
            false => (self.moves.leaves(x, a), self.moves.source(y, b).map(<[u8]>::to_vec)),
        };
        let (x_dir, y_dir) = (x.1 == FileKind::Directory, y.1 == FileKind::Directory);
        if !leaves && from.is_none() && x.1 == y.1 {
            if x_dir && self.links {
                self.border_moved(pair, path, both)?;
            }
            return self.compared(ChangeKind::Modified, both);
        }
        if x_dir || y_dir {
            let contents = contents_of(path);
            if x_dir && y_dir {
                // Two directories that have nothing to do with each other.
                stream.skip(&contents);
                if !leaves {
                    self.jobs.push_back(WalkJob::Alone(true, contents_of(a)));
                }
                if from.is_none() {
                    self.jobs.push_back(WalkJob::Alone(false, contents_of(b)));
                }
            } else if x_dir && leaves || y_dir && from.is_some() {
                stream.skip(&contents);
            } else {
                stream.skip_data(&contents);
            }
        }
        if !leaves {
            self.removed(a, old)?;
        }
        match from {
            Some(from) => self.moved(&from, b, new),
            None => self.added(b, new),
        }
    }

    fn removed(&mut self, entry: &[u8], value: &Bytes) -> Result<()> {
        let found = self.before.found(entry, value)?;
        self.ready.push_back(on_one_side(ChangeKind::Removed, &found, entry));
        Ok(())
    }

    fn added(&mut self, entry: &[u8], value: &Bytes) -> Result<()> {
        let found = self.after.found(entry, value)?;
        self.ready.push_back(on_one_side(ChangeKind::Added, &found, entry));
        Ok(())
    }

    fn compared(&mut self, kind: ChangeKind, both: &CommonEntry<'_>) -> Result<()> {
        let ((a, old), (b, new)) = (both.before, both.after);
        let (x, y) = (self.before.found(a, old)?, self.after.found(b, new)?);
        let found = compare(&self.before, &x, &self.after, &y, self.options)?;
        if found.unread {
            self.unreadable(FileKind::Regular, shown(b));
        }
        if kind == ChangeKind::Renamed || !found.aspects.is_empty() {
            // In a directory that moved a file has another path too.
            let from = (kind == ChangeKind::Renamed || a != b).then(|| shown(a));
            self.ready.push_back(found.change(kind, &x, &y, shown(b), from));
        }
        Ok(())
    }

    /// What is at `b` was at `from`.
    fn moved(&mut self, from: &[u8], b: &[u8], new: &Bytes) -> Result<()> {
        let is_dir = identity(b, new)?.1 == FileKind::Directory;
        let Some(old) = self.before.value(from)? else { return self.added(b, new) };
        // From where the caller may not look it has just come.
        if !Self::sees(&mut self.before, from)? {
            if is_dir {
                self.jobs.push_back(WalkJob::Alone(false, contents_of(b)));
            }
            return self.added(b, new);
        }
        if is_dir {
            self.jobs.push_back(WalkJob::Tree(DirPair { before: contents_of(from), after: contents_of(b) }));
        }
        self.compared(ChangeKind::Renamed, &CommonEntry { before: (from, &old), after: (b, new) })
    }

    fn unreadable(&mut self, file: FileKind, path: OsString) {
        let change = FileChange {
            kind: ChangeKind::Unreadable,
            file,
            path,
            from: None,
            aspects: Aspects::default(),
            size_before: 0,
            size_after: 0,
            ranges: Vec::new(),
        };
        self.ready.push_back(change);
    }

    /// Linked files differ in the lineage whose root has this contents prefix, on one side or both.
    fn links_of_roots(&mut self, pair: &DirPair, root: &[u8]) -> Result<()> {
        let (a, b) = ([&pair.before[..], root].concat(), [&pair.after[..], root].concat());
        let is_root = |side: &mut Side, dir: &[u8]| -> Result<bool> {
            Ok(side.level(dir)?.is_some_and(|level| level.root == level.contents))
        };
        if is_root(&mut self.before, &a)? && is_root(&mut self.after, &b)? {
            self.jobs.push_back(WalkJob::Links(DirPair { before: a, after: b }));
        }
        Ok(())
    }

    /// Where a directory is the root of a lineage on one side only, its names mean files elsewhere.
    fn border_moved(&mut self, pair: &DirPair, path: &[u8], both: &CommonEntry<'_>) -> Result<()> {
        let (x, y) = (
            self.before.found(both.before.0, both.before.1)?.record,
            self.after.found(both.after.0, both.after.1)?.record,
        );
        if (x.clone_id == 0) != (y.clone_id == 0) {
            let inside = contents_of(path);
            let (before, after) = ([&pair.before[..], &inside].concat(), [&pair.after[..], &inside].concat());
            self.jobs.push_back(WalkJob::Links(DirPair { before, after }));
        }
        Ok(())
    }

    /// A name, below a pair of directories, of a linked file that differs.
    fn linked(&mut self, scan: &LinkScan, inside: &[u8], value: &Bytes) -> Result<()> {
        let pair = &scan.pair;
        let (a, b) = ([&pair.before[..], inside].concat(), [&pair.after[..], inside].concat());
        // Names that differ themselves were told of.
        let Some(new) = self.after.value(&b)?.filter(|new| new == value) else { return Ok(()) };
        // Where the second tree has another root, the names are looked for by a job of their own.
        let level = self.after.level(path::directory_of(&b))?;
        if level.is_none_or(|level| level.root != scan.other_root) {
            return Ok(());
        }
        let above = self.before.numbers(&pair.before, path::directory_of(&a))?;
        let others = self.after.numbers(&pair.after, path::directory_of(&b))?;
        let apart = |(x, y): (&u64, &u64)| x != y && (self.moves.moved_dir(*x) || self.moves.moved_dir(*y));
        if above.iter().zip(&others).any(apart)
            || !Self::sees(&mut self.before, &a)?
            || !Self::sees(&mut self.after, &b)?
        {
            return Ok(());
        }
        self.compared(ChangeKind::Modified, &CommonEntry { before: (&a, value), after: (&b, &new) })
    }
}
