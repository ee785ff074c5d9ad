//! RocksDB: write-ahead log synced with every durable batch, a merge operator, range tombstones.

use std::{path::Path, time::Duration};

use anyhow::Result;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBPinnableSlice, Direction, IteratorMode, MergeOperands, Options,
    ReadOptions, WriteBatch, WriteOptions,
};

use crate::{
    data::Key,
    engine::{Engine, Op, PairSink, Settings, ValueSink, add, successor},
};

struct Rocks(DB);

fn delta(op: &[u8]) -> u64 {
    op.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Additions over a value.
fn full_merge(_: &[u8], old: Option<&[u8]>, ops: &MergeOperands) -> Option<Vec<u8>> {
    Some(add(old, ops.iter().fold(0, |sum, op| sum.wrapping_add(delta(op)))))
}

/// Additions alone, without the value they apply to.
fn partial_merge(_: &[u8], _: Option<&[u8]>, ops: &MergeOperands) -> Option<Vec<u8>> {
    let sum = ops.iter().fold(0u64, |sum, op| sum.wrapping_add(delta(op)));
    Some(sum.to_le_bytes().to_vec())
}

pub(super) fn open(dir: &Path, settings: Settings) -> Result<Box<dyn Engine>> {
    // Half of the budget is for blocks, half for write buffers.
    let half = settings.cache as usize / 2;
    let cache = Cache::new_lru_cache(half);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&cache);
    // Not RocksDB's default, but what nobody goes without.
    table.set_bloom_filter(10.0, false);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_db_write_buffer_size(half);
    options.set_write_buffer_size(half.min(64 << 20) / 2);
    options.set_merge_operator("bench-add", full_merge, partial_merge);
    Ok(Box::new(Rocks(DB::open(&options, dir)?)))
}

fn options(durable: bool) -> WriteOptions {
    let mut options = WriteOptions::default();
    options.set_sync(durable);
    options
}

impl Engine for Rocks {
    fn write(&self, ops: &[Op<'_>], durable: bool) -> Result<()> {
        let mut batch = WriteBatch::default();
        for op in ops {
            match op {
                Op::Put(key, value) => batch.put(key, value),
                Op::Add(key, delta) => batch.merge(key, delta.to_le_bytes()),
            }
        }
        Ok(self.0.write_opt(batch, &options(durable))?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.0.flush_wal(true)?)
    }

    fn get_many(&self, keys: &[Key], sink: ValueSink<'_>) -> Result<()> {
        for key in keys {
            let value: Option<DBPinnableSlice<'_>> = self.0.get_pinned(key)?;
            sink(value.as_deref())?;
        }
        Ok(())
    }

    fn scan(&self, prefix: &[u8], sink: PairSink<'_>) -> Result<()> {
        let mut read = ReadOptions::default();
        if let Some(end) = successor(prefix) {
            read.set_iterate_upper_bound(end);
        }
        let mut pairs = self.0.raw_iterator_opt(read);
        pairs.seek(prefix);
        while let Some((key, value)) = pairs.item() {
            sink(key, value)?;
            pairs.next();
        }
        Ok(pairs.status()?)
    }

    fn delete_prefix(&self, prefix: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::default();
        match successor(prefix) {
            Some(end) => batch.delete_range(prefix, &end[..]),
            None => {
                for pair in self.0.iterator(IteratorMode::From(prefix, Direction::Forward)) {
                    batch.delete(pair?.0);
                }
            }
        }
        Ok(self.0.write_opt(batch, &options(true))?)
    }

    fn settle(&self) -> Result<()> {
        self.0.flush()?;
        let is_busy =
            |property: &str| Ok::<_, rocksdb::Error>(self.0.property_int_value(property)? > Some(0));
        while is_busy("rocksdb.compaction-pending")? || is_busy("rocksdb.num-running-compactions")? {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}
