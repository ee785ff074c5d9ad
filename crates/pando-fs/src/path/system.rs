//! Keys of the system region. Each begins with a tag of its own.
//!
//! Pure functions; uses what keys are made of.

use bytes::Bytes;

use crate::path::{DATA, KEY_HEAD_BYTES, META, SYSTEM, key};

fn tagged(tag: u8, rest: &[u8]) -> Bytes {
    key(SYSTEM, tag, rest)
}

/// The record of the format: version, features, label.
pub(crate) fn format() -> Bytes {
    tagged(b'F', b"")
}

/// The counter `which`: first number not yet handed out.
pub(crate) fn counter(which: u8) -> Bytes {
    tagged(b'C', &[which])
}

/// Lineage of what the clone id `clone` roots in lineage `parent`.
pub(crate) fn lineage(parent: u32, clone: u64) -> Bytes {
    let mut rest = [0; 12];
    rest[..4].copy_from_slice(&parent.to_be_bytes());
    rest[4..].copy_from_slice(&clone.to_be_bytes());
    tagged(b'L', &rest)
}

/// All rows of the table of lineages.
pub(crate) fn lineage_rows() -> Bytes {
    tagged(b'L', b"")
}

/// The rows of clones in lineage `parent`.
pub(crate) fn lineages_in(parent: u32) -> Bytes {
    tagged(b'L', &parent.to_be_bytes())
}

/// Says that numbers of a lineage may be in use outside of its root.
pub(crate) fn tainted(lineage: u32) -> Bytes {
    tagged(b'E', &lineage.to_be_bytes())
}

/// The prefix of all of these ([`tainted`]).
pub(crate) fn taints() -> Bytes {
    tagged(b'E', b"")
}

/// All orphans.
pub(crate) fn orphans() -> Bytes {
    tagged(b'O', b"")
}

/// All keys of one orphan.
pub(crate) fn orphan(ino: u64) -> Bytes {
    tagged(b'O', &ino.to_be_bytes())
}

/// The number in a key of [`orphan`].
pub(crate) fn orphan_number(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(KEY_HEAD_BYTES..)?.first_chunk().copied()?))
}

/// Metadata key of an orphan.
pub(crate) fn orphan_meta(ino: u64) -> Bytes {
    [&orphan(ino)[..], &[META]].concat().into()
}

/// Data prefix of an orphan.
pub(crate) fn orphan_data(ino: u64) -> Bytes {
    [&orphan(ino)[..], &[DATA]].concat().into()
}

/// Where names of linked files have to be counted: under a number the contents prefix of the
/// root of the lineage, as it was then.
pub(crate) fn to_count(number: u64) -> Bytes {
    tagged(b'N', &number.to_be_bytes())
}

/// Says that marks of names to be counted are to be looked for in all of the tree, because directories with such have
/// been moved or copied. Its value is the time, so that two of them differ. Behind all of [`to_count`].
pub(crate) fn marks_to_find() -> Bytes {
    to_count(u64::MAX)
}

/// All of these.
pub(crate) fn all_to_count() -> Bytes {
    tagged(b'N', b"")
}

/// Says that in a snapshot, or the origin of a fork, with this number linked files may lie that have no name there: in
/// the link area of the root whose contents prefix in that volume is `inside`.
pub(crate) fn to_strip(number: u32, inside: &[u8]) -> Bytes {
    tagged(b'V', &[&number.to_be_bytes()[..], inside].concat())
}

/// All of these.
pub(crate) fn all_to_strip() -> Bytes {
    tagged(b'V', b"")
}

/// The number and the contents prefix in a key of [`to_strip`].
pub(crate) fn strip_parts(key: &[u8]) -> Option<(u32, &[u8])> {
    let (number, inside) = key.get(KEY_HEAD_BYTES..)?.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*number), inside))
}

/// When a tree was cloned last.
pub(crate) fn cloned() -> Bytes {
    tagged(b'T', b"")
}

/// A part of the names that were removed lately.
pub(crate) fn removed_names(slot: u8) -> Bytes {
    tagged(b'P', &[slot])
}

/// The family of snapshots of the directory with this inode number.
pub(crate) fn family(source: u64) -> Bytes {
    tagged(b'S', &source.to_be_bytes())
}

/// All families.
pub(crate) fn families() -> Bytes {
    tagged(b'S', b"")
}

/// The inode number in a key of [`family`].
pub(crate) fn family_source(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.get(KEY_HEAD_BYTES..)?.try_into().ok()?))
}

/// What is known of a snapshot of a family.
pub(crate) fn snapshot(family: u64, number: u32) -> Bytes {
    [&snapshots(family)[..], &number.to_be_bytes()].concat().into()
}

/// All snapshots of a family, by number.
pub(crate) fn snapshots(family: u64) -> Bytes {
    tagged(b'R', &[&family.to_be_bytes()[..], &[0]].concat())
}

/// The number in a key of [`snapshot`].
pub(crate) fn snapshot_number(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.get(KEY_HEAD_BYTES + 8 + 1..)?.try_into().ok()?))
}

/// The number of the snapshot of a family that has this name.
pub(crate) fn snapshot_name(family: u64, name: &[u8]) -> Bytes {
    tagged(b'R', &[&family.to_be_bytes()[..], &[1], name].concat())
}

/// The key of the fork with this contents prefix; also the prefix of the keys of all forks below.
pub(crate) fn fork(contents: &[u8]) -> Bytes {
    tagged(b'K', contents)
}

/// All forks.
pub(crate) fn forks() -> Bytes {
    tagged(b'K', b"")
}

/// The contents prefix in a key of [`fork`].
pub(crate) fn fork_contents(key: &[u8]) -> Option<&[u8]> {
    key.get(KEY_HEAD_BYTES..)
}

/// Says that the fork with this number is one of the directory with this contents prefix.
pub(crate) fn forked(contents: &[u8], number: u32) -> Bytes {
    tagged(b'W', &[contents, &number.to_be_bytes()].concat())
}

/// The prefix of such keys ([`forked`]) of the directory with this contents prefix and of all below it.
pub(crate) fn forked_below(contents: &[u8]) -> Bytes {
    tagged(b'W', contents)
}

/// The contents prefix and the number in a key of [`forked`].
pub(crate) fn forked_parts(key: &[u8]) -> Option<(&[u8], u32)> {
    let (contents, number) = key.get(KEY_HEAD_BYTES..)?.split_last_chunk::<4>()?;
    Some((contents, u32::from_be_bytes(*number)))
}

/// The key of the policy of the directory with this contents prefix; also the prefix of the keys of all below.
pub(crate) fn policy(contents: &[u8]) -> Bytes {
    tagged(b'A', contents)
}

/// The contents prefix in a key of [`policy`].
pub(crate) fn policy_contents(key: &[u8]) -> Option<&[u8]> {
    key.get(KEY_HEAD_BYTES..)
}

/// Says that the directory with this contents prefix has snapshots; also the prefix of such keys of all below.
pub(crate) fn snapshotted(contents: &[u8]) -> Bytes {
    tagged(b'B', contents)
}

/// The contents prefix in a key of [`snapshotted`].
pub(crate) fn snapshotted_contents(key: &[u8]) -> Option<&[u8]> {
    key.get(KEY_HEAD_BYTES..)
}

/// Says that a volume with this number is one that a merge works in.
pub(crate) fn work(number: u32) -> Bytes {
    tagged(b'G', &number.to_be_bytes())
}

/// All of these.
pub(crate) fn works() -> Bytes {
    tagged(b'G', b"")
}

/// The number in a key of [`work`].
pub(crate) fn work_number(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.get(KEY_HEAD_BYTES..)?.try_into().ok()?))
}

/// Where the keys of one prefix wait while two are exchanged within one batch; empty between batches.
pub(crate) fn exchange(slot: u8) -> Bytes {
    tagged(b'X', &[slot])
}

/// The same for one of the prefixes of one of many moves that are made in one batch.
pub(crate) fn aside(number: u32, slot: u8) -> Bytes {
    let [a, b, c, d] = number.to_be_bytes();
    tagged(b'X', &[u8::MAX, a, b, c, d, slot])
}
