//! More invariants of nodes and of edits, each broken on purpose: see `tests.rs`.

use std::sync::atomic::AtomicU64;

use crate::{
    dag::{
        edit::{Context, Edit},
        tests::{
            LEFT, ROOT, edge, edit, interior, is_found, layer, leaf, pager, put, ranges, sound, span, tree,
        },
        tree::Limits,
    },
    merge::PatchMerge,
    node::Node,
};

#[test]
#[should_panic(expected = "the root does not hold all keys")]
fn the_root_holds_all_keys() {
    put(ROOT, Node { span: span("", "z"), ..interior(1, vec![edge("", Some(LEFT), vec![])]) }, 1);
}

#[test]
fn a_root_of_some_keys_is_found_and_not_changed() {
    let root = Node { span: span("", "z"), ..interior(1, vec![edge("", Some(LEFT), vec![])]) };
    is_found(root, "it is the root and does not hold all keys");
}

#[test]
#[should_panic(expected = "node 7 is pruned, and nothing refers to it")]
fn what_is_pruned_is_referred_to() {
    _ = edit(|edit| edit.put_pruned(7, leaf("", "", &["x"])));
}

#[test]
#[should_panic(expected = "number 2 is given to a second node")]
fn a_number_is_given_to_one_node() {
    let (pager, next, handled) = (pager(), AtomicU64::new(LEFT), AtomicU64::new(0));
    let limits = Limits::new(4096, None);
    let cx = Context { pager: &pager, merge: &PatchMerge, limits, next_id: &next, handled: &handled };
    Edit::new(&cx, &tree(sound(), 1)).create(leaf("", "", &["x"]));
}

#[test]
#[should_panic(expected = "more is taken off the keys of a node than they share")]
fn a_node_is_lifted_by_what_its_keys_share() {
    leaf("m", "p", &["n"]).lifted(1);
}

/// Puts these parts in the place of the first edge of the sound root, over keys below "m".
fn attach(parts: &[(&str, &str)]) {
    let parts = parts.iter().map(|(lo, hi)| (None, leaf(lo, hi, &[lo]))).collect();
    _ = edit(|edit| edit.attach(sound(), 0, parts));
}

#[test]
#[should_panic(expected = "parts of a node leave keys out or overlap")]
fn parts_of_a_node_lie_side_by_side() {
    attach(&[("", "c"), ("d", "m")]);
}

#[test]
#[should_panic(expected = "parts do not end where their edge does")]
fn parts_of_a_node_end_with_it() {
    attach(&[("", "c")]);
}

#[test]
#[should_panic(expected = "parts do not begin where their edge does")]
fn parts_of_a_node_begin_with_it() {
    attach(&[("b", "m")]);
}

#[test]
#[should_panic(expected = "range messages of one layer overlap")]
fn layers_are_merged_into_disjoint_ranges() {
    let twice = ranges(&[("a", "d", None), ("c", "e", None)]);
    _ = layer(9, &["x"]).over(&twice, &pager(), &PatchMerge);
}
