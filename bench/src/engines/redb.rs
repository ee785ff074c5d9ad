//! redb: a transaction a batch, durable when it commits.

use std::path::Path;

use anyhow::Result;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};

use crate::{
    data::Key,
    engine::{Engine, Op, PairSink, Settings, ValueSink, add, successor},
};

const PAIRS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pairs");

struct Redb(Database);

pub(super) fn open(dir: &Path, settings: Settings) -> Result<Box<dyn Engine>> {
    let mut builder = Database::builder();
    builder.set_cache_size(settings.cache as usize);
    let db = builder.create(dir.join("redb"))?;
    let txn = db.begin_write()?;
    txn.open_table(PAIRS)?;
    txn.commit()?;
    Ok(Box::new(Redb(db)))
}

impl Engine for Redb {
    fn write(&self, ops: &[Op<'_>], durable: bool) -> Result<()> {
        let mut txn = self.0.begin_write()?;
        txn.set_durability(if durable { Durability::Immediate } else { Durability::None })?;
        {
            let mut table = txn.open_table(PAIRS)?;
            for op in ops {
                match *op {
                    Op::Put(key, value) => drop(table.insert(key, value)?),
                    Op::Add(key, delta) => {
                        let value = add(table.get(key)?.as_ref().map(|old| old.value()), delta);
                        table.insert(key, &value[..])?;
                    }
                }
            }
        }
        Ok(txn.commit()?)
    }

    fn sync(&self) -> Result<()> {
        // What was committed without durability becomes durable with the next commit that is.
        self.write(&[], true)
    }

    fn get_many(&self, keys: &[Key], sink: ValueSink<'_>) -> Result<()> {
        let table = self.0.begin_read()?.open_table(PAIRS)?;
        keys.iter().try_for_each(|key| sink(table.get(&key[..])?.as_ref().map(|v| v.value())))
    }

    fn scan(&self, prefix: &[u8], sink: PairSink<'_>) -> Result<()> {
        let table = self.0.begin_read()?.open_table(PAIRS)?;
        let pairs = match successor(prefix) {
            Some(end) => table.range(prefix..&end[..])?,
            None => table.range(prefix..)?,
        };
        for pair in pairs {
            let (key, value) = pair?;
            sink(key.value(), value.value())?;
        }
        Ok(())
    }

    fn delete_prefix(&self, prefix: &[u8]) -> Result<()> {
        let txn = self.0.begin_write()?;
        {
            let mut table = txn.open_table(PAIRS)?;
            match successor(prefix) {
                Some(end) => table.retain_in(prefix..&end[..], |_, _| false)?,
                None => table.retain_in(prefix.., |_, _| false)?,
            };
        }
        Ok(txn.commit()?)
    }

    fn settle(&self) -> Result<()> {
        self.sync()
    }
}
