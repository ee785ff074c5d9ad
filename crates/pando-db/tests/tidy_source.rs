//! The source keeps its own rules: which room may import which, how long lines and files are (those of documents too),
//! that every file says what it is for, that every number says what it counts, that types and constants have names of
//! their own, and that every file with tests is part of a program that runs them.
//!
//! Reads `src` of this crate, and of the crates above it in the workspace, as text. Modules for tests are left out of
//! the import rules: they may use the whole crate.

#![allow(clippy::unwrap_used)]

#[path = "tidy_source/engine_floors.rs"]
mod engine_floors;
#[path = "tidy_source/fs_floors.rs"]
mod fs_floors;
#[path = "tidy_source/imports.rs"]
mod imports;
#[path = "tidy_source/mount_floors.rs"]
mod mount_floors;
#[path = "tidy_source/names.rs"]
mod names;
#[path = "tidy_source/programs.rs"]
mod programs;
#[path = "tidy_source/source.rs"]
mod source;
#[path = "tidy_source/texts.rs"]
mod texts;

use crate::{
    engine_floors::{DAG, ROOMS},
    imports::broken_floors,
    names::{same_constants, same_names, without_unit},
    source::Source,
};

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
    let constants = [
        source(
            "a.rs",
            "/// Most entries.\nconst MOST: u64 =\n    8;\nconst LEAST: u64 = 1;\npub const BYTES: u64 = 1;\n",
        ),
        source(
            "b.rs",
            "/// At a checkpoint.\nconst MOST: u64 = 9;\nimpl X {\n    const BYTES: u64 = 2;\n}\n",
        ),
    ];
    assert_eq!(same_constants(&constants), ["MOST: a.rs:2, b.rs:2"]);
    assert_eq!(without_unit(&constants[0]), ["a.rs:4: LEAST"]);
    assert_eq!(without_unit(&constants[1]), ["b.rs:2: MOST"]);
}
