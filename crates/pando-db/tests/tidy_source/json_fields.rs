//! That the document of the JSON output names all of its fields.

use std::{fs, path::Path};

use crate::{
    source::{CRATES, Source, none, sources},
    tokens::is_word,
};

/// Structs that are serialized and not printed: what a receive that may be interrupted notes in the store.
const NOT_PRINTED: &[&str] = &["Note"];

/// Fewer structs or fields than these, and the output was not found.
const LEAST_STRUCTS: usize = 25;
const LEAST_FIELDS: usize = 150;

/// Words of code.
fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The field that a piece of code defines.
fn defined_field(piece: &str) -> Option<&str> {
    let (name, _) = piece.split_once(": ")?;
    let name = name.trim().rsplit(' ').next()?.trim_start_matches("r#");
    (is_word(name) && words(name).eq([name])).then_some(name)
}

/// The names of the fields in the lines of a type, as they are printed.
fn printed<'s>(lines: impl Iterator<Item = &'s str>) -> Vec<&'s str> {
    let mut found = Vec::new();
    let (mut renamed, mut is_left_out) = (None, false);
    for line in lines.map(str::trim) {
        if line.starts_with("#[serde(") {
            let name = line.split_once("rename = \"").and_then(|(_, rest)| rest.split('"').next());
            renamed = name.or(renamed);
            is_left_out |= words(line).any(|word| ["flatten", "skip", "skip_serializing"].contains(&word));
        } else if !line.starts_with("#[") && !line.starts_with("//") {
            // Variants of enums may stand on one line; an attribute before one is not that of its fields.
            let code = line.split("//").next().unwrap_or(line);
            for (i, piece) in code.split(['{', '}', ',']).enumerate() {
                match defined_field(piece) {
                    Some(name) if i > 0 => found.push(name),
                    Some(name) if !is_left_out => found.push(renamed.unwrap_or(name)),
                    _ => {}
                }
            }
            (renamed, is_left_out) = (None, false);
        }
    }
    found
}

/// The types with `#[derive(Serialize)]` that have named fields, and these. The macro `json!` counts as such a type.
fn serialized(source: &Source) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    let mut lines = source.code().map(|(_, line)| line);
    while let Some(line) = lines.next() {
        if !line.trim_start().starts_with("#[derive(") || !words(line).any(|word| word == "Serialize") {
            continue;
        }
        let is_item = |word: &&str| ["struct", "enum"].contains(word);
        // Further attributes and comments may come before it.
        let is_head = |line: &&str| {
            !line.trim_start().starts_with(['#', '/']) && words(line).any(|word| is_item(&word))
        };
        let Some(head) = lines.by_ref().find(is_head).filter(|head| head.ends_with('{')) else { continue };
        let name = words(head).skip_while(|word| !is_item(word)).nth(1).unwrap_or_default();
        let indent = head.len() - head.trim_start().len();
        let end = format!("{}}}", &head[..indent]);
        found.push((name, printed(lines.by_ref().take_while(|line| *line != end))));
    }
    if source.text_of_code().contains("json!(") {
        let pieces: Vec<&str> = source.text_of_code().split('"').collect();
        // What stands in quotes, and begins a field if a colon is behind it.
        let quoted = pieces.windows(2).skip(1).step_by(2);
        let keys = quoted.filter(|pair| pair[1].starts_with(": ")).map(|pair| pair[0]);
        found.push(("json!", keys.collect()));
    }
    found
}

#[test]
fn json_fields_are_documented() {
    let text = "#[derive(Deserialize)]\nstruct A {\n    a: u8,\n}\n#[derive(Debug, Serialize)]\n#[allow(x)] // struct\n\
                pub struct B<'a> {\n    pub b: u8, // b: c\n    /// c: d\n    #[serde(default, rename = \"e\")]\n    \
                r#f: Cow<'a, str>,\n    #[serde(skip)]\n    g: u8,\n    \
                #[serde(skip_serializing_if = \"Option::is_none\")]\n    pub(crate) h: BTreeMap<u8, u8>,\n}\n\
                #[derive(Serialize)]\nstruct C(u8);\n#[derive(Serialize)]\nenum D {\n    \
                #[serde(rename = \"e\")]\n    E,\n    F { i: u8, j: u8 },\n    G {\n        k: u8,\n    },\n}\n\
                fn f() -> Value {\n    json!({ \"l\": [\"m\", n], \"o\": \"p\" })\n}\n";
    let sample = Source { path: "a.rs".into(), text: text.into() };
    assert_eq!(
        serialized(&sample),
        [("B", vec!["b", "e", "h"]), ("D", vec!["i", "j", "k"]), ("json!", vec!["l", "o"])]
    );

    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let document = fs::read_to_string(document).unwrap();
    // By itself, or behind what it is part of.
    let is_named =
        |field: &str| [format!("`{field}`"), format!(".{field}`")].iter().any(|t| document.contains(t));
    let program = CRATES.iter().find(|one| one.folder == "pando").unwrap();
    let (mut structs, mut fields, mut unprinted, mut missing) = (0, 0, 0, Vec::new());
    for source in sources(program) {
        for (name, of_it) in serialized(&source) {
            if NOT_PRINTED.contains(&name) {
                unprinted += 1;
                continue;
            }
            structs += 1;
            fields += of_it.len();
            let unnamed = of_it.into_iter().filter(|field| !is_named(field));
            missing.extend(unnamed.map(|field| format!("{}: {name}.{field}", source.path)));
        }
    }
    assert!(structs >= LEAST_STRUCTS && fields >= LEAST_FIELDS, "only {structs} structs, {fields} fields");
    assert_eq!(unprinted, NOT_PRINTED.len());
    none(missing);
}
