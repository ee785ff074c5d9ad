//! Where the entries of the origin are now: renames on both sides of a merge, found by file number.
//!
//! Moves are those of a difference. Guarantees that each rename of the fork that is followed leads to a directory that
//! the origin has too. A move into a new directory counts as a removal and an addition, and so do moves of names of
//! linked files, since one number has many names. Such renames are kept *aside*: a merge knows that neither side has
//! deleted the entry.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use crate::{
    diff::{
        confirm::{Images, confirm_aside, confirm_moves, image},
        moves::{GoOn, Moves},
        side::{Identity, Side, contents_of, identity},
        stream::DiffStream,
    },
    error::Result,
    fork::step::Trees,
    path,
    record::Stored,
};

/// Renames of the fork and of the other side.
#[derive(Default)]
pub(crate) struct Follow {
    there: Moves,
    here: Moves,
    /// Renames that are not followed: they count as a removal and an addition, but the entry was not deleted.
    aside_there: Moves,
    aside_here: Moves,
    /// Paths in the origin of entries that were moved here, in order.
    left: Vec<(Vec<u8>, Identity)>,
    /// Where directories of the origin are here, those of this side in the origin, and those of the origin in the fork.
    here_of: Images,
    base_of: Images,
    there_of: Images,
    /// Directories of the fork in the origin.
    there_from: Images,
    /// Where directories of the origin are, or would be, in the fork, by all renames.
    ever_there: HashMap<Vec<u8>, Vec<u8>>,
    /// The entries of `aside_there`, by their paths in the origin, and in the fork.
    aside_from: Vec<Identity>,
    aside_to: Vec<Identity>,
}

/// An entry that was moved: what it is, and where it was and is.
pub(crate) type AsideMove = (Identity, Vec<u8>, Vec<u8>);

/// Where an entry of the origin is here.
pub(crate) struct Here {
    /// Its path, or the path that it would have; none if the directory around is not there.
    pub entry: Option<Vec<u8>>,
    /// Its value there; none if it was removed.
    pub value: Option<Bytes>,
    /// The entry itself was moved on this side, and not only a directory around it.
    pub moved: bool,
}

/// The path of an entry in another directory, under the same name.
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

/// The moves from one side to another, without clones of entries that are still there, and without names of linked
/// files; and those of `undone`, aside.
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
        // A clone has the file numbers of its source, so an entry at the same path on both sides was not moved. For a
        // file with several names it is unknown which name has become which, so none counts as moved.
        if is(one, b, id)? || is(other, a, id)? || links && (is_name(one, a)? || is_name(other, b)?) {
            wrong.push(id);
        } else if undone.contains(&id) {
            not_followed.push(id);
        }
    }
    wrong.into_iter().for_each(|id| moves.remove(id));
    not_followed.into_iter().for_each(|id| moves.set_aside(id, &mut aside));
    confirm_moves(&mut moves, one, other, go_on)?;
    Ok((moves, aside))
}

impl Follow {
    /// Finds the renames, without those of `undone`. If the fork has no changes, nothing else is read.
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
            confirm_moves(&mut there, base, theirs, go_on)?;
        }
        confirm_aside(&there, &mut aside_there, base, theirs, go_on)?;
        let (here, mut aside_here) = find(base, &mut trees.ours, undone, links, go_on)?;
        confirm_aside(&here, &mut aside_here, base, &trees.ours, go_on)?;
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

    /// The path in the origin of what the fork has moved to `entry` by a rename that is not followed.
    pub(crate) fn source_aside(&self, id: Identity, entry: &[u8]) -> Option<Vec<u8>> {
        self.aside_there.source(id, entry).map(<[u8]>::to_vec)
    }

    /// The path in the fork of what was at `entry` of the origin, if its rename is not followed.
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

    /// The renames of the fork that are not followed, out of the directory of the origin with this contents prefix
    /// (`first`), or else into that of the fork: what was moved, and where it was and is. The highest paths come first.
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

    /// The contents prefix that the directory of the origin with this contents prefix has, or would have, in the fork,
    /// by all renames.
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

    /// The path that what was at `entry` of the origin has, or would have, in the fork, by all renames.
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

    /// All entries that were moved on this side: their paths in the origin, and their paths now.
    pub(crate) fn all_here(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.here.all().map(|(_, a, entry)| (a.to_vec(), entry.to_vec())).collect()
    }

    /// The entries that were moved here out of the directory of the origin with this contents prefix.
    pub(crate) fn moved_out(&self, dir: &[u8]) -> Vec<(Vec<u8>, Identity)> {
        let first = self.left.partition_point(|(a, _)| **a < *dir);
        let inside = self.left.get(first..).unwrap_or_default();
        inside.iter().take_while(|(a, _)| a.starts_with(dir)).cloned().collect()
    }

    /// The path in the fork of what is at `entry` of the origin.
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

    /// The path in the origin of what the fork has moved to `entry`.
    pub(crate) fn source(&self, id: Identity, entry: &[u8]) -> Option<Vec<u8>> {
        self.there.source(id, entry).map(<[u8]>::to_vec)
    }

    /// The contents prefix here of the directory of the origin with this contents prefix.
    pub(crate) fn dir_here(&mut self, trees: &Trees, dir: &[u8]) -> Result<Option<Vec<u8>>> {
        image(&self.here, &mut self.here_of, (&trees.base, &trees.ours), true, dir)
    }

    /// The place here of what is at `entry` of the origin.
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

    /// The path in the origin of what is at `entry` here, with this value.
    pub(crate) fn origin_of(&mut self, trees: &Trees, entry: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(from) = self.here.source(identity(entry, value)?, entry) {
            return Ok(Some(from.to_vec()));
        }
        let (sides, dir) = ((&trees.ours, &trees.base), path::directory_of(entry));
        let Some(dir) = image(&self.here, &mut self.base_of, sides, false, dir)? else { return Ok(None) };
        let place = in_dir(&dir, entry);
        let Some(found) = trees.base.value(&place)? else { return Ok(None) };
        // The entry of the origin was moved elsewhere, and this one is new.
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
