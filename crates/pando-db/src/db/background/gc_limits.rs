//! How much one step of garbage collection looks at and changes.

use crate::{
    dag::{edit::Context, tree::Limits},
    db::engine::Engine,
};

/// Nodes that a step of a walk looks at, beside those on its way.
pub(super) const STEP_NODES: usize = 64;
/// Nodes that one edit of the garbage collector changes, a count. It is small because other threads may wait for the
/// end of the edit.
pub(super) const EDIT_NODES: usize = 32;

impl Engine {
    /// The context of the garbage collector, with smaller edits than others, so that threads that wait for one wait
    /// less.
    pub(super) fn gc_context(&self) -> Context<'_> {
        let cx = self.context();
        Context { limits: Limits { edit_nodes: cx.limits.edit_nodes.min(EDIT_NODES), ..cx.limits }, ..cx }
    }

    /// The context in an idle store: lower nodes count as tall.
    pub(super) fn idle_context(&self) -> Context<'_> {
        let cx = self.gc_context();
        Context { limits: Limits { tall: self.idle_levels(), ..cx.limits }, ..cx }
    }
}
