//! UUIDs as people write them, and new ones.

use std::{fs::File, io::Read};

use anyhow::{Context, Result};

/// A random (version 4) UUID.
pub fn random() -> Result<[u8; 16]> {
    let mut uuid = [0; 16];
    File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut uuid)).context("/dev/urandom")?;
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

/// Parses 32 hexadecimal digits, with any dashes between them. All zeros mean no UUID.
pub fn parse(text: &str) -> Result<[u8; 16], String> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let number = match digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => u128::from_str_radix(&digits, 16).unwrap_or_default(),
        false => 0,
    };
    match number {
        0 => Err("write it like 123e4567-e89b-42d3-a456-426614174000".into()),
        number => Ok(number.to_be_bytes()),
    }
}

/// The usual form, with dashes.
pub fn show(uuid: &[u8; 16]) -> String {
    let n = u128::from_be_bytes(*uuid);
    let (a, b, c, d) = (n >> 96, n >> 80 & 0xffff, n >> 64 & 0xffff, n >> 48 & 0xffff);
    format!("{a:08x}-{b:04x}-{c:04x}-{d:04x}-{:012x}", n & 0xffff_ffff_ffff)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn uuids_come_back_as_they_were() {
        let text = "123e4567-e89b-42d3-a456-426614174000";
        assert_eq!(show(&parse(text).unwrap()), text);
        assert_eq!(parse(&text.replace('-', "").to_uppercase()), parse(text));
        let (one, two) = (random().unwrap(), random().unwrap());
        assert_ne!(one, two);
        assert_eq!((one[6] >> 4, two[8] >> 6), (4, 2));
        assert_eq!(parse(&show(&one)), Ok(one));
        for bad in ["", "123", &text[1..], "+23e4567e89b42d3a456426614174000f", &"0".repeat(32), "g2345"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
