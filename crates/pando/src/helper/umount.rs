//! `umount.pando DIR-or-IMAGE [-flnrv] [-t TYPE]`, as umount(8) calls it: it returns when the image is closed, as
//! it does for file systems of the kernel.

use std::{ffi::OsString, path::PathBuf};

use anyhow::Context;
use clap::{CommandFactory, Parser};
use pando_fuse::{How, mountinfo};

use crate::{
    cmd, exit,
    helper::answer::{self, MOUNT_FAILED, MOUNT_SYSTEM, MOUNT_USAGE},
    image, place,
};

#[derive(Parser)]
#[command(name = "umount.pando", version, about = "Unmount a Pando file system: the helper of umount(8)")]
struct Args {
    /// Where it is mounted, or what is
    target: PathBuf,
    /// Detach it even if files are open
    #[arg(short = 'l')]
    lazy: bool,
    /// Detach it and cut off whoever uses it
    #[arg(short = 'f')]
    force: bool,
    /// Accepted
    #[arg(short = 'n')]
    _no_mtab: bool,
    /// Accepted
    #[arg(short = 'r')]
    _read_only: bool,
    /// Accepted
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    _verbose: u8,
    /// Accepted
    #[arg(short = 't', value_name = "TYPE")]
    _fstype: Option<String>,
}

/// The command line.
pub fn command() -> clap::Command {
    Args::command()
}

pub fn run(args: Vec<OsString>) -> u8 {
    let line = [OsString::from("umount.pando")].into_iter().chain(args);
    let args = match Args::try_parse_from(line) {
        Ok(args) => args,
        Err(e) => return answer::usage(&e, MOUNT_USAGE),
    };
    answer::begin();
    answer::report("umount.pando", umount(&args), |code| match code {
        exit::USAGE => MOUNT_USAGE,
        exit::NOT_CLOSED => MOUNT_SYSTEM,
        _ => MOUNT_FAILED,
    })
}

fn umount(args: &Args) -> anyhow::Result<()> {
    let mut dir = place::absolute_mount_point(&args.target)?;
    // A file is what is mounted, unless something is mounted on it: a file of a mount, bound to its place.
    if mountinfo::at(&dir)?.is_none() && dir.metadata().is_ok_and(|m| !m.is_dir()) {
        let mounted = image::mounted_on(&dir)?;
        dir = mounted.with_context(|| format!("{}: is not mounted", args.target.display()))?;
    }
    let how = match (args.force, args.lazy) {
        (true, _) => How::Force,
        (false, true) => How::Lazy,
        (false, false) => How::Plain,
    };
    cmd::umount::detach(&dir, how)
}
