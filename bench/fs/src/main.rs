//! The same work on Pando and on the kernel's file systems, side by side.
//!
//! Every work is done by one contender after the other, each on a file system
//! that was just made, before the next work begins. The order changes from
//! round to round. README.md says what the rows are and what they are not.

mod args;
mod contender;
mod data;
mod disk;
mod figure;
mod goals;
mod meter;
mod mounted;
mod part;
mod plots;
mod process;
mod protocol;
mod report;
mod run;
mod sources;
mod works;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    rc::Rc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use pando_bench_common::cgroup::{Group, Throttle};
use serde_json::json;

use args::Args;
use contender::Kind;
use disk::{Dir, Disk};
use mounted::How;
use part::Stage;
use process::interrupted;
use protocol::Part;
use report::{About, Results};
use works::Work;

/// Exit codes: something went wrong; a signal came, as shells say it of SIGINT.
const FAILED: u8 = 1;
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.first().map(String::as_str) {
        Some(part::ARGUMENT) => part::serve(&words[1..]).map(|()| 0),
        Some(works::MEMBER) => works::serve_member(&words[1..]).map(|()| 0),
        Some(process::ENTER) => process::enter(&words[1..]).map(|()| 0),
        _ => bench(words),
    };
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("pando-bench-fs: {error:#}");
            ExitCode::from(if interrupted() { INTERRUPTED } else { FAILED })
        }
    }
}

/// Contenders and works that are possible here; the others are noted.
fn possible(args: &mut Args, results: &mut Results) {
    let mut skip = |line: String| {
        eprintln!("SKIPPED: {line}");
        results.skipped.push(line);
    };
    args.contenders.retain(|kind| match kind.missing() {
        Some(why) => {
            skip(format!("{}: {why}", kind.name()));
            false
        }
        None => true,
    });
    args.works.retain(|work| match work.programs.iter().find(|program| !contender::on_path(program)) {
        Some(program) => {
            skip(format!("{}: there is no {program}", work.name));
            false
        }
        None => true,
    });
    if !args.no_loop && (!Path::new("/dev/loop-control").exists() || !contender::on_path("losetup")) {
        skip("everything: there are no loop devices here (--no-loop runs Pando on an image file)".into());
        args.contenders.clear();
    } else if !rustix::process::geteuid().is_root() {
        skip("everything: mounting needs root".into());
        args.contenders.clear();
    } else if fs::File::options().write(true).open(mounted::DROP_CACHES).is_err() {
        skip("everything: caches cannot be dropped here".into());
        args.contenders.clear();
    }
}

/// Pando's program: the one that was named, or that of this checkout.
fn program(args: &Args) -> Result<PathBuf> {
    if let Some(program) = &args.pando {
        return fs::canonicalize(program).with_context(|| format!("looking for {}", program.display()));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Its own directory: what this crate is built in may be somewhere else.
    cargo.args(["build", "--release", "-p", "pando", "--manifest-path"]).arg(root.join("Cargo.toml"));
    let target = root.join("target");
    eprintln!("building pando ...");
    process::show(cargo.arg("--target-dir").arg(&target))?;
    fs::canonicalize(target.join("release/pando")).context("looking for what was built")
}

/// The whole run. Returns the exit code.
fn bench(words: Vec<String>) -> Result<u8> {
    let Some(mut args) = Args::parse(words)? else { return Ok(0) };
    process::catch_signals()?;
    let mut results = Results::default();
    possible(&mut args, &mut results);
    if args.contenders.is_empty() || args.works.is_empty() {
        return Ok(0);
    }
    let pando = if args.contenders.contains(&Kind::Pando) { program(&args)? } else { PathBuf::new() };
    fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;

    // In this order they are made; in the reverse they are undone, however this function ends.
    let group = group(&args)?;
    let dir = Dir::new(&args.dir)?;
    let point = dir.path().join(mounted::POINT);
    fs::create_dir(&point)?;
    eprintln!("seed {}; making the archive and the image ...", args.seed);
    let sources = sources::make(dir.path(), &args)?;
    let disk = if args.no_loop {
        Disk::without_loop(dir.path(), args.image)?
    } else {
        Disk::with_loop(dir.path(), args.image)?
    };
    let throttle = match args.throttle {
        Some(rate) => Some(Throttle::new(&disk.numbers()?, rate, group.as_deref())?),
        None => None,
    };

    let begin = Instant::now();
    let load_before = load_average();
    let how = How {
        kind: Kind::Pando,
        device: disk.device().into(),
        point: point.clone(),
        pando: pando.clone(),
        cache: args.cache,
        pando_options: args.pando_options.clone(),
        group: group.as_ref().map(|group| group.dir().into()),
        log: dir.path().join("pando.log"),
    };
    let stages = Stages {
        args: &args,
        how,
        sources,
        device: disk.numbers().ok(),
        group,
        statistics: disk.statistics(),
    };
    for round in 0..args.rounds {
        for (number, &work) in args.works.iter().enumerate() {
            // Who is first changes from round to round and from work to work.
            for turn in 0..args.contenders.len() {
                let kind = args.contenders[(round + number + turn) % args.contenders.len()];
                if work.suits(kind) && !interrupted() {
                    stages.perform(work, kind, round, &mut results);
                }
            }
        }
    }
    drop(throttle);
    results.rows.iter_mut().for_each(|row| {
        row.cells.sort_by_key(|cell| contender::ALL.iter().position(|&kind| kind == cell.kind()));
    });
    let about = about(&args, begin.elapsed(), &load_before);
    let table = results.table(&args.contenders, &about);
    println!("{table}");
    write(&results, &table, &about, &args.out)?;
    ensure!(!interrupted(), "interrupted: the results so far are in {}", args.out.display());
    Ok(if results.failures.is_empty() { 0 } else { FAILED })
}

/// The control group of clients and daemon, if one is needed.
fn group(args: &Args) -> Result<Option<Rc<Group>>> {
    if args.memory.is_none() && !(args.throttle.is_some() && Throttle::needs_group()) {
        return Ok(None);
    }
    let name = format!("pando-bench-fs-{}", std::process::id());
    Group::new(&name, args.memory.unwrap_or(u64::MAX)).map(|group| Some(Rc::new(group)))
}

/// What all parts of a run share.
struct Stages<'a> {
    args: &'a Args,
    how: How,
    sources: protocol::Sources,
    device: Option<String>,
    group: Option<Rc<Group>>,
    statistics: Option<PathBuf>,
}

impl Stages<'_> {
    fn perform(&self, work: Work, kind: Kind, round: usize, results: &mut Results) {
        let part = Part {
            work: work.name.into(),
            kind,
            dir: self.how.point.clone(),
            pando: self.how.pando.clone(),
            scale: self.args.scale,
            seed: self.args.seed,
            statistics: self.statistics.clone(),
            cache: self.args.cache,
            sources: self.sources.clone(),
        };
        let group = self.group.clone();
        let stage = Stage {
            how: How { kind, ..self.how.clone() },
            device: self.device.clone(),
            is_throttled: self.args.throttle.is_some(),
            limit: self.args.limit,
            kills: Box::new(move || group.as_ref().map_or(0, |group| group.kills())),
        };
        let start = Instant::now();
        let done = stage.perform(work, &part);
        let seconds = start.elapsed().as_secs_f64();
        let said = done.as_ref().err().map_or(String::new(), |error| format!("  FAILED: {error:#}"));
        eprintln!("round {} {:>12} {:>10} {seconds:6.1} s{said}", round + 1, work.name, kind.name());
        match done {
            Ok(figures) => results.add(kind, figures),
            // Not its fault.
            Err(_) if interrupted() => {}
            Err(error) => results.failures.push((work.name, kind, round, format!("{error:#}"))),
        }
    }
}

fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

fn about(args: &Args, took: Duration, load_before: &str) -> About {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (kernel, load_after) = (kernel.trim(), load_average());
    let limit = |what: &str, limit: Option<String>| {
        limit.map_or(format!("{what} not limited"), |l| format!("{what} limited to {l}"))
    };
    let throttle = args.throttle.map(|rate| {
        format!("{} requests/s and {} MB/s, reads and writes each", rate.requests, rate.bytes / 1_000_000)
    });
    let memory = args.memory.map(|memory| format!("{} MiB for client, daemon and page cache", memory >> 20));
    let medium =
        if args.no_loop { "sparse image file" } else { "loop device with direct I/O over a full file" };
    let text = format!(
        "Scale {}, {} round(s), seed {}; {medium} of {} MiB; {}; {}. Linux {kernel}, {cores} cores, load average \
         {load_before} before and {load_after} after, {:.0} s. Medians (least-most).",
        args.scale,
        args.rounds,
        args.seed,
        args.image >> 20,
        limit("device", throttle),
        limit("memory", memory),
        took.as_secs_f64(),
    );
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let json = json!({
        "text": text, "unix_time": now, "scale": args.scale, "rounds": args.rounds, "seed": args.seed,
        "image_bytes": args.image, "memory_bytes": args.memory, "cache_bytes": args.cache,
        "pando_options": args.pando_options, "kernel": kernel, "cores": cores, "seconds": took.as_secs_f64(),
        "throttle": args.throttle.map(|rate| json!({"requests": rate.requests, "bytes": rate.bytes})),
        "load_before": load_before, "load_after": load_after, "loop": !args.no_loop, "interrupted": interrupted(),
    });
    About { text, json, scale: args.scale, is_throttled: args.throttle.is_some() }
}

fn write(results: &Results, table: &str, about: &About, out: &Path) -> Result<()> {
    fs::write(out.join("table.md"), table)?;
    fs::write(out.join("results.json"), serde_json::to_string_pretty(&results.json(about))?)?;
    plots::write(results, table, about, out)
}
