//! The share of busy CPUs that the daemon gets.
//!
//! Linux divides the CPUs among sessions (autogroups, sched(7)), and the daemon is a session of its own: beside
//! sixteen other busy ones it may take a seventeenth, though it does the file system's work for all of them. A file
//! system of the kernel does that work in the time of the programs that ask for it, and in threads of the kernel. So
//! the daemon asks for a larger share. Without autogroups nothing is done. Uses procfs only.

use std::{fs, io, path::Path, thread, time::Duration};

use anyhow::{Result, anyhow};
use nix::unistd::{getpid, getsid};

/// The nice value of the daemon's session, as a count of the levels of nice(2), unless another one is asked for.
const DEFAULT_NICE: i32 = -10;
/// Writing here gives the session of this process a nice value.
const AUTOGROUP_FILE: &str = "/proc/self/autogroup";
/// How often that is tried again, a count, and how long after the last time.
const MAX_TRIES: u32 = 20;
const TURN_PAUSE: Duration = Duration::from_millis(50);

/// Gives the session of this process the nice value `wanted`, or the usual one if this user may.
///
/// A session that another process leads, as a terminal's, is left alone. Fails if a value is `wanted` that is refused,
/// or that such a session would have to be given.
pub fn set(wanted: Option<i32>) -> Result<()> {
    let nice = wanted.unwrap_or(DEFAULT_NICE);
    // Of a session beyond this namespace of processes the id is 0, which rustix cannot tell.
    let done = if getsid(None).is_ok_and(|session| session == getpid()) {
        write(nice).map_err(anyhow::Error::from)
    } else {
        Err(anyhow!(
            "other programs belong to this session too; start it by setsid(1), or without --foreground"
        ))
    };
    let Err(e) = done else { return Ok(()) };
    let no_autogroups = !Path::new(AUTOGROUP_FILE).exists();
    if wanted.is_none() || no_autogroups {
        log::debug!("session_nice={nice}: {e:#}");
        return Ok(());
    }
    Err(e.context(format!("session_nice={nice}")))
}

/// Gives this session a nice value. Users other than root may do so once in a while only, all of them together.
fn write(nice: i32) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match fs::write(AUTOGROUP_FILE, nice.to_string()) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && tries < MAX_TRIES => tries += 1,
            done => return done,
        }
        thread::sleep(TURN_PAUSE);
    }
}
