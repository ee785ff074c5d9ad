//! Pages: sorted messages, the unit that is read, cached, compressed and checked.
//!
//! Raw form: entries, then a `u32` offset per entry, then the `u32` count. An
//! entry is a kind byte, the varint lengths of key suffix and content, and
//! these two. Keys are strictly ascending. The prefix that all keys of a page
//! share is kept beside the page, in its [`crate::node::PageRef`], so that
//! lifting a node changes a header and no page.

mod builder;

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

pub(crate) use self::builder::{Builder, Built, page_of_value};
use crate::{
    codec::peek_varint,
    error::{Error, Result},
    key::{Longest, head},
    node::{message::Msg, prefetch::prefetch},
    pool,
};

/// A parsed page. Immutable; cloning shares the bytes.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    data: Bytes,
    count: usize,
    /// Where the offset table begins.
    table: usize,
    /// Every message is a `Put`.
    pure: bool,
    /// The entries follow each other without gaps, as [`Builder`] writes them.
    dense: bool,
    /// The bytes are a part of memory that other pages share: see [`Page::own`].
    lent: bool,
    /// Bound of the key suffixes of all messages that are no deletes.
    longest: Longest,
    /// What is known of the keys of every [`GROUP_ENTRIES`] entries, close together: most of a search needs no more.
    groups: Arc<[EntryGroup]>,
}

/// Bytes that an entry is counted with beside its key and content: kind, lengths, and its place in the offset table.
const ENTRY_BYTES: usize = 8;

/// Entries of a group: two bytes of memory an entry.
const GROUP_ENTRIES: usize = 8;

/// Some entries that follow each other.
#[derive(Debug, Clone, Copy)]
struct EntryGroup {
    /// Of the first key.
    head: u64,
    /// A byte for each key; one that is not there mostly shows by it.
    tags: [u8; GROUP_ENTRIES],
}

impl EntryGroup {
    /// The entries whose tag may be this one, counted in the group.
    fn candidates(self, tag: u8) -> impl Iterator<Item = usize> {
        /// The lowest bit of each byte.
        const ONES: u64 = u64::MAX / 255;
        // This sets the highest bit of each byte that is 0 (a tag that matches), and of few others.
        let unlike = u64::from_le_bytes(self.tags) ^ (ONES * u64::from(tag));
        let mut alike = unlike.wrapping_sub(ONES) & !unlike & (ONES << 7);
        std::iter::from_fn(move || {
            let at = alike.trailing_zeros() as usize / 8;
            alike &= alike.wrapping_sub(1);
            (at < GROUP_ENTRIES).then_some(at)
        })
    }
}

/// Notes entry `i`, which follows those noted. `head` is called for the first entry of each group only.
#[inline]
fn note(groups: &mut Vec<EntryGroup>, i: usize, tag: u8, head: impl FnOnce() -> u64) {
    if i.is_multiple_of(GROUP_ENTRIES) {
        groups.push(EntryGroup { head: head(), tags: [0; GROUP_ENTRIES] });
    }
    if let Some(group) = groups.last_mut() {
        group.tags[i % GROUP_ENTRIES] = tag;
    }
}

/// A hash byte of a key with this head: keys with different bytes differ.
#[inline]
fn tag(head: u64, key: &[u8]) -> u8 {
    let tail = key.last_chunk().map_or(0, |tail| u64::from_be_bytes(*tail));
    let mixed = (head ^ tail.rotate_left(32) ^ key.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// An entry as it is stored in its page.
pub(crate) struct PageEntry<'a> {
    kind: u8,
    /// Key suffix.
    pub key: &'a [u8],
    /// Content range within the page.
    pub content: std::ops::Range<usize>,
}

impl PageEntry<'_> {
    /// True if there may be a value because of it.
    pub fn may_make_value(&self) -> bool {
        self.kind != Msg::DELETE
    }

    /// True if the content is the value of the key.
    pub fn is_put(&self) -> bool {
        self.kind == Msg::PUT
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
        let mut longest = Longest::NONE;
        let mut page = Page {
            data,
            count,
            table,
            pure: true,
            dense: false,
            lent: false,
            longest,
            groups: Arc::default(),
        };
        let mut groups: Vec<EntryGroup> = Vec::with_capacity(count.div_ceil(GROUP_ENTRIES));
        let (mut pure, mut dense, mut end) = (true, true, 0);
        // If entries could share bytes, a small page could hold any number of large entries, and what is built from it
        // would have no bound.
        let mut taken = 0;
        let mut last: Option<(u64, &[u8])> = None;
        let offsets = page.data.get(table..table + 4 * count).unwrap_or_default().as_chunks().0;
        for (i, offset) in offsets.iter().enumerate() {
            let at = u32::from_le_bytes(*offset) as usize;
            let entry = page.entry_at(at).ok_or_else(|| bad(format!("entry {i} is malformed")))?;
            let head = head(entry.key);
            // If the heads differ, which is the common case, they decide.
            if last.is_some_and(|(above, last)| above >= head && (above > head || last >= entry.key)) {
                return Err(bad(format!("entry {i} is out of order")));
            }
            if entry.kind != Msg::DELETE {
                longest = longest.max(Longest::of(entry.key.len()));
            }
            if !entry.is_put() {
                pure = false;
                if !Msg::is_valid(entry.kind, &page.data[entry.content.clone()]) {
                    return Err(bad(format!("entry {i} has a malformed message")));
                }
            }
            note(&mut groups, i, tag(head, entry.key), || head);
            taken += entry.content.end - at;
            if taken > table {
                return Err(bad(format!("entry {i} overlaps others")));
            }
            dense &= at == end;
            end = entry.content.end;
            last = Some((head, entry.key));
        }
        (page.pure, page.dense) = (pure, dense && end == table);
        (page.groups, page.longest) = (groups.into(), longest);
        Ok(page)
    }

    /// Where entry `i` begins.
    #[inline]
    fn offset(&self, i: usize) -> Option<usize> {
        let slot = self.table + 4 * i;
        Some(u32::from_le_bytes(*self.data.get(slot..)?.first_chunk()?) as usize)
    }

    #[inline]
    fn try_entry(&self, i: usize) -> Option<PageEntry<'_>> {
        self.entry_at(self.offset(i)?)
    }

    /// The entry that begins at a byte.
    #[inline]
    fn entry_at(&self, at: usize) -> Option<PageEntry<'_>> {
        let body = self.data.get(at..self.table)?;
        // Mostly the lengths are short; whatever they are, they are checked below.
        let (key_at, key_len, content_len) = match body.first_chunk() {
            Some(&[_, key @ 0..0x80, content @ 0..0x80, _]) => (3, usize::from(key), usize::from(content)),
            Some(&[_, key @ 0..0x80, low, high @ 0..0x80]) => {
                (4, usize::from(key), usize::from(low & 0x7f) | usize::from(high) << 7)
            }
            _ => return self.long_entry(at),
        };
        let content_at = key_at + key_len;
        let end = content_at + content_len;
        let key = body.get(key_at..content_at)?;
        body.get(content_at..end)?;
        Some(PageEntry { kind: body[0], key, content: at + content_at..at + end })
    }

    /// Decodes an entry of any lengths.
    #[cold]
    fn long_entry(&self, at: usize) -> Option<PageEntry<'_>> {
        let body = self.data.get(at..self.table)?;
        let kind = *body.first()?;
        let (key_len, w1) = peek_varint(&body[1..])?;
        let (content_len, w2) = peek_varint(body.get(1 + w1..)?)?;
        let key_at = 1 + w1 + w2;
        let content_at = key_at.checked_add(usize::try_from(key_len).ok()?)?;
        let end = content_at.checked_add(usize::try_from(content_len).ok()?)?;
        let key = body.get(key_at..content_at)?;
        body.get(content_at..end)?;
        Some(PageEntry { kind, key, content: at + content_at..at + end })
    }

    /// Entry `i`.
    #[inline]
    pub fn entry(&self, i: usize) -> PageEntry<'_> {
        // `parse` and `Builder` are the only sources of pages, and both admit only whole entries.
        self.try_entry(i).unwrap_or_else(|| panic!("entry {i} of {} in a checked page", self.count))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Bound of the lengths of key suffixes, deletes left out.
    pub fn longest(&self) -> Longest {
        self.longest
    }

    /// The value, if the only entry puts one under the page's prefix: then [`page_of_value`] gives a page again that
    /// [`Builder`] has made.
    pub fn only_value(&self) -> Option<Bytes> {
        let entry = self.try_entry(0)?;
        let plain = self.count == 1 && self.pure && self.dense && entry.key.is_empty();
        plain.then(|| self.data.slice(entry.content))
    }

    /// Raw bytes.
    pub fn data(&self) -> &Bytes {
        &self.data
    }

    /// Asks the processor to fetch `len` bytes from `at` on into its cache, because they will be read soon.
    #[inline]
    pub fn prefetch(&self, at: usize, len: usize) {
        prefetch(&self.data, at, len);
    }

    /// Marks the page as one whose bytes are a part of memory that other pages share.
    pub fn lent(self) -> Page {
        Page { lent: true, ..self }
    }

    /// True if the bytes are a part of memory that other pages share: then keeping the page keeps all of that memory.
    pub fn is_lent(&self) -> bool {
        self.lent
    }

    /// A page to keep: the same, or one with bytes of its own.
    pub fn own(self: Arc<Self>) -> Arc<Self> {
        match self.lent {
            true => Arc::new(Page { data: pool::copy(&self.data), lent: false, ..(*self).clone() }),
            false => self,
        }
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        size_of::<Page>() + pool::footprint(self.data.len()) + size_of_val(&self.groups[..])
    }

    /// The key suffix of entry `i`.
    pub fn key(&self, i: usize) -> &[u8] {
        self.short_key(i).unwrap_or_else(|| self.entry(i).key)
    }

    /// The key of an entry, without decoding its content, because searches need many keys. `None` if the lengths are
    /// not as short as usual.
    #[inline]
    fn short_key(&self, i: usize) -> Option<&[u8]> {
        let at = self.offset(i)?;
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

    /// Kind and content of the message of entry `i`, as stored in the page: the input of [`Msg::decode`].
    pub fn stored_msg(&self, i: usize) -> (u8, &[u8]) {
        let entry = self.entry(i);
        (entry.kind, &self.data[entry.content])
    }

    /// The offset of entry `i` of a dense page, or for the number of entries their end.
    #[inline]
    fn start(&self, i: usize) -> usize {
        if i < self.count { self.offset(i).unwrap_or(self.table) } else { self.table }
    }

    /// Bytes that some entries take, with their places in the offset table.
    pub fn bytes_of(&self, entries: Range<usize>) -> usize {
        // Beside the kind and, as a rule, two short lengths, which stand in the entry.
        const PLACE_BYTES: usize = ENTRY_BYTES - 3;
        if self.dense {
            return self.start(entries.end) - self.start(entries.start) + PLACE_BYTES * entries.len();
        }
        let bytes = |i| {
            let entry = self.entry(i);
            entry.key.len() + entry.content.len() + ENTRY_BYTES
        };
        entries.map(bytes).sum()
    }

    fn tag(&self, i: usize) -> u8 {
        self.groups.get(i / GROUP_ENTRIES).map_or(0, |group| group.tags[i % GROUP_ENTRIES])
    }

    /// True if every message is a `Put`, so that the page may be in a leaf.
    pub fn is_pure(&self) -> bool {
        self.pure
    }

    /// How many groups lie below what begins with this head, and how many below what lies above that.
    #[inline]
    fn groups_around(&self, wanted: u64) -> (usize, usize) {
        let below = self.groups.partition_point(|group| group.head < wanted);
        let alike = self.groups.iter().skip(below).take_while(|group| group.head == wanted).count();
        (below, below + alike)
    }

    /// Index of the entry with this key. Touches few entries beside it, and mostly none if it is not there.
    pub fn find(&self, suffix: &[u8]) -> Option<usize> {
        let head = head(suffix);
        let (below, above) = self.groups_around(head);
        let tag = tag(head, suffix);
        (below.saturating_sub(1)..above).find_map(|i| {
            let candidates = self.groups.get(i)?.candidates(tag).map(|at| i * GROUP_ENTRIES + at);
            candidates.filter(|&at| at < self.count).find(|&at| self.key(at) == suffix)
        })
    }

    /// Between the last entry that is known to lie below `suffix`, and the first that is known to lie above:
    /// rarely more than those of a group. Asks the processor for these, so that a search waits once for all.
    fn near(&self, suffix: &[u8]) -> Range<usize> {
        let (below, above) = self.groups_around(head(suffix));
        let low = below.checked_sub(1).map_or(0, |last| last * GROUP_ENTRIES + 1);
        let high = self.count.min(above * GROUP_ENTRIES);
        for at in (low..high.min(low + GROUP_ENTRIES)).filter_map(|i| self.offset(i)) {
            self.prefetch(at, 1);
        }
        low..high
    }

    /// Index of the first entry whose key is at least `suffix`, and whether it is equal.
    pub fn search(&self, suffix: &[u8]) -> (usize, bool) {
        self.search_in(self.near(suffix), suffix)
    }

    /// The index, for a caller that knows that all entries before `from` lie below `suffix`, and that the wanted one
    /// is near, as a rule: in steps that double, a few entries are looked at.
    pub fn search_from(&self, from: usize, suffix: &[u8]) -> usize {
        let (mut low, mut step) = (from, 1);
        while step <= GROUP_ENTRIES {
            let probe = low + step - 1;
            if probe >= self.count || self.key(probe) >= suffix {
                return self.search_in(low..probe.min(self.count), suffix).0;
            }
            (low, step) = (probe + 1, step * 2);
        }
        self.search(suffix).0
    }

    /// Searches for a suffix that is known to lie in `range`, or right behind it.
    fn search_in(&self, range: Range<usize>, suffix: &[u8]) -> (usize, bool) {
        let Range { start: mut low, end: mut high } = range;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::join;
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
        assert_eq!((page.find(b"42"), page.find(b"420"), page.find(b"")), (Some(42), None, None));
        assert_eq!(page.msg(42), Msg::Put("42".into()));
        let entry = page.entry(8);
        assert_eq!((entry.key, &page.data()[entry.content.clone()]), (&b"08"[..], &b"8"[..]));
    }

    #[test]
    fn the_last_entry_may_be_the_shortest() {
        let mut builder = Builder::default();
        builder.push("a".into(), Msg::Delete);
        let page = Page::parse(builder.finish().expect("an entry").page.data().clone()).expect("well-formed");
        assert_eq!((page.len(), page.key(0), page.msg(0)), (1, &b""[..], Msg::Delete));
    }

    /// A short key each, and one large value that all of them name.
    #[test]
    fn entries_that_share_bytes_are_refused() {
        for (count, len) in [(2u8, 20_000usize), (200, 20_000), (50, 100_000)] {
            // Each entry begins in the content of the one before, and all end together.
            let mut raw = Vec::new();
            let mut offsets = Vec::new();
            for i in 0..usize::from(count) {
                offsets.push(raw.len() as u32);
                raw.extend([Msg::PUT, 1, 0, 0, 0, i as u8]);
            }
            // Every content reaches to the very end.
            let end = raw.len() + len + 5;
            raw.resize(end, 0);
            for &at in &offsets {
                let body = end - (at as usize + 6);
                raw[at as usize + 2..at as usize + 5].copy_from_slice(&[
                    (body & 0x7f) as u8 | 0x80,
                    (body >> 7 & 0x7f) as u8 | 0x80,
                    (body >> 14) as u8,
                ]);
            }
            offsets.iter().for_each(|at| raw.extend(at.to_le_bytes()));
            raw.extend(u32::from(count).to_le_bytes());
            let found = Page::parse(raw.into());
            assert!(found.as_ref().is_err_and(|e| e.to_string().contains("overlaps")), "{count}: {found:?}");
        }
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
                assert_eq!(page.find(page.key(i)), Some(i));
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
                let found = keys.contains(&wanted);
                prop_assert_eq!(built.page.search(suffix), (at, found));
                prop_assert!((0..=at).all(|from| built.page.search_from(from, suffix) == at));
                prop_assert_eq!(built.page.find(suffix), found.then_some(at));
            }
        }

        /// Neighbours in one page become neighbours in others, whatever prefix the pages have.
        #[test]
        fn copied_entries_are_the_same_as_pushed_ones(
            keys in prop::collection::btree_set(prop::collection::vec(0u8..3, 0..6), 1..60),
            head in prop::collection::vec(0u8..3, 0..3),
            from_pages in prop::collection::vec(any::<bool>(), 1..9),
            target in 0usize..400,
        ) {
            let kinds = |i: usize| match i % 4 {
                0 => Msg::Delete,
                1 => Msg::upsert("op".into()),
                _ => Msg::Put(vec![i as u8; i % 9].into()),
            };
            let keys = keys.into_iter().map(|key| Bytes::from([&head[..], &key].concat()));
            let all: Vec<(Bytes, Msg)> = keys.enumerate().map(|(i, key)| (key, kinds(i))).collect();
            let (mut builder, mut found) = (Builder::default(), Vec::new());
            let mut close = |builder: &mut Builder| {
                if let Some(built) = builder.finish() {
                    let page = Page::parse(built.page.data().clone()).expect("well-formed");
                    assert_eq!((page.pure, page.dense), (built.pure, built.page.dense));
                    assert!((0..page.len()).all(|i| page.tag(i) == built.page.tag(i)));
                    let heads = |page: &Page| page.groups.iter().map(|group| group.head).collect::<Vec<_>>();
                    assert_eq!(heads(&page), heads(&built.page));
                    assert_eq!(built.deletes, (0..page.len()).any(|i| page.msg(i) == Msg::Delete));
                    assert!((0..page.len()).all(|i| built.page.find(page.key(i)) == Some(i)));
                    found.extend((0..page.len()).map(|i| (join(&built.prefix, page.key(i)), page.msg(i))));
                }
            };
            for (piece, from_page) in all.chunks(7).zip(from_pages.iter().cycle()) {
                if !from_page {
                    piece.iter().for_each(|(key, msg)| builder.push(key.clone(), msg.clone()));
                    continue;
                }
                let mut source = Builder::default();
                piece.iter().for_each(|(key, msg)| source.push(key.clone(), msg.clone()));
                let source = source.finish().expect("entries");
                let page = Arc::new(source.page);
                let mut at = 0;
                while at < page.len() {
                    at += builder.push_some(&page, &source.prefix, at..page.len(), target);
                    if at < page.len() {
                        close(&mut builder);
                    }
                }
            }
            close(&mut builder);
            prop_assert_eq!(found, all);
        }

        #[test]
        fn hostile_bytes_never_panic(mut raw in prop::collection::vec(any::<u8>(), 0..200), n in 0u32..8) {
            if raw.len() >= 4 { let at = raw.len() - 4; raw[at..].copy_from_slice(&n.to_le_bytes()); }
            if let Ok(page) = Page::parse(raw.into()) {
                for i in 0..page.len() {
                    assert_eq!(page.find(page.key(i)), Some(i));
                    let _ = page.msg(i);
                }
                page.search(b"a");
            }
        }
    }
}
