//! Which directories hold names of files that have further names elsewhere among what is copied.
//!
//! Guarantees: a directory that is not divided can be copied as a whole, and no two of the names that are copied are
//! names of two files then, as far as all could be read. Looks at each file once, and follows no link.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A name of a file, and which of the trees it was found in.
type FoundName = (usize, PathBuf);

/// The divided directories of some trees.
pub struct Divided {
    dirs: HashSet<PathBuf>,
    /// A directory that could not be looked into, and why.
    pub unread: Option<(PathBuf, io::Error)>,
}

impl Divided {
    /// The divided directories among these files and trees. A tree ends where another file system is mounted.
    pub fn among(tops: &[PathBuf]) -> Divided {
        let mut out = Divided { dirs: HashSet::new(), unread: None };
        let mut files: HashMap<(u64, u64), Vec<FoundName>> = HashMap::new();
        for (number, top) in tops.iter().enumerate() {
            let mut paths = vec![top.clone()];
            let mut device = None;
            while let Some(path) = paths.pop() {
                // What cannot be copied is said when that is tried.
                let Ok(meta) = fs::symlink_metadata(&path) else { continue };
                if *device.get_or_insert(meta.dev()) != meta.dev() {
                    continue;
                }
                if !meta.is_dir() {
                    if meta.nlink() > 1 {
                        files.entry((meta.dev(), meta.ino())).or_default().push((number, path));
                    }
                    continue;
                }
                let listed = fs::read_dir(&path).and_then(|entries| {
                    entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()
                });
                match listed {
                    Ok(listed) => paths.extend(listed),
                    Err(e) => out.unread = Some((path, e)),
                }
            }
        }
        for names in files.values().filter(|names| names.len() > 1) {
            out.add(names, tops);
        }
        out
    }

    /// Whether a file with a name in `dir` has another one outside of it.
    pub fn has(&self, dir: &Path) -> bool {
        self.dirs.contains(dir)
    }

    /// Whether the caller may copy the entries of `dir`, and of the divided directories below it, one by one: unless
    /// it is root, it must own them.
    pub fn may_be_filled(&self, dir: &Path) -> bool {
        let caller = rustix::process::geteuid();
        let mut dirs = vec![dir.to_owned()];
        while let (false, Some(dir)) = (caller.is_root(), dirs.pop()) {
            let Ok(entries) = fs::read_dir(&dir) else { return false };
            for entry in entries {
                let Ok((path, meta)) = entry.and_then(|e| Ok((e.path(), e.metadata()?))) else {
                    return false;
                };
                if meta.uid() != caller.as_raw() {
                    return false;
                }
                if meta.is_dir() && self.has(&path) {
                    dirs.push(path);
                }
            }
        }
        true
    }

    /// Notes the names of one file.
    fn add(&mut self, names: &[FoundName], tops: &[PathBuf]) {
        let Some(((first, path), others)) = names.split_first() else { return };
        // The directory that all are in, if they are in one tree.
        let mut around = path.parent().filter(|_| others.iter().all(|(number, _)| number == first));
        while let Some(dir) = around
            && !others.iter().all(|(_, path)| path.starts_with(dir))
        {
            around = dir.parent();
        }
        for (number, path) in names {
            let Some(top) = tops.get(*number) else { continue };
            let inside = path.ancestors().skip(1).take_while(|dir| dir.starts_with(top));
            let apart = inside.take_while(|dir| around.is_none_or(|around| !around.starts_with(dir)));
            self.dirs.extend(apart.map(Path::to_path_buf));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_lies_between_the_names_of_a_file_is_divided() {
        let tmp = tempfile::tempdir().unwrap();
        let at = |path: &str| tmp.path().join(path);
        for dir in ["t/a/in/deep", "t/b", "t/c", "u/d"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        let linked = |names: &[&str]| {
            fs::write(at(names[0]), "x").unwrap();
            names.iter().skip(1).for_each(|name| fs::hard_link(at(names[0]), at(name)).unwrap());
        };
        linked(&["t/a/in/deep/1", "t/a/in/2"]);
        linked(&["t/c/1", "t/c/2", "outside"]);
        let divided = |tops: &[&str]| -> Vec<String> {
            let found = Divided::among(&tops.iter().map(|top| at(top)).collect::<Vec<_>>());
            let all = ["t", "t/a", "t/a/in", "t/a/in/deep", "t/b", "t/c", "u", "u/d"];
            all.iter().filter(|dir| found.has(&at(dir))).map(ToString::to_string).collect()
        };
        assert_eq!(divided(&["t"]), ["t/a/in/deep"]);
        assert_eq!(divided(&["t/."]), ["t/a/in/deep"]);
        linked(&["t/a/in/x", "t/b/x", "u/d/x"]);
        assert_eq!(divided(&["t"]), ["t/a", "t/a/in", "t/a/in/deep", "t/b"]);
        assert_eq!(divided(&["u"]), [""; 0]);
        assert_eq!(divided(&["t/b", "u"]), ["t/b", "u", "u/d"]);
        assert_eq!(divided(&["t/b/x", "u"]), ["u", "u/d"], "a file and a tree");
        assert_eq!(divided(&["t/c", "t/c/1"]), ["t/c"], "one name is copied twice");
    }
}
