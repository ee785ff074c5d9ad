//! Data of files: what is written is read, whatever the offsets and sizes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
use common::*;
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
