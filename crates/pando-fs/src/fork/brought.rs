//! Counts what a merge adds to directories, so that it keeps to their quotas.
//!
//! Guarantees: a plan that passes exceeds no limit of a directory in the tree, as it was when the plan was made; the
//! result is the number of bytes that the plan adds to the whole tree. A linked file that loses a name counts as
//! staying, because its other names may stay. Costs nothing if there is no limit; otherwise a scan of the records of
//! entries that are taken, removed or moved.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::{
    account::Account,
    diff::{change::shown, side::contents_of},
    domain::linked_bytes,
    error::{Error, Result},
    fork::{
        arrange::Moved,
        follow::upwards,
        step::{Step, Trees},
    },
    inode::InodeRef,
    path,
    record::{Record, Stored},
    sums::{data_bytes, file_bytes, sums},
    types::FileKind,
    volume::Fs,
};

/// Directories of the tree that have limits, by contents prefix from the top.
type Limited = BTreeSet<Vec<u8>>;

struct Weighing<'a> {
    trees: &'a mut Trees,
    moved: Moved,
    /// Entries that are removed or moved, in order, and their contents prefixes.
    leaving: Vec<Vec<u8>>,
    leaving_dirs: HashSet<Vec<u8>>,
    /// Accounts with limits in the tree, by contents prefix; `None` for directories that have no limit.
    accounts: HashMap<Vec<u8>, Option<Account>>,
    /// Whether the tree, or a directory around it, has a limit.
    around: bool,
    total: i64,
    added: BTreeMap<Vec<u8>, i64>,
}

impl Fs {
    /// Bytes that a plan adds to the tree of `into`, less those that it removes. EDQUOT if they exceed the limit of a
    /// directory in it.
    pub(crate) fn brought(&self, steps: &[Step], trees: &mut Trees, into: &InodeRef) -> Result<i64> {
        if !self.has_accounts() {
            return Ok(0);
        }
        let leaving = steps.iter().filter_map(|step| match step {
            Step::Remove(entry) => Some(entry.clone()),
            Step::Move { from, .. } => Some(from.clone()),
            _ => None,
        });
        let mut leaving: Vec<Vec<u8>> = leaving.collect();
        leaving.sort_unstable();
        let mut weighing = Weighing {
            trees,
            moved: Moved::of(steps),
            leaving_dirs: leaving.iter().map(|entry| contents_of(entry)).collect(),
            leaving,
            accounts: HashMap::new(),
            around: self.quota_left(into.ino).is_some(),
            total: 0,
            added: BTreeMap::new(),
        };
        steps.iter().try_for_each(|step| weighing.step(step))?;
        weighing.keeps_limits(&into.label())?;
        Ok(weighing.total)
    }

    /// Adds what a merge brings to the account in the new record of its directory, and marks the account as stale.
    /// EDQUOT if that exceeds the limit.
    pub(crate) fn bring(&self, into: &InodeRef, record: &mut Record, bytes: i64) -> Result<()> {
        self.make_stale(record);
        let Some(account) = &mut record.account else { return Ok(()) };
        if !account.has_room(bytes) {
            return Err(Error::QuotaExceeded(into.label()));
        }
        account.used = account.used.saturating_add(bytes);
        Ok(())
    }
}

impl Weighing<'_> {
    fn step(&mut self, step: &Step) -> Result<()> {
        match step {
            Step::Take { from, dir, without } => {
                let limited = self.limited_after(dir)?;
                if self.around || !limited.is_empty() {
                    let mut bytes = self.taken(from)?;
                    for left in without {
                        bytes -= self.taken(&[&contents_of(from)[..], left].concat())?;
                    }
                    self.add(bytes, &limited);
                }
            }
            Step::Remove(entry) => {
                let limited = self.limited(path::directory_of(entry))?;
                if self.around || !limited.is_empty() {
                    let bytes = self.leaves(entry)?;
                    self.add(-bytes, &limited);
                }
            }
            Step::Move { from, dir, .. } => {
                let (old, new) = (self.limited(path::directory_of(from))?, self.limited_after(dir)?);
                if old != new {
                    let bytes = self.leaves(from)?;
                    self.add(-bytes, &old);
                    self.add(bytes, &new);
                }
            }
            Step::Change { from, to, .. } | Step::Write { from, to, .. } if step.makes_file() => {
                let limited = self.limited_around(to)?;
                if self.around || !limited.is_empty() {
                    let (old, whole) = self.here(to)?;
                    let new = match step {
                        Step::Write { text, .. } => file_bytes(text.len() as u64, None, None),
                        Step::Change { alone: true, .. } => whole,
                        _ => self.taken(from)?,
                    };
                    self.add(new - old, &limited);
                }
            }
            Step::Change { .. } | Step::Write { .. } => {}
        }
        Ok(())
    }

    fn add(&mut self, bytes: i64, limited: &Limited) {
        self.total = self.total.saturating_add(bytes);
        for dir in limited {
            let added = self.added.entry(dir.clone()).or_default();
            *added = added.saturating_add(bytes);
        }
    }

    fn keeps_limits(&self, label: &str) -> Result<()> {
        for (dir, added) in &self.added {
            let account = self.accounts.get(dir).copied().flatten();
            if account.is_some_and(|account| !account.has_room(*added)) {
                let inside = path::entry_of_contents(dir).map(|entry| shown(&entry));
                let inside = inside.unwrap_or_default();
                return Err(Error::QuotaExceeded(format!("{label}/{}", inside.display())));
            }
        }
        Ok(())
    }

    /// Whether a directory has a limit.
    fn has_limit(&mut self, dir: &[u8]) -> Result<bool> {
        if let Some(known) = self.accounts.get(dir) {
            return Ok(known.is_some());
        }
        let value = match path::entry_of_contents(dir) {
            Some(entry) => self.trees.ours.value(&entry)?,
            None => None,
        };
        let account = match value.as_deref().map(Stored::decode) {
            Some(Ok(Stored::Record(record))) => record.account.filter(|account| account.limit.is_some()),
            _ => None,
        };
        self.accounts.insert(dir.to_vec(), account);
        Ok(account.is_some())
    }

    /// Directories with limits among this one and those around it, at their present places.
    fn limited(&mut self, dir: &[u8]) -> Result<Limited> {
        let mut limited = Limited::new();
        for above in upwards(dir) {
            if self.has_limit(above)? {
                limited.insert(above.to_vec());
            }
        }
        Ok(limited)
    }

    /// The same at the places after the merge.
    fn limited_after(&mut self, dir: &[u8]) -> Result<Limited> {
        let (mut limited, mut dir, mut left) = (Limited::new(), dir.to_vec(), self.leaving.len());
        loop {
            let around = self.moved.around(&dir).map(<[u8]>::to_vec).filter(|_| left > 0);
            for above in
                upwards(&dir).take_while(|above| around.as_ref().is_none_or(|a| above.len() >= a.len()))
            {
                if self.has_limit(above)? {
                    limited.insert(above.to_vec());
                }
            }
            let Some((to, _)) =
                around.and_then(|around| self.moved.target(&around).map(|(to, name)| (to.to_vec(), name)))
            else {
                return Ok(limited);
            };
            (dir, left) = (to, left - 1);
        }
    }

    /// The same for the directory that will contain the file that is at `entry` now.
    fn limited_around(&mut self, entry: &[u8]) -> Result<Limited> {
        match self.moved.target(&contents_of(entry)).map(|(dir, _)| dir.to_vec()) {
            Some(dir) => self.limited_after(&dir),
            None => self.limited_after(path::directory_of(entry)),
        }
    }

    /// Bytes that an entry of the fork takes.
    fn taken(&mut self, entry: &[u8]) -> Result<i64> {
        let theirs = &mut self.trees.theirs;
        let Some(value) = theirs.value(entry)? else { return Ok(0) };
        let found = theirs.found(entry, &value)?;
        if found.record.kind != FileKind::Directory {
            return data_bytes(&theirs.view, &found.data, &found.record);
        }
        let inside = contents_of(entry);
        let own = sums(&theirs.view, &theirs.place(&inside), || true)?.map_or(0, |sums| sums.total);
        if found.record.clone_id != 0 {
            return Ok(own);
        }
        let Some(level) = theirs.level(&inside)? else { return Ok(own) };
        let root = level.root.clone();
        let index = path::meta(&theirs.link_name(&root, &inside));
        Ok(own.saturating_add(linked_bytes(&theirs.view, &root, &index, &[])?))
    }

    /// Bytes that an entry of this side takes, without what is removed or moved out of it by steps of its own.
    fn leaves(&self, entry: &[u8]) -> Result<i64> {
        let (mut bytes, inside) = (self.now_at(entry)?, contents_of(entry));
        let first = self.leaving.partition_point(|other| **other < *inside);
        for other in self.leaving.iter().skip(first).take_while(|other| other.starts_with(&inside)) {
            let mut between = upwards(path::directory_of(other)).take_while(|dir| dir.len() > inside.len());
            if !between.any(|dir| self.leaving_dirs.contains(dir)) {
                bytes -= self.now_at(other)?;
            }
        }
        Ok(bytes)
    }

    fn now_at(&self, entry: &[u8]) -> Result<i64> {
        let ours = &self.trees.ours;
        let Some(value) = ours.value(entry)? else { return Ok(0) };
        match Stored::decode(&value) {
            Ok(Stored::Record(record)) if record.kind == FileKind::Directory => {
                let place = ours.place(&contents_of(entry));
                Ok(sums(&ours.view, &place, || true)?.map_or(0, |sums| sums.total))
            }
            Ok(Stored::Record(record)) => data_bytes(&ours.view, &path::data(&ours.place(entry)), &record),
            _ => Ok(0),
        }
    }

    /// Bytes of the file at an entry that another one replaces, and of that one.
    fn here(&mut self, entry: &[u8]) -> Result<(i64, i64)> {
        let ours = &mut self.trees.ours;
        let Some(value) = ours.value(entry)? else { return Ok((0, 0)) };
        let found = ours.found(entry, &value)?;
        let bytes = data_bytes(&ours.view, &found.data, &found.record)?;
        Ok(if matches!(Stored::decode(&value), Ok(Stored::Name(_))) { (0, bytes) } else { (bytes, bytes) })
    }
}
