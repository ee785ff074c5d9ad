//! The steps of a run, as plain data that can be recorded, cut down and printed.

use std::fmt;

use bytes::Bytes;
use pando_db::Op;

use super::oracle::show;

/// One thing that is done to the store and to the oracle.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// One atomic batch.
    Write(Vec<Op>),
    /// What the next batch expects of keys.
    Expect(Vec<(Bytes, Option<Bytes>)>),
    Get(Bytes),
    /// Reads up to `take` pairs of `[lo, hi)`; each bit of `ends` (used over and over) picks an end. Then
    /// again from, or to, one that was read.
    Scan {
        lo: Bytes,
        hi: Option<Bytes>,
        ends: u64,
        take: usize,
    },
    /// Compares everything, forward and backward, and runs the checker.
    Verify,
    /// Takes a snapshot into a slot, comparing the one that was there.
    Snapshot(u8),
    /// Compares the snapshot in a slot with what it should be.
    CompareSnapshot(u8),
    /// Opens a cursor that later steps advance while the store changes.
    OpenCursor {
        slot: u8,
        lo: Bytes,
        hi: Option<Bytes>,
    },
    Advance {
        slot: u8,
        ends: u64,
        take: usize,
    },
    /// Starts a held cursor anew from `key` on, or with what lies below it.
    Seek {
        slot: u8,
        key: Bytes,
        back: bool,
    },
    Sync,
    Checkpoint,
    /// Gives back all that nothing shows any more.
    Settle,
    /// The `after`th request from now fails; all that follow too if `onwards`.
    Fault {
        after: u64,
        onwards: bool,
    },
    /// The device works again.
    Heal,
    /// The disk under the device has this much more to give.
    LimitSpace(u64),
    /// From now on flushes do nothing.
    Lie,
    /// Deletes everything and writes something: must work however full the store is.
    MakeRoom,
    Reopen {
        how: How,
        with: OpenWith,
    },
}

/// How a store is left before it is opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Closed.
    Close,
    /// Closed, and the power fails after that.
    CloseThenCrash,
    /// The process goes away without closing; what was written stays.
    Abandon,
    /// The power fails.
    Crash,
    /// Again, right after the recovery.
    CrashTwice,
    /// Again during the recovery, at this request.
    CrashInRecovery(u64),
}

/// Options that may differ each time a store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenWith {
    pub memtable: usize,
    pub cache: u64,
    pub abundant: Option<usize>,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Write(ops) => {
                let puts = ops.iter().filter(|op| matches!(op, Op::Put(..))).count();
                match (ops.first(), ops.last()) {
                    (Some(Op::Put(first, _)), Some(Op::Put(last, _))) if puts == ops.len() && puts > 2 => {
                        write!(f, "put {puts} values, {} to {}", show(first), show(last))
                    }
                    (Some(op), _) if ops.len() == 1 => write!(f, "{}", show_op(op)),
                    _ => {
                        write!(f, "batch of")?;
                        ops.iter().try_for_each(|op| write!(f, "\n      {}", show_op(op)))
                    }
                }
            }
            Step::Expect(expected) => {
                write!(f, "expect of the next batch")?;
                expected.iter().try_for_each(|(key, value)| match value {
                    Some(value) => write!(f, "\n      {} = {}", show(key), show_value(value)),
                    None => write!(f, "\n      {} absent", show(key)),
                })
            }
            Step::Get(key) => write!(f, "get {}", show(key)),
            Step::Scan { lo, hi, ends, take } => {
                write!(f, "scan [{}, {}) ends {ends:#x} take {take}", show(lo), show_end(hi))
            }
            Step::OpenCursor { slot, lo, hi } => {
                write!(f, "cursor {slot} over [{}, {})", show(lo), show_end(hi))
            }
            Step::Seek { slot, key, back } => {
                write!(f, "cursor {slot} seeks {}{}", if *back { "below " } else { "" }, show(key))
            }
            other => write!(f, "{other:?}"),
        }
    }
}

fn show_end(hi: &Option<Bytes>) -> String {
    hi.as_ref().map_or("infinity".into(), |hi| show(hi))
}

/// Values matter by their length, as a rule.
fn show_value(value: &Bytes) -> String {
    match value.len() {
        0..=16 => show(value),
        len => format!("{len} bytes from \"{}\"", value[..4].escape_ascii()),
    }
}

fn show_op(op: &Op) -> String {
    match op {
        Op::Put(key, value) => format!("put {} = {}", show(key), show_value(value)),
        Op::Delete(key) => format!("delete {}", show(key)),
        Op::Upsert(key, change) => format!("upsert {} {}", show(key), show_value(change)),
        Op::UpsertPrefix(prefix, change) => {
            format!("upsert all under {} {}", show(prefix), show_value(change))
        }
        Op::DeleteRange(lo, hi) => format!("delete [{}, {})", show(lo), show_end(hi)),
        Op::ClonePrefix(src, dst) => format!("clone {} -> {}", show(src), show(dst)),
        Op::RenamePrefix(src, dst) => format!("rename {} -> {}", show(src), show(dst)),
        _ => unreachable!("an operation that the model does not know"),
    }
}

impl Step {
    /// The step as the source of a regression test (see `tests/regressions.rs`), where one can be written.
    pub fn source(&self) -> String {
        match self {
            Step::Write(ops) => {
                let ops: Vec<String> = ops.iter().map(op_source).collect();
                format!("Step::Write(vec![{}])", ops.join(", "))
            }
            other => format!("Step::{other:?}"),
        }
    }
}

/// A byte string as source, with long runs of one byte as such.
fn bytes_source(bytes: &Bytes) -> String {
    const LONG: usize = 12;
    let mut parts: Vec<String> = Vec::new();
    let mut plain = Vec::new();
    for same in bytes.chunk_by(|a, b| a == b) {
        if same.len() < LONG {
            plain.extend_from_slice(same);
        } else {
            parts.extend((!plain.is_empty()).then(|| format!("&b\"{}\"[..]", plain.escape_ascii())));
            parts.push(format!("&[{}; {}]", same[0], same.len()));
            plain.clear();
        }
    }
    let rest = format!("b\"{}\"", plain.escape_ascii());
    if parts.is_empty() { rest } else { format!("&[{}, {rest}].concat()", parts.join(", ")) }
}

fn op_source(op: &Op) -> String {
    let key = bytes_source;
    match op {
        Op::Put(k, v) => format!("put({}, {})", key(k), v.len()),
        Op::Delete(k) => format!("delete({})", key(k)),
        Op::Upsert(k, change) => format!("upsert({}, {})", key(k), key(change)),
        Op::UpsertPrefix(prefix, change) => format!("upsert_prefix({}, {})", key(prefix), key(change)),
        Op::DeleteRange(lo, hi) => {
            format!(
                "delete_range({}, {})",
                key(lo),
                hi.as_ref().map_or("None".into(), |hi| format!("Some({})", key(hi)))
            )
        }
        Op::ClonePrefix(src, dst) => format!("clone({}, {})", key(src), key(dst)),
        Op::RenamePrefix(src, dst) => format!("rename({}, {})", key(src), key(dst)),
        _ => unreachable!("an operation that the model does not know"),
    }
}
