//! Applies policies: makes the snapshots that are due, and deletes those that a policy does not keep.
//!
//! Pure functions of the policy, the time and the snapshots decide what is to be done ([`StoredPolicy::is_due`],
//! [`StoredPolicy::gone`], [`StoredPolicy::next`]). [`Fs::carry_out_policy`] does it, with the rights of the user who
//! has set the policy. The program that serves the file system calls it.

use std::{
    ffi::OsString,
    sync::atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;

use crate::{
    error::{Error, Result},
    format::{FEATURE_POLICIES, FEATURE_SNAPSHOTS},
    key_text::directory_path,
    path::system,
    policies::{MAX_POLICIES, PolicyInfo, StoredPolicy},
    rights::Rights,
    snapshot::policy::newest_first,
    types::{Authority, Caller, CloneReport, Ino, NewSnapshot, SnapshotInfo, SnapshotPolicy, StatFs, Time},
    volume::Fs,
};

/// What is called before each step of a policy, and after it.
type PolicyCalls<'a, 'b> = (&'a mut (dyn FnMut(PolicyStep) + 'b), &'a mut (dyn FnMut(&CloneReport) + 'b));

/// The number of the error that says that the store is full.
const ENOSPC: i32 = rustix::io::Errno::NOSPC.raw_os_error();

/// What came of carrying out a policy once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PolicyWork {
    /// The inode number of the directory, if it exists. After the call the number may belong to another directory.
    pub source: Option<Ino>,
    /// The name of the snapshot that was made.
    pub made: Option<OsString>,
    /// The names of those that were deleted.
    pub deleted: Vec<OsString>,
    /// When there is something to do next, if nothing else happens.
    pub next: Option<Time>,
    /// Why a snapshot that was due was not made, if others were deleted nevertheless, or would be but for mounts.
    pub failed: Option<String>,
    /// The roots of the snapshots that go once no mount shows them.
    pub mounted: Vec<Ino>,
}

/// What [`Fs::carry_out_policy`] is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyStep {
    /// To make a snapshot of the directory with this number.
    Make(Ino),
    /// To delete a snapshot, unless a mount shows it: by what was said last ([`Fs::mounted_on`]).
    Delete,
}

impl StoredPolicy {
    /// Whether a snapshot is to be made at the time `now`; `synced`: something in the directory was synced since the
    /// last one. A clock that was set back makes one due as well.
    pub fn is_due(&self, now: Time, snapshots: &[SnapshotInfo], synced: bool) -> bool {
        let last = last_automatic(snapshots);
        let old = |secs: u32| secs > 0 && last.is_none_or(|t| now.secs.abs_diff(t.secs) >= u64::from(secs));
        old(self.every_secs) || synced && old(self.on_sync_secs)
    }

    /// The numbers of the snapshots that go at the time `now`, ascending; `short`: less is free than is demanded, and
    /// the oldest goes too, if it is not the newest.
    pub fn gone(&self, now: Time, snapshots: &[SnapshotInfo], short: bool) -> Vec<u32> {
        let (own, others): (Vec<_>, Vec<_>) = snapshots.iter().cloned().partition(|s| s.automatic);
        let mut gone = self.keep.expired(now, &own);
        gone.extend(SnapshotPolicy::default().expired(now, &others));
        if short {
            gone.extend(oldest(now, &own, &gone));
        }
        gone.sort_unstable();
        gone
    }

    /// When something is due next: a snapshot, or the end of a period of validity. `synced` as above.
    pub fn next(&self, now: Time, snapshots: &[SnapshotInfo], synced: bool) -> Option<Time> {
        let mut next: Option<i64> = None;
        let mut add = |secs: i64| next = Some(next.map_or(secs, |next| next.min(secs)));
        // From the time of the last snapshot, unless that lies in the future.
        let from = last_automatic(snapshots).map_or(now.secs, |t| t.secs.min(now.secs));
        for (secs, applies) in [(self.every_secs, true), (self.on_sync_secs, synced)] {
            if secs > 0 && applies {
                add(from.saturating_add(i64::from(secs)));
            }
        }
        snapshots.iter().filter(|s| !s.keep).filter_map(SnapshotInfo::valid_until).for_each(&mut add);
        next.map(|secs| Time { secs, nanos: 0 })
    }

    /// Whether less is free than the policy demands.
    pub fn is_short(&self, space: &StatFs) -> bool {
        is_short(space, self.min_free_percent)
    }
}

/// Whether less than so many percent are free.
fn is_short(space: &StatFs, percent: u8) -> bool {
    u128::from(space.bfree) * 100 < u128::from(space.blocks) * u128::from(percent)
}

/// The oldest of the automatic snapshots that is neither kept nor `gone`, if it is not the newest of them as well.
fn oldest(now: Time, snapshots: &[SnapshotInfo], gone: &[u32]) -> Option<u32> {
    let is_left = |s: &&SnapshotInfo| s.automatic && !s.keep && !gone.contains(&s.number);
    match newest_first(now, snapshots.iter().filter(is_left))[..] {
        [.., _, (_, oldest)] => Some(oldest),
        _ => None,
    }
}

/// When the newest snapshot was made that a policy had made.
fn last_automatic(snapshots: &[SnapshotInfo]) -> Option<Time> {
    snapshots.iter().filter(|s| s.automatic).max_by_key(|s| s.number).map(|s| s.created)
}

impl Fs {
    /// Sets or removes the policy of a directory. A caller who may clone the directory may do so, and the policy is
    /// applied with the rights of that user. One batch. EINVAL if the policy says nothing; EFBIG beyond
    /// [`MAX_POLICIES`], or if the user already has as many policies as are left for others; EROFS inside of a
    /// snapshot.
    pub fn set_policy(&self, by: Authority<'_>, dir: Ino, policy: Option<&StoredPolicy>) -> Result<()> {
        self.writable()?;
        let dir = self.dir(dir)?;
        Rights::from(by).may_clone(&dir)?;
        let (at, _names) = self.hold_names(&dir, true)?;
        let Some(policy) = policy else {
            if self.policy_at(&at.contents)?.is_some() {
                self.db.delete(system::policy(&at.contents))?;
            }
            return Ok(());
        };
        policy.check()?;
        let uid = Rights::from(by).uid();
        let owner = self.policy_at(&at.contents)?.map(|(owner, _)| owner);
        if owner != Some(uid) {
            self.may_have_one_more(uid, owner.is_none())?;
        }
        self.need_feature(FEATURE_POLICIES | FEATURE_SNAPSHOTS)?;
        self.db.put(system::policy(&at.contents), policy.encode(uid))?;
        Ok(())
    }

    /// A user other than root has at most as many policies as are left for others. `new`: it is nobody's so far.
    fn may_have_one_more(&self, uid: u32, new: bool) -> Result<()> {
        let policies = self.stored_policies()?;
        let left = MAX_POLICIES.saturating_sub(policies.len());
        if left == 0 && new {
            return Err(Error::TooManyPolicies(MAX_POLICIES));
        }
        let own = policies.iter().filter(|(_, owner, _)| *owner == uid).count();
        if uid != 0 && own >= left { Err(Error::TooManyOwnPolicies(own)) } else { Ok(()) }
    }

    /// The policy of the directory, if it has one. One point query.
    pub fn policy_of(&self, dir: Ino) -> Result<Option<PolicyInfo>> {
        let at = self.hold_dir(&self.dir(dir)?)?;
        let found = self.policy_at(&at.contents)?;
        Ok(found.map(|(uid, policy)| PolicyInfo { path: directory_path(&at.contents), uid, policy }))
    }

    /// All policies, with the contents prefixes of their directories, by which they are carried out.
    pub fn policies(&self) -> Result<Vec<(Bytes, PolicyInfo)>> {
        let info = |(contents, uid, policy): (Bytes, u32, StoredPolicy)| {
            let path = directory_path(&contents);
            (contents, PolicyInfo { path, uid, policy })
        };
        Ok(self.stored_policies()?.into_iter().map(info).collect())
    }

    /// The policies of a directory and of all below it, each before those in it. Costs a scan of all policies.
    pub fn policies_in(&self, dir: Ino) -> Result<Vec<PolicyInfo>> {
        let contents = self.hold_dir(&self.dir(dir)?)?.contents.clone();
        let inside = self.policies()?.into_iter().filter(|(inside, _)| inside.starts_with(&contents));
        Ok(inside.map(|(_, info)| info).collect())
    }

    /// Applies the policy of a directory at the time `now`: makes a snapshot if one is due, and deletes those that
    /// are not kept. `synced`: something in the directory was synced since the last one. `before` is called before each
    /// snapshot that is made or deleted, `after` with the cached entries that each change has made stale.
    ///
    /// If the snapshot cannot be made, others are deleted nevertheless, and on a full store it is then tried once
    /// more. If nothing was deleted, this returns the error of making the snapshot.
    ///
    /// Nothing is done in a file system that is read-only, nor if the directory, or its policy, is gone. Costs a lookup
    /// of each directory on the way, a look at each snapshot of the directory, and what is done.
    pub fn carry_out_policy(
        &self,
        info: &PolicyInfo,
        (now, synced): (Time, bool),
        before: &mut dyn FnMut(PolicyStep),
        after: &mut dyn FnMut(&CloneReport),
    ) -> Result<PolicyWork> {
        if self.is_read_only() {
            return Ok(PolicyWork::default());
        }
        let found = match self.resolve(info.path.as_ref()) {
            Err(Error::NotFound(_) | Error::NotDirectory(_)) => return Ok(PolicyWork::default()),
            found => found?,
        };
        let done = self.work_policy(found.ino, info, (now, synced), before, after);
        self.forget(found.ino, 1);
        done
    }

    fn work_policy(
        &self,
        source: Ino,
        info: &PolicyInfo,
        (now, synced): (Time, bool),
        before: &mut dyn FnMut(PolicyStep),
        after: &mut dyn FnMut(&CloneReport),
    ) -> Result<PolicyWork> {
        if self.policy_of(source)?.as_ref() != Some(info) {
            return Ok(PolicyWork::default()); // changed meanwhile: it is somebody else's turn
        }
        let (policy, caller) = (&info.policy, Caller { uid: info.uid, ..Caller::root() });
        let by = Authority::Caller(&caller);
        let mut work = PolicyWork { source: Some(source), ..PolicyWork::default() };
        let mut snapshots = self.snapshots(source)?;
        let due = policy.is_due(now, &snapshots, synced);
        if due {
            before(PolicyStep::Make(source));
        }
        let new =
            NewSnapshot { valid_for_secs: policy.valid_for_secs, automatic: true, ..NewSnapshot::default() };
        let mut failed = None;
        for _ in 0..2 {
            if due && work.made.is_none() {
                match self.snapshot_at(by, source, &new, Some(now)) {
                    Ok((made, report)) => {
                        after(&report);
                        work.made = Some(made.name.clone());
                        snapshots.push(made);
                        failed = None;
                    }
                    Err(e) => failed = Some(e),
                }
            }
            let deleted = work.deleted.len();
            self.delete_gone(by, (source, policy), now, &mut snapshots, &mut work, (before, after))?;
            // What was deleted may be what it needs.
            let full = failed.as_ref().is_some_and(|e| e.errno() == ENOSPC);
            if !full || work.deleted.len() == deleted {
                break;
            }
        }
        match failed {
            Some(e) if work.deleted.is_empty() && work.mounted.is_empty() => return Err(e),
            failed => work.failed = failed.map(|e| e.to_string()),
        }
        work.next = policy.next(now, &snapshots, synced && !due);
        Ok(work)
    }

    /// Whether at least so many percent of the file system are free, whatever quotas say. If they are not, it waits
    /// until the space of what was deleted is given back, as far as that is needed. Can be stopped by `stop` (EINTR).
    /// Cost: nothing if so much is free, else that of [`pando_db::Db::settle`].
    pub fn becomes_free(&self, percent: u8, stop: &AtomicBool) -> Result<bool> {
        let is_free = || Ok::<_, Error>(!is_short(&self.statfs()?, percent));
        let is_stopped = || stop.load(Ordering::Relaxed);
        if !is_free()? {
            self.db.settle_until(|| is_stopped() || is_free().unwrap_or(true))?;
        }
        match is_free()? {
            false if is_stopped() => Err(Error::Interrupted("a look at the free space".into())),
            free => Ok(free),
        }
    }

    /// Deletes those of the snapshots that go, and takes them out of these.
    fn delete_gone(
        &self,
        by: Authority<'_>,
        (source, policy): (Ino, &StoredPolicy),
        now: Time,
        snapshots: &mut Vec<SnapshotInfo>,
        work: &mut PolicyWork,
        (before, after): PolicyCalls<'_, '_>,
    ) -> Result<()> {
        let is_short = || Ok::<_, Error>(policy.is_short(&self.statfs()?));
        let mut short = is_short()?;
        // The space that was freed so far, by this policy or otherwise, may be enough once it is available. That takes
        // long, so it is not done for those that could not go.
        let left = if short { self.without_mounted(snapshots)? } else { Vec::new() };
        if short && policy.gone(now, &left, true) != policy.gone(now, &left, false) {
            self.db.settle_until(|| self.ledger.is_stopped() || !is_short().unwrap_or(true))?;
            short = is_short()? && !self.ledger.is_stopped();
        }
        let mut gone = policy.gone(now, snapshots, false);
        let mut for_space = if short { oldest(now, snapshots, &gone) } else { None };
        gone.extend(for_space);
        loop {
            let mounted =
                self.delete_these(by, (source, snapshots), &gone, work, (&mut *before, &mut *after))?;
            snapshots.retain(|s| !gone.contains(&s.number));
            // One that is mounted stays, and gives no space back: the next one goes instead.
            if for_space.is_none_or(|number| !mounted.contains(&number)) {
                return Ok(());
            }
            for_space = oldest(now, snapshots, &[]);
            gone = for_space.into_iter().collect();
        }
    }

    /// Deletes those of the snapshots that are `gone`, and gives the numbers of those that are mounted, which stay.
    fn delete_these(
        &self,
        by: Authority<'_>,
        (source, snapshots): (Ino, &[SnapshotInfo]),
        gone: &[u32],
        work: &mut PolicyWork,
        (before, after): PolicyCalls<'_, '_>,
    ) -> Result<Vec<u32>> {
        let mut mounted = Vec::new();
        for info in snapshots.iter().filter(|s| gone.contains(&s.number)) {
            // Each takes its time, and somebody may mount the next one meanwhile.
            before(PolicyStep::Delete);
            match self.delete_snapshot(by, source, info.number) {
                Ok(report) => {
                    after(&report);
                    work.deleted.push(info.name.clone());
                }
                Err(Error::Shown { .. }) => {
                    // If its number cannot be read, it is tried again with all others.
                    let root = self.root_of_snapshot(info.number).ok().flatten();
                    work.mounted.extend(root.map(|(ino, ..)| ino));
                    mounted.push(info.number);
                }
                Err(Error::MountPoint(_)) => mounted.push(info.number),
                // Somebody else was faster, or keeps it since, or rolls back.
                Err(Error::NotFound(_) | Error::NotPermitted { .. } | Error::Stale(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(mounted)
    }
}
