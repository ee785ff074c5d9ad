//! Batches that expect values of keys, or that there are none: compare-and-set.
//!
//! Whether a key has the expected value may take I/O, and the superversion's lock is never held over I/O. So a batch
//! watches its keys from the moment at which it takes the view that it looks them up in, and is applied only
//! if no batch has changed one of them since; else it looks again.
//!
//! Guarantees: check and batch are one atomic step; a repetition means that another batch has changed a watched key,
//! so some batch always makes progress (lock-free). May use: the superversion, views, watches. Reads, but never under
//! a lock.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    batch::Expected,
    dag::read::{readahead::ScanReadahead, scan::Scanner, view::View},
    db::engine::{Engine, superversion::Superversion, watch::Watch},
    error::{Error, Result},
    key::{Direction, Span, successor},
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
    pub(super) fn check_expected(&self, view: &View, expected: &Expected) -> Result<()> {
        for (key, value) in &expected.values {
            let found = view.get(key, &self.pager, &*self.merge)?;
            if found != *value {
                return Err(Error::Conflict { key: key.clone(), found });
            }
        }
        for prefix in &expected.empty {
            if let Some((key, value)) = self.first_below(view, prefix)? {
                return Err(Error::Conflict { key, found: Some(value) });
            }
        }
        Ok(())
    }

    /// The first key that begins with `prefix`, and its value.
    fn first_below(&self, view: &View, prefix: &Bytes) -> Result<Option<(Bytes, Bytes)>> {
        let range = Span::new(prefix.clone(), successor(prefix));
        let mut rest = match &view.skip_ranges {
            Some(skip_ranges) => skip_ranges.shorten(&range),
            None => Some(range),
        };
        let readahead = &mut ScanReadahead::default();
        let mut scanner = Scanner { view, pager: &self.pager, merge: &*self.merge, readahead };
        while let Some(range) = rest {
            let (span, mut segment) = scanner.segment(range.clone(), Direction::Forward)?;
            if let Some(end) = scanner.advance(&mut segment, Direction::Forward)? {
                let found = segment.entry_run(end);
                return Ok(Some((Bytes::copy_from_slice(found.key()), found.value_bytes())));
            }
            rest = range.without(&span).1;
        }
        Ok(None)
    }

    /// Runs `apply` under the superversion's lock at a moment at which all keys have the expected values. Gives what
    /// it gives.
    pub(super) fn when_expected<T>(
        &self,
        expected: &Expected,
        mut apply: impl FnMut(&mut Superversion) -> Result<T>,
    ) -> Result<T> {
        if expected.is_nothing() {
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
