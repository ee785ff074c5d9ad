//! The vocabulary of the crate's calls: callers, attributes, options, reports.
//!
//! Plain data, its constructors, and what follows from one value alone. Uses types of the engine, and nothing else of
//! the crate.

use std::{
    ffi::OsString,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use pando_db::Codec;

/// An inode number: what `stat` reports, and the node id that the kernel uses.
pub type Ino = u64;

/// The root directory.
pub const ROOT: Ino = 1;

/// The process for which a call is made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Caller {
    /// Effective (file-system) user.
    pub uid: u32,
    /// Effective (file-system) group.
    pub gid: u32,
    /// Process, 0 if unknown.
    pub pid: u32,
    /// Mode bits to leave out of what is created.
    pub umask: u32,
    /// Supplementary groups, where known.
    pub groups: Vec<u32>,
    /// Whether the caller may keep set-id bits (CAP_FSETID), where that is known already; otherwise the superuser may.
    pub fsetid: Option<bool>,
    /// A kernel says with each write by handles that the caller opens whether set-id bits go.
    pub told_when_set_id_goes: bool,
    /// Whether the caller may see and change attributes `trusted.`, where that is known already; otherwise the
    /// superuser may.
    pub trusted_attrs: Option<bool>,
    /// Whether a set-group-id bit stays on what the caller makes, or gives an access list, where that is known already.
    pub keeps_group_bit: Option<bool>,
    /// The caller says itself when the content of a regular file has changed ([`crate::Fs::setattr`]), as a kernel does
    /// that keeps what is written: [`crate::Fs::fallocate`] and copies leave the times as they are.
    pub reports_times: bool,
}

impl Caller {
    /// The superuser with an empty umask.
    pub fn root() -> Self {
        Self::default()
    }

    /// True for the superuser.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// True if the caller may see and change attributes `trusted.`.
    pub fn has_trusted_attrs(&self) -> bool {
        self.trusted_attrs.unwrap_or(self.is_root())
    }

    /// True if set-id bits stay on a file whose content or access list the caller changes.
    pub fn keeps_set_id(&self) -> bool {
        self.fsetid.unwrap_or(self.is_root())
    }

    /// True if the caller is in `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

/// Rights of a caller that the kernel has verified, for calls on whole trees, which the kernel cannot check itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifiedRights {
    /// Effective (file-system) user.
    pub uid: u32,
    /// The caller owns the source of a clone, or has the privilege to act as its owner.
    pub owns_source: bool,
    /// The directory in which the caller may make entries.
    pub adds_to: Option<Ino>,
    /// What the caller may take out of its directory.
    pub removes: Option<Ino>,
    /// The caller is root, with the rights of root over every file.
    pub root: bool,
}

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A file with data.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A character device node.
    CharDevice = 4,
    /// A block device node.
    BlockDevice = 5,
    /// A named pipe.
    Fifo = 6,
    /// A socket.
    Socket = 7,
}

const S_IFMT: u32 = 0o170000;

impl FileKind {
    /// The kind that the type bits of a `st_mode` name; no type bits mean a regular file.
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & S_IFMT {
            0 | 0o100000 => Self::Regular,
            0o040000 => Self::Directory,
            0o120000 => Self::Symlink,
            0o020000 => Self::CharDevice,
            0o060000 => Self::BlockDevice,
            0o010000 => Self::Fifo,
            0o140000 => Self::Socket,
            _ => return None,
        })
    }

    /// The type bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Regular => 0o100000,
            Self::Directory => 0o040000,
            Self::Symlink => 0o120000,
            Self::CharDevice => 0o020000,
            Self::BlockDevice => 0o060000,
            Self::Fifo => 0o010000,
            Self::Socket => 0o140000,
        }
    }
}

pub(crate) const DAY_SECONDS: i64 = 24 * 60 * 60;

/// A moment: seconds since 1970 and nanoseconds (below 10^9) after that second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Time {
    /// Seconds since 1970; negative before.
    pub secs: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanos: u32,
}

impl Time {
    /// The time of the clock.
    pub fn now() -> Self {
        SystemTime::now().into()
    }

    /// The time of the clock's last tick, at most some milliseconds ago: what the kernel takes for times of files.
    pub(crate) fn of_tick() -> Self {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        Self { secs: t.tv_sec, nanos: u32::try_from(t.tv_nsec).unwrap_or(0) }
    }
}

impl From<SystemTime> for Time {
    fn from(t: SystemTime) -> Self {
        match t.duration_since(UNIX_EPOCH) {
            Ok(d) => Self { secs: d.as_secs() as i64, nanos: d.subsec_nanos() },
            Err(e) => {
                let d = e.duration();
                match d.subsec_nanos() {
                    0 => Self { secs: -(d.as_secs() as i64), nanos: 0 },
                    n => Self { secs: -(d.as_secs() as i64) - 1, nanos: 1_000_000_000 - n },
                }
            }
        }
    }
}

impl From<Time> for SystemTime {
    fn from(t: Time) -> Self {
        let whole = if t.secs >= 0 {
            UNIX_EPOCH.checked_add(Duration::from_secs(t.secs as u64))
        } else {
            UNIX_EPOCH.checked_sub(Duration::from_secs(t.secs.unsigned_abs()))
        };
        whole.and_then(|w| w.checked_add(Duration::from_nanos(t.nanos.into()))).unwrap_or(UNIX_EPOCH)
    }
}

/// What `stat` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Bytes. Directories report 4096, symlinks the length of their target.
    pub size: u64,
    /// Space of the data blocks of 16 KiB that exist, before compression, in units of 512 bytes; the last block
    /// counts up to the end of the file. A file without holes has its size here. Blocks that clones share count in
    /// every file.
    pub blocks: u64,
    /// Last read, by the mount's [`AtimePolicy`].
    pub atime: Time,
    /// Last change of content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Creation.
    pub crtime: Time,
    /// Kind.
    pub kind: FileKind,
    /// Permission bits, with set-id and sticky bits (07777).
    pub perm: u16,
    /// Names. 1 for directories (as btrfs does); 0 once unlinked.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of device nodes.
    pub rdev: u32,
    /// Good size of an I/O, bytes.
    pub blksize: u32,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This time.
    At(Time),
}

/// Attributes to change; `None` keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// Permission bits (type bits are ignored).
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: truncates or extends with zeros.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time; the time of the call if `None`.
    pub ctime: Option<Time>,
    /// Clear set-user-id, and set-group-id of group-executables, as a write by a non-owner does.
    pub kill_suidgid: bool,
}

impl SetAttr {
    /// Whether it sets nothing but times.
    pub(crate) fn is_of_times_only(&self) -> bool {
        let times = Self { atime: None, mtime: None, ctime: None, ..*self };
        times == Self::default()
    }
}

/// An open file. 0 is no handle: calls that take one accept it, and go by the inode number alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileHandle(pub u64);

/// An open directory. 0 is never issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DirHandle(pub u64);

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Inode number.
    pub ino: Ino,
    /// Kind.
    pub kind: FileKind,
    /// Name, without a slash.
    pub name: OsString,
    /// A listing that begins at this cookie continues after this entry; never 0.
    pub cookie: u64,
    /// Its attributes. No kernel reference is counted.
    pub attr: Attr,
}

/// Space figures in the shape of `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    /// Size of the file system, in units of `frsize`.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for ordinary users.
    pub bavail: u64,
    /// Inodes; 0: not limited by a table.
    pub files: u64,
    /// Free inodes; 0 as above.
    pub ffree: u64,
    /// Good size of an I/O, bytes.
    pub bsize: u32,
    /// Longest name, bytes.
    pub namelen: u32,
    /// Size of a block, bytes.
    pub frsize: u32,
}

/// What [`crate::Fs::clone_tree`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CloneReport {
    /// Inode numbers that were live in memory at the destination and are gone now: drop their caches.
    pub replaced: Vec<Ino>,
    /// Open files that lost their last name with a tree that was replaced or removed: their link count has changed.
    pub orphaned: Vec<Ino>,
    /// (directory, name) pairs that mean something else now: drop these dentries and the
    /// directory's cached listing and attributes.
    pub entries: Vec<(Ino, OsString)>,
    /// How long a clone of a file or tree took, microseconds; 0 for other calls.
    pub micros: u64,
}

/// What [`crate::Fs::remove_tree`] did; the same fields as of a clone.
pub type RemoveReport = CloneReport;

/// On whose authority a call is made that only the owner of a directory may make.
#[derive(Debug, Clone, Copy)]
pub enum Authority<'a> {
    /// A caller, whose rights the call checks.
    Caller(&'a Caller),
    /// Rights in the directory that the call is about, which the kernel has verified.
    Verified(&'a VerifiedRights),
}

/// Which snapshot of which store: what a stream names its snapshots by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotId {
    /// UUID of the store that it was made in.
    pub store: [u8; 16],
    /// Its number there.
    pub number: u32,
    /// When it was made: tells the snapshots of two copies of one store apart.
    pub created: Time,
}

/// How the names of directories begin in which received trees are made: they are no part of the path of a tree.
pub const RECEIVING: &str = ".pando-receive-";

/// What is known of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Never given to another one.
    pub number: u32,
    /// Its name among the snapshots of its directory.
    pub name: OsString,
    /// The path of the directory when it was made, or the end of a long one.
    pub source: OsString,
    /// What its maker says of it.
    pub note: String,
    /// When it was made.
    pub created: Time,
    /// The snapshot cannot be deleted until this is cleared.
    pub keep: bool,
    /// How long after it was made a policy keeps it, and then lets it go, seconds.
    pub valid_for_secs: Option<u64>,
    /// The user that made it.
    pub uid: u32,
    /// The snapshot that it was received as: its content is that one's.
    pub received: Option<SnapshotId>,
    /// The stored policy of the directory had it made, and may delete it.
    pub automatic: bool,
}

/// What is known of a fork: a clone that remembers what it was cloned from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkInfo {
    /// Never given to another fork, nor to a snapshot; another one after each merge.
    pub number: u32,
    /// Where it is.
    pub path: OsString,
    /// Where the directory is that it was made of; none if that is gone.
    pub source: Option<OsString>,
    /// When it was made.
    pub created: Time,
    /// When it was made, or merged last: what it has changed since is what it has to merge.
    pub since: Time,
    /// The user that made it.
    pub uid: u32,
}

/// A snapshot to be made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewSnapshot {
    /// Its name; the time by default.
    pub name: Option<OsString>,
    /// See [`SnapshotInfo::keep`].
    pub keep: bool,
    /// See [`SnapshotInfo::valid_for_secs`].
    pub valid_for_secs: Option<u64>,
    /// See [`SnapshotInfo::note`].
    pub note: String,
    /// See [`SnapshotInfo::received`].
    pub received: Option<SnapshotId>,
    /// See [`SnapshotInfo::automatic`].
    pub automatic: bool,
}

/// Which snapshots of a directory are to be kept: see [`SnapshotPolicy::expired`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SnapshotPolicy {
    /// Number of the newest snapshots that are kept.
    pub last: u32,
    /// The newest of each of the last so many hours that have one; and so on.
    pub hourly: u32,
    /// Number of days of which the last snapshot is kept.
    pub daily: u32,
    /// The same for weeks, which begin on Monday.
    pub weekly: u32,
    /// The same for months.
    pub monthly: u32,
    /// The same for years.
    pub yearly: u32,
    /// Of the snapshots that would be deleted, one of this number is kept.
    pub one_of: u32,
}

/// When a read changes the access time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AtimePolicy {
    /// If it is not after the last change, or is a day old. If the file was not changed after the last clone of any
    /// tree, the time is kept in memory, so that reading never copies what clones share: `stat` shows it while the
    /// inode is in memory, and it is stored with the file's next change.
    #[default]
    Relatime,
    /// Never.
    Noatime,
    /// At each read.
    Strict,
}

/// What [`crate::Fs::format`] makes.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FormatOptions {
    /// Size in bytes of a file that is made for it: see [`pando_db::CreateOptions::size`].
    pub size: Option<u64>,
    /// Target size of an engine node in bytes; 1 MiB by default.
    pub node_size: u32,
    /// Bytes of the redo log; `None`: chosen by the engine.
    pub log_size: Option<u64>,
    /// A name for the file system, at most 255 bytes; the superblock, and so `pando info`, shows the first 64 of
    /// them. Default empty.
    pub label: String,
    /// Identity of the store, see [`Fs::uuid`](crate::Fs::uuid). By default, which is zero, a random one.
    pub uuid: [u8; 16],
    /// Owner of the root directory.
    pub root_uid: u32,
    /// Group of the root directory.
    pub root_gid: u32,
    /// Permission bits of the root directory.
    pub root_mode: u32,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            size: None,
            node_size: 1 << 20,
            log_size: None,
            label: String::new(),
            uuid: [0; 16],
            root_uid: 0,
            root_gid: 0,
            root_mode: 0o755,
        }
    }
}

/// How [`crate::Fs::open`] opens; nothing of it is kept on disk.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct MountOptions {
    /// Budget of the engine's cache and dirty data, bytes; 256 MiB by default.
    pub cache_bytes: u64,
    /// Refuse every change (EROFS).
    pub read_only: bool,
    /// The file system is mounted read-only by the kernel, and may be remounted for writing later: until the first
    /// change nothing is written, not even access times.
    pub changes_suspended: bool,
    /// How long a change may stay in memory before the log is flushed; 1 s by default.
    pub sync_interval: Duration,
    /// How long the log may grow before a checkpoint; 30 s by default.
    pub checkpoint_interval: Duration,
    /// Most bytes that are read ahead for all open files together, when files are read in order; 0 turns readahead
    /// off. This memory is part of `cache_bytes`, and at most a sixteenth of it, which is the default; at most 4 MiB
    /// are read ahead in one file. Without `background` nothing is read ahead.
    pub readahead_bytes: u64,
    /// When reading a file changes its access time.
    pub atime: AtimePolicy,
    /// Whether the engine works in background threads; `false` is deterministic.
    pub background: bool,
    /// Says that the data is also cached above this crate, as by the kernel for a mount. Then data that was written
    /// and not read since takes at most a sixteenth of `cache_bytes`, and at most 64 MiB, and data that long requests
    /// read for the first time is not cached. Default false.
    pub kept_above: bool,
    /// How data is compressed when it is written.
    pub codec: Codec,
    /// Whether freed space is given back to the file system or device underneath; default true.
    pub discard: bool,
    /// Open an image whose log is damaged beyond repair, without what is lost: see [`pando_db::Options::salvage`].
    pub salvage: bool,
    /// Times of files are those of the clock's last tick, as the kernel's own are, and not exact. A kernel that keeps
    /// the times of files itself then finds the same time, and need not send another one, when a file is written
    /// right after it was made. Default false.
    pub tick_times: bool,
    /// Listings of directories that have snapshots show `.snapshots`, which a lookup finds in any case. Default false.
    pub snapshots_visible: bool,
    /// Most changes that a merge makes in one batch, while calls on both trees wait. A larger merge makes its changes
    /// in a copy, in several batches, and then puts the copy in place of the tree. Default 10,000.
    pub merge_steps: usize,
    /// Calls find the locks that they need by a cached path if that has more than so many directories, because walking
    /// up would cost more than all the rest there. Default 32.
    pub cached_path_depth: usize,
    /// Most memory that the plans of one user's merges take, in bytes; not root's. A larger merge is refused (EFBIG).
    /// Default 1 GiB.
    pub merge_plan_bytes: usize,
    /// Linked files that have no name in a snapshot, and stand beside each other there, are removed from it if they
    /// take so many bytes, or are 64. Default 256 KiB.
    pub nameless_bytes: u64,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 256 << 20,
            read_only: false,
            changes_suspended: false,
            sync_interval: Duration::from_secs(1),
            checkpoint_interval: Duration::from_secs(30),
            readahead_bytes: u64::MAX,
            atime: AtimePolicy::default(),
            background: true,
            kept_above: false,
            codec: Codec::default(),
            discard: true,
            salvage: false,
            tick_times: false,
            snapshots_visible: false,
            merge_steps: 10_000,
            cached_path_depth: 32,
            merge_plan_bytes: 1 << 30,
            nameless_bytes: 256 << 10,
        }
    }
}

/// Methods that set one field each and give the options back.
macro_rules! setters {
    ($options:ident: $($field:ident($type:ty) $as:expr;)*) => {
        impl $options {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $as;
                    self
                }
            )*
        }
    };
}

setters! { FormatOptions:
    size(u64) Some(size);
    node_size(u32) node_size;
    log_size(u64) Some(log_size);
    label(impl Into<String>) label.into();
    uuid([u8; 16]) uuid;
    root_uid(u32) root_uid;
    root_gid(u32) root_gid;
    root_mode(u32) root_mode;
}

setters! { MountOptions:
    cache_bytes(u64) cache_bytes;
    read_only(bool) read_only;
    changes_suspended(bool) changes_suspended;
    sync_interval(Duration) sync_interval;
    checkpoint_interval(Duration) checkpoint_interval;
    readahead_bytes(u64) readahead_bytes;
    atime(AtimePolicy) atime;
    background(bool) background;
    kept_above(bool) kept_above;
    codec(Codec) codec;
    discard(bool) discard;
    salvage(bool) salvage;
    tick_times(bool) tick_times;
    snapshots_visible(bool) snapshots_visible;
    merge_steps(usize) merge_steps;
    cached_path_depth(usize) cached_path_depth;
    merge_plan_bytes(usize) merge_plan_bytes;
    nameless_bytes(u64) nameless_bytes;
}
