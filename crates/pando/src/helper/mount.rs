//! `mount.pando SPEC DIR [-sfnv] [-o OPTIONS] [-t TYPE]`, as mount(8) calls it.
//!
//! Answers with the exit codes of mount(8): 1 wrong usage, 2 no FUSE here, 32 not mounted. What fstab says to
//! others (`nofail`, `_netdev`, `x-...`) is passed over by `Settings`. As root it lets other users in, the kernel
//! checks their permissions, and device nodes and set-id bits count, because that is what a line of fstab means on
//! every other file system.

use std::{ffi::OsString, path::PathBuf};

use clap::{CommandFactory, Parser};
use pando_db::device::FileDevice;
use pando_fuse::remount;

use crate::{cmd, exit, place};

/// Wrong usage, by mount(8).
const USAGE: u8 = 1;
/// The system lacks something, by mount(8).
const SYSTEM: u8 = 2;
/// Not mounted, by mount(8).
const FAILED: u8 = 32;

#[derive(Parser)]
#[command(name = "mount.pando", version, about = "Mount a Pando file system: the helper of mount(8)")]
#[command(
    after_help = "Options for -o: those of pando mount, and all that fstab may say. As root, allow_other, \
                        dev and suid are on; no_allow_other, nodev and nosuid turn them off.

Example: mount -t pando -o noatime,cache=1G /srv/grove.img /mnt/grove"
)]
struct Args {
    /// A file or block device made by mkfs
    spec: PathBuf,
    /// An existing directory
    dir: PathBuf,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Pass over options that are not known
    #[arg(short = 's')]
    sloppy: bool,
    /// Do all but the mount
    #[arg(short = 'f')]
    fake: bool,
    /// Accepted: nothing is written to /etc/mtab
    #[arg(short = 'n')]
    _no_mtab: bool,
    /// Accepted
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    _verbose: u8,
    /// Accepted: pando or fuse.pando
    #[arg(short = 't', value_name = "TYPE")]
    _fstype: Option<String>,
}

/// The command line.
pub fn command() -> clap::Command {
    Args::command()
}

pub fn run(args: Vec<OsString>) -> u8 {
    let line = [OsString::from("mount.pando")].into_iter().chain(args);
    let args = match Args::try_parse_from(line) {
        Ok(args) => args,
        Err(e) => return super::usage(&e, USAGE),
    };
    super::begin();
    super::report("mount.pando", mount(&args), |code| match code {
        exit::USAGE => USAGE,
        exit::NO_FUSE => SYSTEM,
        _ => FAILED,
    })
}

fn mount(args: &Args) -> anyhow::Result<()> {
    let mut list: Vec<&str> = args.options.iter().flat_map(|list| list.split(',')).collect();
    let remounts = list.iter().filter(|option| **option == "remount").count();
    list.retain(|option| *option != "remount");
    if rustix::process::geteuid().is_root() {
        // What is given takes precedence; for `user` mount(8) gives nosuid and nodev. For a change it gives what the
        // kernel shows, which is nosuid and nodev too where they are in force.
        list.splice(0..0, ["allow_other", "suid", "dev"]);
    }
    // As mount(8) does it for file systems of the kernel.
    let protected = remounts == 0 && FileDevice::is_write_protected(&args.spec);
    if protected && !cmd::mount::Options::parse(&list.join(","), true)?.settings.read_only {
        eprintln!("mount: {}: WARNING: source write-protected, mounted read-only.", args.dir.display());
        list.push("ro");
    }
    // For a change mount(8) gives all that the kernel shows of the mount, too.
    let options = cmd::mount::Options::parse(&list.join(","), args.sloppy || remounts > 0)?;
    if args.fake {
        return Ok(());
    }
    if remounts > 0 {
        let dir = place::absolute_mount_point(&args.dir)?;
        remount(&dir, &options.settings)?;
        // What becomes read-only is durable, as on file systems of the kernel. It has given us what it kept, and does
        // not tell the daemon why.
        return if options.settings.read_only { cmd::sync::run(&cmd::sync::Args::of(dir)) } else { Ok(()) };
    }
    let args = cmd::mount::Args::plain(args.spec.clone(), args.dir.clone(), list.join(","), args.sloppy);
    cmd::mount::run(&args)
}
