//! The source of the crates, as text.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    engine_layers::{DAG, DB, DEVICE, ENGINE, STORE},
    fs_layers::{DIFF, FORK, FS, SEND},
    mount_layers::{FUSE, PROGRAM},
};

/// A crate of the workspace: its folder, and its tables of layers with the module that each table is about.
pub struct Crate {
    pub folder: &'static str,
    pub tables: &'static [(&'static [&'static str], Layers)],
    /// Fewer files than this, and the source was not found.
    pub least_files: usize,
}

/// Modules or files from the lowest layer up, and what each may import.
pub type Layers = &'static [(&'static str, &'static [&'static str])];

pub const CRATES: &[Crate] = &[
    Crate {
        folder: "pando-db",
        tables: &[(&[], ENGINE), (&["device"], DEVICE), (&["store"], STORE), (&["dag"], DAG), (&["db"], DB)],
        least_files: 80,
    },
    Crate {
        folder: "pando-fs",
        tables: &[(&[], FS), (&["diff"], DIFF), (&["send"], SEND), (&["fork"], FORK)],
        least_files: 30,
    },
    Crate { folder: "pando-fuse", tables: &[(&[], FUSE)], least_files: 20 },
    Crate { folder: "pando", tables: &[(&[], PROGRAM)], least_files: 30 },
];

pub struct Source {
    /// Below `src`, as `dag/read/view.rs`.
    pub path: String,
    pub text: String,
}

impl Source {
    /// The lines that are no test module's, with their numbers from 1 on.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let marks = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\n#[allow(clippy::unwrap_used)]\nmod tests {"];
        let tests = marks.iter().filter_map(|mark| self.text.find(mark)).min().unwrap_or(self.text.len());
        let lines = self.text[..tests].lines().count();
        let all = if self.is_test() { 0 } else { lines };
        self.text.lines().take(all).enumerate().map(|(i, line)| (i + 1, line))
    }

    pub fn is_test(&self) -> bool {
        self.path.ends_with("tests.rs")
    }

    /// The parts of its module path: `dag/read/mod.rs` is `dag`, `read`.
    pub fn module(&self) -> Vec<&str> {
        self.path.trim_end_matches(".rs").split('/').filter(|part| *part != "mod").collect()
    }

    /// The text of the lines that [`Source::code`] gives.
    pub fn text_of_code(&self) -> &str {
        let end = match self.code().count() {
            0 => 0,
            lines => self.text.match_indices('\n').nth(lines - 1).map_or(self.text.len(), |(end, _)| end),
        };
        &self.text[..end]
    }
}

pub fn sources(of: &Crate) -> Vec<Source> {
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

/// All files of the crates and of the benchmarks, but what is built.
pub fn repository() -> Vec<PathBuf> {
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

pub fn none(broken: Vec<String>) {
    assert!(broken.is_empty(), "{} times:\n{}", broken.len(), broken.join("\n"));
}
