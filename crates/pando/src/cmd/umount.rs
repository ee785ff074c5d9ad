//! `pando umount`: unmounts, and returns when the image is closed.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use pando_fuse::{How, mountinfo, unmount};

use crate::{image, place};

/// Unmount a file system and wait until its image is closed
#[derive(clap::Args)]
#[command(after_help = "umount DIR and fusermount3 -u DIR do the same but do not wait.

Example: pando umount /mnt/grove")]
pub struct Args {
    /// Detach it even if files are open; it ends, and the image is closed, when the last one is
    #[arg(long, short = 'l')]
    lazy: bool,
    /// Where it is mounted
    dir: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let dir = place::absolute_mount_point(&args.dir)?;
    if args.lazy { detach(&dir, How::Lazy) } else { detach(&dir, How::Plain) }
}

/// Unmounts `dir` (absolute) and, unless lazily, waits for the daemon to close the image.
pub fn detach(dir: &Path, how: How) -> Result<()> {
    let Some(mount) = mountinfo::at(dir)? else {
        bail!("{}: no file system is mounted there", dir.display());
    };
    if mount.fstype != mountinfo::FSTYPE {
        bail!("{}: is a {} file system, not a Pando one; use umount", dir.display(), mount.fstype);
    }
    unmount(dir, how)?;
    // A bind mount of it, or another name space, may keep the daemon running.
    let others = mountinfo::all()?.iter().any(|m| m.device == mount.device && m.fstype == mountinfo::FSTYPE);
    if how == How::Lazy || others || !mount.source.is_absolute() {
        return Ok(());
    }
    image::wait_until_closed(&mount.source)
}
