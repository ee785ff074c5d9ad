//! Pages: sorted messages, the unit that is read, cached, compressed and checked.
//!
//! Raw form: entries, then a `u32` offset per entry, then the `u32` count. An
//! entry is a kind byte, the varint lengths of key suffix and content, and
//! these two. Keys are strictly ascending. The prefix that all keys of a page
//! share is kept beside the page, in its [`super::node::PageRef`], so that
//! lifting a node changes a header and no page.

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
}

struct Entry<'a> {
    kind: u8,
    key: &'a [u8],
    /// Content range within the page.
    content: std::ops::Range<usize>,
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
        let page = Page { data, count, table };
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
        Ok(page)
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

    fn entry(&self, i: usize) -> Entry<'_> {
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
        self.entry(i).key
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
        (0..self.count).all(|i| self.entry(i).kind == 0)
    }

    /// Index of the first entry whose key is at least `suffix`, and whether it is equal.
    pub fn search(&self, suffix: &[u8]) -> (usize, bool) {
        let (mut low, mut high) = (0, self.count);
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
        let page = Page { data: data.freeze(), count: offsets.len(), table };
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
    }

    proptest! {
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
