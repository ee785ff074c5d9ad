//! The difference of two trees against the oracle: both walked call by call and compared. Random histories of every
//! kind of change, with clones, snapshots, renames and linked files, in small nodes; then what it costs, and what
//! those are told who may not see all.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::common::*;
use pando_db::device::{Device, DeviceCall, HookedDevice, MemDevice};
use pando_fs::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Bits of an inode number that are its file number.
const FILE_BITS: u64 = (1 << 40) - 1;

#[derive(Debug, Clone, PartialEq)]
struct Seen {
    attr: Attr,
    content: Vec<u8>,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn seen(w: &World, path: &str, attr: Attr) -> Seen {
    let content = if attr.kind == FileKind::Regular { w.get(path).unwrap() } else { Vec::new() };
    let target = match attr.kind {
        FileKind::Symlink => w.on(path, |a| w.fs.readlink(a.ino)).unwrap().to_vec(),
        _ => Vec::new(),
    };
    let names = w.on(path, |a| w.fs.list_xattr(&w.me, a.ino)).unwrap();
    let names = names.split(|b| *b == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        use std::os::unix::ffi::OsStrExt;
        w.on(path, |a| w.fs.get_xattr(&w.me, a.ino, OsStr::from_bytes(name))).unwrap().to_vec()
    };
    let xattrs = names.map(|name| (name.to_vec(), value(name))).collect();
    Seen { attr, content, target, xattrs }
}

/// All that is below a path, by path from there.
fn tree(w: &World, top: &str) -> BTreeMap<String, Seen> {
    let top = top.trim_end_matches('/');
    let found = w.walk(if top.is_empty() { "/" } else { top });
    let inside = |path: &str| path[top.len()..].trim_start_matches('/').to_string();
    let whole = |path: &str| if path.is_empty() { "/".to_string() } else { path.to_string() };
    found.into_iter().map(|(path, attr)| (inside(&path), seen(w, &whole(&path), attr))).collect()
}

fn aspects(a: &Seen, b: &Seen) -> u16 {
    let (x, y) = (&a.attr, &b.attr);
    let files = x.kind == FileKind::Regular && y.kind == FileKind::Regular;
    let all = [
        (Aspects::CONTENT, a.content != b.content),
        (Aspects::SIZE, files && x.size != y.size),
        (Aspects::MODE, x.perm != y.perm),
        (Aspects::OWNER, (x.uid, x.gid) != (y.uid, y.gid)),
        (Aspects::TIME, x.mtime != y.mtime),
        (Aspects::TARGET, a.target != b.target),
        (Aspects::DEVICE, x.rdev != y.rdev),
        (Aspects::XATTRS, a.xattrs != b.xattrs),
    ];
    all.iter().filter(|(_, differs)| *differs).map(|(aspect, _)| aspect.0).sum()
}

fn changes(w: &World, a: &str, b: &str, options: DiffOptions) -> Vec<FileChange> {
    let diff = w.on(a, |x| w.on(b, |y| w.fs.diff(None, x.ino, y.ino, options))).unwrap();
    diff.collect::<Result<_>>().unwrap()
}

/// Outside of the ranges both are equal, and each range begins and ends with a byte that differs, or behind an end.
fn check_ranges(change: &FileChange, a: &Seen, b: &Seen) {
    let at = |s: &Seen, i: u64| s.content.get(i as usize).copied();
    let mut last = 0;
    for (from, to) in &change.ranges {
        assert!(from < to && *from >= last, "{change:?}");
        assert_ne!(at(a, *from), at(b, *from), "{change:?}");
        assert_ne!(at(a, to - 1), at(b, to - 1), "{change:?}");
        last = *to;
    }
    for i in 0..a.content.len().max(b.content.len()) as u64 {
        let inside = change.ranges.iter().any(|(from, to)| (*from..*to).contains(&i));
        assert!(inside || at(a, i) == at(b, i), "byte {i} of {change:?}");
    }
}

#[derive(Default, Debug)]
struct Tally {
    diffs: u64,
    changes: u64,
    renamed: u64,
    renamed_dirs: u64,
    modified: u64,
    linked: u64,
    equal: u64,
}

/// Compares the two ways on two trees.
fn check(w: &World, a: &str, b: &str, tally: &mut Tally) {
    let (before, after) = (tree(w, a), tree(w, b));
    let what = format!("{a} -> {b}");
    // Without renames it is known exactly what must be told.
    let mut expected: BTreeSet<(String, ChangeKind, u16)> = BTreeSet::new();
    for path in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let mut add = |kind, aspects| _ = expected.insert((path.clone(), kind, aspects));
        match (before.get(path), after.get(path)) {
            (Some(x), Some(y)) if x.attr.kind == y.attr.kind => {
                let differs = aspects(x, y);
                if differs != 0 {
                    add(ChangeKind::Modified, differs);
                }
            }
            (x, y) => {
                if x.is_some() {
                    add(ChangeKind::Removed, 0);
                }
                if y.is_some() {
                    add(ChangeKind::Added, 0);
                }
            }
        }
    }
    let plain = changes(w, a, b, DiffOptions { ranges: true, no_renames: true });
    let mut told = BTreeSet::new();
    for change in &plain {
        let path = change.path.to_str().unwrap().to_string();
        assert!(told.insert((path.clone(), change.kind, change.aspects.0)), "{what}: {path} twice");
        let (x, y) = (before.get(&path), after.get(&path));
        if change.kind == ChangeKind::Modified {
            check_ranges(change, x.unwrap(), y.unwrap());
        }
        let size = |s: Option<&Seen>, there: bool| s.filter(|_| there).map_or(0, |s| s.attr.size);
        if change.file == FileKind::Regular {
            let (added, removed) = (change.kind == ChangeKind::Added, change.kind == ChangeKind::Removed);
            assert_eq!(change.size_before, size(x, !added), "{what}: {change:?}");
            assert_eq!(change.size_after, size(y, !removed), "{what}: {change:?}");
        }
    }
    assert_eq!(told, expected, "{what}, without renames");
    // With renames: applied to the first tree, it gives the second, and nothing more is said.
    let found = changes(w, a, b, DiffOptions::default());
    let mut by_path: BTreeMap<String, &FileChange> = BTreeMap::new();
    let mut removed = BTreeSet::new();
    for change in &found {
        let path = change.path.to_str().unwrap().to_string();
        let twice = match change.kind {
            ChangeKind::Removed => !removed.insert(path.clone()),
            _ => by_path.insert(path.clone(), change).is_some(),
        };
        assert!(!twice, "{what}: {path} twice");
    }
    let mut sources: BTreeMap<&str, Option<String>> = BTreeMap::new();
    let mut used = BTreeSet::new();
    for (path, y) in &after {
        let inherited = match path.rsplit_once('/') {
            Some((dir, name)) => sources.get(dir).cloned().flatten().map(|dir| match dir.is_empty() {
                true => name.to_string(),
                false => format!("{dir}/{name}"),
            }),
            None => Some(path.clone()),
        };
        let change = by_path.remove(path);
        let source = match change.map(|c| c.kind) {
            Some(ChangeKind::Added) => None,
            Some(ChangeKind::Renamed) => {
                let from = change.unwrap().from.clone().unwrap().into_string().unwrap();
                // A move into a clone gives a file another number, and a clone its top another time of birth.
                let told = |a: &Attr| (a.ino & FILE_BITS, a.crtime);
                let (x, z) = (told(&before[&from].attr), told(&y.attr));
                assert!(x.0 == z.0 || x.1 == z.1 || y.attr.nlink > 1, "{what}: {change:?}");
                assert_ne!(Some(&from), inherited.as_ref(), "{what}: {path} is where it was");
                tally.renamed += 1;
                tally.renamed_dirs += u64::from(y.attr.kind == FileKind::Directory);
                Some(from)
            }
            Some(ChangeKind::Modified) => {
                let was =
                    change.and_then(|c| c.from.as_ref()).map_or(path.as_str(), |from| from.to_str().unwrap());
                assert_eq!(Some(was), inherited.as_deref(), "{what}: {change:?}");
                inherited
            }
            None => inherited,
            other => panic!("{what}: {other:?}"),
        };
        if let Some(source) = &source {
            let x = before.get(source).unwrap_or_else(|| panic!("{what}: {path} has no source {source}"));
            assert!(used.insert(source.clone()), "{what}: {source} became two: {found:#?}");
            assert_eq!(x.attr.kind, y.attr.kind, "{what}: {path}");
            assert_eq!(change.map_or(0, |c| c.aspects.0), aspects(x, y), "{what}: {path}");
            tally.linked += u64::from(change.is_some() && y.attr.nlink > 1);
            tally.modified += u64::from(change.is_some_and(|c| c.kind == ChangeKind::Modified));
        }
        sources.insert(path, source);
    }
    assert!(by_path.is_empty(), "{what}: {by_path:?}");
    let gone: BTreeSet<String> = before.keys().filter(|path| !used.contains(*path)).cloned().collect();
    assert_eq!(removed, gone, "{what}: removed");
    tally.diffs += 1;
    tally.changes += found.len() as u64;
    tally.equal += u64::from(found.is_empty());
}

struct History {
    w: World,
    r: Random,
    /// Trees of which some are copies of others.
    tops: Vec<String>,
}

impl History {
    fn paths(&self) -> (Vec<String>, Vec<String>) {
        let all = self.w.walk("/");
        let dirs = all.iter().filter(|(_, a)| a.kind == FileKind::Directory).map(|(p, _)| p.clone());
        (dirs.filter(|p| p.matches('/').count() < 6).collect(), all.keys().skip(1).cloned().collect())
    }

    fn step(&mut self) {
        let (dirs, all) = self.paths();
        let name = ["a", "b", "c", "d"][self.r.below(4)];
        let place = format!("{}/{name}", self.r.pick(&dirs));
        if all.is_empty() {
            self.w.mkdir("/a");
            return;
        }
        let some = self.r.pick(&all).clone();
        let (w, size) = (&self.w, self.r.below(50_000));
        // What cannot be done changes nothing.
        match self.r.below(20) {
            0 | 1 if !w.exists(&place) => _ = w.mkdir(&place),
            2 if !w.exists(&place) => _ = w.symlink(&place, &place),
            3..=5 if !w.exists(&place) => _ = w.put(&place, &pattern(size, size as u8)),
            6 | 7 => _ = w.write_at(&some, size as u64, &pattern(self.r.below(300) + 1, size as u8)),
            8 => _ = w.truncate(&some, size as u64),
            9 | 10 => _ = w.rename(&some, &place, *self.r.pick(&[0, RENAME_EXCHANGE])),
            11 if all.len() < 120 => _ = w.clone_tree(&some, &place, self.r.below(2) == 0),
            12 | 13 => _ = w.link(&some, &place),
            14 if self.r.below(3) == 0 || all.len() > 100 => _ = w.remove_tree(&some),
            14 => _ = w.unlink(&some),
            15 => {
                let set = SetAttr { mode: Some(self.r.below(0o1000) as u32), ..SetAttr::default() };
                _ = w.on(&some, |a| w.fs.setattr(&w.me, a.ino, &set));
            }
            16 => {
                let value = vec![size as u8; *self.r.pick(&[1, 900, 5000])];
                let name = OsStr::new(["user.a", "user.b", "user.c"][self.r.below(3)]);
                _ = w.on(&some, |a| match size % 3 {
                    0 => w.fs.remove_xattr(&w.me, a.ino, name),
                    _ => w.fs.set_xattr(&w.me, a.ino, name, &value, 0),
                });
            }
            17 if self.tops.len() < 12 => {
                let dir = self.r.pick(&dirs).clone();
                let top = if dir.is_empty() { "/" } else { &dir };
                let by = Authority::Caller(&w.me);
                let made = w.on(top, |a| w.fs.snapshot(by, a.ino, &NewSnapshot::default()));
                if let Ok((info, _)) = made {
                    self.tops.push(format!("{dir}/.snapshots/{}", info.name.to_str().unwrap()));
                    self.tops.push(top.to_string());
                }
            }
            18 => w.fs.count_links().map_or((), |_| ()),
            _ => {
                let set =
                    SetAttr { mtime: Some(SetTime::At(Time { secs: 7, nanos: 0 })), ..SetAttr::default() };
                _ = w.on(&some, |a| w.fs.setattr(&w.me, a.ino, &set));
            }
        }
    }

    fn compare(&mut self, tally: &mut Tally) {
        let (dirs, _) = self.paths();
        let is_dir = |path: &String| self.w.on(path, Ok).is_ok_and(|a| a.kind == FileKind::Directory);
        self.tops.retain(is_dir);
        let any = |r: &mut Random, tops: &[String]| match tops.is_empty() || r.below(2) == 0 {
            true => match r.pick(&dirs) {
                dir if dir.is_empty() => "/".to_string(),
                dir => dir.clone(),
            },
            false => r.pick(tops).clone(),
        };
        let (a, b) = (any(&mut self.r, &self.tops), any(&mut self.r, &self.tops));
        check(&self.w, &a, &b, tally);
        // A snapshot and what it is of.
        if let Some(snapshot) = self.tops.iter().find(|top| top.contains(".snapshots")).cloned() {
            let live = snapshot.split("/.snapshots").next().unwrap().to_string();
            let live = if live.is_empty() { "/".to_string() } else { live };
            check(&self.w, &snapshot, &live, tally);
            check(&self.w, &live, &snapshot, tally);
        }
        if self.tops.len() >= 10 {
            self.tops.remove(0);
        }
    }
}

fn run(seed: u64, steps: usize, tally: &mut Tally) {
    println!("PANDO_SEED={seed} PANDO_STEPS={steps}");
    let device = Arc::new(MemDevice::new(256 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let mut w = World::over(Fs::open(device.clone(), options()).unwrap());
    w.device = device;
    let mut h = History { w, r: Random::new(seed), tops: Vec::new() };
    for step in 0..steps {
        h.step();
        if step % 20 == 19 {
            h.compare(tally);
        }
    }
    // Roots that wait to have the names of their linked files counted stay in memory until then.
    h.w.fs.count_links().unwrap();
    h.w.assert_nothing_referenced();
    h.w.remount();
    h.compare(tally);
}

#[test]
fn random_histories_differ_as_walking_them_says() {
    let tally = std::cell::RefCell::new(Tally::default());
    random_runs(24, 300, |seed, steps| run(seed, steps, &mut tally.borrow_mut()));
    let t = tally.into_inner();
    println!("{t:?}");
    if std::env::var("PANDO_SEED").is_err() {
        assert!(t.diffs > 300 && t.renamed > 100 && t.renamed_dirs > 30 && t.modified > 300, "{t:?}");
        assert!(t.linked > 30 && t.equal > 0, "{t:?}");
    }
}

fn told(w: &World, a: &str, b: &str) -> Vec<String> {
    let mut out: Vec<String> = changes(w, a, b, DiffOptions::default())
        .iter()
        .filter(|c| c.file != FileKind::Directory || c.kind != ChangeKind::Modified)
        .map(|c| match &c.from {
            Some(from) => format!("{:?} {} {}", c.kind, from.display(), c.path.display()),
            None => format!("{:?} {}", c.kind, c.path.display()),
        })
        .collect();
    out.sort();
    out
}

#[test]
fn what_moves_is_told_once_and_a_moved_directory_is_compared_with_itself() {
    let w = World::new();
    w.mkdir("/t");
    for dir in ["x", "x/deep", "y", "z"] {
        w.mkdir(&format!("/t/{dir}"));
        (0..20).for_each(|i| _ = w.put(&format!("/t/{dir}/f{i}"), b"content"));
    }
    w.clone_tree("/t", "/c", false).unwrap();
    w.rename("/c/x", "/c/z/moved", 0).unwrap();
    w.put("/c/z/moved/deep/f3", b"changed");
    w.rename("/c/z/moved/f1", "/c/f1", 0).unwrap();
    // A directory is thrown away after something was moved out of it into a new one.
    w.mkdir("/c/new");
    w.mkdir("/c/new/below");
    w.rename("/c/y/f7", "/c/new/below/f8", 0).unwrap();
    w.remove_tree("/c/y").unwrap();
    // An editor saves under another name.
    w.put("/c/z/tmp", b"saved");
    w.rename("/c/z/tmp", "/c/z/f2", 0).unwrap();
    let mut expected: Vec<String> = (0..20)
        .filter(|i| *i != 7)
        .map(|i| format!("Removed y/f{i}"))
        .chain(["Removed y", "Added new", "Added new/below"].map(String::from))
        .chain(["Renamed y/f7 new/below/f8", "Renamed x z/moved", "Renamed x/f1 f1"].map(String::from))
        .chain(["Modified x/deep/f3 z/moved/deep/f3", "Modified z/f2"].map(String::from))
        .collect();
    expected.sort();
    assert_eq!(told(&w, "/t", "/c"), expected);
    check(&w, "/c", "/t", &mut Tally::default());
}

#[test]
fn names_of_a_linked_file_are_all_told() {
    let w = World::new();
    w.mkdir("/d");
    w.mkdir("/d/in");
    w.put("/d/one", b"content");
    w.link("/d/one", "/d/in/two").unwrap();
    w.link("/d/one", "/outside").unwrap();
    let by = Authority::Caller(&w.me);
    let new = NewSnapshot { name: Some("s".into()), ..NewSnapshot::default() };
    w.on("/d", |a| w.fs.snapshot(by, a.ino, &new)).unwrap();
    assert_eq!(told(&w, "/d/.snapshots/s", "/d"), [""; 0]);
    w.write_at("/outside", 2, b"XX").unwrap();
    assert_eq!(told(&w, "/d/.snapshots/s", "/d"), ["Modified in/two", "Modified one"]);
    w.rename("/d/in", "/d/there", 0).unwrap();
    assert_eq!(
        told(&w, "/d/.snapshots/s", "/d"),
        ["Modified in/two there/two", "Modified one", "Renamed in there"]
    );
    w.unlink("/d/one").unwrap();
    assert_eq!(
        told(&w, "/d/.snapshots/s", "/d"),
        ["Modified in/two there/two", "Removed one", "Renamed in there"]
    );
}

#[test]
fn files_are_compared_and_what_has_no_difference_is_refused() {
    let w = World::new();
    w.put("/a", &pattern(60_000, 1));
    w.clone_tree("/a", "/b", false).unwrap();
    w.write_at("/b", 20_000, b"changed").unwrap();
    w.truncate("/b", 60_010).unwrap();
    w.mkdir("/d");
    let found = changes(&w, "/a", "/b", DiffOptions { ranges: true, ..DiffOptions::default() });
    assert_eq!((found.len(), found[0].kind, found[0].path.len()), (1, ChangeKind::Modified, 0));
    assert!(found[0].aspects.contains(Aspects::CONTENT) && found[0].aspects.contains(Aspects::SIZE));
    let (x, y) = (seen(&w, "/a", w.attr("/a")), seen(&w, "/b", w.attr("/b")));
    check_ranges(&found[0], &x, &y);
    assert_eq!(found[0].ranges.last(), Some(&(60_000, 60_010)));
    let result = w.on("/a", |x| w.on("/d", |y| w.fs.diff(None, x.ino, y.ino, DiffOptions::default())));
    assert_eq!(errno(result.map(|_| ())), EINVAL);
    // A hole and zeros are the same bytes.
    w.put("/zeros", &[0; 40_000]);
    w.put("/hole", b"");
    w.truncate("/hole", 40_000).unwrap();
    let found = changes(&w, "/zeros", "/hole", DiffOptions::default());
    assert!(found.iter().all(|c| !c.aspects.contains(Aspects::CONTENT)), "{found:?}");
}

#[test]
fn nothing_is_told_of_what_may_not_be_seen() {
    let w = World::new();
    w.mkdir("/t");
    for dir in ["open", "closed", "closed/below"] {
        w.mkdir(&format!("/t/{dir}"));
        w.put(&format!("/t/{dir}/f"), b"content");
        w.put(&format!("/t/{dir}/secret"), b"content");
    }
    let mode = |path: &str, mode| {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        w.on(path, |a| w.fs.setattr(&w.me, a.ino, &set)).unwrap();
    };
    mode("/t/closed", 0o700);
    mode("/t/open/secret", 0o600);
    w.clone_tree("/t", "/c", false).unwrap();
    for dir in ["open", "closed", "closed/below"] {
        w.write_at(&format!("/c/{dir}/f"), 0, b"CONTENT").unwrap();
        w.write_at(&format!("/c/{dir}/secret"), 0, b"CONTENT").unwrap();
    }
    w.rename("/c/closed/below", "/c/out", 0).unwrap();
    let user = Caller { uid: 1000, gid: 1000, ..Caller::default() };
    let of = |viewer: &Caller| -> Vec<FileChange> {
        let options = DiffOptions { ranges: true, ..DiffOptions::default() };
        let diff = w.on("/t", |x| w.on("/c", |y| w.fs.diff(Some(viewer), x.ino, y.ino, options))).unwrap();
        diff.collect::<Result<_>>().unwrap()
    };
    let found = of(&user);
    let find = |path: &str| found.iter().find(|c| c.path == path);
    assert_eq!(find("open/f").unwrap().ranges, [(0, 7)]);
    let secret = find("open/secret").unwrap();
    assert!(secret.ranges.is_empty() && !secret.aspects.contains(Aspects::CONTENT), "{secret:?}");
    let unreadable = found.iter().filter(|c| c.kind == ChangeKind::Unreadable);
    let unreadable: BTreeSet<&str> = unreadable.map(|c| c.path.to_str().unwrap()).collect();
    assert_eq!(unreadable, ["closed", "open/secret"].into());
    // It was where nobody else may look.
    assert_eq!((find("out").unwrap().kind, &find("out").unwrap().from), (ChangeKind::Added, &None));
    assert!(found.iter().all(|c| !c.path.to_str().unwrap().starts_with("closed/")), "{found:?}");
    assert!(found.iter().all(|c| c.from.is_none()), "{found:?}");
    // The owner of all sees all, by the rights of an owner.
    let owner = Caller { uid: 0, ..Caller::default() };
    assert!(of(&owner).iter().any(|c| c.from.as_deref() == Some(OsStr::new("closed/below"))));
}

/// Whether the content of a file that may not be read differs is not told: nor that it does not.
#[test]
fn of_a_file_that_may_not_be_read_it_is_told_that_it_was_not_compared() {
    let w = World::new();
    w.mkdir("/t");
    let change =
        |path: &str, change: SetAttr| _ = w.on(path, |a| w.fs.setattr(&w.me, a.ino, &change)).unwrap();
    for name in ["written", "touched", "same"] {
        w.put(&format!("/t/{name}"), b"content");
        change(&format!("/t/{name}"), SetAttr { mode: Some(0o600), ..SetAttr::default() });
    }
    w.clone_tree("/t", "/c", false).unwrap();
    w.write_at("/c/written", 0, b"CONTENT").unwrap();
    for name in ["written", "touched"] {
        let time = Some(SetTime::At(w.attr(&format!("/t/{name}")).mtime));
        change(&format!("/c/{name}"), SetAttr { mtime: time, ..SetAttr::default() });
    }
    let of = |viewer: Option<&Caller>, a: &str, b: &str| -> BTreeSet<(String, ChangeKind, bool)> {
        let options = DiffOptions { ranges: true, ..DiffOptions::default() };
        let diff = w.on(a, |x| w.on(b, |y| w.fs.diff(viewer, x.ino, y.ino, options))).unwrap();
        let found: Vec<FileChange> = diff.collect::<Result<_>>().unwrap();
        found.iter().map(|c| (c.path.to_str().unwrap().into(), c.kind, c.ranges.is_empty())).collect()
    };
    let user = Caller { uid: 1000, gid: 1000, ..Caller::default() };
    let kept = |name: &str| (name.to_owned(), ChangeKind::Unreadable, true);
    assert_eq!(of(Some(&user), "/t", "/c"), [kept("written"), kept("touched")].into());
    assert_eq!(of(None, "/t", "/c"), [("written".into(), ChangeKind::Modified, false)].into());
    // That two files themselves may be read has been checked by who asks.
    let one = [(String::new(), ChangeKind::Modified, false)];
    assert_eq!(of(Some(&user), "/t/written", "/c/written"), one.into());
}

/// Requests and bytes that reading takes.
struct Counted {
    fs: Fs,
    device: Arc<HookedDevice>,
    reads: Arc<AtomicU64>,
}

impl Counted {
    fn new(files: u64) -> Self {
        let reads = Arc::new(AtomicU64::new(0));
        let count = reads.clone();
        let device = HookedDevice::new(Arc::new(MemDevice::new(2 << 30)), false, move |call| {
            if matches!(call, DeviceCall::Read(_)) {
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        let device = Arc::new(device);
        Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
        let w = World::over(Self::open(&device));
        w.mkdir("/t");
        for i in 0..files {
            if i % 100 == 0 {
                w.mkdir(&format!("/t/d{}", i / 100));
            }
            w.put(&format!("/t/d{}/f{i}", i / 100), &pattern(200, i as u8));
        }
        Self { fs: w.fs, device, reads }
    }

    fn open(device: &Arc<HookedDevice>) -> Fs {
        Fs::open(device.clone() as Arc<dyn Device>, options()).unwrap()
    }

    /// Device reads of a cold difference of `/t` and `/c`, and what it tells.
    fn cold(&mut self) -> (u64, Vec<FileChange>) {
        self.fs.close().unwrap();
        self.fs = Self::open(&self.device);
        let w = World::over(self.fs.clone());
        w.on("/t", |_| w.on("/c", |_| Ok(()))).unwrap();
        let before = self.reads.load(Ordering::Relaxed);
        let found = changes(&w, "/t", "/c", DiffOptions::default());
        (self.reads.load(Ordering::Relaxed) - before, found)
    }
}

/// Ten places, and a directory of all files in turn that has moved.
#[test]
fn it_costs_what_differs() {
    let measure = |files: u64| {
        let mut c = Counted::new(files);
        let w = World::over(c.fs.clone());
        w.clone_tree("/t", "/c", false).unwrap();
        for i in 0..10 {
            let file = files / 10 * i + files / 20;
            w.write_at(&format!("/c/d{}/f{file}", file / 100), 3, b"changed").unwrap();
        }
        let (places, found) = c.cold();
        assert_eq!(found.len(), 10, "{found:?}");
        // A directory with all files has moved: its names are not gone through.
        let w = World::over(c.fs.clone());
        w.mkdir("/s");
        w.rename("/t", "/s/here", 0).unwrap();
        w.rename("/s", "/t", 0).unwrap();
        w.clone_tree("/t", "/c", true).unwrap();
        w.rename("/c/here", "/c/there", 0).unwrap();
        w.write_at("/c/there/d3/f301", 3, b"changed").unwrap();
        let (moved, found) = c.cold();
        let kinds: Vec<_> = found.iter().filter(|f| !f.path.is_empty()).map(|f| f.kind).collect();
        assert_eq!(kinds, [ChangeKind::Renamed, ChangeKind::Modified], "{found:?}");
        (places, moved)
    };
    let (small, large) = (measure(10_000), measure(100_000));
    println!("reads, 10,000 and 100,000 files: ten places and a moved directory: {small:?} {large:?}");
    // For each place a header and a page a level on each side, of two regions.
    assert!(large.0 <= small.0 + 2 * 2 * 2 * 2 * 10, "{small:?} {large:?}");
    assert!(large.1 <= small.1 + 40, "{small:?} {large:?}");
}
