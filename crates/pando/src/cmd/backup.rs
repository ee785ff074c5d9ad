//! `pando backup`: everything in an image as one stream.

use std::{
    fs::{File, OpenOptions, Permissions},
    io::{self, IsTerminal, Write},
    os::{
        fd::AsFd,
        unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_db::{BackupReport, device::FileDevice};
use rustix::io::Errno;
use tempfile::{Builder, NamedTempFile};

use crate::{
    exit::{self, Coded},
    image,
    size::show,
    tree::Progress,
};

/// Write everything in an image into a file or a pipe, from which restore makes it anew
#[derive(clap::Args)]
#[command(
    after_help = "The image must not be mounted. The stream is checked as a whole when it is restored, and
does not depend on the sizes of the image and its nodes. Data that clones share is written once for each of them.
What cannot be read is left out and listed, and the exit code is 3.

With --force the new backup is made beside FILE and takes its place, with its owner and mode, when
it is whole and durable: whatever goes wrong, FILE is the old one until then, and there has to be
room for both. (A device or a pipe is written to at once, and a device is durable at the end.) IMAGE
itself, and an image that is in use, is not overwritten.

Examples: pando backup grove.img grove.backup
          pando backup grove.img - | ssh host pando restore --size 100G - grove.img"
)]
pub struct Args {
    /// Replace FILE
    #[arg(long)]
    force: bool,
    /// A file or block device made by mkfs
    image: PathBuf,
    /// A new file, or - for stdout
    file: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let stop = super::interrupt_flag()?;
    let path = image::canonical(&args.image)?;
    let fail = || format!("backup {} to {}", args.image.display(), args.file.display());
    let (db, _) = image::open_store(&path)?;
    let work = |out: &mut dyn Write| -> Result<BackupReport> {
        let progress = Progress::new("writing", 0, stop);
        let around = |(from, to): (&[u8], Option<&[u8]>), error: pando_db::Error| {
            let to = to.map_or("the end".into(), |to| format!("before {}", pando_fs::describe_key(to)));
            crate::exit::tell!("not in the backup: from {} to {to}: {error}", pando_fs::describe_key(from));
            Ok(())
        };
        Ok(db.snapshot().backup_around(Counted { inner: out, progress: &progress }, around)?)
    };
    if args.file.as_os_str() == "-" {
        let mut out = io::stdout().lock();
        if out.is_terminal() {
            bail!("{}: stdout is a terminal; give a file, or a pipe behind it", fail());
        }
        let report = work(&mut out).with_context(fail)?;
        out.flush().map_err(Into::into).and_then(|()| sync(&out)).with_context(fail)?;
        return whole(args, &report);
    }
    let mut target = Target::open(args, &path).with_context(fail)?;
    let report = match work(target.file()) {
        Ok(report) => report,
        Err(e) => {
            target.discard();
            return Err(e).with_context(fail);
        }
    };
    target.keep().with_context(fail)?;
    super::print(&format!(
        "{}: {} pairs, {} in {}\n",
        args.file.display(),
        report.pairs,
        show(report.bytes),
        show(report.stream_bytes)
    ))?;
    whole(args, &report)
}

/// Where a backup is written.
enum Target {
    /// A new file, and its path. It is removed after a failure, so that it is not taken for a backup.
    New(File, PathBuf),
    /// A pipe or a device; for a device also the lock that keeps other programs from it.
    Stream(File, Option<FileDevice>),
    /// A new file beside an old one, which it replaces when it is complete.
    Beside { new: NamedTempFile, old: PathBuf, held: FileDevice },
}

impl Target {
    /// `image`: what is backed up, whose path is canonical, and which is open.
    fn open(args: &Args, image: &Path) -> Result<Target> {
        let found = if args.force { args.file.metadata() } else { Err(io::ErrorKind::NotFound.into()) };
        let found = match found {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Self::new_file(args),
            found => found?,
        };
        let is_device = found.file_type().is_block_device();
        if !found.is_file() && !is_device {
            return Ok(Target::Stream(OpenOptions::new().write(true).open(&args.file)?, None));
        }
        let old = image::canonical(&args.file)?;
        if image::is_same(image, &old) {
            bail!("{} is the image itself", args.file.display());
        }
        // The old file may be another image: it is not overwritten while it is in use, and is locked meanwhile.
        let held = image::once_closed(&old, || FileDevice::open(&old, false))??;
        if is_device {
            return Ok(Target::Stream(OpenOptions::new().write(true).open(&old)?, Some(held)));
        }
        let dir = old.parent().unwrap_or(Path::new("/"));
        let new = Builder::new().prefix(".pando-backup-").tempfile_in(dir);
        let new = new.with_context(|| format!("a new file beside {}", old.display()))?;
        Ok(Target::Beside { new, old, held })
    }

    fn new_file(args: &Args) -> Result<Target> {
        // A link that leads nowhere is filled with a file.
        let is_link = args.force && args.file.is_symlink();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).create_new(!is_link);
        let file = match options.open(&args.file) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                bail!("{} exists; give --force to overwrite it", args.file.display())
            }
            other => other?,
        };
        Ok(Target::New(file, image::canonical(&args.file)?))
    }

    fn file(&mut self) -> &mut File {
        match self {
            Target::New(file, _) | Target::Stream(file, _) => file,
            Target::Beside { new, .. } => new.as_file_mut(),
        }
    }

    /// Keeps the backup, which is complete.
    fn keep(self) -> Result<()> {
        match self {
            Target::New(file, path) => {
                file.sync_all().inspect_err(|_| _ = std::fs::remove_file(path))?;
            }
            Target::Stream(file, held) => {
                sync(&file)?;
                drop(held);
            }
            Target::Beside { new, old, held } => {
                let was = old.metadata()?;
                // A caller that may not give it to its owner keeps it.
                let _ = std::os::unix::fs::fchown(new.as_file(), Some(was.uid()), Some(was.gid()));
                new.as_file().set_permissions(Permissions::from_mode(was.mode() & 0o777))?;
                new.as_file().sync_all()?;
                new.persist(&old)?;
                drop(held);
                File::open(old.parent().unwrap_or(Path::new("/")))?.sync_all()?;
            }
        }
        Ok(())
    }

    /// Removes what was written of an incomplete backup. A file beside an old one removes itself.
    fn discard(self) {
        if let Target::New(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Makes durable what was written, where that can be done. A device keeps written data in memory, and reports only to a
/// sync whether it could be stored. Pipes, sockets and terminals have nothing to sync.
fn sync(out: impl AsFd) -> Result<()> {
    match rustix::fs::fsync(out) {
        Err(Errno::INVAL | Errno::ROFS | Errno::NOTSUP) => Ok(()),
        done => Ok(done?),
    }
}

/// Damage, if something could not be read: what the backup holds is good, and it does not hold all.
fn whole(args: &Args, report: &BackupReport) -> Result<()> {
    match report.skipped {
        0 => Ok(()),
        n => {
            let what = format!(
                "{}: {n} ranges of keys could not be read and are not in the backup",
                args.image.display()
            );
            Err(Coded(exit::DAMAGE, what).into())
        }
    }
}

/// A writer or reader that moves a progress bar, and fails once the work is to stop.
pub struct Counted<'a, T> {
    pub inner: T,
    pub progress: &'a Progress,
}

impl<T> Counted<'_, T> {
    fn advance(&self, bytes: usize) -> io::Result<()> {
        self.progress.advance(bytes as u64).map_err(io::Error::other)
    }
}

impl<T: Write> Write for Counted<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.advance(n).map(|()| n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: io::Read> io::Read for Counted<'_, T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(bytes)?;
        self.advance(n).map(|()| n)
    }
}
