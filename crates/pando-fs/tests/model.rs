//! Random calls against a tree of plain Rust values that knows what each must do.
//!
//! After every call the error codes are compared, at intervals the whole tree:
//! content, attributes, numbers (unique, and the same as ever), and the keys
//! underneath. `PANDO_SEED` and `PANDO_STEPS` replay or prolong a run.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use common::*;
use pando_fs::*;
use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet},
    ffi::OsStr,
    rc::Rc,
};

type Node = Rc<RefCell<Oracle>>;

/// What the file system must say of one inode.
#[derive(Clone)]
enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<String, Node>),
    Link(String),
}

struct Oracle {
    body: Body,
    perm: u16,
    /// Known once seen; must never change then.
    ino: Option<Ino>,
    /// As seen at the last comparison, if no call has changed them since.
    times: Option<(Time, Time)>,
}

impl Oracle {
    fn new(body: Body, perm: u16) -> Node {
        Rc::new(RefCell::new(Self { body, perm, ino: None, times: None }))
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

/// A copy with numbers of its own.
fn deep(node: &Node) -> Node {
    let n = node.borrow();
    let body = match &n.body {
        Body::Dir(c) => Body::Dir(c.iter().map(|(k, v)| (k.clone(), deep(v))).collect()),
        other => other.clone(),
    };
    Rc::new(RefCell::new(Oracle { body, perm: n.perm, ino: None, times: n.times }))
}

struct Open {
    fh: FileHandle,
    ino: Ino,
    node: Node,
}

struct Model {
    w: World,
    root: Node,
    open: Vec<Open>,
    r: Random,
}

type Path = Vec<String>;

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
                Oracle::new(Body::Link(p.clone()), 0o777),
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
        let Some((path, node)) = self.some(|n| !matches!(n.body, Body::Link(_))) else { return };
        let perm = self.r.below(0o10000) as u16;
        let set = SetAttr { mode: Some(perm.into()), ..SetAttr::default() };
        self.w.on(&text(&path), |a| self.w.fs.setattr(&self.w.me, a.ino, &set)).unwrap();
        let mut n = node.borrow_mut();
        n.perm = perm;
        n.times = None;
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
            self.remove(&path);
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
            (_, None) => exchange.then_some(ENOENT),
            _ if exchange => None,
            (Some(s), Some(d)) => match (dir(s), dir(d)) {
                (true, false) => Some(ENOTDIR),
                (false, true) => Some(EISDIR),
                (true, true) => (!d.borrow_mut().children().is_empty()).then_some(ENOTEMPTY),
                (false, false) => None,
            },
        };
        let result = self.w.rename(&text(&from), &text(&to), flags);
        let (f, t) = (text(&from), text(&to));
        assert_eq!(result.err().map(|e| e.errno()), expected, "rename {f} {t} {flags}");
        if expected.is_none() && from != to {
            let (src, dst) = (self.remove(&from).unwrap(), self.remove(&to));
            src.borrow_mut().times = None;
            self.insert(&to, src);
            if exchange {
                let dst = dst.unwrap();
                dst.borrow_mut().times = None;
                self.insert(&from, dst);
            }
        }
    }

    fn clone(&mut self) {
        let (from, to) = (self.place(), self.place());
        let replace = self.r.below(2) == 0;
        let (src, dst) = (self.node(&from), self.node(&to));
        let expected = match &src {
            None => Some(ENOENT),
            _ if from == to => Some(EINVAL),
            _ if to[..to.len() - 1].starts_with(&from) => Some(EINVAL),
            _ if dst.is_some() && from[..from.len() - 1].starts_with(&to) => Some(EINVAL),
            _ => (dst.is_some() && !replace).then_some(EEXIST),
        };
        let result = self.w.clone_tree(&text(&from), &text(&to), replace);
        let (f, t) = (text(&from), text(&to));
        assert_eq!(result.err().map(|e| e.errno()), expected, "clone {f} {t} {replace}");
        if expected.is_none() {
            let copy = deep(&src.unwrap());
            copy.borrow_mut().times = None;
            self.insert(&to, copy);
        }
    }

    fn remove_tree(&mut self) {
        let path = self.place();
        let expected = self.node(&path).is_none().then_some(ENOENT);
        let result = self.w.remove_tree(&text(&path));
        assert_eq!(result.err().map(|e| e.errno()), expected, "remove tree {}", text(&path));
        self.remove(&path);
    }

    fn copy_range(&mut self) {
        let file = |n: &Oracle| matches!(n.body, Body::File(_));
        let (Some((a, source)), Some((b, target))) = (self.some(file), self.some(file)) else { return };
        if a == b {
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
        let mut numbers = HashSet::new();
        let mut expected: Vec<String> = Vec::new();
        let attrs = self.w.walk("/");
        for (path, node) in self.all() {
            let p = if path.is_empty() { String::new() } else { text(&path) };
            let mut n = node.borrow_mut();
            let attr = attrs.get(&p).unwrap_or_else(|| panic!("{p:?} is missing"));
            match &n.body {
                Body::Dir(_) => assert_eq!(attr.kind, FileKind::Directory, "{p}"),
                Body::File(content) => {
                    assert_eq!((attr.kind, attr.size), (FileKind::Regular, content.len() as u64), "{p}");
                    assert!(self.w.get(&p).unwrap() == *content, "content of {p}");
                }
                Body::Link(target) => {
                    let found = self.w.on(&p, |a| self.w.fs.readlink(a.ino)).unwrap();
                    assert_eq!(found, target.as_bytes(), "{p}");
                }
            }
            assert_eq!((attr.perm, attr.uid, attr.nlink), (n.perm, 0, 1), "{p}");
            assert_eq!(*n.ino.get_or_insert(attr.ino), attr.ino, "number of {p}");
            let times = (attr.mtime, attr.ctime);
            assert_eq!(*n.times.get_or_insert(times), times, "times of {p}");
            assert!(numbers.insert(attr.ino), "{p}: its number is there twice");
            expected.push(p);
        }
        assert_eq!(attrs.len(), expected.len(), "there is more than there should be");
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
    let mut m = Model { w: World::new(), root, open: Vec::new(), r: Random::new(seed) };
    let mut calls = [0u32; 10];
    for step in 0..steps {
        let large = m.all().len() > 150;
        let call = if large && step % 3 == 0 { 8 } else { m.r.below(10) };
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
            9 if m.r.below(10) == 0 => m.remount(),
            9 => m.copy_range(),
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
    random_runs(16, 2000, run);
}
