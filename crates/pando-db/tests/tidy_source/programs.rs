//! Which files of tests are part of a program.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::source::{CRATES, none};

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
