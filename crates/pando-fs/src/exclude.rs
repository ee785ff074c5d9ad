//! What a clone of a directory leaves out.
//!
//! Each path that is left out is a range delete in the batch of the clone. What is
//! left out of a count is looked up in the store.

use std::{
    collections::BTreeMap,
    path::{Component, Path},
};

use pando_db::{Batch, Snapshot};

use crate::{
    account::{Account, AccountChange},
    bill::Taken,
    error::{Error, Result},
    inode::InodeRef,
    merge::Change,
    path::{self, check_name},
    quota::Counts,
    record::{Record, Stored},
    rename::End,
    sums::record_bytes,
    types::FileKind,
    volume::Fs,
};

/// What a clone leaves out of what is counted.
#[derive(Default)]
pub(crate) struct LeftOut {
    /// All of it; nothing was looked up if nothing around the copy is counted.
    pub all: Taken,
    /// The accounts of directories in the copy, by the names that lead there from its top.
    accounts: BTreeMap<Vec<Vec<u8>>, Account>,
}

impl LeftOut {
    /// Corrects the accounts of directories in the copy at `to`, which the batch has made.
    pub(crate) fn correct(self, batch: &mut Batch, to: &End<'_>) -> Result<()> {
        let top = to.contents()?;
        for (names, account) in self.accounts {
            let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
            let Some((dir, last)) = place_of(&top, &names)? else { continue };
            let change = Change { account: Some(AccountChange::Set(Some(account))), ..Change::default() };
            batch.upsert(path::meta(&path::entry(&dir, last)?), change.encode());
        }
        Ok(())
    }
}

impl Fs {
    /// What lies at these paths in the source of a clone, which leaves it out. `counted`: the copy, or a directory
    /// above it, has an account. The caller holds the accounts exclusively.
    pub(crate) fn left_out(
        &self,
        counts: &mut Counts,
        source: &InodeRef,
        end: &End<'_>,
        paths: &[Vec<&[u8]>],
        counted: bool,
    ) -> Result<LeftOut> {
        if !self.has_accounts() {
            return Ok(LeftOut::default());
        }
        let view = self.db.snapshot();
        let top = end.contents()?;
        let mut left = LeftOut::default();
        for names in paths {
            let Some((dir, last)) = place_of(&top, names)? else { continue };
            let key = path::meta(&path::entry(&dir, last)?);
            let Some(value) = view.get(&key)? else { continue };
            let between = accounts_on_the_way(&view, &top, names)?;
            if !counted && between.is_empty() {
                continue;
            }
            let taken = match Stored::decode(&value) {
                Ok(Stored::Record(record)) if record.kind == FileKind::Directory => match record.account {
                    Some(account) => Taken { bytes: account.used, inexact: account.stale },
                    None if source.frozen => Taken { bytes: 0, inexact: true },
                    None => return Err(counts.want(source, names.iter().map(|name| name.to_vec()).collect())),
                },
                Ok(Stored::Record(record)) => Taken::exact(record_bytes(&view, &key, &record)?),
                // A name of several: the file goes when names are counted, if it has no other.
                _ => Taken { bytes: 0, inexact: true },
            };
            left.all.bytes = left.all.bytes.saturating_add(taken.bytes);
            left.all.inexact |= taken.inexact;
            for (names, account) in between {
                let account = left.accounts.entry(names).or_insert(account);
                account.used = account.used.saturating_sub(taken.bytes);
                account.stale |= taken.inexact;
            }
        }
        Ok(left)
    }

    /// What the linked files take that have names in the source of a clone, which is no root of a lineage, and not
    /// only at these paths, which it leaves out.
    pub(crate) fn linked_taken(
        &self,
        counts: &mut Counts,
        source: &InodeRef,
        end: &End<'_>,
        paths: &[Vec<&[u8]>],
    ) -> Result<i64> {
        let domain = self.domain(end.at);
        let top = end.contents()?;
        let mut without = Vec::new();
        for names in paths {
            let Some((dir, last)) = place_of(&top, names)? else { continue };
            without.push(domain.index(&path::entry(&dir, last)?)?);
            without.push(domain.index(&path::contents(&dir, last)?)?);
        }
        counts.linked(source, (domain.contents.clone(), domain.index(&top)?, without))
    }

    /// Adds to the clone of a directory that what lies at these paths in it is left out; whether names of linked files
    /// have to be counted then.
    pub(crate) fn exclude(
        &self,
        batch: &mut Batch,
        from: &End<'_>,
        to: &End<'_>,
        paths: &[Vec<&[u8]>],
    ) -> Result<bool> {
        let mut counts = false;
        for names in paths {
            let Some((last, dirs)) = names.split_last() else { continue };
            let mut source = from.contents()?;
            let mut copy = to.contents()?;
            // The root of each lineage that the path may be in.
            let mut roots = vec![(copy.clone(), true)];
            let mut exists = true;
            for name in dirs {
                let record = self.db.get(&path::meta(&path::entry(&source, name)?))?;
                let record = record.and_then(|value| Record::decode(&value).ok());
                exists &= record.is_some();
                path::enter(&mut source, name)?;
                path::enter(&mut copy, name)?;
                roots.push((copy.clone(), record.is_some_and(|r| r.clone_id != 0)));
            }
            if !exists {
                continue;
            }
            let (entry, contents) = (path::entry(&copy, last)?, path::contents(&copy, last)?);
            batch.delete(path::meta(&entry)).delete_prefix(path::data(&entry));
            batch.delete_prefix(path::meta(&contents)).delete_prefix(path::data(&contents));
            if !self.has_links() {
                continue;
            }
            for (root, is_root) in roots {
                if let (Some(name), Some(below)) =
                    (path::link_name(&root, &entry), path::link_name(&root, &contents))
                {
                    batch.delete(path::meta(&name)).delete_prefix(path::meta(&below));
                }
                if is_root {
                    self.mark_uncounted(batch, &root)?;
                    counts = true;
                }
            }
        }
        Ok(counts)
    }
}

/// The accounts of the directories between `top` and what these names lead to, by their names from there.
fn accounts_on_the_way(view: &Snapshot, top: &[u8], names: &[&[u8]]) -> Result<Vec<(Vec<Vec<u8>>, Account)>> {
    let mut found = Vec::new();
    for end in 1..names.len() {
        let way = names.get(..end).unwrap_or_default();
        let Some((dir, last)) = place_of(top, way)? else { continue };
        let Some(value) = view.get(&path::meta(&path::entry(&dir, last)?))? else { continue };
        if let Ok(Stored::Record(record)) = Stored::decode(&value)
            && let Some(account) = record.account
        {
            found.push((way.iter().map(|name| name.to_vec()).collect(), account));
        }
    }
    Ok(found)
}

/// The contents prefix of the directory that a path from `top` leads to, and the name there.
fn place_of<'n>(top: &[u8], names: &[&'n [u8]]) -> Result<Option<(Vec<u8>, &'n [u8])>> {
    let Some((last, dirs)) = names.split_last() else { return Ok(None) };
    let mut dir = top.to_vec();
    for name in dirs {
        path::enter(&mut dir, name)?;
    }
    Ok(Some((dir, last)))
}

/// The outermost of `paths`: those that lie below none of the others, each once.
pub(crate) fn outermost(paths: Vec<Vec<&[u8]>>) -> Vec<Vec<&[u8]>> {
    let mut left: Vec<Vec<&[u8]>> = Vec::new();
    for path in &paths {
        let inside = paths.iter().any(|other| other.len() < path.len() && path.starts_with(other));
        if !inside && !left.contains(path) {
            left.push(path.clone());
        }
    }
    left
}

/// The names in a path that leads from a directory into it.
pub(crate) fn relative(path: &Path) -> Result<Vec<&[u8]>> {
    let names = path.components().filter(|part| *part != Component::CurDir).map(|part| match part {
        Component::Normal(name) => check_name(name),
        _ => Err(Error::Invalid(format!("{}: not a path inside the source", path.display()))),
    });
    let names = names.collect::<Result<Vec<_>>>()?;
    if names.is_empty() {
        return Err(Error::Invalid(format!("{}: would leave out all of the source", path.display())));
    }
    Ok(names)
}
