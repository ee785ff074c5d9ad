//! Folds a picture of nodes that would be too large: each row keeps as many boxes as fit, and one box counts the
//! rest. The edges of a node, and the text in a box, are folded in the same way.
//!
//! Small pictures stay as they are. What was left out can be seen with `--node` and `--limit`. Pure functions over
//! boxes.

use std::collections::HashMap;

use crate::{
    cmd::inspect::{
        keys::count,
        layout::GAP,
        shapes::{Cell, Part, Shape},
    },
    size::show,
};

/// Width of a row that is tried first, and the smallest one that is tried, pixels.
pub const ROW_WIDTHS: (f64, f64) = (3000.0, 600.0);
/// Least and tallest content of a box, pixels: the more levels, the less.
const CELL_HEIGHTS: (f64, f64) = (32.0, 400.0);
/// Tallest sum of the levels, and what a level has besides the content of its boxes (title, the line that counts the
/// rest, borders, arrows), pixels.
const ALL_LEVELS: f64 = 3700.0;
const LEVEL: f64 = 116.0;
/// Room for the box or cell that counts the rest, pixels.
const REST_WIDTH: f64 = 260.0;

/// Folds what would make a row wider than `row_width`; arrows that pass through the row are not counted. An arrow to a
/// node that has no box any more leads to the box that counts that node.
pub fn fold(shapes: Vec<Shape>, row_width: f64) -> Vec<Shape> {
    let mut rows: Vec<(Option<u8>, Vec<Shape>)> = Vec::new();
    for shape in shapes {
        match rows.iter_mut().find(|(height, _)| *height == shape.height) {
            Some((_, row)) => row.push(shape),
            None => rows.push((shape.height, vec![shape])),
        }
    }
    let mut out: Vec<Shape> = Vec::new();
    let mut folded = HashMap::new();
    let (least, most) = CELL_HEIGHTS;
    let tallest = (ALL_LEVELS / rows.len().max(1) as f64 - LEVEL).clamp(least, most);
    for (height, mut row) in rows {
        row.iter_mut().flat_map(|shape| &mut shape.cells).for_each(|cell| fold_parts(cell, tallest));
        // Two narrower boxes say more of a row than one wide box.
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
fn fold_parts(cell: &mut Cell, tallest: f64) {
    let mut left = tallest;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_levels_of_many_wide_and_tall_nodes_fit_and_none_is_lost() {
        let text = |n: u64| Part::Text("small", format!("line {n}"));
        let cell = |n: u64| Cell { parts: (0..40).map(text).collect(), child: Some(n) };
        let shape = |height: u8, n: u64| Shape {
            id: u64::from(height) * 1000 + n,
            class: "inner",
            title: format!("node {n}"),
            badge: None,
            cells: (0..30).map(|i| cell(u64::from(height) * 1000 - 1000 + i)).collect(),
            shared: n.is_multiple_of(2),
            broken: false,
            bytes: 10,
            height: Some(height),
        };
        let shapes = (1..=25).rev().flat_map(|height| (0..200).map(move |n| shape(height, n))).collect();
        let folded = fold(shapes, ROW_WIDTHS.0);
        let mut tall = 0.0;
        for height in 1..=25 {
            let row = || folded.iter().filter(move |shape| shape.height == Some(height));
            assert!(row().map(|shape| shape.width() + GAP).sum::<f64>() <= ROW_WIDTHS.0 + GAP);
            tall += row().map(Shape::height).fold(0.0, f64::max) + 64.0;
            let rest: Vec<&Shape> = row().filter(|shape| shape.class == "folded").collect();
            let own = row().count() - 1;
            assert_eq!(rest.len(), 1);
            assert_eq!(rest[0].title, format!("… and {} more nodes", 200 - own));
            // What pointed to those that have no box points to the one that counts them.
            let has = |id: u64| folded.iter().any(|shape| shape.id == id);
            let below = row().flat_map(|shape| &shape.cells).filter_map(|cell| cell.child);
            assert!(height == 1 || below.clone().count() > 3 && below.clone().all(has), "level {height}");
        }
        assert!(tall < 4000.0, "{tall}");
    }
}
