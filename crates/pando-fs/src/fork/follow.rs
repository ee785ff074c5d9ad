//! Where what was in the origin is now: renames on both sides of a merge, by file number.
//!
//! Moves are those of a difference. Guarantees that what the fork has moved lies, in the fork, in directories that the
//! origin has too: what went into a directory that is new counts as removed and added, as do names of files with
//! several, since one number has many names. Such renames are known, so that nobody is taken to have deleted it. Uses
//! moves, `settle` and sides.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use crate::{
    diff::{
        moves::{GoOn, Moves},
        settle::{Images, image, settle, settle_aside},
        side::{Identity, Side, contents_of, identity},
        stream::DiffStream,
    },
    error::Result,
    fork::step::Trees,
    path,
    record::Stored,
};

/// Renames that the fork and the other side have made.
#[derive(Default)]
pub(crate) struct Follow {
    there: Moves,
    here: Moves,
    /// Renames that are not followed: what has moved counts as removed and added, but nobody has deleted it.
    aside_there: Moves,
    aside_here: Moves,
    /// Paths in the origin of what was moved here, in order.
    left: Vec<(Vec<u8>, Identity)>,
    /// Directories of the origin here, of this side in the origin, and of the origin in the fork.
    here_of: Images,
    base_of: Images,
    there_of: Images,
    /// Directories of the fork in the origin.
    there_from: Images,
    /// Directories of the origin in the fork, by all renames, also where they would be.
    ever_there: HashMap<Vec<u8>, Vec<u8>>,
    /// What is in `aside_there`, by its paths in the origin, and in the fork.
    aside_from: Vec<Identity>,
    aside_to: Vec<Identity>,
}

/// What was moved, and where it was and is.
pub(crate) type AsideMove = (Identity, Vec<u8>, Vec<u8>);

/// Where something of the origin is here.
pub(crate) struct Here {
    /// Its place, or where it would be; none if the directory around is not there.
    pub entry: Option<Vec<u8>>,
    /// What it is there; none if it was removed.
    pub value: Option<Bytes>,
    /// It was moved here, not with a directory around it.
    pub moved: bool,
}

/// The place of an entry in another directory.
pub(crate) fn in_dir(dir: &[u8], entry: &[u8]) -> Vec<u8> {
    let name = entry.get(path::directory_of(entry).len()..).unwrap_or_default();
    [dir, name].concat()
}

/// The contents prefixes around and of a directory, that of the directory first.
pub(crate) fn upwards(dir: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = dir.iter().enumerate().rev().filter(|(_, b)| **b == 0);
    ends.filter_map(|(i, _)| dir.get(..=i))
}

fn is_name(side: &Side, entry: &[u8]) -> Result<bool> {
    let value = side.value(entry)?;
    Ok(value.is_some_and(|value| matches!(Stored::decode(&value), Ok(Stored::Name(_)))))
}

/// The moves from one side to another, without what is a clone of something that is there as well, and without names of
/// linked files; and aside, those of `undone`.
fn find(
    one: &mut Side,
    other: &mut Side,
    undone: &HashSet<Identity>,
    links: bool,
    go_on: &GoOn<'_>,
) -> Result<(Moves, Moves)> {
    let mut moves = Moves::find_beside_clones(one, other, go_on)?;
    let (mut wrong, mut not_followed, mut aside) = (Vec::new(), Vec::new(), Moves::default());
    let is = |side: &Side, entry: &[u8], id| -> Result<bool> {
        let value = side.value(entry)?;
        Ok(value.map(|value| identity(entry, &value)).transpose()? == Some(id))
    };
    for (id, a, b) in moves.all() {
        go_on()?;
        // A clone has the numbers of what it was made of: what is at one path on both sides has not come from another.
        // Which of several names of a file has become which is not known: none has been moved.
        if is(one, b, id)? || is(other, a, id)? || links && (is_name(one, a)? || is_name(other, b)?) {
            wrong.push(id);
        } else if undone.contains(&id) {
            not_followed.push(id);
        }
    }
    wrong.into_iter().for_each(|id| moves.remove(id));
    not_followed.into_iter().for_each(|id| moves.set_aside(id, &mut aside));
    settle(&mut moves, one, other, go_on)?;
    Ok((moves, aside))
}

impl Follow {
    /// Finds the renames; not those of `undone`. If the fork has changed nothing, that is all that is looked at.
    pub(crate) fn find(
        trees: &mut Trees,
        undone: &HashSet<Identity>,
        links: bool,
        go_on: &GoOn<'_>,
    ) -> Result<Self> {
        let places = (trees.base.place(b""), trees.theirs.place(b""));
        if DiffStream::new(&trees.base.view, (&places.0, &places.1), true)?.next()?.is_none() {
            return Ok(Self::default());
        }
        let (base, theirs) = (&mut trees.base, &mut trees.theirs);
        let (mut there, mut aside_there) = find(base, theirs, undone, links, go_on)?;
        loop {
            let mut images = Images::new();
            let mut into_new = Vec::new();
            for (id, _, b) in there.all() {
                go_on()?;
                if image(&there, &mut images, (theirs, base), false, path::directory_of(b))?.is_none() {
                    into_new.push(id);
                }
            }
            if into_new.is_empty() {
                break;
            }
            into_new.into_iter().for_each(|id| there.set_aside(id, &mut aside_there));
            settle(&mut there, base, theirs, go_on)?;
        }
        settle_aside(&there, &mut aside_there, base, theirs, go_on)?;
        let (here, mut aside_here) = find(base, &mut trees.ours, undone, links, go_on)?;
        settle_aside(&here, &mut aside_here, base, &trees.ours, go_on)?;
        let mut left: Vec<_> = here.all().map(|(id, a, _)| (a.to_vec(), id)).collect();
        left.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let by_path = |first: bool| {
            let mut ids: Vec<Identity> = aside_there.all().map(|(id, ..)| id).collect();
            ids.sort_unstable_by(|x, y| aside_there.path(first, *x).cmp(&aside_there.path(first, *y)));
            ids
        };
        let (aside_from, aside_to) = (by_path(true), by_path(false));
        Ok(Self { there, here, aside_there, aside_here, left, aside_from, aside_to, ..Self::default() })
    }

    /// Where in the origin that was which the fork has moved to `entry`, if that is not followed.
    pub(crate) fn source_aside(&self, id: Identity, entry: &[u8]) -> Option<Vec<u8>> {
        self.aside_there.source(id, entry).map(<[u8]>::to_vec)
    }

    /// Where the fork has, by a rename that is not followed, what was at `entry` of the origin.
    pub(crate) fn there_aside(&self, id: Identity, entry: &[u8]) -> Option<Vec<u8>> {
        self.aside_there.partner(true, id, entry).map(<[u8]>::to_vec)
    }

    /// The same of this side.
    pub(crate) fn here_aside(&self, id: Identity, entry: &[u8]) -> Option<Vec<u8>> {
        self.aside_here.partner(true, id, entry).map(<[u8]>::to_vec)
    }

    pub(crate) fn has_aside_there(&self) -> bool {
        !self.aside_from.is_empty()
    }

    /// What the fork has moved by renames that are not followed, out of the directory of the origin (`first`) with this
    /// contents prefix, or else into that of the fork: what, and where it was and is. What lies highest comes first.
    pub(crate) fn aside_below(&self, first: bool, dir: &[u8]) -> Vec<AsideMove> {
        let moves = &self.aside_there;
        let sorted = if first { &self.aside_from } else { &self.aside_to };
        let from = sorted.partition_point(|id| moves.path(first, *id).is_some_and(|path| path < dir));
        let inside = sorted.get(from..).unwrap_or_default().iter();
        let inside =
            inside.take_while(|id| moves.path(first, **id).is_some_and(|path| path.starts_with(dir)));
        inside
            .filter_map(|id| Some((*id, moves.path(true, *id)?.to_vec(), moves.path(false, *id)?.to_vec())))
            .collect()
    }

    /// Where in the fork, by all renames, the directory of the origin with this contents prefix is, or would be.
    pub(crate) fn ever_dir(&mut self, trees: &Trees, dir: &[u8]) -> Result<Vec<u8>> {
        let (mut at, mut from) = (Vec::new(), 0);
        while let Some((entry, contents)) = path::next_level(dir, from) {
            if let Some(known) = self.ever_there.get(contents) {
                at.clone_from(known);
            } else {
                let value = trees.base.value(&entry)?;
                let id = value.map(|value| identity(&entry, &value)).transpose()?;
                let moved = id.and_then(|id| {
                    let followed = self.there.partner(true, id, &entry);
                    followed.or_else(|| self.aside_there.partner(true, id, &entry))
                });
                at = match moved {
                    Some(to) => contents_of(to),
                    None => [&at, contents.get(from..).unwrap_or_default()].concat(),
                };
                self.ever_there.insert(contents.to_vec(), at.clone());
            }
            from = contents.len();
        }
        Ok(at)
    }

    /// Where in the fork, by all renames, what was at `entry` of the origin is, or would be.
    pub(crate) fn ever_there(&mut self, trees: &Trees, id: Identity, entry: &[u8]) -> Result<Vec<u8>> {
        if let Some(to) = self.there.partner(true, id, entry).or(self.aside_there.partner(true, id, entry)) {
            return Ok(to.to_vec());
        }
        Ok(in_dir(&self.ever_dir(trees, path::directory_of(entry))?, entry))
    }

    /// What the directory of the fork with this contents prefix was in the origin; none if it is new.
    pub(crate) fn dir_in_origin(&mut self, trees: &Trees, dir: &[u8]) -> Result<Option<Vec<u8>>> {
        image(&self.there, &mut self.there_from, (&trees.theirs, &trees.base), false, dir)
    }

    /// Whether this side has deleted what was at `entry` of the origin.
    pub(crate) fn deleted_here(&mut self, trees: &Trees, id: Identity, entry: &[u8]) -> Result<bool> {
        Ok(self.here(trees, id, entry)?.value.is_none() && self.here_aside(id, entry).is_none())
    }

    /// Whether the fork has moved what is at `entry` of the origin.
    pub(crate) fn leaves(&self, id: Identity, entry: &[u8]) -> bool {
        self.there.leaves(id, entry)
    }

    /// Whether it was moved here.
    pub(crate) fn left_here(&self, id: Identity, entry: &[u8]) -> bool {
        self.here.leaves(id, entry)
    }

    /// What was moved here: where it was in the origin, and where it is.
    pub(crate) fn all_here(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.here.all().map(|(_, a, entry)| (a.to_vec(), entry.to_vec())).collect()
    }

    /// What was moved here of what lay below the directory of the origin with this contents prefix.
    pub(crate) fn moved_out(&self, dir: &[u8]) -> Vec<(Vec<u8>, Identity)> {
        let first = self.left.partition_point(|(a, _)| **a < *dir);
        let inside = self.left.get(first..).unwrap_or_default();
        inside.iter().take_while(|(a, _)| a.starts_with(dir)).cloned().collect()
    }

    /// Where that is in the fork which is at `entry` of the origin.
    pub(crate) fn there(&mut self, trees: &Trees, id: Identity, entry: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(to) = self.there.partner(true, id, entry) {
            return Ok(Some(to.to_vec()));
        }
        let (sides, dir) = ((&trees.base, &trees.theirs), path::directory_of(entry));
        let Some(dir) = image(&self.there, &mut self.there_of, sides, true, dir)? else { return Ok(None) };
        let place = in_dir(&dir, entry);
        let value = trees.theirs.value(&place)?;
        let same = value.map(|value| identity(&place, &value)).transpose()? == Some(id);
        Ok(same.then_some(place))
    }

    /// Where in the origin that was which the fork has moved to `entry`.
    pub(crate) fn source(&self, id: Identity, entry: &[u8]) -> Option<Vec<u8>> {
        self.there.source(id, entry).map(<[u8]>::to_vec)
    }

    /// The directory of the origin with this contents prefix, here.
    pub(crate) fn dir_here(&mut self, trees: &Trees, dir: &[u8]) -> Result<Option<Vec<u8>>> {
        image(&self.here, &mut self.here_of, (&trees.base, &trees.ours), true, dir)
    }

    /// Where that is here which is at `entry` of the origin.
    pub(crate) fn here(&mut self, trees: &Trees, id: Identity, entry: &[u8]) -> Result<Here> {
        if let Some(to) = self.here.partner(true, id, entry) {
            return Ok(Here { value: trees.ours.value(to)?, entry: Some(to.to_vec()), moved: true });
        }
        let Some(dir) = self.dir_here(trees, path::directory_of(entry))? else {
            return Ok(Here { entry: None, value: None, moved: false });
        };
        let place = in_dir(&dir, entry);
        let mut value = trees.ours.value(&place)?;
        if let Some(found) = &value
            && self.here.source(identity(&place, found)?, &place).is_some()
        {
            value = None; // something else was moved to its place
        }
        Ok(Here { entry: Some(place), value, moved: false })
    }

    /// Where in the origin that was which is at `entry` here, with this value.
    pub(crate) fn origin_of(&mut self, trees: &Trees, entry: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(from) = self.here.source(identity(entry, value)?, entry) {
            return Ok(Some(from.to_vec()));
        }
        let (sides, dir) = ((&trees.ours, &trees.base), path::directory_of(entry));
        let Some(dir) = image(&self.here, &mut self.base_of, sides, false, dir)? else { return Ok(None) };
        let place = in_dir(&dir, entry);
        let Some(found) = trees.base.value(&place)? else { return Ok(None) };
        // What was there has gone elsewhere, and this is new.
        let gone = self.here.leaves(identity(&place, &found)?, &place);
        Ok((!gone).then_some(place))
    }

    /// Whether the fork has removed or moved what is at `entry` of the origin.
    pub(crate) fn goes_there(&mut self, trees: &Trees, entry: &[u8]) -> Result<bool> {
        let Some(value) = trees.base.value(entry)? else { return Ok(false) };
        if self.there.leaves(identity(entry, &value)?, entry) {
            return Ok(true);
        }
        let (sides, dir) = ((&trees.base, &trees.theirs), path::directory_of(entry));
        let Some(dir) = image(&self.there, &mut self.there_of, sides, true, dir)? else { return Ok(true) };
        let place = in_dir(&dir, entry);
        Ok(match trees.theirs.value(&place)? {
            Some(found) => self.there.source(identity(&place, &found)?, &place).is_some(),
            None => true,
        })
    }
}
