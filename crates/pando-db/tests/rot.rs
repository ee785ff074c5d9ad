//! Bits that flip in the log, in values that stand outside it, and in the superblocks, of stores that were not closed:
//! what was synced is there, all but a value that is itself damaged, and the checker says what was found.

#![allow(clippy::unwrap_used)]

use std::{collections::BTreeMap, sync::Arc};

use pando_db::{
    Batch, CheckReport, Codec, CreateOptions, Db, Error, InspectOptions, Options,
    device::{Device, MemDevice},
};

const SIZE: u64 = 24 << 20;
const BLOCK: u64 = 4096;
const LOG: u64 = 2 * BLOCK;

fn options() -> Options {
    Options::default().background(false)
}

/// Numbers from a seed.
fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

type Pairs = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store that was killed, and what was synced.
struct Killed {
    image: Vec<u8>,
    log: u64,
    pairs: Pairs,
}

/// Batches that are synced one by one, or several together, with values of `sizes`.
fn killed(seed: u64, batches: usize, sizes: std::ops::Range<usize>, node: u32, log: u64) -> Killed {
    let device = Arc::new(MemDevice::new(SIZE));
    let create = CreateOptions::default().node_size(node).log_size(log);
    Db::create(device.clone(), &create, &options()).unwrap();
    let db = Db::open(device.clone(), options()).unwrap();
    let mut random = noise(seed);
    let mut pairs = Pairs::new();
    for i in 0..batches {
        let mut batch = Batch::new();
        for _ in 0..random() % 4 + 1 {
            let key = format!("{:03}", random() % 300).into_bytes();
            let len = sizes.start + random() as usize % (sizes.end - sizes.start);
            let value: Vec<u8> = (0..len).map(|_| random() as u8).collect();
            batch.put(key.clone(), value.clone());
            pairs.insert(key, value);
        }
        db.write(batch).unwrap();
        if i % (seed as usize % 3 + 1) == 0 || i + 1 == batches {
            db.sync().unwrap();
        }
        if seed.is_multiple_of(2) && i == batches / 2 {
            db.checkpoint().unwrap();
        }
    }
    // As the kill leaves it: nothing is closed.
    let mut image = vec![0; device.size() as usize];
    device.read_at(0, &mut image).unwrap();
    Killed { image, log, pairs }
}

fn device(image: &[u8]) -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new(image.len() as u64));
    device.write_at(0, image).unwrap();
    device
}

/// All that can be read by its key, and the keys that cannot.
fn read(db: &Db, keys: &Pairs) -> (Pairs, Vec<Vec<u8>>) {
    let (mut pairs, mut bad) = (Pairs::new(), Vec::new());
    for key in keys.keys() {
        match db.get(key) {
            Ok(Some(value)) => _ = pairs.insert(key.clone(), value.to_vec()),
            Ok(None) => (),
            Err(Error::Corrupt { .. }) => bad.push(key.clone()),
            Err(error) => panic!("{error}"),
        }
    }
    (pairs, bad)
}

/// Opens the image with byte `at` changed; what the check says, for a store that has everything.
fn whole_although(store: &Killed, at: usize, flip: u8, read_only: bool) -> CheckReport {
    let mut image = store.image.clone();
    image[at] ^= flip;
    let db =
        Db::open(device(&image), options().read_only(read_only)).unwrap_or_else(|e| panic!("byte {at}: {e}"));
    let (pairs, bad) = read(&db, &store.pairs);
    assert!(bad.is_empty(), "byte {at}: {bad:?} cannot be read");
    let lost = store.pairs.iter().filter(|(key, value)| pairs.get(*key) != Some(value)).count();
    assert_eq!(lost, 0, "byte {at}: {lost} of {} synced keys are not there", store.pairs.len());
    db.check().unwrap()
}

/// The first thing after an orderly close is one long write-out, which ends further behind than an empty log is searched.
#[test]
fn a_flipped_bit_at_the_start_of_a_long_write_out_after_a_close_loses_nothing() {
    for keys in [1000u64, 6_000, 30_000] {
        let device_ = Arc::new(MemDevice::new(SIZE * 4));
        let create = CreateOptions::default().node_size(64 << 10).log_size(32 << 20);
        Db::create(device_.clone(), &create, &options()).unwrap();
        let db = Db::open(device_.clone(), options()).unwrap();
        db.put("before", "1").unwrap();
        db.close().unwrap();
        let mut before = vec![0; (LOG + (32 << 20)) as usize];
        device_.read_at(0, &mut before).unwrap();

        let db = Db::open(device_.clone(), options()).unwrap();
        let mut random = noise(keys);
        let mut pairs = Pairs::new();
        let mut batch = Batch::new();
        for _ in 0..keys {
            let key = random().to_be_bytes().to_vec();
            let value: Vec<u8> = (0..200).map(|_| random() as u8).collect();
            batch.put(key.clone(), value.clone());
            pairs.insert(key, value);
        }
        db.write(batch).unwrap();
        db.sync().unwrap();
        let mut image = vec![0; device_.size() as usize];
        device_.read_at(0, &mut image).unwrap();
        let written: Vec<usize> =
            (LOG as usize..before.len()).filter(|&at| image[at] != before[at]).collect();
        println!("{keys} keys: {} bytes of the log have changed", written.len());
        let store = Killed { image, log: 32 << 20, pairs };
        for which in [0, 5, 20, 40, 200, 5000] {
            whole_although(&store, written[which], 0x10, which % 2 == 0);
        }
    }
}

/// Where there is anything in the log.
fn used(store: &Killed) -> Vec<usize> {
    let log = LOG as usize..(LOG + store.log) as usize;
    log.filter(|&at| store.image[at] != 0).collect()
}

#[test]
fn a_flipped_bit_in_the_log_loses_nothing() {
    let (mut told, mut tried) = (0, 0);
    for (seed, sizes, node) in [
        (1, 1..60, 4096),
        (2, 1..60, 16 << 10),
        (3, 100..1500, 4096),
        (4, 10..5000, 64 << 10),
        (5, 1..900, 256 << 10),
    ] {
        let store = killed(seed, 100, sizes, node, 1 << 20);
        let used = used(&store);
        let mut random = noise(seed + 100);
        for _ in 0..60 {
            let at = used[random() as usize % used.len()];
            let report = whole_although(&store, at, 1 << (random() % 8), random().is_multiple_of(2));
            told += usize::from(!report.findings.is_empty());
            tried += 1;
        }
    }
    // Not all: what is flipped may be a guard, or what a checkpoint has passed.
    assert!(told > tried / 4, "{told} of {tried} were reported");
}

/// Bytes that are no records in the write-outs of the log that have records behind its start: parity, checksums, footers
/// and padding.
fn beside_records(store: &Killed) -> Vec<usize> {
    let mut bytes = Vec::new();
    // The position where the log starts, in either superblock; it has not gone round.
    let start = u64::from_le_bytes(store.image[128..136].try_into().unwrap());
    let start = (LOG + start) as usize;
    for (begin, records, _) in footers(store).filter(|(begin, records, _)| begin + records > start) {
        let unit = if records <= 64 << 10 { 512 } else { BLOCK as usize };
        let units = records.div_ceil(unit);
        let end = ((units + units.div_ceil(128)) * unit + 4 * units + 64).next_multiple_of(BLOCK as usize);
        bytes.extend((records..end).map(|at| begin + at).filter(|&at| at < (LOG + store.log) as usize));
    }
    bytes
}

/// Every bit of a guard was covered by nothing: what repairs records, and what says that later ones must be there, could
/// rot without a word.
#[test]
fn a_flipped_bit_beside_the_records_of_the_log_is_reported() {
    let (mut damage, mut notes) = (0, 0);
    for (seed, sizes, node) in
        [(1, 1..60, 4096), (2, 1..900, 8192), (3, 100..1500, 4096), (7, 20_000..60_000, 256 << 10)]
    {
        let store = killed(seed, 100, sizes, node, 4 << 20);
        let db = Db::open(device(&store.image), options().read_only(true)).unwrap();
        let report = db.check().unwrap();
        assert!(report.findings.is_empty() && report.notes.is_empty(), "{report:?}");
        let beside = beside_records(&store);
        let last = last_write_out(&store).0;
        let mut random = noise(seed + 200);
        for i in 0..120 {
            let at = match i % 3 {
                // Nothing says that the last write-out was durable, as a rule.
                _ if i < 10 => beside[beside.len() - 1 - random() as usize % 500],
                // Footers are few bytes.
                0 => beside[random() as usize % beside.len()] / 4096 * 4096 + 4095 - random() as usize % 64,
                _ => beside[random() as usize % beside.len()],
            };
            let is_guard = beside.binary_search(&at).is_ok();
            let report = whole_although(&store, at, 1 << (random() % 8), true);
            let all: Vec<_> = report
                .findings
                .iter()
                .map(|finding| finding.what.clone())
                .chain(report.notes.clone())
                .collect();
            assert!(all.iter().any(|what| what.starts_with("log: ")) || !is_guard, "byte {at}: {all:?}");
            assert!(!report.findings.is_empty() || at >= last || !is_guard, "byte {at}: {all:?}");
            damage += usize::from(!report.findings.is_empty());
            notes += usize::from(!report.notes.is_empty());
        }
    }
    println!("{damage} are damage, {notes} are noted");
    assert!(damage > 300 && notes > 0, "{damage} are damage, {notes} are noted");
}

/// Opening for writing reads no parity, and makes the log anew if it finds a footer damaged.
#[test]
fn a_flipped_bit_in_a_footer_is_reported_by_opening() {
    let store = killed(3, 100, 100..1500, 4096, 4 << 20);
    let ends: Vec<_> = footers(&store).map(|(_, _, at)| at).collect();
    assert!(ends.len() > 20, "{} footers", ends.len());
    // A byte of each field in turn, so that each is flipped in some footers.
    const BYTES: [usize; 9] = [0, 5, 9, 20, 30, 38, 41, 50, 63];
    for (i, at) in ends.iter().enumerate() {
        let turn = i % 3;
        for byte in BYTES.into_iter().skip(turn).step_by(3) {
            let mut image = store.image.clone();
            image[at + byte] ^= 4;
            let device = device(&image);
            let db = Db::open(device.clone(), options()).unwrap();
            let told = db.warnings();
            assert!(
                told.len() == 1 && told[0].contains("the footer of"),
                "footer {i}, byte {byte}: {told:?}"
            );
            let report = db.check().unwrap();
            // Unless a mark says that the last ones were durable, a crash may have torn it.
            assert_eq!(report.findings.len() + report.notes.len(), 1, "{report:?}");
            assert!(report.notes.is_empty() || i + 1 == ends.len(), "{report:?}");
            drop(db);
            let again = Db::open(device, options()).unwrap().warnings();
            assert!(again.is_empty(), "{again:?}");
        }
    }
}

/// What is synced last has nothing behind it that says that it was durable.
#[test]
fn a_flipped_bit_in_the_last_record_loses_nothing() {
    for len in [1, 100, 2000, 3500, 5000, 40_000, 200_000] {
        let device_ = Arc::new(MemDevice::new(SIZE));
        let create = CreateOptions::default().node_size(4096).log_size(2 << 20);
        Db::create(device_.clone(), &create, &options()).unwrap();
        let db = Db::open(device_.clone(), options()).unwrap();
        // As an upsert, so that it is in the log whatever its length.
        let value: Vec<u8> = (0..len).map(|i| (i * 31 + i / 251) as u8).collect();
        db.upsert("key", pando_db::patch::write(0, &value)).unwrap();
        db.sync().unwrap();
        let mut image = vec![0; device_.size() as usize];
        device_.read_at(0, &mut image).unwrap();
        let pairs = Pairs::from([(b"key".to_vec(), value)]);
        let store = Killed { image, log: 2 << 20, pairs };
        let used = used(&store);
        for at in used.iter().step_by((used.len() / 25).max(1)) {
            whole_although(&store, *at, 0x10, false);
        }
    }
}

/// Ranges of the image where a store has values outside the log: where all bytes of a value are found.
fn outside(store: &Killed, value: &[u8]) -> Option<usize> {
    let from = (LOG + store.log) as usize;
    let probe = value.get(..64)?;
    (from..store.image.len() - probe.len())
        .find(|&at| store.image[at] == probe[0] && store.image[at..].starts_with(probe))
}

#[test]
fn a_flipped_bit_in_a_value_outside_the_log_costs_its_key() {
    for (seed, sizes, node) in
        [(1, 20_000..60_000, 64 << 10), (3, 33_000..100_000, 128 << 10), (5, 9_000..20_000, 16 << 10)]
    {
        let store = killed(seed, 60, sizes, node, 4 << 20);
        let mut hit = 0;
        for (key, value) in store.pairs.iter().step_by(7) {
            let Some(at) = outside(&store, value) else { continue };
            let mut image = store.image.clone();
            image[at + 100] ^= 2;
            let device = device(&image);
            let check = |db: &Db, what: &str| {
                let (pairs, bad) = read(db, &store.pairs);
                // A page has few such values, here one as a rule.
                assert!(bad.contains(key) && bad.len() <= 3, "{what}: {bad:?}");
                let lost = store.pairs.iter().filter(|(k, v)| !bad.contains(k) && pairs.get(*k) != Some(v));
                assert_eq!(lost.count(), 0, "{what}: other keys than the damaged one are not there");
                let findings = db.check().unwrap().findings;
                let names = |f: &pando_db::Finding| {
                    f.keys
                        .as_ref()
                        .is_some_and(|(lo, hi)| lo <= key && hi.as_ref().is_none_or(|hi| hi >= key))
                };
                assert!(findings.iter().any(names), "{what}: the check names nothing: {findings:?}");
            };
            let db = Db::open(device.clone(), options().read_only(true)).unwrap();
            check(&db, "read-only");
            drop(db);
            let db = Db::open(device.clone(), options()).unwrap();
            check(&db, "replayed");
            db.put("later", "than that").unwrap();
            db.close().unwrap();
            drop(db);
            let db = Db::open(device.clone(), options()).unwrap();
            check(&db, "opened again");
            assert_eq!(db.get(b"later").unwrap().as_deref(), Some(&b"than that"[..]));
            // And it can be written anew.
            db.put(key.clone(), "new").unwrap();
            db.checkpoint().unwrap();
            assert_eq!(db.get(key).unwrap().as_deref(), Some(&b"new"[..]));
            hit += 1;
        }
        assert!(hit > 3, "seed {seed}: {hit} values stand outside the log");
    }
}

#[test]
fn a_superblock_that_rots_loses_nothing_and_is_reported() {
    for (seed, discard) in (1..9).flat_map(|seed| [(seed, true), (seed, false)]) {
        let dev = Arc::new(MemDevice::new(SIZE));
        let options = || options().discard(discard);
        let create = CreateOptions::default().node_size(4096).log_size(64 << 10);
        Db::create(dev.clone(), &create, &options()).unwrap();
        let db = Db::open(dev.clone(), options()).unwrap();
        let mut random = noise(seed);
        let mut pairs = Pairs::new();
        // The log goes round, so that what was before a checkpoint is not in it any more.
        for _ in 0..600 + seed * 37 {
            let (key, value) = (format!("{:03}", random() % 500).into_bytes(), vec![random() as u8; 200]);
            db.put(key.clone(), value.clone()).unwrap();
            db.sync().unwrap();
            pairs.insert(key, value);
        }
        let mut image = vec![0; dev.size() as usize];
        dev.read_at(0, &mut image).unwrap();
        let store = Killed { image, log: 64 << 10, pairs };
        for slot in 0..2 {
            for at in [3, 20, 130, 150, 170, 1000, 4090] {
                let report = whole_although(&store, slot * 4096 + at, 0x40, true);
                assert!(report.notes.iter().any(|note| note.contains("superblock")), "{:?}", report.notes);
                whole_although(&store, slot * 4096 + at, 0x40, false);
            }
        }
    }
}

/// Too much is gone to be computed, and later records say that it was durable.
#[test]
fn damage_beyond_repair_is_refused_and_can_be_salvaged() {
    for seed in [1, 3, 5] {
        let store = killed(seed, 100, 100..400, 4096, 1 << 20);
        let used = used(&store);
        let mut image = store.image.clone();
        // Behind what a checkpoint has passed.
        let block = used[used.len() * 19 / 20] / 4096 * 4096;
        image[block..block + 4096].fill(0);
        for read_only in [true, false] {
            let refused = Db::open(device(&image), options().read_only(read_only));
            assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
        }
        let salvage = || options().salvage(true);
        let device = device(&image);
        let db = Db::open(device.clone(), salvage()).unwrap();
        let (pairs, bad) = read(&db, &store.pairs);
        assert!(bad.is_empty());
        let there = store.pairs.iter().filter(|(key, value)| pairs.get(*key) == Some(value)).count();
        assert!(there + 20 > store.pairs.len(), "{there} of {} keys", store.pairs.len());
        let findings = db.check().unwrap().findings;
        assert!(findings.iter().any(|f| f.what.contains("are lost")), "{findings:?}");
        db.put("later", "than that").unwrap();
        db.sync().unwrap();
        drop(db);
        // From then on it is a store like any other.
        let db = Db::open(device, options()).unwrap();
        assert_eq!(db.get(b"later").unwrap().as_deref(), Some(&b"than that"[..]));
        assert!(db.check().unwrap().findings.is_empty());
    }
}

/// The write-outs of the log that have records: the first byte of each, how many bytes of records it has, and where its
/// footer is.
fn footers(store: &Killed) -> impl Iterator<Item = (usize, usize, usize)> {
    (LOG..LOG + store.log).step_by(BLOCK as usize).filter_map(|block| {
        // A footer ends the block in which it stands.
        let at = (block + BLOCK) as usize - 64;
        let footer = &store.image[at..at + 64];
        let u32_at = |at: usize| u32::from_le_bytes(footer[at..at + 4].try_into().unwrap());
        let begin = u64::from_le_bytes(footer[8..16].try_into().unwrap());
        let records = u32_at(4) as usize;
        let is_one = u32_at(0) == 0x6775_6172 && records > 0;
        is_one.then_some(((LOG + begin % store.log) as usize, records, at))
    })
}

/// The last write-out of the log that has records, of one that has not gone round: its first byte and its length.
fn last_write_out(store: &Killed) -> (usize, usize) {
    let (begin, records, _) = footers(store).last().unwrap();
    (begin, records)
}

/// The last that was synced is damaged with its parity. Where something else says that it was durable, be it a
/// superblock or a mark that an idle store leaves behind, it is not cut off without a word.
#[test]
fn the_last_write_out_is_not_cut_silently_where_something_says_that_it_was_durable() {
    for (way, batches) in [("idle", 1), ("idle", 30), ("grown", 1), ("grown", 30)] {
        let device_ = Arc::new(MemDevice::new(SIZE));
        let create = CreateOptions::default().node_size(4096).log_size(1 << 20);
        Db::create(device_.clone(), &create, &options()).unwrap();
        let db = Db::open(device_.clone(), options().background(way == "idle")).unwrap();
        let mut pairs = Pairs::new();
        for i in 0..batches {
            let (key, value) = (format!("{i:03}").into_bytes(), vec![i as u8; 100 + 40 * i]);
            db.put(key.clone(), value.clone()).unwrap();
            pairs.insert(key, value);
            db.sync().unwrap();
        }
        match way {
            "idle" => std::thread::sleep(std::time::Duration::from_millis(3500)),
            _ => db.grow(SIZE + (1 << 20)).unwrap(),
        }
        let mut image = vec![0; device_.size() as usize];
        device_.read_at(0, &mut image).unwrap();
        let mut store = Killed { image, log: 1 << 20, pairs };
        let (begin, records) = last_write_out(&store);
        // All its records, and what would repair them: beyond the records it has as much again, and its guard.
        let len = (2 * records + 512).next_multiple_of(BLOCK as usize);
        store.image[begin..begin + len].fill(0x5a);
        for read_only in [true, false] {
            let refused = Db::open(device(&store.image), options().read_only(read_only));
            assert!(matches!(refused, Err(Error::Corrupt { .. })), "{way}, {batches}: it opened");
        }
        let db = Db::open(device(&store.image), options().salvage(true)).unwrap();
        let (pairs, bad) = read(&db, &store.pairs);
        assert!(bad.is_empty() && pairs.len() == batches - 1, "{way}: {} of {batches}", pairs.len());
        let findings = db.check().unwrap().findings;
        assert!(findings.iter().any(|f| f.what.contains("are lost")), "{findings:?}");
    }
}

/// Marks of what is durable are no reason for more: a store in which nothing happens writes nothing.
#[test]
fn an_idle_store_writes_one_mark_and_no_more() {
    let device_ = Arc::new(MemDevice::new(SIZE));
    Db::create(device_.clone(), &CreateOptions::default().node_size(4096).log_size(1 << 20), &options())
        .unwrap();
    let db = Db::open(device_.clone(), options().background(true)).unwrap();
    let writes_in = |seconds: u64| {
        let before = device_.stats().writes;
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        device_.stats().writes - before
    };
    assert_eq!(writes_in(3), 0);
    db.put("key", "value").unwrap();
    db.sync().unwrap();
    assert_eq!(writes_in(4), 1);
    db.checkpoint().unwrap();
    assert_eq!(writes_in(3), 0);
}

/// Where a block begins as leaves of the translation table do.
fn table_pages(device: &MemDevice) -> Vec<u64> {
    let begins = |at: &u64| {
        let mut magic = [0; 4];
        device.read_at(*at, &mut magic).unwrap();
        magic == *b"PTBK"
    };
    (0..SIZE).step_by(BLOCK as usize).filter(begins).collect()
}

/// What is in the cache was not read from the device: rot below it was found only when the store was opened again.
#[test]
fn a_check_of_a_store_in_use_finds_rot_below_what_is_cached() {
    for part in ["page", "header", "table"] {
        let device = Arc::new(MemDevice::new(SIZE));
        Db::create(device.clone(), &CreateOptions::default().node_size(64 << 10), &options()).unwrap();
        let db = Db::open(device.clone(), options().codec(Codec::None)).unwrap();
        let mut random = noise(1);
        for n in 0..1000 {
            db.put(format!("{n:04}"), (0..500).map(|_| random() as u8).collect::<Vec<u8>>()).unwrap();
        }
        db.settle().unwrap();
        assert_eq!(db.range(b"", None).count(), 1000);
        assert!(db.check().unwrap().findings.is_empty());
        let seen = db.inspect(&InspectOptions::default()).unwrap();
        let leaf = seen.nodes.iter().find(|node| node.height == 0).unwrap();
        let extent = &leaf.extents[0];
        let places = match part {
            // At the start, and pages follow to the end.
            "header" => vec![extent.offset + 100],
            "page" => vec![extent.offset + u64::from(leaf.header_bytes) + 5000],
            // One of them is in use.
            _ => table_pages(&device).iter().map(|at| at + 50).collect(),
        };
        let flip = || {
            for at in &places {
                let mut byte = [0];
                device.read_at(*at, &mut byte).unwrap();
                device.write_at(*at, &[byte[0] ^ 1]).unwrap();
            }
        };
        flip();
        // Readers have it in memory.
        assert_eq!(db.range(b"", None).filter(Result::is_ok).count(), 1000);
        let report = db.check().unwrap();
        assert!(!report.findings.is_empty(), "{part}: the check has read the cache");
        assert_eq!(report.findings.iter().any(|finding| finding.keys.is_some()), part != "table");
        // The damage is told to readers when they come to it, and not before.
        assert_eq!(db.range(b"", None).filter(Result::is_ok).count(), 1000);
        flip();
        assert!(db.check().unwrap().findings.is_empty());
    }
}
