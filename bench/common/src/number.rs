//! Numbers as people read them.

/// A number with three significant digits or so.
pub fn short(x: f64) -> String {
    match x.abs() {
        1e9.. => format!("{:.2}G", x / 1e9),
        1e6.. => format!("{:.2}M", x / 1e6),
        1e4.. => format!("{:.1}k", x / 1e3),
        100.0.. => format!("{x:.0}"),
        1.0.. => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}
