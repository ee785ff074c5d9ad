//! The keys of a node that the paths to it show, with the number of paths.
//!
//! There may be more paths to a node than bytes of memory: if each of n trees contains the previous one twice, there
//! are 2^n. So ranges are merged when they are added: where ranges overlap they are cut, and their numbers of paths are
//! added; ranges that touch and are shown by the same number of paths become one. So there is at most one range for
//! each bound. Pure. May use: ranges of keys.

use bytes::Bytes;

use crate::{key::Span, node::ranged::Ranged};

/// Up to so many ranges are not merged.
const FEW_RANGES: usize = 8;

/// A range of keys, and the number of paths that show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShownSpan {
    pub span: Span,
    pub times: u64,
}

impl Ranged for ShownSpan {
    fn span(&self) -> &Span {
        &self.span
    }

    fn clipped(&self, span: &Span) -> Option<Self> {
        Some(Self { span: self.span.intersect(span)?, times: self.times })
    }
}

/// The ranges that the paths show that were added so far.
#[derive(Debug, Default)]
pub(super) struct PathSpans {
    parts: Vec<ShownSpan>,
    /// The number of ranges after they were merged last.
    left: usize,
}

impl PathSpans {
    /// Adds a range that so many paths show. Cost: O(log n), amortised, for n ranges after merging.
    pub fn add(&mut self, span: Span, times: u64) {
        if span.is_empty() {
            return;
        }
        self.parts.push(ShownSpan { span, times });
        if self.parts.len() > 2 * self.left.max(FEW_RANGES) {
            self.parts = together(std::mem::take(&mut self.parts));
            self.left = self.parts.len();
        }
    }

    /// The ranges, ascending and apart, with the number of paths that show each.
    pub fn counted(self) -> Vec<ShownSpan> {
        together(self.parts)
    }

    /// The ranges that any path shows, ascending and apart.
    pub fn any(self) -> Vec<Span> {
        let once = self.parts.into_iter().map(|part| ShownSpan { times: 1, ..part });
        // Each range counts once here, but ranges that were shown by different numbers of paths may touch.
        let mut spans: Vec<Span> = Vec::new();
        for part in together(once.collect()) {
            match spans.last_mut() {
                Some(last) if last.hi.as_ref() == Some(&part.span.lo) => last.hi = part.span.hi,
                _ => spans.push(part.span),
            }
        }
        spans
    }
}

/// Merges ranges to ascending ones that do not overlap. If two of these touch, different numbers of paths show them.
fn together(parts: Vec<ShownSpan>) -> Vec<ShownSpan> {
    // The bounds of ranges, and how many paths more or fewer show the keys behind each.
    let mut bounds: Vec<(Bytes, i128)> = Vec::with_capacity(2 * parts.len());
    for ShownSpan { span, times } in parts {
        bounds.push((span.lo, times.into()));
        bounds.extend(span.hi.map(|hi| (hi, -i128::from(times))));
    }
    bounds.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    let mut apart: Vec<ShownSpan> = Vec::new();
    let (mut begun, mut shown): (Option<Bytes>, i128) = (None, 0);
    let number = |shown: i128| u64::try_from(shown).unwrap_or(u64::MAX);
    for here in bounds.chunk_by(|(a, _), (b, _)| a == b) {
        let Some((at, _)) = here.first() else { continue };
        let next = here.iter().fold(shown, |shown, (_, change)| shown + change);
        if next == shown {
            continue;
        }
        if let Some(lo) = begun.take() {
            apart.push(ShownSpan { span: Span::new(lo, Some(at.clone())), times: number(shown) });
        }
        begun = (next > 0).then(|| at.clone());
        shown = next;
    }
    apart.extend(begun.map(|lo| ShownSpan { span: Span::new(lo, None), times: number(shown) }));
    apart
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
        fn each_key_is_shown_by_as_many_paths_as_were_added(
            added in prop::collection::vec((span(), 1u64..4), 0..60),
            keys in prop::collection::vec(small_key(), 8),
        ) {
            let (mut counted, mut any) = (PathSpans::default(), PathSpans::default());
            for (span, times) in &added {
                counted.add(span.clone(), *times);
                any.add(span.clone(), *times);
            }
            let (counted, any) = (counted.counted(), any.any());
            for key in &keys {
                let times: u64 = added.iter().filter(|(span, _)| span.contains(key)).map(|(_, times)| times).sum();
                let found: Vec<u64> =
                    counted.iter().filter(|part| part.span.contains(key)).map(|part| part.times).collect();
                prop_assert_eq!(found.iter().sum::<u64>(), times);
                prop_assert!(found.len() <= 1);
                prop_assert_eq!(any.iter().filter(|span| span.contains(key)).count(), usize::from(times > 0));
            }
            prop_assert!(any.windows(2).all(|w| w[0].hi.as_ref().is_some_and(|hi| *hi < w[1].lo)));
            prop_assert!(counted.iter().all(|part| part.times > 0 && !part.span.is_empty()));
        }
    }

    /// Many equal ranges take no more memory than one, and their number may pass what can be counted.
    #[test]
    fn equal_ranges_are_one() {
        let mut paths = PathSpans::default();
        for _ in 0..100_000 {
            paths.add(Span::all(), u64::MAX / 2);
            assert!(paths.parts.len() <= 2 * FEW_RANGES + 1);
        }
        assert_eq!(paths.counted(), [ShownSpan { span: Span::all(), times: u64::MAX }]);
    }
}
