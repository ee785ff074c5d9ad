//! Where a scan of the keys of a tree is: the directories from the root to the last key.
//!
//! What a key has in common with the one before is neither taken apart nor kept again, so that a scan of deep
//! directories costs what their keys are long, which is all that there is to read. Pure; uses nothing.

/// The directories from the root of a scan to where it is, with something kept of each.
pub(crate) struct ScannedWay<T> {
    /// Contents prefix of the last directory. The prefixes of those above are beginnings of it, so a path of any
    /// depth takes no more memory than one key.
    contents: Vec<u8>,
    /// For each directory the length of its contents prefix in bytes, and what is kept for it.
    levels: Vec<(usize, T)>,
}

impl<T> ScannedWay<T> {
    /// Begins in the root.
    pub(crate) fn new(root: T) -> Self {
        Self { contents: Vec::new(), levels: vec![(0, root)] }
    }

    /// Leaves the directories that `path` is not in; how many bytes of it are the contents prefix of the last one that
    /// it is in.
    pub(crate) fn leave(&mut self, path: &[u8]) -> usize {
        let common = common(&self.contents, path);
        while self.levels.len() > 1 && self.end() > common {
            self.levels.pop();
        }
        self.contents.truncate(self.end());
        self.end()
    }

    /// Enters the directory with this contents prefix, which lies in the last one.
    pub(crate) fn enter(&mut self, contents: &[u8], kept: T) {
        self.contents.extend_from_slice(contents.get(self.end()..).unwrap_or_default());
        self.levels.push((contents.len(), kept));
    }

    fn end(&self) -> usize {
        self.levels.last().map_or(0, |(end, _)| *end)
    }

    /// Contents prefix of the last directory.
    pub(crate) fn contents(&self) -> &[u8] {
        &self.contents
    }

    /// What is kept of it.
    pub(crate) fn last(&self) -> Option<&T> {
        self.levels.last().map(|(_, kept)| kept)
    }

    /// Contents prefix of the last directory of which `is` is true.
    pub(crate) fn above(&self, is: impl Fn(&T) -> bool) -> &[u8] {
        let end = self.levels.iter().rfind(|(_, kept)| is(kept)).map_or(0, |(end, _)| *end);
        self.contents.get(..end).unwrap_or_default()
    }
}

/// Bytes that are compared at once.
const PIECE_BYTES: usize = 256;

/// How many bytes two paths begin with alike.
fn common(a: &[u8], b: &[u8]) -> usize {
    let pieces = a.chunks(PIECE_BYTES).zip(b.chunks(PIECE_BYTES)).take_while(|(a, b)| a == b);
    let same: usize = pieces.map(|(a, _)| a.len()).sum();
    let tails = a.get(same..).unwrap_or_default().iter().zip(b.get(same..).unwrap_or_default());
    same + tails.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_paths_begin_with_is_counted_to_the_byte() {
        let long = vec![7; 3 * PIECE_BYTES];
        for at in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 1] {
            let mut other = long.clone();
            other[at] = 8;
            assert_eq!(common(&long, &other), at);
            assert_eq!(common(&long[..at], &long), at);
            assert_eq!(common(&long, &long[..at]), at);
        }
        assert_eq!(common(&long, &long), long.len());
    }

    #[test]
    fn a_way_is_left_as_far_as_the_next_key_is_elsewhere() {
        let mut way = ScannedWay::new('r');
        for (name, kept) in
            [(&b"\x02a\0"[..], 'a'), (b"\x02a\0\x02b\0", 'b'), (b"\x02a\0\x02b\0\x02c\0", 'c')]
        {
            way.enter(name, kept);
        }
        assert_eq!(way.leave(b"\x02a\0\x02b\0\x02c\0\x01x\0"), 9);
        assert_eq!(way.leave(b"\x02a\0\x02b\0\x02cc\0\x01x\0"), 6);
        assert_eq!((way.last(), way.contents()), (Some(&'b'), &b"\x02a\0\x02b\0"[..]));
        assert_eq!(way.above(|kept| *kept == 'a'), b"\x02a\0");
        assert_eq!((way.leave(b"\x02b\0\x01x\0"), way.last()), (0, Some(&'r')));
    }
}
