//! Runs seeds for a stated time and reports a failure as one command line.
//!
//! | variable | means |
//! | --- | --- |
//! | `PANDO_SEED` | this seed only |
//! | `PANDO_SEED_BASE` | the first seed; otherwise the clock chooses one where the time is given, else it is 1000 |
//! | `PANDO_MODEL_SECONDS` | how long the whole file takes on two threads |
//! | `PANDO_MODEL_HOURS` | the same in hours, for long runs |
//! | `PANDO_SHRINK_SECONDS` | how long a failing run is cut down |
//! | `PANDO_TRACE` | prints every step |
//! | `PANDO_SOURCE` | prints a failure as the source of a regression test |

use std::{
    fmt::Write as _,
    io::Write as _,
    process::abort,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use parking_lot::Mutex;

use super::{
    config::{Config, Profile},
    coverage::Coverage,
    shrink::{Run, run_seed, shrink},
};

/// A run that takes longer hangs: orders of magnitude above what is usual.
const LONGEST_RUN: Duration = Duration::from_secs(60);

pub fn variable<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// The time that is asked for, in seconds.
fn given_seconds() -> Option<f64> {
    let hours = variable("PANDO_MODEL_HOURS").map(|hours: f64| hours * 3600.0);
    hours.or(variable("PANDO_MODEL_SECONDS"))
}

/// How long this file's tests are to take together on two threads.
pub fn budget() -> Duration {
    let ci = std::env::var("CI").is_ok_and(|value| !value.is_empty() && value != "false" && value != "0");
    let seconds = given_seconds().unwrap_or(if ci { 40.0 } else { 20.0 });
    Duration::from_secs_f64(seconds)
}

/// Runs seeds for a share of the budget; `required` is what they must have met between them.
pub fn campaign(test: &str, profile: Profile, share: f64, required: &[(&'static str, u64)]) {
    campaign_of(test, &|seed| Config::new(seed, profile), 1000, share, required);
}

/// The same beside the engine's own threads. Seeds do not decide everything then.
pub fn campaign_with_threads(test: &str, profile: Profile, share: f64, required: &[(&'static str, u64)]) {
    let config = |seed| {
        let config = Config { threads: true, ..Config::new(seed, profile) };
        if !config.tight() {
            return config;
        }
        // Runs beside threads are fewer; so that some of them fill the store, it is small and they are not.
        let device_size = config.device_size.min(12 * (64 << 10));
        Config { device_size, max_keys: 2500, steps: config.steps.max(300), ..config }
    };
    // Of the stores, one in some dozens is filled; this seed's is, most of the times.
    let first = if profile == Profile::Space { 1129 } else { 1000 };
    campaign_of(test, &config, first, share, required);
}

/// Runs seeds from the `first` on, if no other ones are asked for.
fn campaign_of(
    test: &str,
    config: &dyn Fn(u64) -> Config,
    first: u64,
    share: f64,
    required: &[(&'static str, u64)],
) {
    let watchdog = Watchdog::new(format!("--test model_test {test}"));
    if let Some(seed) = variable("PANDO_SEED") {
        let coverage = one(test, config(seed), &watchdog);
        println!("seed {seed} passes:{coverage}");
        return;
    }
    let deadline = Instant::now() + budget().mul_f64(share);
    let base: u64 = variable("PANDO_SEED_BASE")
        .unwrap_or_else(|| if given_seconds().is_some() { clock_seed() } else { first });
    let mut coverage = Coverage::default();
    let mut runs = 0;
    // On a slow machine the short default time may be too little to meet what is required.
    let patience = deadline + Duration::from_secs(120);
    let wanting = |coverage: &Coverage| !coverage.missing(required).is_empty() && Instant::now() < patience;
    while Instant::now() < deadline || wanting(&coverage) {
        coverage.merge(&one(test, config(base + runs), &watchdog));
        runs += 1;
    }
    println!("{test}: {runs} seeds from {base}:{coverage}");
    let missing = coverage.missing(required);
    assert!(
        missing.is_empty(),
        "{test}: {runs} seeds from {base} never showed what they are meant to test:\n  {}\n{coverage}",
        missing.join("\n  ")
    );
}

/// Seeds that differ from day to day, and are short enough to type.
fn clock_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.as_millis() as u64 % 1_000_000_000 * 1000
}

fn one(test: &str, config: Config, watchdog: &Watchdog) -> Coverage {
    watchdog.begin(config.seed);
    let run = run_seed(&config);
    watchdog.end();
    match run.outcome {
        Ok(()) => run.coverage,
        Err(_) => panic!("{}", report(test, &config, run)),
    }
}

/// A failure for people: what, how to see it again, and the few steps that lead there.
fn report(test: &str, config: &Config, run: Run) -> String {
    let mut text = format!(
        "seed {seed} fails at step {at}: {error}\n\nreplay: PANDO_SEED={seed} cargo test -p pando-db --test model_test {test} -- --nocapture\n\n{config:?}\n",
        seed = config.seed,
        at = run.steps.len().saturating_sub(1),
        error = run.outcome.err().unwrap_or_default(),
    );
    let time = Duration::from_secs(variable("PANDO_SHRINK_SECONDS").unwrap_or(20));
    let (steps, message) = shrink(config, run.steps, time);
    _ = writeln!(text, "\ncut down to {} steps, which end in: {message}", steps.len());
    for (at, step) in steps.iter().enumerate() {
        _ = writeln!(text, "{at:4}: {step}");
    }
    if std::env::var_os("PANDO_SOURCE").is_some() {
        for step in &steps {
            _ = writeln!(text, "SOURCE {},", step.source());
        }
    }
    text
}

/// Ends the process, naming the seed, when a run hangs: nothing else would.
pub struct Watchdog {
    running: Arc<Mutex<Option<(u64, Instant)>>>,
    over: Arc<AtomicBool>,
}

impl Watchdog {
    pub fn new(test: String) -> Self {
        let running: Arc<Mutex<Option<(u64, Instant)>>> = Arc::default();
        let over: Arc<AtomicBool> = Arc::default();
        let (watched, done) = (running.clone(), over.clone());
        thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(500));
                let running = *watched.lock();
                if let Some((seed, since)) = running
                    && since.elapsed() > LONGEST_RUN
                {
                    // Not `eprintln!`, which a test's captured output would swallow.
                    _ = writeln!(
                        std::io::stderr(),
                        "\nseed {seed} hangs (over {LONGEST_RUN:?}); replay: PANDO_SEED={seed} cargo test -p pando-db {test} -- --nocapture"
                    );
                    abort();
                }
            }
        });
        Self { running, over }
    }

    pub fn begin(&self, seed: u64) {
        *self.running.lock() = Some((seed, Instant::now()));
    }

    pub fn end(&self) {
        *self.running.lock() = None;
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
