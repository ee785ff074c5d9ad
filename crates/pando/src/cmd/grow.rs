//! `pando grow`: makes a file system larger, mounted or not.

use std::{
    fs::File,
    io::{Seek, SeekFrom},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fs::MountOptions;
use pando_fuse::{mountinfo, tool};

use crate::{
    image, place,
    size::{Size, show},
};

/// Make a file system larger, mounted or not
#[derive(clap::Args)]
#[command(after_help = "Examples: pando grow --size 200G /mnt/grove
          pando grow /dev/vg/grove     (after lvextend: to the size of the device)")]
pub struct Args {
    /// New size, a number of bytes, or with K, M, G, T, P or E behind it, as for pando mkfs. Default: the present size
    /// of the image file or device
    #[arg(long)]
    size: Option<Size>,
    /// An image, or a directory where one is mounted
    #[arg(value_name = "IMAGE-or-DIR")]
    target: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let target = image::canonical(&args.target)?;
    let fail = || format!("grow {}", args.target.display());
    let (image, dir) = if target.is_dir() {
        let mount = mountinfo::containing(&target)?.filter(|m| m.fstype == mountinfo::FSTYPE);
        let Some(mount) = mount else {
            bail!("{}: not in a mounted Pando file system", args.target.display());
        };
        (mount.source, Some(target))
    } else {
        let dir = image::mounted_on(&target)?;
        (target, dir)
    };
    let size = match args.size {
        Some(size) => size.0,
        None => size_of(&image).with_context(fail)?,
    };
    match dir {
        Some(dir) => {
            let dir = place::open_dir(&dir)?;
            tool::grow(&dir, size).with_context(fail)?;
        }
        None => {
            let fs = image::open(&image, MountOptions::default())?;
            let grown = fs.grow(size);
            fs.close().with_context(fail)?;
            grown.with_context(fail)?;
        }
    }
    super::print(&format!("{}: {}\n", args.target.display(), show(size)))
}

fn size_of(image: &Path) -> Result<u64> {
    Ok(File::open(image)?.seek(SeekFrom::End(0))?)
}
