//! `pando import`: copies a tree of the host into an image, without a mount.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pando_fs::{Fs, MountOptions};

use crate::{
    image::{self, ImagePath},
    size::show,
    tree::{self, Count, Progress, copy, host::HostTree, image::Image},
};

/// Copy a tree into an image without mounting it
#[derive(clap::Args)]
#[command(
    after_help = "PATH may be new, or a directory (like / of a new image) with nothing of the same name in it.
Contents and holes, modes, owners, times, extended attributes, access control lists, hard and
symbolic links and device nodes are kept. What cannot be is counted, and the exit code is 8.

Example: pando import ~/src/project grove.img:/project"
)]
pub struct Args {
    /// A directory or file of the host
    dir: PathBuf,
    /// Where it goes
    #[arg(value_name = "IMAGE:/PATH")]
    to: ImagePath,
}

pub fn run(args: &Args) -> Result<()> {
    let stop = super::interrupt_flag()?;
    let image = image::canonical(&args.to.image)?;
    let from = HostTree::new(&args.dir);
    let total = tree::count(&from, Path::new(""), &Progress::new("counting", 0, stop.clone()))?;
    let fs = image::open(&image, MountOptions::default())?;
    let progress = Progress::new("importing", total.bytes, stop);
    let copied = copy::copy(&from, &Image::new(&fs, &args.to.path), &progress);
    drop(progress);
    close(&fs, &args.to)?;
    let (count, not_kept) =
        copied.with_context(|| format!("import {} to {}", args.dir.display(), args.to))?;
    not_kept.say();
    super::print(&summary(&args.to, &count))?;
    Ok(not_kept.into_result(&args.to)?)
}

/// What an import or export tells at its end.
pub fn summary(place: &dyn std::fmt::Display, count: &Count) -> String {
    let linked = match count.linked {
        0 => String::new(),
        n => format!(" ({n} of them hard links)"),
    };
    format!("{place}: {} files{linked}, {} directories, {}\n", count.files, count.dirs, show(count.bytes))
}

/// Closes what an import or export has opened; also after a failure, so that the log need not
/// be replayed.
pub fn close(fs: &Fs, place: &ImagePath) -> Result<()> {
    fs.close().with_context(|| format!("closing {}", place.image.display()))
}
