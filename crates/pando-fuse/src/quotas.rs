//! What is asked about quotas, and what is answered, as bytes.
//!
//! An answer is text, a line for each quota.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

use pando_fs::Quota;

use crate::asked::{escaped, unescaped};

/// Something that is asked about the quotas of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuotaAsked {
    /// Name its own and those below it.
    List,
    /// Limit what the tree takes to so many bytes, or end that.
    Set(Option<u64>),
}

impl QuotaAsked {
    /// Bytes of a question.
    pub const BYTES: usize = 9;

    /// The question as bytes: what it is (0 list, 1 set, 2 end), and a limit (u64).
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (what, limit) = match *self {
            QuotaAsked::List => (0, 0),
            QuotaAsked::Set(Some(limit)) => (1, limit),
            QuotaAsked::Set(None) => (2, 0),
        };
        let mut out = [0; Self::BYTES];
        out[0] = what;
        out[1..].copy_from_slice(&limit.to_le_bytes());
        out
    }

    /// Decodes a request; more bytes may follow it. `None` if the bytes are no request.
    pub fn decode(bytes: &[u8]) -> Option<QuotaAsked> {
        let (what, rest) = bytes.split_first()?;
        let limit = u64::from_le_bytes(*rest.first_chunk()?);
        match (*what, limit) {
            (0, 0) => Some(QuotaAsked::List),
            (1, limit) => Some(QuotaAsked::Set(Some(limit))),
            (2, 0) => Some(QuotaAsked::Set(None)),
            _ => None,
        }
    }
}

/// The error number of a write of pages that the kernel has kept: it tells programs of a full disk as such, and of all
/// else, a quota too, as of a broken one.
pub(crate) fn of_pages(errno: i32) -> i32 {
    if errno == libc::EDQUOT { libc::ENOSPC } else { errno }
}

/// A quota as a line of an answer.
pub(crate) fn line(quota: &Quota) -> String {
    let path = escaped(quota.path.as_os_str().as_bytes());
    format!("{}\t{}\t{}\t{path}\n", quota.limit, quota.used, u8::from(quota.stale))
}

/// The quotas in an answer; `None` if it makes no sense.
pub(crate) fn read_lines(text: &str) -> Option<Vec<Quota>> {
    text.lines().map(read_line).collect()
}

fn read_line(line: &str) -> Option<Quota> {
    let mut fields = line.split('\t');
    let mut next = || fields.next();
    let (limit, used) = (next()?.parse().ok()?, next()?.parse().ok()?);
    let stale = match next()? {
        "0" => false,
        "1" => true,
        _ => return None,
    };
    let path = PathBuf::from(OsString::from_vec(unescaped(next()?)?));
    fields.next().is_none().then_some(Quota { path, limit, used, stale })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn questions_come_back_and_nonsense_is_none() {
        for asked in [QuotaAsked::List, QuotaAsked::Set(None), QuotaAsked::Set(Some(u64::MAX))] {
            let bytes = asked.encode();
            assert_eq!(QuotaAsked::decode(&bytes), Some(asked));
            assert!((0..bytes.len()).all(|cut| QuotaAsked::decode(&bytes[..cut]).is_none()));
        }
        assert_eq!(QuotaAsked::decode(&[3, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(QuotaAsked::decode(&[2, 1, 0, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn lines_come_back_and_nonsense_is_none() {
        let all = read_lines("100\t50\t1\t/a%09b\n7\t0\t0\t/c\n").unwrap();
        let first = Quota { path: "/a\tb".into(), limit: 100, used: 50, stale: true };
        assert_eq!((&all[0], all[1].limit, all[1].stale), (&first, 7, false));
        for bad in ["x\t0\t0\t/a", "1\t2\t3\t/a", "1\t2\t0", "1\t2\t0\t/a\tmore"] {
            assert_eq!(read_lines(bad), None, "{bad}");
        }
    }
}
