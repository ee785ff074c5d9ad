//! What files take: `st_blocks` of each, and the sums of them in a tree, counted in one state of the store.
//!
//! This is what accounts must say. A file with several names is counted once, where the link area of its lineage is.

use std::collections::BTreeMap;

use pando_db::Snapshot;

use crate::{
    account::Account,
    blockmap::BlockMap,
    error::{Error, Result},
    key_text::{describe_key, describe_path},
    path,
    record::{Record, Stored},
    scanned::ScannedWay,
    types::FileKind,
};

/// Bytes of a unit of `st_blocks`.
const UNIT: u64 = 512;

/// What a file of this size takes, bytes; `map` is that of a file with a dense beginning.
pub(crate) fn file_bytes(size: u64, dense: Option<u64>, map: Option<&BlockMap>) -> i64 {
    let units = match (dense, map) {
        (None, _) => size.div_ceil(UNIT),
        (Some(dense), Some(map)) => map.units(dense, size),
        (Some(dense), None) => BlockMap::default().units(dense, size),
    };
    units_bytes(units)
}

/// Units of `st_blocks` as bytes.
pub(crate) fn units_bytes(units: u64) -> i64 {
    i64::try_from(units.saturating_mul(UNIT)).unwrap_or(i64::MAX)
}

/// What something with this record, under this key, takes, as `view` has it.
pub(crate) fn record_bytes(view: &Snapshot, meta: &[u8], record: &Record) -> Result<i64> {
    data_bytes(view, &path::data_of(meta), record)
}

/// The bytes of a file whose data have the prefix `data`.
pub(crate) fn data_bytes(view: &Snapshot, data: &[u8], record: &Record) -> Result<i64> {
    if record.kind != FileKind::Regular {
        return Ok(0);
    }
    let map = match record.dense {
        Some(dense) => Some(BlockMap::read_in(view, data, dense)?),
        None => None,
    };
    Ok(file_bytes(record.size, record.dense, map.as_ref()))
}

/// A directory in a tree that has an account.
pub(crate) struct Counted {
    /// Its contents prefix.
    pub contents: Vec<u8>,
    /// What tells it apart from one that has its place later.
    pub numbers: (u64, u64),
    pub account: Account,
    /// What its account should say.
    pub sum: i64,
}

impl Counted {
    /// File number and clone id of a directory.
    pub fn numbers_of(record: &Record) -> (u64, u64) {
        (record.fileno, record.clone_id)
    }
}

/// What the files in a tree take.
#[derive(Default)]
pub(crate) struct Sums {
    pub total: i64,
    /// Directories below the top that have accounts, each after those that it lies in.
    pub counted: Vec<Counted>,
}

/// Tells of each account of the live tree that says other than what is there and should not: neither it nor one above
/// is stale. A scan of all records.
pub(crate) fn wrong_accounts(view: &Snapshot, tell: &mut dyn FnMut(String)) -> Result<()> {
    let Some(found) = sums(view, b"", || true)? else { return Ok(()) };
    let top = view.get(&path::meta(b""))?.and_then(|value| Record::decode(&value).ok());
    let top = top.and_then(|record| {
        let (contents, numbers) = (Vec::new(), Counted::numbers_of(&record));
        Some(Counted { contents, numbers, account: record.account?, sum: found.total })
    });
    // Contents prefixes of stale directories, which come before all below them.
    let mut stale: Vec<Vec<u8>> = Vec::new();
    for counted in top.into_iter().chain(found.counted) {
        let Counted { contents, account, sum, .. } = counted;
        if !account.stale && account.used != sum && !stale.iter().any(|above| contents.starts_with(above)) {
            let place = describe_path(&path::entry_of_contents(&contents).unwrap_or_default());
            let (says, way) = (account.used, "set the quota of it, or of a directory above, again");
            tell(format!("{place}: its account says {says} bytes, and {sum} are there; {way}"));
        }
        if account.stale {
            stale.push(contents);
        }
    }
    Ok(())
}

/// Counts the tree with this contents prefix, as long as `go_on` says so; `None` if it did not. A scan of all records.
pub(crate) fn sums(
    view: &Snapshot,
    contents: &[u8],
    mut go_on: impl FnMut() -> bool,
) -> Result<Option<Sums>> {
    let mut sums = Sums::default();
    let mut places: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    // For each of `counted` the innermost other one that it lies in.
    let mut outer: Vec<Option<usize>> = Vec::new();
    // For each directory the innermost of `counted` that it is or lies in.
    let mut way = ScannedWay::new(None);
    let mut pairs = view.prefix(&path::meta(contents));
    while let Some((key, value)) = pairs.next_ref()? {
        if !go_on() {
            return Ok(None);
        }
        let damaged = |detail| Error::Damaged { what: describe_key(key), detail };
        let Stored::Record(record) = Stored::decode(value).map_err(damaged)? else { continue };
        if record.account.is_none() && record.kind != FileKind::Regular {
            continue;
        }
        let Some(own) = path::path_of(key) else { continue };
        let known = way.leave(&own);
        let dir = path::root_below(&own, known).unwrap_or_default();
        while let Some((_, level)) = path::next_level(dir, way.contents().len()) {
            let around = way.last().copied().flatten();
            way.enter(level, places.get(level).copied().or(around));
        }
        let around = way.last().copied().flatten();
        if let Some(account) = record.account
            && own.len() > contents.len()
            && let Some(below) = path::contents_of(b"", &own)
        {
            places.insert(below.clone(), sums.counted.len());
            let numbers = Counted::numbers_of(&record);
            sums.counted.push(Counted { contents: below, numbers, account, sum: 0 });
            outer.push(around);
        }
        let bytes = record_bytes(view, key, &record)?;
        sums.total = sums.total.saturating_add(bytes);
        if let Some(counted) = around.and_then(|at| sums.counted.get_mut(at)) {
            counted.sum = counted.sum.saturating_add(bytes);
        }
    }
    // Each stands behind those that it lies in.
    for (at, outer) in outer.into_iter().enumerate().rev() {
        let sum = sums.counted.get(at).map_or(0, |counted| counted.sum);
        if let Some(counted) = outer.and_then(|at| sums.counted.get_mut(at)) {
            counted.sum = counted.sum.saturating_add(sum);
        }
    }
    Ok(Some(sums))
}
