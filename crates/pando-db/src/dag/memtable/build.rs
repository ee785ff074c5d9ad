//! Builds pages from a memtable, some points at a time, so that a thread that waits for the flusher can do a part of
//! its work.
//!
//! The result is that of [`Memtable::to_layer`] for a table whose values are all in the log. No I/O. Memory: the pages
//! so far, which take half as much as the table if values are short, and nearly as much if they are long.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;

use crate::{
    dag::{layer::run::RunBuilder, memtable::Memtable},
    node::Layer,
};

/// A sealed table, for a part of which pages were built.
pub(crate) struct MemtableBuild {
    table: Arc<Memtable>,
    run: RunBuilder,
    /// The last key in these pages.
    last: Option<Bytes>,
}

impl MemtableBuild {
    /// Begins with `table`.
    pub fn new(table: Arc<Memtable>, page_target: usize) -> Self {
        Self { table, run: RunBuilder::new(page_target), last: None }
    }

    pub fn is_of(&self, table: &Arc<Memtable>) -> bool {
        Arc::ptr_eq(&self.table, table)
    }

    /// Builds pages from the next `most` points, or fewer if these have more than `bytes` bytes. `false` if no points
    /// are left.
    pub fn go_on(&mut self, most: usize, bytes: usize) -> bool {
        let from = self.last.as_ref().map_or(Bound::Unbounded, |last| Bound::Excluded(&last[..]));
        let mut points = self.table.points.range((from, Bound::Unbounded));
        let (mut last, mut left) = (None, bytes);
        for (key, msg) in points.by_ref().take(most) {
            self.run.push(key.clone(), msg.clone());
            last = Some(key);
            left = left.saturating_sub(key.len() + msg.len());
            if left == 0 {
                break;
            }
        }
        let more = points.next().is_some();
        if let Some(last) = last {
            self.last = Some(last.clone());
        }
        more
    }

    /// The whole table as a layer.
    pub fn finish(mut self) -> Layer {
        self.go_on(usize::MAX, usize::MAX);
        self.table.layer_of(self.run.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{node::message::Msg, store::log::LogPos};

    #[test]
    fn a_table_is_the_same_layer_however_it_is_built() {
        let mut table = Memtable::new(6, LogPos { pos: 0, chain: 0 });
        for i in 0..1000u32 {
            let key = Bytes::copy_from_slice(&(i * 7919 % 1000).to_be_bytes());
            table.points.as_map().insert(
                key,
                if i % 5 == 0 { Msg::Delete } else { Msg::Put(vec![1; i as usize % 50].into()) },
            );
        }
        let table = Arc::new(table);
        let entries = |layer: &Layer| {
            let of_page = |page: &crate::node::PageRef| {
                let crate::node::PageLoc::Mem(loaded) = &page.loc else { panic!("in memory") };
                (0..loaded.len()).map(|i| page.entry(loaded, i)).collect::<Vec<_>>()
            };
            layer.run.pages.iter().map(of_page).collect::<Vec<_>>()
        };
        let whole = table.to_layer(500, |_| None).expect("no pages of others");
        assert_eq!(entries(&whole).concat().len(), 1000);
        for steps in [&[][..], &[1], &[300, 1, 0, 200], &[999], &[1000], &[1001, 1]] {
            let mut building = MemtableBuild::new(table.clone(), 500);
            let mut left = 1000;
            for step in steps {
                left -= left.min(*step);
                assert_eq!(building.go_on(*step, usize::MAX), left > 0, "{steps:?}");
            }
            // A point at least is taken, however long it is.
            if left > 1 {
                assert!(building.go_on(1000, 1));
            }
            let layer = building.finish();
            assert_eq!((entries(&layer), layer.newest), (entries(&whole), whole.newest), "{steps:?}");
        }
    }
}
