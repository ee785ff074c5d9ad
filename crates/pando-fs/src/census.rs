//! The census: it counts the names of linked files, and makes link counts exact that a batch could not know.
//!
//! The clone of a directory takes the link area of its lineage along, with files that have no name in the clone, and
//! with counts that include names elsewhere. The removal of a tree removes names without reading each. Both leave a
//! mark in the lineage. A census reads one snapshot of it. The excess of a stored count over the names in the
//! snapshot stays the same later, because each later change of names changes both. So the census subtracts the
//! excess, file by file, while other calls go on, and removes files without a name; then it removes the marks that it
//! found. An interrupted census begins again. Guarantee: no lock is held over more than one file or a bounded step.

use std::{collections::HashMap, sync::Weak, time::Duration};

use bytes::Bytes;
use pando_db::{Batch, waiting};

use crate::{
    background::BEGIN_AFTER,
    counting::{Counting, CountingClaim, Watcher},
    domain::{copies_of_links, linked_record},
    error::{Error, Result},
    inode::{InodeRef, Link},
    lock::{self, Obstacle},
    merge::Change,
    path::{self, system},
    place::DirAt,
    record::{Record, Stored},
    sums::record_bytes,
    types::{Ino, ROOT, Time},
    uncounted::marks,
    volume::{Fs, Inner},
};

/// Names, a count, that the call that removes a tree subtracts itself; if there are more, the census does it.
const FEW_NAMES: usize = 4096;
/// Files without names that are removed in one step, a count.
const STEP_FILES: usize = 512;
/// Steps of a scan, a count, after which the background thread pauses so that other threads go first.
const PAUSE_STEPS: u64 = 4096;
const SCAN_PAUSE: Duration = Duration::from_millis(5);

/// Names of linked files that were removed with the tree around them.
pub(crate) struct LostNames {
    root: InodeRef,
    /// The mark that stays in the lineage until the excess is subtracted.
    number: u64,
    /// How many of each file; `None` if they are many, or another thread counts there already: then the census counts.
    lost: Option<(HashMap<u64, u32>, CountingClaim)>,
}

/// A file of a link area that had no name when a count began.
struct Nameless {
    id: u64,
    /// Names that its record said it had: fewer than now, if it got one since.
    nlink: u32,
}

/// Whether an error means that a batch was overtaken, or that something cannot be read: then the next attempt is made
/// without expectations.
pub(crate) fn overtakes(e: &pando_db::Error) -> bool {
    matches!(e, pando_db::Error::Conflict { .. }) || e.is_damage()
}

impl Fs {
    /// Counts in all lineages that have marks. A scan of all records.
    fn count_marked(&self, gently: bool) -> Result<()> {
        let view = self.db.snapshot();
        let mut marked: Vec<Vec<u8>> = Vec::new();
        let mut steps = 0u64;
        let mut pairs = view.prefix(&path::meta(b""));
        while let Some((key, _)) = pairs.next_ref()? {
            if !self.goes_on(gently, &mut steps) {
                return Ok(());
            }
            if matches!(path::parse(key), Some(path::Parsed::Uncounted(..)))
                && let Some(own) = path::path_of(key)
                && let Some(root) = path::root_below(&own, 0)
                && marked.last().is_none_or(|last| last != root)
            {
                marked.push(root.to_vec());
            }
        }
        drop((pairs, view));
        for contents in marked {
            if let Some(root) = self.root_at(&contents)? {
                match self.count_in(&root, gently) {
                    Err(Error::Stale(_)) => {}
                    counted => counted?,
                }
            }
        }
        Ok(())
    }

    /// What is to be cloned along with the directory `source`, which is no root, of the link area that it uses, to a
    /// directory with the contents prefix `contents`; nothing if it uses none. `at` is the directory itself or holds
    /// it. Names in the clone have to be counted then.
    ///
    /// Others may link files in the directory meanwhile, whose data leaves its contents then: where nothing is to be
    /// cloned the batch expects that it stays so, and [`Fs::write_unless_overtaken`] writes it. Where an attempt was
    /// `overtaken`, or it cannot be read whether there are any, all is cloned that there may be: nothing, if there
    /// never was a linked file.
    pub(crate) fn clones_of_links(
        &self,
        batch: &mut Batch,
        at: &DirAt,
        (source, contents): (&[u8], &[u8]),
        overtaken: bool,
    ) -> Result<Vec<(Bytes, Bytes)>> {
        let domain = self.domain(at);
        let names = domain.index(source)?;
        let any = match overtaken {
            true => self.has_links(),
            false => match self.links_below(at, source) {
                Err(Error::Engine(e)) if overtakes(&e) => true,
                found => found?.is_some(),
            },
        };
        if !any {
            if !overtaken {
                batch.expect_empty(names);
            }
            return Ok(Vec::new());
        }
        Ok(copies_of_links(&domain.contents, names, contents).into())
    }

    /// Writes what expects that no file was linked meanwhile, unless an attempt was `overtaken` before.
    pub(crate) fn write_unless_overtaken(&self, batch: Batch, overtaken: bool) -> Result<(), Obstacle> {
        match self.db.write(batch) {
            Err(e) if !overtaken && overtakes(&e) => Err(Obstacle::Overtaken),
            written => Ok(written?),
        }
    }

    /// Adds, to the copy of a snapshot to the contents prefix `contents`, that the names in it have to be counted, if
    /// the snapshot has linked files; whether it has.
    pub(crate) fn count_copy(&self, batch: &mut Batch, snapshot: &[u8], contents: &[u8]) -> Result<bool> {
        let any = self.has_link_area(snapshot)?;
        if any {
            self.mark_uncounted(batch, contents)?;
        }
        Ok(any)
    }

    /// Adds to the removal of a directory that is no root, and whose contents prefix is `below`, that the names in it
    /// go. The caller holds `tree` of it exclusively and hands the answer to [`Fs::count_lost`] when the batch is
    /// written and nothing is held any more.
    pub(crate) fn lose_names(
        &self,
        batch: &mut Batch,
        at: &DirAt,
        below: &[u8],
    ) -> Result<Option<LostNames>> {
        let Some(domain) = self.links_below(at, below)? else { return Ok(None) };
        let index = domain.index(below)?;
        let mut lost: Option<HashMap<u64, u32>> = Some(HashMap::new());
        let mut names = self.db.prefix(&index);
        let mut count = 0;
        while let (Some(counts), Some((_, value))) = (&mut lost, names.next_ref()?) {
            count += 1;
            match Stored::decode(value) {
                Ok(Stored::Indexed(id)) if count <= FEW_NAMES => *counts.entry(id).or_default() += 1,
                _ => lost = None,
            }
        }
        batch.delete_prefix(index);
        let number = self.mark_uncounted(batch, &domain.contents)?;
        let lost = lost.and_then(|lost| Some((lost, Counting::begin(&self.counting, domain.root.ino)?)));
        Ok(Some(LostNames { root: domain.root, number, lost }))
    }

    /// Subtracts names that were removed, or queues a census.
    pub(crate) fn count_lost(&self, names: LostNames) {
        let LostNames { root, number, lost } = names;
        let Some((lost, claim)) = lost else {
            self.counting.wants(root);
            self.count_names_soon();
            return;
        };
        let now = self.now();
        let subtract = || -> Result<bool> {
            for (id, count) in lost {
                self.subtract(&root, id, i64::from(count), Some(now))?;
            }
            self.unmark(&root, &[number])?;
            let contents = self.hold_dir(&root)?.contents.clone();
            Ok(marks(&self.db.snapshot(), &contents)?.is_empty())
        };
        // If this failed, or another mark was set meanwhile, a mark is left.
        let counted = subtract().unwrap_or(false);
        drop(claim);
        if !counted {
            self.counting.wants(root);
        }
        if !counted || self.counting.tells_again() {
            self.count_names_soon();
        }
    }

    /// Subtracts `excess` from the link count of a linked file, and removes the file if it has no name then. If names
    /// were removed at `time`, that is the change time of the file; names that a clone never had do not change the
    /// file.
    fn subtract(&self, root: &InodeRef, id: u64, excess: i64, time: Option<Time>) -> Result<()> {
        let at = self.hold_dir(root)?;
        let path = path::linked(&at.contents, id);
        let inode = loop {
            let departures = self.table.departures();
            let Ok(record) = linked_record(&self.db.snapshot(), &at.contents, id) else { return Ok(()) };
            let (ino, lineage) = self.lineages.identity(&self.db, root.lineage, &record)?;
            let link = Link::Linked { root: root.clone(), id };
            if let Some(inode) = self.table.enter(ino, lineage, Some(departures), link, record) {
                break inode;
            }
        };
        let own = lock::exclusive(&inode.tree);
        if !inode.linked().is_some_and(|(r, i)| r.ino == root.ino && i == id) {
            return Ok(()); // it lost its last name, by its own count
        }
        let has = inode.peek(|s| s.record.nlink);
        let left = u32::try_from(i64::from(has) - excess).unwrap_or(0);
        let mut batch = Batch::new();
        if left == 0 {
            let now = self.now();
            batch.delete(path::meta(&path));
            let above = self.above(&at);
            let bytes = if above.is_empty() { 0 } else { self.bytes_of(&inode, &path::data(&path))? };
            let fate = self.remove_last(&mut batch, path::data(&path), &inode, now);
            let reserved = self.reserve_file(&mut batch, above, -bytes)?;
            self.db.write(batch)?;
            reserved.paid();
            self.removed(&inode, fate, now);
        } else {
            let by = i32::try_from(i64::from(left) - i64::from(has)).unwrap_or(0);
            let change = Change { nlink: by, ctime: time, ..Change::default() };
            batch.upsert(path::meta(&path), change.encode());
            self.db.write(batch)?;
            inode.change(|s| s.apply(&change));
        }
        drop((own, at));
        // A lookup from now on gives the new count.
        if inode.peek(|s| s.lookups > 0) {
            self.counting.tell(inode.ino, self.workers.is_some());
        }
        Ok(())
    }

    /// Removes marks.
    fn unmark(&self, root: &InodeRef, numbers: &[u64]) -> Result<()> {
        let at = self.hold_dir(root)?;
        let mut batch = Batch::new();
        for number in numbers {
            batch.delete(path::meta(&path::uncounted(&at.contents, *number)));
            batch.delete(system::to_count(*number));
        }
        Ok(self.db.write(batch)?)
    }

    /// Counts the names in one lineage, if it has marks and no other thread counts there.
    fn count_in(&self, root: &InodeRef, gently: bool) -> Result<()> {
        let claim = loop {
            match Counting::begin(&self.counting, root.ino) {
                Some(claim) => break claim,
                // The thread that counts there looks for marks when it ends.
                None if gently || !self.counting.pause(SCAN_PAUSE) => return Ok(()),
                None => {}
            }
        };
        let (contents, view) = {
            let at = self.hold_dir(root)?;
            (at.contents.clone(), self.db.snapshot())
        };
        let numbers = marks(&view, &contents)?;
        if numbers.is_empty() {
            return Ok(());
        }
        let mut steps = 0u64;
        let mut go_on = || self.goes_on(gently, &mut steps);
        let mut named: HashMap<u64, u32> = HashMap::new();
        let index = path::link_name(&contents, &contents).unwrap_or_default();
        let mut names = view.prefix(&path::meta(&index));
        while let Some((_, value)) = names.next_ref()? {
            if let Ok(Stored::Indexed(id)) = Stored::decode(value) {
                *named.entry(id).or_default() += 1;
            }
            if !go_on() {
                return Ok(());
            }
        }
        let area = path::meta(&path::all_linked(&contents));
        let mut files = view.prefix(&area);
        let mut nameless: Vec<Nameless> = Vec::new();
        while let Some((key, value)) = files.next_ref()? {
            if !go_on() {
                return Ok(());
            }
            let damaged = |detail| Error::Damaged { what: "link area".into(), detail };
            let id = path::link_id_of(&area, key).ok_or(damaged("impossible key"))?;
            let record = Record::decode(value).map_err(damaged)?;
            let count = named.get(&id).copied().unwrap_or(0);
            if count == 0 {
                nameless.push(Nameless { id, nlink: record.nlink });
            } else {
                self.drop_nameless(root, &mut nameless)?;
                if record.nlink != count {
                    let excess = i64::from(record.nlink) - i64::from(count);
                    self.subtract(root, id, excess, None)?;
                }
            }
            if nameless.len() >= STEP_FILES {
                self.drop_nameless(root, &mut nameless)?;
            }
        }
        self.drop_nameless(root, &mut nameless)?;
        self.unmark(root, &numbers)?;
        drop(claim);
        Ok(())
    }

    /// Removes files of a link area that had no name when the count began and that no call can reach; they are given in
    /// ascending order, without other files between them. One may be in memory, and may have got a name again since by
    /// a call that had it there: from that one the names are subtracted that it does not have.
    fn drop_nameless(&self, root: &InodeRef, files: &mut Vec<Nameless>) -> Result<()> {
        let files = std::mem::take(files);
        let (Some(first), Some(last)) = (files.first(), files.last()) else { return Ok(()) };
        let at = self.hold_dir(root)?;
        // With this lock held, no file comes into the area or gets a name. A file with a number between these may have
        // come since they were read.
        let area = &self.counting.area;
        let alone = waiting::take(|| area.try_write(), || area.write());
        let key = |id| path::meta(&path::linked(&at.contents, id));
        let area = path::meta(&path::all_linked(&at.contents));
        let end = path::behind(&key(last.id));
        // The numbers of all that are there, and whether they go.
        let mut there: Vec<(u64, bool)> = Vec::with_capacity(files.len());
        let mut named = Vec::new();
        let (above, mut bytes) = (self.above(&at), 0i64);
        let view = self.db.snapshot();
        let mut pairs = view.range(&key(first.id), end.as_deref());
        while let Some((key, value)) = pairs.next_ref()? {
            let damaged = |detail| Error::Damaged { what: "link area".into(), detail };
            let id = path::link_id_of(&area, key).ok_or(damaged("impossible key"))?;
            let Ok(i) = files.binary_search_by_key(&id, |file| file.id) else {
                there.push((id, false));
                continue;
            };
            let (file, record) = (&files[i], Record::decode(value).map_err(damaged)?);
            let ino = self.lineages.identity(&self.db, root.lineage, &record)?.0;
            let goes = record.nlink == file.nlink && self.table.find(ino).is_none();
            there.push((id, goes));
            match goes {
                true if !above.is_empty() => bytes = bytes.saturating_add(record_bytes(&view, key, &record)?),
                true => {}
                false => named.push((id, i64::from(file.nlink))),
            }
        }
        drop(pairs);
        let mut batch = Batch::new();
        for run in there.chunk_by(|a, b| a.1 == b.1) {
            let (Some(&(first, true)), Some(&(last, _))) = (run.first(), run.last()) else { continue };
            batch.delete_range(key(first), path::behind(&key(last)));
            let data = |id| path::data(&path::linked(&at.contents, id));
            batch.delete_range(data(first), path::behind(&data(last)));
        }
        let reserved = self.reserve_file(&mut batch, above, -bytes)?;
        self.db.write(batch)?;
        reserved.paid();
        drop((alone, at));
        named.into_iter().try_for_each(|(id, excess)| self.subtract(root, id, excess, None))
    }

    /// The root of a lineage by its contents prefix.
    fn root_at(&self, contents: &[u8]) -> Result<Option<InodeRef>> {
        let mut dir = self.dir(ROOT)?;
        let mut from = 0;
        while let Some((entry, inside)) = path::next_level(contents, from) {
            let name = entry.get(from + 1..entry.len() - 1).unwrap_or_default();
            let (at, _names) = self.hold_names(&dir, false)?;
            match self.child(&at, name)? {
                Some(child) if child.must_be_dir().is_ok() => dir = child,
                _ => return Ok(None),
            }
            from = inside.len();
        }
        Ok((from == contents.len()).then_some(dir))
    }

    /// Counts all names that wait for it, in the calling thread: link counts are exact then, and linked files without a
    /// name are gone. Costs a scan of the linked names and files of each clone that was made of a directory with such.
    pub fn count_links(&self) -> Result<()> {
        let counted = self.count_all(false);
        if self.counting.tells_again() {
            self.count_names_soon();
        }
        counted
    }

    fn count_all(&self, gently: bool) -> Result<()> {
        if self.is_read_only() || !self.has_links() {
            return Ok(());
        }
        let counted = self.count_lineages(gently);
        let mut steps = 0u64;
        let stripped = self.strip_volumes(|| self.goes_on(gently, &mut steps));
        counted.and(stripped)
    }

    /// Counts a step of a scan; false if the mount ends.
    fn goes_on(&self, gently: bool, steps: &mut u64) -> bool {
        *steps += 1;
        match gently && steps.is_multiple_of(PAUSE_STEPS) {
            true => self.counting.pause(SCAN_PAUSE),
            false => !self.counting.is_stopped(),
        }
    }

    fn count_lineages(&self, gently: bool) -> Result<()> {
        let mut after = system::all_to_count();
        let behind = path::behind(&after);
        loop {
            if self.counting.is_stopped() {
                return Ok(());
            }
            if let Some(root) = self.counting.next() {
                match self.count_in(&root, gently) {
                    Err(Error::Stale(_)) => {} // it was removed meanwhile
                    counted => counted?,
                }
                continue;
            }
            let Some((key, contents)) = self.db.range(&after, behind.as_deref()).next().transpose()? else {
                return Ok(());
            };
            if key == system::marks_to_find() {
                self.count_marked(gently)?;
                let mut batch = Batch::new();
                batch.expect(key.clone(), Some(contents)).delete(key);
                match self.db.write(batch) {
                    // Another move came meanwhile: the next count looks for marks again.
                    Err(pando_db::Error::Conflict { .. }) => {}
                    done => done?,
                }
                return Ok(());
            }
            let mark = u64::from_be_bytes(key.get(5..).and_then(|n| n.try_into().ok()).unwrap_or_default());
            let is_there =
                || Ok::<_, Error>(self.db.get(&path::meta(&path::uncounted(&contents, mark)))?.is_some());
            match self.root_at(&contents)? {
                Some(root) if is_there()? => match self.count_in(&root, gently) {
                    Err(Error::Stale(_)) => {}
                    counted => counted?,
                },
                // The root has moved: its lineage is counted when it is looked at, even if it was looked at before.
                _ => self.counting.forget_all(),
            }
            if !is_there()? {
                self.db.delete(key.clone())?;
            }
            after = Bytes::from([&key[..], &[0]].concat());
        }
    }

    /// The work of the background thread for names.
    pub(crate) fn count_names_in_background(weak: Weak<Inner>) {
        let Some(counting) = Fs::upgraded(&weak).map(|fs| fs.counting.clone()) else { return };
        while counting.has_work() {
            counting.pause(BEGIN_AFTER);
            if let Some(fs) = Fs::upgraded(&weak) {
                // After a failure the marks stay, and the census is made when the lineage is looked at again, or
                // after the next mount.
                let _failed = fs.count_all(true);
            }
        }
    }

    /// Registers `watcher`, which is called for each inode in memory whose link count changes without a call on that
    /// inode. It must not call this file system, nor wait for a thread that does. Only the first watcher is used.
    pub fn watch_link_counts(&self, watcher: impl Fn(Ino) + Send + Sync + 'static) {
        let watcher: Watcher = Box::new(watcher);
        self.counting.watch(watcher);
    }
}
