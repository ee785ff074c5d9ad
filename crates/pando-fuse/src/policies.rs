//! Applies policies for snapshots while the file system is mounted.
//!
//! One thread checks all policies: when one is set or changed, when something was synced in a directory whose
//! policy asks for that, when the next snapshot is due, and every [`LOOK`] in any case, because clocks are set and
//! directories are rolled back. If a policy demands free space, it is checked every [`LOOK_AT_SPACE`]. A snapshot
//! that goes once it is no longer mounted is deleted within [`LOOK_AT_MOUNTS`]. A snapshot is made as by the
//! command: it has the kernel's dirty pages of the directory's files. No call waits for this thread, and it does
//! not wait for programs that keep a directory locked ([`PendingReports`](crate::pending_reports::PendingReports)).
//! A policy that fails is tried again after [`LOOK`], and the log says why. While the kernel has the mount
//! read-only, of which the server is not notified, nothing is done.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::{Duration, Instant},
};

use pando_fs::{CloneReport, Ino, PolicyInfo, PolicyStep, Time};

use crate::{
    automatic::{NextRound, Synced},
    coherence::MountState,
    diffs, mountinfo,
};

/// Longest time between two looks at the policies.
const LOOK: Duration = Duration::from_secs(60);
/// How often the free space is looked at.
const LOOK_AT_SPACE: Duration = Duration::from_secs(5);
/// How often it is looked whether a snapshot that is to go is still mounted.
const LOOK_AT_MOUNTS: Duration = Duration::from_secs(5);
/// How often it is looked whether a read-only mount can be written to again.
const LOOK_READ_ONLY: Duration = Duration::from_secs(5);

/// What is known of a policy since the last look.
struct Known {
    info: PolicyInfo,
    /// When there is something to do; `None`: not by the clock.
    next: Option<Time>,
    /// Something was synced since the last snapshot.
    synced: bool,
    /// The roots of the snapshots that go once nobody has them mounted.
    mounted: Vec<Ino>,
    looked: Instant,
    /// When it was looked last whether they are mounted.
    looked_at_mounts: Instant,
}

impl Known {
    fn is_due(&mut self, now: Time, shared: &MountState) -> bool {
        let since = self.looked.elapsed();
        let unmounted = !self.mounted.is_empty() && self.looked_at_mounts.elapsed() >= LOOK_AT_MOUNTS && {
            self.looked_at_mounts = Instant::now();
            let (_, views) = shared.mounts_for(std::process::id());
            self.mounted.iter().any(|root| views.iter().all(|view| view.root != *root))
        };
        let policy = &self.info.policy;
        let short = || shared.fs.statfs().is_ok_and(|space| policy.is_short(&space));
        self.next.is_some_and(|next| next <= now)
            || since >= LOOK
            || unmounted
            || policy.min_free_percent > 0 && since >= LOOK_AT_SPACE && short()
    }
}

/// The work of the thread: policies by the place of their directory.
#[derive(Default)]
struct Policies {
    known: HashMap<Vec<u8>, Known>,
    /// The time at the last look.
    looked_at: Option<Time>,
}

impl MountState {
    /// Does soon what [`MountState::drop_stale`] does, and waits for nothing.
    fn drop_stale_soon(self: &Arc<Self>, report: &CloneReport) {
        let dir = report.entries.first().map_or(pando_fs::ROOT, |(dir, _)| *dir);
        let owner = self.fs.getattr(dir).map_or(u32::MAX, |attr| attr.uid);
        let shared = self.clone();
        self.pending_reports.give((dir, owner), report.clone(), move || {
            while let Some(report) = shared.pending_reports.next(dir) {
                shared.drop_stale(&report);
            }
        });
    }

    /// Starts what carries out policies for snapshots.
    pub(crate) fn start_policies(self: &Arc<Self>, device: Option<String>) {
        let known = device.is_none_or(|device| self.device.set(device).is_ok());
        assert!(known, "a server has one mount");
        let shared: Weak<MountState> = Arc::downgrade(self);
        let mut policies = Policies::default();
        let started = self.automatic.start(move |synced| {
            let idle = NextRound { after: None, on_syncs: false };
            shared.upgrade().map_or(idle, |shared| {
                let mut next = policies.round(&shared, &synced);
                // This thread also ends differences from which no piece is taken any more.
                next.after = next.after.into_iter().chain(shared.diffs.end_idle(&diffs::DIFF_PATIENCE)).min();
                next
            })
        });
        if let Err(e) = started {
            log::error!("no thread for policies: no snapshots are made by themselves: {e}");
        }
    }
}

impl Policies {
    /// Whether the clock was set back since the last look: what is due next was reckoned by the old time.
    fn was_set_back(&mut self, now: Time) -> bool {
        self.looked_at.replace(now).is_some_and(|before| now < before)
    }

    /// Looks at all policies, and does what is due.
    fn round(&mut self, shared: &Arc<MountState>, synced: &Synced) -> NextRound {
        let all = match shared.fs.policies() {
            Ok(all) => all,
            Err(e) => {
                log::error!("policies for snapshots: {e}");
                return NextRound { after: Some(LOOK), on_syncs: false };
            }
        };
        if !all.is_empty() && is_read_only(shared) {
            return NextRound { after: Some(LOOK_READ_ONLY), on_syncs: false };
        }
        let set_back = self.was_set_back(Time::now());
        let mut before = std::mem::take(&mut self.known);
        for (place, info) in all {
            let was = before.remove(&place[..]);
            let was_pending = was.as_ref().is_some_and(|was| was.synced);
            let known = match was.filter(|known| known.info == info) {
                Some(mut known) => {
                    if !known.synced && was_synced(shared, &info, synced) {
                        known.synced = true;
                        known.next = Some(Time::now());
                    }
                    if set_back || known.is_due(Time::now(), shared) {
                        carry_out(shared, info, known.synced)
                    } else {
                        known
                    }
                }
                // The policy is new or was changed: a sync that it waits for may have come before this check.
                None => {
                    let pending = info.policy.on_sync_secs > 0 && was_pending;
                    let synced = pending || was_synced(shared, &info, synced);
                    carry_out(shared, info, synced)
                }
            };
            self.known.insert(place.to_vec(), known);
        }
        self.next_round()
    }

    fn next_round(&self) -> NextRound {
        let (now, all) = (Time::now(), self.known.values());
        let until =
            |next: Time| Duration::from_secs(next.secs.saturating_sub(now.secs).max(1).unsigned_abs());
        let nexts = all.clone().filter_map(|known| known.next).map(until);
        let space = all.clone().filter(|k| k.info.policy.min_free_percent > 0).map(|_| LOOK_AT_SPACE);
        let looks = all.clone().map(|known| if known.mounted.is_empty() { LOOK } else { LOOK_AT_MOUNTS });
        let waits_for_syncs = |known: &Known| known.info.policy.on_sync_secs > 0 && !known.synced;
        NextRound {
            after: nexts.chain(space).chain(looks).min(),
            on_syncs: all.into_iter().any(waits_for_syncs),
        }
    }
}

fn is_read_only(shared: &MountState) -> bool {
    shared.device.get().is_some_and(|device| match mountinfo::is_read_only(device) {
        Ok(read_only) => read_only,
        Err(e) => {
            log::warn!("whether the mount is read-only: {e}");
            false
        }
    })
}

/// Whether something in the directory of a policy that asks for that was synced.
fn was_synced(shared: &MountState, info: &PolicyInfo, synced: &Synced) -> bool {
    let noted = match synced {
        _ if info.policy.on_sync_secs == 0 => return false,
        Synced::All => return true,
        Synced::Some(noted) if noted.is_empty() => return false,
        Synced::Some(noted) => noted,
    };
    let Ok(dir) = shared.fs.resolve(info.path.as_ref()) else { return false };
    let was = noted.iter().any(|ino| shared.fs.lies_in(*ino, dir.ino));
    shared.fs.forget(dir.ino, 1);
    was
}

fn carry_out(shared: &Arc<MountState>, info: PolicyInfo, synced: bool) -> Known {
    let look = || shared.keep_mounted(std::process::id());
    let mut mounted = look();
    let done = shared.fs.carry_out_policy(
        &info,
        (Time::now(), synced),
        &mut |step| match step {
            PolicyStep::Make(dir) => shared.write_out_below(dir),
            PolicyStep::Delete => mounted = look(),
        },
        &mut |report| shared.drop_stale_soon(report),
    );
    drop(mounted);
    let path = info.path.display();
    let (next, synced, mounted) = match done {
        Ok(work) => {
            if let Some(name) = &work.made {
                log::info!("snapshot {} of {path} by its policy", name.display());
            }
            for name in &work.deleted {
                log::info!("snapshot {} of {path} deleted by its policy", name.display());
            }
            let tried = match work.failed {
                Some(e) => {
                    log::warn!("the policy for snapshots of {path}: {e}");
                    None
                }
                None => work.next,
            };
            (tried, synced && work.made.is_none(), work.mounted)
        }
        Err(e) => {
            log::warn!("the policy for snapshots of {path}: {e}");
            (None, synced, Vec::new())
        }
    };
    let now = Instant::now();
    Known { info, next, synced, mounted, looked: now, looked_at_mounts: now }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_back_is_noticed_once() {
        let mut policies = Policies::default();
        let at = |secs| Time { secs, nanos: 0 };
        let looks = [100, 101, 101, 40, 41, 39, 500].map(|secs| policies.was_set_back(at(secs)));
        assert_eq!(looks, [false, false, false, true, false, true, false]);
    }
}
