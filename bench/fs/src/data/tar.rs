//! Writes archives that `tar` unpacks (ustar): files and directories, nothing else.

use std::io::{Result, Write};

const BLOCK: usize = 512;
/// A day in 2020: files do not change with the day of the run.
const MTIME_SECONDS: u64 = 1_600_000_000;

/// An archive that is being written.
pub struct Tar<W: Write> {
    out: W,
}

impl<W: Write> Tar<W> {
    /// Begins an archive.
    pub fn new(out: W) -> Self {
        Self { out }
    }

    /// Adds a directory.
    pub fn directory(&mut self, path: &str) -> Result<()> {
        self.header(&format!("{path}/"), 0o755, 0, b'5')
    }

    /// Adds a file.
    pub fn file(&mut self, path: &str, data: &[u8]) -> Result<()> {
        self.header(path, 0o644, data.len(), b'0')?;
        self.out.write_all(data)?;
        let padding = data.len().next_multiple_of(BLOCK) - data.len();
        self.out.write_all(&[0; BLOCK][..padding])
    }

    /// Ends the archive.
    pub fn end(mut self) -> Result<()> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()
    }

    fn header(&mut self, path: &str, mode: u32, len: usize, kind: u8) -> Result<()> {
        // Longer names would need another form of the header.
        if path.len() > 100 {
            return Err(std::io::Error::other(format!("{path} is too long for an archive")));
        }
        let mut block = [0; BLOCK];
        let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, path);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{len:011o}"));
        put(136, &format!("{MTIME_SECONDS:011o}"));
        // The sum counts its own field as spaces.
        put(148, "        ");
        put(257, "ustar\x0000");
        block[156] = kind;
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.out.write_all(&block)
    }
}
