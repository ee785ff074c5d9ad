//! What is asked about forks, and what is answered, as bytes.
//!
//! A question is three bytes, checked one by one, and perhaps a number and a path. Answers are pieces of a text, a line
//! for each fork, or for each thing that a merge does or cannot do; the content of a file has its own form (`content`).
//! Pure; uses the vocabulary of `pando_fs` and how `asked` writes names.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::PathBuf,
};

use pando_fs::{
    Aspects, ForkInfo, MergeChange, MergeConflict, MergeKind, MergeOptions, MergeReport, MergeSide, Time,
};

use crate::asked::{escaped, unescaped};

/// Longest path of [`ForkAsked::Origin`], bytes: with the tokens it has to fit into a request.
pub const MAX_ORIGIN_PATH_BYTES: usize = 1900;

/// Something that is asked about forks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForkAsked {
    /// Name those of a directory, or all if it is the root of the file system: those that the caller has made.
    List,
    /// Name this one.
    Info,
    /// Tell what this one has changed: which bytes too, and what moved as removed and added.
    Diff {
        /// Which bytes of files differ.
        ranges: bool,
        /// Report files that moved as removed and added.
        no_renames: bool,
    },
    /// Tell the content that the file at this path had in its origin, if it still is the fork with this number.
    Origin(u32, PathBuf),
    /// Merge it into the other directory that is shown; the answer says what was done.
    Merge(MergeOptions),
}

impl ForkAsked {
    /// The question as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (number, path) = match self {
            ForkAsked::Origin(number, path) => (&number.to_le_bytes()[..], path.as_os_str().as_bytes()),
            _ => (&b""[..], &b""[..]),
        };
        let head = match *self {
            ForkAsked::List => [0, 0, 0],
            ForkAsked::Info => [1, 0, 0],
            ForkAsked::Merge(MergeOptions { dry_run, prefer, text }) => {
                let side = match prefer {
                    None => 0,
                    Some(MergeSide::Ours) => 1,
                    Some(MergeSide::Theirs) => 2,
                };
                [3, u8::from(dry_run), side | if text { TEXT } else { 0 }]
            }
            ForkAsked::Diff { ranges, no_renames } => [2, u8::from(ranges), u8::from(no_renames)],
            ForkAsked::Origin(..) => {
                let [low, high] = (path.len() as u16).to_le_bytes();
                [4, low, high]
            }
        };
        [&head[..], number, path].concat()
    }

    /// Decodes a request; more bytes may follow it. `None` if the bytes are no request.
    pub fn decode(bytes: &[u8]) -> Option<ForkAsked> {
        let (head, rest) = bytes.split_first_chunk::<3>()?;
        Some(match head {
            [0, 0, 0] => ForkAsked::List,
            [1, 0, 0] => ForkAsked::Info,
            [2, ranges @ 0..=1, no_renames @ 0..=1] => {
                ForkAsked::Diff { ranges: *ranges == 1, no_renames: *no_renames == 1 }
            }
            [3, dry_run @ 0..=1, side] => {
                let prefer = [None, Some(MergeSide::Ours), Some(MergeSide::Theirs)];
                let prefer = *prefer.get(usize::from(side & !TEXT))?;
                ForkAsked::Merge(MergeOptions { dry_run: *dry_run == 1, prefer, text: side & TEXT != 0 })
            }
            [4, low, high] => {
                let (number, rest) = rest.split_first_chunk::<4>()?;
                let path = rest.get(..usize::from(u16::from_le_bytes([*low, *high])))?;
                let is_path = (1..=MAX_ORIGIN_PATH_BYTES).contains(&path.len()) && !path.contains(&0);
                let path = is_path.then(|| PathBuf::from(OsStr::from_bytes(path)))?;
                ForkAsked::Origin(u32::from_le_bytes(*number), path)
            }
            _ => return None,
        })
    }
}

/// The bit beside the side that is right: lines of text are merged.
const TEXT: u8 = 4;

const MERGE_KINDS: [MergeKind; 15] = [
    MergeKind::Added,
    MergeKind::Removed,
    MergeKind::Modified,
    MergeKind::Replaced,
    MergeKind::Conflict(MergeConflict::Changed),
    MergeKind::Conflict(MergeConflict::RemovedHere),
    MergeKind::Conflict(MergeConflict::RemovedThere),
    MergeKind::Conflict(MergeConflict::Kind),
    MergeKind::Lines,
    MergeKind::Marked,
    MergeKind::Renamed,
    MergeKind::Conflict(MergeConflict::Renamed),
    MergeKind::Conflict(MergeConflict::Taken),
    MergeKind::Conflict(MergeConflict::Circle),
    MergeKind::Conflict(MergeConflict::MovedInto),
];

/// The result of a merge, as text.
pub(crate) fn report(report: &MergeReport) -> String {
    let mut out = format!("{}\n", u8::from(report.merged));
    for change in &report.changes {
        let kind = MERGE_KINDS.iter().position(|kind| *kind == change.kind).unwrap_or(MERGE_KINDS.len());
        out += &format!("{kind}\t{}\t{}", change.aspects.0, escaped(change.path.as_bytes()));
        if let Some(from) = &change.from {
            out += &format!("\t{}", escaped(from.as_bytes()));
        }
        out.push('\n');
    }
    out
}

/// The reverse of [`report`]; `None` if it makes no sense.
pub(crate) fn read_report(text: &str) -> Option<MergeReport> {
    let mut lines = text.lines();
    let merged = lines.next()? == "1";
    let change = |line: &str| {
        let mut fields = line.split('\t');
        let kind = *MERGE_KINDS.get(fields.next()?.parse::<usize>().ok()?)?;
        let aspects = Aspects(fields.next()?.parse().ok()?);
        let path = OsString::from_vec(unescaped(fields.next()?)?);
        let from = match fields.next() {
            Some(from) => Some(OsString::from_vec(unescaped(from)?)),
            None => None,
        };
        Some(MergeChange { kind, path, from, aspects })
    };
    Some(MergeReport { changes: lines.map(change).collect::<Option<_>>()?, merged })
}

/// A fork as a line of an answer.
pub(crate) fn line(info: &ForkInfo) -> String {
    let Time { secs, nanos } = info.created;
    format!(
        "{}\t{secs}\t{nanos}\t{}\t{}\t{}\t{}\t{}\n",
        info.number,
        info.since.secs,
        info.since.nanos,
        info.uid,
        escaped(info.path.as_bytes()),
        info.source.as_ref().map(|source| escaped(source.as_bytes())).unwrap_or_default(),
    )
}

/// The forks in an answer; `None` if it makes no sense.
pub(crate) fn read_lines(text: &str) -> Option<Vec<ForkInfo>> {
    text.lines().map(read_line).collect()
}

fn read_line(line: &str) -> Option<ForkInfo> {
    let mut fields = line.split('\t');
    let mut next = || fields.next();
    let info = ForkInfo {
        number: next()?.parse().ok()?,
        created: Time { secs: next()?.parse().ok()?, nanos: next()?.parse().ok()? },
        since: Time { secs: next()?.parse().ok()?, nanos: next()?.parse().ok()? },
        uid: next()?.parse().ok()?,
        path: OsString::from_vec(unescaped(next()?)?),
        source: Some(OsString::from_vec(unescaped(next()?)?)).filter(|source| !source.is_empty()),
    };
    next().is_none().then_some(info)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn questions_and_forks_come_back_and_nonsense_is_refused() {
        let diff = |ranges, no_renames| ForkAsked::Diff { ranges, no_renames };
        let merge = |dry_run, prefer| ForkAsked::Merge(MergeOptions { dry_run, prefer, text: dry_run });
        let mut all = vec![ForkAsked::List, ForkAsked::Info, diff(true, false), diff(false, true)];
        all.extend([merge(true, None), merge(false, Some(MergeSide::Ours))]);
        all.extend([merge(false, Some(MergeSide::Theirs)), ForkAsked::Origin(7, "a/b".into())]);
        for asked in all {
            assert_eq!(ForkAsked::decode(&asked.encode()[..2]), None);
            assert_eq!(ForkAsked::decode(&asked.encode()), Some(asked));
        }
        for bad in [[9, 0, 0], [0, 1, 0], [2, 2, 0], [2, 0, 2], [3, 0, 3], [3, 0, 8]] {
            assert_eq!(ForkAsked::decode(&bad), None, "{bad:?}");
        }
        let time = |secs| Time { secs, nanos: 5 };
        let info = ForkInfo {
            number: 7,
            path: OsString::from_vec(b"/a\t\xff\n".to_vec()),
            source: Some("/b".into()),
            created: time(-3),
            since: time(4),
            uid: 1000,
        };
        let alone = ForkInfo { source: None, ..info.clone() };
        let text = line(&info) + &line(&alone);
        assert_eq!(read_lines(&text), Some(vec![info, alone]));
        assert_eq!(read_lines("1\t2"), None);
        let path = OsString::from_vec(b"a\t\n".to_vec());
        let change = |kind| {
            let from = (kind == MergeKind::Renamed).then(|| path.clone());
            MergeChange { kind, path: path.clone(), from, aspects: Aspects::MODE }
        };
        let told = MergeReport { changes: MERGE_KINDS.into_iter().map(change).collect(), merged: true };
        assert_eq!(read_report(&report(&told)), Some(told));
        assert_eq!(read_report(&format!("1\n{}\t0\tx", MERGE_KINDS.len())), None);
    }
}
