//! fjall: an LSM-tree; its journal is flushed with every durable batch. Without merges and ranges.

use std::path::Path;

use anyhow::Result;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable};

use crate::{
    data::Key,
    engine::{Engine, Op, PairSink, Settings, ValueSink, add},
};

struct Fjall {
    db: Database,
    pairs: Keyspace,
}

pub(super) fn open(dir: &Path, settings: Settings) -> Result<Box<dyn Engine>> {
    // Half of the budget is for the write buffer in use and the one that is being flushed.
    let db = Database::builder(dir).cache_size(settings.cache / 2).open()?;
    let buffer = (settings.cache / 4).min(64 << 20);
    let pairs = db.keyspace("pairs", || KeyspaceCreateOptions::default().max_memtable_size(buffer))?;
    Ok(Box::new(Fjall { db, pairs }))
}

impl Fjall {
    fn durability(durable: bool) -> Option<PersistMode> {
        Some(if durable { PersistMode::SyncData } else { PersistMode::Buffer })
    }
}

impl Engine for Fjall {
    fn write(&self, ops: &[Op<'_>], durable: bool) -> Result<()> {
        let mut batch = self.db.batch().durability(Self::durability(durable));
        // A batch of fjall does not see itself; a key that comes twice must see its first change.
        let mut seen: std::collections::HashMap<&[u8], Vec<u8>> = std::collections::HashMap::new();
        for op in ops {
            match *op {
                Op::Put(key, value) => batch.insert(&self.pairs, key, value),
                Op::Add(key, delta) => {
                    let value = match seen.get(key) {
                        Some(old) => add(Some(old), delta),
                        None => add(self.pairs.get(key)?.as_deref(), delta),
                    };
                    batch.insert(&self.pairs, key, &value[..]);
                    seen.insert(key, value);
                }
            }
        }
        Ok(batch.commit()?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.db.persist(PersistMode::SyncData)?)
    }

    fn get_many(&self, keys: &[Key], sink: ValueSink<'_>) -> Result<()> {
        keys.iter().try_for_each(|key| sink(self.pairs.get(key)?.as_deref()))
    }

    fn scan(&self, prefix: &[u8], sink: PairSink<'_>) -> Result<()> {
        for pair in self.db.snapshot().prefix(&self.pairs, prefix) {
            let (key, value) = pair.into_inner()?;
            sink(&key, &value)?;
        }
        Ok(())
    }

    fn delete_prefix(&self, prefix: &[u8]) -> Result<()> {
        let mut batch = self.db.batch().durability(Self::durability(true));
        for pair in self.pairs.prefix(prefix) {
            batch.remove(&self.pairs, pair.key()?);
        }
        Ok(batch.commit()?)
    }

    fn settle(&self) -> Result<()> {
        self.pairs.rotate_memtable_and_wait()?;
        // It has no call that waits for compactions.
        let start = std::time::Instant::now();
        while self.db.active_compactions() > 0 && start.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        self.sync()
    }
}
