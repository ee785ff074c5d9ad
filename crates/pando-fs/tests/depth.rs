//! Paths as long as keys may be: what would be longer is refused, and what there is can be reached and removed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::common::*;
use pando_fs::*;

const ENAMETOOLONG: i32 = 36;
const DEPTH: usize = 40;

/// A name of 250 bytes.
fn name(level: usize) -> String {
    format!("{level:02}{}", "n".repeat(248))
}

/// The path of the directory so many levels below `top`.
fn path(top: &str, levels: usize) -> String {
    (0..levels).fold(top.to_string(), |path, level| format!("{path}/{}", name(level)))
}

/// A chain of directories, with a file in each fourth.
fn chain(w: &World, top: &str, levels: usize) {
    w.mkdir(top);
    for level in 0..levels {
        let dir = path(top, level + 1);
        w.mkdir(&dir);
        if level % 4 == 0 {
            w.put(&format!("{dir}/file"), &pattern(5000, level as u8));
        }
    }
}

/// Every directory and file of the chain is there.
fn assert_chain(w: &World, top: &str, levels: usize) {
    for level in 0..levels {
        assert!(w.exists(&path(top, level + 1)), "{top}: level {level} cannot be reached");
        if level % 4 == 0 {
            let file = format!("{}/file", path(top, level + 1));
            assert!(w.get(&file).unwrap() == pattern(5000, level as u8), "{top}: file at level {level}");
        }
    }
}

/// Removes a chain as `rm -r` does, from the bottom.
fn remove_chain(w: &World, top: &str, levels: usize) {
    for level in (0..levels).rev() {
        if level % 4 == 0 {
            w.unlink(&format!("{}/file", path(top, level + 1))).unwrap();
        }
        w.rmdir(&path(top, level + 1)).unwrap();
    }
    w.rmdir(top).unwrap();
}

fn refused<T: std::fmt::Debug>(what: &str, result: Result<T>) {
    let errno = result.map_err(|e| e.errno()).expect_err(what);
    assert_eq!(errno, ENAMETOOLONG, "{what}");
}

#[test]
fn what_would_be_too_deep_is_refused_and_everything_stays_reachable_and_removable() {
    for round in 0..3 {
        let mut w = World::new();
        let settle = |w: &mut World| match round {
            0 => (),
            1 => w.fs.sync().unwrap(),
            _ => w.remount(),
        };
        chain(&w, "/one", DEPTH);
        chain(&w, "/two", DEPTH);
        w.mkdir("/two/small");
        settle(&mut w);
        let bottom = path("/one", DEPTH);
        refused("rename", w.rename("/two", &format!("{bottom}/two"), 0));
        refused("clone", w.clone_tree("/two", &format!("{bottom}/two"), false));
        w.at(&format!("{bottom}/x"), |d, n| w.fs.mkdir(&w.me, d, n, 0o755)).unwrap();
        refused("exchange", w.rename("/two", &format!("{bottom}/x"), RENAME_EXCHANGE));
        refused("exchange", w.rename(&format!("{bottom}/x"), "/two", RENAME_EXCHANGE));
        refused("clone over", w.clone_tree("/two", &format!("{bottom}/x"), true));
        refused("rename over", w.rename("/two", &format!("{bottom}/x"), 0));
        w.rmdir(&format!("{bottom}/x")).unwrap();
        assert_chain(&w, "/one", DEPTH);
        assert_chain(&w, "/two", DEPTH);
        // What fits is let in: a part of the chain, and as much as there is room for.
        settle(&mut w);
        w.rename("/two/small", &format!("{bottom}/small"), 0).unwrap();
        w.clone_tree(&path("/two", 30), &format!("{bottom}/part"), false).unwrap();
        settle(&mut w);
        let part = format!("{bottom}/part/{}", (30..DEPTH).map(name).collect::<Vec<_>>().join("/"));
        assert!(w.exists(&part));
        let mut most = 0;
        for levels in (1..=DEPTH).rev() {
            let to = format!("{}/in", path("/one", DEPTH - levels));
            if w.clone_tree("/two", &to, false).is_ok() {
                assert_chain(&w, &to, DEPTH);
                most = most.max(DEPTH - levels);
                w.remove_tree(&to).unwrap();
            }
        }
        assert!(most > 20 && most < 26, "a chain of 40 fits below one of {most}");
        w.clone_tree("/two", &format!("{}/in", path("/one", most)), false).unwrap();
        refused("one deeper", w.clone_tree("/two", &format!("{}/in", path("/one", most + 1)), false));
        settle(&mut w);
        remove_chain(&w, &format!("{}/in", path("/one", most)), DEPTH);
        w.remove_tree(&format!("{bottom}/part")).unwrap();
        w.rmdir(&format!("{bottom}/small")).unwrap();
        remove_chain(&w, "/one", DEPTH);
        w.remove_tree("/two").unwrap();
        settle(&mut w);
        assert!(w.names("/").is_empty());
        check_keys(&w);
    }
}

/// At the limit to the byte: entries without data may lie where no new ones are made, and can be reached and removed.
#[test]
fn whatever_a_move_lets_in_can_be_reached_and_removed() {
    let w = World::new();
    chain(&w, "/one", 60);
    let bottom = path("/one", 60);
    for file in [false, true] {
        for len in 1..=255 {
            w.mkdir("/moved");
            let inner = "i".repeat(250);
            match file {
                true => _ = w.create(&format!("/moved/{inner}")).unwrap(),
                false => _ = w.mkdir(&format!("/moved/{inner}")),
            }
            // Some of the names leave room for what is in it, some do not.
            let to = format!("{bottom}/{}", "d".repeat(len));
            let place = match w.rename("/moved", &to, 0) {
                Ok(()) => to,
                Err(e) => {
                    assert_eq!(e.errno(), ENAMETOOLONG);
                    "/moved".to_string()
                }
            };
            let inside = format!("{place}/{inner}");
            assert!(w.exists(&inside), "{len}");
            assert_eq!(w.names(&place), [inner]);
            if file {
                w.unlink(&inside).unwrap()
            } else {
                w.rmdir(&inside).unwrap()
            }
            w.rmdir(&place).unwrap();
        }
    }
}

/// What a merge would take or move to where its paths are too long is said by a dry run as well.
#[test]
fn a_dry_run_of_a_merge_finds_paths_that_would_be_too_long() {
    for settled in [false, true] {
        let mut w = World::new();
        chain(&w, "/deep", 30);
        let into = path("/deep", 30);
        w.mkdir("/s");
        w.mkdir("/s/old");
        chain(&w, "/s/old/chain", 20);
        chain(&w, "/s/in", 16);
        chain(&w, "/s/long", 34);
        w.clone_tree("/s", &format!("{into}/s"), false).unwrap();
        let into = format!("{into}/s");
        let dry = MergeOptions { dry_run: true, ..MergeOptions::default() };
        // As much as fits; a directory of the fork; one that it has moved; an entry itself.
        for (what, fails) in [("fits", false), ("taken", true), ("moved", true), ("an entry", true)] {
            w.fork("/s", "/f");
            match what {
                "fits" => chain(&w, "/f/new", 20),
                "taken" => chain(&w, "/f/new", 40),
                "moved" => {
                    w.rename("/f/old", &format!("{}/old", path("/f/in", 16)), 0).unwrap();
                }
                _ => _ = w.mkdir(&format!("{}/{}", path("/f/long", 34), name(99))),
            }
            if settled {
                w.remount();
            }
            let before = w.walk("/").len();
            let (tried, done) = (w.merge("/f", &into, dry), w.merge("/f", &into, MergeOptions::default()));
            match fails {
                false => {
                    assert!(!tried.unwrap().merged && done.unwrap().merged);
                    w.remove_tree(&format!("{into}/new")).unwrap();
                }
                true => {
                    refused(what, tried);
                    refused(what, done);
                    assert_eq!(w.walk("/").len(), before);
                }
            }
            w.remove_tree("/f").unwrap();
        }
    }
}
