//! `pando sync`: returns when everything done so far is durable.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use pando_fuse::{client, control::ControlRequest};

use crate::place;

/// Return when everything that was done is durable
#[derive(clap::Args)]
#[command(after_help = "fsync of any directory of the mount does the same. Unasked, changes become durable
about a second after they were made (mount -o commit=SECONDS).

Example: pando sync /mnt/grove")]
pub struct Args {
    /// A directory in a mounted Pando file system
    dir: PathBuf,
}

impl Args {
    /// For the mount that `dir` lies in.
    pub fn of(dir: PathBuf) -> Self {
        Self { dir }
    }
}

pub fn run(args: &Args) -> Result<()> {
    let dir = place::open_dir(&args.dir)?;
    // The kernel stores errors of background writes for the first caller that asks, also for times of files that a
    // killed program was about to remove, and refuses some mounts above this one until then. So its error is dropped
    // here: the daemon knows what has failed.
    let _noted = rustix::fs::syncfs(&dir);
    match client::send(&dir, &ControlRequest::Sync).with_context(|| format!("sync {}", args.dir.display()))? {
        0 => Ok(()),
        files => bail!(
            "{}: data of {files} files did not fit and is not durable; it is tried again: make room, or raise a quota",
            args.dir.display()
        ),
    }
}
