//! `pando try`: a demonstration on a real tree, which verifies and measures each step.
//!
//! It makes a store, imports a directory, mounts the store, clones the tree, edits the clone, compares everything
//! byte by byte, before and after a remount, and prints what each step cost beside `cp -a`. The directory is read
//! once before, so that all copies read it from the page cache as far as that holds it; all copies are timed until
//! they are durable. Where mounting is not possible, the same steps go through the library.
//!
//! Guarantees: it leaves nothing behind, also on Ctrl-C. The steps are here; [`store`] is the store they work on,
//! [`edits`] the changes in the clone, [`measured`] the figures.

mod edits;
mod figures;
mod host_copy;
mod measured;
mod store;
mod workspace;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context, Result, bail};

use self::{
    edits::Edits,
    figures::seconds,
    measured::{Measured, Step},
    store::Store,
    workspace::Workspace,
};
use crate::{
    size::show,
    tree::{self, Interrupted, Progress, compare, copy, host::HostTree},
};

/// Import a directory, clone it, edit the clone, verify everything, and show what it cost
#[derive(clap::Args)]
#[command(after_help = "Example: pando try ~/src/linux")]
pub struct Args {
    /// A directory to copy. Default: that of the Rust toolchain
    dir: Option<PathBuf>,
    /// Where to work: a directory on a disk with room for the tree. Default: TMPDIR or /var/tmp
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Do not copy the tree by cp for comparison
    #[arg(long)]
    no_cp: bool,
    /// Do not mount, go through the library
    #[arg(long)]
    no_mount: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        // The handler only sets a flag, so that a second Ctrl-C does not leave a mount behind.
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
    // Dropping the workspace cleans up, which may take a while: say that the signal was seen.
    if stop.load(Ordering::Relaxed) {
        crate::exit::tell!("pando: interrupted, cleaning up");
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
    let say = |text: String| super::print(&format!("{text}\n"));
    let go_on = || match stop.load(Ordering::Relaxed) {
        true => Err(anyhow::Error::from(Interrupted)),
        false => Ok(()),
    };
    let host = HostTree::new(dir);
    let total = tree::count(&host, Path::new(""), &Progress::new("counting", 0, stop.clone()))?;
    say(format!(
        "{}: {} files, {} directories, {}",
        dir.display(),
        total.files,
        total.dirs,
        show(total.bytes)
    ))?;

    work.require(total.bytes.saturating_add(total.files.saturating_mul(4096)))?;
    let size = (total.bytes.saturating_mul(3) + total.files.saturating_mul(16 << 10)).max(1 << 30);
    let mut store = Store::make(work, size.next_multiple_of(1 << 20))?;
    tree::read(&host, &Progress::new("reading", total.bytes, stop.clone()))?;

    let (mut import, (_, not_kept)) = Step::measure(&store, || {
        let progress = Progress::new("importing", total.bytes, stop.clone());
        copy::copy(&host, &store.sink("original")?, &progress).context("importing")
    })?;
    not_kept.say();
    say(format!("imported in {}", seconds(import.times.durable)))?;
    go_on()?;
    if !args.no_mount {
        store.mount()?;
    }
    say(format!("store: {} (sparse), {}", show(size), store.describe()))?;
    // Opening the store has reset the counters of what is written.
    import.after = store.figures()?;

    let (clone, inside_daemon) = Step::measure(&store, || store.clone("original", "clone"))?;
    say(format!("cloned in {}", seconds(clone.times.done)))?;
    go_on()?;

    let edits = Edits::choose(&host)?;
    let (edit, ()) = Step::measure(&store, || edits.apply(&store, "clone"))?;
    say(format!("edited the clone: {}", edits.describe()))?;

    let verify = |store: &Store| {
        let progress = Progress::new("comparing", total.bytes.saturating_mul(2), stop.clone());
        verify(&host, store, &edits, &progress)
    };
    verify(&store).context("before unmounting")?;
    say("original, clone and directory compared byte by byte: as they must be".into())?;
    store.reopen().context("unmounting and mounting again")?;
    verify(&store).context("after mounting again")?;
    say(format!("{}, compared again: as they must be", store.reopened()))?;
    let image_on_disk = work.image_on_disk()?;
    store.close()?;
    go_on()?;

    let copies = if args.no_cp { Vec::new() } else { host_copy::measure(dir, work, total.bytes, stop)? };
    let measured = Measured { import, clone, inside_daemon, edit, image_on_disk, copies };
    say(measured.table(&total, &edits))
}

/// Compares the original with the directory, and the clone with the original except for the edits; then checks the
/// edits.
fn verify(host: &HostTree, store: &Store, edits: &Edits, progress: &Progress) -> Result<()> {
    let (original, clone) = (store.view("original"), store.view("clone"));
    let mut differences = compare::compare(host, &*original, &Default::default(), progress)?;
    differences.extend(compare::compare(&*original, &*clone, &edits.paths(), progress)?);
    if !differences.is_empty() {
        bail!("trees differ: {}", differences.join("; "));
    }
    edits.verify(&*clone)
}
