//! The end of a range of keys from which a scan takes the next one. May use: nothing.

/// Which end of the remaining range is read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward = 0,
    Backward = 1,
}

impl Direction {
    pub fn other(self) -> Self {
        match self {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        }
    }
}
