//! A tree in memory, the operations that change it, and the same operations on a mount.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions, Permissions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink},
    path::Path,
    rc::Rc,
};

use super::{
    bed::{pando, str, text},
    random::Random,
};

/// Largest number of entries that a model grows to.
const ENTRIES: usize = 400;
/// Offsets that writes begin below.
const FAR: u64 = 150_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    Dir(u32),
    File(u32, Rc<Vec<u8>>),
    Link(String),
}

/// By path with a leading slash; the root is not in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Model(pub BTreeMap<String, Node>);

#[derive(Debug, Clone)]
pub enum Op {
    Create(String),
    Write(String, u64, Vec<u8>),
    Append(String, Vec<u8>),
    Truncate(String, u64),
    Chmod(String, u32),
    Symlink(String, String),
    Mkdir(String),
    Unlink(String),
    Rmdir(String),
    RemoveTree(String),
    Rename(String, String),
    Clone(String, String),
    Replace(String, String),
}

fn below<'a>(tree: &'a BTreeMap<String, Node>, top: &str) -> Vec<&'a String> {
    let prefix = format!("{top}/");
    tree.keys().filter(|p| *p == top || p.starts_with(&prefix)).collect()
}

impl Model {
    pub fn apply(&mut self, op: &Op) {
        let tree = &mut self.0;
        let edit = |tree: &mut BTreeMap<String, Node>, path: &str, change: &dyn Fn(&mut Vec<u8>)| {
            let Some(Node::File(_, bytes)) = tree.get_mut(path) else { panic!("{path} is no file") };
            change(Rc::make_mut(bytes));
        };
        match op {
            Op::Create(p) => drop(tree.insert(p.clone(), Node::File(0o644, Rc::default()))),
            Op::Write(p, offset, data) => edit(tree, p, &|bytes| {
                let end = *offset as usize + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*offset as usize..end].copy_from_slice(data);
            }),
            Op::Append(p, data) => edit(tree, p, &|bytes| bytes.extend_from_slice(data)),
            Op::Truncate(p, len) => edit(tree, p, &|bytes| bytes.resize(*len as usize, 0)),
            Op::Chmod(p, mode) => match tree.get_mut(p) {
                Some(Node::Dir(m) | Node::File(m, _)) => *m = *mode,
                _ => panic!("{p} has no mode"),
            },
            Op::Symlink(p, to) => drop(tree.insert(p.clone(), Node::Link(to.clone()))),
            Op::Mkdir(p) => drop(tree.insert(p.clone(), Node::Dir(0o755))),
            Op::Unlink(p) | Op::Rmdir(p) => drop(tree.remove(p).expect("an entry to remove")),
            Op::RemoveTree(p) => self.remove(p),
            Op::Rename(from, to) => {
                self.copy(from, to);
                self.remove(from);
            }
            Op::Clone(from, to) | Op::Replace(from, to) => self.copy(from, to),
        }
    }

    fn remove(&mut self, top: &str) {
        let gone: Vec<String> = below(&self.0, top).into_iter().cloned().collect();
        gone.iter().for_each(|p| drop(self.0.remove(p)));
    }

    fn copy(&mut self, from: &str, to: &str) {
        self.remove(to);
        let all: Vec<String> = below(&self.0, from).into_iter().cloned().collect();
        for p in all {
            let node = self.0[&p].clone();
            self.0.insert(format!("{to}{}", &p[from.len()..]), node);
        }
    }

    /// An operation that is possible now.
    pub fn next(&self, r: &mut Random) -> Op {
        let of = |want: fn(&Node) -> bool| -> Vec<&String> {
            self.0.iter().filter(|(_, n)| want(n)).map(|(p, _)| p).collect()
        };
        let dirs = of(|n| matches!(n, Node::Dir(_)));
        let files = of(|n| matches!(n, Node::File(..)));
        let others = of(|n| !matches!(n, Node::Dir(_)));
        loop {
            let root = String::new();
            let dir = if dirs.is_empty() || r.chance(6) { &root } else { *r.pick(&dirs) };
            if dir.matches('/').count() > 6 {
                continue;
            }
            let name = format!("{dir}/{}{}", char::from(b'a' + r.below(10) as u8), r.below(4));
            let free = !self.0.contains_key(&name);
            let room = self.0.len() < ENTRIES;
            let file = (!files.is_empty()).then(|| (*r.pick(&files)).clone());
            let len = match file.as_ref().map(|f| &self.0[f]) {
                Some(Node::File(_, bytes)) => bytes.len() as u64,
                _ => 0,
            };
            let size = *r.pick(&[1, 10, 100, 3000, 4096, 16384, 40_000]);
            match (r.below(26), file) {
                (0..=3, _) if free && room => return Op::Create(name),
                (4..=9, Some(file)) => {
                    let anywhere = r.below(len + 20_000);
                    let offset = *r.pick(&[len, len / 2, anywhere, anywhere]);
                    if offset < FAR {
                        return Op::Write(file, offset, r.bytes(size));
                    }
                }
                (10..=11, Some(file)) if len < FAR => return Op::Append(file, r.bytes(size)),
                (12..=13, Some(file)) => {
                    let to = *r.pick(&[0, len / 2, len.saturating_sub(1), len + 5000]);
                    return Op::Truncate(file, to.min(FAR));
                }
                (14, Some(file)) => return Op::Chmod(file, *r.pick(&[0o600, 0o755, 0o711, 0o640])),
                (15, _) if !dirs.is_empty() => {
                    return Op::Chmod((*r.pick(&dirs)).clone(), *r.pick(&[0o700, 0o1777, 0o711]));
                }
                (16, _) if free && room => return Op::Symlink(name, format!("to/{}", r.below(1000))),
                (17..=18, _) if free && room => return Op::Mkdir(name),
                (19, _) if !others.is_empty() => return Op::Unlink((*r.pick(&others)).clone()),
                (20, _) if !dirs.is_empty() => {
                    let dir = *r.pick(&dirs);
                    match below(&self.0, dir).len() {
                        1 => return Op::Rmdir(dir.clone()),
                        n if n > 10 && self.0.len() > ENTRIES / 2 => return Op::RemoveTree(dir.clone()),
                        _ => {}
                    }
                }
                (21..=25, _) if !self.0.is_empty() => {
                    if let Some(op) = self.next_move(r, name) {
                        return op;
                    }
                }
                _ => {}
            }
        }
    }

    fn next_move(&self, r: &mut Random, to: String) -> Option<Op> {
        let all: Vec<&String> = self.0.keys().collect();
        let from = (*r.pick(&all)).clone();
        let nested = to == from || to.starts_with(&format!("{from}/")) || from.starts_with(&format!("{to}/"));
        if nested {
            return None;
        }
        let (target, is_dir) = (self.0.get(&to), matches!(self.0[&from], Node::Dir(_)));
        let grows = self.0.len() + below(&self.0, &from).len() <= ENTRIES;
        match target {
            None if r.chance(3) => Some(Op::Rename(from, to)),
            None if grows => Some(Op::Clone(from, to)),
            Some(Node::Dir(_)) if is_dir && grows => Some(Op::Replace(from, to)),
            Some(Node::File(..) | Node::Link(_)) if !is_dir => {
                Some(if r.chance(2) { Op::Rename(from, to) } else { Op::Replace(from, to) })
            }
            _ => None,
        }
    }

    /// What stands below `root`.
    pub fn scan(root: &Path) -> io::Result<Model> {
        let mut tree = BTreeMap::new();
        let mut todo = vec![String::new()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(root.join(dir.trim_start_matches('/')))? {
                let entry = entry?;
                let path = format!("{dir}/{}", entry.file_name().to_str().expect("a name of ours"));
                let meta = entry.metadata()?;
                let mode = meta.permissions().mode() & 0o7777;
                let node = if meta.is_dir() {
                    todo.push(path.clone());
                    Node::Dir(mode)
                } else if meta.is_symlink() {
                    Node::Link(fs::read_link(entry.path())?.to_str().expect("a target of ours").to_owned())
                } else {
                    Node::File(mode, Rc::new(fs::read(entry.path())?))
                };
                tree.insert(path, node);
            }
        }
        Ok(Model(tree))
    }

    /// The first difference, for people.
    pub fn differs(&self, other: &Model) -> Option<String> {
        let brief = |n: Option<&Node>| match n {
            Some(Node::File(mode, bytes)) => format!("a file {mode:o} of {} bytes", bytes.len()),
            n => format!("{n:?}"),
        };
        let all: std::collections::BTreeSet<&String> = self.0.keys().chain(other.0.keys()).collect();
        let found = all.into_iter().find(|p| self.0.get(*p) != other.0.get(*p))?;
        Some(format!("{found}: {} and {}", brief(self.0.get(found)), brief(other.0.get(found))))
    }
}

impl Op {
    /// Does it on a mount at `root`.
    pub fn perform(&self, root: &Path) -> io::Result<()> {
        let at = |p: &String| root.join(p.trim_start_matches('/'));
        let command = |args: &[&str]| {
            let out = pando(args);
            let said = text(&out.stderr);
            if out.status.success() { Ok(()) } else { Err(io::Error::other(said)) }
        };
        match self {
            Op::Create(p) => {
                OpenOptions::new().write(true).create_new(true).mode(0o644).open(at(p)).map(drop)
            }
            Op::Write(p, offset, data) => {
                // Both ways through the kernel: past the page cache and through it. The latter within
                // a page only: what crosses into another may arrive as two requests.
                let cached = offset % 2 == 1 && offset % 4096 + data.len() as u64 <= 4096;
                OpenOptions::new().write(true).read(cached).open(at(p))?.write_all_at(data, *offset)
            }
            Op::Append(p, data) => {
                let file = OpenOptions::new().append(true).open(at(p))?;
                io::Write::write_all(&mut &file, data)
            }
            Op::Truncate(p, len) => OpenOptions::new().write(true).open(at(p))?.set_len(*len),
            Op::Chmod(p, mode) => fs::set_permissions(at(p), Permissions::from_mode(*mode)),
            Op::Symlink(p, to) => symlink(to, at(p)),
            Op::Mkdir(p) => fs::create_dir(at(p)),
            Op::Unlink(p) => fs::remove_file(at(p)),
            Op::Rmdir(p) => fs::remove_dir(at(p)),
            Op::RemoveTree(p) => command(&["rm", "-r", str(&at(p))]),
            Op::Rename(from, to) => fs::rename(at(from), at(to)),
            Op::Clone(from, to) => command(&["clone", str(&at(from)), str(&at(to))]),
            Op::Replace(from, to) => command(&["clone", "--replace", str(&at(from)), str(&at(to))]),
        }
    }
}
