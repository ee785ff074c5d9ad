//! The bytes of a stream: a header, then blocks.
//!
//! Each block has a number, the length of what it holds, before and after compression, and a checksum over all of
//! it that is seeded with the identity of the stream. The chain is a checksum of all that was said so far, without
//! compression: it binds each block to those before, and tells at which point a receiver was. Guarantees that no
//! block is given that is not the next one, whole and unchanged, and that none takes more memory than
//! [`BLOCK_BYTES`]. Pure but for reading and writing; `docs/format.md` has the layout.

use std::{
    ffi::OsStr,
    io::{self, Read, Write},
    os::unix::ffi::OsStrExt,
};

use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed, xxh3_128};

use crate::{
    path::check_name,
    send::StreamError,
    types::{SnapshotId, Time},
};

/// First bytes of every stream.
const STREAM_MAGIC: [u8; 8] = *b"PANDOSN\x01";
/// Version of the stream that this code writes and reads.
const STREAM_VERSION: u32 = 1;
/// Most bytes of a block before compression.
pub const BLOCK_BYTES: usize = 1 << 20;
/// Bytes of the header without its two strings.
const HEADER_BYTES: usize = 8 + 4 + 4 + 4 + 32 + 1 + 32 + 8 + 8 + 2 + 2;
/// Most bytes of each string of a header.
const TEXT_BYTES: usize = 1024;
/// Bytes of the head of a block.
const FRAME_HEAD_BYTES: usize = 40;
/// First bytes of every block.
const BLOCK_MAGIC: [u8; 4] = *b"PSbk";
/// Compressed by zstd.
const ZSTD: u8 = 1;
/// Flag bit of the last block.
const LAST: u8 = 1;

/// What a stream says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The snapshot that is sent.
    pub snapshot: SnapshotId,
    /// The one that the stream says the difference from; `None` if it says all.
    pub base: Option<SnapshotId>,
    /// Name of the snapshot.
    pub name: Vec<u8>,
    /// Name of the directory that it is of.
    pub source: Vec<u8>,
    /// Where the stream begins: not at the first block if it is the rest of one.
    pub from: Position,
}

/// A point between two blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// Number of the next block.
    pub block: u64,
    /// The chain so far.
    pub chain: u64,
}

fn put_id(out: &mut Vec<u8>, id: &SnapshotId) {
    out.extend_from_slice(&id.store);
    out.extend_from_slice(&id.number.to_le_bytes());
    out.extend_from_slice(&id.created.secs.to_le_bytes());
    out.extend_from_slice(&id.created.nanos.to_le_bytes());
}

/// Fields of a header, a head or a record, read one after the other.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn id(&mut self) -> Option<SnapshotId> {
        let (store, number) = (self.array()?, self.u32()?);
        let created = Time { secs: self.array().map(i64::from_le_bytes)?, nanos: self.u32()? };
        (created.nanos < 1_000_000_000).then_some(SnapshotId { store, number, created })
    }
}

impl Header {
    /// The identity of the stream. It follows from the two snapshots, so sending them again gives the same.
    pub fn stream_id(&self) -> u128 {
        let mut said = Vec::new();
        said.extend_from_slice(&STREAM_VERSION.to_le_bytes());
        put_id(&mut said, &self.snapshot);
        if let Some(base) = &self.base {
            put_id(&mut said, base);
        }
        xxh3_128(&said)
    }

    fn encode(&self) -> Vec<u8> {
        let none = SnapshotId { store: [0; 16], number: 0, created: Time::default() };
        let cut = |text: &[u8]| text.get(..TEXT_BYTES).unwrap_or(text).to_vec();
        let (name, source) = (cut(&self.name), cut(&self.source));
        let mut out = STREAM_MAGIC.to_vec();
        out.extend_from_slice(&STREAM_VERSION.to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes()); // features that a reader must know
        out.extend_from_slice(&((HEADER_BYTES + name.len() + source.len()) as u32).to_le_bytes());
        put_id(&mut out, &self.snapshot);
        out.push(u8::from(self.base.is_some()));
        put_id(&mut out, self.base.as_ref().unwrap_or(&none));
        out.extend_from_slice(&self.from.block.to_le_bytes());
        out.extend_from_slice(&self.from.chain.to_le_bytes());
        out.extend_from_slice(&(name.len() as u16).to_le_bytes());
        out.extend_from_slice(&(source.len() as u16).to_le_bytes());
        out.extend_from_slice(&name);
        out.extend_from_slice(&source);
        out.extend_from_slice(&xxh3_64(&out).to_le_bytes());
        out
    }

    /// Reads the header of a stream, and says how many bytes it had.
    fn read(input: &mut impl Read) -> Result<(Header, u64), StreamError> {
        let no_stream = || StreamError::Format("this is no stream of pando send".into());
        let mut bytes = vec![0; 20];
        read_all(input, &mut bytes)?.then_some(()).ok_or_else(no_stream)?;
        let mut head = Fields(&bytes);
        let magic: [u8; 8] = head.array().ok_or_else(no_stream)?;
        let (version, features) = (head.u32().unwrap_or(0), head.u32().unwrap_or(0));
        let len = head.u32().unwrap_or(0) as usize;
        if magic != STREAM_MAGIC {
            return Err(no_stream());
        }
        if version != STREAM_VERSION || features != 0 {
            return Err(StreamError::Format(format!(
                "a stream of version {version} with features {features:#x}, which this program does not know"
            )));
        }
        let damaged = |what: &str| StreamError::Damaged { at: 0, block: 0, what: what.into() };
        if !(HEADER_BYTES..=HEADER_BYTES + 2 * TEXT_BYTES).contains(&len) {
            return Err(damaged("a header of an impossible length"));
        }
        bytes.resize(len + 8, 0);
        let rest = bytes.get_mut(20..).unwrap_or_default();
        if !read_all(input, rest)? {
            return Err(StreamError::Cut { at: 20, block: 0 });
        }
        let (said, sum) = bytes.split_at(len);
        if sum != xxh3_64(said).to_le_bytes() {
            return Err(damaged("the header does not have its checksum"));
        }
        let mut fields = Fields(said.get(20..).unwrap_or_default());
        let header = || -> Option<Header> {
            let snapshot = fields.id()?;
            let based = fields.take(1)? == [1];
            let base = fields.id()?;
            let from = Position { block: fields.u64()?, chain: fields.u64()? };
            let (name, source) = (fields.u16()?, fields.u16()?);
            let (name, source) = (fields.take(name.into())?.to_vec(), fields.take(source.into())?.to_vec());
            let base = based.then_some(base);
            fields.0.is_empty().then_some(Header { snapshot, base, name, source, from })
        };
        let mut header = header;
        let header = header().ok_or_else(|| damaged("a header that makes no sense"))?;
        // The snapshot is made only at the end, when all records were applied.
        if let Err(e) = check_name(OsStr::from_bytes(&header.name)) {
            return Err(StreamError::Refused(format!("the snapshot cannot be made: {e}")));
        }
        Ok((header, len as u64 + 8))
    }
}

/// Fills `to`; false if the input ends before.
fn read_all(input: &mut impl Read, to: &mut [u8]) -> Result<bool, StreamError> {
    match input.read_exact(to) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(StreamError::Io(e)),
    }
}

/// The checksum of a block: of what its head says before it, and of what is stored, for one stream.
fn block_sum(stream: u128, head: &[u8], stored: &[u8]) -> u64 {
    let mut sum = Xxh3::with_seed(stream as u64);
    sum.update(head);
    sum.update(stored);
    sum.digest()
}

/// Writes blocks.
pub struct BlockWriter<W> {
    out: W,
    stream: u128,
    at: Position,
    /// Blocks before this one are not written: the receiver has them.
    from: Position,
    level: i32,
    /// The header, until there is something to write behind it.
    header: Vec<u8>,
    /// Bytes written.
    pub written: u64,
}

impl<W: Write> BlockWriter<W> {
    /// Begins a stream. Its header is written before the first block, so that a stream that begins nowhere has none.
    /// `level` is of zstd; 0 does not compress.
    pub fn new(out: W, header: &Header, level: i32) -> Self {
        let (stream, from) = (header.stream_id(), header.from);
        Self { out, stream, at: Position::default(), from, level, header: header.encode(), written: 0 }
    }

    /// Writes a block of at most [`BLOCK_BYTES`].
    pub fn block(&mut self, plain: &[u8], last: bool) -> Result<(), StreamError> {
        let chain = xxh3_64_with_seed(plain, self.at.chain);
        let block = self.at.block;
        self.at = Position { block: block + 1, chain };
        if self.at.block == self.from.block && chain != self.from.chain {
            let text =
                "what was received is not the beginning of this stream: it must be sent from the start";
            return Err(StreamError::Refused(text.into()));
        }
        if block < self.from.block {
            return match last {
                true => Err(StreamError::Refused("there is nothing to send behind that point".into())),
                false => Ok(()),
            };
        }
        let packed = match self.level {
            0 => None,
            level => zstd::bulk::compress(plain, level).ok().filter(|p| p.len() < plain.len() / 16 * 15),
        };
        let stored = packed.as_deref().unwrap_or(plain);
        let mut head = BLOCK_MAGIC.to_vec();
        head.extend_from_slice(&[if packed.is_some() { ZSTD } else { 0 }, if last { LAST } else { 0 }, 0, 0]);
        head.extend_from_slice(&block.to_le_bytes());
        head.extend_from_slice(&(stored.len() as u32).to_le_bytes());
        head.extend_from_slice(&(plain.len() as u32).to_le_bytes());
        head.extend_from_slice(&chain.to_le_bytes());
        head.extend_from_slice(&block_sum(self.stream, &head, stored).to_le_bytes());
        let header = std::mem::take(&mut self.header);
        for part in [&header, &head, stored] {
            self.out.write_all(part).map_err(StreamError::Io)?;
            self.written += part.len() as u64;
        }
        Ok(())
    }

    /// Gives the output back, with all written.
    pub fn finish(mut self) -> Result<W, StreamError> {
        self.out.write_all(&self.header).map_err(StreamError::Io)?;
        self.out.flush().map_err(StreamError::Io)?;
        Ok(self.out)
    }
}

/// Reads blocks.
pub struct BlockReader<R> {
    input: R,
    /// What the stream says of itself.
    pub header: Header,
    stream: u128,
    at: Position,
    /// Bytes read.
    read: u64,
    ended: bool,
}

impl<R: Read> BlockReader<R> {
    /// Reads the header of a stream.
    pub fn new(mut input: R) -> Result<Self, StreamError> {
        let (header, read) = Header::read(&mut input)?;
        let (stream, at) = (header.stream_id(), header.from);
        Ok(Self { input, header, stream, at, read, ended: false })
    }

    /// The point before the next block.
    pub fn position(&self) -> Position {
        self.at
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.read
    }

    /// The next block, decompressed; `None` behind the last one, when nothing else follows.
    pub fn next_block(&mut self) -> Result<Option<Vec<u8>>, StreamError> {
        let (at, block) = (self.read, self.at.block);
        if self.ended {
            let mut more = [0];
            return match read_all(&mut self.input, &mut more)? {
                false => Ok(None),
                true => Err(StreamError::Senseless { at, block, what: "something follows its end".into() }),
            };
        }
        let bad = |what: &str| StreamError::Damaged { at, block, what: what.into() };
        let mut head = [0; FRAME_HEAD_BYTES];
        if !read_all(&mut self.input, &mut head)? {
            return Err(StreamError::Cut { at, block });
        }
        let (said, sum) = head.split_at(FRAME_HEAD_BYTES - 8);
        let mut fields = Fields(said);
        let parsed = || {
            Some((
                fields.array::<4>()?,
                fields.array::<4>()?,
                fields.u64()?,
                fields.u32()?,
                fields.u32()?,
                fields.u64()?,
            ))
        };
        let mut parsed = parsed;
        let (magic, flags, number, stored_len, plain_len, chain) =
            parsed().ok_or_else(|| bad("the head of a block is cut"))?;
        let (stored_len, plain_len) = (stored_len as usize, plain_len as usize);
        if magic != BLOCK_MAGIC || flags[0] > ZSTD || flags[1] > LAST || flags[2..] != [0, 0] {
            return Err(bad("no block begins here"));
        }
        if stored_len > BLOCK_BYTES || plain_len > BLOCK_BYTES {
            return Err(bad("a block that is larger than any"));
        }
        let mut stored = vec![0; stored_len];
        if !read_all(&mut self.input, &mut stored)? {
            return Err(StreamError::Cut { at, block });
        }
        if sum != block_sum(self.stream, said, &stored).to_le_bytes() {
            return Err(bad("a block does not have its checksum, or is of another stream"));
        }
        if number != block {
            return Err(bad(&format!("block {number} stands where block {block} belongs")));
        }
        let plain = match flags[0] {
            ZSTD => {
                zstd::bulk::decompress(&stored, plain_len).map_err(|_| bad("a block does not decompress"))?
            }
            _ => stored,
        };
        if plain.len() != plain_len || xxh3_64_with_seed(&plain, self.at.chain) != chain {
            return Err(bad("a block does not continue those before it"));
        }
        self.read += (FRAME_HEAD_BYTES + stored_len) as u64;
        self.at = Position { block: block + 1, chain };
        self.ended = flags[1] == LAST;
        Ok(Some(plain))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_a_snapshot_whose_name_none_can_have_is_refused_at_its_head() {
        let snapshot = SnapshotId { store: [1; 16], number: 7, created: Time::default() };
        for (name, is_name) in
            [(&b"monday"[..], true), (b"../x", false), (b"a/b", false), (b"a\0b", false), (b"", false)]
        {
            let name = name.to_vec();
            let header =
                Header { snapshot, base: None, name, source: b"d".to_vec(), from: Position::default() };
            let stream = BlockWriter::new(Vec::new(), &header, 0).finish().unwrap();
            let read = BlockReader::new(&stream[..]);
            match read {
                Ok(reader) => assert!(is_name && reader.header.name == header.name),
                Err(e) => assert!(!is_name && matches!(e, StreamError::Refused(_)), "{e}"),
            }
        }
    }
}
