//! All that is done to whole trees, together and in any order: clones, forks, merges, snapshots, rollbacks, quotas,
//! changes of all files, renames, removals, between changes of single files. What holds: nobody else's tree changes, a
//! snapshot never does, a copy is what it is a copy of, numbers are unique, the check is content, and a crash leaves
//! the state after some call.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{collections::BTreeMap, ffi::OsString, sync::Arc};

use super::common::{
    World, check_keys, options,
    seeds::{is_replay, seeds_for},
    trees::{Made, Rng, Tree, change, read},
};
use pando_db::device::SimDevice;
use pando_fs::*;

const TOPS: [&str; 5] = ["/a", "/b", "/c", "/d", "/e"];

/// What is below each top that is there, and the numbers of all.
type State = BTreeMap<&'static str, (Tree, BTreeMap<String, Ino>)>;

/// A snapshot of a top: what it held.
struct Kept {
    top: &'static str,
    number: u32,
    name: OsString,
    tree: Tree,
}

/// A call, and the tops that it may have changed, each with what it is to be, if that is known.
type Step = (&'static str, Vec<(&'static str, Option<Tree>)>);

struct Run {
    w: World,
    device: Arc<SimDevice>,
    rng: Rng,
    what: String,
    state: State,
    snapshots: Vec<Kept>,
    /// The trees after each step since the last sync, and before these. A change of single files is several calls: the
    /// tree in which it was made, which is any of their states in between.
    since: Vec<(BTreeMap<&'static str, Tree>, Option<&'static str>)>,
    made: Made,
    done: BTreeMap<&'static str, u32>,
}

fn trees(state: &State) -> BTreeMap<&'static str, Tree> {
    state.iter().map(|(top, (tree, _))| (*top, tree.clone())).collect()
}

impl Run {
    fn new(seed: u64) -> Self {
        let device = Arc::new(SimDevice::new(64 << 20, seed));
        Fs::format(device.clone(), &FormatOptions::default().node_size(4 << 10)).unwrap();
        let w = World::over(Fs::open(device.clone(), options()).unwrap());
        w.mkdir("/a");
        w.mkdir("/b");
        let mut run = Self {
            w,
            device,
            rng: Rng(seed | 1),
            what: format!("PANDO_SEED={seed}"),
            state: State::new(),
            snapshots: Vec::new(),
            since: Vec::new(),
            made: Made::default(),
            done: BTreeMap::new(),
        };
        run.state = run.seen();
        run.synced();
        run
    }

    fn synced(&mut self) {
        self.w.fs.sync().unwrap();
        self.since = vec![(trees(&self.state), None)];
    }

    fn seen(&self) -> State {
        let there = TOPS.into_iter().filter(|top| self.w.exists(top));
        there.map(|top| (top, (read(&self.w, top), self.w.numbers(top)))).collect()
    }

    /// One that is there, and one that is perhaps not.
    fn some(&mut self) -> Option<(&'static str, &'static str)> {
        let there: Vec<_> = self.state.keys().copied().collect();
        let from = *there.get(self.rng.next(there.len().max(1)))?;
        Some((from, TOPS[self.rng.next(TOPS.len())]))
    }

    fn free(&mut self) -> Option<&'static str> {
        TOPS.into_iter().find(|top| !self.state.contains_key(top))
    }

    /// Makes a call, if the one that was drawn can be made.
    fn step(&mut self) -> Option<Step> {
        let (top, other) = self.some()?;
        let tree = self.state[top].0.clone();
        let me = Caller::root();
        let by = Authority::Caller(&me);
        Some(match self.rng.next(22) {
            0 | 1 => {
                if top == other {
                    return None;
                }
                self.w.clone_tree(top, other, true).unwrap();
                self.forgotten(other);
                ("clone", vec![(other, Some(tree))])
            }
            2 => {
                let to = self.free()?;
                self.w.fork(top, to);
                ("fork", vec![(to, Some(tree))])
            }
            3..=5 => {
                if top == other || !self.state.contains_key(other) {
                    return None;
                }
                let prefer = [None, Some(MergeSide::Ours), Some(MergeSide::Theirs)][self.rng.next(3)];
                let o = MergeOptions { prefer, ..Default::default() };
                let (fork, into) = (self.w.attr(top).ino, self.w.attr(other).ino);
                let merged = self.w.on(top, |a| {
                    self.w.on(other, |b| self.w.fs.merge(None, a.ino, b.ino, o).map(|(report, _)| report))
                });
                assert_ne!(fork, into);
                match merged {
                    Ok(report) => {
                        let ours = self.state[other].0.clone();
                        let same = !report.merged || report.changes.is_empty();
                        (
                            if report.merged { "merge" } else { "conflict" },
                            vec![(other, same.then_some(ours))],
                        )
                    }
                    // It is no fork.
                    Err(e) => {
                        assert_eq!(e.errno(), 22, "{}: {e}", self.what);
                        return None;
                    }
                }
            }
            6 => {
                let made = self.w.on(top, |a| self.w.fs.snapshot(by, a.ino, &NewSnapshot::default()));
                let (info, _) = made.unwrap();
                self.snapshots.push(Kept { top, number: info.number, name: info.name, tree });
                ("snapshot", Vec::new())
            }
            7 => {
                let kept = self.rng.next(self.snapshots.len().max(1));
                let Kept { top, number, tree, .. } = self.snapshots.get(kept)?;
                let (top, number, wanted) = (*top, *number, tree.clone());
                let discard = self.rng.next(2) == 0;
                let before = self.state[top].0.clone();
                let rolled = self.w.on(top, |a| self.w.fs.rollback(by, a.ino, number, discard)).unwrap();
                if let (_, Some(info)) = rolled {
                    self.snapshots.push(Kept { top, number: info.number, name: info.name, tree: before });
                }
                ("rollback", vec![(top, Some(wanted))])
            }
            8 => {
                if self.snapshots.is_empty() {
                    return None;
                }
                let which = self.rng.next(self.snapshots.len());
                let Kept { top, number, .. } = self.snapshots.swap_remove(which);
                self.w.on(top, |a| self.w.fs.delete_snapshot(by, a.ino, number)).unwrap();
                ("delete a snapshot", Vec::new())
            }
            9 => {
                if self.state.len() < 3 {
                    return None;
                }
                self.w.remove_tree(top).unwrap();
                self.forgotten(top);
                ("remove", vec![(top, None)])
            }
            10 => {
                let exchange = self.state.contains_key(other);
                if top == other {
                    return None;
                }
                let to = self.state.get(other).map(|(tree, _)| tree.clone());
                self.w.rename(top, other, if exchange { RENAME_EXCHANGE } else { 0 }).unwrap();
                for kept in &mut self.snapshots {
                    if kept.top == top {
                        kept.top = other;
                    } else if kept.top == other {
                        kept.top = top;
                    }
                }
                ("rename", vec![(other, Some(tree)), (top, to)])
            }
            11 => {
                let limit = [Some(1 << 40), None][self.rng.next(2)];
                match self.w.on(top, |a| self.w.fs.set_quota(a.ino, limit)) {
                    Ok(()) => ("quota", Vec::new()),
                    // There are files with several names that may lie outside of it too.
                    Err(e) => {
                        assert_eq!(e.errno(), 22, "{}: {e}", self.what);
                        return None;
                    }
                }
            }
            12 => {
                let mode = ModeChange::parse(["u=rwx,go=", "a+rX", "go-w"][self.rng.next(3)], 0o022);
                let tree_change = TreeChange { mode, ..TreeChange::default() };
                self.w.on(top, |a| self.w.fs.change_tree(a.ino, &tree_change)).unwrap();
                ("change of a tree", vec![(top, None)])
            }
            13 => {
                self.w.fs.count_quotas().unwrap();
                self.w.fs.count_links().unwrap();
                ("counting", Vec::new())
            }
            _ => {
                change(&self.w, top, &mut self.rng, &mut self.made);
                ("change", vec![(top, None)])
            }
        })
    }

    /// What was at a top has gone: its snapshots can be had by number only, and are not looked at here any more.
    fn forgotten(&mut self, top: &str) {
        self.snapshots.retain(|kept| kept.top != top);
    }

    fn run(mut self, steps: usize) -> BTreeMap<&'static str, u32> {
        for i in 0..steps {
            if self.rng.next(30) == 0 {
                self.crash();
            }
            if self.rng.next(8) == 0 {
                self.synced();
            }
            let Some((call, touched)) = self.step() else { continue };
            *self.done.entry(call).or_default() += 1;
            let what = format!(
                "{} step {i}, {call} of {:?}",
                self.what,
                touched.iter().map(|t| t.0).collect::<Vec<_>>()
            );
            let now = self.seen();
            for top in TOPS {
                let (before, after) = (self.state.get(top), now.get(top));
                match touched.iter().find(|(touched, _)| *touched == top) {
                    None => assert!(before == after, "{what}: {top} changed\n{before:?}\n{after:?}"),
                    Some((_, Some(wanted))) => {
                        assert_eq!(
                            after.map(|(tree, _)| tree),
                            Some(wanted),
                            "{what}: {top} is not what it should be"
                        );
                    }
                    Some((_, None)) => {}
                }
            }
            self.state = now;
            let several = (call == "change").then(|| touched[0].0);
            self.since.push((trees(&self.state), several));
            if self.rng.next(6) == 0 {
                self.look(&what);
            }
        }
        self.look("at the end");
        self.w.fs.close().unwrap();
        self.done
    }

    fn look(&mut self, what: &str) {
        self.w.walk("/");
        for kept in &self.snapshots {
            let path = format!("{}/.snapshots/{}", kept.top, kept.name.to_str().unwrap());
            assert!(read(&self.w, &path) == kept.tree, "{what}: {path} has changed");
        }
        if self.rng.next(2) == 0 {
            self.w.fs.close().unwrap();
            self.w = World::over(Fs::open(self.device.clone(), options()).unwrap());
            self.since = vec![(trees(&self.state), None)];
            assert_eq!(self.seen(), self.state, "{what}: after a remount");
        }
        let mut problems = Vec::new();
        self.w.fs.check(|text| problems.push(text.to_owned())).unwrap();
        assert_eq!(problems, Vec::<String>::new(), "{what}");
        check_keys(&self.w);
    }

    /// Power fails: the trees are those after some call that was not before the last sync.
    fn crash(&mut self) {
        self.device.crash();
        self.device = self.device.reopen();
        let broken =
            std::mem::replace(&mut self.w, World::over(Fs::open(self.device.clone(), options()).unwrap()));
        drop(broken);
        let now = self.seen();
        let found = trees(&now);
        let is = |state: &(BTreeMap<&'static str, Tree>, Option<&'static str>)| {
            let (trees, several) = state;
            let same = |top: &&'static str| Some(*top) == *several || trees[top] == found[top];
            trees.keys().eq(found.keys()) && trees.keys().all(same)
        };
        assert!(self.since.iter().any(is), "{}: after a crash {found:?}\n{:?}", self.what, self.since.last());
        self.state = now;
        // Which snapshots are there again, or not yet, is told by what is listed.
        let w = &self.w;
        let by_number = |top: &str, number: u32| {
            w.exists(top)
                && w.on(top, |a| w.fs.snapshots(a.ino)).unwrap().iter().any(|info| info.number == number)
        };
        self.snapshots.retain(|kept| by_number(kept.top, kept.number));
        self.synced();
    }
}

#[test]
fn all_that_is_done_to_trees_goes_together() {
    let steps = std::env::var("PANDO_STEPS").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    let calls =
        ["clone", "fork", "merge", "snapshot", "rollback", "remove", "rename", "quota", "change of a tree"];
    let mut done = BTreeMap::<&str, u32>::new();
    let missing =
        |done: &BTreeMap<&str, u32>| calls.into_iter().find(|call| done.get(call).is_none_or(|n| *n < 2));
    let mut seeds = seeds_for("PANDO_MODEL_SECONDS", 6);
    while let Some(seed) = seeds.next_until(missing(&done).is_none(), 50) {
        Run::new(seed).run(steps).into_iter().for_each(|(call, n)| *done.entry(call).or_default() += n);
    }
    println!("{done:?}");
    let missing = missing(&done);
    assert!(missing.is_none() || is_replay(), "vacuous: {missing:?} in {done:?}");
}
