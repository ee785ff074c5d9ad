//! Tells a thread that a call of it is about to wait, before it does.
//!
//! Whoever runs many calls on few threads, as a server does, can then let another thread go on with the others. A
//! thread says once what it wants to be told ([`on_wait`]), and is told in its own calls ([`announce`]) before each
//! that may last: a request to the device, a wait for room, for a flush, for what another thread reads, or for a lock
//! that is held over any of these. It may be told in vain (the device answers from memory), and several times in a
//! call. Threads that asked for nothing pay the look at a thread-local variable.
//!
//! Guarantees nothing about waits that last no longer than a change in memory. May use: nothing.

use std::cell::RefCell;

/// What a thread wants to be called before it waits.
type Told = Box<dyn Fn()>;

thread_local! {
    static TOLD: RefCell<Option<Told>> = const { RefCell::new(None) };
}

/// From now on `told` is called on this thread before each wait in it; with `None` nothing is.
///
/// It is called with locks of the engine held, so it must neither wait nor call the engine.
pub fn on_wait(told: Option<Box<dyn Fn()>>) {
    TOLD.with(|mine| mine.replace(told));
}

/// Says that this thread is about to wait. To be called by the engine, and by what is built on it where it waits for
/// somebody who may be waiting for the engine.
pub fn announce() {
    // Neither while the thread ends nor from inside of what is told.
    let _ended = TOLD.try_with(|mine| {
        if let Ok(told) = mine.try_borrow()
            && let Some(told) = &*told
        {
            told();
        }
    });
}

/// What `attempt` gives; otherwise what `wait` gives, which is announced. For locks: `try_lock` and `lock`.
pub fn take<T>(attempt: impl FnOnce() -> Option<T>, wait: impl FnOnce() -> T) -> T {
    attempt().unwrap_or_else(|| {
        announce();
        wait()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{cell::Cell, rc::Rc, sync::Arc};

    use parking_lot::Mutex;

    use super::*;
    use crate::{
        CreateOptions, Db, Options,
        device::{DeviceCall, HookedDevice, MemDevice},
    };

    /// Counts what this thread is told.
    fn counted() -> Rc<Cell<u32>> {
        let told = Rc::new(Cell::new(0));
        let to = told.clone();
        on_wait(Some(Box::new(move || to.set(to.get() + 1))));
        told
    }

    #[test]
    fn only_the_thread_that_asked_is_told_and_only_when_it_waits() {
        announce();
        let told = counted();
        announce();
        std::thread::spawn(announce).join().unwrap();
        let lock = Mutex::new(7);
        assert_eq!(*take(|| lock.try_lock(), || lock.lock()), 7);
        assert_eq!(told.get(), 1, "nothing was waited for");
        assert_eq!(take(|| None, || 8), 8);
        assert_eq!(told.get(), 2);
        on_wait(None);
        announce();
        assert_eq!(told.get(), 2);
    }

    #[test]
    fn each_call_of_the_device_is_announced_before_it_is_made() {
        thread_local! {
            static CALLS: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
        }
        let below = Arc::new(MemDevice::new(64 << 20));
        let device = Arc::new(HookedDevice::new(below, true, |call: &DeviceCall| {
            // Whatever this thread asks of the device, it was told of before.
            let (told, calls) = CALLS.get();
            CALLS.set((told, calls + 1));
            assert!(told > calls || told == 0, "{call:?} was not announced");
            Ok(())
        }));
        Db::create(device.clone(), &CreateOptions::default(), &Options::default()).unwrap();
        let db = Db::open(device.clone(), Options::default()).unwrap();
        for i in 0..2000u32 {
            db.put(i.to_be_bytes().to_vec(), vec![i as u8; 1000]).unwrap();
        }
        db.close().unwrap();
        drop(db);
        let db = Db::open(device, Options::default()).unwrap();
        CALLS.set((0, 0));
        on_wait(Some(Box::new(|| {
            let (told, calls) = CALLS.get();
            CALLS.set((told + 1, calls));
        })));
        assert_eq!(db.get(&7u32.to_be_bytes()).unwrap().unwrap().len(), 1000);
        let (told, calls) = CALLS.get();
        assert!(calls > 0 && told >= calls, "told {told} times of {calls} calls");
        // What is in memory is not announced.
        db.get(&7u32.to_be_bytes()).unwrap();
        assert_eq!(CALLS.get(), (told, calls));
        // A first write may reserve space; from then on only the flush waits.
        db.put("a", "b").unwrap();
        let (told, _) = CALLS.get();
        db.put("a", "c").unwrap();
        assert_eq!(CALLS.get().0, told);
        db.sync().unwrap();
        assert!(CALLS.get().0 > told, "a flush was not announced");
        on_wait(None);
    }
}
