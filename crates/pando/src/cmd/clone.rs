//! `pando clone`: clones a file or a whole tree inside one mount.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fuse::tool;

use crate::{cmd::past, exit, offline, place};

/// Clone a file or directory tree of any size, atomically, for the price of a small write
#[derive(clap::Args)]
#[command(
    after_help = "The clone's root keeps owner, mode and times, as cp -a would. The owner of SRC and root
may clone it, to where they may create files. A directory is replaced only if it may be
removed as a whole: see pando rm --help. Its snapshots stay, without a directory: pando snapshot
orphans lists them. What is in a snapshot of it does not replace it.
PATH@SNAPSHOT as SRC is what PATH was in a snapshot of it, or of a directory above it. SRC and
DST may also be IMAGE:/PATH, in an image that is not mounted. DST may lie inside SRC: the
clone is of the moment before. Where many clones lie in SRC, exclude the directory that holds them.
Everything that was written before the command is in it. Of what programs write meanwhile, pages are
taken as the kernel hands them over, so a later write may be in it and an earlier one not, unless
fsync, close or the mount option writeback=off puts them in order.

Examples: pando clone /mnt/grove/project /mnt/grove/experiment
          pando clone /mnt/grove/project@monday /mnt/grove/monday
          pando clone --exclude .trees /mnt/grove/repo /mnt/grove/repo/.trees/a
          pando clone grove.img:/project grove.img:/experiment
          pando clone --track /mnt/grove/project /mnt/grove/task   (see pando fork --help)"
)]
pub struct Args {
    /// Replace DST if it exists, atomically
    #[arg(long)]
    replace: bool,
    /// Leave out what lies at REL in the directory SRC; may be given several times. If nothing lies there, that is
    /// said, and is no failure
    #[arg(long, value_name = "REL")]
    exclude: Vec<PathBuf>,
    /// Remember what DST was cloned from, to compare and merge it later: the same as pando fork
    #[arg(long)]
    track: bool,
    /// A file or directory in a mounted Pando file system
    src: PathBuf,
    /// The new name, in the same mount
    dst: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    if offline::place(&args.src).is_none() {
        let src = past::place(&args.src)?;
        if src != args.src {
            return clone_as(&src, &args.dst, (args.replace, args.track), &args.exclude).map(|_| ());
        }
    }
    match offline::pair(&args.src, &args.dst)? {
        // The link itself is no fork; a clone of it is a link.
        None if args.track => {
            let src = place::followed(&args.src)?;
            clone_as(&src, &args.dst, (args.replace, true), &args.exclude).map(|_| ())
        }
        None => clone_as(&args.src, &args.dst, (args.replace, args.track), &args.exclude).map(|_| ()),
        Some(_) if args.track => bail!("--track wants a mounted file system"),
        Some((src, dst)) => {
            let fail = || format!("clone {src} to {}", dst.path.display());
            let absent = offline::with(&src, false, |fs| {
                let absent = args.exclude.iter().filter(|rel| offline::is_absent(fs, &src.path.join(rel)));
                let absent: Vec<_> = absent.collect();
                offline::clone(fs, &src.path, &dst.path, args.replace, &args.exclude).map(|()| absent)
            })
            .with_context(fail)?;
            say_absent(&args.src, &absent);
            Ok(())
        }
    }
}

/// Says that these paths, which a clone was to lack, lie nowhere: they may be misspelt.
fn say_absent(src: &Path, absent: &[&PathBuf]) {
    for rel in absent {
        exit::tell!("pando: --exclude {}: nothing lies there in {}", rel.display(), src.display());
    }
}

/// Clones `src` to `dst` and returns the microseconds that it took inside the daemon.
pub fn clone(src: &Path, dst: &Path, replace: bool) -> Result<u64> {
    clone_to(src, (dst, dst), replace)
}

/// Clones `src` to the first path; messages call that the second.
pub fn clone_to(src: &Path, to: (&Path, &Path), replace: bool) -> Result<u64> {
    clone_shown(src, to, (replace, false), &[])
}

/// Clones `src` to `dst`; the clone is a fork if it is to `track`.
pub fn clone_as(src: &Path, dst: &Path, how: (bool, bool), exclude: &[PathBuf]) -> Result<u64> {
    clone_shown(src, (dst, dst), how, exclude)
}

fn clone_shown(
    src: &Path,
    (dst, shown): (&Path, &Path),
    (replace, track): (bool, bool),
    exclude: &[PathBuf],
) -> Result<u64> {
    let verb = if track { "fork" } else { "clone" };
    let fail = || format!("{verb} {} to {}", src.display(), shown.display());
    place::may_have_slash(dst, src.symlink_metadata().ok().map(|meta| meta.is_dir())).with_context(fail)?;
    place::retried(|| clone_once(src, (dst, &fail), (replace, track), exclude))
}

/// Looks up the paths, and clones; `fail` says what failed.
fn clone_once(
    src: &Path,
    (dst, fail): (&Path, &dyn Fn() -> String),
    (replace, track): (bool, bool),
    exclude: &[PathBuf],
) -> Result<u64> {
    let from = place::entry_path(src).with_context(fail)?;
    let device = from.device().with_context(fail)?;
    if std::fs::symlink_metadata(src).is_ok_and(|m| m.ino() == pando_fs::ROOT && m.dev() != device) {
        bail!("{}: SRC is the root of a file system; clone the directories in it", fail());
    }
    let to = place::entry_path(dst).with_context(fail)?;
    if to.device().with_context(fail)? != device {
        bail!(
            "{}: SRC and DST must be in one mounted Pando file system; copy between two with cp -a",
            fail()
        );
    }
    let is_absent = |rel: &&PathBuf| {
        let found = std::fs::symlink_metadata(src.join(rel));
        found.is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
    };
    let absent: Vec<_> = exclude.iter().filter(is_absent).collect();
    let done = match track {
        true => tool::fork(&from, &to, replace, exclude),
        false => tool::clone_without(&from, &to, replace, exclude),
    };
    match done {
        Ok(made) => {
            say_absent(src, &absent);
            super::warn_unstored(made.unstored, src);
            Ok(made.micros)
        }
        Err(e) => {
            let hint = match e.errno() {
                Some(libc::EEXIST) if !replace => {
                    "; give another name, or --replace to replace it atomically"
                }
                Some(libc::ENOSPC) => "; delete something, or make it larger with: pando grow",
                _ => "",
            };
            Err(anyhow::Error::from(e).context(format!("{}{hint}", fail())))
        }
    }
}
