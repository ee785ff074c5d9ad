//! Layers: messages that arrived together, and how a newer layer is merged over an older one.
//!
//! Inside a layer the updates are newer than the ranges, and the points newer than both; of two layers the upper one
//! is newer. So no message needs a number of its own. When two layers are merged, a newer range message removes older
//! points and cuts older ranges (FAST'20 section 3, "Flushing GOTO messages"). The ranges of a layer are disjoint, so
//! one binary search finds the range that covers a key.

use crate::{
    dag::layer::run::merge_runs,
    error::{Error, Result, or_if_damaged},
    key::{Lens, Span},
    merge::Merge,
    node::{
        Edge, Layer, MAX_RAW_BYTES, PageRef, UpdateMsg,
        ranged::{are_apart, clip, cut},
        update::{compose, without_deleted},
    },
    store::pager::Pager,
};

mod readahead;
pub(crate) mod run;

/// Most layers of an edge, those apart that are too long to be merged: beyond it the newest two are merged,
/// whatever their sizes.
const MAX_LAYERS: usize = 12;
/// A layer that has at least this fraction (1/n) of the bytes of the one below is merged into it.
const MERGE_RATIO: usize = 2;
/// Most bytes of upserts of one key that layers are merged to: half of what a page may have, since one page has to
/// hold them. Where what lies below cannot be read, so many may wait that nothing combines.
pub(crate) const MAX_PILE_BYTES: usize = MAX_RAW_BYTES as usize / 2;

impl Layer {
    /// The messages about `span`.
    pub fn slice(&self, span: &Span, pager: &Pager) -> Result<Layer> {
        let (ranges, updates) = (clip(&self.ranges, span), clip(&self.updates, span));
        Ok(Layer { newest: self.newest, ranges, updates, run: self.run.slice(span, pager)? })
    }

    /// The same messages with keys seen through `lens`.
    pub fn through(&self, lens: &Lens) -> Layer {
        let ranges = self.ranges.iter().map(|r| r.through(lens)).collect();
        let updates = self.updates.iter().map(|u| u.through(lens)).collect();
        Layer { newest: self.newest, ranges, updates, run: self.run.through(lens) }
    }

    /// One layer equal to `self` over `older`.
    pub fn over(&self, older: &Layer, pager: &Pager, merge: &dyn Merge) -> Result<Layer> {
        check_order(older, self)?;
        let kept = older.run.without(&self.ranges, pager)?;
        let below: Vec<UpdateMsg> = cut(&older.updates, &self.ranges);
        let run = merge_runs(&kept, &self.run, [&below, &self.updates], false, pager, merge)?;
        let mut ranges = cut(&older.ranges, &self.ranges);
        ranges.extend_from_slice(&self.ranges);
        ranges.sort_by(|a, b| a.span.lo.cmp(&b.span.lo));
        let updates = without_deleted(compose(&below, &self.updates, merge), &ranges);
        assert!(are_apart(&ranges), "range messages of one layer overlap");
        assert!(are_apart(&updates), "updates of one layer overlap");
        let (some, most) = (self.run.entries(), self.run.entries() + older.run.entries());
        assert!(
            (some..=most).contains(&run.entries()),
            "points are lost or made where two layers are merged"
        );
        Ok(Layer { newest: self.newest, ranges, updates, run })
    }

    /// As [`Layer::over`]; `None` if the upserts of one key would become too many for a page.
    pub fn over_unless_long(&self, older: &Layer, pager: &Pager, merge: &dyn Merge) -> Result<Option<Layer>> {
        if self.piles_up(older, pager)? {
            return Ok(None);
        }
        self.over(older, pager, merge).map(Some)
    }

    /// Whether `self` over `older` would have upserts of one key that are too many for a page. I/O: pages with a
    /// message about a key that has many.
    fn piles_up(&self, older: &Layer, pager: &Pager) -> Result<bool> {
        for (one, other) in [(older, self), (self, older)] {
            for page in one.run.pages.iter().filter(|page| is_long(page)) {
                let key = page.first_key();
                if self.range_at(&key).is_none()
                    && page.raw as usize + other.upsert_bytes(&key, pager)? > MAX_PILE_BYTES
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Bytes of upserts of `key`; 0 if there is a value or a delete, into which later upserts are merged.
    fn upsert_bytes(&self, key: &[u8], pager: &Pager) -> Result<usize> {
        if let Some(page) = self.run.pages.get(self.run.page_from(key))
            && page.is_one_upsert()
            && page.first_key() == key
        {
            return Ok(page.raw as usize);
        }
        match self.run.get(key, |page, key| pager.find(None, page, key, || ()))? {
            Some(msg) if msg.is_final() => Ok(0),
            Some(msg) => Ok(msg.len()),
            None => Ok(self.update_at(key).map_or(0, UpdateMsg::bytes)),
        }
    }

    /// Bytes of the upserts of the key that has most of them, if these are a page of their own.
    pub fn longest_pile(&self) -> usize {
        self.run
            .pages
            .iter()
            .filter(|page| page.is_one_upsert())
            .map(|page| page.raw as usize)
            .max()
            .unwrap_or(0)
    }
}

/// True if a page has so many upserts of one key that some more may be too many for a page.
fn is_long(page: &PageRef) -> bool {
    page.is_one_upsert() && page.raw as usize > MAX_PILE_BYTES / 2
}

/// Checks that no layer lies over a newer one. This is an error and not an assertion, because the bytes on a device
/// may violate it although every checksum matches.
pub(crate) fn check_order(older: &Layer, newer: &Layer) -> Result<()> {
    if older.newest <= newer.newest {
        return Ok(());
    }
    Err(Error::corrupt("layer", 0, format!("batch {} under batch {}", older.newest, newer.newest)))
}

impl Edge {
    /// Adds a newer layer and merges layers of like size, so that their number stays logarithmic.
    pub fn push_layer(&mut self, layer: Layer, pager: &Pager, merge: &dyn Merge) -> Result<()> {
        if layer.is_empty() {
            return Ok(());
        }
        if let Some(top) = self.layers.last() {
            check_order(top, &layer)?;
        }
        self.layers.push(layer);
        self.drop_idle();
        while let [.., below, top] = &self.layers[..] {
            if top.bytes() * MERGE_RATIO < below.bytes() && !self.has_many_layers() {
                break;
            }
            // Layers that cannot be read, or are too long together, stay as they are; newer ones are merged among
            // themselves.
            let merged = top.over_unless_long(below, pager, merge);
            let Some(merged) = or_if_damaged(merged, None)? else { break };
            self.layers.truncate(self.layers.len() - 2);
            self.layers.push(merged);
        }
        Ok(())
    }

    /// True if there are too many layers. Those that are too long to be merged, and what is below them, do not count:
    /// else each layer above would be merged with all others there, however few they are.
    fn has_many_layers(&self) -> bool {
        let is_short = |layer: &&Layer| !layer.run.pages.iter().any(is_long);
        self.layers.len() > MAX_LAYERS && self.layers.iter().rev().take_while(is_short).count() > MAX_LAYERS
    }

    /// Drops range deletes and updates that cannot change anything, because the edge has nothing below them.
    pub fn drop_idle(&mut self) {
        while self.child.is_none()
            && let Some(oldest) = self.layers.first_mut()
        {
            oldest.ranges.retain(|range| range.target.is_some());
            if oldest.ranges.is_empty() {
                oldest.updates.clear();
            }
            if !oldest.is_empty() {
                break;
            }
            self.layers.remove(0);
        }
    }

    /// Adds layers whose keys are none of those in the present layers.
    pub fn add_beside(&mut self, layers: Vec<Layer>, pager: &Pager, merge: &dyn Merge) -> Result<()> {
        if self.layers.is_empty() || layers.is_empty() {
            self.layers.extend(layers);
            return Ok(());
        }
        let mut all = std::mem::take(&mut self.layers);
        all.extend(layers);
        // Their keys differ, so they may be interleaved; the order by batch is an invariant.
        all.sort_by_key(|layer| layer.newest);
        all.into_iter().try_for_each(|layer| self.push_layer(layer, pager, merge))
    }

    /// The parts of its layers over `sub`, where `live` is the whole range of this edge.
    pub fn layers_within(&self, live: &Span, sub: &Span, pager: &Pager) -> Result<Vec<Layer>> {
        if live == sub {
            return Ok(self.layers.clone());
        }
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let part = layer.slice(sub, pager)?;
            if !part.is_empty() {
                layers.push(part);
            }
        }
        Ok(layers)
    }

    /// The part of this edge over `sub`, where `live` is its whole range.
    pub fn narrowed(&self, live: &Span, sub: &Span, pager: &Pager) -> Result<Edge> {
        if live == sub {
            return Ok(self.clone());
        }
        let child = self.child.as_ref().map(|t| t.narrowed(live, sub));
        let layers = self.layers_within(live, sub, pager)?;
        let mut edge = Edge { lo: sub.lo.clone(), loose: child.is_some(), child, layers };
        edge.drop_idle();
        Ok(edge)
    }
}

#[cfg(test)]
mod tests;
