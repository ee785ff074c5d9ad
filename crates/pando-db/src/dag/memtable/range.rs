//! Deferred clones: the form of a clone as long as it is in a memtable.
//!
//! A memtable lies over a frozen state: all older tables, and the DAG below them. A clone names a range of keys in that
//! state, not a node. So making one reads nothing and waits for no thread, however many write. Both the source and the
//! copy show what is in older tables; a change in this table or a newer one shows in one of them only. A reader that
//! meets a deferred clone continues in the older tables and the DAG with the key of the source. The flusher finds the
//! node of the source (see [`crate::dag::share::place`]) when the table is the oldest, so that the state below it is
//! the DAG alone. So no node ever holds a deferred clone.
//!
//! Pure. Uses `key` and the messages of nodes.

use bytes::Bytes;

use crate::{
    key::{Lens, Longest, Span},
    node::{RangeMsg, ranged::Ranged},
};

/// A message about a range of keys in a memtable: it replaces all older messages and values in the range by what
/// `origin` refers to, or by nothing.
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

    /// The source of the range in the state below the table: the lens that maps to it, and the image of the range.
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
