//! What a merge is asked to do, and what it reports.

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
    /// Only report what would be done.
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
    /// Both sides have changed the entry, differently, or both have made it.
    Changed,
    /// The entry was removed here, and the fork has changed it, or something in it.
    RemovedHere,
    /// The entry was removed in the fork, and this side has changed it, or something in it.
    RemovedThere,
    /// The entry is of another kind on the other side.
    Kind,
    /// Both sides have renamed the entry, differently.
    Renamed,
    /// Something else has its place here. No preferred side settles that: rename one of them first.
    Taken,
    /// Directories would come to lie in each other. No preferred side settles that.
    Circle,
    /// This side has moved the entry into a directory that the merge removes, and the fork still has it. A preferred
    /// side does not resolve that: move the entry out first.
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
    /// The entry is taken from the fork, with everything below it.
    Added,
    /// The entry is removed, with everything below it.
    Removed,
    /// The entry becomes what it is in the fork, in the aspects named.
    Modified,
    /// The entry is removed, and one of another kind is taken from the fork.
    Replaced,
    /// The entry is moved here as in the fork, with everything below it.
    Renamed,
    /// Both sides have changed the content of the file, and it gets the lines of both.
    Lines,
    /// As `Lines`, and lines that both sides changed differently are in the file between markers.
    Marked,
    /// Both sides have changed the entry.
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

/// The result of a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergeReport {
    /// What was done, or would be; in no particular order.
    pub changes: Vec<MergeChange>,
    /// The merge was made.
    pub merged: bool,
}
