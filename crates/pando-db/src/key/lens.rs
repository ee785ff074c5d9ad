//! The map between two key spaces: one prefix taken off, another put on.
//!
//! An edge with live range `[lo, hi)` and translation prefix `prepend` maps a
//! key `k` of the parent to `prepend + k[strip..]` in the child, where `strip`
//! is the length of `rcp(lo, hi)` (FAST'20 section 3, "lifting" and
//! "translation prefixes"). That is the lens with `head = rcp(lo, hi)` and
//! `pre = prepend`. A path is the composition of its edges, again a lens.

use bytes::Bytes;

use crate::key::{Span, join, successor};

/// Maps every key that begins with `head` to the same key with `head` replaced by `pre`.
/// Keeps order. Keys that do not begin with `head` are outside its domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lens {
    pub head: Bytes,
    pub pre: Bytes,
}

impl Lens {
    /// Changes nothing.
    pub fn identity() -> Self {
        Self { head: Bytes::new(), pre: Bytes::new() }
    }

    /// Replaces `head` by `pre`.
    pub fn new(head: Bytes, pre: Bytes) -> Self {
        Self { head, pre }
    }

    /// The map of an edge (or Goto) over `live` with translation prefix `prepend`.
    pub fn of_edge(live: &Span, prepend: &Bytes) -> Self {
        Self { head: live.common_prefix(), pre: prepend.clone() }
    }

    /// The image of `key`, which must begin with `head`.
    pub fn apply(&self, key: &[u8]) -> Bytes {
        assert!(key.starts_with(&self.head), "key outside the domain of its edge");
        join(&self.pre, &key[self.head.len()..])
    }

    /// Like [`Lens::apply`], sharing the memory of `key` where nothing is put on.
    pub fn apply_shared(&self, key: &Bytes) -> Bytes {
        assert!(key.starts_with(&self.head), "key outside the domain of its edge");
        if self.pre.is_empty() { key.slice(self.head.len()..) } else { self.apply(key) }
    }

    /// The key whose image is `local`, which must begin with `pre`.
    pub fn invert(&self, local: &[u8]) -> Bytes {
        assert!(local.starts_with(&self.pre), "key outside the image of its edge");
        join(&self.head, &local[self.pre.len()..])
    }

    /// Like [`Lens::invert`], sharing the memory of `local` where nothing is put on.
    pub fn invert_shared(&self, local: &Bytes) -> Bytes {
        assert!(local.starts_with(&self.pre), "key outside the image of its edge");
        if self.head.is_empty() { local.slice(self.pre.len()..) } else { self.invert(local) }
    }

    /// The image of a range whose keys all begin with `head`.
    pub fn apply_span(&self, span: &Span) -> Span {
        let hi = span.hi.as_ref().and_then(|hi| {
            // An upper bound that does not begin with `head` is its successor or beyond.
            if hi.starts_with(&self.head) { Some(self.apply_shared(hi)) } else { successor(&self.pre) }
        });
        let hi = if span.hi.is_none() { successor(&self.pre) } else { hi };
        Span { lo: self.apply_shared(&span.lo), hi }
    }

    /// The same map with the largest domain: `head` and `pre` without what both end with. Lenses that map a key
    /// alike map all keys of both domains alike, and are equal so.
    pub fn shortest(&self) -> Lens {
        let same = self.head.iter().rev().zip(self.pre.iter().rev()).take_while(|(a, b)| a == b).count();
        Lens { head: self.head.slice(..self.head.len() - same), pre: self.pre.slice(..self.pre.len() - same) }
    }

    /// The map in the other direction.
    pub fn inverse(&self) -> Lens {
        Lens { head: self.pre.clone(), pre: self.head.clone() }
    }

    /// This map followed by `next`: the lens of a path of two edges. Its domain is the keys that
    /// pass both, so `head` may grow.
    pub fn then(&self, next: &Lens) -> Lens {
        match next.head.strip_prefix(&self.pre[..]) {
            // The second edge strips all that the first put on, and more of the key itself.
            Some(more) => Lens { head: join(&self.head, more), pre: next.pre.clone() },
            None => {
                assert!(self.pre.starts_with(&next.head), "edges do not compose");
                Lens { head: self.head.clone(), pre: join(&next.pre, &self.pre[next.head.len()..]) }
            }
        }
    }

    /// The translation prefix of an edge over `live` after narrowing it to `sub`, a part of it:
    /// `prepend + lo'[strip..strip']`.
    pub fn narrowed_prepend(live: &Span, prepend: &Bytes, sub: &Span) -> Bytes {
        assert!(live.covers(sub) && !sub.is_empty(), "an edge is narrowed to what it does not show");
        let (strip, longer) = (live.common_prefix_len(), sub.common_prefix_len());
        join(prepend, &sub.lo[strip..longer])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::tests::small_key;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn narrowing_changes_no_image(
            lo in small_key(), hi in prop::option::of(small_key()), prepend in small_key(),
            a in small_key(), b in prop::option::of(small_key()), k in small_key(),
        ) {
            let live = Span::new(lo, hi);
            prop_assume!(!live.is_empty());
            let Some(sub) = live.intersect(&Span::new(a, b)) else { return Ok(()) };
            let narrow = Lens::of_edge(&sub, &Lens::narrowed_prepend(&live, &prepend, &sub));
            let wide = Lens::of_edge(&live, &prepend);
            if sub.contains(&k) {
                prop_assert_eq!(wide.apply(&k), narrow.apply(&k));
                prop_assert!(narrow.apply_span(&sub).contains(&narrow.apply(&k)));
                prop_assert_eq!(narrow.invert(&narrow.apply(&k)), k);
            }
            prop_assert_eq!(wide.apply_span(&sub), narrow.apply_span(&sub));
        }

        #[test]
        fn the_image_of_a_range_holds_just_the_images(
            head in small_key(), pre in small_key(),
            a in small_key(), b in prop::option::of(small_key()), k in small_key(),
        ) {
            let lens = Lens::new(head.clone(), pre.clone());
            let Some(span) = Span::new(a, b).intersect(&Span::prefix(head)) else { return Ok(()) };
            let image = lens.apply_span(&span);
            let local = join(&pre, &k);
            prop_assert_eq!(image.contains(&local), span.contains(&lens.invert(&local)));
            if image.contains(&k) { prop_assert!(k.starts_with(&pre)) }
        }

        #[test]
        fn lenses_that_map_a_key_alike_are_equal_when_shortest(
            h1 in small_key(), p1 in small_key(), cut in 0..4usize, k in small_key(), tail in small_key(),
        ) {
            let wide = Lens::new(h1.clone(), p1.clone());
            let more = k.slice(..cut.min(k.len()));
            let narrow = Lens::new(join(&h1, &more), join(&p1, &more));
            prop_assert_eq!(wide.shortest(), narrow.shortest());
            let key = join(&narrow.head, &tail);
            prop_assert_eq!(wide.shortest().apply(&key), narrow.apply(&key));
        }

        #[test]
        fn composition_is_one_after_the_other(
            h1 in small_key(), p1 in small_key(), h2 in small_key(), p2 in small_key(), k in small_key(),
        ) {
            let (first, second) = (Lens::new(h1.clone(), p1.clone()), Lens::new(h2.clone(), p2));
            prop_assume!(h2.starts_with(&p1) || p1.starts_with(&h2));
            let both = first.then(&second);
            let through = k.starts_with(&h1) && first.apply(&k).starts_with(&h2);
            prop_assert_eq!(k.starts_with(&both.head), through);
            if through {
                prop_assert_eq!(both.apply(&k), second.apply(&first.apply(&k)));
            }
        }
    }
}
