//! Bulk values: they are written once, to extents that the tree takes over.
//!
//! When the log is written out, it hands over the values of a group ([`BlobPlacer`]). If they have many bytes, they are
//! sorted into pages as a leaf has them, in extents of their own; otherwise they go into records of the log. When a
//! memtable is made a layer, a run of points that is equal to such a page is replaced by a reference to it
//! ([`Bulk::page_at`]). So the data reaches its leaf without being written again (`docs/decisions/bulk-data.md`).
//!
//! Guarantees: a page is offered only for exactly the keys and values that are in it; after a crash a value is
//! returned only if its checksum matches. The payloads of the records are documented in `docs/format.md`. Uses the
//! pager, `space`, the log's types and `format`.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    io::IoSlice,
    sync::Arc,
};

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    codec::{Reader, put_bytes, put_varint},
    device::{BLOCK, ZEROS},
    error::{Error, Result},
    format::node_codec,
    locks::Mutex,
    node::{
        MAX_RAW_BYTES, PageLoc, PageRef, Segment,
        message::Msg,
        page::{Builder, Page},
    },
    space::{Extent, Space},
    store::{
        log::{BlobPlacer, Group, Placed},
        pager::Pager,
    },
};

/// First byte of a record about a group that has its values inside.
pub(crate) const INLINE: u8 = 2;
/// First byte of a record about a group that lies in extents.
pub(crate) const EXTENTS: u8 = 3;

/// Replay keeps at most so many raw bytes of the pages that it has read.
const READ_PAGES_BYTES: u64 = 8 << 20;
/// A group with fewer bytes than this gets no extent.
const MIN_GROUP_BYTES: usize = 8 << 10;
/// Values stay in the log if less than 1/n of the data region is free.
const FREE_SPACE_SHARE: u64 = 8;
/// A group gets extents only if it has at least 1/n of the size of a node: a leaf would not keep a smaller extent.
const NODE_SHARE: usize = 16;
/// An extent has 1/n of the size of a node, so that a leaf can be split between two extents.
const EXTENT_SHARE: usize = 4;
/// An extent has at least this many bytes, so that the unused rest of its last block is a small part of it.
const MIN_EXTENT_BYTES: usize = 32 << 10;
/// Before compression, an extent has at most 1/n of the size of a node, and less than half with a short rest: leaves
/// are split in the middle half of their bytes.
const EXTENT_RAW_SHARE: usize = 3;
/// Values are stored bare if that saves at least 1/n of an extent.
const BARE_SAVING_SHARE: usize = 32;

/// The bulk data of a store.
pub(crate) struct Bulk {
    pager: Arc<Pager>,
    space: Arc<Space>,
    /// Pages that were written and not forgotten yet, by first key.
    pages: Mutex<BTreeMap<Bytes, BulkPage>>,
}

/// A page and its contents.
struct BulkPage {
    page: PageRef,
    /// The values are kept in memory, so that a value with an equal address is the same value.
    entries: Vec<(Bytes, Bytes)>,
    /// The newest batch that may need the page. When it is in the tree, no flush asks for the page any more.
    msn: u64,
}

impl Bulk {
    pub fn new(pager: Arc<Pager>, space: Arc<Space>) -> Self {
        Self { pager, space, pages: Mutex::default() }
    }

    /// Values of at least this many bytes are stored apart from their record.
    pub fn threshold(&self) -> usize {
        (self.pager.page_target() / 4).min(2 << 10)
    }

    /// A page that holds exactly the first points of an ascending list, which are puts, and the number of these points.
    pub fn page_at(&self, points: &[(&Bytes, &Msg)]) -> Option<(PageRef, usize)> {
        let (key, msg) = points.first()?;
        // Short values are never stored in bulk, so the lock need not be taken for them.
        if !matches!(msg, Msg::Put(value) if value.len() >= self.threshold()) {
            return None;
        }
        let pages = self.pages.lock();
        let candidate = pages.get(*key)?;
        let same = |((key, value), point): (&(Bytes, Bytes), &(&Bytes, &Msg))| match point.1 {
            Msg::Put(put) => key == point.0 && put.as_ptr() == value.as_ptr() && put.len() == value.len(),
            _ => false,
        };
        let n = candidate.entries.len();
        assert_eq!(candidate.page.count as usize, n, "a page of values holds others than are known of it");
        (points.len() >= n && candidate.entries.iter().zip(points).all(same))
            .then(|| (candidate.page.clone(), n))
    }

    /// Notes that `page` holds the value `value` of `key` and nothing else. The value is recognised by its address. The
    /// page is forgotten when batch `msn` is in the tree.
    pub fn offer(&self, key: Bytes, value: Bytes, page: PageRef, msn: u64) {
        self.pages.lock().insert(key.clone(), BulkPage { page, entries: vec![(key, value)], msn });
    }

    /// True if no page waits for the DAG to take it over.
    pub fn is_empty(&self) -> bool {
        self.pages.lock().is_empty()
    }

    /// Forgets pages that only batches up to `msn` need.
    pub fn forget(&self, msn: u64) {
        self.pages.lock().retain(|_, page| page.msn > msn);
    }

    /// Writes the values as pages. `None` if there is no space for them outside the log.
    fn write(&self, group: &Group, max_payload: usize) -> Result<Option<Placed>> {
        let mut order: Vec<usize> = (0..group.values.len()).collect();
        // Of several values of one key the last is the newest. The older ones are stored behind all others: they are
        // needed only if a crash cuts the log off between them.
        let newest: HashMap<&Bytes, usize> =
            group.values.iter().enumerate().map(|(i, (key, _))| (key, i)).collect();
        order.sort_by_key(|&i| {
            let key = &group.values[i].0;
            let round = if newest.get(key) == Some(&i) { 0 } else { group.values.len() - i };
            (round, key)
        });
        let left = group.values.iter().map(|(key, value)| key.len() + value.len()).sum();
        let mut writer =
            Writer { bulk: self, packed: PackedValues::default(), placed: Placed::default(), left };
        let mut builder = Builder::default();
        let mut entries: Vec<(Bytes, Bytes)> = Vec::new();
        let mut before = 0;
        for &i in &order {
            let (key, value) = &group.values[i];
            let full = builder.bytes() + key.len() + value.len() > self.pager.page_target();
            // A value that will soon be replaced gets a page of its own: otherwise the whole page would be rewritten
            // then.
            let alone = i >= group.open || before >= group.open;
            let ascends = entries.last().is_none_or(|(last, _)| last < key);
            if !entries.is_empty()
                && (full || alone || !ascends)
                && !writer.page(&mut builder, &mut entries)?
            {
                return Ok(None);
            }
            builder.push(key.clone(), Msg::Put(value.clone()));
            entries.push((key.clone(), value.clone()));
            before = i;
        }
        if !writer.page(&mut builder, &mut entries)? || !writer.extent()? {
            return Ok(None);
        }
        let PackedValues { record, pages, .. } = writer.packed;
        let mut payload = BytesMut::with_capacity(64 + record.len() + 3 * order.len());
        payload.put_u8(EXTENTS);
        payload.put_u64_le(group.id);
        put_varint(&mut payload, writer.placed.extents.len() as u64);
        for extent in &writer.placed.extents {
            payload.put_u64_le(extent.offset);
            payload.put_u32_le(extent.len as u32);
        }
        put_varint(&mut payload, pages.len() as u64);
        payload.put_slice(&record);
        order.iter().for_each(|&i| put_varint(&mut payload, i as u64));
        if payload.len() > max_payload {
            return Ok(None);
        }
        let mut known = self.pages.lock();
        // The pages of the newest values were written first. They are inserted last, so that they replace others with
        // the same first key.
        for (page, entries) in pages.into_iter().rev() {
            if let Some((first, _)) = entries.first() {
                known.insert(first.clone(), BulkPage { page, entries, msn: group.msn });
            }
        }
        drop(known);
        Ok(Some(Placed { payloads: vec![payload.freeze()], extents: writer.placed.extents }))
    }

    fn deserves_extents(&self, bytes: usize) -> bool {
        let least = (self.pager.node_size() / NODE_SHARE).max(MIN_GROUP_BYTES);
        let (free, used) = (self.space.free_bytes(), self.space.used_bytes());
        bytes >= least && free >= (free + used) / FREE_SPACE_SHARE + 2 * bytes as u64
    }
}

impl BlobPlacer for Bulk {
    fn place(&self, group: Group, max_payload: usize) -> Result<Placed> {
        let bytes = group.values.iter().map(|(_, value)| value.len()).sum();
        if self.deserves_extents(bytes)
            && let Some(placed) = self.write(&group, max_payload)?
        {
            return Ok(placed);
        }
        Ok(Placed { payloads: inline(&group, max_payload), extents: Vec::new() })
    }
}

/// Records with the values themselves.
fn inline(group: &Group, max_payload: usize) -> Vec<Bytes> {
    let mut payloads = Vec::new();
    let mut payload = BytesMut::new();
    for (i, (_, value)) in group.values.iter().enumerate() {
        if !payload.is_empty() && payload.len() + value.len() + 5 > max_payload {
            payloads.push(payload.split().freeze());
        }
        if payload.is_empty() {
            payload.put_u8(INLINE);
            payload.put_u64_le(group.id);
            put_varint(&mut payload, i as u64);
        }
        put_bytes(&mut payload, value);
    }
    if !payload.is_empty() {
        payloads.push(payload.freeze());
    }
    payloads
}

/// Collects pages and writes them, one extent at a time.
struct Writer<'a> {
    bulk: &'a Bulk,
    packed: PackedValues,
    placed: Placed,
    /// About how many raw bytes are still to come.
    left: usize,
}

#[derive(Default)]
struct PackedValues {
    /// The pages of the extent that is being collected.
    open: Vec<PackedPage>,
    /// Stored bytes of these pages.
    len: usize,
    /// Bytes of these pages without compression.
    raw: usize,
    /// The index in `pages` of the first of these pages.
    done: usize,
    /// The record's description of all pages so far.
    record: BytesMut,
    pages: Vec<(PageRef, Vec<(Bytes, Bytes)>)>,
}

/// A page that has no place yet, in the two forms in which it may be stored.
struct PackedPage {
    memory: Arc<Page>,
    stored: (Segment, Bytes),
    bare: Option<(Segment, Bytes)>,
}

impl PackedPage {
    fn shortest(&self) -> &(Segment, Bytes) {
        self.bare.as_ref().unwrap_or(&self.stored)
    }
}

impl PackedValues {
    /// The pages of the collected extent, in the form in which they are stored, and their length.
    ///
    /// A bare value is copied when it is read, others mostly are not. So values are bare only if that makes the extent
    /// clearly shorter, as when it has few values that each fill whole blocks.
    fn take(&mut self) -> (Vec<(Arc<Page>, Segment, Bytes)>, usize) {
        let blocks = |len: usize| len.next_multiple_of(BLOCK as usize);
        let whole = self.open.iter().map(|page| page.stored.1.len()).sum();
        let shortest = self.open.iter().map(|page| page.shortest().1.len()).sum();
        let saved = blocks(whole) - blocks(shortest);
        let bare = saved > 0 && saved * BARE_SAVING_SHARE >= blocks(whole);
        let mut offset = 0;
        let place = |page: PackedPage| {
            let (segment, bytes) = if bare { page.shortest().clone() } else { page.stored };
            let segment = Segment { offset: offset as u32, ..segment };
            offset += bytes.len();
            (page.memory, segment, bytes)
        };
        let placed = self.open.drain(..).map(place).collect();
        (self.len, self.raw) = (0, 0);
        (placed, offset)
    }
}

impl Writer<'_> {
    /// Ends a page; `false` if there is no space for it.
    fn page(&mut self, builder: &mut Builder, entries: &mut Vec<(Bytes, Bytes)>) -> Result<bool> {
        self.left -= builder.bytes().min(self.left);
        let Some(built) = builder.finish() else { return Ok(true) };
        let page = PageRef::from_built(built);
        let PageLoc::Mem(memory) = &page.loc else { return Ok(false) };
        let memory = memory.clone();
        let stored = node_codec::pack(&memory, self.bulk.pager.codec());
        let bare = node_codec::pack_bare(&memory, stored.0);
        let new = PackedPage { memory, stored, bare };
        let node = self.bulk.pager.node_size();
        // If nodes are small, an extent has the size of two nodes at most: leaves keep no larger one.
        let most = (node / EXTENT_SHARE).max(MIN_EXTENT_BYTES.min(2 * node));
        // A short rest is added to the extent before it, because a leaf would not keep it alone.
        // If an extent is so short that bare values save a large part of it, its length is counted with bare values.
        let will_be_bare = most < BARE_SAVING_SHARE * BLOCK as usize;
        let (raw, len) = match &new.bare {
            Some((_, bytes)) if will_be_bare => (bytes.len(), bytes.len()),
            _ => (page.raw as usize, new.stored.1.len()),
        };
        let most_raw = most.max(node / EXTENT_RAW_SHARE);
        let is_full = |has: usize, more: usize, most: usize| {
            has > 0 && has + more > most && self.left + more > most / 2
        };
        let packed = &self.packed;
        let full = is_full(packed.len, len, most) || is_full(packed.raw, raw, most_raw);
        if full && !self.extent()? {
            return Ok(false);
        }
        let packed = &mut self.packed;
        assert_eq!(page.count as usize, entries.len(), "a page of values that holds others than it says");
        packed.len += len;
        packed.raw += raw;
        packed.open.push(new);
        packed.pages.push((page, std::mem::take(entries)));
        Ok(true)
    }

    /// Writes the pages collected so far; `false` if there is no space.
    fn extent(&mut self) -> Result<bool> {
        let packed = &mut self.packed;
        if packed.open.is_empty() {
            return Ok(true);
        }
        let (placed, len) = packed.take();
        let extent = match self.bulk.space.allocate_shared(len as u64) {
            Ok(extent) => extent,
            Err(Error::NoSpace) => return Ok(false),
            Err(error) => return Err(error),
        };
        assert!(extent.len >= len as u64, "pages of values reach beyond their extent");
        let rest = &ZEROS[..len.next_multiple_of(BLOCK as usize) - len];
        let bytes = placed.iter().map(|(_, _, bytes)| &bytes[..]);
        let bufs: Vec<_> = bytes.chain([rest]).map(IoSlice::new).collect();
        let at = extent.offset;
        let device = self.bulk.pager.device();
        device.write_vectored_at(at, &bufs).map_err(|e| Error::io("write", at, e))?;
        assert_eq!(packed.done + placed.len(), packed.pages.len(), "pages of values without a place");
        for ((memory, segment, _), (page, _)) in placed.into_iter().zip(&mut packed.pages[packed.done..]) {
            put_varint(&mut packed.record, self.placed.extents.len() as u64);
            packed.record.put_u32_le(segment.offset);
            packed.record.put_u32_le(segment.len);
            packed.record.put_u64_le(segment.sum);
            packed.record.put_u8(segment.codec);
            put_varint(&mut packed.record, page.raw.into());
            put_varint(&mut packed.record, page.count.into());
            // Flushed soon, and cut at the borders of leaves then.
            self.bulk.pager.admit_written(&extent, segment, &memory);
            page.loc = PageLoc::Foreign(extent.clone(), segment);
        }
        packed.done = packed.pages.len();
        self.placed.extents.push(extent);
        Ok(true)
    }
}

/// The groups that the records of a log name, for replay.
#[derive(Default)]
pub(crate) struct Groups {
    inline: HashMap<(u64, u32), Bytes>,
    placed: HashMap<u64, PlacedGroup>,
    read: ReadPages,
}

/// The pages that were read last, by group and number. The log names values in the order of their batches, pages hold
/// them in that of their keys: without these each value would be a read of its page.
#[derive(Default)]
struct ReadPages {
    pages: HashMap<(u64, usize), Page>,
    /// The same groups, the oldest first, with their raw length in bytes.
    order: VecDeque<((u64, usize), u64)>,
    bytes: u64,
}

impl ReadPages {
    /// Keeps a page, and lets the oldest go while all are too much. The new one stays, however long it is.
    fn keep(&mut self, at: (u64, usize), page: Page, len: u64) {
        if self.pages.insert(at, page).is_none() {
            self.order.push_back((at, len));
            self.bytes += len;
        }
        while self.bytes > READ_PAGES_BYTES
            && self.order.len() > 1
            && let Some((oldest, len)) = self.order.pop_front()
        {
            self.pages.remove(&oldest);
            self.bytes -= len;
        }
    }
}

struct PlacedGroup {
    /// Offset and length on the device.
    extents: Vec<(u64, u32)>,
    /// Extent, place in it, raw length.
    pages: Vec<(usize, Segment, u32)>,
    /// Number of a value to page and entry.
    places: HashMap<u32, (usize, usize)>,
    /// Set when a value of the group is first read.
    adopted: Option<Vec<Arc<Extent>>>,
}

impl Groups {
    /// Takes in a record about a group.
    pub fn read(&mut self, payload: Bytes) -> Result<()> {
        let mut r = Reader::new(payload, "log record");
        let kind = r.u8()?;
        let id = r.u64()?;
        if kind == INLINE {
            let mut number = r.varint_u32()?;
            while r.remaining() > 0 {
                self.inline.insert((id, number), r.bytes()?);
                number = number.wrapping_add(1);
            }
            return Ok(());
        }
        let count = r.count(12)?;
        let mut extents = Vec::with_capacity(count);
        for _ in 0..count {
            extents.push((r.u64()?, r.u32()?));
        }
        let count = r.count(20)?;
        let (mut pages, mut entries) = (Vec::with_capacity(count), Vec::new());
        for page in 0..count {
            let extent = r.varint_u32()? as usize;
            let (offset, len) = (r.u32()?, r.u32()?);
            let segment = Segment { part: 0, offset, len, sum: r.u64()?, codec: r.u8()? };
            let (raw, held) = (r.varint_u32()?, r.varint_u32()?);
            let beyond = |&(_, room): &(u64, u32)| u64::from(offset) + u64::from(len) > room.into();
            // Each value takes a byte or more in the list that follows.
            let too_many = entries.len() + held as usize > r.remaining();
            // As of the pages of nodes: what a page takes in memory is asked for before its checksum is seen.
            let too_long = len > MAX_RAW_BYTES || raw > MAX_RAW_BYTES || held == 0;
            if extents.get(extent).is_none_or(beyond) || too_many || too_long {
                return Err(r.bad("a page of values with impossible sizes"));
            }
            entries.extend((0..held as usize).map(|entry| (page, entry)));
            pages.push((extent, segment, raw));
        }
        let mut places = HashMap::with_capacity(entries.len());
        for place in entries {
            places.insert(r.varint_u32()?, place);
        }
        r.end()?;
        self.placed.insert(id, PlacedGroup { extents, pages, places, adopted: None });
        Ok(())
    }

    /// Takes ownership of the extents of a group, if it was placed. Called before anything else is allocated.
    /// [`Error::Corrupt`] if its space has another owner.
    pub fn adopt(&mut self, id: u64, space: &Arc<Space>) -> Result<()> {
        let Some(group) = self.placed.get_mut(&id).filter(|group| group.adopted.is_none()) else {
            return Ok(());
        };
        let adopt = |&(offset, len): &(u64, u32)| space.adopt_shared(offset, len.into());
        group.adopted = Some(group.extents.iter().map(adopt).collect::<Result<_>>()?);
        Ok(())
    }

    /// A page of `key` alone that refers to where its value should be, and as little proves true: for a value
    /// that [`Groups::value`] has not. `None` if nothing says where it was, or it was not adopted. `value` is
    /// what the builder of a layer takes it for ([`Bulk::offer`]).
    pub fn damaged(&self, id: u64, number: u32, key: &Bytes, value: &Bytes) -> Option<PageRef> {
        let group = self.placed.get(&id)?;
        let (extent, segment, raw) = *group.pages.get(group.places.get(&number)?.0)?;
        let extent = group.adopted.as_ref()?.get(extent)?.clone();
        let mut builder = Builder::default();
        builder.push(key.clone(), Msg::Put(value.clone()));
        let mut page = PageRef::from_built(builder.finish()?);
        (page.raw, page.loc) = (raw, PageLoc::Foreign(extent, segment));
        Some(page)
    }

    /// The value `number` of group `id`, which was adopted; `None` if what is there is not it: it did not
    /// reach the device before a crash, or is damaged.
    pub fn value(&mut self, id: u64, number: u32, pager: &Pager) -> Result<Option<Bytes>> {
        if let Some(value) = self.inline.get(&(id, number)) {
            return Ok(Some(value.clone()));
        }
        let Some(group) = self.placed.get(&id) else { return Ok(None) };
        let Some(&(at, entry)) = group.places.get(&number) else { return Ok(None) };
        if !self.read.pages.contains_key(&(id, at)) {
            let (extent, segment, raw) = group.pages[at];
            let offset = group.extents[extent].0 + u64::from(segment.offset);
            match node_codec::unpack(segment, raw, pager.read(offset, segment.len)?, offset)
                .and_then(Page::parse)
            {
                Ok(page) => self.read.keep((id, at), page, raw.into()),
                // The group was not written when the crash came.
                Err(Error::Corrupt { .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let Some(page) = self.read.pages.get(&(id, at)) else { return Ok(None) };
        if entry >= page.len() {
            return Ok(None);
        }
        match page.msg(entry) {
            Msg::Put(value) => Ok(Some(Bytes::copy_from_slice(&value))),
            _ => Ok(None),
        }
    }

    /// The extents of the groups that were adopted.
    pub fn extents(&self) -> impl Iterator<Item = &Arc<Extent>> {
        self.placed.values().flat_map(|group| group.adopted.iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// One page of so many bytes, raw bytes and values, in an extent of four gigabytes.
    fn record(len: u32, raw: u32, held: u32) -> Bytes {
        let mut record = BytesMut::new();
        record.put_u8(EXTENTS);
        record.put_u64_le(7);
        put_varint(&mut record, 1);
        record.put_u64_le(BLOCK);
        record.put_u32_le(u32::MAX - (BLOCK as u32 - 1));
        put_varint(&mut record, 1);
        put_varint(&mut record, 0);
        record.put_u32_le(0);
        record.put_u32_le(len);
        record.put_u64_le(1);
        record.put_u8(0);
        put_varint(&mut record, raw.into());
        put_varint(&mut record, held.into());
        (0..held).for_each(|number| put_varint(&mut record, number.into()));
        record.freeze()
    }

    /// To open such an image read all of it into memory before a checksum was compared.
    #[test]
    fn a_record_that_names_a_page_of_gigabytes_is_refused() {
        Groups::default().read(record(1 << 20, 1 << 20, 3)).unwrap();
        let few = 1 << 20;
        let wrong = [(u32::MAX - 4095, few, 1), ((64 << 20) + 1, few, 1), (few, u32::MAX, 1), (few, few, 0)];
        for (len, raw, held) in wrong {
            let refused = Groups::default().read(record(len, raw, held));
            assert!(refused.is_err_and(|error| error.is_damage()), "{len} bytes, {raw} raw, {held} values");
        }
    }
}
