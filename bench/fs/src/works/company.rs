//! Clones of a tree beside two programs that write into it at full speed.

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};
use pando_bench_common::Random;

use super::create::{content, pool};
use crate::{
    figure::{Better, Figure},
    report::{median, quantile},
    run::Run,
};

const FILES: u64 = 20_000;
const LEAST_FILES: u64 = 1_000;
const FILES_A_DIRECTORY: u64 = 100;
const WRITERS: u64 = 2;
/// Clones are made for so long, with such a pause behind each.
const PHASE_MILLIS: u64 = 6_000;
const LEAST_PHASE_MILLIS: u64 = 1_500;
const PAUSE: Duration = Duration::from_millis(200);
const PAGE_BYTES: u64 = 4 << 10;
const APPENDED_BYTES: u64 = 64 << 10;
/// A file that is appended to begins again at this size.
const LONGEST_BYTES: u64 = 512 << 20;
const LEAST_LONGEST_BYTES: u64 = 64 << 20;
/// A file in which random pages are written has this share of that (1/n).
const RANDOM_SHARE: u64 = 2;

/// What the writers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writes {
    /// 100 bytes in one of the small files, which is opened for that.
    Small,
    /// Calls of 64 KiB behind each other in a large file.
    Appends,
    /// Random pages of a large file.
    Pages,
}

/// What the last call of a writer wrote: where, and its number, which it begins with.
type Last = Mutex<Option<(PathBuf, u64, u64)>>;

struct Writer<'a> {
    root: &'a Path,
    number: u64,
    files: u64,
    longest: u64,
    last: &'a Last,
}

impl Writer<'_> {
    /// Writes until `stop`; the seconds of the longest call.
    fn write(&self, writes: Writes, stop: &AtomicBool, calls: &AtomicU64) -> Result<f64> {
        let large = self.root.join(format!("{writes:?}{}", self.number));
        let open =
            |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        let file = open(&large)?;
        let (mut longest, mut random) = (0f64, Random::new(self.number));
        let mut bytes = vec![self.number as u8; APPENDED_BYTES as usize];
        let mut call = 0u64;
        while !stop.load(Ordering::Relaxed) {
            call += 1;
            bytes[..8].copy_from_slice(&call.to_le_bytes());
            let begun = Instant::now();
            let (path, at) = match writes {
                Writes::Small => {
                    // Each writer has every second file, so that it knows what it has written last.
                    let number = random.below(self.files / WRITERS) * WRITERS + self.number;
                    let path = small(self.root, number);
                    OpenOptions::new().write(true).open(&path)?.write_all_at(&bytes[..100], 0)?;
                    (path, 0)
                }
                Writes::Appends => {
                    let at = call * APPENDED_BYTES % self.longest;
                    file.write_all_at(&bytes, at)?;
                    (large.clone(), at)
                }
                Writes::Pages => {
                    let at = random.below(self.longest / RANDOM_SHARE / PAGE_BYTES) * PAGE_BYTES;
                    file.write_all_at(&bytes[..PAGE_BYTES as usize], at)?;
                    (large.clone(), at)
                }
            };
            longest = longest.max(begun.elapsed().as_secs_f64());
            *self.last.lock().map_err(|_| anyhow!("a writer has panicked"))? = Some((path, at, call));
        }
        calls.fetch_add(call, Ordering::Relaxed);
        Ok(longest)
    }
}

fn small(root: &Path, number: u64) -> PathBuf {
    root.join(format!("d{}/f{number}", number / FILES_A_DIRECTORY))
}

/// What was written last before a clone began is in it, or what was written there later.
fn check(root: &Path, clone: &Path, written: &(PathBuf, u64, u64)) -> Result<()> {
    let (path, at, call) = written;
    let mut found = [0; 8];
    File::open(clone.join(path.strip_prefix(root)?))?.read_exact_at(&mut found, *at)?;
    let found = u64::from_le_bytes(found);
    // Before the first write there is text or nothing.
    ensure!(
        found >= *call && found < u64::MAX >> 16,
        "{}: call {call} at {at} is not in the clone, but {found}",
        path.display()
    );
    Ok(())
}

pub fn run(run: &mut Run) -> Result<()> {
    let text = pool(run.seed(17));
    let files = run.scaled(FILES, LEAST_FILES).next_multiple_of(WRITERS);
    let phase = Duration::from_millis(run.scaled(PHASE_MILLIS, LEAST_PHASE_MILLIS).min(PHASE_MILLIS));
    // Each clone keeps what is written over after it: the image is to have room for all of that.
    let longest = run.scaled(LONGEST_BYTES, LEAST_LONGEST_BYTES).next_multiple_of(APPENDED_BYTES);
    let root = run.make_tree("shared")?;
    for number in 0..files {
        if number % FILES_A_DIRECTORY == 0 {
            fs::create_dir(root.join(format!("d{}", number / FILES_A_DIRECTORY)))?;
        }
        fs::write(small(&root, number), content(&text, number))?;
    }
    run.sync()?;
    for (writes, name) in [
        (Writes::Small, "small files"),
        (Writes::Appends, "64 KiB after 64 KiB"),
        (Writes::Pages, "random pages"),
    ] {
        let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
        let lasts: Vec<Last> = (0..WRITERS).map(|_| Mutex::default()).collect();
        let meter = run.meter();
        let (mut times, longest_write) = thread::scope(|scope| {
            let writers: Vec<_> = (0..)
                .zip(&lasts)
                .map(|(number, last)| {
                    let writer = Writer { root: &root, number, files, longest, last };
                    let (stop, calls) = (&stop, &calls);
                    scope.spawn(move || writer.write(writes, stop, calls))
                })
                .collect();
            let clones = || {
                let (mut times, begun) = (Vec::new(), Instant::now());
                while times.is_empty() || begun.elapsed() < phase {
                    thread::sleep(PAUSE);
                    let mut before = Vec::new();
                    for last in &lasts {
                        before.extend(last.lock().map_err(|_| anyhow!("a writer has panicked"))?.clone());
                    }
                    let to = run.path(&format!("clone-{writes:?}-{}", times.len()));
                    let start = Instant::now();
                    run.clone_tree(&root, &to)?;
                    times.push(start.elapsed().as_secs_f64());
                    before.iter().try_for_each(|written| check(&root, &to, written))?;
                }
                anyhow::Ok(times)
            };
            let times = clones();
            stop.store(true, Ordering::Relaxed);
            let mut longest = 0f64;
            for writer in writers {
                longest = longest.max(writer.join().map_err(|_| anyhow!("a writer has panicked"))??);
            }
            anyhow::Ok((times?, longest))
        })?;
        let measured = meter.measured();
        let rate = calls.load(Ordering::Relaxed) as f64 / measured.seconds.max(1e-9);
        for (row, value) in [("median", median(&mut times)), ("longest", quantile(&mut times, 1.0))] {
            let row = format!("clone beside two writers, {name}: {row}");
            run.add(
                Figure::new(row, "ms", value * 1e3, Better::Less, measured)
                    .with("clones", times.len() as f64)
                    .with("writes_a_second", rate)
                    .with("longest_write_ms", longest_write * 1e3),
            );
        }
    }
    Ok(())
}
