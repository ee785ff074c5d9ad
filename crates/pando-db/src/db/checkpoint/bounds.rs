//! Bounds of key lengths that a checkpoint makes lower.
//!
//! A node that is not written anew when long keys below it go keeps its bound, and clones that it does not admit have
//! to search. Guarantees: no bound gets too small. May use: the tree as it is, and headers. Reads, but not under the
//! superversion's lock.

use std::sync::{Arc, atomic::Ordering};

use crate::{dag::longest::tighter_bounds, db::engine::Engine};

/// Nodes that a checkpoint looks at to lower bounds.
const MAX_TIGHTENED: usize = 1024;

impl Engine {
    /// Lowers bounds that are higher than need be, if any has made a search necessary since the store was opened.
    /// I/O: headers of interior nodes with long keys, as far as they are not cached.
    pub(crate) fn tighten_bounds(&self) {
        if self.counters.length_searches.load(Ordering::Relaxed) == 0 {
            return;
        }
        let tree = self.superversion.read().tree.clone();
        let tighter = tighter_bounds(&tree, &self.pager, MAX_TIGHTENED);
        drop(tree);
        if !tighter.is_empty() {
            self.change(|superversion| {
                let tree = Arc::make_mut(&mut superversion.tree);
                tighter.iter().for_each(|node| node.apply(&mut tree.table));
            });
        }
    }
}
