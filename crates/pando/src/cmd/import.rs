//! `pando import`: copies a tree of the host into an image, without a mount.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pando_fs::{Fs, MountOptions};

use crate::{
    image::{self, ImagePath},
    size::show,
    tree::{self, Progress, host::Host, image::Image},
};

/// Copy a tree into an image without mounting it
#[derive(clap::Args)]
#[command(
    after_help = "PATH may be new, or a directory (like / of a new image) with nothing of the same name in it.
Contents, modes, owners, times, links and device nodes are kept; hard links become files
of their own.

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
    let from = Host::new(&args.dir);
    let total = tree::count(&from, Path::new(""), &Progress::new("counting", 0, stop.clone()))?;
    let fs = image::open(&image, MountOptions::default())?;
    let progress = Progress::new("importing", total.bytes, stop);
    let copied = tree::copy(&from, &Image::new(&fs, &args.to.path), &progress);
    drop(progress);
    close(&fs, &args.to)?;
    let count = copied.with_context(|| format!("import {} to {}", args.dir.display(), args.to))?;
    if count.linked > 0 {
        eprintln!("pando: {} hard-linked files were copied as files of their own", count.linked);
    }
    super::print(&format!(
        "{}: {} files, {} directories, {}\n",
        args.to,
        count.files,
        count.dirs,
        show(count.bytes)
    ))
}

/// Closes what an import or export has opened; also after a failure, so that the log need not
/// be replayed.
pub fn close(fs: &Fs, place: &ImagePath) -> Result<()> {
    fs.close().with_context(|| format!("closing {}", place.image.display()))
}
