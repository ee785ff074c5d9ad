//! Applies the records of a stream to a tree.
//!
//! The caller passes whole blocks, and stores its position after each. After an interruption the records behind the
//! stored position are applied again, which has the same result (`again`). Entries that have left their old path and
//! not reached their new one lie in a directory at the top of the tree. Guarantee: a stream that was applied to its
//! end had everything that its sender counted.

use std::io::{self, ErrorKind};

use crate::{
    family::SNAPSHOTS,
    send::{
        StreamError,
        frame::Position,
        record::{StreamRecord, Totals},
        tree::TargetTree,
    },
};

/// How far a receiver has come with a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockOutcome {
    /// Bytes of content that were written.
    pub bytes: u64,
    /// How far it is must be noted now, before anything else is done.
    pub phase: bool,
    /// This was the last block, and the stream was complete.
    pub ended: bool,
}

/// Applies a stream.
pub struct Receiver<'a> {
    target: &'a mut dyn TargetTree,
    /// Name of the directory for what was put aside.
    aside: Vec<u8>,
    /// Some of what comes may have been done.
    again: bool,
    /// The file that content is for.
    current: Option<Vec<u8>>,
    totals: Totals,
}

fn ignore(result: io::Result<()>, kind: ErrorKind) -> io::Result<bool> {
    match result {
        Err(e) if e.kind() == kind => Ok(false),
        other => other.map(|()| true),
    }
}

impl<'a> Receiver<'a> {
    /// Applies a stream from its first block.
    pub fn new(target: &'a mut dyn TargetTree, aside: Vec<u8>) -> Self {
        Self { target, aside, again: false, current: None, totals: Totals::default() }
    }

    /// Goes on where another one was.
    pub fn resumed(
        target: &'a mut dyn TargetTree,
        aside: Vec<u8>,
        current: Option<Vec<u8>>,
        totals: Totals,
    ) -> Result<Self, StreamError> {
        if let Some(path) = &current {
            target.open(path).map_err(StreamError::at(path))?;
        }
        Ok(Self { target, aside, again: true, current, totals })
    }

    /// Some of what comes was perhaps done by one that noted nothing behind the point where this one begins.
    pub fn may_be_done(&mut self) {
        self.again = true;
    }

    /// The state that a receiver needs to continue after an interruption.
    pub fn state(&self) -> (Option<&[u8]>, Totals) {
        (self.current.as_deref(), self.totals)
    }

    /// Does what a block says. `at` is where it stands, for messages: its number, and its first byte in the stream.
    pub fn block(&mut self, block: &[u8], at: Position, byte: u64) -> Result<BlockOutcome, StreamError> {
        let bad = |what: &str| StreamError::Senseless { at: byte, block: at.block, what: what.into() };
        let mut step = BlockOutcome::default();
        let mut rest = block;
        while !rest.is_empty() {
            if step.phase || step.ended {
                return Err(bad("a block goes on behind its end"));
            }
            let record =
                StreamRecord::decode(&mut rest).ok_or_else(|| bad("a record that makes no sense"))?;
            if record.makes() == Some(SNAPSHOTS) {
                let text = "there is an entry .snapshots at its top, where the snapshot itself is to be seen: it can \
                            be received nowhere";
                return Err(StreamError::Refused(text.into()));
            }
            match &record {
                StreamRecord::Phase => {
                    (step.phase, self.current) = (true, None);
                    self.put_away().map_err(StreamError::at(&self.aside))?;
                }
                StreamRecord::End(totals) => {
                    if *totals != self.totals {
                        return Err(bad("not all is there that was sent"));
                    }
                    if self.target.meta(&self.aside).is_ok() {
                        return Err(bad("something was put aside and has no place"));
                    }
                    self.target
                        .close()
                        .map_err(StreamError::at(self.current.as_deref().unwrap_or_default()))?;
                    (step.ended, self.current) = (true, None);
                    continue;
                }
                StreamRecord::Data { .. } | StreamRecord::Hole { .. } | StreamRecord::Size { .. } => {
                    let Some(path) = &self.current else { return Err(bad("content of no file")) };
                    let done = match &record {
                        StreamRecord::Data { offset, bytes } => self.target.write_at(*offset, bytes),
                        StreamRecord::Hole { offset, len } => self.target.punch(*offset, *len),
                        StreamRecord::Size { size } => self.target.set_len(*size),
                        _ => Ok(()),
                    };
                    done.map_err(StreamError::at(path))?;
                    if let StreamRecord::Data { bytes, .. } = &record {
                        step.bytes += bytes.len() as u64;
                    }
                }
                other => self.entry(other)?,
            }
            self.totals.add(&record);
        }
        Ok(step)
    }

    /// Makes, moves or removes something, or sets what is said of it.
    fn entry(&mut self, record: &StreamRecord<'_>) -> Result<(), StreamError> {
        let again = self.again;
        let t = &mut *self.target;
        let (path, done) = match record {
            StreamRecord::Dir { path } => {
                self.current = None;
                let made = t.mkdir(path);
                (path, if again { ignore(made, ErrorKind::AlreadyExists).map(|_| ()) } else { made })
            }
            StreamRecord::File { path } => {
                self.current = Some(path.to_vec());
                (path, t.create(path, again))
            }
            StreamRecord::Open { path } => {
                self.current = Some(path.to_vec());
                (path, t.open(path))
            }
            StreamRecord::Symlink { path, target } => {
                (path, made(t, path, again, |t| t.symlink(path, target)))
            }
            StreamRecord::Special { path, kind, rdev } => {
                let made = made(t, path, again, |t| t.special(path, *kind, *rdev));
                // The directory may be complete by now, and gives an access list to what is made in it again.
                (path, made.and_then(|()| if again { t.clear_xattrs(path) } else { Ok(()) }))
            }
            StreamRecord::Link { path, to } => (path, made(t, path, again, |t| t.link(to, path))),
            StreamRecord::Leave { path, number } => {
                let place = place(&self.aside, *number);
                let moved = ignore(t.mkdir(&self.aside), ErrorKind::AlreadyExists)
                    .and_then(|_| moved(t, path, &place, again));
                (path, moved)
            }
            StreamRecord::Arrive { path, number } => {
                let place = place(&self.aside, *number);
                (path, moved(t, &place, path, again))
            }
            StreamRecord::Remove { path, dir } => {
                let gone = if *dir { t.rmdir(path) } else { t.unlink(path) };
                (path, if again { ignore(gone, ErrorKind::NotFound).map(|_| ()) } else { gone })
            }
            StreamRecord::Owner { path, uid, gid } => (path, t.chown(path, *uid, *gid)),
            StreamRecord::NoXattrs { path } => (path, t.clear_xattrs(path)),
            StreamRecord::Xattr { path, name, value } => (path, t.set_xattr(path, name, value)),
            StreamRecord::Meta { path, uid, gid, perm, atime, mtime } => {
                let set = t.set_meta(path, (*uid, *gid), *perm, *atime, *mtime);
                self.current = None;
                (path, set)
            }
            StreamRecord::Phase
            | StreamRecord::End(_)
            | StreamRecord::Data { .. }
            | StreamRecord::Hole { .. }
            | StreamRecord::Size { .. } => {
                return Ok(());
            }
        };
        done.map_err(StreamError::at(path))
    }

    /// Removes the directory for what was put aside if all of that has arrived: before the last is said of the
    /// directory that it is in.
    fn put_away(&mut self) -> io::Result<()> {
        match self.target.rmdir(&self.aside) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::DirectoryNotEmpty) => Ok(()),
            other => other,
        }
    }
}

fn place(aside: &[u8], number: u64) -> Vec<u8> {
    [aside, b"/", number.to_string().as_bytes()].concat()
}

/// Makes something that is no directory; what is there is from the time before.
fn made(
    t: &mut dyn TargetTree,
    path: &[u8],
    again: bool,
    how: impl Fn(&mut dyn TargetTree) -> io::Result<()>,
) -> io::Result<()> {
    match how(t) {
        Err(e) if again && e.kind() == ErrorKind::AlreadyExists => {
            t.unlink(path)?;
            how(t)
        }
        other => other,
    }
}

/// Moves something; if it has been, it is there.
fn moved(t: &mut dyn TargetTree, from: &[u8], to: &[u8], again: bool) -> io::Result<()> {
    match t.rename(from, to) {
        Err(e) if again && e.kind() == ErrorKind::NotFound => t.meta(to).map(|_| ()).map_err(|_| e),
        other => other,
    }
}
