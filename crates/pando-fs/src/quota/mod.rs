//! Quotas: how much the tree of a directory may take (`docs/decisions/quotas.md`).
//!
//! A quota is the limit in the account of a directory. Guarantees that no call makes what is counted below more than
//! the limit (EDQUOT), but for what [`Fs::set_quota`] names.

mod count;

pub(crate) use count::Counts;

use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::PathBuf};

use pando_db::Batch;

use crate::{
    account::{Account, AccountChange},
    error::{Error, Result},
    format::FEATURE_ACCOUNTS,
    inode::InodeRef,
    merge::Change,
    path,
    place::may_change,
    record::Stored,
    types::{Ino, StatFs},
    volume::Fs,
};

/// A directory with a quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Path from the root of the file system.
    pub path: PathBuf,
    /// Most bytes that the tree may take.
    pub limit: u64,
    /// Bytes that it takes, as `du` counts them: each file once, holes not, what clones share like all else.
    pub used: u64,
    /// The tree has to be counted again: `used` may be wrong.
    pub stale: bool,
}

/// A directory with a limit, that, and how much of it is left, bytes.
struct Tightest {
    dir: InodeRef,
    account: Account,
    limit: u64,
    left: u64,
}

impl Fs {
    /// Sets or removes the limit of the space that the tree of a directory may take. The tree is counted first, by a
    /// scan of all records below, while other calls go on. It may already take more than the limit: then it cannot
    /// grow.
    ///
    /// The directory becomes the root of a lineage: hard links do not reach out of it, or into it, from now on (EXDEV).
    /// EINVAL if files in it have several names already and it is no root of a lineage: a clone of it can have a quota.
    ///
    /// The limit holds for every change below but one: what a rollback brings is counted in the background, and may be
    /// more. Files without a name are not counted.
    pub fn set_quota(&self, ino: Ino, limit: Option<u64>) -> Result<()> {
        self.writable()?;
        let dir = self.dir(ino)?;
        may_change(&dir, true)?;
        if limit.is_none() && dir.peek(|s| s.record.account.is_none()) {
            return Ok(());
        }
        self.need_feature(FEATURE_ACCOUNTS)?;
        if limit.is_some() {
            self.become_root(&dir)?;
        }
        loop {
            if limit.is_some() {
                self.count_tree(&dir, true)?;
            }
            // No count may correct an account that was removed and made again meanwhile.
            let _one = self.ledger.count_alone();
            let done = self.with_attempts(|tries| {
                let (_alone, entry) = self.attempt_alone(tries, &dir)?;
                let account = dir.peek(|s| s.record.account);
                let account = match (limit, account) {
                    (Some(_), None) => return Ok(false), // somebody ended it meanwhile
                    (Some(_), Some(account)) => Some(Account { limit, ..account }),
                    (None, _) => None,
                };
                let change = Change { account: Some(AccountChange::Set(account)), ..Change::default() };
                self.db.upsert(path::meta(&entry), change.encode())?;
                dir.change(|s| change.apply(&mut s.record));
                Ok(true)
            })?;
            if done {
                return Ok(());
            }
        }
    }

    /// Makes a directory the root of a lineage, if it is none.
    fn become_root(&self, dir: &InodeRef) -> Result<()> {
        self.with_attempts(|tries| {
            let (alone, entry) = self.attempt_alone(tries, dir)?;
            let Some(around) = &alone.around else { return Ok(()) };
            let mut record = dir.peek(|s| s.record.clone());
            if record.clone_id != 0 {
                return Ok(());
            }
            let contents = path::contents_of(b"", &entry).unwrap_or_default();
            if self.links_below(around, &contents)?.is_some() {
                return Err(Error::Invalid(format!(
                    "{}: has files with several names; set the quota of a clone of it, or of an empty directory",
                    dir.label()
                ))
                .into());
            }
            let mut batch = Batch::new();
            self.lineages.become_root(&mut batch, &mut record, dir.lineage, self.fresh_clone()?);
            batch.put(path::meta(&entry), record.encode());
            self.db.write(batch)?;
            dir.change(|s| s.record.clone_id = record.clone_id);
            Ok(())
        })
    }

    /// The quotas of a directory and of all below it, in the order of their paths. A scan of all records below. What is
    /// found stale is counted in the background.
    pub fn quotas(&self, ino: Ino) -> Result<Vec<Quota>> {
        let dir = self.dir(ino)?;
        let mut found = Vec::new();
        // What was copied into a snapshot limits nothing there.
        if !self.has_accounts() || dir.frozen {
            return Ok(found);
        }
        let (entry, contents, stale, view) = {
            let at = self.hold_dir(&dir)?;
            (at.entry.clone(), at.contents.clone(), self.is_stale_around(&at), self.db.snapshot())
        };
        // Contents prefixes of stale directories; nothing below them can be relied on.
        let mut stales: Vec<Vec<u8>> = if stale { vec![contents.clone()] } else { Vec::new() };
        let mut add = |entry: &[u8], value: &[u8]| {
            let Ok(Stored::Record(record)) = Stored::decode(value) else { return };
            let Some(account) = record.account else { return };
            if account.stale {
                stales.extend(path::contents_of(b"", entry));
            }
            let Some(limit) = account.limit else { return };
            found.push(Quota {
                path: path_buf(entry),
                limit,
                used: u64::try_from(account.used).unwrap_or(0),
                stale: account.stale || stales.iter().any(|stale| contents_has(stale, entry)),
            });
        };
        if let Some(value) = view.get(&path::meta(&entry))? {
            add(&entry, &value);
        }
        let mut pairs = view.prefix(&path::meta(&contents));
        while let Some((key, value)) = pairs.next_ref()? {
            if let Some(own) = path::path_of(key).filter(|own| own.len() > contents.len()) {
                add(&own, value);
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        drop(pairs);
        self.recount_found(&dir, &contents, &stales);
        Ok(found)
    }

    /// Bytes that may be added to a file or directory before a quota is used up; `None` if none limits that. No I/O.
    pub fn quota_left(&self, ino: Ino) -> Option<u64> {
        self.tightest(ino).map(|tightest| tightest.left)
    }

    /// EDQUOT if `bytes` more would exceed the quota of the directory, or of one above. Nothing is reserved.
    pub(crate) fn has_room(&self, ino: Ino, bytes: i64) -> Result<()> {
        match self.tightest(ino) {
            Some(Tightest { dir, account, .. }) if !account.has_room(bytes) => {
                Err(Error::QuotaExceeded(dir.label()))
            }
            _ => Ok(()),
        }
    }

    /// The directory above with a limit that has the least room left.
    fn tightest(&self, ino: Ino) -> Option<Tightest> {
        if !self.has_accounts() {
            return None;
        }
        let up = self.table.find(ino)?.ancestry().ok()?;
        let room = |dir: &InodeRef| {
            let account = dir.peek(|s| s.record.account)?;
            Some(Tightest { dir: dir.clone(), account, limit: account.limit?, left: account.left()? })
        };
        up.iter().filter_map(room).min_by_key(|tightest| tightest.left)
    }

    /// Like [`Fs::statfs`], of the place of an inode: below a quota, how large that is, and what is left of it.
    pub fn statfs_at(&self, ino: Ino) -> Result<StatFs> {
        let mut figures = self.statfs()?;
        if let Some(Tightest { limit, left, .. }) = self.tightest(ino) {
            let unit = u64::from(figures.frsize);
            figures.blocks = limit.div_ceil(unit);
            figures.bfree = figures.bfree.min(left / unit);
            figures.bavail = figures.bfree;
        }
        Ok(figures)
    }
}

/// The path of an entry from the root.
fn path_buf(entry: &[u8]) -> PathBuf {
    let mut path = PathBuf::from("/");
    path.extend(path::names(entry).unwrap_or_default().into_iter().map(OsStr::from_bytes));
    path
}

/// Whether an entry lies below the directory with this contents prefix.
fn contents_has(contents: &[u8], entry: &[u8]) -> bool {
    entry.len() > contents.len() && entry.starts_with(contents)
}
