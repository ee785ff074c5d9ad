//! Building pages: entries in ascending order, one by one or copied from other
//! pages as they are.
//!
//! A [`Builder`] makes pages one after the other and keeps its memory for the
//! next. What it makes reads as what [`Page::parse`] admits, and all entries
//! follow each other without gaps, so that the next copy is one piece. Uses
//! the form of a page, which its parent knows, and `key`.

use std::{ops::Range, sync::Arc};

use bytes::{BufMut, Bytes};

use crate::{
    codec::{put_varint, varint_len},
    key::{Longest, common_prefix, compare_joined, join},
    node::{
        message::Msg,
        page::{ENTRY_BYTES, EntryGroup, Page, head, note, tag},
    },
    pool,
};

/// A finished page with the prefix taken off its keys.
pub(crate) struct Built {
    pub prefix: Bytes,
    pub page: Page,
    pub pure: bool,
    pub deletes: bool,
}

/// Bytes of key suffixes up to which a copy of a piece of a page takes over the bound of the page, instead of looking
/// at each key again: a bound matters only where it is near the limit of keys.
const MAX_SHORT_BYTES: usize = 1 << 10;

/// When a page is closed by size, up to this many bytes of a key's shared prefix count for each key. A longer shared
/// prefix is stored once, in the header of the node: if it counted for each key, pages of long keys would have two or
/// three entries, and headers would be as long as all keys together.
const COUNTED_PREFIX_BYTES: usize = 256;

/// Bytes that the entries of a page have at least, on average, if it is built without a copy in between.
const LONG_ENTRY_BYTES: usize = 1 << 10;

/// Collects ascending entries of one page.
#[derive(Default)]
pub(crate) struct Builder {
    encoder: Encoder,
    items: Vec<NewEntries>,
    /// Pages that entries are copied from, with what their keys begin with.
    sources: Vec<(Arc<Page>, Bytes)>,
    count: usize,
    /// With whole keys.
    bytes: usize,
    /// The first key, and how many bytes all begin alike with; of pages whose first key is long.
    first: Bytes,
    shared: usize,
}

/// Entries for the page, in order.
enum NewEntries {
    One(Bytes, Msg),
    /// Entries of one of the sources: copied as they are, without looking into them.
    Copied(usize, Range<usize>),
}

/// A page as it is written; its memory serves one after the other.
#[derive(Default)]
struct Encoder {
    data: Vec<u8>,
    offsets: Vec<u32>,
    groups: Vec<EntryGroup>,
    pure: bool,
    deletes: bool,
    longest: Longest,
}

impl Encoder {
    /// Begins a page of about so many bytes.
    fn begin_page(&mut self, bytes: usize, entries: usize) {
        self.data.clear();
        self.data.reserve(bytes + size_of::<u32>());
        self.offsets.clear();
        self.offsets.reserve(entries);
        self.groups.clear();
        (self.pure, self.deletes, self.longest) = (true, false, Longest::NONE);
    }

    /// Notes the next entry, which is to begin at byte `at`.
    fn begin(&mut self, at: usize, kind: u8, suffix: &[u8]) {
        let head = head(suffix);
        note(&mut self.groups, self.offsets.len(), tag(head, suffix), || head);
        self.offsets.push(at as u32);
        self.note_kind(kind);
        self.note_len(kind, suffix.len());
    }

    fn note_len(&mut self, kind: u8, len: usize) {
        if kind != Msg::DELETE {
            self.longest = self.longest.max(Longest::of(len));
        }
    }

    fn note_kind(&mut self, kind: u8) {
        self.pure &= kind == Msg::PUT;
        self.deletes |= kind == Msg::DELETE;
    }

    fn push(&mut self, kind: u8, suffix: &[u8], content: &[u8]) {
        self.begin(self.data.len(), kind, suffix);
        put_entry(&mut self.data, kind, suffix, content);
    }

    /// The bytes of a page of these values, from whose keys `shared` bytes are taken off. They are copied once, into
    /// memory of just their length.
    fn put_all<'a>(
        &mut self,
        values: impl Iterator<Item = (&'a Bytes, &'a Bytes)> + Clone,
        shared: usize,
    ) -> Bytes {
        let entries = values.clone().map(|(key, value)| entry_len(key.len() - shared, value.len()));
        let count = values.clone().count();
        let mut data = pool::buffer(entries.sum::<usize>() + (count + 1) * size_of::<u32>());
        let whole = data.len();
        let mut rest = &mut data[..];
        for (key, value) in values {
            let suffix = &key[shared..];
            self.begin(whole - rest.len(), Msg::PUT, suffix);
            put_entry(&mut rest, Msg::PUT, suffix, value);
        }
        self.offsets.iter().for_each(|at| rest.put_u32_le(*at));
        rest.put_u32_le(count as u32);
        assert!(rest.is_empty(), "a page of another length");
        data.into()
    }

    /// The page with these bytes, of whose entries all was noted.
    fn built(&self, data: Bytes, prefix: &[u8]) -> Built {
        let count = self.offsets.len();
        let table = data.len() - (count + 1) * size_of::<u32>();
        let Encoder { pure, deletes, longest, .. } = *self;
        let groups = Arc::from(&self.groups[..]);
        let page = Page { data, count, table, pure, dense: true, lent: false, longest, groups };
        // The prefix must not keep a whole batch alive for a few bytes.
        Built { prefix: Bytes::copy_from_slice(prefix), page, pure, deletes }
    }

    /// Entries of another page, whose keys have `prefix`; `shared` bytes of the whole key are taken off.
    fn copy(&mut self, page: &Page, prefix: &[u8], entries: Range<usize>, shared: usize) {
        if prefix.len() == shared && page.dense {
            return self.copy_all(page, entries);
        }
        let added = prefix.get(shared..).unwrap_or_default();
        let cut = shared.saturating_sub(prefix.len());
        let mut longer = Vec::new();
        for i in entries {
            let entry = page.entry(i);
            if added.is_empty() {
                self.push(entry.kind, &entry.key[cut..], &page.data[entry.content]);
                continue;
            }
            longer.clear();
            longer.extend_from_slice(added);
            longer.extend_from_slice(entry.key);
            self.push(entry.kind, &longer, &page.data[entry.content]);
        }
    }

    /// Copies entries whose keys stay as they are, in one piece.
    fn copy_all(&mut self, page: &Page, entries: Range<usize>) {
        let from = page.start(entries.start);
        let to = self.data.len();
        let exact = page.longest.exceeds(MAX_SHORT_BYTES);
        if !exact {
            self.longest = self.longest.max(page.longest);
        }
        self.data.extend_from_slice(&page.data[from..page.start(entries.end)]);
        for i in entries {
            let at = page.start(i);
            note(&mut self.groups, self.offsets.len(), page.tag(i), || head(page.key(i)));
            self.offsets.push((to + at - from) as u32);
            if !page.pure {
                self.note_kind(page.data[at]);
            }
            if exact {
                let entry = page.entry(i);
                self.note_len(entry.kind, entry.key.len());
            }
        }
    }
}

/// Bytes of an entry with a suffix and a content of these lengths.
fn entry_len(suffix: usize, content: usize) -> usize {
    1 + varint_len(suffix as u64) + varint_len(content as u64) + suffix + content
}

fn put_entry(to: &mut impl BufMut, kind: u8, suffix: &[u8], content: &[u8]) {
    to.put_u8(kind);
    put_varint(to, suffix.len() as u64);
    put_varint(to, content.len() as u64);
    to.put_slice(suffix);
    to.put_slice(content);
}

/// The raw form of the page whose only entry puts `value` under the page's prefix: what [`Builder`] makes of one value.
pub(crate) fn page_of_value(value: &[u8]) -> Bytes {
    let mut data = pool::buffer(entry_len(0, value.len()) + 2 * size_of::<u32>());
    let mut rest = &mut data[..];
    put_entry(&mut rest, Msg::PUT, &[], value);
    rest.put_u32_le(0);
    rest.put_u32_le(1);
    data.into()
}

/// Whether one key, given in two parts, is below another.
fn is_below((a, a_rest): (&[u8], &[u8]), (b, b_rest): (&[u8], &[u8])) -> bool {
    if a == b {
        a_rest < b_rest
    } else if b.is_empty() {
        compare_joined(a, a_rest, b_rest).is_lt()
    } else if a.is_empty() {
        compare_joined(b, b_rest, a_rest).is_gt()
    } else {
        a.iter().chain(a_rest).lt(b.iter().chain(b_rest))
    }
}

/// Bytes that keys share and that do not count.
fn beyond(shared: usize) -> usize {
    shared.saturating_sub(COUNTED_PREFIX_BYTES)
}

/// The keys and values of entries that are all puts.
fn puts(items: &[NewEntries]) -> impl Iterator<Item = (&Bytes, &Bytes)> + Clone {
    items.iter().filter_map(|item| match item {
        NewEntries::One(key, Msg::Put(value)) => Some((key, value)),
        _ => None,
    })
}

impl Builder {
    /// Adds an entry above all others.
    pub fn push(&mut self, key: Bytes, msg: Msg) {
        self.shared = self.shared_with(&key);
        if self.count == 0 && key.len() > COUNTED_PREFIX_BYTES {
            self.first = key.clone();
        }
        self.bytes += key.len() + msg.len() + ENTRY_BYTES;
        self.count += 1;
        self.add(NewEntries::One(key, msg));
    }

    /// Adds entries of `page`, whose keys have `prefix`, above all others: as many of the first as there is
    /// room for in `target` bytes. The first is always taken by an empty builder.
    pub fn push_some(
        &mut self,
        page: &Arc<Page>,
        prefix: &Bytes,
        entries: Range<usize>,
        target: usize,
    ) -> usize {
        let start = entries.start;
        let bytes = |taken: usize| page.bytes_of(start..start + taken) + taken * prefix.len();
        let (mut taken, mut len) = (entries.len(), bytes(entries.len()));
        let shared = self.shared_with(prefix);
        let over = |len: usize, taken: usize| {
            let whole = self.bytes + len;
            whole - (self.count + taken) * beyond(shared) > target + ENTRY_BYTES
        };
        if over(len, taken) {
            (taken, len) = (0, 0);
            for i in entries {
                let next = page.bytes_of(i..i + 1) + prefix.len();
                if self.bytes + len > 0 && over(len + next, taken + 1) {
                    break;
                }
                (taken, len) = (taken + 1, len + next);
            }
        }
        if taken > 0 {
            if self.count == 0 && prefix.len() > COUNTED_PREFIX_BYTES {
                self.first = prefix.clone();
            }
            self.shared = shared;
            self.bytes += len;
            self.count += taken;
            let source = self.source(page, prefix);
            self.add(NewEntries::Copied(source, start..start + taken));
        }
        taken
    }

    /// The number of a source. Mostly entries come from two pages in turn.
    fn source(&mut self, page: &Arc<Page>, prefix: &Bytes) -> usize {
        let known = |(known, before): &(Arc<Page>, Bytes)| Arc::ptr_eq(known, page) && before == prefix;
        if let Some(back) = self.sources.iter().rev().take(2).position(known) {
            return self.sources.len() - 1 - back;
        }
        self.sources.push((page.clone(), prefix.clone()));
        self.sources.len() - 1
    }

    fn add(&mut self, item: NewEntries) {
        // A page out of order would read as damage, after the pages that it was made of have been freed.
        // To compare each entry with its neighbour took as long as to build and compress the page (90 ns of 150), so
        // in release builds this is done once for each piece that is copied.
        let is_copy = |item: &NewEntries| matches!(item, NewEntries::Copied(..));
        let ascends = |last| {
            let skips = !cfg!(debug_assertions) && !is_copy(last) && !is_copy(&item);
            skips || is_below(self.last_key(last), self.first_key(&item))
        };
        assert!(self.items.last().is_none_or(ascends), "the keys of a page do not ascend");
        self.items.push(item);
    }

    fn first_key<'a>(&'a self, item: &'a NewEntries) -> (&'a [u8], &'a [u8]) {
        match item {
            NewEntries::One(key, _) => (&[], key),
            NewEntries::Copied(source, entries) => self.copied_key(*source, entries.start),
        }
    }

    fn last_key<'a>(&'a self, item: &'a NewEntries) -> (&'a [u8], &'a [u8]) {
        match item {
            NewEntries::One(key, _) => (&[], key),
            NewEntries::Copied(source, entries) => self.copied_key(*source, entries.end.saturating_sub(1)),
        }
    }

    /// The first key of an item, or the last one.
    fn whole_key(&self, item: &NewEntries, is_last: bool) -> Option<Bytes> {
        match item {
            NewEntries::One(key, _) => Some(key.clone()),
            NewEntries::Copied(source, entries) => {
                let (page, prefix) = self.sources.get(*source)?;
                let mut entries = entries.clone();
                let i = if is_last { entries.next_back()? } else { entries.next()? };
                Some(join(prefix, page.key(i)))
            }
        }
    }

    /// A key in two parts, so that nothing is copied.
    fn copied_key(&self, source: usize, i: usize) -> (&[u8], &[u8]) {
        self.sources.get(source).map_or((&[], &[]), |(page, prefix)| (prefix, page.key(i)))
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Estimated raw size so far.
    pub fn bytes(&self) -> usize {
        self.bytes - self.count * beyond(self.shared)
    }

    /// The size of the page with one more entry.
    pub fn bytes_with(&self, key: &[u8], msg: &Msg) -> usize {
        let whole = self.bytes + key.len() + msg.len();
        whole - (self.count + 1) * beyond(self.shared_with(key))
    }

    /// How many bytes all keys begin alike with, with one more that is `key` or begins so.
    fn shared_with(&self, key: &[u8]) -> usize {
        match (self.count, key.len() > COUNTED_PREFIX_BYTES) {
            (0, true) => key.len(),
            // Their number is not needed.
            (_, false) => 0,
            (_, true) if self.shared <= COUNTED_PREFIX_BYTES => 0,
            (_, true) => self.shared.min(common_prefix(&self.first, key)),
        }
    }

    /// Encodes the entries and starts anew; `None` if there are none.
    pub fn finish(&mut self) -> Option<Built> {
        let (first, last) =
            (self.whole_key(self.items.first()?, false)?, self.whole_key(self.items.last()?, true)?);
        let shared = common_prefix(&first, &last);
        (self.shared, self.first) = (0, Bytes::new());
        let page = &mut self.encoder;
        if self.bytes >= LONG_ENTRY_BYTES * self.count && puts(&self.items).count() == self.count {
            page.begin_page(0, self.count);
            let data = page.put_all(puts(&self.items), shared);
            self.items.clear();
            (self.bytes, self.count) = (0, 0);
            return Some(page.built(data, &first[..shared]));
        }
        page.begin_page(self.bytes, self.count);
        for item in self.items.drain(..) {
            match item {
                NewEntries::One(key, msg) => page.push(msg.kind(), &key[shared..], &msg.encode()),
                NewEntries::Copied(source, entries) => {
                    let (from, prefix) = &self.sources[source];
                    page.copy(from, prefix, entries, shared);
                }
            }
        }
        self.sources.clear();
        (self.bytes, self.count) = (0, 0);
        page.offsets.iter().for_each(|at| page.data.extend_from_slice(&at.to_le_bytes()));
        let count = page.offsets.len();
        page.data.extend_from_slice(&(count as u32).to_le_bytes());
        // A copy of just the length that it has: a page may live long.
        let data = pool::copy(&page.data);
        Some(page.built(data, &first[..shared]))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A page of these keys.
    fn page(keys: &[&str]) -> (Arc<Page>, Bytes) {
        let mut builder = Builder::default();
        keys.iter().for_each(|key| builder.push(key.to_string().into(), Msg::Delete));
        let built = builder.finish().unwrap();
        (Arc::new(built.page), built.prefix)
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "the keys of a page do not ascend"))]
    fn keys_of_a_page_ascend() {
        page(&["a", "c", "b"]);
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "the keys of a page do not ascend"))]
    fn a_key_stands_in_a_page_once() {
        page(&["a", "a"]);
    }

    #[test]
    fn keys_in_two_parts_have_the_order_of_whole_ones() {
        let keys = ["", "a", "ab", "aba", "abb", "b", "ba"];
        let halves = |key: &'static str| (0..=key.len()).map(|at| key.as_bytes().split_at(at));
        for (a, b) in keys.iter().flat_map(|a| keys.iter().map(move |b| (a, b))) {
            for (left, right) in halves(a).flat_map(|left| halves(b).map(move |right| (left, right))) {
                assert_eq!(is_below(left, right), a < b, "{left:?} {right:?}");
            }
        }
    }

    /// Entries that are copied from pages are compared as single ones are.
    #[test]
    fn copies_of_entries_ascend() {
        let (low, high) = (page(&["da", "db"]), page(&["ea", "eb"]));
        for (first, second, ascends) in [(&low, &high, true), (&high, &low, false), (&low, &low, false)] {
            let built = std::panic::catch_unwind(|| {
                let mut builder = Builder::default();
                for (page, prefix) in [first, second] {
                    assert_eq!(builder.push_some(page, prefix, 0..2, 1 << 10), 2);
                }
                builder.push("f".into(), Msg::Delete);
            });
            assert_eq!(built.is_ok(), ascends);
        }
    }

    /// Pages of long values are built without a copy in between, and are to the byte what others are.
    #[test]
    fn long_values_give_the_same_page() {
        // Around the lengths at which another byte is needed to say them.
        for len in [1 << 10, 127 << 3, (16 << 10) - 1, 16 << 10, 40_000] {
            for count in 1..5 {
                let key = |i: usize| Bytes::from(format!("dir/{}{i}", "k".repeat(20 * len % 150)));
                let value = |i: usize| Bytes::from(vec![i as u8; len + i]);
                let mut builder = Builder::default();
                (0..count).for_each(|i| builder.push(key(i), Msg::Put(value(i))));
                assert!(builder.bytes() >= LONG_ENTRY_BYTES * count);
                let built = builder.finish().unwrap();
                let shared = built.prefix.len();
                let mut plain = Encoder::default();
                plain.begin_page(0, count);
                (0..count).for_each(|i| plain.push(Msg::PUT, &key(i)[shared..], &value(i)));
                let offsets: Vec<u32> = plain.offsets.clone();
                offsets.iter().for_each(|at| plain.data.put_u32_le(*at));
                plain.data.put_u32_le(count as u32);
                assert!(built.page.data == plain.data, "{count} values of {len}");
                let other = plain.built(Bytes::from(plain.data.clone()), &key(0)[..shared]);
                assert!(built.pure && !built.deletes && other.pure);
                assert_eq!(built.page.longest, other.page.longest);
                assert_eq!(built.page.table, other.page.table);
                let parsed = Page::parse(built.page.data.clone()).unwrap();
                for i in 0..count {
                    assert!(
                        parsed.find(&key(i)[shared..]) == Some(i)
                            && built.page.find(&key(i)[shared..]) == Some(i)
                    );
                }
                assert!(builder.is_empty() && builder.finish().is_none());
                // What comes next has nothing of it.
                builder.push(key(9), Msg::Delete);
                assert!(builder.finish().unwrap().deletes);
            }
        }
    }
}
