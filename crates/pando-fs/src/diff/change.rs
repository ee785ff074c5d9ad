//! The words for differences of files.

use std::ffi::OsString;

use crate::{path, types::FileKind};

/// What became of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// The entry is in the second tree only.
    Added,
    /// The entry is in the first tree only.
    Removed,
    /// The entry differs.
    Modified,
    /// The entry has another path in the second tree, and may differ.
    Renamed,
    /// A directory in which something differs, and which the caller may not list or enter in one of the trees. Or a
    /// file that was changed, and which the caller may not read in one of the trees: it is not said whether its
    /// content differs, but other differences of the file are reported.
    Unreadable,
}

/// In what a file differs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Aspects(pub u16);

impl Aspects {
    /// Bytes of its content.
    pub const CONTENT: Self = Self(1);
    /// Its size.
    pub const SIZE: Self = Self(2);
    /// Permission bits.
    pub const MODE: Self = Self(4);
    /// User or group.
    pub const OWNER: Self = Self(8);
    /// Modification time.
    pub const TIME: Self = Self(16);
    /// Target of a symbolic link.
    pub const TARGET: Self = Self(32);
    /// Number of a device.
    pub const DEVICE: Self = Self(64);
    /// Extended attributes, access lists included.
    pub const XATTRS: Self = Self(128);

    /// All kinds, with their names.
    pub const NAMES: [(Self, &'static str); 8] = [
        (Self::CONTENT, "content"),
        (Self::SIZE, "size"),
        (Self::MODE, "mode"),
        (Self::OWNER, "owner"),
        (Self::TIME, "mtime"),
        (Self::TARGET, "target"),
        (Self::DEVICE, "device"),
        (Self::XATTRS, "xattrs"),
    ];

    /// True if there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if all of `other` are among these.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn add(&mut self, other: Self, if_so: bool) {
        if if_so {
            self.0 |= other.0;
        }
    }
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileChange {
    /// What became of it.
    pub kind: ChangeKind,
    /// What it is; of one that is in both trees, in the second.
    pub file: FileKind,
    /// Path from the top of the tree that it is in, of the second if it is in both; empty for the tops themselves.
    pub path: OsString,
    /// The path in the first tree, of a renamed file, and of one that differs in a directory that was renamed.
    pub from: Option<OsString>,
    /// In what it differs, if it is in both trees.
    pub aspects: Aspects,
    /// Size in the first tree, bytes; 0 if it is not there.
    pub size_before: u64,
    /// Size in the second tree, bytes; 0 if it is not there.
    pub size_after: u64,
    /// Ascending ranges of bytes, from and to, outside of which both contents are equal, if they were asked for: one
    /// for each block of 16 KiB at most, and of very many the last covers the rest.
    pub ranges: Vec<(u64, u64)>,
}

/// What [`crate::Fs::diff`] looks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiffOptions {
    /// Which bytes differ. Without it, a file is read to the first difference.
    pub ranges: bool,
    /// Report files that moved as removed and added.
    pub no_renames: bool,
}

/// A path inside a tree, of [`path::parse`]d form, as people write it.
pub(crate) fn shown(inside: &[u8]) -> OsString {
    use std::os::unix::ffi::OsStringExt;
    OsString::from_vec(path::names(inside).unwrap_or_default().join(&b'/'))
}
