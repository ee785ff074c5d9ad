//! `pando restore-file`: brings back a file, or a tree, as it was in a snapshot.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

use crate::cmd::log::{Moment, absolute, moments, there};

/// Bring back a file or tree as it was in a snapshot of a directory above it
#[derive(clap::Args)]
#[command(
    after_help = "SNAPSHOT is the name or the number of a snapshot of any directory above PATH; the nearest one
counts. The file is a clone of the old one, so it costs no space, whatever its size. What is at
PATH now is not touched unless --replace is given: then it is replaced, atomically; --to DST
puts the old version elsewhere in the same file system, into DST if that is a directory (with
--replace an old directory replaces it).

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
    let (path, moment) = find(&args.version)?;
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
    super::clone::clone(&moment.path, &to, args.replace)
        .with_context(|| format!("restore {} from {}", path.display(), moment.name))
        .map(|_| ())
}

/// The path, and what is known of it in the snapshot that is named. Either may have an `@` in it: the shortest name
/// that a snapshot has counts.
fn find(version: &Path) -> Result<(PathBuf, Moment)> {
    let bytes = version.as_os_str().as_bytes();
    let (mut end, mut refused) = (bytes.len(), None);
    while let Some(at) = bytes.get(..end).unwrap_or_default().iter().rposition(|byte| *byte == b'@') {
        let path = PathBuf::from(OsStr::from_bytes(bytes.get(..at).unwrap_or_default()));
        let name = OsStr::from_bytes(bytes.get(at + 1..).unwrap_or_default()).to_string_lossy();
        end = at;
        if path.as_os_str().is_empty() || name.is_empty() {
            continue;
        }
        let number = super::snapshot::number(&name);
        let named = |moment: &Moment| moment.name == name || Some(moment.number) == number;
        let found = moments(&path)?.into_iter().filter(named);
        // The nearest directory has the longest path.
        if let Some(moment) = found.max_by_key(|moment| moment.dir.as_os_str().len()) {
            return Ok((path, moment));
        }
        let text = format!("{name}: no snapshot of a directory above {} is named so", path.display());
        refused.get_or_insert(text);
    }
    match refused {
        Some(text) => bail!("{text}; see pando log"),
        None => bail!("{}: write it as PATH@SNAPSHOT", version.display()),
    }
}
