//! A full image: ENOSPC, nothing lost, deleting works and gives the space back.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::PathBuf,
};

use super::{
    bed::{Bed, pando, str, text},
    random::{Random, within},
};

/// How a file system is filled.
#[derive(Debug, Clone, Copy)]
pub enum Pattern {
    OneFile,
    SmallFiles,
    /// Overwrites at random in a file that fits; it may never fill up.
    Overwrites,
    /// Clones of a directory of files, each clone edited.
    Clones,
}

/// What was acknowledged, by path below the mount.
pub type Written = BTreeMap<PathBuf, Vec<u8>>;

fn enospc(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::StorageFull
}

/// Fills the mount in the directory `fill` until it is full. Gives what must be there.
pub fn fill(bed: &Bed, pattern: Pattern, r: &mut Random) -> Written {
    let top = bed.mnt.join("fill");
    fs::create_dir(&top).unwrap();
    let mut written = Written::new();
    let end = match pattern {
        Pattern::OneFile => one_file(bed, &mut written, r),
        Pattern::SmallFiles => small_files(bed, &mut written, r),
        Pattern::Overwrites => overwrites(bed, &mut written, r),
        Pattern::Clones => clones(bed, &mut written, r),
    };
    match end {
        Ok(()) => assert!(matches!(pattern, Pattern::Overwrites), "it never filled up"),
        Err(e) => assert!(enospc(&e), "not ENOSPC but {e}"),
    }
    written
}

fn one_file(bed: &Bed, written: &mut Written, r: &mut Random) -> io::Result<()> {
    let path = PathBuf::from("fill/one");
    let file = fs::File::create(bed.mnt.join(&path))?;
    let bytes = written.entry(path).or_default();
    loop {
        let data = r.bytes(700_000);
        let n = file.write_at(&data, bytes.len() as u64)?;
        bytes.extend(&data[..n]);
        assert!(bytes.len() < 4 << 30, "it never filled up");
    }
}

fn small_files(bed: &Bed, written: &mut Written, r: &mut Random) -> io::Result<()> {
    for i in 0.. {
        let dir = format!("fill/{}", i % 50);
        if i < 50 {
            fs::create_dir(bed.mnt.join(&dir))?;
        }
        let path = PathBuf::from(format!("{dir}/s{i}"));
        let file = fs::File::create(bed.mnt.join(&path))?;
        let bytes = written.entry(path).or_default();
        let len = *r.pick(&[0, 10, 1000, 6000, 30_000]);
        let data = r.bytes(len);
        let n = if len > 0 { file.write_at(&data, 0)? } else { 0 };
        bytes.extend(&data[..n]);
    }
    Ok(())
}

fn overwrites(bed: &Bed, written: &mut Written, r: &mut Random) -> io::Result<()> {
    let path = PathBuf::from("fill/over");
    let size = 16 << 20;
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(bed.mnt.join(&path))?;
    file.set_len(size)?;
    let bytes = written.entry(path).or_default();
    bytes.resize(size as usize, 0);
    for _ in 0..12_000 {
        let len = *r.pick(&[10, 4096, 5000, 70_000]);
        let at = r.below(size - len as u64);
        let data = r.bytes(len);
        let n = file.write_at(&data, at)?;
        bytes[at as usize..at as usize + n].copy_from_slice(&data[..n]);
    }
    Ok(())
}

fn clones(bed: &Bed, written: &mut Written, r: &mut Random) -> io::Result<()> {
    const FILES: u64 = 60;
    fs::create_dir(bed.mnt.join("fill/c0"))?;
    for i in 0..FILES {
        let path = PathBuf::from(format!("fill/c0/f{i}"));
        let data = r.bytes(30_000);
        fs::write(bed.mnt.join(&path), &data)?;
        written.insert(path, data);
    }
    for i in 1.. {
        let (from, to) = (format!("fill/c{}", r.below(i)), format!("fill/c{i}"));
        let out = pando(&["clone", str(&bed.mnt.join(&from)), str(&bed.mnt.join(&to))]);
        if !out.status.success() {
            assert!(text(&out.stderr).contains("space"), "{}", text(&out.stderr));
            return Err(io::ErrorKind::StorageFull.into());
        }
        let copies = written.iter().filter(|(path, _)| path.starts_with(&from));
        let copies: Vec<_> = copies
            .map(|(path, data)| (PathBuf::from(&to).join(path.strip_prefix(&from).unwrap()), data.clone()))
            .collect();
        written.extend(copies);
        for _ in 0..25 {
            let path = PathBuf::from(format!("{to}/f{}", r.below(FILES)));
            let file = OpenOptions::new().write(true).open(bed.mnt.join(&path))?;
            let (at, data) = (r.below(25_000), r.bytes(9000));
            let n = file.write_at(&data, at)?;
            let bytes = written.get_mut(&path).unwrap();
            let end = at as usize + n;
            bytes.resize(bytes.len().max(end), 0);
            bytes[at as usize..end].copy_from_slice(&data[..n]);
        }
    }
    Ok(())
}

/// Reads back everything.
pub fn verify(bed: &Bed, written: &Written) {
    for (path, data) in written {
        let found = fs::read(bed.mnt.join(path)).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let differs = found.iter().zip(data).position(|(a, b)| a != b);
        let (len, wanted) = (found.len(), data.len());
        assert!(
            found == *data,
            "{path:?} has {len} bytes, {wanted} were written; they differ at {differs:?}"
        );
    }
}

/// Removes every file that was written, one by one, and leaves the directories.
fn unlink_all(bed: &Bed, written: &Written, r: &mut Random) {
    let mut paths: Vec<&PathBuf> = written.keys().collect();
    while !paths.is_empty() {
        let path = paths.swap_remove(r.below(paths.len() as u64) as usize);
        let left = paths.len();
        fs::remove_file(bed.mnt.join(path)).unwrap_or_else(|e| {
            panic!("deleting {path:?} on a full store, {left} to go: {e}\n{}", bed.stats())
        });
    }
}

/// Removes all, waits for the space to come back, and writes again. `before`: bytes available at
/// first.
pub fn empty(bed: &Bed, before: u64) {
    fs::remove_dir_all(bed.mnt.join("fill")).unwrap_or_else(|e| panic!("deleting on a full store: {e}"));
    comes_back(bed, before);
}

fn comes_back(bed: &Bed, before: u64) {
    let back = within(15, || bed.available() > before / 10 * 9);
    assert!(back, "of {before} bytes only {} came back\n{}", bed.available(), bed.stats());
    let data = Random::new(before).bytes(before as usize / 4);
    fs::write(bed.mnt.join("again"), &data).unwrap_or_else(|e| panic!("writing after deleting: {e}"));
    assert!(fs::read(bed.mnt.join("again")).unwrap() == data);
}

fn torture(name: &str, pattern: Pattern, mkfs: &[&str]) {
    let Some(bed) = Bed::new(mkfs, &["--cache", "64M"]) else { return };
    let mut r = Random::seeded(name);
    let before = bed.available();
    for round in 0..2 {
        let written = fill(&bed, pattern, &mut r);
        let bytes = written.values().map(Vec::len).sum::<usize>() >> 10;
        eprintln!("{name}: {} files, {bytes} KiB in {} KiB", written.len(), before >> 10);
        verify(&bed, &written);
        if round == 0 {
            bed.remount();
            verify(&bed, &written);
        }
        if round == 1 {
            unlink_all(&bed, &written, &mut r);
            // Deletes do not go into nodes that clones share: for those the directories must go too.
            if !matches!(pattern, Pattern::Clones) {
                comes_back(&bed, before);
                fs::remove_file(bed.mnt.join("again")).unwrap();
            }
        }
        empty(&bed, before);
        fs::remove_file(bed.mnt.join("again")).unwrap();
    }
    bed.umount();
    bed.check();
}

#[test]
fn one_file_fills_an_image() {
    torture("full-one", Pattern::OneFile, &["--size", "64M", "--node-size", "64K"]);
}

#[test]
fn one_file_fills_an_image_of_large_nodes() {
    torture("full-large", Pattern::OneFile, &["--size", "128M", "--node-size", "1M"]);
}

#[test]
fn small_files_fill_an_image() {
    torture("full-small", Pattern::SmallFiles, &["--size", "64M", "--node-size", "64K"]);
}

#[test]
fn overwrites_at_random_do_not_fill_an_image() {
    torture("full-over", Pattern::Overwrites, &["--size", "96M", "--node-size", "64K"]);
}

#[test]
fn clones_and_edits_fill_an_image() {
    torture("full-clones", Pattern::Clones, &["--size", "64M", "--node-size", "64K"]);
}
