//! Backups: all pairs of a snapshot as one stream of bytes.
//!
//! The stream is documented in `docs/format.md`. It holds what a reader sees and
//! nothing of how it is kept, so it outlives the format of the store: clones become
//! copies. Written in one pass of a cursor, with a block in memory at a time, while
//! the store changes; each block is chained to the one before by its checksum, and
//! an end says how much there must have been, so that nothing can be missing or
//! exchanged unnoticed. Reading it back is in `restore`.

use std::io::Write;

use bytes::{BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::{
    codec::put_varint,
    db::cursor::Snapshot,
    error::{Error, Result},
    key::common_prefix,
};

/// First bytes of every backup.
pub(crate) const BACKUP_MAGIC: [u8; 8] = *b"PANDOBK\x01";
/// Version of the stream that this code writes and reads.
pub(crate) const BACKUP_VERSION: u32 = 1;
/// Bytes of the header, its checksum included.
pub(crate) const BACKUP_HEADER_BYTES: usize = 88;
/// Bytes before the payload of a block.
pub(crate) const BLOCK_HEADER_BYTES: usize = 24;
/// Most raw bytes of a block. Far above what is written; bounds what reading takes.
pub(crate) const MAX_RAW_BYTES: usize = 64 << 20;
/// Raw bytes at which a block is closed.
const BACKUP_BLOCK_BYTES: usize = 256 << 10;

/// Kinds of blocks.
pub(crate) mod kind {
    pub const PAIRS: u8 = 1;
    pub const END: u8 = 2;
}

/// How the payload of a block gives its raw bytes.
pub(crate) mod codec {
    pub const RAW: u8 = 0;
    pub const LZ4: u8 = 1;
}

/// What went into a backup, or came out of one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// Pairs.
    pub pairs: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// Bytes of the stream.
    pub stream_bytes: u64,
    /// Ranges of keys of which nothing could be read: see [`Snapshot::backup_around`].
    pub skipped: u64,
}

impl Snapshot {
    /// Writes all pairs of this snapshot to `writer`, in key order, as a stream that
    /// [`crate::Backup`] reads. The store may be written to meanwhile.
    ///
    /// Cost: one scan; memory: a block of 256 KiB, or one value if that is longer. `writer` need not be
    /// buffered, and is flushed, not synced. An error of `writer` is [`Error::Io`]; what it has got until
    /// then is no backup.
    ///
    /// ```no_run
    /// # use std::fs::File;
    /// # use pando_db::{Backup, CreateOptions, Db, Options};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let db = Db::open("grove.pando", Options::default())?;
    /// let stream = File::create("grove.backup")?;
    /// db.snapshot().backup(&stream)?;
    /// stream.sync_all()?;
    ///
    /// let backup = Backup::open(File::open("grove.backup")?)?;
    /// backup.restore("restored.pando", &CreateOptions::default(), &Options::default())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn backup(&self, writer: impl Write) -> Result<BackupReport> {
        self.backup_around(writer, |_, error| Err(error))
    }

    /// The same of a store that is damaged in part: what can be read, as a stream that is whole in itself.
    /// `skipped` is told of each range of keys `[from, to)` (`None`: no upper bound) of which nothing could
    /// be read, and why, in order; if it gives an error, that ends the backup. The report counts the ranges.
    pub fn backup_around(
        &self,
        writer: impl Write,
        mut skipped: impl FnMut((&[u8], Option<&[u8]>), Error) -> Result<()>,
    ) -> Result<BackupReport> {
        let mut out = Output { writer, chain: 0, report: BackupReport::default() };
        let header = self.header();
        out.chain = xxh3_64(&header);
        out.put(&[&header, &out.chain.to_le_bytes()])?;
        let mut block = StreamBlock::default();
        let mut cursor = self.range(b"", None);
        while let Some(pair) = cursor.next() {
            let (key, value) = match pair {
                Ok(pair) => pair,
                Err(error) => {
                    let Some((lo, hi)) = cursor.skip_unreadable() else { return Err(error) };
                    out.report.skipped += 1;
                    skipped((&lo, hi.as_deref()), error)?;
                    continue;
                }
            };
            block.push(&key, &value)?;
            out.report.pairs += 1;
            out.report.bytes += (key.len() + value.len()) as u64;
            if block.raw.len() >= BACKUP_BLOCK_BYTES {
                out.block(kind::PAIRS, std::mem::take(&mut block))?;
            }
        }
        if block.entries > 0 {
            out.block(kind::PAIRS, std::mem::take(&mut block))?;
        }
        block.raw.put_u64_le(out.report.pairs);
        block.raw.put_u64_le(out.report.bytes);
        out.block(kind::END, block)?;
        out.writer.flush().map_err(|e| failed(out.report.stream_bytes, e))?;
        Ok(out.report)
    }

    /// The header without its checksum.
    fn header(&self) -> Vec<u8> {
        let uuid = self.engine.uuid();
        let mut header = Vec::with_capacity(BACKUP_HEADER_BYTES);
        header.put_slice(&BACKUP_MAGIC);
        header.put_u32_le(BACKUP_VERSION);
        header.put_u32_le(self.engine.limits.node as u32);
        header.put_slice(&uuid);
        header.put_u64_le(self.view.tables.first().map_or(self.view.tree.msn, |table| table.msn));
        header.put_slice(self.engine.merge.name().as_bytes());
        // Names have at most 32 bytes, and what follows is kept for later versions.
        header.resize(BACKUP_HEADER_BYTES - 8, 0);
        header
    }
}

/// A block that is being filled.
#[derive(Default)]
struct StreamBlock {
    raw: BytesMut,
    entries: u32,
    last: Bytes,
}

impl StreamBlock {
    fn push(&mut self, key: &Bytes, value: &[u8]) -> Result<()> {
        let shared = common_prefix(&self.last, key);
        let needed = key.len() + value.len() + 32;
        if self.raw.len() + needed > MAX_RAW_BYTES {
            return Err(Error::TooLarge {
                what: "value",
                len: value.len() as u64,
                limit: MAX_RAW_BYTES as u64 / 2,
            });
        }
        put_varint(&mut self.raw, shared as u64);
        put_varint(&mut self.raw, (key.len() - shared) as u64);
        put_varint(&mut self.raw, value.len() as u64);
        self.raw.put_slice(key.get(shared..).unwrap_or_default());
        self.raw.put_slice(value);
        self.entries += 1;
        self.last = key.clone();
        Ok(())
    }
}

struct Output<W> {
    writer: W,
    /// Checksum of the block before.
    chain: u64,
    report: BackupReport,
}

impl<W: Write> Output<W> {
    fn block(&mut self, kind: u8, block: StreamBlock) -> Result<()> {
        let packed = lz4_flex::block::compress(&block.raw);
        let (codec, payload) = match packed.len() < block.raw.len() {
            true => (codec::LZ4, &packed[..]),
            false => (codec::RAW, &block.raw[..]),
        };
        let mut header = BytesMut::with_capacity(BLOCK_HEADER_BYTES);
        header.put_slice(&[kind, codec, 0, 0]);
        header.put_u32_le(block.entries);
        header.put_u32_le(block.raw.len() as u32);
        header.put_u32_le(payload.len() as u32);
        self.chain = chained(self.chain, &header, payload);
        header.put_u64_le(self.chain);
        self.put(&[&header, payload])
    }

    fn put(&mut self, parts: &[&[u8]]) -> Result<()> {
        for part in parts {
            self.writer.write_all(part).map_err(|e| failed(self.report.stream_bytes, e))?;
            self.report.stream_bytes += part.len() as u64;
        }
        Ok(())
    }
}

/// Checksum of a block: of the fields before it and the payload's own, seeded with that of the block before.
pub(crate) fn chained(before: u64, fields: &[u8], payload: &[u8]) -> u64 {
    let mut bytes = fields.to_vec();
    bytes.put_u64_le(xxh3_64(payload));
    xxh3_64_with_seed(&bytes, before)
}

/// Not [`Error::io`]: a full disk that the backup goes to is no full store.
fn failed(offset: u64, source: std::io::Error) -> Error {
    Error::Io { action: "write of the backup", offset, source }
}
