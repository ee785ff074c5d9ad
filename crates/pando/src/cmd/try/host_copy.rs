//! The same tree copied by `cp` on the host's disk, for comparison.

use std::{
    ffi::OsStr,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};

use crate::cmd::r#try::workspace::Workspace;
use crate::tree::Interrupted;

/// A copy that was made, or why not.
pub(super) struct Timed {
    pub(super) name: &'static str,
    /// Until `cp` ended, and until all was on the disk.
    pub(super) time: Result<(Duration, Duration), String>,
}

/// Copies `dir` by `cp -a` and by `cp -a --reflink=auto`, one after the other.
pub(super) fn measure(dir: &Path, work: &Workspace, bytes: u64, stop: &AtomicBool) -> Result<Vec<Timed>> {
    // A first copy on the same disk, which the second can share data with if the disk can.
    let first = work.path("cp");
    let second = work.path("cp-reflink");
    let mut out = Vec::new();
    let source = if room(work, bytes)? {
        out.push(Timed { name: "cp -a", time: copy("-a", None, dir, &first, stop)? });
        &first
    } else {
        out.push(Timed { name: "cp -a", time: Err("no room on the disk".into()) });
        dir
    };
    let time = if room(work, bytes)? {
        copy("-a", Some("--reflink=auto"), source, &second, stop)?
    } else {
        Err("no room on the disk".into())
    };
    out.push(Timed { name: "cp -a --reflink=auto", time });
    for copy in [first, second] {
        if copy.exists() {
            std::fs::remove_dir_all(&copy).with_context(|| format!("{}", copy.display()))?;
        }
    }
    Ok(out)
}

fn room(work: &Workspace, bytes: u64) -> Result<bool> {
    Ok(work.free()? > bytes.saturating_add(bytes / 4).saturating_add(64 << 20))
}

fn copy(
    a: &str,
    reflink: Option<&str>,
    from: &Path,
    to: &Path,
    stop: &AtomicBool,
) -> Result<Result<(Duration, Duration), String>> {
    let begin = Instant::now();
    let spawned = Command::new("cp")
        .arg(a)
        .args(reflink)
        .args([OsStr::new("--"), from.as_os_str(), to.as_os_str()])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(e) => return Ok(Err(e.to_string())),
    };
    loop {
        if let Some(status) = child.try_wait()? {
            let time = begin.elapsed();
            return match status.success() {
                true => {
                    rustix::fs::syncfs(std::fs::File::open(to)?)?;
                    Ok(Ok((time, begin.elapsed())))
                }
                false if stop.load(Ordering::Relaxed) => Err(Interrupted.into()),
                false => Ok(Err(format!("{status}"))),
            };
        }
        if stop.load(Ordering::Relaxed) {
            child.kill()?;
            child.wait()?;
            return Err(Interrupted.into());
        }
        thread::sleep(Duration::from_millis(5));
    }
}
