//! Plain trees: what is at each path, read through calls, and random changes of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
};

use pando_fs::*;

use super::World;

/// A small generator, so that a seed is a history.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below
    }
}

/// A plain tree: what is at each path.
#[derive(Clone, PartialEq, Eq)]
pub enum Node {
    Dir { mode: u32 },
    File { data: Vec<u8>, mode: u32, attr: Option<Vec<u8>> },
    Link { target: String },
}

/// Content is a byte, many times.
impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |data: &[u8]| match data.first() {
            Some(byte) => format!("{}*{}", data.len(), char::from(*byte)),
            None => "empty".into(),
        };
        match self {
            Node::Dir { mode } => write!(f, "dir {mode:o}"),
            Node::File { data, mode, attr } => {
                write!(f, "file {} {mode:o} {:?}", short(data), attr.as_deref().map(short))
            }
            Node::Link { target } => write!(f, "link {target}"),
        }
    }
}

pub type Tree = BTreeMap<String, Node>;

pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

pub fn below(tree: &Tree, path: &str) -> Vec<String> {
    let inside = format!("{path}/");
    tree.keys().filter(|p| p.starts_with(&inside)).cloned().collect()
}

pub fn kind(node: &Node) -> u8 {
    match node {
        Node::Dir { .. } => 0,
        Node::File { .. } => 1,
        Node::Link { .. } => 2,
    }
}

pub fn mode_of(node: &Node) -> u32 {
    match node {
        Node::Dir { mode } | Node::File { mode, .. } => *mode,
        Node::Link { .. } => 0o777,
    }
}

pub const ATTR: &str = "user.a";

/// The tree below a path, read through calls.
pub fn read(w: &World, top: &str) -> Tree {
    let mut out = Tree::new();
    let mut todo = vec![String::new()];
    while let Some(inside) = todo.pop() {
        let path = format!("{top}{inside}");
        let attr = w.attr(&path);
        let node = match attr.kind {
            FileKind::Directory => {
                for name in w.names(&path) {
                    todo.push(format!("{inside}/{name}"));
                }
                Node::Dir { mode: attr.perm.into() }
            }
            FileKind::Symlink => {
                let target = w.on(&path, |a| w.fs.readlink(a.ino)).unwrap();
                Node::Link { target: String::from_utf8(target.to_vec()).unwrap() }
            }
            _ => {
                let data = w.get(&path).unwrap();
                let value = w.on(&path, |a| w.fs.get_xattr(&w.me, a.ino, OsStr::new(ATTR)));
                Node::File { data, mode: attr.perm.into(), attr: value.ok().map(|v| v.to_vec()) }
            }
        };
        out.insert(inside, node);
    }
    out
}

pub fn content(rng: &mut Rng) -> Vec<u8> {
    let len = [0, 1, 5, 700, 16 << 10, 40 << 10][rng.next(6)];
    vec![b'a' + rng.next(4) as u8; len]
}

/// One random change below `top`; few names, so that everything meets.
pub fn step(w: &World, top: &str, rng: &mut Rng) {
    let tree = read(w, top);
    let dirs: Vec<&String> = tree.iter().filter(|(_, n)| kind(n) == 0).map(|(p, _)| p).collect();
    let others: Vec<&String> = tree.keys().filter(|p| !p.is_empty()).collect();
    let some = |rng: &mut Rng| others.get(rng.next(others.len().max(1))).map(|p| format!("{top}{p}"));
    let fresh = |rng: &mut Rng| {
        let name = ["a", "b", "c", "dir", "sub"][rng.next(5)];
        format!("{top}{}/{name}", dirs[rng.next(dirs.len())])
    };
    match rng.next(14) {
        0..=2 => {
            let path = fresh(rng);
            if !w.exists(&path) {
                w.put(&path, &content(rng));
            }
        }
        3 => {
            let path = fresh(rng);
            if path.split('/').count() < 6 && !w.exists(&path) {
                w.mkdir(&path);
            }
        }
        4 => {
            let path = fresh(rng);
            let target = ["x", "y"][rng.next(2)];
            let _ = w
                .at(&path, |d, n| w.fs.symlink(&w.me, d, n, OsStr::new(target)))
                .map(|a| w.fs.forget(a.ino, 1));
        }
        5..=6 => {
            if let Some(path) = some(rng)
                && w.attr(&path).kind == FileKind::Regular
            {
                w.put(&path, &content(rng));
            }
        }
        7 => {
            if let Some(path) = some(rng)
                && w.attr(&path).kind != FileKind::Symlink
            {
                let mode = [0o700, 0o755, 0o644][rng.next(3)];
                let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                w.on(&path, |a| w.fs.setattr(&w.me, a.ino, &set)).unwrap();
            }
        }
        8 => {
            if let Some(path) = some(rng)
                && w.attr(&path).kind == FileKind::Regular
            {
                let value = vec![b'0' + rng.next(3) as u8; [3, 3000][rng.next(2)]];
                w.on(&path, |a| w.fs.set_xattr(&w.me, a.ino, OsStr::new(ATTR), &value, 0)).unwrap();
            }
        }
        9..=10 => {
            if let Some(path) = some(rng) {
                w.at(&path, |d, n| w.fs.remove_tree(&w.me, d, n)).unwrap();
            }
        }
        _ => {
            if let Some(path) = some(rng) {
                let to = fresh(rng);
                let apart = !to.starts_with(&format!("{path}/")) && !path.starts_with(&format!("{to}/"));
                if apart && path != to {
                    let flags = if w.exists(&to) { RENAME_EXCHANGE } else { 0 };
                    let _ = w.rename(&path, &to, flags);
                }
            }
        }
    }
}

/// Clones of directories and second names of files that were made, counts.
#[derive(Default, Debug)]
pub struct Made {
    pub clones: u32,
    pub links: u32,
}

/// A random change, among them clones of directories and second names of files.
pub fn change(w: &World, top: &str, rng: &mut Rng, made: &mut Made) {
    let choice = rng.next(8);
    if choice > 2 {
        return step(w, top, rng);
    }
    let tree = read(w, top);
    let wanted = |node: &Node| (kind(node) == 0) == (choice == 0);
    let of: Vec<&String> = tree.iter().filter(|(p, n)| !p.is_empty() && wanted(n)).map(|(p, _)| p).collect();
    let dirs: Vec<&String> = tree.iter().filter(|(_, n)| kind(n) == 0).map(|(p, _)| p).collect();
    let Some(from) = of.get(rng.next(of.len().max(1))).map(|p| format!("{top}{p}")) else { return };
    let to = format!("{top}{}/{}", dirs[rng.next(dirs.len())], ["a", "b", "copy", "name"][rng.next(4)]);
    if w.exists(&to) || to.split('/').count() > 6 || tree.len() > 60 {
        return;
    }
    match choice {
        0 => {
            w.clone_tree(&from, &to, false).unwrap();
            made.clones += 1;
        }
        // Across the border of a clone it is refused, as on other file systems between volumes.
        _ => match w.link(&from, &to) {
            Ok(_) => made.links += 1,
            Err(e) => assert_eq!(e.errno(), 18, "{from} -> {to}: {e}"),
        },
    }
}

/// A plain tree, and what tells which file is which.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Picture {
    pub tree: Tree,
    /// File numbers, as they are stored.
    pub ids: BTreeMap<String, u64>,
    /// Directories that are the roots of clones.
    pub roots: BTreeSet<String>,
}

impl Picture {
    /// Whether a file number is there once only.
    pub fn is_plain(&self) -> bool {
        self.ids.values().collect::<BTreeSet<_>>().len() == self.ids.len()
    }
}

/// The tree below a path, through calls, and its file numbers, from the keys as they are documented.
pub fn picture(w: &World, top: &str) -> Picture {
    let mut out = Picture { tree: read(w, top), ..Picture::default() };
    for path in out.tree.keys().filter(|path| !path.is_empty()) {
        let whole = format!("{top}{path}");
        let mut key = vec![0, 0, 0, 0, b'M'];
        let names: Vec<&str> = whole.split('/').skip(1).collect();
        for (i, name) in names.iter().enumerate() {
            key.push(if i + 1 == names.len() { 1 } else { 2 });
            key.extend_from_slice(name.as_bytes());
            key.push(0);
        }
        let record = w.fs.db().get(&key).unwrap().unwrap();
        out.ids.insert(path.clone(), u64::from_le_bytes(record[20..28].try_into().unwrap()));
        let mut rest = &record[76..];
        while let [tag, low, high, more @ ..] = rest {
            if *tag == 3 {
                out.roots.insert(path.clone());
            }
            rest = &more[usize::from(u16::from_le_bytes([*low, *high]))..];
        }
    }
    out
}
