//! Places inside a mount: a directory and a name in it, and the mount they are in.
//!
//! A path becomes an [`EntryPath`]: its directory is walked to once, by the kernel and with the caller's rights,
//! and kept by a descriptor, so a rename or a link put in its way meanwhile does no harm.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    path::{Component, Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fuse::{
    client::{self, ControlError},
    control::ControlRequest,
    tool::EntryPath,
};

/// Finds the directory of `path`, which need not exist itself.
pub fn entry_path(path: &Path) -> Result<EntryPath> {
    let (parent, name) = split(path)?;
    EntryPath::new(&parent, &name).with_context(|| format!("{}", parent.display()))
}

/// The entry at a path that is to be removed. As with rm, `.` and `..` are refused, and so is a symbolic link with a
/// slash behind it, because the path then means its target, which does not have that name.
pub fn removable_path(path: &Path) -> Result<EntryPath> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    let last = bytes.split(|byte| *byte == b'/').rfind(|part| !part.is_empty());
    if matches!(last, Some(b"." | b"..")) {
        bail!("a path that ends in . or .. is not removed");
    }
    if bytes.ends_with(b"/") && path.is_symlink_without_slash() {
        bail!("is a symbolic link, not a directory; without the slash, the link is removed");
    }
    entry_path(path)
}

/// The directory that a link leads to, where commands mean that by the link; any other path as it is.
pub fn followed(path: &Path) -> Result<PathBuf> {
    match path.is_symlink() && path.is_dir() {
        true => path.canonicalize().with_context(|| format!("{}", path.display())),
        false => Ok(path.to_owned()),
    }
}

/// Error if `dst` ends in a slash and what is to have that name is known to be no directory.
pub fn may_have_slash(dst: &Path, is_dir: Option<bool>) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    if dst.as_os_str().as_bytes().ends_with(b"/") && is_dir == Some(false) {
        bail!("cannot create '{}': Not a directory", dst.display());
    }
    Ok(())
}

/// Does `work`, which looks its paths up anew each time, again while it comes upon something that was removed or
/// replaced between the look and the work: a rollback beside it is no failure. Where a path leads nowhere any more,
/// that is the error.
pub fn retried<T>(mut work: impl FnMut() -> Result<T>) -> Result<T> {
    /// A count.
    const MOST_TRIES: usize = 8;
    for _ in 1..MOST_TRIES {
        match work() {
            Err(e) if e.chain().any(is_stale) => {}
            done => return done,
        }
    }
    work()
}

fn is_stale(cause: &(dyn std::error::Error + 'static)) -> bool {
    let errno = match (cause.downcast_ref::<ControlError>(), cause.downcast_ref::<std::io::Error>()) {
        (Some(e), _) => e.errno(),
        (_, Some(e)) => e.raw_os_error(),
        _ => None,
    };
    errno == Some(libc::ESTALE)
}

/// The directory and the final name of `path`; one that ends in `.`, `..` or a link with a
/// slash after it is resolved first.
pub fn split(path: &Path) -> Result<(PathBuf, OsString)> {
    use std::os::unix::ffi::OsStrExt;
    let slash = path.as_os_str().as_bytes().ends_with(b"/");
    let resolved;
    let path = match path.components().next_back() {
        Some(Component::Normal(_)) if !(slash && path.is_symlink_without_slash()) => path,
        None => bail!("an empty path names nothing"),
        _ => {
            resolved = path.canonicalize().with_context(|| format!("{}", path.display()))?;
            &resolved
        }
    };
    let Some(name) = path.file_name() else {
        bail!("{}: the root has no name to work on", path.display());
    };
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok((parent, name.to_owned()))
}

trait WithoutSlash {
    fn is_symlink_without_slash(&self) -> bool;
}

impl WithoutSlash for Path {
    fn is_symlink_without_slash(&self) -> bool {
        // `components` ignores the slash at the end, which would follow the link.
        self.components().collect::<PathBuf>().is_symlink()
    }
}

/// Opens `dir`, a directory of a Pando mount.
pub fn open_dir(dir: &Path) -> Result<File> {
    let fail = || format!("{}", dir.display());
    let file = File::open(dir).with_context(fail)?;
    match client::send(&file, &ControlRequest::Probe) {
        Ok(_) => Ok(file),
        Err(e) => Err(e).with_context(fail),
    }
}

/// `path` made absolute, without symlinks, asking nothing of a mount at its end: a dead daemon
/// cannot answer.
pub fn absolute_mount_point(path: &Path) -> Result<PathBuf> {
    if let Ok(found) = path.canonicalize() {
        return Ok(found);
    }
    let name = path.components().next_back().map(|c| c.as_os_str().to_owned());
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().with_context(|| format!("{}", path.display()))?;
    Ok(match name.as_deref() {
        Some(name) if name != OsStr::new("/") => parent.join(name),
        _ => parent,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_was_replaced_meanwhile_is_looked_for_again() {
        let tried = |stale: usize, errno| {
            let mut count = 0;
            let done = retried(|| {
                count += 1;
                match count <= stale {
                    true => Err(ControlError::Refused { errno, message: String::new() }).context("x"),
                    false => Ok(()),
                }
            });
            (done.is_ok(), count)
        };
        assert_eq!(tried(7, libc::ESTALE), (true, 8));
        assert_eq!(tried(8, libc::ESTALE), (false, 8));
        assert_eq!(tried(1, libc::EACCES), (false, 1));
    }

    #[test]
    fn what_is_to_be_removed_is_what_the_path_names() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("d/in")).unwrap();
        std::os::unix::fs::symlink("d", root.join("l")).unwrap();
        let why = |p: &str| format!("{:#}", removable_path(&root.join(p)).err().unwrap());
        for dots in ["d/.", "d/./", "d/in/..", "l/.", ".", ".."] {
            assert!(why(dots).contains("ends in ."), "{dots}");
        }
        assert!(why("l/").contains("symbolic link") && why("l//").contains("symbolic link"));
        for fine in ["d", "d/", "l", "d/in/../in"] {
            assert!(removable_path(&root.join(fine)).is_ok(), "{fine}");
        }
    }

    #[test]
    fn paths_are_split_like_people_mean_them() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("d")).unwrap();
        std::os::unix::fs::symlink("d", root.join("l")).unwrap();
        let cut = |p: &str| split(&root.join(p)).unwrap();
        assert_eq!(cut("x"), (root.clone(), "x".into()));
        assert_eq!(cut("d/"), (root.clone(), "d".into()));
        assert_eq!(cut("d/."), (root.clone(), "d".into()));
        assert_eq!(cut("d/../d/.."), (root.parent().unwrap().into(), root.file_name().unwrap().into()));
        assert_eq!(cut("l"), (root.clone(), "l".into()), "the link itself");
        assert_eq!(cut("l/"), (root.clone(), "d".into()), "what it points to");
        assert_eq!(split(Path::new("name")).unwrap(), (".".into(), "name".into()));
        assert!(split(Path::new("")).is_err() && split(Path::new("/")).is_err());
    }
}
