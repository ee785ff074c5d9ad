//! LMDB (heed): a transaction a batch, synced when it commits.

use std::{ops::Bound, path::Path};

use anyhow::Result;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, FlagSetMode, WithTls, types::Bytes};

use crate::{
    data::Key,
    engine::{Engine, Op, PairSink, Settings, ValueSink, add, successor},
};

struct Lmdb {
    env: Env<WithTls>,
    pairs: Database<Bytes, Bytes>,
}

pub(super) fn open(dir: &Path, settings: Settings) -> Result<Box<dyn Engine>> {
    open_with(dir, settings, EnvFlags::empty())
}

/// Without readahead of the kernel, as its makers suggest for random access to data larger than the memory.
pub(super) fn open_random(dir: &Path, settings: Settings) -> Result<Box<dyn Engine>> {
    open_with(dir, settings, EnvFlags::NO_READ_AHEAD)
}

fn open_with(dir: &Path, settings: Settings, flags: EnvFlags) -> Result<Box<dyn Engine>> {
    let room = settings.room.saturating_mul(8).max(4 << 30).next_multiple_of(1 << 20);
    let mut options = EnvOpenOptions::new();
    options.map_size(room as usize);
    // SAFETY: none of the flags above gives up a guarantee; see what LMDB says of them.
    unsafe { options.flags(flags) };
    // SAFETY: this program is the only one that uses the directory, and it opens it once at a time.
    let env = unsafe { options.open(dir)? };
    let mut txn = env.write_txn()?;
    let pairs = env.create_database(&mut txn, None)?;
    txn.commit()?;
    Ok(Box::new(Lmdb { env, pairs }))
}

impl Lmdb {
    /// Whether commits go without a flush from now on.
    fn set_no_sync(&self, no_sync: bool) -> Result<()> {
        let mode = if no_sync { FlagSetMode::Enable } else { FlagSetMode::Disable };
        // SAFETY: only `write` changes flags, and one thread writes.
        unsafe { self.env.set_flags(EnvFlags::NO_SYNC, mode)? };
        Ok(())
    }
}

impl Engine for Lmdb {
    fn write(&self, ops: &[Op<'_>], durable: bool) -> Result<()> {
        if !durable {
            self.set_no_sync(true)?;
        }
        let mut txn = self.env.write_txn()?;
        for op in ops {
            match *op {
                Op::Put(key, value) => self.pairs.put(&mut txn, key, value)?,
                Op::Add(key, delta) => {
                    let value = add(self.pairs.get(&txn, key)?, delta);
                    self.pairs.put(&mut txn, key, &value)?;
                }
            }
        }
        txn.commit()?;
        if !durable {
            self.set_no_sync(false)?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn get_many(&self, keys: &[Key], sink: ValueSink<'_>) -> Result<()> {
        let txn = self.env.read_txn()?;
        keys.iter().try_for_each(|key| sink(self.pairs.get(&txn, key)?))
    }

    fn scan(&self, prefix: &[u8], sink: PairSink<'_>) -> Result<()> {
        let txn = self.env.read_txn()?;
        for pair in self.pairs.prefix_iter(&txn, prefix)? {
            let (key, value) = pair?;
            sink(key, value)?;
        }
        Ok(())
    }

    fn delete_prefix(&self, prefix: &[u8]) -> Result<()> {
        let mut txn = self.env.write_txn()?;
        let end = successor(prefix);
        let above = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        self.pairs.delete_range(&mut txn, &(Bound::Included(prefix), above))?;
        Ok(txn.commit()?)
    }

    fn settle(&self) -> Result<()> {
        self.sync()
    }
}

impl Drop for Lmdb {
    fn drop(&mut self) {
        // The map goes with the last handle; the directory may be opened again only then.
        self.env.clone().prepare_for_closing();
    }
}
