//! `pando send`: writes a snapshot, or the difference of two, as a stream.

use std::{
    cell::RefCell,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    rc::Rc,
    sync::mpsc,
    thread,
};

use anyhow::{Context, Result, bail};
use pando_fs::{
    DiffOptions, FileChange, SnapshotId, SnapshotInfo,
    send::{BlockWriter, FsTree, Header, Position, Sender, SourceTree, StreamError, StreamSize},
};
use pando_fuse::tool;

use crate::{
    image::ImagePath,
    offline, size,
    stream::host::TreeBelow,
    tree::{Interrupted, Progress},
};

/// Write a snapshot as a stream that pando receive reads, on any other Pando
#[derive(clap::Args)]
#[command(
    after_help = "SNAP is DIR@NAME, DIR@NUMBER or DIR/.snapshots/NAME, in a mounted file system or an image
(IMAGE:/DIR@NAME). The stream goes to stdout, compressed and with checksums; it holds files, not
blocks, so the receiver may have other nodes and another compression. With -i it holds what
differs from BASE, which the receiver must have received; that needs root. What you may not read
is an error: files of others need root. The attributes trusted.* are shown to root only, so what
others send is without them. What is mounted on something in a snapshot is in the way: unmount it, or
send from where it is not mounted.

Examples: pando send /mnt/grove/project@monday > monday.pando
          pando send /mnt/grove/project@monday | ssh host pando receive /mnt/store project
          pando send -i @monday /mnt/grove/project@tuesday | pando receive /mnt/store project
          pando send -n -i @monday /mnt/grove/project@tuesday"
)]
pub struct Args {
    /// Send only what differs from this snapshot: @NAME of the same directory, or as SNAP
    #[arg(short = 'i', long, value_name = "BASE")]
    base: Option<PathBuf>,
    /// Only say what would be sent, in bytes before compression; with --from of the rest, for which all is read
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// zstd, 1 (fast) to 19 (small); 0 does not compress
    #[arg(long, value_name = "LEVEL", default_value_t = 1, value_parser = clap::value_parser!(i32).range(0..=19))]
    level: i32,
    /// Go on at the point that an interrupted pando receive has named: BLOCK:CHAIN. Default: from the start
    #[arg(long, value_name = "POINT", value_parser = point)]
    from: Option<Position>,
    /// A snapshot: DIR@NAME, or DIR/.snapshots/NAME
    #[arg(value_name = "SNAP")]
    snapshot: PathBuf,
}

/// The point that `point_text` has said.
fn point(text: &str) -> Result<Position, String> {
    let parsed = || {
        let (block, chain) = text.split_once(':')?;
        Some(Position { block: block.parse().ok()?, chain: u64::from_str_radix(chain, 16).ok()? })
    };
    parsed().ok_or_else(|| "write it as the receiver has told it, like 12:0123456789abcdef".into())
}

/// A point in a stream as text.
pub fn point_text(at: Position) -> String {
    format!("{}:{:016x}", at.block, at.chain)
}

/// A directory, and the name or number of a snapshot of it.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    dir: PathBuf,
    name: OsString,
}

impl Named {
    fn new(path: &Path) -> Result<Named> {
        let above = path.parent().filter(|above| above.file_name() == Some(OsStr::new(".snapshots")));
        if let (Some(above), Some(name)) = (above, path.file_name()) {
            let dir = above.parent().unwrap_or(Path::new(""));
            let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            return Ok(Named { dir: dir.to_owned(), name: name.to_owned() });
        }
        let bytes = path.as_os_str().as_bytes();
        match bytes.iter().rposition(|b| *b == b'@').map(|at| (bytes.get(..at), bytes.get(at + 1..))) {
            Some((Some(dir), Some(name))) if !name.is_empty() && !name.contains(&b'/') => Ok(Named {
                dir: PathBuf::from(OsStr::from_bytes(dir)),
                name: OsStr::from_bytes(name).to_owned(),
            }),
            _ => bail!("{}: write a snapshot as DIR@NAME or DIR/.snapshots/NAME", path.display()),
        }
    }

    /// The base of a stream: its directory is that of the snapshot if none is given.
    fn base(path: &Path, snapshot: &Named) -> Result<Named> {
        let mut base = Named::new(path)?;
        if base.dir.as_os_str().is_empty() {
            base.dir.clone_from(&snapshot.dir);
        }
        Ok(base)
    }

    fn find(&self, all: &[SnapshotInfo]) -> Result<SnapshotInfo> {
        let number: Option<u32> = self.name.to_str().and_then(crate::one_version::number);
        let found = all.iter().find(|info| info.name == self.name || Some(info.number) == number);
        found.cloned().with_context(|| format!("{}: no snapshot {}", self.dir.display(), self.name.display()))
    }
}

/// The identity that a snapshot is sent under: that of the one it was received as.
fn identity(store: [u8; 16], info: &SnapshotInfo) -> SnapshotId {
    info.received.unwrap_or(SnapshotId { store, number: info.number, created: info.created })
}

/// Two trees, and what differs between them.
struct Base<'a> {
    info: SnapshotInfo,
    tree: &'a dyn SourceTree,
    changes: Vec<FileChange>,
    /// Whether there may be hard links.
    links: bool,
}

pub fn run(args: &Args) -> Result<()> {
    if !args.dry_run && io::stdout().is_terminal() {
        bail!("send: a stream is nothing for a terminal; redirect it to a file or a pipe");
    }
    let snapshot = Named::new(&args.snapshot)?;
    if snapshot.dir.as_os_str().is_empty() {
        bail!("{}: write a snapshot as DIR@NAME; the directory is missing", args.snapshot.display());
    }
    let base = args.base.as_deref().map(|base| Named::base(base, &snapshot)).transpose()?;
    let about = || format!("send {}", args.snapshot.display());
    match offline::place(&snapshot.dir) {
        Some(place) => {
            offline::with(&place, true, |fs| from_image(args, fs, &snapshot, base.as_ref(), &place))
        }
        None => from_mount(args, &snapshot, base.as_ref()),
    }
    .with_context(about)
}

fn from_mount(args: &Args, snapshot: &Named, base: Option<&Named>) -> Result<()> {
    let snapshots = |of: &Named| {
        tool::list_snapshots(&of.dir).with_context(|| format!("snapshots of {}", of.dir.display()))
    };
    let info = snapshot.find(&snapshots(snapshot)?)?;
    let path = |of: &Named, info: &SnapshotInfo| of.dir.join(".snapshots").join(&info.name);
    let (store, links) =
        tool::identity(&snapshot.dir).with_context(|| format!("{}", snapshot.dir.display()))?;
    let unstored = tool::unstored(&snapshot.dir).with_context(|| format!("{}", snapshot.dir.display()))?;
    super::warn_in_no_snapshot(unstored, &snapshot.dir);
    let top = path(snapshot, &info);
    let tree =
        TreeBelow::of_snapshot(&snapshot.dir, &info.name).with_context(|| format!("{}", top.display()))?;
    let Some(base) = base else { return write(args, store, snapshot, &info, &tree, None) };
    if !rustix::process::geteuid().is_root() {
        bail!("-i needs root: what you may not read would be left out unseen");
    }
    let base_info = base.find(&snapshots(base)?)?;
    let below = path(base, &base_info);
    let before =
        TreeBelow::of_snapshot(&base.dir, &base_info.name).with_context(|| format!("{}", below.display()))?;
    let options = DiffOptions { ranges: true, no_renames: false };
    let changes =
        tool::diff(&below, &top, options, &|| true).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let changes = changes.with_context(|| format!("{} and {}", below.display(), top.display()))?;
    write(args, store, snapshot, &info, &tree, Some(Base { info: base_info, tree: &before, changes, links }))
}

fn from_image(
    args: &Args,
    fs: &pando_fs::Fs,
    snapshot: &Named,
    base: Option<&Named>,
    place: &ImagePath,
) -> Result<()> {
    let roots = RefCell::new(Vec::new());
    let open = |of: &Named| -> Result<(SnapshotInfo, u64)> {
        let inside = offline::place(&of.dir).filter(|inside| inside.image == place.image);
        let inside = inside.with_context(|| format!("{}: is not in that image", of.dir.display()))?;
        let dir = fs.resolve(&inside.path).with_context(|| format!("{inside}"))?;
        let found = || -> Result<(SnapshotInfo, u64)> {
            let info = of.find(&fs.snapshots(dir.ino)?)?;
            let root = fs.open_snapshot(dir.ino, info.number)?;
            roots.borrow_mut().push(root.ino);
            Ok((info, root.ino))
        };
        let found = found();
        fs.forget(dir.ino, 1);
        found
    };
    let work = || -> Result<()> {
        let (info, top) = open(snapshot)?;
        let tree = FsTree::new(fs, top);
        let Some(base) = base else { return write(args, fs.uuid(), snapshot, &info, &tree, None) };
        let (base_info, below) = open(base)?;
        let options = DiffOptions { ranges: true, no_renames: false };
        let changes = fs.diff(None, below, top, options)?.collect::<Result<Vec<_>, _>>()?;
        let (before, links) = (FsTree::new(fs, below), fs.has_links());
        write(
            args,
            fs.uuid(),
            snapshot,
            &info,
            &tree,
            Some(Base { info: base_info, tree: &before, changes, links }),
        )
    };
    let done = work();
    for root in roots.take() {
        fs.forget(root, 1);
    }
    done
}

/// Sends all, or what differs from `base`.
fn stream(sender: Sender<'_>, base: Option<Base<'_>>) -> Result<StreamSize, StreamError> {
    match base {
        None => sender.full(),
        Some(base) => sender.difference(base.tree, base.changes, base.links),
    }
}

fn write(
    args: &Args,
    store: [u8; 16],
    snapshot: &Named,
    info: &SnapshotInfo,
    tree: &dyn SourceTree,
    base: Option<Base<'_>>,
) -> Result<()> {
    let source = snapshot.dir.file_name().map(OsStr::to_owned);
    let source = source.or_else(|| snapshot.dir.canonicalize().ok()?.file_name().map(OsStr::to_owned));
    let header = Header {
        snapshot: identity(store, info),
        base: base.as_ref().map(|base| identity(store, &base.info)),
        name: info.name.as_bytes().to_vec(),
        source: source.unwrap_or_default().as_bytes().to_vec(),
        from: args.from.unwrap_or_default(),
    };
    if header.base == Some(header.snapshot) {
        bail!("a snapshot does not differ from itself");
    }
    let progress = Rc::new(Progress::new("sending", 0, super::interrupt_flag()?));
    let mut advance = |bytes: u64| {
        let interrupted = |_| StreamError::Io(io::Error::other(Interrupted));
        progress.advance(bytes).map_err(interrupted)
    };
    if args.dry_run && header.from != Position::default() {
        // Where a block begins, and whether this is the stream that was begun, only its content tells.
        let (mut blocks, mut rest) = (BlockWriter::new(io::sink(), &header, 0), 0);
        let mut number = 0;
        let mut sink = |block: Vec<u8>, last| {
            rest += if number < header.from.block { 0 } else { block.len() as u64 };
            number += 1;
            blocks.block(&block, last)
        };
        stream(Sender::new(tree, Some(&mut sink), &mut advance), base)?;
        let shown = size::show(rest);
        return super::print(&format!("{shown} ({rest} bytes) before compression, behind that point\n"));
    }
    if args.dry_run {
        let size = stream(Sender::new(tree, None, &mut advance), base)?;
        return super::print(&format!(
            "{} ({} bytes) before compression: {} new files, directories and names; {} of content\n",
            size::show(size.bytes),
            size.bytes,
            size.totals.made,
            size::show(size.totals.bytes),
        ));
    }
    // A thread compresses and writes while this one reads.
    let (blocks, queue) = mpsc::sync_channel::<(Vec<u8>, bool)>(4);
    let level = args.level;
    let writer = thread::spawn(move || -> Result<u64, StreamError> {
        let out = BufWriter::with_capacity(1 << 20, File::from(io::stdout().lock_fd()?));
        let mut out = BlockWriter::new(out, &header, level);
        for (block, last) in queue {
            out.block(&block, last)?;
        }
        let written = out.written;
        out.finish()?.flush().map_err(StreamError::Io)?;
        Ok(written)
    });
    let gone = || StreamError::Io(io::ErrorKind::BrokenPipe.into());
    let mut sink = |block: Vec<u8>, last| blocks.send((block, last)).map_err(|_| gone());
    let sent = stream(Sender::new(tree, Some(&mut sink), &mut advance), base);
    drop(blocks);
    let written = writer.join().unwrap_or_else(|_| Err(gone()));
    // The writer's error is the reason why it took no more blocks.
    match (sent, written) {
        (Ok(_), Ok(_)) => Ok(()),
        (_, Err(error)) => Err(error.into()),
        (Err(error), _) => Err(error.into()),
    }
}

trait LockFd {
    fn lock_fd(&self) -> Result<std::os::fd::OwnedFd, StreamError>;
}

impl LockFd for io::Stdout {
    /// A descriptor of stdout that is not buffered by lines.
    fn lock_fd(&self) -> Result<std::os::fd::OwnedFd, StreamError> {
        use std::os::fd::AsFd;
        self.as_fd().try_clone_to_owned().map_err(StreamError::Io)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn snapshots_are_named_in_two_ways() {
        let named = |text: &str| Named::new(Path::new(text)).map(|n| (n.dir, n.name));
        let is = |dir: &str, name: &str| (PathBuf::from(dir), OsString::from(name));
        assert_eq!(named("a/b@c").unwrap(), is("a/b", "c"));
        assert_eq!(named("a@x/b@7").unwrap(), is("a@x/b", "7"));
        assert_eq!(named("a/.snapshots/c@d").unwrap(), is("a", "c@d"));
        assert_eq!(named(".snapshots/c/").unwrap(), is(".", "c"));
        for bad in ["a/b", "a@b/c", "a@", ""] {
            assert!(named(bad).is_err(), "{bad}");
        }
        let snapshot = Named::new(Path::new("a@b")).unwrap();
        assert_eq!(Named::base(Path::new("@c"), &snapshot).unwrap().dir, PathBuf::from("a"));
        assert_eq!(point(&point_text(Position { block: 7, chain: 9 })), Ok(Position { block: 7, chain: 9 }));
        assert!(point("7").is_err() && point("x:1").is_err());
    }
}
