//! `pando restore-file`: brings back a file, or a tree, as it was in a snapshot.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::cmd::log::{Moment, absolute, moments, there};

/// Bring back a file or tree as it was in a snapshot of a directory above it
#[derive(clap::Args)]
#[command(
    after_help = "SNAPSHOT is the name or the number of a snapshot of any directory above PATH; the nearest one
counts. The file is a clone of the old one, so it costs no space, whatever its size. What is at
PATH now is not touched unless --replace is given: then it is replaced, atomically; --to DST
puts the old version elsewhere in the same file system.

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
    let (path, name) = split(&args.version)?;
    let all = moments(&path)?;
    let number: Option<u32> = name.parse().ok();
    // The nearest directory has the longest path.
    let named = |moment: &&Moment| moment.name == name || Some(moment.number) == number;
    let Some(moment) = all.iter().filter(named).max_by_key(|moment| moment.dir.as_os_str().len()) else {
        bail!("{name}: no snapshot of a directory above {} is named so; see pando log", path.display());
    };
    if there(&moment.path)?.is_none() {
        bail!("{}: is not in snapshot {} of {}", path.display(), moment.name, moment.dir.display());
    }
    let to = match &args.to {
        Some(to) => to.clone(),
        None => absolute(&path)?,
    };
    super::clone::clone(&moment.path, &to, args.replace)
        .with_context(|| format!("restore {} from {}", path.display(), moment.name))
        .map(|_| ())
}

/// The path and the name of the snapshot behind its last `@`.
fn split(version: &std::path::Path) -> Result<(PathBuf, String)> {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
    let bytes = version.as_os_str().as_bytes();
    let Some(at) = bytes.iter().rposition(|byte| *byte == b'@') else {
        bail!("{}: write it as PATH@SNAPSHOT", version.display());
    };
    let (path, name) = (bytes.get(..at).unwrap_or_default(), bytes.get(at + 1..).unwrap_or_default());
    let Ok(name) = std::str::from_utf8(name) else { bail!("{}: no such snapshot", version.display()) };
    if path.is_empty() || name.is_empty() {
        bail!("{}: write it as PATH@SNAPSHOT", version.display());
    }
    Ok((PathBuf::from(OsStr::from_bytes(path)), name.to_owned()))
}
