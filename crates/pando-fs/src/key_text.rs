//! Bounds and pieces of keys as text, for tools that show which keys a node of the engine has.
//!
//! A bound between two nodes need not be a whole key, and below an edge keys are stored without the prefix that the
//! edge has removed; so this describes as much as the bytes say. Two different bounds may look the same.
//! [`crate::describe_key`] describes whole keys. Pure functions; knows the encoding of `path` and uses nothing else.

use std::ffi::OsString;

use crate::{
    limits::BLOCK_SIZE,
    path::{self, CONTENTS, DATA, END, ENTRY, LINKED, META, UNCOUNTED},
};

/// The path from the root of the directory with this contents prefix, byte for byte.
pub(crate) fn directory_path(contents: &[u8]) -> OsString {
    use std::os::unix::ffi::OsStringExt;
    let entry = path::entry_of_contents(contents).unwrap_or_default();
    let names = path::names(&entry).unwrap_or_default().join(&b'/');
    OsString::from_vec([b"/", &names[..]].concat())
}

/// What a key stands for, for people: a path of the tree, or the name of a system record.
pub fn describe_key(key: &[u8]) -> String {
    match path::snapshot_of(key) {
        Some(number) => format!("snapshot {number}:{}", describe(key)),
        None => describe(key),
    }
}

fn describe(key: &[u8]) -> String {
    match path::parse(key) {
        Some(path::Parsed::Meta(parts)) => slashed(&parts),
        Some(path::Parsed::Data(parts, block)) if block >= path::ATTRS_BEGIN => {
            format!("{} (extended attributes)", slashed(&parts))
        }
        Some(path::Parsed::Data(parts, block)) if block >= path::MAP => {
            format!("{} (map of its blocks)", slashed(&parts))
        }
        Some(path::Parsed::Data(parts, block)) => {
            format!("{} (data from byte {})", slashed(&parts), block.saturating_mul(BLOCK_SIZE))
        }
        Some(path::Parsed::Linked(parts, id)) => format!("{} (linked file {id})", slashed(&parts)),
        Some(path::Parsed::LinkedData(parts, id, block)) if block >= path::ATTRS_BEGIN => {
            format!("{} (extended attributes of linked file {id})", slashed(&parts))
        }
        Some(path::Parsed::LinkedData(parts, id, block)) if block >= path::MAP => {
            format!("{} (map of the blocks of linked file {id})", slashed(&parts))
        }
        Some(path::Parsed::LinkedData(parts, id, block)) => {
            let from = block.saturating_mul(BLOCK_SIZE);
            format!("{} (data of linked file {id} from byte {from})", slashed(&parts))
        }
        Some(path::Parsed::LinkName(parts, inside)) => {
            let inside = path::names(inside).unwrap_or_default();
            format!("{} (index of names of linked files)", slashed(&[parts, inside].concat()))
        }
        Some(path::Parsed::Uncounted(parts, _)) => format!("{} (links to be counted)", slashed(&parts)),
        Some(path::Parsed::System(tag)) => format!("system record {:?}", char::from(tag)),
        None => format!("unknown key {}", key.escape_ascii()),
    }
}

/// The path of an entry, or a part of one, for people: with a slash before each name.
pub(crate) fn describe_path(path: &[u8]) -> String {
    path::names(path).map_or_else(|| format!("/{}", path.escape_ascii()), |parts| slashed(&parts))
}

fn slashed(parts: &[&[u8]]) -> String {
    let mut out = String::new();
    for part in parts {
        out.push('/');
        out.push_str(&String::from_utf8_lossy(part));
    }
    if out.is_empty() { "/".into() } else { out }
}

/// A key, or the beginning of one: `meta:/src/lib.rs`, `data:/src/lib.rs[3]` (block 3), `meta:/src/` (what
/// is in a directory), `meta:/src/li…` (entries that begin so). `None` if it is none of ours.
pub fn name_key(key: &[u8]) -> Option<String> {
    if let Some(number) = path::snapshot_of(key) {
        let live = [&[0; 4], key.get(4..)?].concat();
        return Some(format!("snapshot:{number}:{}", name_key(&live)?));
    }
    let (volume, rest) = key.split_at_checked(4)?;
    let system = volume == [0xff; 4];
    match rest.split_first() {
        None if system => Some("system:".into()),
        None => Some("tree:".into()),
        Some((tag, [])) if system => Some(format!("system:{}", tag.escape_ascii())),
        Some((tag, rest)) if system => Some(format!("system:{}:{}", tag.escape_ascii(), hex(rest))),
        Some((&META, path)) => Some(format!("meta:{}", walk(path, false)?)),
        Some((&DATA, path)) => Some(format!("data:{}", walk(path, true)?)),
        // The bound behind a region.
        Some((tag, [])) => Some(format!("tree:{}", tag.escape_ascii())),
        Some(_) => None,
    }
}

/// What is left of a key after its beginning was taken off: `…/lib.rs`. `None` if it does not look so.
pub fn name_piece(piece: &[u8]) -> Option<String> {
    match piece.first()? {
        &ENTRY | &CONTENTS => walk(piece, true).or_else(|| walk(piece, false)).map(|path| format!("…{path}")),
        _ => None,
    }
}

/// A path as far as it goes.
fn walk(mut path: &[u8], blocks: bool) -> Option<String> {
    let mut out = String::from("/");
    loop {
        let Some((&kind, rest)) = path.split_first() else { return Some(out) };
        if (LINKED..=UNCOUNTED).contains(&kind) {
            return Some(linked(out, kind, rest));
        }
        if kind != ENTRY && kind != CONTENTS {
            return None;
        }
        let Some(end) = rest.iter().position(|byte| *byte == END) else {
            out += &show(rest);
            out += if kind == CONTENTS { "…/" } else { "…" };
            return Some(out);
        };
        let (name, rest) = (rest.get(..end)?, rest.get(end + 1..)?);
        out += &show(name);
        if kind == ENTRY {
            return match rest {
                [] => Some(out),
                _ if !blocks || rest.len() > 8 => None,
                _ => {
                    let number = rest.try_into().map(u64::from_be_bytes);
                    out += &number.map_or_else(|_| "[…]".into(), |block| format!("[{block}]"));
                    Some(out)
                }
            };
        }
        out.push('/');
        path = rest;
    }
}

/// What belongs to the linked files of a lineage, behind the path of its root.
fn linked(root: String, kind: u8, rest: &[u8]) -> String {
    let what = match kind {
        LINKED => "linked",
        UNCOUNTED => "uncounted",
        _ => match walk(rest, false) {
            Some(inside) => return format!("{root}(name){inside}"),
            None => "name",
        },
    };
    let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes);
    match rest.split_at_checked(8).map(|(id, rest)| (number(id), rest, number(rest))) {
        Some((Ok(id), _, Ok(block))) => format!("{root}({what} {id})[{block}]"),
        Some((Ok(id), [], _)) => format!("{root}({what} {id})"),
        Some((Ok(id), ..)) => format!("{root}({what} {id})[…]"),
        _ => format!("{root}({what} …"),
    }
}

/// A name, with what is not to be printed escaped.
fn show(name: &[u8]) -> String {
    let mut out = String::new();
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
        }
        out += &chunk.invalid().escape_ascii().to_string();
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn whole_keys_and_their_beginnings_have_names() {
        let dir = path::contents(&path::contents(b"", b"a").unwrap(), b"b\x01\xff").unwrap();
        let file = path::entry(&dir, "ä".as_bytes()).unwrap();
        let name = |key: &[u8]| name_key(key).unwrap();
        assert_eq!(name(&path::meta(b"")), "meta:/");
        assert_eq!(name(&path::meta(&dir)), "meta:/a/b\\u{1}\\xff/");
        assert_eq!(name(&path::meta(&file)), "meta:/a/b\\u{1}\\xff/ä");
        let block = path::block(&path::data(&file), 9);
        assert!(name(&block).ends_with("/ä[9]"));
        assert!(name(&block[..block.len() - 1]).ends_with("/ä[…]"));
        assert_eq!(name(&path::meta(b"\x01fi")), "meta:/fi…");
        assert_eq!(name(&path::meta(b"\x02di")), "meta:/di…/");
        assert_eq!(name(b"\0\0\0\0"), "tree:");
        assert_eq!(name(b"\0\0\0\0N"), "tree:N");
        assert_eq!(name(&path::system::format()), "system:F");
        assert_eq!(name(&path::system::orphan_meta(5)), "system:O:00000000000000054d");
        assert_eq!(name_piece(&file).unwrap(), "…/a/b\\u{1}\\xff/ä");
        assert_eq!(name_piece(b"\x01x\0\0\0\0\0\0\0\0\x07").unwrap(), "…/x[7]");
        let of = |path: &[u8]| name(&path::meta(path));
        assert_eq!(of(&path::linked(&dir[..3], 7)), "meta:/a/(linked 7)");
        assert_eq!(name(&path::block(&path::data(&path::linked(b"", 7)), 9)), "data:/(linked 7)[9]");
        assert_eq!(of(&path::link_name(b"", b"\x01x\0").unwrap()), "meta:/(name)/x");
        assert_eq!(of(b"\x03\0\0"), "meta:/(linked …");
        assert_eq!(name(&path::meta(&path::entry(&path::snapshot(7), b"f").unwrap())), "snapshot:7:meta:/f");
        for other in [&b""[..], b"abc", b"\0\0\0\x01Mx", b"\0\0\0\0Mx", b"\0\0\0\0M\x01a\0b", b"\0\0\0\0Nx"] {
            assert_eq!(name_key(other), None, "{other:?}");
            assert_eq!(name_piece(other), None, "{other:?}");
        }
    }

    #[test]
    fn nothing_makes_it_panic() {
        let key =
            path::block(&path::data(&path::entry(&path::contents(b"", b"d").unwrap(), b"f").unwrap()), 1);
        for cut in 0..key.len() {
            for flip in [1, 2, 0x80, 0xff] {
                let mut bent = key.to_vec();
                bent[cut] ^= flip;
                let _ = (name_key(&bent), name_key(&key[..cut]), name_piece(&bent[cut..]));
            }
        }
    }
}
