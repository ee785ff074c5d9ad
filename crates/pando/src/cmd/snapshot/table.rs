//! The table of `pando snapshot list` and `orphans`: its columns, and the order of its rows.

use std::cmp::Ordering;

use pando_fs::Time;

use crate::{
    cmd::snapshot::{SnapshotLine, show_age},
    size,
};

/// A column that can be asked for, or sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Column {
    Number,
    Name,
    /// Time since it was made; with -H when it was made
    Age,
    /// When it was made
    Created,
    /// Bytes that it refers to
    Refers,
    /// Bytes that would come back if it alone were deleted
    Alone,
    Flags,
    /// Who made it
    User,
    Source,
    Note,
}

/// The columns that are shown if none are asked for: with sizes if `space` is, and of snapshots of directories that are
/// gone with their makers. For scripts what is more of those stands last.
pub fn usual(space: bool, gone: bool, script: bool) -> Vec<Column> {
    let (sizes, user) = ([Column::Refers, Column::Alone], [Column::User]);
    let mut columns =
        vec![Column::Number, Column::Name, Column::Age, Column::Flags, Column::Source, Column::Note];
    if gone && script {
        columns.extend(sizes.into_iter().chain(user));
        return columns;
    }
    if gone {
        columns.splice(4..4, user);
    }
    if space {
        columns.splice(3..3, sizes);
    }
    columns
}

impl Column {
    /// Whether sizes have to be found out for it.
    pub fn is_of_space(self) -> bool {
        matches!(self, Column::Refers | Column::Alone)
    }

    fn header(self) -> &'static str {
        match self {
            Column::Number => "NUMBER",
            Column::Name => "NAME",
            Column::Age => "AGE",
            Column::Created => "CREATED",
            Column::Refers => "REFERS",
            Column::Alone => "ALONE",
            Column::Flags => "FLAGS",
            Column::User => "USER",
            Column::Source => "SOURCE",
            Column::Note => "NOTE",
        }
    }

    /// What stands in the row of a snapshot: nothing that a terminal would obey, whatever its name and note have.
    fn cell(self, line: &SnapshotLine, script: bool, now: Time) -> String {
        let bytes = |n: Option<u64>| match n {
            Some(n) if script => n.to_string(),
            Some(n) => size::show(n),
            None => "-".into(),
        };
        let or_dash = |text: String| if text.is_empty() { "-".into() } else { text };
        match self {
            Column::Number => line.number.to_string(),
            Column::Name => crate::cmd::field(&line.name.0, script),
            Column::Age if !script => {
                show_age(u64::try_from(now.secs.saturating_sub(line.created_seconds)).unwrap_or(0))
            }
            Column::Age | Column::Created => line.created.clone(),
            Column::Refers => bytes(line.refers),
            Column::Alone => {
                let is_estimate = !script && line.estimated.is_some_and(|bytes| bytes > 0);
                marked(bytes(line.alone), is_estimate)
            }
            Column::Flags => or_dash(flags(line)),
            Column::User => line.uid.to_string(),
            // Where it was is not told to everybody.
            Column::Source if line.source.0.is_empty() => "-".into(),
            Column::Source => crate::cmd::field(&line.source.0, script),
            Column::Note => or_dash(line.note.replace(char::is_control, " ")),
        }
    }

    /// The order of two rows by this column; what is not known comes first.
    fn order(self, a: &SnapshotLine, b: &SnapshotLine) -> Ordering {
        match self {
            Column::Number => a.number.cmp(&b.number),
            Column::Name => a.name.0.cmp(&b.name.0),
            // The youngest first.
            Column::Age => Column::Created.order(b, a),
            // Of those of one second, the number says which was made first.
            Column::Created => (a.created_seconds, a.number).cmp(&(b.created_seconds, b.number)),
            Column::Refers => a.refers.cmp(&b.refers),
            Column::Alone => a.alone.cmp(&b.alone),
            Column::Flags => flags(a).cmp(&flags(b)),
            Column::User => a.uid.cmp(&b.uid),
            Column::Source => a.source.0.cmp(&b.source.0),
            Column::Note => a.note.cmp(&b.note),
        }
    }
}

fn flags(line: &SnapshotLine) -> String {
    let mut flags = Vec::new();
    if line.keep {
        flags.push("keep".into());
    }
    if line.automatic {
        flags.push("auto".into());
    }
    flags.extend(line.valid_for_seconds.map(|secs| format!("valid={}", show_age(secs))));
    flags.join(",")
}

/// A size with the mark of those of which a part is an estimate.
pub fn marked(size: String, is_estimate: bool) -> String {
    if is_estimate { format!("~{size}") } else { size }
}

/// Sorts rows by a column, from the least or from the greatest; those that are the same there stay in their order.
pub fn sort(lines: &mut [SnapshotLine], by: Column, descending: bool) {
    lines.sort_by(|a, b| if descending { by.order(b, a) } else { by.order(a, b) });
}

/// The table: for people in columns under a header, for scripts with tabs.
pub fn text(lines: &[SnapshotLine], columns: &[Column], script: bool, now: Time) -> String {
    let head = (!script).then(|| columns.iter().map(|column| column.header().to_owned()).collect());
    let row = |line| columns.iter().map(|column| column.cell(line, script, now)).collect();
    let rows: Vec<Vec<String>> = head.into_iter().chain(lines.iter().map(row)).collect();
    if script {
        return rows.iter().map(|row| row.join("\t") + "\n").collect();
    }
    let widths = crate::cmd::widths(&rows);
    let padded = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    rows.iter().map(padded).collect()
}

#[cfg(test)]
mod tests {
    use pando_fs::SnapshotInfo;
    use pando_fuse::control::Usage;

    use super::*;

    fn of(number: u32, estimated: u64) -> SnapshotLine {
        let info = SnapshotInfo {
            number,
            name: format!("s{}", 9 - number).into(),
            source: "/d".into(),
            note: String::new(),
            created: Time { secs: i64::from(number), ..Time::default() },
            keep: false,
            valid_for_secs: None,
            uid: 0,
            received: None,
            automatic: false,
        };
        super::super::line(
            info,
            Some(&Usage { stored: 4096, exclusive: 2048, estimated, ..Usage::default() }),
        )
    }

    #[test]
    fn a_size_that_is_an_estimate_has_a_mark() {
        let lines = [of(1, 0), of(2, 1)];
        let alone = |script| text(&lines, &[Column::Alone], script, Time::default());
        assert_eq!(alone(false), "ALONE\n2.0 KiB\n~2.0 KiB\n");
        assert_eq!(alone(true), "2048\n2048\n", "a script wants a number");
    }

    #[test]
    fn columns_stand_as_asked_and_rows_are_sorted() {
        let mut lines = [of(1, 0), of(2, 0), of(3, 0)];
        let mut told = |by, descending| {
            sort(&mut lines, by, descending);
            text(&lines, &[Column::Name, Column::Number], true, Time::default())
        };
        assert_eq!(told(Column::Name, false), "s6\t3\ns7\t2\ns8\t1\n");
        assert_eq!(told(Column::Name, true), "s8\t1\ns7\t2\ns6\t3\n");
        assert_eq!(told(Column::Age, false), "s6\t3\ns7\t2\ns8\t1\n", "the youngest first");
        assert_eq!(told(Column::Created, false), "s8\t1\ns7\t2\ns6\t3\n");
        // What is the same stays as it is.
        assert_eq!(told(Column::Alone, true), "s8\t1\ns7\t2\ns6\t3\n");
    }
}
