//! The guard of a mount: a process that cuts the connection when the daemon is killed (`pando_fuse::guard`).
//!
//! The daemon starts this program under the name [`NAME`], with the file that cuts the connection as standard input.
//! The guard asks the kernel for a signal when the thread that has started it ends, and then cuts the connection.
//! That thread does nothing else. The guard ignores all other signals that end a daemon. Guarantee: the guard ends
//! with the daemon.

use std::{
    ffi::{CStr, OsStr, OsString},
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStrExt, process::CommandExt},
    },
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{DumpableBehavior, Resource, Signal};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1},
    iterator::Signals,
};

/// The name of the guard's process, as its first argument and for ps. It differs from the daemon's name, so that
/// `killall pando` does not end both at once.
const NAME: &CStr = c"fuse-guard";

/// How long the daemon waits before it starts another guard in the place of one that has ended.
const PAUSE: Duration = Duration::from_secs(10);

/// Starts a guard, and sees to it that there is one. Without it everything works, but a daemon that is killed may hang.
pub fn post(abort: io::Result<OwnedFd>) {
    dump_no_core_unasked();
    let begun = abort.and_then(|abort| {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("pando-guard".into()).spawn(move || {
            let mut started = start(&abort);
            let failed = started.as_ref().err().map(|e| io::Error::new(e.kind(), e.to_string()));
            let _ = tell.send(failed.map_or(Ok(()), Err));
            while let Ok(guard) = &mut started {
                let ended = guard.wait();
                log::warn!("the guard of the mount has ended ({ended:?}); another is started");
                std::thread::sleep(PAUSE);
                started = start(&abort);
            }
            if let Err(e) = started {
                log::warn!("no guard for the mount: {e}");
            }
        })?;
        told.recv().unwrap_or_else(|_| Err(io::Error::other("the thread has ended")))
    });
    if let Err(e) = begun {
        log::warn!("nobody cuts the connection should this daemon be killed, and it may hang then: {e}");
    }
}

/// Turns core dumps off unless they were asked for (`ulimit -c`). Before the kernel finds out that none is wanted it
/// waits for all threads, which wait for the daemon that has crashed, and until then no thread has ended for the
/// guard. Besides, the memory of a daemon has files of other users.
fn dump_no_core_unasked() {
    if rustix::process::getrlimit(Resource::Core).current == Some(0) {
        let done = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
        done.unwrap_or_else(|e| log::warn!("a crash of this daemon may leave programs waiting: {e}"));
    }
}

fn name() -> &'static OsStr {
    OsStr::from_bytes(NAME.to_bytes())
}

fn start(abort: &OwnedFd) -> io::Result<Child> {
    Command::new("/proc/self/exe")
        .arg0(name())
        .arg(std::process::id().to_string())
        .current_dir("/")
        .stdin(Stdio::from(abort.try_clone()?))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

/// Whether the program is called as a guard.
pub fn is_name(program: &OsString) -> bool {
    program == name()
}

/// Watches the process whose number is the argument.
pub fn run(args: &[OsString]) -> io::Result<()> {
    let parent: Option<i32> = args.first().and_then(|arg| arg.to_str()?.parse().ok());
    let parent = parent.ok_or_else(|| io::Error::other("the number of a process is missing"))?;
    rustix::thread::set_name(NAME)?;
    let mut signals = Signals::new([SIGUSR1, SIGTERM, SIGINT, SIGHUP])?;
    rustix::process::set_parent_process_death_signal(Some(Signal::USR1))?;
    let is_there = || rustix::process::getppid().is_some_and(|pid| pid.as_raw_nonzero().get() == parent);
    // If the daemon ended before the signal was requested, none was sent, so this checks first.
    while is_there() && signals.wait().all(|signal| signal != SIGUSR1) {}
    pando_fuse::guard::cut(&File::from(io::stdin().as_fd().try_clone_to_owned()?))
}
