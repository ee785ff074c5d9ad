//! Keys, values and random numbers: the same for every engine and every run.
//!
//! A key has 16 bytes: one that names the tree it belongs to, and a number in
//! 15 hexadecimal digits, so that every prefix that ends on a digit holds a
//! known number of keys. Values are random bytes, which nothing compresses.

pub use pando_bench_common::Random;

/// Length of every key in bytes.
pub const KEY: usize = 16;
/// Length of the values of the data set in bytes.
pub const VALUE: usize = 100;
/// The tree in which the data set lies.
pub const TREE: u8 = b't';

/// A key.
pub type Key = [u8; KEY];

/// The key with this number in `tree`.
pub fn key(tree: u8, number: u64) -> Key {
    let mut key = [tree; KEY];
    for (i, byte) in key.iter_mut().enumerate().skip(1) {
        let digit = (number >> (4 * (KEY - 1 - i))) & 15;
        *byte = b"0123456789abcdef"[digit as usize];
    }
    key
}

/// The prefix of all keys that differ from this one in the last `digits` digits only.
pub fn prefix(tree: u8, number: u64, digits: usize) -> Vec<u8> {
    key(tree, number)[..KEY - digits].to_vec()
}

/// The data set has the even numbers; the odd ones are free for inserts.
pub fn even(index: u64) -> u64 {
    2 * index
}

/// Keys of 16 bytes and values of 100 that make up `bytes` bytes.
pub fn keys_in(bytes: u64) -> u64 {
    (bytes / (KEY + VALUE) as u64).max(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_ascend_with_their_numbers() {
        let mut random = Random::new(1);
        for _ in 0..1000 {
            let (a, b) = (random.below(1 << 40), random.below(1 << 40));
            assert_eq!(a.cmp(&b), key(TREE, a).cmp(&key(TREE, b)));
        }
        assert_eq!(&key(b't', 0x2a), b"t00000000000002a");
    }

    #[test]
    fn a_prefix_covers_a_power_of_sixteen() {
        let prefix = prefix(TREE, 0x1234, 2);
        let under = (0..0x2000).filter(|&n| key(TREE, n).starts_with(&prefix)).count();
        assert_eq!(under, 256);
    }
}
