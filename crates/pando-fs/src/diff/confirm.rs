//! Confirms moves: drops those that turn out to be none when all moves are known.
//!
//! If one tree lies in the other, or a clone in its source, a file number occurs several times. Then an entry that
//! seemed to be removed and added may be compared with itself after all, because the directory around it has moved.
//! Guarantee: when the walk reaches the two ends of a remaining move, each is on one side only.

use std::collections::HashMap;

use crate::{
    diff::{
        moves::{GoOn, Moves},
        side::{Identity, Side, identity},
    },
    error::Result,
    path,
    types::FileKind,
};

/// After so many passes, a count, nothing is taken for a move.
const MAX_PASSES: u32 = 16;

/// The directory that one is compared with, by contents prefix.
pub(crate) type Images = HashMap<Vec<u8>, Option<Vec<u8>>>;

/// Leaves of the moves those that hold.
pub(crate) fn confirm_moves(moves: &mut Moves, before: &Side, after: &Side, go_on: &GoOn<'_>) -> Result<()> {
    for _ in 0..MAX_PASSES {
        let wrong = wrong(moves, moves, (before, after), go_on)?;
        if wrong.is_empty() {
            return Ok(());
        }
        wrong.into_iter().for_each(|id| moves.remove(id));
    }
    *moves = Moves::default();
    Ok(())
}

/// Leaves of those that were set aside what would hold beside the moves.
pub(crate) fn confirm_aside(
    moves: &Moves,
    aside: &mut Moves,
    before: &Side,
    after: &Side,
    go_on: &GoOn<'_>,
) -> Result<()> {
    wrong(moves, aside, (before, after), go_on)?.into_iter().for_each(|id| aside.remove(id));
    Ok(())
}

/// Those of `among` that do not hold beside the moves.
fn wrong(
    moves: &Moves,
    among: &Moves,
    (before, after): (&Side, &Side),
    go_on: &GoOn<'_>,
) -> Result<Vec<Identity>> {
    let (mut first, mut second, mut wrong) = (Images::new(), Images::new(), Vec::new());
    for (id, a, b) in among.all() {
        go_on()?;
        if meets_itself(moves, &mut first, (before, after), true, id, a)?
            || meets_itself(moves, &mut second, (after, before), false, id, b)?
        {
            wrong.push(id);
        }
    }
    Ok(wrong)
}

/// Whether an entry of one's own side is compared with one of the same number at its place.
fn meets_itself(
    moves: &Moves,
    images: &mut Images,
    (own, other): (&Side, &Side),
    first: bool,
    id: Identity,
    entry: &[u8],
) -> Result<bool> {
    let dir = path::directory_of(entry);
    let Some(image) = image(moves, images, (own, other), first, dir)? else { return Ok(false) };
    let place = [&image, entry.get(dir.len()..).unwrap_or_default()].concat();
    match other.value(&place)? {
        Some(value) => Ok(identity(&place, &value)? == id),
        None => Ok(false),
    }
}

/// What the directory with the contents prefix `dir` of a side is compared with, as the walk does it.
pub(crate) fn image(
    moves: &Moves,
    images: &mut Images,
    (own, other): (&Side, &Side),
    first: bool,
    dir: &[u8],
) -> Result<Option<Vec<u8>>> {
    let mut at = Some(Vec::new());
    let mut from = 0;
    while let Some(len) = dir.get(from..).and_then(|rest| rest.iter().position(|b| *b == 0)) {
        let end = from + len + 1;
        let (contents, part) = (dir.get(..end).unwrap_or_default(), dir.get(from..end).unwrap_or_default());
        at = match images.get(contents) {
            Some(known) => known.clone(),
            None => {
                let entry = path::entry_of(contents, from);
                let found = below(moves, (own, other), first, &entry, at, part)?;
                images.insert(contents.to_vec(), found.clone());
                found
            }
        };
        from = end;
    }
    Ok(at)
}

/// The same of the directory `entry`, whose own part of its contents prefix is `part`, in one that is compared with
/// `above`.
fn below(
    moves: &Moves,
    (own, other): (&Side, &Side),
    first: bool,
    entry: &[u8],
    above: Option<Vec<u8>>,
    part: &[u8],
) -> Result<Option<Vec<u8>>> {
    let Some(value) = own.value(entry)? else { return Ok(None) };
    let id = identity(entry, &value)?;
    if let Some(partner) = moves.partner(first, id, entry) {
        return Ok(path::contents_of(b"", partner));
    }
    let Some(above) = above else { return Ok(None) };
    let contents = [&above, part].concat();
    let place = path::entry_of(&contents, above.len());
    let Some(value) = other.value(&place)? else { return Ok(None) };
    let there = identity(&place, &value)?;
    let same = there == id || moves.partner(!first, there, &place).is_none();
    Ok((there.1 == FileKind::Directory && same).then_some(contents))
}
