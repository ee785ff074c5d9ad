//! How many requests of each kind the kernel sent: cheap enough to be always on.

use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of the FUSE protocol
pub enum Kind {
    Lookup,
    Getattr,
    Setattr,
    Readlink,
    Mknod,
    Mkdir,
    Symlink,
    Unlink,
    Rmdir,
    Rename,
    Create,
    Open,
    Read,
    Write,
    Release,
    Fsync,
    Opendir,
    Readdir,
    Statfs,
    Copy,
    Ioctl,
    Releasedir,
    Link,
    Setxattr,
    Getxattr,
    Listxattr,
    Removexattr,
    Fallocate,
    Lseek,
    Access,
    Statx,
    /// What is answered with `ENOSYS`: the kernel asks once, and then answers itself.
    Unsupported,
}

/// Names in the order of [`Kind`].
const NAMES: [&str; 32] = [
    "lookup",
    "getattr",
    "setattr",
    "readlink",
    "mknod",
    "mkdir",
    "symlink",
    "unlink",
    "rmdir",
    "rename",
    "create",
    "open",
    "read",
    "write",
    "release",
    "fsync",
    "opendir",
    "readdir",
    "statfs",
    "copy",
    "ioctl",
    "releasedir",
    "link",
    "setxattr",
    "getxattr",
    "listxattr",
    "removexattr",
    "fallocate",
    "lseek",
    "access",
    "statx",
    "unsupported",
];

/// Requests since the mount, by kind, and what polling for them did.
#[derive(Debug)]
pub struct Counters {
    kinds: [AtomicU64; NAMES.len()],
    caught: AtomicU64,
    missed: AtomicU64,
    yielded: AtomicU64,
    put_off: AtomicU64,
    followed: AtomicU64,
    held_awake: AtomicU64,
    handed_over: AtomicU64,
    by_worker: AtomicU64,
}

/// What polling for requests did since the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Polling {
    /// Requests that came while the thread that reads them was polling.
    pub caught: u64,
    /// How often it polled in vain, and went to sleep.
    pub missed: u64,
    /// How often polling left the CPU to another program for a while.
    pub yielded: u64,
    /// How often polling was put off for some requests, because it had found nothing again.
    pub put_off: u64,
    /// How often the thread moved to the CPU of the program whose request it answered.
    pub followed: u64,
    /// How often it began to keep idle CPUs from halting.
    pub held_awake: u64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            kinds: [const { AtomicU64::new(0) }; NAMES.len()],
            caught: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            yielded: AtomicU64::new(0),
            put_off: AtomicU64::new(0),
            followed: AtomicU64::new(0),
            held_awake: AtomicU64::new(0),
            handed_over: AtomicU64::new(0),
            by_worker: AtomicU64::new(0),
        }
    }
}

impl Counters {
    pub(crate) fn count(&self, kind: Kind) {
        if let Some(n) = self.kinds.get(kind as usize) {
            n.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests of one kind.
    pub fn get(&self, kind: Kind) -> u64 {
        self.kinds.get(kind as usize).map_or(0, |n| n.load(Ordering::Relaxed))
    }

    pub(crate) fn caught(&self) {
        self.caught.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn missed(&self) {
        self.missed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn yielded(&self) {
        self.yielded.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn put_off(&self) {
        self.put_off.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn followed(&self) {
        self.followed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn held_awake(&self) {
        self.held_awake.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn handed_over(&self) {
        self.handed_over.fetch_add(1, Ordering::Relaxed);
    }

    /// How often a thread that was about to wait gave the reading of requests to another.
    pub fn handovers(&self) -> u64 {
        self.handed_over.load(Ordering::Relaxed)
    }

    pub(crate) fn by_worker(&self) {
        self.by_worker.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests that another thread was woken for, as they may wait for the kernel.
    pub fn answered_by_workers(&self) -> u64 {
        self.by_worker.load(Ordering::Relaxed)
    }

    /// What polling for requests did.
    pub fn polling(&self) -> Polling {
        Polling {
            caught: self.caught.load(Ordering::Relaxed),
            missed: self.missed.load(Ordering::Relaxed),
            yielded: self.yielded.load(Ordering::Relaxed),
            put_off: self.put_off.load(Ordering::Relaxed),
            followed: self.followed.load(Ordering::Relaxed),
            held_awake: self.held_awake.load(Ordering::Relaxed),
        }
    }

    /// (name, requests) of all kinds.
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        NAMES.iter().zip(&self.kinds).map(|(&name, n)| (name, n.load(Ordering::Relaxed))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_kinds() {
        let c = Counters::default();
        c.count(Kind::Lookup);
        c.count(Kind::Unsupported);
        c.count(Kind::Unsupported);
        let all = c.all();
        assert_eq!(all.first(), Some(&("lookup", 1)));
        assert_eq!(all.last(), Some(&("unsupported", 2)));
        assert_eq!(c.get(Kind::Unsupported), 2);
    }
}
