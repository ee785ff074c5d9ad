//! Differences, merges and other requests that may take long, as the tool asks for them.
//!
//! Guarantees that a signal which only stops this process does not end them: they are asked for again.

use std::{
    io::{self, Seek},
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use pando_fs::{MergeOptions, MergeReport};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};

use crate::{
    asked::Asked,
    client::{self, ControlError},
    content::ContentDecoder,
    control::ControlRequest,
    forked::{self, ForkAsked, MAX_ORIGIN_PATH_BYTES},
    proof::LAPSED,
    spool::Spool,
    tool::{ask_of_fork, own_dir, show_adding, show_entering, show_root, whole},
};

/// The differences between two files or directories of one mount, one by one; see [`pando_fs::Fs::diff`]. They are
/// those of the moment of the call. The server ends them if nobody asks for more for a minute: who may read them more
/// slowly than that calls [`Differences::fetched_ahead`].
pub struct Differences {
    source: Source,
    reader: crate::diffs::DiffDecoder,
    more: bool,
    unstored: u64,
}

/// Where the pieces that are still to come are from.
enum Source {
    /// The descriptor on which the difference was requested.
    Server(OwnedFd),
    /// A thread has them already, or is fetching them.
    Spool(Arc<Spool>),
}

/// How often something is asked at most, a count: a process that gets signals from a timer would ask for ever.
const TRIES: u32 = 64;

/// How often something is asked again at most, a count, because this process was stopped for longer than the server
/// waits. (Or because its user has asked for too much at a time: then asking again for ever helps nobody.)
const MAX_LAPSES: u32 = 3;

/// Says whether to ask again what a signal has ended: not if the process has handled one that is to end it.
pub type AskAgain<'a> = &'a dyn Fn() -> bool;

/// Repeats a request that a signal has ended, unless `again` says otherwise. A signal that ends this process ends it
/// before; otherwise the process, or the machine, was stopped (SIGTSTP, SIGSTOP) and continues. What the server has
/// given up meanwhile is repeated too.
fn unless_stopped<T>(
    again: AskAgain<'_>,
    mut ask: impl FnMut() -> Result<T, ControlError>,
) -> Result<T, ControlError> {
    let (mut tries, mut lapses) = (1, 0);
    loop {
        match ask() {
            Err(ControlError::Refused { errno: libc::EINTR, .. }) if tries < TRIES && again() => tries += 1,
            Err(ControlError::Refused { errno: LAPSED, .. }) if lapses < MAX_LAPSES && again() => lapses += 1,
            done => return done,
        }
    }
}

/// Merges the fork at `fork` into the directory at `into`; see [`pando_fs::Fs::merge`]. If this process is stopped,
/// the merge ends, and begins anew when the process continues. A signal that the process handles ends the merge if
/// `again` says so.
pub fn merge(
    fork: &Path,
    into: &Path,
    options: MergeOptions,
    again: AskAgain<'_>,
) -> Result<MergeReport, ControlError> {
    unless_stopped(again, || merge_once(fork, into, options))
}

fn merge_once(fork: &Path, into: &Path, options: MergeOptions) -> Result<MergeReport, ControlError> {
    let (dir, token, writeback) = own_dir(fork)?;
    let (to, other, _) = own_dir(into)?;
    let (first, second) = (fstat(&dir).map_err(io::Error::from)?, fstat(&to).map_err(io::Error::from)?);
    if first.st_dev != second.st_dev {
        return Err(ControlError::Io(io::Error::from_raw_os_error(libc::EXDEV)));
    }
    if rustix::process::geteuid().is_root() {
        // Without it the request goes on as that of an ordinary user.
        let _ = show_root(&dir, &token);
    }
    if !options.dry_run {
        show_adding(&to, &other)?;
    }
    if writeback {
        // As for a clone: writes out dirty pages in large pieces.
        let _ = rustix::fs::syncfs(&to);
    }
    let asked = ForkAsked::Merge(options);
    let (piece, more) = client::piece(dir.as_fd(), &ControlRequest::Fork { token, into: other, asked })?;
    forked::read_report(&whole(&dir, piece, more)?).ok_or(ControlError::Version)
}

/// What the fork at `path` has changed since it was made, or merged last.
pub fn diff_fork(
    path: &Path,
    options: pando_fs::DiffOptions,
    again: AskAgain<'_>,
) -> Result<Differences, ControlError> {
    let pando_fs::DiffOptions { ranges, no_renames } = options;
    let asked = || ask_of_fork(path, ForkAsked::Diff { ranges, no_renames });
    let (file, piece, more, unstored) = unless_stopped(again, asked)?;
    let mut reader = crate::diffs::DiffDecoder::default();
    reader.add(&piece);
    Ok(Differences { source: Source::Server(file), reader, more, unstored })
}

/// Replaces the content of the file `to` by what the file at `path` in the fork held when the fork was made, or merged
/// last. ENOENT if it did not exist, EACCES if the caller could not have read it, ENAMETOOLONG if the path is longer
/// than [`MAX_ORIGIN_PATH_BYTES`], ESTALE if it is not the fork with this number any more (see
/// [`pando_fs::ForkInfo`]). Only for who owns or made the fork, and for root. If this process is stopped meanwhile, it
/// begins anew.
pub fn write_origin(
    (fork, number): (&Path, u32),
    path: &Path,
    to: &mut std::fs::File,
) -> Result<(), ControlError> {
    if path.as_os_str().len() > MAX_ORIGIN_PATH_BYTES {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG).into());
    }
    unless_stopped(&|| true, || write_origin_once((fork, number), path, to))
}

fn write_origin_once(
    (fork, number): (&Path, u32),
    path: &Path,
    to: &mut std::fs::File,
) -> Result<(), ControlError> {
    to.set_len(0)?;
    to.rewind()?;
    let (dir, mut piece, mut more, _) = ask_of_fork(fork, ForkAsked::Origin(number, path.to_owned()))?;
    let mut content = ContentDecoder::default();
    loop {
        content.add(&piece, to)?;
        if !more {
            break;
        }
        (piece, more) = client::piece(dir.as_fd(), &ControlRequest::DiffNext)?;
    }
    Ok(to.set_len(content.end()?)?)
}

/// Opens a file or directory to be compared. A descriptor of anything else does not lead to the mount.
fn comparable(path: &Path) -> Result<OwnedFd, ControlError> {
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        let why = format!(
            "{} is neither a file with content nor a directory; name the directory in which it is",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why).into());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty()).map_err(io::Error::from)?)
}

/// Asks what differs between `before` and `after`.
pub fn diff(
    before: &Path,
    after: &Path,
    options: pando_fs::DiffOptions,
    again: AskAgain<'_>,
) -> Result<Differences, ControlError> {
    unless_stopped(again, || begin_diff(before, after, options))
}

fn begin_diff(
    before: &Path,
    after: &Path,
    options: pando_fs::DiffOptions,
) -> Result<Differences, ControlError> {
    let (file, other) = (comparable(before)?, comparable(after)?);
    let stat = |file: &OwnedFd| fstat(file).map_err(io::Error::from);
    let (first, second) = (stat(&file)?, stat(&other)?);
    if first.st_dev != second.st_dev {
        return Err(ControlError::Io(io::Error::from_raw_os_error(libc::EXDEV)));
    }
    let (token, writeback) = client::token_and_writeback(&file)?;
    let of_other = client::token(&other)?;
    show_entering(&file, &token);
    show_entering(&other, &of_other);
    let is_dir = FileType::from_raw_mode(first.st_mode) == FileType::Directory;
    if is_dir && rustix::process::geteuid().is_root() {
        // If this cannot be shown, only what ordinary users may see is reported.
        let _ = show_root(&file, &token);
    }
    if writeback {
        let _ = rustix::fs::syncfs(&file);
    }
    let pando_fs::DiffOptions { ranges, no_renames } = options;
    let request = ControlRequest::Diff { before: token, after: of_other, ranges, no_renames };
    let (piece, more, unstored) = client::piece_and_unstored(file.as_fd(), &request)?;
    let mut reader = crate::diffs::DiffDecoder::default();
    reader.add(&piece);
    Ok(Differences { source: Source::Server(file), reader, more, unstored })
}

/// The numbers of the snapshots of the directory at `dir` in which what lies at `path` in it is surely what it was in
/// the one before, ascending: see [`pando_fs::Fs::alike_snapshots`]. Of the others nothing is known. One request for
/// about a thousand snapshots. If this process is stopped meanwhile, it is asked again.
pub fn alike_snapshots(dir: &Path, path: &Path) -> Result<Vec<u32>, ControlError> {
    let mut all: Vec<u32> = Vec::new();
    let mut from = 0;
    let ask = |from| {
        let (opened, token, _) = own_dir(dir)?;
        show_entering(&opened, &token);
        if rustix::process::geteuid().is_root() {
            // Where it cannot be shown, what ordinary users may see is told.
            let _ = show_root(&opened, &token);
        }
        client::alike(&opened, token, Asked::Alike(from, path.to_owned()))
    };
    loop {
        let (numbers, next) = unless_stopped(&|| true, || ask(from))?;
        let last = all.last().copied();
        all.extend(numbers.into_iter().filter(|number| last.is_none_or(|last| *number > last)));
        match u32::try_from(next) {
            Ok(next) if next > from => from = next,
            _ => return Ok(all),
        }
    }
}

/// Whether so many percent of the file system of the directory at `path` are free, or become so by what was deleted:
/// see [`pando_fs::Fs::becomes_free`]. For who may make snapshots of the directory.
pub fn becomes_free(path: &Path, percent: u8) -> Result<bool, ControlError> {
    unless_stopped(&|| true, || {
        let (dir, token, _) = own_dir(path)?;
        show_adding(&dir, &token)?;
        client::snapshots(&dir, token, Asked::Free(percent)).map(|(_, free)| free == 1)
    })
}

impl Differences {
    /// The number of files in the two trees with data that the kernel shows and that could not be stored for lack of
    /// space: it is in no difference.
    pub fn unstored(&self) -> u64 {
        self.unstored
    }

    /// The same, however slowly they are read: a thread asks the server for all of them now, and keeps those that are
    /// not read yet, beyond 4 MiB in a temporary file without a name.
    pub fn fetched_ahead(self) -> io::Result<Self> {
        match self.source {
            Source::Server(file) if self.more => {
                let spool = Spool::fetching(move || client::piece(file.as_fd(), &ControlRequest::DiffNext))?;
                Ok(Differences { source: Source::Spool(spool), ..self })
            }
            source => Ok(Differences { source, ..self }),
        }
    }

    fn advance(&mut self) -> Result<Option<pando_fs::FileChange>, ControlError> {
        loop {
            if let Some(change) = self.reader.next().map_err(|()| ControlError::Version)? {
                return Ok(Some(change));
            }
            if !self.more {
                return if self.reader.is_empty() { Ok(None) } else { Err(ControlError::Version) };
            }
            let (piece, more) = match &self.source {
                Source::Server(file) => client::piece(file.as_fd(), &ControlRequest::DiffNext)?,
                Source::Spool(spool) => spool.next()?,
            };
            self.reader.add(&piece);
            self.more = more;
        }
    }
}

impl Iterator for Differences {
    type Item = Result<pando_fs::FileChange, ControlError>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.advance();
        if found.is_err() {
            (self.more, self.reader) = (false, crate::diffs::DiffDecoder::default());
        }
        found.transpose()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// As one is asked that a signal has ended: how often, and with what error.
    fn asked(errno: i32, again: AskAgain<'_>) -> (u32, Option<i32>) {
        let tries = Cell::new(0);
        let ended = unless_stopped(again, || -> Result<(), _> {
            tries.set(tries.get() + 1);
            Err(ControlError::Refused { errno, message: String::new() })
        });
        (tries.get(), ended.err().and_then(|e| e.errno()))
    }

    #[test]
    fn what_a_signal_ends_or_was_given_up_is_asked_again_while_that_is_wanted_and_not_for_ever() {
        assert_eq!(asked(libc::EINTR, &|| false), (1, Some(libc::EINTR)));
        let left = Cell::new(3);
        let thrice = || left.replace(left.get() - 1) > 0;
        assert_eq!(asked(libc::EINTR, &thrice), (4, Some(libc::EINTR)));
        assert_eq!(asked(libc::EINTR, &|| true), (TRIES, Some(libc::EINTR)));
        // What the server does not keep for so long is asked a few times.
        assert_eq!(asked(LAPSED, &|| false), (1, Some(LAPSED)));
        assert_eq!(asked(LAPSED, &|| true), (MAX_LAPSES + 1, Some(LAPSED)));
        assert_eq!(asked(libc::EACCES, &|| true), (1, Some(libc::EACCES)));
        assert!(unless_stopped(&|| false, || Ok(())).is_ok());
    }
}
