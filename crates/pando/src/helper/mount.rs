//! `mount.pando SPEC DIR [-sfnv] [-o OPTIONS] [-t TYPE]`, as mount(8) calls it.
//!
//! It ends with the exit codes of mount(8): 1 wrong usage, 2 no FUSE here, 32 not mounted. Options in fstab that are
//! meant for other programs (`nofail`, `_netdev`, `x-...`) are ignored (`Settings`). If root mounts, other
//! users have access, the kernel checks permissions, and device nodes and set-id bits have effect, because that is
//! what a line of fstab means on every other file system.

use std::{ffi::OsString, path::PathBuf};

use clap::{CommandFactory, Parser};
use pando_db::device::FileDevice;
use pando_fuse::remount;

use crate::{
    cmd, exit,
    helper::answer::{self, MOUNT_FAILED, MOUNT_SYSTEM, MOUNT_USAGE},
    one_version, place,
};

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
        Err(e) => return answer::usage(&e, MOUNT_USAGE),
    };
    answer::begin();
    answer::report("mount.pando", mount(&args), |code| match code {
        exit::USAGE => MOUNT_USAGE,
        exit::NO_FUSE => MOUNT_SYSTEM,
        _ => MOUNT_FAILED,
    })
}

fn mount(args: &Args) -> anyhow::Result<()> {
    let mut list: Vec<&str> = args.options.iter().flat_map(|list| one_version::options(list)).collect();
    let remounts = list.iter().filter(|option| **option == "remount").count();
    list.retain(|option| *option != "remount");
    if rustix::process::geteuid().is_root() {
        // Put first, so that the options given take precedence: for `user`, mount(8) gives nosuid and nodev. For a
        // remount it gives the options that the kernel shows, with nosuid and nodev if they are in force.
        list.splice(0..0, ["allow_other", "suid", "dev"]);
    }
    // mount(8) does the same for the kernel's file systems.
    let protected = remounts == 0 && FileDevice::is_write_protected(&args.spec);
    if protected && !cmd::mount::Options::parse(&list.join(","), true)?.settings.read_only {
        crate::exit::tell!(
            "mount: {}: WARNING: source write-protected, mounted read-only.",
            args.dir.display()
        );
        list.push("ro");
    }
    // For a remount mount(8) also gives the options that the kernel shows, some of which are not known here.
    let options = cmd::mount::Options::parse(&list.join(","), args.sloppy || remounts > 0)?;
    if args.fake {
        return Ok(());
    }
    if remounts > 0 {
        let dir = place::absolute_mount_point(&args.dir)?;
        remount(&dir, &options.settings)?;
        // A file system that becomes read-only is durable afterwards, as the kernel's own are. The kernel has sent
        // the pages that it kept, but does not tell the daemon about the remount, so sync here.
        return if options.settings.read_only { cmd::sync::run(&cmd::sync::Args::of(dir)) } else { Ok(()) };
    }
    let args = cmd::mount::Args::plain(args.spec.clone(), args.dir.clone(), list.join(","), args.sloppy);
    cmd::mount::run(&args)
}
