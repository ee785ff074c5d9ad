//! Which module may import which.

use std::collections::BTreeSet;

use crate::source::{CRATES, Source, none, sources};

/// What breaks a table of rooms among `modules`, each with what it imports below the folder of the table.
pub fn broken_floors(table: &[(&str, &[&str])], folder: &[&str], sources: &[Source]) -> Vec<String> {
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
