//! Work on a tree that was just written, or just listed.

use std::{process::Command, time::Instant};

use anyhow::{Result, ensure};

use super::crowd::{Crowd, Role};
use crate::{
    figure::Figure,
    run::{Run, printed},
};

/// Every line of the source has it, or not: what `grep` looks for is rare but there.
const PATTERN: &str = "goto page";
const READERS: usize = 4;
const TIMES: u32 = 3;
const LISTINGS: usize = 3;

/// grep reads a tree at once after it was written.
pub fn grep_new(run: &mut Run) -> Result<()> {
    run.warm_archive()?;
    let dir = run.unpack("src")?;
    let mut grep = Command::new("grep");
    grep.args(["-rFc", PATTERN]).arg(&dir);
    let meter = run.meter();
    let first = printed(&mut grep)?;
    let measured = meter.measured();
    let count = |text: &str| -> u64 {
        text.lines().filter_map(|line| line.rsplit_once(':')?.1.parse::<u64>().ok()).sum()
    };
    let tree = run.part.sources.tree;
    ensure!(first.lines().count() as u64 == tree.files, "grep has not read every file");
    ensure!(count(&first) > 0 || tree.files < 100, "grep has found nothing");
    run.cold()?;
    tree.expect(&dir, None)?;
    ensure!(count(&printed(&mut grep)?) == count(&first), "grep finds something else when it is cold");
    run.add(Figure::seconds("grep -r of a tree just written", measured));
    Ok(())
}

/// Four processes read all of a tree, three times over.
pub fn readers(run: &mut Run) -> Result<()> {
    run.warm_archive()?;
    let dir = run.unpack("src")?;
    let (tree, mut crowd) = (run.part.sources.tree, Crowd::default());
    for _ in 0..READERS {
        crowd.add(&Role::Read { dir: dir.clone(), tree, times: TIMES })?;
    }
    crowd.gather()?;
    let meter = run.meter();
    crowd.go()?;
    let measured = meter.measured();
    run.add(Figure::seconds("four readers of a tree, three times", measured));
    Ok(())
}

/// ls lists it with all attributes, when it has done so before.
pub fn ls(run: &mut Run) -> Result<()> {
    let dir = run.unpack("src")?;
    let mut ls = Command::new("ls");
    ls.arg("-lR").arg(&dir);
    let first = printed(&mut ls)?;
    let mut seconds = Vec::new();
    let meter = run.meter();
    for _ in 0..LISTINGS {
        let start = Instant::now();
        ensure!(printed(&mut ls)? == first, "a second listing differs from the first");
        seconds.push(start.elapsed().as_secs_f64());
    }
    let measured = meter.measured();
    let files = first.lines().filter(|line| line.starts_with('-')).count() as u64;
    ensure!(files == run.part.sources.tree.files, "ls has listed {files} files");
    run.add(Figure::new(
        "ls -lR, warm",
        "s",
        crate::report::median(&mut seconds),
        crate::figure::Better::Less,
        measured,
    ));
    Ok(())
}
