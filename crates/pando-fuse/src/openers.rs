//! Callers that read the small files that they open, one after the other.
//!
//! The bytes of such a file can come with the answer to its open, which saves the caller a READ. A caller that only
//! syncs, maps or stats the file would pay for bytes that it does not read. So this remembers for each caller (a
//! thread, as the kernel names it) whether it has read the last files that it opened and of which the kernel had no
//! pages.
//!
//! Guarantees: a new caller counts as one that does not read. The bytes of one file in [`PROBES_EVERY`] are not given,
//! so that a READ shows that the caller still reads; if it does not read such a file, it counts as new again. Memory is
//! bounded by [`MAX_OPENERS`] and by open files. Knows nothing of FUSE messages.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Number of files that a caller has to read in a row before the bytes of the next one come with its open.
const FILES_READ: u32 = 3;
/// The bytes of one file of this number do not come with the open, as a probe.
const PROBES_EVERY: u32 = 16;
/// Callers that are remembered, a count; when there are more, all are forgotten.
const MAX_OPENERS: usize = 256;

/// An open file whose bytes were not given with the open.
struct Probe {
    caller: u32,
    read: bool,
}

#[derive(Default)]
struct Opener {
    /// Number of files in a row that it has read by READ, up to [`FILES_READ`].
    read: u32,
    /// Number of files that it has opened since it was first seen.
    opened: u32,
}

#[derive(Default)]
struct OpenersState {
    callers: HashMap<u32, Opener>,
    /// By handle.
    open: HashMap<u64, Probe>,
}

/// What is known of callers and of the files that they have open.
#[derive(Default)]
pub(crate) struct Openers {
    state: Mutex<OpenersState>,
}

impl Openers {
    /// Notes that `caller` has opened a small file of which the kernel has no pages, as `handle`. True if the caller
    /// will probably read the file, so that its bytes are to come with the open.
    pub(crate) fn opened(&self, caller: u32, handle: u64) -> bool {
        let state = &mut *self.state.lock();
        if state.callers.len() >= MAX_OPENERS && !state.callers.contains_key(&caller) {
            state.callers.clear();
        }
        let known = state.callers.entry(caller).or_default();
        known.opened = known.opened.wrapping_add(1);
        let reads = known.read >= FILES_READ && !known.opened.is_multiple_of(PROBES_EVERY);
        if !reads {
            state.open.insert(handle, Probe { caller, read: false });
        }
        reads
    }

    /// Notes a read.
    pub(crate) fn read(&self, handle: u64) {
        if let Some(probe) = self.state.lock().open.get_mut(&handle) {
            probe.read = true;
        }
    }

    /// Notes the last close of a handle.
    pub(crate) fn closed(&self, handle: u64) {
        let state = &mut *self.state.lock();
        let Some(probe) = state.open.remove(&handle) else { return };
        if let Some(caller) = state.callers.get_mut(&probe.caller) {
            caller.read = if probe.read { FILES_READ.min(caller.read + 1) } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a file as `caller` and reads it, if it is not given; whether it was.
    fn open(o: &Openers, caller: u32, reads: bool) -> bool {
        let given = o.opened(caller, 1);
        if reads && !given {
            o.read(1);
        }
        o.closed(1);
        given
    }

    #[test]
    fn who_reads_what_it_opens_is_given_the_next_files_and_probed_now_and_then() {
        let o = Openers::default();
        let row: Vec<bool> = (0..100).map(|_| open(&o, 7, true)).collect();
        assert_eq!(row.iter().take_while(|given| !**given).count(), FILES_READ as usize);
        let left = row[FILES_READ as usize..].iter().filter(|given| !**given).count();
        assert_eq!(left, 100 / PROBES_EVERY as usize, "the others were left to it");
        assert!(!open(&o, 8, true), "another caller");
    }

    #[test]
    fn who_does_not_read_is_given_nothing_any_more() {
        let o = Openers::default();
        assert!((0..50).all(|_| !open(&o, 7, false)));
        (0..FILES_READ).for_each(|_| assert!(!open(&o, 7, true)));
        let given = (0..50).filter(|_| open(&o, 7, false)).count();
        assert!(given < PROBES_EVERY as usize, "{given} files for nothing");
    }

    #[test]
    fn memory_is_bounded() {
        let o = Openers::default();
        (0..10_000).for_each(|caller| _ = open(&o, caller, true));
        let state = o.state.lock();
        assert!(state.callers.len() <= MAX_OPENERS && state.open.is_empty());
    }
}
