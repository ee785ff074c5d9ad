//! `pando mkfs`: makes a file system.

use std::{
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use pando_db::device::{Device, FileDevice};
use pando_fs::{FormatOptions, Fs};

use crate::{
    exit::{self, Coded},
    image,
    size::{Size, show},
};

/// Size of a new image if none is given, bytes.
const DEFAULT_SIZE: u64 = 16 << 30;
/// Smallest image that has room for a log and a tree, bytes.
const MIN_SIZE: u64 = 4 << 20;

/// Make a file system in a file or on a block device
#[derive(clap::Args)]
#[command(
    after_help = "Label and UUID are shown by pando info, and by lsblk and /dev/disk/by-* where the udev rule of
pando install is in place. SIZE is a number of bytes, or a number with K, M, G, T, P or E behind it:
powers of 1024, or of 1000 as KB, MB and so on.

Examples: pando mkfs --size 100G grove.img
          pando mkfs -L grove /dev/vg/grove"
)]
pub struct Args {
    /// Size of the file system. A file takes space on the disk only as it fills. Default: the size
    /// of an existing file or device, 16G for a new file
    #[arg(long)]
    size: Option<Size>,
    /// Size that nodes of the tree are meant to have, 4K to 16M. Default: 1M, less if the file system is smaller than
    /// 1G
    #[arg(long, value_name = "SIZE")]
    node_size: Option<Size>,
    /// Size of the redo log. Default: 1/16 of the size, but at least 1M and at most 64M
    #[arg(long, value_name = "SIZE")]
    log_size: Option<Size>,
    /// A name for people, at most 64 bytes. Default: none
    #[arg(long, short = 'L', default_value = "", hide_default_value = true, value_parser = label)]
    label: String,
    /// Identity, as 123e4567-e89b-42d3-a456-426614174000. Default: a random one
    #[arg(long, short = 'U', value_parser = crate::uuid::parse)]
    uuid: Option<[u8; 16]>,
    /// Overwrite what is there
    #[arg(long)]
    force: bool,
    /// A file (made if missing) or a block device
    image: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    if let Some(node_size) = args.node_size
        && !(4 << 10..=16 << 20).contains(&node_size.0)
    {
        bail!("--node-size {}: must be between 4K and 16M", show(node_size.0));
    }
    let target = device(&args.image, args.size, args.force)?;
    let size = target.device.size();
    let node_size = args.node_size.map_or_else(|| default_node_size(size), |s| s.0);
    let mut options = FormatOptions::default()
        .node_size(u32::try_from(node_size)?)
        .label(&args.label)
        .uuid(args.uuid.map_or_else(crate::uuid::random, Ok)?)
        .root_uid(rustix::process::geteuid().as_raw())
        .root_gid(rustix::process::getegid().as_raw());
    options.log_size = args.log_size.map(|size| size.0);
    if let Err(e) = Fs::format(target.device.clone(), &options) {
        target.discard();
        return Err(e).with_context(|| format!("{}", args.image.display()));
    }
    super::print(&format!("{}: {}, nodes of {}\n", args.image.display(), show(size), show(node_size)))
}

/// Where a new store goes.
pub struct NewImage {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The file that was made for it.
    made: Option<PathBuf>,
}

impl NewImage {
    /// Removes the file again, if it was made for this.
    pub fn discard(self) {
        if let Some(path) = self.made {
            // The error that led here is the one to tell.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Opens `image` for a new store, making a file that is missing. What holds data is refused unless `force`.
pub fn device(image: &Path, size: Option<Size>, force: bool) -> Result<NewImage> {
    let existing = std::fs::metadata(image).ok();
    let block_device = existing.as_ref().is_some_and(|m| m.file_type().is_block_device());
    match &existing {
        Some(m) if m.is_dir() => {
            bail!("{}: is a directory; name a file, which is made, or a block device", image.display())
        }
        Some(m) if !m.is_file() && !block_device => {
            bail!("{}: is neither a file nor a block device", image.display())
        }
        _ => {}
    }
    let size = match (size, &existing) {
        (Some(size), _) => size.0,
        (None, _) if block_device => 0,
        (None, Some(m)) if m.len() > 0 => m.len(),
        _ => DEFAULT_SIZE,
    };
    // 0: all of a block device.
    if size < MIN_SIZE && !(block_device && size == 0) {
        bail!(
            "{}: {} is too small; a file system needs at least {}",
            image.display(),
            show(size),
            show(MIN_SIZE)
        );
    }
    let make = || FileDevice::create(image, size, force);
    let made = match &existing {
        None => make(),
        Some(_) => {
            let path = image::canonical(image)?;
            if let Some(dir) = image::mounted_on(&path)? {
                let text = format!("{}: is mounted on {}; unmount it first", image.display(), dir.display());
                return Err(Coded(exit::BUSY, text).into());
            }
            image::once_closed(&path, make)?
        }
    };
    let device = match made {
        // Direct I/O, so that the restored data does not displace other data in the page cache.
        Ok(device) => Arc::new(device.with_direct_io()),
        Err(pando_db::Error::Invalid(why)) if !force => {
            bail!("{why}; give --force if what it holds may be lost")
        }
        Err(e) => return Err(e).with_context(|| format!("{}", image.display())),
    };
    Ok(NewImage { device, made: existing.is_none().then(|| image.to_owned()) })
}

/// About a thousandth of the size: what is kept back for deletes and checkpoints is counted in nodes,
/// and must stay a small part of a small file system.
fn default_node_size(size: u64) -> u64 {
    (size / 1024).next_power_of_two().clamp(64 << 10, 1 << 20)
}

/// A label that the superblock has room for, and that a line of a listing can show.
fn label(text: &str) -> Result<String, String> {
    match text.len() > 64 || text.chars().any(char::is_control) {
        true => Err("at most 64 bytes, none of them a control character".into()),
        false => Ok(text.to_owned()),
    }
}
