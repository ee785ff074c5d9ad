//! A small world to test in: a device in memory, a file system on it, and calls by path.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

pub mod merged;
pub mod seeds;
pub mod trees;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pando_db::device::MemDevice;
use pando_fs::*;

pub const O_RDWR: i32 = 2;
pub const O_TRUNC: i32 = 0o1000;
pub const O_APPEND: i32 = 0o2000;
pub const NONE: FileHandle = FileHandle(0);

pub struct World {
    pub device: Arc<MemDevice>,
    pub fs: Fs,
    pub me: Caller,
}

/// Ends the loop of another thread, also where an assertion fails.
pub struct SetWhenDropped<'a>(pub &'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Operations of a merge that are made at once: the same tests run once more in `large_merges`, with every merge made
/// beside the tree, in batches of one operation.
pub fn merge_steps() -> usize {
    if module_path!().contains("::large_merges::") { 0 } else { 10_000 }
}

/// The same tests run once more in `cached_paths`, where calls on all directories use cached paths.
pub fn cached_path_depth() -> usize {
    if module_path!().contains("::cached_paths::") { 0 } else { 32 }
}

/// Bytes that do not compress, the same for a seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut r = Random::new(seed);
    let words = std::iter::repeat_with(|| (r.below(1 << 30) as u64) << 30 ^ r.below(1 << 30) as u64);
    words.flat_map(|word| word.to_le_bytes()[..7].to_vec()).take(len).collect()
}

pub fn options() -> MountOptions {
    let options = MountOptions::default().background(false).atime(AtimePolicy::Noatime);
    options.merge_steps(merge_steps()).cached_path_depth(cached_path_depth()).nameless_bytes(0)
}

impl World {
    pub fn new() -> Self {
        let device = Arc::new(MemDevice::new(64 << 20));
        Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
        let fs = Fs::open(device.clone(), options()).unwrap();
        Self { device, fs, me: Caller::root() }
    }

    /// The same on a device of the test's own.
    pub fn over(fs: Fs) -> Self {
        Self { device: Arc::new(MemDevice::new(0)), fs, me: Caller::root() }
    }

    pub fn remount(&mut self) {
        self.remount_with(options());
    }

    pub fn remount_with(&mut self, o: MountOptions) {
        self.fs.close().unwrap();
        self.fs = Fs::open(self.device.clone(), o).unwrap();
    }

    /// Runs `f` with the directory and name of a path.
    pub fn at<T>(&self, path: &str, f: impl FnOnce(Ino, &OsStr) -> Result<T>) -> Result<T> {
        let (dir, name) = self.fs.resolve_parent(Path::new(path))?;
        let result = f(dir, &name);
        self.fs.forget(dir, 1);
        result
    }

    /// Runs `f` with the attributes of a path.
    pub fn on<T>(&self, path: &str, f: impl FnOnce(Attr) -> Result<T>) -> Result<T> {
        let attr = self.fs.resolve(Path::new(path))?;
        let result = f(attr);
        self.fs.forget(attr.ino, 1);
        result
    }

    pub fn attr(&self, path: &str) -> Attr {
        self.on(path, Ok).unwrap()
    }

    pub fn exists(&self, path: &str) -> bool {
        self.on(path, Ok).is_ok()
    }

    pub fn mkdir(&self, path: &str) -> Ino {
        let attr = self.at(path, |d, n| self.fs.mkdir(&self.me, d, n, 0o755)).unwrap();
        self.fs.forget(attr.ino, 1);
        attr.ino
    }

    pub fn create(&self, path: &str) -> Result<Ino> {
        let (attr, fh) = self.at(path, |d, n| self.fs.create(&self.me, d, n, 0o644, O_RDWR))?;
        self.fs.release(attr.ino, fh);
        self.fs.forget(attr.ino, 1);
        Ok(attr.ino)
    }

    /// Makes (or empties) a file with this content.
    pub fn put(&self, path: &str, data: &[u8]) -> Ino {
        if !self.exists(path) {
            self.create(path).unwrap();
        }
        self.on(path, |a| {
            let fh = self.fs.open_file(&self.me, a.ino, O_RDWR | O_TRUNC)?;
            assert_eq!(self.fs.write(fh, a.ino, 0, data, false)? as usize, data.len());
            self.fs.release(a.ino, fh);
            Ok(a.ino)
        })
        .unwrap()
    }

    pub fn write_at(&self, path: &str, offset: u64, data: &[u8]) -> Result<u32> {
        self.on(path, |a| self.fs.write(NONE, a.ino, offset, data, false))
    }

    pub fn truncate(&self, path: &str, size: u64) -> Result<Attr> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.on(path, |a| self.fs.setattr(&self.me, a.ino, &set))
    }

    pub fn get(&self, path: &str) -> Result<Vec<u8>> {
        self.on(path, |a| self.whole(a.ino))
    }

    /// The whole content of a file, read in parts of an odd size.
    pub fn whole(&self, ino: Ino) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        loop {
            let part = self.fs.read(NONE, ino, out.len() as u64, 100_003)?;
            if part.is_empty() {
                return Ok(out);
            }
            out.extend_from_slice(&part);
        }
    }

    pub fn symlink(&self, path: &str, target: &str) -> Ino {
        let attr = self.at(path, |d, n| self.fs.symlink(&self.me, d, n, OsStr::new(target))).unwrap();
        self.fs.forget(attr.ino, 1);
        attr.ino
    }

    pub fn link(&self, from: &str, to: &str) -> Result<Attr> {
        let attr = self.on(from, |a| self.at(to, |d, n| self.fs.link(&self.me, a.ino, d, n)))?;
        self.fs.forget(attr.ino, 1);
        Ok(attr)
    }

    pub fn unlink(&self, path: &str) -> Result<()> {
        self.at(path, |d, n| self.fs.unlink(&self.me, d, n))
    }

    pub fn rmdir(&self, path: &str) -> Result<()> {
        self.at(path, |d, n| self.fs.rmdir(&self.me, d, n))
    }

    pub fn rename(&self, from: &str, to: &str, flags: u32) -> Result<()> {
        self.at(from, |d, n| self.at(to, |d2, n2| self.fs.rename(&self.me, d, n, d2, n2, flags)))
    }

    pub fn clone_tree(&self, from: &str, to: &str, replace: bool) -> Result<CloneReport> {
        self.clone_as(&self.me, from, to, replace)
    }

    pub fn clone_as(&self, c: &Caller, from: &str, to: &str, replace: bool) -> Result<CloneReport> {
        self.at(from, |d, n| self.at(to, |d2, n2| self.fs.clone_tree(c, (d, n), (d2, n2), replace)))
    }

    pub fn fork(&self, from: &str, to: &str) {
        self.at(from, |d, n| self.at(to, |e, m| self.fs.fork_tree(&self.me, (d, n), (e, m), false, &[])))
            .unwrap();
    }

    /// As one who may do all.
    pub fn merge(&self, fork: &str, into: &str, o: MergeOptions) -> Result<MergeReport> {
        self.on(fork, |f| self.on(into, |i| self.fs.merge(None, f.ino, i.ino, o))).map(|(report, _)| report)
    }

    pub fn remove_tree(&self, path: &str) -> Result<RemoveReport> {
        self.at(path, |d, n| self.fs.remove_tree(&self.me, d, n))
    }

    /// All entries of a directory but "." and "..", listed in parts of `step`.
    pub fn list(&self, ino: Ino, step: usize) -> Vec<DirEntry> {
        let dh = self.fs.opendir(ino).unwrap();
        let mut all: Vec<DirEntry> = Vec::new();
        loop {
            let part = self.fs.readdir(dh, ino, all.last().map_or(0, |e| e.cookie), step).unwrap();
            if part.is_empty() {
                break;
            }
            all.extend(part);
        }
        self.fs.releasedir(dh);
        let dots: Vec<_> = all.drain(..2).map(|e| e.name).collect();
        assert_eq!(dots, [".", ".."]);
        all
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        self.on(path, |a| Ok(self.list(a.ino, 7)))
            .unwrap()
            .into_iter()
            .map(|e| e.name.into_string().unwrap())
            .collect()
    }

    /// path -> attributes of everything below `path`, itself included, checking that listings
    /// and lookups agree and that no number occurs twice.
    pub fn walk(&self, path: &str) -> BTreeMap<String, Attr> {
        let mut found = BTreeMap::new();
        let mut todo = vec![path.trim_end_matches('/').to_string()];
        found.insert(path.trim_end_matches('/').to_string(), self.attr(path));
        while let Some(dir) = todo.pop() {
            let attr = self.attr(if dir.is_empty() { "/" } else { &dir });
            self.on(if dir.is_empty() { "/" } else { &dir }, |a| {
                for e in self.list(a.ino, 5) {
                    let path = format!("{dir}/{}", e.name.to_str().unwrap());
                    let looked_up = self.fs.lookup(a.ino, &e.name)?;
                    self.fs.forget(looked_up.ino, 1);
                    assert_eq!(e.attr, looked_up, "{path}");
                    assert_eq!((e.ino, e.kind), (e.attr.ino, e.attr.kind));
                    if e.kind == FileKind::Directory {
                        todo.push(path.clone());
                    }
                    found.insert(path, e.attr);
                }
                Ok(())
            })
            .unwrap();
            assert_eq!(attr.kind, FileKind::Directory);
        }
        let linked: BTreeSet<_> = found.values().filter(|a| a.nlink > 1).map(|a| a.ino).collect();
        let mut numbers: Vec<_> = found.iter().map(|(p, a)| (a.ino, p)).collect();
        numbers.sort();
        for pair in numbers.windows(2) {
            assert!(
                pair[0].0 != pair[1].0 || linked.contains(&pair[0].0),
                "{} and {} have one inode number",
                pair[0].1,
                pair[1].1
            );
        }
        found
    }

    pub fn numbers(&self, path: &str) -> BTreeMap<String, Ino> {
        self.walk(path).into_iter().map(|(p, a)| (p, a.ino)).collect()
    }

    /// Inodes in memory when nobody refers to any but the root: a test of the counting.
    pub fn assert_nothing_referenced(&self) {
        assert_eq!(self.fs.stats().unwrap().inodes_in_memory, 1, "references were lost");
    }
}

pub fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    result.expect_err("the call should fail").errno()
}

pub const EPERM: i32 = 1;
pub const ENOENT: i32 = 2;
pub const EINTR: i32 = 4;
pub const EBADF: i32 = 9;
pub const EACCES: i32 = 13;
pub const EEXIST: i32 = 17;
pub const ENOTDIR: i32 = 20;
pub const EISDIR: i32 = 21;
pub const EINVAL: i32 = 22;
pub const EXDEV: i32 = 18;
pub const EFBIG: i32 = 27;
pub const EROFS: i32 = 30;
pub const ENAMETOOLONG: i32 = 36;
pub const ENOTEMPTY: i32 = 39;
pub const ESTALE: i32 = 116;

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed).collect()
}

/// Splits an encoded path into the names of its directories and the rest.
fn split(mut path: &[u8]) -> (Vec<Vec<u8>>, &[u8]) {
    let mut dirs = Vec::new();
    while path.first() == Some(&2) {
        let end = path.iter().position(|b| *b == 0).expect("names end");
        dirs.push(path[1..end].to_vec());
        path = &path[end + 1..];
    }
    (dirs, path)
}

fn join(dirs: &[Vec<u8>], last: u8) -> Vec<u8> {
    let mut path = Vec::new();
    for (i, name) in dirs.iter().enumerate() {
        path.push(if i + 1 == dirs.len() { last } else { 2 });
        path.extend_from_slice(name);
        path.push(0);
    }
    path
}

/// Reads all keys, knowing only the documented format, and checks what must hold of them: every
/// entry is in a directory that exists, every block belongs to a file and lies within its size.
pub fn check_keys(w: &World) {
    let report = w.fs.check(|problem| panic!("{problem}")).unwrap();
    assert_eq!(report.problems, 0);
    let mut entries = 0;
    let mut bytes = 0;
    let (mut names, mut indexed) = (BTreeMap::new(), 0);
    let mut records: BTreeMap<Vec<u8>, (u8, u64)> = BTreeMap::new();
    let mut blocks = Vec::new();
    let (mut forks, mut sources, mut policies) = (BTreeMap::new(), Vec::new(), Vec::new());
    for pair in w.fs.db().range(b"", None) {
        let (key, value) = pair.unwrap();
        if key[..4] == [0xff; 4] {
            match key[4] {
                b'K' => _ = forks.insert(value[1..5].to_vec(), key[5..].to_vec()),
                // A big-endian number here, a little-endian one there.
                b'W' => {
                    let (place, number) = key[5..].split_at(key.len() - 9);
                    sources.push((number.iter().rev().copied().collect::<Vec<u8>>(), place.to_vec()));
                }
                b'A' | b'B' => policies.push(key[5..].to_vec()),
                kind => assert!(b"FCLOPETNSRV".contains(&kind), "unknown system key {key:?}"),
            }
            continue;
        }
        if key[..4] != [0; 4] {
            continue; // of a snapshot, which `check` compares with others
        }
        assert_eq!(key[..4], [0; 4]);
        match key[4] {
            b'M' if value[0] == 2 => {
                names.insert(key[5..].to_vec(), value[2..10].to_vec());
            }
            b'M' if value[0] == 3 => {
                indexed += 1;
            }
            b'M' if value[0] == 4 => {}
            b'M' => {
                let size = u64::from_le_bytes(value[12..20].try_into().unwrap());
                records.insert(key[5..].to_vec(), (value[1], size));
                entries += 1;
            }
            b'D' => {
                let (path, block) = key[5..].split_at(key.len() - 13);
                let block = u64::from_be_bytes(block.try_into().unwrap());
                if block >> 56 == 0xa0 {
                    continue; // extended attributes, which `check` compares with the record
                }
                assert!(value.len() <= BLOCK_SIZE as usize && !value.is_empty());
                if block >> 63 != 0 {
                    assert!(value.len() <= 64, "a piece of a map of blocks");
                    continue;
                }
                let start = block * BLOCK_SIZE;
                blocks.push((path.to_vec(), start, value.len() as u64));
                bytes += value.len() as u64;
            }
            region => panic!("unknown region {region}"),
        }
    }
    assert_eq!((report.directories + report.files, report.bytes), (entries, bytes));
    assert_eq!((report.links, indexed), (names.len() as u64, names.len()));
    for path in records.keys().chain(names.keys()).filter(|p| !p.is_empty()) {
        let (dirs, entry) = split(path);
        let parent = join(&dirs, 1);
        if entry[0] == 3 && entry.len() == 9 {
            assert!(dirs.is_empty() || records.contains_key(&parent), "{path:?}");
            continue;
        }
        assert!(entry[0] == 1 && entry.ends_with(&[0]) && entry.len() > 2, "{path:?}");
        let kind = records.get(&parent).map(|r| r.0);
        assert_eq!(kind, Some(2), "{:?} is in no directory", String::from_utf8_lossy(path));
    }
    let dir = |place: &[u8]| records.get(&join(&split(place).0, 1)).is_some_and(|r| r.0 == 2);
    for (number, place) in &forks {
        assert!(dir(place), "fork {number:?} is no directory");
    }
    for (number, place) in &sources {
        assert!(forks.contains_key(number), "{place:?} was forked, and nothing knows of {number:?}");
        assert!(dir(place), "what fork {number:?} is of is no directory");
    }
    for place in &policies {
        assert!(dir(place), "what has the policy of {place:?} is no directory");
    }
    for (path, start, len) in blocks {
        let (kind, size) = records.get(&path).copied().unwrap_or_default();
        assert_eq!(kind, 1, "a block of {:?}, which is no file", String::from_utf8_lossy(&path));
        assert!(start + len <= size, "{:?}: bytes behind its size", String::from_utf8_lossy(&path));
    }
}

/// A small generator of numbers; the same seed gives the same run.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let i = self.below(of.len());
        &of[i]
    }
}

/// Calls `run` with as many seeds and steps each; with those of `PANDO_SEED` and `PANDO_STEPS` where these are set.
pub fn random_runs(seeds: u64, steps: usize, run: impl Fn(u64, usize)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let steps = number("PANDO_STEPS").map_or(steps, |n| n as usize);
    match number("PANDO_SEED") {
        Some(seed) => run(seed, steps),
        None => (1..=seeds).for_each(|seed| run(seed, steps)),
    }
}
