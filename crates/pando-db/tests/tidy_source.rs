//! The source keeps its own rules: which module may import which, how long lines and files are (those of documents too),
//! that every file says what it is for, that every number says what it counts, that types and constants have names of
//! their own, and that every file with tests is part of a program that runs them.
//!
//! Reads `src` of this crate, and of the crates above it in the workspace, as text. Modules for tests are left out of
//! the import rules: they may use the whole crate.

#![allow(clippy::unwrap_used)]

#[path = "tidy_source/engine_layers.rs"]
mod engine_layers;
#[path = "tidy_source/fs_layers.rs"]
mod fs_layers;
#[path = "tidy_source/imports.rs"]
mod imports;
#[path = "tidy_source/json_fields.rs"]
mod json_fields;
#[path = "tidy_source/mount_layers.rs"]
mod mount_layers;
#[path = "tidy_source/names.rs"]
mod names;
#[path = "tidy_source/programs.rs"]
mod programs;
#[path = "tidy_source/source.rs"]
mod source;
#[path = "tidy_source/texts.rs"]
mod texts;
#[path = "tidy_source/tokens.rs"]
mod tokens;
#[path = "tidy_source/uses.rs"]
mod uses;

use crate::{
    engine_layers::{DAG, ENGINE},
    imports::{broken_layers, circles},
    names::{same_constants, same_names, without_unit},
    source::{Layers, Source},
};

#[test]
fn the_rules_find_what_breaks_them() {
    let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    // As text: a module, what it uses, and how.
    let broken = |table: Layers, folder: &[&str], sources: &[Source]| -> Vec<String> {
        let pairs = broken_layers(table, folder, sources).into_iter();
        pairs
            .map(|((module, other), how)| format!("{module} {other} {}", Vec::from_iter(how).join(" ")))
            .collect()
    };
    let bad = [source(
        "key/mod.rs",
        "use crate::{\n    error::Error,\n    dag::{edit::Edit, read::view::View as V},\n};\nuse std::{dag, io};\n",
    )];
    assert_eq!(
        broken(ENGINE, &[], &bad),
        [
            "key dag key/mod.rs: dag::edit::Edit key/mod.rs: dag::read::view::View",
            "key error key/mod.rs: error::Error"
        ]
    );
    let inline = [source("dag/read/view.rs", "fn f() { crate::dag::gc::prune::x() }\n")];
    assert_eq!(broken(DAG, &["dag"], &inline), ["dag::read dag::gc dag/read/view.rs: dag::gc::prune::x"]);
    // What the module of a folder defines is no module of the folder's table.
    let parent = [
        source("dag/mod.rs", "pub struct Shared;\n"),
        source("dag/tree.rs", "use crate::dag::{Shared, gc::prune::X};\n"),
    ];
    assert_eq!(broken(DAG, &["dag"], &parent), ["dag::tree dag::gc dag/tree.rs: dag::gc::prune::X"]);
    let test = [source("key/span.rs", "#[cfg(test)]\nmod tests {\n    use crate::dag::edit::Edit;\n}\n")];
    assert_eq!(broken(ENGINE, &[], &test), [""; 0]);
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

/// Calls of methods, by whatever the receiver is known from, are uses; names of the same sound are none.
#[test]
fn methods_that_are_defined_elsewhere_are_found() {
    let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let with = |calls: &str| {
        let lower =
            format!("struct Tree<'t> {{ tree: u8 }}\nimpl<'t> Tree<'t> {{\n fn own(&self) {{}} {calls} }}\n");
        let files = [
            source("dag/edit.rs", &lower),
            source(
                "dag/gc/mod.rs",
                "impl<F: Fn() -> u8> Tree<'_> {\n    pub fn prune(self) { self.own() }\n}\n",
            ),
        ];
        broken_layers(DAG, &["dag"], &files).len()
    };
    for call in [
        "fn a(&self) { self.prune() }",
        "fn a(&self) { self\n    .prune::<u8>() }",
        "fn a() { Self::prune(x) }",
        "fn a() { each(Tree::prune) }",
        "} fn a(other: &mut Arc<Tree<'_>>) { other.prune()",
        "fn it(&self) -> &'t Tree { x } fn a(&self) { self.it().prune() }",
        "fn a(&self) { \"}\"; '}'; self.prune() }",
    ] {
        assert_eq!(with(call), 1, "{call}");
    }
    for call in [
        "fn a(&self) { self.prune }",
        "fn a(&self) { self.other.prune() }",
        "fn a(prune: u8) { /* self.prune() */ } // self.prune()",
        "} fn a(tree: &Trees) { tree.prune()",
        "} impl Edit { fn a(&self) { self.prune() }",
    ] {
        assert_eq!(with(&call.replace("/* self.prune() */", "\"self.prune()\"")), 0, "{call}");
    }
}

/// Circles through `self`, `super`, re-exports and methods are circles; a parent and its children count as one.
#[test]
fn circles_of_files_are_found() {
    let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let parent = |text: &str| source("log/mod.rs", text);
    let of = |files: &[Source]| circles(files);
    let writer = || source("log/writer.rs", "use super::reader::X;\nstruct Log;\n");
    assert_eq!(
        of(&[parent("pub use writer::Log;\n"), source("log/reader.rs", "use crate::log::Log;\n"), writer(),]),
        ["log::reader -> [\"log::writer\"]", "log::writer -> [\"log::reader\"]"]
    );
    let child = || source("log/reader.rs", "use crate::log::Pos;\n");
    assert_eq!(of(&[parent("use self::reader::X;\nstruct Pos;\n"), child(), writer()]), [""; 0]);
    // Not if another module is part of it.
    let other = source("other.rs", "use crate::log::reader::X;\n");
    let through = [parent("fn f() { crate::other::y() }\nstruct Pos;\n"), child(), other];
    assert_eq!(of(&through).len(), 3);
    let methods = [
        source("a/x.rs", "struct A;\nimpl A { fn x(&self) { self.y() } }\n"),
        source("b.rs", "impl A { fn y(&self) { self.x() } }\n"),
    ];
    assert_eq!(of(&methods).len(), 2);
}
