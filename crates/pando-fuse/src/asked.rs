//! What is asked about the snapshots of a directory, and what is answered, as bytes.
//!
//! A question is one struct of fixed fields and three strings, checked field by field. An answer names snapshots a line
//! each, with bytes that are no plain letters escaped: lines that do not fit are for the next question. Pure; uses the
//! vocabulary of `pando_fs`.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use pando_fs::{MAX_SNAPSHOT_NOTE, NewSnapshot, PolicyInfo, SnapshotId, SnapshotInfo, StoredPolicy, Time};

/// Longest name of an entry or a snapshot, bytes.
pub const MAX_NAME_BYTES: usize = pando_fs::MAX_NAME;
/// Longest text of a range of numbers, bytes.
const MAX_RANGE_BYTES: usize = 22;
/// Most numbers that an answer tells, a count.
const MAX_TOLD_NUMBERS: u64 = 1 << 20;
/// Longest text of an answer, bytes: what a control answer has room for.
pub(crate) const MAX_TEXT_BYTES: usize = 1900;

/// Something that is asked about the snapshots of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Make one; the answer names it, and its value is how many files have data that did not fit and is not in it.
    Create(NewSnapshot),
    /// Make one among those of the directory that shows the tree of this token, which is owned by the caller too.
    Take(NewSnapshot, [u8; 16]),
    /// Name those from this number on; the value of the answer is the number to go on with, 0 at the end.
    List(u32),
    /// Delete the one with this number.
    Delete(u32),
    /// Give it another name.
    Rename(u32, OsString),
    /// Keep it, or release it.
    Keep(u32, bool),
    /// Make the directory what it was then; what it is now is named by the answer, unless it is to be discarded.
    Rollback(u32, bool),
    /// Give the directory all snapshots of a removed directory, which is the one that the snapshot with this number was
    /// made of. The token is one of the root of the file system.
    Adopt(u32, [u8; 16]),
    /// Tell the policy of the directory.
    Policy,
    /// Delete the one with this number, whose directory is gone. Asked of the root of the file system.
    DeleteGone(u32),
    /// Tell what those in these ranges of numbers take together. The flag says that they are those of directories that
    /// are gone; then it is asked of the root of the file system.
    Together(Vec<(u32, u32)>, bool),
    /// Tell, as the value of the answer, how many files in the directory have data that did not fit: it is in none.
    Unstored,
    /// Give it this policy, or take the one that it has.
    SetPolicy(Option<StoredPolicy>),
    /// Tell in which snapshots, from this number on, this path in the directory leads to the same as in the one before.
    /// The value of the answer is the number to go on with, 0 at the end.
    Alike(u32, PathBuf),
    /// Tell which snapshots are mounted, from this number on, and where. The flag says that they are those of
    /// directories that are gone; then it is asked of the root of the file system. The value of the answer is the
    /// number to go on with, 0 at the end.
    Mounted(u32, bool),
    /// Tell, as the value of the answer, whether so many percent of the file system are free (1), or are not although
    /// the space of all that was deleted is given back (0), which is waited for.
    Free(u8),
}

impl Asked {
    /// The question as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let empty = NewSnapshot::default();
        let (op, number, flag, new) = match self {
            Asked::Create(new) => (0u8, 0, new.keep, new),
            Asked::List(from) => (1, *from, false, &empty),
            Asked::Delete(number) => (2, *number, false, &empty),
            Asked::Rename(number, _) => (3, *number, false, &empty),
            Asked::Keep(number, keep) => (4, *number, *keep, &empty),
            Asked::Rollback(number, discard) => (5, *number, *discard, &empty),
            Asked::Take(new, _) => (6, 0, new.keep, new),
            Asked::Policy => (7, 0, false, &empty),
            Asked::Adopt(number, _) => (9, *number, false, &empty),
            Asked::Unstored => (10, 0, false, &empty),
            Asked::DeleteGone(number) => (11, *number, false, &empty),
            Asked::Together(_, gone) => (12, 0, *gone, &empty),
            Asked::SetPolicy(policy) => (8, 0, policy.is_some(), &empty),
            Asked::Alike(from, _) => (13, *from, false, &empty),
            Asked::Mounted(from, gone) => (14, *from, *gone, &empty),
            Asked::Free(percent) => (15, u32::from(*percent), false, &empty),
        };
        let name = match self {
            Asked::Rename(_, name) => name.as_bytes(),
            _ => new.name.as_ref().map_or(&b""[..], |name| name.as_bytes()),
        };
        let ranges = match self {
            Asked::Together(ranges, _) => ranges_text(ranges),
            _ => String::new(),
        };
        let note = if ranges.is_empty() { &new.note } else { &ranges };
        let mut out = vec![op, u8::from(flag)];
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&new.valid_for_secs.unwrap_or(0).to_le_bytes());
        for part in [name, note.as_bytes()] {
            // A part that is too long is cut, so that the reader refuses the request.
            let len = part.len().min(usize::from(u16::MAX));
            out.extend_from_slice(&(len as u16).to_le_bytes());
            out.extend_from_slice(part.get(..len).unwrap_or_default());
        }
        if let Asked::Take(_, token) | Asked::Adopt(_, token) = self {
            out.extend_from_slice(token);
        }
        if let Asked::SetPolicy(Some(policy)) = self {
            out.extend_from_slice(&policy.encode(0));
        }
        if let Asked::Alike(_, path) = self {
            let path = path.as_os_str().as_bytes();
            out.extend_from_slice(&(path.len() as u32).to_le_bytes());
            out.extend_from_slice(path);
        }
        match &new.received {
            None => out.push(0),
            Some(id) => {
                out.push(1);
                out.extend_from_slice(&id.store);
                out.extend_from_slice(&id.number.to_le_bytes());
                out.extend_from_slice(&id.created.secs.to_le_bytes());
                out.extend_from_slice(&id.created.nanos.to_le_bytes());
            }
        }
        out
    }

    /// The question in these bytes, behind which there may be zeros; `None` if they make no sense.
    pub fn decode(bytes: &[u8]) -> Option<Asked> {
        let mut rest = bytes;
        let mut take = |n: usize| -> Option<&[u8]> {
            let (head, tail) = rest.split_at_checked(n)?;
            rest = tail;
            Some(head)
        };
        let [op, flag] = take(2)?.try_into().ok()?;
        let number = u32::from_le_bytes(take(4)?.try_into().ok()?);
        let valid = u64::from_le_bytes(take(8)?.try_into().ok()?);
        let mut part = || {
            let len = u16::from_le_bytes(take(2)?.try_into().ok()?);
            take(usize::from(len)).map(<[u8]>::to_vec)
        };
        let (name, note) = (part()?, part()?);
        if flag > 1 || name.len() > MAX_NAME_BYTES || note.len() > MAX_SNAPSHOT_NOTE {
            return None;
        }
        let token = if matches!(op, 6 | 9) { take(16)?.try_into().ok()? } else { [0; 16] };
        let policy = match (op, flag) {
            (8, 1) => Some(StoredPolicy::decode(take(StoredPolicy::BYTES)?).ok()?.1),
            _ => None,
        };
        let path = match op {
            13 => {
                let len = u32::from_le_bytes(take(4)?.try_into().ok()?);
                take(usize::try_from(len).ok()?)?.to_vec()
            }
            _ => Vec::new(),
        };
        let received = match take(1)? {
            [0] => None,
            [1] => Some(SnapshotId {
                store: take(16)?.try_into().ok()?,
                number: u32::from_le_bytes(take(4)?.try_into().ok()?),
                created: Time {
                    secs: i64::from_le_bytes(take(8)?.try_into().ok()?),
                    nanos: u32::from_le_bytes(take(4)?.try_into().ok()?),
                },
            }),
            _ => return None,
        };
        if received.is_some_and(|id| id.created.nanos >= 1_000_000_000) {
            return None;
        }
        let flag = flag != 0;
        Some(match op {
            0 | 6 => {
                let new = NewSnapshot {
                    name: (!name.is_empty()).then(|| OsString::from_vec(name)),
                    keep: flag,
                    valid_for_secs: (valid > 0).then_some(valid),
                    note: String::from_utf8(note).ok()?,
                    received,
                    automatic: false,
                };
                if op == 0 { Asked::Create(new) } else { Asked::Take(new, token) }
            }
            1 => Asked::List(number),
            2 => Asked::Delete(number),
            3 => Asked::Rename(number, OsString::from_vec(name)),
            4 => Asked::Keep(number, flag),
            5 => Asked::Rollback(number, flag),
            7 => Asked::Policy,
            8 => Asked::SetPolicy(policy),
            9 => Asked::Adopt(number, token),
            10 => Asked::Unstored,
            11 => Asked::DeleteGone(number),
            13 => Asked::Alike(number, OsString::from_vec(path).into()),
            14 => Asked::Mounted(number, flag),
            15 => Asked::Free(u8::try_from(number).ok()?),
            12 => Asked::Together(read_ranges(&String::from_utf8(note).ok()?)?, flag),
            _ => return None,
        })
    }
}

/// Ranges of numbers as text, which takes the place of a note.
fn ranges_text(ranges: &[(u32, u32)]) -> String {
    ranges.iter().map(|(first, last)| format!("{first}-{last} ")).collect()
}

/// Whether so many ranges fit into a question.
pub(crate) fn ranges_fit(ranges: &[(u32, u32)]) -> bool {
    ranges_text(ranges).len() <= MAX_SNAPSHOT_NOTE
}

/// Numbers, which ascend, as text of ranges; not more of them than fit into an answer. Also the last one of these if
/// some are left.
pub(crate) fn numbers_text(numbers: &[u32]) -> (String, Option<u32>) {
    let mut text = String::new();
    let mut rest = numbers;
    while let Some((&first, mut tail)) = rest.split_first() {
        let mut last = first;
        while let Some((&next, after)) = tail.split_first()
            && Some(next) == last.checked_add(1)
        {
            (last, tail) = (next, after);
        }
        text += &ranges_text(&[(first, last)]);
        rest = tail;
        if text.len() + MAX_RANGE_BYTES > MAX_TEXT_BYTES && !rest.is_empty() {
            return (text, Some(last));
        }
    }
    (text, None)
}

/// The reverse; `None` if it makes no sense.
pub(crate) fn read_numbers(text: &str) -> Option<Vec<u32>> {
    let ranges = read_ranges(text)?;
    let count: u64 = ranges.iter().map(|(first, last)| u64::from(last.saturating_sub(*first))).sum();
    (count <= MAX_TOLD_NUMBERS).then(|| ranges.into_iter().flat_map(|(first, last)| first..=last).collect())
}

fn read_ranges(text: &str) -> Option<Vec<(u32, u32)>> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    text.split_whitespace().map(range).collect()
}

/// A snapshot as a line of an answer.
pub(crate) fn line(info: &SnapshotInfo) -> String {
    let full = |source: &OsStr, note: &str| {
        let Time { secs, nanos } = info.created;
        format!(
            "{}\t{secs}\t{nanos}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n",
            info.number,
            u8::from(info.keep) | u8::from(info.automatic) << 1,
            info.valid_for_secs.unwrap_or(0),
            info.uid,
            escaped(info.name.as_bytes()),
            escaped(source.as_bytes()),
            escaped(note.as_bytes()),
            info.received.as_ref().map(id_text).unwrap_or_default(),
        )
    };
    let line = full(&info.source, &info.note);
    if line.len() <= MAX_TEXT_BYTES { line } else { full(OsStr::new(""), "") }
}

/// The snapshots in an answer; `None` if it makes no sense.
pub(crate) fn read_lines(text: &str) -> Option<Vec<SnapshotInfo>> {
    text.lines().map(read_line).collect()
}

/// A snapshot of a directory that is gone as a line of an answer: what it takes, as words with spaces between, or `-`
/// if that cannot be told, and it.
pub(crate) fn gone_line(info: &SnapshotInfo, usage: &str) -> String {
    format!("{usage}\t{}", line(info))
}

/// The snapshots and what each takes; `None` if it makes no sense.
pub(crate) fn read_gone(text: &str) -> Option<Vec<(SnapshotInfo, &str)>> {
    let mut found = Vec::new();
    for line in text.lines() {
        let (usage, snapshot) = line.split_once('\t')?;
        found.push((read_line(snapshot)?, usage));
    }
    Some(found)
}

fn read_line(line: &str) -> Option<SnapshotInfo> {
    let mut fields = line.split('\t');
    let mut next = || fields.next();
    let number = next()?.parse().ok()?;
    let created = Time { secs: next()?.parse().ok()?, nanos: next()?.parse().ok()? };
    let flags: u8 = next()?.parse().ok()?;
    let info = SnapshotInfo {
        number,
        created,
        keep: flags & 1 != 0,
        automatic: flags & 2 != 0,
        valid_for_secs: Some(next()?.parse().ok()?).filter(|secs| *secs > 0),
        uid: next()?.parse().ok()?,
        name: OsString::from_vec(unescaped(next()?)?),
        source: OsString::from_vec(unescaped(next()?)?),
        note: String::from_utf8(unescaped(next()?)?).ok()?,
        received: match next()? {
            "" => None,
            text => Some(read_id(text)?),
        },
    };
    next().is_none().then_some(info)
}

/// A snapshot that is mounted, and where, as a line of an answer.
pub(crate) fn mounted_line(number: u32, dir: &Path) -> String {
    format!("{number}\t{}\n", escaped(dir.as_os_str().as_bytes()))
}

/// The reverse, of all lines; `None` if it makes no sense.
pub(crate) fn read_mounted(text: &str) -> Option<Vec<(u32, PathBuf)>> {
    let read = |line: &str| {
        let (number, dir) = line.split_once('\t')?;
        Some((number.parse().ok()?, OsString::from_vec(unescaped(dir)?).into()))
    };
    text.lines().map(read).collect()
}

/// A policy as a line of an answer: its user and its rules. The path of the directory is left out, because the caller
/// may not be able to reach it.
pub(crate) fn policy_line(info: &PolicyInfo) -> String {
    escaped(&info.policy.encode(info.uid)) + "\n"
}

/// The reverse; `None` if it makes no sense.
pub(crate) fn read_policy(line: &str) -> Option<(u32, StoredPolicy)> {
    StoredPolicy::decode(&unescaped(line.strip_suffix('\n')?)?).ok()
}

/// A policy as a line of a list, which only root may see: the same, and the path of the directory.
pub(crate) fn listed_policy(info: &PolicyInfo) -> String {
    let path = escaped(info.path.as_bytes());
    format!("{}\t{path}\n", escaped(&info.policy.encode(info.uid)))
}

/// The policies of a list; `None` if it makes no sense.
pub(crate) fn read_policies(text: &str) -> Option<Vec<PolicyInfo>> {
    let read = |line: &str| {
        let (policy, path) = line.split_once('\t')?;
        let (uid, policy) = StoredPolicy::decode(&unescaped(policy)?).ok()?;
        Some(PolicyInfo { path: OsString::from_vec(unescaped(path)?), uid, policy })
    };
    text.lines().map(read).collect()
}

/// An identity as text: UUID in hexadecimal digits, number, seconds, nanoseconds.
fn id_text(id: &SnapshotId) -> String {
    let Time { secs, nanos } = id.created;
    format!("{:032x}:{}:{secs}:{nanos}", u128::from_be_bytes(id.store), id.number)
}

fn read_id(text: &str) -> Option<SnapshotId> {
    let mut parts = text.split(':');
    let store = u128::from_str_radix(parts.next()?, 16).ok()?.to_be_bytes();
    let number = parts.next()?.parse().ok()?;
    let created = Time { secs: parts.next()?.parse().ok()?, nanos: parts.next()?.parse().ok()? };
    parts.next().is_none().then_some(SnapshotId { store, number, created })
}

/// Bytes as text without spaces: what is no letter, digit or one of some signs as `%` and two digits.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut out = String::new();
    for b in bytes {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' | b':' | b' ' => {
                out.push(char::from(*b));
            }
            other => out += &format!("%{other:02x}"),
        }
    }
    out
}

pub(crate) fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&b, tail)) = rest.split_first() {
        rest = tail;
        if b != b'%' {
            out.push(b);
            continue;
        }
        let (digits, tail) = rest.split_at_checked(2)?;
        out.push(u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?);
        rest = tail;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn questions_come_back_and_nonsense_is_refused() {
        let new = NewSnapshot {
            name: Some("n".into()),
            keep: true,
            valid_for_secs: Some(9),
            note: "why\n".into(),
            ..Default::default()
        };
        let policy = StoredPolicy { every_secs: 60, valid_for_secs: Some(7), ..StoredPolicy::default() };
        let id = SnapshotId { store: [9; 16], number: 5, created: Time { secs: -3, nanos: 4 } };
        let received = NewSnapshot { received: Some(id), ..new.clone() };
        for asked in [
            Asked::Create(new),
            Asked::Create(received.clone()),
            Asked::Take(received, [3; 16]),
            Asked::Create(NewSnapshot::default()),
            Asked::List(7),
            Asked::Delete(8),
            Asked::Rename(9, "x".repeat(255).into()),
            Asked::Keep(1, true),
            Asked::Rollback(2, false),
            Asked::Adopt(u32::MAX, [4; 16]),
            Asked::Policy,
            Asked::Unstored,
            Asked::Free(100),
            Asked::DeleteGone(3),
            Asked::Together(vec![(1, 7), (9, u32::MAX)], true),
            Asked::Together(Vec::new(), false),
            Asked::SetPolicy(None),
            Asked::SetPolicy(Some(policy)),
            Asked::Alike(7, "a/b".into()),
            Asked::Alike(0, PathBuf::new()),
            Asked::Mounted(8, true),
            Asked::Mounted(0, false),
        ] {
            let mut bytes = asked.encode();
            assert_eq!(Asked::decode(&bytes), Some(asked.clone()));
            for cut in 0..bytes.len() {
                assert_eq!(Asked::decode(&bytes[..cut]), None, "{asked:?} {cut}");
            }
            bytes.resize(2000, 0);
            assert_eq!(Asked::decode(&bytes), Some(asked));
        }
        assert_eq!(Asked::decode(&Asked::Rename(1, "x".repeat(256).into()).encode()), None);
        assert_eq!(Asked::decode(&[12; 40]), None);
    }

    #[test]
    fn snapshots_travel_as_lines() {
        let info = SnapshotInfo {
            number: 3,
            name: OsString::from_vec(b"a b%\t\xff".to_vec()),
            source: "/p".into(),
            note: "line\nline \u{fc}".into(),
            created: Time { secs: -5, nanos: 6 },
            keep: true,
            valid_for_secs: None,
            uid: 1000,
            received: Some(SnapshotId { store: [9; 16], number: 5, created: Time { secs: -3, nanos: 4 } }),
            automatic: true,
        };
        let policy = StoredPolicy { every_secs: 60, ..StoredPolicy::default() };
        let policy = PolicyInfo { path: "/a\tb".into(), uid: 1000, policy };
        assert_eq!(read_policy(&policy_line(&policy)), Some((1000, policy.policy)));
        assert!(!policy_line(&policy).contains("/a"));
        assert_eq!(read_policy(&policy_line(&policy)[..9]), None);
        let all = [policy.clone(), PolicyInfo { path: "/".into(), ..policy }];
        let list: String = all.iter().map(listed_policy).collect();
        assert_eq!(read_policies(&list), Some(all.to_vec()));
        assert_eq!(
            (read_policies(""), read_policies("\t/a\n"), read_policies("x")),
            (Some(Vec::new()), None, None)
        );
        let dir = PathBuf::from(OsString::from_vec(b"/v \t\xff".to_vec()));
        let text = mounted_line(7, &dir) + &mounted_line(u32::MAX, Path::new("/"));
        assert_eq!(read_mounted(&text), Some(vec![(7, dir), (u32::MAX, "/".into())]));
        assert_eq!((read_mounted(""), read_mounted("7 /v\n")), (Some(Vec::new()), None));
        assert_eq!(read_lines(&(line(&info) + &line(&info))), Some(vec![info.clone(), info.clone()]));
        let long = SnapshotInfo { note: "\n".repeat(512), source: "\n".repeat(256).into(), ..info };
        assert!(line(&long).len() <= MAX_TEXT_BYTES);
        assert_eq!(read_lines(&line(&long)).unwrap()[0].name, long.name);
        for bad in ["1\t2", "x\t1\t1\t1\t1\t1\ta\tb\tc\t", "1\t1\t1\t1\t1\t1\t%4\tb\tc\t"] {
            assert_eq!(read_lines(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn numbers_are_told_as_ranges_and_what_does_not_fit_is_for_the_next_question() {
        let all = [3, 4, 5, 9, 11, 12, u32::MAX];
        let (text, left) = numbers_text(&all);
        assert_eq!((&text[..], left), ("3-5 9-9 11-12 4294967295-4294967295 ", None));
        assert_eq!(read_numbers(&text).as_deref(), Some(&all[..]));
        assert_eq!(numbers_text(&[]), (String::new(), None));
        let odd: Vec<u32> = (0..4000).map(|n| 4_000_000_000 + 2 * n).collect();
        let (text, left) = numbers_text(&odd);
        assert!(text.len() <= MAX_TEXT_BYTES && text.len() > MAX_TEXT_BYTES / 2);
        assert_eq!(read_numbers(&text).unwrap().last().copied(), left);
        assert_eq!(read_numbers("0-4294967295"), None);
    }
}
