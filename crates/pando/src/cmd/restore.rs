//! `pando restore`: an image from the stream of `pando backup`.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use pando_db::{Backup, BackupReport, CreateOptions, Merge, Options, PatchMerge};
use pando_fs::FsMerge;

use crate::cmd::{backup::Counted, mkfs};
use crate::{
    image, memory,
    size::{Size, show},
    tree::Progress,
};

/// Make an image from a backup
#[derive(clap::Args)]
#[command(
    after_help = "A stream that is damaged or was cut short is refused. Until the last byte is checked and
durable there is no file system on IMAGE, whatever happens; an image file that was new is removed.
IMAGE may not be the backup itself, by whatever name.

Example: pando restore --size 100G grove.backup grove.img"
)]
pub struct Args {
    /// Size of the new file system. Default: as for mkfs
    #[arg(long)]
    size: Option<Size>,
    /// Size that nodes of the tree are meant to have, 4K to 16M. Default: that of the image that was backed up
    #[arg(long, value_name = "SIZE")]
    node_size: Option<Size>,
    /// Size of the redo log. Default: 1/16 of the size, but at least 1M and at most 64M
    #[arg(long, value_name = "SIZE")]
    log_size: Option<Size>,
    /// Overwrite what is there
    #[arg(long)]
    force: bool,
    /// A file made by backup, or - for stdin
    file: PathBuf,
    /// A file (made if missing) or a block device
    image: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let stop = super::interrupt_flag()?;
    let fail = || format!("restore {} to {}", args.file.display(), args.image.display());
    let (reader, len): (Box<dyn Read>, u64) = match args.file.as_os_str() == "-" {
        true => (Box::new(io::stdin().lock()), 0),
        false => {
            let file = File::open(&args.file).with_context(|| format!("{}", args.file.display()))?;
            let len = file.metadata()?.len();
            (Box::new(file), len)
        }
    };
    let progress = Progress::new("restoring", len, stop);
    let reader = io::BufReader::with_capacity(1 << 20, Counted { inner: reader, progress: &progress });
    // Nothing is touched before the stream has shown to be a backup.
    let backup = Backup::open(reader).with_context(fail)?;
    let merges: [Arc<dyn Merge>; 2] = [Arc::new(FsMerge), Arc::new(PatchMerge)];
    let Some(merge) = merges.into_iter().find(|merge| merge.name() == backup.merge()) else {
        bail!("{}: it is a backup of another program's store ({})", fail(), backup.merge());
    };
    if args.image.exists() && image::is_same(&image::canonical(&args.image)?, read_from(args)) {
        bail!("{}: {} is the backup itself", fail(), args.image.display());
    }
    let device = mkfs::device(&args.image, args.size, args.force)?;
    let node_size = args.node_size.map_or(Ok(backup.node_size()), |size| u32::try_from(size.0))?;
    let mut create = CreateOptions::default().node_size(node_size);
    create.log_size = args.log_size.map(|size| size.0);
    let options = Options::default().cache_bytes(memory::command_cache_bytes()).merge(merge);
    let done = backup.restore(device.device.clone(), &create, &options);
    let report: BackupReport = match done {
        Ok(report) => report,
        Err(e) => {
            device.discard();
            return Err(e).with_context(fail);
        }
    };
    drop(progress);
    super::print(&format!(
        "{}: {} pairs, {} from {}\n",
        args.image.display(),
        report.pairs,
        show(report.bytes),
        show(report.stream_bytes)
    ))
}

/// A path to what is read.
fn read_from(args: &Args) -> &Path {
    if args.file.as_os_str() == "-" { Path::new("/proc/self/fd/0") } else { &args.file }
}
