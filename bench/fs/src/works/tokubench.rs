//! Files of 200 bytes in a balanced tree in which no directory has more than 128 entries (the paper's Tokubench).

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use pando_bench_common::Random;

use super::create::{FILE_BYTES, content, pool};
use crate::{figure::Figure, run::Run};

/// The paper makes three million, a third of which shows the same.
const FILES: u64 = 1_000_000;
const CHILDREN: u64 = 128;
const POINTS: u64 = 20;
/// So many files are read again.
const CHECKED: u64 = 2_000;

/// The path of a file: its number in digits of base 128, of which the last is its name.
fn path(root: &Path, number: u64, levels: u32) -> PathBuf {
    let mut path = root.to_path_buf();
    for level in (1..levels).rev() {
        path.push(format!("d{}", number / CHILDREN.pow(level) % CHILDREN));
    }
    path.push(format!("f{}", number % CHILDREN));
    path
}

pub fn run(run: &mut Run) -> Result<()> {
    let (files, text) = (run.scaled(FILES, 200), pool(run.seed(11)));
    let levels = (1..).find(|&levels| CHILDREN.pow(levels) >= files).context("too many files")?;
    let root = run.make_tree("balanced")?;
    let (every, mut points) = ((files / POINTS).max(1), Vec::new());
    let meter = run.meter();
    let start = Instant::now();
    for number in 0..files {
        let path = path(&root, number, levels);
        if number % CHILDREN == 0
            && let Some(parent) = path.parent()
        {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, content(&text, number))?;
        if (number + 1) % every == 0 {
            let done = (number + 1) as f64;
            points.push((done, done / start.elapsed().as_secs_f64()));
        }
    }
    let mut measured = meter.measured();
    run.sync()?;
    run.settle(&meter, &mut measured)?;
    let mut random = Random::new(run.seed(12));
    for _ in 0..CHECKED.min(files) {
        let number = random.below(files);
        let path = path(&root, number, levels);
        let found = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        ensure!(found == content(&text, number), "wrong data in {}", path.display());
    }
    run.add(
        Figure::rate("Tokubench", "files", files as f64, measured)
            .wrote(files * FILE_BYTES as u64)
            .with("files", files as f64)
            .over("files", points),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_different_and_directories_small() {
        let paths: std::collections::BTreeSet<PathBuf> =
            (0..20_000).map(|number| path(Path::new("/"), number, 3)).collect();
        assert_eq!(paths.len(), 20_000);
        let mut children = std::collections::BTreeMap::<_, u64>::new();
        for path in &paths {
            *children.entry(path.parent()).or_default() += 1;
        }
        assert!(children.values().all(|&count| count <= CHILDREN));
    }
}
