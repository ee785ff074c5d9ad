//! The list of files with holes whose maps are in memory, and the bound of their memory.
//!
//! The maps themselves are in the inodes. A caller that puts one there notes it here, and gets the inodes whose maps
//! it has to drop. Maps that are in use at that moment, and the newest one, may exceed the bound.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use crate::types::Ino;

/// The maps in memory.
#[derive(Debug)]
pub(crate) struct KeptMaps {
    /// What they may take, bytes.
    most: u64,
    state: Mutex<KeptState>,
}

#[derive(Debug, Default)]
struct KeptState {
    /// What each takes, bytes.
    of: HashMap<Ino, u64>,
    /// The same inode numbers, the oldest first.
    order: VecDeque<Ino>,
    sum: u64,
}

impl KeptState {
    fn put(&mut self, ino: Ino, bytes: u64) {
        match self.of.insert(ino, bytes) {
            Some(before) => self.sum = self.sum.saturating_sub(before),
            None => self.order.push_back(ino),
        }
        self.sum = self.sum.saturating_add(bytes);
    }
}

impl KeptMaps {
    pub(crate) fn new(most: u64) -> Self {
        Self { most, state: Mutex::default() }
    }

    /// Notes that the map of an inode is in memory. Returns the inodes whose maps the caller has to drop; they are
    /// not in the list any more, and may have left memory already.
    pub(crate) fn note(&self, ino: Ino, bytes: u64) -> Vec<Ino> {
        let mut state = self.state.lock();
        state.put(ino, bytes);
        let mut going = Vec::new();
        for _ in 0..state.order.len() {
            if state.sum <= self.most {
                break;
            }
            let Some(first) = state.order.pop_front() else { break };
            if first == ino {
                state.order.push_back(first);
            } else if let Some(bytes) = state.of.remove(&first) {
                state.sum = state.sum.saturating_sub(bytes);
                going.push(first);
            }
        }
        going
    }

    /// Notes that the map of one that was to go is in use, and stays.
    pub(crate) fn note_again(&self, ino: Ino, bytes: u64) {
        self.state.lock().put(ino, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_go_when_all_take_too_much_and_the_last_stays() {
        let maps = KeptMaps::new(100);
        assert_eq!((maps.note(1, 40), maps.note(2, 40)), (vec![], vec![]));
        assert_eq!(maps.note(1, 60), [], "the same once more");
        assert_eq!(maps.note(3, 30), [1]);
        maps.note_again(1, 60);
        assert_eq!(maps.note(4, 1), [2]);
        assert_eq!(maps.note(5, 1000), [3, 1, 4]);
        assert_eq!(maps.note(5, 2000), []);
        assert_eq!(maps.note(6, 1), [5]);
    }
}
