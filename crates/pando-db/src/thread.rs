//! A number for each thread, from 1 on, in the order in which they first ask. May use: nothing.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
};

/// The number of the calling thread.
pub(crate) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static MINE: Cell<u64> = const { Cell::new(0) };
    }
    let mine = MINE.get();
    if mine != 0 {
        return mine;
    }
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    MINE.set(next);
    next
}
