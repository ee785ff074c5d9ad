//! That constants say what they count, and that the name of a type is used once in a crate.

use std::collections::BTreeMap;

use crate::source::{CRATES, Source, none, sources};

/// What a number may count: one of these stands in the name of a constant or in the comment above it.
const UNITS: &[&str] = &[
    "batch",
    "bit",
    "block",
    "buffer",
    "byte",
    "call",
    "cell",
    "change",
    "clone",
    "count",
    "depth",
    "edge",
    "edit",
    "entries",
    "entry",
    "extent",
    "factor",
    "fraction",
    "group",
    "key",
    "kind",
    "layer",
    "level",
    "line",
    "lock",
    "mark",
    "message",
    "multiple",
    "nanosecond",
    "node",
    "number",
    "operation",
    "page",
    "part",
    "piece",
    "place",
    "point",
    "problem",
    "range",
    "ratio",
    "record",
    "request",
    "round",
    "sample",
    "second",
    "share",
    "slot",
    "step",
    "table",
    "tries",
    "try",
    "unit",
    "version",
    "word",
    "1/n",
];

/// What each command of the program has one of: its arguments.
const NAMES_OF_MANY: &[&str] = &["Args"];

#[test]
fn every_number_says_what_it_counts() {
    let mut broken = Vec::new();
    for source in CRATES.iter().flat_map(sources) {
        let mut comment = String::new();
        for (i, line) in source.code() {
            let line = line.trim();
            if let Some(text) = line.strip_prefix("///") {
                comment.push_str(&text.to_lowercase());
                continue;
            }
            let item = line.trim_start_matches("pub(crate) ").trim_start_matches("pub ");
            let Some((name, rest)) = item.strip_prefix("const ").and_then(|rest| rest.split_once(": "))
            else {
                // A comment goes for the constants that follow it at once.
                if !line.starts_with("#[") {
                    comment.clear();
                }
                continue;
            };
            // A constant of one byte is a mark: a kind, a tag or a version of a format.
            let number =
                ["u16", "u32", "u64", "usize", "i32", "i64", "f64"].iter().any(|t| rest.starts_with(t));
            let name_says = name.to_lowercase();
            let has_unit = UNITS.iter().any(|unit| comment.contains(unit) || name_says.contains(unit));
            // What formats are told apart by is no quantity.
            let is_mark = name.ends_with("MAGIC") || rest.contains("from_le_bytes");
            // Numbers that the kernel has given out mean what its headers say.
            let is_kernels = name.starts_with("S_")
                || name.starts_with("O_")
                || source.path == "transport/own/wire.rs"
                || rest.contains("libc::");
            if number && !has_unit && !is_mark && !is_kernels {
                broken.push(format!("{}:{i}: {name}", source.path));
            }
        }
    }
    none(broken);
}

/// The name of the type that a line defines. A `type` further in is what a trait is given for its own name.
fn defined_type(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let code = match code.strip_prefix("pub") {
        // `pub(crate)` and its like.
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1,
        Some(rest) => rest,
        None => code,
    };
    let mut words = code.split_whitespace();
    let rest = match words.next()? {
        "struct" | "enum" | "trait" => words.next()?,
        "type" if !line.starts_with(' ') => words.next()?,
        "unsafe" if words.next()? == "trait" => words.next()?,
        _ => return None,
    };
    // A macro has `$name` there.
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// Types of a crate that have the name of another one: where they are.
pub fn same_names(sources: &[Source]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in sources {
        for (i, line) in source.code() {
            if let Some(name) = defined_type(line) {
                places.entry(name).or_default().push(format!("{}:{i}", source.path));
            }
        }
    }
    places.retain(|name, places| places.len() > 1 && !NAMES_OF_MANY.contains(name));
    places.into_iter().map(|(name, places)| format!("{name}: {}", places.join(", "))).collect()
}

#[test]
fn a_type_name_means_one_thing_in_a_crate() {
    for one in CRATES {
        none(same_names(&sources(one)));
    }
}
