//! What a tree contains, as one number.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::ffi::OsStrExt,
    path::Path,
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

const FACTOR: u64 = 0x9fb2_1c65_1e98_df25;
const READ_BYTES: usize = 256 << 10;

/// A fast hash of bytes that come in pieces. Not for enemies.
pub struct Hash {
    state: u64,
    rest: [u8; 8],
    filled: usize,
    len: u64,
}

impl Hash {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self { state: FACTOR, rest: [0; 8], filled: 0, len: 0 }
    }

    fn word(&mut self, word: u64) {
        self.state = (self.state ^ word).wrapping_mul(FACTOR);
        self.state ^= self.state >> 32;
    }

    /// Goes on with `bytes`.
    pub fn add(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len() as u64;
        if self.filled > 0 {
            let take = bytes.len().min(8 - self.filled);
            self.rest[self.filled..self.filled + take].copy_from_slice(&bytes[..take]);
            self.filled += take;
            bytes = &bytes[take..];
            if self.filled < 8 {
                return;
            }
            self.word(u64::from_le_bytes(self.rest));
            self.filled = 0;
        }
        let (words, rest) = bytes.as_chunks::<8>();
        for &word in words {
            self.word(u64::from_le_bytes(word));
        }
        self.rest[..rest.len()].copy_from_slice(rest);
        self.filled = rest.len();
    }

    /// The hash of all.
    pub fn end(mut self) -> u64 {
        self.rest[self.filled..].fill(0);
        self.word(u64::from_le_bytes(self.rest));
        self.word(self.len);
        self.state
    }
}

/// The hash of `bytes`.
pub fn hash(bytes: &[u8]) -> u64 {
    let mut hash = Hash::new();
    hash.add(bytes);
    hash.end()
}

/// The regular files below a directory: how many, how long, and a digest of their names and contents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// Regular files.
    pub files: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// A sum of hashes, so that the order does not matter.
    pub digest: u64,
}

impl Tree {
    /// Adds a file with this path below the directory.
    pub fn add(&mut self, path: &[u8], len: u64, content: u64) {
        let mut both = Hash::new();
        both.add(path);
        both.add(&content.to_le_bytes());
        self.files += 1;
        self.bytes += len;
        self.digest = self.digest.wrapping_add(both.end());
    }

    /// Reads all of a directory, except what is called `but` directly in it.
    pub fn read(dir: &Path, but: Option<&str>) -> Result<Tree> {
        let mut tree = Tree::default();
        tree.walk(dir, dir, but, &mut vec![0; READ_BYTES])?;
        Ok(tree)
    }

    fn walk(&mut self, root: &Path, dir: &Path, but: Option<&str>, buffer: &mut [u8]) -> Result<()> {
        for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
            let entry = entry?;
            if but.is_some_and(|name| entry.file_name() == name) {
                continue;
            }
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                self.walk(root, &path, None, buffer)?;
            } else if kind.is_file() {
                let (len, content) = read_file(&path, buffer)?;
                self.add(path.strip_prefix(root)?.as_os_str().as_bytes(), len, content);
            }
        }
        Ok(())
    }

    /// An error if the directory does not hold this.
    pub fn expect(&self, dir: &Path, but: Option<&str>) -> Result<()> {
        let found = Tree::read(dir, but)?;
        ensure!(found == *self, "{} holds {found:?} instead of {self:?}", dir.display());
        Ok(())
    }
}

/// Length and hash of a file.
pub fn read_file(path: &Path, buffer: &mut [u8]) -> Result<(u64, u64)> {
    let mut file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let (mut hash, mut len) = (Hash::new(), 0);
    loop {
        let count = file.read(buffer).with_context(|| format!("reading {}", path.display()))?;
        if count == 0 {
            return Ok((len, hash.end()));
        }
        hash.add(&buffer[..count]);
        len += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_does_not_depend_on_the_pieces_and_sees_each_byte() {
        let bytes: Vec<u8> = (0..100).collect();
        for cut in 0..100 {
            let mut pieces = Hash::new();
            pieces.add(&bytes[..cut]);
            pieces.add(&bytes[cut..]);
            assert_eq!(pieces.end(), hash(&bytes));
            let mut changed = bytes.clone();
            changed[cut] ^= 1;
            assert_ne!(hash(&changed), hash(&bytes));
        }
        assert_ne!(hash(b"a"), hash(b"a\0"));
    }

    #[test]
    fn a_tree_is_known_by_names_and_contents() {
        let of = |files: &[(&str, &[u8])]| {
            let mut tree = Tree::default();
            for (path, data) in files {
                tree.add(path.as_bytes(), data.len() as u64, hash(data));
            }
            tree
        };
        let tree = of(&[("a", b"1"), ("b/c", b"2")]);
        assert_eq!(tree, of(&[("b/c", b"2"), ("a", b"1")]));
        assert_ne!(tree, of(&[("a", b"2"), ("b/c", b"1")]));
        assert_ne!(tree, of(&[("a", b"1"), ("b/d", b"2")]));
    }
}
