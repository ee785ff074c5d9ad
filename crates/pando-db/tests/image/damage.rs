//! Damage to an image, from one seed.

use super::{BLOCK, Image, Kind, Part};
use crate::model::rng::Rng;

/// Does one to four kinds of damage; what was done, for people.
pub fn damage(image: &mut Image, rng: &mut Rng) -> String {
    let count = *rng.pick(&[1, 1, 1, 2, 4]);
    let done: Vec<String> = (0..count).map(|_| one(image, rng)).collect();
    done.join(", ")
}

fn one(image: &mut Image, rng: &mut Rng) -> String {
    // Parts of each kind are hit equally often, however many there are.
    let kind = *rng.pick(&[
        Kind::Superblock,
        Kind::Record,
        Kind::Record,
        Kind::Footer,
        Kind::TablePage,
        Kind::Header,
        Kind::Header,
        Kind::Page,
    ]);
    let of_kind: Vec<Part> = image.parts.iter().filter(|part| part.kind == kind).copied().collect();
    let Some(&part) = (!of_kind.is_empty()).then(|| rng.pick(&of_kind)) else { return "nothing".into() };
    let other = *rng.pick(&image.parts.clone());
    let within = rng.below(part.len as u64) as usize;
    let at = part.from + within;
    let bytes = &mut image.bytes;
    let what = match rng.below(10) {
        0 | 1 => {
            bytes[at] ^= 1 << rng.below(8);
            "a bit"
        }
        2 | 3 => {
            bytes[at] = *rng.pick(&[0, 1, 2, 0x7f, 0x80, 0xfe, 0xff]);
            "a byte"
        }
        4 => {
            let value = *rng.pick(&[0, 1, u32::MAX, u32::MAX / 2, 1 << 31, 4096, 1 << 24]);
            put(bytes, at, &value.to_le_bytes());
            "a u32"
        }
        5 => {
            let size = bytes.len() as u64;
            let value = *rng.pick(&[0, 1, u64::MAX, u64::MAX / 2, 1 << 63, size, size - 4096, 4096, 1 << 40]);
            put(bytes, at, &value.to_le_bytes());
            "a u64"
        }
        6 => {
            let len = rng.below((part.len - within) as u64 + 1) as usize;
            bytes[at..at + len].fill(0);
            "zeros"
        }
        7 => {
            let len = rng.below(200).min((part.len - within) as u64) as usize;
            bytes[at..at + len].iter_mut().for_each(|byte| *byte = rng.next() as u8);
            "noise"
        }
        8 => {
            let len = part.len.min(other.len);
            bytes.copy_within(other.from..other.from + len, part.from);
            "another part"
        }
        _ => {
            // Bytes go missing in the middle, what follows moves up.
            let gap = rng.between(1, 9).min((part.len - within) as u64) as usize;
            bytes.copy_within(at + gap..part.from + part.len, at);
            "a gap"
        }
    };
    format!("{what} in {kind:?} at byte {at}")
}

/// Damage that is not to any part but to the medium: lost, swapped and cut blocks.
pub fn damage_blocks(image: &mut Image, rng: &mut Rng) -> String {
    let blocks = image.bytes.len() / BLOCK;
    let used: Vec<usize> = (0..blocks)
        .filter(|b| image.bytes[b * BLOCK..(b + 1) * BLOCK].iter().any(|byte| *byte != 0))
        .collect();
    let (a, b) = (*rng.pick(&used) * BLOCK, *rng.pick(&used) * BLOCK);
    match rng.below(5) {
        0 => {
            image.bytes[a..a + BLOCK].fill(0);
            format!("block {a} zeroed")
        }
        1 => {
            image.bytes.copy_within(a..a + BLOCK, b);
            format!("block {a} over {b}")
        }
        2 => {
            for i in 0..BLOCK {
                image.bytes.swap(a + i, b + i);
            }
            format!("blocks {a} and {b} swapped")
        }
        3 => {
            let at = a + rng.below(BLOCK as u64) as usize;
            let len = rng.below((image.bytes.len() - at) as u64) as usize;
            image.bytes[at..at + len].fill(0);
            format!("{len} bytes zeroed from {at}")
        }
        _ => {
            let len = *rng.pick(&[0, a, a + 1, a + BLOCK / 2, image.bytes.len() - 1]);
            image.bytes.truncate(len);
            format!("cut to {len} bytes")
        }
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (byte, value) in bytes[at..].iter_mut().zip(value) {
        *byte = *value;
    }
}
