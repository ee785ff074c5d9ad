//! Containers from one image: the root of each is a clone, of which it reads some files and writes a few.

use std::{fs, time::Instant};

use anyhow::{Context, Result};
use pando_bench_common::Random;

use crate::{
    data::check::hash,
    figure::{Better, Figure},
    report::median,
    run::{Run, printed},
};

const STARTS: u64 = 10;
/// Of all files, one of so many is read.
const READ_ONE_OF: u64 = 20;
const WRITES: u64 = 8;

pub fn run(run: &mut Run) -> Result<()> {
    let image = run.unpack("image")?;
    run.sync()?;
    // What a container reads, and what it must find.
    let paths = paths_of(run)?;
    let mut random = Random::new(run.seed(14));
    let chosen: Vec<&String> = paths.iter().filter(|_| random.below(READ_ONE_OF) == 0).collect();
    let mut wanted = Vec::new();
    for path in &chosen {
        wanted.push(hash(&fs::read(image.join(path))?));
    }
    run.cold()?;
    let starts = run.scaled(STARTS, 3).min(STARTS);
    let (mut clones, mut all) = (Vec::new(), Vec::new());
    let meter = run.meter();
    for number in 0..starts {
        let root = run.path(&format!("container{number}"));
        let start = Instant::now();
        run.clone_tree(&image, &root)?;
        clones.push((number as f64 + 1.0, start.elapsed().as_secs_f64() * 1e3));
        for (path, &wanted) in chosen.iter().zip(&wanted) {
            let found = fs::read(root.join(path)).with_context(|| format!("reading {path}"))?;
            anyhow::ensure!(hash(&found) == wanted, "wrong data in {path}");
        }
        for file in 0..WRITES {
            fs::write(root.join(format!("state{file}")), format!("container {number}\n"))?;
        }
        all.push((number as f64 + 1.0, start.elapsed().as_secs_f64() * 1e3));
    }
    let measured = meter.measured();
    let middle = |points: &[(f64, f64)]| median(&mut points.iter().map(|p| p.1).collect::<Vec<_>>());
    let (first, clone) = (all.first().map_or(0.0, |p| p.1), middle(&clones));
    run.add(
        Figure::new("container start, median", "ms", middle(&all), Better::Less, measured)
            .with("clone_ms", clone)
            .with("first_cold_ms", first)
            .with("files_read", chosen.len() as f64)
            .over("container", all),
    );
    run.add(Figure::new("container start, first, cold", "ms", first, Better::Less, measured));
    Ok(())
}

/// Paths of the regular files in the archive.
fn paths_of(run: &Run) -> Result<Vec<String>> {
    let out = printed(std::process::Command::new("tar").arg("-tf").arg(&run.part.sources.tar))?;
    Ok(out.lines().filter(|line| !line.ends_with('/')).map(String::from).collect())
}
