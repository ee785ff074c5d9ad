//! Bills: what a batch adds to the accounts of the directories above what it changes.
//!
//! A bill is reserved in memory, where limits are checked, and the batch has one blind upsert for each account; the
//! reservation is taken back if the batch fails. Guarantees that an account in the engine is at each moment the sum
//! of what the batches up to then have added, and that no bill makes that sum exceed a limit. The caller holds the
//! locks of the places that it changes until the bill is paid or dropped, so the accounts above them stay the same.
//! Costs no I/O: nothing in a store that never had an account, otherwise a look at each directory above.

use bytes::Bytes;
use pando_db::Batch;
use smallvec::SmallVec;

use crate::{
    account::AccountChange,
    error::{Error, Result},
    format::FEATURE_ACCOUNTS,
    inode::{InodeRef, Link},
    ledger::{SharedAccounts, SoleAccounts},
    merge::Change,
    path,
    place::{At, DirAt},
    volume::Fs,
};

/// An account, and what is added to it.
struct Line {
    dir: InodeRef,
    /// Key of its record.
    key: Bytes,
    bytes: i64,
    /// `bytes` is an estimate.
    inexact: bool,
}

/// The accounts of the directories above a place, from the lowest one up.
#[derive(Default)]
pub(crate) struct Above(SmallVec<[Line; 2]>);

impl Above {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them has a limit.
    pub(crate) fn has_limit(&self) -> bool {
        let has =
            |line: &Line| line.dir.peek(|s| s.record.account.is_some_and(|account| account.limit.is_some()));
        self.0.iter().any(has)
    }

    /// Whether one of them is stale.
    pub(crate) fn has_stale(&self) -> bool {
        self.0.iter().any(Line::is_stale)
    }

    /// Removes the accounts that both have: a file that moves from one place to the other stays in these.
    pub(crate) fn apart(mut self, mut other: Above) -> (Above, Above) {
        let has = |lines: &[Line], line: &Line| lines.iter().any(|l| l.dir.ino == line.dir.ino);
        let common: SmallVec<[u64; 2]> =
            self.0.iter().filter(|line| has(&other.0, line)).map(|line| line.dir.ino).collect();
        self.0.retain(|line| !common.contains(&line.dir.ino));
        other.0.retain(|line| !common.contains(&line.dir.ino));
        (self, other)
    }
}

/// Bytes that a file or tree takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Taken {
    pub bytes: i64,
    /// `bytes` is an estimate: it may be more, or less.
    pub inexact: bool,
}

impl Taken {
    pub(crate) fn exact(bytes: i64) -> Self {
        Self { bytes, inexact: false }
    }
}

/// Bytes to be added to accounts.
#[derive(Default)]
pub(crate) struct Bill {
    lines: SmallVec<[Line; 2]>,
}

impl Bill {
    /// Adds the bytes of a file or tree that is put below these accounts.
    pub(crate) fn add(&mut self, above: Above, taken: Taken) {
        self.put(above, taken, 1);
    }

    /// Subtracts the bytes of one that is taken away from below them.
    pub(crate) fn subtract(&mut self, above: Above, taken: Taken) {
        self.put(above, taken, -1);
    }

    fn put(&mut self, above: Above, taken: Taken, sign: i64) {
        let bytes = taken.bytes.saturating_mul(sign);
        for line in above.0 {
            match self.lines.iter_mut().find(|l| l.dir.ino == line.dir.ino) {
                Some(there) => {
                    there.bytes = there.bytes.saturating_add(bytes);
                    there.inexact |= taken.inexact;
                }
                None => self.lines.push(Line { bytes, inexact: taken.inexact, ..line }),
            }
        }
    }
}

/// A bill that is added to the accounts in memory, and to a batch that is not written yet. Dropping it subtracts it
/// again, unless it was paid.
#[derive(Default)]
pub(crate) struct Reserved<'a> {
    lines: SmallVec<[Line; 2]>,
    _accounts: Option<SharedAccounts<'a>>,
}

impl Reserved<'_> {
    /// The batch is written.
    pub(crate) fn paid(mut self) {
        self.lines.clear();
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        for line in &self.lines {
            line.add(-line.bytes);
        }
    }
}

impl Line {
    fn is_stale(&self) -> bool {
        self.dir.peek(|s| s.record.account.is_some_and(|account| account.stale))
    }

    /// Adds to the account in memory.
    fn add(&self, bytes: i64) {
        self.dir.change(|s| {
            if let Some(account) = &mut s.record.account {
                account.used = account.used.saturating_add(bytes);
            }
        });
    }

    /// Adds to the account in memory if its limit allows that.
    fn reserve(&self) -> Result<()> {
        let fits = self.dir.change(|s| match &mut s.record.account {
            Some(account) => {
                let used = account.used.saturating_add(self.bytes);
                let limit = account.limit.map_or(i64::MAX, |limit| i64::try_from(limit).unwrap_or(i64::MAX));
                let fits = self.bytes <= 0 || used <= limit;
                if fits {
                    account.used = used;
                    account.stale |= self.inexact;
                }
                fits
            }
            None => true,
        });
        if fits { Ok(()) } else { Err(Error::QuotaExceeded(self.dir.label())) }
    }
}

impl Fs {
    /// Whether there is, or was, any account. No I/O.
    pub(crate) fn has_accounts(&self) -> bool {
        self.has_feature(FEATURE_ACCOUNTS)
    }

    /// The accounts around the entries of a directory: its own, and those of all above it.
    pub(crate) fn above(&self, at: &DirAt) -> Above {
        self.above_in(&at.dir, &at.contents, false)
    }

    /// The accounts around the link area of the lineage that the entries of a directory are in.
    pub(crate) fn above_links(&self, at: &DirAt) -> Above {
        self.above_in(&at.dir, &at.contents, true)
    }

    /// The accounts around the entries of a directory with this contents prefix, whose locks the caller holds in
    /// another way; or, with `links`, those around the link area of its lineage.
    pub(crate) fn above_in(&self, dir: &InodeRef, contents: &[u8], links: bool) -> Above {
        let mut above = Above::default();
        if !self.has_accounts() || dir.frozen {
            return above;
        }
        let mut dir = dir.clone();
        let mut end = contents.len();
        let mut inside = !links;
        loop {
            let (up, counted, root) = dir.peek(|s| {
                let up = match &s.link {
                    Link::At { parent, name } => Some((parent.clone(), name.len())),
                    _ => None,
                };
                (up, s.record.account.is_some(), s.record.clone_id != 0)
            });
            inside |= root || up.is_none();
            let start = up.as_ref().map_or(0, |(_, name)| end.saturating_sub(name + 2));
            if counted && inside {
                let entry = path::entry_of(contents.get(..end).unwrap_or_default(), start);
                let (dir, key) = (dir.clone(), path::meta(&entry));
                above.0.push(Line { dir, key, bytes: 0, inexact: false });
            }
            let Some((parent, _)) = up else { break };
            (dir, end) = (parent, start);
        }
        above
    }

    /// The accounts around the data of an inode.
    pub(crate) fn above_file(&self, at: &At) -> Above {
        match at.around() {
            Some(dir) if self.has_accounts() => self.above(dir),
            _ => Above::default(),
        }
    }

    /// Adds a bill to a batch, or fails with EDQUOT. The caller says [`Reserved::paid`] when the batch is written.
    pub(crate) fn reserve(&self, batch: &mut Batch, bill: Bill) -> Result<Reserved<'_>> {
        for line in bill.lines.iter().filter(|line| line.is_stale()) {
            self.ledger.wants(&line.dir);
            self.count_trees_soon();
        }
        if bill.lines.iter().all(|line| line.bytes == 0 && !line.inexact) {
            return Ok(Reserved::default());
        }
        let accounts = self.ledger.shared();
        self.reserve_in(batch, bill, Some(accounts))
    }

    /// The exclusive lock of the accounts, if there are any: for a call that copies accounts or makes them stale.
    pub(crate) fn lock_accounts(&self) -> Option<SoleAccounts<'_>> {
        self.has_accounts().then(|| self.ledger.alone())
    }

    /// Like [`Fs::reserve`], for a caller that holds the lock of [`Fs::lock_accounts`].
    pub(crate) fn reserve_alone(
        &self,
        _accounts: &Option<SoleAccounts<'_>>,
        batch: &mut Batch,
        bill: Bill,
    ) -> Result<Reserved<'_>> {
        self.reserve_in(batch, bill, None)
    }

    fn reserve_in<'a>(
        &'a self,
        batch: &mut Batch,
        bill: Bill,
        accounts: Option<SharedAccounts<'a>>,
    ) -> Result<Reserved<'a>> {
        let mut reserved = Reserved { lines: SmallVec::new(), _accounts: accounts };
        for line in bill.lines {
            if line.bytes == 0 && !line.inexact {
                continue;
            }
            line.reserve()?; // an error drops `reserved`, which takes the earlier lines back
            if line.inexact {
                self.ledger.mark();
                self.ledger.wants(&line.dir);
                self.count_trees_soon();
            }
            let account = line.inexact.then_some(AccountChange::Stale(true));
            let change = Change { billed: line.bytes, account, ..Change::default() };
            batch.upsert(line.key.clone(), change.encode());
            reserved.lines.push(line);
        }
        Ok(reserved)
    }

    /// Adds to a batch that one file takes so many bytes more, or less.
    pub(crate) fn reserve_file(&self, batch: &mut Batch, above: Above, bytes: i64) -> Result<Reserved<'_>> {
        let mut bill = Bill::default();
        bill.add(above, Taken::exact(bytes));
        self.reserve(batch, bill)
    }
}
