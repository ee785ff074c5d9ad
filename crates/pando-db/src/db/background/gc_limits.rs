//! How much one step of garbage collection looks at and changes.

use crate::{
    dag::{edit::Context, tree::Limits},
    db::engine::Engine,
};

/// Nodes that a step of a walk looks at, beside those on its way.
pub(super) const STEP_NODES: usize = 64;
/// Nodes that one edit of garbage collection changes before it leaves the rest to the next: others may wait
/// for its end.
pub(super) const EDIT_NODES: usize = 32;

impl Engine {
    /// What garbage collection works with: smaller edits than others, so that whoever waits for one waits for
    /// less.
    pub(super) fn gc_context(&self) -> Context<'_> {
        let cx = self.context();
        Context { limits: Limits { edit_nodes: cx.limits.edit_nodes.min(EDIT_NODES), ..cx.limits }, ..cx }
    }

    /// The same while nothing else is to be done: less counts as tall.
    pub(super) fn idle_context(&self) -> Context<'_> {
        let cx = self.gc_context();
        Context { limits: Limits { tall: self.idle_levels(), ..cx.limits }, ..cx }
    }
}
