//! What a daemon has got from the program that started it and should not keep: open descriptors, and signals that are
//! ignored. Knows by procfs only: where there is none, everything is kept.

use std::{
    fs,
    os::fd::RawFd,
    sync::{Arc, atomic::AtomicBool},
};

use signal_hook::{consts::SIGCHLD, flag};

/// The descriptors of this process but for standard input, output and errors.
///
/// To be called before this program has opened any: then all of them are inherited.
pub fn descriptors() -> Vec<RawFd> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let open: Vec<RawFd> = numbers.filter(|fd| *fd > 2).collect();
    // The one for the directory itself is closed by now.
    open.into_iter().filter(|fd| fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok()).collect()
}

/// Closes inherited descriptors. A lock of flock(1) would last as long as the daemon otherwise, and who reads from a
/// pipe would never see its end.
pub fn close(descriptors: Vec<RawFd>) {
    for fd in descriptors {
        if let Err(e) = nix::unistd::close(fd) {
            log::debug!("closing the inherited descriptor {fd}: {e}");
        }
    }
}

/// The signals that this process ignores, a bit each from the lowest on, as it was started to.
pub fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Sees to it that the exit codes of children are kept for this program, also if it was started to ignore that they
/// end.
pub fn expect_children() {
    let ignored = ignored_signals() >> (SIGCHLD - 1) & 1 == 1;
    if ignored && let Err(e) = flag::register(SIGCHLD, Arc::<AtomicBool>::default()) {
        log::debug!("SIGCHLD stays ignored: {e}");
    }
}
