//! The pictures of `docs/pictures/README.md`: what they must show, and how they are made anew.
//!
//!     PANDO_PICTURES=1 cargo test -p pando --test all pictures::
//!
//! writes them to docs/pictures. Without it they are made all the same and checked for what the text
//! under them says; that they look as in the repository is not demanded, because node numbers and sizes
//! change with the engine.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{path::Path, sync::Arc};

use crate::common::Bench;
use pando_db::{CreateOptions, Db, Options, device::FileDevice};
use serde_json::Value;

/// A store of small nodes with two trees in it.
fn store(b: &Bench) -> Db {
    let device = Arc::new(FileDevice::create(b.path("a.img"), 4 << 20, false).unwrap());
    let create = CreateOptions::default().node_size(4096).log_size(1 << 20).uuid([7; 16]);
    Db::create(device.clone(), &create, &Options::default()).unwrap();
    let db = open(device);
    for name in ["doc/ash", "doc/beech", "doc/elm", "doc/fir", "doc/larch", "doc/oak", "doc/yew"] {
        db.put(name, value(900, name)).unwrap();
    }
    for name in ["art/one", "src/api", "src/cli", "src/log"] {
        db.put(name, value(600, name)).unwrap();
    }
    db.checkpoint().unwrap();
    db
}

fn open(device: Arc<FileDevice>) -> Db {
    Db::open(device, Options::default().background(false)).unwrap()
}

/// Bytes that do not compress, the same each time.
fn value(len: usize, seed: &str) -> Vec<u8> {
    let mut x =
        seed.bytes().fold(0x9e37_79b9_7f4a_7c15u64, |x, b| (x ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let next = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 24) as u8
    };
    (0..len).map(next).collect()
}

/// Draws the store, closed, and gives what is in it as JSON.
fn picture(b: &Bench, db: Db, name: &str) -> Value {
    db.close().unwrap();
    drop(db);
    let drawn = b.ok(&["inspect", "--svg", "-", "--keys", "a.img"]);
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
    if std::env::var_os("PANDO_PICTURES").is_some() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
        std::fs::write(dir.join(name), &drawn).unwrap();
    }
    b.json(&["inspect", "--json", "a.img"])
}

fn nodes(seen: &Value) -> &Vec<Value> {
    seen["nodes"].as_array().unwrap()
}

fn edges(seen: &Value) -> impl Iterator<Item = &Value> {
    nodes(seen).iter().filter_map(|n| n["content"]["edges"].as_array()).flatten()
}

fn gotos(seen: &Value) -> usize {
    let layers = edges(seen).flat_map(|edge| edge["layers"].as_array().unwrap());
    let ranges = layers.flat_map(|layer| layer["ranges"].as_array().unwrap());
    ranges.filter(|range| range["kind"] == "goto").count()
}

fn shared(seen: &Value) -> usize {
    nodes(seen).iter().filter(|node| node["references"].as_u64() > Some(1)).count()
}

#[test]
fn before_a_clone() {
    let b = Bench::new();
    let seen = picture(&b, store(&b), "before.svg");
    assert_eq!((gotos(&seen), shared(&seen)), (0, 0), "{seen}");
}

#[test]
fn a_clone_with_edits() {
    let b = Bench::new();
    let db = store(&b);
    db.clone_prefix("doc/", "new/").unwrap();
    db.put("new/elm", "changed").unwrap();
    db.put("doc/oak", "changed too").unwrap();
    let seen = picture(&b, db, "clone.svg");
    assert!(shared(&seen) > 0, "{seen}");
    assert!(edges(&seen).any(translates), "{seen}");
    // The edits wait above what is shared, one in each tree.
    let waiting = edges(&seen).filter(|edge| !edge["layers"].as_array().unwrap().is_empty());
    assert_eq!(waiting.count(), 2, "{seen}");
}

fn translates(edge: &Value) -> bool {
    edge["child"]["put_on"]["bytes"].as_str().is_some_and(|bytes| !bytes.is_empty())
}

#[test]
fn a_goto_that_rests() {
    let b = Bench::new();
    let db = store(&b);
    db.clone_prefix("doc/", "doc2/").unwrap();
    db.checkpoint().unwrap();
    // Both trees at once: what holds them is as high as the root was, so the root becomes higher.
    db.clone_prefix("doc", "old").unwrap();
    db.checkpoint().unwrap();
    db.clone_prefix("doc/", "art/").unwrap();
    let seen = picture(&b, db, "goto.svg");
    println!("{}", b.ok(&["inspect", "a.img"]));
    assert!(gotos(&seen) > 0 && shared(&seen) > 0, "{seen}");
}

#[test]
fn after_the_edits_were_flushed() {
    let b = Bench::new();
    let db = store(&b);
    db.clone_prefix("doc/", "new/").unwrap();
    for name in ["ash", "elm", "fig", "fir", "ivy"] {
        db.put(format!("new/{name}"), value(900, name)).unwrap();
    }
    let seen = picture(&b, db, "flushed.svg");
    println!("{}", b.ok(&["inspect", "--keys", "a.img"]));
    assert!(shared(&seen) > 0, "{seen}");
}

/// The picture of an image of thousands of nodes was a strip of 283,000 pixels.
#[test]
fn a_large_image_is_folded_into_a_picture_that_one_can_look_at() {
    let b = Bench::new();
    let device = Arc::new(FileDevice::create(b.path("a.img"), 64 << 20, false).unwrap());
    let create = CreateOptions::default().node_size(4096).log_size(1 << 20);
    Db::create(device.clone(), &create, &Options::default()).unwrap();
    let db = open(device);
    for dir in 0..80 {
        for file in 0..50 {
            db.put(format!("dir{dir:02}/file{file:02}"), value(600, &format!("{dir} {file}"))).unwrap();
        }
    }
    for copy in 0..40 {
        db.clone_prefix(format!("dir{copy:02}/"), format!("copy{copy:02}/")).unwrap();
        db.put(format!("copy{copy:02}/file07"), "changed").unwrap();
    }
    db.close().unwrap();
    drop(db);
    for limit in ["1000", "100000"] {
        let drawn = b.ok(&["inspect", "--svg", "-", "--keys", "--limit", limit, "a.img"]);
        let size = |name: &str| -> u32 {
            let rest = drawn.split(&format!(" {name}=\"")).nth(1).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        println!("{} x {}, {} KiB", size("width"), size("height"), drawn.len() >> 10);
        assert!(size("width") <= 4000 && size("height") <= 4000, "{} x {}", size("width"), size("height"));
        assert!(drawn.len() < 1 << 20, "{} bytes", drawn.len());
        assert!(drawn.contains("more nodes") && drawn.contains("more edges"), "nothing was folded");
    }
    // Every node of the image has a box or is counted by one.
    let seen = b.json(&["inspect", "--json", "--limit", "100000", "a.img"]);
    let drawn = b.ok(&["inspect", "--svg", "-", "--limit", "100000", "a.img"]);
    let boxes = drawn.matches(r#"class="title""#).count();
    let counts = drawn.split("… and ").skip(1);
    let counted: usize = counts
        .filter_map(|text| {
            text.split_once(" more node").filter(|(n, _)| n.len() < 8)?.0.parse::<usize>().ok()
        })
        .sum();
    let folds = drawn.matches(" more node").count();
    assert_eq!(boxes - folds + counted, nodes(&seen).len());
}
