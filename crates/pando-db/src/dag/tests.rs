//! The invariants of nodes, each broken on purpose: an edit refuses to make such a node (an assertion, in
//! release builds too), and the checker finds one that is there. `docs/invariants.md` names them.

use std::sync::{Arc, atomic::AtomicU64};

use bytes::Bytes;

use crate::{
    dag::{
        check::check,
        edit::{Context, Edit},
        gc::pushdown::{TombstoneWalk, Tombstones},
        layer::run::RunBuilder,
        memtable::{Memtable, range::TableRange},
        tree::{Limits, Tree, Versions},
    },
    device::MemDevice,
    key::{Lens, Longest, Span},
    merge::PatchMerge,
    node::{Body, Edge, Layer, Node, NodeId, RangeMsg, Run, Target, UpdateMsg, message::Msg},
    options::Codec,
    store::{
        log::LogPos,
        pager::Pager,
        table::{Entry, Loc, Table},
    },
};

pub(super) const ROOT: NodeId = 1;
pub(super) const LEFT: NodeId = 2;
const RIGHT: NodeId = 3;

pub(super) fn span(lo: &str, hi: &str) -> Span {
    Span::new(lo.to_string(), (!hi.is_empty()).then(|| hi.to_string().into()))
}

fn run(keys: &[&str]) -> Run {
    let mut writer = RunBuilder::new(1 << 10);
    keys.iter().for_each(|key| writer.push(Bytes::copy_from_slice(key.as_bytes()), Msg::Put("v".into())));
    writer.finish()
}

pub(super) fn leaf(lo: &str, hi: &str, keys: &[&str]) -> Node {
    Node { height: 0, span: span(lo, hi), body: Body::Leaf(run(keys)) }
}

pub(super) fn edge(lo: &str, child: Option<NodeId>, layers: Vec<Layer>) -> Edge {
    Edge { lo: lo.to_string().into(), child: child.map(Target::plain), layers, loose: false }
}

pub(super) fn interior(height: u8, edges: Vec<Edge>) -> Node {
    Node { height, span: Span::all(), body: Body::Interior(edges) }
}

pub(super) fn layer(newest: u64, keys: &[&str]) -> Layer {
    Layer { newest, run: run(keys), ..Layer::default() }
}

pub(super) fn ranges(ranges: &[(&str, &str, Option<NodeId>)]) -> Layer {
    let message = |(lo, hi, to): &(&str, &str, Option<NodeId>)| RangeMsg {
        span: span(lo, hi),
        target: to.map(Target::plain),
    };
    Layer { newest: 9, ranges: ranges.iter().map(message).collect(), ..Layer::default() }
}

pub(super) fn updates(updates: &[(&str, &str)]) -> Layer {
    let message = |(lo, hi): &(&str, &str)| UpdateMsg { span: span(lo, hi), ops: [Bytes::from("op")].into() };
    Layer { newest: 9, updates: updates.iter().map(message).collect(), ..Layer::default() }
}

/// A sound root over two leaves.
pub(super) fn sound() -> Node {
    interior(1, vec![edge("", Some(LEFT), vec![layer(5, &["b"])]), edge("m", Some(RIGHT), vec![])])
}

/// A tree with this root over two leaves, the second with so many references.
pub(super) fn tree(root: Node, references: u32) -> Tree {
    tree_of([(ROOT, 1, root), (LEFT, 1, leaf("", "m", &["a"])), (RIGHT, references, leaf("m", "", &["x"]))])
}

/// A tree of these nodes, each with so many references.
pub(super) fn tree_of(nodes: impl IntoIterator<Item = (NodeId, u32, Node)>) -> Tree {
    let mut table = Table::default();
    for (id, count, node) in nodes {
        let (height, longest, loc) = (node.height, Longest::UNKNOWN, Loc::Dirty(Arc::new(node)));
        table.set(id, Some(Entry { count, height, longest, loc }));
    }
    Tree { table, root: ROOT, msn: 9, log_end: LogPos::default(), versions: Versions::default() }
}

pub(super) fn pager() -> Pager {
    Pager::new(Arc::new(MemDevice::new(1 << 20)), 1 << 20, 4096, Codec::None)
}

/// Puts a node in an edit over a sound tree.
pub(super) fn put(id: NodeId, node: Node, references: u32) {
    let (pager, next, handled) = (pager(), AtomicU64::new(10), AtomicU64::new(0));
    let limits = Limits::new(4096, None);
    let cx = Context { pager: &pager, merge: &PatchMerge, limits, next_id: &next, handled: &handled };
    let mut edit = Edit::new(&cx, &tree(sound(), references));
    let outcome = edit.put(id, node);
    assert!(outcome.is_ok(), "{outcome:?}");
    edit.finish();
}

/// What the checker finds in a tree with this root.
fn findings(root: Node) -> String {
    let problems = check(&tree(root, 1), &pager()).problems;
    problems.iter().map(|problem| format!("{}\n", problem.what)).collect()
}

pub(super) fn is_found(root: Node, what: &str) {
    let found = findings(root);
    assert!(found.contains(what), "{what:?} is not among what was found:\n{found}");
}

#[test]
fn a_sound_tree_breaks_nothing() {
    assert_eq!(findings(sound()), "");
    put(ROOT, sound(), 1);
    put(RIGHT, leaf("m", "", &["y"]), 1);
}

#[test]
#[should_panic(expected = "node 3 has 2 references and is changed in place")]
fn a_shared_node_is_not_changed_in_place() {
    put(RIGHT, leaf("m", "", &["y"]), 2);
}

#[test]
fn wrong_counts_are_found() {
    let report = check(&tree(sound(), 2), &pager()).problems;
    assert!(report.iter().any(|p| p.what == "node 3: it has 1 references, the table says 2"), "{report:?}");
}

#[test]
#[should_panic(expected = "the root is a leaf")]
fn the_root_is_an_interior_node() {
    put(ROOT, leaf("", "", &["a"]), 1);
}

#[test]
#[should_panic(expected = "all keys of node 3 begin alike")]
fn a_node_takes_off_what_its_keys_begin_with() {
    put(RIGHT, leaf("m", "n", &["m1"]), 1);
}

#[test]
#[should_panic(expected = "refers to node 1, which is not below it")]
fn a_child_is_lower_than_its_node() {
    put(ROOT, interior(1, vec![edge("", Some(ROOT), vec![])]), 1);
}

#[test]
fn a_child_that_is_too_high_is_found() {
    is_found(interior(1, vec![edge("", Some(ROOT), vec![])]), "its child 1 is not low enough");
}

#[test]
#[should_panic(expected = "refers to node 7, which is not below it")]
fn an_edge_does_not_lead_to_a_node_that_does_not_exist() {
    put(ROOT, interior(1, vec![edge("", Some(7), vec![])]), 1);
}

#[test]
#[should_panic(expected = "leaves have no edges, interior nodes some")]
fn an_interior_node_has_edges() {
    put(ROOT, interior(1, vec![]), 1);
}

#[test]
#[should_panic(expected = "a node over no keys")]
fn a_node_has_a_range_of_keys() {
    put(RIGHT, leaf("m", "m", &[]), 1);
}

#[test]
#[should_panic(expected = "a leaf holds messages")]
fn a_leaf_holds_values_only() {
    let mut writer = RunBuilder::new(1 << 10);
    writer.push("x".into(), Msg::Delete);
    put(RIGHT, Node { height: 0, span: span("m", ""), body: Body::Leaf(writer.finish()) }, 1);
}

#[test]
#[should_panic(expected = "the first edge begins where the node does")]
fn edges_begin_with_the_node() {
    put(ROOT, interior(1, vec![edge("a", Some(LEFT), vec![])]), 1);
}

#[test]
fn edges_that_leave_keys_out_are_found() {
    is_found(interior(1, vec![edge("a", Some(LEFT), vec![])]), "its edges do not cover its keys");
}

#[test]
#[should_panic(expected = "edges in order")]
fn edges_ascend() {
    put(
        ROOT,
        interior(1, vec![edge("", Some(LEFT), vec![]), edge("m", None, vec![]), edge("m", None, vec![])]),
        1,
    );
}

#[test]
fn edges_out_of_order_are_found() {
    let edges = vec![edge("", Some(LEFT), vec![]), edge("m", None, vec![]), edge("m", Some(RIGHT), vec![])];
    is_found(interior(1, edges), "edge 1 covers nothing");
}

#[test]
fn an_edge_that_shows_what_its_child_cannot_hold_is_found() {
    is_found(interior(1, vec![edge("", Some(LEFT), vec![]), edge("z", Some(RIGHT), vec![])]), "it shows");
}

#[test]
fn an_edge_that_shows_what_its_child_cannot_hold_is_not_made_simple() {
    let simple = leaf("m", "", &["x"]).simple(&span("a", "z"), &Target::plain(RIGHT), &pager());
    assert!(simple.is_err_and(|error| error.is_damage()));
}

#[test]
#[should_panic(expected = "layers out of order")]
fn layers_are_in_order() {
    put(ROOT, interior(1, vec![edge("", None, vec![layer(5, &["b"]), layer(4, &["b"])])]), 1);
}

#[test]
fn layers_out_of_order_are_found() {
    let root = interior(1, vec![edge("", None, vec![layer(5, &["b"]), layer(4, &["b"])])]);
    is_found(root, "layers of edge 0 are out of order");
}

#[test]
fn nothing_newer_waits_below() {
    let mut tree = tree(interior(2, vec![edge("", Some(7), vec![layer(4, &["b"])])]), 1);
    let child = interior(1, vec![edge("", None, vec![layer(5, &["b"])])]);
    tree.table.set(
        7,
        Some(Entry { count: 1, height: 1, longest: Longest::UNKNOWN, loc: Loc::Dirty(Arc::new(child)) }),
    );
    let problems = check(&tree, &pager()).problems;
    let what = "node 1: batch 4 waits above node 7, which has batch 5";
    assert!(problems.iter().any(|problem| problem.what == what), "{problems:?}");
}

#[test]
#[should_panic(expected = "messages outside their edge")]
fn messages_lie_within_their_edge() {
    put(ROOT, interior(1, vec![edge("", None, vec![layer(5, &["x"])]), edge("m", None, vec![])]), 1);
}

#[test]
fn messages_outside_their_edge_are_found() {
    let root = interior(1, vec![edge("", None, vec![layer(5, &["x"])]), edge("m", None, vec![])]);
    is_found(root, "pages out of order or out of bounds");
}

#[test]
#[should_panic(expected = "a range message crosses its edge")]
fn range_messages_lie_within_their_edge() {
    put(
        ROOT,
        interior(1, vec![edge("", None, vec![ranges(&[("a", "z", None)])]), edge("m", None, vec![])]),
        1,
    );
}

#[test]
#[should_panic(expected = "an update crosses its edge")]
fn updates_lie_within_their_edge() {
    put(ROOT, interior(1, vec![edge("", None, vec![updates(&[("a", "z")])]), edge("m", None, vec![])]), 1);
}

#[test]
fn ranges_and_updates_that_overlap_are_found() {
    let twice = ranges(&[("a", "d", None), ("c", "e", None)]);
    is_found(interior(1, vec![edge("", None, vec![twice])]), "range messages of edge 0 overlap or leave it");
    let twice = updates(&[("a", "d"), ("c", "e")]);
    is_found(interior(1, vec![edge("", None, vec![twice])]), "updates of edge 0 overlap or leave it");
}

#[test]
fn an_update_without_an_operation_is_found() {
    let mut idle = updates(&[("a", "d")]);
    idle.updates[0].ops.clear();
    is_found(interior(1, vec![edge("", None, vec![idle])]), "an update of edge 0 changes nothing");
}

#[test]
fn a_goto_that_rests_too_low_is_found() {
    // The Goto could not be flushed into a leaf.
    let root = interior(1, vec![edge("", Some(LEFT), vec![ranges(&[("b", "c", Some(LEFT))])])]);
    is_found(root, "its child 2 is not low enough");
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "pages out of order")]
fn pages_of_a_run_ascend() {
    put(RIGHT, swapped_leaf(), 1);
}

#[test]
fn a_bound_of_keys_that_is_too_small_is_found() {
    let mut tree = tree(sound(), 1);
    let bounds = [(Longest::of(0), true), (Longest::of(1), false), (Longest::UNKNOWN, false)];
    for (longest, is_wrong) in bounds {
        let entry = tree.table.get(RIGHT).unwrap().clone();
        tree.table.set(RIGHT, Some(Entry { longest, ..entry }));
        let problems = check(&tree, &pager()).problems;
        let what = "node 3: keys are longer than its bound says";
        assert_eq!(problems.iter().any(|problem| problem.what == what), is_wrong, "{problems:?}");
    }
}

#[test]
fn pages_out_of_order_are_found() {
    let mut tree = tree(sound(), 1);
    tree.table.set(
        RIGHT,
        Some(Entry {
            count: 1,
            height: 0,
            longest: Longest::UNKNOWN,
            loc: Loc::Dirty(Arc::new(swapped_leaf())),
        }),
    );
    let problems = check(&tree, &pager()).problems;
    let what = "node 3: pages out of order or out of bounds";
    assert!(problems.iter().any(|problem| problem.what == what), "{problems:?}");
}

/// A leaf for [`RIGHT`] whose pages are in the wrong order.
fn swapped_leaf() -> Node {
    let mut pages = run(&["x"]).pages;
    pages.extend(run(&["p"]).pages);
    Node { height: 0, span: span("m", ""), body: Body::Leaf(Run { pages }) }
}

#[test]
#[should_panic(expected = "a page has less prefix than its edge lifts")]
fn pages_have_the_prefix_that_their_edge_lifts() {
    let mut short = run(&["doc/a"]);
    (short.pages[0].prefix, short.pages[0].first) = ("do".into(), "c/a".into());
    short.pages[0].last = "c/a".into();
    let node = Node { height: 0, span: span("doc/", "doc0"), body: Body::Leaf(short) };
    put(RIGHT, node, 1);
}

#[test]
#[should_panic(expected = "key outside the domain of its edge")]
fn a_lens_maps_keys_of_its_domain_only() {
    Lens::new("doc/".into(), "".into()).apply(b"dog");
}

#[test]
#[should_panic(expected = "key outside the image of its edge")]
fn a_lens_maps_back_keys_of_its_image_only() {
    Lens::new("".into(), "doc/".into()).invert(b"dog");
}

#[test]
#[should_panic(expected = "edges do not compose")]
fn a_path_is_made_of_edges_that_meet() {
    _ = Lens::new("a".into(), "b".into()).then(&Lens::new("c".into(), "d".into()));
}

#[test]
#[should_panic(expected = "an edge is narrowed to what it does not show")]
fn an_edge_is_narrowed_to_a_part_of_it() {
    _ = Lens::narrowed_prepend(&span("a", "c"), &Bytes::new(), &span("b", "d"));
}

#[test]
#[should_panic(expected = "a deferred clone of no keys")]
fn a_deferred_clone_has_a_range_of_keys() {
    _ = TableRange { span: span("b", "b"), origin: Some("a".into()), longest: Longest::NONE }.source();
}

#[test]
#[should_panic(expected = "a range message crosses its edge")]
fn a_range_message_has_a_range_of_keys() {
    put(ROOT, interior(1, vec![edge("", None, vec![ranges(&[("b", "b", None)])])]), 1);
}

#[test]
#[should_panic(expected = "a Goto to node 3 rests too low above it")]
fn a_goto_rests_above_its_target() {
    put(ROOT, interior(1, vec![edge("", Some(LEFT), vec![ranges(&[("b", "c", Some(RIGHT))])])]), 1);
}

#[test]
fn a_node_that_is_referred_to_is_not_freed() {
    let (pager, next, handled) = (pager(), AtomicU64::new(10), AtomicU64::new(0));
    let limits = Limits::new(4096, None);
    let cx = Context { pager: &pager, merge: &PatchMerge, limits, next_id: &next, handled: &handled };
    let tree = tree(sound(), 1);
    let mut edit = Edit::new(&cx, &tree);
    assert!(edit.remove(RIGHT).is_ok());
    let refused = edit.finish().apply(&mut tree.table.clone());
    assert!(refused.is_err_and(|error| error.to_string().contains("node 3 removed with 1")));
}

#[test]
#[should_panic(expected = "a range message overlaps the one before it")]
fn range_messages_of_a_layer_are_disjoint() {
    put(ROOT, interior(1, vec![edge("", None, vec![ranges(&[("a", "d", None), ("c", "e", None)])])]), 1);
}

#[test]
#[should_panic(expected = "an update overlaps the one before it")]
fn updates_of_a_layer_are_disjoint() {
    put(ROOT, interior(1, vec![edge("", None, vec![updates(&[("c", "e"), ("a", "b")])])]), 1);
}

#[test]
#[should_panic(expected = "an update without operations")]
fn an_update_has_an_operation() {
    let mut idle = updates(&[("a", "c")]);
    idle.updates[0].ops.clear();
    put(ROOT, interior(1, vec![edge("", None, vec![idle])]), 1);
}

/// Does something with an edit over a sound tree, in which the second leaf has two references.
pub(super) fn edit<T>(work: impl FnOnce(&mut Edit<'_>) -> T) -> T {
    let (pager, next, handled) = (pager(), AtomicU64::new(10), AtomicU64::new(0));
    let limits = Limits::new(4096, None);
    let cx = Context { pager: &pager, merge: &PatchMerge, limits, next_id: &next, handled: &handled };
    work(&mut Edit::new(&cx, &tree(sound(), 2)))
}

#[test]
#[should_panic(expected = "node 3 has 2 references and is taken out")]
fn a_shared_node_is_not_taken_out() {
    _ = edit(|edit| edit.remove(RIGHT));
}

#[test]
#[should_panic(expected = "the root is taken out")]
fn the_root_is_not_taken_out() {
    _ = edit(|edit| edit.remove(ROOT));
}

#[test]
#[should_panic(expected = "node 7 is made the root and does not exist")]
fn the_root_exists() {
    edit(|edit| edit.set_root(7));
}

/// The span of a node comes from the device, and a false one must neither lose what is written nor panic.
#[test]
fn a_node_takes_in_what_is_its_own_only() {
    for outside in [layer(9, &["b"]), updates(&[("b", "x")])] {
        let taken = edit(|edit| edit.absorb(leaf("m", "", &["x"]), outside));
        assert!(taken.is_err_and(|error| error.to_string().contains("a node of another span")));
    }
}

#[test]
#[should_panic(expected = "a node is clipped to what it does not hold")]
fn a_node_is_clipped_to_a_part_of_it() {
    _ = leaf("m", "p", &["n"]).clipped(&span("a", "n"), &pager());
}

#[test]
#[should_panic(expected = "messages above a level that goes")]
fn a_level_goes_only_if_nothing_waits_above_it() {
    let child = Node { span: span("", "m"), ..interior(0, vec![edge("", None, vec![])]) };
    sound().with_edges_of(0, child);
}

#[test]
#[should_panic(expected = "a level that goes shows other keys than its edge")]
fn a_level_goes_only_if_it_shows_what_its_edge_does() {
    let child = Node { span: span("m", "n"), ..interior(0, vec![edge("m", None, vec![])]) };
    sound().with_edges_of(1, child);
}

#[test]
#[should_panic(expected = "a message about no keys")]
fn a_table_takes_in_ranges_of_keys_only() {
    Memtable::new(1, LogPos::default()).put_range(TableRange::deleted(span("b", "b")));
}

/// Nothing is flushed into a shared node, and what was pruned until nothing was left of it kept its edges for good.
#[test]
fn a_shared_node_that_shows_nothing_is_taken_off_its_edges() {
    let void = interior(1, vec![edge("", None, vec![])]);
    let waits = ranges(&[("b", "c", None)]);
    let edges =
        [edge("", Some(LEFT), vec![waits]), edge("m", Some(LEFT), vec![]), edge("s", Some(RIGHT), vec![])];
    let nodes = [(ROOT, 1, interior(2, edges.into())), (LEFT, 2, void), (RIGHT, 1, leaf("s", "", &["x"]))];
    let tree = tree_of(nodes);
    assert!(check(&tree, &pager()).problems.is_empty());
    let (pager, next, handled) = (pager(), AtomicU64::new(10), AtomicU64::new(0));
    let limits = Limits::new(4096, None);
    let cx = Context { pager: &pager, merge: &PatchMerge, limits, next_id: &next, handled: &handled };
    let mut edit = Edit::new(&cx, &tree);
    let found = |edit: &Edit<'_>| {
        let (from, which) = (&Bytes::new(), Tombstones::All);
        let mut walk = TombstoneWalk { from, which, left: 100, most: 100, found: Vec::new() };
        assert!(edit.waiting_tombstones(&mut walk).unwrap().is_none());
        walk.found
    };
    let keys = found(&edit);
    assert_eq!(keys, ["", "m"]);
    for key in &keys {
        assert!(edit.push_down_at(key, Tombstones::All).unwrap());
    }
    let root = edit.peek(ROOT).unwrap();
    let children: Vec<_> = root.edges().iter().map(|edge| edge.child.as_ref().map(|to| to.id)).collect();
    assert_eq!((children, root.height), (vec![None, Some(RIGHT)], 1));
    assert_eq!(edit.count(LEFT), 0);
    assert!(found(&edit).is_empty());
}

/// A tall node with little below it, and a Goto that rests above it: the node may become as low as the target of the
/// Goto allows, in an idle store and when a memtable is applied. No other test would notice a mistake here: a write
/// does not check the messages in a node that it does not change.
#[test]
fn a_node_stays_above_what_the_gotos_lead_to_that_rest_above_it() {
    const MID: NodeId = 4;
    const TARGET: NodeId = 5;
    const BELOW: NodeId = 6;
    // The root has so many edges that it cannot take over those of its children: it is too tall or not.
    for (idle, high, wide) in [(true, 7, 8), (false, 20, 64)] {
        let root_edges = (0..wide).map(|i| match i {
            0 => edge("", Some(MID), vec![ranges(&[("c", "d", Some(TARGET))])]),
            _ => edge(&format!("m{i:02}"), None, vec![]),
        });
        let Tree { mut table, root, msn, log_end, versions } =
            tree(interior(high + 1, root_edges.collect()), 1);
        table.set(RIGHT, None);
        let mid_edges = vec![edge("", Some(LEFT), vec![]), edge("k", None, vec![])];
        let nodes = [
            (LEFT, leaf("", "k", &["a"])),
            (MID, Node { span: span("", "m01"), ..interior(high, mid_edges) }),
            (TARGET, interior(5, vec![edge("", Some(BELOW), vec![])])),
            (BELOW, leaf("", "", &["x"])),
        ];
        for (id, node) in nodes {
            let (height, longest) = (node.height, Longest::UNKNOWN);
            let loc = Loc::Dirty(Arc::new(node));
            table.set(id, Some(Entry { count: 1, height, longest, loc }));
        }
        let tree = Tree { table, root, msn, log_end, versions };
        let pager = pager();
        let problems = check(&tree, &pager).problems;
        assert!(problems.is_empty(), "{problems:?}");
        let (next, handled) = (AtomicU64::new(10), AtomicU64::new(0));
        let limits = Limits::new(4096, None);
        let cx = Context { pager: &pager, merge: &PatchMerge, limits, next_id: &next, handled: &handled };
        let mut edit = Edit::new(&cx, &tree);
        let mut steps = 0;
        while if idle { edit.lower() } else { edit.lower_tallest() }.unwrap() {
            steps += 1;
            assert!(steps < 10, "it is lowered for ever");
            let heights = [ROOT, MID, TARGET].map(|id| edit.height(id).unwrap());
            assert!(heights[2] < heights[1], "the Goto rests too low: {heights:?}");
            assert!(heights[1] < heights[0] && heights[1] < high, "nothing was lowered: {heights:?}");
        }
        assert!(steps > 0, "nothing was lowered");
    }
}

/// A sealed image may have an edge that shows more than its child holds. Where a delete waits there of a key that is
/// not the child's, the walk looked for it below an edge that does not show it, and panicked.
#[test]
fn deletes_above_a_child_that_holds_less_are_not_followed() {
    const MID: NodeId = 4;
    let mut writer = RunBuilder::new(1 << 10);
    ["a", "z"].into_iter().for_each(|key| writer.push(key.into(), Msg::Delete));
    let waits = Layer { newest: 9, run: writer.finish(), ..Layer::default() };
    let mid = [edge("ma", Some(LEFT), vec![]), edge("mb", None, vec![]), edge("ny", Some(RIGHT), vec![])];
    let tree = tree_of([
        (ROOT, 1, interior(3, vec![edge("", Some(MID), vec![waits])])),
        (MID, 1, Node { span: span("ma", "nz"), ..interior(2, mid.into()) }),
        (LEFT, 1, leaf("", "", &["b"])),
        (RIGHT, 1, interior(1, vec![edge("", None, vec![])])),
    ]);
    let (pager, next, handled) = (pager(), AtomicU64::new(10), AtomicU64::new(0));
    let limits = Limits::new(4096, None);
    let cx = Context { pager: &pager, merge: &PatchMerge, limits, next_id: &next, handled: &handled };
    for which in [Tombstones::Worthwhile, Tombstones::All, Tombstones::AndMessages] {
        for from in ["", "a", "mb", "z"].map(Bytes::from) {
            let mut walk = TombstoneWalk { from: &from, which, left: 100, most: 100, found: Vec::new() };
            let end = Edit::new(&cx, &tree).waiting_tombstones(&mut walk);
            assert!(end.is_ok_and(|end| end.is_none()), "from {from:?}, {which:?}");
            let down = Edit::new(&cx, &tree).push_down_at(&from, which);
            assert!(down.map_or_else(|e| e.is_damage(), |any| !any), "from {from:?}, {which:?}");
        }
    }
}
