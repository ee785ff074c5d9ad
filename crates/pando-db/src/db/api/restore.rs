//! Restoring: a new store from the stream of a backup.
//!
//! Everything is verified before it is used: a stream that was cut, damaged or put together from others is refused.
//! The superblock of the new store stays in memory until everything else is durable, so an error or a crash before
//! that leaves a device without a store.

use std::{
    io::{self, Read},
    sync::Arc,
};

use bytes::{Buf, Bytes};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    batch::Batch,
    codec::peek_varint,
    db::{
        api::backup::{
            BACKUP_HEADER_BYTES, BACKUP_MAGIC, BACKUP_VERSION, BLOCK_HEADER_BYTES, BackupReport,
            MAX_RAW_BYTES, chained, codec, kind,
        },
        handle::Db,
    },
    device::{BLOCK, Device, DeviceStats, InUse, Medium, New},
    error::{Error, Result},
    locks::Mutex,
    options::{CreateOptions, Options},
    store::superblock,
};

/// Bytes of pairs in a batch, unless a single one has more.
const BATCH_BYTES: usize = 256 << 10;

/// A backup that is being read: see [`crate::Snapshot::backup`].
pub struct Backup<R> {
    reader: R,
    /// Bytes read so far.
    at: u64,
    /// Checksum of the block before.
    chain: u64,
    merge: String,
    node_size: u32,
    uuid: [u8; 16],
    batch: u64,
}

impl Db {
    /// Makes a store from the stream of a [`crate::Snapshot::backup`]: [`Backup::open`] and [`Backup::restore`] in
    /// one call.
    pub fn restore(
        medium: impl Medium,
        reader: impl std::io::Read,
        create: &CreateOptions,
        options: &Options,
    ) -> Result<BackupReport> {
        Backup::open(reader)?.restore(medium, create, options)
    }
}

impl<R: Read> Backup<R> {
    /// Reads and checks the header. [`Error::Format`] if it is no backup, or of another version;
    /// [`Error::Corrupt`] if it is damaged.
    pub fn open(reader: R) -> Result<Self> {
        let mut backup =
            Self { reader, at: 0, chain: 0, merge: String::new(), node_size: 0, uuid: [0; 16], batch: 0 };
        let header = backup.take(BACKUP_HEADER_BYTES, "its header")?;
        let mut fields = &header[..];
        if fields.copy_to_bytes(8) != BACKUP_MAGIC[..] {
            return Err(Error::Format("it is no backup of a Pando store".into()));
        }
        let version = fields.get_u32_le();
        if version != BACKUP_VERSION {
            return Err(Error::Format(format!("the backup is version {version}; this is {BACKUP_VERSION}")));
        }
        let (covered, _) = header.split_at(BACKUP_HEADER_BYTES - 8);
        backup.chain = xxh3_64(covered);
        if header[BACKUP_HEADER_BYTES - 8..] != backup.chain.to_le_bytes() {
            return Err(backup.corrupt("the checksum of its header does not match"));
        }
        backup.node_size = fields.get_u32_le();
        fields.copy_to_slice(&mut backup.uuid);
        backup.batch = fields.get_u64_le();
        let name: Vec<u8> = fields.iter().take(32).copied().take_while(|byte| *byte != 0).collect();
        backup.merge = String::from_utf8(name).map_err(|_| backup.corrupt("unreadable merge name"))?;
        Ok(backup)
    }

    /// Name of the [`crate::Merge`] of the store that was backed up.
    pub fn merge(&self) -> &str {
        &self.merge
    }

    /// Target node size of that store, in bytes.
    pub fn node_size(&self) -> u32 {
        self.node_size
    }

    /// Identity of that store.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Number of the newest batch in the backup.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// Makes a store with these pairs, as [`Db::create`] makes an empty one: in a new file at a path, or on a device,
    /// overwriting what is there. Does not open it. Whatever a store held is restored: also keys and values that are
    /// longer than a call takes, or than the log of the new store ([`CreateOptions::log_size`]).
    ///
    /// [`Error::Corrupt`] for a stream that is damaged, cut short, or followed by other bytes; [`Error::NoSpace`] for
    /// a device that is too small; [`Error::Format`] if `options.merge` is not that of the backup. After any error,
    /// and after a crash, there is no store; after an error a file that was made for it is removed. Only a device that
    /// is in use ([`Error::Locked`]), and one on which no store can be made with these options, are left as they were.
    /// Memory: a block, and what `options` allow the engine.
    pub fn restore(
        self,
        medium: impl Medium,
        create: &CreateOptions,
        options: &Options,
    ) -> Result<BackupReport> {
        self.check_merge(options)?;
        let New { device, made } = medium.for_new(create.size)?;
        self.restore_on(device, create, options).inspect_err(|_| {
            if let Some(path) = made {
                // The error that led here is the one to report.
                let _ = std::fs::remove_file(path);
            }
        })
    }

    fn check_merge(&self, options: &Options) -> Result<()> {
        if self.merge != options.merge.name() {
            return Err(Error::Format(format!(
                "the upserts of the backup mean `{}`, not `{}`: it belongs to another program",
                self.merge,
                options.merge.name()
            )));
        }
        Ok(())
    }

    fn restore_on(
        mut self,
        device: Arc<dyn Device>,
        create: &CreateOptions,
        options: &Options,
    ) -> Result<BackupReport> {
        // Taken before anything is overwritten. The store is made on this device value, which no other store may use.
        let _in_use = InUse::new(&device, false)?;
        Db::check_create(&*device, create)?;
        let zeros = vec![0; superblock::END as usize];
        device.write_at(0, &zeros).map_err(|e| Error::io("write", 0, e))?;
        flush(&*device)?;
        let held = Arc::new(DeferredSuperblocks { device: device.clone(), superblocks: Mutex::new(zeros) });
        let options = Options { background: false, read_only: false, ..options.clone() };
        Db::create(held.clone(), create, &options)?;
        let db = Db::open(held.clone(), options)?;
        let report = self.fill(&db)?;
        // On a full device `close` would leave its work to recovery, but here the checkpoint has to be made.
        db.checkpoint()?;
        db.close()?;
        drop(db);
        flush(&*device)?;
        superblock::commit(&*device, &mut superblock::read(&*held)?.newest)?;
        flush(&*device)?;
        Ok(report)
    }

    fn fill(&mut self, db: &Db) -> Result<BackupReport> {
        let limit = BATCH_BYTES.min(db.engine().log.max_payload() / 2);
        let mut report = BackupReport::default();
        let (mut batch, mut size) = (Batch::new(), 0);
        let mut last: Option<Bytes> = None;
        loop {
            let (kind, entries, raw) = self.block()?;
            if kind == kind::END {
                self.end(entries, raw, &report)?;
                if !batch.is_empty() {
                    db.engine().write_restored(batch)?;
                }
                report.stream_bytes = self.at;
                return Ok(report);
            }
            let mut rest = raw;
            let mut previous = Bytes::new();
            for _ in 0..entries {
                let (key, value) = take_pair(&mut rest, &previous)
                    .ok_or_else(|| self.corrupt("a pair that is malformed"))?;
                if last.as_ref().is_some_and(|last| *last >= key) {
                    return Err(self.corrupt("keys out of order"));
                }
                let len = key.len() + value.len();
                if size + len > limit && !batch.is_empty() {
                    db.engine().write_restored(std::mem::take(&mut batch))?;
                    size = 0;
                }
                report.pairs += 1;
                report.bytes += len as u64;
                size += len + 16;
                batch.put(key.clone(), value);
                previous = key.clone();
                last = Some(key);
            }
            if !rest.is_empty() {
                return Err(self.corrupt("bytes behind the pairs of a block"));
            }
        }
    }

    /// The next block: its kind, number of entries and raw bytes.
    fn block(&mut self) -> Result<(u8, u32, Bytes)> {
        let header = self.take(BLOCK_HEADER_BYTES, "a block")?;
        let (fields, mut sum) = header.split_at(BLOCK_HEADER_BYTES - 8);
        let mut f = fields;
        let (kind, codec, _) = (f.get_u8(), f.get_u8(), f.get_u16_le());
        let (entries, raw_len, len) = (f.get_u32_le(), f.get_u32_le() as usize, f.get_u32_le() as usize);
        if raw_len > MAX_RAW_BYTES || len > MAX_RAW_BYTES {
            return Err(self.corrupt("a block with impossible sizes"));
        }
        let payload = self.take(len, "a block")?;
        let expected = chained(self.chain, fields, &payload);
        if sum.get_u64_le() != expected {
            return Err(self.corrupt("the checksum of a block does not match"));
        }
        self.chain = expected;
        let raw = match codec {
            codec::RAW => payload,
            codec::LZ4 => lz4_flex::block::decompress(&payload, raw_len)
                .map_err(|e| self.corrupt(&format!("a block does not unpack: {e}")))?,
            _ => return Err(self.corrupt("a block of an unknown codec")),
        };
        if raw.len() != raw_len || !(kind == kind::PAIRS || kind == kind::END) {
            return Err(self.corrupt("a block of an unknown kind or a wrong length"));
        }
        Ok((kind, entries, raw.into()))
    }

    /// Checks the last block against what came before, and that nothing follows.
    fn end(&mut self, entries: u32, mut raw: Bytes, report: &BackupReport) -> Result<()> {
        if entries != 0 || raw.len() != 16 {
            return Err(self.corrupt("a malformed end"));
        }
        if (raw.get_u64_le(), raw.get_u64_le()) != (report.pairs, report.bytes) {
            return Err(self.corrupt("it holds another number of pairs than its end says"));
        }
        let mut more = [0];
        loop {
            match self.reader.read(&mut more) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(self.corrupt("bytes behind its end")),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
    }

    fn take(&mut self, len: usize, what: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len.min(1 << 20));
        let read = self.reader.by_ref().take(len as u64).read_to_end(&mut bytes);
        read.map_err(|e| self.failed(e))?;
        self.at += bytes.len() as u64;
        match bytes.len() == len {
            true => Ok(bytes),
            false => Err(self.corrupt(&format!("it ends in the middle, where {what} should be"))),
        }
    }

    fn corrupt(&self, detail: &str) -> Error {
        Error::corrupt("backup", self.at, detail)
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Io { action: "read of the backup", offset: self.at, source }
    }
}

/// Takes the next pair off the front of a block; `previous` is the key of the pair before.
fn take_pair(rest: &mut Bytes, previous: &Bytes) -> Option<(Bytes, Bytes)> {
    let mut number = || {
        let (number, width) = peek_varint(rest)?;
        rest.advance(width);
        usize::try_from(number).ok()
    };
    let (shared, suffix, value) = (number()?, number()?, number()?);
    let head = previous.get(..shared)?;
    if suffix.checked_add(value)? > rest.len() {
        return None;
    }
    let key = [head, &rest.split_to(suffix)].concat();
    // The value is copied, because a slice would keep the whole block in memory.
    Some((key.into(), Bytes::copy_from_slice(&rest.split_to(value))))
}

fn flush(device: &dyn Device) -> Result<()> {
    device.flush().map_err(|e| Error::Io { action: "flush", offset: 0, source: e })
}

/// A device whose superblocks are kept in memory until the restored store is complete.
struct DeferredSuperblocks {
    device: Arc<dyn Device>,
    superblocks: Mutex<Vec<u8>>,
}

impl DeferredSuperblocks {
    /// The range of a request within the superblocks; `None` if it lies behind them.
    fn in_superblocks(offset: u64, len: usize) -> io::Result<Option<std::ops::Range<usize>>> {
        match offset.checked_add(len as u64) {
            _ if offset >= superblock::END => Ok(None),
            Some(end) if end <= superblock::END => Ok(Some(offset as usize..end as usize)),
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "a request across the superblocks' end")),
        }
    }
}

impl Device for DeferredSuperblocks {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        match Self::in_superblocks(offset, buf.len())? {
            Some(range) => {
                buf.copy_from_slice(&self.superblocks.lock()[range]);
                Ok(())
            }
            None => self.device.read_at(offset, buf),
        }
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        match Self::in_superblocks(offset, buf.len())? {
            Some(range) => {
                self.superblocks.lock()[range].copy_from_slice(buf);
                Ok(())
            }
            None => self.device.write_at(offset, buf),
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn size(&self) -> u64 {
        self.device.size()
    }

    fn grow(&self, size: u64) -> io::Result<()> {
        self.device.grow(size)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.device.reserve(offset, len)
    }

    fn stats(&self) -> DeviceStats {
        self.device.stats()
    }
}

const _: () = assert!(superblock::END.is_multiple_of(BLOCK));
