//! Keys, ranges and maps of keys as text.
//!
//! Keys of a file system are shown as paths, others as their bytes, escaped.
//! Where the path to a node is known, what stands in it is shown as the whole
//! keys that a reader sees. Pure functions.

use pando_db::{KeyRange, PathInfo, TargetInfo};

/// How keys are put into words.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// Whether the keys are those of a file system.
    pub fs: bool,
}

impl Keys {
    /// A whole key.
    pub fn whole(self, key: &[u8]) -> String {
        let name = if self.fs { pando_fs::name_key(key) } else { None };
        name.unwrap_or_else(|| bytes(key))
    }

    /// A piece of a key.
    pub fn piece(self, piece: &[u8]) -> String {
        let name = || pando_fs::name_key(piece).or_else(|| pando_fs::name_piece(piece));
        self.fs.then(name).flatten().unwrap_or_else(|| bytes(piece))
    }

    /// A key of a node that is reached by `path`: whole, if it can be.
    pub fn local(self, path: Option<&PathInfo>, key: &[u8]) -> String {
        match path.and_then(|path| path.whole_key(key)) {
            Some(whole) => self.whole(&whole),
            None if path.is_some() => format!("own key {}", self.piece(key)),
            None => self.piece(key),
        }
    }

    /// A range of whole keys.
    pub fn whole_range(self, range: &KeyRange) -> String {
        words(range, |key| self.whole(key))
    }

    /// A range of a node's own keys.
    pub fn piece_range(self, range: &KeyRange) -> String {
        words(range, |key| self.piece(key))
    }

    /// A range of a node that is reached by `path`: as the whole keys that are seen there.
    pub fn range(self, path: Option<&PathInfo>, range: &KeyRange) -> String {
        match path.and_then(|path| path.whole_range(range)) {
            Some(whole) => self.whole_range(&whole),
            None => format!("own keys {}", self.piece_range(range)),
        }
    }

    /// What an edge or Goto does to keys; empty if nothing.
    pub fn map(self, target: &TargetInfo) -> String {
        let mut parts = Vec::new();
        if !target.take_off.is_empty() {
            parts.push(format!("−{}", self.piece(&target.take_off)));
        }
        if !target.put_on.is_empty() {
            parts.push(format!("+{}", self.piece(&target.put_on)));
        }
        parts.join(" ")
    }
}

/// Bytes as they are where they can be printed, escaped where not.
pub fn bytes(bytes: &[u8]) -> String {
    match bytes {
        [] => "\"\"".into(),
        _ => bytes.escape_ascii().to_string(),
    }
}

fn words(range: &KeyRange, word: impl Fn(&[u8]) -> String) -> String {
    match (&range.hi, range.as_prefix()) {
        (_, Some([])) => "all keys".into(),
        (_, Some(prefix)) => format!("{}*", word(prefix)),
        (None, None) => format!("from {} on", word(&range.lo)),
        (Some(hi), None) if range.lo.is_empty() => format!("up to {}", word(hi)),
        (Some(hi), None) => format!("{} … {}", word(&range.lo), word(hi)),
    }
}

/// `n` of something, in the plural where it must be.
pub fn count(n: impl Into<u64>, what: &str) -> String {
    match n.into() {
        1 => format!("1 {what}"),
        n => format!("{n} {what}s"),
    }
}
