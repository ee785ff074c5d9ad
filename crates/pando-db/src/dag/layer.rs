//! Layers: messages that arrived together, and how one lies over another.
//!
//! Inside a layer the updates are newer than the ranges, and the points newer
//! than both; between layers, position orders. So no message needs a number of its own, and a newer
//! range message drops and cuts what is older when two layers are merged
//! (FAST'20 section 3, "Flushing GOTO messages"). Ranges are disjoint, so the
//! newest one that covers a key is found by one binary search a layer.

use crate::{
    error::{Error, Result},
    format::node::{Edge, Layer, RangeMsg, Target, UpdateMsg},
    key::{Lens, Span},
    merge::Merge,
    store::pager::Pager,
};

use super::{
    damage::or_if_damaged,
    run::merge_runs,
    update::{compose, without_deleted},
};

/// Layers an edge may have before the newest two are merged whatever their sizes.
const MAX_LAYERS: usize = 12;
/// A layer at least this fraction (1/n) of the one below it is merged into it.
const MERGE_RATIO: usize = 2;

impl Target {
    /// The target of a part of a range or edge.
    pub fn narrowed(&self, live: &Span, sub: &Span) -> Target {
        Target { prepend: Lens::narrowed_prepend(live, &self.prepend, sub), ..self.clone() }
    }
}

/// A message about a range of keys.
pub(crate) trait Ranged: Sized {
    fn span(&self) -> &Span;

    /// The part of this message about `span`.
    fn clipped(&self, span: &Span) -> Option<Self>;
}

impl Ranged for RangeMsg {
    fn span(&self) -> &Span {
        &self.span
    }

    fn clipped(&self, span: &Span) -> Option<RangeMsg> {
        let sub = self.span.intersect(span)?;
        let target = self.target.as_ref().map(|t| t.narrowed(&self.span, &sub));
        Some(RangeMsg { span: sub, target })
    }
}

impl Ranged for Span {
    fn span(&self) -> &Span {
        self
    }

    fn clipped(&self, span: &Span) -> Option<Span> {
        self.intersect(span)
    }
}

impl RangeMsg {
    /// The same message with keys seen through `lens`.
    pub fn through(&self, lens: &Lens) -> RangeMsg {
        RangeMsg { span: lens.apply_span(&self.span), target: self.target.clone() }
    }
}

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
        Ok(Layer { newest: self.newest, ranges, updates, run })
    }
}

/// The parts about `span` of disjoint, ascending messages.
pub(crate) fn clip<T: Ranged>(messages: &[T], span: &Span) -> Vec<T> {
    let from = messages.partition_point(|m| m.span().hi.as_ref().is_some_and(|hi| *hi <= span.lo));
    let inside = messages[from..].iter().take_while(|m| span.is_above(&m.span().lo));
    inside.filter_map(|m| m.clipped(span)).collect()
}

/// Nothing newer may lie below what is older. An error and not an assertion, because a sealed image can
/// say so of itself.
pub(super) fn check_order(older: &Layer, newer: &Layer) -> Result<()> {
    if older.newest <= newer.newest {
        return Ok(());
    }
    Err(Error::corrupt("layer", 0, format!("batch {} under batch {}", older.newest, newer.newest)))
}

/// What is left of `older` messages beside the ranges of `newer` ones. Both are disjoint and ascending.
pub(crate) fn cut<O: Ranged, N: Ranged>(older: &[O], newer: &[N]) -> Vec<O> {
    let mut left = Vec::with_capacity(older.len());
    for old in older {
        let mut rest = Some(old.span().clone());
        let from = newer.partition_point(|r| r.span().hi.as_ref().is_some_and(|hi| *hi <= old.span().lo));
        for new in &newer[from..] {
            let Some(span) = rest.take() else { break };
            if !span.is_above(&new.span().lo) {
                rest = Some(span);
                break;
            }
            let (below, above) = span.without(new.span());
            left.extend(below.and_then(|s| old.clipped(&s)));
            rest = above;
        }
        left.extend(rest.and_then(|s| old.clipped(&s)));
    }
    left
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
            if top.bytes() * MERGE_RATIO < below.bytes() && self.layers.len() <= MAX_LAYERS {
                break;
            }
            // Layers that cannot be read stay as they are; newer ones are merged among themselves.
            let Some(merged) = or_if_damaged(top.over(below, pager, merge).map(Some), None)? else { break };
            self.layers.truncate(self.layers.len() - 2);
            self.layers.push(merged);
        }
        Ok(())
    }

    /// Drops deletes of ranges and updates below which there is nothing that they could change.
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

    /// Adds layers about other keys than those of the layers that are there.
    pub fn add_beside(&mut self, layers: Vec<Layer>, pager: &Pager, merge: &dyn Merge) -> Result<()> {
        if self.layers.is_empty() || layers.is_empty() {
            self.layers.extend(layers);
            return Ok(());
        }
        let mut all = std::mem::take(&mut self.layers);
        all.extend(layers);
        // They speak of different keys, so among them only the order by batch matters.
        all.sort_by_key(|layer| layer.newest);
        all.into_iter().try_for_each(|layer| self.push_layer(layer, pager, merge))
    }

    /// The part of this edge over `sub`, where `live` is its whole range.
    pub fn narrowed(&self, live: &Span, sub: &Span, pager: &Pager) -> Result<Edge> {
        if live == sub {
            return Ok(self.clone());
        }
        let child = self.child.as_ref().map(|t| t.narrowed(live, sub));
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let part = layer.slice(sub, pager)?;
            if !part.is_empty() {
                layers.push(part);
            }
        }
        let mut edge = Edge { lo: sub.lo.clone(), loose: child.is_some(), child, layers };
        edge.drop_idle();
        Ok(edge)
    }
}

#[cfg(test)]
mod tests;
