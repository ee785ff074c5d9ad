//! What a merge should make of three plain trees, by going through all paths.

use pando_fs::*;

use super::trees::{Node, Tree, below, kind, mode_of, parent};

/// The merged tree, and the conflicts.
struct Reference<'a> {
    base: &'a Tree,
    theirs: &'a Tree,
    ours: &'a Tree,
    prefer: Option<MergeSide>,
    out: Tree,
    conflicts: Vec<String>,
}

impl Reference<'_> {
    fn drop_tree(&mut self, path: &str) {
        for inside in below(&self.out, path) {
            self.out.remove(&inside);
        }
        self.out.remove(path);
    }

    fn take(&mut self, path: &str) {
        self.drop_tree(path);
        self.out.insert(path.into(), self.theirs[path].clone());
        for inside in below(self.theirs, path) {
            self.out.insert(inside.clone(), self.theirs[&inside].clone());
        }
    }

    fn conflict(&mut self, path: &str) -> bool {
        self.conflicts.push(path.into());
        self.prefer == Some(MergeSide::Theirs)
    }

    fn changed_inside(&self, tree: &Tree, path: &str) -> bool {
        tree.get(path) != self.base.get(path)
            || below(tree, path).iter().any(|p| tree.get(p) != self.base.get(p))
    }

    /// Merges what is at a path and, of directories, in it.
    fn at(&mut self, path: &str) {
        let (b, t, o) = (self.base.get(path), self.theirs.get(path), self.ours.get(path));
        match (b, t, o) {
            (_, None, None) | (None, None, Some(_)) => {}
            (Some(_), None, Some(_)) => {
                if !self.changed_inside(self.ours, path) || self.conflict(path) {
                    self.drop_tree(path);
                }
            }
            (None, Some(_), None) => self.take(path),
            (Some(_), Some(_), None) => {
                // Only what was removed there is no change.
                let t_changed =
                    t != b || below(self.theirs, path).iter().any(|p| self.theirs.get(p) != self.base.get(p));
                if t_changed && self.conflict(path) {
                    self.take(path);
                }
            }
            (b, Some(t), Some(o)) => {
                let same_base = b.filter(|b| kind(b) == kind(t));
                if let Some(b) = same_base {
                    if kind(o) == kind(b) {
                        self.node(path, Some(b), t, o);
                        if kind(t) == 0 {
                            self.children(path);
                        }
                    } else if self.changed_inside(self.theirs, path) && self.conflict(path) {
                        self.take(path);
                    }
                    return;
                }
                if b.is_some() && kind(b.unwrap()) == kind(o) && !self.changed_inside(self.ours, path) {
                    self.take(path);
                } else if kind(t) == kind(o) {
                    self.node(path, None, t, o);
                    if kind(t) == 0 {
                        self.children(path);
                    }
                } else if self.conflict(path) {
                    self.take(path);
                }
            }
        }
    }

    fn children(&mut self, path: &str) {
        let all: Vec<&Tree> = vec![self.base, self.theirs, self.ours];
        let mut names: Vec<String> = all
            .iter()
            .flat_map(|tree| tree.keys())
            .filter(|p| !p.is_empty() && parent(p) == path)
            .cloned()
            .collect();
        names.sort();
        names.dedup();
        for name in names {
            self.at(&name);
        }
    }

    /// Aspect by aspect.
    fn node(&mut self, path: &str, base: Option<&Node>, theirs: &Node, ours: &Node) {
        let mut clash = false;
        let theirs_first = self.prefer == Some(MergeSide::Theirs);
        fn pick<T: PartialEq + Clone>(b: Option<T>, t: T, o: T, theirs: bool, clash: &mut bool) -> T {
            if t == o || b.as_ref() == Some(&t) {
                return o;
            }
            if b.as_ref() == Some(&o) {
                return t;
            }
            *clash = true;
            if theirs { t } else { o }
        }
        let mode = pick(base.map(mode_of), mode_of(theirs), mode_of(ours), theirs_first, &mut clash);
        let merged = match (theirs, ours) {
            (Node::File { data: t, attr: ta, .. }, Node::File { data: o, attr: oa, .. }) => {
                let (b, ba) = match base {
                    Some(Node::File { data, attr, .. }) => (Some(data.clone()), Some(attr.clone())),
                    _ => (None, None),
                };
                let data = pick(b, t.clone(), o.clone(), theirs_first, &mut clash);
                let attr = pick(ba, ta.clone(), oa.clone(), theirs_first, &mut clash);
                Node::File { data, mode, attr }
            }
            (Node::Link { target: t }, Node::Link { target: o }) => {
                let b = match base {
                    Some(Node::Link { target }) => Some(target.clone()),
                    _ => None,
                };
                Node::Link { target: pick(b, t.clone(), o.clone(), theirs_first, &mut clash) }
            }
            _ => Node::Dir { mode },
        };
        if clash {
            self.conflicts.push(path.into());
        }
        self.out.insert(path.into(), merged);
    }
}

pub fn conflicts(report: &MergeReport) -> Vec<String> {
    let is = |c: &&MergeChange| matches!(c.kind, MergeKind::Conflict(_));
    let path = |c: &MergeChange| match c.path.to_str().unwrap() {
        "" => String::new(),
        path => format!("/{path}"),
    };
    let mut out: Vec<String> = report.changes.iter().filter(is).map(path).collect();
    out.sort();
    out.dedup();
    out
}

pub fn expect(base: &Tree, theirs: &Tree, ours: &Tree, prefer: Option<MergeSide>) -> (Tree, Vec<String>) {
    let out = ours.clone();
    let mut reference = Reference { base, theirs, ours, prefer, out, conflicts: Vec::new() };
    reference.at("");
    let mut conflicts = reference.conflicts;
    conflicts.sort();
    conflicts.dedup();
    (reference.out, conflicts)
}
