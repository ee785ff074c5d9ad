//! The same work through Pando and through other embedded stores, side by side.
//!
//! Every work is done by one engine after the other before the next work
//! begins, so that what else the machine does hits all of them alike. Between
//! two works a store is closed. See README.md for what is equal and what is not.

mod args;
mod data;
mod engine;
mod engines;
mod meter;
mod plots;
mod report;
mod works;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use serde_json::json;

use args::Args;
use engine::{Kind, Settings};
use report::Row;
use works::{FILL, Run, Work};

/// The directory of the stores of one run; removed with it.
struct Stores(PathBuf);

impl Stores {
    fn new(parent: &Path) -> Result<Self> {
        let dir = parent.join(format!("pando-bench-{}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        Ok(Self(dir))
    }

    /// A directory for a store, which exists.
    fn store(&self, name: &str, engine: &str) -> Result<PathBuf> {
        let dir = self.0.join(format!("{name}-{engine}"));
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }
}

impl Drop for Stores {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("removing {}: {error}", self.0.display());
        }
    }
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// One engine's part in one work.
fn run_one(work: Work, kind: Kind, set: (&str, u64), dir: &Path, args: &Args, rows: &mut Vec<Row>) {
    let (label, bytes) = set;
    let run = Run {
        kind,
        dir,
        settings: Settings { cache: args.cache, room: bytes.max(args.copy_keys * 128) },
        bytes,
        keys: data::keys_in(bytes),
        copy_keys: args.copy_keys,
        cap: args.cap,
    };
    let label = if work.once { format!("{} keys", args.copy_keys) } else { label.to_string() };
    let start = Instant::now();
    match (work.run)(&run) {
        Ok(outcomes) => {
            for outcome in outcomes {
                let part = if outcome.part.is_empty() { "" } else { " " };
                let name = format!("{}{part}{}", work.name, outcome.part);
                rows.push(Row { work: name, set: label.clone(), engine: kind.name, outcome: Ok(outcome) });
            }
        }
        Err(error) => {
            let outcome = Err(format!("{error:#}"));
            rows.push(Row { work: work.name.into(), set: label.clone(), engine: kind.name, outcome });
        }
    }
    eprintln!("{:>13} {label:>8} {:>8} {:6.1} s", work.name, kind.name, start.elapsed().as_secs_f64());
}

fn main() -> Result<()> {
    let Some(args) = Args::parse(std::env::args().skip(1))? else { return Ok(()) };
    let stores = Stores::new(&args.dir)?;
    let begin = Instant::now();
    let load_before = load_average();
    let mut rows = Vec::new();
    let needs_set = args.works.iter().any(|work| work.on_set);
    for (number, &(label, factor)) in args.sets.iter().enumerate() {
        let bytes = (args.cache as f64 * factor) as u64;
        let set = (label, bytes);
        for work in works::all() {
            let wanted = args.works.iter().any(|w| w.name == work.name) && !(work.once && number > 0);
            if !(wanted || work.name == FILL && needs_set) {
                continue;
            }
            let mut done = Vec::new();
            for &kind in &args.engines {
                let name = if work.on_set { "set" } else { work.name };
                let dir = stores.store(&format!("{name}-{number}"), kind.name)?;
                run_one(work, kind, set, &dir, &args, &mut done);
                if !work.on_set {
                    fs::remove_dir_all(&dir)?;
                }
            }
            // The parts of a work stand together, not the engines.
            done.sort_by(|a, b| a.work.cmp(&b.work));
            rows.extend(done);
        }
        for &kind in &args.engines {
            fs::remove_dir_all(stores.store(&format!("set-{number}"), kind.name)?)?;
        }
    }
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let seconds = begin.elapsed().as_secs_f64();
    let about = format!(
        "Cache {} MiB, scale {}, {cores} cores, load average {load_before} before and {} after, {seconds:.0} s",
        args.cache >> 20,
        args.scale,
        load_average(),
    );
    let table = report::table(&rows);
    println!("{about}\n\n{table}");
    if let Some(path) = &args.json {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let about = json!({
            "text": about, "unix_time": now, "cache_bytes": args.cache, "scale": args.scale,
            "cores": cores, "cap_seconds": args.cap, "seconds": seconds,
        });
        let text = serde_json::to_string_pretty(&report::json(&rows, about))?;
        fs::write(path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    if let Some(path) = &args.html {
        fs::write(path, plots::page(&rows, &table, &about)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}
