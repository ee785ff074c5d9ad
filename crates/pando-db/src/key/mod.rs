//! Keys: ordered byte strings, ranges of them, and the maps between the key
//! spaces of a parent and a child.
//!
//! Every traversal, flush, clone and check uses the maps and ranges of this module, and has none of its own. Pure: no
//! I/O, no nodes, and no other module of the crate.

mod direction;
mod lens;
mod longest;
mod span;
mod spans;

pub(crate) use direction::Direction;
pub(crate) use lens::Lens;
pub(crate) use longest::Longest;
pub(crate) use span::{Span, common_prefix_len};
pub(crate) use spans::{Spans, behind};

use bytes::Bytes;

/// The least key above every key that begins with `prefix`; `None` where there is none
/// (an empty prefix, or one of 0xFF bytes only).
pub(crate) fn successor(prefix: &[u8]) -> Option<Bytes> {
    let end = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut next = prefix[..=end].to_vec();
    next[end] += 1;
    Some(next.into())
}

/// The first eight bytes of a key as a number: if `head(a) < head(b)`, then `a < b`.
#[inline]
pub(crate) fn head(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(head) => u64::from_be_bytes(*head),
        None => {
            key.iter().zip((0..8).rev()).fold(0, |head, (&byte, place)| head | u64::from(byte) << (8 * place))
        }
    }
}

/// Length of the longest common prefix of two byte strings.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let words = a.len().min(b.len()) / 8 * 8;
    let mut at = 0;
    while at < words && a[at..at + 8] == b[at..at + 8] {
        at += 8;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(x, y)| x == y).count()
}

/// `a` followed by `b`, sharing memory where one of them is empty.
pub(crate) fn join(a: &Bytes, b: &[u8]) -> Bytes {
    if b.is_empty() {
        return a.clone();
    }
    let mut joined = Vec::with_capacity(a.len() + b.len());
    joined.extend_from_slice(a);
    joined.extend_from_slice(b);
    joined.into()
}

/// Compares `prefix + suffix` with `key` without building it.
pub(crate) fn compare_joined(prefix: &[u8], suffix: &[u8], key: &[u8]) -> std::cmp::Ordering {
    match key.split_at_checked(prefix.len()) {
        Some((head, tail)) => prefix.cmp(head).then_with(|| suffix.cmp(tail)),
        // A key shorter than the prefix differs inside it or lies before it.
        None => prefix.cmp(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn joined_comparison_is_comparison(a in small_key(), b in small_key(), k in small_key()) {
            let joined = [&a[..], &b[..]].concat();
            prop_assert_eq!(compare_joined(&a, &b, &k), joined[..].cmp(&k));
        }

        #[test]
        fn common_prefix_is_longest(a in small_key(), b in small_key()) {
            let n = common_prefix(&a, &b);
            prop_assert_eq!(&a[..n], &b[..n]);
            prop_assert!(a.get(n).is_none() || b.get(n).is_none() || a[n] != b[n]);
        }

        #[test]
        fn heads_never_contradict_keys(a in small_key(), b in small_key(), more in small_key()) {
            let (a, b) = ([&a[..], &more].concat(), [&b[..], &more].concat());
            if a <= b { prop_assert!(head(&a) <= head(&b)) }
        }

        #[test]
        fn successor_is_least_above(p in small_key(), k in small_key()) {
            let above = successor(&p).is_none_or(|s| k < s);
            if k.starts_with(&p) { prop_assert!(above) }
            if k[..] >= p[..] && above { prop_assert!(k.starts_with(&p)) }
        }
    }

    /// Short keys over few byte values, extremes included, so that collisions are common.
    pub(crate) fn small_key() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(prop::sample::select(vec![0u8, 1, 0x61, 0x62, 0xfe, 0xff]), 0..6)
            .prop_map(Bytes::from)
    }
}
