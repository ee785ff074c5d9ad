//! Keeping the idle CPUs of a virtual machine from halting while requests come densely.
//! A program that waits for an answer sleeps, and on an idle machine its CPU halts. On
//! a virtual machine a halted CPU is woken through the hypervisor, which takes
//! longer than most requests. Linux has a governor for guests that polls for a
//! moment before it halts (`haltpoll`), but on many machines it is told not to.
//! A request for a latency of zero (`/dev/cpu_dma_latency`, the interface of
//! the kernel's PM QoS) makes idle CPUs poll as long as it is held.
//!
//! Guarantees: the request is held only while requests come densely and for at
//! most [`HOLD`] times two after that; the kernel drops it when this process
//! ends, however it ends; a mount without requests runs no timer; a daemon that may not open
//! that file works as before. Knows nothing of the protocol.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use crate::counters::Counters;

/// The latency that idle CPUs may have, microseconds as a native `i32`; holds while the file is open.
const LATENCY_FILE: &str = "/dev/cpu_dma_latency";
/// Idle CPUs poll.
const NO_LATENCY_MICROS: i32 = 0;
/// Idle CPUs do what they like (the kernel's `PM_QOS_CPU_LATENCY_DEFAULT_VALUE`).
const ANY_LATENCY_MICROS: i32 = 2_000_000_000;
/// The name of what decides how a CPU idles.
const DRIVER_FILE: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
/// The driver for guests, which polls or halts.
const GUEST_DRIVER: &str = "haltpoll";
/// On larger machines than this, a count of CPUs, too many would poll for the sake of the one that is waited on.
const MAX_AUTO_CPUS: usize = 16;
/// How often it is looked whether requests still come densely.
const HOLD: Duration = Duration::from_millis(10);

/// Whether idle CPUs are kept from halting while requests come densely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HaltPoll {
    /// On a virtual machine of few CPUs, where waking a halted one takes long, if this user may.
    Auto,
    /// Always; the mount fails where the kernel does not let this user.
    On,
    /// Never.
    Off,
}

/// Holds idle CPUs awake on demand.
pub(crate) struct Halting {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// Requests have come densely since this was last cleared.
    dense: AtomicBool,
    /// Whether CPUs are held awake, or the end has come; what the thread waits for.
    state: Mutex<HoldState>,
    changed: Condvar,
    counters: Arc<Counters>,
}

struct HoldState {
    file: File,
    held: bool,
    ended: bool,
}

impl Halting {
    /// The state that `wanted` asks for; `None` if idle CPUs are to be left alone.
    ///
    /// Fails only if it is asked for and cannot be had.
    pub(crate) fn new(wanted: HaltPoll, counters: Arc<Counters>) -> io::Result<Option<Self>> {
        let open = || OpenOptions::new().write(true).open(LATENCY_FILE);
        let file = match wanted {
            HaltPoll::Off => return Ok(None),
            HaltPoll::On => open()?,
            HaltPoll::Auto => {
                if !is_small_guest() {
                    return Ok(None);
                }
                match open() {
                    Ok(file) => file,
                    Err(e) => {
                        log::debug!("idle CPUs may halt: {LATENCY_FILE}: {e}");
                        return Ok(None);
                    }
                }
            }
        };
        Self::over(file, counters).map(Some)
    }

    /// Over `file`, which takes latencies.
    fn over(file: File, counters: Arc<Counters>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            dense: AtomicBool::new(false),
            state: Mutex::new(HoldState { file, held: false, ended: false }),
            changed: Condvar::new(),
            counters,
        });
        let of_thread = shared.clone();
        let thread =
            std::thread::Builder::new().name("pando-awake".into()).spawn(move || of_thread.release())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// To be called while requests come densely; costs an atomic read as a rule.
    pub(crate) fn dense(&self) {
        if self.shared.dense.load(Ordering::Relaxed) {
            return;
        }
        self.shared.dense.store(true, Ordering::Relaxed);
        let mut state = self.shared.state.lock();
        if !state.held {
            // If it is refused it is not tried again.
            state.held = state.set(NO_LATENCY_MICROS);
            if state.held {
                self.shared.counters.held_awake();
                self.shared.changed.notify_one();
            }
        }
    }
}

impl Shared {
    /// Lets CPUs halt again a while after requests have become rare, until the end.
    fn release(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            if !state.held {
                self.changed.wait(&mut state);
                continue;
            }
            self.changed.wait_for(&mut state, HOLD);
            if !self.dense.swap(false, Ordering::Relaxed) {
                state.held = false;
                state.set(ANY_LATENCY_MICROS);
            }
        }
    }
}

impl HoldState {
    /// Whether it could be set.
    fn set(&mut self, micros: i32) -> bool {
        let set = self.file.write_all(&micros.to_ne_bytes());
        if let Err(e) = &set {
            log::warn!("idle CPUs: {LATENCY_FILE}: {e}");
        }
        set.is_ok()
    }
}

impl Drop for Halting {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Whether this is a guest whose idle CPUs can poll, with so few of them that it does not matter.
fn is_small_guest() -> bool {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let driver = fs::read_to_string(DRIVER_FILE).unwrap_or_default();
    (2..=MAX_AUTO_CPUS).contains(&cpus) && driver.trim() == GUEST_DRIVER
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{
        io::Read,
        os::{fd::OwnedFd, unix::net::UnixStream},
        time::Instant,
    };

    use super::*;

    fn halting() -> (Halting, UnixStream, Arc<Counters>) {
        let (file, reader) = UnixStream::pair().unwrap();
        let counters = Arc::new(Counters::default());
        let halting = Halting::over(File::from(OwnedFd::from(file)), counters.clone()).unwrap();
        (halting, reader, counters)
    }

    fn next(reader: &mut UnixStream) -> Option<i32> {
        let mut latency = [0; 4];
        reader.read_exact(&mut latency).ok().map(|()| i32::from_ne_bytes(latency))
    }

    #[test]
    fn a_dense_stream_holds_cpus_awake_and_its_end_lets_them_halt() {
        let (halting, mut reader, counters) = halting();
        let mut seen = 0;
        for _ in 0..2 {
            let begin = Instant::now();
            while begin.elapsed() < HOLD * 5 {
                halting.dense();
                std::thread::sleep(HOLD / 20);
            }
            // A thread that gets no CPU for long may have released the request in between, and made it again.
            let held = counters.polling().held_awake - seen;
            assert!(held >= 1);
            seen += held;
            for _ in 0..held {
                assert_eq!(next(&mut reader), Some(NO_LATENCY_MICROS));
                assert_eq!(next(&mut reader), Some(ANY_LATENCY_MICROS), "not released");
            }
        }
        reader.set_nonblocking(true).unwrap();
        assert_eq!(next(&mut reader), None, "more than was counted");
    }

    #[test]
    fn the_end_waits_for_nothing_and_closes_the_file() {
        let (halting, mut reader, _) = halting();
        halting.dense();
        let begin = Instant::now();
        drop(halting);
        assert!(begin.elapsed() < Duration::from_secs(5));
        assert_eq!(next(&mut reader), Some(NO_LATENCY_MICROS));
        while let Some(latency) = next(&mut reader) {
            assert_eq!(latency, ANY_LATENCY_MICROS);
        }
    }
}
