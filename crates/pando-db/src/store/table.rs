//! The translation table: node number -> place and reference count.
//!
//! A persistent radix tree of pages with 64 slots (the "stratified" tree of
//! the versioning paper, section 3.3): cloning it is O(1) and gives a frozen
//! version; a change copies the pages on its path only. A page that has been
//! written by a checkpoint remembers where (its *home*), so the next
//! checkpoint writes only pages that have changed since. Guarantees nothing
//! about the nodes themselves.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    device::{BLOCK, Device},
    error::{Error, Result},
    format::node_codec::MAX_HEADER_BYTES,
    key::Longest,
    node::{MAX_HEIGHT, Node, NodeId, stored::Stored},
    space::{Extent, Space},
    store::scattered::{self, SCATTERED, stored_len},
};

const SLOT_BITS: u32 = 6;
pub(crate) const SLOTS: usize = 1 << SLOT_BITS;
const LEAF_MAGIC: u32 = u32::from_le_bytes(*b"PTBK");
/// Magic of a page without key bounds, from versions that did not store these.
const LEAF_MAGIC_WITHOUT_BOUNDS: u32 = u32::from_le_bytes(*b"PTBL");
const INNER_MAGIC: u32 = u32::from_le_bytes(*b"PTBI");
const LEAF_ENTRY_BYTES: usize = 4 + 1 + BOUND_BYTES + 4 + 8 + 1;
const BOUND_BYTES: usize = 4;
const PART_BYTES: usize = 8 + 4;
/// Most extents of one node.
pub(crate) const MAX_PARTS: usize = 255;
/// Longest page, in bytes.
const MAX_TABLE_PAGE_BYTES: u64 =
    (12 + SLOTS * (LEAF_ENTRY_BYTES + PART_BYTES * MAX_PARTS)).next_multiple_of(BLOCK as usize) as u64;
/// Most levels: enough for every `u64` that a store will ever count to.
pub(crate) const MAX_DEPTH: u8 = 8;

/// What the table knows of a node.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// References from nodes and from the superblock; pins are not in it. 0: waits to be reclaimed.
    pub count: u32,
    pub height: u8,
    /// Bound of the keys that may be seen through the node, in its local keys.
    pub longest: Longest,
    pub loc: Loc,
}

impl Entry {
    fn is_shared(&self) -> bool {
        self.count > 1
    }
}

/// Where a node is.
#[derive(Debug, Clone)]
pub(crate) enum Loc {
    /// Changed since the last checkpoint.
    Dirty(Arc<Node>),
    /// The node as the last checkpoint wrote it.
    Stored(Arc<Stored>),
}

/// Where a table page is, and its checksum.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub extent: Arc<Extent>,
    pub sum: u64,
}

impl Home {
    /// Reads the page again: [`Error::Corrupt`] if it is not what was written.
    pub fn verify(&self, device: &dyn Device) -> Result<()> {
        scattered::verify(device, &self.extent)?;
        let bytes = scattered::read(device, &self.extent, 0, self.extent.len as u32)?;
        match xxh3_64(&bytes) == self.sum {
            true => Ok(()),
            false => Err(Error::corrupt("table page", self.extent.offset, "its checksum does not match")),
        }
    }
}

/// The entry as it is stored on the device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageAddress {
    pub offset: u64,
    pub len: u32,
    pub sum: u64,
}

#[derive(Debug, Clone)]
enum PageSlots {
    Leaf(Vec<Option<Entry>>),
    Inner(Vec<Option<Arc<TablePage>>>),
}

#[derive(Debug, Clone)]
struct TablePage {
    slots: PageSlots,
    home: Option<Home>,
}

/// Stores a dirty node.
type StoreNode<'a> = dyn FnMut(NodeId, &Arc<Node>) -> Result<Arc<Stored>> + 'a;
/// Writes an encoded page.
type WritePage<'a> = dyn FnMut(Bytes) -> Result<Arc<Extent>> + 'a;

/// One version of the table. Cloning is O(1).
#[derive(Debug, Clone, Default)]
pub(crate) struct Table {
    root: Option<Arc<TablePage>>,
    /// Levels; 1 is a single leaf page.
    depth: u8,
    /// Nodes with more than one reference, a count.
    shared: u64,
}

fn slot_of(id: NodeId, level: u8) -> usize {
    (id >> (SLOT_BITS * u32::from(level))) as usize & (SLOTS - 1)
}

impl TablePage {
    fn empty(level: u8) -> Self {
        let slots = match level {
            0 => PageSlots::Leaf(vec![None; SLOTS]),
            _ => PageSlots::Inner(vec![None; SLOTS]),
        };
        Self { slots, home: None }
    }

    fn is_empty(&self) -> bool {
        match &self.slots {
            PageSlots::Leaf(slots) => slots.iter().all(Option::is_none),
            PageSlots::Inner(slots) => slots.iter().all(Option::is_none),
        }
    }
}

impl Table {
    /// Whether `id` lies within the reach of the current depth.
    fn reaches(&self, id: NodeId) -> bool {
        self.depth > 0
            && (u32::from(self.depth) * SLOT_BITS >= 64 || id >> (SLOT_BITS * u32::from(self.depth)) == 0)
    }

    pub fn get(&self, id: NodeId) -> Option<&Entry> {
        if !self.reaches(id) {
            return None;
        }
        let mut page = self.root.as_deref()?;
        for level in (0..self.depth).rev() {
            match &page.slots {
                PageSlots::Inner(slots) => page = slots[slot_of(id, level)].as_deref()?,
                PageSlots::Leaf(slots) => return slots[slot_of(id, 0)].as_ref(),
            }
        }
        None
    }

    /// Sets or removes the entry of `id`. Cost: a copy of one page a level.
    pub fn set(&mut self, id: NodeId, entry: Option<Entry>) {
        if let Some(Entry { height, loc: Loc::Dirty(node), .. }) = &entry {
            assert_eq!(*height, node.height, "the table has another height for node {id} than it has");
        }
        while !self.reaches(id) {
            // No page is made that would stay empty: such a page cannot be loaded.
            if let Some(root) = self.root.take() {
                let mut above = TablePage::empty(self.depth);
                if let PageSlots::Inner(slots) = &mut above.slots {
                    slots[0] = Some(root);
                }
                self.root = Some(Arc::new(above));
            }
            self.depth += 1;
            assert!(self.depth <= MAX_DEPTH, "node numbers beyond the table's reach");
        }
        let shared = entry.as_ref().is_some_and(Entry::is_shared);
        let before = set_in(&mut self.root, self.depth - 1, id, entry);
        let was_shared = before.is_some_and(|entry| entry.is_shared());
        self.shared += u64::from(shared);
        assert!(self.shared >= u64::from(was_shared), "a shared node goes that was not counted");
        self.shared -= u64::from(was_shared);
        if self.root.is_none() {
            self.depth = 0;
        }
    }

    /// Calls `visit` for every entry, in order of node number.
    pub fn for_each(&self, mut visit: impl FnMut(NodeId, &Entry)) {
        fn walk(page: &TablePage, level: u8, base: NodeId, visit: &mut dyn FnMut(NodeId, &Entry)) {
            for i in 0..SLOTS {
                let id = base | (i as u64) << (SLOT_BITS * u32::from(level));
                match &page.slots {
                    PageSlots::Leaf(slots) => slots[i].iter().for_each(|e| visit(id, e)),
                    PageSlots::Inner(slots) => {
                        slots[i].iter().for_each(|child| walk(child, level - 1, id, visit));
                    }
                }
            }
        }
        if let Some(root) = &self.root {
            walk(root, self.depth - 1, 0, &mut visit);
        }
    }

    /// True if an extent is the first part of a node: its own. O(nodes).
    pub fn has_own(&self, extent: &Extent) -> bool {
        let mut found = false;
        self.for_each(|_, entry| {
            if let Loc::Stored(stored) = &entry.loc {
                found |= stored.parts.first().is_some_and(|own| own.id == extent.id);
            }
        });
        found
    }

    /// Bytes that the pages of this table take on the device, those not written yet left out. O(pages).
    pub fn page_bytes(&self) -> u64 {
        let mut bytes = 0;
        self.for_each_home(|home| bytes += home.extent.owned_bytes());
        bytes
    }

    /// Calls `visit` for the place of every page that is written. O(pages).
    pub fn for_each_home(&self, mut visit: impl FnMut(&Home)) {
        fn walk(page: &TablePage, visit: &mut dyn FnMut(&Home)) {
            page.home.iter().for_each(&mut *visit);
            if let PageSlots::Inner(slots) = &page.slots {
                slots.iter().flatten().for_each(|child| walk(child, visit));
            }
        }
        if let Some(root) = &self.root {
            walk(root, &mut visit);
        }
    }

    /// Nodes with more than one reference, a count.
    pub fn shared(&self) -> u64 {
        self.shared
    }

    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// Place of the root page of a persisted table.
    pub fn home(&self) -> Option<&Home> {
        self.root.as_ref()?.home.as_ref()
    }

    /// The table with every node stored by `store` and every page written by `write`. Parts that are stored already
    /// are shared, and not visited.
    pub fn persist(&self, store: &mut StoreNode<'_>, write: &mut WritePage<'_>) -> Result<Table> {
        let root = match &self.root {
            Some(root) => Some(persist_page(root, self.depth - 1, 0, store, write)?),
            None => None,
        };
        Ok(Table { root, ..*self })
    }

    /// This table with what a checkpoint of `frozen`, an earlier version of it, has written as
    /// `durable`: nodes that have not changed since `frozen` are no longer dirty.
    pub fn adopt_stored(&self, frozen: &Table, durable: &Table) -> Table {
        assert_eq!(frozen.depth, durable.depth, "a checkpoint has written another table than was frozen");
        let (Some(current), Some(old), Some(new)) = (&self.root, &frozen.root, &durable.root) else {
            return self.clone();
        };
        if self.depth != frozen.depth {
            // The table grew a level meanwhile: the old one is the first slot of the new, per level.
            return self.adopt_stored_deeper(frozen, durable);
        }
        Table { root: Some(adopt_stored_page(current, old, new)), ..*self }
    }

    fn adopt_stored_deeper(&self, frozen: &Table, durable: &Table) -> Table {
        let mut adopted = self.clone();
        let mut stored = Vec::new();
        durable.for_each(|id, entry| {
            let (Some(now), Some(then)) = (self.get(id), frozen.get(id)) else { return };
            if let (Loc::Dirty(a), Loc::Dirty(b)) = (&now.loc, &then.loc)
                && Arc::ptr_eq(a, b)
            {
                stored.push((id, Entry { loc: entry.loc.clone(), ..now.clone() }));
            }
        });
        stored.into_iter().for_each(|(id, entry)| adopted.set(id, Some(entry)));
        adopted
    }

    /// Reads a table whose root page is at `root`. Every extent is adopted from `space`, so
    /// overlaps are found here.
    pub fn load(
        device: &dyn Device,
        space: &Arc<Space>,
        root: Option<PageAddress>,
        depth: u8,
    ) -> Result<Table> {
        let Some(root) = root else { return Ok(Table::default()) };
        if depth == 0 || depth > MAX_DEPTH {
            return Err(Error::corrupt("superblock", 0, format!("table depth {depth}")));
        }
        let root = load_page(device, space, root, depth - 1)?;
        let mut table = Table { root: Some(Arc::new(root)), depth, shared: 0 };
        let mut shared = 0;
        table.for_each(|_, entry| shared += u64::from(entry.is_shared()));
        table.shared = shared;
        Ok(table)
    }
}

/// Gives what stood there.
fn set_in(page: &mut Option<Arc<TablePage>>, level: u8, id: NodeId, entry: Option<Entry>) -> Option<Entry> {
    if page.is_none() && entry.is_none() {
        return None;
    }
    let node = Arc::make_mut(page.get_or_insert_with(|| Arc::new(TablePage::empty(level))));
    node.home = None;
    let before = match &mut node.slots {
        PageSlots::Leaf(slots) => std::mem::replace(&mut slots[slot_of(id, 0)], entry),
        PageSlots::Inner(slots) => set_in(&mut slots[slot_of(id, level)], level - 1, id, entry),
    };
    if node.is_empty() {
        *page = None;
    }
    before
}

fn persist_page(
    page: &Arc<TablePage>,
    level: u8,
    base: NodeId,
    store: &mut StoreNode<'_>,
    write: &mut WritePage<'_>,
) -> Result<Arc<TablePage>> {
    if page.home.is_some() {
        return Ok(page.clone());
    }
    let mut new = TablePage { slots: page.slots.clone(), home: None };
    match &mut new.slots {
        PageSlots::Leaf(slots) => {
            for (i, entry) in slots.iter_mut().enumerate() {
                if let Some(Entry { loc: loc @ Loc::Dirty(_), .. }) = entry
                    && let Loc::Dirty(node) = loc
                {
                    let stored = store(base | i as u64, node)?;
                    *loc = Loc::Stored(stored);
                }
            }
        }
        PageSlots::Inner(slots) => {
            for (i, child) in slots.iter_mut().enumerate() {
                if let Some(child) = child {
                    let base = base | (i as u64) << (SLOT_BITS * u32::from(level));
                    *child = persist_page(child, level - 1, base, store, write)?;
                }
            }
        }
    }
    assert!(!new.is_empty(), "an empty table page cannot be loaded");
    let bytes = encode_page(&new);
    assert!(bytes.len() as u64 <= MAX_TABLE_PAGE_BYTES, "a table page too long to be loaded");
    let sum = xxh3_64(&bytes);
    let len = bytes.len() as u64;
    let extent = write(bytes)?;
    assert!(extent.len >= len, "a table page reaches beyond its extent");
    new.home = Some(Home { extent, sum });
    Ok(Arc::new(new))
}

fn adopt_stored_page(
    current: &Arc<TablePage>,
    frozen: &Arc<TablePage>,
    durable: &Arc<TablePage>,
) -> Arc<TablePage> {
    if Arc::ptr_eq(current, frozen) {
        return durable.clone();
    }
    let mut new = TablePage { slots: current.slots.clone(), home: None };
    match (&mut new.slots, &frozen.slots, &durable.slots) {
        (PageSlots::Leaf(now), PageSlots::Leaf(then), PageSlots::Leaf(stored)) => {
            for ((now, then), stored) in now.iter_mut().zip(then).zip(stored) {
                let (Some(now), Some(then), Some(stored)) = (now, then, stored) else { continue };
                if let (Loc::Dirty(a), Loc::Dirty(b)) = (&now.loc, &then.loc)
                    && Arc::ptr_eq(a, b)
                {
                    now.loc = stored.loc.clone();
                }
            }
        }
        (PageSlots::Inner(now), PageSlots::Inner(then), PageSlots::Inner(stored)) => {
            for ((now, then), stored) in now.iter_mut().zip(then).zip(stored) {
                let (Some(now), Some(then), Some(stored)) = (now, then, stored) else { continue };
                *now = adopt_stored_page(now, then, stored);
            }
        }
        _ => unreachable!("one level holds one kind of page"),
    }
    Arc::new(new)
}

fn encode_page(page: &TablePage) -> Bytes {
    let mut out = BytesMut::zeroed(0);
    match &page.slots {
        PageSlots::Leaf(slots) => {
            out.put_u32_le(LEAF_MAGIC);
            out.put_u64_le(presence(slots));
            for entry in slots.iter().flatten() {
                let Loc::Stored(stored) = &entry.loc else { unreachable!("persist stores every node") };
                out.put_u32_le(entry.count);
                out.put_u8(entry.height);
                out.put_u32_le(entry.longest.encode());
                out.put_u32_le(stored.header_len);
                out.put_u64_le(stored.header_sum);
                // What the loader refuses.
                assert!(stored.parts.len() <= MAX_PARTS, "a node in too many pieces");
                let fits = stored.parts.first().is_some_and(|own| u64::from(stored.header_len) <= own.len);
                assert!(fits && stored.header_len > 0, "a node whose header is not in its first extent");
                assert!(
                    stored.header_len <= MAX_HEADER_BYTES,
                    "a node whose header is too long to be loaded"
                );
                out.put_u8(stored.parts.len() as u8);
                for part in &stored.parts {
                    out.put_u64_le(part.offset);
                    out.put_u32_le(stored_len(part));
                }
            }
        }
        PageSlots::Inner(slots) => {
            out.put_u32_le(INNER_MAGIC);
            out.put_u64_le(presence(slots));
            for child in slots.iter().flatten() {
                let Some(home) = &child.home else { unreachable!("children are written first") };
                out.put_u64_le(home.extent.offset);
                out.put_u64_le(home.sum);
                out.put_u32_le(stored_len(&home.extent));
            }
        }
    }
    out.resize(out.len().next_multiple_of(BLOCK as usize), 0);
    out.freeze()
}

fn presence<T>(slots: &[Option<T>]) -> u64 {
    slots.iter().enumerate().filter(|(_, s)| s.is_some()).fold(0, |bits, (i, _)| bits | 1 << i)
}

fn load_page(device: &dyn Device, space: &Arc<Space>, at: PageAddress, level: u8) -> Result<TablePage> {
    let PageAddress { offset, len, sum } = at;
    let bad = |detail: &str| Error::corrupt("table page", offset, detail);
    let bytes = len & !SCATTERED;
    if bytes == 0 || u64::from(bytes) > MAX_TABLE_PAGE_BYTES {
        return Err(bad("of an impossible length"));
    }
    let extent = scattered::adopt(device, space, (offset, len), false)?;
    let mut input = scattered::read(device, &extent, 0, bytes)?;
    if xxh3_64(&input) != sum {
        return Err(bad("its checksum does not match"));
    }
    let (magic, present) = (input.get_u32_le(), input.get_u64_le());
    let bounds = magic != LEAF_MAGIC_WITHOUT_BOUNDS;
    let fits = if level == 0 { magic == LEAF_MAGIC || !bounds } else { magic == INNER_MAGIC };
    if !fits || present == 0 {
        return Err(bad("wrong kind of page"));
    }
    let short = |_| bad("shorter than its entries");
    let mut page = TablePage::empty(level);
    for i in (0..SLOTS).filter(|i| present >> i & 1 == 1) {
        match &mut page.slots {
            PageSlots::Leaf(slots) => slots[i] = Some(get_entry(&mut input, (device, space), bounds, &bad)?),
            PageSlots::Inner(slots) => {
                let (offset, sum) =
                    (input.try_get_u64_le().map_err(short)?, input.try_get_u64_le().map_err(short)?);
                let child = PageAddress { offset, len: input.try_get_u32_le().map_err(short)?, sum };
                slots[i] = Some(Arc::new(load_page(device, space, child, level - 1)?));
            }
        }
    }
    page.home = Some(Home { extent, sum });
    Ok(page)
}

fn get_entry(
    input: &mut Bytes,
    (device, space): (&dyn Device, &Arc<Space>),
    bounds: bool,
    bad: &dyn Fn(&str) -> Error,
) -> Result<Entry> {
    if input.remaining() < (if bounds { LEAF_ENTRY_BYTES } else { LEAF_ENTRY_BYTES - BOUND_BYTES }) {
        return Err(bad("shorter than its entries"));
    }
    let (count, height) = (input.get_u32_le(), input.get_u8());
    if height > MAX_HEIGHT {
        return Err(bad("a node higher than any can be"));
    }
    let longest = if bounds { Longest::decode(input.get_u32_le()) } else { Longest::UNKNOWN };
    let (header_len, header_sum) = (input.get_u32_le(), input.get_u64_le());
    let number = usize::from(input.get_u8());
    if number == 0 || input.remaining() < number * PART_BYTES {
        return Err(bad("a node without a place"));
    }
    let mut parts = Vec::with_capacity(number);
    for _ in 0..number {
        let place = (input.get_u64_le(), input.get_u32_le());
        // The extents behind the first may belong to other nodes as well.
        parts.push(scattered::adopt(device, space, place, !parts.is_empty())?);
    }
    if header_len == 0 || u64::from(header_len) > parts[0].len || header_len > MAX_HEADER_BYTES {
        return Err(bad("a node with impossible sizes"));
    }
    Ok(Entry { count, height, longest, loc: Loc::Stored(Arc::new(Stored { parts, header_len, header_sum })) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{
        device::MemDevice,
        key::Span,
        node::{Body, Edge},
        options::Codec,
        store::{layout::store_node, pager::Pager},
    };

    fn entry() -> Entry {
        entry_of_height(1)
    }

    fn entry_of_height(height: u8) -> Entry {
        let node = Node { height, span: Span::all(), body: Body::Interior(vec![Edge::default()]) };
        Entry { count: 1, height, longest: Longest::NONE, loc: Loc::Dirty(Arc::new(node)) }
    }

    /// A table as the next process finds it.
    fn written_and_loaded(table: &Table) -> Result<Table> {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 20));
        let space = Space::new(device.clone(), 0, 1 << 20);
        let pager = Pager::new(device.clone(), 1 << 20, 4096, Codec::None);
        let write = &mut |page: Bytes| {
            let extent = space.allocate(page.len() as u64)?;
            device.write_at(extent.offset, &page).unwrap();
            Ok(extent)
        };
        let stored = table.persist(&mut |_, node| store_node(&pager, &space, node, &|_| true), write)?;
        let home = stored.home().unwrap();
        let root = PageAddress { offset: home.extent.offset, len: home.extent.len as u32, sum: home.sum };
        Table::load(&*device, &Space::new(device.clone(), 0, 1 << 20), Some(root), stored.depth())
    }

    /// A forged height would overflow where a level is put on top of it.
    #[test]
    fn a_node_higher_than_any_can_be_is_refused() {
        for (height, fits) in [(MAX_HEIGHT, true), (MAX_HEIGHT + 1, false), (u8::MAX, false)] {
            let mut table = Table::default();
            table.set(1, Some(entry_of_height(height)));
            assert_eq!(written_and_loaded(&table).is_ok(), fits, "height {height}");
        }
    }

    /// An edit that replaces all nodes may take the old ones out first. The page of small numbers must not
    /// stay behind without an entry: such a table could not be loaded, and with it the store.
    #[test]
    fn a_table_that_was_empty_for_a_moment_can_be_loaded() {
        for number in [1, SLOTS as u64, 100 * SLOTS as u64 + 7, (SLOTS * SLOTS) as u64, 1 << 47] {
            let mut table = Table::default();
            table.set(1, Some(entry()));
            table.set(1, None);
            table.set(number, Some(entry()));
            let loaded = written_and_loaded(&table).unwrap();
            let mut numbers = Vec::new();
            loaded.for_each(|id, _| numbers.push(id));
            assert_eq!(numbers, [number]);
        }
    }
}
