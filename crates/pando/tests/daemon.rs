//! What a daemon keeps of the program that started it, and until when.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::{self, File},
    io::Read,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, getpgid, getsid, kill_process};

use crate::common::has;

/// Most that a test waits for what takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap()).unwrap()
}

/// Waits until `done` gives something.
#[track_caller]
fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(result) = done() {
            return result;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A script takes a lock and mounts: the lock ends with the script, and so does the output that somebody reads.
#[test]
fn what_its_caller_has_open_is_not_kept_by_a_daemon() {
    let b = mounted!();
    b.umount();
    if !has("flock") {
        return;
    }
    let mut script = Command::new("sh")
        .args([
            "-ec",
            "exec 9> lock; flock -n 9; \"$0\" mount --log-file /dev/fd/8 a.img m 8>> log > /dev/null 3>&1",
        ])
        .arg(env!("CARGO_BIN_EXE_pando"))
        .current_dir(b.path(""))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = script.stdout.take().unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(output.read_to_end(&mut Vec::new()).is_ok()));
    let ended = told.recv_timeout(PATIENCE);
    assert!(script.wait().unwrap().success(), "it was not mounted");
    let kept = fs::read_dir(format!("/proc/{}/fd", b.daemon())).unwrap();
    let kept: Vec<_> = kept.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok()).collect();
    assert!(kept.contains(&b.path("log")), "a log that was named by a descriptor is not written: {kept:?}");
    assert!(!kept.contains(&b.path("lock")), "the lock is held");
    assert!(File::open(b.path("lock")).unwrap().try_lock().is_ok(), "the lock is held by somebody");
    assert_eq!(ended, Ok(true), "the daemon holds the pipe that its caller's output goes to");
    b.umount();
}

/// A process that is stopped until this goes.
struct Stopped(u32);

impl Stopped {
    fn new(process: u32) -> Stopped {
        kill_process(pid(process), Signal::STOP).unwrap();
        Stopped(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(pid(self.0), Signal::CONT);
    }
}

/// The ids of processes whose parent is `parent`.
fn children(parent: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    list.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// Signals that a process catches, a bit each from the lowest on.
fn caught(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

/// The image lies in a mount whose daemon is stopped: so a second daemon stands still before its own mount is there.
///
/// Until then it belongs to the process group of its caller, by which automount(8) knows it, and what the caller
/// ignores does not end it. Other signals do.
#[test]
fn a_daemon_that_starts_stays_with_its_caller() {
    let b = mounted!();
    b.sh("mkdir n");
    b.ok(&["mkfs", "--size", "64M", "m/b.img"]);
    for (ignored, ends) in [("TERM", false), ("HUP", false), ("HUP", true)] {
        // The names on the way are known to the kernel now.
        b.sh("ls -l m/b.img n");
        let stopped = Stopped::new(b.daemon());
        let mut starter = Command::new("sh")
            .args(["-c", &format!("trap '' {ignored}; exec \"$0\" mount m/b.img n")])
            .arg(env!("CARGO_BIN_EXE_pando"))
            .current_dir(b.path(""))
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let daemon = until("a daemon", || children(starter.id()).first().copied());
        until("it catches signals", || (caught(daemon) != 0).then_some(()));
        assert_eq!(getpgid(Some(pid(daemon))), Ok(pid(starter.id())), "it has left the group of its caller");
        let signal = if (ignored == "TERM") != ends { Signal::TERM } else { Signal::HUP };
        kill_process(pid(daemon), signal).unwrap();
        drop(stopped);
        assert_eq!(starter.wait().unwrap().success(), !ends, "{signal:?} where {ignored} is ignored");
        if !ends {
            assert_eq!(getsid(Some(pid(daemon))), Ok(pid(daemon)), "it belongs to the session of its caller");
            let all = 1 << (Signal::TERM.as_raw() - 1) | 1 << (Signal::HUP.as_raw() - 1);
            until("it catches both", || (caught(daemon) & all == all).then_some(()));
            b.ok(&["umount", "n"]);
        }
    }
    b.umount();
}
