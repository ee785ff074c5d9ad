//! The memory of a daemon: what is free goes back to the system while nobody uses the mount.
//!
//! The C library's allocator keeps what is freed: in an arena for each of many threads, and between pieces that are
//! in use. It gives that back when it is asked, for which it needs all of its locks. So it is asked while the process
//! does nothing. Fewer arenas would keep less, and have the threads wait for each other. Uses the C library only; with
//! another one than glibc nothing is done.
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

/// Starts a thread that gives free memory back. To be called once.
pub fn give_back_when_idle() {
    if !cfg!(target_env = "gnu") {
        return;
    }
    let started = thread::Builder::new().name("pando-memory".into()).spawn(|| {
        let (mut before, mut given) = (cpu_time(), Duration::ZERO);
        loop {
            thread::sleep(PERIOD);
            let now = cpu_time();
            if now.saturating_sub(before) < IDLE && now.saturating_sub(given) > WORTH {
                let begin = Instant::now();
                give_back();
                log::debug!("gave free memory back in {:?}", begin.elapsed());
                given = cpu_time();
            }
            before = cpu_time();
        }
    });
    if let Err(e) = started {
        log::warn!("free memory is not given back: {e}");
    }
}

fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: gives back pages that nobody has allocated, under the allocator's locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// CPU time that the process has used.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
