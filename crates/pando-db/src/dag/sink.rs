//! Sinking deletes: flushing what waits only because nothing pushed it, and
//! dropping what nothing shows, where that gives space back.
//!
//! A delete costs one message, and frees what it covers when it arrives there;
//! on its fringes, and after clones, nodes stay that show only part of what
//! they hold. A store that is idle after deletes, or short of space, does not
//! wait for later writes to carry deletes down and to rewrite such nodes. Never
//! into shared nodes: a private copy would take space (DESIGN 4.4, "never into
//! a node with count > 1"); what of those nothing shows is trimmed (`trim`).

use super::{edit::Edit, flush::is_void};
use crate::{
    error::Result,
    format::node::{Edge, NodeId},
};

impl Edit<'_> {
    /// Flushes edges at which deletes wait, from the root down, until the edit is large; whether
    /// there were any. I/O: headers of private interior nodes, and what a flush takes.
    pub fn sink_deletes(&mut self) -> Result<bool> {
        self.sink_below(self.root)
    }

    fn sink_below(&mut self, id: NodeId) -> Result<bool> {
        let mut any = false;
        let mut i = 0;
        while !self.is_large() {
            let node = self.load(id)?;
            let Some(edge) = node.edges().get(i) else { break };
            let private = edge.child.as_ref().is_none_or(|t| self.is_private(t.id));
            if private && (edge.loose || edge.holds_deletes()) {
                any = true;
                self.flush_edge(id, i)?;
            }
            // The flush may have replaced the edge, or merged it with a neighbour: look again.
            let node = self.load(id)?;
            if let Some(target) = node.edges().get(i).and_then(|e| e.child.as_ref())
                && self.height(target.id)? > 0
                && self.is_private(target.id)
            {
                let id_below = target.id;
                any |= self.sink_below(id_below)?;
                if is_void(&self.load(id_below)?) {
                    self.flush_edge(id, i)?;
                }
            }
            i += 1;
        }
        Ok(any)
    }
}

impl Edge {
    /// True if a delete of keys or ranges waits here.
    fn holds_deletes(&self) -> bool {
        self.layers.iter().any(|layer| {
            layer.ranges.iter().any(|r| r.target.is_none()) || layer.run.pages.iter().any(|p| p.deletes)
        })
    }
}
