//! A shared mapping of a file, in a process of its own.
//!
//! A page fault on the mount waits for the server while it holds the lock of the address space. If another test forks
//! meanwhile, that waits for the fault, and the threads of a server in the same process wait for the fork as soon as
//! they touch a new page: all wait for ever. So no test maps a file of its own server.

use std::{
    fs::File,
    io::{BufRead, BufReader, Write},
    os::{
        fd::{AsRawFd, FromRawFd},
        unix::process::CommandExt,
    },
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::Mutex,
    time::{Duration, Instant},
};

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync};

/// Tells the process that it is one, and how many bytes it maps, and whether it may write.
const TOLD: &str = "PANDO_TEST_MAPS_BYTES";
/// The number under which that process has the file.
const FILE: i32 = 200;

/// A shared mapping of the first bytes of a file.
pub struct Map(Mutex<Process>);

struct Process {
    child: Child,
    /// `None` once it is to end.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Map {
    pub fn new(file: &File, len: usize, writable: bool) -> Map {
        let name = format!("{}::mapping", module_path!().split_once("::").unwrap().1);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &name]).env(TOLD, format!("{len} {writable}"));
        let fd = file.as_raw_fd();
        // A file that has this number already would be closed by the start of the program.
        let give = move || match unsafe { libc::dup2(fd, FILE) } {
            FILE if unsafe { libc::fcntl(FILE, libc::F_SETFD, 0) } == 0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        };
        // SAFETY: only the calls above are made in the new process, which may be made there.
        unsafe { command.pre_exec(give) };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let map = Map(Mutex::new(Process { child, to, from }));
        map.ask("mapped?");
        map
    }

    pub fn get(&self, i: usize) -> u8 {
        self.ask(&format!("get {i}"))
    }

    pub fn set(&self, i: usize, b: u8) {
        self.ask(&format!("set {i} {b}"));
    }

    /// Sets a byte of each page.
    pub fn set_in_pages(&self, within: usize, b: u8) {
        self.ask(&format!("pages {within} {b}"));
    }

    pub fn sync(&self) {
        self.ask("sync");
    }

    /// Has the process start another program, which drops the mapping with all that was changed in it. Returns whether
    /// that has ended after this time.
    pub fn ends_by_exec(mut self, patience: Duration) -> bool {
        let process = self.0.get_mut().unwrap();
        writeln!(process.to.take().unwrap(), "exec").unwrap();
        let begun = Instant::now();
        while process.child.try_wait().unwrap().is_none() {
            if begun.elapsed() > patience {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    fn ask(&self, what: &str) -> u8 {
        let mut process = self.0.lock().unwrap();
        writeln!(process.to.as_mut().unwrap(), "{what}").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert!(process.from.read_line(&mut line).unwrap() > 0, "the process of a mapping has ended");
            // The test harness says something first.
            if let Some(told) = line.strip_prefix("told ") {
                return told.trim().parse().unwrap();
            }
        }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let asks = |map: &mut Map| map.0.get_mut().is_ok_and(|process| process.to.is_some());
        if !std::thread::panicking() && asks(self) {
            self.sync();
        }
        let Ok(process) = self.0.get_mut() else { return };
        if process.to.take().is_some() {
            let _ended = process.child.wait();
        }
    }
}

/// Is that process.
#[test]
fn mapping() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let (len, writable) = told.split_once(' ').unwrap();
    let (len, writable): (usize, bool) = (len.parse().unwrap(), writable.parse().unwrap());
    // SAFETY: the number was given to this process, and nothing else in it uses that.
    let file = unsafe { File::from_raw_fd(FILE) };
    let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    // SAFETY: a new mapping.
    let at = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, &file, 0) }.unwrap();
    drop(file);
    let byte = |i: usize| {
        assert!(i < len);
        // SAFETY: it lies in the mapping, which stays.
        unsafe { at.cast::<u8>().add(i) }
    };
    // SAFETY: as above; what others change in it is expected.
    let set = |i: usize, b: u8| unsafe { byte(i).write_volatile(b) };
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let asked: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| asked[i].parse::<usize>().unwrap();
        let told = match asked[0] {
            // SAFETY: as above.
            "get" => unsafe { byte(number(1)).read_volatile() },
            "set" => {
                set(number(1), number(2) as u8);
                0
            }
            "pages" => {
                (number(1)..len).step_by(4096).for_each(|i| set(i, number(2) as u8));
                0
            }
            "sync" => {
                // SAFETY: the mapping of this length.
                unsafe { msync(at, len, MsyncFlags::SYNC) }.unwrap();
                0
            }
            "exec" => panic!("no program was started: {}", Command::new("true").exec()),
            _ => 0,
        };
        // Not by a macro, whose output the harness keeps.
        let mut out = std::io::stdout().lock();
        writeln!(out, "\ntold {told}").unwrap();
        out.flush().unwrap();
    }
}
