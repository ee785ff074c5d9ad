//! Plots as SVG.
//!
//! Scales are logarithmic, since a clone and a copy of a million keys do not
//! fit on another one. Text is left to the viewer of the SVG, so no font of
//! this machine is needed.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const SIZE: (u32, u32) = (460, 300);
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x2a, 0x7f, 0x4f),
    RGBColor(0x8c, 0x6d, 0x31),
    RGBColor(0x4f, 0x6d, 0x9a),
    RGBColor(0x9a, 0x4f, 0x5c),
    RGBColor(0x77, 0x77, 0x77),
    RGBColor(0x5f, 0x4b, 0x8b),
];

/// A bar for each name. Values must be above zero; `unit` is written at the axis.
pub fn bars(title: &str, unit: &str, bars: &[(&str, f64)]) -> Result<String> {
    let mut svg = String::new();
    let fail = |error: &dyn std::fmt::Display| anyhow!("plotting {title}: {error}");
    let most = bars.iter().map(|b| b.1).fold(f64::MIN_POSITIVE, f64::max) * 2.0;
    let least = bars.iter().map(|b| b.1).fold(most, f64::min) / 4.0;
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|e| fail(&e))?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 16))
            .margin(8)
            .x_label_area_size(24)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..bars.len() as f64, (least..most).log_scale())
            .map_err(|e| fail(&e))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_desc(unit)
            .y_label_formatter(&|y| format!("{y:.1e}"))
            .draw()
            .map_err(|e| fail(&e))?;
        for (i, &(name, value)) in bars.iter().enumerate() {
            let (left, right) = (i as f64 + 0.15, i as f64 + 0.85);
            let colour = COLOURS[i % COLOURS.len()].filled();
            chart
                .draw_series([Rectangle::new([(left, least), (right, value)], colour)])
                .map_err(|e| fail(&e))?;
            chart
                .draw_series([Text::new(name.to_string(), (left, value * 1.25), ("sans-serif", 13))])
                .map_err(|e| fail(&e))?;
        }
        root.present().map_err(|e| fail(&e))?;
    }
    Ok(svg)
}

/// A line: its name, and points with coordinates above zero.
pub type Line<'a> = (&'a str, &'a [(f64, f64)]);

/// A line through points for each name. Both axes are logarithmic.
pub fn lines(title: &str, x_unit: &str, y_unit: &str, lines: &[Line<'_>]) -> Result<String> {
    let mut svg = String::new();
    let fail = |error: &dyn std::fmt::Display| anyhow!("plotting {title}: {error}");
    let points = || lines.iter().flat_map(|line| line.1.iter().copied());
    let range = |of: fn(&(f64, f64)) -> f64| {
        let most = points().map(|p| of(&p)).fold(f64::MIN_POSITIVE, f64::max);
        let least = points().map(|p| of(&p)).fold(most, f64::min);
        (least / 1.1)..(most * 1.1)
    };
    let (xs, ys) = (range(|p| p.0), range(|p| p.1));
    // Room for the names above the highest line.
    let ys = (ys.start / 1.5)..(ys.end * 3.0);
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        root.fill(&WHITE).map_err(|e| fail(&e))?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 16))
            .margin(8)
            .margin_right(28)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(xs.log_scale(), ys.log_scale())
            .map_err(|e| fail(&e))?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_desc(x_unit)
            .y_desc(y_unit)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .y_label_formatter(&|y| format!("{y:.1e}"))
            .draw()
            .map_err(|e| fail(&e))?;
        for (i, &(name, points)) in lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            chart
                .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))
                .map_err(|e| fail(&e))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .label_font(("sans-serif", 12))
            .position(SeriesLabelPosition::UpperLeft)
            .draw()
            .map_err(|e| fail(&e))?;
        root.present().map_err(|e| fail(&e))?;
    }
    Ok(svg)
}

/// How many times as fast as something else: a bar from 1 to the left or to the right for each name.
///
/// Bars that end below `enough` have another colour. Ratios must be above zero.
pub fn ratios(title: &str, ratios: &[(&str, f64)], enough: f64) -> Result<String> {
    const LINE: i32 = 18;
    const TOP: i32 = 34;
    const NAMES: i32 = 330;
    const WIDTH: i32 = 820;
    /// Beside the longest bar, for its figure.
    const FIGURE: i32 = 56;
    let mut svg = String::new();
    let fail = |error: &dyn std::fmt::Display| anyhow!("plotting {title}: {error}");
    // Bars beyond these factors are cut; the figure beside says how long they were.
    let furthest = ratios.iter().map(|r| r.1.ln().abs()).fold(2.0_f64.ln(), f64::max).min(64.0_f64.ln());
    let place = |ratio: f64| {
        let share = ratio.ln().clamp(-furthest, furthest) / furthest;
        let half = f64::from(WIDTH - NAMES - 2 * FIGURE) / 2.0;
        NAMES + FIGURE + (half * (1.0 + share)) as i32
    };
    let height = TOP + LINE * ratios.len() as i32 + 8;
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area();
        root.fill(&WHITE).map_err(|e| fail(&e))?;
        let text = |text: String, x: i32, y: i32, size: i32| {
            root.draw(&Text::new(text, (x, y), ("sans-serif", size))).map_err(|e| fail(&e))
        };
        text(title.to_string(), 8, 8, 16)?;
        for (number, &(name, ratio)) in (0..).zip(ratios) {
            let y = TOP + LINE * number;
            text(name.to_string(), 8, y, 12)?;
            let figure = if ratio >= 1.0 { place(ratio) + 4 } else { place(ratio) - 36 };
            text(format!("{ratio:.2}"), figure, y, 11)?;
        }
        for (number, &(_, ratio)) in (0..).zip(ratios) {
            let (y, from, to) = (TOP + LINE * number, place(ratio.min(1.0)), place(ratio.max(1.0)));
            let colour = if ratio >= enough { COLOURS[0] } else { COLOURS[3] };
            root.draw(&Rectangle::new([(from, y), (to.max(from + 1), y + LINE - 5)], colour.filled()))
                .map_err(|e| fail(&e))?;
        }
        let middle = [(place(1.0), TOP - 4), (place(1.0), height - 4)];
        root.draw(&PathElement::new(middle, BLACK)).map_err(|e| fail(&e))?;
        root.present().map_err(|e| fail(&e))?;
    }
    Ok(svg)
}

/// Text for HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plots_are_whole_pictures_and_name_their_series() {
        let bars = bars("work", "files/s", &[("pando", 3.0), ("ext4", 1e6)]).unwrap();
        let points = [(1.0, 0.5), (100.0, 2.0)];
        let lines = lines("clone", "round", "ms", &[("pando", &points), ("xfs", &points)]).unwrap();
        let ratios = ratios("beside the best", &[("create", 0.5), ("clone", 1e6)], 0.85).unwrap();
        for (svg, name) in [(&bars, "ext4"), (&lines, "xfs"), (&ratios, "create")] {
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
            assert!(svg.contains(name), "{svg}");
        }
    }

    #[test]
    fn one_point_and_one_bar_can_be_plotted() {
        assert!(bars("one", "s", &[("a", 1.0)]).is_ok());
        assert!(lines("one", "x", "y", &[("a", &[(1.0, 1.0)])]).is_ok());
    }
}
