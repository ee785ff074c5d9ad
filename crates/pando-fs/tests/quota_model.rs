//! Random calls on trees with quotas, with crashes, and from several threads: what accounts say is always what is
//! there, and no limit is passed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::common::*;
use pando_db::device::{FailMode, MemDevice, SimDevice};
use pando_fs::*;

/// Beyond so many files and directories some are removed.
const MOST_ENTRIES: u64 = 300;

/// What `du` counts in a tree, bytes; each file once.
fn du(w: &World, path: &str) -> u64 {
    let files: BTreeMap<Ino, u64> = w.walk(path).values().map(|a| (a.ino, a.blocks * 512)).collect();
    files.values().sum()
}

struct Run {
    fs: Fs,
    device: Arc<SimDevice>,
    r: Random,
    me: Caller,
    /// Open files, perhaps without a name by now.
    open: Vec<(Ino, FileHandle)>,
    snapshots: Vec<(Ino, u32)>,
    what: String,
}

impl Run {
    fn dir(&mut self) -> String {
        let depth = 1 + self.r.below(3);
        (0..depth).map(|_| format!("/{}", ["a", "b", "c"][self.r.below(3)])).collect()
    }

    fn file(&mut self) -> String {
        let dir = self.dir();
        let name = ["f", "g", "h"][self.r.below(3)];
        format!("{dir}/{name}")
    }

    fn either(&mut self) -> String {
        if self.r.below(2) == 0 { self.dir() } else { self.file() }
    }

    fn at<T>(&self, path: &str, f: impl FnOnce(Ino, &OsStr) -> Result<T>) -> Result<T> {
        let (dir, name) = self.fs.resolve_parent(Path::new(path))?;
        let result = f(dir, &name);
        self.fs.forget(dir, 1);
        result
    }

    fn two<T>(
        &self,
        from: &str,
        to: &str,
        f: impl FnOnce((Ino, &OsStr), (Ino, &OsStr)) -> Result<T>,
    ) -> Result<T> {
        self.at(from, |d, n| self.at(to, |e, m| f((d, n), (e, m))))
    }

    fn ino<T>(&self, path: &str, f: impl FnOnce(Ino) -> Result<T>) -> Result<T> {
        let attr = self.fs.resolve(Path::new(path))?;
        let result = f(attr.ino);
        self.fs.forget(attr.ino, 1);
        result
    }

    /// Makes the directories above a path, as far as they can be.
    fn make_above(&self, path: &str) {
        let mut above: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
        above.pop();
        for dir in above.into_iter().rev() {
            let _there = self.at(dir.to_str().unwrap(), |d, n| {
                self.fs.mkdir(&self.me, d, n, 0o755).map(|a| self.fs.forget(a.ino, 1))
            });
        }
    }

    fn make_file(&mut self, path: &str, step: usize) -> Result<()> {
        let keep = self.r.below(6) == 0;
        let me = self.me.clone();
        let (ino, handle) = self.at(path, |d, n| {
            let (attr, handle) = self.fs.create(&me, d, n, 0o644, 2)?;
            self.fs.forget(attr.ino, 1);
            Ok((attr.ino, handle))
        })?;
        let _full = self.fs.write(handle, ino, 0, &pattern(step * 37 % 90_000, step as u8), false);
        match keep {
            true => self.open.push((ino, handle)),
            false => self.fs.release(ino, handle),
        }
        Ok(())
    }

    fn change_file(&mut self, path: &str, step: usize) -> Result<()> {
        let (offset, len) = (self.r.below(400_000) as u64, 1 + self.r.below(60_000));
        let kind = self.r.below(6);
        let (me, fs) = (self.me.clone(), self.fs.clone());
        let other = self.file();
        self.ino(path, |ino| {
            match kind {
                0 => {
                    let set = SetAttr { size: Some(offset), ..SetAttr::default() };
                    fs.setattr(&me, ino, &set)?;
                }
                1 => fs.fallocate(&me, ino, offset, len as u64, 3)?,
                2 => {
                    fs.fallocate(&me, ino, offset, len as u64, if step.is_multiple_of(2) { 0 } else { 16 })?
                }
                3 => {
                    let all = 1 << 30;
                    let from = if step.is_multiple_of(2) { 0 } else { offset };
                    self.ino(&other, |source| fs.copy_file_range(&me, source, from, ino, from, all))?;
                }
                _ => _ = fs.write(FileHandle(0), ino, offset, &pattern(len, step as u8), false)?,
            }
            Ok(())
        })
    }

    fn call(&mut self, step: usize) -> Result<()> {
        let (me, fs) = (self.me.clone(), self.fs.clone());
        let kind = self.r.below(26);
        let (from, to) = match kind {
            0..3 | 13 | 18..=20 | 22..26 => (self.dir(), self.dir()),
            3..13 => (self.file(), self.file()),
            _ => (self.either(), self.either()),
        };
        self.what = format!("call {kind} on {from} and {to}");
        if kind < 11 {
            self.make_above(&from);
        } else if matches!(kind, 14..18) {
            self.make_above(&to);
        }
        match kind {
            0..3 => self.at(&from, |d, n| fs.mkdir(&me, d, n, 0o755).map(|a| fs.forget(a.ino, 1))),
            3..7 => self.make_file(&from, step),
            7..11 => self.change_file(&from, step),
            11 => self
                .ino(&from, |ino| self.at(&to, |d, n| fs.link(&me, ino, d, n).map(|a| fs.forget(a.ino, 1)))),
            12 => self.at(&from, |d, n| fs.unlink(&me, d, n)),
            13 => self.at(&from, |d, n| fs.rmdir(&me, d, n)),
            14 | 15 => {
                let flags = if step.is_multiple_of(3) { RENAME_EXCHANGE } else { 0 };
                self.two(&from, &to, |(d, n), (e, m)| fs.rename(&me, d, n, e, m, flags))
            }
            16 | 17 => {
                let parts = match self.r.below(3) {
                    0 => vec![PathBuf::from("a"), PathBuf::from("b/c"), PathBuf::from("b")],
                    _ => Vec::new(),
                };
                let replace = self.r.below(2) == 0;
                self.two(&from, &to, |src, dst| {
                    fs.clone_tree_without(&me, src, dst, replace, &parts).map(drop)
                })
            }
            18 => match self.r.below(8) {
                0 => self.at(&from, |d, n| fs.remove_tree(&me, d, n).map(drop)),
                _ => Ok(()),
            },
            19 | 20 => {
                let limit = match self.r.below(5) {
                    0 => None,
                    _ => Some(self.r.below(300_000) as u64),
                };
                self.ino(&from, |ino| fs.set_quota(ino, limit))
            }
            21 => match self.open.is_empty() {
                true => Ok(()),
                false => {
                    let at = self.r.below(self.open.len());
                    let (ino, handle) = self.open.swap_remove(at);
                    let _gone = fs.write(handle, ino, 100_000, &pattern(9_000, 1), false);
                    fs.release(ino, handle);
                    Ok(())
                }
            },
            22 => {
                let (info, source) = self.ino(&from, |ino| {
                    let (info, _) = fs.snapshot(Authority::Caller(&me), ino, &NewSnapshot::default())?;
                    Ok((info, ino))
                })?;
                self.snapshots.push((source, info.number));
                Ok(())
            }
            23 => {
                let Some(&(source, number)) = self.snapshots.last() else { return Ok(()) };
                match self.r.below(3) {
                    0 => {
                        self.snapshots.pop();
                        fs.delete_snapshot(Authority::Caller(&me), source, number).map(drop)
                    }
                    1 => self.ino(&from, |ino| {
                        let own = fs.snapshots(ino)?;
                        let Some(info) = own.first() else { return Ok(()) };
                        fs.rollback(Authority::Caller(&me), ino, info.number, step.is_multiple_of(2))
                            .map(drop)
                    }),
                    _ => {
                        let root = fs.open_snapshot(source, number)?.ino;
                        let done = self
                            .at(&to, |d, n| fs.clone_snapshot(Authority::Caller(&me), root, (d, n), false));
                        fs.forget(root, 1);
                        done.map(drop)
                    }
                }
            }
            24 => self.two(&from, &to, |src, dst| fs.fork_tree(&me, src, dst, false, &[]).map(drop)),
            _ => {
                let options = MergeOptions { prefer: Some(MergeSide::Theirs), ..MergeOptions::default() };
                self.ino(&from, |fork| self.ino(&to, |into| fs.merge(None, fork, into, options).map(drop)))
            }
        }
    }

    /// All quotas: limit, use.
    fn exact(&self) -> BTreeMap<PathBuf, (u64, u64)> {
        let all = self.fs.quotas(ROOT).unwrap();
        all.into_iter().filter(|q| !q.stale).map(|q| (q.path, (q.limit, q.used))).collect()
    }

    /// How many files and directories there are, if nothing is wrong.
    fn check(&self, seed: u64, step: usize) -> u64 {
        let report = self.fs.check(|p| println!("seed {seed}, step {step}, {}: {p}", self.what)).unwrap();
        assert_eq!(report.problems, 0, "seed {seed}, step {step}, {}", self.what);
        report.files + report.directories
    }

    /// Has all counted, and compares with a walk.
    fn count(&mut self, seed: u64, step: usize) {
        for (ino, handle) in self.open.drain(..) {
            self.fs.release(ino, handle);
        }
        let w = World { device: Arc::new(MemDevice::new(1 << 20)), fs: self.fs.clone(), me: self.me.clone() };
        // Whoever looks at linked files has their names counted.
        w.walk("/");
        self.fs.count_links().unwrap();
        for quota in self.fs.quotas(ROOT).unwrap().iter().filter(|q| q.stale) {
            let path = quota.path.to_str().unwrap();
            self.ino(path, |ino| self.fs.set_quota(ino, Some(quota.limit))).unwrap();
        }
        // A count that is exact may lie below one that is not.
        let find = |path: &Path| self.fs.quotas(ROOT).unwrap().into_iter().find(|q| q.path == *path).unwrap();
        for quota in self.fs.quotas(ROOT).unwrap() {
            let mut at = quota.path.clone();
            while find(&quota.path).stale && at.pop() {
                let probe = at.join("probe");
                let probe = probe.to_str().unwrap();
                let _full = self.at(probe, |d, n| {
                    let (attr, fh) = self.fs.create(&self.me, d, n, 0o644, 2)?;
                    let _full = self.fs.write(fh, attr.ino, 0, b"x", false);
                    self.fs.release(attr.ino, fh);
                    self.fs.forget(attr.ino, 1);
                    self.fs.unlink(&self.me, d, n)
                });
                self.fs.count_quotas().unwrap();
            }
            let now = find(&quota.path);
            assert!(!now.stale, "seed {seed}, step {step}: {now:?}");
            let du = du(&w, now.path.to_str().unwrap());
            assert_eq!(now.used, du, "seed {seed}, step {step}: {now:?}");
        }
        drop(w);
        self.check(seed, step);
    }
}

fn crash_run(seed: u64, steps: usize) {
    println!("PANDO_SEED={seed} PANDO_STEPS={steps}");
    let device = Arc::new(SimDevice::new(256 << 20, seed));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let fs = Fs::open(device.clone(), options()).unwrap();
    let me = Caller::root();
    let (open, snapshots) = (Vec::new(), Vec::new());
    let mut run = Run { fs, device, r: Random::new(seed), me, open, snapshots, what: String::new() };
    let mut refused = 0;
    for step in 0..steps {
        let before = run.exact();
        let result = run.call(step);
        refused += u32::from(matches!(result, Err(Error::QuotaExceeded(_))));
        if let Err(e) = &result {
            assert!(!matches!(e, Error::Damaged { .. } | Error::Engine(_)), "seed {seed}, step {step}: {e}");
        }
        for (path, (limit, used)) in run.exact() {
            let most = before.get(&path).map_or(limit, |(_, before)| limit.max(*before));
            // A clone, or a rename, may have brought another directory to this path, with a quota that was passed.
            let known = before.values().any(|(_, before)| *before >= used);
            let set = run.what.starts_with("call 19") || run.what.starts_with("call 20");
            assert!(
                used <= most || known || set,
                "seed {seed}, step {step}, {}: {path:?} {used} of {limit}",
                run.what
            );
        }
        // Clones of clones double.
        if step % 8 == 0 && run.check(seed, step) > MOST_ENTRIES {
            let top = ["/a", "/b", "/c"][run.r.below(3)];
            let _none = run.at(top, |d, n| run.fs.remove_tree(&run.me, d, n));
        }
        match run.r.below(60) {
            0 => {
                if run.r.below(3) > 0 {
                    run.fs.db().sync().unwrap();
                }
                run.device.set_fail_at(Some(run.r.below(30) as u64), FailMode::Onwards);
                for more in 0..run.r.below(20) {
                    let _refused = run.call(step + more);
                }
                let _failed = run.fs.db().checkpoint();
                run.device.crash();
                (run.open, run.snapshots) = (Vec::new(), Vec::new());
                run.device = run.device.reopen();
                run.fs = Fs::open(run.device.clone(), options()).unwrap();
                run.what = "a crash".into();
                run.check(seed, step);
            }
            1 | 2 => {
                run.what = "counting".into();
                run.count(seed, step);
            }
            _ => {}
        }
    }
    run.count(seed, steps);
    assert!(refused > 0, "seed {seed}: no limit was met");
}

#[test]
fn whatever_is_done_accounts_say_what_is_there() {
    random_runs(6, 700, crash_run);
}

/// Writers, cloners, movers and whoever sets quotas at once: in the end each account says what is there.
#[test]
fn counts_are_exact_with_many_at_work() {
    let device = Arc::new(MemDevice::new(512 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
    let fs = Fs::open(device, options().background(true)).unwrap();
    let me = Caller::root();
    let make = |dir: Ino, name: &str| fs.mkdir(&me, dir, name.as_ref(), 0o755).unwrap().ino;
    let q = make(ROOT, "q");
    let base = make(q, "base");
    let deep = make(base, "deep");
    fs.set_quota(q, Some(1 << 40)).unwrap();
    fs.set_quota(deep, Some(1 << 40)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2u64 {
            let (fs, me, stop) = (&fs, &me, &stop);
            scope.spawn(move || {
                let mut i = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let name = format!("w{writer}-{}", i % 50);
                    let dir = if i.is_multiple_of(2) { base } else { deep };
                    match fs.create(me, dir, name.as_ref(), 0o644, 2) {
                        Ok((attr, handle)) => {
                            fs.write(handle, attr.ino, i % 70_000, &[1; 5000], false).unwrap();
                            fs.release(attr.ino, handle);
                            fs.forget(attr.ino, 1);
                        }
                        Err(_) => fs.unlink(me, dir, name.as_ref()).unwrap(),
                    }
                    i += 1;
                }
            });
        }
        let (fs, me) = (&fs, &me);
        scope.spawn(|| {
            for i in 0..150 {
                let name = OsString::from(format!("c{}", i % 20));
                let replace = fs.lookup(q, &name).map(|a| fs.forget(a.ino, 1)).is_ok();
                fs.clone_tree(me, (q, "base".as_ref()), (q, &name), replace).unwrap();
                match i % 3 {
                    0 => drop(fs.remove_tree(me, q, &name).unwrap()),
                    1 => {
                        let to = OsString::from(format!("out{i}"));
                        fs.rename(me, q, &name, ROOT, &to, 0).unwrap();
                        fs.remove_tree(me, ROOT, &to).unwrap();
                    }
                    _ => {}
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
    fs.count_quotas().unwrap();
    let w = World { device: Arc::new(MemDevice::new(1 << 20)), fs: fs.clone(), me: me.clone() };
    let quotas = fs.quotas(ROOT).unwrap();
    assert!(quotas.len() > 2, "{quotas:?}");
    for quota in quotas {
        assert_eq!((quota.used, quota.stale), (du(&w, quota.path.to_str().unwrap()), false), "{quota:?}");
    }
    fs.check(|p| panic!("{p}")).unwrap();
}
