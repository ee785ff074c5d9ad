//! The boxes of a picture: their text and their sizes.

/// Width of a character of the font at its size of 11, and the height of a line, pixels.
const CHAR_WIDTH: f64 = 6.65;
pub const LINE_HEIGHT: f64 = 16.0;
/// Space inside of a border, pixels.
pub const PADDING: f64 = 8.0;
/// Height of the title of a box, pixels.
pub const TITLE_HEIGHT: f64 = 24.0;

/// A line or chip in a box.
pub enum Part {
    /// A plain line: its class and text.
    Text(&'static str, String),
    /// A chip of a message: its lines, and whether it is a Goto to that node.
    Chip { class: &'static str, lines: Vec<String>, target: Option<u64> },
}

/// A column of a box: an edge of an interior node, or all of a leaf.
pub struct Cell {
    pub parts: Vec<Part>,
    pub child: Option<u64>,
}

/// A box of the picture.
pub struct Shape {
    /// The node, or the first of those that it counts.
    pub id: u64,
    pub class: &'static str,
    pub title: String,
    pub badge: Option<String>,
    pub cells: Vec<Cell>,
    pub shared: bool,
    pub broken: bool,
    /// Bytes of the node on the device.
    pub bytes: u64,
    pub height: Option<u8>,
}

/// Width of a line of text.
pub fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * CHAR_WIDTH
}

impl Part {
    pub fn width(&self) -> f64 {
        match self {
            Part::Text(_, text) => text_width(text),
            Part::Chip { lines, .. } => {
                lines.iter().map(|line| text_width(line)).fold(0.0, f64::max) + 2.0 * PADDING
            }
        }
    }

    pub fn height(&self) -> f64 {
        match self {
            Part::Text(..) => LINE_HEIGHT,
            Part::Chip { lines, .. } => LINE_HEIGHT * lines.len() as f64 + 12.0,
        }
    }
}

impl Cell {
    pub fn width(&self) -> f64 {
        // Space on the right for the lines that come out of Gotos.
        self.parts.iter().map(Part::width).fold(44.0, f64::max) + 2.0 * PADDING + 8.0
    }

    pub fn height(&self) -> f64 {
        self.parts.iter().map(Part::height).sum::<f64>() + PADDING + 4.0
    }
}

impl Shape {
    pub fn width(&self) -> f64 {
        let badge = self.badge.as_ref().map_or(0.0, |badge| text_width(badge) + 24.0);
        self.cells.iter().map(Cell::width).sum::<f64>().max(text_width(&self.title) + badge + 24.0)
    }

    pub fn height(&self) -> f64 {
        TITLE_HEIGHT + self.cells.iter().map(Cell::height).fold(LINE_HEIGHT, f64::max)
    }
}
