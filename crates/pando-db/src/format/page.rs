//! Pages: sorted messages, the unit that is read, cached, compressed and checked.
//!
//! Raw form: entries, then a `u32` offset per entry, then the `u32` count. An
//! entry is a kind byte, the varint lengths of key suffix and content, and
//! these two. Keys are strictly ascending. The prefix that all keys of a page
//! share is kept beside the page, in its [`super::node::PageRef`], so that
//! lifting a node changes a header and no page.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::{
    codec::{peek_varint, put_varint},
    message::Msg,
};
use crate::{
    error::{Error, Result},
    key::common_prefix,
};

/// A parsed page. Immutable; cloning shares the bytes.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    data: Bytes,
    count: usize,
    /// Where the offset table begins.
    table: usize,
    /// The heads of the keys of every [`STEP`]th entry, close together: most of a search needs no more.
    heads: Arc<[u64]>,
}

/// Entries between two whose heads are kept: a byte of memory an entry.
const STEP: usize = 8;

/// The first bytes of a key as a number: if `head(a) < head(b)`, then `a < b`.
fn head(key: &[u8]) -> u64 {
    let mut head = [0; 8];
    let len = key.len().min(8);
    head[..len].copy_from_slice(&key[..len]);
    u64::from_be_bytes(head)
}

/// An entry as it stands in its page.
pub(crate) struct Entry<'a> {
    kind: u8,
    /// Key suffix.
    pub key: &'a [u8],
    /// Content range within the page.
    pub content: std::ops::Range<usize>,
}

impl Entry<'_> {
    /// True if the content is the value of the key.
    pub fn is_put(&self) -> bool {
        self.kind == 0
    }
}

impl Page {
    /// Checks and takes raw bytes. Afterwards all accessors are safe on any index below `len`.
    pub fn parse(data: Bytes) -> Result<Page> {
        let bad = |detail: String| Error::corrupt("node page", 0, detail);
        let count = data
            .len()
            .checked_sub(4)
            .and_then(|at| Some(u32::from_le_bytes(data[at..].try_into().ok()?) as usize))
            .ok_or_else(|| bad("shorter than its count".into()))?;
        let table = count
            .checked_mul(4)
            .and_then(|len| (data.len() - 4).checked_sub(len))
            .ok_or_else(|| bad(format!("{count} entries in {} bytes", data.len())))?;
        let mut page = Page { data, count, table, heads: Arc::default() };
        let mut last: Option<&[u8]> = None;
        for i in 0..count {
            let entry = page.try_entry(i).ok_or_else(|| bad(format!("entry {i} is malformed")))?;
            if last.is_some_and(|last| last >= entry.key) {
                return Err(bad(format!("entry {i} is out of order")));
            }
            if !Msg::is_valid(entry.kind, &page.data[entry.content.clone()]) {
                return Err(bad(format!("entry {i} has a malformed message")));
            }
            last = Some(entry.key);
        }
        page.keep_heads();
        Ok(page)
    }

    fn keep_heads(&mut self) {
        self.heads = (0..self.count).step_by(STEP).map(|i| head(self.key(i))).collect();
    }

    fn try_entry(&self, i: usize) -> Option<Entry<'_>> {
        let slot = self.table + 4 * i;
        let at = u32::from_le_bytes(self.data.get(slot..slot + 4)?.try_into().ok()?) as usize;
        let body = self.data.get(at..self.table)?;
        let kind = *body.first()?;
        let (key_len, w1) = peek_varint(&body[1..])?;
        let (content_len, w2) = peek_varint(body.get(1 + w1..)?)?;
        let key_at = 1 + w1 + w2;
        let content_at = key_at.checked_add(usize::try_from(key_len).ok()?)?;
        let end = content_at.checked_add(usize::try_from(content_len).ok()?)?;
        let key = body.get(key_at..content_at)?;
        body.get(content_at..end)?;
        Some(Entry { kind, key, content: at + content_at..at + end })
    }

    /// Entry `i`.
    #[inline]
    pub fn entry(&self, i: usize) -> Entry<'_> {
        // `parse` and `Builder` are the only sources of pages, and both admit only whole entries.
        self.try_entry(i).unwrap_or_else(|| panic!("entry {i} of {} in a checked page", self.count))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Raw bytes.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// The key suffix of entry `i`.
    pub fn key(&self, i: usize) -> &[u8] {
        self.short_key(i).unwrap_or_else(|| self.entry(i).key)
    }

    /// The same, without looking at the content: searches ask for many keys. `None` where the lengths
    /// are not as short as they mostly are.
    #[inline]
    fn short_key(&self, i: usize) -> Option<&[u8]> {
        let slot = self.table + 4 * i;
        let at = u32::from_le_bytes(*self.data.get(slot..)?.first_chunk()?) as usize;
        let &[_kind, key_len @ 0..0x80, content_len, more] = self.data.get(at..)?.first_chunk()? else {
            return None;
        };
        let key_at = match (content_len, more) {
            (0..0x80, _) => at + 3,
            (_, 0..0x80) => at + 4,
            _ => return None,
        };
        self.data.get(key_at..key_at + usize::from(key_len))
    }

    /// The key suffix of entry `i`, sharing the page's memory.
    pub fn key_bytes(&self, i: usize) -> Bytes {
        self.data.slice_ref(self.entry(i).key)
    }

    /// The message of entry `i`, sharing the page's memory.
    pub fn msg(&self, i: usize) -> Msg {
        let entry = self.entry(i);
        Msg::decode(entry.kind, self.data.slice(entry.content))
    }

    /// Bytes that entry `i` takes.
    pub fn entry_len(&self, i: usize) -> usize {
        let entry = self.entry(i);
        entry.key.len() + entry.content.len() + 8
    }

    /// True if every message is a `Put`, so that the page could stand in a leaf.
    pub fn is_pure(&self) -> bool {
        (0..self.count).all(|i| self.entry(i).is_put())
    }

    /// Index of the first entry whose key is at least `suffix`, and whether it is equal.
    pub fn search(&self, suffix: &[u8]) -> (usize, bool) {
        // Between the last entry that is known to lie below, and the first that is known to lie above.
        let wanted = head(suffix);
        let below = self.heads.partition_point(|&head| head < wanted);
        let above = below + self.heads[below..].partition_point(|&head| head == wanted);
        let mut low = below.checked_sub(1).map_or(0, |last| last * STEP + 1);
        let mut high = self.count.min(above * STEP);
        while low < high {
            let mid = (low + high) / 2;
            match self.key(mid).cmp(suffix) {
                std::cmp::Ordering::Less => low = mid + 1,
                std::cmp::Ordering::Equal => return (mid, true),
                std::cmp::Ordering::Greater => high = mid,
            }
        }
        (low, false)
    }
}

/// A finished page with the prefix taken off its keys.
pub(crate) struct Built {
    pub prefix: Bytes,
    pub page: Page,
    pub pure: bool,
    pub deletes: bool,
}

/// Collects ascending entries of one page.
#[derive(Default)]
pub(crate) struct Builder {
    entries: Vec<(Bytes, Msg)>,
    bytes: usize,
}

impl Builder {
    /// Adds an entry above all others.
    pub fn push(&mut self, key: Bytes, msg: Msg) {
        debug_assert!(self.entries.last().is_none_or(|(last, _)| *last < key), "keys must ascend");
        self.bytes += key.len() + msg.len() + 8;
        self.entries.push((key, msg));
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Estimated raw size so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Encodes the entries and starts anew; `None` if there are none.
    pub fn finish(&mut self) -> Option<Built> {
        let (first, last) = (&self.entries.first()?.0, &self.entries.last()?.0);
        let shared = common_prefix(first, last);
        let prefix = first.slice(..shared);
        let mut data = BytesMut::with_capacity(self.bytes + 4);
        let mut offsets = Vec::with_capacity(self.entries.len());
        let (mut pure, mut deletes) = (true, false);
        for (key, msg) in &self.entries {
            offsets.push(data.len() as u32);
            let (suffix, content) = (&key[shared..], msg.encode());
            pure &= msg.is_put();
            deletes |= matches!(msg, Msg::Delete);
            data.put_u8(msg.kind());
            put_varint(&mut data, suffix.len() as u64);
            put_varint(&mut data, content.len() as u64);
            data.put_slice(suffix);
            data.put_slice(&content);
        }
        let table = data.len();
        offsets.iter().for_each(|&at| data.put_u32_le(at));
        data.put_u32_le(offsets.len() as u32);
        let mut page = Page { data: data.freeze(), count: offsets.len(), table, heads: Arc::default() };
        page.keep_heads();
        self.entries.clear();
        self.bytes = 0;
        // The prefix must not keep a whole batch alive for a few bytes.
        Some(Built { prefix: Bytes::copy_from_slice(&prefix), page, pure, deletes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_page_finds_what_was_put() {
        let mut builder = Builder::default();
        for i in 0..100u32 {
            builder.push(format!("key{i:03}").into(), Msg::Put(format!("{i}").into()));
        }
        let built = builder.finish().expect("entries");
        assert_eq!(&built.prefix[..], b"key0");
        let page = Page::parse(built.page.data().clone()).expect("well-formed");
        assert_eq!(page.search(b"42"), (42, true));
        assert_eq!(page.search(b"420"), (43, false));
        assert_eq!(page.msg(42), Msg::Put("42".into()));
        let entry = page.entry(8);
        assert_eq!((entry.key, &page.data()[entry.content.clone()]), (&b"08"[..], &b"8"[..]));
    }

    #[test]
    fn keys_are_found_whatever_the_lengths() {
        let lengths = [0, 1, 127, 128, 16_383, 16_384];
        for key_len in lengths {
            let mut builder = Builder::default();
            for (i, content) in lengths.into_iter().enumerate() {
                let key = [vec![i as u8], vec![7; key_len]].concat();
                builder.push(key.into(), Msg::Put(vec![8; content].into()));
            }
            let page =
                Page::parse(builder.finish().expect("entries").page.data().clone()).expect("well-formed");
            for (i, content) in lengths.into_iter().enumerate() {
                assert_eq!(page.key(i), page.entry(i).key);
                assert_eq!(page.key(i).len(), 1 + key_len);
                assert_eq!(page.msg(i).len(), content);
            }
        }
    }

    proptest! {
        #[test]
        fn a_search_finds_the_first_key_at_or_above(
            keys in prop::collection::btree_set(prop::collection::vec(0u8..3, 0..11), 1..90),
            wanted in prop::collection::vec(0u8..3, 0..11),
        ) {
            let mut builder = Builder::default();
            keys.iter().for_each(|key| builder.push(key.clone().into(), Msg::Delete));
            let built = builder.finish().expect("entries");
            if let Some(suffix) = wanted.strip_prefix(&built.prefix[..]) {
                let at = keys.iter().position(|key| *key >= wanted).unwrap_or(keys.len());
                prop_assert_eq!(built.page.search(suffix), (at, keys.contains(&wanted)));
            }
        }

        #[test]
        fn hostile_bytes_never_panic(mut raw in prop::collection::vec(any::<u8>(), 0..200), n in 0u32..8) {
            if raw.len() >= 4 { let at = raw.len() - 4; raw[at..].copy_from_slice(&n.to_le_bytes()); }
            if let Ok(page) = Page::parse(raw.into()) {
                for i in 0..page.len() { let _ = (page.msg(i), page.key(i)); }
                page.search(b"a");
            }
        }
    }
}
