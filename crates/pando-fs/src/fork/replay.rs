//! Repeats, on the tree that a large merge works in, what other calls have changed in the directory since the merge
//! began.
//!
//! The changes are a difference of two copies of the directory. Each changed path is brought to its place after the
//! merge: whole files and new directories by reference, records field by field where the merge has changed them too.
//! Guarantees that the work tree has all these changes then, or that the result is a clash: a change of something that
//! the merge removes, replaces or changes in another way.

use bytes::Bytes;
use pando_db::{Batch, Snapshot};

use crate::{
    attrs::CAPABILITY,
    data::without_set_id,
    diff::{
        side::contents_of,
        stream::{Ahead, DiffStream, Spot},
    },
    error::Result,
    fork::{
        hidden::{Hidden, write_in_parts},
        landing::{Landing, Site},
    },
    path,
    record::{Record, Stored},
    types::FileKind,
    volume::Fs,
};

/// The result of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replayed {
    All,
    /// There are more changed paths than the caller allows.
    More,
    /// The merge and other calls have changed the same thing.
    Clash,
}

/// One replay: the contents prefixes of the directory before and after, and of the work tree.
pub(crate) struct Replay<'a> {
    fs: &'a Fs,
    landing: &'a Landing<'a>,
    hidden: &'a mut Hidden,
    view: &'a Snapshot,
    before: &'a [u8],
    after: &'a [u8],
    work: &'a [u8],
    /// Prefixes of the paths of linked files of the lineage around, before and after.
    areas: [&'a Vec<u8>; 2],
    pub batch: Batch,
}

/// One of three versions of a field: `None` if both sides have changed it, differently.
fn pick<T: PartialEq>(before: &T, theirs: T, ours: T) -> Option<T> {
    if ours == *before || ours == theirs {
        Some(theirs)
    } else if theirs == *before {
        Some(ours)
    } else {
        None
    }
}

fn is_dir(stored: &Option<Stored>) -> bool {
    matches!(stored, Some(Stored::Record(record)) if record.kind == FileKind::Directory)
}

/// The record of a file that is `live` by now, and was merged as `merged` from what it was `before`; `None` if both
/// have changed the same.
pub(crate) fn overlay(before: &Record, live: &Record, merged: &Record) -> Option<Record> {
    let one = |r: &Record| (r.kind, r.fileno, r.clone_id);
    if one(live) != one(before) || one(merged) != one(before) {
        return None;
    }
    let mut out = live.clone();
    out.perm = pick(&before.perm, live.perm, merged.perm)?;
    (out.uid, out.gid) = pick(&(before.uid, before.gid), (live.uid, live.gid), (merged.uid, merged.gid))?;
    out.attrs = pick(&before.attrs, live.attrs.clone(), merged.attrs.clone())?;
    if merged.mtime != before.mtime {
        out.mtime = live.mtime.max(merged.mtime);
    }
    if merged.ctime != before.ctime {
        out.ctime = live.ctime.max(merged.ctime);
    }
    // Content that was written meanwhile does not get set-id bits or capabilities from the merge.
    let written = (live.mtime, live.size) != (before.mtime, before.size);
    let granted = without_set_id(out.perm).is_some() || out.attrs.get(CAPABILITY).is_some();
    let given = (merged.perm, merged.uid, merged.gid) != (before.perm, before.uid, before.gid)
        || merged.attrs != before.attrs;
    (live.kind != FileKind::Regular || !(written && granted && given)).then_some(out)
}

impl<'a> Replay<'a> {
    /// Of what the directory was and is, on the work tree: the contents prefixes of these three. And of linked files
    /// around, as they were and are: the prefixes of their paths.
    pub(crate) fn new(
        fs: &'a Fs,
        landing: &'a Landing<'a>,
        hidden: &'a mut Hidden,
        view: &'a Snapshot,
        [before, after, work]: [&'a Vec<u8>; 3],
        areas: [&'a Vec<u8>; 2],
    ) -> Self {
        Self { fs, landing, hidden, view, before, after, work, areas, batch: Batch::new() }
    }

    /// Replays all changes, or returns `More` if there are more than `most` changed paths. Without a bound the batch is
    /// written in parts.
    pub(crate) fn run(&mut self, most: Option<usize>) -> Result<Replayed> {
        let mut count = 0usize;
        let mut is_too_much = move || {
            count += 1;
            most.is_some_and(|most| count > most)
        };
        match self.around(&mut is_too_much)? {
            Replayed::All => {}
            other => return Ok(other),
        }
        let mut stream = DiffStream::new(self.view, (self.before, self.after), true)?;
        while let Some(spot) = stream.next()? {
            if is_too_much() {
                return Ok(Replayed::More);
            }
            let done = match spot {
                Spot::Entry { path, data, .. } => self.entry(&mut stream, &path, data)?,
                // What lies in the area of linked files around is what it is; `around` has looked at it.
                Spot::Links(root) if root.is_empty() => true,
                Spot::Links(root) => self.area(&root)?,
            };
            if !done {
                return Ok(Replayed::Clash);
            }
            if most.is_none() && self.batch.len() >= self.hidden.limit.max(1) {
                write_in_parts(self.fs, std::mem::replace(&mut self.batch, Batch::new()))?;
            }
        }
        if most.is_none() && !self.batch.is_empty() {
            write_in_parts(self.fs, std::mem::replace(&mut self.batch, Batch::new()))?;
        }
        Ok(Replayed::All)
    }

    /// Checks changes of linked files in the lineage around the directory. These files are in none of the copies, so
    /// their changes stay. They conflict only with what the merge does to the same files at its end.
    fn around(&self, is_too_much: &mut impl FnMut() -> bool) -> Result<Replayed> {
        let watched = &self.hidden.watched;
        if watched.is_empty() {
            return Ok(Replayed::All);
        }
        let [before, after] = self.areas;
        let mut records = Ahead::new(self.view, (&path::meta(before), &path::meta(after)))?;
        while records.peek()?.is_some()
            && let Some(change) = records.take()
        {
            if is_too_much() {
                return Ok(Replayed::More);
            }
            if watched.meets_record(&change.key, change.before.as_deref(), change.after.as_deref()) {
                return Ok(Replayed::Clash);
            }
        }
        let mut data = Ahead::new(self.view, (&path::data(before), &path::data(after)))?;
        while let Some(key) = data.peek()? {
            if is_too_much() {
                return Ok(Replayed::More);
            }
            if watched.meets_data(&key) {
                return Ok(Replayed::Clash);
            }
            let Some(next) = watched.next_data(&key) else { break };
            data.skip_to(&next);
        }
        Ok(Replayed::All)
    }

    /// Replays one changed path; false if it clashes.
    fn entry(&mut self, stream: &mut DiffStream, inside: &[u8], data: bool) -> Result<bool> {
        let value = |top: &[u8]| self.view.get(&path::meta(&[top, inside].concat()));
        let (before, after) = (value(self.before)?, value(self.after)?);
        let stored = |value: &Option<Bytes>| value.as_ref().and_then(|value| Stored::decode(value).ok());
        let (was, is) = (stored(&before), stored(&after));
        // A new access time of what the merge removes or replaces is no clash.
        let only_read = match (&was, &is) {
            (Some(Stored::Record(a)), Some(Stored::Record(b))) if !data => {
                **b == Record { atime: b.atime, ..Record::clone(a) }
            }
            _ => false,
        };
        let Some(to) = self.landing.land(inside) else { return Ok(only_read) };
        if only_read && self.landing.at(inside).renewed {
            return Ok(true);
        }
        let to = [self.work, &to].concat();
        let from = [self.after, inside].concat();
        let one = match (&was, &is) {
            (Some(Stored::Record(a)), Some(Stored::Record(b))) => {
                (a.kind, a.fileno, a.clone_id) == (b.kind, b.fileno, b.clone_id)
            }
            (Some(Stored::Name(a)), Some(Stored::Name(b))) => a == b,
            _ => false,
        };
        if one {
            return match (was, is) {
                (Some(Stored::Record(was)), Some(Stored::Record(is))) => {
                    self.update((&was, &is, data), self.landing.at(inside), &from, &to)
                }
                _ => Ok(true),
            };
        }
        if was.is_none() && before.is_some() || is.is_none() && after.is_some() {
            return Ok(false);
        }
        let site = self.landing.at(inside);
        let contents = contents_of(inside);
        if is_dir(&was) || is_dir(&is) {
            if self.landing.any_below(&contents) {
                return Ok(false);
            }
            stream.skip(&contents);
        }
        if was.is_some() && (site.removed || site.moved || site.renewed || site.changed) {
            return Ok(false);
        }
        if is.is_some() && self.landing.is_target(inside) {
            return Ok(false);
        }
        // The index of names has paths: what moves has no names in it.
        let may_be_named = matches!(is, Some(Stored::Name(_))) || is_dir(&is) && self.fs.has_links();
        if may_be_named && to.get(self.work.len()..) != Some(inside) {
            return Ok(false);
        }
        if let Some(was) = was {
            self.remove(&was, &to);
        }
        if let Some(value) = after
            && let Some(is) = is
        {
            self.add(&is, value, &from, &to);
        }
        Ok(true)
    }

    fn remove(&mut self, was: &Stored, to: &[u8]) {
        self.batch.delete(path::meta(to));
        if let Stored::Record(record) = was {
            if record.has_data() {
                self.batch.delete_prefix(path::data(to));
            }
            if record.kind == FileKind::Directory {
                let contents = path::contents_of(b"", to).unwrap_or_default();
                self.batch.delete_prefix(path::meta(&contents)).delete_prefix(path::data(&contents));
            }
        }
    }

    fn add(&mut self, is: &Stored, value: Bytes, from: &[u8], to: &[u8]) {
        self.batch.put(path::meta(to), value);
        if let Stored::Record(record) = is {
            if record.has_data() {
                self.batch.clone_prefix(path::data(from), path::data(to));
            }
            if record.kind == FileKind::Directory {
                let contents = |entry: &[u8]| path::contents_of(b"", entry).unwrap_or_default();
                let (from, to) = (contents(from), contents(to));
                self.batch.clone_prefix(path::meta(&from), path::meta(&to));
                self.batch.clone_prefix(path::data(&from), path::data(&to));
            }
        }
    }

    /// The same file as before, with another record, or other `data`.
    fn update(
        &mut self,
        (was, is, data): (&Record, &Record, bool),
        site: Site,
        from: &[u8],
        to: &[u8],
    ) -> Result<bool> {
        let here = self.fs.db.get(&path::meta(to))?;
        let here = here.and_then(|value| Record::decode(&value).ok());
        let Some(here) = here else { return Ok(false) };
        let Some(record) = overlay(was, is, &here) else { return Ok(false) };
        let outside = was.has_outside() || is.has_outside() || here.has_outside();
        // Attributes outside of a record lie beside the blocks, and a record does not say which value they have: those
        // of one side would come with the blocks, or with the names, of the other.
        if outside && (site.attrs || here.attrs != was.attrs) && (data || is.attrs != was.attrs) {
            return Ok(false);
        }
        if record != here {
            self.batch.put(path::meta(to), record.encode());
        }
        if data && (is.has_data() || was.has_data()) {
            self.batch.clone_prefix(path::data(from), path::data(to));
        }
        Ok(true)
    }

    /// The linked files of a lineage whose root lies in the directory: as a whole, if the merge has left them alone.
    fn area(&mut self, root: &[u8]) -> Result<bool> {
        let entry = path::entry_of_contents(root).unwrap_or_default();
        let (Some(to), false) =
            (self.landing.land(&entry), self.hidden.areas.contains(&[self.work, root].concat()))
        else {
            return Ok(false);
        };
        let (from, to) = ([self.after, root].concat(), [self.work, &contents_of(&to)].concat());
        let prefixes = |root: &[u8]| {
            let names = path::link_name(root, root).unwrap_or_default();
            let area = path::all_linked(root);
            [path::meta(&area), path::data(&area), path::meta(&names), path::meta(&path::all_uncounted(root))]
        };
        for (from, to) in prefixes(&from).into_iter().zip(prefixes(&to)) {
            self.batch.clone_prefix(from, to);
        }
        self.hidden.marks = true; // there may be some among these
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::types::Time;

    #[test]
    fn fields_are_of_who_has_changed_them_and_nothing_written_gets_new_rights() {
        let time = |secs| Time { secs, nanos: 0 };
        let before = Record::new(FileKind::Regular, 0o644, 7, time(1));
        let live = Record { size: 5, mtime: time(3), ..before.clone() };
        let merged = Record { uid: 9, ctime: time(2), ..before.clone() };
        let both = overlay(&before, &live, &merged).unwrap();
        assert_eq!((both.size, both.uid, both.mtime, both.ctime), (5, 9, time(3), time(2)));
        // Each has changed the mode.
        let (a, b) = (Record { perm: 0o600, ..before.clone() }, Record { perm: 0o640, ..before.clone() });
        assert_eq!(overlay(&before, &a, &b), None);
        assert_eq!(overlay(&before, &a, &a).map(|r| r.perm), Some(0o600));
        // Another file.
        assert_eq!(overlay(&before, &live, &Record { fileno: 8, ..merged }), None);
        // Written meanwhile, and made set-id by the merge.
        let granted = Record { perm: 0o4755, ..before.clone() };
        assert_eq!(overlay(&before, &live, &granted), None);
        assert!(overlay(&before, &before, &granted).is_some());
    }
}
