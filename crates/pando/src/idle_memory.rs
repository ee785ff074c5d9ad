//! Returns free memory of a daemon to the system while the mount is idle, and when the process has grown.
//!
//! The C library's allocator keeps freed memory: in an arena for each of many threads, and between pieces that are in
//! use. `malloc_trim` returns it to the system, for which it takes the lock of one arena after the other, for 10 to
//! 30 milliseconds in all. So it is called while the process is idle, and otherwise only if there is much to return.
//! With fewer arenas threads would wait for each other. Uses the C library only; with another one than glibc nothing
//! is done.
#![allow(unsafe_code)]

use std::{
    thread,
    time::{Duration, Instant},
};

/// How often it is looked whether the process does anything.
const PERIOD: Duration = Duration::from_secs(5);
/// A process that takes less CPU time in a period does nothing.
const IDLE: Duration = Duration::from_millis(20);
/// Memory is given back only if the process has used so much CPU time since: else there is little to give.
const WORTH: Duration = Duration::from_millis(200);
/// If the process has grown by this many bytes since the last time, memory is returned although the process is busy.
const GROWTH_BYTES: u64 = 16 << 20;

/// Starts a thread that gives free memory back. To be called once.
pub fn give_back_when_idle() {
    if !cfg!(target_env = "gnu") {
        return;
    }
    let started = thread::Builder::new().name("pando-memory".into()).spawn(|| {
        let (mut before, mut given, mut left) = (cpu_time(), Duration::ZERO, resident_bytes());
        loop {
            thread::sleep(PERIOD);
            let (now, resident) = (cpu_time(), resident_bytes());
            let idle = now.saturating_sub(before) < IDLE && now.saturating_sub(given) > WORTH;
            if idle || resident > left + GROWTH_BYTES {
                let begin = Instant::now();
                give_back();
                (given, left) = (cpu_time(), resident_bytes());
                log::debug!("gave {} KiB back in {:?}", resident.saturating_sub(left) >> 10, begin.elapsed());
            }
            // Memory that other calls have returned is not left over from the last call of this one.
            left = left.min(resident_bytes());
            before = cpu_time();
        }
    });
    if let Err(e) = started {
        log::warn!("free memory is not given back: {e}");
    }
}

fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: this returns pages that are not allocated, under the allocator's locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Memory that the process has, bytes; 0 if it is not told.
fn resident_bytes() -> u64 {
    let told = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = told.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}

/// CPU time that the process has used.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
