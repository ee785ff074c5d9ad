//! What mount(8), umount(8), fsck(8) and mkfs(8) call: this program under another name.
//!
//! They look for `mount.TYPE` and so on in /sbin, where `pando install` puts links. Each takes the arguments that its
//! caller's manual promises, and answers with that manual's exit codes, not with those of `exit`.

mod answer;
mod fsck;
mod mount;
mod umount;

use std::{ffi::OsString, os::unix::ffi::OsStrExt, path::Path};

use clap::{CommandFactory, Parser};

use crate::{
    exit,
    helper::answer::{report, usage},
};

/// A name under which this program is something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Helper {
    /// `mount.pando`, for mount(8).
    Mount,
    /// `umount.pando`, for umount(8).
    Umount,
    /// `fsck.pando`, for fsck(8).
    Fsck,
    /// `mkfs.pando`, for mkfs(8).
    Mkfs,
}

/// The links that make up a whole set. The types are `pando` and, as the kernel and so /proc/mounts calls it,
/// `fuse.pando`.
pub const LINK_NAMES: &[(&str, Helper)] = &[
    ("mount.pando", Helper::Mount),
    ("mount.fuse.pando", Helper::Mount),
    ("umount.pando", Helper::Umount),
    ("umount.fuse.pando", Helper::Umount),
    ("fsck.pando", Helper::Fsck),
    ("fsck.fuse.pando", Helper::Fsck),
    ("mkfs.pando", Helper::Mkfs),
];

/// The helper that the program is called as, if it is.
pub fn of_name(program: &OsString) -> Option<Helper> {
    let name = Path::new(program).file_name()?;
    LINK_NAMES.iter().find(|(helper, _)| name.as_bytes() == helper.as_bytes()).map(|(_, helper)| *helper)
}

impl Helper {
    /// Does what the caller asks for with these arguments (without the name), and returns the exit code.
    pub fn run(self, args: Vec<OsString>) -> u8 {
        match self {
            Helper::Mount => mount::run(args),
            Helper::Umount => umount::run(args),
            Helper::Fsck => fsck::run(args),
            Helper::Mkfs => {
                let line = [OsString::from("mkfs.pando")].into_iter().chain(args);
                match Mkfs::try_parse_from(line) {
                    Err(e) => usage(&e, exit::FAILURE),
                    Ok(mkfs) => report("mkfs.pando", crate::cmd::mkfs::run(&mkfs.args), |_| exit::FAILURE),
                }
            }
        }
    }
}

#[derive(Parser)]
#[command(name = "mkfs.pando", version)]
struct Mkfs {
    #[command(flatten)]
    args: crate::cmd::mkfs::Args,
}

/// The command lines of the helpers, for their man pages.
pub fn pages() -> Vec<clap::Command> {
    vec![mount::command(), umount::command(), fsck::command(), Mkfs::command()]
}
