//! What was at a path: `PATH@SNAPSHOT`, by the name or number of a snapshot of a directory above PATH, or of PATH.
//!
//! What exists is meant as it is, whatever its name looks like.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fs::{Fs, SnapshotInfo};

use crate::{
    cmd::log::{Moment, moments, there},
    offline,
    one_version::number,
};

/// The path, and what is known of it in the snapshot that is named. Either may have an `@` in it: the shortest name
/// that a snapshot has counts, and the nearest directory.
pub fn find(version: &Path) -> Result<(PathBuf, Moment)> {
    let mut refused = None;
    for (path, name) in cuts(version) {
        let its_number = number(&name.to_string_lossy());
        let named = |moment: &Moment| moment.named == *name || Some(moment.number) == its_number;
        let found = moments(path)?.into_iter().filter(named);
        // The nearest directory has the longest path.
        if let Some(moment) = found.max_by_key(|moment| moment.dir.as_os_str().len()) {
            return Ok((path.to_owned(), moment));
        }
        let (name, path) = (name.display(), path.display());
        refused.get_or_insert(format!("{name}: no snapshot of a directory above {path} is named so"));
    }
    match refused {
        Some(text) => bail!("{text}; see pando log"),
        None => bail!("{}: write it as PATH@SNAPSHOT", version.display()),
    }
}

/// The ways to take a version apart, the shortest name of a snapshot first.
fn cuts(version: &Path) -> impl Iterator<Item = (&Path, &OsStr)> {
    let bytes = version.as_os_str().as_bytes();
    let ends = (0..bytes.len()).rev().filter(|at| bytes.get(*at) == Some(&b'@'));
    let cut = |at: usize| {
        let (path, name) = bytes.split_at_checked(at)?;
        let name = name.get(1..).filter(|name| !name.is_empty() && !name.contains(&b'/'))?;
        (!path.is_empty()).then(|| (Path::new(OsStr::from_bytes(path)), OsStr::from_bytes(name)))
    };
    ends.filter_map(cut)
}

/// Where `path` is found: itself, or what `PATH@SNAPSHOT` means.
pub fn place(path: &Path) -> Result<PathBuf> {
    if std::fs::symlink_metadata(path).is_ok() || cuts(path).next().is_none() {
        return Ok(path.to_owned());
    }
    let none = || format!("{}: nothing has this name, nor is it PATH@SNAPSHOT", path.display());
    let (of, moment) = find(path).with_context(none)?;
    if there(&moment.path)?.is_none() {
        bail!("{}: is not in snapshot {} of {}", of.display(), moment.name, moment.dir.display());
    }
    Ok(moment.path)
}

/// The second of two paths: `@SNAPSHOT` is the first one in that snapshot.
pub fn beside(first: &Path, second: &Path) -> PathBuf {
    let bytes = second.as_os_str().as_bytes();
    if !bytes.starts_with(b"@") || std::fs::symlink_metadata(second).is_ok() {
        return second.to_owned();
    }
    let of = match std::fs::symlink_metadata(first) {
        Ok(_) => first,
        Err(_) => cuts(first).next().map_or(first, |(path, _)| path),
    };
    OsStr::from_bytes(&[of.as_os_str().as_bytes(), bytes].concat()).into()
}

/// The same as [`place()`], for a path from the root of an image that is not mounted.
pub fn place_inside(fs: &Fs, path: &Path) -> Result<PathBuf> {
    if !offline::is_absent(fs, path) {
        return Ok(path.to_owned());
    }
    for (of, name) in cuts(path) {
        let its_number = number(&name.to_string_lossy());
        for dir in of.ancestors() {
            let Ok(attr) = fs.resolve(dir) else { continue };
            let all = fs.snapshots(attr.ino);
            fs.forget(attr.ino, 1);
            let named = |info: &SnapshotInfo| info.name == *name || Some(info.number) == its_number;
            if let Some(info) = all?.into_iter().find(named) {
                let rest = of.strip_prefix(dir).unwrap_or(Path::new(""));
                let top = dir.join(".snapshots").join(info.name);
                return Ok(if rest.as_os_str().is_empty() { top } else { top.join(rest) });
            }
        }
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_taken_apart_at_every_sign() {
        let all = |text: &str| -> Vec<(String, String)> {
            let text_of =
                |(path, name): (&Path, &OsStr)| (path.display().to_string(), name.display().to_string());
            cuts(Path::new(text)).map(text_of).collect()
        };
        let pair = |path: &str, name: &str| (path.to_owned(), name.to_owned());
        assert_eq!(all("a/b@c"), [pair("a/b", "c")]);
        assert_eq!(all("a@b@c"), [pair("a@b", "c"), pair("a", "b@c")]);
        assert_eq!(all("a@x/b@7"), [pair("a@x/b", "7")]);
        for none in ["a/b", "a@b/c", "a@", "@a", ""] {
            assert_eq!(all(none), [], "{none}");
        }
        assert_eq!(beside(Path::new("no@s"), Path::new("@t")), Path::new("no@t"));
        assert_eq!(beside(Path::new("no"), Path::new("@t")), Path::new("no@t"));
        assert_eq!(beside(Path::new("no@s"), Path::new("other")), Path::new("other"));
    }
}
