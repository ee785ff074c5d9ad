//! Polling for requests starts with a stream of them and ends with it.
#![allow(clippy::unwrap_used)]

mod common;

use std::{
    fs,
    process::Command,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::RecvTimeoutError,
    },
    thread::available_parallelism,
    time::{Duration, Instant},
};

use common::World;
use nix::sys::resource::{UsageWho, getrusage};
use pando_fuse::{HaltPoll, Kind, Settings};
use parking_lot::Mutex;
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPU time is that of the process, so one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|t| Duration::from_micros((t.tv_sec() * 1_000_000 + t.tv_usec()) as u64))
        .sum()
}

fn stream(world: &World, files: u32) {
    for i in 0..files {
        fs::write(world.path(&format!("f{i}")), b"some bytes").unwrap();
    }
}

fn polled(settings: Settings) -> Option<World> {
    World::with(Settings { poll: Duration::from_millis(2), poll_always: true, ..settings })
}

fn one_cpu() -> bool {
    std::thread::available_parallelism().map_or(1, usize::from) < 2
}

#[test]
fn a_stream_is_polled_for_and_an_idle_mount_sleeps() {
    let _alone = ALONE.lock();
    let Some(world) = polled(Settings::default()) else { return };
    if one_cpu() {
        eprintln!("SKIPPED: only one CPU");
        return;
    }
    stream(&world, 2000);
    let (done, requests) = (world.polling(), world.requests(Kind::Write) + world.requests(Kind::Create));
    assert!(requests >= 4000);
    assert!(done.caught > requests / 4, "{done:?} of {requests} creates and writes");
    assert_eq!(done.yielded, 0, "forced");

    // What the engine does in the background after the stream may take some of these seconds, but
    // a thread that polls would spoil them all.
    let mut least = Duration::MAX;
    for _ in 0..8 {
        let (begin, used) = (Instant::now(), cpu_time());
        std::thread::sleep(Duration::from_secs(1));
        let share = (cpu_time() - used).div_f64(begin.elapsed().as_secs_f64());
        least = least.min(share);
        if least < Duration::from_millis(100) {
            break;
        }
    }
    assert!(least < Duration::from_millis(100), "an idle mount used {least:?} a second");

    // Requests now and then do not bring it back.
    let before = world.polling();
    for i in 0..50 {
        std::thread::sleep(Duration::from_millis(10));
        // Two requests: one looks for the name.
        fs::create_dir(world.path(&format!("dir{i}"))).unwrap();
    }
    let after = world.polling();
    // What the stream left of the score allows for a few.
    assert!(after.missed - before.missed < 15, "{before:?} {after:?}");
}

#[test]
fn several_threads_or_zero_never_poll() {
    let _alone = ALONE.lock();
    for settings in [
        Settings { threads: 2, poll: Duration::from_millis(2), poll_always: true, ..Settings::default() },
        Settings { poll: Duration::ZERO, poll_always: true, ..Settings::default() },
    ] {
        let Some(world) = World::with(settings) else { return };
        stream(&world, 300);
        let done = world.polling();
        assert_eq!((done.caught, done.missed, done.yielded), (0, 0, 0));
    }
}

/// The latency that idle CPUs may have now, microseconds; the kernel tells root only.
fn allowed_latency() -> Option<i32> {
    let mut latency = [0; 4];
    let mut file = fs::File::open("/dev/cpu_dma_latency").ok()?;
    std::io::Read::read_exact(&mut file, &mut latency).ok()?;
    Some(i32::from_ne_bytes(latency))
}

/// A stream keeps idle CPUs from halting, and its end lets them.
#[test]
fn idle_cpus_halt_again_when_a_stream_has_ended() {
    let _alone = ALONE.lock();
    let Some(before @ 1..) = allowed_latency() else {
        eprintln!("SKIPPED: the latency of idle CPUs cannot be asked for, or somebody else holds it");
        return;
    };
    let Some(world) = polled(Settings { halt_poll: HaltPoll::On, ..Settings::default() }) else { return };
    if one_cpu() {
        return;
    }
    assert_eq!((world.polling().held_awake, allowed_latency()), (0, Some(before)), "without requests");
    stream(&world, 2000);
    let held = world.polling().held_awake;
    assert!(held > 0);
    let begin = Instant::now();
    while allowed_latency() != Some(before) {
        assert!(begin.elapsed() < Duration::from_secs(10), "still held");
        std::thread::sleep(Duration::from_millis(5));
    }

    let Some(off) = polled(Settings { halt_poll: HaltPoll::Off, ..Settings::default() }) else { return };
    stream(&off, 500);
    assert_eq!(off.polling().held_awake, 0);
}

/// Ends what spins until it is set, also if a test fails.
struct StopsAtEnd<'s>(&'s AtomicBool);

impl Drop for StopsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Keeps every CPU busy twice over while `run` runs.
fn beside_busy_programs(run: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let cpus = sched_getaffinity(None).unwrap().count();
    std::thread::scope(|scope| {
        for _ in 0..2 * cpus {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let _stop = StopsAtEnd(&stop);
        run();
    });
}

/// Where other programs want every CPU, polling leaves it to them.
#[test]
fn a_busy_machine_is_left_in_peace() {
    let _alone = ALONE.lock();
    let Some(world) = World::with(Settings { poll: Duration::from_millis(2), ..Settings::default() }) else {
        return;
    };
    if one_cpu() {
        return;
    }
    let mut requests = 0;
    beside_busy_programs(|| {
        let begin = Instant::now();
        while requests < 3000 && begin.elapsed() < Duration::from_secs(30) {
            let _absent = fs::metadata(world.path(&format!("{requests}")));
            requests += 1;
        }
    });
    let done = world.polling();
    assert!(done.missed < requests / 10 + 10, "of {requests} requests: {done:?}");
}

/// The thread that answers goes where a program is, if no CPU is idle, also without polling.
#[test]
fn a_program_is_followed_on_a_busy_machine() {
    let _alone = ALONE.lock();
    let allowed = sched_getaffinity(None).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).take(2).collect();
    if cpus.len() < 2 || available_parallelism().map(usize::from).ok() != Some(allowed.count() as usize) {
        eprintln!("SKIPPED: only one CPU, or a part of the time of them");
        return;
    }
    for poll in [Settings::default().poll, Duration::ZERO] {
        let Some(world) = World::with(Settings { poll, ..Settings::default() }) else { return };
        fs::write(world.path("f"), b"some bytes").unwrap();
        beside_busy_programs(|| {
            let begin = Instant::now();
            let mut there = CpuSet::new();
            for &cpu in cpus.iter().cycle() {
                there.clear();
                there.set(cpu);
                sched_setaffinity(None, &there).unwrap();
                let arrived = Instant::now();
                while arrived.elapsed() < Duration::from_millis(100) {
                    let _absent = fs::metadata(world.path(&format!("{:?}", arrived.elapsed())));
                }
                if world.polling().followed > 2 || begin.elapsed() > Duration::from_secs(30) {
                    break;
                }
            }
            sched_setaffinity(None, &allowed).unwrap();
        });
        assert!(world.polling().followed > 2, "{poll:?}: {:?}", world.polling());
    }
}

/// A program that becomes another one closes files and waits for the answers. On some kernels, such as 6.18, nobody can
/// read of it in `/proc` meanwhile.
#[test]
fn a_program_that_becomes_another_one_is_not_waited_for() {
    let _alone = ALONE.lock();
    let Some(world) = World::with(Settings::default()) else { return };
    let file = fs::File::create(world.path("open")).unwrap();
    let (done, round) = std::sync::mpsc::channel();
    let begin = Instant::now();
    beside_busy_programs(|| {
        std::thread::scope(|scope| {
            let (world, file) = (&world, &file);
            scope.spawn(move || {
                for _ in 0..100 {
                    if begin.elapsed() > Duration::from_secs(60) {
                        break;
                    }
                    for _ in 0..4 {
                        let _absent = fs::metadata(world.path("absent"));
                    }
                    // A look is due then, at the first request in which the kernel names a program: FLUSH.
                    std::thread::sleep(Duration::from_millis(6));
                    std::io::Write::write_all(&mut &*file, b"x").unwrap();
                    // Its copy of the descriptor is closed by exec.
                    assert!(Command::new("true").status().unwrap().success());
                    done.send(()).unwrap();
                }
                // Ends the loop below.
                drop(done);
            });
            loop {
                match round.recv_timeout(Duration::from_secs(120)) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                    Err(RecvTimeoutError::Timeout) => {
                        // Ends the connection: else what waits for it could not even be killed.
                        if unmount(world.root(), UnmountFlags::FORCE | UnmountFlags::DETACH).is_err() {
                            std::process::exit(1);
                        }
                        panic!("a program became another one, and waited for two minutes");
                    }
                }
            }
        });
    });
}
