//! The superblock: the one place from which everything in a store is found.
//!
//! Two slots of one block each, at bytes 0 and 4096. A superblock of generation g lives in slot g % 2, so that
//! writing a new one never touches the newest durable one: a crash leaves one of the two. When a new one is durable
//! it is written to the other slot too, as the next generation ([`commit`]): from then on either slot may rot, and
//! the other says the same. Reading is total: a hostile image yields an error or fields that passed
//! [`Superblock::check`]; a slot that does not verify is reported ([`Slots`]). Of the rest of the store this module
//! knows only the places that it names: those of the log, the table and scattered extents.
//!
//! Layout, little-endian; bytes not named are zero. Magic, version, generation
//! and checksum keep their places in every version of the format.
//!
//! | byte | field | | byte | field |
//! | --- | --- | --- | --- | --- |
//! | 0 | magic `PANDO\0\0\x01` | | 128 | log start: position u64, chain u64 |
//! | 8 | version u32 | | 144 | next MSN u64 |
//! | 12 | block size u32 | | 152 | next node number u64 |
//! | 16 | generation u64 | | 160 | root node number u64 |
//! | 24 | incompatible features u64 | | 168 | table: offset u64, checksum u64 |
//! | 32 | compatible features u64 | | 184 | table: length u32 |
//! | 40 | uuid, 16 bytes | | 188 | table: depth u8 |
//! | 56 | device size u64 | | 189 | clean u8 |
//! | 64 | created, Unix ns u64 | | 192 | label, 64 bytes, zero padded |
//! | 72 | node size u32 | | 4088 | xxh3_64 of bytes 0..4088 |
//! | 80 | merge name, 32 bytes, zero padded | | 256 | MSN u64 up to which the log was durable |
//! | 112 | log: offset u64, length u64 | | | |

use xxhash_rust::xxh3::xxh3_64;

use crate::{
    device::{BLOCK, Device},
    error::{Error, Result},
    store::{log::LogPos, scattered::SCATTERED, table::MAX_DEPTH},
};

/// Version of the format that this code reads and writes.
pub const VERSION: u32 = 3;
/// Where the superblocks end and other regions may begin, in bytes.
pub const END: u64 = 2 * BLOCK;
/// Smallest log region, in bytes.
pub const MIN_LOG: u64 = 64 << 10;
/// Largest log region, in bytes; bounds the memory that reading a hostile log can take.
pub const MAX_LOG: u64 = 1 << 30;

const SUPERBLOCK_MAGIC: [u8; 8] = *b"PANDO\0\0\x01";
/// Bit of an incompatible feature: write-outs of the log end with guards, which to older code are the end of the log.
pub const GUARDED_LOG: u64 = 1;
/// Bit of an incompatible feature: entries of the table and references to pages may have bounds of key lengths.
pub const KEY_BOUNDS: u64 = 2;
/// Bit of an incompatible feature: extents of nodes and of the table may be scattered over several ranges. It is set by
/// the first checkpoint that has some.
pub const SCATTERED_EXTENTS: u64 = 4;
/// Bit of an incompatible feature: pages of one value may be stored as that value alone.
pub const BARE_PAGES: u64 = 8;
/// Bits of the incompatible features of a store that this code has written.
pub const WRITTEN_FEATURES: u64 = GUARDED_LOG | KEY_BOUNDS | BARE_PAGES;
/// Bits of the incompatible features that this code knows.
const KNOWN_FEATURES: u64 = WRITTEN_FEATURES | SCATTERED_EXTENTS;
/// Bytes of a superblock.
const SIZE: usize = BLOCK as usize;
/// Where the checksum of a superblock begins, in bytes.
const CHECKSUM_OFFSET: usize = SIZE - 8;
/// No counter in a store reaches this; above it, arithmetic could overflow.
const MAX_COUNT: u64 = 1 << 62;
/// Half of what the deepest translation table reaches (8 levels of 6 bits).
const MAX_NODE: u64 = 1 << 47;
const MAX_TABLE_PAGE: u32 = 16 << 20;

/// Where the root page of the translation table lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableRoot {
    /// First byte on the device, a multiple of [`BLOCK`].
    pub offset: u64,
    /// Length in bytes; 0 if there is no table yet.
    pub len: u32,
    /// Checksum of the page.
    pub checksum: u64,
    /// Levels of the table.
    pub depth: u8,
}

/// What one checkpoint made durable, and what is fixed for the life of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Superblock {
    /// Counts superblocks written; the slot is its parity.
    pub generation: u64,
    /// Features without which the store must not be opened.
    pub incompatible: u64,
    /// Features that may be ignored.
    pub compatible: u64,
    /// Identity of the store.
    pub uuid: [u8; 16],
    /// Bytes of the device in use by the store, a multiple of [`BLOCK`].
    pub device_size: u64,
    /// When the store was created, in nanoseconds since 1970.
    pub created: u64,
    /// Target size of a node in bytes, 4 KiB to 16 MiB.
    pub node_size: u32,
    /// Name of the meaning of upserts, at most 32 bytes without NUL.
    pub merge: String,
    /// First byte of the log region, a multiple of [`BLOCK`].
    pub log_base: u64,
    /// Length of the log region, a multiple of [`BLOCK`].
    pub log_size: u64,
    /// Where replay of the log begins.
    pub log_start: LogPos,
    /// MSN of the first record there; everything before it is in the table.
    pub next_msn: u64,
    /// Number that the next new node gets.
    pub next_node: u64,
    /// Number of the root node.
    pub root: u64,
    /// Root of the translation table.
    pub table: TableRoot,
    /// Whether the store was closed in order, so that the log holds nothing to replay.
    pub clean: bool,
    /// Name given by the user, at most 64 bytes without NUL.
    pub label: String,
    /// MSN of a record of the log that was durable when this was written, with all before it. 0 if that is
    /// not known.
    pub log_durable: u64,
}

/// What the slots hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    /// The newest superblock.
    pub newest: Superblock,
    /// The slot that does not verify, if there is one, and why.
    pub damaged: Option<(u64, &'static str)>,
}

/// Reads the valid slot of the highest generation.
///
/// [`Error::Format`] if there is no store, or one that this version does not
/// understand; [`Error::Corrupt`] if there is one but no slot can be trusted;
/// [`Error::Io`] if a slot cannot be read, as it might be the newest one.
pub fn read(device: &dyn Device) -> Result<Slots> {
    if device.size() < END {
        return Err(Error::Format(format!("{} bytes are too few for a store", device.size())));
    }
    let (mut newest, mut magic): (Option<(u64, [u8; SIZE])>, bool) = (None, false);
    let mut damaged = None;
    for slot in 0..2 {
        let mut block = [0; SIZE];
        device.read_at(slot * BLOCK, &mut block).map_err(|e| Error::io("read", slot * BLOCK, e))?;
        if block[..8] != SUPERBLOCK_MAGIC {
            damaged = Some((slot, "it does not begin as a superblock does"));
            continue;
        }
        magic = true;
        let generation = u64::from_le_bytes(Fields(&block[16..]).take());
        let valid = xxh3_64(&block[..CHECKSUM_OFFSET]).to_le_bytes() == block[CHECKSUM_OFFSET..];
        // The wrong parity: a misdirected write.
        let placed = generation % 2 == slot;
        if !valid || !placed {
            let why = if valid { "it belongs to the other slot" } else { "its checksum does not match" };
            damaged = Some((slot, why));
        }
        if valid && placed && newest.as_ref().is_none_or(|(other, _)| generation > *other) {
            newest = Some((generation, block));
        }
    }
    let Some((generation, block)) = newest else {
        return Err(match magic {
            true => Error::corrupt("superblock", 0, "no copy has a valid checksum"),
            false => Error::Format("there is no Pando store on it".into()),
        });
    };
    let newest = Superblock::decode(&block, device.size(), generation % 2 * BLOCK)?;
    Ok(Slots { newest, damaged })
}

/// Makes `superblock` the newest, durably, and gives it a second copy; `superblock` is that copy then. What
/// it refers to must be durable before. [`Error::Invalid`] for fields that reading would refuse, and nothing
/// is written.
///
/// The copy is written durably where the device can do that, else it is with the next flush: until then the
/// other slot holds an older superblock, which can be relied on only as long as its log and its extents are
/// whole.
pub fn commit(device: &dyn Device, superblock: &mut Superblock) -> Result<()> {
    superblock.generation += 1;
    write(device, superblock)?;
    device.flush().map_err(|e| Error::io("flush", 0, e))?;
    superblock.generation += 1;
    let at = superblock.generation % 2 * BLOCK;
    device.write_durably(at, &superblock.encode()).map_err(|e| Error::io("write", at, e))?;
    Ok(())
}

/// Writes one slot, that of the superblock's generation.
///
/// Does not flush: what the superblock refers to must be durable before, and
/// the superblock is durable only after a flush that follows.
/// [`Error::Invalid`] for fields that reading would refuse.
pub fn write(device: &dyn Device, superblock: &Superblock) -> Result<()> {
    superblock.check(device.size()).map_err(|why| Error::Invalid(format!("superblock: {why}")))?;
    let at = superblock.generation % 2 * BLOCK;
    device.write_at(at, &superblock.encode()).map_err(|e| Error::io("write", at, e))
}

impl Superblock {
    /// A number that no other store on the same device has or had.
    pub fn store(&self) -> u64 {
        xxh3_64(&[&self.uuid[..], &self.created.to_le_bytes()].concat())
    }

    fn encode(&self) -> [u8; SIZE] {
        let mut block = [0; SIZE];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            block[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&SUPERBLOCK_MAGIC);
        put(&VERSION.to_le_bytes());
        put(&(BLOCK as u32).to_le_bytes());
        put(&self.generation.to_le_bytes());
        put(&self.incompatible.to_le_bytes());
        put(&self.compatible.to_le_bytes());
        put(&self.uuid);
        put(&self.device_size.to_le_bytes());
        put(&self.created.to_le_bytes());
        put(&self.node_size.to_le_bytes());
        put(&[0; 4]);
        put(&padded::<32>(&self.merge));
        put(&self.log_base.to_le_bytes());
        put(&self.log_size.to_le_bytes());
        put(&self.log_start.pos.to_le_bytes());
        put(&self.log_start.chain.to_le_bytes());
        put(&self.next_msn.to_le_bytes());
        put(&self.next_node.to_le_bytes());
        put(&self.root.to_le_bytes());
        put(&self.table.offset.to_le_bytes());
        put(&self.table.checksum.to_le_bytes());
        put(&self.table.len.to_le_bytes());
        put(&[self.table.depth, self.clean as u8, 0, 0]);
        put(&padded::<64>(&self.label));
        put(&self.log_durable.to_le_bytes());
        let checksum = xxh3_64(&block[..CHECKSUM_OFFSET]).to_le_bytes();
        block[CHECKSUM_OFFSET..].copy_from_slice(&checksum);
        block
    }

    /// Decodes a block whose magic and checksum are right.
    fn decode(block: &[u8; SIZE], device_size: u64, at: u64) -> Result<Self> {
        let mut fields = Fields(&block[8..CHECKSUM_OFFSET]);
        let version = fields.u32();
        if version != VERSION {
            return Err(Error::Format(format!("its format is version {version}; this is {VERSION}")));
        }
        let block_size = fields.u32();
        if u64::from(block_size) != BLOCK {
            return Err(Error::Format(format!("its block size is {block_size} bytes; this is {BLOCK}")));
        }
        let corrupt = |why: String| Error::corrupt("superblock", at, why);
        let generation = fields.u64();
        let incompatible = fields.u64();
        let compatible = fields.u64();
        let uuid = fields.take();
        let size = fields.u64();
        let created = fields.u64();
        let node_size = fields.u32();
        fields.u32();
        let merge = text(&fields.take::<32>()).ok_or_else(|| corrupt("unreadable merge name".into()))?;
        let (log_base, log_size) = (fields.u64(), fields.u64());
        let log_start = LogPos { pos: fields.u64(), chain: fields.u64() };
        let (next_msn, next_node, root) = (fields.u64(), fields.u64(), fields.u64());
        let (offset, checksum, len) = (fields.u64(), fields.u64(), fields.u32());
        let [depth, clean, ..] = fields.take::<4>();
        let label = text(&fields.take::<64>()).ok_or_else(|| corrupt("unreadable label".into()))?;
        let log_durable = fields.u64();
        let superblock = Self {
            generation,
            incompatible,
            compatible,
            uuid,
            device_size: size,
            created,
            node_size,
            merge,
            log_base,
            log_size,
            log_start,
            next_msn,
            next_node,
            root,
            table: TableRoot { offset, len, checksum, depth },
            clean: clean != 0,
            label,
            log_durable,
        };
        let unknown = incompatible & !KNOWN_FEATURES;
        if unknown != 0 {
            return Err(Error::Format(format!("it needs features unknown here (mask {unknown:#x})")));
        }
        superblock.check(device_size).map_err(corrupt)?;
        Ok(superblock)
    }

    /// Whether the fields make sense on a device of `device_size` bytes; if not, why.
    pub fn check(&self, device_size: u64) -> Result<(), String> {
        let require = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_string()) };
        let aligned = |n: u64| n.is_multiple_of(BLOCK);
        let inside = |offset: u64, len: u64| {
            offset >= END && offset.checked_add(len).is_some_and(|end| end <= self.device_size)
        };
        if self.device_size > device_size {
            let size = self.device_size;
            return Err(format!(
                "the store has {size} bytes, but the device only {device_size}: it was cut; make it so long again"
            ));
        }
        require(aligned(self.device_size), "the size is not whole blocks")?;
        require((4 << 10..=16 << 20).contains(&self.node_size), "node size out of range")?;
        require(fits(&self.merge, 32), "unusable merge name")?;
        require(fits(&self.label, 64), "unusable label")?;
        require(aligned(self.log_base) && aligned(self.log_size), "the log is not whole blocks")?;
        require((MIN_LOG..=MAX_LOG).contains(&self.log_size), "log size out of range")?;
        require(inside(self.log_base, self.log_size), "the log lies outside the store")?;
        let log = [self.log_start.pos, self.next_msn, self.log_durable];
        let counts = [self.generation, self.next_node, self.root].into_iter().chain(log);
        require(counts.into_iter().all(|count| count < MAX_COUNT), "a counter is out of range")?;
        require(self.next_msn > 0, "batches are counted from 1")?;
        require(self.next_node < MAX_NODE, "the next node's number is out of range")?;
        require(self.log_start.pos.is_multiple_of(8), "the log position is not aligned")?;
        require(self.root < self.next_node.max(1), "the root's number was never given out")?;
        let table = &self.table;
        require(table.depth <= MAX_DEPTH, "table depth out of range")?;
        if table.len > 0 {
            require(table.len & !SCATTERED <= MAX_TABLE_PAGE, "table page too long")?;
            let scattered = table.len & SCATTERED != 0;
            let len = if scattered { BLOCK } else { u64::from(table.len).next_multiple_of(BLOCK) };
            require(aligned(table.offset) && inside(table.offset, len), "the table lies outside the store")?;
            let apart = table.offset + len <= self.log_base || self.log_base + self.log_size <= table.offset;
            require(apart, "the table lies in the log")?;
        }
        Ok(())
    }
}

/// Reads fields one after the other; behind the end there are zeros.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (bytes, rest) = self.0.split_at(self.0.len().min(N));
        self.0 = rest;
        let mut field = [0; N];
        field[..bytes.len()].copy_from_slice(bytes);
        field
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

fn fits(text: &str, limit: usize) -> bool {
    text.len() <= limit && !text.contains('\0')
}

/// A text that [`fits`], filled up with zeros.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

fn text(padded: &[u8]) -> Option<String> {
    let len = padded.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    String::from_utf8(padded[..len].to_vec()).ok()
}

#[cfg(test)]
mod tests;
