//! `pando ls`: what is in a directory of an image that is not mounted.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

use anyhow::{Context, Result};
use pando_fs::{FileKind, Fs};

use crate::{
    exit,
    image::ImagePath,
    offline,
    tree::{Meta, View, image::Image},
};

/// List directories of an image that is not mounted
#[derive(clap::Args)]
#[command(
    after_help = "Names are printed as they are, one a line, in the order of their bytes, hidden ones too. With -l: kind
and permissions, number of names, owner, group, size, time of the last change in UTC.

Example: pando ls -l grove.img:/project"
)]
pub struct Args {
    /// Show permissions, owners, sizes and times
    #[arg(short = 'l')]
    long: bool,
    /// Go down into directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// The directory itself, not what is in it
    #[arg(short = 'd', long)]
    directory: bool,
    /// Files or directories
    #[arg(value_name = "IMAGE:/PATH", required = true)]
    places: Vec<ImagePath>,
}

pub fn run(args: &Args) -> Result<()> {
    exit::each(&args.places, |place| {
        let listed = offline::with(place, true, |fs| list(args, fs, &place.path));
        listed.with_context(|| format!("ls {place}"))
    })
}

fn list(args: &Args, fs: &Fs, top: &Path) -> Result<()> {
    let view = Image::new(fs, top);
    let meta = view.meta(Path::new(""))?;
    if meta.kind != FileKind::Directory || args.directory {
        return super::print_bytes(&line(args, &view, Path::new(""), top.as_os_str(), &meta)?);
    }
    let mut todo = vec![Path::new("").to_owned()];
    let mut first = true;
    while let Some(dir) = todo.pop() {
        let mut out = Vec::new();
        if args.places.len() > 1 || args.recursive {
            if !std::mem::take(&mut first) {
                out.push(b'\n');
            }
            out.extend_from_slice(top.join(&dir).as_os_str().as_bytes());
            out.extend_from_slice(b":\n");
        }
        let mut entries = view.list(&dir)?;
        entries.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (name, meta) in &entries {
            out.extend(line(args, &view, &dir.join(name), name, meta)?);
        }
        super::print_bytes(&out)?;
        let below =
            entries.into_iter().filter(|(_, meta)| args.recursive && meta.kind == FileKind::Directory);
        todo.extend(below.rev().map(|(name, _)| dir.join(name)));
    }
    Ok(())
}

fn line(args: &Args, view: &Image<'_>, path: &Path, name: &OsStr, meta: &Meta) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    if args.long {
        let size = match meta.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                format!("{},{}", rustix::fs::major(meta.rdev), rustix::fs::minor(meta.rdev))
            }
            _ => meta.size.to_string(),
        };
        let seconds = meta.mtime.secs;
        let time = jiff::Timestamp::from_second(seconds)
            .map_or_else(|_| seconds.to_string(), |time| time.strftime("%F %T").to_string());
        let mode = offline::mode_text(meta.kind, meta.perm);
        let text = format!("{mode} {:>3} {:>5} {:>5} {size:>12} {time} ", meta.nlink, meta.uid, meta.gid);
        out.extend_from_slice(text.as_bytes());
    }
    out.extend_from_slice(name.as_bytes());
    if args.long && meta.kind == FileKind::Symlink {
        out.extend_from_slice(b" -> ");
        out.extend_from_slice(view.readlink(path)?.as_bytes());
    }
    out.push(b'\n');
    Ok(out)
}
