//! Trees on disk: what a copy must keep, compared; inode numbers; a tree with everything odd in it.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs::{self, File},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink},
    },
    path::{Path, PathBuf},
    process::Command,
};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use super::random::Random;

/// Everything about an entry that a copy must keep.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    mode: u32,
    owner: (u32, u32),
    modified: Option<(i64, i64)>,
    /// Length and hash of a file, target of a link.
    content: (u64, u64, OsString),
}

fn entries(root: &Path, times: bool) -> BTreeMap<PathBuf, Entry> {
    let mut all = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(root.join(&dir)).unwrap() {
            let entry = entry.unwrap();
            let (path, meta) = (dir.join(entry.file_name()), entry.metadata().unwrap());
            let content = if meta.is_file() {
                let (len, hash) = hash(&entry.path());
                assert_eq!(len, meta.len(), "{path:?}");
                (len, hash, OsString::new())
            } else if meta.is_symlink() {
                (meta.len(), 0, fs::read_link(entry.path()).unwrap().into())
            } else {
                (0, 0, OsString::new())
            };
            if meta.is_dir() {
                todo.push(path.clone());
            }
            let modified = times.then(|| (meta.mtime(), meta.mtime_nsec()));
            all.insert(path, Entry { mode: meta.mode(), owner: (meta.uid(), meta.gid()), modified, content });
        }
    }
    all
}

/// Length and a hash of a file.
fn hash(path: &Path) -> (u64, u64) {
    let file = File::open(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let mut buf = vec![0; 1 << 20];
    let (mut len, mut hash) = (0, 0xcbf2_9ce4_8422_2325_u64);
    loop {
        let n = file.read_at(&mut buf, len).unwrap_or_else(|e| panic!("{path:?} at {len}: {e}"));
        if n == 0 {
            return (len, hash);
        }
        for chunk in buf[..n].chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            // In 8-byte words from offset 0, whatever the sizes of the reads: reads are multiples of 8
            // except the last.
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        }
        len += n as u64;
    }
}

/// Asserts that two trees are equal in names, kinds, modes, owners, contents, and `times` if asked.
/// Their number of entries.
pub fn same(a: &Path, b: &Path, times: bool) -> usize {
    let (left, right) = (entries(a, times), entries(b, times));
    for path in left.keys().chain(right.keys()) {
        assert_eq!(left.get(path), right.get(path), "{path:?} of {} and {}", a.display(), b.display());
    }
    left.len()
}

/// The inode number of every entry below `root`, by path; no two have the same.
pub fn inodes(root: &Path) -> BTreeMap<PathBuf, u64> {
    let mut numbers = BTreeMap::new();
    let mut owners = BTreeMap::from([(fs::metadata(root).unwrap().ino(), PathBuf::new())]);
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(root.join(&dir)).unwrap() {
            let entry = entry.unwrap();
            let (path, meta) = (dir.join(entry.file_name()), entry.metadata().unwrap());
            assert_eq!(
                meta.ino(),
                std::os::unix::fs::DirEntryExt::ino(&entry),
                "readdir and stat of {path:?}"
            );
            if let Some(other) = owners.insert(meta.ino(), path.clone()) {
                panic!("{other:?} and {path:?} have the same inode number {:#x}", meta.ino());
            }
            if meta.is_dir() {
                todo.push(path.clone());
            }
            numbers.insert(path, meta.ino());
        }
    }
    numbers
}

/// A time as seconds and nanoseconds; nanoseconds count forward, also before 1970.
const TIMES: [(i64, i64); 7] = [
    (0, 0),
    (0, 1),
    (-1, 999_999_999),
    (-500_000_000, 123_456_789),
    (951_827_696, 999_999_999),
    (4_102_444_800, 1),
    (-2_000_000_000, 0),
];

fn set_time(path: &Path, i: usize) {
    let at = |(tv_sec, tv_nsec)| Timespec { tv_sec, tv_nsec };
    let times = Timestamps {
        last_access: at(TIMES[(i + 3) % TIMES.len()]),
        last_modification: at(TIMES[i % TIMES.len()]),
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A tree with odd names, kinds, modes, owners (as root) and times, below the new directory `root`.
/// Its largest file is bigger than a mebibyte.
pub fn odd(root: &Path, r: &mut Random) {
    let owner = rustix::process::geteuid().is_root();
    fs::create_dir(root).unwrap();
    let long = [b'n'; 255];
    let high = [0xff; 255];
    let names: [&[u8]; 20] = [
        b"plain",
        b"with space",
        b"new\nline",
        b"tab\t",
        b"\xff\xfebad\x80",
        b"-dash",
        b"*",
        b"back\\slash",
        b"quote\"'",
        &long,
        &high,
        b"\x01",
        b"\x02",
        b"\x01\x01",
        b"a",
        b"a\x01",
        b"a\x02b",
        b".hidden",
        b"...",
        b"~",
    ];
    let modes = [0o644, 0o600, 0o777, 0o4755, 0o2755, 0o1644, 0o400];
    let sizes = [0, 1, 100, 4095, 4096, 4097, 16_384, 70_000, 1_500_000];
    let write = |path: &Path, i: usize, bytes: &[u8]| {
        fs::write(path, bytes).unwrap();
        if owner {
            lchown(path, Some((i as u32 % 3) * 1000), Some((i as u32 % 4) * 500)).unwrap();
        }
        fs::set_permissions(path, fs::Permissions::from_mode(modes[i % modes.len()])).unwrap();
        set_time(path, i);
    };
    for (i, name) in names.into_iter().enumerate() {
        let name = OsStr::from_bytes(name);
        write(&root.join(name), i, &r.bytes(sizes[i % sizes.len()]));
        let dir = root.join([b"d_".as_slice(), &name.as_bytes()[..name.len().min(200)]].concat().to_os());
        fs::create_dir(&dir).unwrap();
        write(&dir.join(name), i + 1, b"below");
        fs::set_permissions(&dir, fs::Permissions::from_mode([0o755, 0o700, 0o1777, 0o2775][i % 4])).unwrap();
    }
    let mut deep = root.join("deep");
    for level in 0..25 {
        fs::create_dir(&deep).unwrap();
        deep = deep.join(format!("{level}-{}", "y".repeat(60)));
    }
    fs::write(&deep, b"the bottom").unwrap();
    let long = "z".repeat(4000);
    for (i, to) in ["plain", "dangling/none", "/nowhere", "..", "new\nline", &long].into_iter().enumerate() {
        let link = root.join(format!("link{i}"));
        symlink(to, &link).unwrap();
        set_time(&link, i);
        if owner {
            lchown(&link, Some(i as u32), Some(i as u32)).unwrap();
        }
    }
    let fifo = root.join("fifo");
    assert!(Command::new("mkfifo").args(["-m", "620"]).arg(&fifo).status().unwrap().success());
    // Old, because rsync looks at the seconds only before it sets the times of a special file: of one that is made in the
    // same second it leaves those of the copy.
    assert!(
        Command::new("touch").args(["-d", "2001-02-03 04:05:06.789"]).arg(&fifo).status().unwrap().success()
    );
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(50_000_000).unwrap();
    sparse.write_all_at(b"middle", 20_000_000).unwrap();
    sparse.write_all_at(b"end", 49_999_990).unwrap();
    fs::create_dir(root.join("empty")).unwrap();
    fs::create_dir(root.join("many")).unwrap();
    for i in 0..600 {
        write(&root.join(format!("many/f{i}")), i, &r.bytes((i * 37) % 5000));
    }
    // Deepest first, or setting the time of an entry's parent would be undone.
    let mut dirs: Vec<PathBuf> = entries(root, false).into_keys().map(|p| root.join(p)).collect();
    dirs.retain(|p| fs::symlink_metadata(p).unwrap().is_dir());
    dirs.push(root.to_owned());
    dirs.iter().rev().enumerate().for_each(|(i, dir)| set_time(dir, i));
}

trait ToOs {
    fn to_os(self) -> OsString;
}

impl ToOs for Vec<u8> {
    fn to_os(self) -> OsString {
        OsString::from_vec(self)
    }
}
