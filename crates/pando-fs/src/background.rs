//! Background work: a thread is started when there is work, and ends when there is none.
//!
//! Any module puts work into the queues of `counting`, `ledger` and `removals`. The thread calls the functions that
//! were registered when the file system was opened ([`crate::volume::Workers`]): this module need not know them.

use std::{sync::Weak, time::Duration};

use crate::{
    removals::Unremoved,
    volume::{Fs, Inner},
};

/// Time from the first reason for background work until it begins: more work may come, and foreground calls go first.
pub(crate) const BEGIN_AFTER: Duration = Duration::from_millis(200);

impl Fs {
    /// Asks the background thread to count names of linked files.
    pub(crate) fn count_names_soon(&self) {
        let Some(workers) = self.workers.filter(|_| !self.is_read_only()) else { return };
        if self.counting.start() && !self.started("pando-links", workers.count_names) {
            self.counting.ended();
        }
    }

    /// Asks the background thread to count the trees with stale accounts that are noted in the ledger.
    pub(crate) fn count_trees_soon(&self) {
        let Some(workers) = self.workers.filter(|_| !self.is_read_only()) else { return };
        if self.ledger.start() && !self.started("pando-quota", workers.count_trees) {
            self.ledger.ended();
        }
    }

    /// Has the background thread remove what could not be removed now.
    pub(crate) fn remove_later(&self, what: Unremoved) {
        self.removals.add(what);
        let Some(workers) = self.workers.filter(|_| !self.read_only) else { return };
        if self.removals.start() && !self.started("pando-removals", workers.remove) {
            self.removals.ended();
        }
    }

    /// Starts a thread that does not keep the file system open. False if the host allows no more of them: what waits is
    /// done when there is a reason to start it again.
    fn started(&self, name: &str, work: fn(Weak<Inner>)) -> bool {
        let weak = self.downgrade();
        std::thread::Builder::new().name(name.into()).spawn(move || work(weak)).is_ok()
    }
}
