//! Sets of keys as ranges.

use bytes::Bytes;

use super::Span;

/// Ranges that neither overlap nor touch, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Spans(Vec<Span>);

impl Spans {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the keys of `span`.
    pub fn insert(&mut self, mut span: Span) {
        if span.is_empty() {
            return;
        }
        let (from, to) = self.meeting(&span);
        if let Some([first, ..]) = self.0.get(from..to) {
            span.lo = span.lo.min(first.lo.clone());
        }
        if let Some([.., last]) = self.0.get(from..to)
            && span.hi.as_ref().is_some_and(|hi| last.is_above(hi))
        {
            span.hi = last.hi.clone();
        }
        self.0.splice(from..to, [span]);
    }

    /// Takes the keys of `span` out.
    pub fn remove(&mut self, span: &Span) {
        let (from, to) = self.meeting(span);
        let met = self.0.get(from..to).unwrap_or_default();
        let left: Vec<Span> = met.iter().flat_map(|part| part.without_all([span])).collect();
        self.0.splice(from..to, left);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Span> {
        self.0.iter()
    }

    /// Takes the highest range out.
    pub fn pop(&mut self) {
        self.0.pop();
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.at_or_below(key).is_some_and(|part| part.is_above(key))
    }

    /// True if `key` is not in the set, and next to a range that is.
    pub fn is_beside(&self, key: &[u8]) -> bool {
        let above = self.0.partition_point(|part| *part.lo <= *key);
        let follows =
            |part: &Span| part.lo.split_last().is_some_and(|(last, head)| *last == 0 && head == key);
        let ends = |part: &Span| part.hi.as_ref().is_some_and(|hi| *hi == *key);
        self.0.get(above).is_some_and(follows) && !self.contains(key)
            || above.checked_sub(1).and_then(|i| self.0.get(i)).is_some_and(ends)
    }

    /// `range` without what lies in the set at its two ends; `None` if nothing is left.
    pub fn shorten(&self, range: &Span) -> Option<Span> {
        let mut rest = range.clone();
        if let Some(first) = self.at_or_below(&rest.lo)
            && first.contains(&rest.lo)
        {
            rest.lo = first.hi.clone()?;
        }
        let last = match &rest.hi {
            Some(hi) => self.0.get(self.0.partition_point(|part| part.lo < *hi).wrapping_sub(1)),
            None => self.0.last(),
        };
        if let Some(last) = last
            && match (&last.hi, &rest.hi) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(end), Some(hi)) => end >= hi,
            }
        {
            rest.hi = Some(last.lo.clone());
        }
        (!rest.is_empty()).then_some(rest)
    }

    fn at_or_below(&self, key: &[u8]) -> Option<&Span> {
        self.0.get(self.0.partition_point(|part| *part.lo <= *key).checked_sub(1)?)
    }

    /// The ranges that overlap or touch `span`: from and to which.
    fn meeting(&self, span: &Span) -> (usize, usize) {
        let from = self.0.partition_point(|part| part.hi.as_ref().is_some_and(|hi| *hi < span.lo));
        let to = self.0.partition_point(|part| span.hi.as_ref().is_none_or(|hi| part.lo <= *hi));
        (from, to.max(from))
    }
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
    use super::super::tests::small_key;
    use super::*;
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
            let holds = |spans: &Spans, key: &[u8]| spans.0.iter().any(|part| part.contains(key));
            let mut oracle = vec![false; keys.len()];
            for (put, span) in &steps {
                for key in &keys {
                    let beside = |s: &Span| s.hi.as_ref() == Some(key) || s.lo == behind(key);
                    prop_assert_eq!(spans.is_beside(key), !holds(&spans, key) && spans.0.iter().any(beside));
                    prop_assert_eq!(spans.contains(key), holds(&spans, key));
                }
                if *put { spans.insert(span.clone()) } else { spans.remove(span) }
                for (key, held) in keys.iter().zip(&mut oracle) {
                    if span.contains(key) { *held = *put }
                    prop_assert_eq!(holds(&spans, key), *held, "{:?} in {:?}", key, spans);
                }
                prop_assert!(spans.0.iter().all(|s| !s.is_empty()));
                prop_assert!(spans.0.windows(2).all(|w| w[0].hi.as_ref().is_some_and(|hi| *hi < w[1].lo)));
            }
            let short = spans.shorten(&range);
            for key in keys.iter().filter(|key| range.contains(key)) {
                let left = short.as_ref().is_some_and(|s| s.contains(key));
                prop_assert!(left || holds(&spans, key), "{:?} was lost of {:?}", key, range);
            }
            if let Some(short) = &short {
                prop_assert!(range.covers(short) && !holds(&spans, &short.lo));
                prop_assert!(short.hi.is_some() || spans.0.last().is_none_or(|s| s.hi.is_some()));
            }
        }
    }
}
