//! Changes of whole trees by one message: against what each file had before, over clones, snapshots, links, moves, tiny
//! nodes and crashes; what they cost; and beside other calls.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::common::*;
use pando_db::device::{Device, MemDevice, SimDevice};
use pando_fs::*;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

type Tree = BTreeMap<String, Attr>;

/// What chmod(1), chown(1) and touch(1) make of one file: worked out for each from what it had.
fn expected(of: &Attr, change: &TreeChange, now: Time) -> Attr {
    let mut a = *of;
    let dir = a.kind == FileKind::Directory;
    let link = a.kind == FileKind::Symlink;
    let owner = change.uid.is_some() || change.gid.is_some();
    let time = |t: SetTime| match t {
        SetTime::Now => now,
        SetTime::At(t) => t,
    };
    if let Some(mode) = change.mode.filter(|_| !link) {
        a.perm = mode.apply(a.perm, dir);
    }
    if owner && !dir && !link {
        a.perm &= !0o4000;
        if a.perm & 0o010 != 0 {
            a.perm &= !0o2000;
        }
    }
    a.uid = change.uid.unwrap_or(a.uid);
    a.gid = change.gid.unwrap_or(a.gid);
    a.atime = change.atime.map_or(a.atime, time);
    a.mtime = change.mtime.map_or(a.mtime, time);
    if !link || owner || change.atime.is_some() || change.mtime.is_some() {
        a.ctime = now;
    }
    a
}

fn inside(path: &str, top: &str) -> bool {
    path == top || path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'))
}

/// `before` with the change made to all files that have a name in `top`.
fn changed(before: &Tree, top: &str, change: &TreeChange, now: Time) -> Tree {
    let in_tree: Vec<Ino> = before.iter().filter(|(p, _)| inside(p, top)).map(|(_, a)| a.ino).collect();
    let change = |a: &Attr| if in_tree.contains(&a.ino) { expected(a, change, now) } else { *a };
    before.iter().map(|(p, a)| (p.clone(), change(a))).collect()
}

fn mode(text: &str) -> TreeChange {
    TreeChange { mode: ModeChange::parse(text, 0o022), ..TreeChange::default() }
}

fn chown(uid: Option<u32>, gid: Option<u32>) -> TreeChange {
    TreeChange { uid, gid, ..TreeChange::default() }
}

fn touch(atime: Option<SetTime>, mtime: Option<SetTime>) -> TreeChange {
    TreeChange { atime, mtime, ..TreeChange::default() }
}

fn some_change(r: &mut Random) -> TreeChange {
    let at = SetTime::At(Time { secs: r.below(2_000_000_000) as i64, nanos: 7 });
    let text = ["u+x", "a+X", "go-w", "u=rwx,go=rX", "g=u", "4755", "0640", "u+s,g+s", "-x", "o=g,+t", "=r"];
    match r.below(8) {
        0..4 => mode(text[r.below(text.len())]),
        4 => chown(Some(r.below(5) as u32), None),
        5 => chown([None, Some(9)][r.below(2)], Some(r.below(5) as u32)),
        6 => touch(None, Some(at)),
        _ => touch(Some([SetTime::Now, at][r.below(2)]), Some([SetTime::Now, at][r.below(2)])),
    }
}

/// All below an inode.
fn tree_of(w: &World, ino: Ino) -> Tree {
    let mut found = Tree::new();
    let mut todo = vec![(String::new(), ino)];
    while let Some((path, dir)) = todo.pop() {
        for e in w.list(dir, 50) {
            let path = format!("{path}/{}", e.name.to_str().unwrap());
            if e.kind == FileKind::Directory {
                let looked_up = w.fs.lookup(dir, &e.name).unwrap();
                todo.push((path.clone(), looked_up.ino));
            }
            found.insert(path, e.attr);
        }
        if dir != ino {
            w.fs.forget(dir, 1);
        }
    }
    found
}

impl World {
    fn change(&self, path: &str, change: &TreeChange) -> Result<TreeChangeReport> {
        self.on(path, |a| self.fs.change_tree(a.ino, change))
    }

    /// Makes a change that must be the one in `expected`, of the whole file system.
    fn change_checked(&self, path: &str, change: &TreeChange) {
        let before = self.walk("/");
        let began = Time::now();
        self.change(path, change).unwrap();
        let after = self.walk("/");
        let top = path.trim_end_matches('/');
        let now = after[top].ctime;
        assert!(now >= began);
        same(&after, &changed(&before, top, change, now), path);
    }
}

fn same(found: &Tree, expected: &Tree, what: &str) {
    for (path, attr) in expected {
        assert_eq!(found.get(path), Some(attr), "{what}: {path}");
    }
    assert_eq!(found.len(), expected.len(), "{what}");
}

/// The same with other inode numbers: those of clones may be given anew after a crash.
fn alike(a: &Tree, b: &Tree) -> bool {
    let plain =
        |tree: &Tree| -> Tree { tree.iter().map(|(p, a)| (p.clone(), Attr { ino: 0, ..*a })).collect() };
    plain(a) == plain(b)
}

struct Run {
    w: World,
    device: Arc<SimDevice>,
    r: Random,
    /// What the kernel would know, and what is open.
    held: Vec<Ino>,
    open: Vec<(Ino, FileHandle)>,
    /// Directory, number and content of snapshots.
    snapshots: Vec<(Ino, u32, Tree)>,
    links: bool,
    reached: [u32; 3],
}

impl Run {
    fn path(&mut self) -> String {
        let depth = 1 + self.r.below(4);
        (0..depth).map(|_| format!("/{}", ["a", "b", "c", "d"][self.r.below(4)])).collect()
    }

    /// One call other than a change of a tree; it may be refused.
    fn other(&mut self) {
        let (from, to) = (self.path(), self.path());
        let replace = self.r.below(2) == 0;
        let w = &self.w;
        let made = |attr: Attr| w.fs.forget(attr.ino, 1);
        let (fs, me) = (&w.fs, &w.me);
        let _refused = match self.r.below(16) {
            0..3 => w.at(&from, |d, n| fs.mkdir(me, d, n, 0o750)).map(made),
            3..6 => w.at(&from, |d, n| fs.mknod(me, d, n, 0o106755, 0)).map(made),
            6 => w.at(&from, |d, n| fs.symlink(me, d, n, OsStr::new("x"))).map(made),
            7 => w.at(&from, |d, n| fs.mknod(me, d, n, 0o010644, 0)).map(made),
            8 | 9 => w.clone_tree(&from, &to, replace).map(drop),
            10 => w.rename(&from, &to, if replace { RENAME_EXCHANGE } else { 0 }),
            11 => w.unlink(&from),
            12 if replace => w.remove_tree(&from).map(drop),
            13 | 14 if self.links => w.link(&from, &to).map(drop),
            15 => w.on(&from, |a| {
                let set = SetAttr { mode: Some(0o2711), atime: Some(SetTime::Now), ..SetAttr::default() };
                fs.setattr(me, a.ino, &set).map(drop)
            }),
            _ => w.on(&from, |a| fs.write(NONE, a.ino, 3, b"some bytes", false).map(drop)),
        };
    }

    fn look(&mut self) {
        let path = self.path();
        if self.held.len() > 10 || self.r.below(3) == 0 {
            while let Some((ino, handle)) = self.open.pop() {
                self.w.fs.release(ino, handle);
            }
            self.held.drain(..).for_each(|ino| self.w.fs.forget(ino, 1));
        } else if let Ok(attr) = self.w.fs.resolve(Path::new(&path)) {
            self.held.push(attr.ino);
            if attr.kind == FileKind::Regular {
                self.open.push((attr.ino, self.w.fs.open_file(&self.w.me, attr.ino, O_RDWR).unwrap()));
            }
        }
    }

    fn snapshot(&mut self) {
        let path = self.path();
        let by = Authority::Caller(&self.w.me);
        if self.snapshots.len() > 3 {
            let (source, number, _) = self.snapshots.swap_remove(0);
            self.w.fs.delete_snapshot(by, source, number).unwrap();
        } else if let Ok(attr) = self.w.fs.resolve(Path::new(&path)) {
            if let Ok((info, _)) = self.w.fs.snapshot(by, attr.ino, &NewSnapshot::default()) {
                self.snapshots.push((attr.ino, info.number, tree_of(&self.w, attr.ino)));
            }
            self.w.fs.forget(attr.ino, 1);
        }
    }

    fn change(&mut self) {
        let dirs: Vec<String> = {
            let all = self.w.walk("/");
            let dirs = all.into_iter().filter(|(_, a)| a.kind == FileKind::Directory);
            dirs.map(|(p, _)| if p.is_empty() { "/".into() } else { p }).collect()
        };
        let path = self.r.pick(&dirs).clone();
        // Two or three, so that they wait for the same files.
        for _ in 0..1 + self.r.below(3) {
            let change = some_change(&mut self.r);
            self.w.change_checked(&path, &change);
            let kind = [change.mode.is_some(), change.uid.or(change.gid).is_some(), change.mtime.is_some()];
            kind.into_iter().zip(&mut self.reached).for_each(|(is, count)| *count += u32::from(is));
        }
        match self.r.below(4) {
            0 => self.w.fs.db().checkpoint().unwrap(),
            1 => self.w.fs.db().settle().unwrap(),
            _ => {}
        }
    }

    fn compare_snapshots(&self) {
        for (source, number, tree) in &self.snapshots {
            let root = self.w.fs.open_snapshot(*source, *number).unwrap();
            let now = tree_of(&self.w, root.ino);
            assert!(alike(&now, tree), "snapshot {number} has changed");
            self.w.fs.forget(root.ino, 1);
        }
    }

    fn reopen(&mut self, crash: bool) {
        self.held.clear();
        self.open.clear();
        if crash {
            self.device.crash();
        } else {
            self.w.fs.close().unwrap();
        }
        self.device = self.device.reopen();
        self.w.fs = Fs::open(self.device.clone(), options()).unwrap();
        assert_eq!(self.w.fs.check(|p| panic!("{p}")).unwrap().problems, 0);
    }

    fn state(&self) -> Tree {
        self.w.fs.count_links().unwrap();
        self.w.walk("/")
    }
}

fn run(seed: u64, steps: usize) {
    println!("PANDO_SEED={seed} PANDO_STEPS={steps}");
    let device = Arc::new(SimDevice::new(64 << 20, seed));
    let node = [4 << 10, 16 << 10, 64 << 10][seed as usize % 3];
    Fs::format(device.clone(), &FormatOptions::default().node_size(node)).unwrap();
    let w = World::over(Fs::open(device.clone(), options()).unwrap());
    let (held, open, snapshots) = (Vec::new(), Vec::new(), Vec::new());
    let links = seed % 2 == 1;
    let mut run = Run { w, device, r: Random::new(seed), held, open, snapshots, links, reached: [0; 3] };
    let mut crashes = 0;
    // What may be found after a crash: the states since the last that is durable.
    let mut since = vec![run.state()];
    for step in 0..steps {
        match run.r.below(20) {
            0..11 => run.other(),
            11..14 => run.look(),
            14..17 => run.change(),
            17 => run.snapshot(),
            18 if run.r.below(3) == 0 => {
                let before = run.state();
                run.reopen(false);
                same(&run.state(), &before, "after it was closed and opened");
                since = vec![before];
            }
            // Names of linked files are counted behind a call: there the state after a crash is not that after a call.
            19 if !links && run.r.below(3) == 0 => {
                if run.r.below(2) == 0 {
                    run.w.fs.db().sync().unwrap();
                    since = vec![run.state()];
                }
                let snapshots = std::mem::take(&mut run.snapshots);
                run.reopen(true);
                let now = run.state();
                assert!(since.iter().any(|state| alike(state, &now)), "step {step}: no state that ever was");
                since = vec![now];
                let listed = |source, number| {
                    run.w.fs.snapshots(source).unwrap_or_default().iter().any(|info| info.number == number)
                };
                let left = snapshots.into_iter().filter(|(source, number, _)| listed(*source, *number));
                run.snapshots = left.collect();
                crashes += 1;
            }
            _ => run.other(),
        }
        if !links {
            since.push(run.state());
            if since.len() > 60 {
                run.w.fs.db().sync().unwrap();
                since.drain(..since.len() - 1);
            }
        }
        if step % 20 == 0 {
            run.compare_snapshots();
        }
    }
    run.reopen(false);
    run.compare_snapshots();
    check_keys(&run.w);
    assert!(run.reached.iter().all(|n| *n > 0) && (links || crashes > 0), "{:?} {crashes}", run.reached);
}

#[test]
fn random_changes_of_trees_do_what_a_change_of_each_file_does() {
    random_runs(8, 400, run);
}

#[test]
fn clones_made_before_stay_and_those_made_after_have_the_change() {
    let mut w = World::new();
    w.mkdir("/t");
    w.mkdir("/t/d");
    for n in 0..300 {
        w.create(&format!("/t/d/f{n}")).unwrap();
    }
    w.clone_tree("/t", "/before", false).unwrap();
    w.at("/", |_, _| Ok(())).unwrap_or_default();
    let snapshot =
        w.on("/t", |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &NewSnapshot::default())).unwrap().0;
    w.change_checked("/t", &mode("4711"));
    w.clone_tree("/t", "/after", false).unwrap();
    w.change_checked("/t", &chown(Some(3), Some(4)));
    for _ in 0..2 {
        assert!(w.walk("/before").values().skip(2).all(|a| a.perm == 0o644 && a.uid == 0));
        assert!(w.walk("/after").iter().filter(|(p, _)| p.contains("/f")).all(|(_, a)| a.perm == 0o4711));
        assert!(w.walk("/t").iter().filter(|(p, _)| p.contains("/f")).all(|(_, a)| a.perm == 0o711));
        assert!(w.walk("/t").values().all(|a| (a.uid, a.gid) == (3, 4)));
        let kept = w.walk(&format!("/t/.snapshots/{}", snapshot.name.to_str().unwrap()));
        assert!(kept.iter().filter(|(p, _)| p.contains("/f")).all(|(_, a)| a.perm == 0o644 && a.uid == 0));
        assert!(kept.len() > 300);
        w.remount();
    }
    // A clone inside the tree is a lineage of its own, and changed with it.
    w.clone_tree("/before", "/t/inner", false).unwrap();
    w.change_checked("/t", &mode("a+X,g=u"));
    w.remount();
    assert!(w.walk("/t/inner").iter().filter(|(p, _)| p.contains("/f")).all(|(_, a)| a.perm == 0o664));
    check_keys(&w);
}

#[test]
fn files_with_names_in_the_tree_are_changed_once_wherever_they_are_kept() {
    let mut w = World::new();
    for dir in ["/t", "/t/d", "/other"] {
        w.mkdir(dir);
    }
    w.put("/t/d/a", b"one");
    w.link("/t/d/a", "/t/b").unwrap();
    w.link("/t/d/a", "/other/c").unwrap();
    w.put("/other/x", b"two");
    w.link("/other/x", "/other/y").unwrap();
    w.clone_tree("/t", "/t/d/inner", false).unwrap();
    let (held, cold) = (w.fs.resolve(Path::new("/other/c")).unwrap(), w.attr("/other/x"));
    // Doing it twice would leave nothing.
    w.change_checked("/t", &mode("o=g,g="));
    assert_eq!(w.fs.getattr(held.ino).unwrap().perm, 0o604);
    assert_eq!(w.attr("/other/x"), cold);
    assert_eq!(w.attr("/t/d/inner/b").perm, 0o604, "those of a clone in the tree");
    w.change_checked("/t", &chown(Some(5), None));
    w.fs.forget(held.ino, 1);
    let before = w.walk("/");
    w.remount();
    same(&w.walk("/"), &before, "in the store");
    assert_eq!((w.attr("/other/c").uid, w.attr("/other/c").perm), (5, 0o604));
    w.change_checked("/other", &touch(None, Some(SetTime::At(Time { secs: 5, nanos: 6 }))));
    assert_eq!(w.attr("/t/b").mtime, Time { secs: 5, nanos: 6 });
    check_keys(&w);
}

#[test]
fn set_id_bits_capabilities_links_and_devices() {
    let mut w = World::new();
    w.mkdir("/t");
    let modes = [("prog", 0o104755), ("group", 0o102755), ("lock", 0o102644), ("pipe", 0o016755)];
    for (name, mode) in modes {
        let attr = w.at(&format!("/t/{name}"), |d, n| w.fs.mknod(&w.me, d, n, mode, 0)).unwrap();
        w.fs.forget(attr.ino, 1);
    }
    w.at("/t/null", |d, n| w.fs.mknod(&w.me, d, n, 0o020600, 0x103)).map(|a| w.fs.forget(a.ino, 1)).unwrap();
    w.symlink("/t/link", "prog");
    w.on("/t", |a| w.fs.setattr(&w.me, a.ino, &SetAttr { mode: Some(0o2755), ..SetAttr::default() }))
        .unwrap();
    let cap = OsStr::new("security.capability");
    w.on("/t/prog", |a| w.fs.set_xattr(&w.me, a.ino, cap, b"0123456789", 0)).unwrap();
    w.on("/t/prog", |a| w.fs.set_xattr(&w.me, a.ino, OsStr::new("user.kept"), b"v", 0)).unwrap();
    w.on("/t", |a| w.fs.set_xattr(&w.me, a.ino, cap, b"0123456789", 0)).unwrap();
    w.change_checked("/t", &mode("o+w"));
    w.on("/t/prog", |a| w.fs.get_xattr(&w.me, a.ino, cap)).expect("a change of mode leaves it");
    w.change_checked("/t", &chown(None, Some(7)));
    for _ in 0..2 {
        let perm = |name: &str| w.attr(&format!("/t/{name}")).perm;
        assert_eq!((perm("prog"), perm("group"), perm("lock")), (0o757, 0o757, 0o2646));
        assert_eq!((perm("pipe"), perm("null"), perm("link")), (0o757, 0o602, 0o777));
        assert_eq!((w.attr("/t").perm, w.attr("/t/link").gid), (0o2757, 7));
        assert_eq!(errno(w.on("/t/prog", |a| w.fs.get_xattr(&w.me, a.ino, cap))), 61);
        w.on("/t", |a| w.fs.get_xattr(&w.me, a.ino, cap))
            .expect("that of a directory means nothing, and stays");
        assert_eq!(
            &w.on("/t/prog", |a| w.fs.get_xattr(&w.me, a.ino, OsStr::new("user.kept"))).unwrap()[..],
            b"v"
        );
        w.remount();
    }
}

/// An access list takes its mask from the mode, so a change of the mode changes it.
#[test]
fn the_mask_of_an_access_list_follows() {
    let mut w = World::new();
    w.mkdir("/t");
    w.create("/t/f").unwrap();
    let entry = |tag: u16, perm: u16, id: u32| {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let list = [(1, 7, none), (2, 7, 5), (4, 5, none), (16, 7, none), (32, 0, none)];
    let list: Vec<u8> = list.iter().fold(2u32.to_le_bytes().to_vec(), |mut all, e| {
        all.extend(entry(e.0, e.1, e.2));
        all
    });
    let acl = OsStr::new("system.posix_acl_access");
    w.on("/t/f", |a| w.fs.set_xattr(&w.me, a.ino, acl, &list, 0)).unwrap();
    w.change_checked("/t", &mode("g-wx,o+r"));
    w.remount();
    let now = w.on("/t/f", |a| w.fs.get_xattr(&w.me, a.ino, acl)).unwrap();
    let perms: Vec<u8> = now[4..].chunks(8).map(|e| e[2]).collect();
    assert_eq!(perms, [7, 7, 5, 4, 4], "the mask and the others, not the group");
}

#[test]
fn what_cannot_be_changed_is_refused() {
    let mut w = World::new();
    w.mkdir("/t");
    w.create("/t/f").unwrap();
    assert_eq!(errno(w.change("/t/f", &mode("755"))), ENOTDIR);
    assert_eq!(errno(w.change("/t", &TreeChange::default())), EINVAL);
    let odd = SetTime::At(Time { secs: 0, nanos: 1_000_000_000 });
    assert_eq!(errno(w.change("/t", &touch(Some(odd), None))), EINVAL);
    let (info, _) =
        w.on("/t", |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &NewSnapshot::default())).unwrap();
    let inside = format!("/t/.snapshots/{}", info.name.to_str().unwrap());
    for path in [&inside[..], "/t/.snapshots"] {
        assert_eq!(errno(w.change(path, &mode("755"))), EROFS, "{path}");
    }
    let removed = w.fs.resolve(Path::new("/t")).unwrap();
    w.remove_tree("/t").unwrap();
    assert_eq!(errno(w.fs.change_tree(removed.ino, &mode("755"))), ESTALE);
    w.fs.forget(removed.ino, 1);
    w.remount_with(options().read_only(true));
    assert_eq!(errno(w.change("/", &mode("755"))), EROFS);
}

#[test]
fn the_store_says_that_it_has_such_changes_before_the_first() {
    let w = World::new();
    w.mkdir("/t");
    let features = |w: &World| {
        let mut key = vec![0xff; 4];
        key.push(b'F');
        u64::from_le_bytes(w.fs.db().get(&key).unwrap().unwrap()[12..20].try_into().unwrap())
    };
    assert_eq!(features(&w) & 16, 0);
    w.change("/t", &mode("700")).unwrap();
    assert_eq!(features(&w) & 16, 16);
}

#[test]
fn times_that_are_kept_in_memory_only_and_open_files() {
    let mut w = World::new();
    w.remount_with(options().atime(AtimePolicy::Strict));
    w.mkdir("/t");
    w.put("/t/f", b"text");
    let file = w.fs.resolve(Path::new("/t/f")).unwrap();
    let handle = w.fs.open_file(&w.me, file.ino, O_RDWR).unwrap();
    w.fs.read(handle, file.ino, 0, 4).unwrap();
    let old = Time { secs: 1_000_000, nanos: 3 };
    w.change("/t", &touch(Some(SetTime::At(old)), Some(SetTime::At(old)))).unwrap();
    let now = w.fs.getattr(file.ino).unwrap();
    assert_eq!((now.atime, now.mtime), (old, old));
    // A later change of the file must not bring the time of the read back.
    w.fs.setattr(&w.me, file.ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    w.fs.release(file.ino, handle);
    w.fs.forget(file.ino, 1);
    w.remount();
    let now = w.attr("/t/f");
    assert_eq!((now.atime, now.mtime, now.perm), (old, old, 0o600));
}

/// Calls of all kinds beside changes: what memory says at the end is what the store says.
#[test]
fn beside_other_calls_memory_and_store_stay_one() {
    let device = Arc::new(MemDevice::new(256 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let mut w = World::over(Fs::open(device.clone(), options()).unwrap());
    for dir in ["/t", "/t/a", "/t/b", "/u"] {
        w.mkdir(dir);
    }
    for n in 0..40 {
        w.create(&format!("/t/a/f{n}")).unwrap();
        w.link(&format!("/t/a/f{n}"), &format!("/u/l{n}")).unwrap();
    }
    // Some stay in memory, so that their records there are looked at in the end.
    let held: Vec<_> = (0..20).map(|n| w.fs.resolve(Path::new(&format!("/u/l{n}"))).unwrap().ino).collect();
    let ended = AtomicBool::new(false);
    let worker = |seed: u64| {
        let mut r = Random::new(seed);
        let mut count = 0u64;
        while !ended.load(Ordering::Relaxed) {
            let file = format!("/{}{}", ["u/l", "t/a/f"][r.below(2)], r.below(40));
            let set = SetAttr { mode: Some(r.below(0o1000) as u32), ..SetAttr::default() };
            let _raced = match r.below(5) {
                0 | 1 => w.on(&file, |a| w.fs.setattr(&w.me, a.ino, &set).map(drop)),
                2 => w.rename("/t/a", "/t/b/a", 0).and_then(|()| w.rename("/t/b/a", "/t/a", 0)),
                3 => w.create(&format!("/t/b/n{}", r.below(50))).map(drop),
                _ => w.unlink(&format!("/t/b/n{}", r.below(50))),
            };
            count += 1;
        }
        count
    };
    let calls = std::thread::scope(|s| {
        let threads = [1, 2].map(|seed| s.spawn(move || worker(seed)));
        let mut r = Random::new(9);
        let begun = std::time::Instant::now();
        let mut changes = 0;
        while begun.elapsed().as_millis() < 1500 {
            let change = some_change(&mut r);
            w.change(["/t", "/t/a", "/u", "/"][r.below(4)], &change)
                .map(drop)
                .or_else(|e| match e.errno() {
                    ENOENT => Ok(()),
                    _ => Err(e),
                })
                .unwrap();
            changes += 1;
        }
        ended.store(true, Ordering::Relaxed);
        assert!(changes > 50, "{changes}");
        threads.map(|t| t.join().unwrap())
    });
    assert!(calls.iter().all(|n| *n > 50), "{calls:?}");
    let before = w.walk("/");
    held.into_iter().for_each(|ino| w.fs.forget(ino, 1));
    w.assert_nothing_referenced();
    w.fs.close().unwrap();
    w.fs = Fs::open(device, options()).unwrap();
    same(&w.walk("/"), &before, "in the store");
    check_keys(&w);
}

/// Requests and bytes that a change of a tree of `count` files reads, and bytes that it writes, until it is in the DAG
/// and durable.
fn cost(count: usize) -> (u64, u64, u64) {
    let device = Arc::new(MemDevice::new(1 << 30));
    Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
    let me = Caller::root();
    let fs = Fs::open(device.clone(), options()).unwrap();
    let at = fs.mkdir(&me, ROOT, "s".as_ref(), 0o755).unwrap().ino;
    for d in 0..count / 500 {
        let dir = fs.mkdir(&me, at, format!("d{d}").as_ref(), 0o755).unwrap().ino;
        for f in 0..500 {
            let attr = fs.mknod(&me, dir, format!("f{f}").as_ref(), 0o100644, 0).unwrap();
            fs.forget(attr.ino, 1);
        }
        fs.forget(dir, 1);
    }
    fs.close().unwrap();
    let fs = Fs::open(device.clone(), options()).unwrap();
    // The feature, and what the first change after opening writes besides.
    fs.change_tree(ROOT, &mode("u+r")).unwrap();
    fs.db().checkpoint().unwrap();
    let top = fs.resolve(Path::new("/s")).unwrap().ino;
    let before = device.stats();
    fs.change_tree(top, &mode("0711")).unwrap();
    fs.db().sync().unwrap();
    let logged = device.stats();
    fs.db().checkpoint().unwrap();
    let after = device.stats();
    for path in ["/s/d0/f7", &format!("/s/d{}/f499", count / 500 - 1)] {
        assert_eq!(fs.resolve(Path::new(path)).unwrap().perm, 0o711);
    }
    assert_eq!(logged.reads, before.reads, "nothing is read");
    assert!(logged.write_bytes - before.write_bytes <= 8 << 10, "one small record");
    (
        after.reads - before.reads,
        logged.write_bytes - before.write_bytes,
        after.write_bytes - before.write_bytes,
    )
}

#[test]
fn a_change_of_a_tree_costs_the_same_whatever_its_size() {
    let many = if std::env::var_os("PANDO_FULL").is_some() { 1_000_000 } else { 100_000 };
    let (few, many) = (cost(1000), cost(many));
    println!("reads, bytes logged, bytes written with a checkpoint: 1,000 files {few:?}, most {many:?}");
    assert_eq!(few.1, many.1, "the record in the log");
    assert!(many.0 <= few.0 + 8, "{few:?} {many:?}");
    // The message waits in the root, which is written anew, once for each of its edges.
    assert!(many.2 <= few.2 + (64 << 10), "{few:?} {many:?}");
}

/// Calls in a tree wait while a change looks at what is in memory of it: others' files must not make that longer.
#[test]
fn what_is_in_memory_of_other_trees_costs_a_change_nothing() {
    let w = World::new();
    let mut known = Vec::new();
    for (dir, files) in [("few", 10), ("many", 20_000)] {
        let at = w.fs.mkdir(&w.me, ROOT, dir.as_ref(), 0o755).unwrap().ino;
        known.push(at);
        for f in 0..files {
            known.push(w.fs.mknod(&w.me, at, format!("f{f}").as_ref(), 0o100644, 0).unwrap().ino);
        }
    }
    let quickest = |path: &str| {
        let top = w.fs.resolve(Path::new(path)).unwrap().ino;
        let times = (0..30u32).map(|n| {
            let report = w.fs.change_tree(top, &mode(["u+x", "u-x"][n as usize % 2])).unwrap();
            (report.micros, report.known.len())
        });
        let quickest = times.min().unwrap();
        w.fs.forget(top, 1);
        quickest
    };
    let (few, many) = (quickest("/few"), quickest("/many"));
    assert_eq!((few.1, many.1), (11, 20_001));
    assert!(few.0 * 8 < many.0, "microseconds: {} beside 20,000 in memory, {} for them", few.0, many.0);
    known.into_iter().for_each(|ino| w.fs.forget(ino, 1));
}
