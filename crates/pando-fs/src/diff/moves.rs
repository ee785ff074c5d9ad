//! Which files have moved, by file number.
//!
//! A pass over the records that differ finds moved files. An entry on one side only is a candidate. A moved directory
//! is compared with itself once both its paths are known; a directory on one side only is listed, level by level, as
//! long as both sides have candidates without a partner. So a moved directory costs as much as differs in it. The
//! memory is bounded: see [`MAX_CANDIDATES`] and [`MAX_NOTED_BYTES`].

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use crate::{
    diff::{
        side::{Identity, Side, contents_of, identity},
        stream::{DiffStream, Spot},
    },
    error::Result,
    path,
    types::FileKind,
};

/// Most candidates, a count; those that come later are not looked for.
const MAX_CANDIDATES: usize = 1 << 17;
/// Most memory for them, bytes: a path may be as long as a key of the store.
const MAX_NOTED_BYTES: usize = 32 << 20;
/// Memory of a candidate besides its path, bytes, about.
const NOTED_BYTES: usize = 96;

#[derive(Default)]
struct Noted {
    before: Option<Box<[u8]>>,
    after: Option<Box<[u8]>>,
}

/// Looks whether to go on, and ends the search with its error if not.
pub(crate) type GoOn<'a> = dyn Fn() -> Result<()> + 'a;

/// What has moved: paths of both sides, from the tops.
#[derive(Default)]
pub(crate) struct Moves {
    noted: HashMap<Identity, Noted>,
}

/// The work of finding it.
#[derive(Default)]
struct Search {
    moves: Moves,
    /// Directories that are both ends of a move, by contents prefix.
    pairs: VecDeque<(Vec<u8>, Vec<u8>)>,
    /// Directories on one side only that are not listed yet: in the first tree or not, identity, path.
    lists: [VecDeque<(Identity, Vec<u8>)>; 2],
    /// Candidates without a partner, of each side.
    alone: [i64; 2],
    /// Memory of what is noted, about.
    bytes: usize,
    /// Roots of lineages on one side only are not listed.
    beside_clones: bool,
}

impl Moves {
    /// Finds them; `confirm` says which hold.
    pub(crate) fn find(before: &mut Side, after: &mut Side, go_on: &GoOn<'_>) -> Result<Self> {
        Self::search(Search::default(), before, after, go_on)
    }

    /// As [`Moves::find`], but entries of a clone that is on one side only do not count as moved from elsewhere.
    pub(crate) fn find_beside_clones(before: &mut Side, after: &mut Side, go_on: &GoOn<'_>) -> Result<Self> {
        Self::search(Search { beside_clones: true, ..Search::default() }, before, after, go_on)
    }

    fn search(mut search: Search, before: &mut Side, after: &mut Side, go_on: &GoOn<'_>) -> Result<Self> {
        search.pairs.push_back((Vec::new(), Vec::new()));
        loop {
            go_on()?;
            if let Some((a, b)) = search.pairs.pop_front() {
                search.pair((before, after), &a, &b, go_on)?;
            } else if search.alone.iter().all(|n| *n > 0)
                && let Some((first, (id, entry))) = search.next_list()
            {
                // The candidate may have found its partner since.
                if !search.moves.is_pair(id) {
                    search.list(if first { before } else { after }, first, &entry, go_on)?;
                }
            } else {
                break;
            }
        }
        search.moves.noted.retain(|_, noted| noted.before.is_some() && noted.after.is_some());
        Ok(search.moves)
    }

    fn is_pair(&self, id: Identity) -> bool {
        self.noted.get(&id).is_some_and(|noted| noted.before.is_some() && noted.after.is_some())
    }

    /// All moves: the identity of the entry, and both paths.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Identity, &[u8], &[u8])> {
        self.noted
            .iter()
            .filter_map(|(id, noted)| Some((*id, noted.before.as_deref()?, noted.after.as_deref()?)))
    }

    /// The path of one in the first tree, or else in the second.
    pub(crate) fn path(&self, first: bool, id: Identity) -> Option<&[u8]> {
        let noted = self.noted.get(&id)?;
        if first { noted.before.as_deref() } else { noted.after.as_deref() }
    }

    /// Takes one back.
    pub(crate) fn remove(&mut self, id: Identity) {
        self.noted.remove(&id);
    }

    /// Puts one among others.
    pub(crate) fn set_aside(&mut self, id: Identity, among: &mut Self) {
        among.noted.extend(self.noted.remove(&id).map(|noted| (id, noted)));
    }

    /// Where that which is at `entry` of the first tree, or else of the second, is in the other.
    pub(crate) fn partner(&self, first: bool, id: Identity, entry: &[u8]) -> Option<&[u8]> {
        let noted = self.noted.get(&id)?;
        let (own, other) = match first {
            true => (&noted.before, &noted.after),
            false => (&noted.after, &noted.before),
        };
        other.as_deref().filter(|_| own.as_deref() == Some(entry))
    }

    /// Where in the first tree that was which is at `entry` in the second.
    pub(crate) fn source(&self, id: Identity, entry: &[u8]) -> Option<&[u8]> {
        self.partner(false, id, entry)
    }

    /// Whether that which is at `entry` in the first tree is elsewhere in the second.
    pub(crate) fn leaves(&self, id: Identity, entry: &[u8]) -> bool {
        self.partner(true, id, entry).is_some()
    }

    /// Whether a directory with this number has moved.
    pub(crate) fn moved_dir(&self, fileno: u64) -> bool {
        self.noted.contains_key(&(fileno, FileKind::Directory))
    }
}

impl Search {
    fn next_list(&mut self) -> Option<(bool, (Identity, Vec<u8>))> {
        // In turn, so that both sides are as deep.
        let first = self.lists[0].len() >= self.lists[1].len();
        let take = |lists: &mut [VecDeque<_>; 2], first: bool| {
            lists[usize::from(!first)].pop_front().map(|found| (first, found))
        };
        take(&mut self.lists, first).or_else(|| take(&mut self.lists, !first))
    }

    fn is_full(&self) -> bool {
        self.moves.noted.len() >= MAX_CANDIDATES || self.bytes >= MAX_NOTED_BYTES
    }

    /// Notes a candidate of a side.
    fn note(&mut self, first: bool, id: Identity, entry: &[u8]) {
        // What is noted of one side may find its partner still.
        if self.is_full() && !self.moves.noted.contains_key(&id) {
            return;
        }
        let noted = self.moves.noted.entry(id).or_default();
        let (own, other) = match first {
            true => (&mut noted.before, &mut noted.after),
            false => (&mut noted.after, &mut noted.before),
        };
        // If there are several, as when a clone of a tree lies in the tree, the first one counts.
        if own.is_some() {
            return;
        }
        *own = Some(entry.into());
        // A directory is also noted as one that is to be looked at.
        let copies = if id.1 == FileKind::Directory { 2 } else { 1 };
        self.bytes += NOTED_BYTES + copies * entry.len();
        if other.is_none() {
            self.alone[usize::from(!first)] += 1;
            if id.1 == FileKind::Directory {
                self.lists[usize::from(!first)].push_back((id, entry.to_vec()));
            }
            return;
        }
        self.alone[usize::from(first)] -= 1;
        if id.1 == FileKind::Directory
            && let (Some(a), Some(b)) = (&noted.before, &noted.after)
        {
            let (a, b) = (contents_of(a), contents_of(b));
            self.pairs.push_back((a, b));
        }
    }

    /// Looks at what differs between two directories.
    fn pair(
        &mut self,
        (before, after): (&mut Side, &mut Side),
        a: &[u8],
        b: &[u8],
        go_on: &GoOn<'_>,
    ) -> Result<()> {
        let view = before.view.clone();
        let places = (&before.place(a)[..], &after.place(b)[..]);
        let mut stream = DiffStream::new(&view, places, false)?.stop_on(&before.stop);
        // Different directories at one path, by contents prefix.
        let mut unlike: HashMap<Vec<u8>, [Option<Identity>; 2]> = HashMap::new();
        while let Some(spot) = stream.next()? {
            go_on()?;
            let Spot::Entry { path, records: Some((old, new)), .. } = spot else { continue };
            // One of them may have been found elsewhere since.
            let dir = path::directory_of(&path);
            let mut ends =
                dir.iter().enumerate().filter(|(_, b)| **b == 0).filter_map(|(i, _)| dir.get(..=i));
            let apart = |ids: &[Option<Identity>; 2]| ids.iter().flatten().any(|id| self.moves.is_pair(*id));
            let skipped = match unlike.is_empty() {
                true => None,
                false => ends.find(|inside| unlike.get(*inside).is_some_and(apart)),
            };
            if let Some(inside) = skipped {
                stream.skip(inside);
                continue;
            }
            let (a, b) = ([a, &path].concat(), [b, &path].concat());
            let id = |value: &Option<Bytes>, entry: &[u8]| {
                value.as_ref().map(|value| identity(entry, value)).transpose()
            };
            let (old, new) = (id(&old, &a)?, id(&new, &b)?);
            if old == new {
                continue;
            }
            // What is in a directory on one side only is listed if that has no partner.
            let is_dir = |id: Option<Identity>| id.is_some_and(|id| id.1 == FileKind::Directory);
            if is_dir(old) != is_dir(new) && !self.is_full() {
                stream.skip(&contents_of(&path));
            }
            if let Some(id) = old {
                self.note(true, id, &a);
            }
            if let Some(id) = new {
                self.note(false, id, &b);
            }
            if is_dir(old) && is_dir(new) && !self.is_full() {
                let contents = contents_of(&path);
                self.bytes += NOTED_BYTES + contents.len();
                unlike.insert(contents, [old, new]);
            }
        }
        Ok(())
    }

    /// Notes the entries of a directory that is on one side only.
    fn list(&mut self, side: &mut Side, first: bool, entry: &[u8], go_on: &GoOn<'_>) -> Result<()> {
        if self.beside_clones
            && let Some(value) = side.value(entry)?
            && side.found(entry, &value)?.record.clone_id != 0
        {
            return Ok(());
        }
        let contents = contents_of(entry);
        let place = side.place(&contents);
        let (lo, hi) = path::listing(&place, None);
        let mut pairs = side.view.range(&lo, Some(&hi));
        while let Some((key, value)) = pairs.next_ref()? {
            go_on()?;
            let Some(name) = path::name_of(&place, key) else { continue };
            let entry = path::entry(&contents, name)?;
            self.note(first, identity(&entry, value)?, &entry);
            if self.is_full() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_with_long_paths_are_fewer() {
        let long = vec![b'x'; 10_000];
        for kind in [FileKind::Regular, FileKind::Directory] {
            let mut search = Search::default();
            for i in 0..20_000 {
                search.note(false, (i, kind), &long);
            }
            let noted = search.moves.noted.len();
            let lists: usize = search.lists.iter().map(VecDeque::len).sum();
            let bytes = (noted + lists) * long.len();
            assert!((MAX_NOTED_BYTES * 3 / 4..MAX_NOTED_BYTES + 100_000).contains(&bytes), "{bytes}");
            // The partner of one that is there is found all the same.
            search.note(true, (7, kind), b"short");
            assert!(search.moves.is_pair((7, kind)) && !search.moves.noted.contains_key(&(19_999, kind)));
        }
    }
}
