//! What can go wrong in the file system, as types, and the errno of each.
//!
//! Every fallible public call returns [`Result`]. Guarantees that each error
//! has one errno ([`Error::errno`]) and a text that names what it is about.
//! May use the engine's errors and nothing else of the crate.

use std::ffi::OsStr;

use rustix::io::Errno;

/// Result of a file-system call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A file-system error; see [`Error::errno`] for what the kernel is told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Nothing has this name (ENOENT).
    #[error("{0}: no such file or directory")]
    NotFound(String),
    /// Something has this name already (EEXIST).
    #[error("{0}: exists already")]
    Exists(String),
    /// A directory has an entry `.snapshots` of its own, so there is no place for snapshots (EEXIST).
    #[error("{0}: is an entry of its own, where snapshots would be seen; rename it first")]
    HidesSnapshots(String),
    /// A directory was needed (ENOTDIR).
    #[error("{0}: not a directory")]
    NotDirectory(String),
    /// A directory was given where it cannot be (EISDIR).
    #[error("{0}: is a directory")]
    IsDirectory(String),
    /// A directory that must be empty is not (ENOTEMPTY).
    #[error("{0}: directory not empty")]
    NotEmpty(String),
    /// A name over 255 bytes, or a path over what a key holds (ENAMETOOLONG).
    #[error("{0}: name or path too long")]
    NameTooLong(String),
    /// A call that can never work as given (EINVAL); the text says why.
    #[error("{0}")]
    Invalid(String),
    /// Only the owner or root may do this (EPERM).
    #[error("{name}: {why}")]
    NotPermitted {
        /// What it was about.
        name: String,
        /// The rule that forbids it.
        why: &'static str,
    },
    /// The mode of a directory forbids this (EACCES).
    #[error("{0}: permission denied: needs write and search permission on the directory that holds it")]
    Access(String),
    /// A hard link, or a file that has several, would reach from one clone into another (EXDEV).
    #[error("{0}: hard links do not reach from one clone into another")]
    CrossesClone(String),
    /// More names of linked files than one call may have to look up (EFBIG).
    #[error("{0}: has names of too many files with several names to be changed at once")]
    TooManyNames(String),
    /// A merge changes more linked files than one batch can (EFBIG).
    #[error(
        "{name}: {changes} changes of files with several names are more than one merge can do in this image; make some \
         of them yourself (what both sides changed alike is left), and merge the rest"
    )]
    MergeTooLarge {
        /// The directory that is merged into.
        name: String,
        /// Changes, a count.
        changes: usize,
    },
    /// Other calls kept changing what a merge changes, so it did nothing (EBUSY).
    #[error("{0}: others kept changing what the merge changes too; nothing was done, try again")]
    MergeDisturbed(String),
    /// The plan of a merge takes more memory than a user's may (EFBIG).
    #[error(
        "{0}: the plan of this merge takes too much memory, with those of other merges by the same user; nothing was \
         done, let root merge it"
    )]
    PlanTooLarge(String),
    /// The caller does not wait for it any more, and nothing was done (EINTR).
    #[error("{0}: interrupted; nothing was done")]
    Interrupted(String),
    /// Something else is mounted on what would be taken away (EBUSY).
    #[error("{0}: something is mounted on it; unmount it first (findmnt shows what is mounted where)")]
    MountPoint(String),
    /// A snapshot that is to be deleted is mounted somewhere (EBUSY).
    #[error("{name}: is mounted on {dir}; unmount it first (pando umount {dir})")]
    Shown {
        /// The snapshot.
        name: String,
        /// Where it is mounted.
        dir: String,
    },
    /// The file system has as many policies for snapshots as it can have (EFBIG).
    #[error("a file system has at most {0} policies for snapshots; take one back first")]
    TooManyPolicies(usize),
    /// A user already has as many policies as are left for all other users together (EFBIG).
    #[error("these {0} policies for snapshots are as many as are left for others; take one back first")]
    TooManyOwnPolicies(usize),
    /// The tree of a directory would take more than its quota (EDQUOT).
    #[error("{0}: its quota is used up; pando quota list shows what is taken, pando quota set raises it")]
    QuotaExceeded(String),
    /// A file has as many names as it can have (EMLINK).
    #[error("{0}: too many links")]
    TooManyLinks(String),
    /// The inode was removed, or replaced by a clone (ESTALE).
    #[error("inode {0:#x}: removed or replaced meanwhile")]
    Stale(u64),
    /// No such open handle (EBADF).
    #[error("handle {0}: not open for this")]
    BadHandle(u64),
    /// Beyond [`crate::limits::MAX_FILE_SIZE`] (EFBIG).
    #[error("offset {0}: beyond the largest file size")]
    TooBig(u64),
    /// The file system is mounted read-only (EROFS).
    #[error("the file system is mounted read-only")]
    ReadOnly,
    /// What is in a snapshot never changes (EROFS).
    #[error("{0}: is in a snapshot, which never changes")]
    InSnapshot(String),
    /// The call, or this use of it, is not supported (EOPNOTSUPP).
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// No data, or no hole, at or behind this byte (ENXIO).
    #[error("offset {0}: nothing of that kind behind it")]
    NothingBehind(u64),
    /// No such extended attribute (ENODATA).
    #[error("{0}: no such extended attribute")]
    NoAttribute(String),
    /// The name of an extended attribute is longer than 255 bytes, or empty (ERANGE).
    #[error("{0}: impossible length of the name of an extended attribute")]
    AttributeName(String),
    /// The value of an extended attribute is too long (E2BIG).
    #[error("{0}: value of an extended attribute too long")]
    AttributeValue(String),
    /// The names of all extended attributes of one file would be longer than what can be listed (ENOSPC).
    #[error("{0}: too many extended attributes")]
    TooManyAttributes(String),
    /// A supply of numbers is used up (EOVERFLOW).
    #[error("no {0} left; copy the tree into a new file system")]
    Exhausted(&'static str),
    /// What is stored under a key is not what this version writes (EIO).
    #[error("damaged metadata of {what}: {detail}; run a check of the image")]
    Damaged {
        /// What it belongs to.
        what: String,
        /// What was expected.
        detail: &'static str,
    },
    /// A record of the file system itself cannot be read, so nothing may be written (EIO).
    #[error(
        "the {what} of the file system cannot be read: {source}; what else there is can be read with \
         `pando export`, or mounted with -o ro,norecovery"
    )]
    Unreadable {
        /// Which record.
        what: &'static str,
        /// Why.
        source: pando_db::Error,
    },
    /// The store holds no file system, or one of a version this program does not know (EINVAL).
    #[error("not a usable file system: {0}")]
    Format(String),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] pando_db::Error),
}

impl Error {
    /// The positive errno that stands for this error.
    pub fn errno(&self) -> i32 {
        use pando_db::Error as E;
        let errno = match self {
            Error::NotFound(_) => Errno::NOENT,
            Error::Exists(_) | Error::HidesSnapshots(_) => Errno::EXIST,
            Error::NotDirectory(_) => Errno::NOTDIR,
            Error::IsDirectory(_) => Errno::ISDIR,
            Error::NotEmpty(_) => Errno::NOTEMPTY,
            Error::NameTooLong(_) => Errno::NAMETOOLONG,
            Error::Invalid(_) | Error::Format(_) => Errno::INVAL,
            Error::NotPermitted { .. } => Errno::PERM,
            Error::Access(_) => Errno::ACCESS,
            Error::CrossesClone(_) => Errno::XDEV,
            Error::QuotaExceeded(_) => Errno::DQUOT,
            Error::TooManyLinks(_) => Errno::MLINK,
            Error::Stale(_) => Errno::STALE,
            Error::BadHandle(_) => Errno::BADF,
            Error::TooBig(_) | Error::TooManyNames(_) | Error::TooManyPolicies(_) => Errno::FBIG,
            Error::MergeTooLarge { .. } | Error::PlanTooLarge(_) => Errno::FBIG,
            Error::TooManyOwnPolicies(_) => Errno::FBIG,
            Error::Interrupted(_) | Error::Engine(E::Interrupted) => Errno::INTR,
            Error::MergeDisturbed(_) | Error::MountPoint(_) | Error::Shown { .. } => Errno::BUSY,
            Error::ReadOnly | Error::InSnapshot(_) | Error::Engine(E::ReadOnly) => Errno::ROFS,
            Error::Unsupported(_) => Errno::OPNOTSUPP,
            Error::NothingBehind(_) => Errno::NXIO,
            Error::NoAttribute(_) => Errno::NODATA,
            Error::AttributeName(_) => Errno::RANGE,
            Error::AttributeValue(_) => Errno::TOOBIG,
            Error::TooManyAttributes(_) => Errno::NOSPC,
            Error::Exhausted(_) => Errno::OVERFLOW,
            Error::Engine(E::NoSpace) => Errno::NOSPC,
            Error::Engine(E::TooLarge { what: "key", .. }) => Errno::NAMETOOLONG,
            Error::Engine(E::Locked) => Errno::BUSY,
            Error::Damaged { .. } | Error::Unreadable { .. } | Error::Engine(_) => Errno::IO,
        };
        errno.raw_os_error()
    }
}

/// A name for messages.
pub(crate) fn show(name: &OsStr) -> String {
    name.to_string_lossy().into_owned()
}
