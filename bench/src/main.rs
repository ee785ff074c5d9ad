//! The same work through Pando and through other embedded stores, side by side.
//!
//! Every work is done by one engine after the other before the next work
//! begins, so that what else the machine does hits all of them alike. Each
//! engine's part in each work is a process of its own. See README.md for what
//! is equal and what is not.

mod args;
mod contender;
mod data;
mod engine;
mod engines;
mod meter;
mod part;
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
use contender::Contender;
use works::FILL;

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

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == part::ARGUMENT) {
        return part::serve(&words[1..]);
    }
    let Some(args) = Args::parse(words)? else { return Ok(()) };
    // Before the stores, and so removed after them: with a file goes its page cache.
    let mut contenders = Vec::new();
    for &kind in &args.engines {
        contenders.push(Contender::new(kind, &args)?);
    }
    let stores = Stores::new(&args.dir)?;
    let begin = Instant::now();
    let load_before = load_average();
    let mut rows = Vec::new();
    let needs_set = args.works.iter().any(|work| work.on_set);
    for (number, chosen) in args.sets.iter().enumerate() {
        let set = (chosen.name, chosen.bytes(&args)?);
        for work in works::all() {
            let wanted = args.works.iter().any(|w| w.name == work.name) && !(work.once && number > 0);
            if !(wanted || work.name == FILL && needs_set) {
                continue;
            }
            let mut done = Vec::new();
            for contender in &mut contenders {
                let name = if work.on_set { "set" } else { work.name };
                let dir = stores.store(&format!("{name}-{number}"), contender.kind.name)?;
                done.extend(contender.work(work, set, &dir, &args));
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
    let limit = match args.memory {
        Some(limit) => format!("memory of each engine limited to {} MiB with its page cache", limit >> 20),
        None => "page cache not limited".into(),
    };
    let about = format!(
        "Cache {} MiB, {limit}, scale {}, {cores} cores, load average {load_before} before and {} after, {seconds:.0} s",
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
            "memory_bytes": args.memory, "share": args.share,
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
