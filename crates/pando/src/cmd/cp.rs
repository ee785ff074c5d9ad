//! `pando cp -a`: does what `cp -a --reflink=always` would do if the kernel passed that to FUSE file systems.
//!
//! If the destination does not exist, the copy is one clone, however large it is. If both are directories, they are
//! merged: the entries of the source are put into the destination, which gets the source's owner, mode and times, as
//! with cp. Nothing is ever copied byte by byte. Of a file with several names the first one is cloned, and the others
//! become links to that; a directory that is one clone has its links inside as they were. No hard link can lead out
//! of a clone, so a directory is made and filled, instead of cloned, if a file in it has names elsewhere among the
//! sources.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    fs::{self, Metadata},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{MetadataExt, lchown},
        },
    },
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fs::{FileKind, Fs};
use pando_fuse::tool;
use rustix::{
    fs::{
        AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, XattrFlags, chmod, fstat, lremovexattr, lsetxattr,
        mkdirat, open, utimensat,
    },
    io::Errno,
    process::geteuid,
};

use crate::{
    below::readable_attrs_at,
    cmd::clone::clone_to,
    divided::Divided,
    exit::{self, Coded},
    offline,
    tree::lost::LISTS,
};

/// Copy files and trees by clones: a drop-in for cp -a --reflink=always inside one mount
#[derive(clap::Args)]
#[command(
    override_usage = "pando cp [OPTIONS] <SRC>... <DST>\n       pando cp [OPTIONS] -t <DIR> <SRC>...",
    after_help = "SRC goes into DST if that is a directory, or becomes it. Files that exist are replaced as a whole,
directories are merged. If DST is a symbolic link to a file, that file is replaced, as with cp; a link
in a directory that is copied into is replaced itself, because whoever may write there could otherwise
lead the copy elsewhere. Owner, mode, times and extended attributes are kept, which needs the right to
clone SRC: its owner or root. Copies between file systems are refused; use cp -a there. What cannot be
copied is said, and the rest is copied; the exit code is then 1. With -n, a file is not copied to
where something is, which is no failure.

Hard links are kept among all that one call copies. A directory that is new at the destination becomes
one clone, unless a file in it has a further name elsewhere among what is copied: then the directory is
made, and what is in it is copied one by one, down to where directories can be clones. Where not all
of that is the caller's, it is one clone, and a note says that links were not kept. To find that out,
all SRC are looked through, if there are several, or one is put into a directory that is there, and
the file system has hard links at all.

SRC and DST may also be IMAGE:/PATH, in one image that is not mounted. There directories are not
merged, and links are kept within each SRC only.

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
    if let Some(place) = offline::place(target) {
        return offline::with(&place, false, |fs| {
            Ok(copy_in_image(args, fs, sources, (target, &place.path)))
        })?;
    }
    let into = !args.no_target_directory && target.is_dir();
    if !into && (sources.len() > 1 || args.target_directory.is_some()) {
        bail!("cp: {}: is not a directory", target.display());
    }
    let one = sources.len() == 1;
    let mut copier = Copier {
        args,
        sources,
        alone: one,
        divided: None,
        linked: HashMap::new(),
        whole_dirs: false,
        failed: false,
        unsaid: None,
    };
    let mut names = NamesGiven::default();
    for src in sources {
        if into
            && !args.no_clobber
            && let Err(e) = names.give(src, fs::symlink_metadata(src).ok().map(|meta| meta.is_dir()))
        {
            copier.fail(&e);
            continue;
        }
        let goal = match into {
            // SRC that ends in /. or .. has no name of its own: its content goes there.
            true => Ok(Goal::at(target.join(own_name(src).unwrap_or(OsStr::new(""))))),
            false if args.no_clobber => Ok(Goal::at(target.clone())),
            false => Goal::named(src, target),
        };
        match goal {
            Ok(goal) => copier.copy(src, &goal),
            Err(e) => copier.fail(&e),
        }
    }
    copier.finish()
}

/// Copies in an image that is not mounted. Directories are not merged there.
fn copy_in_image(args: &Args, fs: &Fs, sources: &[PathBuf], (shown, target): (&Path, &Path)) -> Result<()> {
    let into = !args.no_target_directory && offline::kind(fs, target) == Some(FileKind::Directory);
    if !into && (sources.len() > 1 || args.target_directory.is_some()) {
        bail!("cp: {}: is not a directory", shown.display());
    }
    let mut names = NamesGiven::default();
    exit::each(sources, |src| {
        let Some((from, _)) = offline::pair(src, shown)? else { bail!("cp: {}", shown.display()) };
        let (to, shown) = match (into, own_name(&from.path)) {
            (true, Some(name)) => (target.join(name), shown.join(name)),
            (true, None) => bail!(
                "cp: {}: what is in a directory is merged into another only in a mounted file system",
                src.display()
            ),
            (false, _) => (target.to_owned(), shown.to_owned()),
        };
        let is_dir = |path: &Path| offline::kind(fs, path).map(|kind| kind == FileKind::Directory);
        if into && !args.no_clobber {
            names.give(src, is_dir(&from.path))?;
        }
        let replace = match (is_dir(&from.path), is_dir(&to)) {
            (Some(false), Some(_)) if args.no_clobber => return Ok(()),
            (Some(false), Some(false)) => from.path != to,
            (Some(true), Some(true)) => bail!(
                "cp: {}: is there already; directories are merged only in a mounted file system",
                shown.display()
            ),
            (Some(true), Some(false)) => {
                bail!("cp: {}: is not a directory, but {} is one", shown.display(), src.display())
            }
            (Some(false), Some(true)) => {
                bail!("cp: {}: is a directory, but {} is none", shown.display(), src.display())
            }
            _ => false,
        };
        offline::clone(fs, &from.path, &to, replace, &[])
            .with_context(|| format!("cp {} to {}", src.display(), shown.display()))?;
        match args.verbose {
            true => {
                super::print(&format!("{} -> {}\n", super::field(src, false), super::field(shown, false)))
            }
            false => Ok(()),
        }
    })
}

/// The names that one call gives in a directory, and which SRC has got each, and whether that is a directory.
#[derive(Default)]
struct NamesGiven(HashMap<OsString, (PathBuf, bool)>);

impl NamesGiven {
    /// Error if an earlier SRC has the same name and would be replaced by this one. Two directories of one name are
    /// merged. A SRC that does not exist (`is_dir` is `None`) gets no name.
    fn give(&mut self, src: &Path, is_dir: Option<bool>) -> Result<()> {
        let (Some(name), Some(is_dir)) = (own_name(src), is_dir) else { return Ok(()) };
        match self.0.get(name) {
            Some((earlier, was_dir)) if earlier != src && !(is_dir && *was_dir) => bail!(
                "cp: {}: would replace what {} has just become; copy it to another name",
                src.display(),
                earlier.display()
            ),
            Some(_) => {}
            None => _ = self.0.insert(name.to_owned(), (src.to_owned(), is_dir)),
        }
        Ok(())
    }
}

/// The last name of `path`, unless that is `.` or `..`.
fn own_name(path: &Path) -> Option<&OsStr> {
    let bytes = path.as_os_str().as_bytes();
    let ends_in_dot = bytes.ends_with(b"/.") || bytes.ends_with(b"/./");
    path.file_name().filter(|_| !ends_in_dot)
}

fn exists(dst: &Goal) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(&dst.way) {
        Ok(meta) => Ok(Some(meta)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| dst.about()),
    }
}

/// A destination: its path for messages, and its path for calls, which goes through the descriptor of an open
/// directory if there is one.
struct Goal {
    shown: PathBuf,
    way: PathBuf,
}

impl Goal {
    fn at(path: PathBuf) -> Goal {
        Goal { shown: path.clone(), way: path }
    }

    /// The destination of `src` that the caller has named: as with cp, a file goes through a link to a file into that,
    /// unless the file has other names, which would change with it. Then the link itself becomes the copy.
    fn named(src: &Path, dst: &Path) -> Result<Goal> {
        let goal = Goal::at(dst.to_owned());
        if !dst.is_symlink() || !fs::symlink_metadata(src).is_ok_and(|from| from.is_file()) {
            return Ok(goal);
        }
        match fs::metadata(dst) {
            Ok(to) if to.nlink() > 1 => Ok(goal),
            Ok(_) => Ok(Goal { way: dst.canonicalize().with_context(|| goal.about())?, ..goal }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                bail!("{}: is a symbolic link that leads nowhere, and is not written through", goal.about())
            }
            Err(e) => Err(e).with_context(|| goal.about()),
        }
    }

    fn about(&self) -> String {
        format!("cp: {}", self.shown.display())
    }
}

/// A directory that is held open, so that a change of the path to it cannot redirect the copy.
struct HeldDir {
    dir: OwnedFd,
    shown: PathBuf,
    way: PathBuf,
}

impl HeldDir {
    /// Error if there is a link, or no directory.
    fn open(goal: &Goal) -> io::Result<HeldDir> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = open(&goal.way, flags, Mode::empty())?;
        let by_number = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
        // Without /proc the path must do.
        let way = if by_number.exists() { by_number } else { goal.way.clone() };
        Ok(HeldDir { dir, shown: goal.shown.clone(), way })
    }

    fn goal(&self, name: &OsStr) -> Goal {
        Goal { shown: self.shown.join(name), way: self.way.join(name) }
    }

    /// The directory itself, which is no link by this path.
    fn itself(&self) -> PathBuf {
        self.way.join(".")
    }
}

/// The first copy of a file with several names, by path, device and inode number: further ones become names of that.
type FirstCopy = (PathBuf, u64, u64);

/// One call of the command: failures are reported, and the rest is copied.
struct Copier<'a> {
    args: &'a Args,
    sources: &'a [PathBuf],
    /// What comes next is all that is copied.
    alone: bool,
    /// Directories that must not become one clone; `None` until this was determined.
    divided: Option<Divided>,
    /// By device and inode number.
    linked: HashMap<(u64, u64), FirstCopy>,
    /// Whether a directory became one clone, with whatever names are in it.
    whole_dirs: bool,
    failed: bool,
    /// Why what is done could not be written.
    unsaid: Option<anyhow::Error>,
}

impl Copier<'_> {
    fn copy(&mut self, src: &Path, dst: &Goal) {
        if let Err(e) = self.try_copy(src, dst) {
            self.fail(&e);
        }
    }

    fn fail(&mut self, why: &anyhow::Error) {
        exit::say("pando", why);
        self.failed = true;
    }

    /// Reports a copy that is done. A failure of writing the report is reported at the end.
    fn say(&mut self, src: &Path, dst: &Goal) {
        if self.args.verbose && self.unsaid.is_none() {
            let line = format!("{} -> {}\n", super::field(src, false), super::field(&dst.shown, false));
            self.unsaid = super::print(&line).err();
        }
    }

    fn try_copy(&mut self, src: &Path, dst: &Goal) -> Result<()> {
        let from = fs::symlink_metadata(src).with_context(|| format!("cp: {}", src.display()))?;
        let Some(to) = exists(dst)? else {
            match from.is_dir() {
                true if self.is_divided(src) => return self.fill(src, dst, &from),
                true => self.clone_dir(src, dst)?,
                false => self.put(src, dst, &from, None)?,
            }
            self.say(src, dst);
            return Ok(());
        };
        let same = (from.dev(), from.ino()) == (to.dev(), to.ino());
        let shown = dst.shown.display();
        match (from.is_dir(), to.is_dir()) {
            _ if self.args.no_clobber && (same || !from.is_dir()) => Ok(()),
            _ if same => bail!("cp: {} and {shown} are the same", src.display()),
            (true, true) => self.merge(src, dst, &from),
            (true, false) => bail!("cp: {shown}: is not a directory, but {} is one", src.display()),
            (false, true) => bail!("cp: {shown}: is a directory, but {} is none", src.display()),
            (false, false) => {
                self.put(src, dst, &from, Some(&to))?;
                self.say(src, dst);
                Ok(())
            }
        }
    }

    fn clone_dir(&mut self, src: &Path, dst: &Goal) -> Result<()> {
        clone_to(src, (&dst.way, &dst.shown), false)?;
        self.whole_dirs = true;
        Ok(())
    }

    /// Makes `dst`, where `to` is now, what the file at `src` is: by a clone, or as a further name of one.
    fn put(&mut self, src: &Path, dst: &Goal, from: &Metadata, to: Option<&Metadata>) -> Result<()> {
        let clone = || clone_to(src, (&dst.way, &dst.shown), to.is_some()).map(drop);
        if from.nlink() < 2 {
            return clone();
        }
        let id = (from.dev(), from.ino());
        if let Some(first) = self.linked.get(&id) {
            match link(first, &dst.way, to) {
                Ok(()) => return Ok(()),
                Err(e) => crate::exit::tell!(
                    "pando: {}: is no further name of {}, as in the source, but a file of its own: {e}",
                    dst.about(),
                    first.0.display()
                ),
            }
            return clone();
        }
        clone()?;
        let made = fs::symlink_metadata(&dst.way).with_context(|| dst.about())?;
        self.linked.insert(id, (dst.shown.clone(), made.dev(), made.ino()));
        Ok(())
    }

    /// Whether a file in the directory `src` has a name outside of it that is copied too.
    fn is_divided(&mut self, src: &Path) -> bool {
        if self.alone {
            return false;
        }
        let sources = self.sources;
        let divided = self.divided.get_or_insert_with(|| {
            // A caller that may not ask may have linked files.
            let links = tool::identity(src).map_or(true, |(_, links)| links);
            Divided::among(if links { sources } else { &[] })
        });
        divided.has(src)
    }

    /// Makes the directory `dst`, and puts what is in `src` into it.
    fn fill(&mut self, src: &Path, dst: &Goal, meta: &Metadata) -> Result<()> {
        let fail = || dst.about();
        if place_of(&dst.way).starts_with(src.canonicalize().with_context(fail)?) {
            bail!("cp: {} lies inside {}", dst.shown.display(), src.display());
        }
        if !self.divided.as_ref().is_some_and(|divided| divided.may_be_filled(src)) {
            // The owner of a directory may clone it with the files of others in it, but may not clone those files
            // alone.
            self.clone_dir(src, dst)?;
            crate::exit::tell!(
                "pando: cp: {}: not all in it is yours, so it is one clone, and hard links from it to what is copied \
                 beside it were not kept",
                src.display()
            );
            self.say(src, dst);
            return Ok(());
        }
        mkdirat(CWD, &dst.way, Mode::RWXU).with_context(fail)?;
        let held = HeldDir::open(dst).with_context(fail)?;
        if fstat(&held.dir).map_err(io::Error::from).with_context(fail)?.st_uid != geteuid().as_raw() {
            bail!("{}: was replaced meanwhile", dst.about());
        }
        self.say(src, dst);
        self.put_inside(src, &held);
        let bits = set_owner(&held.itself(), meta);
        copy_attrs(src, &held.itself()).with_context(fail)?;
        set_mode_and_times(&held.itself(), meta, bits).with_context(fail)
    }

    fn put_inside(&mut self, src: &Path, dst: &HeldDir) {
        self.alone = false;
        let (names, failed) = listed(src);
        for name in names {
            self.copy(&src.join(&name), &dst.goal(&name));
        }
        if let Some(e) = failed {
            self.fail(&anyhow::Error::from(e).context(format!("cp: {}", src.display())));
        }
    }

    /// Puts what is in `src` into `dst`.
    fn merge(&mut self, src: &Path, dst: &Goal, meta: &Metadata) -> Result<()> {
        let fail = || dst.about();
        let held = HeldDir::open(dst).with_context(fail)?;
        if held.way.canonicalize().with_context(fail)?.starts_with(src.canonicalize().with_context(fail)?) {
            bail!("cp: {} lies inside {}", dst.shown.display(), src.display());
        }
        self.put_inside(src, &held);
        if self.args.no_clobber {
            return Ok(());
        }
        // Who may not set the times changes nothing, as with cp: others may set attributes where they may write.
        set_times(&held.itself(), meta).with_context(fail)?;
        let bits = set_owner(&held.itself(), meta);
        // Before the mode: without the old list the mode is not cut to a mask, and a set-group-id bit comes last.
        copy_attrs(src, &held.itself()).with_context(fail)?;
        set_mode_and_times(&held.itself(), meta, bits).with_context(fail)
    }

    fn finish(self) -> Result<()> {
        // Whether other names are in a directory that could be cloned, but not looked into, is not known.
        let unread = self.divided.as_ref().and_then(|divided| divided.unread.as_ref());
        if let (Some((dir, e)), true) = (unread, self.whole_dirs) {
            crate::exit::tell!(
                "pando: cp: {}: hard links from it to what is copied beside it, if there are any, were not kept: {e}",
                dir.display()
            );
        }
        if let Some(e) = self.unsaid {
            return Err(e);
        }
        match self.failed {
            true => Err(Coded(exit::FAILURE, String::new()).into()),
            false => Ok(()),
        }
    }
}

/// The names in a directory, as far as they can be read, and the error that ended the listing.
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

/// Where `path`, which need not be there, is, without links.
fn place_of(path: &Path) -> PathBuf {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let above = above.canonicalize().unwrap_or_else(|_| above.to_owned());
    path.file_name().map_or(above.clone(), |name| above.join(name))
}

/// Gives the directory `dst` the extended attributes of `src`, as far as the caller may, and takes the access lists
/// away that `src` does not have: a new directory inherits them, and one that was there gives rights by them. Other
/// attributes of `dst` stay, as with cp.
fn copy_attrs(src: &Path, dst: &Path) -> io::Result<()> {
    let (wanted, there) = (readable_attrs_at(src)?, readable_attrs_at(dst)?);
    let is_list = |name: &[u8]| LISTS.iter().any(|list| list.as_bytes() == name);
    for (name, _) in there.iter().filter(|(name, _)| is_list(name) && !wanted.iter().any(|(n, _)| n == name))
    {
        lremovexattr(dst, OsStr::from_bytes(name))?;
    }
    for (name, value) in wanted {
        match lsetxattr(dst, OsStr::from_bytes(&name), &value, XattrFlags::empty()) {
            Err(Errno::PERM | Errno::OPNOTSUPP) => {}
            done => done?,
        }
    }
    Ok(())
}

/// Gives the directory `dst` the owner and group that `meta` has, and returns which bits of the mode it may have then:
/// a user other than root may not give it away, and it must not act as another one does.
fn set_owner(dst: &Path, meta: &Metadata) -> u32 {
    match lchown(dst, Some(meta.uid()), Some(meta.gid())) {
        Ok(()) => 0o7777,
        Err(_) => {
            // As with cp -a: the owner stays.
            let _ = lchown(dst, None, Some(meta.gid()));
            0o777
        }
    }
}

fn set_mode_and_times(dst: &Path, meta: &Metadata, bits: u32) -> io::Result<()> {
    chmod(dst, Mode::from_raw_mode(meta.mode() & bits))?;
    set_times(dst, meta)
}

fn set_times(dst: &Path, meta: &Metadata) -> io::Result<()> {
    let time = |secs, nanos| Timespec { tv_sec: secs, tv_nsec: nanos };
    let times = Timestamps {
        last_access: time(meta.atime(), meta.atime_nsec()),
        last_modification: time(meta.mtime(), meta.mtime_nsec()),
    };
    Ok(utimensat(CWD, dst, &times, AtFlags::empty())?)
}

/// Makes `dst`, where `to` is now, a further name of the file that was put at `first`.
fn link((first, dev, ino): &FirstCopy, dst: &Path, to: Option<&Metadata>) -> io::Result<()> {
    // Another argument may have replaced it.
    let is_it = |path: &Path| match fs::symlink_metadata(path)? {
        there if (there.dev(), there.ino()) == (*dev, *ino) => Ok(()),
        _ => Err(io::Error::other("that was replaced")),
    };
    let link_at = |dst: &Path| {
        fs::hard_link(first, dst)?;
        // Or anybody, since it was looked at.
        is_it(dst).inspect_err(|_| _ = fs::remove_file(dst))
    };
    is_it(first)?;
    let Some(to) = to else { return link_at(dst) };
    if (*dev, *ino) == (to.dev(), to.ino()) {
        return Ok(());
    }
    // What is there is replaced at once, as by a clone.
    let beside = dst.with_file_name(format!(".pando-cp-{}", std::process::id()));
    link_at(&beside)?;
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
