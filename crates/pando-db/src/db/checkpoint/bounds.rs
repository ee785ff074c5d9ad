//! Bounds of key lengths that a checkpoint makes lower.
//!
//! A node that is not written anew when long keys below it go keeps its bound, and clones that it does not admit have
//! to search. Guarantees: no bound gets too small, nor lower than those of what the node refers to allow, whatever is
//! changed meanwhile. May use: the tree as it is, and headers. Reads, but not under the superversion's lock.

use std::sync::{Arc, atomic::Ordering};

use crate::{
    dag::longest::{Tighter, tighter_bounds},
    db::engine::Engine,
    waiting,
};

/// Nodes that a checkpoint looks at to lower bounds.
const MAX_TIGHTENED: usize = 1024;

impl Engine {
    /// Lowers bounds that are higher than need be, if any has made a search necessary since the store was opened.
    /// I/O: headers of interior nodes with long keys, as far as they are not cached.
    pub(crate) fn tighten_bounds(&self) {
        if self.counters.length_searches.load(Ordering::Relaxed) > 0 {
            self.lower_bounds(&self.high_bounds());
        }
    }

    /// Nodes whose bounds may be lower, as of now.
    fn high_bounds(&self) -> Vec<Tighter> {
        let tree = self.superversion.read().tree.clone();
        tighter_bounds(&tree, &self.pager, MAX_TIGHTENED)
    }

    /// Lowers the bounds of those of these nodes that are still what they were, as far as what they refer to allows
    /// now. The caller holds `checkpointing`.
    fn lower_bounds(&self, tighter: &[Tighter]) {
        if tighter.is_empty() {
            return;
        }
        // An edit takes the bounds of what it does not change from the version that it began with.
        let turn = waiting::take(|| self.flushing.try_lock(), || self.flushing.lock());
        let mut table = self.superversion.read().tree.table.clone();
        tighter.iter().for_each(|node| node.apply(&mut table));
        let old = self.change(|superversion| {
            std::mem::replace(&mut Arc::make_mut(&mut superversion.tree).table, table)
        });
        drop(turn);
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{sync::Arc, thread, time::Duration};

    use crate::{
        CreateOptions, Db, Options, dag::edit::Edit, db::flush::edit::SpaceCheck, device::MemDevice,
        key::Longest, node::NodeId, store::table::Entry,
    };

    /// Bytes of a long key.
    const LONG_BYTES: usize = 3000;

    /// A store of several levels without long keys, and a way from the root down to above a leaf, on which each node
    /// has a long bound: as if such a key had just gone from the leaf because nothing showed it.
    fn store() -> (Db, Vec<NodeId>) {
        let create = CreateOptions { node_size: 4096, log_size: Some(1 << 20), ..Default::default() };
        let options = Options { background: false, ..Options::default() };
        let device = Arc::new(MemDevice::new(64 << 20));
        Db::create(device.clone(), &create, &options).unwrap();
        let db = Db::open(device, options).unwrap();
        for i in 0..20_000u32 {
            db.put(format!("{i:06}"), i.wrapping_mul(0x9e37_79b9).to_be_bytes().repeat(10)).unwrap();
        }
        db.settle().unwrap();
        let engine = db.engine();
        let mut way = Vec::new();
        engine.change(|superversion| {
            let tree = Arc::make_mut(&mut superversion.tree);
            let mut next = Some(tree.root);
            while let Some(id) = next {
                let entry = tree.table.get(id).unwrap().clone();
                if entry.height == 0 {
                    break;
                }
                next = engine.pager.node(&tree.table, id).unwrap().node.references().next();
                // What a node takes off may be some bytes.
                let longest = Longest::of(LONG_BYTES + 100 * usize::from(entry.height));
                tree.table.set(id, Some(Entry { longest, ..entry }));
                way.push(id);
            }
        });
        assert!(way.len() >= 3 && check(&db).is_empty());
        (db, way)
    }

    /// Writes a node anew, and nothing above or below it.
    fn rewrite(db: &Db, id: NodeId) {
        let engine = db.engine();
        let _turn = engine.flushing.lock();
        engine.edit_with(&engine.context(), |edit| edit.put(id, edit.load(id)?), |_| ()).unwrap();
    }

    fn check(db: &Db) -> Vec<String> {
        db.check().unwrap().findings.into_iter().map(|finding| finding.what).collect()
    }

    fn bounds(db: &Db, way: &[NodeId]) -> Vec<bool> {
        let table = db.engine().superversion.read().tree.table.clone();
        way.iter().map(|id| table.get(*id).unwrap().longest.exceeds(LONG_BYTES - 1)).collect()
    }

    /// A node in the middle was written anew after the look, with the bound of what is below it, so its own was not
    /// lowered, but that of the node above was: a sound store was called damaged from then on.
    #[test]
    fn a_node_that_changes_before_bounds_are_lowered_leaves_no_false_damage() {
        for changed in 0..3 {
            let (db, way) = store();
            assert!(bounds(&db, &way).iter().all(|long| *long));
            let high = db.engine().high_bounds();
            rewrite(&db, way[changed]);
            db.engine().lower_bounds(&high);
            assert_eq!(check(&db), [""; 0], "node {changed} from above");
            // The next time the others go down too.
            db.engine().lower_bounds(&db.engine().high_bounds());
            assert_eq!(bounds(&db, &way), vec![false; way.len()]);
            assert_eq!(check(&db), [""; 0]);
        }
    }

    /// The same if the node is being changed while bounds are lowered.
    #[test]
    fn a_node_that_is_being_changed_while_bounds_are_lowered_leaves_no_false_damage() {
        for changed in 0..3 {
            let (db, way) = store();
            let engine = db.engine();
            thread::scope(|scope| {
                let turn = engine.flushing.lock();
                let cx = engine.context();
                let base = engine.superversion.read().tree.clone();
                let mut edit = Edit::new(&cx, &base);
                edit.put(way[changed], edit.load(way[changed]).unwrap()).unwrap();
                let changes = edit.finish();
                let lowering = scope.spawn(|| engine.lower_bounds(&engine.high_bounds()));
                // It waits for the edit; if it does not, it is done by then.
                for _ in 0..50 {
                    thread::sleep(Duration::from_millis(if lowering.is_finished() { 0 } else { 4 }));
                }
                engine.publish(changes, SpaceCheck::Required, |_| ()).unwrap();
                drop(turn);
                lowering.join().unwrap();
            });
            assert_eq!(check(&db), [""; 0], "node {changed} from above");
        }
    }
}
