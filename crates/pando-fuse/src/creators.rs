//! Callers that make small files one after the other, for whom direct writes are faster than the kernel's write-back
//! cache.
//!
//! With the write-back cache a new file that is written and closed at once costs more: the kernel asks for a capability
//! before it takes the first byte, and writes out at close, which the program waits for. Programs that unpack, copy or
//! check out trees make only such files, and write each by a call or two. Logs, databases and compilers write in many
//! calls, and read what they wrote. The files that a program made before show which kind it is, so this remembers
//! callers (threads, as the kernel names them) by their last new files.
//!
//! Guarantees: a new caller uses the cache. After one new file that was written past the cache in small pieces the
//! caller uses the cache again, and needs four times as many small files before it bypasses the cache once more. Memory
//! is bounded by [`MAX_CREATORS`] and by open files. Knows nothing of FUSE messages.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Small new files in a row after which the next one bypasses the cache, a count.
const SMALL_FILES: u32 = 8;
/// The most of them that are needed, after many files for which it was wrong to bypass the cache: a program that
/// unpacks an archive in calls of 512 bytes makes many small files, and among them files of thousands of calls.
const MOST_SMALL_FILES: u32 = 8 << 10;
/// A new file of at most so many bytes is a small one.
const SMALL_FILE_BYTES: u64 = 256 << 10;
/// Writes of a new file up to which their size does not matter, a count;
const FEW_WRITES: u32 = 2;
/// behind these each has this many bytes at least on average, or it was wrong to bypass the cache.
const LARGE_WRITE_BYTES: u64 = 8 << 10;
/// Callers that are remembered, a count; when there are more, all are forgotten.
const MAX_CREATORS: usize = 256;

/// A new file that is open.
struct NewFile {
    caller: u32,
    direct: bool,
    writes: u32,
    bytes: u64,
}

/// The new files of a caller.
struct Maker {
    /// Small files in a row.
    small: u32,
    /// How many are needed to bypass the cache.
    needed: u32,
}

#[derive(Default)]
struct CreatorsState {
    callers: HashMap<u32, Maker>,
    /// By handle.
    open: HashMap<u64, NewFile>,
}

/// Callers and their new files.
#[derive(Default)]
pub(crate) struct Creators {
    state: Mutex<CreatorsState>,
}

impl Creators {
    /// Notes a file that `caller` makes by opening `handle` with `O_*` `flags`. True: it is to bypass the cache.
    pub(crate) fn made(&self, caller: u32, handle: u64, flags: i32) -> bool {
        let writes_only = flags & libc::O_ACCMODE == libc::O_WRONLY && flags & libc::O_APPEND == 0;
        let mut state = self.state.lock();
        let direct =
            writes_only && state.callers.get(&caller).is_some_and(|maker| maker.small >= maker.needed);
        state.open.insert(handle, NewFile { caller, direct, writes: 0, bytes: 0 });
        direct
    }

    /// Notes a write of `bytes` past the cache.
    pub(crate) fn wrote(&self, handle: u64, bytes: u64) {
        if let Some(file) = self.state.lock().open.get_mut(&handle) {
            file.writes = file.writes.saturating_add(1);
            file.bytes = file.bytes.saturating_add(bytes);
        }
    }

    /// Notes the last close of a handle; `size` is that of the file.
    pub(crate) fn closed(&self, handle: u64, size: impl FnOnce() -> u64) {
        let mut state = self.state.lock();
        let Some(file) = state.open.remove(&handle) else { return };
        let pieces = file.writes > FEW_WRITES && file.bytes < u64::from(file.writes) * LARGE_WRITE_BYTES;
        let small = if file.direct { !pieces } else { size() <= SMALL_FILE_BYTES };
        if state.callers.len() >= MAX_CREATORS && !state.callers.contains_key(&file.caller) {
            state.callers.clear();
        }
        let maker = state.callers.entry(file.caller).or_insert(Maker { small: 0, needed: SMALL_FILES });
        maker.small = if small { maker.small.saturating_add(1) } else { 0 };
        if file.direct && !small {
            maker.needed = maker.needed.saturating_mul(4).min(MOST_SMALL_FILES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: i32 = libc::O_WRONLY | libc::O_CREAT;

    /// Makes a file as `caller`, by writes of these sizes; whether it bypassed the cache.
    fn make(c: &Creators, caller: u32, flags: i32, writes: &[u64]) -> bool {
        let direct = c.made(caller, 1, flags);
        if direct {
            writes.iter().for_each(|n| c.wrote(1, *n));
        }
        c.closed(1, || writes.iter().sum());
        direct
    }

    #[test]
    fn who_makes_small_files_in_a_row_bypasses_the_cache_and_others_do_not() {
        let c = Creators::default();
        let row: Vec<bool> = (0..20).map(|_| make(&c, 7, NEW, &[200])).collect();
        assert_eq!(row.iter().filter(|direct| !**direct).count(), SMALL_FILES as usize);
        assert!(row[SMALL_FILES as usize..].iter().all(|direct| *direct));
        assert!(!make(&c, 8, NEW, &[200]), "another caller");
        for flags in [libc::O_RDWR | libc::O_CREAT, NEW | libc::O_APPEND] {
            assert!(!make(&c, 7, flags, &[200]), "{flags:#o}");
        }
    }

    #[test]
    fn large_files_and_files_in_pieces_bring_the_cache_back() {
        let c = Creators::default();
        let warm = || (0..SMALL_FILES).for_each(|_| _ = make(&c, 7, NEW, &[100]));
        warm();
        assert!(
            make(&c, 7, NEW, &[10 << 10; 20]) && make(&c, 7, NEW, &[1 << 20; 9]),
            "large calls are well served"
        );
        assert!(make(&c, 7, NEW, &[80; 3]) && !make(&c, 7, NEW, &[80]), "a log is not");
        assert!(!make(&c, 9, NEW, &[SMALL_FILE_BYTES + 1]));
        (0..SMALL_FILES - 1).for_each(|_| assert!(!make(&c, 9, NEW, &[1])));
    }

    /// An archive of 3,000 files in calls of 512 bytes, each ninth of which is long: 333 files were written past the
    /// cache, a request for each call.
    #[test]
    fn a_caller_that_was_wrong_is_believed_less_each_time() {
        let c = Creators::default();
        let calls = |i: u32| if i % 9 == 8 { 4_000 } else { 2 };
        let direct = (0..3_000).filter(|i| make(&c, 7, NEW, &vec![512; calls(*i)]) && calls(*i) > 2).count();
        assert!((1..=5).contains(&direct), "{direct} long files were written past the cache");
        let mut patience = 0;
        while !make(&c, 7, NEW, &[200]) {
            patience += 1;
            assert!(patience <= MOST_SMALL_FILES, "never believed again");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let c = Creators::default();
        (0..10_000).for_each(|caller| _ = make(&c, caller, NEW, &[1]));
        let state = c.state.lock();
        assert!(state.callers.len() <= MAX_CREATORS && state.open.is_empty());
    }
}
