//! `pando export`: copies a tree out of an image, without a mount.

use std::{
    cell::Cell,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use pando_fs::MountOptions;

use crate::{
    exit::{self, Coded},
    image::{self, ImagePath},
    tree::{self, Progress, View, copy, host, host::HostTree, image::Image, lost::NotKept},
};

/// Copy a tree out of an image without mounting it
#[derive(clap::Args)]
#[command(
    after_help = "All that `pando import` keeps comes out again, as far as the host and the rights of the caller
allow: owners and device nodes need root. What could not be kept is counted, and the exit code
is 8; so is what somebody else put in the place of a directory meanwhile, which stays as it is.
What cannot be read is left out and listed by path (of a file: a hole stands for it), and the
exit code is 3.

Example: pando export grove.img:/project ~/src/project-copy"
)]
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
    let fs = image::open(&image, MountOptions::default().read_only(true))?;
    let lost = Cell::new(0);
    let work = || -> Result<(tree::Count, NotKept)> {
        let from = Image::new(&fs, &args.from.path);
        // An entry that cannot be counted is reported when it cannot be copied.
        let total = tree::count(&from, Path::new(""), &Progress::new("counting", 0, stop.clone()));
        let progress = Progress::new("exporting", total.map_or(0, |total| total.bytes), stop.clone());
        copy::copy_around(&from, &HostTree::new(&args.dir), &progress, &mut |path, error| {
            if path.as_os_str().is_empty() && from.meta(path).is_err() {
                return Err(error);
            }
            crate::exit::tell!("not exported whole: {}", exit::message(&error));
            lost.set(lost.get() + 1);
            Ok(())
        })
    };
    let copied = work();
    super::import::close(&fs, &args.from)?;
    let (count, not_kept) =
        copied.with_context(|| format!("export {} to {}", args.from, args.dir.display()))?;
    not_kept.say();
    super::print(&super::import::summary(&args.dir.display(), &count))?;
    match lost.get() {
        0 => Ok(not_kept.into_result(&args.from)?),
        n => Err(Coded(
            exit::DAMAGE,
            format!("{}: {n} files or directories could not be read whole", args.from),
        )
        .into()),
    }
}
