//! `pando mv`: renames a file or tree as one operation, or not at all.

use std::path::PathBuf;

use anyhow::{Context, Result};
use rustix::{
    fs::{CWD, RenameFlags, renameat_with},
    io::Errno,
};

use crate::offline;

/// Rename a file or directory tree as one operation, never by copying
#[derive(clap::Args)]
#[command(
    after_help = "Plain mv inside the mount is as cheap; this one never falls back to copying, and never
moves into an existing directory. SRC and DST may also be IMAGE:/PATH, in an image that is not mounted.

Examples: pando mv /mnt/grove/experiment /mnt/grove/project-2
          pando mv grove.img:/experiment grove.img:/project-2"
)]
pub struct Args {
    /// Replace DST if it is a file or an empty directory
    #[arg(long)]
    replace: bool,
    /// What to rename
    src: PathBuf,
    /// Its new name, in the same mount
    dst: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    if let Some((src, dst)) = offline::pair(&args.src, &args.dst)? {
        let fail = || format!("mv {src} to {}", dst.path.display());
        return offline::with(&src, false, |fs| offline::rename(fs, &src.path, &dst.path, args.replace))
            .with_context(fail);
    }
    let flags = if args.replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    let result = renameat_with(CWD, &args.src, CWD, &args.dst, flags);
    let hint = match result {
        Ok(()) => return Ok(()),
        Err(Errno::XDEV) => "; SRC and DST must be in one mounted file system, use mv to copy between two",
        Err(Errno::EXIST) if !args.replace => "; give another name, or --replace",
        Err(Errno::NOTEMPTY | Errno::EXIST) => "; remove the tree at DST first with: pando rm -r DST",
        Err(Errno::INVAL) => "; DST must not lie inside SRC",
        Err(_) => "",
    };
    result.with_context(|| format!("mv {} to {}{hint}", args.src.display(), args.dst.display()))
}
