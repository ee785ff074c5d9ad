//! The threads that read requests from `/dev/fuse`.
//!
//! One thread reads a request, answers it and reads the next: on few CPUs a request that changes threads costs more
//! than the work it asks for. Before that thread waits (for the device, for space, for a flush, or for a lock that is
//! held over one of these), the engine notifies it (`pando_fs::waiting`), and it gives up the *role* of the reader.
//! One of the idle threads watches the connection meanwhile: it takes the role if a request comes; otherwise the
//! thread that waited takes it back before it answers. So while one program reads a cold file, no other thread is
//! woken. If no thread watches, the role goes to another thread at once, idle or new. A thread that has lost its role
//! waits, answers, and takes a vacant role or becomes idle. So no request queues behind one that waits, and no thread
//! is woken as long as no request comes. Requests that may also wait for the kernel (`Step::Later`) go to the
//! workers. Requests that hardly ever do so (`Step::Here`) are executed by the thread itself after it has given up
//! the role, if another thread watches, which then reads the requests that this one waits for.
//!
//! Guarantees: there are as many roles as were asked for, and at most `MAX_WAITING_THREADS` more threads. If all of
//! them wait, the last one keeps the role and waits with it: requests then stay in the kernel's queue until one is
//! done. A thread that waits with a role never waits for another request, so this ends. A thread that panics outside
//! of a request ends the session with an error. When `Readers::serve` returns `Ok`, every request has been answered.

use std::{
    cell::Cell,
    io,
    rc::Rc,
    sync::Arc,
    thread::{self, JoinHandle},
};

use pando_fs::waiting;
use parking_lot::{Condvar, Mutex, MutexGuard};
use zerocopy::FromBytes;

use crate::counters::Counters;
use crate::transport::own::{
    buffers::{Buffers, REST, RequestBuffer},
    device::Device,
    serve::{Request, Step, finish, serve},
    watch::{Seen, Watch},
    wire::{self, op},
};
use crate::transport::{Handler, common::MAX_WORKERS, follow::Follower, poll::Poller, workers::Workers};

/// Threads besides those that read, a count: this many requests can wait at the same time without delaying others.
const MAX_WAITING_THREADS: usize = 64;
/// Idle threads that are kept for the next request that waits, a count. They have no buffer, which belongs to the
/// role. In a stream of large writes some tens of threads wait; with only 12 idle ones, each gigabyte started 200 new
/// threads.
const MAX_IDLE_THREADS: usize = 48;
/// Where a request came while a thread did work after it had left the role, so many works go to the workers, a count: a
/// program with parallel requests is served better by threads that keep their roles.
const HANDED_ON_WORKS: u32 = 256;

/// Reads requests and has them answered.
pub(super) struct Readers<H: Handler> {
    handler: Arc<H>,
    device: Arc<Device>,
    poller: Poller,
    follower: Follower,
    counters: Arc<Counters>,
    workers: Workers,
    /// Threads that read at the same time, a count.
    roles: usize,
    buffers: Buffers,
    /// Watches for requests while the thread that reads them waits. Only if one thread reads.
    watch: Option<Watch>,
    crew: Mutex<Crew>,
    vacancy: Condvar,
}

/// Whether one of the idle threads watches the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watcher {
    Absent,
    Present,
    /// Watching has failed.
    Impossible,
}

/// What a thread has to do with reading requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Another one reads.
    None,
    /// The thread reads requests.
    Reader,
    /// The thread has given up the role while it waits; this is the number of the wait.
    Left(u64),
}

/// What the threads are doing.
struct Crew {
    /// Vacant roles, each with the buffer to read into.
    vacant: Vec<RequestBuffer>,
    /// The number of the wait for which a thread has given up the role, as long as no other has taken it. The
    /// connection is watched meanwhile.
    left: Option<u64>,
    /// How often that was done.
    leaves: u64,
    watcher: Watcher,
    /// Works that go to the workers from now on.
    beside: u32,
    /// Threads that will take one: they sleep, or are being started.
    idle: usize,
    threads: usize,
    /// No thread could be started when one was wanted last.
    lacks_threads: bool,
    over: bool,
    /// Why it was over.
    result: io::Result<()>,
    handles: Vec<JoinHandle<()>>,
}

impl<H: Handler> Readers<H> {
    /// Threads that read at the same time are `roles`, at least one.
    pub(super) fn new(
        handler: Arc<H>,
        device: Arc<Device>,
        poller: Poller,
        counters: Arc<Counters>,
        roles: usize,
    ) -> Self {
        assert!(roles > 0, "nobody would read requests");
        let crew = Crew {
            vacant: Vec::new(),
            left: None,
            leaves: 0,
            watcher: Watcher::Absent,
            beside: 0,
            idle: 0,
            threads: 0,
            lacks_threads: false,
            over: false,
            result: Ok(()),
            handles: Vec::new(),
        };
        let workers = Workers::new(MAX_WORKERS);
        let watch = (roles == 1).then(Watch::new).and_then(|watch| {
            watch.inspect_err(|e| log::warn!("every request that waits has another thread woken: {e}")).ok()
        });
        Self {
            handler,
            device,
            poller,
            follower: Follower::new(roles, counters.clone()),
            counters,
            workers,
            roles,
            buffers: Buffers::default(),
            watch,
            crew: Mutex::new(crew),
            vacancy: Condvar::new(),
        }
    }

    /// Serves requests until the file system is unmounted, by this thread and others.
    pub(super) fn serve(self: &Arc<Self>) -> io::Result<()> {
        {
            let mut crew = self.crew.lock();
            for _ in 0..self.roles {
                crew.vacant.push(self.buffers.take()?);
            }
            for _ in 1..self.roles {
                self.start(&mut crew)?;
            }
            crew.threads += 1;
            crew.idle += 1;
        }
        Reader::new(self, true).run();
        let result = {
            let mut crew = self.crew.lock();
            std::mem::replace(&mut crew.result, Ok(()))
        };
        // After a failure other threads may still be reading, and the caller unmounts by force.
        result?;
        loop {
            let Some(thread) = self.crew.lock().handles.pop() else { return Ok(()) };
            let _ = thread.join();
        }
    }

    /// Starts a thread, which is idle first.
    fn start(self: &Arc<Self>, crew: &mut Crew) -> io::Result<()> {
        let shared = self.clone();
        let run = move || Reader::new(&shared, false).run();
        let handle = thread::Builder::new().name("pando-serve".into()).spawn(run)?;
        crew.handles.retain(|handle| !handle.is_finished());
        crew.handles.push(handle);
        crew.threads += 1;
        crew.idle += 1;
        Ok(())
    }

    /// Takes a role, as soon as there is one, and gives the memory to read into. `None`: it is over, or there are
    /// enough idle threads. The `first` thread stays to the end.
    fn take_role(&self, first: bool) -> Option<RequestBuffer> {
        let mut crew = self.crew.lock();
        // Counted as idle by the thread that started it, or by the loop below.
        loop {
            if crew.over {
                return None;
            }
            if let Some(buffer) = crew.vacant.pop() {
                crew.idle -= 1;
                return Some(buffer);
            }
            if crew.idle > MAX_IDLE_THREADS && !first {
                crew.idle -= 1;
                crew.threads -= 1;
                return None;
            }
            let rest = self.buffers.are_many().then_some(REST);
            if let Some(watch) = &self.watch
                && crew.watcher == Watcher::Absent
                && let Ok(buffer) = self.buffers.take()
            {
                crew.watcher = Watcher::Present;
                let seen = loop {
                    let seen = MutexGuard::unlocked(&mut crew, || watch.wait(rest));
                    // A role that was left is watched until it is taken, or taken back.
                    if !matches!(seen, Ok(Seen::Nothing)) || crew.left.is_none() || crew.over {
                        break seen;
                    }
                };
                // Whatever it was: if a role was left, it is right to take it.
                if !matches!(seen, Ok(Seen::Nothing)) && crew.left.take().is_some() {
                    self.unwatch(watch);
                    crew.watcher = Watcher::Absent;
                    crew.idle -= 1;
                    self.counters.handed_over();
                    return Some(buffer);
                }
                crew.watcher = Watcher::Absent;
                match seen {
                    Ok(Seen::Nothing) if rest.is_some() => self.buffers.rest(REST),
                    Ok(_) => {}
                    Err(e) => {
                        log::error!("from now on every request that waits has another thread woken: {e}");
                        crew.watcher = Watcher::Impossible;
                    }
                }
                continue;
            }
            if rest.is_none() {
                self.vacancy.wait(&mut crew);
            } else if self.vacancy.wait_for(&mut crew, REST).timed_out() {
                self.buffers.rest(REST);
            }
        }
    }

    /// Leaves the role of the calling thread, which is about to wait.
    fn leave(self: &Arc<Self>) -> Role {
        let mut crew = self.crew.lock();
        if let Some(watch) = &self.watch
            && crew.watcher == Watcher::Present
            && watch.begin(self.device.fd()).is_ok()
        {
            crew.leaves += 1;
            crew.left = Some(crew.leaves);
            return Role::Left(crew.leaves);
        }
        if self.hand_over(&mut crew) { Role::None } else { Role::Reader }
    }

    /// Gives up the role of the calling thread, for work that may wait for other requests, if another thread watches
    /// and would take it. Otherwise this starts a watcher for the next time.
    fn leave_to_watcher(self: &Arc<Self>) -> Option<u64> {
        let watch = self.watch.as_ref()?;
        let mut crew = self.crew.lock();
        if crew.beside > 0 {
            crew.beside -= 1;
            return None;
        }
        if crew.watcher == Watcher::Present {
            watch.begin(self.device.fd()).ok()?;
            crew.leaves += 1;
            crew.left = Some(crew.leaves);
            return Some(crew.leaves);
        }
        if crew.watcher == Watcher::Absent
            && crew.idle == 0
            && crew.threads < self.roles + MAX_WAITING_THREADS
        {
            // Without one the workers are asked every time.
            if let Err(e) = self.start(&mut crew) {
                log::debug!("nobody watches for requests: {e}");
            }
        }
        None
    }

    /// Takes the role back that the calling thread has given up, unless another thread has taken it. In that case,
    /// after work of `Step::Here`, such work goes to the workers for a while.
    fn take_back(&self, leave: u64, here: bool) -> Role {
        let mut crew = self.crew.lock();
        if crew.left != Some(leave) {
            if here {
                crew.beside = HANDED_ON_WORKS;
            }
            return Role::None;
        }
        crew.left = None;
        if let Some(watch) = &self.watch {
            self.unwatch(watch);
        }
        Role::Reader
    }

    /// To be called with the crew locked, so that the connection is watched exactly as long as a role is left.
    fn unwatch(&self, watch: &Watch) {
        if let Err(e) = watch.end(self.device.fd()) {
            log::error!("requests wake a thread that has nothing to do: {e}");
        }
    }

    /// Gives a role to another thread than the calling one; whether it could.
    fn hand_over(self: &Arc<Self>, crew: &mut Crew) -> bool {
        let lacks = |crew: &mut Crew, what: &str, e: io::Error| {
            if !std::mem::replace(&mut crew.lacks_threads, true) {
                log::warn!("requests stand behind one that waits: no further {what}: {e}");
            }
            false
        };
        // The one that watches does not look for vacant roles.
        let asleep = crew.idle.saturating_sub(usize::from(crew.watcher == Watcher::Present));
        if asleep <= crew.vacant.len() {
            if crew.threads >= self.roles + MAX_WAITING_THREADS {
                log::debug!("requests wait behind {MAX_WAITING_THREADS} others that wait");
                return false;
            }
            if let Err(e) = self.start(crew) {
                return lacks(crew, "thread", e);
            }
        }
        match self.buffers.take() {
            Ok(buffer) => crew.vacant.push(buffer),
            Err(e) => return lacks(crew, "memory", e),
        }
        crew.lacks_threads = false;
        self.counters.handed_over();
        self.vacancy.notify_one();
        true
    }

    /// Ends all threads, each when its request is answered.
    fn end(&self, result: io::Result<()>) {
        let mut crew = self.crew.lock();
        if crew.result.is_ok() {
            crew.result = result;
        }
        crew.over = true;
        self.vacancy.notify_all();
        if let Some(Err(e)) = self.watch.as_ref().map(Watch::close) {
            log::error!("a thread that watches for requests goes on: {e}");
        }
    }
}

/// One of the threads.
struct Reader<H: Handler> {
    shared: Arc<Readers<H>>,
    first: bool,
    /// Whether this thread has the role. Shared with the callback that is called before a wait.
    role: Rc<Cell<Role>>,
    /// Memory that the last request was read into, until it is answered by a thread that has no role any more.
    buffer: Option<RequestBuffer>,
    out: Vec<u8>,
}

impl<H: Handler> Reader<H> {
    /// For the thread that calls.
    fn new(shared: &Arc<Readers<H>>, first: bool) -> Self {
        let role = Rc::new(Cell::new(Role::None));
        let (mine, readers) = (role.clone(), shared.clone());
        waiting::on_wait(Some(Box::new(move || {
            if mine.get() == Role::Reader {
                mine.set(readers.leave());
            }
        })));
        Self { shared: shared.clone(), first, role, buffer: None, out: Vec::new() }
    }

    fn run(&mut self) {
        loop {
            if self.role.get() == Role::None {
                let Some(buffer) = self.shared.take_role(self.first) else { return };
                self.buffer = Some(buffer);
                self.role.set(Role::Reader);
                self.shared.poller.begin();
            }
            let (poller, device) = (&self.shared.poller, &self.shared.device);
            let buffer = self.buffer.as_deref_mut().unwrap_or_default();
            let read = poller.poll(|| device.try_read(buffer));
            let polled = read.is_some();
            match read.unwrap_or_else(|| device.read(buffer)) {
                Ok(Some(n)) => {
                    if let Err(e) = self.answer(n, polled) {
                        return self.shared.end(Err(e));
                    }
                }
                Ok(None) => return self.shared.end(Ok(())),
                Err(e) => return self.shared.end(Err(e)),
            }
            if self.role.get() == Role::None {
                self.buffer = None;
                self.shared.crew.lock().idle += 1;
            }
        }
    }

    /// Answers the request that is in the first `n` bytes of the buffer, or has a worker do it.
    fn answer(&mut self, n: usize, polled: bool) -> io::Result<()> {
        self.shared.poller.came();
        let bytes = self.buffer.as_deref().and_then(|buffer| buffer.get(..n)).unwrap_or_default();
        let Ok((header, rest)) = wire::InHeader::read_from_prefix(bytes) else {
            return Err(io::Error::other("the kernel sent a request without a header"));
        };
        let device = &self.shared.device;
        let agreed = device.agreed();
        let op_size = wire::op_size(header.opcode, agreed.long_setxattr);
        let (op, payload) = rest.split_at(op_size.min(rest.len()));
        let mut answered = !matches!(header.opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT);
        let request = Request { header, op, payload, agreed };
        let mut step = serve(&*self.shared.handler, &request, &mut self.out);
        let here = matches!(step, Step::Here(_));
        if let Step::Here(work) = step {
            if self.role.get() == Role::Reader
                && let Some(leave) = self.shared.leave_to_watcher()
            {
                self.role.set(Role::Left(leave));
            }
            step = match self.role.get() {
                Role::Reader => Step::Here(work),
                // Others read what it may wait for.
                Role::Left(_) | Role::None => Step::Done(finish(work, &mut self.out)),
            };
        }
        // Before the answer, on which the next request may follow.
        if let Role::Left(leave) = self.role.get() {
            self.role.set(self.shared.take_back(leave, here));
        }
        if answered && self.role.get() == Role::Reader {
            self.shared.follower.answering(header.pid, polled);
        }
        match step {
            Step::Done(reply) => device.reply(header.unique, &reply, &self.out),
            Step::Later(work) | Step::Here(work) => {
                answered = false;
                self.shared.counters.by_worker();
                let device = device.clone();
                self.shared.workers.run(header.uid, move || {
                    let mut out = Vec::new();
                    let reply = finish(work, &mut out);
                    device.reply(header.unique, &reply, &out);
                });
            }
        }
        if answered && self.role.get() == Role::Reader {
            self.shared.poller.answered();
        }
        Ok(())
    }
}

impl<H: Handler> Drop for Reader<H> {
    fn drop(&mut self) {
        waiting::on_wait(None);
        if thread::panicking() {
            self.shared.end(Err(io::Error::other("a thread that reads requests panicked")));
        }
    }
}
