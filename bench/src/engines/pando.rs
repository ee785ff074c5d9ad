//! Pando through its library, on an image file.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result};
use bytes::Bytes;
use pando_db::{Batch, CreateOptions, Db, Merge, Options, device::FileDevice};

use crate::{
    data::Key,
    engine::{Engine, Op, PairSink, Settings, ValueSink, add},
};

struct Pando(Db);

/// The upserts of this program.
struct AddMerge;

fn delta(op: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(op.try_into().ok()?))
}

impl Merge for AddMerge {
    fn name(&self) -> &'static str {
        "bench-add"
    }

    fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
        match delta(op) {
            Some(delta) => Some(add(old, delta).into()),
            None => old.map(Bytes::copy_from_slice),
        }
    }

    fn combine(&self, first: &[u8], second: &[u8]) -> Option<Bytes> {
        let sum = delta(first)?.wrapping_add(delta(second)?);
        Some(Bytes::copy_from_slice(&sum.to_le_bytes()))
    }
}

pub(super) fn open(dir: &Path, settings: Settings) -> Result<Box<dyn Engine>> {
    let path = dir.join("image");
    let options = Options::default().cache_bytes(settings.cache).merge(Arc::new(AddMerge));
    if !path.exists() {
        // The image is sparse: room costs nothing.
        let size = settings.room.saturating_mul(4).max(1 << 30).next_multiple_of(1 << 20);
        let device = Arc::new(FileDevice::create(&path, size, false)?);
        Db::create(device, &CreateOptions::default(), &options).context("creating the store")?;
    }
    let device = FileDevice::open(&path, false)?;
    Ok(Box::new(Pando(Db::open(Arc::new(device), options)?)))
}

impl Engine for Pando {
    fn write(&self, ops: &[Op<'_>], durable: bool) -> Result<()> {
        let mut batch = Batch::new();
        for op in ops {
            match op {
                Op::Put(key, value) => batch.put(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)),
                Op::Add(key, delta) => {
                    batch.upsert(Bytes::copy_from_slice(key), Bytes::copy_from_slice(&delta.to_le_bytes()))
                }
            };
        }
        self.0.write(batch)?;
        if durable {
            self.0.sync()?;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.0.sync()?)
    }

    fn get_many(&self, keys: &[Key], sink: ValueSink<'_>) -> Result<()> {
        let snapshot = self.0.snapshot();
        keys.iter().try_for_each(|key| sink(snapshot.get(key)?.as_deref()))
    }

    fn scan(&self, prefix: &[u8], sink: PairSink<'_>) -> Result<()> {
        let mut cursor = self.0.prefix(prefix);
        while let Some((key, value)) = cursor.next_ref()? {
            sink(key, value)?;
        }
        Ok(())
    }

    fn delete_prefix(&self, prefix: &[u8]) -> Result<()> {
        self.0.delete_prefix(Bytes::copy_from_slice(prefix))?;
        self.sync()
    }

    fn copy_prefix(&self, src: &[u8], dst: &[u8]) -> Result<()> {
        Ok(self.0.clone_prefix(Bytes::copy_from_slice(src), Bytes::copy_from_slice(dst))?)
    }

    fn settle(&self) -> Result<()> {
        Ok(self.0.checkpoint()?)
    }
}

impl Drop for Pando {
    fn drop(&mut self) {
        if let Err(error) = self.0.close() {
            eprintln!("closing Pando: {error}");
        }
    }
}
