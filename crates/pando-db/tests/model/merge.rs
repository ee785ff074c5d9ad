//! The meaning of upserts in the model test: patches, and what shows mistakes that patches hide.
//!
//! A patch may be applied twice without a trace, and deletes no value. So there
//! are two more operations here: one that changes something each time, and one
//! that deletes, so that whether a later one finds a value is in question.

use bytes::Bytes;
use pando_db::{Merge, PatchMerge};

/// Deletes the value.
pub const DELETE: &[u8] = &[3];
const ADD: u8 = 4;

/// Patches, [`add`] and [`DELETE`].
pub struct ModelMerge;

/// Adds `n` to each byte: does not change the length, and is not the same twice.
pub fn add(n: u8) -> Bytes {
    vec![ADD, n].into()
}

fn sum(first: &[u8], second: &[u8]) -> Option<Bytes> {
    match (first, second) {
        (&[ADD, a], &[ADD, b]) => Some(add(a.wrapping_add(b))),
        _ => None,
    }
}

impl Merge for ModelMerge {
    fn name(&self) -> &'static str {
        "patch"
    }

    fn apply(&self, old: Option<&[u8]>, op: &[u8]) -> Option<Bytes> {
        match op {
            DELETE => None,
            &[ADD, n] => old.map(|old| old.iter().map(|byte| byte.wrapping_add(n)).collect()),
            _ => PatchMerge.apply(old, op),
        }
    }

    fn combine(&self, first: &[u8], second: &[u8]) -> Option<Bytes> {
        match (first, second) {
            (_, DELETE) => Some(Bytes::from_static(DELETE)),
            _ => sum(first, second).or_else(|| PatchMerge.combine(first, second)),
        }
    }

    fn combine_present(&self, first: &[u8], second: &[u8]) -> Option<Bytes> {
        match (first, second) {
            (_, DELETE) | (DELETE, _) => Some(Bytes::from_static(DELETE)),
            _ => sum(first, second).or_else(|| PatchMerge.combine_present(first, second)),
        }
    }
}
