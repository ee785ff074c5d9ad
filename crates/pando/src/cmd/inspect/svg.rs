//! A picture of a DAG as SVG; what is large is folded (`fold`).
//!
//! Nodes stand at their height. An interior node is a row of cells, one an edge:
//! the keys it shows, the messages that wait there (newest on top), and what the
//! edge takes off and puts on. A node with several references has a double
//! border; a Goto is hatched, and its arrow dashed with an open head; so nothing
//! is told by colour alone. Only elements that every viewer knows are used.

use std::{collections::HashMap, fmt::Write};

use pando_db::{Inspection, KeyRange, LayerInfo, MessageInfo, NodeInfo, PageInfo, PathInfo, TargetInfo};

use crate::cmd::inspect::{
    fold::{ROW_WIDTHS, fold},
    keys::{Keys, count},
    layout::{self, Item, Link},
    shapes::{Cell, LINE_HEIGHT, PADDING, Part, Shape, TITLE_HEIGHT, text_width},
    style::{HATCH, STYLE, XMLNS},
};
use crate::size::show;

/// Space left of everything, for the heights, pixels.
const MARGIN: f64 = 92.0;
/// Space between two lines of boxes, for the arrows, pixels.
const ROW_GAP: f64 = 64.0;
/// Longest text, a count of characters; what is longer is shortened in the middle.
const MAX_CHARS: usize = 40;
/// Widest picture, pixels, if what is folded can make it so.
const MAX_WIDTH: f64 = 4000.0;
/// Most lines of pairs and messages that a page shows, a count.
const MAX_LINES: usize = 8;

/// What is drawn, and where.
struct Layout {
    shapes: Vec<Shape>,
    items: Vec<Item>,
    bends: HashMap<usize, Vec<usize>>,
    heights: Vec<Option<u8>>,
    width: f64,
}

/// Folds rows to a width, and finds places for the boxes.
fn arranged(seen: &Inspection, keys: Keys, row_width: f64) -> Layout {
    let mut shapes: Vec<Shape> = seen.nodes.iter().map(|node| shape(node, keys)).collect();
    if !seen.memory.is_empty() {
        shapes.insert(0, memory(seen, keys));
    }
    let shapes = fold(shapes, row_width);
    // Rows: what is in memory only on top, then by height.
    let mut heights: Vec<Option<u8>> = shapes.iter().map(|shape| shape.height).collect();
    heights.sort_by_key(|height| std::cmp::Reverse(height.map_or(256, u16::from)));
    heights.dedup();
    let row_of = |shape: &Shape| heights.iter().position(|h| *h == shape.height).unwrap_or(0);
    let mut items: Vec<Item> =
        shapes.iter().map(|s| Item { row: row_of(s), width: s.width(), x: 0.0 }).collect();
    let (links, bends) = links(&shapes, &mut items);
    let width = MARGIN + layout::arrange(&mut items, &links).max(560.0) + 24.0;
    Layout { shapes, items, bends, heights, width }
}

/// The whole picture.
pub fn draw(seen: &Inspection, keys: Keys) -> String {
    let (mut row_width, least) = ROW_WIDTHS;
    let mut layout = arranged(seen, keys, row_width);
    // Arrows that go through a row take room as well.
    while layout.width > MAX_WIDTH && row_width > least {
        row_width *= 0.8;
        layout = arranged(seen, keys, row_width);
    }
    let Layout { shapes, items, bends, heights, width } = layout;
    let mut top = 24.0;
    let mut rows = Vec::new();
    for row in 0..heights.len() {
        let members = shapes.iter().zip(&items).filter(|(_, item)| item.row == row);
        let tallest = members.map(|(shape, _)| shape.height()).fold(0.0, f64::max);
        rows.push(Row { top, bottom: top + tallest });
        top += tallest + ROW_GAP;
    }
    let mut out = Picture::default();
    for (row, height) in rows.iter().zip(&heights) {
        let name = height.map_or_else(|| "in memory".into(), |h| format!("height {h}"));
        out.text("axis", 16.0, row.top + 16.0, &name);
    }
    let mut arrows = Vec::new();
    for (shape, item) in shapes.iter().zip(&items) {
        let Some(row) = rows.get(item.row) else { continue };
        shape.draw(&mut out, MARGIN + item.x, *row, &mut arrows);
    }
    let at = |id: u64| {
        let i = shapes.iter().position(|shape| shape.height.is_some() && shape.id == id)?;
        let item = items.get(i)?;
        Some((MARGIN + item.x, rows.get(item.row)?.top, item.width))
    };
    // The points at which an arrow passes a row, above and below it.
    let passes = |arrow: usize| -> Vec<(f64, Row)> {
        let bends = bends.get(&arrow).into_iter().flatten().filter_map(|i| items.get(*i));
        bends.filter_map(|item| Some((MARGIN + item.x + item.width / 2.0, *rows.get(item.row)?))).collect()
    };
    land(&mut out, &arrows, at, passes);
    let mut bottom = top - ROW_GAP + 40.0;
    if seen.omitted > 0 {
        out.text("note", MARGIN, bottom - 12.0, &format!("... and {}", count(seen.omitted, "more node")));
        bottom += 20.0;
    }
    legend(&mut out, bottom);
    out.finish(width, bottom + 30.0)
}

/// Upper and lower border of a row.
#[derive(Clone, Copy)]
struct Row {
    top: f64,
    bottom: f64,
}

/// Links between boxes, for the arrangement. One that passes rows gets a narrow item of its own in each:
/// these are given by the number of the arrow, in the order in which [`Shape::draw`] makes arrows.
fn links(shapes: &[Shape], items: &mut Vec<Item>) -> (Vec<Link>, HashMap<usize, Vec<usize>>) {
    let find = |id: u64| shapes.iter().position(|s| s.height.is_some() && s.id == id);
    let (mut links, mut bends) = (Vec::new(), HashMap::new());
    let mut arrow = 0;
    for (from, shape) in shapes.iter().enumerate() {
        let mut left = 0.0;
        for cell in &shape.cells {
            let (mut from, middle) = (from, left + cell.width() / 2.0);
            left += cell.width();
            let gotos = cell.parts.iter().filter_map(|part| match part {
                Part::Chip { target, .. } => *target,
                Part::Text(..) => None,
            });
            for target in gotos.chain(cell.child) {
                arrow += 1;
                let Some(to) = find(target) else { continue };
                let row = |i: usize| items.get(i).map_or(0, |item: &Item| item.row);
                let mut at = middle;
                let first = from;
                for row in row(from) + 1..row(to) {
                    items.push(Item { row, width: 8.0, x: 0.0 });
                    let bend = items.len() - 1;
                    links.push(Link { from, at, to: bend });
                    bends.entry(arrow - 1).or_insert_with(Vec::new).push(bend);
                    (from, at) = (bend, 4.0);
                }
                links.push(Link { from, at, to });
                from = first;
            }
        }
    }
    (links, bends)
}

fn shape(node: &NodeInfo, keys: Keys) -> Shape {
    let path = node.path.as_ref();
    let (mut cells, mut broken) = (Vec::new(), false);
    match &node.content {
        Err(why) => {
            broken = true;
            let parts =
                vec![Part::Text("strong", "cannot be read".into()), Part::Text("small", shorten(why))];
            cells.push(Cell { parts, child: None });
        }
        Ok(content) if node.height == 0 => {
            let mut parts = vec![Part::Text("range", shorten(&keys.piece_range(&content.range)))];
            content.pages.iter().for_each(|page| parts.extend(pairs(page, keys)));
            if content.pages.is_empty() {
                parts.push(Part::Text("small", "empty".into()));
            }
            cells.push(Cell { parts, child: None });
        }
        Ok(content) => {
            for edge in &content.edges {
                let mut parts = vec![Part::Text("range", shorten(&keys.range(path, &edge.range)))];
                edge.layers.iter().rev().for_each(|layer| parts.extend(chips(layer, path, keys)));
                match &edge.child {
                    Some(child) => parts.extend(map(child, keys).map(|map| Part::Text("map", map))),
                    None => parts.push(Part::Text("small", "∅ nothing below".into())),
                }
                cells.push(Cell { parts, child: edge.child.as_ref().map(|child| child.node) });
            }
        }
    }
    let shared = node.references > 1;
    let badge = match node.references {
        0 => Some("to be reclaimed".into()),
        1 => None,
        n => Some(format!("shared ×{n}")),
    };
    let size = if node.extents.is_empty() { String::new() } else { format!(" · {}", show(node.bytes)) };
    Shape {
        id: node.id,
        class: if node.height == 0 { "leaf" } else { "inner" },
        title: format!("node {}{size}", node.id),
        badge,
        cells,
        shared,
        broken,
        bytes: node.bytes,
        height: Some(node.height),
    }
}

/// The memtables, as a box above all nodes.
fn memory(seen: &Inspection, keys: Keys) -> Shape {
    let cells = seen.memory.iter().map(|layer| Cell { parts: chips(layer, None, keys), child: None });
    Shape {
        id: 0,
        class: "memory",
        title: "in memory".into(),
        badge: None,
        cells: cells.collect(),
        shared: false,
        broken: false,
        bytes: 0,
        height: None,
    }
}

/// The messages of a layer.
fn chips(layer: &LayerInfo, path: Option<&PathInfo>, keys: Keys) -> Vec<Part> {
    let mut chips = Vec::new();
    for page in &layer.pages {
        let mut lines = vec![count(page.entries, "message")];
        match &page.messages {
            Some(Ok(entries)) => {
                lines.extend(entries.iter().take(MAX_LINES).map(|entry| {
                    let key = keys.local(path, &entry.key);
                    shorten(&match &entry.message {
                        MessageInfo::Put(_) => format!("put {key}"),
                        MessageInfo::Delete => format!("delete {key}"),
                        MessageInfo::Upsert(_) => format!("change {key}"),
                    })
                }));
                if entries.len() > MAX_LINES {
                    lines.push(format!("… and {} more", entries.len() - MAX_LINES));
                }
            }
            Some(Err(_)) => lines.push("cannot be read".into()),
            None if page.entries == 1 => {
                lines = vec![shorten(&format!("1 message: {}", keys.local(path, &page.first)))]
            }
            None => lines.push(shorten(&keys.local(path, &page.first)) + " …"),
        }
        chips.push(Part::Chip { class: "points", lines, target: None });
    }
    for update in &layer.updates {
        let lines = vec![format!("∀ change {}", shorten(&keys.range(path, &update.range)))];
        chips.push(Part::Chip { class: "points", lines, target: None });
    }
    for range in &layer.ranges {
        let words = |range: &KeyRange| shorten(&keys.range(path, range));
        chips.push(match &range.target {
            None => {
                let lines = vec![format!("✕ delete {}", words(&range.range))];
                Part::Chip { class: "delete", lines, target: None }
            }
            Some(target) => {
                let mut lines = vec![format!("Goto {}", words(&range.range))];
                lines.extend(map(target, keys));
                Part::Chip { class: "goto", lines, target: Some(target.node) }
            }
        });
    }
    chips
}

fn map(target: &TargetInfo, keys: Keys) -> Option<String> {
    Some(shorten(&keys.map(target))).filter(|map| !map.is_empty())
}

/// A page of a leaf.
fn pairs(page: &PageInfo, keys: Keys) -> Vec<Part> {
    match &page.messages {
        Some(Ok(entries)) => {
            let some =
                entries.iter().take(MAX_LINES).map(|e| Part::Text("small", shorten(&keys.piece(&e.key))));
            let mut parts: Vec<Part> = some.collect();
            if entries.len() > MAX_LINES {
                parts.push(Part::Text("small", format!("… and {} more", entries.len() - MAX_LINES)));
            }
            parts
        }
        Some(Err(_)) => vec![Part::Text("strong", "a page that cannot be read".into())],
        None => {
            let pairs = count(page.entries, "pair");
            vec![Part::Text("small", shorten(&format!("{pairs} from {}", keys.piece(&page.first))))]
        }
    }
}

/// A text that is not too long, its middle left out.
fn shorten(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= MAX_CHARS {
        return text.into();
    }
    let (head, tail) = (MAX_CHARS / 2, MAX_CHARS - MAX_CHARS / 2 - 1);
    let start: String = chars.iter().take(head).collect();
    let end: String = chars.iter().skip(chars.len() - tail).collect();
    format!("{start}…{end}")
}

/// An arrow: where it begins and leaves its row, to which node, and whether it is that of a Goto.
struct Arrow {
    x: f64,
    y: f64,
    floor: f64,
    to: u64,
    goto: bool,
}

impl Shape {
    fn draw(&self, out: &mut Picture, x: f64, row: Row, arrows: &mut Vec<Arrow>) {
        let (y, floor) = (row.top, row.bottom);
        let (w, h) = (self.width(), self.height());
        if self.shared {
            out.rect("outer", x - 4.0, y - 4.0, w + 8.0, h + 8.0, 9.0);
        }
        let class = if self.broken { "broken" } else { self.class };
        out.rect(class, x, y, w, h, 6.0);
        out.text("title", x + PADDING + 2.0, y + 16.0, &self.title);
        if let Some(badge) = &self.badge {
            let wide = text_width(badge) + 12.0;
            out.rect("badge", x + w - wide - 6.0, y + 4.0, wide, 16.0, 8.0);
            out.text("badgetext", x + w - wide, y + 16.0, badge);
        }
        let spare = (w - self.cells.iter().map(Cell::width).sum::<f64>()) / self.cells.len().max(1) as f64;
        let mut left = x;
        for (i, cell) in self.cells.iter().enumerate() {
            let wide = cell.width() + spare;
            out.line("rule", left, y + TITLE_HEIGHT, left + wide, y + TITLE_HEIGHT);
            if i > 0 {
                out.line("rule", left, y + TITLE_HEIGHT, left, y + h);
            }
            let mut top = y + TITLE_HEIGHT + 4.0;
            let mut gutter = 0.0;
            for part in &cell.parts {
                match part {
                    Part::Text(class, text) => out.text(class, left + PADDING, top + 12.0, text),
                    Part::Chip { class, lines, target } => {
                        let (cw, ch) = (part.width(), part.height() - 6.0);
                        out.rect(class, left + PADDING, top + 2.0, cw, ch, 3.0);
                        for (n, line) in lines.iter().enumerate() {
                            let class = if n == 0 || target.is_none() { "chip" } else { "map" };
                            out.text(class, left + 2.0 * PADDING, top + 15.0 + LINE_HEIGHT * n as f64, line);
                        }
                        if let Some(to) = *target {
                            let (sx, sy) = (left + PADDING + cw, top + 2.0 + ch / 2.0);
                            let lane = left + wide - 8.0 + gutter;
                            gutter += 3.0;
                            out.path("goto-line", &format!("M{sx:.1} {sy:.1}H{lane:.1}V{:.1}", y + h));
                            out.dot("goto-dot", sx, sy);
                            arrows.push(Arrow { x: lane, y: y + h, floor, to, goto: true });
                        }
                    }
                }
                top += part.height();
            }
            if let Some(to) = cell.child {
                out.dot("edge-dot", left + wide / 2.0, y + h);
                arrows.push(Arrow { x: left + wide / 2.0, y: y + h, floor, to, goto: false });
            }
            left += wide;
        }
    }
}

/// Draws the arrows; those that end at one box are spread over its upper border.
fn land(
    out: &mut Picture,
    arrows: &[Arrow],
    at: impl Fn(u64) -> Option<(f64, f64, f64)>,
    passes: impl Fn(usize) -> Vec<(f64, Row)>,
) {
    for (i, arrow) in arrows.iter().enumerate() {
        let class = if arrow.goto { "goto-line" } else { "edge-line" };
        let Some((left, top, wide)) = at(arrow.to) else {
            // The node is not in the picture.
            let (x, y) = (arrow.x, arrow.y + 22.0);
            out.path(class, &format!("M{x:.1} {:.1}V{y:.1}", arrow.y));
            out.text("small", x - 4.0, y + 12.0, &format!("→ node {}", arrow.to));
            continue;
        };
        let same: Vec<(usize, f64)> =
            arrows.iter().enumerate().filter(|(_, a)| a.to == arrow.to).map(|(n, a)| (n, a.x)).collect();
        let rank = same.iter().filter(|(n, x)| (*x, *n) < (arrow.x, i)).count();
        let share = (rank as f64 + 1.0) / (same.len() as f64 + 1.0);
        let (x1, y1) = (left + wide * share, top - 7.0);
        // Straight past the taller boxes of its row first.
        let mut path = format!("M{:.1} {:.1}V{:.1}", arrow.x, arrow.y, arrow.floor);
        let mut from = (arrow.x, arrow.floor);
        for (x, row) in passes(i) {
            path += &curve(from, (x, row.top));
            path += &format!("V{:.1}", row.bottom);
            from = (x, row.bottom);
        }
        path += &curve(from, (x1, y1));
        out.path(class, &path);
        let head = format!(
            "M{:.1} {:.1}L{x1:.1} {:.1}L{:.1} {:.1}",
            x1 - 4.0,
            y1 - 5.0,
            y1 + 3.0,
            x1 + 4.0,
            y1 - 5.0
        );
        out.path(
            if arrow.goto { "goto-head" } else { "edge-head" },
            &(head + if arrow.goto { "" } else { "Z" }),
        );
    }
}

/// A curve that leaves and arrives straight down.
fn curve((x0, y0): (f64, f64), (x1, y1): (f64, f64)) -> String {
    let bend = ((y1 - y0) / 2.0).clamp(14.0, 90.0);
    format!("C{x0:.1} {:.1} {x1:.1} {:.1} {x1:.1} {y1:.1}", y0 + bend, y1 - bend)
}

fn legend(out: &mut Picture, y: f64) {
    let mut x = MARGIN;
    let mut entry = |out: &mut Picture, draw: &dyn Fn(&mut Picture, f64), text: &str| {
        draw(out, x);
        out.text("legend", x + 34.0, y + 4.0, text);
        x += 34.0 + text_width(text) * 0.92 + 22.0;
    };
    entry(out, &|out, x| out.path("edge-line", &format!("M{x:.1} {y:.1}h26")), "edge");
    entry(out, &|out, x| out.path("goto-line", &format!("M{x:.1} {y:.1}h26")), "resting Goto");
    let shared = |out: &mut Picture, x: f64| {
        out.rect("outer", x, y - 8.0, 26.0, 16.0, 5.0);
        out.rect("inner", x + 3.0, y - 5.0, 20.0, 10.0, 3.0);
    };
    entry(out, &shared, "shared node");
    let map = |out: &mut Picture, x: f64| out.text("map", x, y + 4.0, "−a+b");
    entry(out, &map, "takes a off keys, puts b on");
}

/// The elements so far.
#[derive(Default)]
struct Picture {
    body: String,
}

impl Picture {
    fn add(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.body.write_fmt(element);
        self.body.push('\n');
    }

    fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let text = escape(text);
        self.add(format_args!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#));
    }

    fn rect(&mut self, class: &str, x: f64, y: f64, w: f64, h: f64, r: f64) {
        self.add(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" rx="{r:.1}"/>"#
        ));
    }

    fn line(&mut self, class: &str, x0: f64, y0: f64, x1: f64, y1: f64) {
        self.path(class, &format!("M{x0:.1} {y0:.1}L{x1:.1} {y1:.1}"));
    }

    fn path(&mut self, class: &str, d: &str) {
        self.add(format_args!(r#"<path class="{class}" d="{d}"/>"#));
    }

    fn dot(&mut self, class: &str, x: f64, y: f64) {
        self.add(format_args!(r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="2.6"/>"#));
    }

    fn finish(self, width: f64, height: f64) -> String {
        format!(
            r##"<svg xmlns="{XMLNS}" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}">
<style>{STYLE}</style>
<defs>{HATCH}</defs>
<rect width="100%" height="100%" fill="#ffffff"/>
{}</svg>
"##,
            self.body
        )
    }
}

/// Text that may stand between tags. Control characters, which XML knows no way to write, are replaced.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            c if c.is_control() || c == '\u{fffe}' || c == '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
