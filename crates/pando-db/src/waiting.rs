//! Announcements: a thread can register a function that is called before the thread waits in a call.
//!
//! A server that runs many calls on few threads can then continue with other calls on another thread. A thread
//! registers its function once ([`on_wait`]). The engine calls it ([`announce`]) before each wait that may be long: a
//! request to the device, a wait for space, for a flush, for a read of another thread, or for a lock that is held
//! over any of these. It may be called in vain (the device answers from memory), and several times in a call. Threads
//! without such a function pay for a check of a thread-local variable.
//!
//! Waits that last only as long as a change in memory are not announced. May use: nothing.

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

/// Announces that this thread is about to wait. Called by the engine, and by programs on top of it before a wait for
/// a thread that may itself wait for the engine.
pub fn announce() {
    // Not while the thread ends, nor from inside the registered function.
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

    /// Counts the announcements of this thread.
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
