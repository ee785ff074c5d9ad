//! `pando check`: verifies an image that is not mounted, and says what is hit.
//!
//! Three looks, from the bottom up: the engine's structure with every checksum, the file system's invariants key by
//! key, and every name and attribute by path. If the first two have found anything, the last one reads the content of
//! all files as well, so that a path is said for whatever cannot be read.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::Result;
use pando_db::device::Device;
use pando_fs::{FileKind, Fs, MountOptions};
use pando_fuse::DirectIo;
use serde::Serialize;

use crate::{
    exit::{self, Coded},
    image,
    report::VERSION,
    size::show,
    tree::{self, Piece, Progress, View, image::Image},
};

/// Verify the checksums of an image, its tree and its space, and the files in it
#[derive(clap::Args)]
#[command(
    after_help = "Verified are: the checksum of every node, page, extent directory and page of the table; the order and
the ranges of keys and messages; heights and reference counts; who owns which space; and in the file system records,
link counts, inode numbers, blocks, accounts, snapshots and forks. The superblock and the log are verified as the image
is opened, and then what would repair the log. What a crash may have left as well is a note, and no damage. That data is
what was once written is known by its checksum only.

The image must not be mounted. The exit code is 0 only if it is clean, 3 if damage was found, 2 if
IMAGE is no image of a file system (or one of a format that this program does not know).

Example: pando check --json grove.img"
)]
pub struct Args {
    /// Print JSON, with a version of its format
    #[arg(long)]
    json: bool,
    /// A file or block device made by mkfs
    image: PathBuf,
}

/// Something that is not as it must be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What is wrong.
    pub what: String,
    /// The path that is hit, if it is known.
    pub path: Option<String>,
}

/// What a check saw.
#[derive(Debug, Clone, Default, Serialize)]
#[allow(missing_docs)] // the names are part of the format
pub struct CheckReport {
    pub version: u32,
    pub clean: bool,
    pub errors: Vec<Finding>,
    pub notes: Vec<String>,
    pub nodes: u64,
    pub node_bytes: u64,
    pub directories: u64,
    pub files: u64,
    pub file_bytes: u64,
}

pub fn run(args: &Args) -> Result<()> {
    image(&args.image, args.json, super::INTERRUPTED)
}

/// Checks `image`, prints what was found, and fails with [`exit::DAMAGE`] if there is any. An interruption ends the
/// program with the exit code `interrupted`.
pub fn image(image: &Path, json: bool, interrupted: u8) -> Result<()> {
    super::end_when_interrupted(interrupted)?;
    let path = image::canonical(image)?;
    let device = image::open_device(&path, true, DirectIo::Auto)?;
    let mut report = CheckReport { version: VERSION, ..CheckReport::default() };
    let progress = Progress::new("checking", 0, Arc::default());
    // Whatever is left is looked at; what is lost is an error.
    let options = MountOptions::default().read_only(true).salvage(true);
    contents(device, options, &path, &mut report, &progress)?;
    drop(progress);
    report.clean = report.errors.is_empty();
    if json {
        super::print_json(&report)?;
    } else {
        super::print(&text(&report))?;
    }
    match report.errors.len() {
        0 => Ok(()),
        n => Err(Coded(exit::DAMAGE, format!("{}: {n} errors", image.display())).into()),
    }
}

/// The engine's checksums and invariants, with the keys that each finding hits as paths.
fn structure(fs: &Fs, report: &mut CheckReport) {
    let found = match fs.db().check() {
        Ok(found) => found,
        Err(e) => {
            report.errors.push(Finding { what: e.to_string(), path: None });
            return;
        }
    };
    report.notes = found.notes;
    report.nodes = found.nodes;
    report.node_bytes = found.bytes;
    for finding in found.findings {
        let path = finding.keys.as_ref().map(|(lo, hi)| {
            let from = pando_fs::describe_key(lo);
            match hi {
                Some(hi) => format!("from {from} to before {}", pando_fs::describe_key(hi)),
                None => format!("from {from} on"),
            }
        });
        report.errors.push(Finding { what: finding.what, path });
    }
}

/// The three looks at an image, which is opened with such `options`.
fn contents(
    device: Arc<dyn Device>,
    options: MountOptions,
    image: &Path,
    report: &mut CheckReport,
    progress: &Progress,
) -> Result<()> {
    let fs = match Fs::open(device, options) {
        Ok(fs) => fs,
        // This is no image, so there is no damage to report. A damaged superblock is distinguished from none.
        Err(e @ (pando_fs::Error::Format(_) | pando_fs::Error::Engine(pando_db::Error::Format(_)))) => {
            return Err(Coded(exit::USAGE, format!("{}: cannot be checked: {e}", image.display())).into());
        }
        Err(e) => {
            report.errors.push(Finding { what: e.to_string(), path: None });
            return Ok(());
        }
    };
    structure(&fs, report);
    let mut problems = Vec::new();
    let checked = fs.check(|problem| problems.push(problem.to_owned()));
    report.errors.extend(problems.into_iter().map(|what| Finding { what, path: None }));
    if let Err(e) = checked {
        report.errors.push(Finding { what: e.to_string(), path: None });
    }
    let with_content = !report.errors.is_empty();
    let walked = walk(&fs, with_content, report, progress);
    if let Err(e) = fs.close() {
        report.errors.push(Finding { what: format!("closing: {e}"), path: None });
    }
    walked
}

/// Notes what cannot be read by path: names and attributes, and content if that is asked for.
fn walk(fs: &Fs, with_content: bool, report: &mut CheckReport, progress: &Progress) -> Result<()> {
    let view = Image::new(fs, Path::new("/"));
    let mut buf = vec![0; tree::CHUNK_BYTES];
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        progress.at(&dir)?;
        report.directories += 1;
        let entries = match view.list(&dir) {
            Ok(entries) => entries,
            Err(e) => {
                note(report, &view, &dir, &e);
                continue;
            }
        };
        for (name, meta) in entries {
            let path = dir.join(name);
            let checked = match meta.kind {
                FileKind::Directory => {
                    todo.push(path);
                    continue;
                }
                FileKind::Regular if with_content => read_all(&view, &path, &mut buf, progress),
                FileKind::Regular => Ok(meta.size),
                FileKind::Symlink => view.readlink(&path).map(|_| 0),
                _ => Ok(0),
            };
            report.files += 1;
            match checked {
                Ok(bytes) => report.file_bytes += bytes,
                Err(e) => note(report, &view, &path, &e),
            }
        }
    }
    Ok(())
}

fn read_all(view: &Image<'_>, path: &Path, buf: &mut [u8], progress: &Progress) -> Result<u64> {
    let mut reader = view.open(path)?;
    let mut bytes = 0;
    loop {
        match reader.next(buf)? {
            Piece::Data(n) => bytes += n as u64,
            Piece::Hole(n) => bytes += n,
            Piece::End => return Ok(bytes),
        }
        progress.advance(0)?;
    }
}

fn note(report: &mut CheckReport, view: &Image<'_>, path: &Path, e: &anyhow::Error) {
    let what = e.root_cause().to_string();
    report.errors.push(Finding { what, path: Some(View::show(view, path)) });
}

fn text(report: &CheckReport) -> String {
    let mut out = String::new();
    for e in &report.errors {
        out += &match &e.path {
            Some(path) => format!("{path}: {}\n", e.what),
            None => format!("{}\n", e.what),
        };
    }
    for note in &report.notes {
        out += &format!("note: {note}\n");
    }
    out + &format!(
        "{} directories, {} files, {}: {}\n",
        report.directories,
        report.files,
        show(report.file_bytes),
        if report.errors.is_empty() { "clean".to_owned() } else { format!("{} errors", report.errors.len()) }
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::ffi::OsStr;

    use pando_db::device::MemDevice;
    use pando_fs::{Caller, FormatOptions, ROOT};

    use super::*;

    /// Content was read three times: by the engine, key by key, and by path.
    #[test]
    fn content_of_a_sound_image_is_read_twice() {
        const FILES: usize = 20;
        const FILE_BYTES: usize = 1 << 20;
        let device = Arc::new(MemDevice::new(128 << 20));
        Fs::format(device.clone(), &FormatOptions::default().node_size(128 << 10)).unwrap();
        let fs = Fs::open(device.clone(), MountOptions::default()).unwrap();
        let (me, mut noise) = (Caller::root(), 1u64);
        for i in 0..FILES {
            let name = format!("file{i}");
            let (file, handle) = fs.create(&me, ROOT, OsStr::new(&name), 0o644, libc::O_RDWR).unwrap();
            let data: Vec<u8> = std::iter::repeat_with(|| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (noise >> 56) as u8
            })
            .take(FILE_BYTES)
            .collect();
            fs.write(handle, file.ino, 0, &data, false).unwrap();
            fs.release(file.ino, handle);
            fs.forget(file.ino, 1);
        }
        fs.close().unwrap();
        drop(fs);
        let before = device.stats().read_bytes;
        // The cache holds none of it until the next look.
        let options = MountOptions::default().read_only(true).cache_bytes(2 << 20);
        let mut report = CheckReport::default();
        contents(device.clone(), options, Path::new("image"), &mut report, &Progress::none()).unwrap();
        let read = device.stats().read_bytes - before;
        assert_eq!((&report.errors[..], report.files), (&[][..], FILES as u64));
        assert_eq!(report.file_bytes, (FILES * FILE_BYTES) as u64);
        println!("{read} bytes read for {} of nodes", report.node_bytes);
        assert!(read < report.node_bytes * 5 / 2, "{read} bytes read for {} of nodes", report.node_bytes);
        assert!(read > report.node_bytes, "vacuous: {read} bytes read for {} of nodes", report.node_bytes);
    }
}
