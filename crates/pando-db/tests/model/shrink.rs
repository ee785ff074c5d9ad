//! Runs recorded steps, and cuts a failing run down to the steps that matter.
//!
//! Delta debugging (Zeller, Hildebrandt 2002): leave out ever smaller parts as
//! long as the run still fails, then single operations of batches and parts of
//! values. Any failure counts, not only the first one's message: a smaller
//! run that fails differently is as welcome.

use std::{
    cell::{Cell, RefCell},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Once,
    time::{Duration, Instant},
};

use pando_db::Op;

use super::{
    config::{Config, Profile},
    coverage::Coverage,
    generate::Generator,
    runner::{Asked, Outcome, Runner},
    step::Step,
};

/// What a run came to.
pub struct Run {
    /// The steps that were done; the last one failed if the run did.
    pub steps: Vec<Step>,
    pub coverage: Coverage,
    pub outcome: Outcome,
    /// What was asked of the device.
    pub asked: Asked,
    /// Requests that the device had seen when the steps were done, since it was last reopened.
    pub requests: u64,
    /// Digest of the final contents.
    pub digest: u64,
}

/// Invents the steps as it goes.
pub fn run_seed(config: &Config) -> Run {
    let mut generator = Generator::new(config);
    let mut planned = config.steps;
    // Lies are told late, when there is something to lose, and nothing is done after the crash.
    let lie_at = (config.profile == Profile::Lies).then_some(planned / 2);
    run(config, |runner, done| {
        if runner.over() || done >= planned {
            return None;
        }
        if lie_at == Some(done) {
            planned = done + 1 + planned / 4;
            return Some(Step::Lie);
        }
        Some(generator.step(runner.world()))
    })
}

/// Does the steps given, and the comparison at the end.
pub fn run_steps(config: &Config, steps: &[Step]) -> Run {
    run(config, |_, done| steps.get(done).cloned())
}

fn run(config: &Config, mut next: impl FnMut(&Runner, usize) -> Option<Step>) -> Run {
    let mut steps = Vec::new();
    let mut result = Run {
        steps: Vec::new(),
        coverage: Coverage::default(),
        outcome: Ok(()),
        asked: (0, 0, 0, 0),
        requests: 0,
        digest: 0,
    };
    let trace = std::env::var_os("PANDO_TRACE").is_some();
    result.outcome = catching(|| {
        let mut runner = Runner::new(config)?;
        while let Some(step) = next(&runner, steps.len()) {
            if trace {
                eprintln!("{:4}: {step}", steps.len());
            }
            steps.push(step);
            runner.step(&steps[steps.len() - 1])?;
            if trace && config.tight() {
                eprintln!("      {}", runner.space_report());
            }
        }
        result.requests = runner.requests();
        runner.finish().map_err(|error| format!("at the end: {error}"))?;
        result.coverage = std::mem::take(&mut runner.coverage);
        result.asked = runner.asked();
        result.digest = runner.world().digest();
        Ok(())
    });
    result.steps = steps;
    result
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Turns a panic of this thread into an error that says where it was.
pub fn catching<T>(work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if CATCHING.get() {
                let mut told = format!("panic: {info}");
                if std::env::var("RUST_BACKTRACE").is_ok_and(|value| value != "0") {
                    told = format!("{told}\n{}", std::backtrace::Backtrace::force_capture());
                }
                CAUGHT.with_borrow_mut(|caught| *caught = told);
            } else {
                usual(info);
            }
        }));
    });
    CATCHING.set(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    CATCHING.set(false);
    result.unwrap_or_else(|_| Err(CAUGHT.take()))
}

/// The smallest failing run that can be found in the time given.
pub fn shrink(config: &Config, failing: Vec<Step>, time: Duration) -> (Vec<Step>, String) {
    let deadline = Instant::now() + time;
    let first = run_steps(config, &failing);
    let Err(mut message) = first.outcome else {
        return (failing, "the recorded steps alone do not fail".into());
    };
    let mut best = first.steps;
    let mut attempt = |best: &mut Vec<Step>, candidate: Vec<Step>| {
        let run = run_steps(config, &candidate);
        let failed = run.outcome.is_err();
        if let Err(error) = run.outcome {
            message = error;
            *best = run.steps;
        }
        failed
    };
    loop {
        let before = best.len();
        leave_out_parts(&mut best, deadline, &mut attempt);
        leave_out_operations(&mut best, deadline, &mut attempt);
        if best.len() == before || Instant::now() > deadline {
            break;
        }
    }
    cut_values(&mut best, deadline, &mut attempt);
    (best, message)
}

type Attempt<'a> = &'a mut dyn FnMut(&mut Vec<Step>, Vec<Step>) -> bool;

fn leave_out_parts(best: &mut Vec<Step>, deadline: Instant, attempt: Attempt<'_>) {
    let mut size = best.len().div_ceil(2);
    while size > 0 {
        let mut end = best.len();
        while end > 0 && Instant::now() < deadline {
            let start = end.saturating_sub(size);
            let candidate = [&best[..start], &best[end..]].concat();
            attempt(best, candidate);
            end = start.min(best.len());
        }
        size /= 2;
    }
}

fn leave_out_operations(best: &mut Vec<Step>, deadline: Instant, attempt: Attempt<'_>) {
    for at in (0..best.len()).rev() {
        let mut op = 0;
        while let Some(Step::Write(ops)) = best.get(at)
            && ops.len() > 1
            && op < ops.len()
            && Instant::now() < deadline
        {
            let mut fewer = ops.clone();
            fewer.remove(op);
            let mut candidate = best.clone();
            candidate[at] = Step::Write(fewer);
            if !attempt(best, candidate) {
                op += 1;
            }
        }
    }
}

fn cut_values(best: &mut Vec<Step>, deadline: Instant, attempt: Attempt<'_>) {
    for at in 0..best.len() {
        let Some(Step::Write(ops)) = best.get(at).cloned() else { continue };
        for (index, op) in ops.iter().enumerate() {
            let Op::Put(key, value) = op else { continue };
            for len in [0, 1, value.len() / 4, value.len() / 2] {
                if len >= value.len() || Instant::now() > deadline || at >= best.len() {
                    break;
                }
                let mut candidate = best.clone();
                if let Step::Write(ops) = &mut candidate[at] {
                    ops[index] = Op::Put(key.clone(), value.slice(..len));
                }
                if attempt(best, candidate) {
                    break;
                }
            }
        }
    }
}
