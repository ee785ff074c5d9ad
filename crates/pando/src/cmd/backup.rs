//! `pando backup`: everything in an image as one stream.

use std::{
    fs::{File, OpenOptions},
    io::{self, IsTerminal, Write},
    path::PathBuf,
};

use anyhow::{Context, Result, bail};
use pando_db::BackupReport;

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

Examples: pando backup grove.img grove.backup
          pando backup grove.img - | ssh host pando restore --size 100G - grove.img"
)]
pub struct Args {
    /// Overwrite FILE
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
        return whole(args, &work(&mut out).with_context(fail)?);
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(!args.force).create(true).truncate(args.force);
    let mut file: File = match options.open(&args.file) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            bail!("{} exists; give --force to overwrite it", args.file.display())
        }
        other => other.with_context(fail)?,
    };
    let done = work(&mut file).and_then(|report| {
        // A device or pipe cannot be synced, and need not be.
        if file.metadata()?.is_file() {
            file.sync_all()?;
        }
        Ok(report)
    });
    let report = match done {
        Ok(report) => report,
        Err(e) => {
            // What is there is no backup; nobody should take it for one.
            if file.metadata().is_ok_and(|meta| meta.is_file()) {
                let _ = std::fs::remove_file(&args.file);
            }
            return Err(e).with_context(fail);
        }
    };
    super::print(&format!(
        "{}: {} pairs, {} in {}\n",
        args.file.display(),
        report.pairs,
        show(report.bytes),
        show(report.stream_bytes)
    ))?;
    whole(args, &report)
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
