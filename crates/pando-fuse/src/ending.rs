//! The end of the threads of a mount.
//!
//! A thread may be in a system call that waits for a program which keeps a file or a directory locked. Such a program
//! can do so for any time: it reads into memory, or writes from memory, whose pages do not come. The end of a mount
//! does not wait for such threads. When they continue later they change nothing: they only notify the kernel of
//! cached entries, and the mount does not exist any more.

use std::{
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How long is waited, at the end of a mount, for a thread that may wait for a program.
pub(crate) const PATIENCE_AT_END: Duration = Duration::from_secs(5);
/// How long between looks whether it has ended.
const END_POLL: Duration = Duration::from_millis(2);

/// Waits until these threads have ended, but for the one that calls, and no longer than `patience`. `what` they are is
/// for the log, which also says whether one has panicked.
pub(crate) fn join_within(patience: Duration, what: &str, threads: impl IntoIterator<Item = JoinHandle<()>>) {
    let until = Instant::now() + patience;
    let mut left = 0;
    for thread in threads.into_iter().filter(|thread| thread.thread().id() != thread::current().id()) {
        while !thread.is_finished() && Instant::now() < until {
            thread::sleep(END_POLL);
        }
        if !thread.is_finished() {
            left += 1;
        } else if thread.join().is_err() {
            log::error!("a thread for {what} has panicked");
        }
    }
    if left > 0 {
        log::warn!("the mount ends beside {left} threads for {what} that wait for programs");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    use super::*;

    #[test]
    fn threads_are_waited_for_but_not_for_ever() {
        let ended = Arc::new(AtomicUsize::new(0));
        let (go, gone) = mpsc::channel::<()>();
        let stuck = thread::spawn(move || assert_eq!(gone.recv(), Ok(())));
        let slow = |_| {
            let ended = ended.clone();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(50));
                ended.fetch_add(1, Ordering::SeqCst);
            })
        };
        let threads: Vec<_> = (0..3).map(slow).collect();
        join_within(Duration::from_secs(20), "tests", threads);
        assert_eq!(ended.load(Ordering::SeqCst), 3);
        join_within(Duration::from_millis(30), "tests", [stuck]);
        assert!(go.send(()).is_ok(), "the thread has ended although nobody let it go");
    }
}
