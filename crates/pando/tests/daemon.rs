//! What a daemon keeps of the program that started it, and until when.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::{self, File},
    io::Read,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, getpgid, getsid, kill_process};

use crate::common::{has, text};

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

/// A control group that may have few threads; removed when it goes.
struct FewThreads(PathBuf);

impl FewThreads {
    fn new() -> Option<FewThreads> {
        let name = format!("pando-test-{}", std::process::id());
        let dirs = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(|dir| Path::new(dir).join(&name));
        let groups = dirs.into_iter().filter(|dir| fs::create_dir(dir).is_ok()).map(FewThreads);
        // Elsewhere it is a directory without that file.
        let found = groups.into_iter().find(|group| group.0.join("pids.max").exists());
        if found.is_none() {
            eprintln!("SKIPPED: needs a control group that limits threads");
        }
        found
    }

    fn allow(&self, threads: u32) {
        fs::write(self.0.join("pids.max"), threads.to_string()).unwrap();
    }
}

impl Drop for FewThreads {
    fn drop(&mut self) {
        let begin = Instant::now();
        // A daemon may still be ending.
        while fs::remove_dir(&self.0).is_err() && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// At each number of threads the mount is there and serves, or the command fails with a reason and leaves nothing.
#[test]
fn a_mount_that_cannot_have_its_threads_leaves_nothing() {
    let b = mounted!();
    b.umount();
    let Some(group) = FewThreads::new() else { return };
    let mount = "echo $$ > \"$1\"/cgroup.procs && exec \"$0\" mount a.img m";
    let (mut failed, mut enough) = (0, 0);
    for threads in 1..60 {
        group.allow(threads);
        let done = Command::new("sh")
            .args(["-c", mount, env!("CARGO_BIN_EXE_pando")])
            .arg(&group.0)
            .current_dir(b.path(""))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        if done.status.success() {
            // A daemon that lacks threads may have to answer as it has told.
            assert!(fs::read_dir(b.path("m")).is_ok(), "{threads} threads: mounted, and dead");
            b.umount();
            enough += 1;
        } else {
            let said = text(&done.stderr);
            assert!(
                !said.is_empty() && done.status.code() != Some(101),
                "{threads} threads: {:?} {said}",
                done.status
            );
            assert!(
                fs::read_dir(b.path("m")).is_ok_and(|mut m| m.next().is_none()),
                "{threads} threads: {said}"
            );
            let info = b.json(&["info", "--json", "a.img"]);
            assert_eq!(info["state"].as_str(), Some("closed"), "{threads} threads: {said}");
            failed += 1;
        }
        if enough > 3 {
            break;
        }
    }
    assert!(failed > 3 && enough > 3, "{failed} failed, {enough} had enough");
}

/// A program that does not wait for its children, as some supervisors do, gets the exit code all the same.
#[test]
fn a_caller_that_ignores_its_children_gets_the_exit_code() {
    let b = mounted!();
    b.sh("mkdir n");
    // Not sh: some do not let go of this signal.
    let done = Command::new("env")
        .args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_pando"), "mount", "a.img", "n"])
        .current_dir(b.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(4), "{}", text(&done.stderr));
    assert!(!text(&done.stderr).contains("child"), "{}", text(&done.stderr));
    b.umount();
}
