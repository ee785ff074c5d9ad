//! The plots: one SVG a work, all in one HTML page that needs nothing else.
//!
//! Bars of rates on a logarithmic scale.

use std::fmt::Write;

use anyhow::Result;
use pando_bench_common::plot::{bars as plot, escape};

use crate::report::Row;

/// One page with a plot of every work on every set, and the table.
pub fn page(rows: &[Row], table: &str, about: &str) -> Result<String> {
    let mut groups: Vec<(&str, &str)> = Vec::new();
    for row in rows {
        if !groups.contains(&(&row.work, &row.set)) {
            groups.push((&row.work, &row.set));
        }
    }
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Pando and its peers</title>\n\
         <style>body{font-family:sans-serif;margin:2em}figure{display:inline-block;margin:.5em}\
         pre{overflow-x:auto}</style></head><body>\n<h1>Pando and its peers</h1>\n",
    );
    writeln!(page, "<p>{}. Rates on a logarithmic scale.</p>", escape(about))?;
    for (work, set) in groups {
        let of_group = rows.iter().filter(|r| (r.work.as_str(), r.set.as_str()) == (work, set));
        let unit = of_group.clone().find_map(|r| r.outcome.as_ref().ok()).map_or("", |o| o.unit.as_str());
        let bars: Vec<(&str, f64)> = of_group.filter_map(|r| Some((r.engine, r.rate()?))).collect();
        if !bars.is_empty() {
            writeln!(
                page,
                "<figure>{}</figure>",
                plot(&format!("{work}, {set}"), &format!("{unit}/s"), &bars)?
            )?;
        }
    }
    writeln!(page, "<h2>Table</h2>\n<pre>{}</pre>\n</body></html>", escape(table))?;
    Ok(page)
}
