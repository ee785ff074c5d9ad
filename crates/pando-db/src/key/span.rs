//! Half-open ranges of keys.

use bytes::Bytes;

use crate::key::{common_prefix, successor};

/// All keys `k` with `lo <= k` and `k < hi`; no `hi` is infinity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    pub lo: Bytes,
    pub hi: Option<Bytes>,
}

impl Span {
    pub fn new(lo: impl Into<Bytes>, hi: Option<Bytes>) -> Self {
        Self { lo: lo.into(), hi }
    }

    /// Every key.
    pub fn all() -> Self {
        Self { lo: Bytes::new(), hi: None }
    }

    /// Every key that begins with `prefix`.
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let lo = prefix.into();
        let hi = successor(&lo);
        Self { lo, hi }
    }

    pub fn is_empty(&self) -> bool {
        self.hi.as_ref().is_some_and(|hi| *hi <= self.lo)
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        *self.lo <= *key && self.is_above(key)
    }

    /// True if `key` lies below the upper bound.
    pub fn is_above(&self, key: &[u8]) -> bool {
        self.hi.as_ref().is_none_or(|hi| *key < **hi)
    }

    /// True if every key of `other` is a key of `self`.
    pub fn covers(&self, other: &Span) -> bool {
        other.is_empty() || (self.lo <= other.lo && le_upper(other.hi.as_ref(), self.hi.as_ref()))
    }

    pub fn overlaps(&self, other: &Span) -> bool {
        self.is_above(&other.lo) && other.is_above(&self.lo) && !self.is_empty() && !other.is_empty()
    }

    /// The keys in both; `None` if there are none.
    pub fn intersect(&self, other: &Span) -> Option<Span> {
        let lo = (&self.lo).max(&other.lo).clone();
        let hi = min_upper(self.hi.as_ref(), other.hi.as_ref()).cloned();
        let both = Span { lo, hi };
        (!both.is_empty()).then_some(both)
    }

    /// What is left of `self` below and above `cut`.
    pub fn without(&self, cut: &Span) -> (Option<Span>, Option<Span>) {
        let below = Span { lo: self.lo.clone(), hi: min_upper(self.hi.as_ref(), Some(&cut.lo)).cloned() };
        let above =
            cut.hi.as_ref().map(|hi| Span { lo: hi.clone().max(self.lo.clone()), hi: self.hi.clone() });
        (Some(below).filter(|s| !s.is_empty()), above.filter(|s| !s.is_empty()))
    }

    /// What is left of `self` without any of `cuts`, ascending. Cost: as sorting those of them that overlap
    /// it.
    pub fn without_all<'a>(&self, cuts: impl IntoIterator<Item = &'a Span>) -> Vec<Span> {
        let mut cuts: Vec<&Span> = cuts.into_iter().filter(|cut| self.overlaps(cut)).collect();
        cuts.sort_by(|a, b| a.lo.cmp(&b.lo));
        let mut left = Vec::new();
        let mut rest = (!self.is_empty()).then(|| self.clone());
        for cut in cuts {
            let Some(part) = rest.take() else { break };
            if !part.overlaps(cut) {
                rest = Some(part);
                continue;
            }
            let (below, above) = part.without(cut);
            left.extend(below);
            rest = above;
        }
        left.extend(rest);
        left
    }

    /// Length of the longest prefix shared by all keys of this non-empty range: `rcp(lo, hi)`
    /// of `docs/invariants.md`. It is always a prefix of `lo`.
    pub fn common_prefix_len(&self) -> usize {
        common_prefix_len(&self.lo, self.hi.as_deref())
    }

    /// The bytes that all keys of this non-empty range begin with.
    pub fn common_prefix(&self) -> Bytes {
        self.lo.slice(..self.common_prefix_len())
    }
}

/// The same for the non-empty range `[lo, hi)`.
pub(crate) fn common_prefix_len(lo: &[u8], hi: Option<&[u8]>) -> usize {
    let Some(hi) = hi else {
        // Only prefixes of 0xFF bytes have no successor.
        return lo.iter().take_while(|&&b| b == 0xff).count();
    };
    let shared = common_prefix(lo, hi);
    match (lo.get(shared), hi.get(shared)) {
        // hi = lo[..=shared] with its last byte one up, and nothing behind: then all keys
        // share that byte too, and as many 0xFF as follow it in lo.
        (Some(&l), Some(&h)) if h == l + 1 && hi.len() == shared + 1 => {
            let mut len = shared + 1;
            while lo.get(len) == Some(&0xff) {
                len += 1;
            }
            len
        }
        _ => shared,
    }
}

/// Orders upper bounds, where `None` is infinity.
fn le_upper(a: Option<&Bytes>, b: Option<&Bytes>) -> bool {
    match (a, b) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(a), Some(b)) => a <= b,
    }
}

fn min_upper<'a>(a: Option<&'a Bytes>, b: Option<&'a Bytes>) -> Option<&'a Bytes> {
    if le_upper(a, b) { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::tests::small_key;
    use proptest::prelude::*;

    fn span() -> impl Strategy<Value = Span> {
        (small_key(), prop::option::of(small_key()))
            .prop_map(|(lo, hi)| Span { lo, hi })
            .prop_filter("empty", |s| !s.is_empty())
    }

    proptest! {
        #[test]
        fn set_operations_agree_with_membership(a in span(), b in span(), k in small_key()) {
            let both = a.intersect(&b);
            prop_assert_eq!(both.is_some(), a.overlaps(&b));
            prop_assert_eq!(both.is_some_and(|s| s.contains(&k)), a.contains(&k) && b.contains(&k));
            let (below, above) = a.without(&b);
            let rest = below.is_some_and(|s| s.contains(&k)) || above.is_some_and(|s| s.contains(&k));
            prop_assert_eq!(rest, a.contains(&k) && !b.contains(&k));
            if a.covers(&b) && b.contains(&k) { prop_assert!(a.contains(&k)) }
        }

        #[test]
        fn what_is_left_of_many_cuts_is_in_none_of_them(
            a in span(), cuts in prop::collection::vec(span(), 0..4), k in small_key(),
        ) {
            let left = a.without_all(&cuts);
            prop_assert!(left.windows(2).all(|w| w[0].hi.as_ref().is_some_and(|hi| *hi <= w[1].lo)));
            let rest = left.iter().any(|part| part.contains(&k));
            prop_assert_eq!(rest, a.contains(&k) && !cuts.iter().any(|cut| cut.contains(&k)));
        }

        #[test]
        fn the_common_prefix_is_shared_and_longest(s in span(), k in small_key()) {
            let p = s.common_prefix();
            prop_assert!(s.lo.starts_with(&p));
            prop_assert!(Span::prefix(p.clone()).covers(&s));
            if s.contains(&k) { prop_assert!(k.starts_with(&p)) }
            if s.lo.len() > p.len() {
                prop_assert!(!Span::prefix(s.lo.slice(..p.len() + 1)).covers(&s), "{:?} {:?}", s, p);
            }
        }
    }
}
