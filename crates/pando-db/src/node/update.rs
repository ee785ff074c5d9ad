//! Updates: messages that change every value in a range of keys and create none
//! (range-upserts, what a recursive `chmod` becomes).
//!
//! Two rules make them cheap to flush. In a layer (and in the memtable)
//! a point is *complete*: it includes what the updates of its layer do to its
//! key, so they apply only to keys without a point there. And updates are newer
//! than the range messages of their layer, so a newer range message simply
//! cuts them. All that is left is a map of intervals: updates of a layer are
//! disjoint and ascending, and where two overlap, the pieces in common have the
//! operations of both, oldest first.
//!
//! An operation applies only if there is a value at that moment
//! (`ValueChange::if_present`): whether there is may be decided far below. Pure
//! functions of what they are given; no I/O.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    key::{Lens, Span, compare_joined},
    merge::Merge,
    node::{
        PageRef, RangeMsg, UpdateMsg,
        message::Msg,
        ranged::{Ranged, cut},
    },
};

impl Ranged for UpdateMsg {
    fn span(&self) -> &Span {
        &self.span
    }

    fn clipped(&self, span: &Span) -> Option<UpdateMsg> {
        Some(UpdateMsg { span: self.span.intersect(span)?, ops: self.ops.clone() })
    }
}

impl UpdateMsg {
    /// The same message with keys seen through `lens`.
    pub fn through(&self, lens: &Lens) -> UpdateMsg {
        UpdateMsg { span: lens.apply_span(&self.span), ops: self.ops.clone() }
    }
}

/// One list of updates equal to `newer` over `older`. Both are disjoint and ascending. Touching pieces with the same
/// operations become one.
pub(crate) fn compose(older: &[UpdateMsg], newer: &[UpdateMsg], merge: &dyn Merge) -> Vec<UpdateMsg> {
    if older.is_empty() || newer.is_empty() {
        return [older, newer].concat();
    }
    let mut all = cut(older, newer);
    for new in newer {
        let mut rest = Some(new.span.clone());
        let from = older.partition_point(|u| u.span.hi.as_ref().is_some_and(|hi| *hi <= new.span.lo));
        for old in &older[from..] {
            let Some(span) = rest.take() else { break };
            let Some(both) = span.intersect(&old.span) else {
                rest = Some(span);
                break;
            };
            let (below, above) = span.without(&old.span);
            all.extend(below.map(|span| UpdateMsg { span, ops: new.ops.clone() }));
            all.push(UpdateMsg { span: both, ops: concat(&old.ops, &new.ops, merge) });
            rest = above;
        }
        all.extend(rest.map(|span| UpdateMsg { span, ops: new.ops.clone() }));
    }
    all.sort_by(|a, b| a.span.lo.cmp(&b.span.lo));
    all.dedup_by(|next, kept| {
        let same = kept.span.hi.as_ref() == Some(&next.span.lo) && kept.ops == next.ops;
        if same {
            kept.span.hi = next.span.hi.take();
        }
        same
    });
    all
}

/// The operations of both, with neighbours made one where `merge` can.
fn concat(older: &[Bytes], newer: &[Bytes], merge: &dyn Merge) -> SmallVec<[Bytes; 1]> {
    let mut ops: SmallVec<[Bytes; 1]> = older.iter().cloned().collect();
    for op in newer {
        match ops.last().and_then(|last| merge.combine_present(last, op)) {
            Some(both) => {
                ops.pop();
                ops.push(both);
            }
            None => ops.push(op.clone()),
        }
    }
    ops
}

/// `updates` without the parts over deletes among `ranges`, which are older: there is nothing to change.
pub(crate) fn without_deleted(updates: Vec<UpdateMsg>, ranges: &[RangeMsg]) -> Vec<UpdateMsg> {
    if updates.is_empty() || ranges.iter().all(|range| range.target.is_some()) {
        return updates;
    }
    let deletes: Vec<RangeMsg> = ranges.iter().filter(|range| range.target.is_none()).cloned().collect();
    cut(&updates, &deletes)
}

/// Looks updates up for keys that ascend, in one walk.
pub(crate) struct Sweep<'a> {
    /// From the first that may cover a later key.
    rest: &'a [UpdateMsg],
}

impl<'a> Sweep<'a> {
    pub fn new(updates: &'a [UpdateMsg]) -> Self {
        Self { rest: updates }
    }

    /// What is said about `key`, as a message.
    pub fn at(&mut self, key: &[u8]) -> Option<Msg> {
        while let [first, more @ ..] = self.rest {
            if first.span.is_above(key) {
                return (*first.span.lo <= *key).then(|| first.msg());
            }
            self.rest = more;
        }
        None
    }

    /// True if nothing is said about any later key.
    pub fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    /// True if something may be said about a key of `page`, which lies above all keys asked for before.
    pub fn meets(&mut self, page: &PageRef) -> bool {
        while let [first, more @ ..] = self.rest {
            let below = |hi: &Bytes| compare_joined(&page.prefix, &page.first, hi).is_ge();
            if !first.span.hi.as_ref().is_some_and(below) {
                return compare_joined(&page.prefix, &page.last, &first.span.lo).is_ge();
            }
            self.rest = more;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::{PatchMerge, patch, tests::Text};
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(prop::sample::select(vec![0u8, 0x61, 0xff]), 0..4).prop_map(Bytes::from)
    }

    /// Disjoint and ascending.
    fn updates() -> impl Strategy<Value = Vec<UpdateMsg>> {
        let op = prop::sample::select(vec!["a", "b", "c", "-"]).prop_map(Bytes::from);
        let cuts = prop::collection::btree_set(key(), 0..8);
        let ops = prop::collection::vec(prop::collection::vec(op, 0..3), 9);
        (cuts, ops, any::<bool>()).prop_map(|(cuts, ops, open)| {
            let cuts: Vec<Bytes> = cuts.into_iter().collect();
            let ends = cuts.iter().skip(1).cloned().map(Some).chain(open.then_some(None));
            let spans = cuts.iter().cloned().zip(ends).map(|(lo, hi)| Span { lo, hi });
            let all = spans.zip(ops).filter(|(_, ops)| !ops.is_empty());
            all.map(|(span, ops)| UpdateMsg { span, ops: ops.into() }).collect()
        })
    }

    fn at<'a>(updates: &'a [UpdateMsg], key: &[u8]) -> Option<&'a UpdateMsg> {
        updates.iter().find(|u| u.span.contains(key))
    }

    fn is_ordered(updates: &[UpdateMsg]) -> bool {
        updates.iter().all(|u| !u.span.is_empty() && !u.ops.is_empty())
            && updates.windows(2).all(|w| w[0].span.hi.as_ref().is_some_and(|hi| *hi <= w[1].span.lo))
    }

    fn applied(update: Option<&UpdateMsg>, value: Option<Bytes>) -> Option<Bytes> {
        update.map_or(value.clone(), |u| u.msg().resolve(value, &Text))
    }

    proptest! {
        #[test]
        fn composed_updates_are_one_after_the_other(
            a in updates(), b in updates(), keys in prop::collection::vec(key(), 20),
            old in prop::option::of(Just("v")),
        ) {
            let both = compose(&a, &b, &Text);
            prop_assert!(is_ordered(&both), "{both:?}");
            for key in keys {
                let old = old.map(Bytes::from);
                let in_turn = applied(at(&b, &key), applied(at(&a, &key), old.clone()));
                prop_assert_eq!(applied(at(&both, &key), old), in_turn);
            }
        }

        #[test]
        fn a_sweep_finds_what_covers_a_key(all in updates(), keys in prop::collection::btree_set(key(), 0..20)) {
            let mut sweep = Sweep::new(&all);
            for key in keys {
                prop_assert_eq!(sweep.at(&key), at(&all, &key).map(UpdateMsg::msg));
            }
        }

        #[test]
        fn updates_are_cut_by_deletes(all in updates(), b in updates(), keys in prop::collection::vec(key(), 20)) {
            let ranges: Vec<RangeMsg> =
                b.iter().map(|u| RangeMsg { span: u.span.clone(), target: None }).collect();
            let left = without_deleted(all.clone(), &ranges);
            prop_assert!(is_ordered(&left));
            for key in keys {
                let expected = at(&all, &key).filter(|_| at(&b, &key).is_none()).map(|u| &u.ops);
                prop_assert_eq!(at(&left, &key).map(|u| &u.ops), expected);
            }
        }
    }

    #[test]
    fn equal_neighbours_become_one() {
        let op = |span: (&'static str, &'static str)| UpdateMsg {
            span: Span::new(span.0, Some(span.1.into())),
            ops: SmallVec::from_iter([patch::truncate(3)]),
        };
        let all = compose(&[op(("a", "c"))], &[op(("b", "d"))], &PatchMerge);
        assert_eq!(all, [op(("a", "d"))]);
    }
}
