//! The pages of large values that were written last, and not read since. A program that writes much data at once
//! seldom reads it again soon, and for a mount the kernel caches it anyway. Such pages would fill the cache with new
//! memory, which costs more than the rest of a write. So their memory may be bounded, as 2Q has one for pages that
//! were asked for once (Johnson and Shasha, VLDB 1994, `A1in`).
//!
//! Pages of a value or two are those of a large file. Of these much comes at once, and it costs one request to read
//! many of them, so they have an eighth of the bound, and the rest is left to pages of many values.
//!
//! Guarantees: the pages that have been noted and have not fallen out take no more than the bound, apart from the ones
//! noted last. May use: names of pages.

use std::collections::VecDeque;

use crate::{locks::Mutex, store::cache_key::CacheKey};

/// Part (1/n) of the bound for pages of [`FEW_VALUES`] or fewer.
const LARGE_SHARE: u64 = 8;
/// Values of a page that is part of something large, a count.
const FEW_VALUES: usize = 2;

/// The order in which pages were written, with their memory in bytes.
pub(super) struct Written {
    most_bytes: u64,
    /// The order of pages of many values, and that of pages of few.
    orders: [Mutex<Order>; 2],
}

#[derive(Default)]
struct Order {
    pages: VecDeque<(CacheKey, u64)>,
    bytes: u64,
}

impl Written {
    /// For so much memory at most.
    pub fn new(most_bytes: u64) -> Self {
        Self { most_bytes, orders: Default::default() }
    }

    /// Notes a page that was just written, of so many values and so much memory: those that are one too many now,
    /// oldest first.
    pub fn note(&self, key: CacheKey, values: usize, bytes: u64) -> Vec<CacheKey> {
        let large = self.most_bytes / LARGE_SHARE;
        let [many, few] = &self.orders;
        let (order, most) = if values > FEW_VALUES { (many, self.most_bytes - large) } else { (few, large) };
        let mut order = order.lock();
        order.pages.push_back((key, bytes));
        order.bytes += bytes;
        let mut fallen = Vec::new();
        while order.bytes > most && order.pages.len() > 1 {
            let Some((key, bytes)) = order.pages.pop_front() else { break };
            assert!(order.bytes >= bytes, "a page falls out that was not counted");
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
        let key = |offset| CacheKey { extent: 1, offset };
        for (values, most) in [(FEW_VALUES, 100), (FEW_VALUES + 1, 700)] {
            let written = Written::new(800);
            let note = |offset, bytes| written.note(key(offset), values, bytes);
            assert!(note(0, most - 40).is_empty());
            assert!(note(1, 40).is_empty());
            assert_eq!(note(2, 1), [key(0)]);
            assert_eq!(note(3, 1000), [key(1), key(2)]);
            assert_eq!(note(4, 1), [key(3)]);
            assert!(note(5, most - 1).is_empty());
        }
    }

    #[test]
    fn large_files_leave_small_values_their_room() {
        let written = Written::new(800);
        let key = |offset| CacheKey { extent: 1, offset };
        assert!(written.note(key(0), FEW_VALUES + 1, 500).is_empty());
        assert!(written.note(key(1), 1, 90).is_empty());
        assert_eq!(written.note(key(2), 1, 90), [key(1)]);
        assert!(written.note(key(3), FEW_VALUES + 1, 200).is_empty());
    }
}
