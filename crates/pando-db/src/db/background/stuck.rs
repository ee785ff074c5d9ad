//! Stores in which a memtable cannot be flushed even into the root, for lack of space, although nothing is dirty.
//!
//! The space for an edit is checked when it is published. Earlier edits may have used up the space that was reserved
//! for this memtable, if readers or clones still hold the nodes that they replaced. Guarantees: a flush that finds no
//! space first reclaims nodes without references; no writer waits without bound for memory that the threads cannot
//! free. The state ends as soon as there is space.

use std::time::{Duration, Instant};

use crate::{
    db::{engine::Engine, flush::FlushStep},
    error::{Error, Result},
};

/// How long writers wait for a memtable that cannot be flushed, before they are refused. Readers may end meanwhile,
/// and a call of `settle` may free space.
const TABLE_PATIENCE: Duration = Duration::from_secs(5);

impl Engine {
    /// The result of a step of flushing. If the step found no space although nothing was dirty, this reclaims nodes
    /// without references and makes a checkpoint; if that has freed space, the step is to be made again.
    pub(super) fn or_given_back(&self, step: Result<FlushStep>) -> Result<FlushStep> {
        match step {
            Err(Error::NoSpace) => {
                let before = self.take_out_unreferenced()?;
                self.checkpoint_nodes(|_| true)?;
                if self.space.free_bytes() > before {
                    Ok(FlushStep::NeedsCheckpoint)
                } else {
                    Err(Error::NoSpace)
                }
            }
            other => other,
        }
    }

    /// Notes that the flusher has found no space for a memtable.
    pub(super) fn note_stuck(&self) {
        self.counters.stuck_since.lock().get_or_insert_with(Instant::now);
    }

    /// Whether the flusher has found no space for so long that writers do not wait any more.
    pub fn is_stuck(&self) -> bool {
        self.counters.stuck_since.lock().is_some_and(|since| since.elapsed() >= TABLE_PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{
        sync::{Arc, mpsc},
        thread,
        time::{Duration, Instant},
    };

    use crate::{
        Batch, CreateOptions, Db, Error, Options, Result,
        db::engine::Engine,
        device::{BLOCK, MemDevice},
        space::Extent,
    };

    /// How long a call may take.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn store(options: Options) -> Db {
        let device = Arc::new(MemDevice::new(64 << 20));
        Db::create(device.clone(), &CreateOptions::default().node_size(4 << 10), &options).unwrap();
        Db::open(device, options).unwrap()
    }

    fn write(db: &Db, tree: &str, count: u32) -> Result<()> {
        (0..count).try_for_each(|i| db.put(format!("{tree}/{i:05}"), vec![7; 400]))
    }

    /// Takes all free space but so much, as a reader that stays takes what is replaced.
    fn take_all_but(engine: &Engine, left: u64) -> Vec<Arc<Extent>> {
        let mut taken = Vec::new();
        let mut piece = 1 << 20;
        while piece >= BLOCK {
            match engine.space.free_bytes() >= left + piece {
                true => match engine.space.allocate(piece) {
                    Ok(extent) => taken.push(extent),
                    Err(_) => piece /= 2,
                },
                false => piece /= 2,
            }
        }
        taken
    }

    /// Where the space was that would have made room, nobody came to give it back: the step before failed.
    #[test]
    fn tables_without_room_wait_for_what_nothing_refers_to() {
        type Way = fn(&Db) -> Result<()>;
        let ways: [(&str, Way); 3] = [
            ("a checkpoint", Db::checkpoint),
            ("settling", Db::settle),
            ("a flush", |db| {
                db.engine().seal();
                db.engine().flush_all()
            }),
        ];
        for (what, way) in ways {
            let db = store(Options { background: false, memtable_bytes: 4 << 20, ..Options::default() });
            write(&db, "old", 10_000).unwrap();
            db.checkpoint().unwrap();
            db.delete_prefix("old/").unwrap();
            db.checkpoint().unwrap();
            let engine = db.engine();
            assert!(!engine.orphans.lock().is_empty(), "there is something to give back");
            write(&db, "new", 3_000).unwrap();
            assert!(engine.dirty.count() == 0 && engine.memtable_sizes.bytes() > 1 << 20);
            let taken = take_all_but(engine, 256 << 10);
            way(&db).expect(what);
            assert!(engine.superversion.read().sealed.is_empty(), "{what}");
            drop(taken);
            assert_eq!(db.prefix(b"").count(), 3_000, "{what}");
            assert!(db.check().unwrap().findings.is_empty(), "{what}");
            db.close().unwrap();
        }
    }

    /// Writers waited for room in memory, deletes too, for as long as somebody held the space.
    #[test]
    fn writers_do_not_wait_for_tables_that_find_no_room() {
        let db = store(Options { memtable_bytes: 64 << 10, ..Options::default() });
        write(&db, "old", 10_000).unwrap();
        db.checkpoint().unwrap();
        let engine = db.engine();
        let held_up = engine.flushing.lock();
        let (sizes, mut new) = (&engine.memtable_sizes, 0);
        // As many as writers may fill without the flusher.
        while sizes.sealed() < 6 || sizes.sealed_bytes() < 6 * engine.seal_threshold() {
            db.put(format!("new/{new:05}"), vec![7; 400]).unwrap();
            new += 1;
        }
        let taken = take_all_but(engine, 0);
        drop(held_up);
        let (told, results) = mpsc::channel();
        for thread in 0..8 {
            let (db, told) = (db.clone(), told.clone());
            thread::spawn(move || {
                let done = match thread {
                    0 => db.delete("old/00000"),
                    1 => db.delete_prefix("old/"),
                    2 => {
                        let mut batch = Batch::new();
                        batch.delete_prefix("old/").releases();
                        db.write(batch)
                    }
                    3 => db.settle(),
                    4 => db.checkpoint(),
                    _ => db.put(format!("more/{thread}"), "value"),
                };
                _ = told.send((thread, done));
            });
        }
        for _ in 0..8 {
            let (thread, done) = results.recv_timeout(PATIENCE).expect("a call that ends");
            assert!(matches!(done, Err(Error::NoSpace)), "thread {thread}: {done:?}");
        }
        // It passes: nobody has to open the store again.
        drop(taken);
        let began = Instant::now();
        while let Err(error) = db.put("again", "value") {
            assert!(matches!(error, Error::NoSpace) && began.elapsed() < PATIENCE, "{error}");
            thread::sleep(Duration::from_millis(10));
        }
        db.delete_prefix("old/").unwrap();
        db.settle().unwrap();
        assert_eq!(db.prefix(b"").count(), new + 1);
        assert!(db.check().unwrap().findings.is_empty());
        db.close().unwrap();
    }
}
