//! Reading through cursors: what is asked of one, and what it should have given.

use bytes::Bytes;
use pando_db::{Cursor, Error};

use super::{
    oracle::{self, Pair, World, pair},
    runner::Outcome,
};

/// A cursor that outlives steps, and what it should show.
pub struct HeldCursor {
    pub cursor: Cursor,
    pub worlds: Vec<World>,
    /// What it was made for.
    pub range: Bounds,
    /// What it shows since it was made, or since it sought.
    pub shown: Bounds,
    pub seen: Transcript,
}

/// From a key, and up to another.
pub type Bounds = (Bytes, Option<Bytes>);

/// What a cursor over `range` shows after seeking.
pub fn sought(range: &Bounds, key: &Bytes, back: bool) -> Bounds {
    let (lo, hi) = range.clone();
    if back {
        let hi = hi.map_or(key.clone(), |hi| hi.min(key.clone()));
        (lo, Some(hi))
    } else {
        (lo.max(key.clone()), hi)
    }
}

/// Starts a cursor anew.
pub fn seek(cursor: &mut Cursor, key: &Bytes, back: bool) {
    if back { cursor.seek_back(key) } else { cursor.seek(key) }
}

/// What a cursor gave: from the back or not, and the pair.
pub type Transcript = Vec<(bool, Option<Pair>)>;

/// Takes pairs, each from the end that a bit of `ends` picks; some are lent and copied, others given.
pub fn take_from(cursor: &mut Cursor, ends: u64, take: usize) -> (Transcript, Option<Error>) {
    let mut seen: Transcript = Vec::new();
    for turn in 0..take {
        let back = ends >> (turn % 64) & 1 == 1;
        let lent = (ends ^ turn as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 != 0;
        match take_one(cursor, back, lent) {
            Some(Ok(found)) => {
                // One that does not go on would never end. The comparison will say what is wrong.
                let last =
                    seen.iter().rev().find(|(end, _)| *end == back).and_then(|(_, last)| last.as_ref());
                let stands =
                    last.is_some_and(|last| if back { last.0 <= found.0 } else { last.0 >= found.0 });
                seen.push((back, Some(found)));
                if stands {
                    break;
                }
            }
            Some(Err(error)) => return (seen, Some(error)),
            None => {
                // The end is the end, from either side.
                for back in [back, !back] {
                    match take_one(cursor, back, !lent) {
                        Some(Ok(found)) => seen.push((back, Some(found))),
                        Some(Err(error)) => return (seen, Some(error)),
                        None => seen.push((back, None)),
                    }
                }
                break;
            }
        }
    }
    (seen, None)
}

fn take_one(cursor: &mut Cursor, back: bool, lent: bool) -> Option<pando_db::Result<Pair>> {
    if !lent {
        return if back { cursor.next_back() } else { cursor.next() };
    }
    let found = if back { cursor.next_back_ref() } else { cursor.next_ref() };
    let copied = |(key, value)| (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
    found.map(|found| found.map(copied)).transpose()
}

/// `Ok` if the pairs were given that `world` has in `[lo, hi)`, from the ends that were asked.
pub fn compare_transcript(world: &World, lo: &[u8], hi: Option<&[u8]>, seen: &Transcript) -> Outcome {
    let mut ours = world.range(lo, hi);
    for (back, found) in seen {
        let expected = if *back { ours.next_back() } else { ours.next() };
        let same = match (expected, found) {
            (Some((key, value)), Some((k, v))) => key == k && value == v,
            (None, None) => true,
            _ => false,
        };
        if !same {
            let show = |found: Option<(&Bytes, &Bytes)>| found.map_or("the end".into(), |(k, v)| pair(k, v));
            return Err(format!(
                "scan of [{}, {}) {}: expected {}, got {}",
                oracle::show(lo),
                hi.map_or("infinity".into(), oracle::show),
                if *back { "from the back" } else { "from the front" },
                show(expected),
                show(found.as_ref().map(|(k, v)| (k, v)))
            ));
        }
    }
    Ok(())
}
