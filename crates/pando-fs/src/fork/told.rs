//! The words for merges.

use std::ffi::OsString;

use crate::diff::Aspects;

/// Which side is right where both have changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeSide {
    /// What is merged into.
    Ours,
    /// The fork.
    Theirs,
}

/// How a fork is merged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MergeOptions {
    /// Only tell what would be done.
    pub dry_run: bool,
    /// Which side is right where they conflict; without it nothing is done then.
    pub prefer: Option<MergeSide>,
    /// Merge the lines of text files whose content both sides changed. Lines that both changed differently are a
    /// conflict with a preferred side, and stand between markers without.
    pub text: bool,
}

/// Why something cannot be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MergeConflict {
    /// Both sides have changed it, differently, or both have made it.
    Changed,
    /// It was removed here and changed in the fork, or something in it.
    RemovedHere,
    /// It was removed in the fork and changed here, or something in it.
    RemovedThere,
    /// It is of another kind on the other side.
    Kind,
    /// Both sides have renamed it, differently.
    Renamed,
    /// Something else has its place here. No preferred side settles that: rename one of them first.
    Taken,
    /// Directories would come to lie in each other. No preferred side settles that.
    Circle,
    /// It was moved here into a directory that goes, and the fork still has it. No preferred side settles that: move it
    /// out first.
    MovedInto,
}

impl MergeConflict {
    /// Whether preferring a side decides it.
    pub fn is_settled_by_a_side(self) -> bool {
        !matches!(self, Self::Taken | Self::Circle | Self::MovedInto)
    }
}

/// What a merge does at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MergeKind {
    /// It is taken from the fork, with all below it.
    Added,
    /// It is removed, with all below it.
    Removed,
    /// It becomes what it is in the fork, in the aspects named.
    Modified,
    /// It is removed, and something of another kind is taken from the fork.
    Replaced,
    /// It is moved here too, with all below it.
    Renamed,
    /// Both sides have changed its content, and it has the lines of both.
    Lines,
    /// The same, and lines that both changed differently stand in it between markers.
    Marked,
    /// Both sides have changed it.
    Conflict(MergeConflict),
}

/// One thing that a merge does, or cannot do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeChange {
    /// What is done.
    pub kind: MergeKind,
    /// Path from the directory that is merged into; empty for itself.
    pub path: OsString,
    /// Where it was, if it is [`MergeKind::Renamed`].
    pub from: Option<OsString>,
    /// In what the sides differ.
    pub aspects: Aspects,
}

/// What a merge came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeReport {
    /// What was done, or would be; in no particular order.
    pub changes: Vec<MergeChange>,
    /// It was done.
    pub merged: bool,
}
