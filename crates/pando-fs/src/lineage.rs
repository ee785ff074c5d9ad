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
//! fresh wherever one is given. Uses the engine's `get` and `write` only.

use std::collections::HashMap;

use bytes::Bytes;
use pando_db::{Batch, Db};
use parking_lot::Mutex;

use crate::{
    counter,
    error::{Error, Result},
    path::system,
    record::{Pin, Record},
    types::{FileKind, Ino},
};

const LINEAGES: u32 = 1 << 24;

/// The number of a file in a lineage.
pub(crate) fn number(lineage: u32, fileno: u64) -> Ino {
    debug_assert!(lineage < LINEAGES && fileno >> 40 == 0);
    u64::from(lineage) << 40 | fileno
}

/// The table of lineages.
#[derive(Debug)]
pub(crate) struct Lineages {
    state: Mutex<State>,
    read_only: bool,
}

#[derive(Debug)]
struct State {
    /// Not yet given to anybody.
    next: u32,
    /// Given out, but not stored: on a read-only mount or a full device.
    unsaved: HashMap<(u32, u64), u32>,
}

fn key() -> Bytes {
    system::counter(counter::LINEAGE)
}

impl Lineages {
    /// The table of an open store.
    pub(crate) fn open(db: &Db, read_only: bool) -> Result<Self> {
        let next = counter::decode("counter of lineages", db.get(&key())?)?.unwrap_or(1);
        let next = u32::try_from(next).map_err(|_| Error::Exhausted("lineage numbers"))?;
        Ok(Self { state: Mutex::new(State { next: next.max(1), unsaved: HashMap::new() }), read_only })
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

    /// The lineage below a clone root, allocated if it has none yet.
    fn inside(&self, db: &Db, around: u32, clone_id: u64) -> Result<u32> {
        let key_of_pair = system::lineage(around, clone_id);
        if let Some(found) = lookup(db, &key_of_pair)? {
            return Ok(found);
        }
        // Held over a write of the engine, by those only who see a clone for the first time.
        let mut state = self.state.lock();
        if let Some(found) = state.unsaved.get(&(around, clone_id)) {
            return Ok(*found);
        }
        if let Some(found) = lookup(db, &key_of_pair)? {
            return Ok(found);
        }
        let lineage = state.next;
        if lineage >= LINEAGES {
            return Err(Error::Exhausted("lineage numbers"));
        }
        state.next += 1;
        let mut batch = Batch::new();
        batch.put(key(), counter::encode(u64::from(state.next)));
        batch.put(key_of_pair, u64::from(lineage).to_le_bytes().to_vec());
        if self.read_only || db.write(batch).is_err() {
            // A look at a clone must work on a full or stopped store too: the number then
            // holds until unmount.
            state.unsaved.insert((around, clone_id), lineage);
        }
        Ok(lineage)
    }

    /// Changes the record of an entry that moves from a directory of lineage `from` to one of
    /// lineage `to`, so that it keeps its number `ino` and, for a directory, its lineage `inside`.
    /// `fresh_file` and `fresh_clone` give unused numbers.
    pub(crate) fn moved(
        batch: &mut Batch,
        r: &mut Record,
        (from, to): (u32, u32),
        (ino, inside): (Ino, u32),
        fresh_file: impl FnOnce() -> Result<u64>,
        fresh_clone: impl FnOnce() -> Result<u64>,
    ) -> Result<()> {
        if from == to {
            return Ok(());
        }
        if r.kind != FileKind::Directory {
            r.fileno = fresh_file()?;
            r.pin = Some(Pin { lineage: to, ino });
        } else if inside == to {
            r.clone_id = 0;
        } else {
            r.clone_id = fresh_clone()?;
            batch.put(system::lineage(to, r.clone_id), u64::from(inside).to_le_bytes().to_vec());
        }
        Ok(())
    }
}

fn lookup(db: &Db, key: &[u8]) -> Result<Option<u32>> {
    let Some(n) = counter::decode("lineage table", db.get(key)?)? else { return Ok(None) };
    match u32::try_from(n) {
        Ok(n) if n < LINEAGES => Ok(Some(n)),
        _ => Err(Error::Damaged { what: "lineage table".into(), detail: "impossible lineage" }),
    }
}
