//! Entries on which something else is mounted, as calls under way have said; see `mounted`.
//!
//! To look costs one lock, which nobody holds for longer than it takes to copy what is known: nearly always nothing.
//! Uses nothing but numbers.

use parking_lot::Mutex;

use crate::types::Ino;

/// An entry on which something is mounted, or the snapshots of a directory, in one of which it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountPoint {
    pub dir: Ino,
    pub name: Box<[u8]>,
}

/// The entries that are known.
#[derive(Debug, Default)]
pub(crate) struct MountPoints(Mutex<NotedPoints>);

#[derive(Debug, Default)]
struct NotedPoints {
    /// The number of the note that was made last.
    last: u64,
    /// By the number of the note.
    points: Vec<(u64, MountPoint)>,
}

impl MountPoints {
    /// Notes some, and gives the number by which this is taken back.
    pub(crate) fn note(&self, points: Vec<MountPoint>) -> u64 {
        let mut noted = self.0.lock();
        noted.last += 1;
        let id = noted.last;
        noted.points.extend(points.into_iter().map(|point| (id, point)));
        id
    }

    pub(crate) fn take_back(&self, id: u64) {
        self.0.lock().points.retain(|(by, _)| *by != id);
    }

    pub(crate) fn known(&self) -> Vec<MountPoint> {
        self.0.lock().points.iter().map(|(_, point)| point.clone()).collect()
    }
}
