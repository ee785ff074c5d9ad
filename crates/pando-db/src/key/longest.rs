//! Upper bounds of key lengths.
//!
//! [`Longest`] bounds the length of the longest key that has a value, or may get one, in a page, a node or a
//! memtable. A bound may be too high and never too low, so an operation that it admits makes no key too long. Pure.

/// Upper bound of the length of keys. Ordered: none, then by length, then unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Longest(u32);

impl Longest {
    /// There is no key.
    pub const NONE: Longest = Longest(0);
    /// Nothing is known, as of what an older version has written.
    pub const UNKNOWN: Longest = Longest(u32::MAX);

    /// A key of `len` bytes.
    pub fn of(len: usize) -> Self {
        u32::try_from(len).ok().and_then(|len| len.checked_add(1)).map_or(Self::UNKNOWN, Self)
    }

    /// The bound of keys of which `off` bytes, with which all that count begin, are replaced by `on` bytes. A
    /// bound below `off` says that no key counts.
    pub fn through(self, off: usize, on: usize) -> Self {
        match self.0.checked_sub(1) {
            None => Self::NONE,
            Some(_) if self == Self::UNKNOWN => self,
            Some(len) => (len as usize).checked_sub(off).map_or(Self::NONE, |rest| Self::of(rest + on)),
        }
    }

    /// True if a key may have more than `most` bytes.
    pub fn exceeds(self, most: usize) -> bool {
        self == Self::UNKNOWN || self > Self::of(most)
    }

    /// The stored form: 0 for no key, one more than the length, or `u32::MAX` for an unknown length.
    pub fn encode(self) -> u32 {
        self.0
    }

    pub fn decode(stored: u32) -> Self {
        Self(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_the_keys_through_a_map() {
        let ten = Longest::of(10);
        assert!(ten.exceeds(9) && !ten.exceeds(10));
        assert_eq!(ten.through(4, 7), Longest::of(13));
        assert_eq!(ten.through(10, 0), Longest::of(0));
        // No key begins with eleven bytes.
        assert_eq!(ten.through(11, 5), Longest::NONE);
        assert_eq!(Longest::NONE.through(0, 100), Longest::NONE);
        assert_eq!(Longest::UNKNOWN.through(3, 1), Longest::UNKNOWN);
        assert!(Longest::UNKNOWN.exceeds(usize::MAX >> 1) && !Longest::NONE.exceeds(0));
        assert!(Longest::of(usize::MAX) == Longest::UNKNOWN);
    }
}
