//! One side of a difference. May use: views, and the steps of a descent.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    dag::read::{scan::NextStep, view::View},
    key::Lens,
    store::table::Entry,
};

/// One side: a view, and the prefix of its keys.
#[derive(Clone)]
pub(crate) struct Side {
    pub view: Arc<View>,
    pub prefix: Bytes,
}

impl Side {
    /// The map from the keys of the difference, which have no prefix, to those of the view.
    pub(super) fn lens(&self) -> Lens {
        Lens::new(Bytes::new(), self.prefix.clone())
    }

    pub(in crate::dag::read) fn entry(&self, next: NextStep) -> Option<&Entry> {
        match next {
            NextStep::Node(id) => self.view.tree.table.get(id),
            NextStep::End => None,
        }
    }
}
