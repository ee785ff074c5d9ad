//! The types of a plan: the three trees, places in them, and steps.

use bytes::Bytes;

use crate::{
    diff::{
        change::{Aspects, DiffOptions},
        compare::compare,
        side::{Found, Side, identity},
    },
    error::Result,
    fork::report::{MergeChange, MergeKind},
    types::FileKind,
};

/// One step of a plan. Paths begin at the tops, in the form of keys; those of this side are those before the merge.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Removes an entry, with all below it except what is moved elsewhere.
    Remove(Vec<u8>),
    /// Takes the entry of the fork at `from`, with all below it, into the directory with this contents prefix; of a
    /// directory not the paths `without`, whose entries are elsewhere on this side.
    Take { from: Vec<u8>, dir: Vec<u8>, without: Vec<Vec<u8>> },
    /// Moves an entry, with all below it, to this name in the directory with this contents prefix.
    Move { from: Vec<u8>, dir: Vec<u8>, name: Vec<u8> },
    /// Gives a file or directory these aspects of the one in the fork. With `alone`, one of several names of a file
    /// becomes a file of its own.
    Change { from: Vec<u8>, to: Vec<u8>, aspects: Aspects, alone: bool },
    /// Changes a file as `Change` does, and gives it this content, which was merged from both sides.
    Write { from: Vec<u8>, to: Vec<u8>, aspects: Aspects, text: Bytes },
}

/// The aspects that are content: a step that changes one of them makes a new file.
const NEW_FILE: u16 = Aspects::CONTENT.0 | Aspects::SIZE.0 | Aspects::TARGET.0 | Aspects::DEVICE.0;

impl Step {
    /// The path of an entry that the step removes, replaces by another file, or moves.
    pub(crate) fn leaves(&self) -> Option<&[u8]> {
        match self {
            Self::Remove(path) | Self::Move { from: path, .. } => Some(path),
            Self::Change { to, .. } | Self::Write { to, .. } => self.makes_file().then_some(&to[..]),
            Self::Take { .. } => None,
        }
    }

    /// Bytes of its paths.
    pub(crate) fn path_bytes(&self) -> usize {
        match self {
            Self::Remove(path) => path.len(),
            Self::Take { from, dir, without } => {
                without.iter().fold(from.len() + dir.len(), |sum, path| sum + path.len())
            }
            Self::Move { from, dir, name } => from.len() + dir.len() + name.len(),
            Self::Change { from, to, .. } | Self::Write { from, to, .. } => from.len() + to.len(),
        }
    }

    /// Whether another file takes the place of one.
    pub(crate) fn makes_file(&self) -> bool {
        match self {
            Self::Change { aspects, alone, .. } => *alone || aspects.0 & NEW_FILE != 0,
            Self::Write { .. } => true,
            _ => false,
        }
    }
}

/// The path of an entry on each side, which it has or would have.
#[derive(Debug, Clone, Default)]
pub(crate) struct EntryPaths {
    pub base: Vec<u8>,
    pub theirs: Vec<u8>,
    pub ours: Vec<u8>,
}

/// Directories that are merged, by contents prefix.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dirs {
    pub base: Vec<u8>,
    pub theirs: Vec<u8>,
    /// The one of this side, if both sides have made it; then the origin has none.
    pub new: Option<Vec<u8>>,
}

/// The origin, the fork, and what it is merged into, of one moment.
pub(crate) struct Trees {
    pub base: Side,
    pub theirs: Side,
    pub ours: Side,
}

/// What is planned.
#[derive(Default)]
pub(crate) struct Plan {
    pub steps: Vec<Step>,
    pub changes: Vec<MergeChange>,
    /// Bytes that the plan adds to the tree, once they were counted.
    pub brought: i64,
}

/// A change, or a conflict, at a path of this side.
pub(crate) struct PlannedChange {
    pub kind: MergeKind,
    pub ours: Vec<u8>,
    pub aspects: Aspects,
}

/// What occupies a path of this side to which something is to come.
pub(crate) enum Occupant {
    /// Nothing, or an entry that the fork has moved or removed.
    Nothing,
    /// An entry that only this side has, or that is to be replaced.
    Its(Bytes),
    /// An entry of the origin that was moved here.
    Other,
}

pub(crate) fn kind(entry: &[u8], value: &[u8]) -> Result<FileKind> {
    Ok(identity(entry, value)?.1)
}

/// The aspects without the times, which are no reason for a conflict.
pub(crate) fn without_times(aspects: Aspects) -> Aspects {
    Aspects(aspects.0 & !Aspects::TIME.0)
}

pub(crate) fn differ(a_side: &Side, a: &Found, b_side: &Side, b: &Found) -> Result<Aspects> {
    Ok(compare(a_side, a, b_side, b, DiffOptions::default())?.aspects)
}
