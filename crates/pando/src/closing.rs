//! Records how the daemon of a mount has closed its image, for `pando umount` to read.
//!
//! A daemon has a small file from the moment it opens the image until it has closed it: the file says that the image
//! is open, and then, if closing fails, why. After a successful close the file is removed. So if it still says "open"
//! when the daemon is gone, the daemon was killed. The files are in `/run/pando` for root, `/run/user/UID/pando` or
//! `/tmp/pando-UID` for others; they outlive the daemon, but not a reboot. If the file cannot be written, nothing is
//! recorded, which is no error.

use std::{
    fs::{self, DirBuilder, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// How long a daemon may take to end after it has released the image.
const ENDING_PATIENCE: Duration = Duration::from_secs(10);

/// The directory of a user's files.
fn directory(uid: u32) -> PathBuf {
    if uid == 0 {
        return "/run/pando".into();
    }
    let run = PathBuf::from(format!("/run/user/{uid}"));
    if run.is_dir() { run.join("pando") } else { format!("/tmp/pando-{uid}").into() }
}

/// The file for an image; `None` if that is not there.
fn path(image: &Path, uid: u32) -> Option<PathBuf> {
    let meta = image.metadata().ok()?;
    let name = match meta.file_type().is_block_device() {
        true => format!("device-{:x}", meta.rdev()),
        false => format!("file-{:x}-{:x}", meta.dev(), meta.ino()),
    };
    Some(directory(uid).join(name))
}

/// What a daemon has told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The daemon has the image open, or had it open when it was killed.
    Open,
    /// The daemon could not close the image, for this reason.
    Failed(String),
}

/// A daemon's word: its process id and what it has told.
pub type Word = (u32, State);

/// The daemon's side. Unless it gets the result of closing, "open" stays.
#[derive(Debug)]
pub struct Record {
    path: Option<PathBuf>,
}

impl Record {
    /// Says that this process has the image open.
    pub fn open(image: &Path) -> Record {
        let uid = rustix::process::geteuid().as_raw();
        let path = path(image, uid).filter(|path| match write(path, uid, "open\n") {
            Ok(()) => true,
            Err(e) => {
                log::info!("{}: {e}: pando umount will not know how the image was closed", path.display());
                false
            }
        });
        Record { path }
    }

    /// Says how closing went.
    pub fn closed(self, result: &Result<(), String>) {
        let Some(path) = self.path else { return };
        let told = match result {
            Ok(()) => fs::remove_file(&path),
            Err(why) => write(&path, rustix::process::geteuid().as_raw(), &format!("failed\n{why}\n")),
        };
        if let Err(e) = told {
            log::warn!("{}: {e}", path.display());
        }
    }
}

fn write(path: &Path, uid: u32, text: &str) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    match DirBuilder::new().mode(0o755).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    // In /tmp anybody may have made it.
    let meta = dir.symlink_metadata()?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o022 != 0 {
        return Err(io::Error::other("is not a directory of this user alone"));
    }
    let new = path.with_extension(format!("{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&new)?;
    file.write_all(format!("{}\n{text}", std::process::id()).as_bytes())?;
    drop(file);
    fs::rename(&new, path)
}

/// What the daemon of the mount of `image` by the user `uid` has told, if anything.
pub fn word(image: &Path, uid: u32) -> Option<Word> {
    let path = path(image, uid)?;
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(&path).ok()?;
    if file.metadata().ok()?.uid() != uid {
        return None;
    }
    let text = io::read_to_string(file).ok()?;
    let (pid, rest) = text.split_once('\n')?;
    let (state, why) = rest.split_once('\n')?;
    let state = match state {
        "open" => State::Open,
        "failed" => State::Failed(why.trim_end().to_owned()),
        _ => return None,
    };
    Some((pid.parse().ok()?, state))
}

/// Whether there is no process `pid` any more, as far as can be seen from here.
pub fn has_ended(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

/// The result of closing, after the daemon whose record was `before` has released the image: `Err` says what went
/// wrong. If there was no record, or another daemon has replaced it, the close counts as successful.
pub fn result(image: &Path, uid: u32, before: Option<&Word>) -> Result<(), String> {
    let Some((pid, _)) = before else { return Ok(()) };
    let begin = Instant::now();
    loop {
        let ended = has_ended(*pid) || begin.elapsed() > ENDING_PATIENCE;
        // Looked at after that: what it said last is what counts.
        match word(image, uid).filter(|(now, _)| now == pid) {
            None => return Ok(()),
            Some((_, State::Failed(why))) => return Err(why),
            Some((_, State::Open)) if ended => return Err("its daemon was killed or has crashed".into()),
            Some((_, State::Open)) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// In /tmp others may have made the directory, or put a link in its place.
    #[test]
    fn nothing_is_recorded_in_a_directory_that_others_can_write_to() {
        let tmp = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let (dir, link) = (tmp.path().join("dir"), tmp.path().join("link"));
        let record = dir.join("file-1");
        write(&record, uid, "open\n").unwrap();
        assert!(fs::read_to_string(&record).unwrap().ends_with("\nopen\n"));
        symlink(&dir, &link).unwrap();
        for (path, uid) in [(&link.join("file-2"), uid), (&dir.join("file-2"), uid + 1)] {
            assert!(write(path, uid, "open\n").is_err(), "{}", path.display());
        }
        for mode in [0o775, 0o757, 0o1777] {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            assert!(write(&dir.join("file-2"), uid, "open\n").is_err(), "{mode:o}");
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    }

    /// In /tmp others may have made it: then a daemon that is at work would be taken for dead.
    #[test]
    fn a_record_that_another_user_has_made_is_not_believed() {
        const UID: u32 = 4_100_041;
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: only root can make files of others");
        }
        let image = tempfile::NamedTempFile::new().unwrap();
        let record = path(image.path(), UID).unwrap();
        fs::create_dir(directory(UID)).unwrap();
        fs::write(&record, "7\nopen\n").unwrap();
        let of_root = word(image.path(), UID);
        std::os::unix::fs::chown(&record, Some(UID), None).unwrap();
        let own = word(image.path(), UID);
        fs::rename(&record, directory(UID).join("away")).unwrap();
        symlink("away", &record).unwrap();
        let by_link = word(image.path(), UID);
        fs::remove_dir_all(directory(UID)).unwrap();
        assert_eq!((of_root, own, by_link), (None, Some((7, State::Open)), None));
    }
}
