//! Opening images: locks, waiting for a closing daemon, and messages that help.

use std::{
    ffi::{OsStr, OsString},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use clap::builder::{OsStringValueParser, TryMapValueParser, TypedValueParser, ValueParserFactory};
use pando_db::{
    Db, Merge, Options, PatchMerge,
    device::{Device, FileDevice},
};
use pando_fs::{Fs, FsMerge, MountOptions};
use pando_fuse::{DirectIo, mountinfo};
use rustix::fs::{FlockOperation, flock};

use crate::{
    exit::{self, Coded},
    memory,
};

/// How long a command waits for a daemon that is closing the image.
const CLOSING_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// After so long, and then so often, it looks whether another mount namespace keeps the image open.
const LOOK_ELSEWHERE: Duration = Duration::from_secs(1);

/// `image` as an absolute path without symlinks.
pub fn canonical(image: &Path) -> Result<PathBuf> {
    image.canonicalize().with_context(|| format!("{}", image.display()))
}

/// The directory on which `image` is mounted, if it is: by this name, by that of a loop device over it, or by that of
/// the file below it. Mounts by root, the owner of the image and the caller count.
pub fn mounted_on(image: &Path) -> Result<Option<PathBuf>> {
    for name in [image.to_owned()].into_iter().chain(other_names(image)) {
        if let Some(mount) = mountinfo::of_image(&name)?.pop() {
            return Ok(Some(mount.dir));
        }
    }
    // By another name of the file.
    let Ok(wanted) = image.metadata() else { return Ok(None) };
    let identity = |found: &std::fs::Metadata| (found.dev(), found.ino());
    let is_same = |mount: &mountinfo::Entry| {
        mount.is_pando_of(Some(wanted.uid()))
            && mount.source.metadata().is_ok_and(|found| identity(&found) == identity(&wanted))
    };
    Ok(mountinfo::all()?.into_iter().find(is_same).map(|mount| mount.dir))
}

/// The file below a loop device, and all loop devices over this file.
fn other_names(image: &Path) -> Vec<PathBuf> {
    let below = FileDevice::backing_file(image);
    let file = below.as_deref().unwrap_or(image);
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let devices = devices.filter(|e| e.file_name().as_encoded_bytes().starts_with(b"loop"));
    let devices = devices.map(|e| Path::new("/dev").join(e.file_name()));
    let over = devices.filter(|device| FileDevice::backing_file(device).is_some_and(|below| below == file));
    over.chain(below.clone()).collect()
}

/// Whether two paths (canonical) lead to one image: by links of a file, nodes of a device, or a loop device over it.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let found = path.metadata().ok()?;
        let is_device = found.file_type().is_block_device();
        Some(if is_device { (None, found.rdev()) } else { (Some(found.dev()), found.ino()) })
    };
    let Some(wanted) = identity(other) else { return false };
    identity(one) == Some(wanted) || other_names(one).iter().any(|name| identity(name) == Some(wanted))
}

/// Looks, now and then, for a process in another mount namespace that keeps a file system mounted.
struct Elsewhere {
    next: Instant,
}

impl Elsewhere {
    fn new() -> Self {
        Self { next: Instant::now() + LOOK_ELSEWHERE }
    }

    /// Why the image is not free, if it is time to look and there is such a process.
    fn look(&mut self, is_meant: impl Fn(&mountinfo::Entry) -> bool) -> Result<Option<String>> {
        if Instant::now() < self.next {
            return Ok(None);
        }
        self.next = Instant::now() + LOOK_ELSEWHERE;
        let found = mountinfo::elsewhere(|m| m.fstype == mountinfo::FSTYPE && is_meant(m))?;
        Ok(found.map(|e| {
            format!(
                "process {} ({}) still has it mounted, on {} in a mount namespace of its own (a container, for \
                 instance); the image is in use until it is unmounted there, or the last process there ends",
                e.pid,
                e.name,
                e.dir.display()
            )
        }))
    }
}

/// Opens the device of `image` (canonical), waiting for a daemon that is closing it.
pub fn open_device(image: &Path, read_only: bool, direct_io: DirectIo) -> Result<Arc<dyn Device>> {
    let device = once_closed(image, || FileDevice::open(image, read_only))?;
    with_direct_io(device.with_context(|| format!("{}", image.display()))?, image, direct_io)
}

/// What `open` makes of `image` (canonical), once no daemon that is closing it has it locked any more.
///
/// A lock whose holder still has the image mounted does not go away by itself: refused at once.
pub fn once_closed<T>(
    image: &Path,
    mut open: impl FnMut() -> pando_db::Result<T>,
) -> Result<pando_db::Result<T>> {
    let begin = Instant::now();
    let mut elsewhere = Elsewhere::new();
    loop {
        match open() {
            Err(pando_db::Error::Locked) => {}
            opened => return Ok(opened),
        }
        if let Some(dir) = mounted_on(image)? {
            let (image, dir) = (image.display(), dir.display());
            let text = format!("{image}: is mounted on {dir}; unmount it first (pando umount {dir})");
            return Err(Coded(exit::BUSY, text).into());
        }
        if let Some(why) = elsewhere.look(|m| m.source == image)? {
            return Err(Coded(exit::BUSY, format!("{}: {why}", image.display())).into());
        }
        if begin.elapsed() > CLOSING_PATIENCE {
            let text = format!(
                "{}: is in use by another process and not mounted here; \
                 wait until that ends (fuser {0} names it)",
                image.display()
            );
            return Err(Coded(exit::BUSY, text).into());
        }
        thread::sleep(POLL);
    }
}

/// Lets the requests of `device` go past the page cache of the host, or not.
fn with_direct_io(device: FileDevice, image: &Path, direct_io: DirectIo) -> Result<Arc<dyn Device>> {
    if direct_io == DirectIo::Off {
        return Ok(Arc::new(device));
    }
    let device = device.with_direct_io();
    if !device.is_direct() {
        let image = image.display();
        let what = format!("{image}: what it lies on takes no direct requests");
        if direct_io == DirectIo::On {
            bail!("{what}; -o direct_io=auto goes without");
        }
        log::warn!("{what}: its data goes through the page cache too");
    }
    Ok(Arc::new(device))
}

/// Opens the file system in `image` (canonical) for a command, past the page cache of the host where that can be. The
/// cache is the default of commands.
pub fn open(image: &Path, options: MountOptions) -> Result<Fs> {
    open_as(image, options.cache_bytes(memory::command_cache_bytes()), DirectIo::Auto)
}

/// [`open`], past the page cache of the host or not.
pub fn open_as(image: &Path, options: MountOptions, direct_io: DirectIo) -> Result<Fs> {
    let device = open_device(image, options.read_only, direct_io)?;
    Fs::open(device, options).map_err(|e| explain(image, e))
}

/// Opens the store in `image` (canonical) for reading, below the file system; and whether it is that of a
/// file system. A store that another program made with the engine's own upserts will do.
pub fn open_store(image: &Path) -> Result<(Db, bool)> {
    let device = open_device(image, true, DirectIo::Auto)?;
    let attempt = |merge: Arc<dyn Merge>| {
        let options = Options::default().cache_bytes(memory::command_cache_bytes());
        let options = options.merge(merge).read_only(true).background(false);
        Db::open(device.clone(), options)
    };
    match attempt(Arc::new(FsMerge)) {
        Ok(db) => Ok((db, true)),
        Err(first) => match attempt(Arc::new(PatchMerge)) {
            Ok(db) => Ok((db, false)),
            Err(_) => Err(explain(image, first.into())),
        },
    }
}

fn explain(image: &Path, e: pando_fs::Error) -> anyhow::Error {
    let hint = match &e {
        pando_fs::Error::Format(_) | pando_fs::Error::Engine(pando_db::Error::Format(_)) => {
            "; a new one is made by: pando mkfs IMAGE"
        }
        pando_fs::Error::Engine(pando_db::Error::Corrupt { .. }) | pando_fs::Error::Damaged { .. } => {
            "; see what is hit: pando check IMAGE"
        }
        _ => "",
    };
    let text = format!("{}: cannot be opened{hint}", image.display());
    anyhow::Error::from(e).context(text)
}

/// Waits until no process has `image` open any more, which was mounted as the device `mounted` (`major:minor`).
pub fn wait_until_closed(image: &Path, mounted: &str) -> Result<()> {
    let begin = Instant::now();
    let mut elsewhere = Elsewhere::new();
    let file = match std::fs::File::open(image) {
        Ok(file) => file,
        // The image was removed, so it does not matter how it was closed.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e).with_context(|| format!("{}", image.display())),
    };
    loop {
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).with_context(|| format!("{}", image.display())),
        }
        // Mounted again by someone else: the old daemon is done.
        if mounted_on(image)?.is_some() {
            return Ok(());
        }
        if let Some(why) = elsewhere.look(|m| m.device == mounted && m.source == image)? {
            return Err(Coded(exit::BUSY, format!("{}: unmounted, but {why}", image.display())).into());
        }
        if begin.elapsed() > CLOSING_PATIENCE {
            return Err(anyhow!("{}: unmounted, but its daemon has not closed it", image.display()));
        }
        thread::sleep(POLL);
    }
}

/// `IMAGE:/PATH` taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImagePath {
    /// The image.
    pub image: PathBuf,
    /// The path in it, beginning with `/`.
    pub path: PathBuf,
}

impl ImagePath {
    /// Takes `text` apart, whose bytes may be any.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let wrong = || format!("{text:?} is not of the form IMAGE:/PATH (IMAGE:/ is everything)");
        let cut =
            |at: usize| Some((OsStr::from_bytes(bytes.get(..at)?), OsStr::from_bytes(bytes.get(at + 1..)?)));
        let cuts = bytes.windows(2).enumerate().filter(|(at, pair)| *at > 0 && pair == b":/");
        let cuts: Vec<(&OsStr, &OsStr)> = cuts.filter_map(|(at, _)| cut(at)).collect();
        let first = cuts.first().ok_or_else(wrong)?;
        // An image whose own name contains ":/" wins over a shorter one that does not exist.
        let (image, path) = cuts.iter().find(|(image, _)| Path::new(image).is_file()).unwrap_or(first);
        Ok(ImagePath { image: image.into(), path: path.into() })
    }
}

impl ValueParserFactory for ImagePath {
    type Parser = TryMapValueParser<OsStringValueParser, fn(OsString) -> Result<ImagePath, String>>;

    fn value_parser() -> Self::Parser {
        OsStringValueParser::new().try_map(|text| ImagePath::parse(&text))
    }
}

impl std::fmt::Display for ImagePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.image.display(), self.path.display())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn image_and_path_are_taken_apart() {
        let parse = |t: &str| {
            ImagePath::parse(OsStr::new(t))
                .map(|p| (p.image.display().to_string(), p.path.display().to_string()))
        };
        assert_eq!(parse("a.img:/"), Ok(("a.img".into(), "/".into())));
        assert_eq!(parse("/x/a.img:/b/c:/d"), Ok(("/x/a.img".into(), "/b/c:/d".into())));
        for bad in ["a.img", "a.img:b", ":/x", ""] {
            assert!(parse(bad).unwrap_err().contains("IMAGE:/PATH"), "{bad}");
        }
        let place = ImagePath::parse(OsStr::from_bytes(b"a.img:/\xff")).unwrap();
        assert_eq!(
            (place.image.as_path(), place.path.as_os_str().as_bytes()),
            (Path::new("a.img"), &b"/\xff"[..])
        );
    }

    #[test]
    fn a_free_image_is_closed_at_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        wait_until_closed(file.path(), "").unwrap();
        wait_until_closed(Path::new("/nonexistent/image"), "").unwrap();
    }
}
