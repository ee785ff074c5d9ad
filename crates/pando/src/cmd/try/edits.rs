//! The edits that `pando try` makes to the clone, and what they must lead to.
//!
//! Guarantees: a choice of edits is a function of the tree, and names each path that differs from the original after
//! it.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use pando_fs::FileKind;

use crate::cmd::r#try::store::Store;
use crate::tree::{Piece, View};

/// Files that get four bytes in their middle; that get a line at their end.
const OVERWRITTEN_FILES: usize = 8;
const APPENDED_FILES: usize = 4;
/// Larger files are not edited: their expected content is kept in memory.
const LARGEST_BYTES: u64 = 8 << 20;
const MARK: &[u8] = b"TREE";
const OWN_LINE: &[u8] = b"\nA line of its own for the clone.\n";
const NEW_NAME: &str = ".pando-try-new";
const MOVED_NAME: &str = ".pando-try-moved";

struct Changed {
    path: PathBuf,
    /// Where what is written.
    offset: u64,
    data: &'static [u8],
    /// The whole content after that.
    expected: Vec<u8>,
}

/// A choice of edits, spread over the tree.
pub(super) struct Edits {
    changed: Vec<Changed>,
    removed: Option<PathBuf>,
    moved: Option<(PathBuf, Vec<u8>)>,
}

impl Edits {
    /// Chooses files of `tree` that are neither empty nor large.
    pub(super) fn choose(tree: &dyn View) -> Result<Self> {
        let mut files = Vec::new();
        let mut todo = vec![PathBuf::new()];
        while let Some(dir) = todo.pop() {
            for (name, meta) in tree.list(&dir)? {
                let path = dir.join(name);
                match meta.kind {
                    FileKind::Directory => todo.push(path),
                    // An edit of a file with further names would change these as well.
                    FileKind::Regular if (16..LARGEST_BYTES).contains(&meta.size) && meta.nlink == 1 => {
                        files.push(path)
                    }
                    _ => {}
                }
            }
        }
        files.sort_unstable();
        let want = (OVERWRITTEN_FILES + APPENDED_FILES + 2).min(files.len());
        let step = files.len().checked_div(want).unwrap_or(1).max(1);
        let mut chosen = files.into_iter().step_by(step).take(want);
        let mut edits = Edits { changed: Vec::new(), removed: chosen.next(), moved: None };
        if let Some(path) = chosen.next() {
            let content = read(tree, &path)?;
            edits.moved = Some((path, content));
        }
        for (i, path) in chosen.enumerate() {
            let mut expected = read(tree, &path)?;
            let (at, data) = if i < APPENDED_FILES {
                (expected.len(), OWN_LINE)
            } else {
                ((expected.len() - MARK.len()) / 2, MARK)
            };
            expected.resize(expected.len().max(at + data.len()), 0);
            expected.splice(at..at + data.len(), data.iter().copied());
            edits.changed.push(Changed { path, offset: at as u64, data, expected });
        }
        Ok(edits)
    }

    /// Makes the edits in the tree `root` of `store`.
    pub(super) fn apply(&self, store: &Store, root: &str) -> Result<()> {
        let root = Path::new(root);
        for c in &self.changed {
            store.write_at(&root.join(&c.path), c.offset, c.data)?;
        }
        if let Some(path) = &self.removed {
            store.remove(&root.join(path))?;
        }
        if let Some((path, _)) = &self.moved {
            store.rename(&root.join(path), MOVED_NAME)?;
        }
        store.create(&root.join(NEW_NAME), OWN_LINE)
    }

    /// Every path that differs from the original now.
    pub(super) fn paths(&self) -> HashSet<PathBuf> {
        let moved = self.moved.iter().flat_map(|(path, _)| [path.clone(), path.with_file_name(MOVED_NAME)]);
        self.changed
            .iter()
            .map(|c| c.path.clone())
            .chain(self.removed.clone())
            .chain(moved)
            .chain([PathBuf::from(NEW_NAME)])
            .collect()
    }

    /// Fails unless `tree` shows every edit.
    pub(super) fn verify(&self, tree: &dyn View) -> Result<()> {
        let content = |path: &Path, expected: &[u8]| {
            if read(tree, path)? != expected {
                bail!("{}: is not as it was written", tree.show(path));
            }
            Ok(())
        };
        for c in &self.changed {
            content(&c.path, &c.expected)?;
        }
        if let Some((path, expected)) = &self.moved {
            content(&path.with_file_name(MOVED_NAME), expected)?;
        }
        content(Path::new(NEW_NAME), OWN_LINE)?;
        for gone in self.removed.iter().chain(self.moved.iter().map(|(path, _)| path)) {
            if tree.meta(gone).is_ok() {
                bail!("{}: is still there", tree.show(gone));
            }
        }
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.changed.len() + usize::from(self.removed.is_some()) + usize::from(self.moved.is_some()) + 1
    }

    pub(super) fn describe(&self) -> String {
        let appended = self.changed.iter().filter(|c| c.data == OWN_LINE).count();
        format!(
            "{} files overwritten in their middle, {appended} appended to, {} removed, {} renamed, 1 new",
            self.changed.len() - appended,
            usize::from(self.removed.is_some()),
            usize::from(self.moved.is_some()),
        )
    }
}

fn read(tree: &dyn View, path: &Path) -> Result<Vec<u8>> {
    let mut reader = tree.open(path)?;
    let mut out = Vec::new();
    let mut buf = vec![0; 64 << 10];
    loop {
        match reader.next(&mut buf)? {
            Piece::Data(n) => out.extend_from_slice(buf.get(..n).unwrap_or_default()),
            Piece::Hole(n) => out.resize(out.len() + usize::try_from(n).context("a hole too large")?, 0),
            Piece::End => return Ok(out),
        }
    }
}
