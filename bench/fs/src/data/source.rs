//! A tree like that of a large program: thousands of files of text in hundreds of directories.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use anyhow::{Context, Result};
use pando_bench_common::Random;

use super::{
    check::{Tree, hash},
    mix,
    tar::Tar,
    text::Text,
};

/// Directories are made for so many files each.
const FILES_A_DIRECTORY: u64 = 14;
const AREAS: [&str; 8] = ["arch", "block", "drivers", "fs", "include", "kernel", "lib", "net"];
const ENDS: [&str; 4] = ["c", "h", "rs", "txt"];

/// A file of the tree.
struct Entry {
    path: String,
    seed: u64,
    len: usize,
}

/// Directories in the order in which they can be made, and files.
fn plan(seed: u64, files: u64, bytes: u64) -> (Vec<String>, Vec<Entry>) {
    let mut random = Random::new(seed);
    let mut directories: Vec<String> = AREAS.map(String::from).to_vec();
    for number in 0..files / FILES_A_DIRECTORY {
        let parent = &directories[random.below(directories.len() as u64) as usize];
        // Deep enough.
        let parent = if parent.matches('/').count() > 4 { AREAS[0] } else { parent };
        directories.push(format!("{parent}/part{number}"));
    }
    // Sizes of source files: most are small, a few make up much of it.
    let weights: Vec<f64> = (0..files)
        .map(|_| {
            let (a, b) = (random.below(1000) as f64 / 1000.0, random.below(1000) as f64 / 1000.0);
            0.02 + a * a + 8.0 * b.powi(24)
        })
        .collect();
    let all: f64 = weights.iter().sum();
    let entries = weights
        .iter()
        .enumerate()
        .map(|(number, weight)| {
            let directory = &directories[random.below(directories.len() as u64) as usize];
            let end = ENDS[random.below(4) as usize];
            Entry {
                path: format!("{directory}/file{number}.{end}"),
                seed: mix(seed, number as u64),
                len: (bytes as f64 * weight / all) as usize + 1,
            }
        })
        .collect();
    (directories, entries)
}

/// Writes the archive of a tree of so many files and about so many bytes; returns what is in it.
pub fn write_tar(to: &Path, seed: u64, files: u64, bytes: u64) -> Result<Tree> {
    let file = File::create(to).with_context(|| format!("making {}", to.display()))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut tar = Tar::new(&mut out);
    let (directories, entries) = plan(seed, files, bytes);
    for directory in &directories {
        tar.directory(directory)?;
    }
    let (text, mut tree) = (Text::new(), Tree::default());
    for entry in entries {
        let data = text.make(entry.seed, entry.len);
        tar.file(&entry.path, &data)?;
        tree.add(entry.path.as_bytes(), data.len() as u64, hash(&data));
    }
    tar.end()?;
    out.flush()?;
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_the_files_and_the_bytes_that_were_asked_for() {
        let (directories, entries) = plan(1, 700, 19_200_000);
        let bytes: usize = entries.iter().map(|entry| entry.len).sum();
        assert_eq!(entries.len(), 700);
        assert!((19_000_000..19_400_000).contains(&bytes), "{bytes}");
        assert!(directories.len() > 40);
        assert!(entries.iter().all(|entry| entry.path.len() < 90));
    }
}
