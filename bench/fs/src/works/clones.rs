//! How long a clone takes, by the number of files in the tree.

use std::{fs, time::Instant};

use anyhow::{Result, ensure};

use super::create::{content, pool};
use crate::{
    figure::{Better, Figure},
    report::median,
    run::Run,
};

const SIZES: [u64; 5] = [100, 1_000, 10_000, 100_000, 1_000_000];
const FILES_A_DIRECTORY: u64 = 100;
const LEAST_FILES: u64 = 10;
/// Every so many files one is read in the clone.
const CHECK_EVERY: u64 = 97;
/// Clones of one tree: several where each takes no time.
const CLONES: usize = 5;
/// After so long no more are made.
const ENOUGH_SECONDS: f64 = 1.0;

pub fn run(run: &mut Run) -> Result<()> {
    let text = pool(run.seed(13));
    let (mut points, mut last) = (Vec::new(), 0);
    for size in SIZES {
        let files = run.scaled(size, LEAST_FILES);
        if files == last {
            continue;
        }
        last = files;
        let root = run.make_tree(&format!("tree{files}"))?;
        for number in 0..files {
            let dir = root.join(format!("d{}", number / FILES_A_DIRECTORY));
            if number % FILES_A_DIRECTORY == 0 {
                fs::create_dir(&dir)?;
            }
            fs::write(dir.join(format!("f{number}")), content(&text, number))?;
        }
        run.sync()?;
        let (mut times, begin) = (Vec::new(), Instant::now());
        let meter = run.meter();
        while times.is_empty() || times.len() < CLONES && begin.elapsed().as_secs_f64() < ENOUGH_SECONDS {
            let to = run.path(&format!("clone{files}-{}", times.len()));
            let start = Instant::now();
            run.clone_tree(&root, &to)?;
            times.push(start.elapsed().as_secs_f64());
        }
        let measured = meter.measured();
        for number in (0..files).step_by(CHECK_EVERY as usize) {
            let path = format!("clone{files}-0/d{}/f{number}", number / FILES_A_DIRECTORY);
            ensure!(fs::read(run.path(&path))? == content(&text, number), "wrong data in {path}");
        }
        let milliseconds = median(&mut times) * 1e3;
        points.push((files as f64, milliseconds));
        run.add(
            Figure::new(format!("clone a tree of {files} files"), "ms", milliseconds, Better::Less, measured)
                .with("files", files as f64)
                .with("clones", times.len() as f64),
        );
    }
    // The last row has the development of all.
    if let Some(figure) = run.figures.pop() {
        run.add(figure.over("files", points));
    }
    Ok(())
}
