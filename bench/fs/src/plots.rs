//! The plots: an overview, an SVG for each row, by its development if it has one, and one page with all.

use std::{fmt::Write, fs, path::Path};

use anyhow::{Context, Result};
use pando_bench_common::plot::{Line, bars, escape, lines, ratios};

use crate::{
    figure::SPACE,
    goals::GENERAL,
    report::{About, Results, Row},
};

fn file_name(row: &str) -> String {
    let words = row.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-") + ".svg"
}

fn plot(row: &Row) -> Result<Option<String>> {
    let series: Vec<Line<'_>> = row
        .cells
        .iter()
        .filter_map(|cell| {
            let points = cell.series()?.1.as_slice();
            let all_above_zero = points.iter().all(|point| point.0 > 0.0 && point.1 > 0.0);
            (points.len() > 1 && all_above_zero).then_some((cell.kind().name(), points))
        })
        .collect();
    if !series.is_empty() {
        let over = row.cells.iter().find_map(|cell| Some(cell.series()?.0.as_str()));
        return lines(&row.name, over.unwrap_or_default(), &row.unit, &series).map(Some);
    }
    let values: Vec<(&str, f64)> =
        row.cells.iter().map(|cell| (cell.kind().name(), cell.value())).filter(|bar| bar.1 > 0.0).collect();
    if values.is_empty() {
        return Ok(None);
    }
    bars(&row.name, &row.unit, &values).map(Some)
}

/// Writes the plots, and a page with all of them and the table, to a directory.
pub fn write(results: &Results, table: &str, about: &About, dir: &Path) -> Result<()> {
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Pando and the kernel's file systems</title>\n\
         <style>body{font-family:sans-serif;margin:2em}figure{display:inline-block;margin:.5em}\
         pre{overflow-x:auto}</style></head><body>\n<h1>Pando and the kernel's file systems</h1>\n",
    );
    writeln!(page, "<p>{} Scales are logarithmic.</p>", escape(&about.text))?;
    // Space is no speed.
    let rows = results.rows.iter().filter(|row| row.unit != SPACE);
    let speeds: Vec<(&str, f64)> = rows.filter_map(|row| Some((row.name.as_str(), row.speed()?))).collect();
    if !speeds.is_empty() {
        let title = "How many times as fast as the best kernel file system (log scale)";
        let svg = ratios(title, &speeds, GENERAL)?;
        fs::write(dir.join("overview.svg"), &svg)?;
        writeln!(page, "<p>{svg}</p>")?;
    }
    for row in &results.rows {
        let Some(svg) = plot(row).with_context(|| format!("plotting {}", row.name))? else { continue };
        fs::write(dir.join(file_name(&row.name)), &svg)?;
        writeln!(page, "<figure>{svg}</figure>")?;
    }
    writeln!(page, "<h2>Table</h2>\n<pre>{}</pre>\n</body></html>", escape(table))?;
    fs::write(dir.join("plots.html"), page)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_of_files_are_plain() {
        assert_eq!(super::file_name("dooku chained: grep, cold"), "dooku-chained-grep-cold.svg");
    }
}
