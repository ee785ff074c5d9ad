//! Sparse memory: what the in-memory devices keep their bytes in.
//!
//! Bytes never written are zero and cost nothing. Chunks are shared between
//! copies until one of them changes, so that a copy costs a pointer a chunk.

use std::{collections::HashMap, sync::Arc};

/// An endless run of bytes in chunks of `CHUNK`.
#[derive(Debug, Default, Clone)]
pub(crate) struct Sparse<const CHUNK: usize> {
    chunks: HashMap<u64, Arc<[u8; CHUNK]>>,
}

impl<const CHUNK: usize> Sparse<CHUNK> {
    pub(crate) fn read(&self, offset: u64, mut buf: &mut [u8]) {
        for (index, within, len) in pieces::<CHUNK>(offset, buf.len()) {
            let (piece, rest) = buf.split_at_mut(len);
            match self.chunks.get(&index) {
                Some(chunk) => piece.copy_from_slice(&chunk[within..within + len]),
                None => piece.fill(0),
            }
            buf = rest;
        }
    }

    /// Makes a range zero again; whole chunks cost nothing from then on.
    pub(crate) fn clear(&mut self, offset: u64, len: u64) {
        for (index, within, len) in pieces::<CHUNK>(offset, len as usize) {
            if len == CHUNK {
                self.chunks.remove(&index);
            } else if let Some(chunk) = self.chunks.get_mut(&index) {
                Arc::make_mut(chunk)[within..within + len].fill(0);
            }
        }
    }

    /// Whether anything was ever written to the chunk that holds this byte.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn holds(&self, offset: u64) -> bool {
        self.chunks.contains_key(&(offset / CHUNK as u64))
    }

    pub(crate) fn write(&mut self, offset: u64, mut data: &[u8]) {
        for (index, within, len) in pieces::<CHUNK>(offset, data.len()) {
            let (piece, rest) = data.split_at(len);
            let chunk = self.chunks.entry(index).or_insert_with(|| Arc::new([0; CHUNK]));
            Arc::make_mut(chunk)[within..within + len].copy_from_slice(piece);
            data = rest;
        }
    }
}

/// Cuts `[offset, offset + len)` at chunk borders: chunk number, start inside it, length.
fn pieces<const CHUNK: usize>(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let (mut at, mut left) = (offset, len);
    std::iter::from_fn(move || {
        let within = (at % CHUNK as u64) as usize;
        let piece = left.min(CHUNK - within);
        let item = (piece > 0).then_some((at / CHUNK as u64, within, piece));
        at += piece as u64;
        left -= piece;
        item
    })
}
