//! `pando rm -r`: removes a whole tree as one operation.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pando_fuse::{client::ControlError, mountinfo, tool};

use crate::{exit, offline, place};

/// Remove a file, or with -r a whole tree, as one operation
#[derive(clap::Args)]
#[command(
    after_help = "You need the right to remove PATH, as for rm: to write to its directory, and to own one of the two if
the directory has the sticky bit. A directory is removed as a whole if it and all directories in it
are yours or empty, or if you are root. Where others own a part, nothing is removed; the rm -r of your
system then removes what you may remove, one by one.
PATH may also be IMAGE:/PATH, in an image that is not mounted.

Examples: pando rm -r /mnt/grove/experiment
          pando rm -r grove.img:/experiment"
)]
pub struct Args {
    /// Remove directories and everything in them
    #[arg(short = 'r', long)]
    recursive: bool,
    /// What is not there is no failure. Nothing is ever asked
    #[arg(short = 'f', long)]
    force: bool,
    /// What to remove
    #[arg(value_name = "PATH", required_unless_present = "force")]
    paths: Vec<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    exit::each(&args.paths, |path| match remove(path, args.recursive) {
        Err(e) if args.force && is_absent(&e) && !is_of_snapshots(path) => Ok(()),
        done => done,
    })
}

/// Whether the error says that there was nothing to remove.
fn is_absent(error: &anyhow::Error) -> bool {
    let errno = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref() {
        Some(refused) => ControlError::errno(refused),
        None => match cause.downcast_ref::<pando_fs::Error>() {
            Some(failed) => Some(failed.errno()),
            None => cause.downcast_ref::<std::io::Error>()?.raw_os_error(),
        },
    };
    error.chain().any(|cause| matches!(errno(cause), Some(libc::ENOENT | libc::ENOTDIR)))
}

/// Removes the file or, if `recursive`, tree at `path`.
fn remove(path: &Path, recursive: bool) -> Result<()> {
    let fail = || format!("rm {}", path.display());
    if let Some(inside) = offline::place(path) {
        let removed = offline::with(&inside, false, |fs| offline::remove(fs, &inside.path, recursive));
        return match removed {
            Err(e) if matches!(e.downcast_ref(), Some(pando_fs::Error::IsDirectory(_))) => {
                bail!("{}: is a directory; give -r to remove it and everything in it", path.display())
            }
            done => done.with_context(fail),
        };
    }
    let target = place::removable_path(path).with_context(fail)?;
    match tool::remove(&target, recursive) {
        Err(e) if e.errno() == Some(libc::EISDIR) => {
            bail!("{}: is a directory; give -r to remove it and everything in it", path.display())
        }
        Err(ControlError::NotPando) if is_mount(path) => {
            bail!("{}: is the root of a mounted file system; remove what is in it, or unmount it", fail())
        }
        Err(e) if matches!(e.errno(), Some(libc::ENOENT | libc::EROFS)) && is_of_snapshots(path) => {
            bail!("{}: snapshots are deleted by pando snapshot delete", fail())
        }
        done => done.map(|_| ()).with_context(fail),
    }
}

/// Whether a path names a snapshot that is there, or the place where all of a directory are seen.
fn is_of_snapshots(path: &Path) -> bool {
    let mut names = path.components().rev().map(|part| part.as_os_str());
    names.by_ref().take(2).any(|name| name == ".snapshots") && path.symlink_metadata().is_ok()
}

/// Whether one of our file systems is mounted on just this directory.
fn is_mount(dir: &Path) -> bool {
    let mount = dir.canonicalize().and_then(|dir| mountinfo::at(&dir));
    mount.is_ok_and(|mount| mount.is_some_and(|mount| mount.fstype == mountinfo::FSTYPE))
}
