//! Write-behind: writes that have returned and are not on the medium yet. Their number is bounded, they are done in
//! order where they overlap, and reads of their bytes, and flushes, wait for them.
//!
//! The newest write is kept open: bytes that are written right behind it become part of the same request, up to a
//! full buffer. It is closed, and carried out, when something is written elsewhere, or when a thread waits for it.
//!
//! Once a write has failed, every later write and flush fails, and so does a read of the bytes that were lost: what the
//! medium holds there is older than what the writer was told. May use: the file, by [`Raw`]. Knows no threads.

use std::{
    collections::VecDeque,
    io::{self, IoSlice},
    ops::Range,
    sync::OnceLock,
};

use parking_lot::Condvar;

use crate::{
    device::direct::{
        Raw,
        buffers::{Aligned, Buffers, MAX_DIRECT_BYTES},
        gather, overlap,
    },
    locks::Mutex,
};

/// Memory of writes that wait or are under way, in bytes: then a writer waits.
pub(super) const MAX_QUEUED_BYTES: usize = 6 * MAX_DIRECT_BYTES;

#[derive(Default)]
struct QueuedWrites {
    /// What more may be added to.
    open: Option<(Range<u64>, Aligned)>,
    /// Closed writes that no thread has begun, oldest first, and writes that are being done; with their numbers.
    waiting: VecDeque<(u64, Range<u64>, Aligned)>,
    under_way: Vec<(u64, Range<u64>)>,
    /// Writes that were closed so far.
    closed: u64,
    /// What could not be written. No more writes are taken after the first, so there are at most as many as wait.
    lost: Vec<Range<u64>>,
}

impl QueuedWrites {
    fn buffers(&self) -> usize {
        self.waiting.len() + self.under_way.len() + usize::from(self.open.is_some())
    }

    fn touches(&self, range: &Range<u64>) -> bool {
        self.open.as_ref().is_some_and(|(other, _)| overlap(other, range)) || self.touches_closed(range)
    }

    fn touches_closed(&self, range: &Range<u64>) -> bool {
        let waiting = self.waiting.iter().map(|(_, other, _)| other);
        let under_way = self.under_way.iter().map(|(_, other)| other);
        waiting.chain(under_way).any(|other| overlap(other, range))
    }

    /// Adds bytes to the open write if they belong right behind it, have room, and need not wait for an older write:
    /// closed writes are done side by side.
    fn append(&mut self, range: &Range<u64>, bufs: &[IoSlice<'_>]) -> bool {
        if self.touches_closed(range) {
            return false;
        }
        let Some((open, buffer)) = &mut self.open else { return false };
        let len = (open.end - open.start) as usize;
        let wanted = (range.end - range.start) as usize;
        let room = buffer.get_mut(len..).filter(|room| open.end == range.start && wanted <= room.len());
        let Some(room) = room else { return false };
        gather(room, bufs);
        open.end = range.end;
        true
    }

    /// Closes the open write, if there is one.
    fn close(&mut self) -> bool {
        let Some((range, buffer)) = self.open.take() else { return false };
        self.waiting.push_back((self.closed, range, buffer));
        self.closed += 1;
        true
    }
}

#[derive(Default)]
pub(super) struct Behind {
    state: Mutex<QueuedWrites>,
    done: Condvar,
    /// The first failure.
    failed: OnceLock<(Option<i32>, io::ErrorKind)>,
}

impl std::fmt::Debug for Behind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Behind({})", self.state.lock().buffers())
    }
}

impl Behind {
    /// The error of the first write that failed.
    pub(super) fn check(&self) -> io::Result<()> {
        match self.failed.get() {
            None => Ok(()),
            Some((Some(number), _)) => Err(io::Error::from_raw_os_error(*number)),
            Some((None, kind)) => Err((*kind).into()),
        }
    }

    /// Takes in a write of whole blocks, of a buffer at most, whose bytes are `bufs` one after the other. Waits where
    /// there is no room, and for older writes to the same place. Fails if an older write has failed. `ask` makes a
    /// thread carry out one closed write.
    pub(super) fn add(
        &self,
        range: Range<u64>,
        bufs: &[IoSlice<'_>],
        buffers: &Buffers,
        ask: impl Fn(),
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        loop {
            self.check()?;
            if state.append(&range, bufs) {
                return Ok(());
            }
            if state.close() {
                // Asked without the lock: it may be this thread that does it.
                drop(state);
                ask();
                state = self.state.lock();
            } else if (state.buffers() + 1) * MAX_DIRECT_BYTES > MAX_QUEUED_BYTES || state.touches(&range) {
                self.done.wait(&mut state);
            } else {
                break;
            }
        }
        let mut buffer = buffers.take(MAX_DIRECT_BYTES)?;
        gather(&mut buffer, bufs);
        state.open = Some((range, buffer));
        Ok(())
    }

    /// Closes the open write if it has a byte of `range`, or whatever it is if none is given; whether there was one, so
    /// that one write more is to be done ([`Behind::write_one`]).
    pub(super) fn close(&self, range: Option<&Range<u64>>) -> bool {
        let mut state = self.state.lock();
        let wanted = |(open, _): &(Range<u64>, Aligned)| range.is_none_or(|range| overlap(open, range));
        state.open.as_ref().is_some_and(wanted) && state.close()
    }

    /// Does the oldest write that waits, if any does.
    pub(super) fn write_one(&self, raw: &Raw) {
        let mut state = self.state.lock();
        let Some((number, range, buffer)) = state.waiting.pop_front() else { return };
        state.under_way.push((number, range.clone()));
        drop(state);
        let len = (range.end - range.start) as usize;
        let written = raw.write(range.start, buffer.get(..len).unwrap_or_default(), false);
        drop(buffer);
        let mut state = self.state.lock();
        state.under_way.retain(|(other, _)| *other != number);
        if let Err(error) = written {
            _ = self.failed.set((error.raw_os_error(), error.kind()));
            state.lost.push(range);
        }
        drop(state);
        self.done.notify_all();
    }

    /// Returns when no write to the range is in progress. The caller closes the open write before.
    pub(super) fn wait_for(&self, range: &Range<u64>) {
        let mut state = self.state.lock();
        while state.touches(range) {
            self.done.wait(&mut state);
        }
    }

    /// [`Behind::wait_for`]; an error if a failed write was to the range.
    pub(super) fn wait_and_check(&self, range: &Range<u64>) -> io::Result<()> {
        let mut state = self.state.lock();
        while state.touches(range) {
            self.done.wait(&mut state);
        }
        match state.lost.iter().any(|lost| overlap(lost, range)) {
            true => self.check(),
            false => Ok(()),
        }
    }

    /// Returns when every write is done that was closed before, whatever others write meanwhile.
    pub(super) fn drain(&self) {
        let mut state = self.state.lock();
        let until = state.closed;
        let older = |state: &QueuedWrites| {
            let waiting = state.waiting.iter().map(|(number, ..)| *number);
            waiting.chain(state.under_way.iter().map(|(number, _)| *number)).any(|number| number < until)
        };
        while older(&state) {
            self.done.wait(&mut state);
        }
    }
}
