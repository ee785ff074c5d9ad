//! `pando chmod`: changes modes, of a whole tree as one operation.

use std::path::PathBuf;

use anyhow::{Result, bail};
use pando_fs::{ModeChange, TreeChange};
use rustix::{fs::Mode, process::umask};

use crate::change::Wanted;

/// Change the mode of files, with -R of a whole tree as one operation
#[derive(clap::Args)]
#[command(
    after_help = "MODE is that of chmod: octal, or like u+x,go-w, a+X, g=u. Symbolic links in a tree stay as they are;
one that is named is followed. For root, in a mounted Pando file system, -R is one small write,
however large the tree is; otherwise every file is changed by itself, as chmod does. The one write
does not change what is mounted inside the tree, but it changes what such a mount hides.
PATH may also be IMAGE:/PATH, in an image that is not mounted.

Examples: pando chmod -R g+rwX /mnt/grove/project
          pando chmod 644 grove.img:/project/readme"
)]
pub struct Args {
    /// Go down into directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// The mode, or what to change of it
    #[arg(allow_hyphen_values = true)]
    mode: String,
    /// Files and directories
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let mask = umask(Mode::empty());
    umask(mask);
    let Some(mode) = ModeChange::parse(&args.mode, mask.bits() as u16) else {
        bail!("{}: no mode; give one like 755, u+x or go=rX", args.mode);
    };
    let change = TreeChange { mode: Some(mode), ..TreeChange::default() };
    Wanted { name: "chmod", change: &change, recursive: args.recursive, follow: true }.run(&args.paths)
}
