//! The keys of a node that the paths to it show, with whose paths these are, and how many.
//!
//! There may be more paths to a node than bytes of memory: if each of n trees contains the previous one twice, there
//! are 2^n. So ranges are merged when they are added: where ranges overlap they are cut, and their numbers of paths are
//! added; ranges that touch and are shown by the same paths become one. So there is at most one range for each bound.
//! Whose the paths are is kept as runs of numbers (`usage/groups.rs`), so that what thousands of snapshots in
//! succession share costs no more than what one has. Pure. May use: ranges of keys.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{db::api::usage::groups::ShownBy, key::Span, node::ranged::Ranged};

/// Up to so many ranges are not merged.
const FEW_RANGES: usize = 8;

/// A range of keys, and the paths that show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShownSpan {
    pub span: Span,
    pub by: ShownBy,
}

impl Ranged for ShownSpan {
    fn span(&self) -> &Span {
        &self.span
    }

    fn clipped(&self, span: &Span) -> Option<Self> {
        Some(Self { span: self.span.intersect(span)?, by: self.by.clone() })
    }
}

/// The ranges that the paths show that were added so far.
#[derive(Debug, Default)]
pub(super) struct PathSpans {
    parts: Vec<ShownSpan>,
    /// Runs of numbers in all parts.
    runs: usize,
    /// The number of runs after the ranges were merged last.
    left: usize,
}

impl PathSpans {
    /// Adds a range that these paths show. Cost: O(log n), amortised, for n runs after merging.
    pub fn add(&mut self, span: Span, by: ShownBy) {
        if span.is_empty() || by.is_empty() {
            return;
        }
        self.runs += by.runs().len();
        self.parts.push(ShownSpan { span, by });
        if self.runs > 2 * self.left.max(FEW_RANGES) {
            self.parts = together(std::mem::take(&mut self.parts));
            self.runs = self.parts.iter().map(|part| part.by.runs().len()).sum();
            self.left = self.runs;
        }
    }

    /// The ranges, ascending and apart, with the paths that show each.
    pub fn counted(self) -> Vec<ShownSpan> {
        together(self.parts)
    }
}

/// Merges ranges to ascending ones that do not overlap. If two of these touch, different paths show them.
fn together(parts: Vec<ShownSpan>) -> Vec<ShownSpan> {
    if parts.len() < 2 {
        return parts;
    }
    // The bounds of ranges, and which paths more, or fewer, show the keys behind each.
    let mut bounds: Vec<(Bytes, i128, ShownBy)> = Vec::with_capacity(2 * parts.len());
    for ShownSpan { span, by } in parts {
        bounds.extend(span.hi.map(|hi| (hi, -1, by.clone())));
        bounds.push((span.lo, 1, by));
    }
    bounds.sort_unstable_by(|(a, ..), (b, ..)| a.cmp(b));
    let mut apart: Vec<ShownSpan> = Vec::new();
    let (mut begun, mut shown) = (Bytes::new(), ShownBy::default());
    // By how much the number of paths rises at each number.
    let mut steps: BTreeMap<u32, i128> = BTreeMap::new();
    for here in bounds.chunk_by(|(a, ..), (b, ..)| a == b) {
        let Some((at, ..)) = here.first() else { continue };
        for (_, sign, by) in here {
            for run in by.runs() {
                let times = i128::from(run.times) * sign;
                *steps.entry(run.first).or_default() += times;
                *steps.entry(run.end).or_default() -= times;
            }
        }
        steps.retain(|_, step| *step != 0);
        let next = ShownBy::of_steps(&steps);
        if next == shown {
            continue;
        }
        if !shown.is_empty() {
            apart.push(ShownSpan { span: Span::new(begun, Some(at.clone())), by: shown });
        }
        (begun, shown) = (at.clone(), next);
    }
    if !shown.is_empty() {
        apart.push(ShownSpan { span: Span::new(begun, None), by: shown });
    }
    apart
}

/// The group that alone shows these parts, if there is one.
pub(super) fn only_group(shown: &[ShownSpan]) -> Option<u32> {
    let group = shown.first()?.by.only()?;
    shown.iter().all(|part| part.by.only() == Some(group)).then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn small_key() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(0u8..3, 0..4).prop_map(Bytes::from)
    }

    fn span() -> impl Strategy<Value = Span> {
        (small_key(), prop::option::of(small_key())).prop_map(|(lo, hi)| Span { lo, hi })
    }

    proptest! {
        #[test]
        fn each_key_is_shown_by_as_many_paths_of_each_as_were_added(
            added in prop::collection::vec((span(), 0u32..5, 1u64..4), 0..60),
            keys in prop::collection::vec(small_key(), 8),
        ) {
            let mut counted = PathSpans::default();
            for (span, group, times) in &added {
                counted.add(span.clone(), ShownBy::of(*group, *times));
            }
            let counted = counted.counted();
            for key in &keys {
                let found: Vec<_> = counted.iter().filter(|part| part.span.contains(key)).collect();
                prop_assert!(found.len() <= 1);
                for group in 0..5 {
                    let of_it = |(span, of, _): &&(Span, u32, u64)| *of == group && span.contains(key);
                    let times: u64 = added.iter().filter(of_it).map(|(.., times)| times).sum();
                    prop_assert_eq!(found.first().map_or(0, |part| part.by.times(group)), times);
                }
            }
            prop_assert!(counted.iter().all(|part| !part.by.is_empty() && !part.span.is_empty()));
            let are_apart = counted.windows(2).all(|two| {
                let ([a, b], Some(hi)) = (two, &two[0].span.hi) else { return false };
                *hi < b.span.lo || (*hi == b.span.lo && a.by != b.by)
            });
            prop_assert!(are_apart);
        }
    }

    /// Many equal ranges take no more memory than one, and their number may pass what can be counted. Neither do those
    /// of many groups in succession.
    #[test]
    fn equal_ranges_are_one() {
        let (mut paths, mut many) = (PathSpans::default(), PathSpans::default());
        for group in 0..100_000 {
            paths.add(Span::all(), ShownBy::of(7, u64::MAX / 2));
            many.add(Span::all(), ShownBy::of(group, 1));
            assert!(paths.parts.len() <= 2 * FEW_RANGES + 1 && many.parts.len() <= 2 * FEW_RANGES + 1);
        }
        assert_eq!(paths.counted(), [ShownSpan { span: Span::all(), by: ShownBy::of(7, u64::MAX) }]);
        assert_eq!(many.counted().first().map(|part| part.by.runs().len()), Some(1));
    }
}
