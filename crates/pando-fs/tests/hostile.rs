//! Records with any content, in a store that is sound: what somebody wrote who wanted to harm. A call on them succeeds
//! or fails; it does not panic, and it comes to an end.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::mpsc,
    thread,
    time::Duration,
};

use bytes::Bytes;
use pando_fs::*;

use crate::common::{
    World, options,
    seeds::seeds_for,
    trees::{Rng, step},
};

/// How long all calls on one image may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Entries of a tree that are looked at, and bytes of a file that are read at once: counts and sizes may be anything.
const MOST_ENTRIES: usize = 300;
const READ_BYTES: u32 = 1 << 16;

/// A file system with records of every kind.
fn sample(rng: &mut Rng) -> World {
    let w = World::new();
    for dir in ["/s", "/s/d", "/q", "/s/d/below"] {
        w.mkdir(dir);
    }
    w.put("/s/large", &[7; 100_000]);
    w.truncate("/s/large", 3 << 20).unwrap();
    w.put("/s/one", b"1");
    w.link("/s/one", "/s/d/two").unwrap();
    w.symlink("/s/link", "one");
    w.at("/pipe", |d, n| w.fs.mknod(&w.me, d, n, 0o010644, 0)).map(|a| w.fs.forget(a.ino, 1)).unwrap();
    w.on("/s/one", |a| w.fs.set_xattr(&w.me, a.ino, "user.x".as_ref(), b"value", 0)).unwrap();
    w.on("/s/d", |a| w.fs.set_xattr(&w.me, a.ino, "user.large".as_ref(), &[1; 5000], 0)).unwrap();
    let snapshot = |path: &str| {
        w.on(path, |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &NewSnapshot::default())).unwrap();
    };
    snapshot("/s/d");
    snapshot("/s");
    w.on("/q", |a| w.fs.set_quota(a.ino, Some(1 << 20))).unwrap();
    w.on("/s", |a| {
        let policy = StoredPolicy { every_secs: 3600, ..StoredPolicy::default() };
        w.fs.set_policy(Authority::Caller(&w.me), a.ino, Some(&policy))
    })
    .unwrap();
    w.put("/q/file", b"counted");
    w.fork("/s", "/f");
    w.clone_tree("/s", "/c", false).unwrap();
    for top in ["/s", "/f"] {
        (0..rng.next(6)).for_each(|_| step(&w, top, rng));
    }
    w.rename("/c/d", "/c/moved", 0).unwrap();
    // A file that is open and has no name stays when the power fails.
    w.put("/gone", b"orphan");
    w.on("/gone", |a| w.fs.open_file(&w.me, a.ino, 2)).unwrap();
    w.unlink("/gone").unwrap();
    w.fs.sync().unwrap();
    w
}

/// Changes some pairs; what was done, in words.
fn damage(w: &World, rng: &mut Rng) -> Vec<String> {
    let db = w.fs.db();
    let pairs: Vec<(Bytes, Bytes)> = db.range(b"", None).map(Result::unwrap).collect();
    // Kinds of keys, so that rare ones are hit as often: the area, and the letter behind it.
    let mut kinds: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
    for (i, (key, _)) in pairs.iter().enumerate() {
        kinds.entry(key.get(..5).unwrap_or(key)).or_default().push(i);
    }
    let kinds: Vec<&Vec<usize>> = kinds.values().collect();
    let pick = |rng: &mut Rng| {
        let kind = kinds[rng.next(kinds.len())];
        pairs[kind[rng.next(kind.len())]].clone()
    };
    let noise = |rng: &mut Rng, bytes: &mut Vec<u8>| {
        if bytes.is_empty() {
            return bytes.push(rng.next(256) as u8);
        }
        let at = rng.next(bytes.len());
        match rng.next(6) {
            0 => bytes[at] ^= 1 << rng.next(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.next(5)],
            2 => {
                let to = (at + 8).min(bytes.len());
                bytes[at..to].fill([0, 0xff, 0x7f][rng.next(3)]);
            }
            3 => bytes.truncate(at),
            4 => bytes.extend((0..=rng.next(40)).map(|_| rng.next(256) as u8)),
            _ => _ = bytes.remove(at),
        }
    };
    let mut done = Vec::new();
    for _ in 0..=rng.next(5) {
        let (key, value) = pick(rng);
        let (mut key, mut value) = (key.to_vec(), value.to_vec());
        let what = rng.next(8);
        match what {
            0 => {
                done.push(format!("no {key:?}"));
                db.delete(key).unwrap();
                continue;
            }
            1 => noise(rng, &mut key),
            2 => value = pick(rng).1.to_vec(),
            3 => key = pick(rng).0.to_vec(),
            _ => (0..=rng.next(3)).for_each(|_| noise(rng, &mut value)),
        }
        done.push(format!("{key:?} = {:?}", &value[..value.len().min(100)]));
        // Limits of the store itself hold.
        let _ = db.put(key, value);
    }
    done
}

/// All entries below `top`, until there are many.
fn walk(fs: &Fs, top: Ino, seen: &mut Vec<Attr>) -> Result<()> {
    let dh = fs.opendir(top)?;
    let mut cookie = 0;
    let listed = loop {
        match fs.readdir_plus(dh, top, cookie, 20) {
            Ok(entries) if entries.is_empty() || seen.len() > MOST_ENTRIES => break Ok(()),
            Ok(entries) => {
                for entry in entries {
                    cookie = entry.cookie;
                    let Ok(attr) = fs.lookup(top, &entry.name) else { continue };
                    seen.push(attr);
                }
            }
            Err(e) => break Err(e),
        }
    };
    fs.releasedir(dh);
    listed
}

/// The calls that are made on one image.
struct Calls<'a> {
    /// Is told of each before it is made.
    progress: &'a mpsc::Sender<String>,
    panicked: Vec<String>,
}

impl Calls<'_> {
    /// Makes a call, however it ends.
    fn make<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) {
        let _ = self.outcome(name, work);
    }

    /// What a call comes to; nothing if it panics.
    fn outcome<T>(&mut self, name: &str, work: impl FnOnce() -> Result<T>) -> Option<Result<T>> {
        self.progress.send(name.to_owned()).unwrap();
        let done = catch_unwind(AssertUnwindSafe(work));
        if done.is_err() {
            self.panicked.push(name.to_owned());
        }
        done.ok()
    }
}

/// Everything that can be asked for and done, however it ends.
fn use_all(fs: &Fs, rng: &mut Rng, calls: &mut Calls<'_>) {
    let me = Caller::root();
    let mut all = vec![fs.resolve(Path::new("/")).into_iter().collect::<Vec<_>>()];
    let mut files: Vec<Attr> = Vec::new();
    while let Some(level) = all.pop() {
        let mut below = Vec::new();
        for attr in &level {
            if attr.kind == FileKind::Directory && files.len() < MOST_ENTRIES {
                calls.make("readdir", || walk(fs, attr.ino, &mut below));
            }
        }
        files.extend(level);
        if !below.is_empty() {
            all.push(below);
        }
    }
    for path in ["/s/.snapshots", "/s/d/.snapshots", "/f", "/s", "/s/one", "/s/d/two", "/c/moved", "/q/file"]
    {
        calls.make("resolve", || fs.resolve(Path::new(path)).map(|attr| files.push(attr)));
    }
    for attr in &files {
        let ino = attr.ino;
        calls.make("getattr", || fs.getattr(ino).map(drop));
        calls.make("list_xattr", || fs.list_xattr(&me, ino).map(drop));
        for name in ["user.x", "user.large", "system.posix_acl_access"] {
            calls.make("get_xattr", || fs.get_xattr(&me, ino, OsStr::new(name)).map(drop));
        }
        match attr.kind {
            FileKind::Regular => {
                for offset in [0, 90_000, attr.size.saturating_sub(100), 1 << 40, i64::MAX as u64 - 10] {
                    calls.make("read", || fs.read(FileHandle(0), ino, offset, READ_BYTES).map(drop));
                }
                calls.make("seek", || fs.seek(ino, 0, Seek::Hole).map(drop));
                calls.make("seek", || fs.seek(ino, 0, Seek::Data).map(drop));
            }
            FileKind::Symlink => calls.make("readlink", || fs.readlink(ino).map(drop)),
            FileKind::Directory => {
                calls.make("snapshots", || fs.snapshots(ino).map(drop));
                calls.make("policies", || fs.policies_in(ino).map(drop));
                calls.make("quotas", || fs.quotas(ino).map(drop));
                calls.make("forks", || fs.forks(Some(ino)).map(drop));
                calls.make("fork_of", || fs.fork_of(ino).map(drop));
                calls.make("statfs", || fs.statfs_at(ino).map(drop));
            }
            _ => {}
        }
        calls.make("usage", || fs.usage(ino).map(drop));
    }
    calls.make("orphans", || fs.snapshots_of_gone().map(drop));
    calls.make("sources", || fs.snapshot_sources().map(drop));
    calls.make("stats", || fs.stats().map(drop));
    let at = |path: &str, work: &dyn Fn(Ino, &OsStr) -> Result<()>| -> Result<()> {
        let (dir, name) = fs.resolve_parent(Path::new(path))?;
        let done = work(dir, &name);
        fs.forget(dir, 1);
        done
    };
    let on = |path: &str, work: &dyn Fn(Ino) -> Result<()>| -> Result<()> {
        let attr = fs.resolve(Path::new(path))?;
        let done = work(attr.ino);
        fs.forget(attr.ino, 1);
        done
    };
    let options = DiffOptions { ranges: true, no_renames: false };
    calls.make("diff", || {
        on("/s", &|s| on("/f", &|f| fs.diff(None, s, f, options)?.take(1000).try_for_each(|c| c.map(drop))))
    });
    calls.make("diff fork", || {
        on("/f", &|f| fs.diff_fork(None, f, options)?.take(1000).try_for_each(|c| c.map(drop)))
    });
    let mut changes: Vec<usize> = (0..16).collect();
    (0..16).for_each(|i| changes.swap(i, rng.next(16)));
    for change in changes {
        match change {
            0 => calls.make("merge", || {
                let o = MergeOptions { prefer: Some(MergeSide::Theirs), ..MergeOptions::default() };
                on("/f", &|f| on("/s", &|s| fs.merge(None, f, s, o).map(drop)))
            }),
            1 => calls.make("rollback", || {
                on("/s", &|s| {
                    let Some(snapshot) = fs.snapshots(s)?.pop() else { return Ok(()) };
                    fs.rollback(Authority::Caller(&me), s, snapshot.number, false).map(drop)
                })
            }),
            2 => calls.make("snapshot", || {
                on("/s", &|s| fs.snapshot(Authority::Caller(&me), s, &NewSnapshot::default()).map(drop))
            }),
            3 => calls.make("delete snapshot", || {
                on("/s/d", &|s| {
                    let Some(snapshot) = fs.snapshots(s)?.pop() else { return Ok(()) };
                    fs.delete_snapshot(Authority::Caller(&me), s, snapshot.number).map(drop)
                })
            }),
            4 => calls.make("clone", || {
                at("/s", &|d, n| at("/new", &|e, m| fs.clone_tree(&me, (d, n), (e, m), false).map(drop)))
            }),
            5 => calls.make("fork", || {
                at("/s", &|d, n| {
                    at("/s/d/fork", &|e, m| fs.fork_tree(&me, (d, n), (e, m), false, &[]).map(drop))
                })
            }),
            6 => calls.make("discard", || at("/f", &|d, n| fs.discard(&me, d, n).map(drop))),
            7 => calls.make("remove", || at("/c", &|d, n| fs.remove_tree(&me, d, n).map(drop))),
            8 => calls.make("unlink", || at("/s/d/two", &|d, n| fs.unlink(&me, d, n))),
            9 => calls
                .make("link", || on("/s/one", &|i| at("/s/three", &|d, n| fs.link(&me, i, d, n).map(drop)))),
            10 => {
                calls.make("rename", || at("/s/d", &|d, n| at("/q/d", &|e, m| fs.rename(&me, d, n, e, m, 0))))
            }
            11 => calls.make("write", || {
                on("/q/file", &|i| {
                    let handle = fs.open_file(&me, i, 2)?;
                    let written = fs.write(handle, i, 3 << 20, b"more", false);
                    fs.release(i, handle);
                    written.map(drop)
                })
            }),
            12 => calls.make("truncate", || {
                on("/s/large", &|i| {
                    fs.setattr(&me, i, &SetAttr { size: Some(5), ..SetAttr::default() }).map(drop)
                })
            }),
            13 => calls.make("chmod -R", || {
                on("/s", &|i| {
                    let change = TreeChange { uid: Some(7), ..TreeChange::default() };
                    fs.change_tree(i, &change).map(drop)
                })
            }),
            14 => calls.make("set_quota", || on("/s", &|i| fs.set_quota(i, Some(1 << 30)))),
            _ => calls.make("mkdir", || at("/q/d/x", &|d, n| fs.mkdir(&me, d, n, 0o700).map(drop))),
        }
    }
    calls.make("count quotas", || fs.count_quotas());
    calls.make("count links", || fs.count_links());
    calls.make("check", || fs.check(|_| ()).map(drop));
    calls.make("sync", || fs.sync());
}

/// One image: what was wrong with it, and the calls that panicked.
fn survive(seed: u64, progress: &mpsc::Sender<String>) -> Vec<String> {
    let mut rng = Rng(seed);
    let w = sample(&mut rng);
    let done = damage(&w, &mut rng);
    progress.send(format!("{done:#?}")).unwrap();
    w.fs.db().sync().unwrap();
    let device = w.device.clone();
    // The daemon goes without a word, or closes.
    if rng.next(2) == 0 {
        let _ = catch_unwind(AssertUnwindSafe(|| w.fs.close()));
    }
    drop(w);
    let mut calls = Calls { progress, panicked: Vec::new() };
    if let Some(Ok(fs)) = calls.outcome("open", || Fs::open(device, options())) {
        use_all(&fs, &mut rng, &mut calls);
        calls.make("close", || fs.close());
    }
    calls.panicked
}

#[test]
fn no_record_makes_a_call_panic_or_hang() {
    for seed in seeds_for("PANDO_MODEL_SECONDS", 4) {
        let (progress, told) = mpsc::channel();
        let (send, ended) = mpsc::channel();
        let run = thread::spawn(move || send.send(survive(seed, &progress)).unwrap());
        let outcome = ended.recv_timeout(PATIENCE);
        let told: Vec<String> = told.try_iter().collect();
        let damage = told.first().map_or("no damage yet", String::as_str);
        match outcome {
            Ok(panicked) if panicked.is_empty() => run.join().unwrap(),
            Ok(panicked) => panic!("PANDO_SEED={seed}: {panicked:?} panicked\n{damage}"),
            Err(_) => {
                let last = &told[told.len().saturating_sub(25)..];
                panic!("PANDO_SEED={seed}: the last call did not end: {last:?}\n{damage}")
            }
        }
    }
}

/// What decodes can be encoded again: calls that change a file write its other attributes anew.
#[test]
fn attributes_longer_than_any_that_are_written_are_errors() {
    let attribute = |name: &[u8], value: usize| {
        let mut out = vec![name.len() as u8];
        out.extend((value as u16).to_le_bytes());
        out.extend_from_slice(name);
        out.resize(out.len() + value, 7);
        out
    };
    // One long value beside a capability; so many short ones that another capability is more than a record holds.
    let long = [attribute(b"user.long", 5000), attribute(b"security.capability", 20)].concat();
    let mut many: Vec<u8> = (0..64).flat_map(|i| attribute(format!("user.{i}").as_bytes(), 1000)).collect();
    many.extend(attribute(b"user.last", 65_500 - 8 - many.len() - 12));
    for forged in [long, many] {
        let w = World::new();
        w.put("/f", b"content");
        w.mkdir("/d");
        let list = [&[0; 8][..], &forged].concat();
        for (path, key) in [("/f", &b"\0\0\0\0M\x01f\0"[..]), ("/d", b"\0\0\0\0M\x01d\0")] {
            let mut record = w.fs.db().get(key).unwrap().unwrap().to_vec();
            record.push(16); // the tag of attributes
            record.extend((list.len() as u16).to_le_bytes());
            record.extend_from_slice(&list);
            w.fs.db().put(key.to_vec(), record).unwrap();
            let (fs, me) = (&w.fs, &w.me);
            let calls = catch_unwind(AssertUnwindSafe(|| {
                let Ok(attr) = fs.resolve(Path::new(path)) else { return };
                let own = SetAttr { uid: Some(7), ..SetAttr::default() };
                for name in ["user.x", "security.capability", "user.1"] {
                    let _ = fs.set_xattr(me, attr.ino, name.as_ref(), &[1; 20], 0);
                    let _ = fs.remove_xattr(me, attr.ino, name.as_ref());
                }
                let _ = fs.setattr(me, attr.ino, &own);
                let _ = fs.write(FileHandle(0), attr.ino, 0, b"changed", false);
            }));
            assert!(calls.is_ok(), "{path}: a call panicked");
        }
        w.fs.db().settle().unwrap();
        assert!(w.fs.check(|_| {}).unwrap().problems > 0);
    }
    // Under a key of its own: longer than a value may be.
    let w = World::new();
    w.put("/f", b"content");
    w.on("/f", |a| w.fs.set_xattr(&w.me, a.ino, "user.large".as_ref(), &[1; 5000], 0)).unwrap();
    let pairs: Vec<_> = w.fs.db().prefix(b"\0\0\0\0D\x01f\0\xa0").map(Result::unwrap).collect();
    let [(key, _)] = &pairs[..] else { panic!("one key of attributes") };
    let mut bucket = vec![9];
    bucket.extend((65_537u32).to_le_bytes());
    bucket.extend_from_slice(b"user.othe");
    bucket.resize(bucket.len() + 65_537, 7);
    w.fs.db().put(key.clone(), bucket).unwrap();
    let set = || w.on("/f", |a| w.fs.set_xattr(&w.me, a.ino, "user.large".as_ref(), &[2; 5000], 0));
    let calls = catch_unwind(AssertUnwindSafe(|| set().map_err(|e| e.errno())));
    assert_eq!(calls.ok(), Some(Err(5)), "a call panicked, or took what is damaged");
}

/// The kernel never saw the entries before a damaged one, and so it never forgot them: they stayed in memory until the
/// unmount.
#[test]
fn a_listing_that_ends_in_an_error_leaves_nothing_referenced() {
    let w = World::new();
    w.mkdir("/d");
    for name in ["/d/a", "/d/b", "/d/broken"] {
        w.put(name, b"x");
    }
    let db = w.fs.db();
    let pairs: Vec<(Bytes, Bytes)> = db.range(b"", None).map(Result::unwrap).collect();
    let is_it = |key: &[u8]| key.windows(6).any(|part| part == b"broken");
    let mut batch = pando_db::Batch::new();
    for (key, _) in pairs.iter().filter(|(key, _)| is_it(key)) {
        batch.put(key.clone(), &b"no record"[..]);
    }
    db.write(batch).unwrap();
    w.assert_nothing_referenced();
    w.on("/d", |a| {
        let dh = w.fs.opendir(a.ino)?;
        assert!(w.fs.readdir_plus(dh, a.ino, 0, 100).is_err());
        w.fs.releasedir(dh);
        Ok(())
    })
    .unwrap();
    w.assert_nothing_referenced();
}
