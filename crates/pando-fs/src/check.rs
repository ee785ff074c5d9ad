//! The invariants of the file system, checked key by key; and keys put into words.
//!
//! One scan of each region in key order, a point query for each directory and each file with data, and 8 bytes of
//! memory for each entry. A second scan of the records if files have lost all their data. Changes nothing. The engine's
//! own invariants and checksums are for its own check; that names keys, which [`describe_key`] turns into paths.

mod blocks;
mod outside;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use pando_db::Snapshot;

use crate::{
    blockmap::{self, Bits, PIECE},
    check::{
        blocks::{MetBlocks, check_changes, demands, lost_block},
        outside::unlike_attrs,
    },
    directories::{ScannedDir, descend},
    error::{Error, Result},
    family::{Family, decode_snapshot},
    forks::Fork,
    format::FEATURE_ACCOUNTS,
    key_text::{describe_key, describe_path},
    limits::BLOCK_SIZE,
    lineage::{
        number::number,
        viewed::{ViewedLineage, ViewedLineages, ViewedNumber},
    },
    path::{self, system},
    policies::StoredPolicy,
    record::{LinkName, Record, Stored},
    scanned::ScannedWay,
    snapshotted::decode_source,
    sums::wrong_accounts,
    types::{FileKind, ROOT},
    volume::Fs,
};

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Directories, the root included.
    pub directories: u64,
    /// Other files; those with several names once.
    pub files: u64,
    /// Names of files that have, or had, several.
    pub links: u64,
    /// Data blocks.
    pub blocks: u64,
    /// Bytes in these.
    pub bytes: u64,
    /// Snapshots, whose entries and blocks are not in the other figures.
    pub snapshots: u64,
    /// How many problems were told.
    pub problems: u64,
}

/// The file whose data the scan is in.
struct FileScan {
    prefix: Vec<u8>,
    /// Bytes of the contents prefix of its directory.
    dir: usize,
    size: u64,
    dense: Option<u64>,
    /// Whether the record says that extended attributes have keys of their own.
    attrs: bool,
    /// The blocks that must exist.
    met: MetBlocks,
    /// The blocks of a file with holes that were met behind its dense beginning, as pieces of a map.
    above: BTreeMap<u64, Bits>,
}

impl FileScan {
    fn note(&mut self, block: u64) {
        self.met.note(block);
        if self.dense.is_some_and(|dense| block >= dense) {
            let bits = self.above.entry(block / PIECE).or_default();
            if let Some(word) = bits.get_mut((block % PIECE / 64) as usize) {
                *word |= 1 << (block % 64);
            }
        }
    }

    /// Whether this piece of the map says what was met.
    fn agrees(&mut self, piece: u64, value: &[u8]) -> bool {
        let Some(dense) = self.dense else { return self.size == u64::MAX };
        let met = self.above.remove(&piece).unwrap_or_default();
        let mut said = blockmap::decode(value);
        for (i, word) in (0u64..).zip(&mut said) {
            let start = piece.saturating_mul(PIECE) + i * 64;
            *word &= match dense.saturating_sub(start) {
                n @ 0..64 => u64::MAX << n,
                _ => 0,
            };
        }
        said == met
    }

    /// What is wrong with all that was met, in words: blocks that must exist, and those that the map does not say.
    fn problems(self) -> impl Iterator<Item = String> {
        let lost = self.met.lost().map(|block| lost_block(&self.prefix, block));
        let unmapped = self.above.first_key_value().map(|(piece, _)| {
            let block = path::block(&self.prefix, piece.saturating_mul(PIECE));
            format!("{}: blocks that its map lacks", describe_key(&block))
        });
        lost.into_iter().chain(unmapped)
    }
}

/// What is wrong with a name of a linked file, which has this path, in the lineage with this root.
fn unlike_name(view: &Snapshot, root: &[u8], entry: &[u8], name: LinkName) -> Result<Option<&'static str>> {
    let index = path::meta(&path::link_name(root, entry).unwrap_or_default());
    if view.get(&index)? != Some(name.encode_index()) {
        return Ok(Some("a name of a linked file that the index lacks"));
    }
    let file = view.get(&path::meta(&path::linked(root, name.id)))?;
    let record = file.and_then(|value| Record::decode(&value).ok());
    Ok((!record.is_some_and(|r| r.kind == name.kind && r.fileno == name.id))
        .then_some("a name of a linked file that does not exist"))
}

/// What was met behind the subdirectories of the root of a lineage.
struct LinkArea {
    contents: Vec<u8>,
    /// Numbers and link counts.
    files: Vec<(u64, u32)>,
    /// Names in the index, by number.
    names: HashMap<u64, u32>,
    uncounted: bool,
}

impl LinkArea {
    fn new(contents: &[u8]) -> Self {
        let (files, names) = (Vec::new(), HashMap::new());
        Self { contents: contents.to_vec(), files, names, uncounted: false }
    }

    /// What is wrong with it. Until names are counted, files may have fewer than they say.
    fn problems(mut self) -> Vec<String> {
        let mut out = Vec::new();
        for (id, nlink) in std::mem::take(&mut self.files) {
            let names = self.names.remove(&id).unwrap_or(0);
            let good = if self.uncounted { names <= nlink } else { names == nlink && names > 0 };
            if !good {
                let file = describe_key(&path::meta(&path::linked(&self.contents, id)));
                out.push(format!("{file}: has {names} names and says {nlink}"));
            }
        }
        out
    }
}

impl Fs {
    /// Checks the invariants of the tree, and calls `tell` with one line for each problem.
    ///
    /// An error means that something could not be read; a problem is no error. The check runs on a snapshot, so that
    /// the tree may be changed meanwhile.
    pub fn check(&self, mut tell: impl FnMut(&str)) -> Result<CheckReport> {
        // Compiled once, and not again with each caller.
        self.check_and_tell(&mut tell)
    }

    fn check_and_tell(&self, tell: &mut dyn FnMut(&str)) -> Result<CheckReport> {
        let mut lineages = self.lineages.viewed();
        let view = self.db.snapshot();
        let mut report = CheckReport::default();
        let mut problem = |report: &mut CheckReport, text: String| {
            report.problems += 1;
            tell(&text);
        };
        let mut numbers = vec![ROOT];
        // The counts for clones without a lineage.
        let mut unnumbered = Vec::new();
        // Files that must have blocks.
        let (demanded, mut with_blocks) = (demands(&view)?, 0);
        let mut way = ScannedWay::new(ScannedDir::root());
        let mut area: Option<LinkArea> = None;
        let mut pairs = view.prefix(&path::meta(b""));
        while let Some((key, value)) = pairs.next_ref()? {
            let own = key.get(5..).unwrap_or_default();
            // What it has in common with the key before is not looked at again.
            let known = way.leave(own);
            let Some(parsed) = path::parse_below(key, known) else {
                problem(&mut report, format!("{}: not a key of the tree", key.escape_ascii()));
                continue;
            };
            let of_links = !matches!(parsed, path::Parsed::Meta(_));
            let dir = match of_links {
                true => path::root_below(own, known).unwrap_or_default(),
                false => path::directory_of(own),
            };
            if area.as_ref().is_some_and(|a| !of_links || a.contents != dir) {
                area.take().into_iter().flat_map(LinkArea::problems).for_each(|p| problem(&mut report, p));
            }
            if !own.is_empty() && !descend(&view, &mut lineages, &mut way, dir)? {
                problem(&mut report, format!("{}: its directory does not exist", describe_key(key)));
                continue;
            }
            let level = way.last();
            let record = match (Stored::decode(value), &parsed) {
                (Ok(Stored::Record(record)), path::Parsed::Meta(_)) => *record,
                (Ok(Stored::Record(record)), path::Parsed::Linked(_, id)) => {
                    area.get_or_insert_with(|| LinkArea::new(dir)).files.push((*id, record.nlink));
                    if record.kind == FileKind::Directory || !level.is_some_and(|l| l.root) {
                        problem(&mut report, format!("{}: cannot be there", describe_key(key)));
                    }
                    *record
                }
                (Ok(Stored::Name(name)), path::Parsed::Meta(_)) => {
                    report.links += 1;
                    if let Some(text) = unlike_name(&view, way.above(|dir| dir.root), own, name)? {
                        problem(&mut report, format!("{}: {text}", describe_key(key)));
                    }
                    continue;
                }
                (Ok(Stored::Indexed(id)), path::Parsed::LinkName(_, inside)) => {
                    *area.get_or_insert_with(|| LinkArea::new(dir)).names.entry(id).or_default() += 1;
                    let entry = view.get(&path::meta(&[dir, inside].concat()))?;
                    let is = |v: &Bytes| matches!(Stored::decode(v), Ok(Stored::Name(n)) if n.id == id);
                    if !entry.as_ref().is_some_and(is) {
                        problem(&mut report, format!("{}: there is no such name", describe_key(key)));
                    }
                    continue;
                }
                (Ok(Stored::Uncounted), path::Parsed::Uncounted(..)) => {
                    area.get_or_insert_with(|| LinkArea::new(dir)).uncounted = true;
                    continue;
                }
                (stored, _) => {
                    let detail = stored.err().unwrap_or("not what belongs under this key");
                    problem(&mut report, format!("{}: {detail}", describe_key(key)));
                    continue;
                }
            };
            match record.kind {
                FileKind::Directory => report.directories += 1,
                _ => report.files += 1,
            }
            with_blocks += u64::from(demanded(&record) > 0);
            if record.has_outside()
                && let Some(text) = unlike_attrs(&view, key, &record)?
            {
                problem(&mut report, format!("{}: {text}", describe_key(key)));
            }
            if own.is_empty() {
                if record.kind != FileKind::Directory || record.fileno != ROOT {
                    problem(&mut report, "/: not the record of a root".into());
                }
                continue;
            }
            let Some(around) = way.last() else { continue };
            match lineages.number(&view, around.lineage, &record)? {
                ViewedNumber::Ino(ino) => numbers.push(ino),
                ViewedNumber::Unnumbered(clone, fileno) => unnumbered.push((clone, fileno)),
            }
        }
        area.into_iter().flat_map(LinkArea::problems).for_each(|p| problem(&mut report, p));
        drop(pairs);
        self.check_snapshots((&view, &mut lineages), &mut report, &mut numbers, &mut problem)?;
        numbers.sort_unstable();
        for pair in numbers.windows(2) {
            if let [a, b] = pair
                && a == b
            {
                problem(&mut report, format!("inode number {a:#x}: of two entries"));
            }
        }
        unnumbered.sort_unstable();
        for pair in unnumbered.windows(2) {
            if let [a, b] = pair
                && a == b
            {
                problem(&mut report, format!("file number {:#x}: of two entries of a clone", a.1));
            }
        }
        if self.has_feature(FEATURE_ACCOUNTS) {
            // Where a record cannot be decoded, which was told, there is no sum.
            match wrong_accounts(&view, &mut |text| problem(&mut report, text)) {
                Err(e @ Error::Damaged { .. }) => {
                    problem(&mut report, format!("accounts are not checked: {e}"))
                }
                done => done?,
            }
        }
        check_data(&view, with_blocks, &mut report, &mut problem)?;
        Ok(report)
    }

    /// Checks families, records and names of snapshots, that each has its volume and each volume its snapshot, and what
    /// is in them: of the first of a family all, of each later one what differs from the one before.
    fn check_snapshots(
        &self,
        (view, lineages): (&Snapshot, &mut ViewedLineages),
        report: &mut CheckReport,
        numbers: &mut Vec<u64>,
        problem: &mut dyn FnMut(&mut CheckReport, String),
    ) -> Result<()> {
        let mut known = BTreeSet::new();
        let mut families = view.prefix(&system::families());
        while let Some((key, value)) = families.next_ref()? {
            let source = system::family_source(key).unwrap_or_default();
            let family = match Family::decode(value) {
                Ok(family) => family,
                Err(detail) => {
                    problem(report, format!("snapshots of inode {source:#x}: {detail}"));
                    continue;
                }
            };
            numbers.push(number(0, family.fileno));
            let mut names = 0;
            let mut last = path::SNAPSHOTS_END;
            let mut records = view.prefix(&system::snapshots(family.id));
            while let Some((key, value)) = records.next_ref()? {
                report.snapshots += 1;
                let number = system::snapshot_number(key).unwrap_or_default();
                known.insert(number);
                let what = || format!("snapshot {number} of inode {source:#x}");
                let info = match decode_snapshot(number, value) {
                    Ok(info) => info,
                    Err(detail) => {
                        problem(report, format!("{}: {detail}", what()));
                        continue;
                    }
                };
                names += 1;
                let named = view.get(&system::snapshot_name(family.id, info.name.as_encoded_bytes()))?;
                if named.as_deref() != Some(&number.to_le_bytes()[..]) {
                    problem(report, format!("{}: its name leads elsewhere", what()));
                }
                let root = view.get(&path::meta(&path::snapshot(number)))?;
                match root.and_then(|value| Record::decode(&value).ok()) {
                    Some(root) if root.kind == FileKind::Directory && root.clone_id != 0 => {}
                    _ => problem(report, format!("{}: has no root", what())),
                }
                check_changes(view, last, number, &mut |text| problem(report, text))?;
                last = number;
            }
            let names_found = view.prefix(&system::snapshot_name(family.id, b"")).count();
            if names_found != names {
                problem(report, format!("snapshots of inode {source:#x}: {names_found} names for {names}"));
            }
        }
        let works = view.prefix(&system::works());
        for pair in works {
            known.extend(system::work_number(&pair?.0));
        }
        self.check_forks(view, &mut known, report, problem)?;
        check_policies(view, report, problem)?;
        check_snapshotted(view, lineages, report, problem)?;
        let mut at = path::volume(1);
        while let Some((key, _)) = view.range(&at, Some(&path::volume(u32::MAX))).next().transpose()? {
            let Some(volume) = path::snapshot_of(&key) else { break };
            if !known.contains(&volume) {
                problem(report, format!("snapshot {volume}: has no record"));
            }
            at = path::volume(volume.saturating_add(1));
        }
        Ok(())
    }

    /// Checks that each fork is a directory and has an origin, which is a tree, and that what was forked is a directory
    /// too and leads to a fork.
    fn check_forks(
        &self,
        view: &Snapshot,
        known: &mut BTreeSet<u32>,
        report: &mut CheckReport,
        problem: &mut dyn FnMut(&mut CheckReport, String),
    ) -> Result<()> {
        let is_dir = |path: &[u8]| -> Result<bool> {
            let value = view.get(&path::meta(path))?;
            Ok(value.and_then(|v| Record::decode(&v).ok()).is_some_and(|r| r.kind == FileKind::Directory))
        };
        let entry = |contents: &[u8]| path::entry_of_contents(contents).unwrap_or_default();
        let mut numbers = BTreeSet::new();
        let mut pairs = view.prefix(&system::forks());
        while let Some((key, value)) = pairs.next_ref()? {
            let place = entry(system::fork_contents(key).unwrap_or_default());
            let what = || format!("fork {}", describe_path(&place));
            let fork = match Fork::decode(value) {
                Ok(fork) => fork,
                Err(detail) => {
                    problem(report, format!("{}: {detail}", what()));
                    continue;
                }
            };
            if !numbers.insert(fork.number) || !known.insert(fork.number) {
                problem(report, format!("{}: its number is that of another", what()));
            }
            if !is_dir(&place)? {
                problem(report, format!("{}: there is no directory", what()));
            }
            if !is_dir(&path::snapshot(fork.number))? {
                problem(report, format!("{}: has no origin", what()));
            }
            check_changes(view, path::SNAPSHOTS_END, fork.number, &mut |text| problem(report, text))?;
        }
        drop(pairs);
        let mut pairs = view.prefix(&system::forked_below(b""));
        while let Some((key, _)) = pairs.next_ref()? {
            let (contents, number) = system::forked_parts(key).unwrap_or_default();
            if !numbers.remove(&number) || !is_dir(&entry(contents))? {
                let place = describe_path(&entry(contents));
                problem(report, format!("fork {number} of {place}: one of them is not there"));
            }
        }
        Ok(())
    }
}

/// Checks that what is said to have snapshots is a directory, with the number that is said.
fn check_snapshotted(
    view: &Snapshot,
    lineages: &mut ViewedLineages,
    report: &mut CheckReport,
    problem: &mut dyn FnMut(&mut CheckReport, String),
) -> Result<()> {
    let mut pairs = view.prefix(&system::snapshotted(b""));
    while let Some((key, value)) = pairs.next_ref()? {
        let place = system::snapshotted_contents(key).unwrap_or_default();
        let entry = path::entry_of_contents(place).unwrap_or_default();
        let mut way = ScannedWay::new(ScannedDir::root());
        let is_dir = descend(view, lineages, &mut way, place)?;
        let record = view.get(&path::meta(&entry))?.and_then(|value| Record::decode(&value).ok());
        let own = way.last().zip(record).filter(|_| is_dir);
        let own = own.and_then(|(dir, record)| match dir.lineage {
            ViewedLineage::Lineage(lineage) => Some(number(lineage, record.fileno)),
            ViewedLineage::Unnumbered(_) => None,
        });
        if own.is_none() || own != decode_source(value).ok() {
            let text = format!("snapshots of {}: there is no such directory", describe_path(&entry));
            problem(report, text);
        }
    }
    Ok(())
}

/// Checks the blocks of all files and the maps of those with holes. `with_blocks` files must have some.
fn check_data(
    view: &Snapshot,
    with_blocks: u64,
    report: &mut CheckReport,
    problem: &mut dyn FnMut(&mut CheckReport, String),
) -> Result<()> {
    let demanded = demands(view)?;
    let mut met = 0;
    let mut file: Option<FileScan> = None;
    let mut pairs = view.prefix(&path::data(b""));
    while let Some((key, value)) = pairs.next_ref()? {
        // The directory of the file before is known to be one, and so is all that its keys begin with.
        let before = file.as_ref().and_then(|seen| seen.prefix.get(..path::KEY_HEAD_BYTES + seen.dir));
        let known =
            before.filter(|dir| key.starts_with(dir)).map_or(0, |dir| dir.len() - path::KEY_HEAD_BYTES);
        let block = match path::parse_below(key, known) {
            Some(path::Parsed::Data(_, block) | path::Parsed::LinkedData(_, _, block)) => block,
            _ => {
                problem(report, format!("{}: not a key of data", key.escape_ascii()));
                continue;
            }
        };
        let prefix = key.get(..key.len().saturating_sub(8)).unwrap_or_default();
        if file.as_ref().is_none_or(|seen| seen.prefix != prefix) {
            file.take().into_iter().flat_map(FileScan::problems).for_each(|text| problem(report, text));
            let record = view.get(&path::meta(prefix.get(5..).unwrap_or_default()))?;
            let record = record.and_then(|value| Record::decode(&value).ok());
            let blocks = record.as_ref().map_or(0, &demanded);
            met += u64::from(blocks > 0);
            let (size, dense, attrs) = match record {
                Some(r) if r.kind == FileKind::Regular => (r.size, r.dense, r.has_outside()),
                Some(r) if r.has_outside() => (0, None, true),
                _ => {
                    problem(report, format!("{}: belongs to no file", describe_key(key)));
                    (u64::MAX, None, true) // told once for the file
                }
            };
            let own = prefix.get(path::KEY_HEAD_BYTES..).unwrap_or_default();
            let dir = path::root_below(own, known).map_or(0, <[u8]>::len);
            let prefix = prefix.to_vec();
            let (met, above) = (MetBlocks::new(0..blocks), BTreeMap::new());
            file = Some(FileScan { prefix, dir, size, dense, attrs, met, above });
        }
        let Some(seen) = &mut file else { continue };
        if block >= path::ATTRS_BEGIN {
            // If a record says that there are attributes outside it, these were compared with it above.
            if !seen.attrs {
                problem(report, format!("{}: of which the record says nothing", describe_key(key)));
            }
            continue;
        }
        if block >= path::MAP {
            if !seen.agrees(block & !path::MAP, value) {
                problem(report, format!("{}: says other blocks than there are", describe_key(key)));
            }
            continue;
        }
        seen.note(block);
        report.blocks += 1;
        report.bytes += value.len() as u64;
        let size = seen.size;
        let end = block.saturating_mul(BLOCK_SIZE).saturating_add(value.len() as u64);
        if value.len() as u64 > BLOCK_SIZE || end > size {
            problem(report, format!("{}: bytes behind the end of the file", describe_key(key)));
        }
    }
    file.into_iter().flat_map(FileScan::problems).for_each(|text| problem(report, text));
    if met == with_blocks {
        return Ok(());
    }
    // Some have no data at all.
    let mut pairs = view.prefix(&path::meta(b""));
    while let Some((key, value)) = pairs.next_ref()? {
        let Ok(Stored::Record(record)) = Stored::decode(value) else { continue };
        let data = path::data_of(key);
        if demanded(&record) > 0 && view.prefix(&data).next().transpose()?.is_none() {
            problem(report, lost_block(&data, 0));
        }
    }
    Ok(())
}

/// Checks that what has a policy is a directory, and that each policy can be read.
fn check_policies(
    view: &Snapshot,
    report: &mut CheckReport,
    problem: &mut dyn FnMut(&mut CheckReport, String),
) -> Result<()> {
    let mut pairs = view.prefix(&system::policy(b""));
    while let Some((key, value)) = pairs.next_ref()? {
        let entry =
            path::entry_of_contents(system::policy_contents(key).unwrap_or_default()).unwrap_or_default();
        let what = || format!("policy of {}", describe_path(&entry));
        if let Err(detail) = StoredPolicy::decode(value) {
            problem(report, format!("{}: {detail}", what()));
        }
        let record = view.get(&path::meta(&entry))?.and_then(|value| Record::decode(&value).ok());
        if record.is_none_or(|record| record.kind != FileKind::Directory) {
            problem(report, format!("{}: there is no directory", what()));
        }
    }
    Ok(())
}
