//! A few bytes here and there in a large file.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use anyhow::{Result, ensure};
use pando_bench_common::Random;

use crate::{data::content::Content, figure::Figure, run::Run};

const FILE_BYTES: u64 = 1 << 30;
const READS: u64 = 6_500;
const WRITES: u64 = 26_000;
const PIECE: usize = 4;
const CHUNK: usize = 1 << 20;

/// Writes the file, cold afterwards.
fn prepare(run: &mut Run) -> Result<(PathBuf, u64, Content)> {
    let (path, bytes) = (run.path("large"), run.scaled(FILE_BYTES, 4 << 20));
    let content = Content::new(run.seed(3));
    write(&path, bytes, &content)?;
    run.cold()?;
    Ok((path, bytes, content))
}

/// Writes a file in large calls, durably.
pub fn write(path: &Path, bytes: u64, content: &Content) -> Result<()> {
    let (file, mut chunk) = (File::create(path)?, vec![0; CHUNK]);
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(CHUNK as u64) as usize;
        content.fill(at, &mut chunk[..len]);
        file.write_all_at(&chunk[..len], at)?;
        at += len as u64;
    }
    file.sync_all()?;
    Ok(())
}

pub fn reads(run: &mut Run) -> Result<()> {
    let (path, bytes, content) = prepare(run)?;
    let (count, mut random, mut scratch) = (run.scaled(READS, 20), Random::new(run.seed(4)), Vec::new());
    let meter = run.meter();
    let file = File::open(&path)?;
    for _ in 0..count {
        let (at, mut found) = (random.below(bytes - PIECE as u64), [0; PIECE]);
        file.read_exact_at(&mut found, at)?;
        content.check(at, &found, &mut scratch)?;
    }
    let measured = meter.measured();
    run.add(
        Figure::seconds("random reads of 4 B, cold", measured)
            .with("reads", count as f64)
            .with("device_bytes_a_read", measured.device.read_bytes as f64 / count as f64),
    );
    Ok(())
}

pub fn writes(run: &mut Run) -> Result<()> {
    let (path, bytes, content) = prepare(run)?;
    let (count, mut random) = (run.scaled(WRITES, 20), Random::new(run.seed(5)));
    let mut last = BTreeMap::new();
    let meter = run.meter();
    let file = File::options().write(true).open(&path)?;
    for _ in 0..count {
        // Places of four bytes, so that no two writes overlap in part.
        let at = random.below(bytes / PIECE as u64) * PIECE as u64;
        let data = (random.bits() as u32).to_le_bytes();
        file.write_all_at(&data, at)?;
        last.insert(at, data);
    }
    file.sync_all()?;
    let mut measured = meter.measured();
    drop(file);
    run.settle(&meter, &mut measured)?;
    // The whole file: what was written is there, and nothing else has changed.
    let (file, mut chunk) = (File::open(&path)?, vec![0; CHUNK]);
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(CHUNK as u64) as usize;
        file.read_exact_at(&mut chunk[..len], at)?;
        let mut wanted = content.at(at, len);
        // Places are multiples of their size, and so are chunks: none crosses the end of one.
        for (&place, data) in last.range(at..at + len as u64) {
            let from = (place - at) as usize;
            let piece = (len - from).min(PIECE);
            wanted[from..from + piece].copy_from_slice(&data[..piece]);
        }
        ensure!(chunk[..len] == wanted[..], "wrong data in the {len} bytes at {at}");
        at += len as u64;
    }
    run.add(
        Figure::seconds("random writes of 4 B + fsync", measured)
            .with("writes", count as f64)
            .with("device_bytes_a_write", measured.device.written_bytes as f64 / count as f64),
    );
    Ok(())
}
