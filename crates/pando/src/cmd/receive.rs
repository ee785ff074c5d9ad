//! `pando receive`: makes a tree of a stream, or brings one to what a stream says.

use std::{
    ffi::{OsStr, OsString},
    io::{self, IsTerminal},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Component, Path, PathBuf},
    sync::{Arc, atomic::AtomicBool, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use pando_fs::{
    NewSnapshot, SnapshotInfo,
    send::{BlockOutcome, BlockReader, Header, Position, Receiver, StreamError, Totals},
};
use pando_fuse::tool;
use serde::{Deserialize, Serialize};

use crate::{
    cmd::send::point_text,
    image::ImagePath,
    offline,
    stream::{
        ground::{Ground, Mounted, NEW_NOTE, NOTE, begun_name},
        host::path_of,
        image::InImage,
    },
    tree::{Interrupted, Progress},
};

/// How often a receiver notes how far it is: after so many bytes of content, or so long.
const NOTE_EVERY_BYTES: u64 = 256 << 20;
const NOTE_INTERVAL: Duration = Duration::from_secs(20);
/// How often the thread that waits for the stream checks whether to stop.
const STOP_POLL: Duration = Duration::from_millis(200);

/// Make a tree of a stream of pando send
#[derive(clap::Args)]
#[command(
    after_help = "A whole snapshot becomes a new directory DIR/PATH, with a snapshot of the sent one's name. A
difference brings the directory DIR/PATH, which has received its base, to what was sent, and adds a
snapshot; what the directory was is kept as a snapshot too if it was changed since the base. Both
happen at once, when all has come and every checksum was right; until then all is made in
DIR/.pando-receive-TOKEN. If the stream breaks off, or is damaged, or Ctrl-C ends the command, what
has come right is kept, and it says how to go on: with the same stream from
its start, or with the rest of it (pando send --from). A difference whose name is a time that another
snapshot there is named by already gets the next free one, as TIME-2. DIR may be an image, or IMAGE:/DIR, that is
not mounted. Owners and device nodes need root. The stream is trusted to make any file, as tar is.

Examples: pando receive /mnt/store project < monday.pando
          pando send -i @monday /mnt/grove/project@tuesday | pando receive /mnt/store project
          pando receive store.img backups/project < monday.pando
          pando receive --resume 0123456789abcdef /mnt/store project < monday.pando
          pando receive --abort 0123456789abcdef /mnt/store project"
)]
pub struct Args {
    /// Go on with a receive that was interrupted
    #[arg(long, value_name = "TOKEN", conflicts_with = "abort")]
    resume: Option<String>,
    /// Throw away what an interrupted receive has left; reads no stream
    #[arg(long, value_name = "TOKEN")]
    abort: Option<String>,
    /// A directory of a mounted Pando, an image, or IMAGE:/DIR
    #[arg(value_name = "IMAGE-or-DIR")]
    to: PathBuf,
    /// The received directory in it; by default named as the one that was sent
    path: Option<PathBuf>,
}

/// How far a receive is, as it is noted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Note {
    version: u32,
    stream: String,
    block: u64,
    chain: u64,
    /// The file that was being written, in hexadecimal digits.
    current: Option<String>,
    records: u64,
    made: u64,
    bytes: u64,
}

pub fn run(args: &Args) -> Result<()> {
    if args.abort.is_none() && io::stdin().is_terminal() {
        bail!("receive: a stream is expected at stdin");
    }
    let mut path = PathBuf::new();
    for part in args.path.iter().flat_map(|path| path.components()) {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            _ => {
                let named = args.path.as_deref().unwrap_or(Path::new("")).display();
                bail!("{named}: PATH is a path inside of {}", args.to.display());
            }
        }
    }
    let path = (!path.as_os_str().is_empty()).then_some(path);
    let to_image = match std::fs::metadata(&args.to) {
        Ok(meta) if meta.is_dir() => None,
        Ok(_) => Some(ImagePath { image: args.to.clone(), path: "/".into() }),
        Err(_) => offline::place(&args.to),
    };
    match &args.abort {
        Some(token) => abort(args, token, path.as_deref(), to_image.as_ref()),
        None => receive(args, path, to_image.as_ref()),
    }
    .with_context(|| format!("receive to {}", args.to.display()))
}

fn abort(args: &Args, token: &str, path: Option<&Path>, to_image: Option<&ImagePath>) -> Result<()> {
    if token.len() != 16 || !token.bytes().all(|b| b.is_ascii_hexdigit()) {
        bail!("{token}: is no token");
    }
    let above = path.and_then(Path::parent).unwrap_or(Path::new(""));
    let name = path.and_then(Path::file_name).unwrap_or(OsStr::new("."));
    let clean = |ground: &mut dyn Ground| match ground.is_begun()? {
        true => {
            ground.lock()?;
            ground.clean()?;
            ground.sync()
        }
        false => bail!("nothing with the token {token} was begun here"),
    };
    match to_image {
        None => clean(&mut Mounted::new(&args.to.join(above), name, token, Arc::default())),
        Some(place) => offline::with(place, false, |fs| {
            clean(&mut InImage::new(fs, &place.path.join(above), name, token))
        }),
    }
}

fn receive(args: &Args, path: Option<PathBuf>, to_image: Option<&ImagePath>) -> Result<()> {
    let reader = BlockReader::new(io::stdin())?;
    let header = reader.header.clone();
    let path = match path {
        Some(path) => path,
        None => {
            let name = path_of(&header.source);
            match name.components().next() {
                Some(Component::Normal(only)) if only == name => name,
                _ => bail!("the stream has no name for the directory; give a PATH"),
            }
        }
    };
    if path.iter().any(|name| name == ".snapshots") {
        bail!("{}: .snapshots is where snapshots are seen, and can be made by no receive", path.display());
    }
    let above = path.parent().unwrap_or(Path::new(""));
    let name = path.file_name().unwrap_or_default();
    if name == NOTE || name == NEW_NOTE {
        bail!("{}: is a name that a receive needs for itself", path.display());
    }
    let token = token(&header, &path);
    let stop = Arc::<AtomicBool>::default();
    let work = |ground: &mut dyn Ground| {
        Work { args, header: &header, token: &token, path: &path, stop: stop.clone() }.all(ground, reader)
    };
    match to_image {
        None => {
            let dir = args.to.join(above);
            // What it is about is said before anything is made.
            tool::identity(&dir).with_context(|| format!("{}", dir.display()))?;
            work(&mut Mounted::new(&dir, name, &token, stop.clone()))
        }
        Some(place) => offline::with(place, false, |fs| {
            work(&mut InImage::new(fs, &place.path.join(above), name, &token))
        }),
    }
}

/// What an interrupted receive is called: the same for the same stream to the same place.
fn token(header: &Header, path: &Path) -> String {
    let id = header.stream_id();
    let mut hash = (id ^ id >> 64) as u64;
    for byte in path.as_os_str().as_bytes() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// A receive.
struct Work<'a> {
    args: &'a Args,
    header: &'a Header,
    token: &'a str,
    path: &'a Path,
    /// Raised by Ctrl-C once blocks come.
    stop: Arc<AtomicBool>,
}

/// A block, where it stands, and where the next one does.
type Block = (Vec<u8>, Position, u64, Position);

impl Work<'_> {
    fn all(&self, ground: &mut dyn Ground, reader: BlockReader<io::Stdin>) -> Result<()> {
        if let Some(token) = &self.args.resume
            && token != self.token
        {
            bail!("{token}: is not the token of this stream and place, which is {}", self.token);
        }
        let (base, name) = match self.base(&mut *ground)? {
            Found::Base(base, name) => (base, name),
            Found::Done => return ground.sync(),
        };
        let new =
            NewSnapshot { name: Some(name), received: Some(self.header.snapshot), ..NewSnapshot::default() };
        let note = self.begin(ground, base.as_ref())?;
        if let Err(error) = self.blocks(ground, reader, note) {
            return Err(self.stopped(ground, error));
        }
        let end = || {
            match &base {
                None => ground.appear(&new)?,
                Some(base) => {
                    let taken = ground.take(&new)?;
                    if taken.name.as_bytes() != self.header.name {
                        let (show, sent) = (ground.show(), String::from_utf8_lossy(&self.header.name));
                        let name = taken.name.display();
                        crate::exit::tell!(
                            "pando: {show}: has a snapshot {sent} of its own: what was sent is {name}"
                        );
                    }
                    self.become_snapshot(ground, base, &taken)?;
                }
            }
            // Until then it can be gone on with.
            ground.sync()?;
            ground.clean()?;
            // What was needed for that does not come back after a crash.
            ground.sync()
        };
        // The whole stream was received. If the tree cannot be put at its place, a later call can continue from here.
        end().map_err(|error| self.can_go_on(ground, error))
    }

    fn become_snapshot(&self, ground: &dyn Ground, base: &SnapshotInfo, to: &SnapshotInfo) -> Result<()> {
        if let Some(kept) = ground.become_snapshot(base, to)? {
            let (show, base) = (ground.show(), base.name.display());
            crate::exit::tell!(
                "pando: {show} was changed since {base}: what it was is the snapshot {}",
                kept.name.display()
            );
        }
        Ok(())
    }

    /// Looks whether the stream fits what is there.
    fn base(&self, ground: &mut dyn Ground) -> Result<Found> {
        let show = ground.show();
        let sent = OsString::from_vec(self.header.name.clone());
        let Some(base) = &self.header.base else {
            let received = |info: &SnapshotInfo| info.received == Some(self.header.snapshot);
            return match ground.exists()? {
                true if self.args.resume.is_some()
                    && ground.is_begun()?
                    && ground.snapshots()?.iter().any(received) =>
                {
                    // The last call was interrupted after the end of the stream.
                    ground.lock()?;
                    ground.clean()?;
                    Ok(Found::Done)
                }
                true => bail!("{show}: exists; a whole snapshot becomes a new directory"),
                false => Ok(Found::Base(None, sent)),
            };
        };
        if !ground.exists()? {
            bail!("{show}: does not exist; the stream is a difference: receive its base there first");
        }
        let all = ground.snapshots()?;
        let received = |id| all.iter().rev().find(|info| info.received == Some(id));
        let Some(base) = received(*base) else {
            let last = all.iter().rev().find(|info| info.received.is_some());
            let last = last.map_or("none".into(), |info| info.name.display().to_string());
            bail!(
                "{show}: has no snapshot that is the base of this stream (snapshot {} of store {:032x}; the last one \
                 received there: {last})",
                base.number,
                u128::from_be_bytes(base.store)
            );
        };
        if let Some(there) = received(self.header.snapshot) {
            if self.args.resume.is_some() && ground.is_begun()? {
                // The last call was interrupted after the end of the stream.
                ground.lock()?;
                // A directory that was changed after the last receive must not be set back.
                let changed = ground.is_changed(there)?;
                let left = changed && ground.is_changed(base)?;
                if changed && !left {
                    self.become_snapshot(ground, base, there)?;
                }
                ground.clean()?;
                if left {
                    let (base, there) = (base.name.display(), there.name.display());
                    bail!(
                        "what was sent is there as snapshot {there}, but {show} was changed since {base}, or since it \
                         became {there}, and was left as it is: pando rollback {show} {there} makes it {there}"
                    );
                }
                return Ok(Found::Done);
            }
            bail!("{show}: has received this already, as snapshot {}", there.name.display());
        }
        let Some(name) = free_name(&sent, &all) else {
            bail!("{show}: has another snapshot of the name {}; rename it first", sent.display());
        };
        Ok(Found::Base(Some(base.clone()), name))
    }

    /// Makes what is needed, or finds what an earlier one has left: how far that was.
    fn begin(&self, ground: &mut dyn Ground, base: Option<&SnapshotInfo>) -> Result<Note> {
        let stream = format!("{:032x}", self.header.stream_id());
        let mut note = Note { version: 1, stream: stream.clone(), ..Note::default() };
        let begun = ground.is_begun()?;
        match (&self.args.resume, begun) {
            (None, true) => {
                // It may not be interrupted at all, which the lock tells.
                ground.lock()?;
                bail!(
                    "an interrupted receive of this stream is there: go on with --resume {0}, or throw it away with \
                     --abort {0}",
                    self.token
                )
            }
            (Some(token), false) => bail!("nothing with the token {token} was begun here"),
            (Some(_), true) => {
                ground.lock()?;
                match ground.note()?.map(|text| serde_json::from_slice::<Note>(&text)) {
                    Some(Ok(found)) if found.version == 1 && found.stream == stream => note = found,
                    Some(_) => bail!(
                        "the note of the interrupted receive makes no sense; throw it away with --abort"
                    ),
                    None => {
                        // Nothing was received yet.
                        ground.clean()?;
                        ground.begin(base)?;
                        ground.lock()?;
                    }
                }
            }
            (None, false) => {
                ground.begin(base)?;
                ground.lock()?;
            }
        }
        Ok(note)
    }

    /// Applies all blocks. On an error that is no fault of the stream, how far it came is noted.
    fn blocks(
        &self,
        ground: &dyn Ground,
        mut reader: BlockReader<io::Stdin>,
        mut note: Note,
    ) -> Result<(), StreamError> {
        // This error is not about the stream, but about the directory around the tree.
        let path = ground.show();
        let other = |error: anyhow::Error| {
            let error = io::Error::other(format!("{error:#}"));
            StreamError::Tree { path: path.clone(), error }
        };
        let begin = Position { block: note.block, chain: note.chain };
        if self.header.from.block > begin.block {
            let text = format!(
                "the stream begins behind what has come; it must be sent --from {}",
                point_text(begin)
            );
            return Err(StreamError::Refused(text));
        }
        super::raise_when_interrupted(&self.stop).map_err(other)?;
        let progress = Progress::new("receiving", 0, self.stop.clone());
        let mut tree = ground.tree().map_err(other)?;
        let aside = format!(".pando-aside-{}", self.token).into_bytes();
        let current = note.current.as_deref().map(unhex);
        let totals = Totals { records: note.records, made: note.made, bytes: note.bytes };
        let mut receiver = match begin.block {
            0 => Receiver::new(&mut *tree, aside),
            _ => Receiver::resumed(&mut *tree, aside, current, totals)?,
        };
        if self.args.resume.is_some() {
            receiver.may_be_done();
        }
        let (mut noted, mut since) = (Instant::now(), 0);
        let mut step = BlockOutcome::default();
        let mut saved = note.block;
        let (blocks, queue) = mpsc::sync_channel::<Result<Block, StreamError>>(4);
        // The stream is read and checked in a thread of its own, for which nothing waits at the end: it may wait for
        // a stream that does not come.
        thread::spawn(move || {
            loop {
                let (at, byte) = (reader.position(), reader.bytes());
                let item = match reader.next_block() {
                    Ok(None) => return,
                    Ok(Some(block)) => Ok((block, at, byte, reader.position())),
                    Err(error) => Err(error),
                };
                let failed = item.is_err();
                if blocks.send(item).is_err() || failed {
                    return;
                }
            }
        });
        let mut each = |item: Result<Block, StreamError>| -> Result<(), StreamError> {
            let (block, at, byte, behind) = item?;
            if behind.block <= begin.block {
                if behind.block == begin.block && behind != begin {
                    let text = "the stream is not the one that was begun; throw that away with --abort";
                    return Err(StreamError::Refused(text.into()));
                }
                return Ok(());
            }
            if self.header.from.block == begin.block && at == self.header.from && at != begin {
                return Err(StreamError::Refused("the stream does not continue what has come".into()));
            }
            step = receiver.block(&block, at, byte)?;
            if step.ended {
                // The end is never recorded: a receiver that continues has to see it, so its block is sent again.
                return progress.advance(step.bytes).map_err(stopped);
            }
            let (current, totals) = receiver.state();
            note.current = current.map(hex);
            (note.block, note.chain) = (behind.block, behind.chain);
            (note.records, note.made, note.bytes) = (totals.records, totals.made, totals.bytes);
            since += step.bytes;
            if step.phase || since >= NOTE_EVERY_BYTES || noted.elapsed() >= NOTE_INTERVAL {
                ground.set_note(&serde_json::to_vec(&note).unwrap_or_default()).map_err(other)?;
                (noted, since, saved) = (Instant::now(), 0, note.block);
            }
            progress.advance(step.bytes).map_err(stopped)
        };
        let result = loop {
            let next = match queue.recv_timeout(STOP_POLL) {
                Ok(item) => each(item),
                Err(mpsc::RecvTimeoutError::Timeout) => progress.advance(0).map_err(stopped),
                Err(mpsc::RecvTimeoutError::Disconnected) => break Ok(()),
            };
            if next.is_err() {
                break next;
            }
        };
        if matches!(&result, Err(error) if error.can_resume()) && saved < note.block {
            let _ = ground.set_note(&serde_json::to_vec(&note).unwrap_or_default());
        }
        result?;
        match step.ended {
            true => Ok(()),
            false => Err(StreamError::Refused("the stream has no end".into())),
        }
    }

    /// After an error: what is left, and how to go on.
    fn stopped(&self, ground: &dyn Ground, error: StreamError) -> anyhow::Error {
        let token = self.token;
        // The record is right, but no place here accepts it, however often it comes.
        let never = match &error {
            StreamError::Tree { .. } => "this stream cannot be received here; ",
            _ => "",
        };
        // A stream of which nothing right has come has nothing to go on with.
        let none_came = || matches!(ground.note(), Ok(None));
        let can_resume = error.can_resume() && !(matches!(error, StreamError::Damaged { .. }) && none_came());
        if !can_resume && self.args.resume.is_some() {
            // What came before was right, and may have taken long.
            return anyhow::Error::from(error)
                .context(format!("{never}what had come before is kept (token {token})"));
        }
        if !can_resume {
            let cleaned = ground.clean();
            let error = anyhow::Error::from(error);
            return match cleaned {
                Ok(()) => error.context(format!("{never}nothing was changed")),
                Err(_) => {
                    error.context(format!("{never}what has come is left in {}", begun_name(token).display()))
                }
            };
        }
        self.can_go_on(ground, error.into())
    }

    /// Says how to go on.
    fn can_go_on(&self, ground: &dyn Ground, error: anyhow::Error) -> anyhow::Error {
        let (token, path) = (self.token, self.path.display());
        let to = self.args.to.display();
        let from = ground.note().ok().flatten().and_then(|note| serde_json::from_slice::<Note>(&note).ok());
        let rest = match from {
            Some(note) => format!(
                " (or with the rest of it, by pando send --from {})",
                point_text(Position { block: note.block, chain: note.chain })
            ),
            None => String::new(),
        };
        crate::exit::tell!(
            "pando: interrupted; go on with: pando receive --resume {token} {to} {path} < the same stream{rest}"
        );
        crate::exit::tell!(
            "pando: or throw away what has come with: pando receive --abort {token} {to} {path}"
        );
        error
    }
}

enum Found {
    /// The base, and the name that the received snapshot is to have.
    Base(Option<SnapshotInfo>, OsString),
    Done,
}

/// The name of a received snapshot: the one that was sent, or, if another one has it and it is only a time, as Pando
/// names snapshots by itself, that with the next number. A name that somebody has given is not changed.
fn free_name(sent: &OsStr, all: &[SnapshotInfo]) -> Option<OsString> {
    let is_free = |name: &OsStr| all.iter().all(|info| info.name != name);
    if is_free(sent) {
        return Some(sent.to_owned());
    }
    let time = time_of(sent.to_str()?)?;
    let names = (2..).map(|number: u64| OsString::from(format!("{time}-{number}")));
    names.take(all.len() + 1).find(|name| is_free(name))
}

/// The time that a name is, without the number of snapshots of the same second: `2026-11-24T13:45:00Z-2`.
fn time_of(name: &str) -> Option<&str> {
    const FORM: &[u8] = b"0000-00-00T00:00:00Z";
    let (time, number) = name.split_at_checked(FORM.len())?;
    let fits = |(byte, form): (u8, &u8)| if *form == b'0' { byte.is_ascii_digit() } else { byte == *form };
    let is_number =
        |text: &str| text.strip_prefix('-').is_some_and(|n| crate::one_version::number(n).is_some());
    (time.bytes().zip(FORM).all(fits) && (number.is_empty() || is_number(number))).then_some(time)
}

fn stopped(_: anyhow::Error) -> StreamError {
    StreamError::Io(io::Error::other(Interrupted))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    pairs.filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_times_get_a_number() {
        assert_eq!(time_of("2026-11-24T13:45:00Z"), Some("2026-11-24T13:45:00Z"));
        assert_eq!(time_of("2026-11-24T13:45:00Z-12"), Some("2026-11-24T13:45:00Z"));
        for other in [
            "monday",
            "2026-11-24",
            "2026-11-24T13:45:00Z-",
            "2026-11-24T13:45:00Z-x",
            "2026-11-24T13:45:00+2",
        ] {
            assert_eq!(time_of(other), None, "{other}");
        }
    }
}
