//! Finds the lineages in use, by marking them in a scan of the store, when all numbers have been given out.
//!
//! One scan of all records in key order, in one state of the store, and a point query for each directory; 2 MiB of
//! memory. A lineage is in use if the root of a clone has it, if a pin names it on either side, valid or not, or if an
//! inode in memory has it, or an orphan that waits to be removed. All others are free, and their rows in the table are
//! removed first. The longest run of free numbers is given out next, also after remounts. Calls that need a new number
//! wait for the scan; others do not.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    ops::Range,
};

use pando_db::{Batch, Db, Snapshot};

use crate::{
    counter,
    error::{Error, Result},
    key_text::describe_key,
    lineage::number::{LINEAGES, decode_row, lineage_of},
    path::{self, system},
    record::{Record, Stored},
    types::FileKind,
};

/// Rows that are removed in one batch.
const BATCH_ROWS: usize = 1000;
/// Free numbers outside of the longest run that are remembered.
const SINGLE_NUMBERS: usize = 1 << 16;

/// A set of lineages.
struct Set(Vec<u64>);

impl Set {
    fn add(&mut self, lineage: u32) {
        if let Some(word) = self.0.get_mut(lineage as usize / 64) {
            *word |= 1 << (lineage % 64);
        }
    }

    fn has(&self, lineage: u32) -> bool {
        self.0.get(lineage as usize / 64).is_some_and(|word| word >> (lineage % 64) & 1 != 0)
    }
}

/// A directory on the path to the record that the scan has reached.
struct MarkedDir {
    /// How long its contents prefix is.
    len: usize,
    /// Its lineage, if it ever got one.
    lineage: Option<u32>,
}

/// The numbers that nothing uses.
pub(crate) struct Free {
    /// The longest run of them: what is given out next.
    pub run: Range<u32>,
    /// Some of the others.
    pub single: VecDeque<u32>,
}

/// Lineages by the pair (lineage around it, clone id), as far as they are not stored.
type Unsaved = HashMap<(u32, u64), u32>;

/// Finds the numbers that neither the store nor something without a place (`not_free`) uses, and removes what the table
/// says of them.
pub(crate) fn free_numbers(
    db: &Db,
    not_free: impl Fn() -> HashSet<u32>,
    unsaved: &Unsaved,
    read_only: bool,
) -> Result<Free> {
    let mut used = in_store(db, unsaved)?;
    for lineage in not_free() {
        used.add(lineage);
    }
    if !read_only {
        forget(db, &used)?;
    }
    let (mut longest, mut run) = (0..0, 0..0);
    for lineage in 1..=LINEAGES {
        if lineage < LINEAGES && !used.has(lineage) {
            run.end = lineage + 1;
            continue;
        }
        if run.len() > longest.len() {
            longest = run.clone();
        }
        run = lineage + 1..lineage + 1;
    }
    let single = (1..LINEAGES).filter(|l| !used.has(*l) && !longest.contains(l));
    let single = single.take(SINGLE_NUMBERS).collect();
    if !read_only {
        let mut batch = Batch::new();
        batch.put(system::counter(counter::LINEAGE), counter::encode(longest.start.into()));
        batch.put(system::counter(counter::LINEAGE_END), counter::encode(longest.end.into()));
        db.write(batch)?;
    }
    Ok(Free { run: longest, single })
}

/// The lineages that stored records use.
fn in_store(db: &Db, unsaved: &Unsaved) -> Result<Set> {
    let mut used = Set(vec![0; LINEAGES as usize / 64]);
    used.add(0);
    unsaved.values().for_each(|lineage| used.add(*lineage));
    let view = db.snapshot();
    // The directory of the last record that was looked at, and the directories on its path.
    let mut last_path: Vec<u8> = Vec::new();
    let mut levels = vec![MarkedDir { len: 0, lineage: Some(0) }];
    let mut pairs = view.prefix(&path::meta(b""));
    let inside = |around: Option<u32>, r: &Record| -> Result<Option<u32>> {
        match (around, r.kind == FileKind::Directory && r.clone_id != 0) {
            (Some(around), true) => match unsaved.get(&(around, r.clone_id)) {
                Some(lineage) => Ok(Some(*lineage)),
                None => decode_row(view.get(&system::lineage(around, r.clone_id))?),
            },
            _ => Ok(around),
        }
    };
    while let Some((key, value)) = pairs.next_ref()? {
        let Some(own) = key.get(5..) else { continue };
        let damaged = |detail| Error::Damaged { what: describe_key(key), detail };
        let Stored::Record(record) = Stored::decode(value).map_err(damaged)? else { continue };
        if let Some(pin) = record.pin {
            used.add(pin.lineage);
            used.add(lineage_of(pin.ino));
        }
        if record.kind != FileKind::Directory || record.clone_id == 0 {
            continue;
        }
        let dir = path::directory_of(own);
        while levels.last().is_some_and(|l| l.len > dir.len() || last_path.get(..l.len) != dir.get(..l.len)) {
            levels.pop();
        }
        while let Some(last) = levels.last()
            && last.len < dir.len()
        {
            let (entry, contents) =
                path::next_level(dir, last.len).ok_or_else(|| damaged("impossible path"))?;
            let above =
                view.get(&path::meta(&entry))?.ok_or_else(|| damaged("its directory does not exist"))?;
            let lineage = inside(last.lineage, &Record::decode(&above).map_err(damaged)?)?;
            levels.push(MarkedDir { len: contents.len(), lineage });
        }
        last_path.clear();
        last_path.extend_from_slice(dir);
        if let Some(lineage) = inside(levels.last().and_then(|l| l.lineage), &record)? {
            used.add(lineage);
        }
    }
    drop(pairs);
    in_snapshots(&view, unsaved, &mut used)?;
    Ok(used)
}

/// Adds the lineages that snapshots use, without a look at what is in them: those of their roots and of all clones
/// in them that were ever looked at, and, as long as there are families, all that a pin in a snapshot may name:
/// they are tainted, or older than taints.
fn in_snapshots(view: &Snapshot, unsaved: &Unsaved, used: &mut Set) -> Result<()> {
    if view.prefix(&system::families()).next().transpose()?.is_none() {
        return Ok(());
    }
    let number = |key: &[u8]| key.get(5..9).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    let mut taints = view.prefix(&system::taints());
    while let Some((key, _)) = taints.next_ref()? {
        number(key).into_iter().for_each(|lineage| used.add(lineage));
    }
    let untracked = counter::decode("untracked lineages", view.get(&system::counter(counter::UNTRACKED))?)?;
    let untracked = untracked.unwrap_or(0).min(u64::from(LINEAGES)) as u32;
    (0..untracked).for_each(|lineage| used.add(lineage));
    let mut inside = Set(vec![0; LINEAGES as usize / 64]);
    let mut at = path::volume(1);
    while let Some((key, _)) = view.range(&at, Some(&path::volume(path::SNAPSHOTS_END))).next().transpose()? {
        let Some(volume) = path::snapshot_of(&key) else { break };
        if let Some(value) = view.get(&path::meta(&path::snapshot(volume)))?
            && let Ok(root) = Record::decode(&value)
            && let Some(lineage) = match unsaved.get(&(0, root.clone_id)) {
                Some(lineage) => Some(*lineage),
                None => decode_row(view.get(&system::lineage(0, root.clone_id))?)?,
            }
        {
            inside.add(lineage);
        }
        at = path::volume(volume + 1);
    }
    // Clones in snapshots, and in those.
    loop {
        let mut more = false;
        let mut rows = view.prefix(&system::lineage_rows());
        while let Some((key, value)) = rows.next_ref()? {
            let row = decode_row(Some(value.to_vec().into()))?;
            if let (Some(around), Some(lineage)) = (number(key), row)
                && inside.has(around)
                && !inside.has(lineage)
            {
                inside.add(lineage);
                more = true;
            }
        }
        for ((around, _), lineage) in unsaved {
            if inside.has(*around) && !inside.has(*lineage) {
                inside.add(*lineage);
                more = true;
            }
        }
        if !more {
            break;
        }
    }
    used.0.iter_mut().zip(&inside.0).for_each(|(used, inside)| *used |= inside);
    Ok(())
}

/// Removes what the table says of lineages that nothing uses.
fn forget(db: &Db, used: &Set) -> Result<()> {
    let mut batch = Batch::new();
    let mut rows = 0;
    let mut pairs = db.prefix(&system::lineage_rows());
    while let Some((key, value)) = pairs.next_ref()? {
        let around = key.get(5..9).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
        let inside = decode_row(Some(value.to_vec().into()))?;
        if around.is_some_and(|l| used.has(l)) && inside.is_some_and(|l| used.has(l)) {
            continue;
        }
        batch.delete(key.to_vec());
        rows += 1;
        if rows % BATCH_ROWS == 0 {
            db.write(std::mem::take(&mut batch))?;
        }
    }
    let mut taints = db.prefix(&system::taints());
    while let Some((key, _)) = taints.next_ref()? {
        let lineage = key.get(5..9).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
        if lineage.is_some_and(|l| used.has(l)) {
            continue;
        }
        batch.delete(key.to_vec());
        rows += 1;
        if rows % BATCH_ROWS == 0 {
            db.write(std::mem::take(&mut batch))?;
        }
    }
    db.write(batch)?;
    Ok(())
}
