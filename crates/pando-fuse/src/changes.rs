//! A change of all files in a tree as bytes: what a control request carries.
//!
//! A mask of what is set, then the fields of the mask in order, little-endian: mode (48 bytes), owner, group, access
//! and modification time (seconds, nanoseconds). Pure functions; uses nothing.

use pando_fs::{ModeChange, SetTime, Time, TreeChange};

const SETS_MODE: u8 = 1;
const SETS_UID: u8 = 2;
const SETS_GID: u8 = 4;
const SETS_ATIME: u8 = 8;
const SETS_ATIME_NOW: u8 = 16;
const SETS_MTIME: u8 = 32;
const SETS_MTIME_NOW: u8 = 64;

/// The change as bytes.
pub(crate) fn encode(change: &TreeChange) -> Vec<u8> {
    let mut out = vec![0];
    let mut mask = 0;
    if let Some(mode) = &change.mode {
        mask |= SETS_MODE;
        out.extend(mode.encode());
    }
    for (bit, id) in [(SETS_UID, change.uid), (SETS_GID, change.gid)] {
        if let Some(id) = id {
            mask |= bit;
            out.extend(id.to_le_bytes());
        }
    }
    for (bit, now, time) in
        [(SETS_ATIME, SETS_ATIME_NOW, change.atime), (SETS_MTIME, SETS_MTIME_NOW, change.mtime)]
    {
        match time {
            None => {}
            Some(SetTime::Now) => mask |= now,
            Some(SetTime::At(time)) => {
                mask |= bit;
                out.extend(time.secs.to_le_bytes());
                out.extend(time.nanos.to_le_bytes());
            }
        }
    }
    if let Some(first) = out.first_mut() {
        *first = mask;
    }
    out
}

/// The change at the beginning of `bytes`; `None` if they make no sense.
pub(crate) fn decode(bytes: &[u8]) -> Option<TreeChange> {
    let (mask, mut rest) = bytes.split_first()?;
    let has = |bit| mask & bit != 0;
    let both = has(SETS_ATIME) && has(SETS_ATIME_NOW) || has(SETS_MTIME) && has(SETS_MTIME_NOW);
    if mask >> 7 != 0 || both {
        return None;
    }
    let mut change = TreeChange::default();
    if has(SETS_MODE) {
        let (mode, left) = rest.split_first_chunk()?;
        (change.mode, rest) = (Some(ModeChange::decode(mode)?), left);
    }
    let mut number = || {
        let (number, left) = rest.split_first_chunk()?;
        rest = left;
        Some(u32::from_le_bytes(*number))
    };
    for (bit, id) in [(SETS_UID, &mut change.uid), (SETS_GID, &mut change.gid)] {
        if has(bit) {
            *id = Some(number()?);
        }
    }
    for (bit, now, time) in
        [(SETS_ATIME, SETS_ATIME_NOW, &mut change.atime), (SETS_MTIME, SETS_MTIME_NOW, &mut change.mtime)]
    {
        if has(now) {
            *time = Some(SetTime::Now);
        } else if has(bit) {
            let (low, high, nanos) = (number()?, number()?, number()?);
            let secs = (u64::from(low) | u64::from(high) << 32).cast_signed();
            if nanos >= 1_000_000_000 {
                return None;
            }
            *time = Some(SetTime::At(Time { secs, nanos }));
        }
    }
    Some(change)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back_as_they_were_and_cut_ones_are_refused() {
        let at = SetTime::At(Time { secs: -5, nanos: 999_999_999 });
        let mode = ModeChange::parse("u+s,g=o,a+X", 0o22);
        for change in [
            TreeChange::default(),
            TreeChange { mode, ..TreeChange::default() },
            TreeChange { uid: Some(7), mtime: Some(at), ..TreeChange::default() },
            TreeChange {
                gid: Some(u32::MAX),
                atime: Some(SetTime::Now),
                mtime: Some(at),
                mode,
                uid: Some(1),
            },
        ] {
            let mut bytes = encode(&change);
            assert_eq!(decode(&bytes), Some(change));
            assert!((0..bytes.len()).all(|end| decode(&bytes[..end]).is_none()));
            bytes[0] |= 128;
            assert_eq!(decode(&bytes), None);
        }
        assert_eq!(decode(&[SETS_ATIME | SETS_ATIME_NOW; 20]), None);
    }
}
