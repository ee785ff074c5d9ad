//! A daemon that is killed is gone within a moment, whatever its threads wait for in the kernel, and nobody who used the
//! mount hangs.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::common::{Bench, has, have_fuse};
use rustix::process::{Pid, Signal, kill_process};

/// Names the file that a child of this test keeps dirty.
const DIRTIER: &str = "PANDO_TEST_DIRTIER";
/// Most that a killed daemon may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pages that are made dirty at a time, a count.
const PAGES: u64 = 2000;

/// Writes a byte into each page of a file and syncs the root of the mount, again and again until that fails. Only as a
/// child of the test below.
#[test]
fn dirtier() {
    let Some(path) = std::env::var_os(DIRTIER) else { return };
    let path = Path::new(&path);
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    file.write_all_at(&vec![1; PAGES as usize * 4096], 0).unwrap();
    let root = File::open(path.parent().unwrap()).unwrap();
    let round = || -> std::io::Result<()> {
        (0..PAGES).try_for_each(|page| file.write_all_at(b"x", page * 4096))?;
        root.sync_all()
    };
    while round().is_ok() {}
}

fn start_dirtier(path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::dirtier"])
        .env(DIRTIER, path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// States of the threads of a process, as in /proc: `S` sleeps, `T` is stopped, `D` waits in the kernel, `Z` has ended.
fn states(pid: u32) -> Vec<char> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let state = |task: fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        stat.rsplit(") ").next()?.chars().next()
    };
    tasks.filter_map(|task| state(task.ok()?)).collect()
}

fn is_gone(pid: u32) -> bool {
    states(pid).iter().all(|state| *state == 'Z')
}

fn within(time: Duration, mut done: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !done() {
        if begin.elapsed() > time {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn send(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Stops the daemon again and again until one of its threads waits in the kernel for the others.
fn stop_while_one_waits(pid: u32) -> bool {
    within(Duration::from_secs(60), || {
        std::thread::sleep(Duration::from_millis(7));
        send(pid, Signal::STOP);
        std::thread::sleep(Duration::from_millis(40));
        if states(pid).contains(&'D') {
            return true;
        }
        send(pid, Signal::CONT);
        false
    })
}

/// A daemon without a way into its mount has the kernel drop dirty pages for a sync, which writes them first: to itself.
/// Without a guard it hung for ever when it was killed then; and when it crashed, as long as a core was dumped, which
/// waits for all threads.
#[test]
fn a_daemon_that_is_killed_while_it_waits_for_itself_is_gone() {
    if !have_fuse() || !has("setpriv") || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs FUSE, setpriv and root");
        return;
    }
    let b = Bench::new();
    fs::create_dir(b.path("m")).unwrap();
    b.ok(&["mkfs", "--size", "256M", "--node-size", "64K", "a.img"]);
    for signal in [Signal::KILL, Signal::KILL, Signal::ABORT] {
        let lacks = ["--bounding-set=-dac_read_search", "--inh-caps=-dac_read_search", "--no-new-privs"];
        let mounted = Command::new("setpriv")
            .args(lacks)
            .args([env!("CARGO_BIN_EXE_pando"), "mount", "--log-file", "log", "a.img", "m"])
            .current_dir(b.path(""))
            .status();
        assert!(mounted.unwrap().success());
        let pid = b.daemon();
        let mut dirtier = start_dirtier(&b.path("m/file"));
        let waits = stop_while_one_waits(pid);
        send(pid, signal);
        let _stopped_no_more = kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::CONT);
        let gone = within(PATIENCE, || is_gone(pid));
        let freed = within(PATIENCE, || dirtier.try_wait().unwrap().is_some());
        // Whatever came of it, nothing is left hanging.
        let unmounted =
            Command::new("umount").args(["-f", "-l"]).arg(b.path("m")).status().unwrap().success();
        let _ended = dirtier.kill();
        assert!(within(PATIENCE, || dirtier.try_wait().unwrap().is_some()));
        assert!(waits, "no thread was found waiting for the mount");
        assert!(gone, "{signal:?}: the daemon did not end");
        assert!(freed, "{signal:?}: who used the mount still waits");
        assert!(unmounted);
    }
    b.mount();
    b.umount();
    assert!(b.ok(&["check", "a.img"]).contains("clean"));
}
