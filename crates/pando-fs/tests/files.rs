//! Data of files: what is written is read, whatever the offsets and sizes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use crate::common::*;
use pando_db::device::Device;
use pando_fs::*;

#[test]
fn written_bytes_are_read_back_before_and_after_a_remount() {
    let mut w = World::new();
    let mut model = Vec::new();
    w.create("/f").unwrap();
    for (i, (offset, len)) in
        [(0, 10), (5, 3), (16_380, 10), (16_384, 16_384), (100_000, 5), (0, 40_000), (32_768, 32_768)]
            .into_iter()
            .enumerate()
    {
        let data = pattern(len, i as u8 + 1);
        model.resize(model.len().max(offset + len), 0);
        model[offset..offset + len].copy_from_slice(&data);
        w.write_at("/f", offset as u64, &data).unwrap();
        assert_eq!(w.get("/f").unwrap(), model, "after write {i}");
        assert_eq!(w.attr("/f").size, model.len() as u64);
    }
    w.remount();
    assert_eq!(w.get("/f").unwrap(), model);
    w.assert_nothing_referenced();
}

#[test]
fn reads_of_every_alignment_agree_with_the_whole() {
    let w = World::new();
    let data = pattern(50_000, 3);
    let ino = w.put("/f", &data);
    w.truncate("/f", 90_000).unwrap();
    w.write_at("/f", 80_000, b"behind a hole").unwrap();
    let whole = w.get("/f").unwrap();
    assert_eq!((&whole[..50_000], whole.len()), (&data[..], 90_000));
    assert!(whole[50_000..80_000].iter().all(|b| *b == 0));
    w.on("/f", |_| {
        for offset in [0, 1, 16_383, 16_384, 16_385, 32_768, 49_999, 65_536, 79_999, 89_999] {
            for len in [1, 2, 16_383, 16_384, 16_385, 50_000, 200_000] {
                let end = (offset + len).min(90_000);
                let got = w.fs.read(NONE, ino, offset as u64, len as u32)?;
                assert_eq!(&got[..], &whole[offset..end], "{offset}+{len}");
            }
        }
        assert!(w.fs.read(NONE, ino, 90_000, 10)?.is_empty());
        assert!(w.fs.read(NONE, ino, u64::MAX, u32::MAX)?.is_empty());
        Ok(())
    })
    .unwrap();
}

#[test]
fn truncated_bytes_never_come_back() {
    let w = World::new();
    for (size, cut) in [
        (100, 50),
        (16_384, 1),
        (50_000, 16_384),
        (50_000, 20_000),
        (500_000, 10),
        (500_000, 16_384),
        (500_000, 0),
    ] {
        let data = pattern(size, 9);
        w.put("/f", &data);
        w.truncate("/f", cut as u64).unwrap();
        assert_eq!(w.get("/f").unwrap(), &data[..cut]);
        w.truncate("/f", size as u64 + 7).unwrap();
        let mut expected = data[..cut].to_vec();
        expected.resize(size + 7, 0);
        assert!(w.get("/f").unwrap() == expected, "{size} cut to {cut}");
        w.write_at("/f", size as u64 + 100, b"x").unwrap();
        expected.resize(size + 100, 0);
        expected.push(b'x');
        assert!(w.get("/f").unwrap() == expected, "{size} cut to {cut}, extended");
    }
}

#[test]
fn appends_go_to_the_end_whatever_the_offset() {
    let w = World::new();
    let ino = w.put("/f", b"one");
    w.on("/f", |_| {
        let fh = w.fs.open_file(&w.me, ino, O_RDWR | O_APPEND)?;
        w.fs.write(fh, ino, 0, b"two", false)?;
        w.fs.write(NONE, ino, 0, b"three", true)?;
        w.fs.release(ino, fh);
        Ok(())
    })
    .unwrap();
    assert_eq!(w.get("/f").unwrap(), b"onetwothree");
}

#[test]
fn open_with_trunc_empties() {
    let w = World::new();
    w.put("/f", &pattern(70_000, 1));
    let ino = w.put("/f", b"");
    assert_eq!(w.attr("/f").size, 0);
    assert!(w.get("/f").unwrap().is_empty());
    assert_eq!(w.attr("/f").ino, ino);
}

#[test]
fn handles_know_what_they_were_opened_for() {
    let w = World::new();
    let ino = w.put("/f", b"data");
    w.on("/f", |_| {
        let (r, o) = (w.fs.open_file(&w.me, ino, 0)?, w.fs.open_file(&w.me, ino, 1)?);
        assert_eq!(errno(w.fs.write(r, ino, 0, b"x", false)), EBADF);
        assert_eq!(errno(w.fs.read(o, ino, 0, 1)), EBADF);
        assert_eq!(errno(w.fs.read(r, ROOT, 0, 1)), EBADF);
        w.fs.release(ino, r);
        w.fs.release(ino, o);
        assert_eq!(errno(w.fs.read(r, ino, 0, 1)), EBADF);
        Ok(())
    })
    .unwrap();
    assert_eq!(w.get("/f").unwrap(), b"data");
    assert_eq!(w.fs.stats().unwrap().open_handles, 0);
}

#[test]
fn sizes_beyond_the_limit_are_refused() {
    let w = World::new();
    w.put("/f", b"");
    assert_eq!(errno(w.write_at("/f", MAX_FILE_SIZE, b"x")), EFBIG);
    assert_eq!(errno(w.write_at("/f", u64::MAX, b"x")), EFBIG);
    assert_eq!(errno(w.truncate("/f", MAX_FILE_SIZE + 1)), EFBIG);
    w.truncate("/f", MAX_FILE_SIZE).unwrap();
    assert_eq!(w.attr("/f").size, MAX_FILE_SIZE);
    w.write_at("/f", MAX_FILE_SIZE - 1, b"x").unwrap();
    w.on("/f", |a| {
        assert_eq!(&w.fs.read(NONE, a.ino, MAX_FILE_SIZE - 3, 100)?[..], b"\0\0x");
        Ok(())
    })
    .unwrap();
    w.truncate("/f", 1).unwrap();
    assert_eq!(w.get("/f").unwrap(), b"\0");
}

#[test]
fn directories_and_links_are_not_files() {
    let w = World::new();
    let dir = w.mkdir("/d");
    let link = w.symlink("/l", "target");
    w.on("/d", |_| {
        assert_eq!(errno(w.fs.open_file(&w.me, dir, 0)), EISDIR);
        assert_eq!(errno(w.fs.write(NONE, dir, 0, b"x", false)), EISDIR);
        Ok(())
    })
    .unwrap();
    assert_eq!(errno(w.truncate("/d", 0)), EISDIR);
    assert_eq!(errno(w.truncate("/l", 0)), EINVAL);
    w.on("/l", |a| {
        assert_eq!(&w.fs.readlink(link)?[..], b"target");
        assert_eq!((a.size, a.perm), (6, 0o777));
        assert_eq!(errno(w.fs.readlink(ROOT)), EINVAL);
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_whole_copy_onto_an_empty_file_is_a_clone_and_other_copies_are_copies() {
    let w = World::new();
    let data = pattern(300_000, 5);
    w.put("/a", &data);
    w.put("/b", b"");
    w.put("/c", &pattern(1000, 7));
    let copy = |from: &str, off_in: u64, to: &str, off_out: u64, len: u64| {
        w.on(from, |a| w.on(to, |b| w.fs.copy_file_range(&w.me, a.ino, off_in, b.ino, off_out, len)))
    };
    assert_eq!(copy("/a", 0, "/b", 0, u64::MAX).unwrap(), 300_000);
    assert!(w.get("/b").unwrap() == data);
    w.write_at("/b", 10, b"changed").unwrap();
    assert!(w.get("/a").unwrap() == data, "the source is its own copy");
    assert_eq!(copy("/a", 16_000, "/c", 500, 100_000).unwrap(), 100_000);
    let mut expected = pattern(1000, 7)[..500].to_vec();
    expected.extend_from_slice(&data[16_000..116_000]);
    assert!(w.get("/c").unwrap() == expected);
    assert_eq!(copy("/a", 299_990, "/c", 0, 100).unwrap(), 10, "the source ends");
    assert_eq!(copy("/a", 300_000, "/c", 0, 100).unwrap(), 0);
    assert_eq!(errno(copy("/a", 0, "/a", 10, 100)), EINVAL);
    assert_eq!(copy("/a", 0, "/a", 300_000, 300_000).unwrap(), 300_000);
    assert!(w.get("/a").unwrap() == [&data[..], &data[..]].concat());
}

#[test]
fn an_unlinked_open_file_lives_until_its_last_handle() {
    let mut w = World::new();
    for size in [0, 100, 500_000] {
        let data = pattern(size, 2);
        let ino = w.put("/f", &data);
        w.fs.lookup(ROOT, "f".as_ref()).unwrap();
        let (one, two) =
            (w.fs.open_file(&w.me, ino, O_RDWR).unwrap(), w.fs.open_file(&w.me, ino, 0).unwrap());
        w.unlink("/f").unwrap();
        assert!(!w.exists("/f"));
        assert_eq!(w.fs.getattr(ino).unwrap().nlink, 0);
        let fresh = w.put("/f", b"another");
        assert_ne!(fresh, ino);
        assert!(w.whole(ino).unwrap() == data);
        w.fs.write(one, ino, size as u64, b"more", false).unwrap();
        w.fs.release(ino, one);
        assert!(w.whole(ino).unwrap() == [&data[..], b"more"].concat());
        w.fs.release(ino, two);
        assert_eq!(errno(w.whole(ino)), ESTALE);
        assert_eq!(w.get("/f").unwrap(), b"another");
        w.fs.forget(ino, 1);
        w.assert_nothing_referenced();
    }
    assert_eq!(orphans(&w), 0);
    // Handles that are never released: the next mount clears what they kept.
    let ino = w.put("/g", &pattern(200_000, 1));
    w.fs.lookup(ROOT, "g".as_ref()).unwrap();
    w.fs.open_file(&w.me, ino, O_RDWR).unwrap();
    w.unlink("/g").unwrap();
    assert!(orphans(&w) > 10);
    w.remount();
    assert_eq!(orphans(&w), 0);
}

/// A kernel goes a path once more when a file was replaced between the look at its name and the open; where that came
/// too late as well, it gives up. After one open that comes too late, the next file is there until it is forgotten.
#[test]
fn a_file_that_is_replaced_again_is_kept_for_the_second_open_of_its_name() {
    let w = World::new();
    let look = || w.fs.lookup(ROOT, "f".as_ref()).unwrap().ino;
    let replace = |data: &[u8]| {
        w.put("/new", data);
        w.rename("/new", "/f", 0).unwrap();
    };
    w.put("/f", b"zeroth");
    let nobody_late = look();
    replace(b"first");
    assert_eq!(orphans(&w), 0, "nothing is kept for nobody");
    w.fs.forget(nobody_late, 1);
    let first = look();
    replace(b"second");
    // Again and again, lest a slow machine takes longer than late calls are remembered.
    let late = || assert_eq!(errno(w.fs.open_file(&w.me, first, 0)), ESTALE);
    late();
    let second = look();
    replace(&pattern(100_000, 3));
    let open = w.fs.open_file(&w.me, second, O_RDWR).unwrap();
    assert_eq!(w.whole(second).unwrap(), b"second");
    w.fs.release(second, open);
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    w.fs.setattr(&w.me, second, &mode).unwrap();
    // Unlinked ones as well, and what the kernel does not know is not kept.
    let third = look();
    late();
    w.unlink("/f").unwrap();
    assert!(w.whole(third).unwrap() == pattern(100_000, 3));
    w.put("/f", b"unknown");
    late();
    w.unlink("/f").unwrap();
    for ino in [first, third, second] {
        w.fs.forget(ino, 1);
    }
    assert_eq!(orphans(&w), 0);
    w.assert_nothing_referenced();
}

/// What is kept takes its space, and to move it away takes more room than to remove it.
#[test]
fn a_store_that_is_nearly_full_keeps_no_files_for_late_calls() {
    let w = World::new();
    let mut state = 1u64;
    let mut noise = || -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_be_bytes()
        };
        (0..1 << 17).flat_map(|_| next()).collect()
    };
    let mut fits = |name: &String| w.create(name).is_ok() && w.write_at(name, 0, &noise()).is_ok();
    let names: Vec<String> = (0..).map(|i| format!("/{i}")).take_while(|name| fits(name)).collect();
    assert!(names.len() > 20, "{} files of 1 MiB", names.len());
    let looked_up = |name: &str| w.at(name, |d, n| w.fs.lookup(d, n)).unwrap().ino;
    let dead = looked_up(&names[0]);
    w.unlink(&names[0]).unwrap();
    for name in &names[1..3] {
        assert_eq!(errno(w.fs.open_file(&w.me, dead, 0)), ESTALE);
        looked_up(name);
        w.unlink(name).unwrap();
        assert_eq!(orphans(&w), 0);
    }
}

/// Files that a kernel never forgets, as those of descriptors that only name them: see the bound in `late_calls`.
#[test]
fn few_files_are_kept_for_calls_that_come_too_late() {
    let mut w = World::new();
    let gone = |i: usize| {
        let name = format!("/{i}");
        w.put(&name, b"x");
        let ino = w.at(&name, |d, n| w.fs.lookup(d, n)).unwrap().ino;
        w.unlink(&name).unwrap();
        ino
    };
    let dead = gone(9999);
    for i in 0..3000 {
        // On a slow machine too, all of them are removed soon after a call that came too late.
        assert_eq!(errno(w.fs.open_file(&w.me, dead, 0)), ESTALE);
        gone(i);
    }
    let kept = orphans(&w);
    assert!((1000..=2 * 1024).contains(&kept), "{kept} keys");
    // A mount that writes would remove them: they went with the last one.
    w.remount_with(options().read_only(true));
    assert_eq!(orphans(&w), 0);
}

/// Who removes a tree looks at what is in memory of it, or at all open files, whichever are fewer; not at each of those
/// for each of these.
#[test]
fn a_tree_with_open_files_is_removed_beside_many_others() {
    const INSIDE: usize = 4000;
    const OUTSIDE: usize = 300_000;
    let w = World::new();
    w.put("/outside", b"others");
    let outside = w.fs.lookup(ROOT, "outside".as_ref()).unwrap().ino;
    let removed = |dir: &str| {
        w.mkdir(dir);
        let open = |i: usize| {
            let ino = w.put(&format!("{dir}/{i}"), b"open");
            w.at(&format!("{dir}/{i}"), |d, n| w.fs.lookup(d, n)).unwrap();
            (ino, w.fs.open_file(&w.me, ino, O_RDWR).unwrap())
        };
        let files: Vec<_> = (0..INSIDE).map(open).collect();
        let begun = Instant::now();
        let report = w.remove_tree(dir).unwrap();
        let took = begun.elapsed();
        assert_eq!((report.orphaned.len(), orphans(&w)), (INSIDE, 2 * INSIDE));
        for (ino, handle) in files {
            assert_eq!(w.whole(ino).unwrap(), b"open");
            w.fs.release(ino, handle);
            w.fs.forget(ino, 1);
        }
        assert_eq!(orphans(&w), 0);
        took
    };
    let alone = removed("/alone");
    let others: Vec<_> = (0..OUTSIDE).map(|_| w.fs.open_file(&w.me, outside, 0).unwrap()).collect();
    let beside = removed("/beside");
    others.into_iter().for_each(|handle| w.fs.release(outside, handle));
    assert!(beside < 4 * alone + Duration::from_millis(300), "{alone:?} alone, {beside:?} beside others");
}

/// Files are found from above as from below, however they are linked, moved and cloned.
#[test]
fn the_files_in_a_directory_are_those_that_lie_in_it() {
    for seed in 1..20 {
        let mut random = Random::new(seed);
        let w = World::new();
        let mut dirs = vec![String::new()];
        let mut files: Vec<String> = Vec::new();
        for i in 0..120 {
            let dir = dirs[random.below(dirs.len())].clone();
            let path = format!("{dir}/{i}");
            let old = files.get(random.below(files.len().max(1))).cloned();
            match (random.below(6), old) {
                (0, _) => {
                    w.mkdir(&path);
                    dirs.push(path);
                }
                (1, Some(old)) => {
                    let linked = w.on(&old, |a| w.at(&path, |d, n| w.fs.link(&w.me, a.ino, d, n)));
                    // Not into another clone.
                    if let Ok(attr) = linked {
                        w.fs.forget(attr.ino, 1);
                        files.push(path);
                    }
                }
                (2, Some(old)) if w.rename(&old, &path, 0).is_ok() => {
                    files.retain(|file| *file != old);
                    files.push(path);
                }
                (3, _) if !dir.is_empty() && w.clone_tree(&dir, &format!("/clone{i}"), false).is_ok() => {
                    dirs.push(format!("/clone{i}"));
                }
                _ => {
                    w.put(&path, b"file");
                    files.push(path);
                }
            }
        }
        // All are in memory, also those of clones.
        let mut known = Vec::new();
        let mut all = vec![String::new()];
        while let Some(dir) = all.pop() {
            for name in w.names(if dir.is_empty() { "/" } else { &dir }) {
                let path = format!("{dir}/{name}");
                let attr = w.at(&path, |d, n| w.fs.lookup(d, n)).unwrap();
                known.push(attr);
                if attr.kind == FileKind::Directory {
                    all.push(path);
                }
            }
        }
        for top in known.iter().map(|attr| attr.ino).chain([ROOT]) {
            let lies = |attr: &&Attr| attr.kind == FileKind::Regular && w.fs.lies_in(attr.ino, top);
            let mut wanted: Vec<Ino> = known.iter().filter(lies).map(|attr| attr.ino).collect();
            wanted.sort_unstable();
            wanted.dedup();
            assert_eq!(w.fs.files_in(top, usize::MAX), Some(wanted), "seed {seed}, in {top:#x}");
        }
        assert_eq!(w.fs.files_in(ROOT, 1), None, "more than one is to be looked at");
    }
}

/// Keys in the orphan area.
fn orphans(w: &World) -> usize {
    w.fs.db().prefix(b"\xff\xff\xff\xffO").count()
}

#[test]
fn removed_files_leave_no_keys_behind() {
    let w = World::new();
    let before = w.fs.db().range(b"", None).count();
    for size in [0, 1, 16_384, 131_072, 131_073, 1_000_000] {
        w.put("/f", &pattern(size, 4));
        w.unlink("/f").unwrap();
        w.put("/f", &pattern(size, 4));
        w.put("/g", b"x");
        w.rename("/g", "/f", 0).unwrap();
        w.unlink("/f").unwrap();
    }
    // Only the counter of file numbers may be new.
    assert!(w.fs.db().range(b"", None).count() <= before + 1);
}

#[test]
fn a_small_write_is_blind() {
    let mut w = World::new();
    w.put("/f", &pattern(1 << 20, 4));
    w.remount();
    let before: Vec<_> = w.fs.db().range(b"", None).map(|p| p.unwrap()).collect();
    w.remount(); // nothing is in a cache
    let f = w.fs.lookup(ROOT, "f".as_ref()).unwrap();
    let reads = || w.device.stats().reads;
    let before_write = reads();
    w.fs.write(NONE, f.ino, 500_000, b"four", false).unwrap();
    assert_eq!(reads(), before_write, "a write must not read the device");
    w.fs.forget(f.ino, 1);
    let after: Vec<_> = w.fs.db().range(b"", None).map(|p| p.unwrap()).collect();
    assert_eq!(before.len(), after.len());
    assert_eq!(before.iter().zip(&after).filter(|(a, b)| a != b).count(), 2, "one block, one record");
}

/// Units of 512 bytes in a block of data.
const UNITS: u64 = BLOCK_SIZE / 512;

#[test]
fn the_blocks_of_a_file_are_those_that_exist() {
    let mut w = World::new();
    let mut wanted = Vec::new();
    let mut check = |w: &World, path: &str, blocks: u64, why: &str| {
        assert_eq!(w.attr(path).blocks, blocks, "{path}: {why}");
        wanted.retain(|(p, _)| p != path);
        wanted.push((path.to_owned(), blocks));
    };
    w.put("/small", b"12345");
    check(&w, "/small", 1, "a small one");
    w.put("/dense", &pattern(100_000, 3));
    check(&w, "/dense", 100_000u64.div_ceil(512), "no holes");
    w.put("/sparse", b"");
    w.truncate("/sparse", 1 << 30).unwrap();
    check(&w, "/sparse", 0, "a hole of a GiB");
    w.write_at("/sparse", 512 << 20, b"x").unwrap();
    check(&w, "/sparse", UNITS, "one byte in the middle");
    w.write_at("/sparse", (512 << 20) + 5, b"x").unwrap();
    check(&w, "/sparse", UNITS, "the same block");
    w.write_at("/sparse", 0, &pattern(100_000, 1)).unwrap();
    check(&w, "/sparse", 8 * UNITS, "seven blocks at the beginning");
    w.write_at("/sparse", 600 << 20, &pattern(300_000, 1)).unwrap();
    check(&w, "/sparse", 27 * UNITS, "nineteen more");
    w.write_at("/sparse", (1 << 30) - 1, b"end").unwrap();
    check(&w, "/sparse", 28 * UNITS + 1, "two bytes behind the old end are a unit");
    w.put("/seek", b"");
    w.write_at("/seek", 100 << 20, b"dd seek=100").unwrap();
    check(&w, "/seek", 1, "a file that begins with a hole");
    w.write_at("/seek", 0, b"begin").unwrap();
    check(&w, "/seek", UNITS + 1, "");
    w.truncate("/seek", 50 << 20).unwrap();
    check(&w, "/seek", UNITS, "cut");
    w.truncate("/seek", 200 << 20).unwrap();
    check(&w, "/seek", UNITS, "and extended again");
    w.write_at("/seek", 100 << 20, b"x").unwrap();
    check(&w, "/seek", 2 * UNITS, "where a block was before");
    w.put("/regrown", &pattern(1_000_000, 9));
    w.truncate("/regrown", 20_000).unwrap();
    check(&w, "/regrown", 20_000u64.div_ceil(512), "cut to two blocks");
    w.truncate("/regrown", 10_000_000).unwrap();
    check(&w, "/regrown", 2 * UNITS, "extended by a hole");
    w.truncate("/regrown", 0).unwrap();
    check(&w, "/regrown", 0, "empty");
    w.truncate("/regrown", 40_000).unwrap();
    check(&w, "/regrown", 0, "a hole from the beginning");
    w.put("/filled", b"");
    w.truncate("/filled", 20 << 20).unwrap();
    for i in (0..1280u64).rev() {
        w.write_at("/filled", i * BLOCK_SIZE, &[7; 100]).unwrap();
    }
    check(&w, "/filled", (20 << 20) / 512, "filled from the end");
    // Moved, cloned, copied, orphaned: the same.
    w.mkdir("/d");
    w.rename("/sparse", "/d/sparse", 0).unwrap();
    check(&w, "/d/sparse", 28 * UNITS + 1, "renamed");
    w.clone_tree("/d", "/e", false).unwrap();
    w.clone_tree("/d/sparse", "/copy", false).unwrap();
    w.write_at("/e/sparse", 700 << 20, b"x").unwrap();
    check(&w, "/e/sparse", 29 * UNITS + 1, "a clone, edited");
    check(&w, "/d/sparse", 28 * UNITS + 1, "its source");
    check(&w, "/copy", 28 * UNITS + 1, "a clone of the file");
    w.create("/range").unwrap();
    w.on("/d/sparse", |a| {
        w.on("/range", |b| {
            let copied = w.fs.copy_file_range(&w.me, a.ino, 0, b.ino, 0, u64::MAX >> 1)?;
            assert_eq!(copied, a.size);
            Ok(())
        })
    })
    .unwrap();
    check(&w, "/range", 28 * UNITS + 1, "copied as a range");
    let wanted = wanted.into_iter().filter(|(p, _)| p != "/sparse").collect::<Vec<_>>();
    for round in 0..2 {
        for (path, blocks) in &wanted {
            assert_eq!(w.attr(path).blocks, *blocks, "{path} after remount {round}");
        }
        let root = w.list(ROOT, 5);
        for e in root.iter().filter(|e| e.kind == FileKind::Regular) {
            let path = format!("/{}", e.name.to_str().unwrap());
            let blocks = wanted.iter().find(|(p, _)| *p == path).unwrap().1;
            assert_eq!(e.attr.blocks, blocks, "{path} as listed");
        }
        check_keys(&w);
        w.remount();
    }
    w.on("/d/sparse", |a| {
        let fh = w.fs.open_file(&w.me, a.ino, O_RDWR)?;
        w.unlink("/d/sparse")?;
        assert_eq!(w.fs.getattr(a.ino)?.blocks, 28 * UNITS + 1, "an open file without a name");
        w.fs.write(fh, a.ino, 800 << 20, b"y", false)?;
        assert_eq!(w.fs.getattr(a.ino)?.blocks, 29 * UNITS + 1);
        w.fs.release(a.ino, fh);
        Ok(())
    })
    .unwrap();
    check_keys(&w);
}

#[test]
fn blocks_are_counted_right_after_any_writes_and_cuts() {
    for seed in 0..12u64 {
        let mut w = World::new();
        let mut r = Random::new(seed + 1);
        // For each file: its size, and the blocks that exist.
        let mut files: Vec<(String, u64, std::collections::BTreeSet<u64>)> = Vec::new();
        for i in 0..3 {
            w.create(&format!("/f{i}")).unwrap();
            files.push((format!("/f{i}"), 0, Default::default()));
        }
        // Few blocks, so that everything meets; or many pieces of the map.
        let far = *r.pick(&[40, 700, 5000]) * BLOCK_SIZE as usize;
        for step in 0..250 {
            let i = r.below(files.len());
            let (path, size, blocks) = &mut files[i];
            match r.below(12) {
                0..5 => {
                    let at = if r.below(3) == 0 { *size } else { r.below(far) as u64 };
                    let len = 1 + r.below(*r.clone().pick(&[10, 20_000, 300_000]));
                    w.write_at(path, at, &vec![1; len]).unwrap();
                    let end = at + len as u64;
                    blocks.extend(at / BLOCK_SIZE..=(end - 1) / BLOCK_SIZE);
                    *size = end.max(*size);
                }
                5..9 => {
                    let new = match r.below(4) {
                        0 => 0,
                        1 => r.below(far) as u64,
                        2 => r.below(far) as u64 / BLOCK_SIZE * BLOCK_SIZE,
                        _ => size.saturating_sub(r.below(50_000) as u64),
                    };
                    w.truncate(path, new).unwrap();
                    blocks.retain(|b| *b < new.div_ceil(BLOCK_SIZE));
                    *size = new;
                }
                9 => {
                    let to = format!("/c{step}");
                    w.clone_tree(path, &to, false).unwrap();
                    let copy = (to, *size, blocks.clone());
                    files.push(copy);
                }
                10 => {
                    let to = format!("/m{step}");
                    w.rename(path, &to, 0).unwrap();
                    *path = to;
                }
                _ if step % 3 == 0 => w.remount(),
                _ => {}
            }
            for (path, size, blocks) in
                files.iter().skip(if step % 20 == 0 { 0 } else { i }).take(1 + (step % 20 == 0) as usize * 99)
            {
                let last = size.div_ceil(BLOCK_SIZE).checked_sub(1);
                let short = match last {
                    Some(last) if blocks.contains(&last) => ((last + 1) * BLOCK_SIZE - size) / 512,
                    _ => 0,
                };
                let wanted = blocks.len() as u64 * UNITS - short;
                assert_eq!(w.attr(path).blocks, wanted, "{path} of {size} bytes, seed {seed}, step {step}");
            }
            if step % 50 == 0 {
                check_keys(&w);
            }
        }
        check_keys(&w);
    }
}

fn copy_part(w: &World, from: &str, to: &str, at: u64, len: u64) -> u64 {
    let copied = w
        .on(from, |from| w.on(to, |to| w.fs.copy_file_range(&Caller::root(), from.ino, at, to.ino, at, len)));
    copied.unwrap()
}

/// Copies as the kernel does for a copier: in calls of less than 4 GiB. Returns how many.
fn copy_by_calls(w: &World, from: &str, to: &str, size: u64) -> u32 {
    let (mut done, mut calls) = (0, 0);
    while done < size {
        let len = (size - done).min(0xfff0_0000);
        let n = copy_part(w, from, to, done, len);
        assert!(n > 0 && n <= len, "{n} of {len}");
        (done, calls) = (done + n, calls + 1);
    }
    calls
}

#[test]
fn files_of_four_gib_and_more_are_shared_and_keep_their_holes() {
    const G: u64 = 1 << 30;
    for size in [4192 << 20, 4 * G, 9 * G + 12_345] {
        let mut w = World::new();
        w.create("/big").unwrap();
        for (offset, seed) in [(0, 1), (G - 5, 2), (3 * G + 7, 3), (0xfff0_0000 - 3, 4), (size - 20_000, 5)] {
            w.write_at("/big", offset, &pattern(20_000, seed)).unwrap();
        }
        w.create("/copy").unwrap();
        let calls = copy_by_calls(&w, "/big", "/copy", size);
        assert!(calls <= 4, "{calls} calls for {size} bytes");
        // Each goes its own way afterwards.
        w.write_at("/big", 3 * G + 7, b"changed").unwrap();
        for remounted in [false, true] {
            let (big, copy) = (w.attr("/big"), w.attr("/copy"));
            assert_eq!((copy.size, copy.blocks), (size, big.blocks), "remounted: {remounted}");
            for (offset, seed) in [(0, 1), (G - 5, 2), (3 * G + 7, 3), (size - 20_000, 5)] {
                let seen = w.on("/copy", |a| w.fs.read(FileHandle(0), a.ino, offset, 20_000)).unwrap();
                assert!(seen == pattern(20_000, seed), "at {offset} of {size}");
            }
            w.remount();
        }
    }
}

#[test]
fn parts_that_are_shared_are_the_bytes_that_were_asked_for() {
    const M: u64 = 1 << 20;
    let size = 13 * M + 777;
    for (n, (asked, held, hole)) in [
        (8 * M, 0, false),
        (8 * M + 1, 0, false),
        (8 * M - 1, 0, true),
        (size - 4 * M, 4 * M, false),
        (size - 8 * M, 5 * M, true),
        (4 * M, 4 * M + 1, false),
    ]
    .into_iter()
    .enumerate()
    {
        let w = World::new();
        let mut model = pattern(size as usize, 9);
        w.put("/from", &model[..]);
        if hole {
            w.truncate("/from", 6 * M).unwrap();
            w.write_at("/from", size - 3 * M, &model[(size - 3 * M) as usize..]).unwrap();
            model[6 * M as usize..(size - 3 * M) as usize].fill(0);
        }
        let mut expected = pattern(held as usize, 4);
        w.put("/to", &expected);
        let offset = held / (4 * M) * 4 * M + if held % (4 * M) > 1 { 4 * M } else { 0 };
        let copied = copy_part(&w, "/from", "/to", offset, asked);
        assert!(copied > 0 && copied <= asked, "case {n}: {copied}");
        let end = (offset + copied) as usize;
        expected.resize(expected.len().max(end), 0);
        expected[offset as usize..end].copy_from_slice(&model[offset as usize..end]);
        assert!(w.get("/to").unwrap() == expected, "case {n}");
        // Growing shows zeros, not what lay behind in the source.
        w.truncate("/to", size + 99_999).unwrap();
        expected.resize((size + 99_999) as usize, 0);
        assert!(w.get("/to").unwrap() == expected, "case {n}, grown");
    }
}

/// In a mount the server takes such a name for something else, and nobody could reach the entry.
#[test]
fn no_entry_gets_a_reserved_name() {
    let w = World::new();
    w.mkdir("/d");
    w.put("/d/file", b"1");
    let reserved = "/d/.pando-proof-0123456789abcdef0123456789abcdef";
    let refused = |result: Result<()>| assert_eq!(errno(result), 22);
    refused(w.at(reserved, |d, n| w.fs.mkdir(&w.me, d, n, 0o755)).map(drop));
    refused(w.create(reserved).map(drop));
    refused(w.at(reserved, |d, n| w.fs.symlink(&w.me, d, n, "x".as_ref())).map(drop));
    refused(w.link("/d/file", reserved).map(drop));
    refused(w.rename("/d/file", reserved, 0));
    refused(w.clone_tree("/d/file", reserved, false).map(drop));
    assert_eq!(w.names("/d"), ["file"]);
    // Others that begin so are names.
    w.put("/d/.pando-proof-0123456789abcdef0123456789abcdeF", b"2");
    w.put("/d/.pando-proof-", b"3");
    assert_eq!(w.names("/d").len(), 3);
}
