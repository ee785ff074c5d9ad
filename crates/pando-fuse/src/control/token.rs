//! Tokens: under which the kernel shows what a caller may do, and the names that carry them. Pure.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use pando_fs::RESERVED;

/// Under which the kernel shows the daemon what a caller may do: 128 random bits, which only the
/// daemon and the caller know.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// The token as text.
    pub fn hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The token that a text of [`Token::hex`] stands for.
    pub fn from_hex(text: &[u8]) -> Option<Token> {
        let digit = |b: u8| match b {
            b'0'..=b'9' => Some(b - b'0'),
            b'a'..=b'f' => Some(b - b'a' + 10),
            _ => None,
        };
        let mut token = [0; 16];
        let (pairs, []) = text.as_chunks::<2>() else { return None };
        if pairs.len() != token.len() {
            return None;
        }
        for (byte, [high, low]) in token.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Token(token))
    }

    /// The name of an entry that cannot be made: the attempt to make it shows the daemon that the kernel allows that.
    pub fn name(&self) -> OsString {
        let mut name = RESERVED.to_vec();
        name.extend_from_slice(self.hex().as_bytes());
        OsString::from_vec(name)
    }

    /// The token in a name of [`Token::name`].
    pub fn of_name(name: &OsStr) -> Option<Token> {
        Token::from_hex(name.as_bytes().strip_prefix(RESERVED)?)
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token") // a secret
    }
}
