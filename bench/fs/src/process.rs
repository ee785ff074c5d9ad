//! Programs that are started, and ended when the run is.
//!
//! Each child has a process group of its own, so that a signal from the
//! terminal reaches only this program, which then ends its children and takes
//! back what it has mounted. Only own children are ever killed.

use std::{
    fs::File,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group, set_parent_process_death_signal, setsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The first argument of a process that enters a control group and becomes another program.
pub const ENTER: &str = "--enter";

const POLL: Duration = Duration::from_millis(2);

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on, signals that would end this program only make [`interrupted`] true.
pub fn catch_signals() -> Result<()> {
    let flag = INTERRUPTED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, flag.clone()).context("catching signals")?;
    }
    Ok(())
}

/// Whether this program has been told to end.
pub fn interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// A child that does not outlive this value, nor do its own children.
#[derive(Debug)]
pub struct Own {
    child: Child,
    name: String,
    ended: bool,
}

impl Own {
    /// Starts it.
    pub fn start(command: &mut Command) -> Result<Self> {
        Self::start_grouped(command.process_group(0))
    }

    /// Starts a command of [`in_group`], which makes a session of its own, as daemons and services have.
    pub fn start_session(command: &mut Command) -> Result<Self> {
        Self::start_grouped(command)
    }

    /// Starts what is going to lead a process group.
    fn start_grouped(command: &mut Command) -> Result<Self> {
        let name = format!("{command:?}");
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        Ok(Self { child, name, ended: false })
    }

    /// The child itself.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it has ended, if it has.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait()?;
        self.ended |= status.is_some();
        Ok(status)
    }

    /// Waits until it ends, for at most `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.try_wait()? {
                return Ok(status);
            }
            ensure!(start.elapsed() < limit, "{} has not ended after {} s", self.name, limit.as_secs());
            sleep(POLL);
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _gone_already = kill_process_group(group, Signal::KILL);
        }
        // It may not lead its group yet.
        let _gone_already = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Runs a program that says little to its end. An error if it fails, with what it said, or if this program is to end.
pub fn run(command: &mut Command) -> Result<()> {
    run_until(command, interrupted)
}

/// Runs a program to its end, which may say what it likes.
pub fn show(command: &mut Command) -> Result<()> {
    let mut own = Own::start(command.stdin(Stdio::null()))?;
    loop {
        if let Some(status) = own.try_wait()? {
            ensure!(status.success(), "{} failed ({status})", own.name);
            return Ok(());
        }
        if interrupted() {
            bail!("interrupted");
        }
        sleep(10 * POLL);
    }
}

/// Runs a program that cleans up, also when this program is to end.
pub fn clean(command: &mut Command) -> Result<()> {
    run_until(command, || false)
}

fn run_until(command: &mut Command, stop: impl Fn() -> bool) -> Result<()> {
    output_until(command, stop).map(|_| ())
}

/// Runs a program and returns what it printed. Output of more than a pipe holds would stop it.
pub fn output(command: &mut Command) -> Result<String> {
    output_until(command, interrupted)
}

fn output_until(command: &mut Command, stop: impl Fn() -> bool) -> Result<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut own = Own::start(command)?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = own.try_wait()? {
            break status;
        }
        if stop() {
            bail!("interrupted");
        }
        // Short programs are not to be waited for, long ones not to be looked at all the time.
        sleep(POLL.max(start.elapsed() / 64));
    };
    let mut text = [String::new(), String::new()];
    let pipes: [Option<&mut dyn std::io::Read>; 2] = {
        let child = own.child();
        [child.stdout.as_mut().map(|p| p as _), child.stderr.as_mut().map(|p| p as _)]
    };
    for (text, pipe) in text.iter_mut().zip(pipes) {
        if let Some(pipe) = pipe {
            pipe.read_to_string(text)?;
        }
    }
    let [out, error] = text;
    ensure!(status.success(), "{} failed ({status}): {}", own.name, error.trim());
    Ok(out)
}

/// A command that starts a program in a control group, if there is one. It gets SIGTERM when this program dies.
pub fn in_group(group: Option<&Path>, program: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(ENTER).arg(group.unwrap_or(Path::new(""))).arg(program);
    command
}

/// The whole life of a process that becomes another program: `words` are the group and the program with its
/// arguments.
pub fn enter(words: &[String]) -> Result<()> {
    let [group, program, arguments @ ..] = words else { bail!("no group and program are named") };
    set_parent_process_death_signal(Some(Signal::TERM))?;
    // Fails for what leads a process group already, which has no need of a session.
    let _leads_a_group = setsid();
    if !group.is_empty() {
        pando_bench_common::cgroup::join(group.as_ref())?;
    }
    Err(anyhow!(Command::new(program).args(arguments).exec())).with_context(|| format!("starting {program}"))
}

/// A command whose output goes to a file, for programs that say much.
pub fn logged(mut command: Command, log: &Path) -> Result<Command> {
    let file = File::options().create(true).append(true).open(log)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    Ok(command)
}
