//! Writes a tree, or its difference from an earlier one, as records.
//!
//! A whole tree is walked in the order of names, so that one snapshot gives one stream, byte for byte. A difference
//! is sent in phases, so that a receiver can apply records in order: first everything that is removed or moved is
//! taken out, children before their directory; then every entry is put at its path, directories before their entries;
//! then further names of files; last, the attributes of directories in which something changed. Memory: the entries
//! of the directories on the present path and the files with several names; for a difference, everything that
//! differs.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    os::unix::ffi::OsStrExt,
};

use crate::{
    diff::{Aspects, ChangeKind, FileChange},
    limits::BLOCK_SIZE,
    send::{
        StreamError,
        frame::BLOCK_BYTES,
        plan::{SendPlan, is_made_anew, join, relinked, untangled},
        record::{DATA_BYTES, StreamRecord, Totals},
        tree::{FileMeta, SourceTree},
    },
    types::FileKind,
};

/// What a stream will hold, before compression.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamSize {
    /// Its totals.
    pub totals: Totals,
    /// Bytes of all records.
    pub bytes: u64,
}

/// Takes a block of at most [`BLOCK_BYTES`], and whether it is the last one.
pub type Sink<'a> = dyn FnMut(Vec<u8>, bool) -> Result<(), StreamError> + 'a;
/// Told how many bytes of content were sent, and asked whether to go on.
pub type Advance<'a> = dyn FnMut(u64) -> Result<(), StreamError> + 'a;

/// Sends a tree.
pub struct Sender<'a> {
    source: &'a dyn SourceTree,
    /// Where blocks go; without it nothing is read, only counted.
    sink: Option<&'a mut Sink<'a>>,
    advance: &'a mut Advance<'a>,
    block: Vec<u8>,
    /// Bytes of a block.
    most: usize,
    size: StreamSize,
    buf: Vec<u8>,
}

enum Visit {
    Enter(Vec<u8>, FileMeta),
    Leave(Vec<u8>, FileMeta),
}

impl<'a> Sender<'a> {
    /// Sends what is in `source` to `sink`, or only counts what it would send if there is none.
    pub fn new(
        source: &'a dyn SourceTree,
        sink: Option<&'a mut Sink<'a>>,
        advance: &'a mut Advance<'a>,
    ) -> Self {
        let buf = if sink.is_some() { vec![0; DATA_BYTES] } else { Vec::new() };
        Self { source, sink, advance, block: Vec::new(), most: BLOCK_BYTES, size: StreamSize::default(), buf }
    }

    /// Makes blocks of about so many bytes, at most [`BLOCK_BYTES`]: more points at which a receiver can go on.
    pub fn with_blocks_of(mut self, bytes: usize) -> Self {
        self.most = bytes.clamp(1, BLOCK_BYTES);
        self.buf.truncate(self.most);
        self
    }

    fn put(&mut self, record: &StreamRecord<'_>) -> Result<(), StreamError> {
        self.size.totals.add(record);
        let begin = self.block.len();
        record.encode(&mut self.block);
        self.size.bytes += (self.block.len() - begin) as u64;
        if self.sink.is_none() {
            self.block.clear();
        } else if self.block.len() > self.most && begin > 0 {
            let rest = self.block.split_off(begin);
            self.flush(false)?;
            self.block = rest;
        }
        Ok(())
    }

    fn flush(&mut self, last: bool) -> Result<(), StreamError> {
        let block = std::mem::replace(&mut self.block, Vec::with_capacity(BLOCK_BYTES));
        match &mut self.sink {
            Some(sink) if last || !block.is_empty() => sink(block, last),
            _ => Ok(()),
        }
    }

    fn phase(&mut self) -> Result<(), StreamError> {
        self.put(&StreamRecord::Phase)?;
        self.flush(false)
    }

    fn end(mut self) -> Result<StreamSize, StreamError> {
        let totals = self.size.totals;
        self.put(&StreamRecord::End(totals))?;
        self.flush(true)?;
        Ok(self.size)
    }

    /// Sends all that is in the tree.
    pub fn full(mut self) -> Result<StreamSize, StreamError> {
        let source = self.source;
        let top = source.meta(b"").map_err(StreamError::at(b""))?;
        let mut names: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut todo = vec![Visit::Enter(Vec::new(), top)];
        while let Some(visit) = todo.pop() {
            match visit {
                Visit::Leave(path, meta) => self.facts(&path, &meta, false)?,
                Visit::Enter(path, meta) if meta.kind == FileKind::Directory => {
                    (self.advance)(0)?;
                    if !path.is_empty() {
                        self.put(&StreamRecord::Dir { path: &path })?;
                    }
                    let mut entries = source.list(&path).map_err(StreamError::at(&path))?;
                    // The stack turns the order around.
                    entries.sort_unstable_by(|a, b| b.0.cmp(&a.0));
                    let inside = |(name, meta): (std::ffi::OsString, FileMeta)| {
                        Visit::Enter(join(&path, name.as_bytes()), meta)
                    };
                    let entries: Vec<Visit> = entries.into_iter().map(inside).collect();
                    todo.push(Visit::Leave(path, meta));
                    todo.extend(entries);
                }
                Visit::Enter(path, meta) => {
                    if meta.nlink > 1 {
                        if let Some(to) = names.get(&meta.ino) {
                            self.put(&StreamRecord::Link { path: &path, to })?;
                            continue;
                        }
                        names.insert(meta.ino, path.clone());
                    }
                    self.whole(&path, &meta)?;
                    self.facts(&path, &meta, false)?;
                }
            }
        }
        self.end()
    }

    /// Sends a file that the receiver does not have.
    fn whole(&mut self, path: &[u8], meta: &FileMeta) -> Result<(), StreamError> {
        match meta.kind {
            FileKind::Directory => self.put(&StreamRecord::Dir { path }),
            FileKind::Regular => {
                self.put(&StreamRecord::File { path })?;
                let written = self.content(path, &[(0, meta.size)], false)?;
                if written < meta.size {
                    self.put(&StreamRecord::Size { size: meta.size })?;
                }
                Ok(())
            }
            FileKind::Symlink => {
                let target = self.source.readlink(path).map_err(StreamError::at(path))?;
                self.put(&StreamRecord::Symlink { path, target: &target })
            }
            kind => self.put(&StreamRecord::Special { path, kind, rdev: meta.rdev }),
        }
    }

    /// Sends these bytes of a file, and holes in them if `holes`. Returns where the last bytes end.
    fn content(&mut self, path: &[u8], ranges: &[(u64, u64)], holes: bool) -> Result<u64, StreamError> {
        let mut end = 0;
        if ranges.iter().all(|(from, to)| from >= to) {
            return Ok(end);
        }
        let fail = || StreamError::at(path);
        let mut file = self.source.open(path).map_err(fail())?;
        for (from, to) in ranges {
            let mut at = *from;
            while at < *to {
                let data = file.data_from(at, *to).map_err(fail())?;
                let (begin, stop) = data.unwrap_or((*to, *to));
                if holes && begin > at {
                    // Holes are of whole blocks, also where only some of their bytes were no zeros before.
                    let (from, to) = (at / BLOCK_SIZE * BLOCK_SIZE, begin.next_multiple_of(BLOCK_SIZE));
                    self.put(&StreamRecord::Hole { offset: from, len: to - from })?;
                }
                at = begin;
                if self.sink.is_none() {
                    // Counted, not read: what a record says of its bytes is left out.
                    self.size.totals.bytes += stop - at;
                    self.size.bytes += stop - at;
                    at = stop;
                }
                while at < stop {
                    let mut buf = std::mem::take(&mut self.buf);
                    let want = usize::try_from(stop - at).unwrap_or(usize::MAX).min(buf.len());
                    let part = buf.get_mut(..want).unwrap_or_default();
                    let n = file.read_at(part, at).map_err(fail())?;
                    if n == 0 {
                        let text = format!("ends at byte {at}, before {stop}: it changes while it is sent");
                        return Err(fail()(std::io::Error::other(text)));
                    }
                    let sent = self
                        .put(&StreamRecord::Data { offset: at, bytes: part.get(..n).unwrap_or_default() });
                    self.buf = buf;
                    sent?;
                    at += n as u64;
                    (self.advance)(n as u64)?;
                }
                if data.is_some() {
                    end = at;
                }
            }
        }
        Ok(end)
    }

    /// Sends what is said of a file besides its content. `clear`: it may have extended attributes that it must not.
    fn facts(&mut self, path: &[u8], meta: &FileMeta, clear: bool) -> Result<(), StreamError> {
        let mut xattrs = self.source.xattrs(path, meta.kind).map_err(StreamError::at(path))?;
        xattrs.sort_unstable();
        if clear {
            self.put(&StreamRecord::NoXattrs { path })?;
        }
        if !xattrs.is_empty() {
            // A change of the owner takes some of them away, so it comes first.
            self.put(&StreamRecord::Owner { path, uid: meta.uid, gid: meta.gid })?;
        }
        for (name, value) in &xattrs {
            self.put(&StreamRecord::Xattr { path, name, value })?;
        }
        let FileMeta { uid, gid, perm, atime, mtime, .. } = *meta;
        self.put(&StreamRecord::Meta { path, uid, gid, perm, atime, mtime })
    }

    /// Sends what makes the tree `before` this one, by the differences of the two, with ranges. `links`: there may be
    /// files with several names, so both trees are walked for names that are one file on one side only.
    pub fn difference(
        mut self,
        before: &dyn SourceTree,
        mut changes: Vec<FileChange>,
        links: bool,
    ) -> Result<StreamSize, StreamError> {
        if links {
            changes = relinked(before, self.source, changes)?;
        }
        let changes = untangled(before, self.source, changes)?;
        let plan = SendPlan::new(&changes)?;
        for (number, (path, change)) in plan.leaving.iter().enumerate() {
            (self.advance)(0)?;
            match change.kind {
                ChangeKind::Renamed => self.put(&StreamRecord::Leave { path, number: number as u64 })?,
                _ => self.put(&StreamRecord::Remove { path, dir: change.file == FileKind::Directory })?,
            }
        }
        self.phase()?;
        let mut touched = plan.touched();
        let links = self.names_of_linked(&plan)?;
        let mut told: HashSet<u64> = HashSet::new();
        let mut later = Vec::new();
        for (path, change) in &plan.coming {
            let path = path.as_slice();
            (self.advance)(0)?;
            let meta = self.source.meta(path).map_err(StreamError::at(path))?;
            let is_dir = meta.kind == FileKind::Directory;
            match change.kind {
                ChangeKind::Added => {
                    if let Some(to) = links.get(&meta.ino).filter(|to| !is_dir && *to != path) {
                        later.push((path, to.as_slice()));
                        continue;
                    }
                    self.whole(path, &meta)?;
                }
                _ => {
                    if let Some(number) = plan.arrives.get(path) {
                        self.put(&StreamRecord::Arrive { path, number: *number })?;
                    }
                    self.changed(path, &meta, change, &mut told)?;
                }
            }
            match is_dir {
                true => _ = touched.insert(path.to_vec()),
                false => self.facts(path, &meta, true)?,
            }
        }
        for (path, to) in later {
            self.put(&StreamRecord::Link { path, to })?;
        }
        self.phase()?;
        // What is inside first: then the mode of a directory above may forbid to look.
        for path in touched.iter().rev() {
            let meta = self.source.meta(path).map_err(StreamError::at(path))?;
            self.facts(path, &meta, true)?;
        }
        self.end()
    }

    /// Sends what differs in something that the receiver has.
    fn changed(
        &mut self,
        path: &[u8],
        meta: &FileMeta,
        change: &FileChange,
        told: &mut HashSet<u64>,
    ) -> Result<(), StreamError> {
        if is_made_anew(change) {
            self.put(&StreamRecord::Remove { path, dir: false })?;
            return self.whole(path, meta);
        }
        let content = change.aspects.contains(Aspects::CONTENT) || change.aspects.contains(Aspects::SIZE);
        // A file with several names is sent once.
        if !content || meta.kind != FileKind::Regular || meta.nlink > 1 && !told.insert(meta.ino) {
            return Ok(());
        }
        self.put(&StreamRecord::Open { path })?;
        if change.size_before != meta.size {
            self.put(&StreamRecord::Size { size: meta.size })?;
        }
        let inside: Vec<_> = change.ranges.iter().map(|(from, to)| (*from, (*to).min(meta.size))).collect();
        self.content(path, &inside, true).map(|_| ())
    }

    /// For each file that has come under a name and has others, one that the receiver has, or the first that comes.
    fn names_of_linked(&mut self, plan: &SendPlan<'_>) -> Result<HashMap<u64, Vec<u8>>, StreamError> {
        let mut had: HashMap<u64, Vec<u8>> = HashMap::new();
        let mut first: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (path, change) in &plan.coming {
            if change.file == FileKind::Directory {
                continue;
            }
            let meta = self.source.meta(path).map_err(StreamError::at(path))?;
            if meta.nlink > 1 {
                match change.kind {
                    ChangeKind::Added => _ = first.entry(meta.ino).or_insert_with(|| path.clone()),
                    _ => _ = had.entry(meta.ino).or_insert_with(|| path.clone()),
                }
            }
        }
        first.retain(|ino, _| !had.contains_key(ino));
        // The other names did not change, so no difference tells them: they are looked for.
        let mut todo = if first.is_empty() { Vec::new() } else { vec![Vec::new()] };
        while let Some(dir) = todo.pop() {
            (self.advance)(0)?;
            for (name, meta) in self.source.list(&dir).map_err(StreamError::at(&dir))? {
                let path = join(&dir, name.as_bytes());
                if meta.kind == FileKind::Directory {
                    todo.push(path);
                } else if first.contains_key(&meta.ino) && !plan.added.contains(path.as_slice()) {
                    had.entry(meta.ino).or_insert(path);
                }
            }
        }
        for (ino, path) in first {
            had.entry(ino).or_insert(path);
        }
        Ok(had)
    }
}
