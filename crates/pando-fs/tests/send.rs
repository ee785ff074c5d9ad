//! Snapshots sent from one file system and received in another: what arrives, and what hostile streams do.
#![allow(clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, HashMap},
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::Arc,
};

use crate::common::{seeds::seeds_for, *};
use pando_db::device::MemDevice;
use pando_fs::{
    send::{
        BLOCK_BYTES, BlockReader, BlockWriter, FileMeta, FsTree, Header, Position, Receiver, Sender,
        SourceTree, StreamError, StreamRecord, Totals,
    },
    *,
};

const ASIDE: &[u8] = b".aside";

/// Numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) % n
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        if all.is_empty() { None } else { all.get(self.below(all.len() as u64) as usize) }
    }
}

fn world(node_size: u32, codec: Codec) -> World {
    let device = Arc::new(MemDevice::new(256 << 20));
    Fs::format(device.clone(), &FormatOptions::default().node_size(node_size)).unwrap();
    let mut w = World::over(Fs::open(device.clone(), options().codec(codec)).unwrap());
    w.device = device;
    w
}

fn snap(w: &World, dir: &str, name: &str) -> SnapshotInfo {
    let new = NewSnapshot { name: Some(name.into()), ..NewSnapshot::default() };
    w.on(dir, |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &new)).unwrap().0
}

fn id(w: &World, info: &SnapshotInfo) -> SnapshotId {
    SnapshotId { store: w.fs.uuid(), number: info.number, created: info.created }
}

/// The top of a tree, referenced until it is dropped.
struct Top<'a>(&'a World, Ino);

impl<'a> Top<'a> {
    fn new(w: &'a World, path: &str) -> Self {
        Top(w, w.fs.resolve(Path::new(path)).unwrap().ino)
    }

    fn tree(&self) -> FsTree<'a> {
        FsTree::new(&self.0.fs, self.1)
    }
}

impl Drop for Top<'_> {
    fn drop(&mut self) {
        self.0.fs.forget(self.1, 1);
    }
}

/// A stream of a snapshot, whole or from a base, with `from` of an earlier receive.
pub fn send(
    w: &World,
    dir: &str,
    base: Option<&SnapshotInfo>,
    info: &SnapshotInfo,
    from: Position,
) -> Vec<u8> {
    send_in_blocks(w, dir, base, info, from, BLOCK_BYTES)
}

fn send_in_blocks(
    w: &World,
    dir: &str,
    base: Option<&SnapshotInfo>,
    info: &SnapshotInfo,
    from: Position,
    size: usize,
) -> Vec<u8> {
    let header = Header {
        snapshot: id(w, info),
        base: base.map(|base| id(w, base)),
        name: info.name.as_bytes().to_vec(),
        source: dir.as_bytes().to_vec(),
        from,
    };
    let at = |info: &SnapshotInfo| Top::new(w, &format!("{dir}/.snapshots/{}", info.name.display()));
    let top = at(info);
    let source = top.tree();
    let mut out = BlockWriter::new(Vec::new(), &header, 1);
    let mut sink = |block: Vec<u8>, last| out.block(&block, last);
    let mut advance = |_| Ok(());
    let sender = Sender::new(&source, Some(&mut sink), &mut advance).with_blocks_of(size);
    match base {
        None => sender.full().unwrap(),
        Some(base) => {
            let before = at(base);
            let options = DiffOptions { ranges: true, no_renames: false };
            let changes: Vec<_> =
                w.fs.diff(None, before.1, top.1, options).unwrap().collect::<Result<_>>().unwrap();
            if std::env::var_os("PANDO_TRACE").is_some() {
                eprintln!("{} to {}", base.name.display(), info.name.display());
                changes.iter().for_each(|change| eprintln!("{change:?}"));
            }
            sender.difference(&before.tree(), changes, w.fs.has_links()).unwrap()
        }
    };
    out.finish().unwrap()
}

/// Where a receiver was when it stopped.
#[derive(Debug, Clone, Default)]
struct Noted {
    /// It was begun before.
    again: bool,
    at: Position,
    current: Option<Vec<u8>>,
    totals: Totals,
}

/// Applies a stream to the directory `to`, from where `noted` says, and notes how far it came at phases, and else as
/// `notes` says.
fn apply(
    w: &World,
    to: &str,
    stream: &[u8],
    noted: &mut Noted,
    mut notes: impl FnMut() -> bool,
) -> std::result::Result<(), StreamError> {
    let top = Top::new(w, to);
    let mut tree = top.tree();
    let mut reader = BlockReader::new(stream)?;
    let mut receiver = match noted.at == Position::default() {
        true => Receiver::new(&mut tree, ASIDE.to_vec()),
        false => Receiver::resumed(&mut tree, ASIDE.to_vec(), noted.current.clone(), noted.totals)?,
    };
    if std::mem::replace(&mut noted.again, true) {
        receiver.may_be_done();
    }
    let mut ended = false;
    loop {
        let (at, byte) = (reader.position(), reader.bytes());
        let Some(block) = reader.next_block()? else { break };
        if reader.position().block <= noted.at.block {
            if reader.position().block == noted.at.block && reader.position() != noted.at {
                return Err(StreamError::Refused("another stream".into()));
            }
            continue;
        }
        let step = receiver.block(&block, at, byte)?;
        ended = step.ended;
        if step.phase || notes() {
            let (current, totals) = receiver.state();
            *noted =
                Noted { again: true, at: reader.position(), current: current.map(<[u8]>::to_vec), totals };
        }
    }
    if !ended {
        return Err(StreamError::Refused("no end".into()));
    }
    Ok(())
}

fn receive(w: &World, to: &str, stream: &[u8]) -> std::result::Result<(), StreamError> {
    apply(w, to, stream, &mut Noted::default(), || true)
}

/// All that is to be the same in two trees, by path: what entries are, their content with its holes, which are one.
pub fn picture(w: &World, dir: &str) -> BTreeMap<Vec<u8>, String> {
    let top = Top::new(w, dir);
    let tree = top.tree();
    let mut out = BTreeMap::new();
    let mut first: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut todo = vec![(Vec::new(), SourceTree::meta(&tree, b"").unwrap())];
    while let Some((path, meta)) = todo.pop() {
        let FileMeta { kind, perm, uid, gid, atime, mtime, rdev, .. } = meta;
        let mut xattrs = tree.xattrs(&path, kind).unwrap();
        xattrs.sort();
        let mut text = format!("{kind:?} {perm:o} {uid} {gid} {mtime:?} {rdev} {xattrs:?}");
        match kind {
            FileKind::Directory => {
                for (name, meta) in tree.list(&path).unwrap() {
                    let below = [&path[..], b"/", name.as_bytes()].concat();
                    todo.push((below[usize::from(path.is_empty())..].to_vec(), meta));
                }
            }
            FileKind::Symlink => text += &format!(" {:?}", tree.readlink(&path)),
            FileKind::Regular => {
                let mut file = SourceTree::open(&tree, &path).unwrap();
                let mut at = 0;
                let mut data = Vec::new();
                while let Some((from, to)) = file.data_from(at, meta.size).unwrap() {
                    let begin = data.len();
                    data.resize(begin + (to - from) as usize, 0);
                    assert_eq!(file.read_at(&mut data[begin..], from).unwrap() as u64, to - from);
                    at = to;
                    // A difference does not tell a hole from zeros.
                    for (i, block) in data[begin..].chunks(16 << 10).enumerate() {
                        if block.iter().any(|b| *b != 0) {
                            text += &format!(" {}:{:x}", from / (16 << 10) + i as u64, xxhash(block));
                        }
                    }
                }
                text += &format!(" of {} {atime:?}", meta.size);
            }
            _ => {}
        }
        if kind != FileKind::Directory {
            let one = first.entry(meta.ino).or_insert_with(|| path.clone());
            // By its least name, whatever the order of the listing.
            if path < *one {
                *one = path.clone();
            }
        }
        out.insert(path, (text, meta.ino));
    }
    let named = |(path, (text, ino)): (Vec<u8>, (String, u64))| {
        let one = first.get(&ino).map(|p| String::from_utf8_lossy(p).into_owned());
        (path, format!("{text} is {one:?}"))
    };
    out.into_iter().map(named).collect()
}

fn xxhash(data: &[u8]) -> u64 {
    data.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

fn same(a: &World, from: &str, b: &World, to: &str, about: &str) {
    let (x, y) = (picture(a, from), picture(b, to));
    for (path, text) in &x {
        let other = y.get(path).map_or("nothing", String::as_str);
        assert_eq!(text, other, "{about}: {}", String::from_utf8_lossy(path));
    }
    assert_eq!(x.keys().collect::<Vec<_>>(), y.keys().collect::<Vec<_>>(), "{about}");
}

/// All paths below a directory, and which are directories.
fn paths(w: &World, dir: &str) -> (Vec<String>, Vec<String>) {
    let (mut dirs, mut files) = (vec![dir.to_owned()], Vec::new());
    let (top, mut i) = (Top::new(w, "/"), 0);
    let tree = top.tree();
    while i < dirs.len() {
        for (name, meta) in tree.list(&dirs[i].as_bytes()[1..]).unwrap() {
            let path = format!("{}/{}", dirs[i], name.display());
            if meta.kind == FileKind::Directory { dirs.push(path) } else { files.push(path) }
        }
        i += 1;
    }
    (dirs, files)
}

fn bytes(r: &mut Random, len: u64) -> Vec<u8> {
    let loose = r.below(2) == 0;
    (0..len).map(|i| if loose { r.below(256) as u8 } else { (i / 100) as u8 }).collect()
}

/// Changes something at random; what cannot be is left.
fn change(w: &World, r: &mut Random, dir: &str) {
    let (dirs, files) = paths(w, dir);
    let any = r.of(&dirs).unwrap().clone();
    // A user's own `.snapshots` is an entry as any other, but not in what has snapshots itself.
    let name = match r.below(25) {
        0 if any != dir => format!("{any}/.snapshots"),
        _ => format!("{}/n{}", any, r.below(40)),
    };
    let file = r.of(&files).cloned();
    let all: Vec<String> = dirs.iter().skip(1).chain(&files).cloned().collect();
    let one = r.of(&all).cloned();
    let me = &w.me;
    match r.below(21) {
        // Copies have the numbers of their originals.
        20 => {
            if let Some(one) = one {
                let replace = r.below(3) == 0;
                let _ = w.at(&one, |d, n| w.at(&name, |e, m| w.fs.clone_tree(me, (d, n), (e, m), replace)));
            }
        }
        0 | 1 => drop(w.at(&name, |d, n| w.fs.mkdir(me, d, n, 0o755)).map(|a| w.fs.forget(a.ino, 1))),
        2..=4 => {
            if w.create(&name).is_ok() {
                let len = [0, 10, 5000, 40_000, 300_000][r.below(5) as usize];
                let data = bytes(r, len);
                let _ = w.write_at(&name, r.below(3) * 50_000, &data);
            }
        }
        5 => drop(w.at(&name, |d, n| w.fs.symlink(me, d, n, any.as_ref())).map(|a| w.fs.forget(a.ino, 1))),
        6 => {
            let mode = [0o010_600, 0o020_644, 0o140_755][r.below(3) as usize];
            let rdev = if mode == 0o020_644 { r.below(1000) as u32 } else { 0 };
            drop(w.at(&name, |d, n| w.fs.mknod(me, d, n, mode, rdev)).map(|a| w.fs.forget(a.ino, 1)));
        }
        7 | 8 => {
            if let Some(file) = file {
                let _ = w.on(&file, |a| {
                    w.at(&name, |d, n| w.fs.link(me, a.ino, d, n).map(|a| w.fs.forget(a.ino, 1)))
                });
            }
        }
        9..=11 => {
            if let Some(one) = one {
                let flags = [0, RENAME_NOREPLACE, RENAME_EXCHANGE][r.below(3) as usize];
                let to = if flags == RENAME_EXCHANGE { r.of(&all).unwrap().clone() } else { name };
                let _ = w.at(&one, |d, n| w.at(&to, |e, m| w.fs.rename(me, d, n, e, m, flags)));
            }
        }
        12 => {
            if let Some(one) = one {
                let _ = w.at(&one, |d, n| w.fs.unlink(me, d, n));
                let _ = w.at(&one, |d, n| w.fs.rmdir(me, d, n));
            }
        }
        13 => {
            if let Some(one) = one.filter(|one| r.below(4) == 0 && dirs.contains(one)) {
                let _ = w.at(&one, |d, n| w.fs.remove_tree(me, d, n));
            }
        }
        14 => {
            if let Some(file) = file {
                let data = bytes(r, 1 + r.0 % 30_000);
                let _ = w.write_at(&file, r.below(400_000), &data);
            }
        }
        15 => {
            if let Some(file) = file {
                let _ = w.truncate(&file, r.below(600_000));
            }
        }
        16 => {
            if let Some(file) = file {
                let (at, len) = (r.below(300_000), 1 + r.below(200_000));
                let _ = w.on(&file, |a| w.fs.fallocate(me, a.ino, at, len, 3));
            }
        }
        17 | 18 => {
            let of = one.unwrap_or(any);
            let key = ["user.a", "user.b", "trusted.c", "security.d"][r.below(4) as usize];
            let len = [3, 50, 5000][r.below(3) as usize];
            let value = bytes(r, len);
            let _ = match r.below(3) {
                0 => w.on(&of, |a| w.fs.remove_xattr(me, a.ino, key.as_ref())),
                _ => w.on(&of, |a| w.fs.set_xattr(me, a.ino, key.as_ref(), &value, 0)),
            };
        }
        _ => {
            let of = one.unwrap_or_else(|| dir.to_owned());
            let set = SetAttr {
                mode: Some(r.below(0o10000) as u32),
                uid: (r.below(2) == 0).then(|| r.below(5) as u32),
                mtime: Some(SetTime::At(Time {
                    secs: r.below(1 << 31) as i64 - (1 << 30),
                    nanos: r.below(1_000_000_000) as u32,
                })),
                ..SetAttr::default()
            };
            let _ = w.on(&of, |a| match a.kind {
                FileKind::Symlink => Ok(a),
                _ => w.fs.setattr(me, a.ino, &set),
            });
        }
    }
}

/// Runs `f` for seeds until the time is over; at least `least` times.
fn seeds(least: u64, mut f: impl FnMut(&mut Random)) {
    let mut seeds = seeds_for("PANDO_SEND_SECONDS", 4);
    for i in 0.. {
        let Some(seed) = (if i < least { seeds.take_late() } else { seeds.next() }) else { break };
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(&mut Random(seed))));
        if let Err(panic) = run {
            eprintln!("PANDO_SEED={seed} cargo test -p pando-fs --test all send::");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn chains_of_random_changes_arrive_in_stores_of_another_shape() {
    seeds(6, |r| {
        let a = world(16 << 10, Codec::Lz4);
        let b = world(64 << 10, Codec::Zstd(3));
        a.mkdir("/t");
        b.mkdir("/r");
        let mut base = None;
        for round in 0..4 {
            for _ in 0..[60, 20, 5, 80][round] {
                change(&a, r, "/t");
            }
            let name = format!("s{round}");
            let info = snap(&a, "/t", &name);
            let stream = send(&a, "/t", base.as_ref(), &info, Position::default());
            receive(&b, "/r", &stream).unwrap();
            same(&a, &format!("/t/.snapshots/{name}"), &b, "/r", &name);
            base = Some(info);
        }
        for w in [&a, &b] {
            w.fs.check(|line| panic!("{line}")).unwrap();
        }
    });
}

/// A chain of two snapshots of a random tree: sent whole, and as a difference; and a store that has received the first.
fn two_snapshots(r: &mut Random) -> (World, World, SnapshotInfo, SnapshotInfo) {
    let (a, b) = (world(16 << 10, Codec::Lz4), world(64 << 10, Codec::Lz4));
    a.mkdir("/t");
    b.mkdir("/r");
    for _ in 0..40 {
        change(&a, r, "/t");
    }
    let one = snap(&a, "/t", "one");
    for _ in 0..40 {
        change(&a, r, "/t");
    }
    let two = snap(&a, "/t", "two");
    receive(&b, "/r", &send(&a, "/t", None, &one, Position::default())).unwrap();
    (a, b, one, two)
}

/// Where the blocks of a stream begin, and its end.
fn borders(stream: &[u8]) -> Vec<usize> {
    let mut reader = BlockReader::new(stream).unwrap();
    let mut all = vec![reader.bytes() as usize];
    while reader.next_block().unwrap().is_some() {
        all.push(reader.bytes() as usize);
    }
    all
}

/// Clones `/r` (or makes an empty directory) as `/x`, for one more try.
fn fresh(w: &World, whole: bool) {
    if w.exists("/x") {
        w.at("/x", |d, n| w.fs.remove_tree(&w.me, d, n)).unwrap();
    }
    match whole {
        true => drop(w.mkdir("/x")),
        false => drop(w.at("/r", |d, n| w.at("/x", |e, m| w.fs.clone_tree(&w.me, (d, n), (e, m), false)))),
    }
}

#[test]
fn a_receive_that_was_cut_goes_on_to_the_same_tree() {
    seeds(2, |r| {
        let (a, b, one, two) = two_snapshots(r);
        for base in [None, Some(&one)] {
            let size = [300, 3000, 30_000][r.below(3) as usize];
            let stream = send_in_blocks(&a, "/t", base, &two, Position::default(), size);
            let all = borders(&stream);
            let step = all.len().div_ceil(25);
            let mut cuts: Vec<usize> =
                all.iter().copied().step_by(step).filter(|cut| *cut < stream.len()).collect();
            cuts.extend((0..5).map(|_| all[0] + r.below((stream.len() - all[0]) as u64) as usize));
            for cut in cuts {
                fresh(&b, base.is_none());
                let mut noted = Noted::default();
                // Not every block is noted: what came behind the last note is done again.
                let rare = [0, 1, 3, 1000][r.below(4) as usize];
                let mut chance = Random(r.below(u64::MAX));
                let done = apply(&b, "/x", &stream[..cut], &mut noted, || chance.below(rare + 1) == 0);
                assert!(matches!(done, Err(StreamError::Cut { .. })), "cut at {cut}: {done:?}");
                if r.below(2) == 0 {
                    let rest = send_in_blocks(&a, "/t", base, &two, noted.at, size);
                    assert!(rest.len() <= stream.len());
                    apply(&b, "/x", &rest, &mut noted, || true).unwrap();
                } else {
                    apply(&b, "/x", &stream, &mut noted, || true).unwrap();
                }
                same(&a, "/t/.snapshots/two", &b, "/x", &format!("cut at {cut} of {}", stream.len()));
            }
        }
    });
}

#[test]
fn blocks_in_another_order_are_refused() {
    seeds(2, |r| {
        let (a, b, one, two) = two_snapshots(r);
        let stream = send_in_blocks(&a, "/t", Some(&one), &two, Position::default(), 2000);
        let other = send_in_blocks(&a, "/t", None, &one, Position::default(), 2000);
        let cut = |stream: &[u8]| -> Vec<Vec<u8>> {
            let all = borders(stream);
            all.windows(2).map(|pair| stream[pair[0]..pair[1]].to_vec()).collect()
        };
        let (whole, others) = (cut(&stream), cut(&other));
        let (head, last) = (stream.len() - whole.concat().len(), whole.len() - 1);
        for i in 0..40 {
            let (x, y) = (r.below(last as u64) as usize, r.below(last as u64) as usize + 1);
            let mut blocks = whole.clone();
            match i % 5 {
                0 if x != y => blocks.swap(x, y),
                1 => blocks.insert(y, blocks[x].clone()),
                2 => drop(blocks.remove(x)),
                3 => blocks[x] = others[x.min(others.len() - 1)].clone(),
                _ => blocks.push(blocks[y].clone()),
            }
            let bytes = [&stream[..head], &blocks.concat()].concat();
            fresh(&b, false);
            let done = receive(&b, "/x", &bytes);
            // What follows the end of a stream follows it however often it comes.
            let as_it_is = match i % 5 {
                0 if x == y => matches!(done, Err(StreamError::Senseless { .. })),
                4 => matches!(done, Err(StreamError::Senseless { .. })),
                _ => matches!(done, Err(StreamError::Damaged { .. })),
            };
            assert!(as_it_is, "{i} {x} {y}: {done:?}");
        }
    });
}

#[test]
fn changed_streams_are_refused() {
    seeds(2, |r| {
        let (a, _, one, two) = two_snapshots(r);
        let stream = send_in_blocks(&a, "/t", Some(&one), &two, Position::default(), 2000);
        for _ in 0..400 {
            let mut bad = stream.clone();
            let at = r.below(bad.len() as u64) as usize;
            match r.below(4) {
                0 | 1 => bad[at] ^= 1 << r.below(8),
                2 => bad[at..].iter_mut().take(20).for_each(|b| *b = !*b),
                _ => drop(bad.drain(at..(at + 1 + r.below(20) as usize).min(bad.len()))),
            }
            let read = || -> std::result::Result<(), StreamError> {
                let mut reader = BlockReader::new(&bad[..])?;
                while reader.next_block()?.is_some() {}
                Ok(())
            };
            let read = read();
            assert!(read.is_err(), "byte {at} of {}", bad.len());
        }
    });
}

#[test]
fn a_stream_that_says_it_is_huge_takes_no_memory() {
    let (a, _, one, _) = two_snapshots(&mut Random(1));
    let stream = send(&a, "/t", None, &one, Position::default());
    let head = BlockReader::new(&stream[..]).unwrap().bytes() as usize;
    for (at, len) in [(16, 4), (20, 4)] {
        let mut bad = stream.clone();
        bad[head + at..head + at + len].fill(0xff);
        let mut reader = BlockReader::new(&bad[..]).unwrap();
        let error = reader.next_block().unwrap_err().to_string();
        assert!(error.contains("larger than any"), "{error}");
    }
    let mut bad = stream.clone();
    bad[16..20].fill(0xff);
    let error = BlockReader::new(&bad[..]).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("impossible length"), "{error}");
}

/// Records that nobody has sent, in blocks whose checksums are right: they may do anything to the tree, and nothing
/// outside of it, and end with an error or a tree.
#[test]
fn hostile_records_do_no_harm_outside_of_the_tree() {
    seeds(4, |r| {
        let (a, b, one, two) = two_snapshots(r);
        b.mkdir("/beside");
        b.put("/beside/file", b"mine");
        let before = picture(&b, "/beside");
        let stream = send(&a, "/t", Some(&one), &two, Position::default());
        let mut reader = BlockReader::new(&stream[..]).unwrap();
        let header = reader.header.clone();
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block().unwrap() {
            blocks.push(block);
        }
        for _ in 0..60 {
            let mut out = BlockWriter::new(Vec::new(), &header, 1);
            let last = blocks.len() - 1;
            for (i, block) in blocks.iter().enumerate() {
                let mut records: Vec<Vec<u8>> = Vec::new();
                let mut rest = &block[..];
                while let Some(record) = StreamRecord::decode(&mut rest) {
                    let mut bytes = Vec::new();
                    record.encode(&mut bytes);
                    records.push(bytes);
                }
                for _ in 0..r.below(4) {
                    let (x, y) =
                        (r.below(records.len() as u64) as usize, r.below(records.len() as u64) as usize);
                    let len = records[x].len() as u64;
                    let path: &[u8] = [
                        &b"../beside/file"[..],
                        b"/beside/file",
                        b"n1/./x",
                        b"n1//x",
                        b"up/beside/file",
                        b"up",
                    ][r.below(6) as usize];
                    match r.below(6) {
                        0 => records.swap(x, y),
                        1 => records.insert(x, records[y].clone()),
                        2 if records.len() > 1 => drop(records.remove(x)),
                        3 => records[x][r.below(len) as usize] ^= 1 << r.below(8),
                        4 => {
                            let record = StreamRecord::Symlink { path: b"up", target: b"/" };
                            record.encode(&mut records[x]);
                        }
                        _ => {
                            let one = [
                                StreamRecord::File { path },
                                StreamRecord::Remove { path, dir: false },
                                StreamRecord::Leave { path, number: r.below(4) },
                                StreamRecord::Arrive { path, number: r.below(4) },
                                StreamRecord::Link { path: b"linked", to: path },
                                StreamRecord::Meta {
                                    path,
                                    uid: 9,
                                    gid: 9,
                                    perm: 0o7777,
                                    atime: Time::default(),
                                    mtime: Time::default(),
                                },
                                StreamRecord::Hole { offset: r.below(u64::MAX), len: r.below(1 << 40) },
                                StreamRecord::Size { size: r.below(u64::MAX) },
                            ];
                            one[r.below(8) as usize].encode(&mut records[x]);
                        }
                    }
                }
                let mut bytes = records.concat();
                bytes.truncate(BLOCK_BYTES);
                out.block(&bytes, i == last).unwrap();
            }
            let bytes = out.finish().unwrap();
            fresh(&b, false);
            let _ = receive(&b, "/x", &bytes);
            assert_eq!(picture(&b, "/beside"), before);
        }
        b.fs.check(|line| panic!("{line}")).unwrap();
    });
}

#[test]
fn holes_of_a_whole_snapshot_stay_holes() {
    let (a, b) = (world(16 << 10, Codec::Lz4), world(64 << 10, Codec::Lz4));
    a.mkdir("/t");
    b.mkdir("/r");
    a.put("/t/f", b"begin");
    a.write_at("/t/f", 3 << 30, b"middle").unwrap();
    a.truncate("/t/f", 1 << 40).unwrap();
    let info = snap(&a, "/t", "one");
    let stream = send(&a, "/t", None, &info, Position::default());
    assert!(stream.len() < 1000, "{}", stream.len());
    receive(&b, "/r", &stream).unwrap();
    let (x, y) = (a.attr("/t/f"), b.attr("/r/f"));
    assert_eq!((x.size, x.blocks), (y.size, y.blocks));
    // As a difference, of which the size is a part.
    a.truncate("/t/f", 2 << 40).unwrap();
    a.on("/t/f", |f| a.fs.fallocate(&a.me, f.ino, 3 << 30, 16 << 10, 3)).unwrap();
    let two = snap(&a, "/t", "two");
    let stream = send(&a, "/t", Some(&info), &two, Position::default());
    assert!(stream.len() < 1000, "{}", stream.len());
    receive(&b, "/r", &stream).unwrap();
    let (x, y) = (a.attr("/t/f"), b.attr("/r/f"));
    assert_eq!((x.size, x.blocks), (y.size, y.blocks));
}

#[test]
fn what_is_received_shares_with_its_base() {
    let (a, b) = (world(16 << 10, Codec::Lz4), world(64 << 10, Codec::Lz4));
    a.mkdir("/t");
    b.mkdir("/r");
    let data = bytes(&mut Random(1), 8 << 20);
    a.put("/t/f", &data);
    let one = snap(&a, "/t", "one");
    receive(&b, "/r", &send(&a, "/t", None, &one, Position::default())).unwrap();
    a.write_at("/t/f", 5_000_000, b"changed").unwrap();
    let two = snap(&a, "/t", "two");
    let stream = send(&a, "/t", Some(&one), &two, Position::default());
    assert!(stream.len() < 1000, "{}", stream.len());
    b.fs.sync().unwrap();
    fresh(&b, false);
    receive(&b, "/x", &stream).unwrap();
    same(&a, "/t", &b, "/x", "changed");
    let usage = b.on("/x", |attr| b.fs.usage(attr.ino)).unwrap();
    assert!(usage.exclusive_bytes < 300_000, "{usage:?}");
}

#[test]
fn a_snapshot_of_another_tree_needs_the_rights_to_both() {
    let w = world(16 << 10, Codec::Lz4);
    let stranger = Caller { uid: 7, gid: 7, ..Caller::root() };
    for dir in ["/mine", "/mine/inner", "/theirs", "/tree"] {
        w.mkdir(dir);
    }
    snap(&w, "/mine", "first");
    snap(&w, "/theirs", "first");
    w.put("/tree/file", b"content");
    let own = SetAttr { uid: Some(7), ..SetAttr::default() };
    w.on("/theirs", |a| w.fs.setattr(&w.me, a.ino, &own)).unwrap();
    let new = |name: &str| NewSnapshot { name: Some(name.into()), ..NewSnapshot::default() };
    let take = |by: &Caller, of: &str, tree_by: &Caller, tree: &str, name: &str| {
        let (of, tree) = (Top::new(&w, of), Top::new(&w, tree));
        let tree = (Authority::Caller(tree_by), tree.1);
        w.fs.snapshot_of_tree(Authority::Caller(by), of.1, tree, &new(name)).map(|done| done.0)
    };
    let refused = |done: Result<SnapshotInfo>, errno: i32| assert_eq!(done.unwrap_err().errno(), errno);
    refused(take(&stranger, "/mine", &w.me, "/tree", "a"), 1);
    refused(take(&stranger, "/theirs", &stranger, "/tree", "a"), 1);
    refused(take(&w.me, "/mine", &w.me, "/mine/inner", "a"), 22);
    refused(take(&w.me, "/mine", &w.me, "/", "a"), 22);
    refused(take(&w.me, "/mine", &w.me, "/mine", "a"), 22);
    refused(take(&w.me, "/mine", &w.me, "/tree", "first"), 17);
    refused(take(&w.me, "/mine", &w.me, "/mine/.snapshots/first", "a"), 30);
    let info = take(&w.me, "/mine", &w.me, "/tree", "a").unwrap();
    assert_eq!(info.source, "/mine");
    same(&w, "/tree", &w, "/mine/.snapshots/a", "taken");
    // It is one of the directory, and becomes it.
    w.put("/tree/file", b"later");
    w.on("/mine", |a| w.fs.rollback(Authority::Caller(&w.me), a.ino, info.number, true)).unwrap();
    assert_eq!(w.get("/mine/file").unwrap(), b"content");
    assert_eq!(w.on("/mine", |a| w.fs.snapshots(a.ino)).unwrap().len(), 2);
    assert_eq!(w.on("/tree", |a| w.fs.snapshots(a.ino)).unwrap().len(), 0);
    w.fs.check(|line| panic!("{line}")).unwrap();
}

#[test]
fn what_a_snapshot_was_received_as_is_kept() {
    let mut w = World::new();
    w.mkdir("/t");
    let came = SnapshotId { store: [3; 16], number: 9, created: Time { secs: -1, nanos: 7 } };
    let new = NewSnapshot { name: Some("n".into()), received: Some(came), ..NewSnapshot::default() };
    w.on("/t", |a| w.fs.snapshot(Authority::Caller(&w.me), a.ino, &new)).unwrap();
    w.remount();
    let all = w.on("/t", |a| w.fs.snapshots(a.ino)).unwrap();
    assert_eq!(all[0].received, Some(came));
    assert_ne!(w.fs.uuid(), [0; 16]);
}

#[test]
fn an_end_that_has_counted_otherwise_is_refused() {
    let (a, b, one, _) = two_snapshots(&mut Random(2));
    let stream = send(&a, "/t", None, &one, Position::default());
    let mut reader = BlockReader::new(&stream[..]).unwrap();
    let header = reader.header.clone();
    let mut blocks = Vec::new();
    while let Some(block) = reader.next_block().unwrap() {
        blocks.push(block);
    }
    // Without the last record but one, and with right checksums.
    let block = blocks.pop().unwrap();
    let (mut rest, mut starts) = (&block[..], Vec::new());
    while !rest.is_empty() {
        starts.push(block.len() - rest.len());
        StreamRecord::decode(&mut rest).unwrap();
    }
    let [.., x, y] = starts[..] else { panic!("two records at least") };
    blocks.push([&block[..x], &block[y..]].concat());
    let mut out = BlockWriter::new(Vec::new(), &header, 1);
    for (i, block) in blocks.iter().enumerate() {
        out.block(block, i + 1 == blocks.len()).unwrap();
    }
    b.mkdir("/y");
    let error = receive(&b, "/y", &out.finish().unwrap()).unwrap_err().to_string();
    assert!(error.contains("not all is there"), "{error}");
}

/// What is one file on both sides, and is no regular one, cannot be changed where it is: it is made anew under all
/// its names, and stays one file.
#[test]
fn links_and_devices_with_several_names_that_were_made_anew_stay_one_file() {
    for (name, device) in [("a symbolic link", false), ("a device", true)] {
        let (a, b) = (world(16 << 10, Codec::Lz4), world(64 << 10, Codec::Lz4));
        a.mkdir("/t");
        a.mkdir("/t/d");
        b.mkdir("/r");
        let make = |path: &str, what: u32| {
            let made = a.at(path, |d, n| match device {
                true => a.fs.mknod(&a.me, d, n, 0o020600, what),
                false => a.fs.symlink(&a.me, d, n, std::ffi::OsStr::new(&what.to_string())),
            });
            a.fs.forget(made.unwrap().ino, 1);
        };
        let link = |from: &str, to: &str| {
            a.on(from, |f| a.at(to, |d, n| a.fs.link(&a.me, f.ino, d, n)))
                .map(|made| a.fs.forget(made.ino, 1))
                .unwrap();
        };
        let unlink = |path: &str| a.at(path, |d, n| a.fs.unlink(&a.me, d, n)).unwrap();
        let old = SetAttr { mtime: Some(SetTime::At(Time { secs: 5, nanos: 6 })), ..SetAttr::default() };
        make("/t/d/x", 1);
        link("/t/d/x", "/t/y");
        make("/t/d/alone", 1);
        a.on("/t/d", |f| a.fs.setattr(&a.me, f.ino, &old)).unwrap();
        let mut base = snap(&a, "/t", "one");
        receive(&b, "/r", &send(&a, "/t", None, &base, Position::default())).unwrap();
        for (step, names) in [
            ("two", &["/t/d/x", "/t/y"][..]),
            ("three", &["/t/d/x", "/t/y", "/t/z"]),
            ("four", &["/t/z", "/t/d/x"]),
            ("five", &["/t/d/alone"]),
        ] {
            let what = base.number + 7;
            for path in names.iter().filter(|path| a.fs.resolve(Path::new(path)).is_ok()) {
                a.fs.forget(a.fs.resolve(Path::new(path)).unwrap().ino, 2);
                unlink(path);
            }
            make(names[0], what);
            names[1..].iter().for_each(|name| link(names[0], name));
            // The directory does not tell that something in it was made anew.
            a.on("/t/d", |f| a.fs.setattr(&a.me, f.ino, &old)).unwrap();
            let info = snap(&a, "/t", step);
            receive(&b, "/r", &send(&a, "/t", Some(&base), &info, Position::default())).unwrap();
            same(&a, "/t", &b, "/r", &format!("{name}, {step}"));
            base = info;
        }
    }
}

/// A directory gets its default access list behind all that is in it. When a block is applied again, it is there before.
#[test]
fn what_is_made_again_inherits_no_access_list() {
    let (a, b) = (world(16 << 10, Codec::Lz4), world(64 << 10, Codec::Lz4));
    a.mkdir("/t");
    a.mkdir("/t/d");
    for (name, mode) in [("pipe", 0o010660), ("device", 0o020660), ("socket", 0o140660), ("file", 0o100440)] {
        let made = a.at(&format!("/t/d/{name}"), |d, n| a.fs.mknod(&a.me, d, n, mode, 5));
        a.fs.forget(made.unwrap().ino, 1);
    }
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1u16, 7u16, u32::MAX), (2, 7, 5), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 0, u32::MAX)]
    {
        list.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    let default = std::ffi::OsStr::new("system.posix_acl_default");
    a.on("/t/d", |d| a.fs.set_xattr(&a.me, d.ino, default, &list, 0)).unwrap();
    let info = snap(&a, "/t", "one");
    let stream = send(&a, "/t", None, &info, Position::default());
    b.mkdir("/r");
    // It was done to its end, and nothing of that was noted.
    let mut noted = Noted::default();
    apply(&b, "/r", &stream, &mut noted, || false).unwrap();
    let mut noted = Noted { again: true, ..Noted::default() };
    apply(&b, "/r", &stream, &mut noted, || false).unwrap();
    for name in ["pipe", "device", "socket", "file"] {
        let names = b.on(&format!("/r/d/{name}"), |f| b.fs.list_xattr(&b.me, f.ino)).unwrap();
        assert!(names.is_empty(), "{name}: {}", names.escape_ascii());
    }
    same(&a, "/t", &b, "/r", "applied twice");
}

/// Nothing differs but which names are one file. Then the next change would go to the wrong ones.
#[test]
fn names_that_are_one_file_on_one_side_only_are_made_anew() {
    let (a, b) = (world(16 << 10, Codec::Lz4), world(64 << 10, Codec::Lz4));
    a.mkdir("/t");
    a.mkdir("/t/d");
    b.mkdir("/r");
    let link = |from: &str, to: &str| {
        a.on(from, |f| a.at(to, |d, n| a.fs.link(&a.me, f.ino, d, n)))
            .map(|made| a.fs.forget(made.ino, 1))
            .unwrap();
    };
    let time = SetAttr { mtime: Some(SetTime::At(Time { secs: 5, nanos: 6 })), ..SetAttr::default() };
    for path in ["/t/d/f", "/t/x", "/t/y"] {
        a.put(path, b"the same in all");
        a.on(path, |f| a.fs.setattr(&a.me, f.ino, &time)).unwrap();
    }
    link("/t/d/f", "/t/g");
    let mut base = snap(&a, "/t", "one");
    receive(&b, "/r", &send(&a, "/t", None, &base, Position::default())).unwrap();
    // A copy of the directory takes its place: its file is another one now. And two files become one.
    a.at("/t/d", |d, n| a.at("/t/copy", |e, m| a.fs.clone_tree(&a.me, (d, n), (e, m), false))).unwrap();
    a.at("/t/d", |d, n| a.fs.remove_tree(&a.me, d, n)).unwrap();
    a.at("/t/copy", |d, n| a.at("/t/d", |e, m| a.fs.rename(&a.me, d, n, e, m, 0))).unwrap();
    a.at("/t/y", |d, n| a.fs.unlink(&a.me, d, n)).unwrap();
    link("/t/x", "/t/y");
    for (name, changed) in [("two", None), ("three", Some("/t/g")), ("four", Some("/t/y"))] {
        if let Some(path) = changed {
            a.write_at(path, 0, b"changed").unwrap();
        }
        let info = snap(&a, "/t", name);
        receive(&b, "/r", &send(&a, "/t", Some(&base), &info, Position::default())).unwrap();
        same(&a, "/t", &b, "/r", name);
        base = info;
    }
}
