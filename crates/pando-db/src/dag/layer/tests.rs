//! Layers and memtables against what they mean: a function from what is below a key to what is there.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use proptest::prelude::*;
use smallvec::SmallVec;

use super::*;
use crate::{
    dag::{
        layer::run::RunBuilder,
        memtable::{Memtable, range::TableRange},
    },
    device::MemDevice,
    merge::tests::Text,
    node::{
        RangeMsg, Target,
        message::{Msg, Value},
        ranged::Ranged,
    },
    options::Codec,
    store::log::LogPos,
};

/// Bytes at which the pages of the runs made here are closed: large enough to be shared.
const PAGE: usize = 160;

fn key() -> impl Strategy<Value = Bytes> {
    let long = any::<bool>().prop_map(|long| if long { "-long-enough-to-fill-pages" } else { "" });
    let letters = prop::collection::vec(prop::sample::select(vec![b'a', b'b', b'c']), 0..4);
    (letters, long).prop_map(|(letters, long)| [&letters, long.as_bytes()].concat().into())
}

fn op() -> impl Strategy<Value = Bytes> {
    prop::sample::select(vec!["1", "2", "3", "-"]).prop_map(Bytes::from)
}

fn span() -> impl Strategy<Value = Span> {
    (key(), prop::option::of(key()))
        .prop_map(|(lo, hi)| Span { lo, hi })
        .prop_filter("empty", |s| !s.is_empty())
}

fn point() -> impl Strategy<Value = Msg> {
    prop_oneof![
        2 => prop::sample::select(vec!["x", "y"]).prop_map(|v| Msg::Put(v.into())),
        1 => Just(Msg::Delete),
        3 => op().prop_map(Msg::upsert),
        1 => prop::collection::vec(op(), 1..3).prop_map(|ops| Msg::if_present(&ops)),
    ]
}

/// Disjoint ascending ranges, made of cuts.
fn spans() -> impl Strategy<Value = Vec<Span>> {
    (prop::collection::btree_set(key(), 0..6), any::<bool>(), any::<[bool; 7]>()).prop_map(
        |(cuts, open, keep)| {
            let cuts: Vec<Bytes> = cuts.into_iter().collect();
            let ends = cuts.iter().skip(1).cloned().map(Some).chain(open.then_some(None));
            let spans = cuts.iter().cloned().zip(ends).map(|(lo, hi)| Span { lo, hi });
            spans.zip(keep).filter(|(_, keep)| *keep).map(|(span, _)| span).collect()
        },
    )
}

fn range(span: Span, goto: Option<u64>) -> RangeMsg {
    RangeMsg { span, target: goto.map(Target::plain) }
}

fn layer() -> impl Strategy<Value = Layer> {
    let ranges = (spans(), prop::collection::vec(prop::option::of(1u64..4), 7));
    let updates = (spans(), prop::collection::vec(prop::collection::vec(op(), 1..3), 7));
    let points = prop::collection::btree_map(key(), point(), 0..20);
    (ranges, updates, points).prop_map(|((spans, gotos), (covered, ops), points)| Layer {
        newest: 1,
        ranges: spans.into_iter().zip(gotos).map(|(span, goto)| range(span, goto)).collect(),
        updates: covered
            .into_iter()
            .zip(ops)
            .map(|(span, ops)| UpdateMsg { span, ops: ops.into() })
            .collect(),
        run: run(points),
    })
}

fn run(points: BTreeMap<Bytes, Msg>) -> crate::node::Run {
    let mut writer = RunBuilder::new(PAGE);
    points.into_iter().for_each(|(key, msg)| writer.push(key, msg));
    writer.finish()
}

fn pager() -> Pager {
    Pager::new(Arc::new(MemDevice::new(1 << 20)), 1 << 20, 4096, Codec::None)
}

/// What a Goto shows of a key; the second target shows nothing.
fn shown(target: u64, key: &[u8]) -> Value {
    (target != 2).then(|| [format!("<{target}>").as_bytes(), key].concat().into())
}

fn over_range(range: Option<&RangeMsg>, key: &[u8], below: Value) -> Value {
    match range {
        None => below,
        Some(range) => range.target.as_ref().and_then(|target| shown(target.id, key)),
    }
}

/// What a layer says of a key, found by looking at everything.
fn meaning(layer: &Layer, key: &[u8], below: Value, pager: &Pager) -> Value {
    let base = over_range(layer.ranges.iter().find(|r| r.span.contains(key)), key, below);
    let point = layer.run.get(key, |page, key| pager.find(None, page, key, || ())).expect("in memory");
    match (point, layer.updates.iter().find(|u| u.span.contains(key))) {
        (Some(point), _) => point.resolve(base, &Text),
        (None, Some(update)) => update.ops.iter().fold(base, |old, op| Text.apply(Some(&old?), op)),
        (None, None) => base,
    }
}

fn is_sound(layer: &Layer) -> bool {
    fn ascend<T: Ranged>(messages: &[T]) -> bool {
        messages.iter().all(|m| !m.span().is_empty())
            && messages.windows(2).all(|w| w[0].span().hi.as_ref().is_some_and(|hi| *hi <= w[1].span().lo))
    }
    let pages = &layer.run.pages;
    ascend(&layer.ranges)
        && ascend(&layer.updates)
        && layer.updates.iter().all(|u| !u.ops.is_empty())
        && pages.windows(2).all(|w| w[0].last_key() < w[1].first_key())
}

/// One thing that is done to a table.
#[derive(Debug, Clone)]
enum Step {
    Point(Bytes, Msg),
    Range(TableRange),
    Update(UpdateMsg),
}

/// What stands below a table.
fn under(key: &[u8]) -> Value {
    (!key.ends_with(b"c")).then(|| [b"under ", key].concat().into())
}

/// What stands below the range of a table: a clone shows its source.
fn under_range(range: &TableRange, key: &Bytes) -> Value {
    let (lens, image) = range.source()?;
    let source = lens.apply(key);
    assert!(image.contains(&source), "{source:?} is not in {image:?}");
    under(&source)
}

/// What a table says of a key, found by looking at everything.
fn meaning_of_table(table: &Memtable, key: &Bytes) -> Value {
    let base = match table.ranges.values().find(|range| range.span.contains(key)) {
        Some(range) => under_range(range, key),
        None => under(key),
    };
    match (table.points.get(key), table.updates.values().find(|u| u.span.contains(key))) {
        (Some(point), _) => point.clone().resolve(base, &Text),
        (None, Some(update)) => update.ops.iter().fold(base, |old, op| Text.apply(Some(&old?), op)),
        (None, None) => base,
    }
}

fn step() -> impl Strategy<Value = Step> {
    let update = (span(), op()).prop_map(|(span, op)| UpdateMsg { span, ops: SmallVec::from_iter([op]) });
    prop_oneof![
        5 => (key(), point()).prop_map(|(key, msg)| Step::Point(key, msg)),
        1 => (span(), prop::option::of(key())).prop_map(|(span, origin)| {
            Step::Range(TableRange { span, origin, longest: crate::key::Longest::UNKNOWN })
        }),
        2 => update.prop_map(Step::Update),
    ]
}

fn do_to_table(table: &mut Memtable, step: &Step) {
    match step {
        Step::Point(key, msg) => table.put(key.clone(), msg.clone(), &Text),
        Step::Range(range) => table.put_range(range.clone()),
        Step::Update(update) => table.put_update(update.clone(), &Text, |_| false),
    }
}

fn do_to_value(step: &Step, key: &Bytes, value: Value) -> Value {
    match step {
        Step::Point(at, msg) if at == key => msg.resolve(value, &Text),
        Step::Range(range) if range.span.contains(key) => under_range(range, key),
        Step::Update(update) if update.span.contains(key) => {
            update.ops.iter().fold(value, |old, op| Text.apply(Some(&old?), op))
        }
        _ => value,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn a_layer_over_another_means_both(
        newer in layer(), older in layer(), keys in prop::collection::vec(key(), 20),
        below in prop::option::of(Just("v")),
    ) {
        let pager = pager();
        let both = newer.over(&older, &pager, &Text).expect("in memory");
        prop_assert!(is_sound(&both), "{:?}", both);
        for key in keys {
            let below = below.map(Bytes::from);
            let in_turn = meaning(&newer, &key, meaning(&older, &key, below.clone(), &pager), &pager);
            prop_assert_eq!(meaning(&both, &key, below, &pager), in_turn, "{:?}", key);
        }
    }

    #[test]
    fn a_slice_means_the_same_within_it(
        layer in layer(), part in span(), keys in prop::collection::vec(key(), 20),
    ) {
        let pager = pager();
        let slice = layer.slice(&part, &pager).expect("in memory");
        prop_assert!(is_sound(&slice));
        prop_assert!(slice.updates.iter().all(|u| part.covers(&u.span)));
        for key in keys {
            let below = Some(Bytes::from("v"));
            let here = || meaning(&layer, &key, below.clone(), &pager);
            let expected = if part.contains(&key) { here() } else { below.clone() };
            // A Goto that is cut shows the same through another prefix, which `shown` knows nothing of.
            prop_assert_eq!(meaning(&slice, &key, below, &pager), expected);
        }
    }

    /// Points come whole pages at a time where nothing is said about them.
    #[test]
    fn a_table_means_what_was_done_to_it(
        steps in prop::collection::vec(step(), 0..30), keys in prop::collection::vec(key(), 20),
    ) {
        let pager = pager();
        let mut table = Memtable::new(0, LogPos::default());
        steps.iter().for_each(|step| do_to_table(&mut table, step));
        let layer = table.to_layer(PAGE, |_| None).expect("in memory");
        prop_assert!(is_sound(&layer));
        let over_delete = |u: &UpdateMsg| layer.ranges.iter().any(|r| r.target.is_none() && r.span.overlaps(&u.span));
        prop_assert!(!layer.updates.iter().any(over_delete), "an update over a delete");
        prop_assert_eq!(table.clones().count(), table.ranges.values().filter(|range| !range.is_delete()).count());
        prop_assert_eq!(table.has_clones(), table.clones().next().is_some());
        for key in keys.into_iter().chain(table.points.keys().cloned()) {
            let expected = steps.iter().fold(under(&key), |value, step| do_to_value(step, &key, value));
            prop_assert_eq!(meaning_of_table(&table, &key), expected.clone(), "{:?}", key);
            // But for clones the layer says the same.
            let cloned = table.range_at(&key).is_some_and(|range| !range.is_delete());
            let of_clone = || table.range_at(&key).and_then(|range| under_range(range, &key));
            let below = if cloned { of_clone() } else { under(&key) };
            prop_assert_eq!(meaning(&layer, &key, below, &pager), expected, "{:?}", key);
        }
        // What is counted is given back.
        table.put_range(TableRange::deleted(Span::all()));
        let mut empty = Memtable::new(0, LogPos::default());
        empty.put_range(TableRange::deleted(Span::all()));
        prop_assert_eq!(table.bytes(), empty.bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Layers that come to an edge one after the other, and are merged, mean what was done in turn: in a layer updates
    /// are newer than ranges, and points newer than both.
    #[test]
    fn layers_of_an_edge_mean_what_was_done_in_turn(
        tables in prop::collection::vec(prop::collection::vec(step(), 0..8), 1..8),
        keys in prop::collection::vec(key(), 20), has_child in any::<bool>(),
    ) {
        let pager = pager();
        let mut edge = Edge { child: has_child.then(|| Target::plain(7)), ..Edge::default() };
        let mut steps = Vec::new();
        for (newest, table_steps) in (1..).zip(tables) {
            // A clone would have to be placed.
            let is_clone = |step: &Step| matches!(step, Step::Range(range) if !range.is_delete());
            let table_steps: Vec<Step> = table_steps.into_iter().filter(|step| !is_clone(step)).collect();
            let mut table = Memtable::new(newest - 1, LogPos::default());
            table_steps.iter().for_each(|step| do_to_table(&mut table, step));
            table.msn = newest;
            let layer = table.to_layer(PAGE, |_| None).expect("in memory");
            edge.push_layer(layer, &pager, &Text).expect("in memory");
            steps.extend(table_steps);
            prop_assert!(edge.layers.iter().all(is_sound), "{:?}", edge);
        }
        for key in keys {
            let base = || if has_child { under(&key) } else { None };
            let expected = steps.iter().fold(base(), |value, step| do_to_value(step, &key, value));
            let found = edge.layers.iter().fold(base(), |below, layer| meaning(layer, &key, below, &pager));
            prop_assert_eq!(found, expected, "{:?}", key);
        }
    }
}

/// There is no value below an edge without a child that they could change.
#[test]
fn deletes_and_updates_that_arrive_above_nothing_are_dropped() {
    let delete = RangeMsg { span: Span::all(), target: None };
    let update = UpdateMsg { span: Span::all(), ops: SmallVec::from_iter([Bytes::from("1")]) };
    for (ranges, updates) in [(vec![], vec![update.clone()]), (vec![delete], vec![update])] {
        let mut edge = Edge::default();
        let layer = Layer { newest: 1, ranges, updates, ..Layer::default() };
        edge.push_layer(layer, &pager(), &Text).expect("in memory");
        assert!(edge.layers.is_empty(), "{edge:?}");
    }
}

/// The header of a hostile image said less of a page's prefix than all its keys have in common. An edge that was
/// narrowed to some of them lifted more than there was, which was a panic (`corrupt`, image 79599).
#[test]
fn a_page_whose_prefix_is_too_short_is_an_error_where_an_edge_lifts_more() {
    let mut writer = RunBuilder::new(PAGE);
    ["tree/a", "tree/b"].into_iter().for_each(|key| writer.push(key.into(), Msg::Delete));
    let mut run = writer.finish();
    let span = Span::prefix("tree/");
    assert_eq!(run.slice(&span, &pager()).expect("in memory").pages.len(), 1);
    let page = run.pages.first_mut().expect("one page");
    let cut = page.prefix.split_off(2);
    (page.first, page.last) = ([&cut[..], b"a"].concat().into(), [&cut[..], b"b"].concat().into());
    assert!(page.is_inside(&span));
    assert!(run.slice(&span, &pager()).is_err_and(|error| error.is_damage()));
}

/// Edges that become one have layers of the same time, and either may have the oldest.
#[test]
fn layers_that_come_beside_others_are_put_in_order() {
    let layer = |newest, key: &'static str| {
        let points = BTreeMap::from([(Bytes::from(key), Msg::Put("value".into()))]);
        Layer { newest, run: run(points), ..Layer::default() }
    };
    let mut edge = Edge::default();
    edge.push_layer(layer(4, "a"), &pager(), &Text).expect("in memory");
    edge.add_beside(vec![layer(2, "c"), layer(3, "d")], &pager(), &Text).expect("in memory");
    assert!(edge.layers.is_sorted_by_key(|layer| layer.newest), "{edge:?}");
    let points: usize = edge.layers.iter().map(|layer| layer.run.entries()).sum();
    assert_eq!((edge.layers.last().map(|layer| layer.newest), points), (Some(4), 3));
}

/// Each header of a damaged image may be right in itself, and still name pages that overlap those of another.
#[test]
fn pages_out_of_order_are_an_error_where_a_run_is_built_of_them() {
    let page = |key: &'static str| run(BTreeMap::from([(Bytes::from(key), Msg::Delete)])).pages.remove(0);
    for (first, second) in [("b", "a"), ("a", "a")] {
        let mut writer = RunBuilder::new(PAGE);
        writer.push_page(page(first)).expect("the first page");
        assert!(writer.push_page(page(second)).is_err_and(|error| error.is_damage()));
    }
}
