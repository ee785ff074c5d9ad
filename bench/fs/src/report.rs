//! The figures of all rounds: as a table, as JSON.

use std::fmt::Write;

use pando_bench_common::number::short;
use serde_json::{Value, json};

use crate::{
    contender::Kind,
    figure::{Better, Figure},
    goals::{Goal, goals},
};

/// The version of the JSON. It grows when a field changes its meaning or goes.
pub const VERSION: u64 = 1;

/// The value in the middle; of two, the mean. Sorts `values`. Zero if there are none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// The value below which a share of all lies. Sorts `values`. Zero if there are none.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let place = (values.len() as f64 * share) as usize;
    values.get(place.min(values.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// All rounds of one contender in one row.
#[derive(Debug)]
pub struct Cell {
    kind: Kind,
    figures: Vec<Figure>,
}

impl Cell {
    fn of(&self, value: impl Fn(&Figure) -> f64) -> f64 {
        median(&mut self.figures.iter().map(value).collect::<Vec<_>>())
    }

    /// The median of the rounds.
    pub fn value(&self) -> f64 {
        self.of(|figure| figure.value)
    }

    fn spread(&self) -> (f64, f64) {
        let values = || self.figures.iter().map(|figure| figure.value);
        (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max))
    }

    fn per_byte(&self) -> Option<f64> {
        let mut all: Vec<f64> = self.figures.iter().filter_map(Figure::per_byte).collect();
        (!all.is_empty()).then(|| median(&mut all))
    }

    fn extra(&self, name: &str) -> Option<f64> {
        let mut all: Vec<f64> =
            self.figures.iter().filter_map(|figure| figure.extra.get(name).copied()).collect();
        (!all.is_empty()).then(|| median(&mut all))
    }

    /// How it developed in the last round.
    pub fn series(&self) -> Option<&(String, Vec<(f64, f64)>)> {
        self.figures.last()?.series.as_ref()
    }

    /// Who this is.
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

/// A row: what all contenders came to.
#[derive(Debug)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The unit of the values.
    pub unit: String,
    better: Better,
    /// In the order of the contenders.
    pub cells: Vec<Cell>,
}

impl Row {
    fn cell(&self, kind: Kind) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.kind == kind)
    }

    /// The best of the kernel's file systems.
    fn best(&self) -> Option<&Cell> {
        let peers = self.cells.iter().filter(|cell| cell.kind != Kind::Pando);
        peers.reduce(|best, cell| {
            let is_better = match self.better {
                Better::Less => cell.value() < best.value(),
                Better::More => cell.value() > best.value(),
            };
            if is_better { cell } else { best }
        })
    }

    /// How many times as fast as the best Pando is, whether the value is a time or a rate.
    pub fn speed(&self) -> Option<f64> {
        let ratio = self.ratio().filter(|&ratio| ratio > 0.0)?;
        Some(if self.better == Better::Less { 1.0 / ratio } else { ratio })
    }

    /// Pando's value beside the best.
    fn ratio(&self) -> Option<f64> {
        let (ours, best) = (self.cell(Kind::Pando)?.value(), self.best()?.value());
        (best > 0.0).then(|| ours / best)
    }

    /// Whether a goal is met; `None` where that cannot be said.
    fn meets(&self, goal: Goal, about: &About) -> Option<bool> {
        let ours = self.cell(Kind::Pando)?;
        match goal {
            Goal::AtMost(factor) => Some(self.ratio()? <= factor),
            Goal::AtLeast(factor) => Some(self.ratio()? >= factor),
            // A rate by itself says something only about the size it was set for.
            Goal::Rate(rate) => (about.scale >= 1.0 && !about.is_throttled).then(|| ours.value() >= rate),
            Goal::PerByte(bytes) => Some(ours.per_byte()? <= bytes),
            Goal::Extra(name, value) => Some(ours.extra(name)? <= value),
        }
    }
}

/// What the run was, as far as the figures need it.
#[derive(Debug)]
pub struct About {
    /// One paragraph for people.
    pub text: String,
    /// The same for programs.
    pub json: Value,
    /// Factor on sizes.
    pub scale: f64,
    /// Whether the device was limited.
    pub is_throttled: bool,
}

/// All figures of a run.
#[derive(Debug, Default)]
pub struct Results {
    /// Rows in the order in which they came.
    pub rows: Vec<Row>,
    /// What failed: work, contender, round, why.
    pub failures: Vec<(&'static str, Kind, usize, String)>,
    /// What was left out, and why.
    pub skipped: Vec<String>,
}

impl Results {
    /// Takes what came of a part.
    pub fn add(&mut self, kind: Kind, figures: Vec<Figure>) {
        for figure in figures {
            let index = self.rows.iter().position(|row| row.name == figure.row).unwrap_or_else(|| {
                let (name, unit) = (figure.row.clone(), figure.unit.clone());
                self.rows.push(Row { name, unit, better: figure.better, cells: Vec::new() });
                self.rows.len() - 1
            });
            let cells = &mut self.rows[index].cells;
            match cells.iter_mut().find(|cell| cell.kind == kind) {
                Some(cell) => cell.figures.push(figure),
                None => cells.push(Cell { kind, figures: vec![figure] }),
            }
        }
    }

    /// The table, as Markdown.
    pub fn table(&self, kinds: &[Kind], about: &About) -> String {
        let mut text = format!("{}\n\n| work |", about.text);
        let names = kinds.iter().map(|kind| format!(" {} |", kind.name()));
        text.extend(names);
        text += " Pando / best | goal | met | device bytes a user byte: Pando, best | CPU seconds: Pando, best |\n";
        text += "| --- |";
        text.extend(kinds.iter().map(|_| " --- |"));
        text += " --- | --- | --- | --- | --- |\n";
        for row in &self.rows {
            text += &self.line(row, kinds, about);
        }
        text += "\nA time is better when it is smaller, a rate when it is larger; `best` is the best of the kernel's file systems in that row.";
        if !self.skipped.is_empty() {
            text += "\n\nLeft out:\n";
            self.skipped.iter().for_each(|line| text += &format!("\n- {line}"));
        }
        if !self.failures.is_empty() {
            text += "\n\nFailed:\n";
            for (work, kind, round, error) in &self.failures {
                text += &format!("\n- {work} on {}, round {}: {error}", kind.name(), round + 1);
            }
        }
        text.push('\n');
        text
    }

    fn line(&self, row: &Row, kinds: &[Kind], about: &About) -> String {
        let mut line = format!("| {} |", row.name);
        for &kind in kinds {
            let cell = row.cell(kind).map_or_else(
                || "-".into(),
                |cell| {
                    let (least, most) = cell.spread();
                    let spread = if cell.figures.len() > 1 {
                        format!(" ({}-{})", short(least), short(most))
                    } else {
                        String::new()
                    };
                    format!("{} {}{spread}", short(cell.value()), row.unit)
                },
            );
            let _infallible = write!(line, " {cell} |");
        }
        let (ours, best) = (row.cell(Kind::Pando), row.best());
        let ratio = row.ratio().map_or("-".into(), |ratio| format!("{ratio:.2}"));
        let goals = goals(&row.name, row.better, about.is_throttled);
        let names: Vec<String> = goals.iter().map(|goal| goal.text()).collect();
        let met: Vec<&str> = goals
            .iter()
            .map(|&goal| match row.meets(goal, about) {
                Some(true) => "yes",
                Some(false) => "**no**",
                None => "-",
            })
            .collect();
        let both = |value: &dyn Fn(&Cell) -> Option<f64>| {
            let one = |cell: Option<&Cell>| cell.and_then(value).map_or("-".into(), |v| format!("{v:.2}"));
            format!("{}, {}", one(ours), one(best))
        };
        let bytes = both(&|cell| cell.per_byte());
        let cpu = both(&|cell| Some(cell.of(|figure| figure.measured.cpu.all())));
        let (goals, met) = (names.join("; "), met.join("; "));
        let _infallible = writeln!(line, " {ratio} | {goals} | {met} | {bytes} | {cpu} |");
        line
    }

    /// Everything, for programs.
    pub fn json(&self, about: &About) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| row_json(row, about)).collect();
        let failures: Vec<Value> = self
            .failures
            .iter()
            .map(|(work, kind, round, error)| {
                json!({"work": work, "contender": kind.name(), "round": round + 1, "error": error})
            })
            .collect();
        json!({
            "version": VERSION, "about": about.json, "rows": rows,
            "skipped": self.skipped, "failures": failures,
        })
    }
}

fn row_json(row: &Row, about: &About) -> Value {
    let contenders: serde_json::Map<String, Value> = row
        .cells
        .iter()
        .map(|cell| {
            let (least, most) = cell.spread();
            let value = json!({
                "median": cell.value(), "least": least, "most": most,
                "device_bytes_a_user_byte": cell.per_byte(),
                "rounds": cell.figures.iter().map(round_json).collect::<Vec<_>>(),
            });
            (cell.kind.name().to_string(), value)
        })
        .collect();
    let goals: Vec<Value> = goals(&row.name, row.better, about.is_throttled)
        .iter()
        .map(|&goal| json!({"goal": goal.text(), "met": row.meets(goal, about)}))
        .collect();
    let better = if row.better == Better::Less { "less" } else { "more" };
    json!({
        "row": row.name, "unit": row.unit, "better": better,
        "best": row.best().map(|cell| cell.kind.name()), "ratio": row.ratio(),
        "goals": goals, "contenders": contenders,
    })
}

fn round_json(figure: &Figure) -> Value {
    let (measured, device) = (&figure.measured, &figure.measured.device);
    json!({
        "value": figure.value, "seconds": measured.seconds,
        "cpu_seconds": {"client": measured.cpu.client, "daemon": measured.cpu.daemon, "kernel_threads": measured.cpu.kernel},
        "device": {
            "read_requests": device.reads, "read_bytes": device.read_bytes,
            "write_requests": device.writes, "written_bytes": device.written_bytes,
            "flushes": device.flushes, "until_unmounted": measured.settled,
        },
        "user_bytes": figure.user_bytes.map(|(_, bytes)| bytes),
        "extra": figure.extra,
        "series": figure.series.as_ref().map(|(over, points)| json!({"over": over, "points": points})),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Measured;

    fn results(row: &str, better: Better, values: &[(Kind, &[f64])]) -> Results {
        let mut results = Results::default();
        for &(kind, values) in values {
            for &value in values {
                let measured = Measured { seconds: value, ..Measured::default() };
                results.add(kind, vec![Figure::new(row, "s", value, better, measured)]);
            }
        }
        results
    }

    fn about() -> About {
        About { text: "A run".into(), json: Value::Null, scale: 1.0, is_throttled: false }
    }

    #[test]
    fn pando_is_put_beside_the_best_of_the_others() {
        let of: &[(Kind, &[f64])] = &[
            (Kind::Pando, &[2.0, 8.0, 3.0]),
            (Kind::Ext4, &[9.0]),
            (Kind::Xfs, &[2.0]),
            (Kind::Btrfs, &[4.0]),
        ];
        let less = results("untar + sync", Better::Less, of);
        let value = less.json(&about());
        assert_eq!(value["rows"][0]["ratio"], 1.5);
        assert_eq!(less.rows[0].speed(), Some(1.0 / 1.5));
        assert_eq!(value["rows"][0]["best"], "xfs");
        assert_eq!(value["rows"][0]["goals"][0]["met"], false);
        assert_eq!(value["version"], VERSION);
        let more = results("mail server, 4 threads", Better::More, of);
        assert_eq!(more.json(&about())["rows"][0]["best"], "ext4");
    }

    #[test]
    fn the_table_has_the_medians_and_says_what_is_not_met() {
        let of: &[(Kind, &[f64])] = &[(Kind::Pando, &[2.0, 8.0, 3.0]), (Kind::Xfs, &[2.0])];
        let mut results = results("untar + sync", Better::Less, of);
        results.failures.push(("untar", Kind::Btrfs, 0, "no room".into()));
        let table = results.table(&[Kind::Pando, Kind::Xfs, Kind::Btrfs], &about());
        let line = table.lines().find(|line| line.starts_with("| untar")).unwrap();
        assert!(line.contains("3.00 s (2.00-8.00) | 2.00 s | - | 1.50 | <= 1.15"), "{line}");
        assert!(line.contains("**no**"), "{line}");
        assert!(table.contains("untar on btrfs, round 1: no room"));
    }

    #[test]
    fn medians_and_quantiles() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0]), 2.5);
        assert_eq!(median(&mut []), 0.0);
        let mut hundred: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(quantile(&mut hundred, 0.99), 99.0);
        assert_eq!(quantile(&mut [7.0], 0.5), 7.0);
    }
}
