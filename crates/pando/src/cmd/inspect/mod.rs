//! `pando inspect`: shows the DAG of an image as text, JSON or a picture.
//!
//! Opens the image read-only and changes nothing. What its log holds is applied
//! in memory first, so what is shown is what a mount would see. A node that
//! cannot be read is shown as such. The engine gives plain data
//! ([`pando_db::Db::inspect`]); `text`, `json` and `svg` only put it into a form.

mod fold;
mod json;
mod keys;
mod layout;
mod shapes;
mod style;
mod svg;
mod text;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use pando_db::{InspectOptions, Inspection};

use crate::{
    exit::{self, Coded},
    image,
};
use keys::Keys;

/// Show the nodes of an image, how they hang together and what is in them
#[derive(clap::Args)]
#[command(after_help = "The image must not be mounted. Text: a tree in which a node that is reached a second
time is named and not repeated. Keys of a file system are shown as paths: meta:/a/f is the
record of a file, data:/a/f[2] its third block, meta:/a/ what is in a directory. A picture is
folded where it would be wider than some 4,000 pixels: boxes count what has none of its own.
The exit code is 3 if something could not be read.

Examples: pando inspect grove.img
          pando inspect --node 17 --depth 1 --keys grove.img
          pando inspect --svg grove.svg --limit 50 grove.img")]
pub struct Args {
    /// Print JSON, with a version of its format
    #[arg(long, conflicts_with = "svg")]
    json: bool,
    /// Draw a picture into FILE (- for stdout)
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Steps down from the first node that are shown. Default: all
    #[arg(long, value_name = "N")]
    depth: Option<usize>,
    /// The node to begin with. Default: the root
    #[arg(long, value_name = "ID")]
    node: Option<u64>,
    /// Most nodes that are shown
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
    /// List the pairs and messages of every page
    #[arg(long)]
    keys: bool,
    /// A file or block device made by mkfs
    image: PathBuf,
}

pub fn run(args: &Args) -> Result<()> {
    let path = image::canonical(&args.image)?;
    if let Some(file) = &args.svg
        && file.as_os_str() != "-"
        && image::is_same(&path, file)
    {
        bail!("{}: is the image itself", file.display());
    }
    let (db, fs) = image::open_store(&path)?;
    let keys = Keys { fs };
    let options =
        InspectOptions { start: args.node, depth: args.depth, limit: args.limit, messages: args.keys };
    let seen = db.inspect(&options);
    db.close().with_context(|| format!("closing {}", args.image.display()))?;
    let seen = seen.with_context(|| format!("{}", args.image.display()))?;
    if let Some(file) = &args.svg {
        let picture = svg::draw(&seen, keys);
        match file.as_os_str() == "-" {
            true => super::print(&picture)?,
            false => std::fs::write(file, picture).with_context(|| format!("{}", file.display()))?,
        }
    } else if args.json {
        super::print_json(&json::value(&seen, keys))?;
    } else {
        super::print(&text::text(&seen, keys))?;
    }
    match damaged(&seen) {
        0 => Ok(()),
        n => {
            let text = format!("{}: {n} nodes or pages cannot be read", args.image.display());
            Err(Coded(exit::DAMAGE, text).into())
        }
    }
}

/// Nodes and pages that could not be read.
fn damaged(seen: &Inspection) -> usize {
    let nodes = seen.nodes.iter().map(|node| match &node.content {
        Err(_) => 1,
        Ok(content) => {
            let layers = content.edges.iter().flat_map(|edge| &edge.layers);
            let pages = content.pages.iter().chain(layers.flat_map(|layer| &layer.pages));
            pages.filter(|page| matches!(page.messages, Some(Err(_)))).count()
        }
    });
    nodes.sum()
}
