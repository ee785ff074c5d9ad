//! Lenses: maps between two key spaces that remove one prefix and add another.
//!
//! An edge with live range `[lo, hi)` and translation prefix `prepend` maps a
//! key `k` of the parent to `prepend + k[strip..]` in the child, where `strip`
//! is the length of `rcp(lo, hi)` (FAST'20 section 3, "lifting" and
//! "translation prefixes"). That is the lens with `strip = rcp(lo, hi)` and
//! `prepend`. A path is the composition of its edges, again a lens.

use bytes::Bytes;

use crate::key::{Span, join, successor};

/// Maps every key that begins with `strip` to the same key with `strip` replaced by `prepend`.
/// Keeps order. Keys that do not begin with `strip` are outside its domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lens {
    pub strip: Bytes,
    pub prepend: Bytes,
}

impl Lens {
    /// Changes nothing.
    pub fn identity() -> Self {
        Self { strip: Bytes::new(), prepend: Bytes::new() }
    }

    /// Replaces `strip` by `prepend`.
    pub fn new(strip: Bytes, prepend: Bytes) -> Self {
        Self { strip, prepend }
    }

    /// The map of an edge (or Goto) over `live` with translation prefix `prepend`.
    pub fn of_edge(live: &Span, prepend: &Bytes) -> Self {
        Self { strip: live.common_prefix(), prepend: prepend.clone() }
    }

    /// The image of `key`, which must begin with `strip`.
    pub fn apply(&self, key: &[u8]) -> Bytes {
        assert!(key.starts_with(&self.strip), "key outside the domain of its edge");
        join(&self.prepend, &key[self.strip.len()..])
    }

    /// Like [`Lens::apply`], sharing the memory of `key` where nothing is put on.
    pub fn apply_shared(&self, key: &Bytes) -> Bytes {
        assert!(key.starts_with(&self.strip), "key outside the domain of its edge");
        if self.prepend.is_empty() { key.slice(self.strip.len()..) } else { self.apply(key) }
    }

    /// The key whose image is `local`, which must begin with `prepend`.
    pub fn invert(&self, local: &[u8]) -> Bytes {
        assert!(local.starts_with(&self.prepend), "key outside the image of its edge");
        join(&self.strip, &local[self.prepend.len()..])
    }

    /// Like [`Lens::invert`], sharing the memory of `local` where nothing is put on.
    pub fn invert_shared(&self, local: &Bytes) -> Bytes {
        assert!(local.starts_with(&self.prepend), "key outside the image of its edge");
        if self.strip.is_empty() { local.slice(self.prepend.len()..) } else { self.invert(local) }
    }

    /// The image of a range whose keys all begin with `strip`.
    pub fn apply_span(&self, span: &Span) -> Span {
        let hi = span.hi.as_ref().and_then(|hi| {
            // An upper bound that does not begin with `strip` is its successor or beyond.
            if hi.starts_with(&self.strip) { Some(self.apply_shared(hi)) } else { successor(&self.prepend) }
        });
        let hi = if span.hi.is_none() { successor(&self.prepend) } else { hi };
        Span { lo: self.apply_shared(&span.lo), hi }
    }

    /// The same map with the largest domain: `strip` and `prepend` without their common suffix. If two lenses map one
    /// key alike, they map all keys of both domains alike, and their shortest forms are equal.
    pub fn shortest(&self) -> Lens {
        let same = self.strip.iter().rev().zip(self.prepend.iter().rev()).take_while(|(a, b)| a == b).count();
        Lens {
            strip: self.strip.slice(..self.strip.len() - same),
            prepend: self.prepend.slice(..self.prepend.len() - same),
        }
    }

    /// The map in the other direction.
    pub fn inverse(&self) -> Lens {
        Lens { strip: self.prepend.clone(), prepend: self.strip.clone() }
    }

    /// This map followed by `next`: the lens of a path of two edges. Its domain is the keys that
    /// pass both, so `strip` may grow.
    pub fn then(&self, next: &Lens) -> Lens {
        match next.strip.strip_prefix(&self.prepend[..]) {
            // The second edge strips all that the first put on, and more of the key itself.
            Some(more) => Lens { strip: join(&self.strip, more), prepend: next.prepend.clone() },
            None => {
                assert!(self.prepend.starts_with(&next.strip), "edges do not compose");
                Lens {
                    strip: self.strip.clone(),
                    prepend: join(&next.prepend, &self.prepend[next.strip.len()..]),
                }
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
            strip in small_key(), prepend in small_key(),
            a in small_key(), b in prop::option::of(small_key()), k in small_key(),
        ) {
            let lens = Lens::new(strip.clone(), prepend.clone());
            let Some(span) = Span::new(a, b).intersect(&Span::prefix(strip)) else { return Ok(()) };
            let image = lens.apply_span(&span);
            let local = join(&prepend, &k);
            prop_assert_eq!(image.contains(&local), span.contains(&lens.invert(&local)));
            if image.contains(&k) { prop_assert!(k.starts_with(&prepend)) }
        }

        #[test]
        fn lenses_that_map_a_key_alike_are_equal_when_shortest(
            h1 in small_key(), p1 in small_key(), cut in 0..4usize, k in small_key(), tail in small_key(),
        ) {
            let wide = Lens::new(h1.clone(), p1.clone());
            let more = k.slice(..cut.min(k.len()));
            let narrow = Lens::new(join(&h1, &more), join(&p1, &more));
            prop_assert_eq!(wide.shortest(), narrow.shortest());
            let key = join(&narrow.strip, &tail);
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
            prop_assert_eq!(k.starts_with(&both.strip), through);
            if through {
                prop_assert_eq!(both.apply(&k), second.apply(&first.apply(&k)));
            }
        }
    }
}
