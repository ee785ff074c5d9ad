//! Sets of keys as ranges.

use std::ops::Bound::{Excluded, Included, Unbounded};

use bytes::Bytes;
use imbl::OrdMap;

use crate::key::Span;

/// Ranges that neither overlap nor touch, by where they begin. Cloning is O(1), all else logarithmic in their
/// number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spans(OrdMap<Bytes, Option<Bytes>>);

impl Spans {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the keys of `span`.
    pub fn insert(&mut self, mut span: Span) {
        if span.is_empty() {
            return;
        }
        for met in self.meeting(&span) {
            self.0.remove(&met.lo);
            if met.lo < span.lo {
                span.lo = met.lo.clone();
            }
            if span.hi.as_ref().is_some_and(|hi| met.is_above(hi)) {
                span.hi = met.hi;
            }
        }
        self.0.insert(span.lo, span.hi);
    }

    /// Takes the keys of `span` out.
    pub fn remove(&mut self, span: &Span) {
        for met in self.meeting(span) {
            self.0.remove(&met.lo);
            self.0.extend(met.without_all([span]).into_iter().map(|left| (left.lo, left.hi)));
        }
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Span> {
        self.0.iter().map(whole)
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.at_or_below(key).is_some_and(|part| part.is_above(key))
    }

    /// True if every key of `span` is in the set.
    pub fn covers(&self, span: &Span) -> bool {
        self.at_or_below(&span.lo).is_some_and(|part| part.covers(span))
    }

    /// True if `key` is not in the set, and next to a range that is.
    pub fn is_beside(&self, key: &[u8]) -> bool {
        match self.at_or_below(key) {
            Some(below) if below.is_above(key) => false,
            Some(below) if below.hi.as_ref().is_some_and(|hi| *hi == *key) => true,
            _ => self.0.contains_key(&behind(key)),
        }
    }

    /// `range` without what lies in the set at its two ends; `None` if nothing is left.
    pub fn shorten(&self, range: &Span) -> Option<Span> {
        let mut rest = range.clone();
        if let Some(first) = self.at_or_below(&rest.lo)
            && first.contains(&rest.lo)
        {
            rest.lo = first.hi?;
        }
        let last = match &rest.hi {
            Some(hi) => self.0.range::<_, [u8]>((Unbounded, Excluded(&**hi))).next_back(),
            None => self.0.iter().next_back(),
        };
        if let Some(last) = last.map(whole)
            && match (&last.hi, &rest.hi) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(end), Some(hi)) => end >= hi,
            }
        {
            rest.hi = Some(last.lo);
        }
        (!rest.is_empty()).then_some(rest)
    }

    fn at_or_below(&self, key: &[u8]) -> Option<Span> {
        self.0.range::<_, [u8]>((Unbounded, Included(key))).next_back().map(whole)
    }

    /// The ranges that overlap or touch `span`.
    fn meeting(&self, span: &Span) -> Vec<Span> {
        let touches = |below: &Span| below.hi.as_ref().is_none_or(|hi| *hi >= span.lo);
        let to = span.hi.as_ref().map_or(Unbounded, |hi| Included(&**hi));
        let above = self.0.range::<_, [u8]>((Excluded(&*span.lo), to)).map(whole);
        self.at_or_below(&span.lo).filter(touches).into_iter().chain(above).collect()
    }
}

fn whole((lo, hi): (&Bytes, &Option<Bytes>)) -> Span {
    Span { lo: lo.clone(), hi: hi.clone() }
}

impl Span {
    /// One key. It has memory of its own.
    pub fn key(key: &[u8]) -> Self {
        Span { lo: Bytes::copy_from_slice(key), hi: Some(behind(key)) }
    }
}

/// The least key above `key`.
pub(crate) fn behind(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::tests::small_key;
    use proptest::prelude::*;

    fn span() -> impl Strategy<Value = Span> {
        let any = (small_key(), prop::option::of(small_key())).prop_map(|(lo, hi)| Span { lo, hi });
        prop_oneof![any.prop_filter("empty", |s| !s.is_empty()), small_key().prop_map(|key| Span::key(&key))]
    }

    proptest! {
        #[test]
        fn a_set_holds_what_was_put_in_and_not_taken_out(
            steps in prop::collection::vec((any::<bool>(), span()), 1..12),
            range in span(), keys in prop::collection::vec(small_key(), 8),
        ) {
            let mut spans = Spans::default();
            let holds = |spans: &Spans, key: &[u8]| spans.iter().any(|part| part.contains(key));
            let mut oracle = vec![false; keys.len()];
            for (put, span) in &steps {
                for key in &keys {
                    let beside = |s: Span| s.hi.as_ref() == Some(key) || s.lo == behind(key);
                    prop_assert_eq!(spans.is_beside(key), !holds(&spans, key) && spans.iter().any(beside));
                    prop_assert_eq!(spans.contains(key), holds(&spans, key));
                }
                prop_assert_eq!(spans.covers(span), spans.iter().any(|part| part.covers(span)));
                if *put { spans.insert(span.clone()) } else { spans.remove(span) }
                for (key, held) in keys.iter().zip(&mut oracle) {
                    if span.contains(key) { *held = *put }
                    prop_assert_eq!(holds(&spans, key), *held, "{:?} in {:?}", key, spans);
                }
                let parts: Vec<_> = spans.iter().collect();
                prop_assert!(parts.iter().all(|s| !s.is_empty()));
                prop_assert!(parts.windows(2).all(|w| w[0].hi.as_ref().is_some_and(|hi| *hi < w[1].lo)));
            }
            let short = spans.shorten(&range);
            for key in keys.iter().filter(|key| range.contains(key)) {
                let left = short.as_ref().is_some_and(|s| s.contains(key));
                prop_assert!(left || holds(&spans, key), "{:?} was lost of {:?}", key, range);
            }
            if let Some(short) = &short {
                prop_assert!(range.covers(short) && !holds(&spans, &short.lo));
                prop_assert!(short.hi.is_some() || spans.iter().last().is_none_or(|s| s.hi.is_some()));
            }
        }
    }
}
