//! Which pages of large values were written last, and not read since.
//! A program that writes much in one go seldom reads it again soon, and in a mount the kernel keeps it anyway. Such
//! pages would fill the cache with memory that is new to the process, which costs more than the rest of a write. So
//! they may have a bound, as 2Q has one for pages that were asked for once (Johnson and Shasha, VLDB 1994, `A1in`).
//!
//! Guarantees: the pages that have been noted and have not fallen out take no more than the bound, apart from the one
//! noted last. May use: names of pages.

use std::collections::VecDeque;

use parking_lot::Mutex;

use crate::store::cache_key::CacheKey;

/// The order in which pages were written, with their memory in bytes.
pub(super) struct Written {
    most_bytes: u64,
    order: Mutex<Order>,
}

#[derive(Default)]
struct Order {
    pages: VecDeque<(CacheKey, u64)>,
    bytes: u64,
}

impl Written {
    /// For so much memory at most.
    pub fn new(most_bytes: u64) -> Self {
        Self { most_bytes, order: Mutex::default() }
    }

    /// Notes a page that was just written, of so much memory: those that are one too many now, oldest first.
    pub fn note(&self, key: CacheKey, bytes: u64) -> Vec<CacheKey> {
        let mut order = self.order.lock();
        order.pages.push_back((key, bytes));
        order.bytes += bytes;
        let mut fallen = Vec::new();
        while order.bytes > self.most_bytes && order.pages.len() > 1 {
            let Some((key, bytes)) = order.pages.pop_front() else { break };
            order.bytes -= bytes;
            fallen.push(key);
        }
        fallen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_fall_out_and_the_last_stays() {
        let written = Written::new(100);
        let key = |offset| CacheKey { extent: 1, offset };
        assert!(written.note(key(0), 60).is_empty());
        assert!(written.note(key(1), 40).is_empty());
        assert_eq!(written.note(key(2), 1), [key(0)]);
        assert_eq!(written.note(key(3), 1000), [key(1), key(2)]);
        assert_eq!(written.note(key(4), 1), [key(3)]);
        assert!(written.note(key(5), 99).is_empty());
    }
}
