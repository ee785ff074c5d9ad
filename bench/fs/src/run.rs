//! What a work has to do with: the mounted file system, the clock, and a way
//! to have it cold.

use std::{
    fs::File,
    io::{BufRead, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    contender::Kind,
    data::mix,
    figure::Figure,
    meter::{Measured, Meter},
    protocol::{Answer, Ask, Part},
};

/// A work in progress.
pub struct Run {
    /// What is to be done.
    pub part: Part,
    daemon: Option<u32>,
    /// What came of it so far.
    pub figures: Vec<Figure>,
}

impl Run {
    /// Begins.
    pub fn new(part: Part, daemon: Option<u32>) -> Self {
        Self { part, daemon, figures: Vec::new() }
    }

    /// A path in the file system.
    pub fn path(&self, name: &str) -> PathBuf {
        self.part.dir.join(name)
    }

    /// A number that goes with the scale, at least `least`.
    pub fn scaled(&self, count: u64, least: u64) -> u64 {
        ((count as f64 * self.part.scale) as u64).max(least)
    }

    /// A seed for one part of the work.
    pub fn seed(&self, number: u64) -> u64 {
        mix(self.part.seed, number)
    }

    /// Starts the clock.
    pub fn meter(&self) -> Meter {
        Meter::start(self.part.statistics.as_deref(), self.daemon)
    }

    /// Most memory that the daemon has had since it was started, bytes; `None` without a daemon.
    pub fn daemon_peak(&self) -> Result<Option<u64>> {
        let Some(daemon) = self.daemon else { return Ok(None) };
        let text =
            std::fs::read_to_string(format!("/proc/{daemon}/status")).context("the daemon's memory")?;
        let peak = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        Ok(Some(peak.context("no VmHWM")?.trim().parse::<u64>()? << 10))
    }

    /// Keeps a figure.
    pub fn add(&mut self, figure: Figure) {
        self.figures.push(figure);
    }

    /// Everything done is on the device when this returns.
    ///
    /// syncfs, and fsync of the root: the kernel does not pass the former to a FUSE server, and to
    /// the others the latter adds nothing.
    pub fn sync(&self) -> Result<()> {
        let root = File::open(&self.part.dir)?;
        rustix::fs::syncfs(&root).context("syncfs")?;
        root.sync_all().context("fsync of the root")
    }

    /// Nothing of the file system is in memory when this returns. The caller must have no file open in it.
    pub fn cold(&mut self) -> Result<()> {
        match ask(&Ask::Cold)? {
            Answer::Mounted(daemon) => self.daemon = daemon,
            Answer::Failed(error) => bail!("{error}"),
            Answer::Throttled(_) => bail!("a wrong answer"),
        }
        Ok(())
    }

    /// Makes it cold, and counts to `measured` what has been written since `meter` was started.
    pub fn settle(&mut self, meter: &Meter, measured: &mut Measured) -> Result<()> {
        self.cold()?;
        measured.device = meter.traffic();
        measured.settled = true;
        Ok(())
    }

    /// Limits the device to so many requests and bytes a second, or no longer. Says whether it is limited now.
    pub fn throttle(&self, rate: Option<(u64, u64)>) -> Result<bool> {
        match ask(&Ask::Throttle(rate))? {
            Answer::Throttled(is) => Ok(is),
            other => bail!("a wrong answer: {other:?}"),
        }
    }

    /// Makes a directory that can be cloned as a whole.
    pub fn make_tree(&self, name: &str) -> Result<PathBuf> {
        let dir = self.path(name);
        if self.part.kind == Kind::BtrfsSvol {
            command(Command::new("btrfs").args(["-q", "subvolume", "create"]).arg(&dir))?;
        } else {
            std::fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        }
        Ok(dir)
    }

    /// Clones a tree in the best way that the file system has; where it has none, copies it.
    pub fn clone_tree(&self, from: &Path, to: &Path) -> Result<()> {
        let mut program;
        match self.part.kind {
            Kind::Pando => {
                program = Command::new(&self.part.pando);
                program.arg("clone");
            }
            Kind::Ext4 => {
                program = Command::new("cp");
                program.arg("-a");
            }
            Kind::Xfs | Kind::Btrfs => {
                program = Command::new("cp");
                program.args(["-a", "--reflink=always"]);
            }
            Kind::BtrfsSvol => {
                program = Command::new("btrfs");
                program.args(["-q", "subvolume", "snapshot"]);
            }
        }
        command(program.arg(from).arg(to))
    }

    /// Unpacks the archive of source files into a new directory.
    pub fn unpack(&self, name: &str) -> Result<PathBuf> {
        let dir = self.make_tree(name)?;
        command(Command::new("tar").arg("-xf").arg(&self.part.sources.tar).arg("-C").arg(&dir))?;
        Ok(dir)
    }

    /// Has the archive in memory.
    pub fn warm_archive(&self) -> Result<()> {
        let mut file = File::open(&self.part.sources.tar)?;
        std::io::copy(&mut file, &mut std::io::sink())?;
        Ok(())
    }
}

/// Asks the program that has started this one.
fn ask(what: &Ask) -> Result<Answer> {
    println!("{}", serde_json::to_string(what)?);
    std::io::stdout().flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    serde_json::from_str(&line).context("no answer")
}

/// Runs a program, which must succeed, and forgets what it says.
pub fn command(program: &mut Command) -> Result<()> {
    let output = program.stdin(Stdio::null()).output().with_context(|| format!("starting {program:?}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program:?} failed ({}): {}", output.status, error.trim());
    Ok(())
}

/// Runs a program and returns what it prints. Exit code 1 is taken for success: `grep` found nothing.
pub fn printed(program: &mut Command) -> Result<String> {
    let output = program.stdin(Stdio::null()).output().with_context(|| format!("starting {program:?}"))?;
    let error = String::from_utf8_lossy(&output.stderr);
    let is_fine = matches!(output.status.code(), Some(0 | 1));
    ensure!(is_fine && error.is_empty(), "{program:?} failed ({}): {}", output.status, error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
