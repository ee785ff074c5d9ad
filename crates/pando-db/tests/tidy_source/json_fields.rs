//! That the document of the JSON output names all fields of it.

use std::{fs, path::Path};

use crate::source::{CRATES, Source, none, sources};

/// Structs that are serialized but not printed: what an interrupted receive has noted in the store.
const NOT_PRINTED: &[&str] = &["Note"];

/// Fewer structs or fields than these, and the output was not found.
const LEAST_STRUCTS: usize = 25;
const LEAST_FIELDS: usize = 150;

/// A named field, with its name in the output.
#[derive(Debug, PartialEq)]
struct Field {
    of: String,
    name: String,
}

/// What an attribute of a field says of `key`, as in `#[serde(rename = "name")]`.
fn value_in<'s>(attribute: &'s str, key: &str) -> Option<&'s str> {
    attribute.strip_prefix("#[serde(")?.split_once(&format!("{key} = \""))?.1.split('"').next()
}

/// The name of a field that is at the start of a piece of code.
fn defined_field(piece: &str) -> Option<&str> {
    let (name, _) = piece.split_once(": ")?;
    let name = name.trim().rsplit(' ').next()?;
    let is_name = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_') && !name.is_empty();
    Some(name).filter(|name| is_name(name))
}

/// The fields of types with `#[derive(Serialize)]`, those of the variants of enums included. What is in the macro
/// `json!` counts as a type of that name.
fn fields(source: &Source) -> Vec<Field> {
    let mut found = Vec::new();
    let mut lines = source.code().map(|(_, line)| line);
    while let Some(line) = lines.next() {
        let is_word = |word: &str| word == "Serialize";
        let derives = line.trim_start().starts_with("#[derive(");
        if !derives || !line.split(|c: char| !c.is_alphanumeric()).any(is_word) {
            continue;
        }
        // Further attributes and comments lie between.
        let header = |line: &&str| ["struct ", "enum "].iter().any(|word| line.contains(word));
        let Some(header) = lines.by_ref().find(|line| !line.trim_start().starts_with(['#', '/']) && header(line))
        else {
            continue;
        };
        if !header.ends_with('{') {
            continue;
        }
        let mut words = header.split(|c: char| !c.is_alphanumeric() && c != '_');
        words.find(|word| ["struct", "enum"].contains(word));
        let of = words.next().unwrap_or_default();
        let indent = header.len() - header.trim_start().len();
        let end = format!("{}}}", &header[..indent]);
        let (mut renamed, mut skipped) = (None, false);
        for line in lines.by_ref().take_while(|line| *line != end).map(str::trim) {
            if line.starts_with("#[") {
                renamed = value_in(line, "rename").or(renamed);
                skipped |= line.starts_with("#[serde(skip)") || line.starts_with("#[serde(flatten)");
            } else if !line.starts_with("//") {
                for name in line.split(['{', '}', ',']).filter_map(defined_field) {
                    let (name, skips) = (renamed.take().unwrap_or(name), std::mem::take(&mut skipped));
                    if !skips {
                        found.push(Field { of: of.to_owned(), name: name.to_owned() });
                    }
                }
            }
        }
    }
    if source.text_of_code().contains("json!(") {
        let quoted: Vec<&str> = source.text_of_code().split('"').collect();
        // What stands in quotes, with a colon behind.
        let keys = quoted.chunks(2).zip(quoted.iter().skip(2).step_by(2));
        let keys = keys.filter(|(_, behind)| behind.starts_with(':') && !behind.starts_with("::"));
        found.extend(keys.filter_map(|(pair, _)| Some(Field { of: "json!".into(), name: (*pair.get(1)?).into() })));
    }
    found
}

#[test]
fn json_fields_are_documented() {
    let text = "#[derive(Deserialize)]\nstruct A {\n    a: u8,\n}\n#[derive(Debug, Serialize)]\n#[allow(x)] // y\n\
                pub struct B<'a> {\n    pub b: u8,\n    /// c: d\n    #[serde(rename = \"e\")]\n    r#f: Cow<'a, str>,\n    \
                #[serde(skip)]\n    g: u8,\n    pub(crate) h: BTreeMap<u8, u8>,\n}\n#[derive(Serialize)]\n\
                struct C(u8);\n#[derive(Serialize)]\nenum D {\n    E,\n    F { i: u8, j: u8 },\n    G {\n        \
                k: u8,\n    },\n}\nfn f() -> Value {\n    json!({ \"l\": [\"m\", n], \"o\": \"p\" })\n}\n";
    let sample = Source { path: "a.rs".into(), text: text.into() };
    let told: Vec<String> = fields(&sample).iter().map(|field| format!("{}.{}", field.of, field.name)).collect();
    assert_eq!(told, ["B.b", "B.e", "B.h", "D.i", "D.j", "D.k", "json!.l", "json!.o"]);

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let document = fs::read_to_string(path).unwrap();
    let program = CRATES.iter().find(|one| one.folder == "pando").unwrap();
    let (mut structs, mut all, mut missing) = (Vec::new(), 0, Vec::new());
    for source in sources(program) {
        for Field { of, name } in fields(&source) {
            structs.push(of.clone());
            if NOT_PRINTED.contains(&&*of) {
                continue;
            }
            all += 1;
            // By itself, or behind those that it is part of.
            let is_named = [format!("`{name}`"), format!(".{name}`")].iter().any(|text| document.contains(text));
            if !is_named {
                missing.push(format!("{}: {of}.{name}", source.path));
            }
        }
    }
    structs.dedup();
    assert!(structs.len() >= LEAST_STRUCTS, "only {} structs", structs.len());
    assert!(all >= LEAST_FIELDS, "only {all} fields");
    let is_there = |name: &&str| structs.iter().any(|of| of == *name);
    assert!(NOT_PRINTED.iter().all(|name| is_there(&name)), "{NOT_PRINTED:?}: a name is none any more");
    none(missing);
}
