//! Snapshots, rollbacks and policies under crashes: what is left is one moment.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::{common::*, snapshots::*};
use pando_db::device::SimDevice;
use pando_fs::*;
use std::{collections::BTreeMap, ffi::OsStr, sync::Arc};

type Tree = BTreeMap<String, Option<Vec<u8>>>;

/// All that a crash may leave of one moment.
#[derive(Clone, PartialEq, Debug, Default)]
struct State {
    live: Tree,
    snaps: BTreeMap<u32, Tree>,
    /// Seconds between two snapshots, by the path of the directory.
    policies: BTreeMap<String, u32>,
}

fn below(tree: &Tree, dir: &str) -> Tree {
    let prefix = format!("{dir}/");
    let inside = tree.iter().filter_map(|(p, v)| Some((format!("/{}", p.strip_prefix(&prefix)?), v.clone())));
    inside.collect()
}

fn read_tree(w: &World, path: &str, out: &mut Tree, at: &str) {
    for name in names(w, if path.is_empty() { "/" } else { path }) {
        let (full, shown) = (format!("{path}/{name}"), format!("{at}/{name}"));
        if w.attr(&full).kind == FileKind::Directory {
            out.insert(shown.clone(), None);
            read_tree(w, &full, out, &shown);
        } else {
            out.insert(shown, Some(w.get(&full).unwrap()));
        }
    }
}

fn read_state(w: &World) -> State {
    let mut state = State::default();
    read_tree(w, "", &mut state.live, "");
    let stored = w.fs.policies().unwrap().into_iter();
    state.policies = stored.map(|(_, p)| (p.path.into_string().unwrap(), p.policy.every_secs)).collect();
    for source in w.fs.snapshot_sources().unwrap() {
        for info in w.fs.snapshots(source).unwrap() {
            let root = w.fs.open_snapshot(source, info.number).unwrap();
            // As the tree of a clone, which is taken away again.
            w.fs.clone_snapshot(by(w), root.ino, (ROOT, OsStr::new("look")), false).unwrap();
            w.fs.forget(root.ino, 1);
            let mut tree = Tree::new();
            read_tree(w, "/look", &mut tree, "");
            w.remove_tree("/look").unwrap();
            state.snaps.insert(info.number, tree);
        }
    }
    state
}

/// Carries all policies out at a time of the test's own; adds a state for each snapshot that is made or deleted.
fn carry_out(w: &World, now: i64, state: &mut State, history: &mut Vec<State>) -> usize {
    let mut done = 0;
    for (_, info) in w.fs.policies().unwrap() {
        let path = info.path.to_str().unwrap();
        let list = || w.on(path, |a| w.fs.snapshots(a.ino)).unwrap();
        let (now, before) = (Time { secs: now, nanos: 0 }, list());
        let work = w.fs.carry_out_policy(&info, (now, false), &mut |_| {}, &mut |_| {}).unwrap();
        assert_eq!(work.failed, None);
        let tree = if path == "/" { state.live.clone() } else { below(&state.live, path) };
        let made = list().into_iter().filter(|s| before.iter().all(|old| old.number != s.number));
        let made: Vec<u32> = made.map(|s| s.number).collect();
        assert_eq!(made.len(), usize::from(work.made.is_some()));
        for number in made {
            state.snaps.insert(number, tree.clone());
            history.push(state.clone());
            done += 1;
        }
        for name in &work.deleted {
            let gone = before.iter().find(|s| s.name == *name).unwrap();
            state.snaps.remove(&gone.number);
            history.push(state.clone());
            done += 1;
        }
    }
    done
}

fn crash_run(seed: u64, steps: usize) {
    println!("PANDO_SEED={seed} PANDO_STEPS={steps}");
    let mut r = Random::new(seed);
    let mut device = Arc::new(SimDevice::new(256 << 20, seed));
    Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
    let options = || MountOptions::default().background(false).cache_bytes(8 << 20);
    let mut w = World::over(Fs::open(device.clone(), options()).unwrap());
    let mut history = vec![State::default()];
    let (mut crashes, mut lost, mut automatic, mut now) = (0, 0, 0, 1_000_000);
    for _ in 0..steps {
        now += r.below(100) as i64;
        let mut state = history.last().unwrap().clone();
        let dir = format!("/{}", ["a", "b", "c"][r.below(3)]);
        let is_there = state.live.contains_key(&dir);
        match r.below(15) {
            0..=2 if is_there => {
                let path = format!("{dir}/{}", ["x", "y", "z"][r.below(3)]);
                if !state.live.contains_key(&path) {
                    w.put(&path, b"");
                    state.live.insert(path.clone(), Some(Vec::new()));
                    history.push(state.clone());
                }
                let data = pattern(1 + r.below(3000), r.next() as u8);
                w.on(&path, |a| w.fs.write(NONE, a.ino, 0, &data, false)).unwrap();
                let content = state.live.get_mut(&path).unwrap().as_mut().unwrap();
                content.resize(content.len().max(data.len()), 0);
                content[..data.len()].copy_from_slice(&data);
            }
            0..=2 => {
                w.mkdir(&dir);
                state.live.insert(dir, None);
            }
            3 if is_there => {
                w.remove_tree(&dir).unwrap();
                state.live.retain(|path, _| *path != dir && !path.starts_with(&format!("{dir}/")));
                state.policies.remove(&dir);
            }
            4..=6 if state.snaps.len() < 6 => {
                let whole = r.below(3) == 0;
                if !whole && !is_there {
                    continue;
                }
                let (path, tree) = match whole {
                    true => ("/", state.live.clone()),
                    false => (&dir[..], below(&state.live, &dir)),
                };
                let new = NewSnapshot::default();
                let (info, _) = w.on(path, |a| w.fs.snapshot(by(&w), a.ino, &new)).unwrap();
                state.snaps.insert(info.number, tree);
            }
            7 if is_there => {
                // Back to any of its own.
                let own = w.on(&dir, |a| w.fs.snapshots(a.ino)).unwrap();
                let Some(info) = own.first().map(|_| r.pick(&own).clone()) else { continue };
                let discard = r.below(2) == 0;
                let was = below(&state.live, &dir);
                let (_, before) = w.on(&dir, |a| w.fs.rollback(by(&w), a.ino, info.number, discard)).unwrap();
                if let Some(before) = before {
                    state.snaps.insert(before.number, was);
                }
                state.live.retain(|path, _| !path.starts_with(&format!("{dir}/")));
                let back = state.snaps[&info.number].clone();
                state.live.extend(back.into_iter().map(|(p, v)| (format!("{dir}{p}"), v)));
            }
            8 => {
                let sources = w.fs.snapshot_sources().unwrap();
                let Some(source) = sources.first().map(|_| *r.pick(&sources)) else { continue };
                let own = w.fs.snapshots(source).unwrap();
                let Some(info) = own.first().map(|_| r.pick(&own).clone()) else { continue };
                w.fs.delete_snapshot(by(&w), source, info.number).unwrap();
                state.snaps.remove(&info.number);
            }
            9 => {
                match r.below(3) {
                    0 => w.fs.db().checkpoint().unwrap(),
                    1 => w.fs.db().settle().unwrap(),
                    _ => w.fs.sync().unwrap(),
                }
                history = vec![state];
                continue;
            }
            11 => {
                let whole = r.below(3) == 0;
                if !whole && !is_there {
                    continue;
                }
                let path = if whole { "/".into() } else { dir };
                let every_secs = 100 * (1 + r.below(4) as u32);
                let keep = SnapshotPolicy { last: 1 + r.below(2) as u32, ..SnapshotPolicy::default() };
                let policy = StoredPolicy { every_secs, keep, ..StoredPolicy::default() };
                let policy = (r.below(4) > 0).then_some(policy);
                w.on(&path, |a| w.fs.set_policy(by(&w), a.ino, policy.as_ref())).unwrap();
                match policy {
                    Some(_) => state.policies.insert(path, every_secs),
                    None => state.policies.remove(&path),
                };
            }
            12..=13 => automatic += carry_out(&w, now, &mut state, &mut history),
            10 | 14 if r.below(3) == 0 => {
                crashes += 1;
                device.crash();
                drop(w);
                device = device.reopen();
                w = World::over(Fs::open(device.clone(), options()).unwrap());
                w.fs.check(|problem| panic!("{problem}")).unwrap();
                let found = read_state(&w);
                let at = history.iter().rposition(|state| *state == found);
                let Some(at) = at else {
                    panic!("a state that never was: {found:#?}\nthe last: {:#?}", history.last())
                };
                lost += history.len() - 1 - at;
                w.fs.sync().unwrap();
                history = vec![found];
                continue;
            }
            _ => continue,
        }
        history.push(state);
    }
    assert_eq!(read_state(&w), *history.last().unwrap());
    println!("{crashes} crashes, {lost} calls lost, {automatic} snapshots made and deleted by policies");
    assert!(crashes > 1 && lost > 0 && automatic > 0, "nothing happened");
}

#[test]
fn after_a_crash_snapshots_and_policies_are_those_of_one_moment() {
    random_runs(12, 400, crash_run);
}
