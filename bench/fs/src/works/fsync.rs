//! How long fsync takes with 1, 8 and 64 threads, each with a file of its own.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};

use crate::{
    data::content::Content,
    figure::Figure,
    report::{median, quantile},
    run::Run,
};

const THREADS: [usize; 3] = [1, 8, 64];
/// Calls of all threads together.
const CALLS: u64 = 3_200;
const WRITE_BYTES: usize = 4096;
/// A device that is slow does not need as many to be known.
const MOST: Duration = Duration::from_secs(10);

fn one(path: &Path, calls: u64, seed: u64, start: &Barrier) -> Result<Vec<f64>> {
    let (content, mut piece) = (Content::new(seed), vec![0; WRITE_BYTES]);
    let file = File::create(path);
    start.wait();
    let (file, begin, mut seconds) = (file?, Instant::now(), Vec::new());
    for number in 0..calls {
        let at = number * WRITE_BYTES as u64;
        content.fill(at, &mut piece);
        file.write_all_at(&piece, at)?;
        let call = Instant::now();
        file.sync_all()?;
        seconds.push(call.elapsed().as_secs_f64());
        if begin.elapsed() > MOST {
            break;
        }
    }
    Ok(seconds)
}

pub fn run(run: &mut Run) -> Result<()> {
    for threads in THREADS {
        let calls = run.scaled(CALLS / threads as u64, 2).min(CALLS / threads as u64);
        let paths: Vec<_> = (0..threads).map(|n| run.path(&format!("f{threads}-{n}"))).collect();
        let start = Barrier::new(threads + 1);
        let (mut all, measured) = thread::scope(|scope| {
            let works: Vec<_> = (0..)
                .zip(&paths)
                .map(|(number, path)| {
                    let (seed, start) = (run.seed(number), &start);
                    scope.spawn(move || one(path, calls, seed, start))
                })
                .collect();
            start.wait();
            let meter = run.meter();
            let mut all = Vec::new();
            for work in works {
                all.extend(work.join().map_err(|_| anyhow!("a thread has panicked"))??);
            }
            anyhow::Ok((all, meter.measured()))
        })?;
        let done = all.len() as f64;
        let row = format!("fsync, {threads} thread{}: median", if threads == 1 { "" } else { "s" });
        let p99 = quantile(&mut all, 0.99);
        run.add(
            Figure::milliseconds(row, median(&mut all), measured)
                .wrote(done as u64 * WRITE_BYTES as u64)
                .with("p99_ms", p99 * 1e3)
                .with("calls_a_second", done / measured.seconds),
        );
    }
    run.cold()?;
    let mut scratch = Vec::new();
    for threads in THREADS {
        for number in 0..threads {
            let found = std::fs::read(run.path(&format!("f{threads}-{number}")))?;
            Content::new(run.seed(number as u64)).check(0, &found, &mut scratch)?;
        }
    }
    Ok(())
}
