//! `pando export`: copies a tree out of an image, without a mount.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pando_fs::MountOptions;

use crate::{
    image::{self, ImagePath},
    size::show,
    tree::{self, Progress, host, host::Host, image::Image},
};

/// Copy a tree out of an image without mounting it
#[derive(clap::Args)]
#[command(after_help = "Owners and device nodes are kept only for root.

Example: pando export grove.img:/project ~/src/project-copy")]
pub struct Args {
    /// What to copy
    #[arg(value_name = "IMAGE:/PATH")]
    from: ImagePath,
    /// A new name, or an empty directory
    dir: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let stop = super::interrupt_flag()?;
    let image = image::canonical(&args.from.image)?;
    host::check_new_or_empty(&args.dir)?;
    let fs = image::open(&image, MountOptions { read_only: true, ..MountOptions::default() })?;
    let work = || -> Result<tree::Count> {
        let from = Image::new(&fs, &args.from.path);
        let total = tree::count(&from, Path::new(""), &Progress::new("counting", 0, stop.clone()))?;
        let progress = Progress::new("exporting", total.bytes, stop.clone());
        tree::copy(&from, &Host::new(&args.dir), &progress)
    };
    let copied = work();
    super::import::close(&fs, &args.from)?;
    let count = copied.with_context(|| format!("export {} to {}", args.from, args.dir.display()))?;
    super::print(&format!(
        "{}: {} files, {} directories, {}\n",
        args.dir.display(),
        count.files,
        count.dirs,
        show(count.bytes)
    ))
}
