//! `pando stats`: figures about a file system, mounted or not.

use std::path::PathBuf;

use anyhow::{Context, Result};
use pando_fs::MountOptions;
use pando_fuse::client;

use crate::{image, place, report::Stats};

/// Show sizes, nodes, log, cache, clone latencies and device traffic
#[derive(clap::Args)]
#[command(after_help = "Example: pando stats --json /mnt/grove")]
pub struct Args {
    /// Print JSON, with a version of its format
    #[arg(long)]
    json: bool,
    /// An image, or a directory where one is mounted
    #[arg(value_name = "IMAGE-or-DIR")]
    target: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let target = image::canonical(&args.target)?;
    let dir = if target.is_dir() { Some(target.clone()) } else { image::mounted_on(&target)? };
    let fail = || format!("stats {}", args.target.display());
    let stats = match dir {
        Some(dir) => {
            let text = client::stats(place::open_dir(&dir)?).with_context(fail)?;
            serde_json::from_str(&text)
                .context("the daemon is of another version than this program")
                .with_context(fail)?
        }
        None => {
            let options = MountOptions::default().read_only(true);
            let fs = image::open(&target, options)?;
            let stats = Stats::of(&fs, None);
            fs.close().with_context(fail)?;
            stats.with_context(fail)?
        }
    };
    if args.json { super::print_json(&stats) } else { super::print(&stats.text()) }
}
