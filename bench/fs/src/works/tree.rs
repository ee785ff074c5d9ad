//! Ordinary programs on a tree of source files.

use std::process::Command;

use anyhow::{Result, ensure};

use crate::{
    figure::Figure,
    run::{Run, command, printed},
};

/// tar unpacks the tree, and all is synced.
pub fn untar(run: &mut Run) -> Result<()> {
    run.warm_archive()?;
    let meter = run.meter();
    let dir = run.unpack("src")?;
    run.sync()?;
    let mut measured = meter.measured();
    run.settle(&meter, &mut measured)?;
    let tree = run.part.sources.tree;
    tree.expect(&dir, None)?;
    run.add(Figure::seconds("untar + sync", measured).wrote(tree.bytes).with("files", tree.files as f64));
    Ok(())
}

/// tar packs it, cold.
pub fn tar(run: &mut Run) -> Result<()> {
    let dir = run.unpack("src")?;
    run.cold()?;
    let meter = run.meter();
    let out = printed(Command::new("sh").arg("-c").arg(format!("tar -cf - -C {} . | wc -c", dir.display())))?;
    let measured = meter.measured();
    let (tree, packed) = (run.part.sources.tree, out.trim().parse::<u64>()?);
    ensure!(packed > tree.bytes, "the archive has {packed} bytes, the files have {}", tree.bytes);
    run.add(Figure::seconds("tar, cold", measured).read(tree.bytes));
    Ok(())
}

fn copied(run: &mut Run, row: &str, program: &str) -> Result<()> {
    let from = run.unpack("src")?;
    run.sync()?;
    run.cold()?;
    let to = run.path("copy");
    let mut copier = Command::new(program);
    copier.arg("-a");
    if program == "rsync" {
        // What is in it, not itself.
        copier.arg(from.join(""));
    } else {
        copier.arg(&from);
    }
    let meter = run.meter();
    command(copier.arg(&to))?;
    run.sync()?;
    let mut measured = meter.measured();
    run.settle(&meter, &mut measured)?;
    let tree = run.part.sources.tree;
    tree.expect(&to, None)?;
    tree.expect(&from, None)?;
    run.add(Figure::seconds(row, measured).wrote(tree.bytes));
    Ok(())
}

/// cp copies the tree within the file system, from cold, and all is synced.
pub fn cp(run: &mut Run) -> Result<()> {
    copied(run, "cp -a + sync", "cp")
}

/// The same with rsync.
pub fn rsync(run: &mut Run) -> Result<()> {
    copied(run, "rsync -a + sync", "rsync")
}

/// rm removes the tree, cold.
pub fn rm(run: &mut Run) -> Result<()> {
    let dir = run.unpack("src")?;
    run.cold()?;
    let meter = run.meter();
    command(Command::new("rm").arg("-rf").arg(&dir))?;
    let removed = meter.measured();
    run.sync()?;
    let synced = meter.measured().seconds;
    run.cold()?;
    ensure!(!dir.exists(), "{} is still there", dir.display());
    run.add(Figure::seconds("rm -rf, cold", removed).with("seconds_with_sync", synced));
    Ok(())
}

/// find lists the tree, cold.
pub fn find(run: &mut Run) -> Result<()> {
    let dir = run.unpack("src")?;
    run.cold()?;
    let meter = run.meter();
    let out = printed(Command::new("find").arg(&dir).args(["-type", "f"]))?;
    let measured = meter.measured();
    let (found, files) = (out.lines().count() as u64, run.part.sources.tree.files);
    ensure!(found == files, "find has found {found} files of {files}");
    run.add(Figure::seconds("find, cold", measured));
    Ok(())
}
