//! Random calls against a tree of plain Rust values that knows what each must do.
//!
//! After every call the error codes are compared, at intervals the whole tree:
//! content, attributes, numbers (unique, and the same as ever), and the keys
//! underneath. `PANDO_SEED` and `PANDO_STEPS` replay or prolong a run.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::common::*;
use pando_fs::*;
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    ffi::OsStr,
    rc::Rc,
    sync::atomic::{AtomicUsize, Ordering},
};

type Node = Rc<RefCell<Oracle>>;

/// How many files of models there were.
static FILES: AtomicUsize = AtomicUsize::new(0);

/// What the file system must say of one inode.
#[derive(Clone)]
enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<String, Node>),
    Symlink(String),
}

struct Oracle {
    body: Body,
    perm: u16,
    /// Which file it is; a clone of it is the same.
    file: usize,
    /// Of a directory that is the root of a lineage.
    lineage: Option<u64>,
    /// It has, or had, several names.
    linked: bool,
    /// Known once seen; must never change then.
    ino: Option<Ino>,
    /// As seen at the last comparison, if no call has changed them since.
    times: Option<(Time, Time)>,
}

impl Oracle {
    fn new(body: Body, perm: u16) -> Node {
        let file = FILES.fetch_add(1, Ordering::Relaxed);
        Rc::new(RefCell::new(Self { body, perm, file, lineage: None, linked: false, ino: None, times: None }))
    }

    fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }

    fn children(&mut self) -> &mut BTreeMap<String, Node> {
        match &mut self.body {
            Body::Dir(c) => c,
            _ => panic!("not a directory"),
        }
    }
}

/// A copy with numbers of its own; files that have several names in it have them in the copy.
fn deep(node: &Node, lineages: &mut u64, copies: &mut BTreeMap<*const RefCell<Oracle>, Node>) -> Node {
    if let Some(copy) = copies.get(&Rc::as_ptr(node)) {
        return copy.clone();
    }
    let n = node.borrow();
    let body = match &n.body {
        Body::Dir(c) => Body::Dir(c.iter().map(|(k, v)| (k.clone(), deep(v, lineages, copies))).collect()),
        other => other.clone(),
    };
    let lineage = n.lineage.map(|_| {
        *lineages += 1;
        *lineages
    });
    let (perm, file, linked, times) = (n.perm, n.file, n.linked, n.times);
    let copy = Rc::new(RefCell::new(Oracle { body, perm, file, lineage, linked, ino: None, times }));
    copies.insert(Rc::as_ptr(node), copy.clone());
    copy
}

/// Whether there are names of linked files in a directory, outside of roots in it.
fn holds_links(dir: &Node) -> bool {
    match &dir.borrow().body {
        Body::Dir(c) => c.values().any(|n| match n.borrow().is_dir() {
            true => n.borrow().lineage.is_none() && holds_links(n),
            false => n.borrow().linked,
        }),
        _ => false,
    }
}

struct Open {
    fh: FileHandle,
    ino: Ino,
    node: Node,
}

/// Who has which inode number.
type Numbers = HashMap<Ino, *const RefCell<Oracle>>;

/// A snapshot, and what it must say for ever.
struct Snap {
    number: u32,
    name: String,
    /// The directory, as far as it is still there, and its number.
    source: Node,
    source_ino: Ino,
    tree: Node,
    /// Where the directory was when it was made.
    made_at: Path,
    /// Its root's number, once seen.
    ino: Option<Ino>,
}

struct Model {
    w: World,
    root: Node,
    open: Vec<Open>,
    snaps: Vec<Snap>,
    r: Random,
    lineages: u64,
}

type Path = Vec<String>;

/// Files in a tree that goes lose names, which changes their times.
fn untouch(node: &Node) {
    node.borrow_mut().times = None;
    if let Body::Dir(c) = &node.borrow().body {
        c.values().for_each(untouch);
    }
}

/// Each directory below one, as it is in two states of a tree, where both have the same one at one place.
fn same_dirs(before: &Node, after: &Node, path: &mut Path, each: &mut impl FnMut(&[String], &Node, &Node)) {
    let (before, after) = (before.borrow(), after.borrow());
    let (Body::Dir(old), Body::Dir(new)) = (&before.body, &after.body) else { return };
    for (name, old) in old {
        let Some(new) = new.get(name).filter(|new| new.borrow().is_dir() && old.borrow().is_dir()) else {
            continue;
        };
        path.push(name.clone());
        if new.borrow().file == old.borrow().file {
            each(path, old, new);
        }
        same_dirs(old, new, path, each);
        path.pop();
    }
}

fn dirs_below(dir: &Node, each: &mut impl FnMut(&Node)) {
    if let Body::Dir(children) = &dir.borrow().body {
        for child in children.values().filter(|child| child.borrow().is_dir()) {
            each(child);
            dirs_below(child, each);
        }
    }
}

/// What has this path in a directory.
fn below(dir: &Node, path: &[String]) -> Option<Node> {
    let step = |at: Node, name: &String| match &at.borrow().body {
        Body::Dir(children) => children.get(name).cloned(),
        _ => None,
    };
    path.iter().try_fold(dir.clone(), step)
}

fn text(path: &[String]) -> String {
    format!("/{}", path.join("/"))
}

impl Model {
    fn node(&self, path: &[String]) -> Option<Node> {
        let mut at = self.root.clone();
        for name in path {
            let next = match &at.borrow().body {
                Body::Dir(c) => c.get(name)?.clone(),
                _ => return None,
            };
            at = next;
        }
        Some(at)
    }

    /// Length of the path of the root of the lineage that the directory at `path` is in, and the lineage.
    fn lineage(&self, path: &[String]) -> (usize, u64) {
        let mut found = (0, 0);
        for len in 1..=path.len() {
            if let Some(lineage) = self.node(&path[..len]).unwrap().borrow().lineage {
                found = (len, lineage);
            }
        }
        found
    }

    /// The same of the directory that holds `path`, whose root is given by its path.
    fn around(&self, path: &[String]) -> (Path, u64) {
        let (len, lineage) = self.lineage(&path[..path.len() - 1]);
        (path[..len].to_vec(), lineage)
    }

    /// Whether a rename takes a file that had several names out of the link area: its count says that it has one.
    fn leaves_area(&self, path: &[String], node: &Node) -> bool {
        node.borrow().linked && self.w.attr(&text(path)).nlink == 1
    }

    /// Whether a rename would tear names of one file apart.
    fn tears(&self, from: &[String], to: &[String], node: &Node) -> bool {
        let across = self.around(from).0 != self.around(to).0 && !self.leaves_area(from, node);
        let n = node.borrow();
        across && if n.is_dir() { n.lineage.is_none() && holds_links(node) } else { n.linked }
    }

    /// The lineage of a directory as a root after a rename, `None` if it is none then.
    fn moved_lineage(&self, from: &[String], to: &[String], node: &Node) -> Option<u64> {
        let (before, after) = (self.around(from).1, self.around(to).1);
        let own = node.borrow().lineage;
        if before == after || !node.borrow().is_dir() {
            return own;
        }
        // Whether it has a link area is read from the keys: files that nothing shows may be there.
        let mut area = b"\0\0\0\0M".to_vec();
        from.iter().for_each(|name| area.extend([&[2], name.as_bytes(), &[0]].concat()));
        area.push(3);
        let keeps = own.is_some() && self.w.fs.db().prefix(&area).next().is_some();
        let inside = own.unwrap_or(before);
        (inside != after || keeps).then_some(inside)
    }

    fn all(&self) -> Vec<(Path, Node)> {
        let mut out = Vec::new();
        let mut todo = vec![(Path::new(), self.root.clone())];
        while let Some((path, node)) = todo.pop() {
            if let Body::Dir(c) = &node.borrow().body {
                for (name, child) in c {
                    let mut path = path.clone();
                    path.push(name.clone());
                    todo.push((path, child.clone()));
                }
            }
            out.push((path, node));
        }
        out
    }

    /// A path whose parent exists; the entry itself may or may not.
    fn place(&mut self) -> Path {
        let dirs: Vec<Path> =
            self.all().into_iter().filter(|(_, n)| n.borrow().is_dir()).map(|(p, _)| p).collect();
        let mut path = self.r.pick(&dirs).clone();
        if path.len() > 7 {
            path.truncate(7);
        }
        path.push(["a", "b", "c", "d", "e"][self.r.below(5)].into());
        path
    }

    fn some(&mut self, wanted: impl Fn(&Oracle) -> bool) -> Option<(Path, Node)> {
        let found: Vec<_> =
            self.all().into_iter().filter(|(p, n)| !p.is_empty() && wanted(&n.borrow())).collect();
        (!found.is_empty()).then(|| self.r.pick(&found).clone())
    }

    fn parent(&self, path: &[String]) -> Node {
        self.node(&path[..path.len() - 1]).unwrap()
    }

    fn touch(&self, path: &[String]) {
        self.parent(path).borrow_mut().times = None;
    }

    fn insert(&self, path: &[String], node: Node) -> Option<Node> {
        self.touch(path);
        self.parent(path).borrow_mut().children().insert(path.last().unwrap().clone(), node)
    }

    fn remove(&self, path: &[String]) -> Option<Node> {
        self.touch(path);
        self.parent(path).borrow_mut().children().remove(path.last().unwrap())
    }

    fn make(&mut self) {
        let path = self.place();
        let taken = self.node(&path).is_some();
        let kind = self.r.below(4);
        let p = text(&path);
        let w = &self.w;
        let inherited = self.parent(&path).borrow().perm & 0o2000;
        let (result, node) = match kind {
            0 => (
                w.at(&p, |d, n| w.fs.mkdir(&w.me, d, n, 0o750)),
                Oracle::new(Body::Dir(BTreeMap::new()), 0o750 | inherited),
            ),
            1 => (
                w.at(&p, |d, n| w.fs.symlink(&w.me, d, n, OsStr::new(&p))),
                Oracle::new(Body::Symlink(p.clone()), 0o777),
            ),
            _ => (
                w.at(&p, |d, n| w.fs.mknod(&w.me, d, n, 0o100640, 0)),
                Oracle::new(Body::File(Vec::new()), 0o640),
            ),
        };
        assert_eq!(result.as_ref().err().map(Error::errno), taken.then_some(EEXIST), "make {p}");
        if let Ok(attr) = result {
            self.w.fs.forget(attr.ino, 1);
            node.borrow_mut().ino = Some(attr.ino);
            self.insert(&path, node);
        }
    }

    fn write(&mut self) {
        // Through a handle, whose file may have no name any more, or by path.
        let target = if !self.open.is_empty() && self.r.below(3) == 0 {
            let open = &self.open[self.r.below(self.open.len())];
            (open.fh, open.ino, open.node.clone(), None)
        } else {
            let Some((path, node)) = self.some(|n| matches!(n.body, Body::File(_))) else { return };
            let attr = self.w.fs.resolve(text(&path).as_ref()).unwrap();
            (NONE, attr.ino, node, Some(attr.ino))
        };
        let (fh, ino, node, forget) = target;
        let offset = self.r.below(70_000);
        let len = *self.r.pick(&[1, 4, 100, 5000, 16_384, 40_000]);
        let offset = if self.r.below(3) == 0 { offset / 16_384 * 16_384 } else { offset };
        let truncate = self.r.below(4) == 0;
        let mut n = node.borrow_mut();
        n.times = None;
        let Body::File(content) = &mut n.body else { panic!("not a file") };
        if truncate {
            let set = SetAttr { size: Some(offset as u64), ..SetAttr::default() };
            self.w.fs.setattr(&self.w.me, ino, &set).unwrap();
            content.resize(offset, 0);
        } else {
            let data = pattern(len, self.r.next() as u8);
            let append = self.r.below(4) == 0;
            assert_eq!(self.w.fs.write(fh, ino, offset as u64, &data, append).unwrap() as usize, len);
            let offset = if append { content.len() } else { offset };
            content.resize(content.len().max(offset + len), 0);
            content[offset..offset + len].copy_from_slice(&data);
        }
        drop(n);
        if let Some(ino) = forget {
            self.w.fs.forget(ino, 1);
        }
    }

    fn chmod(&mut self) {
        let Some((path, node)) = self.some(|n| !matches!(n.body, Body::Symlink(_))) else { return };
        let perm = self.r.below(0o10000) as u16;
        let set = SetAttr { mode: Some(perm.into()), ..SetAttr::default() };
        self.w.on(&text(&path), |a| self.w.fs.setattr(&self.w.me, a.ino, &set)).unwrap();
        let mut n = node.borrow_mut();
        n.perm = perm;
        n.times = None;
    }

    /// Each file once, by whatever name.
    fn change_tree(&mut self) {
        let dirs: Vec<_> = self.all().into_iter().filter(|(_, n)| n.borrow().is_dir()).collect();
        let (path, top) = self.r.pick(&dirs).clone();
        let text_of_mode = *self.r.pick(&["u+x", "g=u,o=g", "4751", "a+X,u-s", "o-r,g+s"]);
        let mode = ModeChange::parse(text_of_mode, 0);
        let change = TreeChange { mode, ..TreeChange::default() };
        self.w.on(&text(&path), |a| self.w.fs.change_tree(a.ino, &change)).unwrap();
        let mut todo = vec![top];
        let mut done = Vec::new();
        while let Some(node) = todo.pop() {
            let mut n = node.borrow_mut();
            if done.contains(&Rc::as_ptr(&node)) || matches!(n.body, Body::Symlink(_)) {
                continue;
            }
            done.push(Rc::as_ptr(&node));
            n.perm = mode.unwrap().apply(n.perm, n.is_dir());
            n.times = None;
            if let Body::Dir(children) = &n.body {
                todo.extend(children.values().cloned());
            }
        }
    }

    fn open_or_release(&mut self) {
        if self.open.len() > 5 || (!self.open.is_empty() && self.r.below(2) == 0) {
            let open = self.open.swap_remove(self.r.below(self.open.len()));
            self.compare_open(&open);
            self.w.fs.release(open.ino, open.fh);
            self.w.fs.forget(open.ino, 1);
        } else if let Some((path, node)) = self.some(|n| matches!(n.body, Body::File(_))) {
            let attr = self.w.fs.resolve(text(&path).as_ref()).unwrap();
            let fh = self.w.fs.open_file(&self.w.me, attr.ino, O_RDWR).unwrap();
            self.open.push(Open { fh, ino: attr.ino, node });
        }
    }

    fn unlink_or_rmdir(&mut self) {
        let path = self.place();
        let p = text(&path);
        let node = self.node(&path);
        let dir = self.r.below(3) == 0;
        let expected = match (&node, dir) {
            (None, _) => Some(ENOENT),
            (Some(n), false) => n.borrow().is_dir().then_some(EISDIR),
            (Some(n), true) if !n.borrow().is_dir() => Some(ENOTDIR),
            (Some(n), true) => (!n.borrow_mut().children().is_empty()).then_some(ENOTEMPTY),
        };
        let result = if dir { self.w.rmdir(&p) } else { self.w.unlink(&p) };
        assert_eq!(result.err().map(|e| e.errno()), expected, "remove {p}");
        if expected.is_none() {
            self.remove(&path).unwrap().borrow_mut().times = None;
        }
    }

    fn rename(&mut self) {
        let (from, to) = (self.place(), self.place());
        let flags = *self.r.pick(&[0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_EXCHANGE]);
        let (src, dst) = (self.node(&from), self.node(&to));
        let exchange = flags == RENAME_EXCHANGE;
        let dir = |n: &Node| n.borrow().is_dir();
        let expected = match (&src, &dst) {
            (None, _) => Some(ENOENT),
            (_, Some(_)) if flags == RENAME_NOREPLACE => Some(EEXIST),
            _ if from == to => None,
            _ if to[..to.len() - 1].starts_with(&from) => Some(EINVAL),
            _ if dst.is_some() && from[..from.len() - 1].starts_with(&to) => {
                Some(if exchange { EINVAL } else { ENOTEMPTY })
            }
            (_, None) if exchange => Some(ENOENT),
            (Some(s), Some(d)) if Rc::ptr_eq(s, d) => None,
            (Some(s), _) if self.tears(&from, &to, s) => Some(EXDEV),
            (_, Some(d)) if exchange && self.tears(&to, &from, d) => Some(EXDEV),
            _ if exchange => None,
            (_, None) => None,
            (Some(s), Some(d)) => match (dir(s), dir(d)) {
                (true, false) => Some(ENOTDIR),
                (false, true) => Some(EISDIR),
                (true, true) => (!d.borrow_mut().children().is_empty()).then_some(ENOTEMPTY),
                (false, false) => None,
            },
        };
        let lineage = |a: &Path, b: &Path, n: &Option<Node>| n.as_ref().map(|n| self.moved_lineage(a, b, n));
        let lineages = match expected {
            None => (lineage(&from, &to, &src), lineage(&to, &from, &dst)),
            Some(_) => (None, None),
        };
        let leaves = |path: &Path, n: &Option<Node>| n.as_ref().is_some_and(|n| self.leaves_area(path, n));
        let leaves = (leaves(&from, &src), exchange && leaves(&to, &dst));
        let result = self.w.rename(&text(&from), &text(&to), flags);
        let (f, t) = (text(&from), text(&to));
        assert_eq!(result.err().map(|e| e.errno()), expected, "rename {f} {t} {flags}");
        let same = matches!((&src, &dst), (Some(s), Some(d)) if Rc::ptr_eq(s, d));
        if expected.is_none() && !same {
            let (src, dst) = (self.remove(&from).unwrap(), self.remove(&to));
            src.borrow_mut().times = None;
            src.borrow_mut().lineage = lineages.0.flatten();
            src.borrow_mut().linked &= !leaves.0;
            self.insert(&to, src);
            if let Some(dst) = dst {
                dst.borrow_mut().times = None;
                if exchange {
                    dst.borrow_mut().lineage = lineages.1.flatten();
                    dst.borrow_mut().linked &= !leaves.1;
                    self.insert(&from, dst);
                }
            }
        }
    }

    fn clone(&mut self) {
        let (from, to) = (self.place(), self.place());
        let replace = self.r.below(2) == 0;
        let (src, dst) = (self.node(&from), self.node(&to));
        let expected = match &src {
            None => Some(ENOENT),
            Some(s) if dst.as_ref().is_some_and(|d| Rc::ptr_eq(s, d)) => Some(EINVAL),
            _ if dst.is_some() && from[..from.len() - 1].starts_with(&to) => Some(EINVAL),
            _ => (dst.is_some() && !replace).then_some(EEXIST),
        };
        let result = self.w.clone_tree(&text(&from), &text(&to), replace);
        let (f, t) = (text(&from), text(&to));
        assert_eq!(result.err().map(|e| e.errno()), expected, "clone {f} {t} {replace}");
        if expected.is_none() {
            let copy = deep(&src.unwrap(), &mut self.lineages, &mut BTreeMap::new());
            copy.borrow_mut().times = None;
            if copy.borrow().is_dir() {
                self.lineages += 1;
                copy.borrow_mut().lineage = Some(self.lineages);
            } else {
                copy.borrow_mut().linked = false;
            }
            if let Some(old) = self.node(&to) {
                untouch(&old);
            }
            self.insert(&to, copy);
        }
    }

    fn link(&mut self) {
        let (from, to) = (self.place(), self.place());
        let (src, dst) = (self.node(&from), self.node(&to));
        let expected = match &src {
            None => Some(ENOENT),
            Some(n) if n.borrow().is_dir() => Some(EPERM),
            _ if dst.is_some() => Some(EEXIST),
            _ => (self.around(&from).0 != self.around(&to).0).then_some(EXDEV),
        };
        let result = self.w.link(&text(&from), &text(&to));
        let (f, t) = (text(&from), text(&to));
        assert_eq!(result.err().map(|e| e.errno()), expected, "link {f} {t}");
        if expected.is_none() {
            let node = src.unwrap();
            node.borrow_mut().times = None;
            node.borrow_mut().linked = true;
            self.insert(&to, node);
        }
    }

    fn remove_tree(&mut self) {
        let path = self.place();
        if let Some(old) = self.node(&path) {
            untouch(&old);
        }
        let expected = self.node(&path).is_none().then_some(ENOENT);
        let result = self.w.remove_tree(&text(&path));
        assert_eq!(result.err().map(|e| e.errno()), expected, "remove tree {}", text(&path));
        self.remove(&path);
    }

    fn copy_range(&mut self) {
        let file = |n: &Oracle| matches!(n.body, Body::File(_));
        let (Some((a, source)), Some((b, target))) = (self.some(file), self.some(file)) else { return };
        if Rc::ptr_eq(&source, &target) {
            return;
        }
        let whole = self.r.below(2) == 0;
        let (off_in, off_out, len) = if whole {
            (0, 0, 1 << 30)
        } else {
            (self.r.below(30_000), self.r.below(30_000), self.r.below(60_000))
        };
        let w = &self.w;
        let copied = w
            .on(&text(&a), |x| {
                w.on(&text(&b), |y| {
                    w.fs.copy_file_range(&w.me, x.ino, off_in as u64, y.ino, off_out as u64, len as u64)
                })
            })
            .unwrap() as usize;
        let data = match &source.borrow().body {
            Body::File(d) => {
                d.get(off_in..).unwrap_or_default().iter().take(len).copied().collect::<Vec<_>>()
            }
            _ => panic!("not a file"),
        };
        assert_eq!(copied, data.len());
        if let (Body::File(content), false) = (&mut target.borrow_mut().body, data.is_empty()) {
            content.resize(content.len().max(off_out + data.len()), 0);
            content[off_out..off_out + data.len()].copy_from_slice(&data);
        }
        target.borrow_mut().times = None;
    }

    fn path_of(&self, node: &Node) -> Option<Path> {
        self.all().into_iter().find(|(_, n)| Rc::ptr_eq(n, node)).map(|(path, _)| path)
    }

    fn snapshot(&mut self) {
        let dirs: Vec<_> = self.all().into_iter().filter(|(_, n)| n.borrow().is_dir()).collect();
        let (path, node) = self.r.pick(&dirs).clone();
        let named = self.r.below(2) == 0;
        let name = ["one", "two", "three"][self.r.below(3)];
        let taken = self.snaps.iter().any(|s| Rc::ptr_eq(&s.source, &node) && s.name == name);
        let new = NewSnapshot { name: named.then(|| name.into()), ..NewSnapshot::default() };
        let p = text(&path);
        let result =
            self.w.on(&p, |a| Ok((a.ino, self.w.fs.snapshot(Authority::Caller(&self.w.me), a.ino, &new)?)));
        assert_eq!(
            result.as_ref().err().map(Error::errno),
            (named && taken).then_some(EEXIST),
            "snapshot {p}"
        );
        if let Ok((source_ino, (info, _))) = result {
            let name = info.name.into_string().unwrap();
            let tree = deep(&node, &mut self.lineages, &mut BTreeMap::new());
            let number = info.number;
            self.snaps.push(Snap { number, name, source: node, source_ino, tree, made_at: path, ino: None });
        }
    }

    /// After a rollback to snapshot `i` that has put `new` in the place of `old`, at `top`: directories that were
    /// elsewhere then have their snapshots still if one of these, the last before or the first after, was made there.
    fn find_moved(&mut self, i: usize, old: &Node, new: &Node, top: &[String]) {
        let (number, made_at) = (self.snaps[i].number, self.snaps[i].made_at.clone());
        let mut moved = Vec::new();
        dirs_below(old, &mut |dir| {
            let mut own: Vec<_> = self.snaps.iter().filter(|s| Rc::ptr_eq(&s.source, dir)).collect();
            own.sort_unstable_by_key(|s| s.number);
            let after = own.partition_point(|s| s.number < number);
            let near = own[..after].last().into_iter().chain(own.get(after));
            let then = near.filter_map(|s| s.made_at.strip_prefix(&made_at[..])).find_map(|inside| {
                let then = (!inside.is_empty()).then(|| below(new, inside)).flatten()?;
                let (a, b) = (then.borrow(), dir.borrow());
                let same = a.is_dir() && a.file == b.file && (a.lineage.is_none() || b.lineage.is_some());
                same.then(|| (then.clone(), [top, inside].concat()))
            });
            // A place has the snapshots of one directory: of the one that is still there, or of the first.
            let taken = |then: &Node| {
                let moved: &Vec<(Node, Node, Path)> = &moved;
                let here = self.snaps.iter().map(|s| &s.source).chain(moved.iter().map(|(_, then, _)| then));
                here.into_iter().any(|node| Rc::ptr_eq(node, then))
            };
            let then = then.filter(|(then, _)| !taken(then));
            moved.extend(then.map(|(then, path)| (dir.clone(), then, path)));
        });
        for (dir, then, path) in moved {
            let ino = self.w.attr(&text(&path)).ino;
            for snap in self.snaps.iter_mut().filter(|s| Rc::ptr_eq(&s.source, &dir)) {
                (snap.source, snap.source_ino) = (then.clone(), ino);
            }
        }
    }

    fn change_snapshot(&mut self) {
        if self.snaps.is_empty() {
            return;
        }
        let i = self.r.below(self.snaps.len());
        let by = Authority::Caller(&self.w.me);
        let (number, source_ino) = (self.snaps[i].number, self.snaps[i].source_ino);
        let path = self.path_of(&self.snaps[i].source);
        match self.r.below(4) {
            // Only a directory that is still there can be rolled back.
            0 if path.as_ref().is_some_and(|p| !p.is_empty()) => {
                let p = text(&path.clone().unwrap());
                let discard = self.r.below(2) == 0;
                let (_, before) = self.w.on(&p, |a| self.w.fs.rollback(by, a.ino, number, discard)).unwrap();
                let old = self.snaps[i].source.clone();
                let tree = self.snaps[i].tree.clone();
                let new = deep(&tree, &mut self.lineages, &mut BTreeMap::new());
                new.borrow_mut().times = None;
                self.lineages += 1;
                new.borrow_mut().lineage = Some(self.lineages);
                let path = path.unwrap();
                self.insert(&path, new.clone());
                let ino = self.w.attr(&p).ino;
                if let Some(info) = before {
                    let name = info.name.into_string().unwrap();
                    let tree = deep(&old, &mut self.lineages, &mut BTreeMap::new());
                    let source = old.clone();
                    let (number, made_at) = (info.number, path.clone());
                    self.snaps.push(Snap { number, name, source, source_ino, tree, made_at, ino: None });
                }
                untouch(&old);
                for snap in self.snaps.iter_mut().filter(|s| Rc::ptr_eq(&s.source, &old)) {
                    (snap.source, snap.source_ino) = (new.clone(), ino);
                }
                // Directories below that were there already have their snapshots still.
                let (w, snaps) = (&self.w, &mut self.snaps);
                same_dirs(&old, &new, &mut path.clone(), &mut |path, old, new| {
                    for snap in snaps.iter_mut().filter(|s| Rc::ptr_eq(&s.source, old)) {
                        (snap.source, snap.source_ino) = (new.clone(), w.attr(&text(path)).ino);
                    }
                });
                self.find_moved(i, &old, &new, &path);
            }
            // The other names and the keep flag.
            1 => {
                let name = format!("r{number}");
                let taken =
                    self.snaps.iter().any(|s| Rc::ptr_eq(&s.source, &self.snaps[i].source) && s.name == name);
                let result = self.w.fs.rename_snapshot(by, source_ino, number, name.as_ref());
                assert_eq!(result.is_ok(), !taken || self.snaps[i].name == name);
                self.snaps[i].name = name;
                self.w.fs.keep_snapshot(by, source_ino, number, true).unwrap();
                assert_eq!(errno(self.w.fs.delete_snapshot(by, source_ino, number)), EPERM);
                self.w.fs.keep_snapshot(by, source_ino, number, false).unwrap();
            }
            _ => {
                self.w.fs.delete_snapshot(by, source_ino, number).unwrap();
                self.snaps.swap_remove(i);
            }
        }
    }

    fn compare_snapshot(&self, snap: &Snap, numbers: &mut Numbers) {
        let attr = self.w.fs.open_snapshot(snap.source_ino, snap.number).unwrap();
        assert!(snap.ino.is_none_or(|ino| ino == attr.ino), "number of snapshot {}", snap.number);
        if let Some(path) = self.path_of(&snap.source) {
            let seen =
                self.w.attr(&format!("{}/.snapshots/{}", text(&path).trim_end_matches('/'), snap.name));
            assert_eq!(seen.ino, attr.ino);
        }
        self.compare_frozen(&attr, &snap.tree, numbers, &format!("snapshot {}", snap.number));
        self.w.fs.forget(attr.ino, 1);
    }

    fn compare_frozen(&self, attr: &Attr, node: &Node, numbers: &mut Numbers, at: &str) {
        let (fs, me) = (&self.w.fs, &self.w.me);
        let mut n = node.borrow_mut();
        let known = *numbers.entry(attr.ino).or_insert(Rc::as_ptr(node));
        assert_eq!(known, Rc::as_ptr(node), "{at}: another has its number");
        assert_eq!(attr.perm, n.perm, "{at}");
        let times = (attr.mtime, attr.ctime);
        assert_eq!(*n.times.get_or_insert(times), times, "times of {at}");
        assert_eq!(*n.ino.get_or_insert(attr.ino), attr.ino, "number of {at}");
        let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
        assert_eq!(errno(fs.setattr(me, attr.ino, &owner)), EROFS, "{at}");
        match &mut n.body {
            Body::File(content) => {
                assert!(self.w.whole(attr.ino).unwrap() == *content, "content of {at}");
                assert_eq!(errno(fs.open_file(me, attr.ino, O_RDWR)), EROFS, "{at}");
                assert_eq!(errno(fs.write(NONE, attr.ino, 0, b"x", false)), EROFS, "{at}");
            }
            Body::Symlink(target) => assert_eq!(fs.readlink(attr.ino).unwrap(), target.as_bytes(), "{at}"),
            Body::Dir(children) => {
                assert_eq!(errno(fs.mkdir(me, attr.ino, "new".as_ref(), 0o755)), EROFS, "{at}");
                let found: Vec<String> =
                    self.w.list(attr.ino, 5).into_iter().map(|e| e.name.into_string().unwrap()).collect();
                assert!(found.iter().eq(children.keys()), "{at}: {found:?}");
                for (name, child) in children {
                    let found = fs.lookup(attr.ino, name.as_ref()).unwrap();
                    assert_eq!(errno(fs.unlink(me, attr.ino, name.as_ref())), EROFS, "{at}");
                    self.compare_frozen(&found, child, numbers, &format!("{at}/{name}"));
                    fs.forget(found.ino, 1);
                }
            }
        }
    }

    fn remount(&mut self) {
        for open in std::mem::take(&mut self.open) {
            // Some handles are released, others are left to the next mount.
            if self.r.below(2) == 0 {
                self.w.fs.release(open.ino, open.fh);
            }
        }
        self.w.remount();
    }

    fn compare_open(&self, open: &Open) {
        let node = open.node.borrow();
        let Body::File(content) = &node.body else { panic!("not a file") };
        assert!(self.w.whole(open.ino).unwrap() == *content, "open file {:#x}", open.ino);
    }

    fn compare(&self) {
        for open in &self.open {
            self.compare_open(open);
        }
        let mut numbers = HashMap::new();
        let mut expected: Vec<String> = Vec::new();
        self.w.walk("/"); // has names counted wherever that is still to be done
        self.w.fs.count_links().unwrap();
        let attrs = self.w.walk("/");
        let mut names: BTreeMap<_, u32> = BTreeMap::new();
        let all = self.all();
        all.iter().for_each(|(_, n)| *names.entry(Rc::as_ptr(n)).or_default() += 1);
        for (path, node) in all {
            let p = if path.is_empty() { String::new() } else { text(&path) };
            let mut n = node.borrow_mut();
            let attr = attrs.get(&p).unwrap_or_else(|| panic!("{p:?} is missing"));
            match &n.body {
                Body::Dir(_) => assert_eq!(attr.kind, FileKind::Directory, "{p}"),
                Body::File(content) => {
                    assert_eq!((attr.kind, attr.size), (FileKind::Regular, content.len() as u64), "{p}");
                    assert!(self.w.get(&p).unwrap() == *content, "content of {p}");
                }
                Body::Symlink(target) => {
                    let found = self.w.on(&p, |a| self.w.fs.readlink(a.ino)).unwrap();
                    assert_eq!(found, target.as_bytes(), "{p}");
                }
            }
            let nlink = names[&Rc::as_ptr(&node)];
            assert_eq!((attr.perm, attr.uid, attr.nlink), (n.perm, 0, nlink), "{p}");
            assert_eq!(*n.ino.get_or_insert(attr.ino), attr.ino, "number of {p}");
            let times = (attr.mtime, attr.ctime);
            assert_eq!(*n.times.get_or_insert(times), times, "times of {p}");
            let known = *numbers.entry(attr.ino).or_insert(Rc::as_ptr(&node));
            assert_eq!(known, Rc::as_ptr(&node), "{p}: another has its number");
            expected.push(p);
        }
        assert_eq!(attrs.len(), expected.len(), "there is more than there should be");
        for snap in &self.snaps {
            self.compare_snapshot(snap, &mut numbers);
        }
        let mut listed = 0;
        for source in self.w.fs.snapshot_sources().unwrap() {
            listed += self.w.fs.snapshots(source).unwrap().len();
        }
        assert_eq!(listed, self.snaps.len());
        if self.open.is_empty() {
            self.w.assert_nothing_referenced();
        }
        check_keys(&self.w);
    }
}

fn run(seed: u64, steps: usize) {
    println!("PANDO_SEED={seed} PANDO_STEPS={steps}");
    let root = Oracle::new(Body::Dir(BTreeMap::new()), 0o755);
    root.borrow_mut().ino = Some(ROOT);
    let mut m = Model {
        w: World::new(),
        root,
        open: Vec::new(),
        snaps: Vec::new(),
        r: Random::new(seed),
        lineages: 0,
    };
    let mut calls = [0u32; 14];
    for step in 0..steps {
        let large = m.all().len() > 150;
        let call = if large && step % 3 == 0 { 8 } else { m.r.below(14) };
        calls[call] += 1;
        match call {
            0 | 1 => m.make(),
            2 => m.write(),
            3 => m.chmod(),
            4 => m.open_or_release(),
            5 => m.unlink_or_rmdir(),
            6 => m.rename(),
            7 if !large => m.clone(),
            7 | 8 if large || m.r.below(4) == 0 => m.remove_tree(),
            10 => m.link(),
            9 if m.r.below(10) == 0 => m.remount(),
            9 => m.copy_range(),
            11 if m.snaps.len() < 8 && m.r.below(2) == 0 => m.snapshot(),
            11 | 12 if m.r.below(2) == 0 => m.change_snapshot(),
            13 => m.change_tree(),
            _ => m.write(),
        }
        if step % 50 == 49 {
            m.compare();
        }
    }
    m.remount();
    m.compare();
    assert!(calls.iter().all(|c| *c > 0), "{calls:?}");
}

#[test]
fn random_calls_do_what_a_plain_tree_does() {
    random_runs(8, 2000, run);
}
