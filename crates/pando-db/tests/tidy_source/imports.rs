//! Which module may use which, by imports and by methods.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    source::{CRATES, Source, none, sources},
    uses::Uses,
};

/// What breaks a table of modules: by module and what it uses, each with the files and what they name.
pub fn broken_layers(
    table: &[(&str, &[&str])],
    folder: &[&str],
    sources: &[Source],
) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut broken: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    let mut breaks = |module: &str, other: &str, how: String| {
        let path = |module: &str| [folder, &[module]].concat().join("::");
        broken.entry((path(module), path(other))).or_default().insert(how);
    };
    for (i, (module, may)) in table.iter().enumerate() {
        for below in *may {
            if !table[..i].iter().any(|(lower, _)| lower == below) {
                breaks(module, below, "the table has it, and it is not below".into());
            }
        }
    }
    let uses = Uses::new(sources);
    let in_table = |other: &str| table.iter().any(|(name, _)| *name == other);
    for (i, source) in sources.iter().enumerate().filter(|(_, source)| !source.is_test()) {
        let path_of_source = source.module();
        let Some(module) = path_of_source.strip_prefix(folder).and_then(|rest| rest.first()) else {
            continue;
        };
        let Some((_, may)) = table.iter().find(|(name, _)| name == module) else {
            if *module != "lib" {
                breaks(module, "", format!("{} is in no module of the table", source.path));
            }
            continue;
        };
        for path in uses.of(i) {
            let below = path.get(folder.len()).filter(|_| path.iter().zip(folder).all(|(a, b)| a == b));
            // Files of a folder may use what the module of the folder defines.
            let counts = |other: &&String| folder.is_empty() || in_table(other);
            let other = below.filter(|other| *other != module && !may.contains(&other.as_str()));
            if let Some(other) = other.filter(counts) {
                breaks(module, other, format!("{}: {}", source.path, path.join("::")));
            }
        }
    }
    broken
}

#[test]
fn modules_use_only_what_lies_below_them() {
    let mut wrong = Vec::new();
    for one in CRATES {
        let sources = sources(one);
        let broken = one.tables.iter().flat_map(|(folder, table)| broken_layers(table, folder, &sources));
        let said = |((module, other), how): (_, BTreeSet<String>)| {
            format!("{}: `{module}` uses `{other}`: {}", one.folder, Vec::from_iter(how).join(", "))
        };
        wrong.extend(broken.map(said));
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
    none(CRATES.iter().flat_map(|one| circles(&sources(one))).collect());
}

/// The files of circles, with what they use of these. A module and the modules in its folder count as one: a file may
/// use what its parent defines, if there is no circle without the parent.
pub fn circles(sources: &[Source]) -> Vec<String> {
    let uses = Uses::new(sources);
    let modules: Vec<String> = sources.iter().map(|source| source.module().join("::")).collect();
    let arrow = |from: usize| {
        let of = uses.of(from);
        let to = of.iter().filter_map(|path| uses.file_of(path));
        to.filter(|to| *to != from && !sources[*to].is_test()).collect()
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
