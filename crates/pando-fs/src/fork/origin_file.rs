//! Files as they were in the origin of a fork.
//!
//! No directory has an entry for an origin, so the kernel has no inodes of one, and need not be told when a merge
//! replaces it. Who compares lines reads the old content here. Guarantees: it is that of one moment, and of the origin
//! that the caller names; a viewer gets nothing that it could not read by walking to the file from the top of the
//! origin. Who may look at the origin at all is for the caller to check: the directories above the fork may have been
//! closed to others when files were removed from it.

use std::{
    path::{Component, Path},
    sync::{Arc, atomic::AtomicBool},
};

use bytes::Bytes;
use pando_db::Cursor;

use crate::{
    diff::side::go_on,
    error::{Error, Result},
    limits::BLOCK_SIZE,
    path,
    types::{Caller, FileKind, Ino},
    volume::Fs,
};

/// The content of a file in the origin of a fork, as an iterator over what is stored of it: where it begins in the
/// file, in bytes, and the bytes, which do not reach beyond the end of the file. What lies between is zeros. In order.
/// Holds a frozen state of the file system.
pub struct OriginFile {
    blocks: Cursor,
    /// Prefix of its data.
    data: Bytes,
    size: u64,
    stop: Arc<AtomicBool>,
}

impl OriginFile {
    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// What ends it when it is set: the next piece is an error then (EINTR).
    pub fn stop(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }
}

impl Iterator for OriginFile {
    type Item = Result<(u64, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (key, mut bytes) =
                match go_on(&self.stop).and_then(|()| Ok(self.blocks.next().transpose()?)) {
                    Ok(pair) => pair?,
                    Err(e) => return Some(Err(e)),
                };
            let Some(block) = path::block_of(&self.data, &key) else {
                let what = "file data".into();
                return Some(Err(Error::Damaged { what, detail: "impossible block key" }));
            };
            let start = block.saturating_mul(BLOCK_SIZE);
            bytes.truncate(self.size.saturating_sub(start).min(BLOCK_SIZE) as usize);
            if !bytes.is_empty() {
                return Some(Ok((start, bytes)));
            }
        }
    }
}

impl Fs {
    /// The file at `path`, from its top, as it was in the origin of the directory `fork`, which must still be the fork
    /// with this number (see [`crate::ForkInfo`]). ESTALE if it was merged meanwhile, or is another fork; ENOENT if
    /// there was no such file, EINVAL if it was no regular one; EACCES if `viewer` may not walk to it from the top of
    /// the origin, or read it. Symbolic links are not followed.
    ///
    /// Cost: a point query for each name; then the blocks of the file, as they are asked for.
    pub fn origin_file(
        &self,
        viewer: Option<&Caller>,
        (fork, number): (Ino, u32),
        path: &Path,
    ) -> Result<OriginFile> {
        let dir = self.dir(fork)?;
        let (found, mut side, _) = self.with_attempts(|_| self.sides_of_fork(viewer, &dir))?;
        if found.number != number {
            return Err(Error::Stale(fork));
        }
        let shown = || path.display().to_string();
        let mut names = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => names.push(path::check_name(name)?),
                _ => return Err(Error::Invalid("a path of plain names, from the fork".into())),
            }
        }
        let Some((name, dirs)) = names.split_last() else {
            return Err(Error::Invalid("the path of a file, from the fork".into()));
        };
        let mut inside = Vec::new();
        // One after the other: what is in a directory that the viewer may not enter is not told, nor what is not in it.
        for name in dirs {
            path::enter(&mut inside, name)?;
            match side.level(&inside)? {
                None => return Err(Error::NotFound(shown())),
                Some(level) if !level.sees => return Err(Error::Access(shown())),
                Some(_) => {}
            }
        }
        let entry = path::entry(&inside, name)?;
        let value = side.value(&entry)?.ok_or_else(|| Error::NotFound(shown()))?;
        let found = side.found(&entry, &value)?;
        if found.record.kind != FileKind::Regular {
            return Err(Error::Invalid(format!("{}: not a regular file", shown())));
        }
        if !side.may_read(&found) {
            return Err(Error::Access(shown()));
        }
        let blocks =
            side.view.range(&path::block(&found.data, 0), Some(&path::block(&found.data, path::MAP)));
        let (data, size) = (found.data, found.record.size);
        Ok(OriginFile { blocks: blocks.take_all(), data, size, stop: Arc::default() })
    }
}
