//! Messages about ranges of keys: narrowing, clipping, cutting and re-keying them.
//!
//! A list of such messages is disjoint and ascending, and stays so. Pure functions of what they are given: no
//! I/O. May use: `key` and the model of a node.

use crate::{
    key::{Lens, Span},
    node::{RangeMsg, Target},
};

impl Target {
    /// The target of a part of a range or edge.
    pub fn narrowed(&self, live: &Span, sub: &Span) -> Target {
        Target { prepend: Lens::narrowed_prepend(live, &self.prepend, sub), ..self.clone() }
    }

    /// A target that adds nothing to keys.
    pub fn plain(id: crate::node::NodeId) -> Self {
        Target { id, prepend: Default::default() }
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

/// True if messages ascend and no two speak of one key.
pub(crate) fn are_apart<T: Ranged>(messages: &[T]) -> bool {
    messages.is_sorted_by(|a, b| a.span().hi.as_ref().is_some_and(|hi| *hi <= b.span().lo))
}

/// The parts about `span` of disjoint, ascending messages.
pub(crate) fn clip<T: Ranged>(messages: &[T], span: &Span) -> Vec<T> {
    let from = messages.partition_point(|m| m.span().hi.as_ref().is_some_and(|hi| *hi <= span.lo));
    let inside = messages[from..].iter().take_while(|m| span.is_above(&m.span().lo));
    inside.filter_map(|m| m.clipped(span)).collect()
}

/// The parts of `older` messages outside the ranges of `newer` ones. Both are disjoint and ascending.
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
