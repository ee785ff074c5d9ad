//! What does not fit a picture that one can look at, folded: of a row as many boxes as there is room for, and one box
//! that counts the rest; the same of the edges of a node, and of what stands in one.
//!
//! Small pictures stay as they are. What was left out can be seen by `--node` and `--limit`. Pure functions over boxes.

use std::collections::HashMap;

use crate::{
    cmd::inspect::{
        keys::count,
        layout::GAP,
        shapes::{Cell, Part, Shape},
    },
    size::show,
};

/// Widest row that is tried first, and least, pixels.
pub const ROW_WIDTHS: (f64, f64) = (3000.0, 600.0);
/// Tallest content of a box, pixels.
const CELL_HEIGHT: f64 = 400.0;
/// Room for the box or cell that counts the rest, pixels.
const REST_WIDTH: f64 = 260.0;

/// Folds what would make a row wider than `row_width`, without the arrows that go through it. What points to a
/// node that has no box any more points to the one that counts it.
pub fn fold(shapes: Vec<Shape>, row_width: f64) -> Vec<Shape> {
    let mut rows: Vec<(Option<u8>, Vec<Shape>)> = Vec::new();
    for mut shape in shapes {
        shape.cells.iter_mut().for_each(fold_parts);
        match rows.iter_mut().find(|(height, _)| *height == shape.height) {
            Some((_, row)) => row.push(shape),
            None => rows.push((shape.height, vec![shape])),
        }
    }
    let mut out: Vec<Shape> = Vec::new();
    let mut folded = HashMap::new();
    for (height, mut row) in rows {
        // Some nodes of a row are better than one.
        let most = if row.len() > 1 { row_width / 2.0 } else { row_width };
        row.iter_mut().for_each(|shape| fold_cells(shape, most));
        let fits = fitting(row.iter().map(|shape| shape.width() + GAP), row_width);
        let rest = row.split_off(fits);
        out.extend(row);
        if !rest.is_empty() {
            let counted = counted(&rest, height);
            rest.iter().for_each(|shape| _ = folded.insert(shape.id, counted.id));
            out.push(counted);
        }
    }
    let lead = |to: &mut u64| *to = folded.get(to).copied().unwrap_or(*to);
    for cell in out.iter_mut().flat_map(|shape| &mut shape.cells) {
        cell.child.iter_mut().for_each(lead);
        cell.parts.iter_mut().for_each(|part| match part {
            Part::Chip { target, .. } => target.iter_mut().for_each(lead),
            Part::Text(..) => {}
        });
    }
    out
}

/// How many of these widths stand side by side, and leave room for the rest if there is one; at least one.
fn fitting(widths: impl Iterator<Item = f64> + Clone, most: f64) -> usize {
    if widths.clone().sum::<f64>() <= most {
        return widths.count();
    }
    let mut left = most - REST_WIDTH;
    let fits = widths.take_while(|width| {
        left -= width;
        left >= 0.0
    });
    fits.count().max(1)
}

/// Leaves out what would make a cell too tall.
fn fold_parts(cell: &mut Cell) {
    let mut left = CELL_HEIGHT;
    let fits = cell.parts.iter().take_while(|part| {
        left -= part.height();
        left >= 0.0
    });
    let fits = fits.count();
    let rest = cell.parts.len() - fits;
    // A line alone takes no more room than the one that counts it.
    if rest > 1 {
        cell.parts.truncate(fits);
        cell.parts.push(Part::Text("note", format!("… and {rest} more")));
    }
}

/// Leaves out the edges that would make a node too wide.
fn fold_cells(shape: &mut Shape, most: f64) {
    let fits = fitting(shape.cells.iter().map(Cell::width), most);
    let rest = shape.cells.split_off(fits);
    if rest.is_empty() {
        return;
    }
    let chips = rest.iter().flat_map(|cell| &cell.parts).filter(|part| matches!(part, Part::Chip { .. }));
    let mut parts = vec![Part::Text("note", format!("… and {}", count(rest.len() as u64, "more edge")))];
    match chips.count() {
        0 => {}
        n => parts.push(Part::Text("small", format!("{} of messages in them", count(n as u64, "group")))),
    }
    let child = rest.iter().find_map(|cell| cell.child);
    shape.cells.push(Cell { parts, child });
}

/// A box that counts nodes.
fn counted(rest: &[Shape], height: Option<u8>) -> Shape {
    let mut parts = vec![Part::Text("small", show(rest.iter().map(|shape| shape.bytes).sum()))];
    for (what, n) in [
        ("shared", rest.iter().filter(|shape| shape.shared).count()),
        ("cannot be read", rest.iter().filter(|shape| shape.broken).count()),
    ] {
        if n > 0 {
            parts.push(Part::Text("small", format!("{n} {what}")));
        }
    }
    Shape {
        id: rest.first().map_or(0, |shape| shape.id),
        class: "folded",
        title: format!("… and {}", count(rest.len() as u64, "more node")),
        badge: None,
        cells: vec![Cell { parts, child: None }],
        shared: false,
        broken: rest.iter().any(|shape| shape.broken),
        bytes: 0,
        height,
    }
}
