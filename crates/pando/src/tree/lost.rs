//! Counts what a copy could not preserve, with the first entry of each sort.
//!
//! Whether a host accepts an owner, a link or an attribute depends on the host and the caller's rights. A copy
//! continues without them, and reports that at its end.

use crate::exit::{self, Coded};

/// Something that was not kept of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Lost {
    /// The entry is a file of its own instead of a further name of another.
    HardLink,
    /// An extended attribute.
    Attribute,
    /// An access control list.
    AccessList,
    /// The owner or the group.
    Owner,
    /// Set-id, sticky or permission bits.
    Mode,
    /// The time of the last change, to the nanosecond.
    Time,
    /// A device node, pipe, socket or symbolic link, which is left out.
    Special,
    /// All that belongs to a directory or special file: somebody has put something else in its place.
    Replaced,
}

/// How the sorts are called when there are some, in the order of [`Lost`].
const LOST_NAMES: [&str; 8] = [
    "hard links became files of their own",
    "extended attributes were not kept",
    "access control lists were not kept",
    "owners or groups were not kept",
    "modes were not kept",
    "times were not kept to the nanosecond",
    "device nodes, pipes, sockets or symbolic links were left out",
    "directories or special files were replaced by something else meanwhile, which was left as it is",
];

/// Names of the attributes that are access control lists.
pub const LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// What was not kept of one entry: sort, and why.
pub type Losses = Vec<(Lost, String)>;

/// What was not kept of a tree.
#[derive(Debug, Default)]
pub struct NotKept([Option<(u64, String)>; LOST_NAMES.len()]);

impl NotKept {
    /// Counts what was not kept of the entry that is called `path`.
    pub fn add(&mut self, path: impl Fn() -> String, losses: &mut Losses) {
        for (lost, why) in losses.drain(..) {
            if let Some(sort) = self.0.get_mut(lost as usize) {
                sort.get_or_insert_with(|| (0, format!("{}: {why}", path()))).0 += 1;
            }
        }
    }

    /// A line for each sort of which there is something.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().zip(LOST_NAMES).filter_map(|(sort, name)| {
            let (n, first) = sort.as_ref()?;
            Some(format!("{n} {name}; the first: {first}"))
        })
    }

    /// Says on stderr what was not kept.
    pub fn say(&self) {
        self.lines().for_each(|line| crate::exit::tell!("pando: {line}"));
    }

    /// An error if something was not kept.
    pub fn into_result(self, whole: &dyn std::fmt::Display) -> Result<(), Coded> {
        match self.lines().next() {
            None => Ok(()),
            Some(_) => {
                Err(Coded(exit::NOT_KEPT, format!("{whole}: copied, but not with all that belongs to it")))
            }
        }
    }
}

/// Whether an error is a refusal, and no failure: the other side does not support such a thing, or the caller may not
/// set it.
pub fn is_refusal(errno: i32) -> bool {
    matches!(errno, libc::EPERM | libc::EOPNOTSUPP | libc::ENOSYS | libc::EMLINK | libc::EXDEV)
}

/// The number of an error of the system or of a file system in `error`.
pub fn errno(error: &anyhow::Error) -> Option<i32> {
    error.chain().find_map(|cause| {
        let io = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        io.or_else(|| cause.downcast_ref::<pando_fs::Error>().map(pando_fs::Error::errno))
    })
}

/// The sort of an attribute.
pub fn sort_of(name: &[u8]) -> Lost {
    if name.starts_with(b"system.posix_acl_") { Lost::AccessList } else { Lost::Attribute }
}

/// Whether an attribute that could not be set is no reason to end: all but failures of the device.
pub fn may_miss(errno: i32) -> bool {
    !matches!(errno, libc::EIO | libc::EROFS)
}

/// What is said of an attribute.
pub fn about(name: &[u8], why: &dyn std::fmt::Display) -> String {
    format!("{}: {why}", String::from_utf8_lossy(name))
}
