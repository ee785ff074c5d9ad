//! Keys, values and random numbers: the same for every engine and every run.
//!
//! A key has 16 bytes: one that names the tree it belongs to, and a number in
//! 15 hexadecimal digits, so that every prefix that ends on a digit holds a
//! known number of keys. Values are random bytes, which nothing compresses.

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

/// A small, fast generator with a seed (SplitMix64).
pub struct Random(u64);

impl Random {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.bits().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
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
