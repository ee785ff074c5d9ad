//! Somebody reads a large cold file from a slow device. How long do others wait for what is in memory?

use std::{
    fs::{self, File},
    io::Read,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, ensure};

use super::{create::content, create::pool, random};
use crate::{
    data::content::Content,
    figure::{Better, Figure},
    report::{median, quantile},
    run::Run,
};

/// What the device may do if the run has no limit of its own: requests and bytes a second.
const SLOW: (u64, u64) = (500, 20_000_000);
const FILES: u64 = 1_000;
const LARGE_BYTES: u64 = 256 << 20;
const PHASE: Duration = Duration::from_secs(2);

/// Seconds of each call: the attributes of a file by a name that the kernel may know, and all of opening,
/// reading and closing a file.
fn calls(files: &[PathBuf], text: &[u8], end: impl Fn() -> bool) -> Result<[Vec<f64>; 2]> {
    let mut seconds = [Vec::new(), Vec::new()];
    'all: loop {
        for (number, path) in (0..).zip(files) {
            let start = Instant::now();
            let len = fs::metadata(path)?.len();
            seconds[0].push(start.elapsed().as_secs_f64());
            let start = Instant::now();
            let found = fs::read(path)?;
            seconds[1].push(start.elapsed().as_secs_f64());
            ensure!(
                len == found.len() as u64 && found == content(text, number),
                "wrong data in file {number}"
            );
            if end() {
                break 'all;
            }
        }
    }
    Ok(seconds)
}

pub fn run(run: &mut Run) -> Result<()> {
    let (text, bytes) = (pool(run.seed(6)), run.scaled(LARGE_BYTES, 16 << 20));
    let large = run.path("large");
    let contents = Content::new(run.seed(7));
    random::write(&large, bytes, &contents)?;
    let dir = run.make_tree("small")?;
    let files: Vec<PathBuf> = (0..FILES).map(|number| dir.join(format!("file{number}"))).collect();
    for (number, path) in (0..).zip(&files) {
        fs::write(path, content(&text, number))?;
    }
    run.sync()?;
    run.cold()?;
    // Warm from here on.
    for path in &files {
        fs::read(path)?;
    }
    let phase = run.scaled(PHASE.as_millis() as u64, 500).min(PHASE.as_millis() as u64);
    let phase = Duration::from_millis(phase);
    let start = Instant::now();
    let [mut idle_stat, mut idle_read] = calls(&files, &text, || start.elapsed() > phase)?;
    let is_limited = run.throttle(Some(SLOW))?;
    let (meter, stop) = (run.meter(), AtomicBool::new(false));
    let (busy, got) = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut file, mut buffer, mut at, mut scratch) =
                (File::open(&large)?, vec![0; 128 << 10], 0, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let len = file.read(&mut buffer)?;
                if len == 0 {
                    break;
                }
                contents.check(at, &buffer[..len], &mut scratch)?;
                at += len as u64;
            }
            anyhow::Ok(at)
        });
        let start = Instant::now();
        let busy = calls(&files, &text, || start.elapsed() > phase || reader.is_finished());
        stop.store(true, Ordering::Relaxed);
        let got = reader.join().map_err(|_| anyhow!("the reader has panicked"))??;
        anyhow::Ok((busy?, got))
    })?;
    let measured = meter.measured();
    run.throttle(None)?;
    let [mut busy_stat, mut busy_read] = busy;
    for (row, idle, busy) in [
        ("stat, warm, beside a slow reader: p99", &mut idle_stat, &mut busy_stat),
        ("open + read, warm, beside a slow reader: p99", &mut idle_read, &mut busy_read),
    ] {
        let (before, beside) = (quantile(idle, 0.99), quantile(busy, 0.99));
        run.add(
            Figure::new(row, "us", beside * 1e6, Better::Less, measured)
                .with("p99_of_idle", beside / before.max(1e-9))
                .with("idle_p99_us", before * 1e6)
                .with("idle_median_us", median(idle) * 1e6)
                .with("busy_median_us", median(busy) * 1e6)
                .with("reader_bytes", got as f64)
                .with("device_limited", f64::from(u8::from(is_limited))),
        );
    }
    Ok(())
}
