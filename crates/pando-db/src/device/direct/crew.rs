//! The threads that carry out writes that have returned. They are started with the first such write, and end with the
//! file, when everything is written. May use: the queue of writes ([`Behind`]).

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
};

use parking_lot::Condvar;

use crate::{
    device::direct::{Raw, behind::Behind},
    locks::Mutex,
};

/// Requests that are in flight at a time: what a disk behind a network or with several channels needs to be busy.
const THREADS: usize = 3;

#[derive(Default)]
struct Queue {
    /// Writes that wait in [`Behind`] and that no thread has turned to.
    waiting: usize,
    over: bool,
    /// Threads that wait for work.
    idle: usize,
}

struct Shared {
    raw: Arc<Raw>,
    behind: Arc<Behind>,
    queue: Mutex<Queue>,
    more: Condvar,
}

pub(super) struct Crew {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Crew({})", self.threads.lock().len())
    }
}

impl Crew {
    pub(super) fn new(raw: Arc<Raw>, behind: Arc<Behind>) -> Self {
        let shared = Shared { raw, behind, queue: Mutex::default(), more: Condvar::new() };
        Self { shared: Arc::new(shared), threads: Mutex::default() }
    }

    /// Has the oldest write of [`Behind`] done, by this very thread if there is no other.
    pub(super) fn write(&self) {
        let mut queue = self.shared.queue.lock();
        if queue.idle <= queue.waiting && !self.grow() {
            drop(queue);
            self.shared.behind.write_one(&self.shared.raw);
            return;
        }
        queue.waiting += 1;
        drop(queue);
        self.shared.more.notify_one();
    }

    /// Starts a thread if there may be one more; whether there is any.
    fn grow(&self) -> bool {
        let mut threads = self.threads.lock();
        if threads.len() < THREADS {
            let shared = self.shared.clone();
            let thread = thread::Builder::new().name("pando-device".into()).spawn(move || serve(&shared));
            threads.extend(thread);
        }
        !threads.is_empty()
    }
}

fn serve(shared: &Shared) {
    let mut queue = shared.queue.lock();
    loop {
        match queue.waiting {
            1.. => {
                queue.waiting -= 1;
                drop(queue);
                shared.behind.write_one(&shared.raw);
                queue = shared.queue.lock();
            }
            0 if queue.over => return,
            0 => {
                queue.idle += 1;
                shared.more.wait(&mut queue);
                queue.idle -= 1;
            }
        }
    }
}

impl Drop for Crew {
    /// What waits to be written is written.
    fn drop(&mut self) {
        self.shared.queue.lock().over = true;
        self.shared.more.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            _ = thread.join();
        }
    }
}
