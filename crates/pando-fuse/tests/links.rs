//! Hard links through a mount: what programs and the kernel's caches see of them, on originals and on clones.
#![allow(clippy::unwrap_used, clippy::expect_used, unsafe_code)]

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::Path,
    process::Command,
};

use super::common::{World, errno, soon};

macro_rules! world {
    () => {
        match World::new() {
            Some(world) => world,
            None => return,
        }
    };
}

fn nlink(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().nlink()
}

#[test]
fn links_are_seen_by_the_kernel_as_they_are() {
    let w = world!();
    let p = |name: &str| w.path(name);
    fs::create_dir(p("d")).unwrap();
    fs::write(p("a"), "data").unwrap();
    let ino = fs::metadata(p("a")).unwrap().ino();
    fs::hard_link(p("a"), p("d/b")).unwrap();
    assert_eq!((nlink(&p("a")), nlink(&p("d/b")), fs::metadata(p("d/b")).unwrap().ino()), (2, 2, ino));
    let open = OpenOptions::new().read(true).write(true).open(p("a")).unwrap();
    open.write_all_at(b"DATA and more", 0).unwrap();
    assert_eq!(fs::read(p("d/b")).unwrap(), b"DATA and more");
    fs::rename(p("d/b"), p("c")).unwrap();
    assert_eq!((nlink(&p("a")), fs::metadata(p("c")).unwrap().ino()), (2, ino));
    fs::rename(p("a"), p("c")).unwrap(); // two names of one file: both stay
    assert!(p("a").exists() && p("c").exists());
    fs::write(p("new"), "new").unwrap();
    fs::rename(p("new"), p("c")).unwrap();
    assert_eq!((nlink(&p("a")), open.metadata().unwrap().nlink()), (1, 1));
    fs::hard_link(p("a"), p("x")).unwrap();
    fs::remove_file(p("a")).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 1);
    fs::remove_file(p("x")).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    let mut text = [0; 13];
    open.read_exact_at(&mut text, 0).unwrap();
    assert_eq!(&text, b"DATA and more");
    symlink("target", p("s")).unwrap();
    fs::hard_link(p("s"), p("s2")).unwrap();
    assert_eq!((nlink(&p("s")), fs::read_link(p("s2")).unwrap()), (2, "target".into()));
    assert_eq!(errno(fs::hard_link(p("d"), p("e"))), libc::EPERM);
    assert_eq!(errno(fs::hard_link(p("s"), p("s2"))), libc::EEXIST);
}

#[test]
fn clones_and_removed_trees_have_right_counts_soon() {
    let w = world!();
    let p = |name: &str| w.path(name);
    for dir in ["t", "t/s", "out"] {
        fs::create_dir(p(dir)).unwrap();
    }
    fs::write(p("t/s/a"), "data").unwrap();
    fs::hard_link(p("t/s/a"), p("t/s/b")).unwrap();
    fs::hard_link(p("t/s/a"), p("out/c")).unwrap();
    w.clone_tree("t/s", "copy", false).unwrap();
    let copy = fs::metadata(p("copy/a")).unwrap();
    assert_eq!(copy.ino(), fs::metadata(p("copy/b")).unwrap().ino());
    assert_ne!(copy.ino(), fs::metadata(p("t/s/a")).unwrap().ino());
    soon("the clone's count", || nlink(&p("copy/a")) == 2);
    fs::write(p("copy/a"), "of the copy").unwrap();
    assert_eq!(
        (fs::read(p("copy/b")).unwrap(), fs::read(p("out/c")).unwrap()),
        (b"of the copy".into(), b"data".into())
    );
    assert_eq!(errno(fs::hard_link(p("copy/a"), p("out/d"))), libc::EXDEV);
    assert_eq!(errno(fs::rename(p("copy/a"), p("out/d"))), libc::EXDEV);
    let moved = Command::new("mv").arg(p("copy/a")).arg(p("out/d")).status().unwrap();
    assert!(moved.success() && nlink(&p("copy/b")) == 1 && nlink(&p("out/d")) == 1);
    assert_eq!(nlink(&p("out/c")), 3, "the kernel knows it");
    w.remove_tree("t").unwrap();
    assert_eq!(nlink(&p("out/c")), 1, "and forgets it");
}

#[test]
fn pages_that_are_only_mapped_are_in_a_clone_of_any_directory_with_a_name() {
    let w = world!();
    let p = |name: &str| w.path(name);
    for dir in ["a", "b"] {
        fs::create_dir(p(dir)).unwrap();
    }
    fs::write(p("a/f"), vec![b'-'; 8192]).unwrap();
    fs::hard_link(p("a/f"), p("b/g")).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(p("a/f")).unwrap();
    let map = super::common::mapped::Map::new(&file, 8192, true);
    map.set(0, b'm');
    w.clone_tree("b", "copy", false).unwrap();
    assert_eq!(fs::read(p("copy/g")).unwrap()[..2], *b"m-");
}

#[test]
fn programs_that_link_do_so() {
    let w = world!();
    let run = |line: &str| {
        let out = Command::new("sh").arg("-ec").arg(line).current_dir(w.root()).output().unwrap();
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    run("mkdir t && echo one > t/a && ln t/a t/b && ln -s a t/s && ln t/s t/s2");
    run("cp -a t copied && test copied/a -ef copied/b && test $(stat -c %h copied/a) = 2");
    run("cp -al t farm && test farm/a -ef t/a && test $(stat -c %h t/b) = 4");
    run(
        "tar cf t.tar t && mkdir x && tar xf t.tar -C x && test x/t/a -ef x/t/b && test $(stat -c %h x/t/a) = 2",
    );
    assert_eq!(run("find t -samefile t/a | sort"), "t/a\nt/b\n");
    assert_eq!(run("rm -r farm && stat -c %h t/a"), "2\n");
    assert_eq!(run("ls t"), "a\nb\ns\ns2\n");
    File::open(w.root()).unwrap().sync_all().unwrap();
}

#[test]
fn files_without_a_name_get_one_by_descriptor() {
    use std::os::{fd::AsRawFd, unix::fs::OpenOptionsExt};
    let w = world!();
    let tmpfile = |flags: i32| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_TMPFILE | flags)
            .mode(0o600)
            .open(w.root())
    };
    let file = tmpfile(0).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    assert_eq!((file.metadata().unwrap().nlink(), fs::read_dir(w.root()).unwrap().count()), (0, 0));
    let name = |file: &File, to: &str| {
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::linkat(
            rustix::fs::CWD,
            from,
            rustix::fs::CWD,
            w.path(to),
            rustix::fs::AtFlags::SYMLINK_FOLLOW,
        )
    };
    name(&file, "a").unwrap();
    assert_eq!((fs::read(w.path("a")).unwrap(), nlink(&w.path("a"))), (b"content".into(), 1));
    name(&file, "b").unwrap();
    assert_eq!((file.metadata().unwrap().nlink(), nlink(&w.path("a"))), (2, 2));
    file.write_all_at(b"CON", 0).unwrap();
    assert_eq!(fs::read(w.path("b")).unwrap(), b"CONtent");
    let alone = tmpfile(libc::O_EXCL).unwrap();
    assert_eq!(name(&alone, "c").unwrap_err().raw_os_error(), libc::ENOENT);
    drop((file, alone));
    assert_eq!(fs::read_dir(w.root()).unwrap().count(), 2);
}
