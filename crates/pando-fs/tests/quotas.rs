//! Quotas: what is counted, what is refused, and that counts stay exact whatever is done, by whom, and after crashes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use pando_db::device::MemDevice;
use pando_fs::{
    Authority, Caller, Error, FileHandle, FormatOptions, Fs, Ino, MergeOptions, MergeSide, MountOptions,
    NewSnapshot, ROOT, SetAttr,
};

const EDQUOT: i32 = 122;
const EXDEV: i32 = 18;
const KIB: u64 = 1024;

fn me() -> Caller {
    Caller::root()
}

struct Scene {
    device: Arc<MemDevice>,
    fs: Fs,
}

impl Scene {
    fn new() -> Self {
        let device = Arc::new(MemDevice::new(256 << 20));
        Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
        let fs = Self::mount(&device);
        Self { device, fs }
    }

    fn mount(device: &Arc<MemDevice>) -> Fs {
        let steps = super::common::merge_steps();
        Fs::open(device.clone(), MountOptions::default().background(false).merge_steps(steps)).unwrap()
    }

    fn again(self) -> Self {
        self.fs.close().unwrap();
        drop(self.fs);
        let fs = Self::mount(&self.device);
        Self { device: self.device, fs }
    }

    fn ino(&self, path: &str) -> Ino {
        let attr = self.fs.resolve(Path::new(path)).unwrap();
        attr.ino
    }

    fn split<'a>(&self, path: &'a str) -> (Ino, &'a std::ffi::OsStr) {
        let path = Path::new(path);
        (self.ino(path.parent().unwrap().to_str().unwrap()), path.file_name().unwrap())
    }

    fn mkdir(&self, path: &str) -> Ino {
        let (dir, name) = self.split(path);
        self.fs.mkdir(&me(), dir, name, 0o755).unwrap().ino
    }

    fn create(&self, path: &str) -> Ino {
        let (dir, name) = self.split(path);
        let (attr, handle) = self.fs.create(&me(), dir, name, 0o644, 2).unwrap();
        self.fs.release(attr.ino, handle);
        attr.ino
    }

    fn try_write(&self, path: &str, offset: u64, len: usize) -> Result<u32, Error> {
        let ino = match self.fs.resolve(Path::new(path)) {
            Ok(attr) => attr.ino,
            Err(_) => self.create(path),
        };
        self.fs.write(FileHandle(0), ino, offset, &vec![7; len], false)
    }

    fn write(&self, path: &str, offset: u64, len: usize) {
        assert_eq!(self.try_write(path, offset, len).unwrap() as usize, len);
    }

    fn truncate(&self, path: &str, size: u64) -> Result<(), Error> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.fs.setattr(&me(), self.ino(path), &set).map(drop)
    }

    fn clone(&self, from: &str, to: &str) -> Result<(), Error> {
        self.fs.clone_tree(&me(), self.split(from), self.split(to), false).map(drop)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let ((a, b), (c, d)) = (self.split(from), self.split(to));
        self.fs.rename(&me(), a, b, c, d, 0)
    }

    fn link(&self, from: &str, to: &str) -> Result<(), Error> {
        let (dir, name) = self.split(to);
        self.fs.link(&me(), self.ino(from), dir, name).map(drop)
    }

    fn unlink(&self, path: &str) {
        let (dir, name) = self.split(path);
        self.fs.unlink(&me(), dir, name).unwrap();
    }

    fn used(&self, path: &str) -> u64 {
        self.quota(path).1
    }

    /// Limit, use, and whether that is to be counted again.
    fn quota(&self, path: &str) -> (u64, u64, bool) {
        let quotas = self.fs.quotas(ROOT).unwrap();
        let found = quotas.iter().find(|quota| quota.path == Path::new(path));
        let found = found.unwrap_or_else(|| panic!("{path} is not among {quotas:?}"));
        (found.limit, found.used, found.stale)
    }

    fn quota_paths(&self) -> Vec<PathBuf> {
        self.fs.quotas(ROOT).unwrap().into_iter().map(|quota| quota.path).collect()
    }

    fn set(&self, path: &str, limit: u64) {
        self.fs.set_quota(self.ino(path), Some(limit)).unwrap();
    }

    fn check(&self) {
        let mut told = Vec::new();
        let report = self.fs.check(|text| told.push(text.to_owned())).unwrap();
        assert_eq!(report.problems, 0, "{told:?}");
    }
}

fn errno<T>(result: Result<T, Error>) -> i32 {
    result.err().expect("an error").errno()
}

#[test]
fn a_quota_counts_what_is_there_and_refuses_what_is_too_much() {
    let s = Scene::new();
    s.mkdir("/d");
    s.mkdir("/d/sub");
    s.write("/d/sub/old", 0, 100 << 10);
    s.set("/d", 200 * KIB);
    assert_eq!(s.quota("/d"), (200 * KIB, 100 * KIB, false));
    s.write("/d/new", 0, 64 << 10);
    s.write("/d/sub/old", 50 << 10, 10 << 10); // over what is there
    assert_eq!(s.used("/d"), 164 * KIB);
    assert_eq!(errno(s.try_write("/d/more", 0, 50 << 10)), EDQUOT);
    assert_eq!(errno(s.try_write("/d/new", 64 << 10, 50 << 10)), EDQUOT);
    // What fits of a large write is written.
    assert_eq!(s.try_write("/d/most", 0, 1 << 20).map_err(|e| e.errno()), Err(EDQUOT));
    s.truncate("/d/sub/old", 0).unwrap();
    assert_eq!(s.used("/d"), 64 * KIB);
    assert_eq!(s.try_write("/d/most", 0, 1 << 20).unwrap(), 128 << 10);
    // The kernel does not write the rest of pages of which a part was written: that is an error.
    let most = s.ino("/d/most");
    assert_eq!(errno(s.fs.write_pages(most, 0, &vec![8; 1 << 20])), EDQUOT);
    let (dir, name) = s.split("/d/most");
    s.fs.unlink(&me(), dir, name).unwrap();
    assert_eq!(s.used("/d"), 64 * KIB);
    // Holes take nothing, and are not refused.
    s.truncate("/d/sub/old", 1 << 30).unwrap();
    s.write("/d/sub/old", 512 << 20, 16 << 10);
    assert_eq!(s.used("/d"), 80 * KIB);
    // A lower limit than what is taken refuses only what makes it more.
    s.set("/d", 10 * KIB);
    assert_eq!(errno(s.try_write("/d/new", 64 << 10, 1 << 10)), EDQUOT);
    s.write("/d/new", 0, 10 << 10);
    s.check();
    let s = s.again();
    assert_eq!(s.quota("/d"), (10 * KIB, 80 * KIB, false));
    s.fs.set_quota(s.ino("/d"), None).unwrap();
    assert!(s.quota_paths().is_empty());
    s.write("/d/new", 60 << 10, 1 << 20);
    s.check();
}

#[test]
fn nested_quotas_all_hold_and_moves_are_counted_on_both_sides() {
    let s = Scene::new();
    for dir in ["/a", "/a/in", "/b"] {
        s.mkdir(dir);
    }
    s.set("/a", 300 * KIB);
    s.set("/a/in", 100 * KIB);
    s.set("/b", 100 * KIB);
    s.write("/a/in/f", 0, 90 << 10);
    assert_eq!(errno(s.try_write("/a/in/g", 0, 20 << 10)), EDQUOT);
    assert_eq!((s.used("/a"), s.used("/a/in")), (90 * KIB, 90 * KIB));
    s.rename("/a/in/f", "/a/f").unwrap();
    assert_eq!((s.used("/a"), s.used("/a/in")), (90 * KIB, 0));
    s.rename("/a/f", "/b/f").unwrap();
    assert_eq!((s.used("/a"), s.used("/b")), (0, 90 * KIB));
    // A directory that was never counted, with what is below.
    s.mkdir("/tree");
    s.mkdir("/tree/deep");
    s.write("/tree/deep/f", 0, 50 << 10);
    assert_eq!(errno(s.rename("/tree", "/b/tree")), EDQUOT);
    s.rename("/tree", "/a/tree").unwrap();
    assert_eq!(s.used("/a"), 50 * KIB);
    s.rename("/a/tree/deep", "/a/in/deep").unwrap();
    assert_eq!((s.used("/a"), s.used("/a/in")), (50 * KIB, 50 * KIB));
    s.write("/a/in/deep/f", 50 << 10, 10 << 10);
    assert_eq!((s.used("/a"), s.used("/a/in")), (60 * KIB, 60 * KIB));
    // Exchange: what is in the quota is replaced by what is not.
    s.mkdir("/out");
    s.write("/out/f", 0, 20 << 10);
    let ((a, b), (c, d)) = (s.split("/out"), s.split("/a/in/deep"));
    s.fs.rename(&me(), a, b, c, d, pando_fs::RENAME_EXCHANGE).unwrap();
    assert_eq!((s.used("/a"), s.used("/a/in")), (20 * KIB, 20 * KIB));
    // A rename over another file, and of a directory with a quota.
    s.write("/a/g", 0, 30 << 10);
    s.rename("/b/f", "/a/g").unwrap();
    assert_eq!((s.used("/a"), s.used("/b")), (110 * KIB, 0));
    s.rename("/a/in", "/b/in").unwrap();
    assert_eq!((s.used("/a"), s.used("/b"), s.used("/b/in")), (90 * KIB, 20 * KIB, 20 * KIB));
    let (dir, name) = s.split("/b/in");
    s.fs.remove_tree(&me(), dir, name).unwrap();
    assert_eq!(s.used("/b"), 0);
    s.check();
}

/// A limit holds to the last unit of 512 bytes.
#[test]
fn a_tree_takes_all_that_its_limit_allows_and_no_unit_more() {
    let s = Scene::new();
    s.mkdir("/d");
    s.set("/d", 100 * KIB);
    s.write("/d/f", 0, 100 << 10);
    assert_eq!(s.used("/d"), 100 * KIB);
    assert_eq!(errno(s.try_write("/d/f", 100 << 10, 1)), EDQUOT);
    assert_eq!(errno(s.try_write("/d/g", 0, 1)), EDQUOT);
    s.truncate("/d/f", (100 << 10) - 512).unwrap();
    s.write("/d/g", 0, 512);
    assert_eq!(errno(s.try_write("/d/g", 512, 1)), EDQUOT);
    assert_eq!(s.used("/d"), 100 * KIB);
    s.check();
}

/// A write is counted in the accounts from the lowest one up, until one refuses it.
#[test]
fn what_an_outer_quota_refuses_is_not_counted_in_an_inner_one() {
    let s = Scene::new();
    s.mkdir("/a");
    s.mkdir("/a/in");
    s.set("/a", 100 * KIB);
    s.set("/a/in", 300 * KIB);
    s.write("/a/in/f", 0, 60 << 10);
    for _ in 0..9 {
        assert_eq!(errno(s.try_write("/a/in/g", 0, 50 << 10)), EDQUOT);
    }
    assert_eq!((s.used("/a"), s.used("/a/in")), (60 * KIB, 60 * KIB));
    s.set("/a", 400 * KIB);
    s.write("/a/in/g", 0, 200 << 10);
    assert_eq!((s.used("/a"), s.used("/a/in")), (260 * KIB, 260 * KIB));
    s.check();
}

#[test]
fn a_clone_carries_its_count_and_is_counted_where_it_is() {
    let s = Scene::new();
    s.mkdir("/q");
    s.mkdir("/q/base");
    s.write("/q/base/f", 0, 100 << 10);
    s.set("/q", 350 * KIB);
    s.clone("/q/base", "/q/one").unwrap();
    s.clone("/q/base", "/q/two").unwrap();
    assert_eq!(s.used("/q"), 300 * KIB);
    assert_eq!(errno(s.clone("/q/base", "/q/three")), EDQUOT);
    s.write("/q/one/f", 100 << 10, 20 << 10);
    let (dir, name) = s.split("/q/two");
    s.fs.remove_tree(&me(), dir, name).unwrap();
    assert_eq!(s.used("/q"), 220 * KIB);
    // One that replaces another; one of a file; one without a part.
    s.fs.clone_tree(&me(), s.split("/q/one"), s.split("/q/base"), true).unwrap();
    assert_eq!(s.used("/q"), 240 * KIB);
    s.clone("/q/one/f", "/q/f").unwrap_err();
    s.set("/q", 1 << 30);
    s.clone("/q/one/f", "/q/f").unwrap();
    assert_eq!(s.used("/q"), 360 * KIB);
    let parts = [PathBuf::from("one"), PathBuf::from("f"), PathBuf::from("none"), PathBuf::from("one/f")];
    s.fs.clone_tree_without(&me(), (ROOT, "q".as_ref()), s.split("/q/copy"), false, &parts).unwrap();
    assert_eq!(s.quota("/q"), (1 << 30, 480 * KIB, false));
    assert_eq!(s.quota("/q/copy"), (1 << 30, 120 * KIB, false), "a clone has the quota of its source");
    // The clone of a directory with a quota outside of it.
    s.clone("/q", "/r").unwrap();
    assert_eq!(s.quota("/r"), (1 << 30, 480 * KIB, false));
    assert_eq!(s.quota("/r/copy"), (1 << 30, 120 * KIB, false));
    s.write("/r/copy/base/f", 120 << 10, 4 << 10);
    assert_eq!((s.used("/r"), s.used("/r/copy"), s.used("/q")), (484 * KIB, 124 * KIB, 480 * KIB));
    s.check();
    let s = s.again();
    assert_eq!((s.used("/r"), s.used("/r/copy"), s.used("/q")), (484 * KIB, 124 * KIB, 480 * KIB));
    s.check();
}

/// A tree that was cloned below a quota has an account, and is no root of a lineage: files in it may get names outside.
#[test]
fn a_file_with_a_new_name_outside_leaves_the_account_of_its_tree() {
    let s = Scene::new();
    for dir in ["/q", "/q/t"] {
        s.mkdir(dir);
    }
    s.set("/q", 1 << 20);
    s.write("/q/t/f", 0, 100 << 10);
    s.clone("/q/t", "/q/copy").unwrap();
    assert_eq!(s.used("/q"), 200 * KIB);
    let (dir, name) = s.split("/q/f");
    s.fs.link(&me(), s.ino("/q/t/f"), dir, name).unwrap();
    assert_eq!(s.used("/q"), 200 * KIB);
    s.check();
    let (dir, name) = s.split("/q/t");
    s.fs.remove_tree(&me(), dir, name).unwrap();
    s.fs.count_links().unwrap();
    assert_eq!(s.used("/q"), 200 * KIB, "the file has a name");
    s.check();
}

/// A directory with a quota is one that no file has names in and outside of. One that had been moved into a clone and
/// back was no such directory any more: the bytes of files with two names in it were not counted.
#[test]
fn linked_files_do_not_leave_a_quota_that_was_in_a_clone() {
    let s = Scene::new();
    for dir in ["/s", "/d"] {
        s.mkdir(dir);
    }
    s.set("/d", 1 << 20);
    s.write("/d/f", 0, 100 << 10);
    s.clone("/s", "/c").unwrap();
    s.rename("/d", "/c/d").unwrap();
    s.rename("/c/d", "/d").unwrap();
    assert_eq!(s.used("/d"), 100 * KIB);
    let link = |from: &str, to: &str| {
        let (dir, name) = s.split(to);
        s.fs.link(&me(), s.ino(from), dir, name)
    };
    link("/d/f", "/d/g").unwrap();
    assert_eq!(s.used("/d"), 100 * KIB, "a second name");
    s.create("/out");
    assert_eq!(errno(link("/d/g", "/g")), EXDEV);
    assert_eq!(errno(link("/out", "/d/out")), EXDEV);
    s.write("/d/g", 100 << 10, 10 << 10);
    assert_eq!(s.used("/d"), 110 * KIB);
    s.check();
}

#[test]
fn linked_files_are_counted_once_and_do_not_leave_a_quota() {
    let s = Scene::new();
    s.mkdir("/d");
    s.mkdir("/d/sub");
    s.set("/d", 1 << 20);
    s.write("/d/sub/f", 0, 100 << 10);
    let link = |from: &str, to: &str| {
        let (dir, name) = s.split(to);
        s.fs.link(&me(), s.ino(from), dir, name)
    };
    link("/d/sub/f", "/d/g").unwrap();
    assert_eq!(s.used("/d"), 100 * KIB);
    s.create("/out");
    assert_eq!(errno(link("/out", "/d/out")), EXDEV);
    assert_eq!(errno(link("/d/g", "/g")), EXDEV);
    s.write("/d/g", 100 << 10, 10 << 10);
    let unlink = |path: &str| {
        let (dir, name) = s.split(path);
        s.fs.unlink(&me(), dir, name).unwrap();
    };
    unlink("/d/sub/f");
    assert_eq!(s.used("/d"), 110 * KIB);
    // The last name may be moved out.
    s.rename("/d/g", "/g").unwrap();
    assert_eq!(s.used("/d"), 0);
    s.rename("/g", "/d/g").unwrap();
    assert_eq!(s.used("/d"), 110 * KIB);
    unlink("/d/g");
    assert_eq!(s.used("/d"), 0);
    s.check();
    // A directory with such names is no root of a lineage, and cannot become one.
    s.mkdir("/e");
    s.write("/e/f", 0, 10 << 10);
    link("/e/f", "/e/g").unwrap();
    assert_eq!(errno(s.fs.set_quota(s.ino("/e"), Some(1 << 20))), 22);
    s.clone("/e", "/copy").unwrap();
    s.fs.count_links().unwrap();
    s.set("/copy", 1 << 20);
    assert_eq!(s.used("/copy"), 10 * KIB);
    // A copy of a part of a lineage is counted again.
    s.rename("/e", "/d/e").unwrap_err();
    s.clone("/copy", "/d/copy").unwrap();
    assert_eq!(s.used("/d"), 10 * KIB);
    s.mkdir("/d/part");
    s.write("/d/part/f", 0, 20 << 10);
    link("/d/part/f", "/d/part/g").unwrap();
    s.clone("/d/part", "/d/again").unwrap();
    s.fs.count_links().unwrap();
    s.fs.count_quotas().unwrap();
    assert_eq!(s.quota("/d"), (1 << 20, 50 * KIB, false));
    s.check();
}

/// They have a size, and no blocks.
#[test]
fn symbolic_links_take_nothing_wherever_their_names_go() {
    let s = Scene::new();
    let d = s.mkdir("/d");
    let sub = s.mkdir("/d/sub");
    s.set("/d", 1 << 20);
    s.write("/d/sub/f", 0, 10 << 10);
    // A count without a limit, which the link area of the lineage is not in.
    s.clone("/d/sub", "/d/copy").unwrap();
    let link = s.fs.symlink(&me(), sub, "s".as_ref(), "target".as_ref()).unwrap().ino;
    s.fs.link(&me(), link, d, "again".as_ref()).unwrap();
    s.check();
    s.fs.unlink(&me(), sub, "s".as_ref()).unwrap();
    s.rename("/d/again", "/d/copy/last").unwrap();
    s.check();
    s.clone("/d/copy/last", "/d/one more").unwrap();
    s.rename("/d/copy/last", "/out").unwrap();
    assert_eq!(s.quota("/d"), (1 << 20, 20 * KIB, false));
    s.check();
}

#[test]
fn merges_and_rollbacks_are_counted_afterwards() {
    let s = Scene::new();
    s.mkdir("/q");
    s.mkdir("/q/base");
    s.mkdir("/q/base/sub");
    s.write("/q/base/f", 0, 100 << 10);
    s.set("/q", 1 << 20);
    s.set("/q/base/sub", 1 << 20);
    let w = s.mkdir("/w");
    s.fs.fork_tree(&me(), s.split("/q/base"), (w, "fork".as_ref()), false, &[]).unwrap();
    s.write("/w/fork/g", 0, 50 << 10);
    s.write("/w/fork/sub/h", 0, 30 << 10);
    let (report, _) = s.fs.merge(None, s.ino("/w/fork"), s.ino("/q/base"), MergeOptions::default()).unwrap();
    assert!(report.merged);
    assert!(s.quota("/q").2 && s.quota("/q/base/sub").2, "not counted yet");
    s.check();
    s.fs.count_quotas().unwrap();
    assert_eq!(s.quota("/q"), (1 << 20, 180 * KIB, false));
    assert_eq!(s.quota("/q/base/sub"), (1 << 20, 30 * KIB, false));
    s.check();
    let snapshot = NewSnapshot { name: Some("s".into()), ..NewSnapshot::default() };
    let base = s.ino("/q/base");
    let (info, _) = s.fs.snapshot(Authority::Caller(&me()), base, &snapshot).unwrap();
    s.write("/q/base/f", 100 << 10, 100 << 10);
    assert_eq!(s.used("/q"), 280 * KIB);
    s.fs.rollback(Authority::Caller(&me()), base, info.number, false).unwrap();
    assert!(s.quota("/q").2);
    let s = s.again();
    // Whoever changes something below has it counted.
    s.write("/q/base/f", 0, 1);
    s.fs.count_quotas().unwrap();
    assert_eq!(s.quota("/q"), (1 << 20, 180 * KIB, false));
    // A clone of a snapshot.
    let root = s.fs.open_snapshot(s.ino("/q/base"), info.number).unwrap().ino;
    s.fs.clone_snapshot(Authority::Caller(&me()), root, s.split("/q/old"), false).unwrap();
    assert_eq!(s.quota("/q"), (1 << 20, 360 * KIB, false));
    s.check();
}

/// What comes with a rollback is refused by a limit around it, as in a clone. Its own limit is that of the place.
#[test]
fn a_rollback_keeps_to_the_quotas_above() {
    for discard in [true, false] {
        let mut s = Scene::new();
        for dir in ["/q", "/q/d", "/q/d/in"] {
            s.mkdir(dir);
        }
        s.write("/q/d/in/f", 0, 600 << 10);
        let by = me();
        let info = s.fs.snapshot(Authority::Caller(&by), s.ino("/q/d"), &NewSnapshot::default()).unwrap().0;
        s.fs.set_quota(s.ino("/q"), Some(1 << 20)).unwrap();
        let (dir, name) = s.split("/q/d/in/f");
        s.fs.unlink(&by, dir, name).unwrap();
        s.write("/q/d/new", 0, 100 << 10);
        s.write("/q/other", 0, 500 << 10);
        for _ in 0..2 {
            let before = s.ino("/q/d");
            let rolled = s.fs.rollback(Authority::Caller(&by), before, info.number, discard);
            assert_eq!(rolled.map(drop).unwrap_err().errno(), EDQUOT);
            assert_eq!(s.ino("/q/d"), before);
            assert!(s.fs.resolve(Path::new("/q/d/new")).is_ok());
            s = s.again();
        }
        let (dir, name) = s.split("/q/other");
        s.fs.unlink(&by, dir, name).unwrap();
        s.fs.rollback(Authority::Caller(&by), s.ino("/q/d"), info.number, discard).unwrap();
        // At once, not only when it has been counted again.
        let fits = s.try_write("/q/more", 0, 500 << 10).unwrap();
        assert!((300 << 10..=424 << 10).contains(&fits), "{fits}");
        s.fs.check(|problem| panic!("{problem}")).unwrap();
    }
}

/// Links below a directory lie with the tree around it: they go with it, and what a snapshot brings takes their place.
#[test]
fn a_rollback_of_linked_files_to_what_is_there_fits_into_a_quota() {
    let s = Scene::new();
    s.mkdir("/q");
    s.fs.set_quota(s.ino("/q"), Some(1 << 20)).unwrap();
    s.mkdir("/q/d");
    s.write("/q/d/f", 0, 600 << 10);
    let by = me();
    s.fs.link(&by, s.ino("/q/d/f"), s.ino("/q/d"), "g".as_ref()).unwrap();
    let info = s.fs.snapshot(Authority::Caller(&by), s.ino("/q/d"), &NewSnapshot::default()).unwrap().0;
    s.fs.rollback(Authority::Caller(&by), s.ino("/q/d"), info.number, true).unwrap();
    s.fs.check(|problem| panic!("{problem}")).unwrap();
}

/// With a quota of its own and none above it.
#[test]
fn what_a_rollback_brought_is_counted_without_a_further_change() {
    let s = Scene::new();
    s.mkdir("/d");
    s.write("/d/f", 0, 100 << 10);
    s.set("/d", 1 << 20);
    let snapshot = NewSnapshot::default();
    let (info, _) = s.fs.snapshot(Authority::Caller(&me()), s.ino("/d"), &snapshot).unwrap();
    s.write("/d/g", 0, 50 << 10);
    s.fs.rollback(Authority::Caller(&me()), s.ino("/d"), info.number, false).unwrap();
    s.fs.count_quotas().unwrap();
    assert_eq!(s.quota("/d"), (1 << 20, 100 * KIB, false));
    // After a crash it is when somebody asks.
    s.fs.rollback(Authority::Caller(&me()), s.ino("/d"), info.number, false).unwrap();
    let s = s.again();
    let _asked = s.fs.quotas(s.ino("/d")).unwrap();
    s.fs.count_quotas().unwrap();
    assert_eq!(s.quota("/d"), (1 << 20, 100 * KIB, false));
    s.check();
}

#[test]
fn a_merge_keeps_to_the_quotas_in_and_around_its_directory() {
    let s = Scene::new();
    let w = s.mkdir("/w");
    for dir in ["/q", "/q/base", "/q/base/sub", "/q/base/free"] {
        s.mkdir(dir);
    }
    s.write("/q/base/old", 0, 60 << 10);
    s.write("/q/base/sub/old", 0, 20 << 10);
    s.write("/q/base/moves", 0, 50 << 10);
    let fork = |name: &str| {
        s.fs.fork_tree(&me(), s.split("/q/base"), (w, name.as_ref()), false, &[]).unwrap();
        format!("/w/{name}")
    };
    let merge = |fork: &str| s.fs.merge(None, s.ino(fork), s.ino("/q/base"), MergeOptions::default());
    let refused = |fork: &str, dir: &str| {
        let keys = || s.fs.db().prefix(b"").count();
        let before = (s.used("/q"), keys());
        match merge(fork).unwrap_err() {
            Error::QuotaExceeded(name) => assert!(name.ends_with(dir), "{name}, not {dir}"),
            e => panic!("{e}"),
        }
        s.fs.count_quotas().unwrap();
        assert_eq!(before, (s.used("/q"), keys()), "something was left");
        s.check();
    };
    // A new file, a new tree with linked files in it, a file that grows; each 200 KiB.
    let (file, tree, grown) = (fork("file"), fork("tree"), fork("grown"));
    s.write(&format!("{file}/new"), 0, 200 << 10);
    s.mkdir(&format!("{tree}/d"));
    s.write(&format!("{tree}/d/a"), 0, 100 << 10);
    s.write(&format!("{tree}/d/b"), 0, 100 << 10);
    s.link(&format!("{tree}/d/b"), &format!("{tree}/d/c")).unwrap();
    s.write(&format!("{grown}/old"), 0, 260 << 10);
    // In a directory with a quota of its own: 40 KiB come there, as a new file, by a rename, by growing.
    let (inner, renamed, longer) = (fork("inner"), fork("renamed"), fork("longer"));
    s.write(&format!("{inner}/sub/new"), 0, 40 << 10);
    s.rename(&format!("{renamed}/moves"), &format!("{renamed}/sub/moved")).unwrap();
    s.write(&format!("{longer}/sub/old"), 0, 60 << 10);
    // What goes makes room for what comes.
    let swapped = fork("swapped");
    s.write(&format!("{swapped}/other"), 0, 130 << 10);
    s.unlink(&format!("{swapped}/old"));
    s.unlink(&format!("{swapped}/moves"));

    s.set("/q", 200 << 10);
    s.set("/q/base/sub", 50 << 10);
    assert_eq!((s.used("/q"), s.used("/q/base/sub")), (130 * KIB, 20 * KIB));
    for fork in [&file, &tree, &grown] {
        refused(fork, "q");
    }
    for fork in [&inner, &renamed, &longer] {
        refused(fork, "base/sub");
    }
    assert!(merge(&swapped).unwrap().0.merged);
    // Known before it is counted.
    assert_eq!(s.quota("/q"), (200 << 10, 150 * KIB, true));
    assert!(u64::from(s.try_write("/q/more", 0, 60 << 10).unwrap()) <= 50 * KIB, "as if nothing had come");
    s.unlink("/q/more");
    s.fs.count_quotas().unwrap();
    assert_eq!(s.quota("/q"), (200 << 10, 150 * KIB, false));
    // Of the directory itself.
    s.set("/q", 10 << 20);
    s.set("/q/base", 250 << 10);
    refused(&file, "base");
    s.set("/q/base", 350 << 10);
    assert!(merge(&file).unwrap().0.merged);
    s.fs.count_quotas().unwrap();
    assert_eq!(s.quota("/q/base"), (350 << 10, 350 * KIB, false));
    s.check();
}

/// A linked file that loses a name to a merge keeps its space, because its other name stays.
#[test]
fn a_merge_that_replaces_one_name_of_a_linked_file_frees_nothing_of_it() {
    let s = Scene::new();
    let w = s.mkdir("/w");
    s.mkdir("/s");
    s.set("/s", 1 << 20);
    s.write("/s/f", 0, 60 << 10);
    s.link("/s/f", "/s/g").unwrap();
    s.fs.fork_tree(&me(), s.split("/s"), (w, "fork".as_ref()), false, &[]).unwrap();
    s.unlink("/w/fork/f");
    s.write("/w/fork/f", 0, 30 << 10);
    s.write("/s/more", 0, 20 << 10);
    s.set("/s", 100 << 10);
    let merge = || s.fs.merge(None, s.ino("/w/fork"), s.ino("/s"), MergeOptions::default());
    assert_eq!(errno(merge()), EDQUOT);
    s.set("/s", 110 << 10);
    assert!(merge().unwrap().0.merged);
    s.fs.count_quotas().unwrap();
    assert_eq!(s.quota("/s"), (110 << 10, 110 * KIB, false));
    s.check();
}

/// The fork has moved a file into a new directory, and this side has deleted it: the directory is taken without it.
#[test]
fn a_merge_does_not_count_what_it_leaves_out_of_a_new_directory() {
    let s = Scene::new();
    let w = s.mkdir("/w");
    s.mkdir("/s");
    s.write("/s/old", 0, 60 << 10);
    s.fs.fork_tree(&me(), s.split("/s"), (w, "fork".as_ref()), false, &[]).unwrap();
    s.mkdir("/w/fork/new");
    s.rename("/w/fork/old", "/w/fork/new/old").unwrap();
    s.write("/w/fork/new/more", 0, 20 << 10);
    s.unlink("/s/old");
    s.set("/s", 30 << 10);
    let options = MergeOptions { prefer: Some(MergeSide::Ours), ..MergeOptions::default() };
    assert!(s.fs.merge(None, s.ino("/w/fork"), s.ino("/s"), options).unwrap().0.merged);
    s.fs.count_quotas().unwrap();
    assert_eq!(s.quota("/s"), (30 << 10, 20 * KIB, false));
    s.check();
}

/// Linked files lie in an area of their lineage, and the account of a part of it knows nothing of them.
#[test]
fn a_clone_of_a_part_with_linked_files_keeps_to_a_quota() {
    let s = Scene::new();
    for dir in ["/q", "/big", "/big/part", "/big/part/left", "/big/other"] {
        s.mkdir(dir);
    }
    s.write("/big/part/a", 0, 100 << 10);
    s.link("/big/part/a", "/big/part/b").unwrap();
    s.write("/big/part/left/c", 0, 70 << 10);
    s.link("/big/part/left/c", "/big/part/left/d").unwrap();
    s.write("/big/other/e", 0, 300 << 10);
    s.link("/big/other/e", "/big/f").unwrap();
    s.set("/q", 150 << 10);
    let exclude = |to: &str, exclude: &[&str]| {
        let exclude: Vec<PathBuf> = exclude.iter().map(PathBuf::from).collect();
        s.fs.clone_tree_without(&me(), s.split("/big/part"), s.split(to), false, &exclude).map(drop)
    };
    assert_eq!(errno(exclude("/q/all", &[])), EDQUOT);
    exclude("/q/some", &["left"]).unwrap();
    assert_eq!(s.used("/q"), 100 * KIB, "known before it is counted");
    assert_eq!(errno(exclude("/q/more", &["left"])), EDQUOT);
    exclude("/q/less", &["a", "b", "left"]).unwrap();
    s.fs.count_links().unwrap();
    s.fs.count_quotas().unwrap();
    assert_eq!(s.quota("/q"), (150 << 10, 100 * KIB, false));
    s.check();
}

/// Accounts of directories between the top of a clone and what it leaves out: with a quota on the top or not, in a
/// directory with one or not.
#[test]
fn what_a_clone_leaves_out_is_not_counted_on_the_way_to_it() {
    for (of_top, around) in [(false, false), (true, false), (false, true), (true, true)] {
        let s = Scene::new();
        for dir in ["/p", "/p/d", "/p/d/e", "/p/d/e/gone", "/v"] {
            s.mkdir(dir);
        }
        s.write("/p/d/e/gone/a", 0, 100 << 10);
        s.write("/p/d/e/b", 0, 50 << 10);
        s.write("/p/d/c", 0, 30 << 10);
        s.write("/p/d/e/kept", 0, 10 << 10);
        s.set("/p/d", 500 << 10);
        s.set("/p/d/e", 400 << 10);
        if of_top {
            s.set("/p", 600 << 10);
        }
        if around {
            s.set("/v", 40 << 10);
        }
        let exclude = ["d/e/gone", "d/e/b", "d/c", "d/none", "none/d"].map(PathBuf::from);
        let clone =
            |to: &str| s.fs.clone_tree_without(&me(), s.split("/p"), s.split(to), false, &exclude).map(drop);
        clone("/v/q").unwrap();
        let case = format!("a quota on the top: {of_top}, around: {around}");
        assert_eq!(s.quota("/v/q/d"), (500 << 10, 10 * KIB, false), "{case}");
        assert_eq!(s.quota("/v/q/d/e"), (400 << 10, 10 * KIB, false), "{case}");
        assert_eq!(s.quota("/p/d").1, 190 * KIB, "{case}");
        // What is taken out of the copy takes its own count along, and no more.
        s.rename("/v/q/d", "/out").unwrap();
        s.fs.count_quotas().unwrap();
        s.check();
        if around {
            assert_eq!(s.used("/v"), 0, "{case}");
            clone("/v/one").unwrap();
            s.rename("/v/one/d/e", "/e").unwrap();
            assert_eq!(s.used("/v"), 0, "{case}");
            for copy in ["/v/a", "/v/b", "/v/c", "/v/d"] {
                clone(copy).unwrap();
            }
            assert_eq!(errno(clone("/v/f")), EDQUOT, "{case}");
        }
        // A snapshot knows no counts of what is in it: the copy is counted afterwards.
        let info = s.fs.snapshot(Authority::Caller(&me()), s.ino("/p"), &NewSnapshot::default()).unwrap().0;
        let root = s.fs.open_snapshot(s.ino("/p"), info.number).unwrap().ino;
        let exclude = ["e/gone", "c"].map(PathBuf::from);
        s.fs.clone_tree_without(&me(), (root, "d".as_ref()), s.split("/of"), false, &exclude).unwrap();
        s.fs.count_quotas().unwrap();
        assert_eq!(s.quota("/of/e"), (400 << 10, 60 * KIB, false), "{case}");
        s.check();
    }
}

#[test]
fn a_stale_count_goes_along_with_what_leaves_it() {
    let s = Scene::new();
    s.mkdir("/q");
    s.mkdir("/q/base");
    s.mkdir("/q/base/sub");
    s.set("/q", 1 << 20);
    s.set("/q/base/sub", 1 << 20);
    let w = s.mkdir("/w");
    s.fs.fork_tree(&me(), s.split("/q/base"), (w, "fork".as_ref()), false, &[]).unwrap();
    s.write("/w/fork/sub/h", 0, 30 << 10);
    s.fs.merge(None, s.ino("/w/fork"), s.ino("/q/base"), MergeOptions::default()).unwrap();
    // What the merge brought is known to no account yet.
    s.clone("/q/base", "/copy").unwrap();
    s.rename("/q/base", "/moved").unwrap();
    assert!(s.quota("/copy/sub").2 && s.quota("/moved/sub").2 && s.quota("/q").2);
    s.check();
    s.write("/moved/sub/h", 0, 1);
    s.write("/copy/sub/h", 0, 1);
    s.write("/q/x", 0, 1);
    s.fs.count_quotas().unwrap();
    for path in ["/copy/sub", "/moved/sub"] {
        assert_eq!(s.quota(path), (1 << 20, 30 * KIB, false), "{path}");
    }
    assert_eq!(s.quota("/q"), (1 << 20, 512, false));
    s.check();
}

#[test]
fn what_is_left_is_told_of_every_place() {
    let s = Scene::new();
    s.mkdir("/q");
    s.mkdir("/q/in");
    let f = s.create("/q/in/f");
    assert_eq!(s.fs.quota_left(f), None);
    s.set("/q", 100 << 20);
    s.set("/q/in", 10 << 20);
    s.write("/q/f", 0, 1 << 20);
    assert_eq!(s.fs.quota_left(f), Some(10 << 20));
    assert_eq!(s.fs.quota_left(s.ino("/q")), Some(99 << 20));
    let figures = s.fs.statfs_at(f).unwrap();
    assert_eq!((figures.blocks, figures.bavail), ((10 << 20) / 4096, (10 << 20) / 4096));
    assert_eq!(s.fs.statfs_at(ROOT).unwrap(), s.fs.statfs().unwrap());
    s.set("/q", 2 << 20);
    assert_eq!(s.fs.quota_left(f), Some(1 << 20), "the tightest of all above");
}

#[test]
fn a_wrong_account_is_told_by_check() {
    let s = Scene::new();
    s.mkdir("/q");
    s.write("/q/f", 0, 10 << 10);
    s.set("/q", 1 << 20);
    // Behind the back of the file system.
    let key = s.fs.db().prefix(b"").map(|pair| pair.unwrap().0).find(|key| key.ends_with(b"q\0")).unwrap();
    let mut value = s.fs.db().get(&key).unwrap().unwrap().to_vec();
    let used = value.windows(8).position(|bytes| bytes == (10 * KIB).to_le_bytes()).unwrap();
    value[used] ^= 1;
    s.fs.db().put(key, value).unwrap();
    let mut told = Vec::new();
    s.fs.check(|text| told.push(text.to_owned())).unwrap();
    let way = "set the quota of it, or of a directory above, again";
    assert_eq!(told, [format!("/q: its account says 10241 bytes, and 10240 are there; {way}")]);
    let s = s.again();
    assert_eq!(s.used("/q"), 10 * KIB + 1);
    s.set("/q", 1 << 20);
    assert_eq!(s.used("/q"), 10 * KIB);
    s.check();
}

/// A count finds the directories that it has summed up by their paths. What it had found of one that changed places
/// with another meanwhile went to the other one's account.
#[test]
fn directories_that_change_places_while_they_are_counted_keep_their_own_counts() {
    const EXCHANGE: u32 = 2;
    let s = Scene::new();
    for dir in ["/p", "/p/a", "/p/b", "/p/z", "/w"] {
        s.mkdir(dir);
    }
    for i in 0..4_000 {
        s.create(&format!("/p/z/{i}"));
    }
    for dir in ["/p", "/p/a", "/p/b"] {
        s.set(dir, 1 << 30);
    }
    for round in 0..8 {
        let fork = format!("/w/{round}");
        s.fs.fork_tree(&me(), s.split("/p"), s.split(&fork), false, &[]).unwrap();
        s.write(&format!("{fork}/a/{round}"), 0, 100_000);
        s.fs.merge(None, s.ino(&fork), s.ino("/p"), MergeOptions::default()).unwrap();
        assert!(s.quota("/p").2, "vacuous: it is counted already");
        let counted = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let ((from, a), (to, b)) = (s.split("/p/a"), s.split("/p/b"));
                while !counted.load(std::sync::atomic::Ordering::SeqCst) {
                    s.fs.rename(&me(), from, a, to, b, EXCHANGE).unwrap();
                    std::thread::sleep(std::time::Duration::from_micros(700 + 90 * round));
                }
            });
            s.fs.count_quotas().unwrap();
            counted.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        s.check();
        s.fs.count_quotas().unwrap();
        s.check();
    }
}

/// A number is given out again when what had it is gone, so nothing may be remembered by it alone.
#[test]
fn a_snapshot_with_the_number_of_a_deleted_one_is_counted_by_itself() {
    let s = Scene::new();
    let (d, q) = (s.mkdir("/d"), s.mkdir("/q"));
    s.write("/d/f", 0, 10 << 10);
    s.set("/q", 1 << 30);
    let (me, new) = (me(), NewSnapshot::default());
    let by = Authority::Caller(&me);
    // Makes a snapshot and looks at it, which gives its root a number.
    let made = || {
        let number = s.fs.snapshot(by, d, &new).unwrap().0.number;
        (number, s.fs.open_snapshot(d, number).unwrap().ino)
    };
    let clone = |ino: Ino, name: &str| s.fs.clone_snapshot(by, ino, (q, name.as_ref()), false).map(drop);
    let (number, first) = made();
    clone(first, "one").unwrap();
    assert_eq!(s.used("/q"), 10 * KIB);
    s.fs.forget(first, 1);
    s.fs.delete_snapshot(by, d, number).unwrap();
    s.write("/d/f", 0, 300 << 10);
    s.set("/q", 200 * KIB);
    let again = (0..2000).any(|_| {
        let (number, ino) = made();
        if ino == first {
            assert_eq!(errno(clone(ino, "two")), EDQUOT);
            s.set("/q", 1 << 30);
            clone(ino, "two").unwrap();
        }
        s.fs.forget(ino, 1);
        s.fs.delete_snapshot(by, d, number).unwrap();
        ino == first
    });
    assert!(again, "no number was given out again");
    assert_eq!(s.quota("/q"), (1 << 30, 310 * KIB, false));
    s.check();
}
