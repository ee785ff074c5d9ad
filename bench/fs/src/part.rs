//! One contender's part in one work: a process of its own, in the control
//! group if there is one, that does the work on what is mounted, and asks
//! this program to unmount and mount.
//!
//! Both speak in lines of JSON (`protocol`): the process asks on its output,
//! and is answered on its input.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::Stdio,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use pando_bench_common::cgroup::{Rate, Throttle};

use crate::{
    figure::Figure,
    mounted::{How, Mounted},
    process::{self, Own, interrupted},
    protocol::{Answer, Ask, Part},
    run::Run,
    works::{self, Work},
};

/// The first argument of a process that does a part.
pub const ARGUMENT: &str = "--part";

/// What parts of a run share.
pub struct Stage {
    /// How the contender is mounted.
    pub how: How,
    /// `major:minor` of the device, if there is one.
    pub device: Option<String>,
    /// Whether the device is limited for the whole run.
    pub is_throttled: bool,
    /// Seconds after which a work is given up.
    pub limit: u64,
    /// How often the kernel has killed processes of the group for want of memory.
    pub kills: Box<dyn Fn() -> u64>,
}

impl Stage {
    /// Makes the file system, has the part done, and unmounts it.
    pub fn perform(&self, work: Work, part: &Part) -> Result<Vec<Figure>> {
        let kills = (self.kills)();
        let figures = self.perform_with_memory(work, part);
        if (self.kills)() > kills
            && let Err(error) = figures
        {
            return Err(error.context("killed: more memory than the limit"));
        }
        figures
    }

    fn perform_with_memory(&self, work: Work, part: &Part) -> Result<Vec<Figure>> {
        // Programs are read into memory before the clock starts, and are dropped from it with the caches.
        warm(work);
        let mut mounted = Some(Mounted::fresh(self.how.clone())?);
        let group = self.how.group.as_deref();
        let mut command = process::in_group(group, Path::new("/proc/self/exe"));
        let daemon = mounted.as_ref().and_then(Mounted::daemon);
        command.arg(ARGUMENT).arg(serde_json::to_string(part)?).arg(serde_json::to_string(&daemon)?);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Ends with this function, before what is mounted.
        let mut child = Own::start(&mut command)?;
        let mut input = child.child().stdin.take().context("no way to talk to the process")?;
        let output = child.child().stdout.take().context("no way to hear the process")?;
        let (sender, asked) = mpsc::channel();
        // Ends when the process does.
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let start = Instant::now();
        let mut throttle = None;
        loop {
            let line = match asked.recv_timeout(Duration::from_millis(20)) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    if interrupted() {
                        bail!("interrupted");
                    }
                    ensure!(start.elapsed().as_secs() < self.limit, "given up after {} s", self.limit);
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let status = child.wait(Duration::from_secs(10))?;
                    bail!("the process ended ({status}) and said nothing");
                }
            };
            let answer =
                match serde_json::from_str(&line).with_context(|| format!("not understood: {line}"))? {
                    Ask::Done(result) => {
                        child.wait(Duration::from_secs(60))?;
                        if let Some(mounted) = mounted.take() {
                            mounted.unmount()?;
                        }
                        return result.map_err(anyhow::Error::msg);
                    }
                    Ask::Cold => {
                        let old = mounted.take().context("nothing is mounted")?;
                        match old.cold() {
                            Ok(new) => {
                                warm(work);
                                let daemon = new.daemon();
                                mounted = Some(new);
                                Answer::Mounted(daemon)
                            }
                            Err(error) => Answer::Failed(format!("{error:#}")),
                        }
                    }
                    Ask::Throttle(None) => {
                        throttle = None;
                        Answer::Throttled(false)
                    }
                    Ask::Throttle(Some((requests, bytes))) => match &self.device {
                        Some(device) if !self.is_throttled && !Throttle::needs_group() => {
                            let rate = Rate { requests, bytes };
                            throttle = Some(Throttle::new(device, rate, None)?);
                            Answer::Throttled(true)
                        }
                        _ => Answer::Throttled(self.is_throttled),
                    },
                };
            let _in_force = &throttle;
            writeln!(input, "{}", serde_json::to_string(&answer)?)?;
        }
    }
}

/// Has the programs of a work in memory, so that none is read from the disk while the clock runs.
fn warm(work: Work) {
    for program in work.programs {
        // Only for its effect; some have no such option and complain.
        let _quiet = process::run(std::process::Command::new(program).arg("--version"));
    }
}

/// The whole life of a process that does a part: `words` are the arguments after the first.
pub fn serve(words: &[String]) -> Result<()> {
    let [part, daemon] = words else { bail!("no part is named") };
    let part: Part = serde_json::from_str(part)?;
    let daemon = serde_json::from_str(daemon)?;
    let work = works::all().iter().find(|work| work.name == part.work).context("no such work")?;
    let mut run = Run::new(part, daemon);
    let result = (work.run)(&mut run).map_err(|error| format!("{error:#}"));
    let done = Ask::Done(result.map(|()| run.figures));
    println!("{}", serde_json::to_string(&done)?);
    Ok(())
}
