//! What the works write, and how they know again what they read.
//!
//! Everything is a function of a seed. Contenders get the same bytes.

pub mod check;
pub mod content;
pub mod source;
pub mod tar;
pub mod text;

/// Mixes two numbers to a seed for a part of the data.
pub fn mix(a: u64, b: u64) -> u64 {
    pando_bench_common::Random::new(a ^ b.wrapping_mul(0xd6e8_feb8_6659_fd93)).bits()
}
