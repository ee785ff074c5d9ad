//! The tool's side of what needs rights: it lets the kernel show them to the daemon, then asks.
//!
//! Paths are walked once: an [`EntryPath`] keeps a descriptor of the directory, and everything is done by that.
//! See `proof` for what is shown how.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, fstat, linkat, makedev, mkdirat, mknodat, open, openat,
    renameat_with, statat, unlinkat,
};

use pando_fs::{ForkInfo, NewSnapshot, PolicyInfo, Quota, SnapshotInfo, TreeChange};

use crate::{
    asked::Asked,
    client::{self, ClonedTree, ControlError},
    control::{ControlRequest, Token, Usage, decode_usage},
    forked::{self, ForkAsked},
    mountinfo,
    proof::NOTED,
    quotas::{self, QuotaAsked},
};

mod differences;
mod mounted;
mod space;

pub use differences::{Differences, alike_snapshots, becomes_free, diff, diff_fork, merge, write_origin};
pub use mounted::mounted_snapshots;
pub use space::usage_of_each_snapshot;

/// A name in a directory, whether there is anything or not.
#[derive(Debug)]
pub struct EntryPath {
    /// Good for naming things in it; it need not be readable.
    dir: OwnedFd,
    /// Where the directory was, to find the mount by.
    parent: PathBuf,
    name: OsString,
}

impl EntryPath {
    /// The name `name` in the directory at `parent`.
    pub fn new(parent: &Path, name: &OsStr) -> io::Result<EntryPath> {
        let dir = open(parent, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(EntryPath { dir, parent: parent.to_owned(), name: name.to_owned() })
    }

    /// Device of the directory.
    pub fn device(&self) -> io::Result<u64> {
        Ok(fstat(&self.dir)?.st_dev)
    }

    /// What the name stands for, and its inode number, size and device; links are not followed.
    fn stat(&self) -> io::Result<(FileType, rustix::fs::Stat)> {
        let stat = statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((FileType::from_raw_mode(stat.st_mode), stat))
    }

    fn is_dir(&self) -> io::Result<bool> {
        Ok(self.stat()?.0 == FileType::Directory)
    }

    fn open(&self, kind: FileType, flags: OFlags) -> io::Result<OwnedFd> {
        let kind = if kind == FileType::Directory { OFlags::DIRECTORY } else { OFlags::NONBLOCK };
        let flags = flags | kind | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.dir, &self.name, flags, Mode::empty())?)
    }

    /// Any directory of the mount that can be opened, to send requests by: the rights do not depend on it.
    fn carrier(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(&self.dir, ".", flags, Mode::empty()).or_else(|e| {
            let mount = mountinfo::containing(&self.parent.canonicalize()?)?.ok_or(e)?;
            Ok(open(&mount.dir, flags, Mode::empty())?)
        })
    }
}

/// The result of an attempt to make an entry with a token's name; `undo` is for file systems on which the attempt
/// succeeds.
fn shown(
    attempt: rustix::io::Result<()>,
    undo: impl FnOnce() -> rustix::io::Result<()>,
) -> Result<(), ControlError> {
    match attempt {
        Err(e) if e.raw_os_error() == NOTED => Ok(()),
        Err(e) => Err(ControlError::Io(e.into())),
        Ok(()) => {
            undo().map_err(io::Error::from)?;
            Err(ControlError::NotPando)
        }
    }
}

/// Lets the kernel show that the caller is root and may write to `dir`.
fn show_root(dir: &impl AsFd, token: &Token) -> Result<(), ControlError> {
    let name = token.name();
    // The numbers are those of /dev/null, which containers may make where they may make any.
    let attempt = mknodat(dir, &name, FileType::CharacterDevice, Mode::empty(), makedev(1, 3));
    shown(attempt, || unlinkat(dir, &name, AtFlags::empty()))
}

/// Lets the kernel show that the caller may search `dir`: then it asks the daemon for what is not there.
fn show_entering(dir: &impl AsFd, token: &Token) {
    let _ = statat(dir, token.name(), AtFlags::SYMLINK_NOFOLLOW);
}

/// Lets the kernel show that the caller may write to `dir` and, if so, that it is root.
fn show_adding(dir: &impl AsFd, token: &Token) -> Result<(), ControlError> {
    if rustix::process::geteuid().is_root() && show_root(dir, token).is_ok() {
        return Ok(());
    }
    let name = token.name();
    shown(mkdirat(dir, &name, Mode::RWXU), || unlinkat(dir, &name, AtFlags::REMOVEDIR))
}

/// Lets the kernel show that the caller may remove what is at `entry_path`.
fn show_removal(entry_path: &EntryPath, token: &Token) -> Result<(), ControlError> {
    let name = token.name();
    let attempt =
        renameat_with(&entry_path.dir, &entry_path.name, &entry_path.dir, &name, RenameFlags::NOREPLACE);
    shown(attempt, || {
        renameat_with(&entry_path.dir, &name, &entry_path.dir, &entry_path.name, RenameFlags::NOREPLACE)
    })?;
    if rustix::process::geteuid().is_root() {
        // Without it the request goes on as that of an ordinary user.
        let _ = show_root(&entry_path.dir, token);
    }
    Ok(())
}

/// Clones the file or tree at `source` to `destination`, and returns the microseconds that it took
/// inside the daemon.
pub fn clone(source: &EntryPath, destination: &EntryPath, replace: bool) -> Result<u64, ControlError> {
    clone_without(source, destination, replace, &[]).map(|made| made.micros)
}

/// Like [`clone()`], and leaves out of the clone of a directory what lies at these paths in it; what does not exist is
/// ignored. `destination` may lie inside `source`: the clone is of the moment before.
pub fn clone_without(
    source: &EntryPath,
    destination: &EntryPath,
    replace: bool,
    exclude: &[PathBuf],
) -> Result<ClonedTree, ControlError> {
    clone_as(source, destination, (replace, false), exclude)
}

/// Like [`clone_without()`], of a directory, and the clone is a fork: it remembers what it was then.
pub fn fork(
    source: &EntryPath,
    destination: &EntryPath,
    replace: bool,
    exclude: &[PathBuf],
) -> Result<ClonedTree, ControlError> {
    clone_as(source, destination, (replace, true), exclude)
}

fn clone_as(
    source: &EntryPath,
    destination: &EntryPath,
    (replace, track): (bool, bool),
    exclude: &[PathBuf],
) -> Result<ClonedTree, ControlError> {
    let (kind, _) = source.stat()?;
    let openable = matches!(kind, FileType::RegularFile | FileType::Directory);
    // The kernel refuses O_NOATIME unless the caller owns the file. The daemon then refuses the request, with the
    // reason.
    let opened = match source.open(kind, OFlags::NOATIME) {
        _ if !openable => None,
        Ok(file) => Some(file),
        Err(_) => match source.open(kind, OFlags::empty()) {
            Ok(file) => Some(file),
            Err(e) if kind == FileType::Directory => return Err(ControlError::Io(e)),
            Err(_) => None,
        },
    };
    let (carrier, (token, writeback)) = match opened {
        Some(file) => {
            let token = client::token_and_writeback(&file)?;
            (file, token)
        }
        None => {
            let carrier = source.carrier()?;
            let (token, writeback) = client::token_and_writeback(&carrier)?;
            show_adding(&destination.dir, &token)?;
            // Links, pipes, sockets, devices and what may not be read are not opened, but shown by a link.
            let name = token.name();
            let attempt = linkat(&source.dir, &source.name, &destination.dir, &name, AtFlags::empty());
            shown(attempt, || unlinkat(&destination.dir, &name, AtFlags::empty()))?;
            (carrier, (token, writeback))
        }
    };
    let replaced = replace
        && match show_removal(destination, &token) {
            Err(ControlError::Io(e)) if e.kind() == io::ErrorKind::NotFound => false,
            other => other.map(|()| true)?,
        };
    if !replaced {
        show_adding(&destination.dir, &token)?;
    }
    if writeback {
        // This writes out the dirty pages of all files in large pieces. The daemon could only get them a page at a
        // time.
        let _ = rustix::fs::syncfs(&carrier);
    }
    let name = destination.name.clone();
    client::send_clone(
        &carrier,
        &ControlRequest::Clone { token, name, replace, track, exclude: exclude.to_vec() },
    )
}

/// Removes the file or, if `recursive`, the tree at `target`, and returns the microseconds that it took inside
/// the daemon (0 for a file). EISDIR for a directory otherwise.
pub fn remove(target: &EntryPath, recursive: bool) -> Result<u64, ControlError> {
    // Looked at once: what was no directory must not be removed with all that is in it if it is one now.
    let is_dir = target.is_dir()?;
    // Nothing is removed that is not in a mount of ours.
    let carrier = target.carrier()?;
    let token = client::token(&carrier)?;
    if !is_dir {
        // A plain call, which the kernel checks itself, and refuses for directories.
        unlinkat(&target.dir, &target.name, AtFlags::empty()).map_err(io::Error::from)?;
        return Ok(0);
    }
    if !recursive {
        return Err(ControlError::Io(io::Error::from_raw_os_error(libc::EISDIR)));
    }
    show_removal(target, &token)?;
    client::send(&carrier, &ControlRequest::Remove { token, fork: false })
}

/// Removes the fork at `target` with all that is in it; EINVAL if it is none.
pub fn discard(target: &EntryPath) -> Result<u64, ControlError> {
    if !target.is_dir()? {
        return Err(ControlError::Io(io::Error::from_raw_os_error(libc::ENOTDIR)));
    }
    let carrier = target.carrier()?;
    let token = client::token(&carrier)?;
    show_removal(target, &token)?;
    client::send(&carrier, &ControlRequest::Remove { token, fork: true })
}

/// Changes attributes of the directory that is open as `dir` and of all that is in it, at once, and gives the
/// microseconds that it took. `None` if this cannot be done at once, and nothing is done: it is for root only, in a
/// mount of ours that may be written to, and not where more than the daemon can look up have several names.
pub fn change_tree(dir: &impl AsFd, change: &TreeChange) -> Result<Option<u64>, ControlError> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let Ok((token, writeback)) = client::token_and_writeback(dir) else { return Ok(None) };
    if show_root(dir, &token).is_err() {
        return Ok(None);
    }
    if writeback {
        let _ = rustix::fs::syncfs(dir);
    }
    match client::send(dir, &ControlRequest::Change { token, change: *change }) {
        Err(ControlError::Refused { errno: libc::EPERM | libc::EOPNOTSUPP | libc::EFBIG, .. }) => Ok(None),
        done => done.map(Some),
    }
}

/// What the file or tree at `path` takes.
pub fn usage(path: &Path) -> Result<Usage, ControlError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let stat = rustix::fs::lstat(path).map_err(io::Error::from)?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if !matches!(kind, FileType::RegularFile | FileType::Directory) {
        // A record in its directory, and nothing of its own.
        let visible = u64::try_from(stat.st_size).unwrap_or(0);
        return Ok(Usage { visible, ..Usage::default() });
    }
    let file = open(path, flags, Mode::empty()).map_err(io::Error::from)?;
    let token = client::token(&file)?;
    show_entering(&file, &token);
    if kind == FileType::Directory && rustix::process::geteuid().is_root() {
        // Where it cannot be shown, what ordinary users may see is counted.
        let _ = show_root(&file, &token);
    }
    client::usage(&file, token)
}

/// Begins to ask about forks on a directory, which is opened for it.
fn ask_of_fork(path: &Path, asked: ForkAsked) -> Result<(OwnedFd, Vec<u8>, bool, u64), ControlError> {
    let dir = open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let dir = dir.map_err(io::Error::from)?;
    let (token, writeback) = client::token_and_writeback(&dir)?;
    show_entering(&dir, &token);
    if rustix::process::geteuid().is_root() {
        // Where it cannot be shown, the answer is that to an ordinary user.
        let _ = show_root(&dir, &token);
    }
    if writeback && matches!(asked, ForkAsked::Diff { .. }) {
        let _ = rustix::fs::syncfs(&dir);
    }
    let request = ControlRequest::Fork { token, into: token, asked };
    let (piece, more, unstored) = client::piece_and_unstored(dir.as_fd(), &request)?;
    Ok((dir, piece, more, unstored))
}

/// The whole of a text answer, which may come in pieces.
fn whole(dir: &OwnedFd, mut text: Vec<u8>, mut more: bool) -> Result<String, ControlError> {
    while more {
        let (piece, follows) = client::piece(dir.as_fd(), &ControlRequest::DiffNext)?;
        text.extend(piece);
        more = follows;
    }
    String::from_utf8(text).map_err(|_| ControlError::Version)
}

/// Asks something of the directory at `path` that only root may ask, and that is answered by text.
fn ask_as_root(path: &Path, request: impl Fn(Token) -> ControlRequest) -> Result<String, ControlError> {
    ask_showing_root(path, false, request)
}

/// Requests a text answer; with `changes` the request changes the directory, and a read-only mount is the error.
fn ask_showing_root(
    path: &Path,
    changes: bool,
    request: impl Fn(Token) -> ControlRequest,
) -> Result<String, ControlError> {
    let (dir, token, _) = own_dir(path)?;
    if rustix::process::geteuid().is_root() {
        match show_root(&dir, &token) {
            Err(ControlError::Io(e)) if changes && e.raw_os_error() == Some(libc::EROFS) => {
                return Err(e.into());
            }
            // Where it cannot be shown, the daemon refuses and says why.
            _ => {}
        }
    }
    let (piece, more) = client::piece(dir.as_fd(), &request(token))?;
    whole(&dir, piece, more)
}

/// The quotas of the directory at `path` and of all below it; their paths are from the root of the file system. For
/// root.
pub fn quotas(path: &Path) -> Result<Vec<Quota>, ControlError> {
    let text = ask_as_root(path, |token| ControlRequest::Quota { token, asked: QuotaAsked::List })?;
    quotas::read_lines(&text).ok_or(ControlError::Version)
}

/// Limits what the tree of the directory at `path` takes, or ends that; see [`pando_fs::Fs::set_quota`]. For root.
pub fn set_quota(path: &Path, limit: Option<u64>) -> Result<(), ControlError> {
    let asked = QuotaAsked::Set(limit);
    ask_showing_root(path, true, |token| ControlRequest::Quota { token, asked }).map(drop)
}

/// The forks of the directory at `path`, or all if it is the root of a mount: those that the caller made, or all of
/// them for root. Their paths are from the root of the file system.
pub fn forks(path: &Path) -> Result<Vec<ForkInfo>, ControlError> {
    let (dir, text, more, _) = ask_of_fork(path, ForkAsked::List)?;
    forked::read_lines(&whole(&dir, text, more)?).ok_or(ControlError::Version)
}

/// What is known of the fork at `path`; EINVAL if it is none.
pub fn fork_of(path: &Path) -> Result<ForkInfo, ControlError> {
    let (dir, text, more, _) = ask_of_fork(path, ForkAsked::Info)?;
    let found = forked::read_lines(&whole(&dir, text, more)?);
    found.and_then(|forks| forks.into_iter().next()).ok_or(ControlError::Version)
}

/// Where this process finds what lies in a mounted file system: several mount points may show parts of it.
pub struct Visible(Vec<mountinfo::Entry>);

impl Visible {
    /// By the mount around `path` first of all.
    pub fn around(path: &Path) -> io::Result<Self> {
        let mounts = mountinfo::around(&path.canonicalize()?)?;
        if mounts.is_empty() { Err(io::Error::from_raw_os_error(libc::ENOTTY)) } else { Ok(Self(mounts)) }
    }

    /// The path of what lies at `inside` from the root of the file system; `None` if no mount point shows it.
    pub fn find(&self, inside: &OsStr) -> Option<PathBuf> {
        let inside = Path::new("/").join(inside);
        self.0.iter().find_map(|mount| match inside.strip_prefix(&mount.root).ok()? {
            // A path that is joined with nothing would end in a slash.
            rest if rest.as_os_str().is_empty() => Some(mount.dir.clone()),
            rest => Some(mount.dir.join(rest)),
        })
    }

    /// The same for people: `IMAGE:/PATH` if no mount point shows it.
    pub fn show(&self, inside: &OsStr) -> PathBuf {
        self.find(inside).unwrap_or_else(|| {
            let image = self.0.first().map(|mount| mount.source.clone().into_os_string());
            let mut shown = image.unwrap_or_default();
            shown.push(":");
            shown.push(Path::new("/").join(inside));
            shown.into()
        })
    }
}

/// Opens the directory at `path`, as its owner if it may be, and fetches a token of it.
fn own_dir(path: &Path) -> Result<(OwnedFd, Token, bool), ControlError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The kernel refuses O_NOATIME unless the caller owns the directory. The daemon then refuses the request, with
    // the reason.
    let dir = open(path, flags | OFlags::NOATIME, Mode::empty())
        .or_else(|_| open(path, flags, Mode::empty()))
        .map_err(io::Error::from)?;
    let (token, writeback) = client::token_and_writeback(&dir)?;
    Ok((dir, token, writeback))
}

/// Has something done to the snapshots of the directory at `path`: those that the answer names.
pub fn snapshot(path: &Path, asked: Asked) -> Result<Vec<SnapshotInfo>, ControlError> {
    snapshot_and_value(path, asked).map(|(named, _)| named)
}

/// Makes a snapshot. The number is that of [`ClonedTree::unstored`].
pub fn make_snapshot(path: &Path, new: NewSnapshot) -> Result<(Vec<SnapshotInfo>, u64), ControlError> {
    snapshot_and_value(path, Asked::Create(new))
}

fn snapshot_and_value(path: &Path, asked: Asked) -> Result<(Vec<SnapshotInfo>, u64), ControlError> {
    let (dir, token, writeback) = own_dir(path)?;
    show_adding(&dir, &token)?;
    if writeback && matches!(asked, Asked::Create(_) | Asked::Take(..)) {
        // As for a clone: writes out dirty pages in large pieces.
        let _ = rustix::fs::syncfs(&dir);
    }
    client::snapshots(&dir, token, asked)
}

/// Makes a snapshot among those of the directory at `path`, which has some, that shows the directory at `tree`.
pub fn snapshot_of_tree(path: &Path, tree: &Path, new: NewSnapshot) -> Result<SnapshotInfo, ControlError> {
    let (shown, of, writeback) = own_dir(tree)?;
    if writeback {
        let _ = rustix::fs::syncfs(&shown);
    }
    let named = snapshot(path, Asked::Take(new, of.0))?;
    named.into_iter().next().ok_or(ControlError::Version)
}

/// The policy for snapshots of the directory at `path`, with the user who has set it, if there is one.
pub fn policy(path: &Path) -> Result<Option<(u32, pando_fs::StoredPolicy)>, ControlError> {
    let (dir, token, _) = own_dir(path)?;
    client::policy(&dir, token)
}

/// The policies for snapshots of the directory at `path` and of all below it; their paths are from the root of the file
/// system. For root.
pub fn policies(path: &Path) -> Result<Vec<PolicyInfo>, ControlError> {
    let text = ask_as_root(path, |token| ControlRequest::Policies { token })?;
    crate::asked::read_policies(&text).ok_or(ControlError::Version)
}

/// The root of the file system that the directory at `path` is in, by whatever mount shows it here. What belongs to
/// no directory is asked of it, so that the kernel shows that the caller reaches all there is.
fn top_around(path: &Path) -> Result<PathBuf, ControlError> {
    let path = path.canonicalize()?;
    let device = |path: &Path| rustix::fs::stat(path).ok().map(|stat| stat.st_dev);
    let own = device(&path);
    // Something else may be mounted on it.
    let is_whole = |mount: &mountinfo::Entry| mount.root == Path::new("/") && device(&mount.dir) == own;
    let missing =
        || io::Error::other("the file system is mounted here in parts only, and this is about all of it");
    Ok(mountinfo::around(&path)?.into_iter().find(is_whole).ok_or_else(missing)?.dir)
}

/// The snapshots of directories that are gone, of the file system that the directory at `path` is in, and what each
/// takes, if that can be told. For root, where the root of the file system is mounted.
pub fn gone_snapshots(path: &Path) -> Result<Vec<(SnapshotInfo, Option<Usage>)>, ControlError> {
    let text = ask_as_root(&top_around(path)?, |token| ControlRequest::Gone { token })?;
    let found = crate::asked::read_gone(&text).ok_or(ControlError::Version)?;
    let known = |(info, usage): (SnapshotInfo, &str)| match usage {
        "-" => Some((info, None)),
        text => Some((info, Some(decode_usage(text)?))),
    };
    found.into_iter().map(known).collect::<Option<_>>().ok_or(ControlError::Version)
}

/// Gives the directory at `path` the snapshots of a removed directory, one of which has this number. For root only,
/// as [`gone_snapshots`].
pub fn adopt_snapshots(path: &Path, number: u32) -> Result<(), ControlError> {
    let (_top, token, _) = own_dir(&top_around(path)?)?;
    snapshot(path, Asked::Adopt(number, token.0)).map(drop)
}

/// Deletes the snapshot with this number of a removed directory. For root only, as [`gone_snapshots`].
pub fn delete_gone_snapshot(path: &Path, number: u32) -> Result<(), ControlError> {
    snapshot(&top_around(path)?, Asked::DeleteGone(number)).map(drop)
}

/// What the snapshots in these ranges of numbers take together, of the directory at `path`, or, if `gone`, of all that
/// are gone from the file system that it is in. `None` if there are too many ranges for a question.
pub fn usage_of_snapshots(
    path: &Path,
    ranges: Vec<(u32, u32)>,
    gone: bool,
) -> Result<Option<Usage>, ControlError> {
    if !crate::asked::ranges_fit(&ranges) {
        return Ok(None);
    }
    let (dir, token, _) = if gone { own_dir(&top_around(path)?) } else { own_dir(path) }?;
    show_entering(&dir, &token);
    if rustix::process::geteuid().is_root() {
        // Where it cannot be shown, what ordinary users may see is counted.
        let _ = show_root(&dir, &token);
    }
    client::usage_together(&dir, token, Asked::Together(ranges, gone)).map(Some)
}

/// The UUID of the file system that the directory at `path` is in, and whether a file in it has, or had, several names.
pub fn identity(path: &Path) -> Result<([u8; 16], bool), ControlError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    client::identity(open(path, flags, Mode::empty()).map_err(io::Error::from)?)
}

/// All snapshots of the directory at `path`, by number.
pub fn list_snapshots(path: &Path) -> Result<Vec<SnapshotInfo>, ControlError> {
    let mut all = Vec::new();
    let mut from = 0;
    loop {
        let (dir, token, _) = own_dir(path)?;
        let (named, next) = client::snapshots(&dir, token, Asked::List(from))?;
        all.extend(named);
        match u32::try_from(next) {
            Ok(next) if next > from => from = next,
            _ => return Ok(all),
        }
    }
}

/// How many files in the directory at `path` have data that the kernel shows and for which there was no room: it is in
/// no snapshot. A daemon of an earlier version does not tell (EINVAL), and none are counted.
pub fn unstored(path: &Path) -> Result<u64, ControlError> {
    let (dir, token, _) = own_dir(path)?;
    unstored_told(client::snapshots(&dir, token, Asked::Unstored))
}

fn unstored_told(answer: Result<(Vec<SnapshotInfo>, u64), ControlError>) -> Result<u64, ControlError> {
    match answer {
        Ok((_, files)) => Ok(files),
        Err(ControlError::Refused { .. } | ControlError::Version) => Ok(0),
        Err(e) => Err(e),
    }
}

/// Makes the directory `target` what it was in its snapshot `number`: the snapshot of what it was before, if it was
/// not discarded.
pub fn rollback(
    target: &EntryPath,
    number: u32,
    discard: bool,
) -> Result<Option<SnapshotInfo>, ControlError> {
    let dir = target.open(FileType::Directory, OFlags::NOATIME);
    let dir = dir.or_else(|_| target.open(FileType::Directory, OFlags::empty()))?;
    let (token, writeback) = client::token_and_writeback(&dir)?;
    show_removal(target, &token)?;
    if writeback {
        let _ = rustix::fs::syncfs(&dir);
    }
    let (named, _) = client::snapshots(&dir, token, Asked::Rollback(number, discard))?;
    Ok(named.into_iter().next())
}

/// Makes the file system that the directory `dir` is in `size` bytes large.
pub fn grow(dir: &impl AsFd, size: u64) -> Result<(), ControlError> {
    let token = client::token(dir)?;
    show_adding(dir, &token)?;
    client::send(dir, &ControlRequest::Grow { token, size }).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ioctl fails with EINVAL: so says a daemon that does not know the request.
    #[test]
    fn a_daemon_of_an_earlier_version_tells_of_no_unstored_data() {
        let told = |answer| unstored_told(answer).map_err(|e| e.errno());
        assert_eq!(told(Ok((Vec::new(), 7))), Ok(7));
        assert_eq!(told(Err(ControlError::Version)), Ok(0));
        let errno = libc::EINVAL;
        assert_eq!(told(Err(ControlError::Refused { errno, message: String::new() })), Ok(0));
        let gone = io::Error::from_raw_os_error(libc::ENOTCONN);
        assert_eq!(told(Err(ControlError::Io(gone))), Err(Some(libc::ENOTCONN)));
    }
}
