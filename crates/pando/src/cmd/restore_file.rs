//! `pando restore-file`: brings back a file, or a tree, as it was in a snapshot.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::cmd::{
    log::{absolute, there},
    past,
};

/// Bring back a file or tree as it was in a snapshot of a directory above it
#[derive(clap::Args)]
#[command(
    after_help = "SNAPSHOT is the name or the number of a snapshot of any directory above PATH; the nearest one
counts. The file is a clone of the old one, so it costs no space, whatever its size. What is at
PATH now is not touched unless --replace is given: then it is replaced, atomically; --to DST
puts the old version elsewhere in the same file system, into DST if that is a directory (with
--replace an old directory replaces it). The directory of the snapshot itself is set back by
pando rollback, which keeps its snapshots.

Examples: pando restore-file project/notes.txt@monday --to project/notes.monday.txt
          pando restore-file --replace /mnt/grove/project/src/main.rs@before-upgrade
          pando log /mnt/grove/project/src/main.rs"
)]
pub struct Args {
    /// Replace what is there, atomically
    #[arg(long)]
    replace: bool,
    /// Where to, instead of PATH
    #[arg(long, value_name = "DST")]
    to: Option<PathBuf>,
    /// A path, which need not be there now, and a snapshot, as PATH@SNAPSHOT
    #[arg(value_name = "PATH@SNAPSHOT")]
    version: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let (path, moment) = past::find(&args.version)?;
    let Some(was) = there(&moment.path)? else {
        bail!("{}: is not in snapshot {} of {}", path.display(), moment.name, moment.dir.display());
    };
    let to = match &args.to {
        // A directory is replaced by another one only, and only if that is asked for.
        Some(to) if to.is_dir() && !(args.replace && was.is_dir()) => {
            to.join(absolute(&path)?.file_name().unwrap_or_default())
        }
        Some(to) => to.clone(),
        None => absolute(&path)?,
    };
    let fail = || format!("restore {} from {}", path.display(), moment.name);
    if args.replace && moment.path == moment.top {
        let same = |a: &Path, b: &Path| {
            a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b)
        };
        if same(&to, &moment.dir) && moment.dir.metadata().is_ok_and(|m| m.ino() == pando_fs::ROOT) {
            bail!("{}: the root of a file system cannot be replaced; restore what is in it", fail());
        }
        if same(&to, &moment.dir) {
            bail!(
                "{}: this is what it was as a whole, with its snapshots: pando rollback {} {} does that",
                fail(),
                path.display(),
                moment.name
            );
        }
    }
    super::clone::clone(&moment.path, &to, args.replace).with_context(fail).map(|_| ())
}
