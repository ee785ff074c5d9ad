//! Checks, without a change, whether a plan would make keys too long.
//!
//! Gives the engine the removals, moves and clones of prefixes that `relocate` would make, in the same order; the
//! engine checks them without making them. Guarantee: a dry run fails if the merge would fail because a path is too
//! long. For a plan that needs more than one batch, only the entries themselves are checked, and not what lies below
//! them.

use std::cmp::Reverse;

use bytes::Bytes;
use pando_db::Batch;

use crate::{
    diff::side::{Side, contents_of, identity},
    error::Result,
    fork::{
        arrange::Moved,
        follow::in_dir,
        step::{Step, Trees},
    },
    path::{self, system},
    types::FileKind,
    volume::Fs,
};

/// One operation on prefixes.
enum PrefixStep {
    Delete(Bytes),
    Rename(Bytes, Bytes),
    Clone(Bytes, Bytes),
}

/// The operations on prefixes, by the depth of the path.
type ByDepth = Vec<(usize, Vec<PrefixStep>)>;

/// The number of names in a path.
pub(crate) fn depth(path: &[u8]) -> usize {
    path.iter().filter(|b| **b == 0).count()
}

/// The prefixes of all keys of an entry: its own, and for a directory those of its contents.
pub(crate) fn prefixes(side: &Side, entry: &[u8], is_dir: bool) -> Vec<Bytes> {
    let place = side.place(entry);
    let mut all = vec![path::meta(&place), path::data(&place)];
    if is_dir {
        let contents = side.place(&contents_of(entry));
        all.extend([path::meta(&contents), path::data(&contents)]);
    }
    all
}

/// The name of an entry.
pub(crate) fn name_of(entry: &[u8]) -> &[u8] {
    let dir = path::directory_of(entry).len();
    entry.get(dir + 1..entry.len().saturating_sub(1)).unwrap_or_default()
}

fn is_dir(side: &Side, entry: &[u8]) -> Result<bool> {
    let kind = side.value(entry)?.map(|value| identity(entry, &value)).transpose()?;
    Ok(kind.is_some_and(|(_, kind)| kind == FileKind::Directory))
}

impl Fs {
    /// ENAMETOOLONG if a path would be too long when these steps were done.
    pub(crate) fn fits(&self, trees: &mut Trees, steps: &[Step]) -> Result<()> {
        let moved = Moved::of(steps);
        let (mut going, mut coming) = (ByDepth::new(), ByDepth::new());
        for (step, number) in steps.iter().zip(0u32..) {
            match step {
                Step::Remove(entry) => {
                    let all = prefixes(&trees.ours, entry, is_dir(&trees.ours, entry)?);
                    going.push((depth(entry), all.into_iter().map(PrefixStep::Delete).collect()));
                }
                Step::Move { from, dir, name } => {
                    let (dir, is_dir) = (moved.after(dir), is_dir(&trees.ours, from)?);
                    path::new_entry(&trees.ours.place(&dir), name)?;
                    let to = path::entry(&dir, name)?;
                    let (old, new) =
                        (prefixes(&trees.ours, from, is_dir), prefixes(&trees.ours, &to, is_dir));
                    let mut pairs: Vec<_> = old.into_iter().zip(new).collect();
                    if is_dir {
                        let place = |entry: &[u8]| trees.ours.place(&contents_of(entry));
                        pairs.extend(self.moves_kept_by_prefix(&place(from), &place(&to))?);
                    }
                    let (mut leaves, mut arrives) = (Vec::new(), Vec::new());
                    for ((from, to), slot) in pairs.into_iter().zip(0u8..) {
                        leaves.push(PrefixStep::Rename(from, system::aside(number, slot)));
                        arrives.push(PrefixStep::Rename(system::aside(number, slot), to));
                    }
                    going.push((depth(from), leaves));
                    coming.push((depth(&to), arrives));
                }
                Step::Take { from, dir, without } => {
                    let dir = moved.after(dir);
                    path::new_entry(&trees.ours.place(&dir), name_of(from))?;
                    let to = in_dir(&dir, from);
                    coming.push((depth(&to), self.taken(trees, from, &to, without)?));
                }
                Step::Change { .. } | Step::Write { .. } => {}
            }
        }
        if steps.len() > self.merge_steps {
            return Ok(());
        }
        going.sort_by_key(|(depth, _)| Reverse(*depth));
        coming.sort_by_key(|(depth, _)| *depth);
        let mut batch = Batch::new();
        for step in going.into_iter().chain(coming).flat_map(|(_, steps)| steps) {
            match step {
                PrefixStep::Delete(prefix) => batch.delete_prefix(prefix),
                PrefixStep::Rename(from, to) => batch.rename_prefix(from, to),
                PrefixStep::Clone(from, to) => batch.clone_prefix(from, to),
            };
        }
        Ok(self.db.check_lengths(&batch)?)
    }

    /// The clones for an entry that is taken, and the removals in it.
    fn taken(
        &self,
        trees: &mut Trees,
        entry: &[u8],
        to: &[u8],
        without: &[Vec<u8>],
    ) -> Result<Vec<PrefixStep>> {
        let Some(value) = trees.theirs.value(entry)? else { return Ok(Vec::new()) };
        let found = trees.theirs.found(entry, &value)?;
        let mut steps = Vec::new();
        if found.record.has_data() {
            steps.push(PrefixStep::Clone(found.data, path::data(&trees.ours.place(to))));
        }
        if found.record.kind != FileKind::Directory {
            return Ok(steps);
        }
        let (from, place) = (trees.theirs.place(&contents_of(entry)), trees.ours.place(&contents_of(to)));
        let mut pairs =
            vec![(path::meta(&from), path::meta(&place)), (path::data(&from), path::data(&place))];
        if self.has_links() && found.record.clone_id == 0 {
            pairs.extend(link_clones(trees, entry, &from, &place)?);
        }
        steps.extend(pairs.into_iter().map(|(from, to)| PrefixStep::Clone(from, to)));
        for left in without {
            let (there, here) =
                ([&contents_of(entry), &left[..]].concat(), [&contents_of(to), &left[..]].concat());
            let all = prefixes(&trees.ours, &here, is_dir(&trees.theirs, &there)?);
            steps.extend(all.into_iter().map(PrefixStep::Delete));
        }
        Ok(steps)
    }
}

/// The clones of the link area that a directory of the fork uses, and of the index of names, with the contents
/// prefixes of the directory there and here; none if it has no names of linked files.
pub(crate) fn link_clones(
    trees: &mut Trees,
    entry: &[u8],
    from: &[u8],
    to: &[u8],
) -> Result<Vec<(Bytes, Bytes)>> {
    let Some(level) = trees.theirs.level(path::directory_of(entry))? else { return Ok(Vec::new()) };
    let root = level.root.clone();
    let names = path::meta(&path::link_name(&root, from).unwrap_or_default());
    if trees.theirs.view.prefix(&names).next().transpose()?.is_none() {
        return Ok(Vec::new());
    }
    let (area, copy) = (path::all_linked(&root), path::all_linked(to));
    Ok(vec![
        (path::meta(&area), path::meta(&copy)),
        (path::data(&area), path::data(&copy)),
        (names, path::meta(&path::link_name(to, to).unwrap_or_default())),
    ])
}
