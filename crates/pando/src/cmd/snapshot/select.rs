//! Which snapshots a command line means: names, numbers, ranges, ages; and the name of a directory in errors. Pure.

use std::{path::Path, str::FromStr};

use anyhow::{Result, bail};
use pando_fs::{SnapshotInfo, Time};

use crate::one_version::number;

/// Seconds of the units of ages, by letter.
const TIME_UNITS: [(char, u64); 6] =
    [('s', 1), ('m', 60), ('h', 3600), ('d', 86_400), ('w', 604_800), ('y', 31_536_000)];

/// A length of time given on the command line: `90s`, `30m`, `12h`, `7d`, `2w`, `1y`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Age(pub u64);

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a length of time; write it like 90s, 30m, 12h, 7d, 2w or 1y");
        let unit = text.chars().next_back().ok_or_else(wrong)?;
        let (_, secs) = TIME_UNITS.iter().find(|(letter, _)| *letter == unit).ok_or_else(wrong)?;
        let number: u64 = text.strip_suffix(unit).and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
        number.checked_mul(*secs).map(Age).ok_or_else(wrong)
    }
}

/// A length of time for people: the largest unit that is full.
pub fn show_age(secs: u64) -> String {
    let unit = TIME_UNITS.iter().rev().find(|(_, unit)| secs >= *unit).unwrap_or(&TIME_UNITS[0]);
    format!("{}{}", secs / unit.1, unit.0)
}

/// What errors are about.
pub fn about(dir: &Path) -> String {
    format!("snapshots of {}", dir.display())
}

/// The snapshots that `selections` name, each once, by number; of these, if `older_than` is given, the older ones. With
/// no selection all that are old enough.
pub fn select<'a>(
    all: &'a [SnapshotInfo],
    selections: &[String],
    older_than: Option<Age>,
    now: Time,
) -> Result<Vec<&'a SnapshotInfo>> {
    if selections.is_empty() && older_than.is_none() {
        bail!("say which: a name, a number, a range A..B, or --older-than AGE");
    }
    let mut picked = vec![selections.is_empty(); all.len()];
    for text in selections {
        if text.is_empty() {
            bail!("an empty name; say which: a name, a number, or a range A..B");
        }
        // A slip of the hand, or two variables that are empty in a script, shall not mean everything.
        if text == ".." {
            let name = |info: Option<&SnapshotInfo>, else_: &str| {
                info.map_or(else_.into(), |info| info.name.to_string_lossy().into_owned())
            };
            let (first, last) = (name(all.first(), "A"), name(all.last(), "B"));
            bail!("..: would mean every snapshot; name an end, as in {first}..{last}");
        }
        let mut found = false;
        for (picked, info) in picked.iter_mut().zip(all) {
            if matches(text, all, info)? {
                (*picked, found) = (true, true);
            }
        }
        if !found {
            bail!("{text}: no such snapshot; see pando snapshot list");
        }
    }
    let old = |info: &SnapshotInfo| {
        older_than.is_none_or(|Age(secs)| info.created.secs.saturating_add_unsigned(secs) <= now.secs)
    };
    let mut out: Vec<_> =
        all.iter().zip(picked).filter(|(info, picked)| *picked && old(info)).map(|(info, _)| info).collect();
    out.sort_by_key(|info| info.number);
    Ok(out)
}

fn matches(text: &str, all: &[SnapshotInfo], info: &SnapshotInfo) -> Result<bool> {
    if let Some(number) = number(text) {
        return Ok(info.number == number);
    }
    let Some((from, to)) = text.split_once("..") else { return Ok(info.name.to_str() == Some(text)) };
    let end = |text: &str, open: u32| match (text, number(text)) {
        ("", _) => Ok(open),
        (_, Some(number)) => Ok(number),
        _ => match all.iter().find(|info| info.name.to_str() == Some(text)) {
            Some(info) => Ok(info.number),
            None => bail!("{text}: no such snapshot; see pando snapshot list"),
        },
    };
    let (first, last) = (end(from, 0)?, end(to, u32::MAX)?);
    if first > last {
        bail!("{text}: the range is reversed; write {to}..{from}");
    }
    Ok((first..=last).contains(&info.number))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn some() -> Vec<SnapshotInfo> {
        let info = |(number, name): (u32, &str)| SnapshotInfo {
            number,
            name: name.into(),
            source: "/".into(),
            note: String::new(),
            created: Time { secs: i64::from(number) * 100, nanos: 0 },
            keep: false,
            valid_for_secs: None,
            uid: 0,
            received: None,
            automatic: false,
        };
        [(1, "one"), (3, "three"), (7, "seven"), (9, "nine")].map(info).to_vec()
    }

    #[test]
    fn selections_mean_what_they_say() {
        let all = some();
        let picks = |selections: &[&str], age: Option<u64>| {
            let selections: Vec<String> = selections.iter().map(ToString::to_string).collect();
            let now = Time { secs: 1000, nanos: 0 };
            let picked = select(&all, &selections, age.map(Age), now);
            picked.map(|found| found.iter().map(|info| info.number).collect::<Vec<_>>())
        };
        assert_eq!(picks(&["three", "9", "3"], None).unwrap(), [3, 9]);
        assert_eq!(picks(&["2..7"], None).unwrap(), [3, 7]);
        assert_eq!(picks(&["three.."], None).unwrap(), [3, 7, 9]);
        assert_eq!(picks(&["..three", "nine..nine"], None).unwrap(), [1, 3, 9]);
        assert_eq!(picks(&[], Some(700)).unwrap(), [1, 3]);
        assert_eq!(picks(&["3..9"], Some(300)).unwrap(), [3, 7]);
        for bad in ["2", "+3", "two", "two..9", "+3..9", "4..6"] {
            assert!(picks(&[bad], None).unwrap_err().to_string().contains("no such snapshot"), "{bad}");
        }
        assert!(picks(&[], None).is_err());
        for (bad, says) in [("9..3", "write 3..9"), ("nine..one", "reversed"), ("..", "one..nine")] {
            assert!(picks(&[bad], None).unwrap_err().to_string().contains(says), "{bad}");
        }
    }

    #[test]
    fn ages_are_read_and_shown() {
        for (text, secs) in [("90s", 90), ("0d", 0), ("7d", 604_800), ("1y", 31_536_000)] {
            assert_eq!(text.parse(), Ok(Age(secs)));
        }
        for bad in ["", "7", "d", "-1d", "1.5h", "7 d", "99999999999999999y"] {
            assert!(bad.parse::<Age>().unwrap_err().contains("length of time"), "{bad}");
        }
        assert_eq!([0, 59, 60, 90_000, 700_000].map(show_age), ["0s", "59s", "1m", "1d", "1w"]);
    }
}
