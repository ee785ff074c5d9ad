//! Byte-by-byte comparison of two trees.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

use anyhow::Result;
use pando_fs::FileKind;

use crate::{
    below::Attrs,
    tree::{CHUNK_BYTES, Meta, Piece, Progress, Reader, View},
};

/// Differences that are listed, a count.
const MAX_LISTED_DIFFERENCES: usize = 50;

/// What differs between `a` and `b`, as text, at most 50 of them. Paths in `except` are not
/// looked at, nor the times of the directories that hold them.
///
/// Compared are names, kinds, permission bits, owners, modification times to the nanosecond,
/// sizes, contents, link targets, device numbers, which names are one file, extended attributes and
/// access lists. Owners only if this process can set them, and no labels of security modules, which
/// each file system has its own of.
pub fn compare(
    a: &dyn View,
    b: &dyn View,
    except: &HashSet<PathBuf>,
    progress: &Progress,
) -> Result<Vec<String>> {
    let owners = rustix::process::geteuid().is_root();
    let touched: HashSet<&Path> = except.iter().filter_map(|p| p.parent()).collect();
    let mut out = Vec::new();
    let mut bufs = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let mut names = [HashMap::new(), HashMap::new()];
    let root = PathBuf::new();
    let (ma, mb) = (a.meta(&root)?, b.meta(&root)?);
    let mut todo = vec![(root, ma, mb)];
    while let Some((path, ma, mb)) = todo.pop() {
        if out.len() >= MAX_LISTED_DIFFERENCES {
            break;
        }
        progress.at(&path)?;
        let mut note = |what: String| out.push(format!("{} and {}: {what}", a.show(&path), b.show(&path)));
        compare_meta(&ma, &mb, owners, !touched.contains(path.as_path()), &mut note);
        if ma.kind != mb.kind {
            continue;
        }
        if ma.kind != FileKind::Directory {
            let [na, nb] = &mut names;
            let (first_a, first_b) = (first_name(na, &ma, &path), first_name(nb, &mb, &path));
            if first_a != first_b {
                note(format!("the same file as {first_a:?} and as {first_b:?}"));
            }
        }
        let (aa, ab) = (attrs(a, &path)?, attrs(b, &path)?);
        if aa != ab {
            let only = |x: &Attrs, y: &Attrs| x.iter().find(|attr| !y.contains(attr)).cloned();
            note(format!("attributes differ: {:?} and {:?}", only(&aa, &ab), only(&ab, &aa)));
        }
        match ma.kind {
            FileKind::Directory => {
                let (mut la, mut lb) = (a.list(&path)?, b.list(&path)?);
                la.retain(|(name, _)| !except.contains(&path.join(name)));
                lb.retain(|(name, _)| !except.contains(&path.join(name)));
                la.sort_unstable_by(|x, y| y.0.cmp(&x.0));
                lb.sort_unstable_by(|x, y| y.0.cmp(&x.0));
                let mut lb = lb.into_iter().peekable();
                for (name, ma) in la {
                    while let Some((extra, _)) = lb.next_if(|(other, _)| *other > name) {
                        note(format!("{extra:?} is only in the second"));
                    }
                    match lb.next_if(|(other, _)| *other == name) {
                        Some((_, mb)) => todo.push((path.join(name), ma, mb)),
                        None => note(format!("{name:?} is only in the first")),
                    }
                }
                for (extra, _) in lb {
                    note(format!("{extra:?} is only in the second"));
                }
            }
            FileKind::Regular if ma.size == mb.size => {
                let (mut ra, mut rb) = (a.open(&path)?, b.open(&path)?);
                if let Some(at) = first_difference(&mut *ra, &mut *rb, &mut bufs, progress)? {
                    note(format!("contents differ at byte {at}"));
                }
            }
            FileKind::Symlink => {
                let (ta, tb) = (a.readlink(&path)?, b.readlink(&path)?);
                if ta != tb {
                    note(format!("targets {ta:?} and {tb:?}"));
                }
            }
            _ => {}
        }
    }
    Ok(out)
}

/// The attributes that a copy keeps, in order.
fn attrs(view: &dyn View, path: &Path) -> Result<Attrs> {
    let mut attrs = view.attrs(path)?;
    let labels = ["security.selinux", "security.SMACK", "security.apparmor", "security.ima", "security.evm"];
    let kept = ["user.", "trusted.", "security.", "system.posix_acl_"];
    let begins = |name: &[u8], with: &[&str]| with.iter().any(|with| name.starts_with(with.as_bytes()));
    attrs.retain(|(name, _)| begins(name, &kept) && !begins(name, &labels));
    attrs.sort_unstable();
    Ok(attrs)
}

/// The name under which this file was met first.
fn first_name(names: &mut HashMap<(u64, u64), PathBuf>, meta: &Meta, path: &Path) -> PathBuf {
    match meta.nlink > 1 {
        true => names.entry((meta.dev, meta.ino)).or_insert_with(|| path.to_owned()).clone(),
        false => path.to_owned(),
    }
}

fn compare_meta(a: &Meta, b: &Meta, owners: bool, times: bool, note: &mut dyn FnMut(String)) {
    if a.kind != b.kind {
        return note(format!("a {:?} and a {:?}", a.kind, b.kind));
    }
    // Permission bits of links mean nothing and differ between file systems.
    if a.perm != b.perm && a.kind != FileKind::Symlink {
        note(format!("modes {:o} and {:o}", a.perm, b.perm));
    }
    if owners && (a.uid, a.gid) != (b.uid, b.gid) {
        note(format!("owners {}:{} and {}:{}", a.uid, a.gid, b.uid, b.gid));
    }
    if times && a.mtime != b.mtime {
        note(format!("times {:?} and {:?}", a.mtime, b.mtime));
    }
    if a.size != b.size {
        note(format!("sizes {} and {}", a.size, b.size));
    }
    if a.rdev != b.rdev {
        note(format!("device numbers {:#x} and {:#x}", a.rdev, b.rdev));
    }
}

/// One side of a comparison: bytes in hand, or zeros of a hole.
struct Side<'a> {
    reader: &'a mut dyn Reader,
    buf: &'a mut [u8],
    begin: usize,
    end: usize,
    hole: u64,
    done: bool,
}

impl Side<'_> {
    /// Bytes available, after reading on if there are none; 0 at the end.
    fn fill(&mut self) -> Result<u64> {
        while !self.done && self.hole == 0 && self.begin == self.end {
            match self.reader.next(self.buf)? {
                Piece::Data(n) => (self.begin, self.end) = (0, n),
                Piece::Hole(n) => self.hole = n,
                Piece::End => self.done = true,
            }
        }
        Ok(if self.hole > 0 { self.hole } else { (self.end - self.begin) as u64 })
    }

    /// The next `n` bytes; `None`: zeros.
    fn bytes(&self, n: usize) -> Option<&[u8]> {
        if self.hole > 0 { None } else { self.buf.get(self.begin..self.begin + n) }
    }

    fn consume(&mut self, n: u64) {
        if self.hole > 0 {
            self.hole -= n;
        } else {
            self.begin += n as usize;
        }
    }
}

fn first_difference(
    a: &mut dyn Reader,
    b: &mut dyn Reader,
    bufs: &mut (Vec<u8>, Vec<u8>),
    progress: &Progress,
) -> Result<Option<u64>> {
    let side = |reader, buf| Side { reader, buf, begin: 0, end: 0, hole: 0, done: false };
    let (mut a, mut b) = (side(a, &mut bufs.0), side(b, &mut bufs.1));
    let mut at = 0;
    loop {
        let (na, nb) = (a.fill()?, b.fill()?);
        if na == 0 || nb == 0 {
            return Ok((na != nb).then_some(at));
        }
        let n = na.min(nb);
        let len = usize::try_from(n).unwrap_or(usize::MAX);
        let differ = match (a.bytes(len), b.bytes(len)) {
            (None, None) => None,
            (Some(x), Some(y)) if x == y => None,
            (Some(x), Some(y)) => x.iter().zip(y).position(|(x, y)| x != y),
            (Some(x), None) | (None, Some(x)) => x.iter().position(|&x| x != 0),
        };
        if let Some(i) = differ {
            return Ok(Some(at + i as u64));
        }
        a.consume(n);
        b.consume(n);
        at += n;
        progress.advance(n)?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use super::{super::host::HostTree, *};

    #[test]
    fn every_kind_of_difference_is_found() {
        let tmp = tempfile::tempdir().unwrap();
        let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
        for dir in [&a, &b] {
            fs::create_dir(dir).unwrap();
            for file in ["same", "content", "size"] {
                fs::write(dir.join(file), vec![1; 2 << 20]).unwrap();
            }
            std::os::unix::fs::symlink("x", dir.join("link")).unwrap();
        }
        let run = |except: &[&str]| {
            let except = except.iter().map(PathBuf::from).collect();
            compare(&HostTree::new(&a), &HostTree::new(&b), &except, &Progress::none()).unwrap()
        };
        let times_apart = run(&[]);
        assert!(times_apart.iter().all(|d| d.contains("times")), "{times_apart:?}");
        let mut bytes = vec![1; 2 << 20];
        bytes[(1 << 20) + 5] = 2;
        fs::write(b.join("content"), &bytes).unwrap();
        fs::write(b.join("size"), "1").unwrap();
        fs::write(a.join("first"), "").unwrap();
        fs::write(b.join("second"), "").unwrap();
        fs::remove_file(b.join("link")).unwrap();
        std::os::unix::fs::symlink("y", b.join("link")).unwrap();
        let found = run(&[]).join("\n");
        for expected in [
            "differ at byte 1048581",
            "sizes 2097152 and 1",
            "\"first\" is only in the first",
            "\"second\" is only in the second",
            "targets",
        ] {
            assert!(found.contains(expected), "{expected}: {found}");
        }
        let except = ["content", "size", "first", "second", "link", "same"];
        assert_eq!(run(&except), Vec::<String>::new());
    }
}
