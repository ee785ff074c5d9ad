//! `pando try`: the whole way on a real tree, with proof and figures.
//!
//! Makes a store, imports a directory, mounts it, clones the tree, edits the
//! clone, compares everything byte by byte, before and after a remount, and
//! prints what it cost beside `cp -a`. All copies read the directory from
//! memory, as far as that holds it, and all are timed until they are durable.
//! Where mounting is not possible the same steps go through the library. Leaves nothing behind, also on Ctrl-C.

mod edits;
mod host_copy;
mod store;
mod workspace;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use self::{
    edits::Edits,
    store::{Figures, Store},
    workspace::Workspace,
};
use crate::{
    size::show,
    tree::{self, Interrupted, Progress, View, compare, copy, host::Host},
};

/// Import a directory, clone it, edit the clone, verify everything, and show what it cost
#[derive(clap::Args)]
#[command(after_help = "Example: pando try ~/src/linux")]
pub struct Args {
    /// A directory to copy. Default: that of the Rust toolchain
    dir: Option<PathBuf>,
    /// Where to work: a directory on a disk with room for the tree. Default: TMPDIR or /var/tmp
    #[arg(long)]
    work_dir: Option<PathBuf>,
    /// Do not copy the tree by cp for comparison
    #[arg(long)]
    no_cp: bool,
    /// Do not mount, go through the library
    #[arg(long)]
    no_mount: bool,
}

/// What `try` measured.
#[derive(Default)]
struct Measured {
    import: Duration,
    import_durable: Duration,
    clone: Duration,
    clone_durable: Duration,
    inside: Option<Duration>,
    edit: Duration,
    edit_durable: Duration,
    imported: Figures,
    cloned: Figures,
    edited: Figures,
    image_on_disk: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        // Only a flag: a second Ctrl-C must not leave a mount behind either.
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => toolchain()?,
    };
    let dir = dir.canonicalize().with_context(|| format!("{}", dir.display()))?;
    if !dir.is_dir() {
        bail!("{}: is not a directory", dir.display());
    }
    let work = Workspace::new(args.work_dir.as_deref(), &dir)?;
    let result = steps(args, &dir, &work, &stop);
    // The workspace cleans up when it goes; tell what a signal has cut short.
    if stop.load(Ordering::Relaxed) {
        eprintln!("pando: interrupted, cleaning up");
    }
    drop(work);
    result
}

/// Where the Rust toolchain lives: a real tree of thousands of files.
fn toolchain() -> Result<PathBuf> {
    let output = Command::new("rustc").args(["--print", "sysroot"]).output();
    match output {
        Ok(o) if o.status.success() => Ok(String::from_utf8_lossy(&o.stdout).trim_end().into()),
        _ => bail!("no Rust toolchain found to try it on; give a directory: pando try DIR"),
    }
}

fn steps(args: &Args, dir: &Path, work: &Workspace, stop: &Arc<AtomicBool>) -> Result<()> {
    let say = |text: &str| super::print(&format!("{text}\n"));
    let check =
        || if stop.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok::<(), anyhow::Error>(()) };
    let host = Host::new(dir);
    let total = tree::count(&host, Path::new(""), &Progress::new("counting", 0, stop.clone()))?;
    say(&format!(
        "{}: {} files, {} directories, {}",
        dir.display(),
        total.files,
        total.dirs,
        show(total.bytes)
    ))?;

    work.require(total.bytes.saturating_add(total.files.saturating_mul(4096)))?;
    let size = (total.bytes.saturating_mul(3) + total.files.saturating_mul(16 << 10)).max(1 << 30);
    let mut store = Store::make(work, size.next_multiple_of(1 << 20))?;
    let mut m = Measured::default();
    tree::read(&host, &Progress::new("reading", total.bytes, stop.clone()))?;

    let begin = Instant::now();
    let progress = Progress::new("importing", total.bytes, stop.clone());
    let (_, not_kept) = copy::copy(&host, &store.sink("original")?, &progress).context("importing")?;
    not_kept.say();
    drop(progress);
    m.import = begin.elapsed();
    store.sync()?;
    m.import_durable = begin.elapsed();
    say(&format!("imported in {}", seconds(m.import_durable)))?;
    check()?;
    if !args.no_mount {
        store.mount()?;
    }
    say(&format!("store: {} (sparse), {}", show(size), store.describe()))?;
    m.imported = store.figures()?;

    let begin = Instant::now();
    m.inside = store.clone("original", "clone")?;
    m.clone = begin.elapsed();
    store.sync()?;
    m.clone_durable = begin.elapsed();
    m.cloned = store.figures()?;
    say(&format!("cloned in {}", seconds(m.clone)))?;
    check()?;

    let edits = Edits::choose(&host)?;
    let begin = Instant::now();
    edits.apply(&store, "clone")?;
    m.edit = begin.elapsed();
    store.sync()?;
    m.edit_durable = begin.elapsed();
    m.edited = store.figures()?;
    say(&format!("edited the clone: {}", edits.describe()))?;

    verify(&host, &store, &edits, total.bytes, stop).context("before unmounting")?;
    say("original, clone and directory compared byte by byte: as they must be")?;
    store.reopen().context("unmounting and mounting again")?;
    verify(&host, &store, &edits, total.bytes, stop).context("after mounting again")?;
    say(&format!("{}, compared again: as they must be", store.reopened()))?;
    m.image_on_disk = work.image_on_disk()?;
    store.close()?;
    check()?;

    let copies = if args.no_cp { Vec::new() } else { host_copy::measure(dir, work, total.bytes, stop)? };
    say(&table(&total, &m, &edits, &copies))
}

/// Compares the original with the directory, and the clone with the directory as edited.
fn verify(host: &Host, store: &Store, edits: &Edits, bytes: u64, stop: &Arc<AtomicBool>) -> Result<()> {
    let report = |differences: Vec<String>| match differences.as_slice() {
        [] => Ok(()),
        all => bail!("trees differ:\n{}", all.join("\n")),
    };
    let progress = Progress::new("comparing", bytes.saturating_mul(2), stop.clone());
    let original: Box<dyn View> = store.view("original")?;
    report(compare::compare(host, &*original, &Default::default(), &progress)?)?;
    let clone: Box<dyn View> = store.view("clone")?;
    report(compare::compare(&*original, &*clone, &edits.paths(), &progress)?)?;
    edits.verify(&*clone)
}

fn seconds(d: Duration) -> String {
    match d.as_secs_f64() {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.001 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}

/// The difference of two sizes, which may be negative when a checkpoint tidied up.
fn grown(before: u64, after: u64) -> String {
    if after >= before { show(after - before) } else { format!("-{}", show(before - after)) }
}

fn table(total: &tree::Count, m: &Measured, edits: &Edits, copies: &[host_copy::Timed]) -> String {
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut row = |name: &str, value: String| rows.push((name.to_owned(), value));
    row("files", format!("{} and {} directories", total.files, total.dirs));
    row("bytes", format!("{} ({})", total.bytes, show(total.bytes)));
    row("import", format!("{}, durable after {}", seconds(m.import), seconds(m.import_durable)));
    let inside = m.inside.map(|d| format!(" ({} inside the daemon)", seconds(d))).unwrap_or_default();
    row("pando clone", format!("{}{inside}, durable after {}", seconds(m.clone), seconds(m.clone_durable)));
    for copy in copies {
        row(
            copy.name,
            match &copy.time {
                Ok((time, durable)) => format!("{}, durable after {}", seconds(*time), seconds(*durable)),
                Err(why) => format!("- ({why})"),
            },
        );
    }
    row("space: import", show(m.imported.used));
    row(
        "space: clone",
        format!(
            "{} more, {} written to the device",
            grown(m.imported.used, m.cloned.used),
            show(m.cloned.written.saturating_sub(m.imported.written))
        ),
    );
    row(
        "space: edits",
        format!(
            "{} more for {} edits, {} written, in {}, durable after {}",
            grown(m.cloned.used, m.edited.used),
            edits.count(),
            show(m.edited.written.saturating_sub(m.cloned.written)),
            seconds(m.edit),
            seconds(m.edit_durable)
        ),
    );
    row("image on disk", show(m.image_on_disk));
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let lines: Vec<String> = rows.iter().map(|(name, value)| format!("  {name:<width$}  {value}")).collect();
    format!("\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_differences_are_readable() {
        assert_eq!(seconds(Duration::from_millis(1500)), "1.50 s");
        assert_eq!(seconds(Duration::from_micros(1500)), "1.50 ms");
        assert_eq!(seconds(Duration::from_micros(15)), "15 us");
        assert_eq!((grown(10, 2058).as_str(), grown(2058, 10).as_str()), ("2.0 KiB", "-2.0 KiB"));
    }
}
