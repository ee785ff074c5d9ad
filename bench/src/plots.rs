//! The plots: one SVG a work, all in one HTML page that needs nothing else.
//!
//! Bars of rates on a logarithmic scale, since a clone and a copy of a million
//! keys do not fit on another one. Text is left to the viewer of the SVG, so
//! no font of this machine is needed.

use std::fmt::Write;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::report::Row;

const SIZE: (u32, u32) = (460, 300);
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x2a, 0x7f, 0x4f),
    RGBColor(0x8c, 0x6d, 0x31),
    RGBColor(0x4f, 0x6d, 0x9a),
    RGBColor(0x9a, 0x4f, 0x5c),
    RGBColor(0x77, 0x77, 0x77),
    RGBColor(0x5f, 0x4b, 0x8b),
];

fn plot(title: &str, unit: &str, bars: &[(&str, f64)]) -> Result<String> {
    let mut svg = String::new();
    let fail = |error: &dyn std::fmt::Display| anyhow!("plotting {title}: {error}");
    let best = bars.iter().map(|b| b.1).fold(1.0, f64::max) * 2.0;
    let least = bars.iter().map(|b| b.1).fold(best, f64::min) / 4.0;
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|e| fail(&e))?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 16))
            .margin(8)
            .x_label_area_size(24)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..bars.len() as f64, (least..best).log_scale())
            .map_err(|e| fail(&e))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_desc(format!("{unit}/s"))
            .y_label_formatter(&|y| format!("{y:.1e}"))
            .draw()
            .map_err(|e| fail(&e))?;
        for (i, &(name, rate)) in bars.iter().enumerate() {
            let (left, right) = (i as f64 + 0.15, i as f64 + 0.85);
            let colour = COLOURS[i % COLOURS.len()].filled();
            chart
                .draw_series([Rectangle::new([(left, least), (right, rate)], colour)])
                .map_err(|e| fail(&e))?;
            chart
                .draw_series([Text::new(name.to_string(), (left, rate * 1.25), ("sans-serif", 13))])
                .map_err(|e| fail(&e))?;
        }
        root.present().map_err(|e| fail(&e))?;
    }
    Ok(svg)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

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
            writeln!(page, "<figure>{}</figure>", plot(&format!("{work}, {set}"), unit, &bars)?)?;
        }
    }
    writeln!(page, "<h2>Table</h2>\n<pre>{}</pre>\n</body></html>", escape(table))?;
    Ok(page)
}
