//! Notifies the kernel of changes by policies, in threads for which no call waits.
//!
//! A notification of an entry waits in the kernel for the lock of its directory, and a program that lists the
//! directory into memory whose pages do not come can hold that lock for any time. So threads of this module send the
//! notifications, one for a directory at a time, shared among the directories' owners as in `workers`. Guarantee: the
//! notifications of a directory are sent in order; until then the kernel may show an entry as it was. The reports that
//! wait are bounded: beyond [`MAX_REPORTS`] the oldest of the directory with most are left out, where the last one is
//! kept as long as there is a directory with two. Of the entry of a report that was left out the kernel may go on
//! showing what it knows, a name that was absent as absent too, until it needs the memory. Directories are not bounded.

use std::collections::{HashMap, VecDeque};

use pando_fs::CloneReport;
use parking_lot::Mutex;

use crate::transport::workers::Workers;

/// Threads at work for users other than root, a count: there is little to do.
const MAX_THREADS: usize = 2;

/// Reports of all directories that wait, a count; each is of one snapshot, and takes some hundred bytes.
const MAX_REPORTS: usize = 16_384;

/// What waits, by directory; those that a thread is at have an entry.
#[derive(Default)]
struct Waiting {
    dirs: HashMap<u64, VecDeque<CloneReport>>,
    /// The number of reports in `dirs`.
    reports: usize,
}

/// What is yet to be told.
pub(crate) struct PendingReports {
    waiting: Mutex<Waiting>,
    workers: Workers,
}

impl Default for PendingReports {
    fn default() -> Self {
        Self { waiting: Mutex::default(), workers: Workers::new(MAX_THREADS) }
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
        let mut waiting = self.waiting.lock();
        let first = !waiting.dirs.contains_key(&dir);
        waiting.dirs.entry(dir).or_default().push_back(report);
        waiting.reports += 1;
        if waiting.reports > MAX_REPORTS {
            waiting.leave_one_out();
        }
        first
    }

    /// The next report of this directory; `None` if there is no more, and the next one that is added starts a thread.
    pub(crate) fn next(&self, dir: u64) -> Option<CloneReport> {
        let mut waiting = self.waiting.lock();
        let next = waiting.dirs.get_mut(&dir).and_then(VecDeque::pop_front);
        match next {
            Some(_) => waiting.reports -= 1,
            None => _ = waiting.dirs.remove(&dir),
        }
        next
    }
}

impl Waiting {
    fn leave_one_out(&mut self) {
        let most = self.dirs.iter_mut().max_by_key(|(_, reports)| reports.len());
        if let Some((dir, reports)) = most
            && reports.pop_front().is_some()
        {
            self.reports -= 1;
            log::debug!("directory {dir} stays locked: the kernel is not told of an old change in it");
        }
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

    /// They grew without a bound as long as a program kept a directory locked.
    #[test]
    fn a_directory_that_stays_locked_takes_a_bounded_amount_of_memory() {
        let pending_reports = PendingReports::default();
        let report = |micros| CloneReport { micros, ..CloneReport::default() };
        assert!(pending_reports.add(8, report(1)));
        (0..3 * MAX_REPORTS as u64).for_each(|micros| _ = pending_reports.add(7, report(micros)));
        // Those of others stay, and of the one with most those that came last, in order.
        let told = |dir| -> Vec<u64> {
            let next = || pending_reports.next(dir).map(|report| report.micros);
            std::iter::from_fn(next).collect()
        };
        assert_eq!(told(8), [1]);
        let of_locked = told(7);
        assert_eq!(of_locked.len(), MAX_REPORTS - 1);
        assert!(of_locked.iter().copied().eq(2 * MAX_REPORTS as u64 + 1..3 * MAX_REPORTS as u64));
        // All room is there again.
        (0..MAX_REPORTS as u64).for_each(|micros| _ = pending_reports.add(9, report(micros)));
        assert_eq!(told(9).len(), MAX_REPORTS);
    }
}
