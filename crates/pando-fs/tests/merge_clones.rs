//! Merges of trees with clones and files of several names in them, where a file number is there more than once: what
//! holds whatever the plan is. (`forks.rs` compares plain trees with a reference.)
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::common::{
    World, check_keys, options,
    seeds::{is_replay, seeds_for},
    trees::{Made, Rng, Tree, change, parent, read},
};
use pando_db::device::MemDevice;
use pando_fs::*;

/// What was met: a test that meets nothing proves nothing.
#[derive(Default, Debug)]
struct Seen {
    /// Only the fork had changed, only the source, or both.
    only_fork: u32,
    only_source: u32,
    both: u32,
    conflicts: u32,
    /// Paths that neither side had changed.
    untouched: u32,
    made: Made,
}

impl Seen {
    fn is_enough(&self) -> bool {
        let sides = [self.only_fork, self.only_source, self.both];
        let rest = [self.conflicts, self.untouched, self.made.clones, self.made.links];
        sides.into_iter().chain(rest).all(|count| count > 1)
    }
}

fn tiny() -> World {
    let device = Arc::new(MemDevice::new(64 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(4 << 10)).unwrap();
    let fs = Fs::open(device.clone(), options()).unwrap();
    World { device, fs, me: Caller::root() }
}

/// Names of one file, for each file below `top` that has several.
fn groups(w: &World, top: &str) -> BTreeSet<BTreeSet<String>> {
    let mut by_number = BTreeMap::<Ino, BTreeSet<String>>::new();
    for (path, attr) in w.walk(top) {
        if attr.kind != FileKind::Directory {
            by_number.entry(attr.ino).or_default().insert(path[top.len()..].into());
        }
    }
    by_number.into_values().filter(|names| names.len() > 1).collect()
}

fn history(seed: u64, seen: &mut Seen) {
    let mut rng = Rng(seed | 1);
    let mut w = tiny();
    w.mkdir("/s");
    let links = seen.made.links;
    for _ in 0..rng.next(30) {
        change(&w, "/s", &mut rng, &mut seen.made);
    }
    w.fork("/s", "/f");
    // What both were when they were equal last, if they still are but for what the rounds below change.
    let mut equal = true;
    for round in 0..4 {
        let what = format!("PANDO_SEED={seed} round {round}");
        let (base, before) = (read(&w, "/f"), read(&w, "/s"));
        let numbers = ["/f", "/s"].map(|top| w.numbers(top));
        assert!(!equal || base == before, "{what}: {base:?}\n{before:?}");
        let sides = rng.next(3);
        for _ in 0..if sides == 1 { 0 } else { 1 + rng.next(10) } {
            change(&w, "/f", &mut rng, &mut seen.made);
        }
        for _ in 0..if sides == 0 { 0 } else { 1 + rng.next(6) } {
            change(&w, "/s", &mut rng, &mut seen.made);
        }
        if rng.next(4) == 0 {
            w.remount();
        }
        let (theirs, ours) = (read(&w, "/f"), read(&w, "/s"));
        let one: Vec<_> =
            ["/f", "/s"].iter().zip(&numbers).map(|(top, was)| unmoved(was, &w.numbers(top), top)).collect();
        let (their_names, our_names) = (groups(&w, "/f"), groups(&w, "/s"));
        let all = || {
            format!("{what}\nbase {base:?}\ntheirs {theirs:?} {their_names:?}\nours {ours:?} {our_names:?}")
        };
        let dry = w.merge("/f", "/s", MergeOptions { dry_run: true, ..Default::default() }).unwrap();
        assert!(!dry.merged && read(&w, "/s") == ours, "{what}: a dry run did something");
        let report = w.merge("/f", "/s", MergeOptions::default()).unwrap();
        assert_eq!(format!("{:?}", report.changes), format!("{:?}", dry.changes), "{}", all());
        let mut merged = report.merged;
        let now = read(&w, "/s");
        match sides {
            // Numbers of files that were names of one may lead a later merge to a conflict (docs/versions.md, limits).
            0 if equal && (report.merged || seen.made.links == links) => {
                assert!(report.merged, "{report:?} {}", all());
                assert_eq!(now, theirs, "{}", all());
                // Which names are one file is no difference, and a name that is taken becomes a file of its own.
                seen.only_fork += 1;
            }
            1 => {
                assert!(report.merged && report.changes.is_empty(), "{report:?} {}", all());
                assert_eq!(now, ours, "{}", all());
                assert_eq!(groups(&w, "/s"), our_names, "{}", all());
                seen.only_source += 1;
            }
            _ => seen.both += 1,
        }
        if !report.merged {
            seen.conflicts += 1;
            assert_eq!(now, ours, "{what}: a merge with conflicts did something");
            let prefer = Some([MergeSide::Ours, MergeSide::Theirs][rng.next(2)]);
            merged = w.merge("/f", "/s", MergeOptions { prefer, ..Default::default() }).unwrap().merged;
            assert!(merged || read(&w, "/s") == ours, "{what}: a merge that was refused did something");
        }
        let now = read(&w, "/s");
        if equal {
            seen.untouched += untouched_stays([&base, &theirs, &ours, &now], [&one[0], &one[1]], &all);
        }
        assert_eq!(read(&w, "/f"), theirs, "{what}: the fork changed");
        // That no number is there twice, and that what is in memory is what is stored.
        w.walk("/");
        w.remount();
        assert_eq!(read(&w, "/s"), now, "{what}: after a remount");
        if merged {
            let again = w.merge("/f", "/s", MergeOptions::default()).unwrap();
            assert!(again.changes.is_empty(), "{again:?} {}", all());
        }
        let mut problems = Vec::new();
        w.fs.check(|text| problems.push(text.to_owned())).unwrap();
        assert_eq!(problems, Vec::<String>::new(), "{}", all());
        check_keys(&w);
        if !merged {
            break;
        }
        equal = now == theirs && !has_moved(&w);
    }
    w.fs.close().unwrap();
}

/// Whether a file of the fork is elsewhere in the source: where contents are alike a merge has nothing to do, and the next
/// one takes that for a rename.
fn has_moved(w: &World) -> bool {
    const FILE_NUMBER: u64 = (1 << 40) - 1;
    let [there, here] = ["/f", "/s"].map(|top| {
        let mut paths = BTreeMap::<u64, BTreeSet<String>>::new();
        for (path, number) in w.numbers(top) {
            paths.entry(number & FILE_NUMBER).or_default().insert(path[top.len()..].into());
        }
        paths
    });
    there.iter().any(|(number, paths)| here.get(number).is_some_and(|others| paths.is_disjoint(others)))
}

/// Paths at which the file is that was there. A rename is followed, also if what is there then has the same content.
fn unmoved(was: &BTreeMap<String, Ino>, now: &BTreeMap<String, Ino>, top: &str) -> BTreeSet<String> {
    let stay = was.iter().filter(|(path, number)| now.get(*path) == Some(number));
    stay.map(|(path, _)| path[top.len()..].to_owned()).chain([String::new()]).collect()
}

/// Where neither side has changed a path or anything around it, the merge has not either.
fn untouched_stays(
    [base, theirs, ours, now]: [&Tree; 4],
    [of_theirs, of_ours]: [&BTreeSet<String>; 2],
    all: &impl Fn() -> String,
) -> u32 {
    let same = |(tree, of_one): (&Tree, &BTreeSet<String>), path: &str| {
        let mut at = path;
        loop {
            let names = |tree: &Tree| -> Vec<String> {
                let inside = tree.keys().filter(|p| !p.is_empty() && parent(p) == at);
                inside.cloned().collect()
            };
            if tree.get(at) != base.get(at)
                || !of_one.contains(at)
                || at != path && names(tree) != names(base)
            {
                return false;
            }
            if at.is_empty() {
                return true;
            }
            at = parent(at);
        }
    };
    let untouched = |path: &str| same((theirs, of_theirs), path) && same((ours, of_ours), path);
    let mut count = 0;
    for (path, node) in base.iter().filter(|(path, _)| untouched(path)) {
        assert_eq!(now.get(path), Some(node), "{path} {}", all());
        count += 1;
    }
    count
}

#[test]
fn merges_of_trees_with_clones_and_links_keep_what_holds_for_all() {
    let (mut seen, mut seeds) = (Seen::default(), seeds_for("PANDO_MODEL_SECONDS", 6));
    while let Some(seed) = seeds.next_until(seen.is_enough(), 100) {
        history(seed, &mut seen);
    }
    println!("{seen:?}");
    assert!(seen.is_enough() || is_replay(), "vacuous: {seen:?}");
}
