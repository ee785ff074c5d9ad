//! Hostile images: thousands of damaged stores, none of which may cause a panic, a hang, unbounded
//! memory, or wrong data that looks right.
//!
//! Damage as a medium does it must be found by a checksum: what is read
//! without an error is right. Damage *sealed* with fitting checksums (see
//! `image`) may mean anything, but must be survived. `docs/testing.md` says
//! how to replay one.

#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)] // an allocator that counts

mod image;
mod model;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use image::{
    Image,
    damage::{damage, damage_blocks},
};
use model::{
    campaign::{Watchdog, variable},
    config::{Config, Profile},
    generate::Generator,
    oracle::{self, Pair, World},
    rng::Rng,
    shrink::catching,
    step::{OpenWith, Step},
};
use pando_db::{
    Batch, Db, InspectOptions, Options, Result,
    device::{Device, MemDevice},
};

thread_local! {
    /// Bytes that this thread has allocated and not freed, now and at most.
    static NOW: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

/// Counts for each thread: stores without threads of their own do all work in that of their test.
struct CountingByThread;

impl CountingByThread {
    fn add(bytes: isize) {
        NOW.set(NOW.get() + bytes);
        MOST.set(MOST.get().max(NOW.get()));
    }
}

// SAFETY: all is done by the system's allocator; only sums are kept beside it, which are not allocated.
unsafe impl GlobalAlloc for CountingByThread {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size() as isize);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        Self::add(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // For a moment there may be both.
        Self::add(new_size as isize);
        Self::add(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, new_size) }
    }
}

#[global_allocator]
static MEMORY: CountingByThread = CountingByThread;

const SIZE: u64 = 1 << 20;
/// No image of a megabyte is worth more memory or time than this: the cache, and decoding at its worst.
const MOST_MEMORY: isize = 96 << 20;
const MOST_TIME: Duration = Duration::from_secs(20);
const WITH: OpenWith = OpenWith { memtable: 1024, cache: 256 << 10, abundant: Some(500) };

/// A store as it was left, and all that has ever been in it.
struct Sample {
    image: Image,
    states: HashSet<u64>,
    pairs: HashSet<Pair>,
    keys: Vec<Bytes>,
    /// The newest state.
    world: World,
}

fn options() -> Options {
    Options::default()
        .background(false)
        .memtable_bytes(WITH.memtable)
        .cache_bytes(WITH.cache)
        .merge(Arc::new(model::merge::ModelMerge))
}

/// A store made by a seed, closed or left with a log to replay.
fn sample(seed: u64) -> Sample {
    let config = Config {
        device_size: SIZE,
        node_size: 4096,
        log_size: 64 << 10,
        max_keys: 400,
        max_bytes: 60_000,
        ..Config::new(seed, Profile::Crashes)
    };
    let device = Arc::new(MemDevice::new(SIZE));
    Db::create(device.clone(), &config.create_options(), &options()).unwrap();
    let db = Db::open(device.clone(), options()).unwrap();
    let mut generator = Generator::new(&config);
    let mut world = World::default();
    let mut states = HashSet::from([world.digest()]);
    let mut pairs = HashSet::new();
    let mut batches = 0;
    // And on, should it have come out empty: there must be something to damage.
    while batches < 150 || (world.len() < 10 && batches < 1000) {
        match generator.step(&world) {
            Step::Write(ops) if world.refusal(&ops).is_none() => {
                let mut batch = Batch::new();
                ops.iter().for_each(|op| _ = batch.push(op.clone()));
                if db.write(batch).is_err() {
                    continue;
                }
                world = world.after(&ops);
                states.insert(world.digest());
                pairs.extend(world.range(&[], None).map(|(k, v)| (k.clone(), v.clone())));
                batches += 1;
            }
            Step::Checkpoint => db.checkpoint().unwrap(),
            _ => (),
        }
    }
    if seed.is_multiple_of(2) {
        db.close().unwrap()
    } else {
        db.sync().unwrap()
    }
    let keys = world.range(&[], None).map(|(key, _)| key.clone()).collect();
    Sample { image: Image::new(contents(&device)), states, pairs, keys, world }
}

fn contents(device: &MemDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

/// Uses a damaged store as a program would. `Err` is a finding.
fn survive(
    image: &Image,
    sample: &Sample,
    sealed: bool,
    rng: &mut Rng,
) -> std::result::Result<&'static str, String> {
    let device = Arc::new(MemDevice::new(image.bytes.len() as u64));
    device.write_at(0, &image.bytes).unwrap();
    let read_only = rng.chance(300);
    let Ok(db) = Db::open(device, options().read_only(read_only)) else { return Ok("not opened") };
    let mut read: Vec<Pair> = Vec::new();
    let mut failed = false;
    // A sealed image may describe one node many times over: nobody has to read all of that.
    for item in db.range(&[], None).take(200_000) {
        match item {
            Ok(pair) => read.push(pair),
            Err(_) => {
                failed = true;
                break;
            }
        }
    }
    if read.windows(2).any(|w| w[0].0 >= w[1].0) && !sealed {
        return Err("keys out of order".into());
    }
    let backward: Vec<Result<Pair>> = db.range(&[], None).rev().take(1000).collect();
    if !sealed {
        if let Some((key, value)) = read.iter().find(|pair| !sample.pairs.contains(*pair)) {
            return Err(format!("a pair that never was: {}", oracle::pair(key, value)));
        }
        let state = oracle::digest(&read);
        if !failed && !sample.states.contains(&state) {
            return Err("a state that never was".into());
        }
        // All of it was synced or closed. Where much is gone, so may be all that says what there was.
        let told = || !db.check().is_ok_and(|report| report.findings.is_empty());
        if !failed && state != sample.world.digest() && sample.image.is_alike(image) && !told() {
            return Err("synced batches are gone without a word".into());
        }
        let wrong = backward.into_iter().flatten().find(|pair| !sample.pairs.contains(pair));
        if let Some((key, value)) = wrong {
            return Err(format!("backward, a pair that never was: {}", oracle::pair(&key, &value)));
        }
    }
    for _ in 0..10 {
        let key = rng.pick(&sample.keys);
        if let (Ok(Some(value)), false) = (db.get(key), sealed)
            && !sample.pairs.contains(&(key.clone(), value))
        {
            return Err(format!("get: a value that never was, of {}", oracle::show(key)));
        }
    }
    let clean = db.check().is_ok_and(|report| report.findings.is_empty());
    if !sealed && failed && clean {
        return Err("the checker sees nothing wrong with what cannot be read".into());
    }
    // Errors are right from here on, whatever they are; panics are not.
    let looked = db.inspect(&InspectOptions { messages: true, limit: 200, ..InspectOptions::default() });
    if !sealed && clean && !looked.is_ok_and(|seen| seen.nodes.iter().all(|node| node.content.is_ok())) {
        return Err("a clean store cannot be looked into".into());
    }
    let key = rng.pick(&sample.keys).clone();
    let _ = (db.usage(b""), db.usage(&key), db.usage(key.get(..1).unwrap_or_default()));
    let collects = rng.chance(300);
    let results: [Result<()>; 6] = [
        db.clone_prefix(key.clone(), "copied/"),
        (0..40).try_for_each(|i| db.put(format!("{i:03}"), vec![1; 200])),
        db.delete_prefix(key.slice(..key.len() / 2)),
        if collects { db.settle() } else { Ok(()) },
        db.checkpoint(),
        db.close(),
    ];
    Ok(match (failed, results.iter().all(Result::is_ok)) {
        (true, _) => "unreadable in part",
        (false, false) => "read, but not written",
        (false, true) => "used as if nothing had happened",
    })
}

fn campaign(test: &str, seconds: f64, sealed: bool, hurt: fn(&mut Image, &mut Rng) -> String) {
    let samples: Vec<Sample> = (1..9).map(sample).collect();
    let watchdog = Watchdog::new(format!("--test corrupt {test}"));
    let single: Option<u64> = variable("PANDO_SEED");
    let base = single.or(variable("PANDO_SEED_BASE")).unwrap_or(1);
    let seconds = variable("PANDO_CORRUPT_SECONDS").unwrap_or(seconds);
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    let mut ends: HashMap<&str, u64> = HashMap::new();
    // With PANDO_ALL every kind of finding is collected, not only the first.
    let all = std::env::var_os("PANDO_ALL").is_some();
    let mut found: HashMap<String, (u64, String)> = HashMap::new();
    let mut seed = base;
    let mut most = 0;
    while seed == base || (single.is_none() && Instant::now() < deadline) {
        let mut rng = Rng(seed);
        let sample = rng.pick(&samples);
        let mut image = sample.image.clone();
        let what = hurt(&mut image, &mut rng);
        if sealed {
            image.seal();
        }
        watchdog.begin(seed);
        let (before, started) = (NOW.get(), Instant::now());
        MOST.set(before);
        let mut end = catching(|| survive(&image, sample, sealed, &mut rng));
        let (took, used) = (started.elapsed(), MOST.get() - before);
        watchdog.end();
        most = most.max(used);
        if end.is_ok() && used > MOST_MEMORY {
            end = Err(format!("{used} bytes of memory"));
        }
        if end.is_ok() && took > MOST_TIME {
            end = Err(format!("{took:?}"));
        }
        match end {
            Ok(end) => *ends.entry(end).or_default() += 1,
            Err(error) => {
                // Panics at one place are one finding.
                let place = error.split_inclusive(".rs:").next().unwrap_or_default().len() + 4;
                let place = error.get(..place).unwrap_or(&error).to_string();
                let told = format!(
                    "image {seed} ({what}): {error}\n\nreplay: PANDO_SEED={seed} cargo test -p pando-db --test corrupt {test} -- --nocapture"
                );
                found.entry(place).or_insert((0, told)).0 += 1;
                if !all {
                    break;
                }
            }
        }
        seed += 1;
    }
    let found: Vec<String> =
        found.into_values().map(|(count, told)| format!("{count} times: {told}\n")).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    println!("{test}: {} images from {base}, {most} bytes at most: {ends:?}", seed - base);
    if single.is_none() {
        let done = seed - base;
        assert!(done > 100 && ends.len() > 1, "{done} images, all the same: {ends:?}");
        assert!(most > 1 << 20, "{most} bytes at most: nothing was counted");
    }
}

#[test]
fn damage_to_parts_is_found() {
    campaign("damage_to_parts_is_found", 12.0, false, damage);
}

#[test]
fn damage_to_blocks_is_found() {
    campaign("damage_to_blocks_is_found", 8.0, false, damage_blocks);
}

#[test]
fn sealed_damage_is_survived() {
    campaign("sealed_damage_is_survived", 20.0, true, damage);
}

/// The samples are good, and the reader of the format understands them: it panics otherwise.
#[test]
fn undamaged_images_are_whole() {
    for seed in 1..9 {
        let sample = sample(seed);
        let mut sealed = sample.image.clone();
        sealed.seal();
        assert!(sealed.bytes == sample.image.bytes, "sealing an image that is whole changes it");
        for kind in [image::Kind::Superblock, image::Kind::TablePage, image::Kind::Header, image::Kind::Page]
        {
            assert!(sample.image.parts.iter().any(|part| part.kind == kind), "no {kind:?} in sample {seed}");
        }
        // Records about values set aside, of which no batch is left, may stay behind a checkpoint.
        let is_batch = |part: &image::Part| {
            part.kind == image::Kind::Record
                && sample.image.bytes.get(part.from + 32).is_some_and(|kind| *kind < 2)
        };
        let records = sample.image.parts.iter().any(is_batch);
        assert_eq!(records, seed % 2 == 1, "records in the log of sample {seed}");
        let device = Arc::new(MemDevice::new(SIZE));
        device.write_at(0, &sample.image.bytes).unwrap();
        let db = Db::open(device, options()).unwrap();
        let pairs: Vec<Pair> = db.range(&[], None).collect::<Result<_>>().unwrap();
        sample.world.compare(&pairs).unwrap();
    }
}
