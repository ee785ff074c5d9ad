//! `pando umount`: unmounts, and returns when the image is closed.

use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};
use pando_fuse::{
    How,
    mountinfo::{self, Entry},
    unmount,
};

use crate::{
    closing,
    exit::{self, Coded},
    image, inherited, place,
};

/// How long a file system may be busy before that is an error.
const BUSY_PATIENCE: Duration = Duration::from_millis(1500);

/// Unmount a file system and wait until its image is closed
#[derive(clap::Args)]
#[command(
    after_help = "While files are open, pando umount waits, up to 1.5 seconds. umount DIR and fusermount3 -u DIR do the
same, but do not wait for the image (umount does where the helpers of pando install are). Exit code 6 says
that it is unmounted but could not be closed: the device failed, or the daemon was killed meanwhile. Exit
code 4 says that files are open, or that it is unmounted here, but not in another mount namespace (a container).

Example: pando umount /mnt/grove"
)]
pub struct Args {
    /// Detach it even if files are open; it ends, and the image is closed, when the last one is
    #[arg(long, short = 'l')]
    lazy: bool,
    /// The directory where it is mounted
    dir: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    inherited::expect_children();
    let dir = place::absolute_mount_point(&args.dir)?;
    if args.lazy { detach(&dir, How::Lazy) } else { detach(&dir, How::Plain) }
}

/// Unmounts `dir`. If it is busy, this tries again for a while, because a process that ends, or a scan of a file
/// manager, uses a mount for a moment only.
fn unmount_patiently(dir: &Path, how: How) -> Result<(), pando_fuse::Error> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        match unmount(dir, how) {
            Err(pando_fuse::Error::Busy(_)) if begin.elapsed() < BUSY_PATIENCE => thread::sleep(pause),
            done => return done,
        }
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Why `mount` was not unmounted from `dir`. To who may not unmount it, fusermount3 says that it is not there, or less.
fn not_unmounted(dir: &Path, mount: &Entry, why: pando_fuse::Error) -> anyhow::Error {
    let (user, own) = (mount.user.unwrap_or(0), rustix::process::geteuid().as_raw());
    let is_there = || mountinfo::at(dir).is_ok_and(|now| now.is_some_and(|now| now.id == mount.id));
    let is_refusal = !matches!(why, pando_fuse::Error::Busy(_));
    if own == user || !is_refusal || !is_there() {
        return why.into();
    }
    match user {
        0 => anyhow!("{}: it is mounted, but only root may unmount it", dir.display()),
        _ => anyhow!(
            "{}: it is mounted, but only root and the user {user}, who mounted it, may unmount it",
            dir.display()
        ),
    }
}

/// Unmounts `dir` (absolute) and, unless lazily, waits for the daemon to close the image.
pub fn detach(dir: &Path, how: How) -> Result<()> {
    let Some(mount) = mountinfo::at(dir)? else {
        bail!("{}: no file system is mounted there", dir.display());
    };
    if mount.fstype != mountinfo::FSTYPE {
        bail!("{}: is a {} file system, not a Pando one; use umount", dir.display(), mount.fstype);
    }
    let user = mount.user.unwrap_or(0);
    let before = closing::word(&mount.source, user);
    // A daemon that hangs must not be asked.
    let dead = match &before {
        Some((pid, _)) => closing::has_ended(*pid),
        None => mountinfo::is_dead(dir),
    };
    if dead {
        unmount_patiently(dir, how).map_err(|e| not_unmounted(dir, &mount, e))?;
        // Its users have seen it die, and there is nothing left to close.
        crate::exit::tell!(
            "pando: {}: its daemon had been killed or had crashed; what was not synced may be lost, the next mount \
             recovers the rest",
            dir.display()
        );
        return Ok(());
    }
    unmount_patiently(dir, how).map_err(|e| not_unmounted(dir, &mount, e))?;
    // A bind mount of it, or another name space, may keep the daemon running.
    let others = mountinfo::all()?.iter().any(|m| m.device == mount.device && m.fstype == mountinfo::FSTYPE);
    if how == How::Lazy || others || !mount.source.is_absolute() {
        return Ok(());
    }
    image::wait_until_closed(&mount.source, &mount.device)?;
    closing::result(&mount.source, user, before.as_ref()).map_err(|why| {
        let (dir, image) = (dir.display(), mount.source.display());
        let text = format!(
            "{dir}: unmounted, but {image} was not closed: {why}; what was not synced may be lost, the next mount \
             recovers the rest"
        );
        Coded(exit::NOT_CLOSED, text).into()
    })
}
