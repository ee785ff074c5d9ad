//! FUSE over io_uring: a queue for each CPU, and for each queue threads that take one request each.
//!
//! The kernel puts a request into the queue of the CPU that its caller runs on. A queue has *entries*, each with
//! space for one request; a request takes the entry that became free last. Here each entry belongs to a thread that
//! runs on the queue's CPU only and has a ring of its own: it commits an answer and waits for the next request in one
//! system call, and executes the request itself. So an answer wakes no thread on another CPU, and a request that
//! waits (for a device, a flush, a lock, the kernel) delays only its own thread. Guarantee: while requests wait,
//! there are further entries for others, also for requests that the waiting ones cause.
//!
//! One of the three modules of the crate with `unsafe` (the others are `client`
//! and `own_mount`): the kernel reads and writes the entries' memory.

#![allow(unsafe_code)]

use std::{
    io,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::JoinHandle,
};

use io_uring::{IoUring, cqueue, opcode, squeue, types::Fd};
use parking_lot::Mutex;
use rustix::{
    mm::{MapFlags, ProtFlags, mmap_anonymous, munmap},
    thread::{CpuSet, sched_setaffinity},
};
use zerocopy::{FromBytes, IntoBytes};

use crate::ending::{PATIENCE_AT_END, join_within};
use crate::transport::own::{
    device::Device,
    offer::new_ring,
    serve::{Reply, Request, Step, finish, serve},
    wire::{InHeader, OutHeader, op_size},
};
use crate::transport::{Handler, common::MAX_WRITE_BYTES};

/// Numbers of the commands of `IORING_OP_URING_CMD` on a descriptor of `/dev/fuse`.
const REGISTER: u32 = 1;
/// Another of these numbers.
const COMMIT_AND_FETCH: u32 = 2;

/// Entries that the queue of a CPU starts with, counts: of an online CPU of few and of many, and of an offline CPU.
const ONLINE_CPU_ENTRIES: usize = 8;
const MANY_CPUS_ENTRIES: usize = 4;
/// More online CPUs than this are many, a count.
const MANY_CPUS: usize = 16;
const OFFLINE_CPU_ENTRIES: usize = 1;
/// A queue with fewer idle threads than this gets another one, for requests that wait without saying so; a count.
const MIN_IDLE_ENTRIES: usize = 2;
/// Most entries of a queue, a count.
const MAX_QUEUE_ENTRIES: usize = 64;
/// Entries of a queue that requests which say that they wait never hold, a count: what they wait for
/// may be a request that needs an entry.
const SPARE_ENTRIES: usize = 2;

/// What the kernel writes before the payload: the request's header, the operation's, and its own.
#[repr(C)]
struct Headers {
    /// The header of the request, and later of the answer.
    request: [u8; 128],
    op: [u8; 128],
    flags: u64,
    /// What the answer has to name.
    commit_id: u64,
    /// Bytes of payload, of the request and later of the answer.
    payload: u32,
    padding: u32,
    reserved: u64,
}

/// The second part of a submission.
#[derive(IntoBytes, zerocopy::Immutable)]
#[repr(C)]
struct Command {
    flags: u64,
    commit_id: u64,
    queue: u16,
    padding: [u8; 6],
    unused: [u8; 56],
}

/// The memory of an entry.
struct Memory {
    headers: NonNull<Headers>,
    payload: NonNull<u8>,
    /// What registering names: address and length of the two.
    parts: Box<[libc::iovec; 2]>,
}

impl Memory {
    /// Bytes for payload, the least that the kernel accepts.
    const PAYLOAD_BYTES: usize = MAX_WRITE_BYTES as usize;

    fn new() -> io::Result<Self> {
        let headers = Box::new(Headers {
            request: [0; 128],
            op: [0; 128],
            flags: 0,
            commit_id: 0,
            payload: 0,
            padding: 0,
            reserved: 0,
        });
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let payload = unsafe {
            mmap_anonymous(std::ptr::null_mut(), Self::PAYLOAD_BYTES, protection, MapFlags::PRIVATE)
        }?;
        let headers = NonNull::from(Box::leak(headers));
        let payload = NonNull::new(payload.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let parts = Box::new([
            libc::iovec { iov_base: headers.as_ptr().cast(), iov_len: size_of::<Headers>() },
            libc::iovec { iov_base: payload.as_ptr().cast(), iov_len: Self::PAYLOAD_BYTES },
        ]);
        Ok(Self { headers, payload, parts })
    }

    /// The request's headers and the payload's memory.
    fn get(&mut self) -> (&mut Headers, &mut [u8]) {
        // SAFETY: both were allocated in `new` for this struct alone, with these sizes and types for
        // which every bit pattern is valid, and are freed in `drop`. The kernel writes to them, in the name of
        // the thread that owns this, only inside that thread's system calls on its ring, when no
        // borrow of `self` is alive.
        unsafe {
            (
                self.headers.as_mut(),
                std::slice::from_raw_parts_mut(self.payload.as_ptr(), Self::PAYLOAD_BYTES),
            )
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: made in `new` by these means and not freed since. The ring is gone (`EntryThread` says in
        // which order), so the kernel writes no more.
        unsafe {
            drop(Box::from_raw(self.headers.as_ptr()));
            let _ = munmap(self.payload.as_ptr().cast(), Self::PAYLOAD_BYTES);
        }
    }
}

/// The threads and entries of one CPU.
struct Queue {
    /// Number of the CPU, and of the queue.
    cpu: u16,
    /// Entries, each with its thread.
    entries: AtomicUsize,
    /// Entries without a request.
    idle: AtomicUsize,
    /// Entries whose request waits.
    waiting: AtomicUsize,
}

/// What the threads of all queues share.
struct RingState<H> {
    handler: Arc<H>,
    device: Arc<Device>,
    queues: Vec<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A thread that has been started, until its entry is registered.
struct StartingThread {
    /// When it has its ring and memory, and again when its entry is registered.
    progress: mpsc::Receiver<io::Result<()>>,
    /// Lets it register.
    go: mpsc::Sender<()>,
}

impl StartingThread {
    fn wait(&self) -> io::Result<()> {
        self.progress.recv().map_err(|_| io::Error::other("a thread of the transport has ended"))?
    }
}

/// The queues of a mount.
pub(super) struct Rings<H: Handler> {
    shared: Arc<RingState<H>>,
    starting: Vec<StartingThread>,
}

impl<H: Handler> Rings<H> {
    /// Makes rings and memory for all queues; nothing is said to the kernel's FUSE yet.
    pub(super) fn prepare(handler: Arc<H>, device: Arc<Device>) -> io::Result<Self> {
        let possible = cpus("possible")?.len();
        let online = cpus("online")?;
        let entries = if online.len() > MANY_CPUS { MANY_CPUS_ENTRIES } else { ONLINE_CPU_ENTRIES };
        let queues = (0..possible).map(|cpu| Queue {
            cpu: cpu as u16,
            entries: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
        });
        let shared =
            Arc::new(RingState { handler, device, queues: queues.collect(), threads: Mutex::default() });
        let mut starting = Vec::new();
        for cpu in 0..possible {
            for _ in 0..if online.contains(&cpu) { entries } else { OFFLINE_CPU_ENTRIES } {
                starting.push(shared.spawn(cpu)?);
            }
        }
        for thread in &starting {
            thread.wait()?;
        }
        Ok(Self { shared, starting })
    }

    /// Registers all entries. From the last on, requests come.
    pub(super) fn start(&mut self) -> io::Result<()> {
        for thread in self.starting.drain(..) {
            let _ = thread.go.send(());
            thread.wait()?;
        }
        Ok(())
    }

    /// Waits until all threads have ended, which they do when the file system is unmounted, as `ending` says.
    pub(super) fn join(&self) {
        loop {
            let threads = std::mem::take(&mut *self.shared.threads.lock());
            if threads.is_empty() {
                return;
            }
            join_within(PATIENCE_AT_END, "requests", threads);
        }
    }
}

/// Numbers of the CPUs in a list of the kernel's.
fn cpus(list: &str) -> io::Result<Vec<usize>> {
    let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{list}"))?;
    parse_cpus(text.trim()).ok_or_else(|| io::Error::other(format!("the kernel's list of CPUs: {text}")))
}

fn parse_cpus(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in list.split(',').filter(|r| !r.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        cpus.extend((first..=last).map(usize::from));
    }
    Some(cpus)
}

impl<H: Handler> RingState<H> {
    /// Starts a thread for `queue`.
    fn spawn(self: &Arc<Self>, queue: usize) -> io::Result<StartingThread> {
        let (tell, progress) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        let shared = self.clone();
        let name = format!("pando-queue-{queue}");
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let Some(queue) = shared.queues.get(queue) else { return };
            let mut entry_thread = match EntryThread::new(queue.cpu) {
                Ok(entry_thread) => entry_thread,
                Err(e) => return drop(tell.send(Err(e))),
            };
            let _ = tell.send(Ok(()));
            if gone.recv().is_err() {
                return;
            }
            queue.entries.fetch_add(1, Ordering::SeqCst);
            queue.idle.fetch_add(1, Ordering::SeqCst);
            let first = entry_thread.register(shared.device.raw());
            let failed = first.as_ref().err().map(|e| e.kind().into());
            let _ = tell.send(failed.map_or(Ok(()), Err));
            drop(tell);
            let ended = first.and_then(|first| entry_thread.run(&shared, queue, first));
            queue.idle.fetch_sub(1, Ordering::SeqCst);
            queue.entries.fetch_sub(1, Ordering::SeqCst);
            if let Err(e) = ended {
                log::error!("an entry for requests is lost: {e}");
            }
        })?;
        self.threads.lock().push(thread);
        Ok(StartingThread { progress, go })
    }

    /// Adds an entry to the queue, and returns when requests can come to it. False if it could not be added. `ino` is
    /// the inode of the request that the caller executes.
    ///
    /// The kernel gives the new entry none of the requests that are queued already. So this sends a request that
    /// changes nothing behind them: when the entry answers that, it gets the first of the queued ones.
    fn grow(self: &Arc<Self>, queue: &Queue, ino: u64) -> bool {
        let grown = self.spawn(usize::from(queue.cpu)).and_then(|thread| {
            thread.wait()?;
            let _ = thread.go.send(());
            thread.wait()
        });
        if let Err(e) = grown {
            log::warn!("no further thread for requests that wait: {e}");
            return false;
        }
        // The caller's entry is not to be counted on until that request is answered.
        queue.waiting.fetch_add(1, Ordering::SeqCst);
        let requested = self.device.request_no_op(ino);
        queue.waiting.fetch_sub(1, Ordering::SeqCst);
        if let (Err(e), false) = (requested, self.device.ended()) {
            log::warn!("requests may stand behind others that wait: {e}");
        }
        true
    }
}

/// Whether an entry is left that no request holds which waits.
fn has_spare(queue: &Queue) -> bool {
    queue.entries.load(Ordering::SeqCst) > queue.waiting.load(Ordering::SeqCst)
}

/// An entry of a queue, with the ring of the thread that serves it.
struct EntryThread {
    // Dropped in this order: without the ring the kernel has no use for the memory any more.
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    memory: Memory,
    cpu: u16,
    out: Vec<u8>,
}

impl EntryThread {
    /// For the thread that calls.
    fn new(cpu: u16) -> io::Result<Self> {
        let mut here = CpuSet::new();
        here.set(usize::from(cpu));
        // Where this CPU is offline, or not for this process, the thread runs elsewhere.
        if let Err(e) = sched_setaffinity(None, &here) {
            log::debug!("CPU {cpu}: {e}");
        }
        Ok(Self { ring: new_ring()?, memory: Memory::new()?, cpu, out: Vec::new() })
    }

    /// Puts a command into the ring.
    fn push(&mut self, fd: i32, what: u32, commit_id: u64) -> io::Result<()> {
        let command = Command { flags: 0, commit_id, queue: self.cpu, padding: [0; 6], unused: [0; 56] };
        let mut bytes = [0; 80];
        bytes.copy_from_slice(command.as_bytes());
        let parts = self.memory.parts.as_ptr() as u64;
        let mut entry = opcode::UringCmd80::new(Fd(fd), what).cmd(bytes).addr(Some(parts)).build();
        /// Where the field `len` of a submission is, bytes from its start: the number of parts, which the crate has
        /// no means to set.
        const LEN_AT: usize = 24;
        const { assert!(size_of::<squeue::Entry128>() == 128) };
        // SAFETY: the type is `repr(C)`, the kernel's submission of 128 bytes, in which a `u32` named
        // `len` is at byte 24; `write_unaligned` asks for no alignment.
        unsafe {
            (&raw mut entry)
                .cast::<u8>()
                .add(LEN_AT)
                .cast::<u32>()
                .write_unaligned(self.memory.parts.len() as u32);
        }
        // SAFETY: what the submission points to (the list of parts, and the memory they name) lives as
        // long as the ring.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }

    /// Registers the entry. If a request has come already, its result.
    fn register(&mut self, fd: i32) -> io::Result<Option<i32>> {
        self.push(fd, REGISTER, 0)?;
        loop {
            match self.ring.submit() {
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        match self.ring.completion().next().map(|done| done.result()) {
            Some(error) if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            result => Ok(result),
        }
    }

    /// Submits what was put into the ring, and waits for the next request.
    fn wait(&mut self) -> io::Result<i32> {
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
            if let Some(done) = self.ring.completion().next() {
                return Ok(done.result());
            }
        }
    }

    /// Serves requests until the file system is unmounted.
    fn run<H: Handler>(
        &mut self,
        shared: &Arc<RingState<H>>,
        queue: &Queue,
        first: Option<i32>,
    ) -> io::Result<()> {
        let mut result = match first {
            Some(result) => result,
            None => self.wait()?,
        };
        loop {
            match -result {
                0 => {}
                libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV => return Ok(()),
                // The mount ended while the request was worked on.
                libc::ENOENT if shared.device.ended() => return Ok(()),
                e => return Err(io::Error::from_raw_os_error(e)),
            }
            let idle = queue.idle.fetch_sub(1, Ordering::SeqCst) - 1;
            let more = idle < MIN_IDLE_ENTRIES && queue.entries.load(Ordering::SeqCst) < MAX_QUEUE_ENTRIES;
            let commit_id = self.answer(shared, queue, more);
            self.push(shared.device.raw(), COMMIT_AND_FETCH, commit_id)?;
            queue.idle.fetch_add(1, Ordering::SeqCst);
            result = self.wait()?;
        }
    }

    /// Works the request out and puts the answer where the kernel takes it from; what to name it by.
    /// With `more`, the queue gets a further entry first.
    fn answer<H: Handler>(&mut self, shared: &Arc<RingState<H>>, queue: &Queue, more: bool) -> u64 {
        let (headers, payload) = self.memory.get();
        let out = &mut self.out;
        let (unique, reply) = match InHeader::read_from_prefix(&headers.request) {
            Err(_) => (0, Reply::Error(libc::EIO)),
            Ok((header, _)) => {
                if more {
                    shared.grow(queue, header.nodeid);
                }
                let given = payload.get(..headers.payload as usize).unwrap_or_default();
                let agreed = shared.device.agreed();
                let op_size = op_size(header.opcode, agreed.long_setxattr);
                let op = headers.op.get(..op_size).unwrap_or_default();
                let step = serve(&*shared.handler, &Request { header, op, payload: given, agreed }, out);
                let reply = match step {
                    Step::Done(reply) => reply,
                    Step::Later(work) | Step::Here(work) => {
                        let waiting = queue.waiting.fetch_add(1, Ordering::SeqCst) + 1;
                        let room = queue.entries.load(Ordering::SeqCst) >= waiting + SPARE_ENTRIES;
                        // The last entry never waits: what it waits for could need an entry.
                        let reply = match room || shared.grow(queue, header.nodeid) || has_spare(queue) {
                            true => finish(work, out),
                            false => Reply::Error(libc::ENOMEM),
                        };
                        queue.waiting.fetch_sub(1, Ordering::SeqCst);
                        reply
                    }
                };
                (header.unique, reply)
            }
        };
        let data: &[u8] = match &reply {
            Reply::Buffer => out,
            Reply::Data(data) => data,
            Reply::None | Reply::Error(_) => &[],
        };
        let (error, len) = match (&reply, payload.get_mut(..data.len())) {
            (Reply::Error(e), _) => (-e, 0),
            (_, Some(room)) => {
                room.copy_from_slice(data);
                (0, data.len())
            }
            (_, None) => (-libc::EIO, 0),
        };
        let header = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique };
        if let Some(at) = headers.request.get_mut(..size_of::<OutHeader>()) {
            at.copy_from_slice(header.as_bytes());
        }
        headers.payload = len as u32;
        headers.commit_id
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn structs_are_as_large_as_the_kernels() {
        assert_eq!(size_of::<Headers>(), 288);
        assert_eq!(size_of::<Command>(), 80);
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(parse_cpus("0-1"), Some(vec![0, 1]));
        assert_eq!(parse_cpus("0,2-4,7"), Some(vec![0, 2, 3, 4, 7]));
        assert_eq!(parse_cpus("x"), None);
    }
}
