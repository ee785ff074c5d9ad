//! Clones of a tree of a few large files, with small edits, over many rounds (the paper's Dookubench).
//!
//! In the original each round clones the first tree; chained, it clones the clone of the round before. After some
//! rounds the newest clone is read, cold.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use anyhow::{Result, ensure};
use pando_bench_common::Random;

use crate::{
    data::{
        check::hash,
        mix,
        text::{NEEDLE, Text},
    },
    figure::{Better, Figure, SPACE},
    report::median,
    run::{Run, printed},
};

const DIRECTORIES: u64 = 8;
const FILES_EACH: u64 = 8;
const FILE_BYTES: u64 = 4 << 20;
const NEEDLES: usize = 5;
const ROUNDS: u64 = 100;
const EDIT: usize = 16;
const PAGE: u64 = 4096;
/// After these rounds the newest clone is read.
const READ_AFTER: [u64; 7] = [1, 2, 5, 10, 20, 50, 100];
/// Edits of each file before the work that reads one clone.
const MANY_EDITS: u64 = 16;

/// The files of a tree, and what must stand in them.
struct Model {
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Model {
    fn new(run: &Run) -> Self {
        let text = Text::new();
        let len = run.scaled(FILE_BYTES, 16 << 10) as usize;
        let files = (0..DIRECTORIES * FILES_EACH).map(|number| {
            let path = format!("dir{}/file{}", number / FILES_EACH, number % FILES_EACH);
            (path.into(), text.with_needles(run.seed(100 + number), len, NEEDLES))
        });
        Self { files: files.collect() }
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.1.len() as u64).sum()
    }

    fn write(&self, root: &Path) -> Result<()> {
        for (path, data) in &self.files {
            let path = root.join(path);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::write(path, data)?;
        }
        Ok(())
    }

    /// Some bytes of each file, at the begin of some page; never where a needle is. Returns how many were written.
    fn edit(&mut self, root: &Path, seed: u64, times: u64) -> Result<u64> {
        let mut bytes = 0;
        for (number, (path, data)) in (0..).zip(&mut self.files) {
            let file = File::options().write(true).open(root.join(path))?;
            let mut random = Random::new(mix(seed, number));
            for _ in 0..times {
                let at = (random.below(data.len() as u64 / PAGE) * PAGE) as usize;
                let line = format!("{:>15}\n", random.bits() % 1_000_000_000);
                let place = &mut data[at..at + EDIT];
                if place.windows(2).any(|pair| NEEDLE.as_bytes().starts_with(pair)) || at == 0 {
                    continue;
                }
                place.copy_from_slice(line.as_bytes());
                file.write_all_at(line.as_bytes(), at as u64)?;
                bytes += EDIT as u64;
            }
        }
        Ok(bytes)
    }

    fn needles(&self) -> usize {
        let count = |data: &Vec<u8>| data.windows(NEEDLE.len()).filter(|w| *w == NEEDLE.as_bytes()).count();
        self.files.iter().map(|file| count(&file.1)).sum()
    }

    fn check(&self, root: &Path) -> Result<()> {
        for (path, data) in &self.files {
            let path = root.join(path);
            ensure!(hash(&fs::read(&path)?) == hash(data), "wrong data in {}", path.display());
        }
        Ok(())
    }
}

/// Lines that grep finds.
fn grep(dir: &Path) -> Result<usize> {
    Ok(printed(Command::new("grep").args(["-rhF", NEEDLE]).arg(dir))?.lines().count())
}

/// One clone, many edits, and a cold read of it.
pub fn grep_after_edits(run: &mut Run) -> Result<()> {
    let mut model = Model::new(run);
    let (original, clone) = (run.make_tree("original")?, run.path("clone"));
    model.write(&original)?;
    run.sync()?;
    run.clone_tree(&original, &clone)?;
    model.edit(&clone, run.seed(10), MANY_EDITS)?;
    run.sync()?;
    run.cold()?;
    let meter = run.meter();
    let found = grep(&clone)?;
    let measured = meter.measured();
    ensure!(found == model.needles(), "grep has found {found} lines");
    model.check(&clone)?;
    run.add(Figure::seconds("grep, cold, after clone and edits", measured).read(model.bytes()));
    Ok(())
}

/// Every round clones the first tree.
pub fn original(run: &mut Run) -> Result<()> {
    rounds(run, "dooku", false)
}

/// Every round clones the last clone.
pub fn chained(run: &mut Run) -> Result<()> {
    rounds(run, "dooku chained", true)
}

/// Bytes that the file system says are in use.
fn used(run: &Run) -> Result<f64> {
    let space = rustix::fs::statvfs(&run.part.dir)?;
    Ok(space.f_blocks.saturating_sub(space.f_bfree) as f64 * space.f_frsize as f64)
}

fn rounds(run: &mut Run, name: &str, is_chained: bool) -> Result<()> {
    let first = Model::new(run);
    let original = run.make_tree("original")?;
    first.write(&original)?;
    run.sync()?;
    run.cold()?;
    let count = (ROUNDS as f64 * (10.0 * run.part.scale).min(1.0)).max(2.0) as u64;
    let used_before = used(run)?;
    let (mut clones, mut edits, mut greps) = (Vec::new(), Vec::new(), Vec::new());
    let (mut cloning, mut editing, mut reading) = (None, None, None);
    let (mut model, mut from, mut edited) = (None, original.clone(), 0);
    for round in 1..=count {
        let to = run.path(&format!("round{round}"));
        let meter = run.meter();
        let start = Instant::now();
        run.clone_tree(&from, &to)?;
        clones.push((round as f64, start.elapsed().as_secs_f64() * 1e3));
        cloning = Some(meter.measured());
        let mut next = match model.take() {
            Some(last) if is_chained => last,
            _ => Model::new(run),
        };
        let meter = run.meter();
        let start = Instant::now();
        edited += next.edit(&to, run.seed(1000 + round), 1)?;
        run.sync()?;
        edits.push((round as f64, start.elapsed().as_secs_f64() * 1e3));
        editing = Some(meter.measured());
        if READ_AFTER.contains(&round) || round == count {
            run.cold()?;
            let meter = run.meter();
            let found = grep(&to)?;
            let measured = meter.measured();
            greps.push((round as f64, measured.seconds * 1e3));
            reading = Some(measured);
            ensure!(found == next.needles(), "round {round}: grep has found {found} lines");
            next.check(&to)?;
        }
        if is_chained {
            from = to;
        }
        model = Some(next);
    }
    // What was edited in clones has not reached the first tree.
    first.check(&original)?;
    let space = (used(run)? - used_before) / count as f64;
    let middle = |points: &[(f64, f64)]| median(&mut points.iter().map(|p| p.1).collect::<Vec<_>>());
    let figure = |part: &str, points: Vec<(f64, f64)>, measured: Option<crate::meter::Measured>| {
        let (begin, end) = (&points[..points.len().min(10)], &points[points.len().saturating_sub(10)..]);
        let (begin, end) = (middle(begin), middle(end));
        Figure::new(
            format!("{name}: {part}"),
            "ms",
            middle(&points),
            Better::Less,
            measured.unwrap_or_default(),
        )
        .with("first_rounds_ms", begin)
        .with("last_rounds_ms", end)
        .with("rounds", count as f64)
        .over("round", points)
    };
    run.add(figure("clone", clones, cloning));
    run.add(figure("64 edits + sync", edits, editing));
    run.add(figure("grep, cold", greps, reading).read(first.bytes()));
    let per_round = Figure::new(
        format!("{name}: space a round"),
        SPACE,
        space / 1024.0,
        Better::Less,
        Default::default(),
    );
    run.add(per_round.with("edited_bytes_a_round", edited as f64 / count as f64));
    Ok(())
}
