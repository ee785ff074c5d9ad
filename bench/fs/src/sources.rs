//! What works share: the archive of source files, and the repository.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;

use crate::{args::Args, data::source, process, protocol::Sources, works::git};

const FILES: u64 = 7_006;
const BYTES: u64 = 192_000_000;

/// Makes what the chosen works need.
pub fn make(dir: &Path, args: &Args) -> Result<Sources> {
    let needs = |program: &str| args.works.iter().any(|work| work.programs.contains(&program));
    if !needs("tar") && !needs("git") {
        return Ok(Sources::default());
    }
    let files = ((FILES as f64 * args.scale) as u64).max(20);
    let bytes = ((BYTES as f64 * args.scale) as u64).max(20 * 1024);
    let tar = dir.join("source.tar");
    let tree = source::write_tar(&tar, args.seed, files, bytes)?;
    let repository = if needs("git") { Some(repository(dir, &tar)?) } else { None };
    Ok(Sources { tar, tree, repository })
}

/// A repository with one commit of the tree, packed.
fn repository(dir: &Path, tar: &Path) -> Result<PathBuf> {
    let repository = dir.join("repository");
    std::fs::create_dir(&repository)?;
    process::run(Command::new("tar").arg("-xf").arg(tar).arg("-C").arg(&repository))?;
    for words in [
        &["init", "-q", "-b", "main"][..],
        &["add", "-A"],
        &["commit", "-q", "-m", "the tree"],
        &["repack", "-q", "-a", "-d"],
    ] {
        process::run(git::git().arg("-C").arg(&repository).args(words))?;
    }
    Ok(repository)
}
