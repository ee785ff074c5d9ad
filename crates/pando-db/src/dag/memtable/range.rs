//! Deferred clones: what a clone is as long as it stands in a memtable.
//!
//! A table lies over a frozen state: all older tables, and the DAG below them.
//! A clone names a range of keys in that state, not a node, so making one reads
//! nothing, waits for nobody and costs the same beside any number of writers:
//! what is in older tables is seen by source and copy, what comes into this
//! table or a newer one by one of them only. A reader who
//! meets a deferred clone goes on in the older tables and the DAG with the key
//! of the source. The flusher finds the node of the source (see
//! [`crate::dag::share::place`]) when the table is the oldest, that is when the state below
//! it is just the DAG; so no node ever holds a deferred clone.
//!
//! Pure. Uses `key` and the messages of nodes.

use bytes::Bytes;

use crate::{
    key::{Lens, Longest, Span},
    node::{RangeMsg, ranged::Ranged},
};

/// A message about a range of keys in a memtable: what is older is gone, and what `origin` leads
/// to stands in its place.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TableRange {
    pub span: Span,
    /// The translation prefix under which a key of the range is found in the state below the table;
    /// `None` for a RangeDelete.
    pub origin: Option<Bytes>,
    /// Bound of the keys that a clone shows in the range; none for a RangeDelete.
    pub longest: Longest,
}

impl TableRange {
    /// A RangeDelete.
    pub fn deleted(span: Span) -> Self {
        Self { span, origin: None, longest: Longest::NONE }
    }

    pub fn is_delete(&self) -> bool {
        self.origin.is_none()
    }

    /// The message as nodes have it, if it is a RangeDelete.
    pub fn delete(&self) -> Option<RangeMsg> {
        self.is_delete().then(|| RangeMsg { span: self.span.clone(), target: None })
    }

    /// Where the range is found below the table: the map to there, and its image.
    pub fn source(&self) -> Option<(Lens, Span)> {
        assert!(!self.span.is_empty(), "a deferred clone of no keys");
        let lens = Lens::of_edge(&self.span, self.origin.as_ref()?);
        let image = lens.apply_span(&self.span);
        assert_eq!(image.common_prefix(), lens.prepend, "the image of a range has its prefix and no more");
        Some((lens, image))
    }

    /// The same message with keys seen through `lens`.
    pub fn through(&self, lens: &Lens) -> Self {
        let longest = self.longest.through(lens.strip.len(), lens.prepend.len());
        Self { span: lens.apply_span(&self.span), origin: self.origin.clone(), longest }
    }
}

impl Ranged for TableRange {
    fn span(&self) -> &Span {
        &self.span
    }

    fn clipped(&self, span: &Span) -> Option<Self> {
        let sub = self.span.intersect(span)?;
        let origin = self.origin.as_ref().map(|origin| Lens::narrowed_prepend(&self.span, origin, &sub));
        Some(Self { span: sub, origin, longest: self.longest })
    }
}
