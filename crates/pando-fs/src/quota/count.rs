//! Counts the space of trees while other calls go on, and corrects their accounts.
//!
//! The error of an account stays the same while changes below add their differences. So the sum of one snapshot is
//! enough to correct the account later, by a difference. Guarantees: an account is exact if neither it nor one above
//! it is stale; no lock is held during a scan.

use std::{collections::HashMap, sync::Weak, time::Duration};

use bytes::Bytes;

use crate::{
    account::{Account, AccountChange},
    background::BEGIN_AFTER,
    bill::Taken,
    domain::linked_bytes,
    error::{Error, Result},
    inode::{InodeRef, Link},
    lock::{Attempts, Guard, Obstacle},
    merge::Change,
    path,
    place::DirAt,
    record::Record,
    sums::{Counted, sums},
    types::Ino,
    volume::{Fs, Inner},
};

/// How often a tree is counted because an account in it became stale meanwhile, a count.
const COUNT_ATTEMPTS: u32 = 3;
/// The background thread sleeps so long after so many records.
const SUM_PAUSE: Duration = Duration::from_millis(1);
const PAUSE_RECORDS: u64 = 2000;

/// Names of linked files: the contents prefix of the root of their lineage, a part of its index of names, and what of
/// that is left out.
type LinkedNames = (Vec<u8>, Bytes, Vec<Bytes>);

/// The trees and names that have to be counted before one call can go on.
#[derive(Default)]
pub(crate) struct Counts {
    wanted: Option<(InodeRef, Vec<Vec<u8>>)>,
    wanted_names: Option<LinkedNames>,
    /// What linked files take, by the parts of indexes that were counted for this call.
    names: HashMap<Bytes, i64>,
}

impl Counts {
    /// Asks for a count of the directory to which these names lead from `dir`. The call has to return this error; it is
    /// made again once that is counted.
    pub(crate) fn want(&mut self, dir: &InodeRef, names: Vec<Vec<u8>>) -> Error {
        self.wanted = Some((dir.clone(), names));
        Error::Stale(dir.ino)
    }

    /// What the linked files with these names take; wants that counted, unless it was for this call. `dir` is where
    /// they are.
    pub(crate) fn linked(&mut self, dir: &InodeRef, names: LinkedNames) -> Result<i64> {
        if let Some(bytes) = self.names.get(&names.1) {
            return Ok(*bytes);
        }
        self.wanted_names = Some(names);
        Err(Error::Stale(dir.ino))
    }
}

impl Fs {
    /// Like [`Fs::with_attempts`]; between calls of `f` it counts what `f` has asked for.
    pub(crate) fn with_counts<T>(
        &self,
        mut f: impl FnMut(&mut Attempts, &mut Counts) -> Result<T, Obstacle>,
    ) -> Result<T> {
        self.counting_for(|counts| {
            self.with_attempts(|tries| {
                (counts.wanted, counts.wanted_names) = (None, None);
                f(tries, counts)
            })
        })
    }

    /// Runs `f` until it asks for no count, and counts in between what it has asked for.
    pub(crate) fn counting_for<T>(&self, mut f: impl FnMut(&mut Counts) -> Result<T>) -> Result<T> {
        let mut counts = Counts::default();
        loop {
            (counts.wanted, counts.wanted_names) = (None, None);
            let done = f(&mut counts);
            if done.is_ok() {
                return done;
            }
            if let Some((root, index, without)) = counts.wanted_names.take() {
                let bytes = linked_bytes(&self.db.snapshot(), &root, &index, &without)?;
                counts.names.insert(index, bytes);
                continue;
            }
            let Some((dir, names)) = counts.wanted.take() else { return done };
            let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
            if let Some(dir) = self.below(&dir, &names)? {
                self.count_tree(&dir, false)?;
            }
        }
    }

    /// What the tree of the directory `dir` in `at` takes; wants it counted if it never was. The caller holds the
    /// accounts exclusively, or keeps all other calls out of the directory.
    pub(crate) fn tree_taken(&self, counts: &mut Counts, at: &DirAt, dir: &InodeRef) -> Result<Taken> {
        let (frozen, stripped) = match dir.frozen {
            true => {
                // A count that was begun before files without a name went may have ended later.
                let stripped = dir.ancestry()?.last().is_some_and(|top| {
                    top.peek(|s| matches!(s.link, Link::Snapshot(n) if self.ledger.was_stripped(n)))
                });
                (self.ledger.frozen(&frozen_contents(dir)?), stripped)
            }
            false => (None, false),
        };
        match (dir.peek(|s| s.record.account), frozen) {
            (Some(account), _) => {
                Ok(Taken { bytes: account.used, inexact: account.stale || self.is_stale_around(at) })
            }
            (None, Some(bytes)) => Ok(Taken { bytes, inexact: stripped }),
            (None, None) => Err(counts.want(dir, Vec::new())),
        }
    }

    /// Whether the account of a directory or of one above is stale, so that those below may be wrong.
    pub(crate) fn is_stale_around(&self, at: &DirAt) -> bool {
        let mut next = self.has_accounts().then(|| at.dir.clone());
        while let Some(dir) = next {
            let (stale, up) = dir.peek(|s| {
                let up = match &s.link {
                    Link::At { parent, .. } => Some(parent.clone()),
                    _ => None,
                };
                (s.record.account.is_some_and(|account| account.stale), up)
            });
            if stale {
                return true;
            }
            next = up;
        }
        false
    }

    /// What the removal of a directory without entries frees: linked files without a name may lie in it until names are
    /// counted. The caller keeps all other calls out of it.
    pub(crate) fn leftovers(&self, dir: &InodeRef, contents: &[u8]) -> Result<Taken> {
        if !self.has_links() || dir.peek(|s| s.record.clone_id == 0) {
            return Ok(Taken::default());
        }
        let found = sums(&self.db.snapshot(), contents, || true)?;
        Ok(Taken::exact(found.map_or(0, |found| found.total)))
    }

    /// The directory to which names lead from `dir`, if there is one.
    fn below(&self, dir: &InodeRef, names: &[&[u8]]) -> Result<Option<InodeRef>> {
        let mut dir = dir.clone();
        for name in names {
            let (at, _names) = self.hold_names(&dir, false)?;
            match self.child(&at, name)? {
                Some(child) if child.must_be_dir().is_ok() => dir = child,
                _ => return Ok(None),
            }
        }
        Ok(Some(dir))
    }

    /// Holds a directory where it is and keeps all other calls out of it; gives the path of its record.
    pub(crate) fn attempt_alone(
        &self,
        tries: &mut Attempts,
        dir: &InodeRef,
    ) -> Result<(Vacated, Vec<u8>), Obstacle> {
        let Some(parent) = dir.parent()? else {
            return match dir.peek(|s| matches!(s.link, Link::Root)) {
                true => Ok((Vacated { _own: tries.exclusive(&dir.tree)?, around: None }, Vec::new())),
                false => Err(Error::InSnapshot(dir.label()).into()),
            };
        };
        let around = self.attempt_dir(&parent)?;
        let own = tries.exclusive(&dir.tree)?;
        let name = dir.peek(|s| match &s.link {
            Link::At { parent: p, name } if p.ino == parent.ino => Ok(Some(name.clone())),
            Link::Gone => Err(Error::Stale(dir.ino)),
            _ => Ok(None),
        })?;
        let Some(name) = name else {
            return Err(Obstacle::Taken { lock: dir.tree.clone(), exclusive: false });
        };
        let entry = around.child(&name)?;
        Ok((Vacated { _own: own, around: Some(around) }, entry))
    }

    /// Gives a directory an account that is exact, unless another call makes it stale meanwhile. Scans all records
    /// below if the directory has none, or a stale one, or if it is to be counted `anew`: an account that should be
    /// exact may be wrong after damage, or by a fault.
    pub(crate) fn count_tree(&self, dir: &InodeRef, anew: bool) -> Result<()> {
        if dir.frozen {
            let contents = self.hold_dir(dir)?.contents.clone();
            let found = sums(&self.db.snapshot(), &contents, || true)?;
            self.ledger.note_frozen(contents, found.map_or(0, |found| found.total));
            return Ok(());
        }
        let _one = self.ledger.count_alone();
        self.with_attempts(|tries| {
            let (_alone, entry) = self.attempt_alone(tries, dir)?;
            if dir.peek(|s| s.record.account.is_none()) {
                let account = Account { stale: true, ..Account::default() };
                let change = Change { account: Some(AccountChange::Set(Some(account))), ..Change::default() };
                self.db.upsert(path::meta(&entry), change.encode())?;
                dir.change(|s| change.apply(&mut s.record));
            }
            Ok(())
        })?;
        if anew || dir.peek(|s| s.record.account.is_none_or(|account| account.stale)) {
            self.recount(dir, false)?;
        }
        Ok(())
    }

    /// Counts the tree of a directory with an account, and corrects that account and those below; whether they are
    /// exact now. No other thread counts meanwhile.
    fn recount(&self, dir: &InodeRef, gently: bool) -> Result<bool> {
        for _ in 0..COUNT_ATTEMPTS {
            let (contents, key, view, marks) = {
                let at = self.hold_dir(dir)?;
                // With this lock held, each account that is marked stale in memory is so in the store.
                let _alone = self.ledger.alone();
                (at.contents.clone(), at.meta(), self.db.snapshot(), self.ledger.marks())
            };
            let damaged = |detail| Error::Damaged { what: dir.label(), detail };
            let record = view.get(&key)?.ok_or(damaged("its record does not exist"))?;
            let record = Record::decode(&record).map_err(damaged)?;
            let (numbers, Some(account)) = (Counted::numbers_of(&record), record.account) else {
                return Ok(false);
            };
            let mut records = 0u64;
            let found = sums(&view, &contents, || {
                records += 1;
                if gently && records.is_multiple_of(PAUSE_RECORDS) {
                    std::thread::sleep(SUM_PAUSE);
                }
                !gently || !self.ledger.is_stopped()
            })?;
            let Some(found) = found else { return Ok(false) };
            drop(view);
            let mut all = true;
            for counted in &found.counted {
                let names = names_between(&contents, &counted.contents).ok_or(damaged("impossible path"))?;
                all &= match self.below(dir, &names) {
                    Ok(Some(below)) => self.put_right(&below, counted, Some(marks))?,
                    Ok(None) => false,
                    Err(Error::Stale(_)) => false,
                    Err(e) => return Err(e),
                };
            }
            let own = Counted { contents, numbers, account, sum: found.total };
            if self.put_right(dir, &own, all.then_some(marks))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Corrects the account of a directory by the sum of the moment at which it said `counted`, if it is still that
    /// directory: another one may have its path by now. The account is not stale any more if none has become so since
    /// `marks`; whether that is so.
    fn put_right(&self, dir: &InodeRef, counted: &Counted, marks: Option<u64>) -> Result<bool> {
        let at = self.hold_dir(dir)?;
        let alone = self.ledger.alone();
        let (numbers, account) = dir.peek(|s| (Counted::numbers_of(&s.record), s.record.account));
        let (true, Some(account)) = (numbers == counted.numbers, account) else { return Ok(false) };
        let exact = marks == Some(self.ledger.marks());
        let change = Change {
            billed: counted.sum.saturating_sub(counted.account.used),
            account: (account.stale && exact).then_some(AccountChange::Stale(false)),
            ..Change::default()
        };
        if change != Change::default() {
            self.db.upsert(at.meta(), change.encode())?;
            dir.change(|s| change.apply(&mut s.record));
        }
        drop(alone);
        Ok(exact)
    }

    /// Counts the queued directories in the calling thread. Afterwards all accounts that were queued are exact,
    /// unless one has become stale meanwhile. Costs a scan of the records below each.
    pub fn count_quotas(&self) -> Result<()> {
        self.count_waiting(false)
    }

    fn count_waiting(&self, gently: bool) -> Result<()> {
        while let Some(dir) = self.ledger.next() {
            if self.ledger.is_stopped() {
                break;
            }
            let Ok(up) = dir.ancestry() else { continue };
            let stale = |dir: &&InodeRef| dir.peek(|s| s.record.account.is_some_and(|account| account.stale));
            let Some(top) = up.iter().rfind(stale) else { continue };
            let _one = self.ledger.count_alone();
            match self.recount(top, gently) {
                Ok(_) | Err(Error::Stale(_)) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// What the background thread for quotas runs.
    pub(crate) fn count_trees_in_background(weak: Weak<Inner>) {
        loop {
            std::thread::sleep(BEGIN_AFTER);
            let Some(fs) = Fs::upgraded(&weak) else { return };
            // What fails stays stale, and is counted when something below it changes.
            let _failed = fs.count_waiting(true);
            if !fs.ledger.goes_on() {
                return;
            }
        }
    }

    /// Marks the account as stale in the record that a batch gives a directory; the directory gets an account if it has
    /// none and the store has any. The caller keeps all other calls out of the directory.
    pub(crate) fn make_stale(&self, record: &mut Record) {
        if self.has_accounts() {
            let account = record.account.unwrap_or_default();
            record.account = Some(Account { stale: true, ..account });
        }
    }

    /// Queues a directory that was moved into `parent` to be counted, if its account is stale.
    pub(crate) fn recount_at(&self, parent: Ino, name: &[u8]) {
        if !self.has_accounts() {
            return;
        }
        // What fails is counted when something below it changes.
        if let Ok(Some(dir)) = self.dir(parent).and_then(|parent| self.below(&parent, &[name]))
            && dir.peek(|s| s.record.account.is_some_and(|account| account.stale))
        {
            self.recount_later(&dir);
        }
    }

    /// Queues directories below `dir` whose accounts were found stale, given by their contents prefixes in order: only
    /// the topmost ones, because a count includes all below.
    pub(crate) fn recount_found(&self, dir: &InodeRef, contents: &[u8], found: &[Vec<u8>]) {
        let mut top: Option<&Vec<u8>> = None;
        for stale in found {
            if top.is_some_and(|top| stale.starts_with(top)) {
                continue;
            }
            top = Some(stale);
            let below = names_between(contents, stale).map(|names| self.below(dir, &names));
            if let Some(Ok(Some(below))) = below {
                self.recount_later(&below);
            }
        }
    }

    /// Queues a directory whose account became stale for a count.
    pub(crate) fn recount_later(&self, dir: &InodeRef) {
        if self.has_accounts() && !self.is_read_only() {
            self.ledger.wants(dir);
            self.count_trees_soon();
        }
    }
}

/// The contents prefix of a directory in a snapshot, where nothing moves.
fn frozen_contents(dir: &InodeRef) -> Result<Vec<u8>> {
    let mut contents = Vec::new();
    for inode in dir.ancestry()?.iter().rev() {
        inode.peek(|s| match &s.link {
            Link::Snapshot(number) => {
                contents = path::snapshot(*number);
                Ok(())
            }
            Link::At { name, .. } => path::enter(&mut contents, name),
            _ => Err(Error::Stale(dir.ino)),
        })?;
    }
    Ok(contents)
}

/// A directory that is held where it is, with no other call in it.
pub(crate) struct Vacated {
    _own: Guard,
    /// The directory that it lies in, unless it is the root.
    pub around: Option<DirAt>,
}

/// The names that lead from one directory to one below it, by their contents prefixes.
fn names_between<'a>(contents: &[u8], below: &'a [u8]) -> Option<Vec<&'a [u8]>> {
    let mut names = Vec::new();
    let mut from = contents.len();
    while from < below.len() {
        let (_, level) = path::next_level(below, from)?;
        names.push(below.get(from + 1..level.len().checked_sub(1)?)?);
        from = level.len();
    }
    Some(names)
}
