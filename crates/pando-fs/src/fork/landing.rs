//! A plan by path: what a merge does at a path, and where the entry at that path is afterwards.
//!
//! Guarantees that an entry has one path afterwards, and none only if it is removed or replaced by another file. Pure
//! functions.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use crate::{
    diff::{change::Aspects, side::contents_of},
    error::Result,
    fork::{
        arrange::Moved,
        follow::{in_dir, upwards},
        step::Step,
    },
    path,
};

/// What a merge does at a path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Site {
    pub removed: bool,
    pub moved: bool,
    /// Another file takes its place.
    pub renewed: bool,
    /// Its attributes change.
    pub changed: bool,
    /// Its extended attributes change.
    pub attrs: bool,
}

/// See the module.
pub(crate) struct Landing<'a> {
    moved: Moved,
    at: HashMap<&'a [u8], Site>,
    /// All paths, as before the merge, at which the merge does something or to which something comes, in order.
    paths: Vec<Cow<'a, [u8]>>,
    targets: HashSet<Vec<u8>>,
    /// Directories whose entries change.
    touched: HashSet<Vec<u8>>,
}

impl<'a> Landing<'a> {
    pub(crate) fn of(steps: &'a [Step]) -> Result<Self> {
        let mut landing = Self {
            moved: Moved::of(steps),
            at: HashMap::new(),
            paths: Vec::new(),
            targets: HashSet::new(),
            touched: HashSet::new(),
        };
        for step in steps {
            match step {
                Step::Remove(entry) => landing.leaves(entry, |site| site.removed = true),
                Step::Move { from, dir, name } => {
                    landing.leaves(from, |site| site.moved = true);
                    landing.comes(path::entry(dir, name)?);
                }
                Step::Take { from, dir, .. } => landing.comes(in_dir(dir, from)),
                Step::Change { to, .. } | Step::Write { to, .. } if step.makes_file() => {
                    landing.leaves(to, |site| site.renewed = true);
                }
                Step::Change { to, aspects, .. } | Step::Write { to, aspects, .. } => {
                    let site = landing.at.entry(to).or_default();
                    site.changed = true;
                    site.attrs |= aspects.0 & Aspects::XATTRS.0 != 0;
                    landing.paths.push(Cow::Borrowed(to));
                }
            }
        }
        landing.paths.sort_unstable();
        Ok(landing)
    }

    fn leaves(&mut self, entry: &'a [u8], note: impl FnOnce(&mut Site)) {
        note(self.at.entry(entry).or_default());
        self.paths.push(Cow::Borrowed(entry));
        self.touch(entry);
    }

    fn comes(&mut self, to: Vec<u8>) {
        self.touch(&to);
        self.targets.insert(to.clone());
        self.paths.push(Cow::Owned(to));
    }

    fn touch(&mut self, entry: &[u8]) {
        let dir = path::directory_of(entry);
        if !self.touched.contains(dir) {
            self.touched.insert(dir.to_vec());
        }
    }

    /// What the merge does at this path itself.
    pub(crate) fn at(&self, entry: &[u8]) -> Site {
        self.at.get(entry).copied().unwrap_or_default()
    }

    /// Where the entry at this path is moved: the contents prefix of a directory, as before the merge, and a name.
    pub(crate) fn target_of(&self, entry: &[u8]) -> Option<(&[u8], &[u8])> {
        self.moved.target(&contents_of(entry))
    }

    /// Whether something comes to this path.
    pub(crate) fn is_target(&self, entry: &[u8]) -> bool {
        self.targets.contains(entry)
    }

    /// Whether entries of the directory with this contents prefix change.
    pub(crate) fn touches(&self, dir: &[u8]) -> bool {
        self.touched.contains(dir)
    }

    /// Whether anything is done below the directory with this contents prefix, or comes there.
    pub(crate) fn any_below(&self, dir: &[u8]) -> bool {
        let first = self.paths.partition_point(|path| **path < *dir);
        self.paths.get(first).is_some_and(|path| path.starts_with(dir))
    }

    /// The path that what is at `entry` has afterwards; `None` if it is removed, by itself or with a directory around
    /// it.
    pub(crate) fn land(&self, entry: &[u8]) -> Option<Vec<u8>> {
        let contents = contents_of(entry);
        for above in upwards(&contents) {
            match self.at(&path::entry_of_contents(above)?) {
                Site { moved: true, .. } => break,
                Site { removed: true, .. } => return None,
                _ => {}
            }
        }
        path::entry_of_contents(&self.moved.after(&contents))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn entry(path: &str) -> Vec<u8> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        path::entry(&contents(dir), name.as_bytes()).unwrap()
    }

    fn contents(dir: &str) -> Vec<u8> {
        let names = dir.split('/').filter(|name| !name.is_empty());
        names.fold(Vec::new(), |dir, name| path::contents(&dir, name.as_bytes()).unwrap())
    }

    #[test]
    fn what_was_somewhere_is_found_where_it_is_afterwards() {
        let change = |at, aspects, alone| Step::Change { from: entry(at), to: entry(at), aspects, alone };
        let steps = [
            Step::Remove(entry("gone")),
            Step::Move { from: entry("gone/kept"), dir: contents("a"), name: b"came".to_vec() },
            Step::Move { from: entry("a"), dir: contents(""), name: b"b".to_vec() },
            Step::Take { from: entry("x/new"), dir: contents("a"), without: Vec::new() },
            change("c/f", Aspects::MODE, false),
            change("c/g", Aspects::CONTENT, false),
            change("c/h", Aspects::MODE, true),
            change("c/i", Aspects(Aspects::MODE.0 | Aspects::XATTRS.0), false),
        ];
        let landing = Landing::of(&steps).unwrap();
        let land = |path: &str| landing.land(&entry(path));
        assert_eq!(land("gone/x"), None);
        assert_eq!(land("gone"), None);
        assert_eq!(land("gone/kept/deep"), Some(entry("b/came/deep")));
        assert_eq!(land("a"), Some(entry("b")));
        assert_eq!(land("a/f"), Some(entry("b/f")));
        assert_eq!(land("c/f"), Some(entry("c/f")));
        assert!(landing.is_target(&entry("a/new")) && landing.is_target(&entry("b")));
        assert!(landing.at(&entry("c/f")).changed && !landing.at(&entry("c/f")).renewed);
        assert!(landing.at(&entry("c/i")).attrs && !landing.at(&entry("c/f")).attrs);
        assert!(landing.at(&entry("c/g")).renewed && landing.at(&entry("c/h")).renewed);
        assert!(landing.any_below(&contents("c")) && !landing.any_below(&contents("d")));
        assert!(landing.any_below(&contents("gone")) && landing.any_below(&contents("a")));
        assert!(landing.touches(&contents("")) && landing.touches(&contents("a")));
        assert!(!landing.touches(&contents("x")));
    }
}
