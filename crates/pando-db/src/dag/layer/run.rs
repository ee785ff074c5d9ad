//! Runs: slicing, filtering and merging sorted pages, sharing whole pages wherever possible.
//!
//! All functions take runs of *detached* nodes (pages in memory or in a named extent) and give new runs; nothing is
//! changed in place. I/O: only pages at the border of a range, or overlapping another run, are read.

use std::{borrow::Cow, cmp::Ordering, ops::Range, sync::Arc};

use bytes::Bytes;

use crate::{
    dag::layer::readahead::MergeReadahead,
    error::{Error, Result},
    key::{Lens, Span, common_prefix, compare_joined},
    merge::Merge,
    node::{
        PageRef, RangeMsg, Run, UpdateMsg,
        message::Msg,
        page::{Builder, Page},
        update::Sweep,
    },
    store::pager::Pager,
};

/// Pages below this fraction (1/n) of the target are merged with their neighbours when these are
/// rewritten anyway.
const SMALL_FRACTION: usize = 4;

/// Builds a run from ascending messages and whole pages.
pub(crate) struct RunBuilder {
    run: Run,
    builder: Builder,
    /// Raw size at which a page is closed.
    target: usize,
    /// Raw bytes of the pages that were built and closed.
    built: usize,
}

impl RunBuilder {
    pub fn new(target: usize) -> Self {
        Self { run: Run::default(), builder: Builder::default(), target, built: 0 }
    }

    pub fn push(&mut self, key: Bytes, msg: Msg) {
        if !self.builder.is_empty() && self.builder.bytes_with(&key, &msg) > self.target {
            self.close_page();
        }
        self.builder.push(key, msg);
    }

    /// Adds entries of a loaded page.
    fn push_some(&mut self, page: &PageRef, loaded: &Arc<Page>, mut entries: Range<usize>) {
        while !entries.is_empty() {
            entries.start += self.builder.push_some(loaded, &page.prefix, entries.clone(), self.target);
            if !entries.is_empty() {
                self.close_page();
            }
        }
    }

    /// An error if the page does not lie behind all entries so far, as on a damaged image.
    pub fn push_page(&mut self, page: PageRef) -> Result<()> {
        self.close_page();
        if self.run.pages.last().is_some_and(|last| last.last_key() >= page.first_key()) {
            return Err(Error::corrupt("node", 0, "its pages are out of order"));
        }
        self.run.pages.push(page);
        Ok(())
    }

    /// Adds a whole run that lies behind all entries so far. Small pages are merged.
    pub fn push_run(&mut self, run: &Run, pager: &Pager) -> Result<()> {
        for page in &run.pages {
            if page.raw as usize >= self.target / SMALL_FRACTION || page.is_placed() {
                self.push_page(page.clone())?;
            } else {
                let loaded = pager.page(None, page)?;
                self.push_some(page, &loaded, 0..loaded.len());
            }
        }
        Ok(())
    }

    /// True if the page under construction is too small to stand alone.
    fn wants_more(&self) -> bool {
        !self.builder.is_empty() && self.builder.bytes() < self.target / SMALL_FRACTION
    }

    fn close_page(&mut self) {
        if let Some(built) = self.builder.finish() {
            let page = PageRef::from_built(built);
            self.built += page.raw as usize;
            self.run.pages.push(page);
        }
    }

    /// Raw bytes of what was built, without the pages that were taken over whole.
    fn built_bytes(&self) -> usize {
        self.built + self.builder.bytes()
    }

    pub fn finish(mut self) -> Run {
        self.close_page();
        self.run
    }
}

impl Run {
    /// The messages with keys in `span`.
    pub fn slice(&self, span: &Span, pager: &Pager) -> Result<Run> {
        let mut out = RunBuilder::new(pager.page_target());
        let shared = span.common_prefix_len();
        for page in &self.pages[self.page_from(&span.lo)..] {
            if page.is_inside(span) {
                // An edge over `span` lifts only a part of the page's prefix, which is the common prefix of its keys:
                // only a forged header violates that.
                if page.prefix.len() < shared {
                    return Err(Error::corrupt(
                        "node page",
                        0,
                        "its keys have more in common than its prefix",
                    ));
                }
                out.push_page(page.clone())?;
            } else if page.meets(span) {
                let loaded = pager.page(None, page)?;
                let (from, to) = bounds(page, &loaded, span);
                out.push_some(page, &loaded, from..to);
            } else {
                break;
            }
        }
        Ok(out.finish())
    }

    /// The same messages with keys seen through `lens`. Costs no I/O.
    pub fn through(&self, lens: &Lens) -> Run {
        Run { pages: self.pages.iter().map(|p| p.clone().through(lens)).collect() }
    }

    /// The messages that none of `ranges` (disjoint, ascending) covers.
    pub fn without(&self, ranges: &[RangeMsg], pager: &Pager) -> Result<Cow<'_, Run>> {
        if ranges.is_empty() || self.pages.is_empty() {
            return Ok(Cow::Borrowed(self));
        }
        let mut out = RunBuilder::new(pager.page_target());
        for page in &self.pages {
            let (first, last) = (page.first_key(), page.last_key());
            // The ranges that may touch the page: from the first that ends above its first key.
            let from = ranges.partition_point(|r| r.span.hi.as_ref().is_some_and(|hi| *hi <= first));
            match ranges.get(from) {
                Some(range) if range.span.lo <= last => {
                    if range.span.contains(&first) && range.span.contains(&last) {
                        continue;
                    }
                    let loaded = pager.page(None, page)?;
                    let mut at = from;
                    for i in 0..loaded.len() {
                        let (key, msg) = page.entry(&loaded, i);
                        while ranges.get(at).is_some_and(|r| !r.span.is_above(&key)) {
                            at += 1;
                        }
                        if ranges.get(at).is_none_or(|r| r.span.lo > key) {
                            out.push(key, msg);
                        }
                    }
                }
                _ => out.push_page(page.clone())?,
            }
        }
        Ok(Cow::Owned(out.finish()))
    }

    /// The message about `key`; `find` looks for it in the one page that may have it.
    pub fn get(
        &self,
        key: &[u8],
        find: impl Fn(&PageRef, &[u8]) -> Result<Option<Msg>>,
    ) -> Result<Option<Msg>> {
        let Some(page) = self.pages.get(self.page_from(key)) else { return Ok(None) };
        if compare_joined(&page.prefix, &page.first, key).is_gt() {
            return Ok(None);
        }
        find(page, key)
    }
}

/// Indexes of the entries of `page` (loaded) that lie in `span`.
pub(crate) fn bounds(page: &PageRef, loaded: &Page, span: &Span) -> (usize, usize) {
    let from = page.search(loaded, &span.lo).0;
    let to = span.hi.as_ref().map_or(loaded.len(), |hi| page.search(loaded, hi).0);
    (from, to.max(from))
}

/// Walks a run entry by entry, or page by page where the entries are not needed.
struct RunCursor<'a> {
    run: &'a Run,
    readahead: MergeReadahead<'a>,
    page: usize,
    entry: usize,
    loaded: Option<Arc<Page>>,
    /// Key of the next message, if there is one.
    key: Vec<u8>,
}

impl<'a> RunCursor<'a> {
    /// The pages of `run` while it is merged with `other`.
    fn new(run: &'a Run, other: &'a Run, pager: &'a Pager) -> Self {
        let readahead = MergeReadahead::new(run, other, pager);
        let mut cursor = Self { run, readahead, page: 0, entry: 0, loaded: None, key: Vec::new() };
        cursor.find_key();
        cursor
    }

    fn page(&self) -> Option<&'a PageRef> {
        self.run.pages.get(self.page)
    }

    /// The key of the next message.
    fn key(&self) -> Option<&[u8]> {
        self.page().map(|_| &self.key[..])
    }

    /// Stores the key of the next message. The page is not read if the message is its first one.
    fn find_key(&mut self) {
        self.key.clear();
        if let Some(page) = self.page() {
            self.key.extend_from_slice(&page.prefix);
            self.key.extend_from_slice(match &self.loaded {
                Some(loaded) => loaded.key(self.entry),
                None => &page.first,
            });
        }
    }

    /// The next page, if none of it was taken yet and all of it lies below `bound`.
    fn whole_page_below(&self, bound: Option<&[u8]>) -> Option<&'a PageRef> {
        let page = self.page()?;
        let below = |bound| compare_joined(&page.prefix, &page.last, bound).is_lt();
        (self.loaded.is_none() && bound.is_none_or(below)).then_some(page)
    }

    fn skip_page(&mut self) {
        self.page += 1;
        self.entry = 0;
        self.loaded = None;
        self.find_key();
    }

    /// Adds all messages of the next page below `bound` to `out`, if they need no change: only values, if `out` is a
    /// leaf. `false` if nothing was added.
    fn move_below(&mut self, bound: Option<&[u8]>, values: bool, out: &mut RunBuilder) -> Result<bool> {
        let Some(page) = self.page() else { return Ok(false) };
        let entry = self.entry;
        let loaded = self.load(page)?;
        if values && !loaded.is_pure() {
            return Ok(false);
        }
        let end = bound.map_or(loaded.len(), |bound| page.search_from(loaded, entry, bound));
        if end <= entry {
            return Ok(false);
        }
        out.push_some(page, loaded, entry..end);
        if end == loaded.len() {
            self.skip_page();
        } else {
            self.entry = end;
            self.find_key();
        }
        Ok(true)
    }

    fn load(&mut self, page: &PageRef) -> Result<&Arc<Page>> {
        Ok(match &mut self.loaded {
            Some(loaded) => loaded,
            none => none.insert(self.readahead.page(self.page, page)?),
        })
    }

    fn next(&mut self) -> Result<Option<(Bytes, Msg)>> {
        let Some(page) = self.page() else { return Ok(None) };
        let entry = self.entry;
        let loaded = self.load(page)?;
        let (msg, last) = (loaded.msg(entry), entry + 1 == loaded.len());
        let key = Bytes::copy_from_slice(&self.key);
        if last {
            self.skip_page();
        } else {
            self.entry += 1;
            self.find_key();
        }
        Ok(Some((key, msg)))
    }
}

/// `newer` over `older`, each with the `updates` of its layer (older first), which say what there is about
/// a key without a point; a point of the same layer includes them. With `bottom` there is nothing
/// below: messages become values, and only `Put`s are left (the content of a leaf).
pub(crate) fn merge_runs(
    older: &Run,
    newer: &Run,
    updates: [&[UpdateMsg]; 2],
    bottom: bool,
    pager: &Pager,
    merge: &dyn Merge,
) -> Result<Run> {
    let most = if bottom { Some(usize::MAX) } else { None };
    Ok(merge_some(older, newer, updates, most, pager, merge)?.0)
}

/// What becomes of the pairs of a leaf, `older`, under the points and `updates` of a layer. Ends early where the pages
/// that it builds have `most` bytes, with a key below which everything was taken in, and above or at which nothing is
/// in the result. (An upsert of a few bytes may make a value of any size.)
pub(crate) fn merge_into_leaf(
    older: &Run,
    newer: &Run,
    updates: &[UpdateMsg],
    most: usize,
    pager: &Pager,
    merge: &dyn Merge,
) -> Result<(Run, Option<Bytes>)> {
    merge_some(older, newer, [&[], updates], Some(most), pager, merge)
}

/// [`merge_runs`], or [`merge_into_leaf`] if there is a limit.
fn merge_some(
    older: &Run,
    newer: &Run,
    updates: [&[UpdateMsg]; 2],
    most: Option<usize>,
    pager: &Pager,
    merge: &dyn Merge,
) -> Result<(Run, Option<Bytes>)> {
    let bottom = most.is_some();
    let most = most.unwrap_or(usize::MAX);
    let (mut old, mut new) = (RunCursor::new(older, newer, pager), RunCursor::new(newer, older, pager));
    let [mut below, mut above] = updates.map(Sweep::new);
    let mut out = RunBuilder::new(pager.page_target());
    let small = pager.page_target() / SMALL_FRACTION;
    let push = |out: &mut RunBuilder, key: Bytes, msg: Msg| {
        if !bottom {
            out.push(key, msg);
        } else if let Some(value) = msg.resolve(None, merge) {
            out.push(key, Msg::Put(value));
        }
    };
    loop {
        if out.built_bytes() >= most
            && (new.key().is_some() || !above.is_done())
            && let Some(next) = old.key().into_iter().chain(new.key()).min()
        {
            let run = out.finish();
            let last = run.pages.last().map(PageRef::last_key).unwrap_or_default();
            // Only pages that are out of order on the device violate it.
            if *last >= *next {
                return Err(Error::corrupt("node", 0, "its pages are out of order"));
            }
            let at = Bytes::copy_from_slice(next.get(..common_prefix(&last, next) + 1).unwrap_or(next));
            return Ok((run, Some(at)));
        }
        if let Some(page) = old.whole_page_below(new.key())
            && (!out.wants_more() || page.is_placed())
            && (page.raw as usize >= small || new.key().is_none())
            && !above.meets(page)
        {
            out.push_page(page.clone())?;
            old.skip_page();
            continue;
        }
        if let Some(page) = new.whole_page_below(old.key())
            && (page.pure || !bottom)
            && (!out.wants_more() || page.is_placed())
            && page.raw as usize >= small
            && (page.pure || !below.meets(page))
        {
            out.push_page(page.clone())?;
            new.skip_page();
            continue;
        }
        // A page with nothing but the value that replaces an older one: neither has to be read.
        if let Some(page) = new.page()
            && (page.count, page.pure, new.loaded.is_none()) == (1, true, true)
            && new.key() == old.key()
        {
            out.push_page(page.clone())?;
            new.skip_page();
            match old.page() {
                Some(older) if older.count == 1 => old.skip_page(),
                _ => _ = old.next()?,
            }
            continue;
        }
        let order = match (old.key(), new.key()) {
            (None, None) => return Ok((out.finish(), None)),
            (Some(a), Some(b)) => a.cmp(b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
        };
        match order {
            Ordering::Less if above.is_done() && old.move_below(new.key(), bottom, &mut out)? => (),
            Ordering::Greater if below.is_done() && new.move_below(old.key(), bottom, &mut out)? => (),
            Ordering::Equal => {
                if let (Some((key, older)), Some((_, newer))) = (old.next()?, new.next()?) {
                    push(&mut out, key, newer.over(older, merge));
                }
            }
            Ordering::Less => {
                if let Some((key, msg)) = old.next()? {
                    let msg = match above.at(&key) {
                        Some(update) => update.over(msg, merge),
                        None => msg,
                    };
                    push(&mut out, key, msg);
                }
            }
            Ordering::Greater => {
                if let Some((key, msg)) = new.next()? {
                    let msg = match below.at(&key) {
                        Some(update) => msg.over(update, merge),
                        None => msg,
                    };
                    push(&mut out, key, msg);
                }
            }
        }
    }
}
