//! `pando cp -a`: what `cp -a --reflink=always` would do, if the kernel passed that on to a file system like this.
//!
//! What does not exist at the destination is one clone, however large it is. Where both are directories they are
//! merged: what is in the source is put into what is there, and the directory gets the source's owner, mode
//! and times, as cp does it. Nothing is ever copied byte by byte. Of a file with several names the first one that comes
//! is cloned, and the others become names of that; a directory that is one clone has the names in it as they were.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, chmod, utimensat};

use crate::{
    cmd::clone::clone,
    exit::{self, Coded},
    offline,
};

/// Copy files and trees by clones: a drop-in for cp -a --reflink=always inside one mount
#[derive(clap::Args)]
#[command(
    override_usage = "pando cp [OPTIONS] <SRC>... <DST>\n       pando cp [OPTIONS] -t <DIR> <SRC>...",
    after_help = "SRC goes into DST if that is a directory, or becomes it. Files that exist are replaced as a whole,
directories are merged. Owner, mode, times and extended attributes are kept, which needs the right to
clone SRC: its owner or root. Copies between file systems are refused; use cp -a there. What cannot be
copied is said, and the rest is copied; the exit code is then 1. With -n, a file is not copied to
where something is, which is no failure.

Hard links are kept among files that are copied one by one, and inside of a directory that is new at
the destination, which becomes one clone. Those from such a directory to what is copied beside it are
not: there the names are files of their own.

Examples: pando cp -a /mnt/grove/project /mnt/grove/experiment
          pando cp -a src/. build/"
)]
pub struct Args {
    /// Keep everything and go down into directories: always so here
    #[arg(short = 'a', long, short_aliases = ['r', 'R', 'd', 'p'])]
    archive: bool,
    /// Accepted, as cp has it: always (or auto, which means the same here)
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, value_parser = ["always", "auto"])]
    reflink: Option<Option<String>>,
    /// Leave alone what exists
    #[arg(short = 'n', long)]
    no_clobber: bool,
    /// Accepted: what exists is always replaced as a whole
    #[arg(short = 'f', long)]
    force: bool,
    /// Make SRC become DST, even if DST is a directory
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Put all SRC into this directory
    #[arg(short = 't', long, value_name = "DIR", conflicts_with = "no_target_directory")]
    target_directory: Option<PathBuf>,
    /// Say what is done
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Files or trees, and last the place where they go
    #[arg(value_name = "SRC... DST", required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let (sources, target) = match (&args.target_directory, args.paths.split_last()) {
        (Some(dir), _) => (&args.paths[..], dir),
        (None, Some((target, sources))) if !sources.is_empty() => (sources, target),
        _ => bail!("cp: give what to copy, and where to"),
    };
    if let ([src], Some(_)) = (sources, offline::place(target)) {
        // In an image nothing is merged: the destination is new.
        let Some((src, dst)) = offline::pair(src, target)? else { bail!("cp: {}", target.display()) };
        return offline::with(&src, false, |fs| offline::clone(fs, &src.path, &dst.path, false, &[]))
            .with_context(|| format!("cp {src} to {}", dst.path.display()));
    }
    let into = !args.no_target_directory && target.is_dir();
    if !into && (sources.len() > 1 || args.target_directory.is_some()) {
        bail!("cp: {}: is not a directory", target.display());
    }
    let mut copier = Copier { args, linked: HashMap::new(), whole_dirs: false, failed: false };
    for src in sources {
        let dst = match into {
            // SRC that ends in /. or .. has no name of its own: its content goes there.
            true => target.join(own_name(src).unwrap_or(OsStr::new(""))),
            false => target.clone(),
        };
        copier.copy(src, &dst);
    }
    copier.finish()
}

/// The last name of `path`, unless that is `.` or `..`.
fn own_name(path: &Path) -> Option<&OsStr> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = path.as_os_str().as_bytes();
    let ends_in_dot = bytes.ends_with(b"/.") || bytes.ends_with(b"/./");
    path.file_name().filter(|_| !ends_in_dot)
}

fn exists(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(meta) => Ok(Some(meta)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cp: {}", path.display())),
    }
}

/// A file with several names, of which some are copied.
struct Linked {
    /// The first copy, by path, device and inode number: further names become names of that.
    copy: (PathBuf, u64, u64),
    src: PathBuf,
    names: u64,
    /// Names that have been copied.
    copied: u64,
}

/// One call: what fails is said, and the rest is copied all the same.
struct Copier<'a> {
    args: &'a Args,
    /// By device and inode number.
    linked: HashMap<(u64, u64), Linked>,
    /// Whether a directory became one clone, with whatever names are in it.
    whole_dirs: bool,
    failed: bool,
}

impl Copier<'_> {
    fn copy(&mut self, src: &Path, dst: &Path) {
        if let Err(e) = self.try_copy(src, dst) {
            self.fail(&e);
        }
    }

    fn fail(&mut self, why: &anyhow::Error) {
        exit::say("pando", why);
        self.failed = true;
    }

    fn say(&self, src: &Path, dst: &Path) -> Result<()> {
        match self.args.verbose {
            true => super::print(&format!("{} -> {}\n", src.display(), dst.display())),
            false => Ok(()),
        }
    }

    fn try_copy(&mut self, src: &Path, dst: &Path) -> Result<()> {
        let from = fs::symlink_metadata(src).with_context(|| format!("cp: {}", src.display()))?;
        let Some(to) = exists(dst)? else {
            match from.is_dir() {
                true => {
                    clone(src, dst, false)?;
                    self.whole_dirs = true;
                }
                false => self.put(src, dst, &from, None)?,
            }
            return self.say(src, dst);
        };
        let same = (from.dev(), from.ino()) == (to.dev(), to.ino());
        match (from.is_dir(), to.is_dir()) {
            _ if self.args.no_clobber && (same || !from.is_dir()) => Ok(()),
            _ if same => bail!("cp: {} and {} are the same", src.display(), dst.display()),
            (true, true) => self.merge(src, dst, &from),
            (true, false) => bail!("cp: {}: is not a directory, but {} is one", dst.display(), src.display()),
            (false, true) => bail!("cp: {}: is a directory, but {} is none", dst.display(), src.display()),
            (false, false) => {
                self.put(src, dst, &from, Some(&to))?;
                self.say(src, dst)
            }
        }
    }

    /// Makes `dst`, where `to` is now, what the file at `src` is: by a clone, or as a further name of one.
    fn put(&mut self, src: &Path, dst: &Path, from: &Metadata, to: Option<&Metadata>) -> Result<()> {
        if from.nlink() < 2 {
            return clone(src, dst, to.is_some()).map(drop);
        }
        let id = (from.dev(), from.ino());
        if let Some(file) = self.linked.get_mut(&id) {
            file.copied += 1;
            match link(&file.copy, dst, to) {
                Ok(()) => return Ok(()),
                Err(e) => eprintln!(
                    "pando: cp: {}: is no further name of {}, as in the source, but a file of its own: {e}",
                    dst.display(),
                    file.copy.0.display()
                ),
            }
            return clone(src, dst, to.is_some()).map(drop);
        }
        clone(src, dst, to.is_some())?;
        let made = fs::symlink_metadata(dst).with_context(|| format!("cp: {}", dst.display()))?;
        let copy = (dst.to_owned(), made.dev(), made.ino());
        self.linked.insert(id, Linked { copy, src: src.to_owned(), names: from.nlink(), copied: 1 });
        Ok(())
    }

    /// Puts what is in `src` into `dst`.
    fn merge(&mut self, src: &Path, dst: &Path, meta: &Metadata) -> Result<()> {
        let fail = || format!("cp: {}", dst.display());
        if dst.canonicalize().with_context(fail)?.starts_with(src.canonicalize().with_context(fail)?) {
            bail!("cp: {} lies inside {}", dst.display(), src.display());
        }
        let (names, failed) = listed(src);
        for name in names {
            self.copy(&src.join(&name), &dst.join(&name));
        }
        if let Some(e) = failed {
            self.fail(&anyhow::Error::from(e).context(format!("cp: {}", src.display())));
        }
        if self.args.no_clobber {
            return Ok(());
        }
        // A user other than root may not give it away, as with cp -a: then the owner stays.
        let _ = std::os::unix::fs::lchown(dst, Some(meta.uid()), Some(meta.gid()));
        chmod(dst, Mode::from_raw_mode(meta.mode() & 0o7777)).with_context(fail)?;
        let time = |secs, nanos| Timespec { tv_sec: secs, tv_nsec: nanos };
        let times = Timestamps {
            last_access: time(meta.atime(), meta.atime_nsec()),
            last_modification: time(meta.mtime(), meta.mtime_nsec()),
        };
        utimensat(CWD, dst, &times, AtFlags::empty()).with_context(fail)
    }

    fn finish(self) -> Result<()> {
        // Whether the other names are in one of these directories is not known: nobody has looked into them.
        let mut apart: Vec<&Linked> = self.linked.values().filter(|file| file.copied < file.names).collect();
        apart.sort_unstable_by(|a, b| a.src.cmp(&b.src));
        if let (Some(file), true) = (apart.first(), self.whole_dirs) {
            eprintln!(
                "pando: cp: {}: has names that were not copied one by one{}: those in a directory that was cloned as a \
                 whole are files of their own there",
                file.src.display(),
                if apart.len() > 1 { format!(" (and {} others)", apart.len() - 1) } else { String::new() }
            );
        }
        match self.failed {
            true => Err(Coded(exit::FAILURE, String::new()).into()),
            false => Ok(()),
        }
    }
}

/// The names in a directory, as far as they can be read, and what came in the way.
fn listed(dir: &Path) -> (Vec<OsString>, Option<io::Error>) {
    let mut names = Vec::new();
    let failed = fs::read_dir(dir).and_then(|mut entries| {
        entries.try_for_each(|entry| {
            names.push(entry?.file_name());
            Ok(())
        })
    });
    names.sort_unstable();
    (names, failed.err())
}

/// Makes `dst`, where `to` is now, a further name of the file that was put at `first`.
fn link((first, dev, ino): &(PathBuf, u64, u64), dst: &Path, to: Option<&Metadata>) -> io::Result<()> {
    // Another argument may have replaced it.
    let there = fs::symlink_metadata(first)?;
    if (there.dev(), there.ino()) != (*dev, *ino) {
        return Err(io::Error::other("that was replaced"));
    }
    let Some(to) = to else { return fs::hard_link(first, dst) };
    if (there.dev(), there.ino()) == (to.dev(), to.ino()) {
        return Ok(());
    }
    // What is there is replaced at once, as by a clone.
    let beside = dst.with_file_name(format!(".pando-cp-{}", std::process::id()));
    fs::hard_link(first, &beside)?;
    fs::rename(&beside, dst).inspect_err(|_| _ = fs::remove_file(&beside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_in_a_dot_has_no_name_of_its_own() {
        let name = |path| own_name(Path::new(path)).map(OsStr::to_owned);
        assert_eq!(name("a/b"), Some("b".into()));
        assert_eq!(name("a/b/"), Some("b".into()));
        for dot in ["a/.", "a/./", ".", "..", "a/.."] {
            assert_eq!(name(dot), None, "{dot}");
        }
    }
}
