//! What Pando is to reach in which row.

use crate::figure::Better;

/// A goal. A row may have several; all must be met.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Goal {
    /// Of a time: at most so many times that of the best kernel file system.
    AtMost(f64),
    /// Of a rate: at least so many times that of the best kernel file system.
    AtLeast(f64),
    /// Of a rate: at least this, on a quiet machine like the one of the goal, at scale 1.
    Rate(f64),
    /// At most so many bytes of the device for each of the user.
    PerByte(f64),
    /// At most this, in what the row calls by this name.
    Extra(&'static str, f64),
}

/// No row is to be slower than 0.85 of the best.
pub const GENERAL: f64 = 0.85;

/// The goals of a row.
pub fn goals(row: &str, better: Better, is_throttled: bool) -> Vec<Goal> {
    use Goal::{AtLeast, AtMost, Extra, PerByte, Rate};
    match row {
        "create 200 B" => vec![AtLeast(0.85), Rate(25_000.0)],
        "untar + sync" => vec![AtMost(1.15), PerByte(1.1)],
        "cp -a + sync" | "rsync -a + sync" | "git clone + sync" => vec![AtMost(1.15)],
        "rm -rf, cold" | "find, cold" | "git status, cold" => vec![AtMost(1.0)],
        "write in calls of 1,000 B + fsync" => vec![AtLeast(GENERAL), PerByte(1.2)],
        "write in calls of 40 KiB + fsync" if is_throttled => vec![AtLeast(1.0), PerByte(1.05)],
        row if row.starts_with("write in calls") => vec![AtLeast(GENERAL), PerByte(1.05)],
        "sequential read, cold" => vec![AtLeast(1.0), PerByte(1.05)],
        "random reads of 4 B, cold" => vec![AtMost(1.0)],
        "random writes of 4 B + fsync" => vec![AtMost(0.25)],
        "grep, cold, after clone and edits" => vec![AtMost(1.0)],
        "mail server, 4 threads" => vec![AtLeast(1.5)],
        "SQLite, random rows in one transaction" => vec![AtMost(1.15)],
        "SQLite, durable transactions, WAL" => vec![AtMost(0.5)],
        "log lines of 80 B" => vec![AtMost(1.5)],
        "grep -r of a tree just written" | "four readers of a tree, three times" => vec![AtMost(1.15)],
        "ls -lR, warm" | "8 processes create files" => vec![AtMost(1.15)],
        row if row.contains("beside a slow reader") => vec![Extra("p99_of_idle", 2.0)],
        row if row.starts_with("dooku") || row.starts_with("clone a tree") => vec![AtMost(1.0)],
        row if row.starts_with("container") || row.starts_with("rename") => vec![AtMost(1.0)],
        _ if better == Better::More => vec![AtLeast(GENERAL)],
        _ => vec![AtMost(1.0 / GENERAL)],
    }
}

impl Goal {
    /// As it stands in the table.
    pub fn text(self) -> String {
        match self {
            Goal::AtMost(factor) => format!("<= {factor:.2}"),
            Goal::AtLeast(factor) => format!(">= {factor:.2}"),
            Goal::Rate(rate) => format!(">= {rate:.0}/s"),
            Goal::PerByte(bytes) => format!("<= {bytes:.2} a byte"),
            Goal::Extra(name, value) => format!("{name} <= {value:.2}"),
        }
    }
}
