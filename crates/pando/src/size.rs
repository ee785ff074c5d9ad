//! Sizes as people write them: `4G`, `512K`, `1.5 GiB`, `10MB`.
//!
//! A bare letter and the `iB` form mean powers of 1024, the `B` form powers
//! of 1000. Printing uses powers of 1024 and says so.

use std::str::FromStr;

/// A number of bytes given on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [(&str, u32); 7] = [("", 0), ("K", 1), ("M", 2), ("G", 3), ("T", 4), ("P", 5), ("E", 6)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a size; write it like 4096, 512K, 64M or 1.5G");
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = unit.trim().to_ascii_uppercase();
        let (letter, base) = match unit.strip_suffix("IB") {
            Some(letter) if !letter.is_empty() => (letter, 1024u64),
            _ => match unit.strip_suffix('B') {
                Some(letter) => (letter, 1000),
                None => (unit.as_str(), 1024),
            },
        };
        let power = UNITS.iter().find(|(u, _)| *u == letter).ok_or_else(wrong)?.1;
        let factor = base.pow(power);
        let bytes = match number.split_once('.') {
            None => number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)),
            Some((whole, fraction)) => {
                let digits =
                    u32::try_from(fraction.len()).ok().filter(|d| (1..=9).contains(d)).ok_or_else(wrong)?;
                let whole: u128 = whole.parse().map_err(|_| wrong())?;
                let part: u128 = fraction.parse().map_err(|_| wrong())?;
                let scale = 10u128.pow(digits);
                u64::try_from((whole * scale + part) * u128::from(factor) / scale).ok()
            }
        };
        bytes.map(Size).ok_or_else(wrong)
    }
}

/// `bytes` for people: `1.5 GiB`.
pub fn show(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, power)| bytes >> (10 * power) > 0).unwrap_or(&UNITS[0]);
    match unit.1 {
        0 => format!("{bytes} B"),
        power => format!("{:.1} {}iB", bytes as f64 / (1u64 << (10 * power)) as f64, unit.0),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("4G", 4 << 30),
            ("4 GiB", 4 << 30),
            ("10MB", 10_000_000),
            ("12B", 12),
            ("1.5G", 3 << 29),
            ("0.5K", 512),
            ("15E", 15 << 60),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in ["", "G", "-1", "4X", "16E", "1.G", "1.2.3K", "4G!", "0x10", "iB", "99999999999999999999"]
        {
            assert!(text.parse::<Size>().unwrap_err().contains("512K"), "{text}");
        }
    }

    #[test]
    fn sizes_are_printed_in_the_largest_unit_that_fits() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(1023), "1023 B");
        assert_eq!(show(1536), "1.5 KiB");
        assert_eq!(show(4 << 30), "4.0 GiB");
        assert_eq!(show(u64::MAX), "16.0 EiB");
    }
}
