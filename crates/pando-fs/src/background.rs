//! Work in the background: a thread is started when there is some, and ends when there is none.
//!
//! What is to be done waits in `counting` and `ledger`, where any module puts it. The thread runs what the opening has
//! named ([`crate::volume::Workers`]).

use std::time::Duration;

use crate::volume::Fs;

/// Background work begins so long after the first reason for it: more may come, and others go first.
pub(crate) const BEGIN_AFTER: Duration = Duration::from_millis(200);

impl Fs {
    /// Has the names of linked files counted in the background, soon.
    pub(crate) fn count_names_soon(&self) {
        let Some(workers) = self.workers.filter(|_| !self.is_read_only()) else { return };
        if self.counting.wake() && self.counting.started() {
            let weak = self.downgrade();
            let work = move || (workers.count_names)(weak);
            if std::thread::Builder::new().name("pando-links".into()).spawn(work).is_err() {
                self.counting.ended();
            }
        }
    }

    /// Has trees with stale accounts counted in the background, soon: those that the ledger was told of.
    pub(crate) fn count_trees_soon(&self) {
        let Some(workers) = self.workers.filter(|_| !self.is_read_only()) else { return };
        if self.ledger.start() {
            let weak = self.downgrade();
            let work = move || (workers.count_trees)(weak);
            if std::thread::Builder::new().name("pando-quota".into()).spawn(work).is_err() {
                self.ledger.ended();
            }
        }
    }
}
