//! The share of busy CPUs that the daemon gets.
//!
//! Linux divides the CPUs among sessions (autogroups, sched(7)), and the daemon is a session of its own: beside
//! sixteen other busy ones it may take a seventeenth, though it does the file system's work for all of them. A file
//! system of the kernel does that work in the time of the programs that ask for it, and in threads of the kernel. So
//! the daemon asks for a larger share. Without autogroups nothing is done. Uses procfs only.

use std::{fs, io};

/// The nice value of the daemon's session, as a count of the levels of nice(2), unless another one is asked for.
const DEFAULT_NICE: i32 = -10;
/// Writing here gives the session of this process a nice value.
const AUTOGROUP_FILE: &str = "/proc/self/autogroup";

/// Gives the session of this process, which must be that of a daemon, the nice value `wanted`, or the usual one if this
/// user may. Fails if `wanted` is refused.
pub fn set(wanted: Option<i32>) -> io::Result<()> {
    let nice = wanted.unwrap_or(DEFAULT_NICE);
    match fs::write(AUTOGROUP_FILE, nice.to_string()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            log::debug!("session_nice={nice}: this kernel has no autogroups");
            Ok(())
        }
        Err(e) if wanted.is_none() => {
            log::debug!("session_nice={nice}: {e}");
            Ok(())
        }
        set => set,
    }
}
