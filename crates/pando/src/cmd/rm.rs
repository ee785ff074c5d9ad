//! `pando rm -r`: removes a whole tree as one operation.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pando_fuse::{client, control::Request};

use crate::place::{self, Place};

/// Remove a file, or with -r a whole tree, as one operation
#[derive(clap::Args)]
#[command(after_help = "Example: pando rm -r /mnt/grove/experiment")]
pub struct Args {
    /// Remove directories and everything in them
    #[arg(short = 'r', long)]
    recursive: bool,
    /// What to remove
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    for path in &args.paths {
        let meta = std::fs::symlink_metadata(path).with_context(|| format!("{}", path.display()))?;
        if meta.is_dir() && !args.recursive {
            bail!("{}: is a directory; give -r to remove it and everything in it", path.display());
        }
        remove(path)?;
    }
    Ok(())
}

/// Removes the tree at `path` and returns the microseconds that it took inside the daemon.
pub fn remove(path: &Path) -> Result<u64> {
    let fail = || format!("rm {}", path.display());
    let target = Place::new(path).with_context(fail)?;
    let fd = place::descriptor(&[&target]).with_context(fail)?;
    client::send(&fd, &Request::Remove { target: target.key() }).with_context(fail)
}
