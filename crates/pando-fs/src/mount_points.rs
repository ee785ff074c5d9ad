//! The list of entries on which other file systems are mounted, and of snapshots that are mounted elsewhere, by thread;
//! see `mounted`.
//!
//! A query takes one lock, which is held only while the list is copied. The list is nearly always empty.

use std::{
    path::PathBuf,
    thread::{self, ThreadId},
};

use parking_lot::Mutex;

use crate::types::Ino;

/// An entry on which something is mounted, or the snapshots of a directory, in one of which it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountPoint {
    pub dir: Ino,
    pub name: Box<[u8]>,
}

/// A mount that shows a snapshot, or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotMount {
    /// The root of the snapshot.
    pub root: Ino,
    /// Where it is mounted.
    pub dir: PathBuf,
}

/// The entries that are known.
#[derive(Debug, Default)]
pub(crate) struct MountPoints(Mutex<NotedPoints>);

#[derive(Debug)]
struct Note {
    id: u64,
    /// For whose calls it counts.
    thread: ThreadId,
    points: Vec<MountPoint>,
    views: Vec<SnapshotMount>,
}

#[derive(Debug, Default)]
struct NotedPoints {
    /// The number of the note that was made last.
    last: u64,
    notes: Vec<Note>,
}

impl MountPoints {
    /// Notes some for calls of this thread, and gives the number by which this is taken back.
    pub(crate) fn note(&self, points: Vec<MountPoint>, views: Vec<SnapshotMount>) -> u64 {
        let mut noted = self.0.lock();
        noted.last += 1;
        let (id, thread) = (noted.last, thread::current().id());
        noted.notes.push(Note { id, thread, points, views });
        id
    }

    pub(crate) fn take_back(&self, id: u64) {
        self.0.lock().notes.retain(|note| note.id != id);
    }

    /// Whether any mount shows a snapshot, of those that count for calls of this thread.
    pub(crate) fn has_views(&self) -> bool {
        let (noted, own) = (self.0.lock(), thread::current().id());
        noted.notes.iter().any(|note| note.thread == own && !note.views.is_empty())
    }

    /// A mount that shows this snapshot, of those that count for calls of this thread.
    pub(crate) fn view_of(&self, root: Ino) -> Option<SnapshotMount> {
        let (noted, own) = (self.0.lock(), thread::current().id());
        let mut views = noted.notes.iter().filter(|note| note.thread == own).flat_map(|note| &note.views);
        views.find(|view| view.root == root).cloned()
    }

    /// The entries that count for calls of this thread.
    pub(crate) fn known(&self) -> Vec<MountPoint> {
        let (noted, own) = (self.0.lock(), thread::current().id());
        noted.notes.iter().filter(|note| note.thread == own).flat_map(|note| note.points.clone()).collect()
    }
}
