//! The keys of everything: where in the engine an entry, its data and the system's own records live.
//!
//! Key of metadata: volume (u32, big-endian), `M`, path. Key of a data block: volume, `D`, path, block number (u64,
//! big-endian). The path of an entry is its directory's contents prefix, 0x01, name, 0x00; the contents prefix of a
//! directory is that of its parent, 0x02, name, 0x00; that of the root is empty, and so is the root's own path. Names
//! hold neither 0x00 nor `/`, so: the entries of a directory are one run, a subtree is one prefix per region, no entry
//! is a prefix of another, and plain byte order is kept.
//!
//! Behind the subdirectories of the root of a lineage stands what belongs to its linked files (`domain`): 0x03, link
//! id (u64, big-endian) is the path of such a file, 0x04, path of an entry from there says that this entry is a name
//! of one, 0x05, number (u64) that the names have to be counted.
//!
//! A snapshot has a volume of its own with the same keys. In memory the path of what is in one begins with a mark,
//! [`snapshot`], which becomes the volume of the key.
//!
//! Pure functions; uses errors and limits only.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    error::{Error, Result, show},
    limits::MAX_NAME,
};

pub(crate) mod system;

/// Volume number of the live tree. Those of snapshots are from 1 on.
pub(crate) const LIVE: u32 = 0;
/// Snapshots have numbers below this one; a mark with it leads to nothing.
pub(crate) const SNAPSHOTS_END: u32 = u32::MAX - 1;
/// Volume number of the system's own records; no tree.
const SYSTEM: u32 = u32::MAX;

pub(crate) const META: u8 = b'M';
pub(crate) const DATA: u8 = b'D';
pub(crate) const ENTRY: u8 = 0x01;
pub(crate) const CONTENTS: u8 = 0x02;
pub(crate) const LINKED: u8 = 0x03;
const LINK_NAME: u8 = 0x04;
pub(crate) const UNCOUNTED: u8 = 0x05;
/// Bytes that the path of a linked file has behind the contents prefix of the root of its lineage.
const LINKED_BYTES: usize = 1 + 8;
/// Begins the mark of a snapshot, in paths in memory only: no key has it.
const SNAPSHOT_MARK: u8 = 0x06;
pub(crate) const END: u8 = 0x00;
/// Bytes of a mark: its beginning, eight hexadecimal digits, its end.
const MARK_BYTES: usize = 1 + 8 + 1;
/// Bytes of the volume and the region before the path in a key.
pub(crate) const KEY_HEAD_BYTES: usize = 4 + 1;

/// A block number that no block has: under the data prefix of a file, keys from here on are pieces of the map of
/// its blocks (`blockmap`).
pub(crate) const MAP: u64 = 1 << 63;
/// Above the numbers of all pieces of maps: from here on the keys of extended attributes (`attrs`). Under the prefix of
/// a directory, or of anything else without data, there are none but these.
pub(crate) const ATTRS_BEGIN: u64 = 0xa0 << 56;
/// Above the numbers of the keys of extended attributes.
pub(crate) const ATTRS_END: u64 = 0xa1 << 56;
/// Longest encoded path of a new entry, bytes: what is left of the engine's key for a block's key.
const MAX_NEW_PATH_BYTES: usize = pando_db::MAX_KEY - 4 - 1 - 8;
/// Longest encoded path, bytes. An entry without data can have such a path if it was moved or cloned with a tree
/// around it, because the engine then checks only the length of existing keys.
const MAX_PATH_BYTES: usize = pando_db::MAX_KEY - 4 - 1;

/// A name that may become an entry: 1 to 255 bytes, no NUL, no slash, neither `.` nor `..`.
pub(crate) fn check_name(name: &OsStr) -> Result<&[u8]> {
    let bytes = name.as_bytes();
    if bytes.len() > MAX_NAME {
        return Err(Error::NameTooLong(show(name)));
    }
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.iter().any(|b| *b == 0 || *b == b'/') {
        return Err(Error::Invalid(format!("{name:?}: not a name that an entry can have")));
    }
    Ok(bytes)
}

/// The mark of a snapshot: the contents prefix of its root, and the path of that.
pub(crate) fn snapshot(number: u32) -> Vec<u8> {
    let mut mark = vec![SNAPSHOT_MARK];
    mark.extend_from_slice(format!("{number:08x}").as_bytes());
    mark.push(END);
    mark
}

/// The volume that a path is in, and the path in that volume.
fn volume_of(path: &[u8]) -> (u32, &[u8]) {
    let marked = path.split_at_checked(MARK_BYTES).filter(|(mark, _)| mark.first() == Some(&SNAPSHOT_MARK));
    let number =
        |mark: &[u8]| u32::from_str_radix(str::from_utf8(mark.get(1..MARK_BYTES - 1)?).ok()?, 16).ok();
    match marked.and_then(|(mark, rest)| Some((number(mark)?, rest))) {
        Some(found) => found,
        None => (LIVE, path),
    }
}

/// The path, with the mark of its volume, in a key of the tree or of a snapshot; `None` for other keys.
pub(crate) fn path_of(key: &[u8]) -> Option<Vec<u8>> {
    let path = key.get(KEY_HEAD_BYTES..)?;
    match key_volume(key)? {
        SYSTEM => None,
        LIVE => Some(path.to_vec()),
        number => Some([&snapshot(number), path].concat()),
    }
}

/// The volume of a key.
pub(crate) fn key_volume(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.get(..4)?.try_into().ok()?))
}

/// The snapshot whose volume a key is in.
pub(crate) fn snapshot_of(key: &[u8]) -> Option<u32> {
    key_volume(key).filter(|volume| *volume != LIVE && *volume != SYSTEM)
}

/// The prefix of all keys of a volume.
pub(crate) fn volume(number: u32) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// The prefix of the extended attributes with keys of their own, of what has this data prefix.
pub(crate) fn attrs_under(data: &[u8]) -> Bytes {
    let mut key = BytesMut::from(data);
    key.put_u8((ATTRS_BEGIN >> 56) as u8);
    key.freeze()
}

fn extend(path: &mut Vec<u8>, kind: u8, name: &[u8]) -> Result<()> {
    if volume_of(path).1.len() + name.len() + 2 > MAX_PATH_BYTES {
        return Err(Error::NameTooLong(String::from_utf8_lossy(name).into_owned()));
    }
    path.reserve(name.len() + 2);
    path.push(kind);
    path.extend_from_slice(name);
    path.push(END);
    Ok(())
}

fn extended(dir: &[u8], kind: u8, name: &[u8]) -> Result<Vec<u8>> {
    let mut path = Vec::with_capacity(dir.len() + name.len() + 2);
    path.extend_from_slice(dir);
    extend(&mut path, kind, name)?;
    Ok(path)
}

/// Makes the contents prefix `dir` that of the directory `name` in it.
pub(crate) fn enter(dir: &mut Vec<u8>, name: &[u8]) -> Result<()> {
    extend(dir, CONTENTS, name)
}

/// Path of the entry of the directory with this contents prefix, in which its own name begins at `from`.
pub(crate) fn entry_of(contents: &[u8], from: usize) -> Vec<u8> {
    let mut entry = contents.to_vec();
    if let Some(kind) = entry.get_mut(from) {
        *kind = ENTRY;
    }
    entry
}

/// Path of the entry `name` in the directory with contents prefix `dir`.
pub(crate) fn entry(dir: &[u8], name: &[u8]) -> Result<Vec<u8>> {
    extended(dir, ENTRY, name)
}

/// The path of a new entry: it must be so short that the keys of its data are not too long.
pub(crate) fn new_entry(dir: &[u8], name: &[u8]) -> Result<Vec<u8>> {
    let entry = entry(dir, name)?;
    if entry.len() > MAX_NEW_PATH_BYTES {
        return Err(Error::NameTooLong(String::from_utf8_lossy(name).into_owned()));
    }
    Ok(entry)
}

/// Contents prefix of the directory `name` in the directory with contents prefix `dir`.
pub(crate) fn contents(dir: &[u8], name: &[u8]) -> Result<Vec<u8>> {
    extended(dir, CONTENTS, name)
}

fn numbered(dir: &[u8], kind: u8, number: u64) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + LINKED_BYTES);
    path.extend_from_slice(dir);
    path.push(kind);
    path.extend_from_slice(&number.to_be_bytes());
    path
}

/// Path of the linked file `id` in the lineage whose root has the contents prefix `root`.
pub(crate) fn linked(root: &[u8], id: u64) -> Vec<u8> {
    numbered(root, LINKED, id)
}

/// The path of a new linked file: it must be so short that the keys of its data are not too long.
pub(crate) fn new_linked(root: &[u8], id: u64) -> Result<Vec<u8>> {
    match root.len() + LINKED_BYTES > MAX_NEW_PATH_BYTES {
        true => Err(Error::NameTooLong(format!("linked file {id}"))),
        false => Ok(linked(root, id)),
    }
}

/// Prefix of the paths of all linked files in the lineage whose root has the contents prefix `root`.
pub(crate) fn all_linked(root: &[u8]) -> Vec<u8> {
    [root, &[LINKED]].concat()
}

/// The link id at the end of a key that begins with `prefix`, of [`all_linked`].
pub(crate) fn link_id_of(prefix: &[u8], key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.strip_prefix(prefix)?.try_into().ok()?))
}

/// What says, in the lineage whose root has the contents prefix `root`, that the entry with this path, or one that
/// begins so, is a name of a linked file. `None` if it lies outside of the root.
pub(crate) fn link_name(root: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let inside = path.strip_prefix(root)?;
    Some([root, &[LINK_NAME], inside].concat())
}

/// What says that the names of linked files have to be counted in the lineage whose root has the contents prefix
/// `root`.
pub(crate) fn uncounted(root: &[u8], number: u64) -> Vec<u8> {
    numbered(root, UNCOUNTED, number)
}

/// Prefix of all that says so.
pub(crate) fn all_uncounted(root: &[u8]) -> Vec<u8> {
    [root, &[UNCOUNTED]].concat()
}

/// The prefixes of all keys of what is in a directory, without those of linked files in the lineage that it may root.
pub(crate) fn without_links(dir: &[u8]) -> [Bytes; 4] {
    let (entries, dirs) = ([dir, &[ENTRY]].concat(), [dir, &[CONTENTS]].concat());
    [meta(&entries), meta(&dirs), data(&entries), data(&dirs)]
}

fn key(volume: u32, region: u8, path: &[u8]) -> Bytes {
    let mut key = BytesMut::with_capacity(5 + path.len());
    key.put_u32(volume);
    key.put_u8(region);
    key.put_slice(path);
    key.freeze()
}

/// Key, or key prefix, in the metadata region.
pub(crate) fn meta(path: &[u8]) -> Bytes {
    let (volume, path) = volume_of(path);
    key(volume, META, path)
}

/// Key prefix in the data region.
pub(crate) fn data(path: &[u8]) -> Bytes {
    let (volume, path) = volume_of(path);
    key(volume, DATA, path)
}

/// Data prefix of what has its record under the key `meta`, which is no orphan.
pub(crate) fn data_of(meta: &[u8]) -> Bytes {
    key(key_volume(meta).unwrap_or(LIVE), DATA, meta.get(KEY_HEAD_BYTES..).unwrap_or_default())
}

/// Key of the record of what has the data prefix `data`, which is no orphan.
pub(crate) fn meta_of(data: &[u8]) -> Bytes {
    key(key_volume(data).unwrap_or(LIVE), META, data.get(KEY_HEAD_BYTES..).unwrap_or_default())
}

/// Key of block number `block` under the data prefix of a file; or of a piece of its map (`blockmap`).
pub(crate) fn block(data: &[u8], block: u64) -> Bytes {
    let mut key = BytesMut::with_capacity(data.len() + 8);
    key.put_slice(data);
    key.put_u64(block);
    key.freeze()
}

/// The data prefix of the directory in which the file with this data prefix is. `None` if it is none of a file.
pub(crate) fn data_of_directory(data: &[u8]) -> Option<&[u8]> {
    let dir = directory_of(data.get(KEY_HEAD_BYTES..)?);
    data.get(..KEY_HEAD_BYTES + dir.len())
}

/// The first key behind all that begin with `prefix`, if there is one.
pub(crate) fn behind(prefix: &[u8]) -> Option<Bytes> {
    let mut key = BytesMut::from(prefix);
    while let Some(last) = key.last_mut() {
        if *last < u8::MAX {
            *last += 1;
            return Some(key.freeze());
        }
        key.truncate(key.len() - 1);
    }
    None
}

/// The block number at the end of a key under the data prefix of a file.
pub(crate) fn block_of(data: &[u8], key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(key.strip_prefix(data)?.try_into().ok()?))
}

/// Bounds of the entries of a directory in the metadata region, from just behind the name
/// `after` (all of them if `None`).
pub(crate) fn listing(dir: &[u8], after: Option<&[u8]>) -> (Bytes, Bytes) {
    let mut hi = BytesMut::from(&meta(dir)[..]);
    let mut lo = hi.clone();
    hi.put_u8(CONTENTS);
    lo.put_u8(ENTRY);
    if let Some(name) = after {
        lo.put_slice(name);
        // The least key above the entry itself: entries end in 0x00 and none continues it.
        lo.put_slice(&[END, 0]);
    }
    (lo.freeze(), hi.freeze())
}

/// Bounds of the entries of a directory from the name `least`, which need not be one, to below the name `above`.
pub(crate) fn listing_between(dir: &[u8], least: &[u8], above: Option<&[u8]>) -> (Bytes, Bytes) {
    let (lo, hi) = listing(dir, None);
    let at = |name: &[u8]| Bytes::from([&lo[..], name].concat());
    (at(least), above.map_or(hi, at))
}

/// The name in a key that a scan of [`listing`] of the directory `dir` gave.
pub(crate) fn name_of<'a>(dir: &[u8], key: &'a [u8]) -> Option<&'a [u8]> {
    let rest = key.get(KEY_HEAD_BYTES + volume_of(dir).1.len()..)?;
    match rest.split_first()? {
        (&ENTRY, name) => name.strip_suffix(&[END]).filter(|n| !n.is_empty() && !n.contains(&END)),
        _ => None,
    }
}

/// A key taken apart, of the tree or of a snapshot ([`snapshot_of`]).
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed<'a> {
    /// The record of the entry with these names from the root; the root's has none.
    Meta(Vec<&'a [u8]>),
    /// A block of the entry with these names.
    Data(Vec<&'a [u8]>, u64),
    /// The record of a linked file, by the names of the root of its lineage.
    Linked(Vec<&'a [u8]>, u64),
    /// A block of a linked file.
    LinkedData(Vec<&'a [u8]>, u64, u64),
    /// Says that an entry is a name of a linked file: names of the root, and the path of the entry from there.
    LinkName(Vec<&'a [u8]>, &'a [u8]),
    /// Says that names have to be counted in the lineage with this root.
    Uncounted(Vec<&'a [u8]>, u64),
    /// A record of the system, with its tag.
    System(u8),
}

/// Takes a key apart; `None` if it is none of ours.
pub(crate) fn parse(key: &[u8]) -> Option<Parsed<'_>> {
    parse_below(key, 0)
}

/// Parses a path that begins with a known contents prefix of `known` bytes: the names are those behind it.
pub(crate) fn parse_below(key: &[u8], known: usize) -> Option<Parsed<'_>> {
    let (volume, rest) = key.split_at_checked(4)?;
    let (&region, path) = rest.split_first().and_then(|(region, path)| Some((region, path.get(known..)?)))?;
    match (u32::from_be_bytes(volume.try_into().ok()?), region) {
        (SYSTEM, tag) => Some(Parsed::System(tag)),
        (_, META) if path.is_empty() && known == 0 => Some(Parsed::Meta(Vec::new())),
        (_, META) => {
            let (dirs, rest) = directories(path)?;
            match rest.split_first()? {
                (&LINKED, id) => Some(Parsed::Linked(dirs, u64::from_be_bytes(id.try_into().ok()?))),
                (&LINK_NAME, inside) => names(inside).map(|_| Parsed::LinkName(dirs, inside)),
                (&UNCOUNTED, n) => Some(Parsed::Uncounted(dirs, u64::from_be_bytes(n.try_into().ok()?))),
                _ => Some(Parsed::Meta(names(path)?)),
            }
        }
        (_, DATA) => {
            let (path, block) = path.split_at_checked(path.len().checked_sub(8)?)?;
            let block = u64::from_be_bytes(block.try_into().ok()?);
            if path.is_empty() && known == 0 {
                // The root has attributes, and no data.
                return (block >= ATTRS_BEGIN).then(|| Parsed::Data(Vec::new(), block));
            }
            let (dirs, rest) = directories(path)?;
            match rest.split_first()? {
                (&LINKED, id) => {
                    Some(Parsed::LinkedData(dirs, u64::from_be_bytes(id.try_into().ok()?), block))
                }
                _ => Some(Parsed::Data(names(path)?, block)),
            }
        }
        _ => None,
    }
}

/// The names of the directories that a path begins with, and what follows.
fn directories(mut path: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let mut names = Vec::new();
    while let Some((&CONTENTS, rest)) = path.split_first() {
        let (name, rest) = rest.split_at_checked(rest.iter().position(|b| *b == END)?)?;
        if name.is_empty() || name.contains(&b'/') {
            return None;
        }
        names.push(name);
        path = rest.get(1..)?;
    }
    Some((names, path))
}

/// The names in the path of an entry.
pub(crate) fn names(mut path: &[u8]) -> Option<Vec<&[u8]>> {
    let mut names = Vec::new();
    loop {
        let (&kind, rest) = path.split_first()?;
        let (name, rest) = rest.split_at_checked(rest.iter().position(|b| *b == END)?)?;
        let rest = rest.get(1..)?;
        names.push(name);
        match kind {
            _ if name.is_empty() || name.contains(&b'/') => return None,
            ENTRY if rest.is_empty() => return Some(names),
            CONTENTS => path = rest,
            _ => return None,
        }
    }
}

/// Contents prefix of the directory with the path `inside` (of [`parse`]d form) from the directory with
/// contents prefix `dir`.
pub(crate) fn contents_of(dir: &[u8], inside: &[u8]) -> Option<Vec<u8>> {
    let mut contents = [dir, inside].concat();
    let last = dir.len() + directory_of(inside).len();
    *contents.get_mut(last).filter(|kind| **kind == ENTRY)? = CONTENTS;
    Some(contents)
}

/// Contents prefix of the root in a path of the kind that [`parse`] gives as one of linked files, of which the first
/// `known` bytes are a contents prefix.
pub(crate) fn root_below(path: &[u8], known: usize) -> Option<&[u8]> {
    let (_, rest) = directories(path.get(known..)?)?;
    path.get(..path.len() - rest.len())
}

/// Whether a path, of the kind that [`parse`] takes, is one of linked files, of their names, or of marks of them.
pub(crate) fn is_of_links(path: &[u8]) -> bool {
    directories(path).is_some_and(|(_, rest)| matches!(rest.first(), Some(&(LINKED | LINK_NAME | UNCOUNTED))))
}

/// The first path behind all of these in the lineage whose root has the contents prefix `root`.
pub(crate) fn behind_links(root: &[u8]) -> Vec<u8> {
    [root, &[UNCOUNTED + 1]].concat()
}

/// Path of the entry of the directory with this contents prefix.
pub(crate) fn entry_of_contents(contents: &[u8]) -> Option<Vec<u8>> {
    let above = directory_of(contents);
    if above.len() == contents.len() || contents.first() == Some(&SNAPSHOT_MARK) && above.is_empty() {
        return Some(contents.to_vec());
    }
    Some(entry_of(contents, above.len()))
}

/// Contents prefix of the directory that holds the entry with this path (of [`parse`]d form).
pub(crate) fn directory_of(entry: &[u8]) -> &[u8] {
    let name = entry.strip_suffix(&[END]).unwrap_or(entry);
    let start = name.iter().rposition(|b| *b == END).map_or(0, |end| end + 1);
    entry.get(..start).unwrap_or_default()
}

/// The next level of the contents prefix `dir` behind its first `from` bytes, which are a contents prefix themselves:
/// the path of the entry, and the contents prefix of that directory.
pub(crate) fn next_level(dir: &[u8], from: usize) -> Option<(Vec<u8>, &[u8])> {
    let rest = dir.get(from..)?;
    let end = from + rest.iter().position(|b| *b == END)? + 1;
    let contents = dir.get(..end)?;
    let mut entry = contents.to_vec();
    *entry.get_mut(from).filter(|kind| **kind == CONTENTS)? = ENTRY;
    Some((entry, contents))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_a_directory_are_one_run_and_subtrees_are_prefixes() {
        let root: &[u8] = b"";
        let a = contents(root, b"a").unwrap();
        let mut keys = [
            ("a", entry(root, b"a").unwrap()),
            ("ab", entry(root, b"ab").unwrap()),
            ("a\x01", entry(root, b"a\x01").unwrap()),
            ("a/x", entry(&a, b"x").unwrap()),
            ("a/y/z", entry(&contents(&a, b"y").unwrap(), b"z").unwrap()),
        ];
        keys.sort_by(|x, y| x.1.cmp(&y.1));
        let order: Vec<_> = keys.iter().map(|k| k.0).collect();
        assert_eq!(order, ["a", "a\x01", "ab", "a/x", "a/y/z"]);
        let below: Vec<_> = keys.iter().filter(|k| k.1.starts_with(&a)).map(|k| k.0).collect();
        assert_eq!(below, ["a/x", "a/y/z"]);
    }

    #[test]
    fn a_listing_starts_behind_the_name_and_ends_before_subtrees() {
        let dir = contents(b"", b"d").unwrap();
        let (lo, hi) = listing(&dir, Some(b"m"));
        for (name, inside) in
            [(&b"l"[..], false), (b"m", false), (b"m\x01", true), (b"ma", true), (b"z", true)]
        {
            let key = meta(&entry(&dir, name).unwrap());
            assert_eq!(key >= lo && key < hi, inside, "{name:?}");
            assert_eq!(name_of(&dir, &key), Some(name));
        }
        let deep = meta(&entry(&contents(&dir, b"n").unwrap(), b"x").unwrap());
        assert!(deep >= hi);
        assert_eq!(name_of(&dir, &deep), None);
    }

    #[test]
    fn keys_in_snapshots_are_those_of_the_tree_in_another_volume() {
        let mark = snapshot(0xabc);
        let dir = contents(&mark, b"a").unwrap();
        let file = entry(&dir, b"c").unwrap();
        let live = entry(&contents(b"", b"a").unwrap(), b"c").unwrap();
        for (ours, theirs) in
            [(meta(&file), meta(&live)), (data(&file), data(&live)), (meta(&mark), meta(b""))]
        {
            assert_eq!((&ours[4..], &ours[..4]), (&theirs[4..], &[0, 0, 0xa, 0xbc][..]));
            assert_eq!((snapshot_of(&ours), snapshot_of(&theirs)), (Some(0xabc), None));
        }
        assert_eq!(name_of(&dir, &meta(&file)), Some(&b"c"[..]));
        assert_eq!(directory_of(&file), dir);
        assert_eq!(path_of(&meta(&file)), Some(file.clone()));
        assert_eq!(data_of(&meta(&file)), data(&file));
        assert_eq!(meta_of(&data(&file)), meta(&file));
        assert_eq!(next_level(&dir, mark.len()), Some((entry(&mark, b"a").unwrap(), &dir[..])));
        assert_eq!(entry_of(&dir, mark.len()), entry(&mark, b"a").unwrap());
        assert_eq!(system::snapshot_number(&system::snapshot(7, 9)), Some(9));
        assert_eq!(system::family_source(&system::family(7 << 40)), Some(7 << 40));
    }

    #[test]
    fn keys_are_taken_apart_as_they_were_made() {
        let dir = contents(&contents(b"", b"a").unwrap(), b"b\x01").unwrap();
        let file = entry(&dir, b"c").unwrap();
        assert_eq!(parse(&meta(b"")), Some(Parsed::Meta(vec![])));
        assert_eq!(parse(&meta(&file)), Some(Parsed::Meta(vec![b"a", b"b\x01", b"c"])));
        assert_eq!(parse(&block(&data(&file), 9)), Some(Parsed::Data(vec![b"a", b"b\x01", b"c"], 9)));
        assert_eq!(parse(&system::format()), Some(Parsed::System(b'F')));
        assert_eq!(directory_of(&file), dir);
        let inside = entry(b"", b"c").unwrap();
        assert_eq!(contents_of(&dir, &inside), contents(&dir, b"c").ok());
        assert_eq!(contents_of(b"", &file), contents(&dir, b"c").ok());
        assert_eq!(contents_of(&dir, b""), None);
        assert_eq!(directory_of(&entry(b"", b"x").unwrap()), b"");
        let (first, above) = next_level(&dir, 0).unwrap();
        assert_eq!((&first[..], above), (&b"\x01a\0"[..], &b"\x02a\0"[..]));
        assert_eq!(next_level(&dir, above.len()).unwrap().1, dir);
        for bad in
            [&b""[..], b"\0\0\0\0", b"\0\0\0\0Mx", b"\0\0\0\0M\x01\0", b"\0\0\0\0M\x01a\0b", b"\0\0\0\x01Mx"]
        {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        assert_eq!(parse(&data(&file)), None, "a block number is missing");
    }

    #[test]
    fn keys_of_linked_files_stand_behind_those_of_the_tree_and_are_taken_apart() {
        let root = contents(b"", b"r").unwrap();
        let file = entry(&contents(&root, b"d").unwrap(), b"f").unwrap();
        let path = linked(&root, 7);
        assert_eq!(parse(&meta(&path)), Some(Parsed::Linked(vec![b"r"], 7)));
        assert_eq!(parse(&block(&data(&path), 9)), Some(Parsed::LinkedData(vec![b"r"], 7, 9)));
        assert_eq!(link_id_of(&all_linked(&root), &path), Some(7));
        let name = link_name(&root, &file).unwrap();
        assert_eq!(parse(&meta(&name)), Some(Parsed::LinkName(vec![b"r"], &file[root.len()..])));
        assert_eq!(parse(&meta(&uncounted(&root, 3))), Some(Parsed::Uncounted(vec![b"r"], 3)));
        assert!(file < path && path < name && name < uncounted(&root, 0));
        assert!([&path, &name].iter().all(|p| root_below(p, 0) == Some(&root)));
        assert!(link_name(&contents(b"", b"other").unwrap(), &file).is_none());
        let all = listing(&root, None);
        assert!(all.1 <= meta(&path) && meta(&path).starts_with(&meta(&root)));
        for bad in [&path[..path.len() - 1], &all_linked(&root), &[&root[..], b"\x04\x01"].concat()] {
            assert_eq!(parse(&meta(bad)), None);
        }
    }

    #[test]
    fn names_that_cannot_be() {
        for name in ["", ".", "..", "a/b", "a\0b"] {
            assert_eq!(check_name(OsStr::new(name)).unwrap_err().errno(), 22, "{name:?}");
        }
        assert_eq!(check_name(OsStr::new(&"x".repeat(256))).unwrap_err().errno(), 36);
        assert!(check_name(OsStr::new(&"x".repeat(255))).is_ok());
        assert!(check_name(OsStr::from_bytes(b"\x01\xff\n")).is_ok());
    }

    #[test]
    fn a_path_over_the_key_limit_is_refused() {
        let dir = vec![7; MAX_PATH_BYTES - 10];
        assert!(entry(&dir, b"12345678").is_ok());
        assert_eq!(entry(&dir, b"123456789").unwrap_err().errno(), 36);
        // What is moved may be a little longer than what is made.
        assert!(new_entry(&dir[8..], b"12345678").is_ok());
        assert_eq!(new_entry(&dir[8..], b"123456789").unwrap_err().errno(), 36);
    }
}
