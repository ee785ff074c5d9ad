//! Control requests: the bytes that travel in our ioctls.
//!
//! `pando clone` and its like open a directory of the mount and send one of
//! these. Requests and answers share one fixed struct of 2 KiB (statistics
//! have a larger one), little-endian, checked field by field on both sides: a
//! request comes from any process that can open a directory, so nothing in
//! it is trusted. An answer carries the error number and the message of the
//! file system, so that the tool can say what the daemon knows.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use rustix::ioctl::{Opcode, opcode};

/// Bytes of a control request and of its answer.
pub const SIZE: usize = 2048;
/// Bytes of the answer to a statistics request.
pub const STATS_SIZE: usize = 12 << 10;
/// First bytes of every request and answer, with the version of this format.
const MAGIC: [u8; 8] = *b"PANDOct1";
/// Longest name that fits.
pub const NAME_MAX: usize = 255;
/// Our ioctl group.
const GROUP: u8 = b'P';

/// The struct as the kernel sees it.
pub type Bytes = [u8; SIZE];
/// The struct of a statistics request.
pub type StatsBytes = [u8; STATS_SIZE];

/// ioctl numbers, by operation.
pub mod command {
    use super::{Bytes, GROUP, Opcode, StatsBytes, opcode};

    /// Asks whether this is a Pando mount.
    pub const PROBE: Opcode = opcode::read_write::<Bytes>(GROUP, 0x40);
    /// Clones a tree.
    pub const CLONE: Opcode = opcode::read_write::<Bytes>(GROUP, 0x41);
    /// Removes a tree.
    pub const REMOVE: Opcode = opcode::read_write::<Bytes>(GROUP, 0x42);
    /// Makes everything durable.
    pub const SYNC: Opcode = opcode::read_write::<Bytes>(GROUP, 0x43);
    /// Makes the file system larger.
    pub const GROW: Opcode = opcode::read_write::<Bytes>(GROUP, 0x44);
    /// What a tree takes.
    pub const USAGE: Opcode = opcode::read_write::<Bytes>(GROUP, 0x46);
    /// Statistics as JSON.
    pub const STATS: Opcode = opcode::read_write::<StatsBytes>(GROUP, 0x45);
}

/// What a tool asks the daemon to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Is this a Pando mount?
    Probe,
    /// Clone the tree at `source` to `destination`, each a directory's `st_ino` and a name in it.
    Clone {
        /// What to clone.
        source: (u64, OsString),
        /// Where the clone goes.
        destination: (u64, OsString),
        /// Whether an existing destination is replaced.
        replace: bool,
    },
    /// Remove a file or a whole tree.
    Remove {
        /// A directory's `st_ino` and a name in it.
        target: (u64, OsString),
    },
    /// Make everything done so far durable.
    Sync,
    /// Grow the file system to `size` bytes.
    Grow {
        /// New size in bytes.
        size: u64,
    },
    /// What a file or tree takes; the answer's message is [`encode_usage`].
    Usage {
        /// Its `st_ino`.
        ino: u64,
    },
    /// Statistics.
    Stats,
}

/// What the daemon answers, apart from statistics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Response {
    /// 0 or a positive error number.
    pub status: i32,
    /// Depends on the request: process id of the daemon (probe), microseconds inside the
    /// daemon (clone, remove).
    pub value: u64,
    /// What went wrong and what to do, empty on success.
    pub message: String,
}

const REPLACE: u32 = 1;
const HEADER: usize = MAGIC.len() + 4 + 4;
const RESPONSE_TEXT: usize = HEADER + 8;
const STATS_TEXT: usize = HEADER;

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
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

    fn name(&mut self) -> Option<(u64, OsString)> {
        let parent = self.u64()?;
        let len = self.u32()? as usize;
        let name = self.take(len)?;
        let plain = !name.is_empty()
            && name.len() <= NAME_MAX
            && name != b"."
            && name != b".."
            && !name.iter().any(|&b| b == 0 || b == b'/');
        plain.then(|| (parent, OsString::from_vec(name.to_vec())))
    }
}

fn put_name(out: &mut Vec<u8>, (parent, name): &(u64, OsString)) {
    out.extend_from_slice(&parent.to_le_bytes());
    out.extend_from_slice(&(name.len() as u32).to_le_bytes());
    out.extend_from_slice(name.as_bytes());
}

impl Request {
    /// The ioctl that carries this request.
    pub fn command(&self) -> Opcode {
        match self {
            Request::Probe => command::PROBE,
            Request::Clone { .. } => command::CLONE,
            Request::Remove { .. } => command::REMOVE,
            Request::Sync => command::SYNC,
            Request::Grow { .. } => command::GROW,
            Request::Usage { .. } => command::USAGE,
            Request::Stats => command::STATS,
        }
    }

    /// The request as bytes; `None` if a name is too long or not a plain name.
    pub fn encode(&self) -> Option<Box<Bytes>> {
        let mut out = Vec::with_capacity(SIZE);
        out.extend_from_slice(&MAGIC);
        let flags = match self {
            Request::Clone { replace: true, .. } => REPLACE,
            _ => 0,
        };
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        match self {
            Request::Probe | Request::Sync | Request::Stats => {}
            Request::Clone { source, destination, .. } => {
                put_name(&mut out, source);
                put_name(&mut out, destination);
            }
            Request::Remove { target } => put_name(&mut out, target),
            Request::Grow { size: number } | Request::Usage { ino: number } => {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        if out.len() > SIZE {
            return None;
        }
        out.resize(SIZE, 0);
        // What the daemon would refuse is refused here, where the caller is known.
        Self::decode(self.command(), &out)?;
        let array: Box<[u8]> = out.into();
        array.try_into().ok()
    }

    /// A request from the bytes of ioctl `command`; `None` if they make no sense.
    pub fn decode(command: u32, bytes: &[u8]) -> Option<Request> {
        let mut r = Reader(bytes);
        if r.take(MAGIC.len())? != MAGIC {
            return None;
        }
        let flags = r.u32()?;
        r.u32()?;
        let allowed = if command == command::CLONE { REPLACE } else { 0 };
        if flags & !allowed != 0 {
            return None;
        }
        Some(match command {
            c if c == command::PROBE => Request::Probe,
            c if c == command::CLONE => {
                let source = r.name()?;
                Request::Clone { source, destination: r.name()?, replace: flags & REPLACE != 0 }
            }
            c if c == command::REMOVE => Request::Remove { target: r.name()? },
            c if c == command::SYNC => Request::Sync,
            c if c == command::GROW => Request::Grow { size: r.u64()? },
            c if c == command::USAGE => Request::Usage { ino: r.u64()? },
            c if c == command::STATS => Request::Stats,
            _ => return None,
        })
    }

    /// Whether `command` is one of ours.
    pub fn is_ours(command: u32) -> bool {
        use command::*;
        [PROBE, CLONE, REMOVE, SYNC, GROW, USAGE, STATS].contains(&command)
    }
}

impl Response {
    /// The answer as bytes; a message that does not fit is cut.
    pub fn encode(&self) -> Vec<u8> {
        let mut end = self.message.len().min(SIZE - RESPONSE_TEXT);
        while !self.message.is_char_boundary(end) {
            end -= 1;
        }
        let mut out = Vec::with_capacity(SIZE);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.status.to_le_bytes());
        out.extend_from_slice(&(end as u32).to_le_bytes());
        out.extend_from_slice(&self.value.to_le_bytes());
        out.extend_from_slice(&self.message.as_bytes()[..end]);
        out.resize(SIZE, 0);
        out
    }

    /// An answer from bytes; `None` if they make no sense.
    pub fn decode(bytes: &[u8]) -> Option<Response> {
        let mut r = Reader(bytes);
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

/// What a tree takes, in bytes: seen by readers, kept for it, and of that its own, shared and estimated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // see the fields of the same names of `pando_fs::Usage`
pub struct Usage {
    pub visible: u64,
    pub stored: u64,
    pub exclusive: u64,
    pub shared: u64,
    pub estimated: u64,
}

impl From<&pando_fs::Usage> for Usage {
    fn from(usage: &pando_fs::Usage) -> Self {
        Self {
            visible: usage.visible_bytes,
            stored: usage.stored_bytes,
            exclusive: usage.exclusive_bytes,
            shared: usage.shared_bytes,
            estimated: usage.estimated_bytes,
        }
    }
}

/// The message of the answer to [`Request::Usage`].
pub fn encode_usage(u: &Usage) -> String {
    format!("{} {} {} {} {}", u.visible, u.stored, u.exclusive, u.shared, u.estimated)
}

/// The reverse of [`encode_usage`]; `None` if it makes no sense.
pub fn decode_usage(text: &str) -> Option<Usage> {
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    let usage =
        Usage { visible: next()?, stored: next()?, exclusive: next()?, shared: next()?, estimated: next()? };
    numbers.next().is_none().then_some(usage)
}

/// Statistics text as bytes; `None` if it does not fit.
pub fn encode_stats(text: &str) -> Option<Vec<u8>> {
    if text.len() > STATS_SIZE - STATS_TEXT {
        return None;
    }
    let mut out = Vec::with_capacity(STATS_SIZE);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&0u32.to_le_bytes());
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    out.resize(STATS_SIZE, 0);
    Some(out)
}

/// Statistics text from bytes; `None` if they make no sense.
pub fn decode_stats(bytes: &[u8]) -> Option<String> {
    let mut r = Reader(bytes);
    if r.take(MAGIC.len())? != MAGIC || r.u32()? != 0 {
        return None;
    }
    let len = r.u32()? as usize;
    String::from_utf8(r.take(len)?.to_vec()).ok()
}

/// A name as it must be for a request: one component, not `.` or `..`.
pub fn is_plain_name(name: &OsStr) -> bool {
    let b = name.as_bytes();
    !b.is_empty() && b.len() <= NAME_MAX && b != b"." && b != b".." && !b.contains(&b'/') && !b.contains(&0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn name(s: &str) -> (u64, OsString) {
        (7, s.into())
    }

    #[test]
    fn requests_come_back_as_they_were() {
        let long = "x".repeat(NAME_MAX);
        for request in [
            Request::Probe,
            Request::Sync,
            Request::Stats,
            Request::Grow { size: u64::MAX },
            Request::Usage { ino: 77 },
            Request::Remove { target: name("a b\nc") },
            Request::Clone { source: name(&long), destination: name(&long), replace: true },
            Request::Clone { source: name("s"), destination: name("d"), replace: false },
        ] {
            let bytes = request.encode().unwrap();
            assert_eq!(Request::decode(request.command(), &bytes[..]), Some(request));
        }
    }

    #[test]
    fn names_that_are_no_names_are_refused() {
        for bad in ["", ".", "..", "a/b", "nul\0", &"x".repeat(NAME_MAX + 1)] {
            assert_eq!(Request::Remove { target: name(bad) }.encode(), None, "{bad:?}");
            assert!(!is_plain_name(OsStr::new(bad)), "{bad:?}");
        }
    }

    #[test]
    fn garbage_is_refused_at_every_length() {
        let good = Request::Clone { source: name("s"), destination: name("d"), replace: false };
        let bytes = good.encode().unwrap();
        for n in 0..HEADER + 2 * 13 {
            assert_eq!(Request::decode(command::CLONE, &bytes[..n]), None, "{n} bytes");
        }
        for at in 0..HEADER - 4 {
            let mut bent = bytes.clone();
            bent[at] ^= 0x80;
            assert_eq!(Request::decode(command::CLONE, &bent[..]), None, "bent at {at}");
        }
        assert_eq!(Request::decode(0x1234, &bytes[..]), None);
    }

    #[test]
    fn answers_come_back_and_long_messages_are_cut_at_a_character() {
        let mut answer = Response { status: 17, value: 5, message: "exists".into() };
        assert_eq!(Response::decode(&answer.encode()), Some(answer.clone()));
        answer.message = "é".repeat(SIZE);
        let back = Response::decode(&answer.encode()).unwrap();
        assert!(answer.message.starts_with(&back.message) && back.message.len() > SIZE - 64);
        let usage = Usage { visible: 1, stored: u64::MAX, exclusive: 3, shared: 4, estimated: 5 };
        assert_eq!(decode_usage(&encode_usage(&usage)), Some(usage));
        for bad in ["", "1 2 3 4", "1 2 3 4 5 6", "1 2 3 4 x", "1 2 3 4 -5"] {
            assert_eq!(decode_usage(bad), None, "{bad}");
        }
        assert_eq!(decode_stats(&encode_stats("{}").unwrap()).as_deref(), Some("{}"));
        assert_eq!(encode_stats(&"x".repeat(STATS_SIZE)), None);
    }
}
