//! That constants say what they count, and that the names of types and of constants mean one thing in a crate.

use std::collections::BTreeMap;

use crate::source::{CRATES, Source, none, sources};

/// What a number may count: one of these words, or its plural, stands in the name of a constant or in the comment
/// right above it.
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
    "cookie",
    "delete",
    "count",
    "depth",
    "edge",
    "edit",
    "entry",
    "extent",
    "factor",
    "file",
    "fraction",
    "group",
    "header",
    "key",
    "kind",
    "layer",
    "level",
    "line",
    "lock",
    "mark",
    "message",
    "micro",
    "multiple",
    "name",
    "nanosecond",
    "node",
    "number",
    "operation",
    "page",
    "part",
    "path",
    "piece",
    "pixel",
    "place",
    "point",
    "problem",
    "range",
    "ratio",
    "read",
    "record",
    "request",
    "round",
    "sample",
    "score",
    "second",
    "share",
    "shard",
    "slot",
    "step",
    "table",
    "thread",
    "try",
    "unit",
    "version",
    "word",
    "1/n",
];

/// What each command of the program has one of: its arguments.
const NAMES_OF_MANY: &[&str] = &["Args"];

/// A constant of a source file, with the comment that is its own.
struct Constant<'s> {
    line: usize,
    name: &'s str,
    /// Its type and its value, on one line.
    text: String,
    comment: String,
    /// It is part of a module, and not of a type, a function or a module inside one.
    is_of_module: bool,
}

fn constants(source: &Source) -> Vec<Constant<'_>> {
    let mut found: Vec<Constant<'_>> = Vec::new();
    let (mut comment, mut open) = (String::new(), false);
    for (i, whole) in source.code() {
        let line = whole.trim();
        if let Some(last) = found.last_mut().filter(|_| open) {
            last.text.push_str(line);
            open = !line.ends_with(';');
            continue;
        }
        if let Some(text) = line.strip_prefix("///") {
            comment.push_str(text);
            continue;
        }
        let item = match line.strip_prefix("pub") {
            // `pub(crate)` and its like.
            Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or(rest, |(_, item)| item),
            Some(rest) => rest.trim_start(),
            None => line,
        };
        if let Some((name, rest)) = item.strip_prefix("const ").and_then(|rest| rest.split_once(": ")) {
            let (text, comment) = (rest.to_string(), std::mem::take(&mut comment));
            let is_of_module = !whole.starts_with(' ') && name != "_";
            found.push(Constant { line: i, name, text, comment, is_of_module });
            open = !line.ends_with(';');
        } else if !line.starts_with("#[") {
            comment.clear();
        }
    }
    found
}

/// True if a text has a unit as a word of its own.
fn names_a_unit(text: &str) -> bool {
    let text = text.to_lowercase();
    let is_unit = |word: &str| {
        let one = match word.strip_suffix("ies") {
            Some(stem) => format!("{stem}y"),
            None => word.to_string(),
        };
        let is = |word: &str| UNITS.contains(&word);
        is(&one) || one.strip_suffix('s').is_some_and(is) || one.strip_suffix("es").is_some_and(is)
    };
    text.split(|c: char| !c.is_alphanumeric() && c != '/').any(is_unit)
}

/// Numbers of which neither the name nor the comment says what they count.
pub fn without_unit(source: &Source) -> Vec<String> {
    let lacks = |one: &Constant<'_>| {
        let types = ["u16", "u32", "u64", "usize", "i32", "i64", "f64"];
        // A constant of one byte is a mark: a kind, a tag or a version of a format.
        let number = types.iter().any(|t| one.text.starts_with(t));
        let has_unit = names_a_unit(&one.comment) || names_a_unit(&one.name.replace('_', " "));
        // What formats are told apart by is no quantity.
        let is_mark = one.name.ends_with("MAGIC")
            || one.name.starts_with("FEATURE_")
            || ["from_le_bytes", "number::<"].iter().any(|made| one.text.contains(made));
        // Numbers that the kernel has given out mean what its headers say.
        let is_kernels = one.name.starts_with("S_")
            || one.name.starts_with("O_")
            || source.path == "transport/own/wire.rs"
            || one.text.contains("libc::");
        number && !has_unit && !is_mark && !is_kernels
    };
    let found = constants(source);
    found.iter().filter(|one| lacks(one)).map(|o| format!("{}:{}: {}", source.path, o.line, o.name)).collect()
}

#[test]
fn every_number_says_what_it_counts() {
    none(CRATES.iter().flat_map(sources).flat_map(|source| without_unit(&source)).collect());
}

/// Constants of modules of a crate that have the name of another one and another value: where they are.
pub fn same_constants(sources: &[Source]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<(String, String)>> = BTreeMap::new();
    for source in sources {
        for one in constants(source).into_iter().filter(|one| one.is_of_module) {
            let value = one.text.split_once('=').map_or("", |(_, value)| value).trim().to_string();
            places.entry(one.name).or_default().push((format!("{}:{}", source.path, one.line), value));
        }
    }
    places.retain(|_, places| places.iter().any(|(_, value)| *value != places[0].1));
    let list = |places: Vec<(String, String)>| places.into_iter().map(|(at, _)| at).collect::<Vec<_>>();
    places.into_iter().map(|(name, places)| format!("{name}: {}", list(places).join(", "))).collect()
}

#[test]
fn a_constant_means_one_thing_in_a_crate() {
    for one in CRATES {
        none(same_constants(&sources(one)));
    }
}

/// A clone in a memtable names keys and no node, so nothing that is in memory only refers to a node.
#[test]
fn memtables_name_no_node() {
    let sources = sources(&CRATES[0]);
    let tables: Vec<_> = sources.iter().filter(|source| source.path.starts_with("dag/memtable/")).collect();
    assert!(tables.len() >= 4, "the memtables were not found");
    let names = |line: &str| {
        line.split(|c: char| !c.is_alphanumeric()).any(|word| word == "NodeId" || word == "Target")
    };
    let code = |source: &&Source| source.code().any(|(_, line)| names(line));
    none(tables.into_iter().filter(code).map(|source| source.path.clone()).collect());
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
