//! Control requests: the bytes in the ioctls of the tool.
//!
//! `pando clone` and its like open a file or directory of the mount and send one of these. Requests and answers share
//! one fixed struct of 2 KiB (statistics have a larger one), little-endian, checked field by field on both sides: a
//! request comes from any process that can open a directory, so nothing in it is trusted. A request names no inodes:
//! its objects, and the rights to them, are what the kernel has shown under its [`Token`] (see `proof`). An answer
//! has the error number and the message of the file system, which the tool prints.

mod token;
mod usage;

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

use pando_fs::TreeChange;

use crate::{
    asked::{Asked, MAX_NAME_BYTES},
    changes,
    forked::ForkAsked,
    quotas::QuotaAsked,
};

pub use token::Token;
pub use usage::{Usage, decode_usage, encode_usage};

/// Bytes of a control request and of its answer.
pub const CONTROL_BYTES: usize = 2048;
/// Bytes of a long answer: statistics, differences, and other texts and lists.
pub const LONG_BYTES: usize = 12 << 10;
/// First bytes of every request and answer, with the version of this format.
const MAGIC: [u8; 8] = *b"PANDOct2";
/// Our ioctl group.
const GROUP: u8 = b'P';

/// The struct as the kernel sees it.
pub type RequestBytes = [u8; CONTROL_BYTES];
/// The struct of a request with a long answer.
pub type LongBytes = [u8; LONG_BYTES];

/// ioctl numbers, by operation. FUSE carries them in 32 bits, all that Linux gives a number.
pub mod command {
    use rustix::ioctl::opcode;

    use crate::control::{GROUP, LongBytes, RequestBytes};

    /// The number of an operation that takes and gives a `T`. What type rustix has for it depends on the C library.
    const fn number<T>(operation: u8) -> u32 {
        opcode::read_write::<T>(GROUP, operation) as u32
    }

    /// Number of the request that asks whether this is a Pando mount.
    pub const PROBE: u32 = number::<RequestBytes>(0x40);
    /// Clones a tree.
    pub const CLONE: u32 = number::<RequestBytes>(0x41);
    /// Removes a tree.
    pub const REMOVE: u32 = number::<RequestBytes>(0x42);
    /// Makes everything durable.
    pub const SYNC: u32 = number::<RequestBytes>(0x43);
    /// Makes the file system larger.
    pub const GROW: u32 = number::<RequestBytes>(0x44);
    /// What a tree takes.
    pub const USAGE: u32 = number::<RequestBytes>(0x46);
    /// Statistics as JSON.
    pub const STATS: u32 = number::<LongBytes>(0x45);
    /// Something about snapshots.
    pub const SNAPSHOT: u32 = number::<RequestBytes>(0x48);
    /// Something about a difference, whose answer is long.
    pub const DIFF: u32 = number::<LongBytes>(0x49);
    /// UUID of the file system.
    pub const IDENTITY: u32 = number::<RequestBytes>(0x58);
    /// Something about forks, whose answer is long.
    pub const FORK: u32 = number::<LongBytes>(0x50);
    /// Something about quotas, whose answer is long.
    pub const QUOTA: u32 = number::<LongBytes>(0x51);
    /// All policies in a tree. The answer is long.
    pub const POLICIES: u32 = number::<LongBytes>(0x52);
    /// The snapshots of directories that are gone, whose answer is long.
    pub const GONE: u32 = number::<LongBytes>(0x53);
    /// What each of the snapshots of a directory takes, whose answer is long.
    pub const SPACE: u32 = number::<LongBytes>(0x54);
    /// Changes attributes of a tree.
    pub const CHANGE: u32 = number::<RequestBytes>(0x60);
    /// A new token.
    pub const TOKEN: u32 = number::<RequestBytes>(0x47);
}

/// What a tool asks the daemon to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlRequest {
    /// Is this a Pando mount?
    Probe,
    /// Give a token, with the file or directory that the request is sent on as its source; the answer's
    /// message is [`Token::hex`].
    Token,
    /// Clone the source of the token to `name` in its destination.
    Clone {
        /// Shows source and destination, and what is replaced.
        token: Token,
        /// The clone's name.
        name: OsString,
        /// Whether an existing destination is replaced.
        replace: bool,
        /// The clone remembers what it was then: it is a fork.
        track: bool,
        /// Paths in a source that is a directory, which the clone is to lack.
        exclude: Vec<PathBuf>,
    },
    /// Remove the file or whole tree that the token shows.
    Remove {
        /// Shows it.
        token: Token,
        /// Only if it is a fork.
        fork: bool,
    },
    /// Change attributes of all that is in the source of the token.
    Change {
        /// Shows it, and that the caller is root.
        token: Token,
        /// What to change.
        change: TreeChange,
    },
    /// Make everything done so far durable.
    Sync,
    /// Grow the file system to `size` bytes.
    Grow {
        /// Shows that the caller may write to the mount.
        token: Token,
        /// New size in bytes.
        size: u64,
    },
    /// What the source of the token takes; the answer's message is [`encode_usage`].
    Usage {
        /// Shows it.
        token: Token,
    },
    /// Something about the snapshots of the token's source; the answer's message names snapshots.
    Snapshot {
        /// Shows it, and what else it takes.
        token: Token,
        /// What is asked.
        asked: Asked,
    },
    /// Begin to tell what differs between two files or directories; the first piece of the answer.
    Diff {
        /// Shows the first, and that the caller is root.
        before: Token,
        /// Shows the second.
        after: Token,
        /// Which bytes of files differ.
        ranges: bool,
        /// Report files that moved as removed and added.
        no_renames: bool,
    },
    /// The next piece of the difference, or of the answer about forks, that was begun on this open file.
    DiffNext,
    /// Something about forks; the first piece of the answer.
    Fork {
        /// Shows the fork, or the directory whose forks are meant, and that the caller is root.
        token: Token,
        /// Shows the directory that a fork is to be merged into.
        into: Token,
        /// What is asked.
        asked: ForkAsked,
    },
    /// Name the policies for snapshots of the source of the token and of all below it; the first piece of the answer.
    Policies {
        /// Shows it, and that the caller is root.
        token: Token,
    },
    /// Name the snapshots of all directories that are gone; the first piece of the answer.
    Gone {
        /// Shows that the caller is root.
        token: Token,
    },
    /// What each of the snapshots of the source of the token takes; the first piece of the answer.
    Space {
        /// Shows it.
        token: Token,
    },
    /// Something about the quotas of the source of the token; the first piece of the answer.
    Quota {
        /// Shows it, and that the caller is root.
        token: Token,
        /// What is asked.
        asked: QuotaAsked,
    },
    /// Statistics.
    Stats,
    /// The UUID of the file system; the answer's message is 32 hexadecimal digits, its value 1
    /// if a file has, or had, several names.
    Identity,
}

/// What the daemon answers, apart from statistics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Response {
    /// 0 or a positive error number.
    pub status: i32,
    /// Depends on the request: process id of the daemon (probe), microseconds inside the
    /// daemon (clone, remove), 1 if the kernel keeps what is written (token), files whose data
    /// did not fit and is in no copy (making of a snapshot).
    pub value: u64,
    /// The error and what to do. On success the text of the answer, and for a clone the number of files, if any,
    /// whose data could not be stored and is in no copy.
    pub message: String,
}

/// Bit of the flags of a clone: an existing destination is replaced.
const REPLACE: u32 = 1;
/// The same: the clone is a fork.
const TRACK: u32 = 2;
/// Bit of the flags of a removal: of a fork only.
const ONLY_FORK: u32 = 1;
/// Bit of the flags of a difference: which bytes differ.
const RANGES: u32 = 1;
/// Bit of the same flags: moved files as removed and added.
const NO_RENAMES: u32 = 2;
/// Bit of the same flags: the next piece.
const NEXT: u32 = 4;
/// Size of what every request and answer begins with, bytes.
const HEADER_BYTES: usize = MAGIC.len() + 4 + 4;
/// Where the text of an answer begins, bytes from its start.
const RESPONSE_TEXT: usize = HEADER_BYTES + 8;
/// Where the text of statistics begins, bytes from the start of the answer.
const STATS_TEXT: usize = HEADER_BYTES;

struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn token(&mut self) -> Option<Token> {
        Some(Token(self.take(16)?.try_into().ok()?))
    }

    fn path(&mut self) -> Option<PathBuf> {
        let len = self.u32()? as usize;
        let path = self.take(len)?;
        (!path.is_empty() && !path.contains(&0)).then(|| PathBuf::from(OsStr::from_bytes(path)))
    }

    fn name(&mut self) -> Option<OsString> {
        let len = self.u32()? as usize;
        let name = OsStr::from_bytes(self.take(len)?);
        is_plain_name(name).then(|| name.to_owned())
    }
}

impl ControlRequest {
    /// The ioctl that carries this request.
    pub fn command(&self) -> u32 {
        match self {
            ControlRequest::Probe => command::PROBE,
            ControlRequest::Token => command::TOKEN,
            ControlRequest::Clone { .. } => command::CLONE,
            ControlRequest::Remove { .. } => command::REMOVE,
            ControlRequest::Change { .. } => command::CHANGE,
            ControlRequest::Sync => command::SYNC,
            ControlRequest::Grow { .. } => command::GROW,
            ControlRequest::Usage { .. } => command::USAGE,
            ControlRequest::Snapshot { .. } => command::SNAPSHOT,
            ControlRequest::Diff { .. } | ControlRequest::DiffNext => command::DIFF,
            ControlRequest::Fork { .. } => command::FORK,
            ControlRequest::Quota { .. } => command::QUOTA,
            ControlRequest::Policies { .. } => command::POLICIES,
            ControlRequest::Gone { .. } => command::GONE,
            ControlRequest::Space { .. } => command::SPACE,
            ControlRequest::Stats => command::STATS,
            ControlRequest::Identity => command::IDENTITY,
        }
    }

    /// The request as bytes; `None` if a name is too long or not a plain name, or there are too many paths.
    pub fn encode(&self) -> Option<Box<RequestBytes>> {
        let mut out = Vec::with_capacity(CONTROL_BYTES);
        out.extend_from_slice(&MAGIC);
        let flags = match self {
            ControlRequest::Clone { replace, track, .. } => {
                (if *replace { REPLACE } else { 0 }) | (if *track { TRACK } else { 0 })
            }
            ControlRequest::Remove { fork: true, .. } => ONLY_FORK,
            ControlRequest::DiffNext => NEXT,
            ControlRequest::Diff { ranges, no_renames, .. } => {
                (if *ranges { RANGES } else { 0 }) | (if *no_renames { NO_RENAMES } else { 0 })
            }
            _ => 0,
        };
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        match self {
            ControlRequest::Probe
            | ControlRequest::Token
            | ControlRequest::Sync
            | ControlRequest::Stats
            | ControlRequest::DiffNext
            | ControlRequest::Identity => {}
            ControlRequest::Diff { before, after, .. } => {
                out.extend_from_slice(&before.0);
                out.extend_from_slice(&after.0);
            }
            ControlRequest::Clone { token, name, exclude, .. } => {
                out.extend_from_slice(&token.0);
                out.extend_from_slice(&(name.len() as u32).to_le_bytes());
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(&(exclude.len() as u32).to_le_bytes());
                for path in exclude {
                    let path = path.as_os_str().as_bytes();
                    out.extend_from_slice(&(path.len() as u32).to_le_bytes());
                    out.extend_from_slice(path);
                }
            }
            ControlRequest::Remove { token, .. } | ControlRequest::Usage { token } => {
                out.extend_from_slice(&token.0)
            }
            ControlRequest::Change { token, change } => {
                out.extend_from_slice(&token.0);
                out.extend(changes::encode(change));
            }
            ControlRequest::Snapshot { token, asked } => {
                out.extend_from_slice(&token.0);
                out.extend_from_slice(&asked.encode());
            }
            ControlRequest::Fork { token, into, asked } => {
                out.extend_from_slice(&token.0);
                out.extend_from_slice(&into.0);
                out.extend_from_slice(&asked.encode());
            }
            ControlRequest::Policies { token }
            | ControlRequest::Gone { token }
            | ControlRequest::Space { token } => {
                out.extend_from_slice(&token.0);
            }
            ControlRequest::Quota { token, asked } => {
                out.extend_from_slice(&token.0);
                out.extend_from_slice(&asked.encode());
            }
            ControlRequest::Grow { token, size } => {
                out.extend_from_slice(&token.0);
                out.extend_from_slice(&size.to_le_bytes());
            }
        }
        if out.len() > CONTROL_BYTES {
            return None;
        }
        out.resize(CONTROL_BYTES, 0);
        // What the daemon would refuse is refused here, where the caller is known.
        Self::decode(self.command(), &out)?;
        let array: Box<[u8]> = out.into();
        array.try_into().ok()
    }

    /// A request from the bytes of ioctl `command`; `None` if they make no sense.
    pub fn decode(command: u32, bytes: &[u8]) -> Option<ControlRequest> {
        let mut r = FieldReader(bytes);
        if r.take(MAGIC.len())? != MAGIC {
            return None;
        }
        let flags = r.u32()?;
        r.u32()?;
        let allowed = match command {
            command::CLONE => REPLACE | TRACK,
            command::REMOVE => ONLY_FORK,
            command::DIFF if flags & NEXT == 0 => RANGES | NO_RENAMES,
            command::DIFF => NEXT,
            _ => 0,
        };
        if flags & !allowed != 0 {
            return None;
        }
        Some(match command {
            c if c == command::PROBE => ControlRequest::Probe,
            c if c == command::TOKEN => ControlRequest::Token,
            c if c == command::CLONE => {
                let token = r.token()?;
                let (name, count) = (r.name()?, r.u32()?);
                let exclude = (0..count).map(|_| r.path()).collect::<Option<_>>()?;
                let (replace, track) = (flags & REPLACE != 0, flags & TRACK != 0);
                ControlRequest::Clone { token, name, replace, track, exclude }
            }
            c if c == command::REMOVE => {
                ControlRequest::Remove { token: r.token()?, fork: flags & ONLY_FORK != 0 }
            }
            c if c == command::CHANGE => {
                ControlRequest::Change { token: r.token()?, change: changes::decode(r.0)? }
            }
            c if c == command::SYNC => ControlRequest::Sync,
            c if c == command::GROW => ControlRequest::Grow { token: r.token()?, size: r.u64()? },
            c if c == command::USAGE => ControlRequest::Usage { token: r.token()? },
            c if c == command::SNAPSHOT => {
                let token = r.token()?;
                ControlRequest::Snapshot { token, asked: Asked::decode(r.0)? }
            }
            c if c == command::DIFF && flags & NEXT != 0 => ControlRequest::DiffNext,
            c if c == command::DIFF => ControlRequest::Diff {
                before: r.token()?,
                after: r.token()?,
                ranges: flags & RANGES != 0,
                no_renames: flags & NO_RENAMES != 0,
            },
            c if c == command::FORK => {
                let (token, into) = (r.token()?, r.token()?);
                ControlRequest::Fork { token, into, asked: ForkAsked::decode(r.0)? }
            }
            c if c == command::QUOTA => {
                ControlRequest::Quota { token: r.token()?, asked: QuotaAsked::decode(r.0)? }
            }
            c if c == command::POLICIES => ControlRequest::Policies { token: r.token()? },
            c if c == command::GONE => ControlRequest::Gone { token: r.token()? },
            c if c == command::SPACE => ControlRequest::Space { token: r.token()? },
            c if c == command::STATS => ControlRequest::Stats,
            c if c == command::IDENTITY => ControlRequest::Identity,
            _ => return None,
        })
    }

    /// Whether `command` is one of ours.
    pub fn is_ours(command: u32) -> bool {
        use command::*;
        let all = [
            PROBE, TOKEN, CLONE, REMOVE, CHANGE, SYNC, GROW, USAGE, SNAPSHOT, DIFF, FORK, QUOTA, POLICIES,
            GONE, SPACE, STATS, IDENTITY,
        ];
        all.contains(&command)
    }
}

impl Response {
    /// The answer as bytes; a message that does not fit is cut.
    pub fn encode(&self) -> Vec<u8> {
        let mut end = self.message.len().min(CONTROL_BYTES - RESPONSE_TEXT);
        while !self.message.is_char_boundary(end) {
            end -= 1;
        }
        let mut out = Vec::with_capacity(CONTROL_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.status.to_le_bytes());
        out.extend_from_slice(&(end as u32).to_le_bytes());
        out.extend_from_slice(&self.value.to_le_bytes());
        out.extend_from_slice(&self.message.as_bytes()[..end]);
        out.resize(CONTROL_BYTES, 0);
        out
    }

    /// An answer from bytes; `None` if they make no sense.
    pub fn decode(bytes: &[u8]) -> Option<Response> {
        let mut r = FieldReader(bytes);
        if r.take(MAGIC.len())? != MAGIC {
            return None;
        }
        let status = r.u32()? as i32;
        let len = r.u32()? as usize;
        let value = r.u64()?;
        let message = String::from_utf8(r.take(len)?.to_vec()).ok()?;
        Some(Response { status, value, message })
    }
}

/// Statistics text as bytes; `None` if it does not fit.
pub fn encode_stats(text: &str) -> Option<Vec<u8>> {
    if text.len() > LONG_BYTES - STATS_TEXT {
        return None;
    }
    let mut out = Vec::with_capacity(LONG_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&0u32.to_le_bytes());
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    out.resize(LONG_BYTES, 0);
    Some(out)
}

/// Statistics text from bytes; `None` if they make no sense.
pub fn decode_stats(bytes: &[u8]) -> Option<String> {
    let mut r = FieldReader(bytes);
    if r.take(MAGIC.len())? != MAGIC || r.u32()? != 0 {
        return None;
    }
    let len = r.u32()? as usize;
    String::from_utf8(r.take(len)?.to_vec()).ok()
}

/// Bytes of a difference in one answer, at most.
pub(crate) const DIFF_PIECE_BYTES: usize = LONG_BYTES - RESPONSE_TEXT - UNSTORED_BYTES;

/// Bytes of the number behind a piece.
const UNSTORED_BYTES: usize = 8;

/// The answer with a piece of a difference, and with the number of files that have data which is stored nowhere; or the
/// refusal in `response`. The value of `response` is 1 if more pieces follow.
pub(crate) fn encode_piece(response: &Response, piece: &[u8], unstored: u64) -> Vec<u8> {
    let mut out = response.encode();
    if response.status == 0 {
        out.truncate(MAGIC.len() + 4);
        out.extend_from_slice(&(piece.len().min(DIFF_PIECE_BYTES) as u32).to_le_bytes());
        out.extend_from_slice(&response.value.to_le_bytes());
        out.extend_from_slice(piece.get(..piece.len().min(DIFF_PIECE_BYTES)).unwrap_or_default());
        out.extend_from_slice(&unstored.to_le_bytes());
    }
    out.resize(LONG_BYTES, 0);
    out
}

/// The reverse: the answer, without a message if it is none of a refusal, and the piece. `None` if it makes no sense.
pub(crate) fn decode_piece(bytes: &[u8]) -> Option<(Response, Vec<u8>, u64)> {
    let mut r = FieldReader(bytes);
    if r.take(MAGIC.len())? != MAGIC {
        return None;
    }
    let status = r.u32()? as i32;
    if status != 0 {
        return Some((Response::decode(bytes)?, Vec::new(), 0));
    }
    let len = r.u32()? as usize;
    let value = r.u64()?;
    let piece = r.take(len)?.to_vec();
    // A daemon of an earlier version may have filled all of the room.
    let unstored = r.u64().unwrap_or(0);
    Some((Response { status, value, message: String::new() }, piece, unstored))
}

/// A name as it must be for a request: one component, not `.` or `..`.
pub fn is_plain_name(name: &OsStr) -> bool {
    let b = name.as_bytes();
    !b.is_empty()
        && b.len() <= MAX_NAME_BYTES
        && b != b"."
        && b != b".."
        && !b.contains(&b'/')
        && !b.contains(&0)
}

#[cfg(test)]
mod tests;
