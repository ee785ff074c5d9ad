//! Lines of text that both sides of a merge have changed.
//!
//! Reads the three versions of a file and merges them line by line, as diff3(1) and git do. A file that is no text, or
//! too long, stays a conflict. Changes nothing.

use bytes::Bytes;

use crate::{
    diff::side::{Found, Side},
    error::Result,
    fork::lines,
    limits::BLOCK_SIZE,
    path,
    types::FileKind,
};

/// A file is text up to this long, bytes.
const MAX_TEXT_BYTES: u64 = 1 << 20;
/// A text has no more lines than this, a count: the work for a file may grow with their square.
pub(super) const MAX_TEXT_LINES: usize = 10_000;
/// The squares of the lines of all files of one merge, a count: some seconds at the worst.
const MAX_WORK_SQUARES: usize = 16 * MAX_TEXT_LINES * MAX_TEXT_LINES;
/// The limit while both trees are locked, a count: about a second at most.
const MAX_HELD_WORK_SQUARES: usize = MAX_TEXT_LINES * MAX_TEXT_LINES;
/// Content of all files that one merge gets by merging lines, bytes: it is in memory, and goes into one batch.
const MAX_MERGED_TEXT_BYTES: usize = 8 << 20;

/// The result of merging lines.
pub(crate) struct MergedText {
    pub bytes: Bytes,
    /// Some lines conflict: both versions of them, and that of the origin, stand between markers.
    pub marked: bool,
}

/// What one merge may spend on lines.
pub(crate) struct TextBudget {
    squares: usize,
    bytes: usize,
}

impl TextBudget {
    /// For a plan that is made while calls on both trees go on, or while they wait (`held`): then it may take much less
    /// work.
    pub(crate) fn new(held: bool) -> Self {
        let squares = if held { MAX_HELD_WORK_SQUARES } else { MAX_WORK_SQUARES };
        Self { squares, bytes: MAX_MERGED_TEXT_BYTES }
    }
}

/// The content of a file and how many lines it has, if it is text.
fn text(side: &Side, found: &Found) -> Result<Option<(Vec<u8>, usize)>> {
    let record = &found.record;
    if record.kind != FileKind::Regular || record.size > MAX_TEXT_BYTES || record.dense.is_some() {
        return Ok(None);
    }
    let mut out = Vec::with_capacity(record.size as usize);
    for block in 0..record.size.div_ceil(BLOCK_SIZE) {
        let wanted = (record.size - block * BLOCK_SIZE).min(BLOCK_SIZE) as usize;
        let stored = side.view.get(&path::block(&found.data, block))?.unwrap_or_default();
        // Bytes that a block lacks are zeros, and text has no zeros.
        match stored.get(..wanted) {
            Some(bytes) if !bytes.contains(&0) => out.extend_from_slice(bytes),
            _ => return Ok(None),
        }
    }
    let lines = out.iter().filter(|byte| **byte == b'\n').count();
    Ok((lines <= MAX_TEXT_LINES).then_some((out, lines)))
}

impl TextBudget {
    /// Merges the lines of a file. `None` if one of the versions is no text, or the budget does not suffice.
    pub(crate) fn merge_lines(
        &mut self,
        base: (&Side, &Found),
        theirs: (&Side, &Found),
        ours: (&Side, &Found),
    ) -> Result<Option<MergedText>> {
        let (Some(base), Some(theirs), Some(ours)) =
            (text(base.0, base.1)?, text(theirs.0, theirs.1)?, text(ours.0, ours.1)?)
        else {
            return Ok(None);
        };
        let lines = base.1.max(theirs.1).max(ours.1);
        let Some(squares) = self.squares.checked_sub(lines * lines) else { return Ok(None) };
        self.squares = squares;
        let merged = lines::merge(&base.0, &ours.0, &theirs.0);
        let marked = merged.is_err();
        let bytes = Bytes::from(merged.unwrap_or_else(|marked| marked));
        let Some(left) = self.bytes.checked_sub(bytes.len()) else { return Ok(None) };
        self.bytes = left;
        Ok(Some(MergedText { bytes, marked }))
    }
}
