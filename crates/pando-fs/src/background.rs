//! Background work: a thread is started when there is work, and ends when there is none.
//!
//! Any module puts work into the queues of `counting`, `ledger` and `removals`. The thread calls the functions that
//! were registered when the file system was opened ([`crate::volume::Workers`]): this module need not know them.

use std::time::Duration;

use crate::{removals::Unremoved, volume::Fs};

/// Time from the first reason for background work until it begins: more work may come, and foreground calls go first.
pub(crate) const BEGIN_AFTER: Duration = Duration::from_millis(200);

impl Fs {
    /// Asks the background thread to count names of linked files.
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

    /// Asks the background thread to count the trees with stale accounts that are noted in the ledger.
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
    /// Has the background thread remove what could not be removed now.
    pub(crate) fn remove_later(&self, what: Unremoved) {
        self.removals.add(what);
        let Some(workers) = self.workers.filter(|_| !self.read_only) else { return };
        if self.removals.start() {
            let weak = self.downgrade();
            let work = move || (workers.remove)(weak);
            if std::thread::Builder::new().name("pando-removals".into()).spawn(work).is_err() {
                self.removals.ended();
            }
        }
    }
}
