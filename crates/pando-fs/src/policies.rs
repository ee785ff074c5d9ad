//! Stored policies for snapshots: when snapshots of a directory are made automatically, and which are kept.
//!
//! A directory has one policy at most, under its contents prefix (see `by_prefix`), so it moves with the directory
//! when that is renamed, is removed with it, and a clone begins without one. `snapshot::automatic`, a higher layer,
//! applies the policies.

use std::ffi::OsString;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pando_db::Batch;

use crate::{
    error::{Error, Result},
    format::FEATURE_POLICIES,
    path::system,
    staying::Staying,
    types::SnapshotPolicy,
    volume::Fs,
};

/// Most policies that a file system has, a count: the thread that carries them out looks at all of them.
pub const MAX_POLICIES: usize = 1024;
/// Version of the record of a policy.
const POLICY_VERSION: u8 = 1;
/// Most that a policy can demand to stay free, percent.
pub const MAX_FREE_PERCENT: u8 = 50;

/// What is to be snapshotted by itself, and what of that is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredPolicy {
    /// A snapshot is made when the last automatic one is so old, seconds; 0: none is made by the clock.
    pub every_secs: u32,
    /// A snapshot is made when something in the directory was synced and the last automatic one is so old, seconds; 0:
    /// none is made by syncs.
    pub on_sync_secs: u32,
    /// How long these are kept, seconds; `None`: as long as `keep` says.
    pub valid_for_secs: Option<u64>,
    /// The oldest automatic snapshots are deleted while less than so much of the file system is free, percent; the
    /// newest one stays. 0: none is.
    pub min_free_percent: u8,
    /// Which of the automatic snapshots are kept. Snapshots that users have made are deleted only when their own
    /// period of validity is over.
    pub keep: SnapshotPolicy,
}

/// A directory with a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyInfo {
    /// Where the directory is.
    pub path: OsString,
    /// The user who has set the policy: snapshots are made and deleted with the rights of this user.
    pub uid: u32,
    /// What it says.
    pub policy: StoredPolicy,
}

impl StoredPolicy {
    /// Length of its stored form, bytes.
    pub const BYTES: usize = 1 + 4 + 4 + 4 + 8 + 1 + 7 * 4;

    /// EINVAL unless it makes or deletes anything, within the limits.
    pub(crate) fn check(&self) -> Result<()> {
        let text = match self {
            p if p.min_free_percent > MAX_FREE_PERCENT => {
                format!("{} percent free: at most {MAX_FREE_PERCENT} can be asked for", p.min_free_percent)
            }
            StoredPolicy { valid_for_secs: Some(0), .. } => "valid for no time".into(),
            p if (StoredPolicy { valid_for_secs: None, ..*p }) == StoredPolicy::default() => {
                "a policy that neither makes nor deletes anything".into()
            }
            _ => return Ok(()),
        };
        Err(Error::Invalid(text))
    }

    /// The stored form, with the user who has set it.
    pub fn encode(&self, uid: u32) -> Bytes {
        let mut out = BytesMut::with_capacity(Self::BYTES);
        out.put_u8(POLICY_VERSION);
        out.put_u32_le(uid);
        out.put_u32_le(self.every_secs);
        out.put_u32_le(self.on_sync_secs);
        out.put_u64_le(self.valid_for_secs.unwrap_or(0));
        out.put_u8(self.min_free_percent);
        let k = &self.keep;
        for count in [k.last, k.hourly, k.daily, k.weekly, k.monthly, k.yearly, k.one_of] {
            out.put_u32_le(count);
        }
        out.freeze()
    }

    /// The reverse; what is wrong with bytes that are no policy.
    pub fn decode(mut value: &[u8]) -> Result<(u32, Self), &'static str> {
        if value.len() != Self::BYTES || value.get_u8() != POLICY_VERSION {
            return Err("not the record of a policy");
        }
        let uid = value.get_u32_le();
        let (every_secs, on_sync_secs) = (value.get_u32_le(), value.get_u32_le());
        let valid_for_secs = Some(value.get_u64_le()).filter(|secs| *secs > 0);
        let min_free_percent = value.get_u8();
        let mut count = || value.get_u32_le();
        let keep = SnapshotPolicy {
            last: count(),
            hourly: count(),
            daily: count(),
            weekly: count(),
            monthly: count(),
            yearly: count(),
            one_of: count(),
        };
        let policy = Self { every_secs, on_sync_secs, valid_for_secs, min_free_percent, keep };
        policy.check().map_err(|_| "an impossible policy")?;
        Ok((uid, policy))
    }
}

pub(crate) fn damaged(detail: &'static str) -> Error {
    Error::Damaged { what: "policies".into(), detail }
}

impl Fs {
    /// Whether some directory has, or had, a policy. No I/O.
    pub(crate) fn has_policies(&self) -> bool {
        self.has_feature(FEATURE_POLICIES)
    }

    /// The policy of the directory with this contents prefix, and who has set it. One point query.
    pub(crate) fn policy_at(&self, contents: &[u8]) -> Result<Option<(u32, StoredPolicy)>> {
        if !self.has_policies() {
            return Ok(None);
        }
        let value = self.db.get(&system::policy(contents))?;
        value.map(|value| StoredPolicy::decode(&value).map_err(damaged)).transpose()
    }

    /// The contents prefixes of all directories that have a policy, with it and who has set it.
    pub(crate) fn stored_policies(&self) -> Result<Vec<(Bytes, u32, StoredPolicy)>> {
        let mut out = Vec::new();
        if !self.has_policies() {
            return Ok(out);
        }
        let mut pairs = self.db.prefix(&system::policy(b""));
        while let Some((key, value)) = pairs.next_ref()? {
            let contents = system::policy_contents(key).ok_or_else(|| damaged("impossible key"))?;
            let (uid, policy) = StoredPolicy::decode(value).map_err(damaged)?;
            out.push((Bytes::copy_from_slice(contents), uid, policy));
        }
        Ok(out)
    }

    /// The keys of policies that move with a directory: their prefix before and after the move. One cursor step, if
    /// there ever was a policy.
    pub(crate) fn move_of_policies(&self, from: &[u8], to: &[u8]) -> Result<Option<(Bytes, Bytes)>> {
        let prefix = system::policy(from);
        let moves = self.has_policies() && self.db.prefix(&prefix).next().transpose()?.is_some();
        Ok(moves.then(|| (prefix, system::policy(to))))
    }

    /// Adds the removal of the policies of a directory, given by its contents prefix, and of those below it, except
    /// the keys in `staying`. One cursor step, if there ever was a policy.
    pub(crate) fn drop_policies(&self, batch: &mut Batch, contents: &[u8], staying: &Staying) -> Result<()> {
        match self.has_policies() {
            true => self.drop_keys(batch, &system::policy(contents), staying),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_and_damage_is_an_error() {
        let keep =
            SnapshotPolicy { last: 1, hourly: 2, daily: 3, weekly: 4, monthly: 5, yearly: 6, one_of: 7 };
        let policy = StoredPolicy {
            every_secs: 3600,
            on_sync_secs: 60,
            valid_for_secs: Some(1 << 40),
            min_free_percent: 10,
            keep,
        };
        let bytes = policy.encode(1000);
        assert_eq!(StoredPolicy::decode(&bytes), Ok((1000, policy)));
        let only = StoredPolicy { on_sync_secs: 1, ..StoredPolicy::default() };
        assert_eq!(StoredPolicy::decode(&only.encode(0)), Ok((0, only)));
        for cut in 0..bytes.len() {
            assert!(StoredPolicy::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        for wrong in [
            StoredPolicy::default(),
            StoredPolicy { min_free_percent: 51, ..policy },
            StoredPolicy { min_free_percent: 255, ..policy },
        ] {
            assert!(wrong.check().is_err() && StoredPolicy::decode(&wrong.encode(0)).is_err(), "{wrong:?}");
        }
        assert!(StoredPolicy { valid_for_secs: Some(0), ..policy }.check().is_err());
    }
}
