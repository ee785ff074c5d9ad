//! Which module may use which, by imports and by methods.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    source::{CRATES, Source, none, sources},
    uses::Uses,
};

/// Uses of rooms that are not below: the crate, a room, and what it uses. An entry that is not needed any more fails,
/// too.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("pando-fs", "bill", "quota"),
    ("pando-fs", "name", "census"),
    ("pando-fs", "rename", "census"),
    ("pando-fs", "volume", "census"),
    ("pando-fs", "volume", "orphan"),
    ("pando-fuse", "writes", "policies"),
];

/// The same of files inside a room: the crate, and a file and one that it uses, though they are part of a circle.
const CIRCLES: &[(&str, &str, &str)] = &[
    ("pando-fs", "fork::carry", "fork::apply"),
    ("pando-fs", "fork::intend", "fork::aside"),
    ("pando-fs", "fork::merge", "fork::large"),
    ("pando-fs", "fork::plan", "fork::arrange"),
    ("pando-fs", "fork::plan", "fork::aside"),
    ("pando-fs", "fork::plan", "fork::intend"),
    ("pando-fs", "fork::plan", "fork::linked"),
];

/// What breaks a table of rooms: by room and what it uses, each with the files and what they name.
pub fn broken_floors(
    table: &[(&str, &[&str])],
    folder: &[&str],
    sources: &[Source],
) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut broken: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    let mut breaks = |room: &str, other: &str, how: String| {
        let path = |room: &str| [folder, &[room]].concat().join("::");
        broken.entry((path(room), path(other))).or_default().insert(how);
    };
    for (i, (room, may)) in table.iter().enumerate() {
        for below in *may {
            if !table[..i].iter().any(|(lower, _)| lower == below) {
                breaks(room, below, "the table has it, and it is not below".into());
            }
        }
    }
    let uses = Uses::new(sources);
    for (i, source) in sources.iter().enumerate().filter(|(_, source)| !source.is_test()) {
        let module = source.module();
        let Some(room) = module.strip_prefix(folder).and_then(|rest| rest.first()) else { continue };
        let Some((_, may)) = table.iter().find(|(name, _)| name == room) else {
            if *room != "lib" {
                breaks(room, "", format!("{} is in no room of the table", source.path));
            }
            continue;
        };
        for path in uses.of(i) {
            let below = path.get(folder.len()).filter(|_| path.iter().zip(folder).all(|(a, b)| a == b));
            if let Some(other) = below.filter(|other| *other != room && !may.contains(&other.as_str())) {
                breaks(room, other, format!("{}: {}", source.path, path.join("::")));
            }
        }
    }
    broken
}

#[test]
fn rooms_use_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    for one in CRATES {
        let sources = sources(one);
        let mut broken = BTreeMap::new();
        one.tables.iter().for_each(|(folder, table)| broken.extend(broken_floors(table, folder, &sources)));
        for (_, room, other) in EXCEPTIONS.iter().filter(|(folder, ..)| *folder == one.folder) {
            if broken.remove(&(room.to_string(), other.to_string())).is_none() {
                wrong.push(format!(
                    "{}: `{room}` does not use `{other}` any more: it is no exception",
                    one.folder
                ));
            }
        }
        let said = |((room, other), how): (_, BTreeSet<String>)| {
            format!("{}: `{room}` uses `{other}`: {}", one.folder, Vec::from_iter(how).join(", "))
        };
        wrong.extend(broken.into_iter().map(said));
    }
    none(wrong);
}

/// Imports by `super` have to be changed when a file moves.
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
fn files_do_not_use_each_other_in_a_circle() {
    let mut wrong = Vec::new();
    for one in CRATES {
        let sources = sources(one);
        let of_crate = |all: &[(&str, &'static str, &'static str)]| -> Vec<(&'static str, &'static str)> {
            all.iter()
                .filter(|(folder, ..)| *folder == one.folder)
                .map(|(_, from, to)| (*from, *to))
                .collect()
        };
        let (rooms, files) = (of_crate(EXCEPTIONS), of_crate(CIRCLES));
        wrong.extend(circles(&sources, &[&rooms[..], &files].concat()));
        for (from, to) in &files {
            let others: Vec<_> = files.iter().filter(|other| **other != (from, to)).copied().collect();
            if circles(&sources, &[&rooms[..], &others].concat()).is_empty() {
                wrong.push(format!(
                    "{}: {from} -> {to} is in no circle any more: it is no exception",
                    one.folder
                ));
            }
        }
    }
    none(wrong);
}

/// The files of circles, with what they use of these, but for the `exceptions`, which are modules with those in their
/// folders. A module and the modules in its folder are one room: a file may use what its parent defines, if there is
/// no circle without the parent.
pub fn circles(sources: &[Source], exceptions: &[(&str, &str)]) -> Vec<String> {
    let uses = Uses::new(sources);
    let modules: Vec<String> = sources.iter().map(|source| source.module().join("::")).collect();
    let is_in = |file: usize, module: &str| {
        modules[file].strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let is_exception =
        |from: usize, to: usize| exceptions.iter().any(|(a, b)| is_in(from, a) && is_in(to, b));
    let arrow = |from: usize| {
        let of = uses.of(from);
        let to = of.iter().filter_map(|path| uses.file_of(path));
        to.filter(|to| *to != from && !sources[*to].is_test() && !is_exception(from, *to)).collect()
    };
    let arrows: Vec<BTreeSet<usize>> = (0..sources.len()).map(arrow).collect();
    let name = |i: &usize, all: &BTreeSet<usize>| {
        format!(
            "{} -> {:?}",
            modules[*i],
            arrows[*i].intersection(all).map(|j| &modules[*j]).collect::<Vec<_>>()
        )
    };
    let mut found = Vec::new();
    let mut left = vec![(0..sources.len()).filter(|i| !sources[*i].is_test()).collect::<BTreeSet<_>>()];
    while let Some(among) = left.pop() {
        for circle in components(&arrows, &among) {
            let is_parent = |i: &&usize| {
                let all_below = format!("{}::", modules[**i]);
                circle.iter().all(|j| j == *i || modules[*j].starts_with(&all_below))
            };
            match circle.iter().find(is_parent) {
                Some(parent) => left.push(circle.iter().copied().filter(|i| i != parent).collect()),
                None => found.extend(circle.iter().map(|i| name(i, &circle))),
            }
        }
    }
    found
}

/// Those sets of files among some that all reach each other.
fn components(arrows: &[BTreeSet<usize>], among: &BTreeSet<usize>) -> Vec<BTreeSet<usize>> {
    let reach = |from: usize| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(i) = left.pop() {
            left.extend(arrows[i].iter().filter(|j| among.contains(j) && seen.insert(**j)));
        }
        seen
    };
    let reached: BTreeMap<usize, BTreeSet<usize>> = among.iter().map(|i| (*i, reach(*i))).collect();
    let circle = |i: usize| reached[&i].iter().copied().filter(|j| reached[j].contains(&i)).collect();
    let circles = among.iter().filter(|i| reached[i].contains(i)).map(|i| circle(*i));
    circles.collect::<BTreeSet<BTreeSet<usize>>>().into_iter().collect()
}
