//! Messages and exit codes of the helpers (`mount.pando` and others).

use crate::{exit, logging};

/// Exit code of mount(8) and umount(8): wrong usage.
pub const MOUNT_USAGE: u8 = 1;
/// Exit code of mount(8) and umount(8): a system error. For umount(8) also: unmounted, but something else failed.
pub const MOUNT_SYSTEM: u8 = 2;
/// Exit code of mount(8) and umount(8): the mount or unmount has failed.
pub const MOUNT_FAILED: u8 = 32;

/// Prints what is wrong with the arguments, or the help. mount(8) and similar programs show the helper's stderr.
pub fn usage(error: &clap::Error, code: u8) -> u8 {
    // A failure of printing cannot be reported.
    let _ = error.print();
    if error.use_stderr() { code } else { exit::OK }
}

/// Prints an error, and maps the exit code of `pando` to that of the calling program.
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
