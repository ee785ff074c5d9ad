//! Extended attributes: the errors of each call, and random calls against a map that knows what each must do.
//!
//! `PANDO_SEED` and `PANDO_STEPS` replay or prolong the random run.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use crate::common::*;
use pando_db::device::{Device, MemDevice};
use pando_fs::*;

const ENODATA: i32 = 61;
const ERANGE: i32 = 34;
const E2BIG: i32 = 7;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;

impl World {
    fn set(&self, path: &str, name: &str, value: &[u8], flags: i32) -> Result<()> {
        self.on(path, |a| self.fs.set_xattr(&self.me, a.ino, name.as_ref(), value, flags))
    }

    fn get_attr(&self, path: &str, name: &str) -> Result<Vec<u8>> {
        self.on(path, |a| Ok(self.fs.get_xattr(&self.me, a.ino, name.as_ref())?.to_vec()))
    }

    fn unset(&self, path: &str, name: &str) -> Result<()> {
        self.on(path, |a| self.fs.remove_xattr(&self.me, a.ino, name.as_ref()))
    }

    fn attr_names(&self, path: &str) -> Vec<String> {
        let list = self.on(path, |a| self.fs.list_xattr(&self.me, a.ino)).unwrap();
        let text = String::from_utf8(list.to_vec()).unwrap();
        let mut names: Vec<_> = text.split_terminator('\0').map(String::from).collect();
        names.sort();
        names
    }
}

#[test]
fn each_call_has_the_errors_of_posix() {
    let mut w = World::new();
    w.put("/f", b"data");
    w.mkdir("/d");
    w.symlink("/l", "nowhere");
    for path in ["/f", "/d", "/"] {
        let before = w.attr(path);
        assert_eq!(errno(w.get_attr(path, "user.a")), ENODATA);
        assert_eq!(errno(w.unset(path, "user.a")), ENODATA);
        assert_eq!(errno(w.set(path, "user.a", b"1", XATTR_REPLACE)), ENODATA);
        w.set(path, "user.a", b"1", XATTR_CREATE).unwrap();
        assert!(w.attr(path).ctime > before.ctime && w.attr(path).mtime == before.mtime, "{path}");
        assert_eq!(errno(w.set(path, "user.a", b"2", XATTR_CREATE)), EEXIST);
        w.set(path, "user.a", b"2", XATTR_REPLACE).unwrap();
        w.set(path, "trusted.t", b"", 0).unwrap();
        for large in ["user.large", "security.large", "trusted.large"] {
            w.set(path, large, &pattern(65_536, 3), 0).unwrap();
            assert_eq!(errno(w.set(path, large, b"", XATTR_CREATE)), EEXIST);
        }
        assert_eq!(errno(w.set(path, "user.b", &[0; 65_537], 0)), E2BIG);
        assert_eq!(errno(w.set(path, &format!("user.{}", "n".repeat(251)), b"", 0)), ERANGE);
        assert_eq!(errno(w.set(path, "", b"", 0)), ERANGE);
        let foreign = ["other.x", "system.x", "x"].map(|name| (name, EOPNOTSUPP));
        for (name, error) in foreign.into_iter().chain([("user.", EINVAL), ("trusted.", EINVAL)]) {
            assert_eq!(errno(w.set(path, name, b"", 0)), error, "{name}");
            assert_eq!(errno(w.get_attr(path, name)), error, "{name}");
            assert_eq!(errno(w.unset(path, name)), error, "{name}");
        }
        assert_eq!(errno(w.set(path, "user.a", b"", 4)), EINVAL);
        check_keys(&w);
    }
    assert_eq!(errno(w.set("/l", "user.a", b"", 0)), EPERM);
    w.set("/l", "trusted.a", &[1; 9000], 0).unwrap();
    let user = Caller { uid: 5, ..Caller::default() };
    let list = w.on("/f", |a| w.fs.list_xattr(&user, a.ino)).unwrap();
    assert!(!String::from_utf8_lossy(&list).contains("trusted"), "only root sees trusted attributes");
    assert_eq!(errno(w.on("/f", |a| w.fs.get_xattr(&user, a.ino, "trusted.t".as_ref()))), ENODATA);
    w.remount();
    assert_eq!(w.get_attr("/f", "user.large").unwrap(), pattern(65_536, 3));
    assert_eq!(w.get_attr("/", "user.a").unwrap(), b"2");
    assert_eq!(w.get_attr("/l", "trusted.a").unwrap(), [1; 9000]);
    assert_eq!(w.get("/f").unwrap(), b"data");
}

#[test]
fn the_names_of_a_file_are_at_most_what_can_be_listed() {
    let w = World::new();
    w.put("/f", b"");
    let mut set = 0;
    let error = loop {
        match w.set("/f", &format!("user.{:0>240}", set), b"value", 0) {
            Ok(()) => set += 1,
            Err(e) => break e.errno(),
        }
    };
    assert_eq!((error, set), (ENOSPC, 65_536 / 246));
    assert_eq!(w.attr_names("/f").len(), set);
    w.set("/f", &format!("user.{:0>240}", 7), b"another value", 0).unwrap();
    w.unset("/f", &format!("user.{:0>240}", 8)).unwrap();
    w.set("/f", &format!("user.{:0>240}", set), b"", 0).unwrap();
    check_keys(&w);
}

#[test]
fn changes_of_content_and_owner_take_capabilities_away() {
    let w = World::new();
    const NAME: &str = "security.capability";
    type Changes = [(&'static str, fn(&World)); 5];
    let changes: Changes = [
        ("write", |w| assert_eq!(w.write_at("/f", 0, b"x").unwrap(), 1)),
        ("truncate", |w| assert_eq!(w.truncate("/f", 3).unwrap().size, 3)),
        ("open", |w| assert!(w.put("/f", b"new") > 0)),
        ("chown", |w| {
            let set = SetAttr { uid: Some(7), ..SetAttr::default() };
            w.on("/f", |a| w.fs.setattr(&w.me, a.ino, &set)).unwrap();
        }),
        ("copy", |w| {
            w.put("/g", b"other content");
            w.truncate("/f", 0).unwrap();
            w.set("/f", NAME, b"capability", 0).unwrap();
            w.on("/g", |g| w.on("/f", |f| w.fs.copy_file_range(&w.me, g.ino, 0, f.ino, 0, 1 << 30))).unwrap();
        }),
    ];
    for full in [false, true] {
        w.put("/f", b"program");
        if full {
            // Where the record has no room for more.
            (0..40).for_each(|i| w.set("/f", &format!("security.{i}"), &[1; 500], 0).unwrap());
        }
        for (how, change) in &changes {
            w.set("/f", NAME, b"capability", 0).unwrap();
            w.on("/f", |a| w.fs.setattr(&w.me, a.ino, &SetAttr { mode: Some(0o755), ..SetAttr::default() }))
                .unwrap();
            assert_eq!(w.get_attr("/f", NAME).unwrap(), b"capability");
            change(&w);
            assert_eq!(errno(w.get_attr("/f", NAME)), ENODATA, "{how}");
        }
        check_keys(&w);
    }
}

#[test]
fn a_copy_of_data_leaves_attributes_alone() {
    let w = World::new();
    let data = pattern(3 << 20, 1);
    for (a, b) in [("/a", "/b"), ("/c", "/d")] {
        w.put(a, &data);
        w.put(b, b"");
        w.set(a, "user.large", &[1; 5000], 0).unwrap();
        w.set(b, "user.other", &[2; 5000], 0).unwrap();
        w.on(a, |x| w.on(b, |y| w.fs.copy_file_range(&w.me, x.ino, 0, y.ino, 0, 1 << 40))).unwrap();
        assert!(w.get(b).unwrap() == data);
        assert_eq!(w.attr_names(b), ["user.other"]);
        assert_eq!(w.get_attr(b, "user.other").unwrap(), [2; 5000]);
        w.truncate(b, 0).unwrap();
        assert_eq!(w.get_attr(b, "user.other").unwrap(), [2; 5000]);
        check_keys(&w);
    }
}

#[test]
fn what_is_removed_takes_its_attributes_along() {
    let w = World::new();
    for round in 0..2 {
        w.put("/f", b"");
        w.mkdir("/d");
        w.at("/p", |d, n| w.fs.mknod(&w.me, d, n, 0o010644, 0)).unwrap();
        for path in ["/f", "/d", "/p"] {
            assert_eq!(w.attr_names(path), [""; 0], "{path} in round {round}");
            w.set(path, "security.large", &[1; 5000], 0).unwrap();
        }
        if round == 0 {
            w.unlink("/f").unwrap();
            w.rmdir("/d").unwrap();
        } else {
            // Replaced by others.
            w.put("/f2", b"");
            w.mkdir("/d2");
            w.rename("/f2", "/f", 0).unwrap();
            w.rename("/d2", "/d", 0).unwrap();
            assert_eq!(w.attr_names("/f"), [""; 0]);
            assert_eq!(w.attr_names("/d"), [""; 0]);
        }
        w.unlink("/p").unwrap();
        check_keys(&w);
    }
}

#[test]
fn an_older_program_is_refused_once_there_are_attributes() {
    // The bytes of the format record behind its magic and version: features that must be known to open.
    let features = |w: &World| {
        let value = w.fs.db().get(b"\xff\xff\xff\xffF").unwrap().unwrap();
        u64::from_le_bytes(value[12..20].try_into().unwrap())
    };
    let mut w = World::new();
    w.put("/f", b"");
    assert_eq!(errno(w.unset("/f", "user.a")), ENODATA);
    assert_eq!(features(&w), 1, "without attributes an older program may go on");
    w.set("/f", "user.a", b"", 0).unwrap();
    assert_eq!(features(&w), 3);
    w.remount();
    w.set("/f", "user.b", b"", 0).unwrap();
    assert_eq!(features(&w), 3);
}

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend(tag.to_le_bytes());
        out.extend(perm.to_le_bytes());
        out.extend(id.to_le_bytes());
    }
    out
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const NO: u32 = u32::MAX;

#[test]
fn modes_and_access_lists_say_the_same() {
    let mut w = World::new();
    w.put("/f", b"");
    w.mkdir("/d");
    w.symlink("/l", "f");
    let mode = |w: &World, path: &str| w.attr(path).perm;
    let minimal = acl(&[(1, 7, NO), (4, 5, NO), (32, 0, NO)]);
    w.set("/f", ACCESS, &minimal, 0).unwrap();
    assert_eq!((mode(&w, "/f"), w.attr_names("/f")), (0o750, vec![]));
    let named = |mask| acl(&[(1, 6, NO), (2, 7, 1000), (4, 5, NO), (8, 1, 50), (16, mask, NO), (32, 4, NO)]);
    w.set("/f", ACCESS, &named(7), 0).unwrap();
    assert_eq!(mode(&w, "/f"), 0o674);
    w.on("/f", |a| w.fs.setattr(&w.me, a.ino, &SetAttr { mode: Some(0o624), ..SetAttr::default() })).unwrap();
    assert_eq!(w.get_attr("/f", ACCESS).unwrap(), named(2), "chmod sets the mask");
    w.remount();
    assert_eq!(w.get_attr("/f", ACCESS).unwrap(), named(2));
    w.unset("/f", ACCESS).unwrap();
    w.unset("/f", ACCESS).unwrap();
    assert_eq!((mode(&w, "/f"), errno(w.get_attr("/f", ACCESS))), (0o624, ENODATA));
    assert_eq!(errno(w.set("/f", DEFAULT, &named(7), 0)), EACCES);
    assert_eq!(errno(w.set("/l", ACCESS, &named(7), 0)), EOPNOTSUPP);
    assert_eq!(errno(w.set("/f", ACCESS, &named(9), 0)), EINVAL);

    // Inherited, large lists too; the umask counts only where there is no default list.
    let me = Caller { umask: 0o077, ..Caller::root() };
    let many: Vec<_> = [(1, 7, NO)]
        .into_iter()
        .chain((0..300).map(|id| (2, 5, id)))
        .chain([(4, 5, NO), (16, 7, NO), (32, 1, NO)])
        .collect();
    for (dir, list) in [("/d", named(7)), ("/e", acl(&many)), ("/plain", minimal.clone())] {
        if !w.exists(dir) {
            w.mkdir(dir);
        }
        w.set(dir, DEFAULT, &list, 0).unwrap();
        let (sub, file) = (format!("{dir}/sub"), format!("{dir}/file"));
        w.at(&sub, |d, n| w.fs.mkdir(&me, d, n, 0o777)).unwrap();
        w.at(&file, |d, n| w.fs.mknod(&me, d, n, 0o100666, 0)).unwrap();
        assert_eq!(w.get_attr(&sub, DEFAULT).unwrap(), list);
        match dir {
            "/plain" => {
                assert_eq!((mode(&w, &sub), mode(&w, &file)), (0o750, 0o640));
                assert_eq!(errno(w.get_attr(&sub, ACCESS)), ENODATA);
            }
            _ => {
                assert_eq!(w.get_attr(&sub, ACCESS).unwrap(), list);
                let bits = mode(&w, &file);
                assert_eq!(bits, if dir == "/d" { 0o664 } else { 0o660 });
                assert_ne!(w.get_attr(&file, ACCESS).unwrap(), list, "its mask is the group's bits");
            }
        }
    }
    w.at("/bare", |d, n| w.fs.mkdir(&me, d, n, 0o777)).unwrap();
    assert_eq!(mode(&w, "/bare"), 0o700);
    check_keys(&w);
}

/// What the attributes of each path are.
type Oracle = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

fn below(path: &str, top: &str) -> bool {
    path == top || path.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'))
}

fn run(seed: u64, steps: usize) {
    println!("PANDO_SEED={seed} PANDO_STEPS={steps}");
    let device = std::sync::Arc::new(MemDevice::new(64 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(8 << 10)).unwrap();
    let fs = Fs::open(device.clone(), options()).unwrap();
    let mut w = World { device, fs, me: Caller::root() };
    let mut oracle = Oracle::from([(String::new(), BTreeMap::new())]);
    let mut r = Random::new(seed);
    let mut calls = [0; 8];
    let is_dir = |p: &str| p.is_empty() || p.rsplit('/').next().is_some_and(|n| n.starts_with('d'));
    for step in 0..steps {
        let paths: Vec<String> = oracle.keys().cloned().collect();
        let some = r.pick(&paths).clone();
        let dirs: Vec<&String> = paths.iter().filter(|p| is_dir(p) && p.matches('/').count() < 5).collect();
        // Directories have names with d, files with f, pipes with p: what replaces what is of its kind.
        let kind = *r.pick(&["d", "f", "p"]);
        let new = format!("{}/{kind}{}", r.pick(&dirs), r.below(3));
        let shown = |p: &str| if p.is_empty() { "/".to_owned() } else { p.to_owned() };
        let call = if paths.len() > 40 { 4 } else { r.below(8) };
        calls[call] += 1;
        match call {
            0 => {
                let made = match kind {
                    "d" => w.at(&new, |d, n| w.fs.mkdir(&w.me, d, n, 0o755)),
                    "f" => w.at(&new, |d, n| w.fs.mknod(&w.me, d, n, 0o100644, 0)),
                    _ => w.at(&new, |d, n| w.fs.mknod(&w.me, d, n, 0o010644, 0)),
                };
                if let Ok(attr) = &made {
                    w.fs.forget(attr.ino, 1);
                }
                assert_eq!(made.is_err(), oracle.contains_key(&new));
                oracle.entry(new).or_default();
            }
            1 | 2 => {
                let name = format!("{}{}", r.pick(&["security.a", "trusted.name"]), r.below(30));
                let len = *r.pick(&[0, 1, 20, 300, 1024, 1025, 9000, 65_536]);
                let value = pattern(len, r.next() as u8);
                let flags = *r.pick(&[0, 0, XATTR_CREATE, XATTR_REPLACE]);
                let attrs = oracle.get_mut(&some).unwrap();
                let expected = match (flags, attrs.contains_key(&name)) {
                    (XATTR_CREATE, true) => Some(EEXIST),
                    (XATTR_REPLACE, false) => Some(ENODATA),
                    _ => None,
                };
                let result = w.set(&shown(&some), &name, &value, flags);
                assert_eq!(result.err().map(|e| e.errno()), expected, "{some} {name}");
                if expected.is_none() {
                    attrs.insert(name, value);
                }
            }
            3 => {
                let attrs = oracle.get_mut(&some).unwrap();
                let names: Vec<String> = attrs.keys().cloned().chain(["trusted.none".into()]).collect();
                let name = r.pick(&names).clone();
                let result = w.unset(&shown(&some), &name);
                assert_eq!(result.is_ok(), attrs.remove(&name).is_some(), "{some} {name}");
            }
            4 => {
                if !some.is_empty() {
                    w.remove_tree(&some).unwrap();
                    oracle.retain(|p, _| !below(p, &some));
                }
            }
            5 | 6 => {
                let exchange = call == 5 && r.below(3) == 0;
                let leaf = some.rsplit('/').next().unwrap_or_default().chars().next();
                let fits = !some.is_empty()
                    && leaf == kind.chars().next()
                    && !below(&new, &some)
                    && !below(&some, &new);
                let full = oracle.keys().any(|p| below(p, &new) && *p != new);
                if !fits || (exchange && !oracle.contains_key(&new)) || (call == 5 && !exchange && full) {
                    continue;
                }
                let moved = |from: &str, to: &str, o: &Oracle| -> Oracle {
                    let inside = o.iter().filter(|(p, _)| below(p, from));
                    inside.map(|(p, a)| (format!("{to}{}", &p[from.len()..]), a.clone())).collect()
                };
                let (here, there) = (moved(&some, &new, &oracle), moved(&new, &some, &oracle));
                oracle.retain(|p, _| !below(p, &new) && (call == 6 || !below(p, &some)));
                match call {
                    6 => drop(w.clone_tree(&some, &new, true).unwrap()),
                    _ => w.rename(&some, &new, if exchange { RENAME_EXCHANGE } else { 0 }).unwrap(),
                }
                if exchange {
                    oracle.extend(there);
                }
                oracle.extend(here);
            }
            _ => match r.below(3) {
                0 => w.remount(),
                // What lies in the log only: a crash after a sync loses nothing.
                1 => {
                    w.fs.sync().unwrap();
                    let copy = std::sync::Arc::new(MemDevice::new(64 << 20));
                    let mut bytes = vec![0; 1 << 20];
                    for at in (0..64u64 << 20).step_by(1 << 20) {
                        w.device.read_at(at, &mut bytes).unwrap();
                        if bytes.iter().any(|b| *b != 0) {
                            copy.write_at(at, &bytes).unwrap();
                        }
                    }
                    w.device = copy;
                    w.fs = Fs::open(w.device.clone(), options()).unwrap();
                }
                _ => {
                    if kind == "f" && w.exists(&new) {
                        w.write_at(&new, r.below(200_000) as u64, &pattern(20_000, 1)).unwrap();
                        w.truncate(&new, *r.pick(&[0, 100, 500_000])).unwrap();
                    }
                }
            },
        }
        if step % 40 == 39 || step + 1 == steps {
            for (path, attrs) in &oracle {
                let names: Vec<String> = attrs.keys().cloned().collect();
                assert_eq!(w.attr_names(&shown(path)), names, "{path}");
                for (name, value) in attrs {
                    assert!(w.get_attr(&shown(path), name).unwrap() == *value, "{path} {name}");
                }
            }
            let found: Vec<String> = w.walk("/").into_keys().collect();
            assert_eq!(found, oracle.keys().cloned().collect::<Vec<_>>());
            check_keys(&w);
        }
    }
    assert!(calls.iter().all(|c| *c > 0), "{calls:?}");
}

#[test]
fn random_calls_keep_what_a_map_keeps() {
    random_runs(8, 500, run);
}

/// What the kernel asks for read permission for, or for root, is compared for those only who have it.
#[test]
fn values_that_the_caller_may_not_read_are_not_compared() {
    let w = World::new();
    let names = ["user.a", "trusted.a", "security.a"];
    let long = vec![7; 3000];
    let set = |path: &str, name: &str, value: &[u8]| {
        w.on(path, |a| w.fs.set_xattr(&w.me, a.ino, name.as_ref(), value, 0)).unwrap();
    };
    w.mkdir("/t");
    for name in names.iter().chain(&["same"]) {
        for (file, value) in [("short", &long[..9]), ("long", &long[..])] {
            let path = format!("/t/{name}-{file}");
            w.put(&path, b"content");
            names.iter().for_each(|name| set(&path, name, value));
            w.on(&path, |a| w.fs.setattr(&w.me, a.ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }))
                .unwrap();
        }
    }
    w.clone_tree("/t", "/c", false).unwrap();
    for name in names {
        set(&format!("/c/{name}-short"), name, b"other");
        set(&format!("/c/{name}-long"), name, &[8; 3000]);
    }
    let user = Caller { uid: 1000, gid: 1000, ..Caller::default() };
    let of = |viewer: Option<&Caller>, a: &str, b: &str| -> Vec<String> {
        let diff = w.on(a, |x| w.on(b, |y| w.fs.diff(viewer, x.ino, y.ino, DiffOptions::default()))).unwrap();
        let found: Vec<FileChange> = diff.collect::<Result<_>>().unwrap();
        let told = found.iter().filter(|c| c.aspects.contains(Aspects::XATTRS));
        let mut told: Vec<String> = told.map(|c| c.path.to_str().unwrap().into()).collect();
        told.sort();
        told
    };
    let both = |names: &[&str]| -> Vec<String> {
        let mut all: Vec<String> =
            names.iter().flat_map(|name| ["long", "short"].map(|file| format!("{name}-{file}"))).collect();
        all.sort();
        all
    };
    assert_eq!(of(None, "/t", "/c"), both(&names));
    assert_eq!(of(Some(&user), "/t", "/c"), both(&["security.a"]));
    // Who has opened the two files may read them; root's are for root all the same.
    for (name, told) in [("user.a", true), ("trusted.a", false), ("security.a", true)] {
        for file in ["long", "short"] {
            let [a, b] = ["t", "c"].map(|top| format!("/{top}/{name}-{file}"));
            assert_eq!(!of(Some(&user), &a, &b).is_empty(), told, "{name} {file}");
        }
    }
    w.on("/c", |a| w.fs.setattr(&w.me, a.ino, &SetAttr { mode: Some(0o755), ..SetAttr::default() })).unwrap();
    for path in
        ["/t", "/c"].iter().flat_map(|top| both(&names).into_iter().map(move |f| format!("{top}/{f}")))
    {
        w.on(&path, |a| w.fs.setattr(&w.me, a.ino, &SetAttr { mode: Some(0o644), ..SetAttr::default() }))
            .unwrap();
    }
    assert_eq!(of(Some(&user), "/t", "/c"), both(&["security.a", "user.a"]));
}
