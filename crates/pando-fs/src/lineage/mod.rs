//! Inode numbers: exact, stable, and different between an original and its clones.
//!
//! `st_ino` = lineage (24 bits) << 40 | file number (40 bits). File numbers
//! come from one counter of the store; a clone copies them. What tells copies
//! apart is the lineage: that of an entry is its directory's, except below a
//! directory whose record has a clone id. There the pair (lineage around it,
//! clone id) names a lineage by a table, filled when first looked up, and the
//! directory itself belongs to it. A nested clone root is copied with its id, and
//! as the lineage around the copy differs, so does the lineage inside it.
//!
//! Moves across lineages keep `st_ino`: a file gets a fresh file number and a
//! pin of its number that holds in the new lineage only (so a later clone of it
//! does not inherit it); a directory gets a fresh clone id that the table maps to its
//! old lineage. Guarantee: a (lineage, clone id) pair is never in two records, as ids are
//! fresh wherever one is given.
//!
//! **Lineages are given back** when the root of a clone goes, if nothing else can have a number of it: it is not
//! *tainted*. A lineage is tainted, by a key of its own, when one of its numbers lives on outside (a file or directory
//! was moved out of it), and when a file was moved into it (a clone may hold a copy of the pin that names it). A number
//! waits until no inode of the lineage is in memory: the kernel and open handles know them by these numbers; nor an
//! orphan of it in the store, as one that waits to be removed. What is lost so (tainted lineages, clones inside of
//! removed ones, those that waited when the mount ended) are found by marking what is in use, when all numbers have
//! been given out (`mark`).

mod mark;
pub(crate) mod number;
pub(crate) mod viewed;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use pando_db::{Batch, Db, waiting};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    counter,
    error::{Error, Result},
    inode::Table,
    lineage::{
        mark::{Free, free_numbers},
        number::{LINEAGES, decode_row, lineage_of, number},
    },
    path::system,
    record::{Pin, Record},
    removals::Removals,
    types::{FileKind, Ino},
};

/// At least so many numbers wait before memory is searched for inodes that have them.
const WAITING_NUMBERS: usize = 256;

/// The table of lineages.
#[derive(Debug)]
pub(crate) struct Lineages {
    table: Arc<Table>,
    removals: Arc<Removals>,
    state: Mutex<Allocator>,
    /// Lineages below this one were given out by a version that recorded no taints.
    untracked: u32,
    read_only: bool,
}

#[derive(Debug)]
struct Allocator {
    /// From here to `end`, not yet given to anybody.
    next: u32,
    end: u32,
    /// Given out, but not stored: on a read-only mount or a full device.
    unsaved: HashMap<(u32, u64), u32>,
    /// Given back, and no inode that has them is in memory.
    free: VecDeque<u32>,
    /// Given back.
    waiting: Vec<u32>,
}

impl Lineages {
    /// The table of an open store.
    pub(crate) fn open(
        db: &Db,
        (table, removals): (Arc<Table>, Arc<Removals>),
        read_only: bool,
    ) -> Result<Self> {
        let number = |what, which| {
            let lost = read_only.then_some(None);
            let n = counter::decode(what, counter::own_record(db, what, &system::counter(which), lost)?)?;
            n.map(|n| u32::try_from(n).map_err(|_| Error::Exhausted("lineage numbers"))).transpose()
        };
        let state = Allocator {
            next: number("counter of lineages", counter::LINEAGE)?.unwrap_or(1).max(1),
            end: number("end of lineages", counter::LINEAGE_END)?.unwrap_or(LINEAGES).min(LINEAGES),
            unsaved: HashMap::new(),
            free: VecDeque::new(),
            waiting: Vec::new(),
        };
        let untracked = number("untracked lineages", counter::UNTRACKED)?.unwrap_or(0);
        Ok(Self { table, removals, state: Mutex::new(state), untracked, read_only })
    }

    /// Number of an entry with this record in a directory of lineage `around`, and the lineage
    /// that it belongs to (for a directory: of its entries as well).
    pub(crate) fn identity(&self, db: &Db, around: u32, r: &Record) -> Result<(Ino, u32)> {
        if r.kind == FileKind::Directory && r.clone_id != 0 {
            let inside = self.inside(db, around, r.clone_id)?;
            return Ok((number(inside, r.fileno), inside));
        }
        match r.pin {
            Some(pin) if pin.lineage == around => Ok((pin.ino, around)),
            _ => Ok((number(around, r.fileno), around)),
        }
    }

    /// The lineage below a clone root, if it has one yet.
    pub(crate) fn known(&self, db: &Db, around: u32, clone_id: u64) -> Result<Option<u32>> {
        match self.state().unsaved.get(&(around, clone_id)) {
            Some(lineage) => Ok(Some(*lineage)),
            None => lookup(db, &system::lineage(around, clone_id)),
        }
    }

    /// The lineage below a clone root, allocated if it has none yet.
    fn inside(&self, db: &Db, around: u32, clone_id: u64) -> Result<u32> {
        let key_of_pair = system::lineage(around, clone_id);
        if let Some(found) = lookup(db, &key_of_pair)? {
            return Ok(found);
        }
        // Held over a write to the engine, but only by calls that look up a clone for the first time.
        let mut state = self.state();
        if let Some(found) = state.unsaved.get(&(around, clone_id)) {
            return Ok(*found);
        }
        if let Some(found) = lookup(db, &key_of_pair)? {
            return Ok(found);
        }
        let mut batch = Batch::new();
        let lineage = self.fresh(db, &mut state, &mut batch)?;
        batch.put(key_of_pair, u64::from(lineage).to_le_bytes().to_vec());
        if self.read_only || db.write(batch).is_err() {
            // A look at a clone must work on a full or stopped store too: the number then
            // holds until unmount.
            state.unsaved.insert((around, clone_id), lineage);
        }
        Ok(lineage)
    }

    /// Stores a lineage number that was given out while the device was full, and those of the lineages around it:
    /// otherwise inode numbers with it would mean nothing after the next mount. After an error such an inode number
    /// must not be stored. No I/O if there are no such lineages.
    pub(crate) fn save(&self, db: &Db, mut lineage: u32) -> Result<()> {
        let mut state = self.state();
        loop {
            let Some(pair) =
                state.unsaved.iter().find(|(_, number)| **number == lineage).map(|found| *found.0)
            else {
                return Ok(());
            };
            let mut batch = Batch::new();
            let key = system::lineage(pair.0, pair.1);
            counter::put_on_full(&mut batch, key, counter::encode(u64::from(lineage)));
            batch.put(system::counter(counter::LINEAGE), counter::encode(u64::from(state.next)));
            db.write(batch)?;
            state.unsaved.remove(&pair);
            lineage = pair.0;
        }
    }

    /// Waits for calls that look up a clone for the first time, and so for the engine.
    fn state(&self) -> MutexGuard<'_, Allocator> {
        waiting::take(|| self.state.try_lock(), || self.state.lock())
    }

    /// A number that nothing has.
    fn fresh(&self, db: &Db, state: &mut Allocator, batch: &mut Batch) -> Result<u32> {
        // The search costs what is in memory, so it is made for a number of numbers in proportion.
        if state.free.is_empty() && state.waiting.len() >= WAITING_NUMBERS.max(self.table.len() as usize / 64)
        {
            self.free_waiting(state);
        }
        if state.free.is_empty() && state.next >= state.end {
            self.free_waiting(state);
        }
        if state.free.is_empty() && state.next >= state.end {
            self.mark(db, state)?;
        }
        if let Some(lineage) = state.free.pop_front() {
            return Ok(lineage);
        }
        if state.next >= state.end {
            return Err(Error::Exhausted("lineage numbers"));
        }
        state.next += 1;
        batch.put(system::counter(counter::LINEAGE), counter::encode(u64::from(state.next)));
        Ok(state.next - 1)
    }

    /// Lineages of which something has a number that is in no directory: an inode in memory, or an orphan that waits
    /// to be removed. It waits there before its inode goes from memory, so that is looked at last.
    fn not_free(&self) -> HashSet<u32> {
        let mut used = self.table.lineages();
        used.extend(self.removals.orphans().into_iter().map(lineage_of));
        used
    }

    /// Makes those free that waited and that nothing has.
    fn free_waiting(&self, state: &mut Allocator) {
        if state.waiting.is_empty() {
            return;
        }
        let used = self.not_free();
        let (wait, free): (Vec<_>, Vec<_>) = state.waiting.drain(..).partition(|l| used.contains(l));
        state.waiting = wait;
        state.free.extend(free);
    }

    /// Finds the unused numbers, which are given out next.
    fn mark(&self, db: &Db, state: &mut Allocator) -> Result<()> {
        let Free { run, single } = free_numbers(db, || self.not_free(), &state.unsaved, self.read_only)?;
        state.waiting.clear();
        state.free = single;
        (state.next, state.end) = (run.start, run.end);
        Ok(())
    }

    /// Adds what becomes of the table when the directory with this record, in one of lineage `around`, is
    /// removed with all below it. The caller holds it exclusively, and gives the answer to [`Lineages::give_back`] when
    /// the batch is written.
    pub(crate) fn retire(
        &self,
        db: &Db,
        batch: &mut Batch,
        around: u32,
        r: &Record,
        inside: u32,
    ) -> Result<Option<u32>> {
        if r.kind != FileKind::Directory || r.clone_id == 0 {
            return Ok(None);
        }
        if self.state().unsaved.contains_key(&(around, r.clone_id)) {
            return Ok(None);
        }
        batch.delete(system::lineage(around, r.clone_id));
        if inside == 0
            || inside == around
            || inside < self.untracked
            || db.get(&system::tainted(inside))?.is_some()
        {
            return Ok(None);
        }
        // Clones in this one: a later one with this number may hold copies of their ids.
        let rows = system::lineages_in(inside);
        if db.prefix(&rows).next().transpose()?.is_some() {
            batch.delete_prefix(rows);
        }
        Ok(Some(inside))
    }

    /// Takes a number back that [`Lineages::retire`] named.
    pub(crate) fn give_back(&self, lineage: Option<u32>) {
        if let Some(lineage) = lineage {
            self.state().waiting.push(lineage);
        }
    }

    /// Changes the record of an entry that moves from a directory of lineage `from` to one of
    /// lineage `to`, so that it keeps its number `ino` and, for a directory, its lineage `inside`.
    /// `fresh_file` and `fresh_clone` give unused numbers. A directory that is to `keep_root` is the root of its
    /// lineage then too, also where it comes back into that.
    /// A number that could not be stored yet is, before a record names it.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn moved(
        &self,
        db: &Db,
        batch: &mut Batch,
        r: &mut Record,
        (from, to): (u32, u32),
        (ino, inside): (Ino, u32),
        keep_root: bool,
        fresh_file: impl FnOnce() -> Result<u64>,
        fresh_clone: impl FnOnce() -> Result<u64>,
    ) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let taint = |batch: &mut Batch, lineage: u32| {
            if lineage != 0 {
                batch.put(system::tainted(lineage), vec![1]);
            }
        };
        if r.kind != FileKind::Directory {
            // After the next mount another clone would get it.
            self.save(db, lineage_of(ino))?;
            self.save(db, to)?;
            r.fileno = fresh_file()?;
            r.pin = Some(Pin { lineage: to, ino });
            taint(batch, lineage_of(ino));
            taint(batch, to);
            return Ok(());
        }
        if r.clone_id != 0 {
            batch.delete(system::lineage(from, r.clone_id));
        } else {
            self.save(db, from)?;
            taint(batch, from); // which is `inside`
        }
        if inside == to && !keep_root {
            r.clone_id = 0;
            return Ok(());
        }
        self.put_root(batch, r, (to, inside), fresh_clone()?);
        Ok(())
    }

    /// Makes a directory of lineage `lineage`, whose record is `r`, the root of a lineage at its present place: from
    /// now on no hard link leads out of it. Inode numbers stay the same.
    pub(crate) fn become_root(&self, batch: &mut Batch, r: &mut Record, lineage: u32, clone_id: u64) {
        if lineage != 0 {
            batch.put(system::tainted(lineage), vec![1]);
        }
        self.put_root(batch, r, (lineage, lineage), clone_id);
    }

    /// Notes that the entries of a directory in one of lineage `around` are of lineage `inside`.
    fn put_root(&self, batch: &mut Batch, r: &mut Record, (around, inside): (u32, u32), clone_id: u64) {
        r.clone_id = clone_id;
        batch.put(system::lineage(around, clone_id), u64::from(inside).to_le_bytes().to_vec());
        let state = self.state();
        if !state.unsaved.is_empty() {
            // The number may be one of these, and now it is stored.
            batch.put(system::counter(counter::LINEAGE), counter::encode(u64::from(state.next)));
        }
    }
}

fn lookup(db: &Db, key: &[u8]) -> Result<Option<u32>> {
    decode_row(db.get(key)?)
}
