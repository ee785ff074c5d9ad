//! Batches that expect values of keys: compare-and-set.
//!
//! Whether a key has the expected value may take I/O, and the superversion's lock is never held over I/O. So a batch
//! watches its keys from the moment at which it takes the view that it looks them up in, and is applied only
//! if no batch has changed one of them since; else it looks again.
//!
//! Guarantees: check and batch are one atomic step; a repetition means that another batch has changed a
//! watched key, so somebody always gets on. May use: the superversion, views, watches. Reads, but never under a
//! lock.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    dag::read::view::View,
    db::engine::{Engine, superversion::Superversion, watch::Watch},
    error::{Error, Result},
};

/// Ends a watch, whatever happens to its batch.
struct Watching<'a> {
    engine: &'a Engine,
    watch: Arc<Watch>,
    /// Whether the superversion knows of it.
    begun: bool,
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        if self.begun {
            self.engine.superversion.write().watched.end(&self.watch);
        }
    }
}

impl Engine {
    /// An error for the first key that does not have the expected value in `view`.
    pub(super) fn check_expected(&self, view: &View, expected: &[(Bytes, Option<Bytes>)]) -> Result<()> {
        for (key, value) in expected {
            let found = view.get(key, &self.pager, &*self.merge)?;
            if found != *value {
                return Err(Error::Conflict { key: key.clone(), found });
            }
        }
        Ok(())
    }

    /// Runs `apply` under the superversion's lock at a moment at which all keys have the expected values. Gives what
    /// it gives.
    pub(super) fn when_expected<T>(
        &self,
        expected: &[(Bytes, Option<Bytes>)],
        mut apply: impl FnMut(&mut Superversion) -> Result<T>,
    ) -> Result<T> {
        if expected.is_empty() {
            return self.change(apply);
        }
        let mut watching = Watching { engine: self, watch: Arc::new(Watch::new(expected)), begun: false };
        loop {
            let view = {
                let mut superversion = self.superversion.write();
                superversion.watched.begin(&watching.watch);
                watching.begun = true;
                superversion.view()
            };
            self.check_expected(&view, expected)?;
            // A writer copies what it changes of a table that a view shares.
            drop(view);
            let applied = self.change(|superversion| {
                if watching.watch.is_changed() {
                    return None;
                }
                let applied = apply(superversion);
                superversion.watched.end(&watching.watch);
                watching.begun = false;
                Some(applied)
            });
            if let Some(applied) = applied {
                return applied;
            }
        }
    }
}
