//! A node as bytes: its header, and the stored form of pages.
//!
//! The layout is documented in `docs/format.md`; a change here changes it there.

use std::cell::RefCell;

use bytes::{BufMut, Bytes, BytesMut};
use lz4_flex::block::{CompressTable, compress_into, compress_into_with_table, get_maximum_output_size};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    codec::{Reader, put_bytes, put_varint},
    error::{Error, Result},
    key::{Longest, Span},
    node::{
        Body, Edge, Layer, MAX_RAW_BYTES, Node, PageLoc, PageRef, RangeMsg, Run, Segment, Target, UpdateMsg,
        page::{Page, page_of_value},
    },
    options::Codec,
    pool,
};

const NODE_MAGIC: u32 = u32::from_le_bytes(*b"PNOD");
const NODE_VERSION: u8 = 2;
const WHAT: &str = "node header";
/// Largest node header that is accepted, in bytes.
pub(crate) const MAX_HEADER_BYTES: u32 = 64 << 20;

/// How stored page bytes give raw ones.
pub(crate) mod codec_id {
    pub const RAW: u8 = 0;
    pub const LZ4: u8 = 1;
    pub const ZSTD: u8 = 2;
    /// The value of the only entry, a put whose key is the page's prefix.
    pub const BARE: u8 = 3;
}

/// Samples of a page, and the bytes of each: which are compressed first, to see whether it is worth while.
const SAMPLES: usize = 2;
const SAMPLE_BYTES: usize = 1 << 10;

thread_local! {
    /// What the compressor has seen of a page: memory that is used again for the next one.
    static SEEN: RefCell<CompressTable> = RefCell::new(CompressTable::small());
}

/// Compresses bytes into `packed`, and says how many they are then. There is room if `packed` has the bytes that the
/// compressor says it may need.
fn lz4(raw: &[u8], packed: &mut [u8]) -> Option<usize> {
    // A hash table for longer pages would stay allocated, and be slower to clear for all other pages.
    let len = match raw.len() < usize::from(u16::MAX) {
        true => SEEN.with_borrow_mut(|seen| compress_into_with_table(raw, packed, seen)),
        false => compress_into(raw, packed),
    };
    len.ok()
}

/// True if a page may become shorter by an eighth. Two samples are compressed: a page of media or ciphertext is
/// recognised at a fraction of the work, and if only a part of a page is such, the other sample shrinks.
fn may_shrink(raw: &[u8]) -> bool {
    let step = raw.len() / (SAMPLES + 1);
    if step < SAMPLE_BYTES {
        return true;
    }
    (1..=SAMPLES).filter_map(|i| raw.get(i * step..)?.get(..SAMPLE_BYTES)).any(|sample| {
        // A sample has fewer repetitions than the whole.
        let mut packed = [0; SAMPLE_BYTES + SAMPLE_BYTES / 8];
        lz4(sample, &mut packed).is_none_or(|len| len < SAMPLE_BYTES - SAMPLE_BYTES / 16)
    })
}

/// The stored form of a page in memory: compressed if that saves an eighth. Its place is not set.
pub(crate) fn pack(page: &Page, codec: Codec) -> (Segment, Bytes) {
    let raw = page.data();
    let packed = match codec {
        Codec::None => None,
        _ if !may_shrink(raw) => None,
        Codec::Lz4 => {
            let mut packed = pool::buffer(get_maximum_output_size(raw.len()));
            let len = lz4(raw, &mut packed);
            len.map(|len| (codec_id::LZ4, Bytes::from(packed).slice(..len)))
        }
        // Fails only for want of memory: then the page stays as it is.
        Codec::Zstd(level) => {
            let packed = zstd::bulk::compress(raw, level.into());
            packed.ok().map(|packed| (codec_id::ZSTD, packed.into()))
        }
    };
    let (codec, bytes) = match packed {
        Some((codec, packed)) if packed.len() + raw.len() / 8 < raw.len() => (codec, packed),
        _ => (codec_id::RAW, raw.clone()),
    };
    (Segment { part: 0, offset: 0, len: bytes.len() as u32, sum: xxh3_64(&bytes), codec }, bytes)
}

/// The stored form of a page of one value that does not compress, if it is that value alone. Its place is not set.
///
/// A value as long as a block fits into a block then.
pub(crate) fn pack_bare(page: &Page, segment: Segment) -> Option<(Segment, Bytes)> {
    let bytes = if is_raw(segment) { page.only_value()? } else { return None };
    let segment = Segment { len: bytes.len() as u32, sum: xxh3_64(&bytes), codec: codec_id::BARE, ..segment };
    Some((segment, bytes))
}

/// The raw form, of `raw_len` bytes, of stored page bytes, verified.
pub(crate) fn unpack(segment: Segment, raw_len: u32, stored: Bytes, at: u64) -> Result<Bytes> {
    let bad = |detail: String| Error::corrupt("node page", at, detail);
    if xxh3_64(&stored) != segment.sum {
        return Err(bad("its checksum does not match".into()));
    }
    if raw_len > MAX_RAW_BYTES {
        return Err(bad(format!("{raw_len} raw bytes")));
    }
    let unpacked = |unpack: fn(&[u8], &mut [u8]) -> std::result::Result<usize, String>| -> Result<_> {
        let mut raw = pool::buffer(raw_len as usize);
        let len = unpack(&stored, &mut raw).map_err(|e| bad(format!("it does not unpack: {e}")))?;
        Ok((Bytes::from(raw), len))
    };
    let (raw, len) = match segment.codec {
        codec_id::RAW => (stored.clone(), stored.len()),
        codec_id::LZ4 => {
            unpacked(|from, to| lz4_flex::block::decompress_into(from, to).map_err(|e| e.to_string()))?
        }
        codec_id::ZSTD => {
            unpacked(|from, to| zstd::bulk::decompress_to_buffer(from, to).map_err(|e| e.to_string()))?
        }
        codec_id::BARE => {
            let raw = page_of_value(&stored);
            let len = raw.len();
            (raw, len)
        }
        other => return Err(bad(format!("unknown codec {other}"))),
    };
    if len != raw_len as usize {
        return Err(bad(format!("{len} raw bytes instead of {raw_len}")));
    }
    Ok(raw)
}

/// True if the stored form of a page is the raw one.
pub(crate) fn is_raw(segment: Segment) -> bool {
    segment.codec == codec_id::RAW
}

/// Checks and unpacks the stored form of a page.
pub(crate) fn load_page(page: &PageRef, segment: Segment, stored: Bytes, at: u64) -> Result<Page> {
    let parsed = Page::parse(unpack(segment, page.raw, stored, at)?)?;
    check_described(page, &parsed, at)?;
    Ok(parsed)
}

/// An error unless `loaded` is the page that a header describes, as far as the code that builds nodes relies on it.
pub(crate) fn check_described(page: &PageRef, loaded: &Page, at: u64) -> Result<()> {
    let last = loaded.len().wrapping_sub(1);
    if loaded.len() != page.count as usize
        || loaded.len() == 0
        || loaded.key(0) != page.first
        || loaded.key(last) != page.last
        || (page.pure && !loaded.is_pure())
    {
        return Err(Error::corrupt("node page", at, "it is not the page that the header describes"));
    }
    Ok(())
}

/// The header of a node all of whose pages are at home. Its length does not depend on where they are.
pub(crate) fn encode_header(node: &Node) -> Bytes {
    let mut out = BytesMut::with_capacity(4096);
    put_node(&mut out, node);
    out.freeze()
}

fn put_node(out: &mut BytesMut, node: &Node) {
    out.put_u32_le(NODE_MAGIC);
    out.put_u8(NODE_VERSION);
    out.put_u8(node.height);
    put_bytes(out, &node.span.lo);
    put_upper(out, &node.span);
    match &node.body {
        Body::Leaf(run) => put_run(out, run),
        Body::Interior(edges) => {
            put_varint(out, edges.len() as u64);
            for edge in edges {
                put_bytes(out, &edge.lo);
                put_target(out, edge.child.as_ref());
                out.put_u8(edge.loose.into());
                put_varint(out, edge.layers.len() as u64);
                edge.layers.iter().for_each(|layer| put_layer(out, layer));
            }
        }
    }
}

fn put_upper(out: &mut BytesMut, span: &Span) {
    out.put_u8(span.hi.is_some().into());
    if let Some(hi) = &span.hi {
        put_bytes(out, hi);
    }
}

fn put_target(out: &mut BytesMut, target: Option<&Target>) {
    out.put_u8(target.is_some().into());
    if let Some(target) = target {
        put_varint(out, target.id);
        put_bytes(out, &target.prepend);
    }
}

fn put_layer(out: &mut BytesMut, layer: &Layer) {
    put_varint(out, layer.newest);
    put_varint(out, layer.ranges.len() as u64);
    for range in &layer.ranges {
        put_bytes(out, &range.span.lo);
        put_upper(out, &range.span);
        put_target(out, range.target.as_ref());
    }
    put_varint(out, layer.updates.len() as u64);
    for update in &layer.updates {
        put_bytes(out, &update.span.lo);
        put_upper(out, &update.span);
        put_varint(out, update.ops.len() as u64);
        update.ops.iter().for_each(|op| put_bytes(out, op));
    }
    put_run(out, &layer.run);
}

fn put_run(out: &mut BytesMut, run: &Run) {
    put_varint(out, run.pages.len() as u64);
    for page in &run.pages {
        put_bytes(out, &page.prefix);
        put_bytes(out, &page.first);
        put_bytes(out, &page.last);
        put_varint(out, page.count.into());
        put_varint(out, page.raw.into());
        let known = page.longest != Longest::UNKNOWN;
        out.put_u8(u8::from(page.pure) | u8::from(page.deletes) << 1 | u8::from(known) << 2);
        if known {
            put_varint(out, page.longest.encode().into());
        }
        let PageLoc::Home(segment) = page.loc else { unreachable!("pages are brought home before") };
        out.put_u8(segment.part);
        out.put_u32_le(segment.offset);
        out.put_u32_le(segment.len);
        out.put_u64_le(segment.sum);
        out.put_u8(segment.codec);
    }
}

/// Decodes a header whose checksum has been verified, of a node that lies in extents of these lengths.
/// Structure and order are checked; what needs other nodes is left to the checker.
pub(crate) fn decode(header: Bytes, parts: &[u64]) -> Result<Node> {
    let mut r = Reader::new(header, WHAT);
    if r.u32()? != NODE_MAGIC || r.u8()? != NODE_VERSION {
        return Err(r.bad("wrong magic or version"));
    }
    let height = r.u8()?;
    let lo = r.bytes()?;
    let span = Span { lo, hi: get_upper(&mut r)? };
    if span.is_empty() {
        return Err(r.bad("an empty key range"));
    }
    // What refers to a node takes off what all its keys begin with.
    if span.common_prefix_len() > 0 {
        return Err(r.bad("a key range whose keys all begin alike"));
    }
    let parts = NodeParts { parts };
    let body = if height == 0 {
        let run = get_run(&mut r, parts)?;
        if run.pages.iter().any(|p| !p.pure || !p.is_inside(&span) || !has_lifted(p, &span)) {
            return Err(r.bad("a leaf page that is out of range or holds messages"));
        }
        Body::Leaf(run)
    } else {
        Body::Interior(get_edges(&mut r, &span, parts)?)
    };
    r.end()?;
    Ok(Node { height, span, body })
}

#[derive(Clone, Copy)]
struct NodeParts<'a> {
    parts: &'a [u64],
}

fn get_edges(r: &mut Reader, span: &Span, parts: NodeParts<'_>) -> Result<Vec<Edge>> {
    let count = r.count(3)?;
    let mut edges = Vec::with_capacity(count);
    for i in 0..count {
        let lo = r.bytes()?;
        let child = get_target(r)?;
        let loose = r.u8()? != 0;
        let layers = (0..r.count(4)?).map(|_| get_layer(r, parts)).collect::<Result<Vec<_>>>()?;
        let ordered = match edges.last() {
            Some(Edge { lo: before, .. }) => *before < lo && span.is_above(&lo),
            None => lo == span.lo,
        };
        if !ordered {
            return Err(r.bad(format!("edge {i} is out of order")));
        }
        edges.push(Edge { lo, child, layers, loose });
    }
    for i in 0..edges.len() {
        let live = crate::node::edge_span(&edges, span, i);
        if !edges[i].layers.is_sorted_by_key(|layer| layer.newest) {
            return Err(r.bad(format!("layers of edge {i} out of order")));
        }
        for layer in &edges[i].layers {
            let inside = layer.ranges.iter().all(|m| live.covers(&m.span))
                && layer.updates.iter().all(|m| live.covers(&m.span))
                && layer.run.pages.iter().all(|p| p.is_inside(&live) && has_lifted(p, &live));
            if !inside {
                return Err(r.bad(format!("messages outside edge {i}")));
            }
        }
    }
    if edges.is_empty() {
        return Err(r.bad("an interior node without edges"));
    }
    Ok(edges)
}

/// True if the page's prefix has at least the bytes that an edge over `live` lifts: they are taken off it.
fn has_lifted(page: &PageRef, live: &Span) -> bool {
    page.prefix.len() >= live.common_prefix_len()
}

fn get_upper(r: &mut Reader) -> Result<Option<Bytes>> {
    match r.u8()? {
        0 => Ok(None),
        1 => Ok(Some(r.bytes()?)),
        other => Err(r.bad(format!("flag {other}"))),
    }
}

fn get_target(r: &mut Reader) -> Result<Option<Target>> {
    match r.u8()? {
        0 => Ok(None),
        1 => Ok(Some(Target { id: r.varint()?, prepend: r.bytes()? })),
        other => Err(r.bad(format!("flag {other}"))),
    }
}

fn get_layer(r: &mut Reader, parts: NodeParts<'_>) -> Result<Layer> {
    let newest = r.varint()?;
    let mut ranges: Vec<RangeMsg> = Vec::new();
    for _ in 0..r.count(3)? {
        let span = get_span_behind(r, ranges.last().map(|last| &last.span))?;
        ranges.push(RangeMsg { span, target: get_target(r)? });
    }
    let mut updates: Vec<UpdateMsg> = Vec::new();
    for _ in 0..r.count(4)? {
        let span = get_span_behind(r, updates.last().map(|last| &last.span))?;
        let ops = (0..r.count(1)?).map(|_| r.bytes()).collect::<Result<SmallVec<_>>>()?;
        if ops.is_empty() {
            return Err(r.bad("an update without an operation"));
        }
        updates.push(UpdateMsg { span, ops });
    }
    Ok(Layer { newest, ranges, updates, run: get_run(r, parts)? })
}

/// The range of a message, which lies behind that of the one before.
fn get_span_behind(r: &mut Reader, last: Option<&Span>) -> Result<Span> {
    let lo = r.bytes()?;
    let span = Span { lo, hi: get_upper(r)? };
    if span.is_empty() || last.is_some_and(|last| last.is_above(&span.lo)) {
        return Err(r.bad("messages about ranges overlap or are out of order"));
    }
    Ok(span)
}

fn get_run(r: &mut Reader, parts: NodeParts<'_>) -> Result<Run> {
    let count = r.count(23)?;
    let mut run = Run { pages: Vec::with_capacity(count) };
    for _ in 0..count {
        let (prefix, first, last) = (r.bytes()?, r.bytes()?, r.bytes()?);
        let (entries, raw) = (r.varint_u32()?, r.varint_u32()?);
        let flags = r.u8()?;
        let (pure, deletes) = (flags & 1 != 0, flags & 2 != 0);
        let longest = match flags & 4 {
            0 => Longest::UNKNOWN,
            _ => Longest::decode(r.varint_u32()?),
        };
        let (part, offset, len) = (r.u8()?, r.u32()?, r.u32()?);
        let segment = Segment { part, offset, len, sum: r.u64()?, codec: r.u8()? };
        let room = parts.parts.get(usize::from(part)).copied().unwrap_or(0);
        let beyond = u64::from(offset) + u64::from(len) > room;
        if beyond || len > MAX_RAW_BYTES || raw > MAX_RAW_BYTES || entries == 0 || first > last {
            return Err(r.bad("a page with impossible sizes or bounds"));
        }
        let loc = PageLoc::Home(segment);
        let page = PageRef { prefix, first, last, count: entries, raw, pure, deletes, longest, loc };
        if run.pages.last().is_some_and(|before| before.last_key() >= page.first_key()) {
            return Err(r.bad("pages out of order"));
        }
        run.pages.push(page);
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{message::Msg, page::Builder};

    #[test]
    fn a_node_whose_keys_all_begin_alike_is_refused() {
        let decoded = |lo: &'static str, hi: &'static str| {
            let span =
                Span { lo: Bytes::from_static(lo.as_bytes()), hi: Some(Bytes::from_static(hi.as_bytes())) };
            decode(encode_header(&Node::empty_leaf(span)), &[])
        };
        assert!(decoded("ab", "b0").is_ok());
        let refused = decoded("ab", "b").map_err(|error| error.to_string());
        assert!(refused.as_ref().is_err_and(|error| error.contains("begin alike")), "{refused:?}");
    }

    #[test]
    fn a_page_of_one_value_is_that_value_and_bears_no_other_length() {
        for len in [0, 1, 127, 128, 16 << 10, 100_000] {
            let value = Bytes::from_iter((0..len).map(|i| (i % 251) as u8));
            let mut builder = Builder::default();
            builder.push("a key".into(), Msg::Put(value.clone()));
            let page = PageRef::from_built(builder.finish().expect("an entry"));
            let PageLoc::Mem(memory) = &page.loc else { panic!("in memory") };
            let (segment, stored) = pack_bare(memory, pack(memory, Codec::None).0).expect("one value");
            assert_eq!(stored, value);
            let loaded = load_page(&page, segment, stored.clone(), 0).expect("the same page");
            assert!(loaded.data() == memory.data());
            let other = PageRef { raw: page.raw + 1, ..page.clone() };
            assert!(load_page(&other, segment, stored.clone(), 0).is_err());
            let many = PageRef { count: 2, ..page.clone() };
            assert!(load_page(&many, segment, stored, 0).is_err());
        }
        let mut builder = Builder::default();
        (0..2u8).for_each(|i| builder.push(vec![i].into(), Msg::Put("value".into())));
        let two = builder.finish().expect("entries").page;
        let mut builder = Builder::default();
        builder.push("a key".into(), Msg::Delete);
        let none = builder.finish().expect("an entry").page;
        let raw = |page: &Page| pack(page, Codec::None).0;
        assert!(pack_bare(&two, raw(&two)).is_none() && pack_bare(&none, raw(&none)).is_none());
    }

    #[test]
    fn samples_tell_what_is_worth_compressing() {
        let mut state = 1u64;
        let mut noise = |len: usize| -> Vec<u8> {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            };
            (0..len).map(|_| next()).collect()
        };
        let text = |len: usize| -> Vec<u8> {
            let words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"];
            let text = (0usize..).map(|i| words[i * i * 7 % 97 % words.len()]).flat_map(|w| [w, " "]);
            text.flat_map(str::bytes).take(len).collect()
        };
        assert!(!may_shrink(&noise(32 << 10)) && may_shrink(&text(32 << 10)));
        // Half of it is enough, whichever half.
        assert!(may_shrink(&[noise(16 << 10), text(16 << 10)].concat()));
        assert!(may_shrink(&[text(16 << 10), noise(16 << 10)].concat()));
        // What is hardly longer than the samples is simply tried.
        assert!(may_shrink(&noise(3 * SAMPLE_BYTES - 1)));
    }
}
