//! Mounting a snapshot alone, on a directory of its own (`pando mount -o snapshot=`).
//!
//! A snapshot is the directory `DIR/.snapshots/NAME`, and this is a bind mount of it: the daemon that serves the image
//! serves it as well, and opening an old version costs no more than a walk to it. Nothing else of the file system can
//! be reached from there.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context, Result, anyhow, bail};
use pando_fuse::{How, mountinfo, tool, unmount};
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, StatVfsMountFlags, openat2},
    io::Errno,
    mount::{MountFlags, MoveMountFlags, OpenTreeFlags, mount_remount, move_mount, open_tree},
};

use crate::exit::{self, Coded};

/// A snapshot as an option of a mount names it: `NAME`, of the whole file system, or `DIR@NAME`; or its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// What it may mean: a directory, and a name. Either may have an `@` in it.
    meanings: Vec<(PathBuf, OsString)>,
}

impl FromStr for Version {
    type Err = Coded;

    fn from_str(text: &str) -> Result<Version, Coded> {
        let wrong = |why: &str| Coded(exit::USAGE, format!("snapshot={text}: {why}"));
        let bytes = unescaped(text).ok_or_else(|| {
            wrong("a backslash stands before a comma, a backslash, or the three octal digits of a byte")
        })?;
        let signs = (0..bytes.len()).rev().filter(|at| bytes.get(*at) == Some(&b'@'));
        let cut = |at: usize| Some((bytes.get(..at)?, bytes.get(at + 1..)?));
        let all = signs.filter_map(cut).chain([(&b""[..], &bytes[..])]);
        let is_name = |name: &[u8]| {
            !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0))
        };
        let meanings = all.filter(|(_, name)| is_name(name)).map(|(dir, name)| {
            let begin = dir.iter().position(|byte| *byte != b'/').unwrap_or(dir.len());
            let dir = OsStr::from_bytes(dir.get(begin..).unwrap_or_default());
            (PathBuf::from(dir), OsStr::from_bytes(name).to_owned())
        });
        let meanings: Vec<_> = meanings.collect();
        if meanings.is_empty() {
            return Err(wrong("write it as NAME or DIR@NAME"));
        }
        Ok(Version { meanings })
    }
}

/// Cuts a list of mount options at its commas, but not where a backslash is before one. Backslashes stay.
pub fn options(list: &str) -> Vec<&str> {
    let (mut all, mut begin, mut escaped) = (Vec::new(), 0, false);
    for (at, byte) in list.bytes().enumerate() {
        if byte == b',' && !escaped {
            all.extend(list.get(begin..at));
            begin = at + 1;
        }
        escaped = byte == b'\\' && !escaped;
    }
    all.extend(list.get(begin..));
    all
}

/// The bytes that a text with backslashes means, as fstab and FUSE write it: `\,` and `\\`, and `\` with three octal
/// digits, as lists of snapshots show bytes. `None` if a backslash is before anything else.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let (meant, left) = match (byte, tail) {
            (b'\\', [next @ (b',' | b'\\'), tail @ ..]) => (*next, tail),
            (b'\\', [x, y, z, tail @ ..]) => {
                let digits = [*x, *y, *z];
                let octal = digits.iter().all(|digit| matches!(digit, b'0'..=b'7'));
                let digits = str::from_utf8(&digits).ok().filter(|_| octal)?;
                (u8::from_str_radix(digits, 8).ok()?, tail)
            }
            (b'\\', _) => return None,
            (other, tail) => (*other, tail),
        };
        out.push(meant);
        rest = left;
    }
    Some(out)
}

impl Version {
    /// The version in the file system that is mounted on `mounted`, as a mount that is attached to no directory yet.
    fn find(&self, mounted: &Path) -> Result<OwnedFd> {
        let top = File::open(mounted).with_context(|| format!("{}", mounted.display()))?;
        let mut refused = None;
        for (dir, name) in &self.meanings {
            match find(&top, dir, name) {
                Ok(version) => {
                    let flags = OpenTreeFlags::OPEN_TREE_CLONE
                        | OpenTreeFlags::OPEN_TREE_CLOEXEC
                        | OpenTreeFlags::AT_EMPTY_PATH;
                    return open_tree(&version, "", flags)
                        .context("putting a version on a directory of its own");
                }
                // What is wrong with the first meaning is what most people want to know.
                Err(e) => _ = refused.get_or_insert(e),
            }
        }
        Err(refused.unwrap_or_else(|| anyhow!("no snapshot is named")))
    }
}

/// The snapshot `name` of `dir`, or, if there is none, the one with that number.
fn find(top: &File, dir: &Path, name: &OsStr) -> Result<OwnedFd> {
    let shown_dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let open = |path: &Path| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(top, path, flags, Mode::empty(), resolve)
    };
    let by_name = |name: &OsStr| {
        let path = dir.join(".snapshots").join(name);
        match open(&path) {
            Ok(version) => Ok(Some(version)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e).with_context(|| format!("/{}", path.display())),
        }
    };
    if let Some(version) = by_name(name)? {
        return Ok(version);
    }
    let Ok(its_dir) = open(shown_dir) else {
        bail!("/{}: no such directory in the file system", dir.display());
    };
    // No name is a number.
    if let Some(number) = name.to_str().and_then(number) {
        let path = format!("/proc/self/fd/{}/.", its_dir.as_raw_fd());
        let all = tool::list_snapshots(Path::new(&path)).with_context(|| format!("/{}", dir.display()))?;
        if let Some(info) = all.into_iter().find(|info| info.number == number)
            && let Some(version) = by_name(&info.name)?
        {
            return Ok(version);
        }
    }
    bail!("/{}: has no snapshot {}; pando snapshot list shows what there is", dir.display(), name.display())
}

/// The number that the name of a snapshot is, if it is one. A sign makes it a name: there are snapshots called `+5`.
pub fn number(text: &str) -> Option<u32> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// Refuses callers other than root, before anything is done.
pub fn allowed() -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let text = "snapshot=: only root may put a version on a directory of its own; DIR/.snapshots/NAME of the mounted \
                file system shows it to others";
    Err(Coded(exit::FAILURE, text.into()).into())
}

/// Mounts `version` of the file system that is mounted on `mounted` on `dir`, read-only.
pub fn bind(version: &Version, mounted: &Path, dir: &Path) -> Result<()> {
    place(&version.find(mounted)?, dir)
}

/// Replaces the file system that was just mounted on `dir` by its `version`. If that fails nothing stays mounted.
pub fn narrow(version: &Version, dir: &Path) -> Result<()> {
    let found = version.find(dir);
    // The daemon runs as long as there is a mount of it. This is one, so it is unmounted for the daemon to end.
    unmount(dir, How::Plain).or_else(|_| unmount(dir, How::Lazy))?;
    place(&found?, dir)
}

fn place(tree: &OwnedFd, dir: &Path) -> Result<()> {
    let fail = || format!("{}", dir.display());
    move_mount(tree, "", CWD, dir, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).with_context(fail)?;
    read_only(dir).with_context(fail).inspect_err(|_| {
        let _ = unmount(dir, How::Lazy);
    })
}

/// A snapshot refuses changes by itself; this tells programs that ask beforehand.
fn read_only(dir: &Path) -> Result<()> {
    let now = rustix::fs::statvfs(dir)?.f_flag;
    let kept = [
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let kept = kept.into_iter().filter(|(flag, _)| now.contains(*flag)).map(|(_, flag)| flag);
    let flags = kept.fold(MountFlags::BIND | MountFlags::RDONLY, |all, flag| all | flag);
    Ok(mount_remount(dir, flags, OsStr::from_bytes(b""))?)
}

/// Where the image is mounted already, as a whole.
pub fn mounted(image: &Path) -> Result<Option<PathBuf>> {
    let all = mountinfo::of_image(image)?.into_iter();
    Ok(all.rev().find(|mount| mount.root == Path::new("/") && !mountinfo::is_dead(&mount.dir)).map(|m| m.dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_with_or_without_a_directory() {
        let all = |text: &str| {
            let version = text.parse::<Version>().ok()?;
            let text = |(dir, name): (PathBuf, OsString)| format!("{} {}", dir.display(), name.display());
            Some(version.meanings.into_iter().map(text).collect::<Vec<_>>())
        };
        let found = |meanings: &[&str]| Some(meanings.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(all("monday"), found(&[" monday"]));
        assert_eq!(all("/a/b@monday"), found(&["a/b monday"]));
        assert_eq!(all("a@b/c@1"), found(&["a@b/c 1"]));
        assert_eq!(all("a@b@c"), found(&["a@b c", "a b@c", " a@b@c"]));
        assert_eq!(all("@monday"), found(&[" monday", " @monday"]));
        assert_eq!(all(r"d\,e@a\,b\\\054\\c"), found(&[r"d,e a,b\,\c", r" d,e@a,b\,\c"]));
        for wrong in ["", "a/b@..", "a/b", r"a\b", r"a\", r"\400", r"\08", r"a\057b"] {
            assert_eq!(all(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn options_are_cut_at_commas_without_a_backslash() {
        assert_eq!(options(r"ro,snapshot=a\,b,x\\,y"), ["ro", r"snapshot=a\,b", r"x\\", "y"]);
        assert_eq!((options(""), options("a,")), (vec![""], vec!["a", ""]));
    }
}
