//! A daemon that is killed is gone within a moment, whatever its threads wait for in the kernel, and nobody who used the
//! mount hangs. One that is told to end lets go of the image, whatever programs do.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use std::{
    fs::{self, File, OpenOptions},
    io::Read,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::common::{Bench, has, have_fuse};
use rustix::process::{Pid, Signal, kill_process};

/// Names the file that a child of this test keeps dirty.
const DIRTIER: &str = "PANDO_TEST_DIRTIER";
/// Names the file that a child of this test lists a directory into, and the directory.
const LISTER: [&str; 2] = ["PANDO_TEST_MEMORY", "PANDO_TEST_LISTED"];
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

/// Lists a directory into memory that is mapped from a file, once the file that is there has gone. Only as a child of
/// the test below.
#[test]
fn lister() {
    let (Some(memory), Some(listed)) = (std::env::var_os(LISTER[0]), std::env::var_os(LISTER[1])) else {
        return;
    };
    let (file, dir) = (File::open(memory).unwrap(), File::open(listed).unwrap());
    // SAFETY: nobody changes the file.
    let mut memory = unsafe { memmap2::MmapOptions::new().map_copy(&file) }.unwrap();
    println!("ready");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    let at = memory.len() / 2;
    let memory = &mut memory[at..];
    // SAFETY: the memory is ours alone, and as long as it is said to be.
    unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), memory.as_mut_ptr(), memory.len()) };
}

/// A program keeps the kernel's lock on a directory as long as it lists it into memory that does not come: here from a
/// file whose daemon is stopped. A thread of the daemon that tells the kernel of a snapshot waits for it.
#[test]
fn a_daemon_lets_go_of_the_image_beside_who_keeps_a_directory_locked() {
    let (Some(slow), Some(b)) = (Bench::mounted(), Bench::mounted()) else { return };
    fs::write(slow.path("m/large"), vec![7; 16 << 20]).unwrap();
    slow.remount();
    fs::create_dir(b.path("m/d")).unwrap();
    b.ok(&["snapshot", "create", "m/d", "first"]);
    let mut lister = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::lister", "--nocapture"])
        .env(LISTER[0], slow.path("m/large"))
        .env(LISTER[1], b.path("m/d/.snapshots"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = std::io::BufReader::new(lister.stdout.take().unwrap());
    let mut line = String::new();
    while !line.ends_with("ready\n") {
        assert!(std::io::BufRead::read_line(&mut said, &mut line).unwrap() > 0, "{line}");
    }
    let (slow_daemon, daemon) = (slow.daemon(), b.daemon());
    send(slow_daemon, Signal::STOP);
    std::io::Write::write_all(&mut lister.stdin.take().unwrap(), b"x").unwrap();
    let locked = within(PATIENCE, || states(lister.id()).contains(&'D'));
    b.ok(&["snapshot", "policy", "m/d", "--every", "1h"]);
    let snapshots = || b.ok(&["snapshot", "list", "-H", "m/d"]).lines().count();
    let made = within(PATIENCE, || snapshots() == 2);
    let waits = within(PATIENCE, || states(daemon).contains(&'D'));
    send(daemon, Signal::TERM);
    let free = within(PATIENCE + PATIENCE, || b.run(&["check", "a.img"]).status.success());
    send(slow_daemon, Signal::CONT);
    let gone = within(PATIENCE, || is_gone(daemon));
    assert!(within(PATIENCE, || lister.try_wait().unwrap().is_some()), "the lister still waits");
    assert!(locked, "the directory was not kept locked");
    assert!(made, "no snapshot was made beside a locked directory");
    assert!(waits, "no thread of the daemon waited for the lock");
    assert!(free, "the image is in use as long as a program likes");
    assert!(gone, "the daemon did not end");
}
