//! Inode numbers as of one snapshot, for scans of it while the tree changes.
//!
//! The table of lineages is in the store too, and a move of a directory changes its row in the same batch. So records
//! of a view are read with the rows of that view; the present rows may be of another place, or missing. A clone
//! without a row in the view was never looked up, so no inode number of its entries is known to anybody. Gives out no
//! numbers.

use std::collections::HashMap;

use pando_db::Snapshot;

use crate::{
    error::Result,
    lineage::{
        Lineages,
        number::{decode_row, number},
    },
    path::system,
    record::Record,
    types::{FileKind, Ino},
};

/// What entries of a directory belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ViewedLineage {
    Lineage(u32),
    /// A clone that has no lineage, the n-th that was met.
    Unnumbered(u32),
}

/// The identity of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ViewedNumber {
    Ino(Ino),
    /// The clone without a lineage that it is in, and the file number.
    Unnumbered(u32, u64),
}

/// The lineages of one moment.
pub(crate) struct ViewedLineages {
    /// Numbers that were given out and not stored when the view was taken.
    unsaved: HashMap<(u32, u64), u32>,
    unnumbered: u32,
}

impl Lineages {
    /// The lineages of a view that the caller makes after this call.
    pub(crate) fn viewed(&self) -> ViewedLineages {
        ViewedLineages { unsaved: self.state().unsaved.clone(), unnumbered: 0 }
    }
}

impl ViewedLineages {
    /// The lineage of what is in the directory with this record, which is itself in one of lineage `around`; the same
    /// as `around` for anything else.
    pub(crate) fn inside(
        &mut self,
        view: &Snapshot,
        around: ViewedLineage,
        r: &Record,
    ) -> Result<ViewedLineage> {
        if r.kind != FileKind::Directory || r.clone_id == 0 {
            return Ok(around);
        }
        let known = match around {
            ViewedLineage::Lineage(around) => match self.unsaved.get(&(around, r.clone_id)) {
                Some(lineage) => Some(*lineage),
                None => decode_row(view.get(&system::lineage(around, r.clone_id))?)?,
            },
            ViewedLineage::Unnumbered(_) => None,
        };
        Ok(match known {
            Some(lineage) => ViewedLineage::Lineage(lineage),
            None => {
                self.unnumbered += 1;
                ViewedLineage::Unnumbered(self.unnumbered)
            }
        })
    }

    /// The number of an entry with this record in a directory of lineage `around`.
    pub(crate) fn number(
        &mut self,
        view: &Snapshot,
        around: ViewedLineage,
        r: &Record,
    ) -> Result<ViewedNumber> {
        let inside = self.inside(view, around, r)?;
        Ok(match (inside, r.pin) {
            (ViewedLineage::Lineage(own), Some(pin)) if inside == around && pin.lineage == own => {
                ViewedNumber::Ino(pin.ino)
            }
            (ViewedLineage::Lineage(own), _) => ViewedNumber::Ino(number(own, r.fileno)),
            (ViewedLineage::Unnumbered(clone), _) => ViewedNumber::Unnumbered(clone, r.fileno),
        })
    }
}
