//! Runs of files: readahead across files that are read whole, one after the other, in the order of their keys.
//!
//! `grep -r`, `cp -r`, `tar` and compilers read the files of a directory in the order of its listing, which is the
//! order of their keys. The kernel reads ahead within a file; only the file system knows the next file. So when a few
//! files of a directory have been read whole in order, the data behind the last one are read ahead as if the
//! directory were one file: as many bytes as the run has read so far, up to a bound. So at most as much is read in
//! vain as the program has read. A run continues in the directories below, because their data come next. If the next
//! file that is read lies in a later directory, the program walks through a tree: the run then covers the rest of the
//! directory that contains both.
//!
//! Guarantees: all runs together read at most the stated number of bytes ahead; a run has at most one request in
//! progress; nothing more is read ahead for a run that its program has left. This module knows only keys, by the
//! layout of [`path`].

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::path;

/// Runs that are remembered, a count. If more trees are read at once, the oldest run is forgotten.
const MAX_RUNS: usize = 8;
/// Files that make a run, a count.
const MIN_FILES: u32 = 3;
/// Least bytes of a readahead request.
const MIN_REQUEST_BYTES: u64 = 64 << 10;

/// A readahead request: `bytes` bytes of the pairs in `from..to`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// The run, for [`FileRuns::asked`].
    pub run: u64,
    pub from: Bytes,
    pub to: Bytes,
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct FileRun {
    id: u64,
    /// Data prefixes of the file that was read last, and of its directory.
    last: Bytes,
    dir: Bytes,
    /// Data prefix of the directory that is read ahead.
    top: Bytes,
    /// Files of the run, and their bytes.
    files: u32,
    bytes: u64,
    /// The key up to which was read ahead.
    to: Option<Bytes>,
    /// Bytes of the readahead that the program has not read yet.
    ahead: u64,
    /// Whether a request is in progress.
    busy: bool,
}

/// The runs of a mount, the most recent first.
#[derive(Debug)]
pub(crate) struct FileRuns {
    runs: Mutex<(VecDeque<FileRun>, u64)>,
    /// Most bytes that are read ahead for a run, and for all runs.
    window: u64,
    budget: u64,
}

impl FileRun {
    /// Continues in a directory, which may lie outside of the one that was read ahead so far.
    fn widen(&mut self, dir: &Bytes) {
        let before = self.top.clone();
        while !dir.starts_with(&self.top) {
            match path::data_of_directory(&self.top).filter(|above| above.len() < self.top.len()) {
                Some(above) => self.top = self.top.slice_ref(above),
                // The file is in another volume.
                None => self.top = dir.clone(),
            }
        }
        // The run has reached the end of the range before: all that was read ahead was used.
        if self.top != before && self.to == path::behind(&before) {
            (self.to, self.ahead) = (None, 0);
        }
    }
}

impl FileRuns {
    pub(crate) fn new(window: u64, budget: u64) -> Self {
        Self { runs: Mutex::default(), window, budget }
    }

    /// Notes that the file with the data prefix `file` was read whole, its `size` bytes, and says what to read ahead
    /// now. [`FileRuns::asked`] is to be called when that is done.
    pub(crate) fn read_whole(&self, file: &Bytes, size: u64) -> Option<Wanted> {
        let dir = file.slice_ref(path::data_of_directory(file)?);
        let (runs, last_id) = &mut *self.runs.lock();
        if runs.front().is_some_and(|run| run.last == *file) {
            return None;
        }
        let same_directory = runs.iter().position(|run| run.dir == dir && run.last < *file);
        let was_asked = |run: &FileRun| run.last < *file && run.to.as_ref().is_some_and(|to| file < to);
        let known = same_directory.or_else(|| runs.iter().position(was_asked));
        let before = |run: &FileRun| run.files >= MIN_FILES && run.last < *file;
        let mut run = match known.or_else(|| runs.iter().position(before)) {
            Some(at) => {
                let mut run = runs.remove(at)?;
                run.widen(&dir);
                run
            }
            None => {
                // A file that is not behind the one before makes no run of that.
                runs.retain(|run| run.dir != dir || run.files >= MIN_FILES);
                *last_id += 1;
                FileRun { id: *last_id, top: dir.clone(), ..FileRun::default() }
            }
        };
        match &run.to {
            // Nothing of what was read ahead was used.
            Some(to) if to <= file => {
                run = FileRun { id: run.id, busy: run.busy, top: dir.clone(), ..FileRun::default() };
            }
            _ => {}
        }
        run.files = run.files.saturating_add(1);
        run.bytes = run.bytes.saturating_add(size);
        run.ahead = run.ahead.saturating_sub(size);
        (run.last, run.dir) = (file.clone(), dir);
        let others: u64 = runs.iter().map(|run| run.ahead).sum();
        let window = run.bytes.min(self.window).min(self.budget.saturating_sub(others));
        let wanted = self.wanted(&mut run, window);
        runs.push_front(run);
        runs.truncate(MAX_RUNS);
        wanted
    }

    fn wanted(&self, run: &mut FileRun, window: u64) -> Option<Wanted> {
        if run.files < MIN_FILES || run.busy || window < MIN_REQUEST_BYTES || run.ahead > window / 2 {
            return None;
        }
        let from = run.to.clone().or_else(|| path::behind(&run.last))?;
        let to = path::behind(&run.top)?;
        if from >= to {
            return None;
        }
        let bytes = window - run.ahead;
        run.busy = true;
        run.ahead = window;
        Some(Wanted { run: run.id, from, to, bytes })
    }

    /// Notes that what was wanted has been read ahead, up to the key `to`.
    pub(crate) fn asked(&self, run: u64, to: Bytes) {
        let (runs, _) = &mut *self.runs.lock();
        if let Some(run) = runs.iter_mut().find(|r| r.id == run) {
            run.busy = false;
            // The program has read beyond the readahead.
            if to > run.last {
                run.to = Some(to);
            } else {
                run.ahead = 0;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn runs() -> FileRuns {
        FileRuns::new(4 << 20, 6 << 20)
    }

    fn file(dirs: &[&str], name: &str) -> Bytes {
        let mut dir = Vec::new();
        for name in dirs {
            path::enter(&mut dir, name.as_bytes()).unwrap();
        }
        path::data(&path::entry(&dir, name.as_bytes()).unwrap())
    }

    #[test]
    fn files_in_order_have_as_much_read_ahead_as_was_read_up_to_the_window() {
        let runs = runs();
        let (mut read, mut most) = (0, 0);
        for i in 0..200 {
            let wanted = runs.read_whole(&file(&["d"], &format!("{i:04}")), 100 * KIB);
            read += 100 * KIB;
            let Some(wanted) = wanted else { continue };
            assert!(i >= 2, "two files make no run");
            assert!(wanted.bytes <= read.min(4 << 20), "{} bytes after {read}", wanted.bytes);
            assert!(wanted.from > file(&["d"], &format!("{i:04}")) && wanted.to > wanted.from);
            assert!(
                wanted.to > file(&["d", "z"], "z") && wanted.to < file(&["e"], "a"),
                "the tree and no more"
            );
            most = most.max(wanted.bytes);
            assert_eq!(runs.read_whole(&file(&["d"], &format!("{i:04}")), 100 * KIB), None, "twice");
            // Up to the limit of bytes.
            let ahead = runs.runs.lock().0.front().unwrap().ahead / (100 * KIB);
            runs.asked(wanted.run, file(&["d"], &format!("{:04}", i + 1 + ahead)));
        }
        assert!(most > 1 << 20, "{most}");
    }

    #[test]
    fn a_piece_under_way_a_run_that_was_left_and_files_backwards_ask_for_nothing() {
        let runs = runs();
        let names: Vec<String> = (0..40).map(|i| format!("{i:02}")).collect();
        let ask = |name: &str| runs.read_whole(&file(&["d"], name), 100 * KIB);
        let asks: Vec<_> = names.iter().filter_map(|name| ask(name)).collect();
        assert_eq!(asks.len(), 1, "one is under way");
        // Read ahead up to 45, but read on at 60: in vain, and the run begins anew.
        runs.asked(asks[0].run, file(&["d"], "45"));
        assert_eq!((ask("60"), ask("61")), (None, None));
        assert!(ask("62").is_some());
        let other = |name: &str| runs.read_whole(&file(&["e"], name), 100 * KIB);
        let asks = names.iter().rev().filter_map(|name| other(name)).count();
        assert!(asks == 0, "backwards {asks}");
    }

    #[test]
    fn a_run_goes_on_in_the_directories_below() {
        let runs = runs();
        let mut wanted = None;
        for i in 0..4 {
            wanted = wanted.or(runs.read_whole(&file(&["d"], &format!("{i}")), 200 * KIB));
        }
        let wanted = wanted.unwrap();
        runs.asked(wanted.run, file(&["d", "below"], "5"));
        let below = runs.read_whole(&file(&["d", "below"], "1"), 200 * KIB).unwrap();
        assert_eq!(below.run, wanted.run);
        assert_eq!(below.from, file(&["d", "below"], "5"), "from where the last piece ended");
    }

    /// In a walk through a tree, the first files of each directory are read ahead already. A program that opens one
    /// file elsewhere begins a new run there.
    #[test]
    fn a_run_goes_on_in_the_directories_beside() {
        let runs = runs();
        let read = |dirs: &[&str], name: &str| runs.read_whole(&file(dirs, name), 100 * KIB);
        let behind =
            |dirs: &[&str]| path::behind(path::data_of_directory(&file(dirs, "x")).unwrap()).unwrap();
        let wanted = ["1", "2", "3", "4"]
            .iter()
            .fold(None, |last, name| read(&["t", "a", "x"], name).or(last))
            .unwrap();
        assert_eq!(wanted.to, behind(&["t", "a", "x"]));
        runs.asked(wanted.run, wanted.to);
        let beside = read(&["t", "a", "y"], "1").unwrap();
        assert_eq!((beside.run, &beside.to), (wanted.run, &behind(&["t", "a"])));
        assert!(beside.from > file(&["t", "a", "y"], "1") && beside.bytes >= 400 * KIB);
        runs.asked(beside.run, file(&["t", "a", "y"], "5"));
        assert!(
            ["2", "3", "4"]
                .iter()
                .all(|name| read(&["t", "a", "y"], name).is_none_or(|w| w.run == wanted.run))
        );
        runs.asked(wanted.run, beside.to);
        let above = read(&["t", "b"], "1").unwrap();
        assert_eq!((above.run, above.to), (wanted.run, behind(&["t"])));
        runs.asked(wanted.run, file(&["t", "c"], "1"));
        assert_eq!(read(&["u"], "1"), None, "what was read ahead was in vain");
        assert_eq!(read(&["v"], "1"), None, "one file is no walk");
    }

    #[test]
    fn all_runs_together_keep_to_their_budget() {
        let runs = runs();
        let mut all = 0;
        for dir in 0..6 {
            for i in 0..100 {
                let wanted = runs.read_whole(&file(&[&format!("{dir}")], &format!("{i:03}")), 100 * KIB);
                if let Some(wanted) = wanted {
                    all += wanted.bytes;
                }
            }
        }
        // Each run asked once, and nothing of it was read: the bytes of the files behind count as read.
        let ahead: u64 = runs.runs.lock().0.iter().map(|run| run.ahead).sum();
        assert!(ahead <= 6 << 20 && all > 0, "{ahead} of {all}");
    }

    #[test]
    fn keys_around_a_file() {
        let name_with_markers = file(&["a\u{1}b", "\u{2}"], "\u{1}x\u{2}");
        let dir = path::data_of_directory(&name_with_markers).unwrap();
        assert!(name_with_markers.starts_with(dir));
        assert_eq!(dir, path::data_of_directory(&file(&["a\u{1}b", "\u{2}"], "other")).unwrap());
        assert!(path::block(&name_with_markers, u64::MAX) < path::behind(&name_with_markers).unwrap());
        let root = file(&[], "x");
        assert!(path::behind(path::data_of_directory(&root).unwrap()).unwrap() > file(&["z"], "z"));
    }
}
