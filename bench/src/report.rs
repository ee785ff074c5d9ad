//! The figures: as rows, as an aligned table and as JSON.

use std::fmt::Write;

use anyhow::Result;
use pando_bench_common::number::short;
use serde_json::{Value, json};

use crate::{engines::PANDO, works::Outcome};

/// One outcome of one engine.
pub struct Row {
    /// Work, with its part.
    pub work: String,
    /// Size of the data set.
    pub set: String,
    /// Engine.
    pub engine: &'static str,
    /// What came of it; or why nothing did.
    pub outcome: Result<Outcome, String>,
}

impl Row {
    /// Units a second.
    pub fn rate(&self) -> Option<f64> {
        let outcome = self.outcome.as_ref().ok()?;
        (outcome.seconds > 0.0).then(|| outcome.count / outcome.seconds)
    }
}

/// The rate of the best peer in the same work on the same set.
fn best_peer(rows: &[Row], row: &Row) -> Option<f64> {
    let peers = rows.iter().filter(|r| r.engine != PANDO && (&r.work, &r.set) == (&row.work, &row.set));
    peers.filter_map(Row::rate).reduce(f64::max)
}

/// The table, as it is printed.
pub fn table(rows: &[Row]) -> String {
    let head =
        ["work", "data", "engine", "rate", "of best peer", "settle s", "written/user", "peak MiB", "note"]
            .map(String::from);
    let mut lines = vec![head];
    let mut last = None;
    for row in rows {
        let (work, set) = (row.work.clone(), row.set.clone());
        if last.replace((work.clone(), set.clone())).is_some_and(|l| l != (work.clone(), set.clone())) {
            lines.push(Default::default());
        }
        let engine = row.engine.to_string();
        let line = match &row.outcome {
            Err(error) => {
                let none = String::new;
                [work, set, engine, "failed".into(), none(), none(), none(), none(), error.clone()]
            }
            Ok(outcome) => {
                let rate = row.rate().map_or("-".into(), |r| format!("{} {}/s", short(r), outcome.unit));
                let ratio = row.rate().zip(best_peer(rows, row)).map(|(rate, best)| short(rate / best));
                let settle = (outcome.settle > 0.0).then(|| format!("{:.2}", outcome.settle));
                let written = (outcome.user > 0)
                    .then(|| format!("{:.2}", outcome.written as f64 / outcome.user as f64));
                let or_empty = Option::unwrap_or_default;
                let (ratio, settle, written) = (or_empty(ratio), or_empty(settle), or_empty(written));
                let peak = (outcome.peak >> 20).to_string();
                [work, set, engine, rate, ratio, settle, written, peak, outcome.note.clone()]
            }
        };
        lines.push(line);
    }
    let mut widths = [0; 9];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let mut out = String::new();
        for (i, (cell, width)) in line.iter().zip(widths).enumerate() {
            // Figures are aligned at their right end.
            let _infallible = if (3..8).contains(&i) {
                write!(out, "{cell:>width$}  ")
            } else {
                write!(out, "{cell:<width$}  ")
            };
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}

/// The rows as JSON, with `about` the run.
pub fn json(rows: &[Row], about: Value) -> Value {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| match &row.outcome {
            Ok(o) => json!({
                "work": row.work, "data": row.set, "engine": row.engine, "unit": o.unit,
                "count": o.count, "seconds": o.seconds, "rate": row.rate(),
                "of_best_peer": row.rate().zip(best_peer(rows, row)).map(|(rate, best)| rate / best),
                "settle_seconds": o.settle, "user_bytes": o.user, "written_bytes": o.written,
                "read_bytes": o.read, "peak_memory_bytes": o.peak, "note": o.note,
            }),
            Err(error) => {
                json!({"work": row.work, "data": row.set, "engine": row.engine, "error": error})
            }
        })
        .collect();
    json!({ "about": about, "rows": rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(engine: &'static str, count: f64) -> Row {
        let outcome = Outcome { unit: "keys".into(), count, seconds: 2.0, ..Outcome::default() };
        Row { work: "w".into(), set: "s".into(), engine, outcome: Ok(outcome) }
    }

    #[test]
    fn ratios_are_to_the_best_peer() {
        let rows = [row(PANDO, 100.0), row("a", 10.0), row("b", 50.0)];
        let value = json(&rows, Value::Null);
        let ratios: Vec<_> = (0..3).map(|i| value["rows"][i]["of_best_peer"].as_f64()).collect();
        assert_eq!(ratios, [Some(2.0), Some(0.2), Some(1.0)]);
        assert!(table(&rows).contains("50.00 keys/s"), "{}", table(&rows));
    }
}
