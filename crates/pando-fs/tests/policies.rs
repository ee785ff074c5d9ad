//! Stored policies for snapshots: where they go with their directories, and what is done for them, by a clock of the
//! test's own.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{collections::BTreeMap, path::Path};

use crate::common::*;
use pando_fs::*;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

fn every(secs: u32) -> StoredPolicy {
    StoredPolicy { every_secs: secs, ..StoredPolicy::default() }
}

fn set(w: &World, path: &str, policy: Option<StoredPolicy>) -> Result<()> {
    w.on(path, |a| w.fs.set_policy(Authority::Caller(&w.me), a.ino, policy.as_ref()))
}

/// Paths and intervals of all policies.
fn stored(w: &World) -> BTreeMap<String, u32> {
    let of = |(_, info): (_, PolicyInfo)| (info.path.into_string().unwrap(), info.policy.every_secs);
    w.fs.policies().unwrap().into_iter().map(of).collect()
}

fn at(secs: i64) -> Time {
    Time { secs, nanos: 0 }
}

/// Carries all policies out at a time; what was made and deleted.
fn carry_out(w: &World, now: i64, synced: bool) -> Vec<PolicyWork> {
    let work = |(_, info): (_, PolicyInfo)| {
        w.fs.carry_out_policy(&info, (at(now), synced), &mut |_| {}, &mut |_| {}).unwrap()
    };
    w.fs.policies().unwrap().into_iter().map(work).collect()
}

fn snapshots(w: &World, path: &str) -> Vec<SnapshotInfo> {
    w.on(path, |a| w.fs.snapshots(a.ino)).unwrap()
}

fn times(w: &World, path: &str) -> Vec<i64> {
    snapshots(w, path).iter().map(|s| s.created.secs).collect()
}

/// Bytes that cannot be compressed.
fn fill(bytes: &mut [u8], seed: u64) {
    let mut random = Random::new(seed);
    bytes.chunks_mut(4).for_each(|chunk| chunk.copy_from_slice(&(random.next() as u32).to_le_bytes()));
}

#[test]
fn a_policy_goes_with_its_directory() {
    let mut w = World::new();
    for dir in ["/a", "/a/b", "/a/b/c", "/x"] {
        w.mkdir(dir);
    }
    w.put("/a/b/f", b"1");
    set(&w, "/", Some(every(1))).unwrap();
    set(&w, "/a", Some(every(2))).unwrap();
    set(&w, "/a/b", Some(every(3))).unwrap();
    set(&w, "/a/b/c", Some(every(4))).unwrap();
    let expect = |w: &World, all: &[(&str, u32)]| {
        let all: BTreeMap<String, u32> = all.iter().map(|(p, n)| (p.to_string(), *n)).collect();
        assert_eq!(stored(w), all);
        check_keys(w);
    };
    expect(&w, &[("/", 1), ("/a", 2), ("/a/b", 3), ("/a/b/c", 4)]);
    w.remount();
    w.rename("/a", "/x/y", 0).unwrap();
    expect(&w, &[("/", 1), ("/x/y", 2), ("/x/y/b", 3), ("/x/y/b/c", 4)]);
    // A clone has none, of itself or below; the root of a lineage keeps what is moved into it.
    w.clone_tree("/x", "/clone", false).unwrap();
    expect(&w, &[("/", 1), ("/x/y", 2), ("/x/y/b", 3), ("/x/y/b/c", 4)]);
    w.rename("/x/y/b", "/clone/b", 0).unwrap();
    expect(&w, &[("/", 1), ("/x/y", 2), ("/clone/b", 3), ("/clone/b/c", 4)]);
    w.rename("/clone/b", "/x/y", RENAME_EXCHANGE).unwrap();
    expect(&w, &[("/", 1), ("/clone/b", 2), ("/x/y", 3), ("/x/y/c", 4)]);
    // A rollback leaves the directory its own, and those of directories below that were there already.
    let number = w.on("/x/y", |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &NewSnapshot::default()));
    let number = number.unwrap().0.number;
    w.mkdir("/x/y/new");
    set(&w, "/x/y/new", Some(every(8))).unwrap();
    w.rename("/x/y/c", "/x/y/new/c", 0).unwrap();
    w.mkdir("/x/y/c");
    set(&w, "/x/y/c", Some(every(9))).unwrap();
    w.on("/x/y", |a| w.fs.rollback(Authority::Caller(&w.me), a.ino, number, true)).unwrap();
    expect(&w, &[("/", 1), ("/clone/b", 2), ("/x/y", 3)]);
    set(&w, "/x/y/c", Some(every(5))).unwrap();
    w.on("/x/y", |a| w.fs.rollback(Authority::Caller(&w.me), a.ino, number, true)).unwrap();
    expect(&w, &[("/", 1), ("/clone/b", 2), ("/x/y", 3), ("/x/y/c", 5)]);
    set(&w, "/x/y", Some(every(6))).unwrap();
    expect(&w, &[("/", 1), ("/clone/b", 2), ("/x/y", 6), ("/x/y/c", 5)]);
    // It goes when the directory goes, however that is.
    w.rmdir("/x/y/c").unwrap();
    expect(&w, &[("/", 1), ("/clone/b", 2), ("/x/y", 6)]);
    w.clone_tree("/x/y", "/clone/b", true).unwrap();
    expect(&w, &[("/", 1), ("/x/y", 6)]);
    w.mkdir("/empty");
    w.remove_tree("/clone").unwrap();
    expect(&w, &[("/", 1), ("/x/y", 6)]);
    w.rename("/x/y", "/moved", 0).unwrap();
    w.rename("/empty", "/x/empty", 0).unwrap();
    set(&w, "/x/empty", Some(every(7))).unwrap();
    w.mkdir("/other");
    w.rename("/other", "/x/empty", 0).unwrap();
    expect(&w, &[("/", 1), ("/moved", 6)]);
    set(&w, "/moved", None).unwrap();
    set(&w, "/moved", None).unwrap();
    expect(&w, &[("/", 1)]);
    w.assert_nothing_referenced();
}

/// Directories with policies under random renames, exchanges, clones, rollbacks and removals, beside a plain map.
#[test]
fn policies_follow_random_changes() {
    random_runs(6, 250, |seed, steps| {
        let mut random = Random::new(seed);
        let mut w = World::new();
        // All directories, with their policies and which they are; a clone is the same.
        let mut model: BTreeMap<String, (u32, u32)> = BTreeMap::from([(String::new(), (0, 0))]);
        // What was below a directory when a snapshot was made of it.
        let mut snapshots: BTreeMap<u32, BTreeMap<String, u32>> = BTreeMap::new();
        let mut kept = 0;
        for step in 0..steps as u32 {
            let pick = |random: &mut Random, model: &BTreeMap<String, (u32, u32)>| -> String {
                model.keys().nth(random.below(model.len())).unwrap().clone()
            };
            let (one, two) = (pick(&mut random, &model), pick(&mut random, &model));
            let fresh = format!("{two}/{}", random.below(6));
            let below = |path: &str, top: &str| path == top || path.starts_with(&format!("{top}/"));
            let inside = below(&one, &two) || below(&two, &one);
            let is_free = !model.contains_key(&fresh) && fresh.len() < 16;
            match random.below(9) {
                0..=2 if is_free => {
                    w.mkdir(&fresh);
                    model.insert(fresh, (0, step + 1));
                }
                3 | 4 => {
                    let path = if one.is_empty() { "/" } else { &one };
                    set(&w, path, Some(every(step + 1))).unwrap();
                    model.get_mut(&one).unwrap().0 = step + 1;
                }
                5 if !one.is_empty() && is_free && !below(&two, &one) => {
                    w.rename(&one, &fresh, 0).unwrap();
                    let moved: Vec<_> = model.keys().filter(|p| below(p, &one)).cloned().collect();
                    for path in moved {
                        let policy = model.remove(&path).unwrap();
                        model.insert(format!("{fresh}{}", &path[one.len()..]), policy);
                    }
                }
                6 if !inside => {
                    w.rename(&one, &two, RENAME_EXCHANGE).unwrap();
                    let swap = |path: &str| match () {
                        () if below(path, &one) => format!("{two}{}", &path[one.len()..]),
                        () if below(path, &two) => format!("{one}{}", &path[two.len()..]),
                        () => path.to_owned(),
                    };
                    model = model.into_iter().map(|(path, policy)| (swap(&path), policy)).collect();
                }
                7 if !one.is_empty() && is_free && !below(&two, &one) => {
                    w.clone_tree(&one, &fresh, false).unwrap();
                    let copies = model.iter().filter(|(p, _)| below(p, &one));
                    let copies = copies.map(|(p, (_, id))| (format!("{fresh}{}", &p[one.len()..]), (0, *id)));
                    let copies: Vec<_> = copies.collect();
                    model.extend(copies);
                }
                8 if !one.is_empty() && random.below(5) < 2 => {
                    w.remove_tree(&one).unwrap();
                    model.retain(|path, _| !below(path, &one));
                }
                8 if !one.is_empty() => {
                    let me = Authority::Caller(&w.me);
                    let own = w.on(&one, |a| w.fs.snapshots(a.ino)).unwrap();
                    if own.is_empty() || random.below(3) == 0 {
                        let made = w.on(&one, |a| w.fs.snapshot(me, a.ino, &NewSnapshot::default())).unwrap();
                        let inside = model.iter().filter(|(p, _)| below(p, &one) && **p != one);
                        let inside = inside.map(|(p, (_, id))| (p[one.len()..].to_owned(), *id)).collect();
                        snapshots.insert(made.0.number, inside);
                        continue;
                    }
                    let number = random.pick(&own).number;
                    w.on(&one, |a| w.fs.rollback(me, a.ino, number, true)).unwrap();
                    let before = model.clone();
                    model.retain(|p, _| !below(p, &one) || *p == one);
                    for (inside, id) in &snapshots[&number] {
                        let path = format!("{one}{inside}");
                        let own = before.get(&path).filter(|(_, now)| now == id);
                        kept += u32::from(own.is_some_and(|own| own.0 > 0));
                        model.insert(path, (own.map_or(0, |own| own.0), *id));
                    }
                }
                _ => continue,
            }
            let with = model.iter().filter(|(_, (policy, _))| *policy > 0);
            let name = |path: &String| if path.is_empty() { "/".into() } else { path.clone() };
            let expected: BTreeMap<_, _> = with.map(|(path, (policy, _))| (name(path), *policy)).collect();
            assert_eq!(stored(&w), expected, "seed {seed}, step {step}");
            if random.below(60) == 0 {
                w.remount();
            }
        }
        check_keys(&w);
        w.assert_nothing_referenced();
        println!("seed {seed}: {kept} policies stayed below a rollback");
    });
}

#[test]
fn snapshots_come_and_go_by_the_clock() {
    let w = World::new();
    w.mkdir("/d");
    w.put("/d/f", b"x");
    let by = Authority::Caller(&w.me);
    let keep = SnapshotPolicy { hourly: 6, daily: 3, ..SnapshotPolicy::default() };
    set(&w, "/d", Some(StoredPolicy { keep, ..every(HOUR as u32) })).unwrap();
    let mine = NewSnapshot { name: Some("mine".into()), ..NewSnapshot::default() };
    let mine = w.on("/d", |a| w.fs.snapshot(by, a.ino, &mine)).unwrap().0;
    // The clock of the test begins long after that of the machine, on a midnight.
    let begin = 40_000 * DAY;
    let mut next = None;
    // A look each ten minutes, for five days: by the next time that was told alone nothing more is done.
    for now in (begin..begin + 5 * DAY).step_by(600) {
        w.put("/d/f", format!("{now}").as_bytes());
        let [work] = &carry_out(&w, now, false)[..] else { panic!("one policy") };
        let due = (now - begin) % HOUR == 0;
        assert_eq!(work.made.is_some(), due, "{now}");
        assert!(due == next.is_none_or(|next| next <= at(now)), "told {next:?}, due at {now}");
        next = work.next;
    }
    let last = begin + 5 * DAY - HOUR;
    let mut expected: Vec<i64> = (0..6).map(|n| last - n * HOUR).collect();
    expected.extend([begin + 3 * DAY + 23 * HOUR, begin + 2 * DAY + 23 * HOUR]);
    expected.push(mine.created.secs);
    expected.sort_unstable();
    let mut found = times(&w, "/d");
    found.sort_unstable();
    assert_eq!(found, expected);
    // They show what was then.
    let name = at(last).to_utc();
    assert_eq!(w.get(&format!("/d/.snapshots/{name}/f")).unwrap(), format!("{last}").as_bytes());
    // One that is kept stays, whatever the policy says; it is the same with one that somebody else made.
    let kept = snapshots(&w, "/d").into_iter().find(|s| s.created.secs == last).unwrap();
    w.on("/d", |a| w.fs.keep_snapshot(by, a.ino, kept.number, true)).unwrap();
    let one = SnapshotPolicy { last: 1, ..SnapshotPolicy::default() };
    set(&w, "/d", Some(StoredPolicy { keep: one, ..every(HOUR as u32) })).unwrap();
    carry_out(&w, last + 30 * DAY, false);
    let mut found = times(&w, "/d");
    found.sort_unstable();
    assert_eq!(found, [mine.created.secs, last, last + 30 * DAY]);
    // A clock that is set back starves nothing.
    assert!(carry_out(&w, last, false)[0].made.is_some());
    check_keys(&w);
    w.assert_nothing_referenced();
}

#[test]
fn what_is_valid_for_a_time_goes_when_that_is_over() {
    let w = World::new();
    w.mkdir("/d");
    let by = Authority::Caller(&w.me);
    let mine = NewSnapshot { valid_for_secs: Some(1000), ..NewSnapshot::default() };
    let mine = w.on("/d", |a| w.fs.snapshot(by, a.ino, &mine)).unwrap().0;
    let now = mine.created.secs;
    set(&w, "/d", Some(StoredPolicy { valid_for_secs: Some(250), ..every(100) })).unwrap();
    for (after, left, next) in [
        (0, vec![0, 0], 100),
        (99, vec![0, 0], 100),
        (100, vec![0, 0, 100], 200),
        (249, vec![0, 0, 100, 249], 349),
        (349, vec![0, 100, 249, 349], 449),
        (1000, vec![1000], 1100),
    ] {
        let work = &carry_out(&w, now + after, false)[0];
        let mut found = times(&w, "/d").iter().map(|t| t - now).collect::<Vec<_>>();
        found.sort_unstable();
        assert_eq!(found, left, "after {after}");
        let end = found.iter().skip(1).map(|t| t + 250).min();
        let told = work.next.unwrap().secs - now;
        assert_eq!(told, end.map_or(next, |end| end.min(next)), "after {after}");
    }
    assert_eq!(w.on("/d", |a| w.fs.policy_of(a.ino)).unwrap().unwrap().policy.every_secs, 100);
}

#[test]
fn syncs_make_one_snapshot_in_an_interval() {
    let w = World::new();
    w.mkdir("/d");
    set(&w, "/d", Some(StoredPolicy { on_sync_secs: 60, ..StoredPolicy::default() })).unwrap();
    let begin = 40_000 * DAY;
    assert!(carry_out(&w, begin, false)[0].made.is_none());
    let made: Vec<i64> = (0..200).filter(|n| carry_out(&w, begin + n, true)[0].made.is_some()).collect();
    assert_eq!(made, [0, 60, 120, 180]);
    // One that comes too early is due later.
    let work = &carry_out(&w, begin + 200, true)[0];
    assert_eq!((work.made.as_ref(), work.next), (None, Some(at(begin + 240))));
    assert_eq!(carry_out(&w, begin + 300, false)[0].next, None);
}

#[test]
fn the_oldest_go_while_too_little_is_free() {
    let w = World::new();
    w.mkdir("/d");
    set(&w, "/d", Some(StoredPolicy { min_free_percent: 50, ..every(10) })).unwrap();
    let begin = 40_000 * DAY;
    let is_short = |w: &World, percent: u64| {
        let space = w.fs.statfs().unwrap();
        space.bfree * 100 < space.blocks * percent
    };
    let mut content = vec![0; 4 << 20];
    let mut deleted = 0;
    for round in 0..40 {
        fill(&mut content, round);
        w.put("/d/f", &content);
        w.fs.sync().unwrap();
        deleted += carry_out(&w, begin + 10 * round as i64, false)[0].deleted.len();
        w.fs.db().settle().unwrap();
    }
    assert!(deleted > 20, "{deleted} snapshots were deleted");
    assert!(!is_short(&w, 40));
    // The newest stays even if all else does not help.
    for i in (0..40).take_while(|_| !is_short(&w, 30)) {
        fill(&mut content[..1 << 20], 1000 + i);
        w.put(&format!("/bulk{i}"), &content[..1 << 20]);
        w.fs.sync().unwrap();
        carry_out(&w, begin + 400, false);
        w.fs.db().settle().unwrap();
    }
    assert!(is_short(&w, 30));
    assert_eq!(snapshots(&w, "/d").len(), 1);
    check_keys(&w);
}

#[test]
fn who_may_and_what_is_refused() {
    let mut w = World::new();
    w.mkdir("/d");
    let user = Caller { uid: 1000, gid: 1000, ..Caller::root() };
    let set_as = |w: &World, c: &Caller, policy: StoredPolicy| {
        w.on("/d", |a| w.fs.set_policy(Authority::Caller(c), a.ino, Some(&policy)))
    };
    assert_eq!(errno(set_as(&w, &user, every(10))), EPERM);
    let owner = |w: &World, uid: u32| {
        let change = SetAttr { uid: Some(uid), ..SetAttr::default() };
        w.on("/d", |a| w.fs.setattr(&w.me, a.ino, &change)).unwrap();
    };
    owner(&w, 1000);
    set_as(&w, &user, every(10)).unwrap();
    let info = w.on("/d", |a| w.fs.policy_of(a.ino)).unwrap().unwrap();
    assert_eq!((info.uid, info.path.to_str()), (1000, Some("/d")));
    // The snapshots are the user's, made with his rights: of what is another's none is made.
    carry_out(&w, 40_000 * DAY, false);
    assert_eq!(snapshots(&w, "/d").iter().map(|s| (s.uid, s.automatic)).collect::<Vec<_>>(), [(1000, true)]);
    owner(&w, 2000);
    let again = |w: &World, info: &PolicyInfo| {
        w.fs.carry_out_policy(info, (at(40_001 * DAY), false), &mut |_| {}, &mut |_| {})
    };
    assert_eq!(errno(again(&w, &info)), EPERM);
    owner(&w, 1000);
    // One that was changed meanwhile is not carried out as it was.
    set_as(&w, &user, every(20)).unwrap();
    assert_eq!(again(&w, &info).unwrap(), PolicyWork::default());
    for wrong in [
        StoredPolicy::default(),
        StoredPolicy { valid_for_secs: Some(7), ..StoredPolicy::default() },
        StoredPolicy { valid_for_secs: Some(0), ..every(1) },
        StoredPolicy { min_free_percent: 51, ..every(1) },
    ] {
        assert_eq!(errno(set_as(&w, &user, wrong)), EINVAL, "{wrong:?}");
    }
    let snapshot = format!("/d/.snapshots/{}", snapshots(&w, "/d")[0].name.display());
    assert_eq!(errno(set(&w, &snapshot, Some(every(1)))), EROFS);
    w.put("/file", b"");
    assert_eq!(errno(set(&w, "/file", Some(every(1)))), ENOTDIR);
    // The limit, and that replacing one is none of its business.
    for i in 1..MAX_POLICIES {
        w.mkdir(&format!("/{i}"));
        set(&w, &format!("/{i}"), Some(every(1))).unwrap();
    }
    w.mkdir("/more");
    assert_eq!(errno(set(&w, "/more", Some(every(1)))), EFBIG);
    set(&w, "/1", Some(every(2))).unwrap();
    set(&w, "/1", None).unwrap();
    set(&w, "/more", Some(every(1))).unwrap();
    // One user leaves as many to others as he has.
    for i in 1..MAX_POLICIES {
        set(&w, &format!("/{i}"), None).unwrap();
    }
    let mine = SetAttr { uid: Some(1000), ..SetAttr::default() };
    let set_mine = |i: usize| {
        w.on(&format!("/{i}"), |a| {
            w.fs.setattr(&w.me, a.ino, &mine)?;
            w.fs.set_policy(Authority::Caller(&user), a.ino, Some(&every(1)))
        })
    };
    let refused = (1..MAX_POLICIES).map(|i| (i, set_mine(i))).find(|(_, done)| done.is_err());
    let (i, done) = refused.expect("a user may have all policies");
    assert_eq!((errno(done), i), (EFBIG, MAX_POLICIES / 2), "/d has one of his already");
    set(&w, &format!("/{i}"), Some(every(1))).unwrap();
    // Nothing is done in what is read-only.
    w.remount_with(options().read_only(true));
    assert!(carry_out(&w, 50_000 * DAY, true).iter().all(|work| *work == PolicyWork::default()));
    assert_eq!(errno(set(&w, "/1", Some(every(1)))), EROFS);
    assert!(w.fs.resolve(Path::new("/more")).is_ok());
}

/// Writes bulk until nothing more fits.
fn fill_up(w: &World) {
    let mut content = vec![0; 1 << 20];
    for (i, size) in [1 << 20, 64 << 10, 16 << 10, 1].into_iter().enumerate() {
        for n in 0..1000 {
            fill(&mut content, n);
            let path = format!("/bulk{i}.{n}");
            if w.create(&path).and_then(|_| w.write_at(&path, 0, &content[..size])).is_err() {
                break;
            }
        }
    }
}

/// What a full store needs most is what the policies delete.
#[test]
fn on_a_full_store_old_snapshots_go_though_no_new_one_can_be_made() {
    let last = SnapshotPolicy { last: 2, ..SnapshotPolicy::default() };
    for policy in
        [StoredPolicy { keep: last, ..every(10) }, StoredPolicy { min_free_percent: 50, ..every(10) }]
    {
        let w = World::new();
        w.mkdir("/d");
        set(&w, "/d", Some(every(10))).unwrap();
        let begin = 40_000 * DAY;
        for round in 0..4 {
            w.put("/d/f", format!("{round}").as_bytes());
            carry_out(&w, begin + 10 * round, false);
        }
        set(&w, "/d", Some(policy)).unwrap();
        fill_up(&w);
        let (_, info) = w.fs.policies().unwrap().remove(0);
        let mut told = 0;
        let done = w.fs.carry_out_policy(&info, (at(begin + 40), false), &mut |_| {}, &mut |_| told += 1);
        let left = times(&w, "/d").len();
        let made = done.as_ref().is_ok_and(|work| work.made.is_some());
        assert!(left < 4 + usize::from(made), "{done:?}, {left} are left");
        assert!(told > 0, "what was deleted is told");
        // Of what is there as many are kept as the policy says, whether a new one was made or not.
        assert!(left >= 2, "{done:?}, {left} are left");
        check_keys(&w);
    }
}

/// One shortage, of which the space of one snapshot makes an end.
#[test]
fn directories_that_find_too_little_free_delete_one_snapshot_and_wait_for_its_space() {
    let w = World::new();
    let begin = 40_000 * DAY;
    // With two and a half of these a half of the space is free: three take too much, and two do not.
    let space = w.fs.statfs().unwrap();
    let spare = (space.bfree - space.blocks / 2) * u64::from(space.frsize);
    let mut content = vec![0; spare as usize / 10 * 4];
    for (i, dir) in ["/a", "/b", "/c"].into_iter().enumerate() {
        w.mkdir(dir);
        set(&w, dir, Some(StoredPolicy { min_free_percent: 50, ..every(1000) })).unwrap();
        fill(&mut content, i as u64);
        w.put(&format!("{dir}/f"), &content);
        w.on(dir, |a| {
            let new = NewSnapshot { automatic: true, ..NewSnapshot::default() };
            w.fs.snapshot(Authority::Caller(&w.me), a.ino, &new)
        })
        .unwrap();
        w.put(&format!("{dir}/f"), b"small");
    }
    w.fs.sync().unwrap();
    w.fs.db().settle().unwrap();
    let short = || {
        let space = w.fs.statfs().unwrap();
        space.bfree * 2 < space.blocks
    };
    assert!(short(), "three snapshots leave too little");
    let mut deleted = 0;
    for round in 0..3 {
        let works = carry_out(&w, begin + round, false);
        deleted += works.iter().map(|work| work.deleted.len()).sum::<usize>();
    }
    w.fs.db().settle().unwrap();
    assert!(!short(), "{deleted} were deleted");
    assert_eq!(deleted, 1);
    check_keys(&w);
}

/// The oldest was mounted, and each look tried to delete that one only.
#[test]
fn while_the_oldest_is_mounted_others_go_where_too_little_is_free() {
    let w = World::new();
    w.mkdir("/d");
    set(&w, "/d", Some(StoredPolicy { min_free_percent: 50, ..every(10) })).unwrap();
    let begin = 40_000 * DAY;
    let mut content = vec![0; 4 << 20];
    let mut views = Vec::new();
    let mut deleted = 0;
    for round in 0..24 {
        fill(&mut content, round);
        w.put("/d/f", &content);
        w.fs.sync().unwrap();
        let mounted = w.fs.mounted_on(&[], views.clone());
        deleted += carry_out(&w, begin + 10 * round as i64, false)[0].deleted.len();
        drop(mounted);
        w.fs.db().settle().unwrap();
        if round == 0 {
            let name = snapshots(&w, "/d")[0].name.clone().into_string().unwrap();
            let root = w.attr(&format!("/d/.snapshots/{name}")).ino;
            views.push(SnapshotMount { root, dir: "/mnt/first".into() });
            // The kernel knows what is mounted.
            w.fs.lookup(ROOT, "d".as_ref()).unwrap();
            let family = w.on("/d", |a| w.fs.lookup(a.ino, ".snapshots".as_ref())).unwrap().ino;
            assert_eq!(w.fs.lookup(family, name.as_ref()).unwrap().ino, root);
        }
    }
    let left = snapshots(&w, "/d");
    assert_eq!(left[0].created.secs, begin, "the first one is deleted");
    assert!(deleted > 8 && left.len() + deleted == 24, "{deleted} were deleted, {} are left", left.len());
    // Space is short, and only the newest is not mounted: the store is not searched for space each time.
    let mut all = views.clone();
    for info in &left[1..left.len() - 1] {
        let root = w.attr(&format!("/d/.snapshots/{}", info.name.to_str().unwrap())).ino;
        let family = w.on("/d", |a| w.fs.lookup(a.ino, ".snapshots".as_ref())).unwrap().ino;
        w.fs.lookup(family, &info.name).unwrap();
        all.push(SnapshotMount { root, dir: "/mnt/other".into() });
    }
    let mounted = w.fs.mounted_on(&[], all);
    let before = w.fs.db().stats().unwrap().checkpoints;
    let work = &carry_out(&w, begin + 235, false)[0];
    assert_eq!((work.deleted.len(), w.fs.db().stats().unwrap().checkpoints - before), (0, 0));
    drop(mounted);
    let by = Authority::Caller(&w.me);
    let mounted = w.fs.mounted_on(&[], views);
    let refused = w.on("/d", |a| w.fs.delete_snapshot(by, a.ino, left[0].number)).unwrap_err();
    assert_eq!((refused.errno(), refused.to_string().contains("/mnt/first")), (16, true), "{refused}");
    drop(mounted);
    w.on("/d", |a| w.fs.delete_snapshot(by, a.ino, left[0].number)).unwrap();
}

/// What was mounted was asked once, before the first of them was deleted.
#[test]
fn what_is_mounted_is_asked_before_each_deletion() {
    let w = World::new();
    w.mkdir("/d");
    set(&w, "/d", Some(every(10))).unwrap();
    let begin = 40_000 * DAY;
    (0..4).for_each(|round| _ = carry_out(&w, begin + 10 * round, false));
    let keep = SnapshotPolicy { last: 1, ..SnapshotPolicy::default() };
    set(&w, "/d", Some(StoredPolicy { keep, ..every(1000) })).unwrap();
    let (_, info) = w.fs.policies().unwrap().remove(0);
    let all = snapshots(&w, "/d");
    let root = w.on("/d", |a| w.fs.open_snapshot(a.ino, all[2].number)).unwrap().ino;
    let (mut steps, mut mounted) = (0, None);
    let mut before = |step| {
        assert_eq!(step, PolicyStep::Delete);
        steps += 1;
        if steps == 2 {
            let view = SnapshotMount { root, dir: "/v".into() };
            mounted = Some(w.fs.mounted_on(&[], vec![view]));
        }
    };
    let work = w.fs.carry_out_policy(&info, (at(begin + 50), false), &mut before, &mut |_| {}).unwrap();
    assert_eq!((work.deleted.len(), &work.mounted[..], steps), (2, &[root][..], 3));
    drop(mounted);
    let left: Vec<u32> = snapshots(&w, "/d").iter().map(|s| s.number).collect();
    assert_eq!(left, [all[2].number, all[3].number]);
    w.fs.forget(root, 1);
    check_keys(&w);
}
