//! Notifies the kernel of changes by policies, in threads for which no call waits.
//!
//! A notification of an entry waits in the kernel for the lock of its directory, and a program that lists the
//! directory into memory whose pages do not come can hold that lock for any time. So threads of this module send the
//! notifications, one for a directory at a time, shared among the directories' owners as in `workers`. Guarantee: the
//! notifications of a directory are sent in order; until then the kernel may show an entry as it was.

use std::collections::{HashMap, VecDeque};

use pando_fs::CloneReport;
use parking_lot::Mutex;

use crate::transport::workers::Workers;

/// Threads at work for users other than root, a count: there is little to do.
const MAX_THREADS: usize = 2;

/// What is yet to be told.
pub(crate) struct PendingReports {
    /// By directory; those that a thread is at have an entry.
    dirs: Mutex<HashMap<u64, VecDeque<CloneReport>>>,
    workers: Workers,
}

impl Default for PendingReports {
    fn default() -> Self {
        Self { dirs: Mutex::default(), workers: Workers::new(MAX_THREADS) }
    }
}

impl PendingReports {
    /// Takes what is to be told of a directory whose owner is `uid`, and has `tell` called, unless that is so already:
    /// it tells what [`PendingReports::next`] gives until there is no more.
    pub(crate) fn give(
        &self,
        (dir, uid): (u64, u32),
        report: CloneReport,
        tell: impl FnOnce() + Send + 'static,
    ) {
        if self.add(dir, report) {
            self.workers.run(uid, tell);
        }
    }

    /// Takes what is given; whether a thread is to be at this directory.
    fn add(&self, dir: u64, report: CloneReport) -> bool {
        let mut dirs = self.dirs.lock();
        let first = !dirs.contains_key(&dir);
        dirs.entry(dir).or_default().push_back(report);
        first
    }

    /// The next report of this directory; `None` if there is no more, and the next one that is added starts a thread.
    pub(crate) fn next(&self, dir: u64) -> Option<CloneReport> {
        let mut dirs = self.dirs.lock();
        let next = dirs.get_mut(&dir).and_then(VecDeque::pop_front);
        if next.is_none() {
            dirs.remove(&dir);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_tells_all_of_a_directory_in_turn() {
        let pending_reports = PendingReports::default();
        let report = |micros| CloneReport { micros, ..CloneReport::default() };
        assert!(pending_reports.add(7, report(1)));
        assert!(!pending_reports.add(7, report(2)) && pending_reports.add(8, report(3)));
        let next = |dir| pending_reports.next(dir).map(|report| report.micros);
        assert_eq!([next(7), next(7)], [Some(1), Some(2)]);
        assert!(!pending_reports.add(7, report(4)), "a thread is at it still");
        assert_eq!([next(7), next(7), next(8), next(8)], [Some(4), None, Some(3), None]);
        assert!(pending_reports.add(7, report(5)));
    }
}
