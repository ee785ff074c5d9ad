//! Copies the tree by `cp` on the host's disk, for comparison.
//!
//! Guarantees: a copy that cannot be made is a row of the table that says why, not an error; the copies are removed.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::cmd::r#try::{figures::Times, workspace::Workspace};
use crate::tree::Interrupted;

/// How often an interruption is looked for while `cp` works.
const INTERRUPTION_CHECK: Duration = Duration::from_millis(5);

/// A copy that was made, or why not.
pub(super) struct HostCopy {
    pub(super) command: &'static str,
    times: Result<Times, String>,
}

impl HostCopy {
    pub(super) fn show(&self) -> String {
        match &self.times {
            Ok(times) => times.show(),
            Err(why) => format!("- ({why})"),
        }
    }
}

/// Copies `dir`, a tree of `bytes`, by `cp -a` and by `cp -a --reflink=auto`, one after the other.
pub(super) fn measure(dir: &Path, work: &Workspace, bytes: u64, stop: &AtomicBool) -> Result<Vec<HostCopy>> {
    let (first, second) = (work.path("cp"), work.path("cp-reflink"));
    let run = |command: &'static str, from: &Path, to: &Path| -> Result<HostCopy> {
        let times = match work.has_room(bytes)? {
            true => copy(command, from, to, stop)?,
            false => Err("no room on the disk".into()),
        };
        Ok(HostCopy { command, times })
    };
    let plain = run("cp -a", dir, &first)?;
    // The second can share data with the first, on the same disk, if the disk can.
    let source = if plain.times.is_ok() { &first } else { dir };
    let reflink = run("cp -a --reflink=auto", source, &second)?;
    for copy in [first, second].iter().filter(|copy| copy.exists()) {
        fs::remove_dir_all(copy).with_context(|| format!("{}", copy.display()))?;
    }
    Ok(vec![plain, reflink])
}

/// Runs `command` on two trees; the inner error is why it could not copy.
fn copy(command: &str, from: &Path, to: &Path, stop: &AtomicBool) -> Result<Result<Times, String>> {
    let mut words = command.split(' ');
    let begin = Instant::now();
    let spawned = Command::new(words.next().unwrap_or("cp"))
        .args(words)
        .arg("--")
        .args([from, to])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if stop.load(Ordering::Relaxed) {
            child.kill()?;
            break child.wait()?;
        }
        thread::sleep(INTERRUPTION_CHECK);
    };
    let done = begin.elapsed();
    if stop.load(Ordering::Relaxed) {
        return Err(Interrupted.into());
    }
    if !status.success() {
        return Ok(Err(status.to_string()));
    }
    rustix::fs::syncfs(fs::File::open(to)?)?;
    Ok(Ok(Times { done, durable: begin.elapsed() }))
}
