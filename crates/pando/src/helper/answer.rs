//! How the helpers answer: what they say, and their exit codes.

use crate::{exit, logging};

/// Exit code of mount(8) and umount(8): wrong usage.
pub const MOUNT_USAGE: u8 = 1;
/// Exit code of mount(8) and umount(8): a system error. Of umount(8) also: it is unmounted, but something failed.
pub const MOUNT_SYSTEM: u8 = 2;
/// Exit code of mount(8) and umount(8): it is not mounted, or not unmounted.
pub const MOUNT_FAILED: u8 = 32;

/// Says what was wrong with the arguments, or prints help. mount(8) and its like show what is said on stderr.
pub fn usage(error: &clap::Error, code: u8) -> u8 {
    // A failure of printing cannot be reported.
    let _ = error.print();
    if error.use_stderr() { code } else { exit::OK }
}

/// Says what went wrong, and turns one of our codes into one of the caller's.
pub fn report(name: &str, done: anyhow::Result<()>, code: impl Fn(u8) -> u8) -> u8 {
    match done {
        Ok(()) => exit::OK,
        Err(e) => {
            exit::say(name, &e);
            code(exit::code(&e))
        }
    }
}

/// Messages of these short programs go to the terminal.
pub fn begin() {
    logging::to_terminal();
}
