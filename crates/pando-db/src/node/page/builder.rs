//! Building pages: entries in ascending order, one by one or copied from other
//! pages as they are.
//!
//! A [`Builder`] makes pages one after the other and keeps its memory for the
//! next. What it makes reads as what [`Page::parse`] admits, and all entries
//! follow each other without gaps, so that the next copy is one piece. Uses
//! the form of a page, which its parent knows, and `key`.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;

use crate::{
    codec::put_varint,
    key::{Longest, common_prefix, join},
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

/// Collects ascending entries of one page.
#[derive(Default)]
pub(crate) struct Builder {
    encoder: Encoder,
    items: Vec<Item>,
    /// Pages that entries are copied from, with what their keys begin with.
    sources: Vec<(Arc<Page>, Bytes)>,
    count: usize,
    bytes: usize,
}

enum Item {
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

    /// Notes the next entry, which is to begin here.
    fn begin(&mut self, kind: u8, suffix: &[u8]) {
        let head = head(suffix);
        note(&mut self.groups, self.offsets.len(), tag(head, suffix), || head);
        self.offsets.push(self.data.len() as u32);
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
        self.begin(kind, suffix);
        self.data.push(kind);
        put_varint(&mut self.data, suffix.len() as u64);
        put_varint(&mut self.data, content.len() as u64);
        self.data.extend_from_slice(suffix);
        self.data.extend_from_slice(content);
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

    /// The same for keys that stay as they are, in one piece.
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

impl Builder {
    /// Adds an entry above all others.
    pub fn push(&mut self, key: Bytes, msg: Msg) {
        self.bytes += key.len() + msg.len() + ENTRY_BYTES;
        self.count += 1;
        self.add(Item::One(key, msg));
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
        if self.bytes + len > target + ENTRY_BYTES {
            (taken, len) = (0, 0);
            for i in entries {
                let next = page.bytes_of(i..i + 1) + prefix.len();
                if self.bytes + len > 0 && self.bytes + len + next > target + ENTRY_BYTES {
                    break;
                }
                (taken, len) = (taken + 1, len + next);
            }
        }
        if taken > 0 {
            self.bytes += len;
            self.count += taken;
            let source = self.source(page, prefix);
            self.add(Item::Copied(source, start..start + taken));
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

    fn add(&mut self, item: Item) {
        debug_assert!(
            self.items.last().is_none_or(|last| self.last_key(last) < self.first_key(&item)),
            "keys must ascend"
        );
        self.items.push(item);
    }

    fn first_key(&self, item: &Item) -> Option<Bytes> {
        match item {
            Item::One(key, _) => Some(key.clone()),
            Item::Copied(source, entries) => self.copied_key(*source, entries.clone().next()?),
        }
    }

    fn last_key(&self, item: &Item) -> Option<Bytes> {
        match item {
            Item::One(key, _) => Some(key.clone()),
            Item::Copied(source, entries) => self.copied_key(*source, entries.clone().last()?),
        }
    }

    fn copied_key(&self, source: usize, i: usize) -> Option<Bytes> {
        let (page, prefix) = self.sources.get(source)?;
        Some(join(prefix, page.key(i)))
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Estimated raw size so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Encodes the entries and starts anew; `None` if there are none.
    pub fn finish(&mut self) -> Option<Built> {
        let (first, last) = (self.first_key(self.items.first()?)?, self.last_key(self.items.last()?)?);
        let shared = common_prefix(&first, &last);
        let page = &mut self.encoder;
        page.begin_page(self.bytes, self.count);
        for item in self.items.drain(..) {
            match item {
                Item::One(key, msg) => page.push(msg.kind(), &key[shared..], &msg.encode()),
                Item::Copied(source, entries) => {
                    let (from, prefix) = &self.sources[source];
                    page.copy(from, prefix, entries, shared);
                }
            }
        }
        self.sources.clear();
        (self.bytes, self.count) = (0, 0);
        let table = page.data.len();
        page.offsets.iter().for_each(|at| page.data.extend_from_slice(&at.to_le_bytes()));
        let count = page.offsets.len();
        page.data.extend_from_slice(&(count as u32).to_le_bytes());
        let (pure, deletes, longest) = (page.pure, page.deletes, page.longest);
        // Copies of just the length they have: a page may live long.
        let (data, groups) = (pool::copy(&page.data), Arc::from(&page.groups[..]));
        let page = Page { data, count, table, pure, dense: true, lent: false, longest, groups };
        // The prefix must not keep a whole batch alive for a few bytes.
        Some(Built { prefix: Bytes::copy_from_slice(&first[..shared]), page, pure, deletes })
    }
}
