//! A tree that no memory holds: written, read back from where it is then, and read once more, cold.
//!
//! Meant for `--memory`, which client and daemon share: then it is also about whether it ends at all, and what the
//! daemon takes.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use pando_bench_common::Random;

use crate::{data::content::Content, figure::Figure, run::Run};

const TREE_BYTES: u64 = 4 << 30;
const FILES_PER_DIRECTORY: u64 = 100;
/// Sizes of files: one of these in turn, bytes. Small ones are many, large ones hold most of the data.
const SIZES: [u64; 8] = [700, 3_000, 9_000, 20_000, 60_000, 250_000, 1_000_000, 12_000_000];
/// Bytes of a call.
const CALL_BYTES: usize = 128 << 10;
/// What a daemon may take at most: so many times its cache, and so many bytes besides (buffers of the log and of
/// requests, 360 bytes for each inode that the kernel knows).
const BOUND_CACHES: f64 = 1.5;
const BOUND_BYTES: u64 = 96 << 20;

/// A file: where it is, how long, and what is in it from which place of the contents on.
struct Planned {
    path: PathBuf,
    len: u64,
    at: u64,
}

fn plan(dir: &Path, bytes: u64, seed: u64) -> Vec<Planned> {
    let mut random = Random::new(seed);
    let (mut files, mut at) = (Vec::new(), 0);
    while at < bytes {
        let number = files.len() as u64;
        let size = SIZES[number as usize % SIZES.len()];
        let len = size / 2 + random.below(size);
        let path = dir.join(format!("d{}/f{number}", number / FILES_PER_DIRECTORY));
        files.push(Planned { path, len, at });
        at += len;
    }
    files
}

fn write(file: &Planned, contents: &Content, buffer: &mut [u8]) -> Result<()> {
    let mut out = File::create_new(&file.path)?;
    let mut done = 0;
    while done < file.len {
        let piece = (file.len - done).min(CALL_BYTES as u64) as usize;
        contents.fill(file.at + done, &mut buffer[..piece]);
        out.write_all(&buffer[..piece])?;
        done += piece as u64;
    }
    Ok(())
}

fn check(file: &Planned, contents: &Content, buffer: &mut [u8], scratch: &mut Vec<u8>) -> Result<()> {
    let mut found = File::open(&file.path)?;
    let mut done = 0;
    loop {
        let len = found.read(buffer)?;
        if len == 0 {
            break;
        }
        contents.check(file.at + done, &buffer[..len], scratch)?;
        done += len as u64;
    }
    ensure!(done == file.len, "{} has {done} bytes of {}", file.path.display(), file.len);
    Ok(())
}

pub fn run(run: &mut Run) -> Result<()> {
    let dir = run.make_tree("large")?;
    let (contents, mut buffer, mut scratch) = (Content::new(run.seed(9)), vec![0; CALL_BYTES], Vec::new());
    let files = plan(&dir, run.scaled(TREE_BYTES, 64 << 20), run.seed(10));
    let bytes: u64 = files.iter().map(|file| file.len).sum();
    let mut most = None;
    let meter = run.meter();
    for file in &files {
        if let Some(parent) = file.path.parent() {
            fs::create_dir_all(parent)?;
        }
        write(file, &contents, &mut buffer)?;
    }
    run.sync()?;
    let measured = meter.measured();
    let files_count = files.len() as f64;
    let memory = |run: &Run, most: &mut Option<u64>| -> Result<f64> {
        *most = (*most).max(run.daemon_peak()?);
        Ok(most.map_or(0.0, |bytes| bytes as f64))
    };
    let peak = memory(run, &mut most)?;
    run.add(
        Figure::rate("a large tree, written + sync", "MB", bytes as f64 / 1e6, measured)
            .wrote(bytes)
            .with("files", files_count)
            .with("daemon_peak_bytes", peak),
    );
    for (row, cold) in [("a large tree, read back", false), ("a large tree, read, cold", true)] {
        if cold {
            run.cold()?;
        }
        let meter = run.meter();
        for file in &files {
            check(file, &contents, &mut buffer, &mut scratch)?;
        }
        let measured = meter.measured();
        let peak = memory(run, &mut most)?;
        run.add(
            Figure::rate(row, "MB", bytes as f64 / 1e6, measured).read(bytes).with("daemon_peak_bytes", peak),
        );
    }
    if let (Some(most), Some(cache)) = (most, run.part.cache) {
        let bound = (cache as f64 * BOUND_CACHES) as u64 + BOUND_BYTES;
        ensure!(
            most <= bound,
            "the daemon took {} MiB with a cache of {} MiB; its bound is {} MiB",
            most >> 20,
            cache >> 20,
            bound >> 20
        );
    }
    Ok(())
}
