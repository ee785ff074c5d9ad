//! Work on an image that is not mounted, by `IMAGE:/PATH`.
//!
//! A user who may write to the image may do anything in it, as root could in a mount. Each command opens the image,
//! which locks it, and closes it, which makes the changes durable.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fs::{Authority, Caller, FileKind, Fs, Ino, MountOptions, RENAME_NOREPLACE};

use crate::image::{self, ImagePath};

/// The place in an image that `path` means, if it means one. What exists is meant as it is, even if its name looks
/// like such a place.
pub fn place(path: &Path) -> Option<ImagePath> {
    match std::fs::symlink_metadata(path) {
        Ok(_) => None,
        Err(_) => ImagePath::parse(path.as_os_str()).ok().filter(|inside| inside.image.exists()),
    }
}

/// Both places, if either is in an image: they must be in the same one.
pub fn pair(src: &Path, dst: &Path) -> Result<Option<(ImagePath, ImagePath)>> {
    match (place(src), place(dst)) {
        (None, None) => Ok(None),
        (Some(src), Some(dst)) if image::canonical(&src.image)? == image::canonical(&dst.image)? => {
            Ok(Some((src, dst)))
        }
        _ => bail!(
            "{} and {}: must be in one image, or in one mounted file system; pando import and export copy trees in \
             and out",
            src.display(),
            dst.display()
        ),
    }
}

/// Opens the image of `place`, lets `work` do something, and closes it, also after a failure, so that the log need
/// not be replayed.
pub fn with<T>(place: &ImagePath, read_only: bool, work: impl FnOnce(&Fs) -> Result<T>) -> Result<T> {
    let path = image::canonical(&place.image)?;
    let fs = image::open(&path, MountOptions::default().read_only(read_only).background(!read_only))?;
    let done = work(&fs);
    fs.close().with_context(|| format!("closing {}", place.image.display()))?;
    done
}

/// A name in a directory, with a reference to that.
struct Entry<'a> {
    fs: &'a Fs,
    dir: Ino,
    name: OsString,
}

impl<'a> Entry<'a> {
    fn new(fs: &'a Fs, path: &Path) -> Result<Entry<'a>> {
        let (dir, name) = fs.resolve_parent(path)?;
        Ok(Entry { fs, dir, name })
    }

    fn name(&self) -> &OsStr {
        &self.name
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.fs.forget(self.dir, 1);
    }
}

/// What there is at `path`, if anything is and can be found.
pub fn kind(fs: &Fs, path: &Path) -> Option<FileKind> {
    let attr = fs.resolve(path).ok()?;
    fs.forget(attr.ino, 1);
    Some(attr.kind)
}

/// Whether there is nothing at `path`, as far as that is known.
pub fn is_absent(fs: &Fs, path: &Path) -> bool {
    let found = fs.resolve(path).map(|attr| fs.forget(attr.ino, 1));
    matches!(found, Err(pando_fs::Error::NotFound(_)))
}

/// Error if `dst` ends in a slash and what is to have that name, `src`, is no directory.
fn may_have_slash(fs: &Fs, src: &Path, dst: &Path) -> Result<()> {
    crate::place::may_have_slash(dst, kind(fs, src).map(|kind| kind == FileKind::Directory))
}

/// Clones `src` to `dst`.
pub fn clone(fs: &Fs, src: &Path, dst: &Path, replace: bool, exclude: &[PathBuf]) -> Result<()> {
    may_have_slash(fs, src, dst)?;
    let (from, to) = (Entry::new(fs, src)?, Entry::new(fs, dst)?);
    let root = fs.lookup(from.dir, from.name())?;
    if fs.snapshot_of(root.ino).is_some() {
        let to = (to.dir, to.name());
        let done = match exclude.is_empty() {
            false => Err(anyhow::anyhow!("nothing is left out of a whole snapshot")),
            true => fs
                .clone_snapshot(Authority::Caller(&Caller::root()), root.ino, to, replace)
                .map(drop)
                .map_err(anyhow::Error::from),
        };
        fs.forget(root.ino, 1);
        return done;
    }
    fs.forget(root.ino, 1);
    let (from, to) = ((from.dir, from.name()), (to.dir, to.name()));
    fs.clone_tree_without(&Caller::root(), from, to, replace, exclude)?;
    Ok(())
}

/// Renames `src` to `dst`.
pub fn rename(fs: &Fs, src: &Path, dst: &Path, replace: bool) -> Result<()> {
    may_have_slash(fs, src, dst)?;
    let (from, to) = (Entry::new(fs, src)?, Entry::new(fs, dst)?);
    let flags = if replace { 0 } else { RENAME_NOREPLACE };
    Ok(fs.rename(&Caller::root(), from.dir, from.name(), to.dir, to.name(), flags)?)
}

/// Removes the file or, if `recursive`, the tree at `path`; [`pando_fs::Error::IsDirectory`] otherwise.
pub fn remove(fs: &Fs, path: &Path, recursive: bool) -> Result<()> {
    let at = Entry::new(fs, path)?;
    let root = Caller::root();
    match fs.unlink(&root, at.dir, at.name()) {
        Err(pando_fs::Error::IsDirectory(_)) if recursive => {
            fs.remove_tree(&root, at.dir, at.name())?;
        }
        done => done?,
    }
    Ok(())
}

/// The kind and permissions as `ls -l` shows them.
pub fn mode_text(kind: FileKind, perm: u32) -> String {
    let kind = match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    };
    let mut out = String::from(kind);
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = perm >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (perm & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_in_ls() {
        assert_eq!(mode_text(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(FileKind::Regular, 0o4711), "-rws--x--x");
        assert_eq!(mode_text(FileKind::Symlink, 0o6640), "lrwSr-S---");
    }
}
