//! The source keeps its own rules: which room may import which, how long lines and files are (those of documents too),
//! that every file says what it is for, that every number says what it counts, that a type has a name of its own, and
//! that every file with tests is part of a program that runs them.
//!
//! Reads `src` of this crate, and of the crates above it in the workspace, as text. Modules for tests are left out of
//! the import rules: they may use the whole crate.

#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// The rooms from the ground up, and what each may import besides itself. A room may name only rooms above it in this
/// list, so there can be no circle of rooms.
const ROOMS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("limits", &[]),
    ("thread", &[]),
    ("waiting", &[]),
    ("key", &[]),
    ("merge", &[]),
    ("pool", &[]),
    ("codec", &["error"]),
    ("options", &["merge"]),
    ("batch", &["key", "pool"]),
    ("device", &["error", "waiting"]),
    ("stats", &["device"]),
    ("space", &["error", "waiting", "device"]),
    ("node", &["error", "limits", "key", "merge", "pool", "codec", "space"]),
    ("format", &["error", "key", "pool", "codec", "options", "node"]),
    (
        "store",
        &[
            "error", "thread", "waiting", "key", "pool", "codec", "options", "device", "space", "node",
            "format",
        ],
    ),
    ("dag", &["error", "limits", "key", "merge", "node", "store"]),
    (
        "db",
        &[
            "error", "limits", "thread", "waiting", "key", "merge", "pool", "codec", "options", "batch",
            "device", "stats", "space", "node", "store", "dag",
        ],
    ),
];

/// The same inside `dag` and `db`: rooms and files from the ground up.
const DAG: &[(&str, &[&str])] = &[
    ("tree", &[]),
    ("layer", &[]),
    ("edit", &["tree"]),
    ("damage", &["edit"]),
    ("check", &["tree"]),
    ("memtable", &["layer"]),
    ("read", &["tree", "layer", "memtable"]),
    ("longest", &["tree", "layer", "memtable", "read"]),
    ("share", &["tree", "layer", "edit", "memtable"]),
    ("write", &["layer", "edit", "memtable", "share"]),
    ("gc", &["layer", "edit", "share", "write"]),
];
const DB: &[(&str, &[&str])] = &[
    ("engine", &[]),
    ("write", &["engine"]),
    ("admission", &["engine", "write"]),
    ("checkpoint", &["engine"]),
    ("background", &["engine", "checkpoint"]),
    ("recover", &["engine", "write", "admission", "checkpoint"]),
    ("cursor", &["engine"]),
    ("handle", &["engine", "recover", "background", "cursor"]),
    ("diff", &["cursor", "handle"]),
    ("api", &["engine", "cursor", "handle"]),
];

/// The floors of `pando-fs`: one file or folder each.
const FS: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("limits", &[]),
    ("mode", &[]),
    ("stats", &[]),
    ("types", &[]),
    ("readahead", &[]),
    ("path", &["error", "limits"]),
    ("scanned", &[]),
    ("key_text", &["limits", "path"]),
    ("acl", &[]),
    ("attrs", &["path"]),
    ("account", &[]),
    ("record", &["limits", "types", "attrs", "account"]),
    ("blockmap", &["error", "limits", "path"]),
    ("merge", &["limits", "mode", "types", "attrs", "record", "blockmap", "account"]),
    ("sums", &["error", "types", "path", "scanned", "key_text", "account", "record", "blockmap"]),
    ("counter", &["error", "path"]),
    ("position", &["limits", "path"]),
    ("inode", &["error", "limits", "types", "record", "blockmap", "merge"]),
    ("lineage", &["error", "types", "path", "key_text", "record", "counter", "inode"]),
    ("handle", &["error", "readahead", "position", "inode"]),
    ("counting", &["types", "inode"]),
    ("ledger", &["types", "inode"]),
    ("lock", &["error"]),
    ("path_cache", &["types", "inode", "lock"]),
    ("file_runs", &["path"]),
    (
        "volume",
        &[
            "error",
            "limits",
            "stats",
            "types",
            "readahead",
            "path",
            "record",
            "merge",
            "counter",
            "counting",
            "position",
            "inode",
            "lineage",
            "handle",
            "path_cache",
            "file_runs",
            "ledger",
        ],
    ),
    ("place", &["error", "types", "path", "inode", "lock", "path_cache", "volume"]),
    ("domain", &["error", "path", "record", "inode", "volume", "place"]),
    ("bill", &["error", "path", "account", "merge", "inode", "ledger", "volume", "place"]),
    ("family", &["error", "types", "path", "record", "inode", "lineage", "volume"]),
    ("frozen", &["error", "path", "record", "volume"]),
    ("forks", &["error", "types", "path", "record", "volume", "frozen"]),
    ("policies", &["error", "types", "path", "volume"]),
    ("by_place", &["error", "volume"]),
    (
        "check",
        &[
            "error", "limits", "types", "path", "key_text", "attrs", "record", "blockmap", "lineage",
            "volume", "family", "forks", "policies", "scanned", "sums",
        ],
    ),
    (
        "data",
        &[
            "error", "limits", "types", "path", "record", "blockmap", "merge", "inode", "handle", "volume",
            "place", "sums", "bill",
        ],
    ),
    (
        "copy",
        &[
            "error", "limits", "types", "path", "blockmap", "merge", "inode", "volume", "place", "data",
            "sums",
        ],
    ),
    (
        "allocate",
        &[
            "error", "limits", "types", "path", "blockmap", "merge", "inode", "volume", "place", "data",
            "sums",
        ],
    ),
    ("orphan", &["error", "types", "path", "merge", "inode", "volume", "data"]),
    ("xattr", &["error", "types", "path", "attrs", "acl", "record", "merge", "inode", "volume", "place"]),
    (
        "file",
        &[
            "error", "limits", "types", "merge", "inode", "handle", "volume", "place", "data", "orphan",
            "bill",
        ],
    ),
    (
        "name",
        &[
            "error", "types", "path", "record", "inode", "lineage", "volume", "place", "domain", "family",
            "data", "file",
        ],
    ),
    (
        "quota",
        &[
            "error", "types", "path", "account", "record", "merge", "inode", "sums", "lock", "volume",
            "place", "domain", "bill", "name",
        ],
    ),
    (
        "entry",
        &[
            "error", "limits", "types", "path", "record", "merge", "inode", "lineage", "handle", "lock",
            "volume", "place", "domain", "forks", "data", "orphan", "name", "xattr", "bill", "quota",
        ],
    ),
    (
        "recursive",
        &[
            "error", "types", "mode", "path", "record", "merge", "inode", "lock", "volume", "place",
            "domain", "data",
        ],
    ),
    (
        "dir",
        &[
            "error", "types", "path", "record", "blockmap", "position", "inode", "handle", "volume", "place",
            "domain", "family", "data", "name",
        ],
    ),
    (
        "rename",
        &[
            "error", "types", "path", "record", "merge", "inode", "lineage", "lock", "volume", "place",
            "domain", "forks", "orphan", "name", "entry", "bill", "quota",
        ],
    ),
    (
        "link",
        &[
            "error", "types", "path", "record", "merge", "inode", "lineage", "lock", "counting", "volume",
            "place", "domain", "orphan", "name", "rename", "bill",
        ],
    ),
    (
        "census",
        &[
            "error", "types", "path", "record", "merge", "inode", "lineage", "lock", "counting", "volume",
            "place", "domain", "orphan", "name", "entry", "rename", "sums", "bill",
        ],
    ),
    ("exclude", &["error", "types", "path", "record", "inode", "sums", "volume", "bill", "quota", "rename"]),
    ("rights", &["error", "types", "path", "key_text", "acl", "record", "inode", "volume", "place", "entry"]),
    (
        "clone",
        &[
            "error", "types", "path", "record", "merge", "inode", "lock", "volume", "place", "domain",
            "forks", "orphan", "name", "entry", "rename", "census", "rights", "account", "sums", "bill",
            "quota", "exclude",
        ],
    ),
    (
        "snapshot",
        &[
            "error", "types", "path", "key_text", "record", "merge", "inode", "lineage", "lock", "volume",
            "place", "domain", "family", "frozen", "policies", "name", "entry", "rename", "census", "rights",
            "clone", "account", "bill",
        ],
    ),
    ("usage", &["error", "types", "path", "record", "volume", "place", "domain", "name"]),
    (
        "diff",
        &[
            "error", "limits", "types", "path", "key_text", "attrs", "record", "lock", "volume", "place",
            "domain", "rights",
        ],
    ),
    ("send", &["error", "limits", "types", "volume", "family", "allocate", "rename", "diff"]),
    (
        "fork",
        &[
            "error", "limits", "types", "path", "key_text", "attrs", "record", "merge", "inode", "lineage",
            "lock", "volume", "place", "domain", "forks", "orphan", "name", "entry", "census", "rights",
            "clone", "diff", "data", "account", "bill",
        ],
    ),
];

/// The floors of `pando-fuse`.
const FUSE: &[(&str, &[&str])] = &[
    ("mountinfo", &[]),
    ("guard", &[]),
    ("asked", &[]),
    ("forked", &["asked"]),
    ("quotas", &["asked"]),
    ("changes", &[]),
    ("control", &["asked", "forked", "quotas", "changes"]),
    ("counters", &[]),
    ("cache", &[]),
    ("creators", &[]),
    ("openers", &[]),
    ("diffs", &[]),
    ("inside", &[]),
    ("listings", &[]),
    ("times", &["inside"]),
    ("automatic", &[]),
    ("own_threads", &[]),
    ("transport", &["counters", "inside"]),
    ("error", &["transport"]),
    ("settings", &["transport", "error"]),
    ("attach", &["mountinfo", "error", "settings"]),
    ("client", &["asked", "control"]),
    ("proof", &["control", "transport"]),
    ("tool", &["mountinfo", "asked", "forked", "quotas", "control", "diffs", "client", "proof"]),
    ("caller", &["transport"]),
    ("labels", &["transport"]),
    (
        "coherence",
        &[
            "automatic",
            "counters",
            "cache",
            "creators",
            "openers",
            "diffs",
            "inside",
            "labels",
            "listings",
            "times",
            "own_threads",
            "transport",
            "proof",
            "caller",
        ],
    ),
    ("recursive", &["inside", "own_threads", "transport", "proof", "caller", "coherence"]),
    ("copies", &["transport", "caller", "coherence"]),
    ("policies", &["automatic", "coherence"]),
    (
        "requests",
        &["asked", "forked", "control", "diffs", "transport", "proof", "caller", "coherence", "quotas"],
    ),
    (
        "server",
        &[
            "control",
            "copies",
            "counters",
            "cache",
            "creators",
            "openers",
            "inside",
            "listings",
            "times",
            "transport",
            "proof",
            "caller",
            "coherence",
            "requests",
            "quotas",
        ],
    ),
    (
        "mount",
        &[
            "mountinfo",
            "guard",
            "counters",
            "inside",
            "transport",
            "error",
            "settings",
            "attach",
            "coherence",
            "server",
        ],
    ),
];

/// The floors of the program `pando`.
const PROGRAM: &[(&str, &[&str])] = &[
    ("exit", &[]),
    ("size", &[]),
    ("uuid", &[]),
    ("closing", &[]),
    ("guard", &[]),
    ("logging", &[]),
    ("place", &[]),
    ("below", &[]),
    ("image", &["exit"]),
    ("offline", &["image"]),
    ("change", &["exit", "image", "offline"]),
    ("one_version", &["exit"]),
    ("report", &["size"]),
    ("tree", &["exit", "below"]),
    ("stream", &["below"]),
    (
        "cmd",
        &[
            "exit",
            "size",
            "uuid",
            "closing",
            "guard",
            "logging",
            "place",
            "image",
            "offline",
            "change",
            "one_version",
            "report",
            "tree",
            "stream",
        ],
    ),
    ("help", &[]),
    ("helper", &["exit", "logging", "place", "image", "tree", "cmd"]),
    ("main", &["cmd", "exit", "guard", "help", "helper"]),
];

/// A crate of the workspace: its folder, and its tables of floors with the module that each table is about.
struct Crate {
    folder: &'static str,
    tables: &'static [(&'static [&'static str], Floors)],
    /// Fewer files than this, and the source was not found.
    least_files: usize,
}

/// Rooms or files from the ground up, and what each may import.
type Floors = &'static [(&'static str, &'static [&'static str])];

const CRATES: &[Crate] = &[
    Crate { folder: "pando-db", tables: &[(&[], ROOMS), (&["dag"], DAG), (&["db"], DB)], least_files: 80 },
    Crate { folder: "pando-fs", tables: &[(&[], FS)], least_files: 30 },
    Crate { folder: "pando-fuse", tables: &[(&[], FUSE)], least_files: 20 },
    Crate { folder: "pando", tables: &[(&[], PROGRAM)], least_files: 30 },
];

/// Longest line, in characters. `rustfmt` keeps code to 110; a comment may be a little longer.
const LINE_CHARS: usize = 120;
/// Longest file, in lines.
const FILE_LINES: usize = 600;

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

struct Source {
    /// Below `src`, as `dag/read/view.rs`.
    path: String,
    text: String,
}

impl Source {
    /// The lines that are no test module's, with their numbers from 1 on.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let marks = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\n#[allow(clippy::unwrap_used)]\nmod tests {"];
        let tests = marks.iter().filter_map(|mark| self.text.find(mark)).min().unwrap_or(self.text.len());
        let lines = self.text[..tests].lines().count();
        let all = if self.is_test() { 0 } else { lines };
        self.text.lines().take(all).enumerate().map(|(i, line)| (i + 1, line))
    }

    fn is_test(&self) -> bool {
        self.path.ends_with("tests.rs")
    }

    /// The parts of its module path: `dag/read/mod.rs` is `dag`, `read`.
    fn module(&self) -> Vec<&str> {
        self.path.trim_end_matches(".rs").split('/').filter(|part| *part != "mod").collect()
    }

    /// Modules of this crate that its code names, as paths from the crate on.
    fn imports(&self) -> BTreeSet<Vec<String>> {
        let mut found = BTreeSet::new();
        let code: Vec<&str> =
            self.code().map(|(_, line)| line.split("//").next().unwrap_or_default()).collect();
        let code = code.join("\n").replace("r#", "");
        for (at, _) in code.match_indices("crate::") {
            tree(&code[at + "crate::".len()..], &mut Vec::new(), &mut found);
        }
        found
    }
}

/// Reads one tree of a `use`, or one path, at the start of `text`: the rest behind it.
fn tree<'t>(text: &'t str, prefix: &mut Vec<String>, found: &mut BTreeSet<Vec<String>>) -> &'t str {
    let depth = prefix.len();
    let mut rest = text.trim_start();
    loop {
        if let Some(mut inside) = rest.strip_prefix('{') {
            loop {
                inside = inside.trim_start();
                if let Some(behind) = inside.strip_prefix('}') {
                    prefix.truncate(depth);
                    return behind;
                }
                inside = tree(inside, prefix, found).trim_start();
                inside = inside.strip_prefix(',').unwrap_or(inside);
            }
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if end == 0 {
            // Something that is no import, as the `*` of a glob.
            prefix.truncate(depth);
            let mut chars = rest.chars();
            chars.next();
            return chars.as_str();
        }
        prefix.push(rest[..end].to_string());
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(more) => rest = more,
            None => break,
        }
    }
    found.insert(prefix.clone());
    prefix.truncate(depth);
    match rest.trim_start().strip_prefix("as ") {
        Some(alias) => alias.trim_start().trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'),
        None => rest,
    }
}

fn sources(of: &Crate) -> Vec<Source> {
    fn walk(folder: &Path, below: &str, all: &mut Vec<Source>) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let path = format!("{below}{name}");
            if entry.file_type().unwrap().is_dir() {
                walk(&entry.path(), &format!("{path}/"), all);
            } else if name.ends_with(".rs") {
                all.push(Source { path, text: fs::read_to_string(entry.path()).unwrap() });
            }
        }
    }
    let mut all = Vec::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(of.folder).join("src");
    walk(&folder, "", &mut all);
    assert!(all.len() >= of.least_files, "the source of {} was not found", of.folder);
    all.sort_by(|a, b| a.path.cmp(&b.path));
    all
}

fn none(broken: Vec<String>) {
    assert!(broken.is_empty(), "{} times:\n{}", broken.len(), broken.join("\n"));
}

/// What breaks a table of rooms among `modules`, each with what it imports below the folder of the table.
fn broken_floors(table: &[(&str, &[&str])], folder: &[&str], sources: &[Source]) -> Vec<String> {
    let mut broken = Vec::new();
    for (i, (room, may)) in table.iter().enumerate() {
        for below in *may {
            if !table[..i].iter().any(|(lower, _)| lower == below) {
                broken.push(format!("the table lets {room} import {below}, which is not below it"));
            }
        }
    }
    for source in sources.iter().filter(|source| !source.is_test()) {
        let module = source.module();
        let Some(room) = module.strip_prefix(folder).and_then(|rest| rest.first()) else { continue };
        let Some((_, may)) = table.iter().find(|(name, _)| name == room) else {
            if *room != "lib" {
                broken.push(format!("{}: `{room}` is in no table", source.path));
            }
            continue;
        };
        let imports = source.imports();
        let inside = imports
            .iter()
            .filter(|path| path.len() > folder.len() && path.iter().zip(folder).all(|(a, b)| a == b));
        let others: BTreeSet<&str> =
            inside.filter_map(|path| path.get(folder.len())).map(String::as_str).collect();
        let wrong = others.into_iter().filter(|other| other != room && !may.contains(other));
        broken.extend(wrong.map(|other| format!("{}: `{room}` imports `{other}`", source.path)));
    }
    broken
}

#[test]
fn rooms_import_only_what_lies_below_them() {
    for one in CRATES {
        let sources = sources(one);
        none(one.tables.iter().flat_map(|(folder, table)| broken_floors(table, folder, &sources)).collect());
    }
}

/// Imports by `super` would be read wrongly above, and have to be changed when a file moves.
#[test]
fn imports_name_the_whole_path() {
    let mut broken = Vec::new();
    for source in CRATES.iter().flat_map(sources) {
        for (i, line) in source.code().filter(|(_, line)| line.starts_with("use super::")) {
            broken.push(format!("{}:{i}: {line}", source.path));
        }
    }
    none(broken);
}

#[test]
fn files_do_not_import_each_other_in_a_circle() {
    CRATES.iter().for_each(|one| none(circles(&sources(one))));
}

/// The files of circles, and of what imports them, with what they import.
fn circles(sources: &[Source]) -> Vec<String> {
    let modules: Vec<String> = sources.iter().map(|source| source.module().join("::")).collect();
    // What a path leads to: the longest module that it begins with.
    let target = |path: &[String]| {
        (1..=path.len()).rev().find_map(|n| modules.iter().position(|module| *module == path[..n].join("::")))
    };
    let mut arrows: Vec<BTreeSet<usize>> = sources
        .iter()
        .enumerate()
        .map(|(i, source)| {
            source.imports().iter().filter_map(|path| target(path)).filter(|to| *to != i).collect()
        })
        .collect();
    // Files that import nothing more are taken off until none is left, or a circle.
    let mut left: BTreeSet<usize> = (0..sources.len()).collect();
    loop {
        let ground: Vec<usize> = left.iter().copied().filter(|i| arrows[*i].is_empty()).collect();
        if ground.is_empty() {
            break;
        }
        for i in ground {
            left.remove(&i);
            arrows.iter_mut().for_each(|to| _ = to.remove(&i));
        }
    }
    let name = |i: &usize| {
        format!("{} -> {:?}", modules[*i], arrows[*i].iter().map(|j| &modules[*j]).collect::<Vec<_>>())
    };
    left.iter().map(name).collect()
}

#[test]
fn lines_and_files_are_short() {
    let mut broken = Vec::new();
    for source in CRATES.iter().flat_map(sources) {
        for (i, line) in source.text.lines().enumerate() {
            if line.chars().count() > LINE_CHARS {
                broken.push(format!("{}:{}: {} characters", source.path, i + 1, line.chars().count()));
            }
        }
        let lines = source.text.lines().count();
        if lines > FILE_LINES {
            broken.push(format!("{}: {lines} lines", source.path));
        }
    }
    none(broken);
}

#[test]
fn every_file_begins_with_what_it_is_for() {
    let begins = |source: &Source| source.text.starts_with("//! ");
    let sources: Vec<Source> = CRATES.iter().flat_map(sources).collect();
    none(sources.iter().filter(|source| !begins(source)).map(|source| source.path.clone()).collect());
    // Tests, examples and benchmarks do as well.
    let files: Vec<PathBuf> =
        repository().into_iter().filter(|path| path.extension() == Some("rs".as_ref())).collect();
    assert!(files.len() > 300, "only {} files", files.len());
    let silent = files.iter().filter(|path| !fs::read_to_string(path).unwrap().starts_with("//! "));
    none(silent.map(|path| path.display().to_string()).collect());
}

/// All files of the crates and of the benchmarks, but what is built.
fn repository() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    let mut folders = vec![root.join("crates"), root.join("bench")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true if path.ends_with("target") => (),
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files
}

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
fn same_names(sources: &[Source]) -> Vec<String> {
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

#[test]
fn the_rules_find_what_breaks_them() {
    let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let bad = [source(
        "key/mod.rs",
        "use crate::{\n    error::Error,\n    dag::{edit::Edit, read::view::View as V},\n};\n",
    )];
    assert_eq!(
        broken_floors(ROOMS, &[], &bad),
        ["key/mod.rs: `key` imports `dag`", "key/mod.rs: `key` imports `error`"]
    );
    let paths: Vec<String> = bad[0].imports().iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["dag::edit::Edit", "dag::read::view::View", "error::Error"]);
    let inline = [source("dag/read/view.rs", "fn f() { crate::dag::gc::prune::x() }\n")];
    assert_eq!(broken_floors(DAG, &["dag"], &inline), ["dag/read/view.rs: `read` imports `gc`"]);
    let test = [source("key/span.rs", "#[cfg(test)]\nmod tests {\n    use crate::dag::edit::Edit;\n}\n")];
    assert_eq!(broken_floors(ROOMS, &[], &test), [""; 0]);
    let twice = [
        source("a.rs", "pub(crate) struct Page {\n}\nimpl Deref for Page {\n    type Target = [u8];\n}\n"),
        source("b.rs", "fn f() {\n    enum Page<'a> {}\n}\nstruct Pages;\ntype Target = u8;\n"),
        source("c.rs", "struct Pager;\n#[cfg(test)]\nmod tests {\n    struct Pages;\n}\n"),
    ];
    assert_eq!(same_names(&twice), ["Page: a.rs:1, b.rs:2"]);
}

/// The documents name files by their last folders and name, in backquotes.
#[test]
fn files_that_documents_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = repository();
    let (mut named, mut gone) = (0, Vec::new());
    let documents = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    for document in
        documents.chain([root.join("README.md")]).filter(|path| path.extension().is_some_and(|e| e == "md"))
    {
        let text = fs::read_to_string(&document).unwrap();
        let is_file = |word: &&str| word.ends_with(".rs") && !word.contains([' ', '*']);
        for name in text.split('`').skip(1).step_by(2).filter(is_file) {
            named += 1;
            if !files.iter().any(|file| file.ends_with(name)) {
                gone.push(format!("{}: {name}", document.display()));
            }
        }
    }
    assert!(named > 20, "only {named} files are named");
    assert!(gone.is_empty(), "{}", gone.join("\n"));
}

/// Tables, headings and code stay on one line each.
#[test]
fn documents_are_wrapped() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut documents = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    for folder in ["docs", "docs/decisions"] {
        documents.extend(fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path()));
    }
    documents.retain(|path| path.extension().is_some_and(|e| e == "md"));
    assert!(documents.len() > 30, "only {} documents", documents.len());
    let mut broken = Vec::new();
    for document in documents {
        let text = fs::read_to_string(&document).unwrap();
        let mut is_code = false;
        for (i, line) in text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            let is_whole = is_code || line.starts_with(['|', '#']) || line.starts_with("    ");
            if !is_whole && line.chars().count() > LINE_CHARS {
                broken.push(format!("{}:{}: {} characters", document.display(), i + 1, line.chars().count()));
            }
        }
    }
    none(broken);
}

/// The files of a program of tests: its root, and what `mod` names in it and in these.
fn modules(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = vec![(root.to_owned(), true)];
    while let Some((file, is_root)) = left.pop() {
        let Some(text) = read(&file) else { continue };
        if !found.insert(file.clone()) {
            continue;
        }
        let folder = file.parent().unwrap();
        let stem = file.file_stem().unwrap();
        // Where the modules of `a.rs` lie, unless it is the root or `mod.rs`.
        let below = if is_root || stem == "mod" { folder.to_owned() } else { folder.join(stem) };
        let mut named = None;
        for line in text.lines() {
            if let Some(path) = line.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
                named = Some(folder.join(path));
            } else if let Some(name) =
                line.trim_start_matches("pub ").strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'))
            {
                let name = name.trim_start_matches("r#");
                match named.take() {
                    // Its own modules lie beside it.
                    Some(path) => left.push((path, true)),
                    None => {
                        left.push((below.join(format!("{name}.rs")), false));
                        left.push((below.join(name).join("mod.rs"), false));
                    }
                }
            }
        }
    }
    found
}

/// The programs of tests that a `Cargo.toml` names, as paths below the folder of the crate.
fn programs(manifest: &str) -> Vec<PathBuf> {
    let mut programs = Vec::new();
    for section in manifest.split("\n[[test]]\n").skip(1) {
        let value = |key: &str| {
            let lines = section.lines().take_while(|line| !line.starts_with('['));
            let mut values = lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            values.next().map(|value| value.trim_matches('"').to_owned())
        };
        let name = value("name").unwrap();
        programs.push(value("path").unwrap_or(format!("tests/{name}.rs")).into());
    }
    programs
}

/// Cargo looks for no programs of tests by itself here: a file that nobody names would be no test, and nobody would know.
#[test]
fn every_file_of_tests_is_in_a_program() {
    let read = |path: &Path| fs::read_to_string(path).ok();
    let mut lost = Vec::new();
    for one in CRATES {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(one.folder);
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        assert!(
            manifest.contains("\nautotests = false\n"),
            "{}: see `every_file_of_tests_is_in_a_program`",
            one.folder
        );
        let programs = programs(&manifest);
        assert!(!programs.is_empty());
        let mut named = BTreeSet::new();
        programs.iter().for_each(|program| named.extend(modules(&folder.join(program), &read)));
        let mut folders = vec![folder.join("tests")];
        let mut files = 0;
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false if path.extension() != Some("rs".as_ref()) => (),
                    false => {
                        files += 1;
                        if !named.contains(&path) {
                            lost.push(format!(
                                "{}: in no program: name it in `tests/all.rs`",
                                path.display()
                            ));
                        }
                    }
                }
            }
        }
        assert!(files > 10, "{}: only {files} files", one.folder);
    }
    none(lost);
}

#[test]
fn a_file_of_tests_that_nobody_names_is_found() {
    let manifest = "[package]\nname = \"x\"\n\n[[test]]\nname = \"all\"\n\n[[test]]\nname = \"b\"\n\
                    path = \"tests/b/main.rs\"\n\n[features]\nname = 1\n";
    assert_eq!(programs(manifest), [Path::new("tests/all.rs"), Path::new("tests/b/main.rs")]);
    let files = [
        ("all.rs", "mod a;\n#[path = \"b/c.rs\"]\nmod other;\nmod r#try;\n// mod said;\n"),
        ("a.rs", "pub mod in_it;\n"),
        ("a/in_it.rs", ""),
        ("b/c.rs", "mod beside_it;\n"),
        ("b/beside_it.rs", "    mod inline {}\n"),
        ("try.rs", "mod common;\n"),
        ("try/common/mod.rs", "mod more;\n"),
        ("try/common/more.rs", ""),
        ("said.rs", ""),
        ("other.rs", ""),
        ("in_it.rs", ""),
    ];
    let read =
        |path: &Path| files.iter().find(|file| path == Path::new(file.0)).map(|file| file.1.to_owned());
    let found = modules(Path::new("all.rs"), &read);
    let lost: Vec<&str> =
        files.iter().map(|file| file.0).filter(|file| !found.contains(Path::new(file))).collect();
    assert_eq!(lost, ["said.rs", "other.rs", "in_it.rs"]);
}
