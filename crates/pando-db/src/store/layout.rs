//! Where the bytes of a node go when it is written.
//!
//! As a rule a node gets one new extent with its header and then its pages, so that a scan reads it in one piece. There
//! are three exceptions:
//!
//! - Pages that already lie in an extent of pages ([`Extent::shared`]) stay there and are not written again, if the
//!   node
//!   uses enough of the extent ([`kept`]), or if the device cannot read one of them.
//! - The messages of an interior node go to an extent of pages, apart from the header, so that the next version of the
//!   node writes only those that have arrived since ([`allocate_apart`]).
//! - If no free range is long enough, the extent is scattered over several ranges. So a store can be filled to the end,
//!   and emptied, however small the free ranges are.
//!
//! Uses the pager for pages that are copied, `space` and the device. What is written is not durable before a flush.

use std::{collections::VecDeque, io::IoSlice, sync::Arc};

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    device::{BLOCK, ZEROS},
    error::{Error, Result},
    format::node_codec::{MAX_HEADER_BYTES, encode_header, pack},
    node::{MAX_RAW_BYTES, Node, PageLoc, PageRef, Segment, stored::Stored},
    space::{Extent, Space},
    store::{pager::Pager, scattered, table::MAX_PARTS},
};

/// A version of a node keeps at most so many extents of pages of the last one.
const MAX_KEPT_EXTENTS: usize = 16;
/// A node keeps an extent only if it uses at least 1/n of it. The rest may belong to another node, or be unused.
const KEPT_USE_FRACTION: u64 = 4;
/// A node keeps an extent only if the part that it uses has, before compression, at least 1/n of the size of a node. So
/// a scan reads enough in one place before it moves to another, and the places of a node are few.
const KEPT_RUN_FRACTION: usize = 16;

/// The same share for messages, and the most extents in which those of a node are kept: a scan visits the node once for
/// every edge, and reads in each of these places (`docs/costs.md`, item 2).
const KEPT_MESSAGES_FRACTION: usize = 8;
const MAX_MESSAGE_EXTENTS: usize = 3;

/// If the pages of an interior node have at least so many bytes, they are written apart from its header. Fewer would
/// not be kept by the next version, or would waste more in blocks that are not full.
fn lasting_from(node_size: usize) -> usize {
    (node_size / KEPT_MESSAGES_FRACTION).max(2 * BLOCK as usize)
}

/// A node keeps at most so many extents because a page in them cannot be read.
const MAX_HELD_EXTENTS: usize = 64;

/// Writes a node to free space. [`Error::NoSpace`] if there is too little, or if it lies in more ranges than an extent
/// can have. A page that the device cannot read stays where it is, with its extent, because a later read may succeed.
/// Only if `is_own` says that the extent is another node's own, zeros are written for the page, which fail its
/// checksum.
pub(crate) fn store_node(
    pager: &Pager,
    space: &Arc<Space>,
    node: &Arc<Node>,
    is_own: &dyn Fn(&Extent) -> bool,
) -> Result<Arc<Stored>> {
    let mut kept = kept(node, pager.node_size());
    let most = kept.len() + MAX_HELD_EXTENTS;
    let (mut new, pages) = loop {
        let may_hold = |extent: &Extent| kept.len() < most && (extent.shared || !is_own(extent));
        match packed(pager, node, &kept, may_hold)? {
            PackOutcome::All(new, pages) => break (new, pages),
            PackOutcome::Unreadable(extent) => kept.push(extent),
        }
    };
    let header_len = encode_header(&new).len();
    check_lengths(&new, header_len)?;
    let lens: Vec<usize> = pages.iter().map(Bytes::len).collect();
    let lasting = node.height > 0 && lens.iter().sum::<usize>() >= lasting_from(pager.node_size());
    let parts = match lasting.then(|| allocate_apart(space, header_len, &lens)) {
        Some(Ok(parts)) => parts,
        None | Some(Err(Error::NoSpace)) => allocate_together(space, header_len, &lens)?,
        Some(Err(error)) => return Err(error),
    };

    let places = parts.iter().zip(0u8..).flat_map(|(part, at)| part.offsets().map(move |o| (at, o)));
    let mut places = places.collect::<Vec<_>>().into_iter();
    assert!(parts.len() + kept.len() <= MAX_PARTS, "a node in more extents than the table names");
    for (page, old) in new.pages_mut().zip(node.pages()) {
        let PageLoc::Home(segment) = &mut page.loc else { continue };
        let found = match &old.loc {
            PageLoc::Foreign(extent, _) => place_in(&kept, extent),
            _ => None,
        };
        match found {
            Some(at) => segment.part = (parts.len() + at) as u8,
            None => {
                let place = places.next();
                assert!(place.is_some(), "a page of a node has no place");
                (segment.part, segment.offset) = place.unwrap_or_default();
            }
        }
    }
    assert!(places.next().is_none(), "a place of a node has no page");
    let header = encode_header(&new);
    assert_eq!(header.len(), header_len, "a header's length depends on where pages are");

    write(pager, &parts, &header, &pages)?;
    let extents = parts.into_iter().map(|part| part.extent).chain(kept).collect();
    let stored = Stored { parts: extents, header_len: header_len as u32, header_sum: xxh3_64(&header) };
    pager.admit(&stored, node, &new)?;
    Ok(Arc::new(stored))
}

/// An error if the node would be too long to be read again: a store that stops is better than one whose root cannot be
/// read.
fn check_lengths(node: &Node, header: usize) -> Result<()> {
    let stored = |page: &PageRef| match &page.loc {
        PageLoc::Home(segment) => segment.len,
        PageLoc::Mem(_) | PageLoc::Foreign(..) => 0,
    };
    let page = node.pages().map(|page| page.raw.max(stored(page))).max().unwrap_or(0);
    let lens =
        [("page of a node", page.into(), MAX_RAW_BYTES), ("node header", header as u64, MAX_HEADER_BYTES)];
    match lens.into_iter().find(|(_, len, limit)| *len > u64::from(*limit)) {
        Some((what, len, limit)) => Err(Error::TooLarge { what, len, limit: limit.into() }),
        None => Ok(()),
    }
}

/// The pages of a node that are to be written, or the reason why they cannot be packed yet.
enum PackOutcome {
    /// The node, with its pages in the form in which they are stored, and their bytes, in order.
    All(Node, Vec<Bytes>),
    /// The extent of a page that the device cannot read.
    Unreadable(Arc<Extent>),
}

/// Packs the pages that are not in extents that are `kept`. I/O: the pages that are copied.
fn packed(
    pager: &Pager,
    node: &Node,
    kept: &[Arc<Extent>],
    may_hold: impl Fn(&Extent) -> bool,
) -> Result<PackOutcome> {
    let mut new = Node::clone(node);
    let mut pages = Vec::new();
    let is_copied = |page: &PageRef| match &page.loc {
        PageLoc::Mem(_) => false,
        PageLoc::Foreign(extent, _) => place_in(kept, extent).is_none(),
        PageLoc::Home(_) => true,
    };
    let olds: Vec<&PageRef> = node.pages().collect();
    let mut copies = VecDeque::new();
    for (i, page) in new.pages_mut().enumerate() {
        let segment = match &page.loc {
            PageLoc::Foreign(extent, segment) if place_in(kept, extent).is_some() => *segment,
            PageLoc::Mem(memory) => {
                let (segment, bytes) = pack(memory, pager.codec());
                pages.push(bytes);
                segment
            }
            PageLoc::Home(_) | PageLoc::Foreign(..) => {
                if copies.is_empty() {
                    let follow = olds.get(i..).unwrap_or_default().iter().copied();
                    copies = pager
                        .stored_bytes(follow.take_while(|page| is_copied(page)), pager.node_size())?
                        .into();
                }
                let copied = copies.pop_front();
                let (segment, bytes) =
                    copied.ok_or_else(|| Error::corrupt("node page", 0, "a page of no known extent"))?;
                match (bytes, &page.loc) {
                    (Some(bytes), _) => pages.push(bytes),
                    (None, PageLoc::Foreign(extent, _)) if may_hold(extent) => {
                        return Ok(PackOutcome::Unreadable(extent.clone()));
                    }
                    (None, _) => pages.push(Bytes::from(vec![0; segment.len as usize])),
                }
                segment
            }
        };
        page.loc = PageLoc::Home(segment);
    }
    Ok(PackOutcome::All(new, pages))
}

/// An upper bound of the bytes that writing this node takes, in whatever extents.
pub(crate) fn bytes_to_write(node: &Node, node_size: usize) -> usize {
    let kept = kept(node, node_size);
    let stays = |loc: &PageLoc| match loc {
        PageLoc::Foreign(extent, _) => place_in(&kept, extent).is_some(),
        _ => false,
    };
    let staying: usize = node.pages().filter(|p| stays(&p.loc)).map(|p| p.raw as usize).sum();
    node.bytes() - staying + BLOCK as usize
}

/// Whether a node that uses `used` bytes of an extent of pages, which are `raw` without compression, keeps it. If it
/// uses less, these pages are copied when the node is written.
fn is_worth_keeping(extent: &Extent, used: u64, raw: u64, node_size: usize) -> bool {
    used >= extent.len / KEPT_USE_FRACTION && raw as usize >= node_size / KEPT_RUN_FRACTION
}

fn place_in(kept: &[Arc<Extent>], extent: &Arc<Extent>) -> Option<usize> {
    kept.iter().position(|k| k.id == extent.id)
}

/// The extents that `node` keeps because it uses a large part of each.
fn kept(node: &Node, node_size: usize) -> Vec<Arc<Extent>> {
    let pages = node.pages().map(|page| match &page.loc {
        PageLoc::Foreign(extent, segment) => Some((extent, *segment, page.raw)),
        _ => None,
    });
    kept_of(pages, node.height, node_size)
}

/// The extents that a node with such pages keeps because it uses a large part of each. A leaf must use that part in one
/// run and in order, because leaves are scanned. Of each page where it lies, if it is placed in an extent, and how long
/// it is without compression.
pub(crate) fn kept_of<'a>(
    pages: impl Iterator<Item = Option<(&'a Arc<Extent>, Segment, u32)>>,
    height: u8,
    node_size: usize,
) -> Vec<Arc<Extent>> {
    struct UsedExtent<'a> {
        extent: &'a Arc<Extent>,
        used: u64,
        /// The same bytes without compression.
        raw: u64,
        /// The end of its last page; `None` if the pages do not follow each other.
        end: Option<u32>,
    }
    let mut runs: Vec<UsedExtent<'_>> = Vec::new();
    let mut last = None;
    for page in pages {
        let Some((extent, Segment { offset, len, .. }, raw)) = page.filter(|(extent, ..)| extent.shared)
        else {
            last = None;
            continue;
        };
        let at = match last {
            Some(at) if runs.get(at).is_some_and(|run: &UsedExtent<'_>| run.extent.id == extent.id) => at,
            _ => match runs.iter().position(|run| run.extent.id == extent.id) {
                Some(again) => {
                    runs[again].end = None;
                    again
                }
                None => {
                    runs.push(UsedExtent { extent, used: 0, raw: 0, end: Some(offset) });
                    runs.len() - 1
                }
            },
        };
        let run = &mut runs[at];
        run.used += u64::from(len);
        run.raw += u64::from(raw);
        run.end = run.end.filter(|end| *end == offset).map(|end| end + len);
        last = Some(at);
    }
    let worth = |run: &UsedExtent<'_>| is_worth_keeping(run.extent, run.used, run.raw, node_size);
    let long = |run: &UsedExtent<'_>| run.end.is_some();
    let much = |run: &UsedExtent<'_>| height > 0 && run.used as usize >= node_size / KEPT_MESSAGES_FRACTION;
    let mut places = 0;
    runs.retain(|run| {
        // Bulk values stay in one run. The messages of a version do not, when new ones have been merged between them.
        let kept = worth(run) && (long(run) || (much(run) && places < MAX_MESSAGE_EXTENTS));
        places += usize::from(kept && height > 0);
        kept
    });
    runs.into_iter().take(MAX_KEPT_EXTENTS).map(|run| run.extent.clone()).collect()
}

/// A new extent, and what is written to it.
struct Part {
    extent: Arc<Extent>,
    /// Bytes of the header in front.
    header: usize,
    /// Lengths of the pages in it.
    pages: Vec<usize>,
}

impl Part {
    /// The offsets at which its pages begin.
    fn offsets(&self) -> impl Iterator<Item = u32> + '_ {
        let starts = self.pages.iter().scan(self.header, |at, len| {
            let start = *at;
            *at += len;
            Some(start)
        });
        starts.map(|at| at as u32)
    }
}

/// Writes a header and pages to their places, with one request for places that lie side by side.
fn write(pager: &Pager, parts: &[Part], header: &[u8], pages: &[Bytes]) -> Result<()> {
    if let [Part { extent, .. }] = parts
        && extent.is_scattered()
    {
        let mut bytes = Vec::with_capacity(extent.len as usize);
        bytes.extend_from_slice(header);
        pages.iter().for_each(|page| bytes.extend_from_slice(page));
        bytes.resize(extent.len as usize, 0);
        return scattered::write(&**pager.device(), extent, &bytes);
    }
    let (mut header, mut pages) = (header, pages);
    for parts in parts.chunk_by(|a, b| a.extent.offset + a.extent.len == b.extent.offset) {
        // The device joins the buffers, in memory that it has for that.
        let mut bufs = Vec::with_capacity(parts.iter().map(|part| part.pages.len() + 2).sum());
        for part in parts {
            let (here, rest) = pages.split_at(part.pages.len());
            let used = part.header + part.pages.iter().sum::<usize>();
            let unused = (part.extent.len as usize).checked_sub(used).and_then(|len| ZEROS.get(..len));
            assert!(unused.is_some(), "a part of a node does not fill the blocks of its extent");
            bufs.push(std::mem::take(&mut header));
            bufs.extend(here.iter().map(|page| &page[..]));
            bufs.extend(unused);
            pages = rest;
        }
        let offset = parts.first().map_or(0, |part| part.extent.offset);
        let bufs: Vec<_> = bufs.into_iter().filter(|bytes| !bytes.is_empty()).map(IoSlice::new).collect();
        pager.device().write_vectored_at(offset, &bufs).map_err(|e| Error::io("write", offset, e))?;
    }
    assert!(pages.is_empty(), "pages of a node are left over");
    Ok(())
}

/// Allocates an extent for the header and one for the pages, which later versions of the node may keep.
fn allocate_apart(space: &Arc<Space>, header: usize, pages: &[usize]) -> Result<Vec<Part>> {
    let (own, shared) = space.allocate_both(header as u64, pages.iter().sum::<usize>() as u64)?;
    let own = Part { extent: own, header, pages: Vec::new() };
    Ok(vec![own, Part { extent: shared, header: 0, pages: pages.to_vec() }])
}

/// Allocates one extent for a header and pages, scattered if need be.
fn allocate_together(space: &Arc<Space>, header: usize, lens: &[usize]) -> Result<Vec<Part>> {
    let total = (header + lens.iter().sum::<usize>()) as u64;
    Ok(vec![Part { extent: space.allocate_anywhere(total)?, header, pages: lens.to_vec() }])
}

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use crate::{
        device::MemDevice,
        key::Span,
        node::{Body, Edge, Layer, Run, UpdateMsg, message::Msg, page::Builder, stored::detach},
        options::Codec,
        store::pager::Handle,
    };

    const NODE: u32 = 64 << 10;

    /// A leaf of incompressible pages in memory.
    fn leaf(pages: u32) -> Arc<Node> {
        let mut node = Node::empty_leaf(Span::all());
        let mut state = 1u64;
        for page in 0..pages {
            let mut builder = Builder::default();
            let noise = (0..900).flat_map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state.to_be_bytes()
            });
            let value = Bytes::from_iter(noise);
            builder.push(Bytes::copy_from_slice(&page.to_be_bytes()), Msg::Put(value));
            let Body::Leaf(run) = &mut node.body else { panic!("a leaf") };
            run.pages.extend(builder.finish().map(crate::node::PageRef::from_built));
        }
        Arc::new(node)
    }

    fn store() -> (Pager, Arc<Space>) {
        let device = Arc::new(MemDevice::new(1 << 20));
        (Pager::new(device.clone(), 1 << 20, NODE, Codec::default()), Space::new(device, 0, 1 << 20))
    }

    fn assert_same(pager: &Pager, stored: &Arc<Stored>, node: &Node) {
        // A pager without cache, so that the device is read.
        let cold = Pager::new(pager.device().clone(), 0, NODE, Codec::default());
        let header = cold.stored_node(stored).expect("readable");
        let handle = Handle { node: header, home: Some(stored.clone()) };
        for (old, new) in node.pages().zip(handle.node.pages()) {
            let (old, new) = (pager.page(None, old), cold.page(handle.home.as_ref(), new));
            assert_eq!(old.expect("in memory").data(), new.expect("readable").data());
        }
        assert_eq!(node.pages().count(), handle.node.pages().count());
    }

    #[test]
    fn scattered_space_still_holds_a_node() {
        let (pager, space) = store();
        let node = leaf(8);
        let whole = store_node(&pager, &space, &node, &|_| true).expect("room");
        assert_eq!(whole.parts.len(), 1);
        assert_same(&pager, &whole, &node);
        drop(whole);
        // Every other piece is free, and none of a block has room for a page.
        for piece in [16 << 10, 4 << 10] {
            let all: Vec<_> = (0..(1 << 20) / piece).map(|_| space.allocate(piece).expect("room")).collect();
            let held: Vec<_> = all.into_iter().step_by(2).collect();
            let cut = store_node(&pager, &space, &node, &|_| true).expect("room in pieces");
            assert!(cut.parts.len() == 1 && cut.parts[0].ranges().count() >= 4);
            assert_same(&pager, &cut, &node);
            // Its pages come over into another node, as they are.
            let moved = Arc::new(detach(&node_of(&pager, &cut), &cut).expect("a node"));
            drop(held);
            let copy = store_node(&pager, &space, &moved, &|_| true).expect("room");
            assert!(!copy.parts[0].is_scattered());
            assert_same(&pager, &copy, &node);
        }
    }

    fn node_of(pager: &Pager, stored: &Arc<Stored>) -> Node {
        Node::clone(&*pager.stored_node(stored).expect("readable"))
    }

    #[test]
    fn a_node_that_finds_too_little_space_takes_none() {
        let (pager, space) = store();
        let mut all: Vec<_> = (0..256).map(|_| space.allocate(4 << 10).expect("room")).collect();
        (0..8).for_each(|i| drop(all.remove(i * 9)));
        let free = space.free_bytes();
        assert!(matches!(store_node(&pager, &space, &leaf(8), &|_| true), Err(Error::NoSpace)));
        assert_eq!(space.free_bytes(), free);
    }

    /// What is longer than the decoder accepts was written all the same: that node could not be read any more.
    #[test]
    fn a_node_that_could_not_be_read_again_is_not_written() {
        let (pager, space) = store();
        let free = space.free_bytes();
        let node = |layer: Layer| {
            let edge = Edge { layers: vec![layer], ..Edge::default() };
            Arc::new(Node { height: 1, span: Span::all(), body: Body::Interior(vec![edge]) })
        };
        let refused = |layer: Layer| match store_node(&pager, &space, &node(layer), &|_| true) {
            Err(Error::TooLarge { what, .. }) => what,
            other => panic!("{:?}", other.map(|stored| stored.header_len)),
        };
        let long = Bytes::from(vec![0; 64 << 20]);
        let mut builder = Builder::default();
        builder.push(Bytes::from_static(b"key"), Msg::upsert(long.clone()));
        let pages = builder.finish().map(PageRef::from_built).into_iter().collect();
        assert_eq!(refused(Layer { run: Run { pages }, ..Layer::default() }), "page of a node");
        let update = UpdateMsg { span: Span::all(), ops: SmallVec::from_iter([long]) };
        assert_eq!(refused(Layer { updates: vec![update], ..Layer::default() }), "node header");
        assert_eq!(space.free_bytes(), free);
    }

    #[test]
    fn extents_of_pages_are_kept_while_much_of_them_is_used() {
        let (pager, space) = store();
        let node = leaf(8);
        let Body::Leaf(run) = &node.body else { panic!("a leaf") };
        // As the log places pages: in an extent of their own.
        let extent = space.allocate_shared(64 << 10).expect("room");
        let mut offset = 0;
        let mut placed = Node::clone(&node);
        let Body::Leaf(new) = &mut placed.body else { panic!("a leaf") };
        for (page, old) in new.pages.iter_mut().zip(&run.pages) {
            let PageLoc::Mem(memory) = &old.loc else { panic!("in memory") };
            let (segment, bytes) = pack(memory, Codec::default());
            pager.device().write_at(extent.offset + u64::from(offset), &bytes).expect("memory");
            page.loc = PageLoc::Foreign(extent.clone(), Segment { offset, ..segment });
            offset += segment.len;
        }
        let some = |from: usize, to: usize| {
            let mut node = placed.clone();
            let Body::Leaf(run) = &mut node.body else { panic!("a leaf") };
            run.pages = run.pages[from..to].to_vec();
            Arc::new(node)
        };
        for (from, to, keeps) in [(0, 8, true), (2, 6, true), (0, 1, false)] {
            let node = some(from, to);
            let stored = store_node(&pager, &space, &node, &|_| true).expect("room");
            assert_eq!(stored.parts.iter().any(|part| part.id == extent.id), keeps, "pages {from}..{to}");
            assert!(
                bytes_to_write(&node, NODE as usize) < 2000 + BLOCK as usize + if keeps { 0 } else { 8000 }
            );
            let fresh = leaf(8);
            let Body::Leaf(run) = &fresh.body else { panic!("a leaf") };
            let mut expected = Node::clone(&fresh);
            let Body::Leaf(cut) = &mut expected.body else { panic!("a leaf") };
            cut.pages = run.pages[from..to].to_vec();
            assert_same(&pager, &stored, &expected);
        }
        // Out of order it is not one run.
        let mut mixed = Node::clone(&placed);
        let Body::Leaf(run) = &mut mixed.body else { panic!("a leaf") };
        run.pages.remove(3);
        assert!(kept(&mixed, NODE as usize).is_empty());
    }

    /// An interior node with one edge, on which these pages wait in one layer.
    fn waiting(pages: &[PageRef]) -> Arc<Node> {
        let run = Run { pages: pages.to_vec() };
        let layer = Layer { run, ..Layer::default() };
        let edge = Edge { layers: vec![layer], ..Edge::default() };
        Arc::new(Node { height: 1, span: Span::all(), body: Body::Interior(vec![edge]) })
    }

    #[test]
    fn messages_outlast_the_versions_of_their_node() {
        let (pager, space) = store();
        let all: Vec<PageRef> = leaf(6).pages().cloned().collect();
        let first = store_node(&pager, &space, &waiting(&all[..4]), &|_| true).expect("room");
        assert_eq!((first.parts.len(), first.parts[0].shared, first.parts[1].shared), (2, false, true));
        assert_same(&pager, &first, &waiting(&all[..4]));
        // The next version: what was there, and more.
        let taken = detach(&pager.stored_node(&first).expect("readable"), &first).expect("its parts");
        let pages: Vec<PageRef> = taken.pages().chain(&all[4..]).cloned().collect();
        let node = waiting(&pages);
        let written = pager.device().stats().write_bytes;
        let (header, messages) = (first.parts[0].offset, first.parts[1].clone());
        let second = store_node(&pager, &space, &node, &|_| true).expect("room");
        let written = pager.device().stats().write_bytes - written;
        assert!(written as usize <= bytes_to_write(&node, NODE as usize).next_multiple_of(BLOCK as usize));
        assert!(written < 24 << 10, "{written} bytes for two pages of 7 KiB");
        assert!(second.parts.iter().any(|part| part.id == messages.id));
        assert_same(&pager, &second, &waiting(&all));
        // With the first version its header goes, and nothing else.
        drop((first, taken, pages, node));
        let owned =
            |offset: u64| space.owned_ranges().iter().any(|&(at, len)| (at..at + len).contains(&offset));
        assert!(!owned(header) && owned(messages.offset));
    }

    #[test]
    fn messages_lie_in_few_places() {
        let (pager, space) = store();
        let all: Vec<PageRef> = leaf(24).pages().cloned().collect();
        let mut stored = store_node(&pager, &space, &waiting(&[]), &|_| true).expect("room");
        let mut most = 0;
        for i in 0..12 {
            let taken = detach(&pager.stored_node(&stored).expect("readable"), &stored).expect("its parts");
            let old: Vec<PageRef> = taken.pages().cloned().collect();
            let (low, high) = old.split_at(i);
            // What comes in together is not left together, so that nothing stays one run.
            let node = waiting(&[low, &all[i..=i], high, &all[12 + i..=12 + i]].concat());
            stored = store_node(&pager, &space, &node, &|_| true).expect("room");
            assert_same(&pager, &stored, &waiting(&[&all[..=i], &all[12..=12 + i]].concat()));
            most = most.max(stored.parts.len());
        }
        assert_eq!(most, MAX_MESSAGE_EXTENTS + 2, "header, new messages and those that are kept");
    }
}
