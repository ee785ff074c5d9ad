//! Text that looks like source code to a compressor.
//!
//! Lines are made of a vocabulary in which few words are frequent, with
//! indentation and repeated forms. LZ4 makes it 0.39 to 0.45 as large, zstd a
//! quarter; C is somewhat smaller still.

use pando_bench_common::Random;

/// A line that stands in text only where somebody has put it.
pub const NEEDLE: &str = "pando_bench_needle";

const WORDS: usize = 4096;
const FORMS: [&[u8]; 16] = [
    b"@ = @(@, @);\n",
    b"if (@ < @)\n",
    b"return @;\n",
    b"@->@ = @;\n",
    b"struct @ *@ = @->@;\n",
    b"for (i = 0; i < @; i++) {\n",
    b"}\n",
    b"/* @ @ of the @ @ when @ is @ */\n",
    b"static int @(struct @ *@, unsigned long @)\n",
    b"{\n",
    b"#define @ (@ << 4)\n",
    b"\n",
    b"if (!@ || @->@ == @) {\n",
    b"@(&@->@);\n",
    b"goto @;\n",
    b"case @:\n",
];
const SYLLABLES: [&str; 32] = [
    "al", "buf", "con", "dev", "en", "fil", "get", "hash", "in", "jour", "key", "len", "map", "node", "off",
    "page", "que", "read", "set", "tab", "un", "val", "work", "ex", "list", "ker", "lock", "mem", "ops",
    "put", "ref", "sys",
];

/// A maker of text.
pub struct Text {
    words: Vec<String>,
}

impl Text {
    /// With a vocabulary that is always the same.
    pub fn new() -> Self {
        let mut random = Random::new(0x7e87);
        let mut syllable = || SYLLABLES[random.below(SYLLABLES.len() as u64) as usize];
        let words = (0..WORDS)
            .map(|n| {
                let mut word = String::from(syllable());
                for part in 0..1 + n % 3 {
                    if part % 2 == 1 {
                        word.push('_');
                    }
                    word.push_str(syllable());
                }
                word
            })
            .collect();
        Self { words }
    }

    /// `len` bytes of text of this seed, which ends with a line.
    pub fn make(&self, seed: u64, len: usize) -> Vec<u8> {
        let mut random = Random::new(seed);
        let mut out = Vec::with_capacity(len + 256);
        // A file speaks mostly of its own things.
        let own = random.below(WORDS as u64 - 64);
        while out.len() < len {
            let bits = random.bits();
            let depth = (bits & 3) as usize;
            out.extend_from_slice(&b"\t\t\t"[..depth]);
            for &byte in FORMS[(bits >> 2) as usize % FORMS.len()] {
                if byte == b'@' {
                    let bits = random.bits();
                    // Three of four words are its own, and of all words the first are the most frequent.
                    let word = if bits & 3 != 0 {
                        own + ((bits >> 8) & 31) * ((bits >> 16) & 31) / 16
                    } else {
                        ((bits >> 8) & 4095) * ((bits >> 24) & 4095) / 4096
                    };
                    out.extend_from_slice(self.words[word as usize].as_bytes());
                } else {
                    out.push(byte);
                }
            }
        }
        out.truncate(len);
        if let Some(last) = out.last_mut() {
            *last = b'\n';
        }
        out
    }

    /// Text with [`NEEDLE`] in `count` places, each in a line of its own.
    pub fn with_needles(&self, seed: u64, len: usize, count: usize) -> Vec<u8> {
        let mut text = self.make(seed, len);
        let line = format!("\n{NEEDLE}\n");
        let step = len / count.max(1);
        for number in 0..count {
            let at = number * step;
            if let Some(place) = text.get_mut(at..at + line.len()) {
                place.copy_from_slice(line.as_bytes());
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_a_function_of_its_seed_and_ends_with_a_line() {
        let text = Text::new();
        assert_eq!(text.make(1, 5000), Text::new().make(1, 5000));
        assert_ne!(text.make(1, 5000), text.make(2, 5000));
        assert!(text.make(1, 77).ends_with(b"\n"));
        assert_eq!(text.make(3, 0).len(), 0);
    }

    #[test]
    fn needles_are_where_they_were_put_and_nowhere_else() {
        let text = Text::new().with_needles(5, 10_000, 4);
        assert_eq!(text.len(), 10_000);
        assert_eq!(String::from_utf8(text).unwrap().matches(NEEDLE).count(), 4);
    }
}
