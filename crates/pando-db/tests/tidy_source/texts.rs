//! How long lines and files are, those of documents too, what a file begins with, and that files exist which documents
//! name.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::source::{CRATES, Source, none, repository, sources};

/// Longest line, in characters. `rustfmt` keeps code to 110; a comment may be a little longer.
const LINE_CHARS: usize = 120;

/// Longest file, in lines.
const FILE_LINES: usize = 600;

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
