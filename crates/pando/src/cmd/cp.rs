//! `pando cp -a`: what `cp -a --reflink=always` would do, if the kernel passed that on to a file system like this.
//!
//! What does not exist at the destination is one clone, however large it is. Where both are directories they are
//! merged: what is in the source is put into what is there, and the directory gets the source's owner, mode
//! and times, as cp does it. Nothing is ever copied byte by byte.

use std::{
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
    let mut copier = Copier { args, failed: false };
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

/// One call: what fails is said, and the rest is copied all the same.
struct Copier<'a> {
    args: &'a Args,
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
            clone(src, dst, false)?;
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
                clone(src, dst, true)?;
                self.say(src, dst)
            }
        }
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
