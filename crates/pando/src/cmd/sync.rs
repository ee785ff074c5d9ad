//! `pando sync`: returns when everything done so far is durable.

use std::path::PathBuf;

use anyhow::{Context, Result};
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
    client::send(&dir, &ControlRequest::Sync).with_context(|| format!("sync {}", args.dir.display()))?;
    Ok(())
}
