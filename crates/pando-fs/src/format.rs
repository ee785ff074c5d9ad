//! The format record: the version, the label and the features of a store.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::{Error, Result};

/// Version of the keys and records of the file system.
const FORMAT_VERSION: u32 = 1;
const FORMAT_MAGIC: &[u8; 8] = b"pando-fs";
// Feature bits of a store. A program that does not know one of them must not open the store at all. Except for the
// first bit, a store gets the bit of a feature when the feature is first used, and keeps it.

/// Files with holes have maps of their blocks, and lineages are given back. A store without this bit gets it when it is
/// first opened for writing.
pub(crate) const FEATURE_MAPS_AND_LINEAGES: u64 = 1;
/// Some entry has, or had, extended attributes.
pub(crate) const FEATURE_EXTENDED_ATTRIBUTES: u64 = 2;
/// Some file has, or had, more than one name.
pub(crate) const FEATURE_HARD_LINKS: u64 = 4;
/// There are, or were, snapshots.
pub(crate) const FEATURE_SNAPSHOTS: u64 = 8;
/// A tree has been changed by a range-upsert that changes the modes of everything in it.
pub(crate) const FEATURE_TREE_CHANGES: u64 = 16;
/// Some snapshot was received, and its record says as which snapshot.
pub(crate) const FEATURE_RECEIVED: u64 = 32;
/// There are, or were, forks.
pub(crate) const FEATURE_FORKS: u64 = 64;
/// Some directory has, or had, a policy for its snapshots.
pub(crate) const FEATURE_POLICIES: u64 = 128;
/// Some directory has, or had, an account of the space below it (quotas).
pub(crate) const FEATURE_ACCOUNTS: u64 = 256;
/// Some merge works, or worked, in a hidden volume.
pub(crate) const FEATURE_WORKS: u64 = 512;
/// Some directory has, or had, snapshots, and a key under its contents prefix says so.
pub(crate) const FEATURE_SNAPSHOTTED: u64 = 1024;
/// All bits of features that this program knows.
const KNOWN_FEATURES: u64 = FEATURE_MAPS_AND_LINEAGES
    | FEATURE_EXTENDED_ATTRIBUTES
    | FEATURE_HARD_LINKS
    | FEATURE_SNAPSHOTS
    | FEATURE_TREE_CHANGES
    | FEATURE_RECEIVED
    | FEATURE_FORKS
    | FEATURE_POLICIES
    | FEATURE_ACCOUNTS
    | FEATURE_WORKS
    | FEATURE_SNAPSHOTTED;

pub(crate) fn encode_format(label: &str, features: u64) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(FORMAT_MAGIC);
    out.put_u32_le(FORMAT_VERSION);
    out.put_u64_le(features); // features that a program must know to open at all
    out.put_u64_le(0); // features that a program must know to write
    out.put_u16_le(label.len() as u16);
    out.put_slice(label.as_bytes());
    out.freeze()
}

/// The beginning of a label that fits into the superblock, for programs that read it without opening the store.
pub(crate) fn for_superblock(label: &str) -> &str {
    /// Bytes of the field.
    const LABEL_BYTES: usize = 64;
    let label = label.split('\0').next().unwrap_or_default();
    let end = (0..=LABEL_BYTES.min(label.len())).rev().find(|end| label.is_char_boundary(*end));
    end.and_then(|end| label.get(..end)).unwrap_or_default()
}

/// The label, and the features of the store.
pub(crate) fn decode_format(value: &[u8], read_only: bool) -> Result<(String, u64)> {
    let cut = |_| Error::Damaged { what: "format record".into(), detail: "cut short" };
    let Some(mut value) = value.strip_prefix(FORMAT_MAGIC) else {
        return Err(Error::Format("the store holds something else".into()));
    };
    let version = value.try_get_u32_le().map_err(cut)?;
    if version != FORMAT_VERSION {
        return Err(Error::Format(format!("version {version}; this program knows version {FORMAT_VERSION}")));
    }
    let (needed, needed_to_write) =
        (value.try_get_u64_le().map_err(cut)?, value.try_get_u64_le().map_err(cut)?);
    if needed & !KNOWN_FEATURES != 0 || (needed_to_write != 0 && !read_only) {
        return Err(Error::Format(format!(
            "features {needed:#x}/{needed_to_write:#x} that this program does not know"
        )));
    }
    let len = usize::from(value.try_get_u16_le().map_err(cut)?);
    let label =
        value.get(..len).ok_or(Error::Damaged { what: "format record".into(), detail: "cut label" })?;
    Ok((String::from_utf8_lossy(label).into_owned(), needed))
}
