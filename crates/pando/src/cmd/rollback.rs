//! `pando rollback`: makes a directory what it was in one of its snapshots.

use std::{os::unix::fs::MetadataExt, path::PathBuf};

use anyhow::{Context, Result, bail};
use pando_fuse::tool;

use crate::place;

/// Make a directory what it was in one of its snapshots, atomically
#[derive(clap::Args)]
#[command(
    after_help = "What DIR is now becomes a snapshot first, whose name is printed, unless --discard is given. Programs
that work in DIR keep the files that they have open, and see the change only after cd to DIR. A
symbolic link to a directory means the directory.
Directories below DIR that had their place already when the snapshot was made keep their snapshots,
policies and origins as forks. Those of others go; their snapshots are listed by pando snapshot
orphans. The root of the file system cannot be rolled back: clone the directories of its snapshot.

Example: pando rollback /mnt/grove/project before-upgrade"
)]
pub struct Args {
    /// Do not keep what DIR is now
    #[arg(long)]
    discard: bool,
    /// A directory in a mounted Pando file system
    dir: PathBuf,
    /// Name or number of one of its snapshots
    snapshot: String,
}

pub fn run(args: &Args) -> Result<()> {
    let fail = || format!("roll {} back to {}", args.dir.display(), args.snapshot);
    if std::fs::metadata(&args.dir).is_ok_and(|m| m.ino() == pando_fs::ROOT) {
        bail!("{}: the root of a file system cannot be replaced; see pando rollback --help", fail());
    }
    let before = place::retried(|| {
        let dir = place::followed(&args.dir)?;
        let info = super::snapshot::find(&dir, &args.snapshot)?;
        Ok(tool::rollback(&place::entry_path(&dir)?, info.number, args.discard)?)
    })
    .with_context(fail)?;
    let text: String = before.iter().map(|info| format!("{}\n", super::field(&info.name, false))).collect();
    super::print(&text)
}
