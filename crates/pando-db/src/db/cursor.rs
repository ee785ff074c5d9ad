//! Cursors and snapshots: consistent reads that last as long as one holds them.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;

use super::engine::Engine;
use crate::{
    dag::{
        ahead::Ahead,
        scan::{Direction, Scanner},
        view::View,
    },
    error::Result,
    key::Span,
};

/// A consistent view of the store that later changes do not affect.
///
/// Holding one keeps what it can reach from being freed, and costs nothing else.
#[derive(Clone)]
pub struct Snapshot {
    pub(super) engine: Arc<Engine>,
    pub(super) view: Arc<View>,
}

impl Snapshot {
    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        self.view.get(key, &self.engine.pager, &*self.engine.merge)
    }

    /// The pairs in `[lo, hi)` (`None`: no upper bound), in order, from either end.
    pub fn range(&self, lo: &[u8], hi: Option<&[u8]>) -> Cursor {
        let rest = Span::new(Bytes::copy_from_slice(lo), hi.map(Bytes::copy_from_slice));
        Cursor {
            snapshot: self.clone(),
            rest: Some(rest).filter(|r| !r.is_empty()),
            front: VecDeque::new(),
            back: VecDeque::new(),
            ahead: Ahead::default(),
        }
    }

    /// The pairs whose keys begin with `prefix`.
    pub fn prefix(&self, prefix: &[u8]) -> Cursor {
        self.range(prefix, crate::key::successor(prefix).as_deref())
    }
}

/// The pairs of a range in key order, as of the moment the cursor was made. `next` reads from the
/// low end, `next_back` from the high one. After an error the cursor ends.
pub struct Cursor {
    snapshot: Snapshot,
    /// What neither end has read.
    rest: Option<Span>,
    front: VecDeque<(Bytes, Bytes)>,
    back: VecDeque<(Bytes, Bytes)>,
    ahead: Ahead,
}

impl Cursor {
    /// Reads windows from one end until one holds pairs.
    fn fill(&mut self, direction: Direction) -> Result<()> {
        while let Some(rest) = self.rest.take() {
            let engine = &self.snapshot.engine;
            let scanner = Scanner { view: &self.snapshot.view, pager: &engine.pager, merge: &*engine.merge };
            let (window, pairs) = scanner.window(&rest, direction, &mut self.ahead)?;
            assert!(rest.covers(&window) && !window.is_empty(), "a window must be part of what is left");
            let (below, above) = rest.without(&window);
            self.rest = match direction {
                Direction::Forward => above,
                Direction::Backward => below,
            };
            if !pairs.is_empty() {
                match direction {
                    // It was empty, or nobody would have asked.
                    Direction::Forward => self.front = pairs.into(),
                    Direction::Backward => {
                        for pair in pairs.into_iter().rev() {
                            self.back.push_back(pair);
                        }
                    }
                }
                break;
            }
        }
        Ok(())
    }
}

impl Iterator for Cursor {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.front.is_empty()
            && let Err(error) = self.fill(Direction::Forward)
        {
            return Some(Err(error));
        }
        // Where the two ends have met, what the other one fetched is left.
        self.front.pop_front().or_else(|| self.back.pop_back()).map(Ok)
    }
}

impl DoubleEndedIterator for Cursor {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.back.is_empty()
            && let Err(error) = self.fill(Direction::Backward)
        {
            return Some(Err(error));
        }
        self.back.pop_front().or_else(|| self.front.pop_back()).map(Ok)
    }
}
