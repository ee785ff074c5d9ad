//! `pando cat`: the content of files of an image that is not mounted.

use std::path::Path;

use anyhow::{Context, Result, bail};
use pando_fs::{FileKind, Fs};

use crate::{
    exit,
    image::ImagePath,
    offline,
    tree::{CHUNK_BYTES, Piece, View, image::Image},
};

/// Print files of an image that is not mounted
#[derive(clap::Args)]
#[command(after_help = "Symbolic links are not followed.

Example: pando cat grove.img:/project/Makefile")]
pub struct Args {
    /// Files
    #[arg(value_name = "IMAGE:/PATH", required = true)]
    places: Vec<ImagePath>,
}

pub fn run(args: &Args) -> Result<()> {
    exit::each(&args.places, |place| {
        let done = offline::with(place, true, |fs| print(fs, &place.path));
        done.with_context(|| format!("cat {place}"))
    })
}

fn print(fs: &Fs, path: &Path) -> Result<()> {
    let view = Image::new(fs, path);
    let top = Path::new("");
    if view.meta(top)?.kind != FileKind::Regular {
        bail!("is not a regular file");
    }
    let mut reader = view.open(top)?;
    let mut buf = vec![0; CHUNK_BYTES];
    loop {
        match reader.next(&mut buf)? {
            Piece::Data(n) => super::print_bytes(buf.get(..n).unwrap_or_default())?,
            Piece::Hole(mut n) => {
                let zeros = vec![0; CHUNK_BYTES];
                while n > 0 {
                    let now = n.min(CHUNK_BYTES as u64);
                    super::print_bytes(zeros.get(..now as usize).unwrap_or_default())?;
                    n -= now;
                }
            }
            Piece::End => return Ok(()),
        }
    }
}
