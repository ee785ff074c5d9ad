//! `pando du`: what files and trees take, and what of it is theirs alone.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use pando_fs::MountOptions;
use pando_fuse::{control::Usage, tool};
use serde::Serialize;

use crate::{
    cmd::past,
    exit,
    image::{self, ImagePath},
    offline,
    report::VERSION,
    size::show,
};

/// Show what files and trees take, and what of it they share with clones
#[derive(clap::Args)]
#[command(
    after_help = "Total is what is kept for PATH on the device: what is exclusive would come back if PATH were
removed, what is shared is needed elsewhere too. Visible is what can be read there, before
compression. Nodes that are kept for PATH and its neighbours together make the figures of small
trees an estimate; they are best some seconds after the last change. Of a directory with more than
16,384 files that have several names, all such files of its clone are counted. PATH must be
readable, and so must be every directory in it, unless you are root. PATH@SNAPSHOT is what PATH was in
a snapshot.

Examples: pando du -H /mnt/grove/project /mnt/grove/experiment
          pando du --json grove.img:/project"
)]
pub struct Args {
    /// Print sizes for people: 1.5 GiB
    #[arg(short = 'H', long)]
    human: bool,
    /// Print JSON, with a version of its format
    #[arg(long)]
    json: bool,
    /// Files or directories in a mounted file system, or IMAGE:/PATH in one that is not mounted
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

#[derive(Serialize)]
struct DuReport {
    version: u32,
    paths: Vec<DuLine>,
}

#[derive(Serialize)]
struct DuLine {
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    total: u64,
    exclusive: u64,
    shared: u64,
    visible: u64,
    /// How much of `exclusive` is an estimate.
    estimated: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let mut paths = Vec::new();
    let all = exit::each(&args.paths, |path| {
        let fail = || format!("du {}", path.display());
        // What is to be found in an image is looked for there.
        let inside = offline::place(path).is_some();
        let path = &if inside { path.clone() } else { past::place(path).with_context(fail)? };
        let u = usage(path).with_context(fail)?;
        paths.push(DuLine {
            path: path.display().to_string(),
            path_hex: super::hex_unless_text(path),
            total: u.stored,
            exclusive: u.exclusive,
            shared: u.shared,
            visible: u.visible,
            estimated: u.estimated,
        });
        Ok(())
    });
    if args.json {
        super::print_json(&DuReport { version: VERSION, paths })?;
    } else if !paths.is_empty() {
        super::print(&text(&paths, args.human))?;
    }
    all
}

fn usage(path: &Path) -> Result<Usage> {
    // What exists is meant as it is, even if its name looks like a place in an image.
    match (std::fs::symlink_metadata(path), ImagePath::parse(path.as_os_str())) {
        (Err(_), Ok(inside)) => usage_inside(&inside),
        (Err(e), _) => Err(e.into()),
        (Ok(_), _) => Ok(tool::usage(path)?),
    }
}

fn usage_inside(place: &ImagePath) -> Result<Usage> {
    let image = image::canonical(&place.image)?;
    let options = MountOptions::default().read_only(true).background(false);
    let fs = image::open(&image, options)?;
    let usage = fs.usage_of_path(&place.path);
    super::import::close(&fs, place)?;
    Ok((&usage?).into())
}

fn text(lines: &[DuLine], human: bool) -> String {
    let size = |bytes: u64| if human { show(bytes) } else { bytes.to_string() };
    let mut out = format!("{:>12} {:>12} {:>12} {:>12}  Path\n", "Total", "Exclusive", "Shared", "Visible");
    for line in lines {
        out += &format!(
            "{:>12} {:>12} {:>12} {:>12}  {}\n",
            size(line.total),
            size(line.exclusive),
            size(line.shared),
            size(line.visible),
            super::field(&line.path, false)
        );
    }
    out
}
