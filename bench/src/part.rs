//! One engine's part in one work, done by a process of its own.
//!
//! The program starts itself again for it, with what is to be done as JSON in
//! an argument and what came of it as JSON in the last line of the output. So
//! memory that one engine has used, and that its allocator keeps, is not there
//! for the next, a limit holds for this engine alone, and one that dies is one
//! row of the table and not the end of the run.

use std::{
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use pando_bench_common::cgroup::{self, Group};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::{
    data,
    engine::Settings,
    engines,
    meter::{evict, peak_memory},
    works::{self, Outcome, Run},
};

/// The first argument of a process that does a part.
pub const ARGUMENT: &str = "--part";

/// What is to be done.
#[derive(Debug, Serialize, Deserialize)]
pub struct Part {
    /// Name of the work.
    pub work: String,
    /// Name of the engine.
    pub engine: String,
    /// Directory of the store, which exists.
    pub dir: PathBuf,
    /// How the store is opened.
    pub settings: Settings,
    /// Bytes of the data set.
    pub bytes: u64,
    /// Keys of a prefix to be copied.
    pub copy_keys: u64,
    /// Seconds after which a work of single operations stops early.
    pub cap: f64,
    /// Keys that are inserted and upserted, as a share of those of the data set.
    pub share: f64,
    /// Memory for the process and its page cache, in bytes.
    pub memory: Option<u64>,
}

/// What the process answers: what came of it, or why nothing did.
type Answer = Result<Vec<Outcome>, String>;

impl Part {
    /// Has it done by a process of its own, in `group` if there is one.
    pub fn start(&self, group: Option<&Group>) -> Answer {
        self.start_process(group).unwrap_or_else(|error| Err(format!("{error:#}")))
    }

    fn start_process(&self, group: Option<&Group>) -> Result<Answer> {
        let kills_before = group.map_or(0, Group::kills);
        // By this name it is the program that runs, even if its file has been replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.arg(ARGUMENT).arg(serde_json::to_string(self)?);
        if let Some(group) = group {
            command.arg(group.dir());
        }
        let output = command
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("starting a process for a work")?;
        if !output.status.success() {
            let limit = self.memory.unwrap_or(0) >> 20;
            let was_short = output.status.signal().is_some() && group.map_or(0, Group::kills) > kills_before;
            return Ok(Err(if was_short {
                format!("killed: more than {limit} MiB")
            } else {
                format!("the process failed: {}", output.status)
            }));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let answer = text.lines().last().context("the process of a work has said nothing")?;
        serde_json::from_str(answer).context("reading what the process of a work has said")
    }

    /// Does it here.
    fn run(&self) -> Result<Vec<Outcome>> {
        let work = works::all().into_iter().find(|work| work.name == self.work).context("no such work")?;
        let kind =
            engines::all().into_iter().find(|kind| kind.name == self.engine).context("no such engine")?;
        let limited = self.memory.is_some();
        if limited {
            // What another process has put into the page cache would be memory that does not count.
            evict(&self.dir)?;
        }
        let mut outcomes = (work.run)(&Run {
            kind,
            dir: &self.dir,
            settings: self.settings,
            bytes: self.bytes,
            keys: data::keys_in(self.bytes),
            copy_keys: self.copy_keys,
            cap: self.cap,
            share: self.share,
            limited,
        })?;
        outcomes.iter_mut().for_each(|outcome| outcome.peak = peak_memory());
        Ok(outcomes)
    }
}

/// The whole life of a process that does a part: `words` are the arguments after the first.
pub fn serve(words: &[String]) -> Result<()> {
    // If the program is ended, its works end too.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if let Some(group) = words.get(1) {
        cgroup::join(group.as_ref())?;
    }
    let part: Part = serde_json::from_str(words.first().context("no part is named")?)?;
    let answer: Answer = part.run().map_err(|error| format!("{error:#}"));
    println!("{}", serde_json::to_string(&answer)?);
    Ok(())
}
