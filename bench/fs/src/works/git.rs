//! git: a clone of a local repository, and its status, cold.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{
    figure::Figure,
    run::{Run, command, printed},
};

/// git as it comes, whatever this machine has configured.
pub fn git() -> Command {
    let mut git = Command::new("git");
    git.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    git.args([
        "-c",
        "gc.auto=0",
        "-c",
        "safe.directory=*",
        "-c",
        "user.name=bench",
        "-c",
        "user.email=bench@localhost",
    ]);
    git
}

pub fn run(run: &mut Run) -> Result<()> {
    let repository = run.part.sources.repository.clone().context("there is no repository")?;
    // In memory, as far as it fits.
    command(git().arg("-C").arg(&repository).args(["rev-list", "--objects", "--all", "--count"]))?;
    let dir = run.path("clone");
    let meter = run.meter();
    command(git().args(["clone", "-q", "--no-hardlinks"]).arg(&repository).arg(&dir))?;
    run.sync()?;
    let mut cloned = meter.measured();
    run.settle(&meter, &mut cloned)?;
    let tree = run.part.sources.tree;
    tree.expect(&dir, Some(".git"))?;
    run.add(Figure::seconds("git clone + sync", cloned).wrote(tree.bytes));
    run.cold()?;
    let meter = run.meter();
    let out = printed(git().arg("-C").arg(&dir).args(["status", "--porcelain"]))?;
    let status = meter.measured();
    ensure!(out.is_empty(), "git sees changes in what it has just written:\n{out}");
    run.add(Figure::milliseconds("git status, cold", status.seconds, status));
    Ok(())
}
