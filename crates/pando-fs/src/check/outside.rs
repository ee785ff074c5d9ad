//! Extended attributes that have keys of their own, compared with the record that counts them.

use bytes::Bytes;
use pando_db::Snapshot;

use crate::{
    attrs::{self, Bucket},
    error::Result,
    path,
    record::Record,
};

/// What is wrong with the extended attributes that have keys of their own, of the entry with this key.
pub(super) fn unlike_attrs(view: &Snapshot, meta: &[u8], record: &Record) -> Result<Option<&'static str>> {
    let data = path::data_of(meta);
    let (mut count, mut bytes) = (0u32, 0u32);
    let mut pairs =
        view.range(&path::block(&data, path::ATTRS_BEGIN), Some(&path::block(&data, path::ATTRS_END)));
    while let Some((key, value)) = pairs.next_ref()? {
        let Ok(bucket) = Bucket::decode(&Bytes::copy_from_slice(value)) else {
            return Ok(Some("impossible extended attributes"));
        };
        for (name, _) in &bucket.attrs {
            if path::block_of(&data, key) != Some(attrs::key_number(name)) {
                return Ok(Some("an extended attribute under a key that is not its own"));
            }
            if record.attrs.get(name).is_some() {
                return Ok(Some("an extended attribute that is there twice"));
            }
            count += 1;
            bytes += name.len() as u32 + 1;
        }
    }
    Ok((record.attrs.outside() != (count, bytes))
        .then_some("other extended attributes than its record counts"))
}
