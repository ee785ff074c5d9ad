//! `pando chmod`, `chown` and `touch` as a user has them: against those of coreutils on the same trees, with warm caches
//! and open files, by those who may not, and in images that are not mounted.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::{File, OpenOptions, symlink_metadata},
    io::Write,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use crate::common::{Bench, same};

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: not root");
    }
    root
}

/// SETATTR requests so far.
fn setattrs(b: &Bench) -> u64 {
    let stats = b.json(&["stats", "--json", "m"]);
    stats["requests"]["setattr"].as_u64().unwrap_or_else(|| panic!("{stats}"))
}

/// A tree with a bit of everything, in a directory of the host and in the mount.
fn twins(b: &Bench) {
    b.tree("t");
    b.sh("mknod t/null c 1 3; ln t/src/f7 t/src/linked; ln t/src/f8 t/empty/linked; chmod 2755 t/src; chmod 6755 t/src/f9
        chmod 2644 t/src/f10; chmod 000 t/src/f11; mkdir t/shut; touch t/shut/in; chmod 000 t/shut; cp -a t m/t
        mkdir out; echo out > out/file; ln -s ../out m/t/out; ln -s ../out t/out; cp -a out m/out
        for d in t m/t; do rm $d/out; ln -s ../out $d/out; touch -h -d @5 $d/out $d; done");
    same(b.path("t"), b.path("m/t"));
}

#[test]
fn the_same_as_coreutils_on_the_same_tree() {
    if !is_root() {
        return;
    }
    let b = mounted!();
    twins(&b);
    b.remount();
    let pando = env!("CARGO_BIN_EXE_pando");
    for (mask, args) in [
        ("022", "chmod -R u+x"),
        ("022", "chmod -R go=u-w"),
        ("077", "chmod -R +rw,o+t"),
        ("022", "chmod -R a+X"),
        ("022", "chmod -R 0640"),
        ("022", "chmod -R u+rwX,g=u,o="),
        ("027", "chmod -R =rX"),
        ("022", "chmod -R -x+X"),
        ("022", "chmod -R 6755"),
        ("022", "chown -R 7"),
        ("022", "chmod -R 00755"),
        ("022", "chmod -R ug+s,+t"),
        ("022", "chown -R :root"),
        ("022", "chown -R -h 12:34"),
        ("022", "chown -R root:"),
    ] {
        b.sh(&format!("umask {mask}; {args} t"));
        b.remount(); // the kernel knows nothing of the files
        let before = setattrs(&b);
        b.sh(&format!("umask {mask}; {pando} {args} m/t"));
        let sent = setattrs(&b) - before;
        assert!(sent <= 2, "{args}: one message, and {sent} requests");
        same(b.path("t"), b.path("m/t"));
        assert_eq!(
            symlink_metadata(b.path("m/out/file")).unwrap().mode() & 0o7777,
            0o644,
            "what a link points to"
        );
        b.remount();
        same(b.path("t"), b.path("m/t"));
    }
    b.remount();
    let before = setattrs(&b);
    b.ok(&["touch", "-R", "-d", "2003-04-05T06:07:08.910111213Z", "m/t"]);
    assert!(setattrs(&b) - before <= 2, "one message");
    b.sh("find t -exec touch -h -d '2003-04-05T06:07:08.910111213Z' {} +");
    same(b.path("t"), b.path("m/t"));
    // Single files, and links that are named.
    b.sh(&format!(
        "chmod o+x t/link t/src/f3; {pando} chmod o+x m/t/link m/t/src/f3
         chown 5 t/link; {pando} chown 5 m/t/link; chown -h 6:6 t/link t/src; {pando} chown -h 6:6 m/t/link m/t/src
         chmod -R g-r t/src/f5; {pando} chmod -R g-r m/t/src/f5
         touch -d @77.5 t/src/f6 t/src; {pando} touch -d @77.5 m/t/src/f6 m/t/src
         ln -s t l; ln -s t m/l; chmod -R g+w l; {pando} chmod -R g+w m/l; chown -R 9 l; {pando} chown -R 9 m/l"
    ));
    same(b.path("t"), b.path("m/t"));
    assert_eq!(symlink_metadata(b.path("m/l")).unwrap().uid(), 9);
    b.fails(&["chmod", "-R", "u+y", "m/t"], 1, "no mode");
    b.fails(&["chmod", "-R", "755", "m/none"], 1, "No such file");
    b.fails(&["chown", "-R", "nobody-of-this-name", "m/t"], 1, "no such user");
    b.fails(&["touch", "-R", "-d", "never", "m/t"], 1, "no time");
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// What stat says of all in a tree.
fn stats(dir: &Path) -> Vec<(PathBuf, std::fs::Metadata)> {
    let mut found = vec![(dir.to_owned(), symlink_metadata(dir).unwrap())];
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                todo.push(path.clone());
            }
            found.push((path, meta));
        }
    }
    found
}

/// Whatever the kernel has of the tree before: attributes, open files, what was written and is dirty, and where programs
/// are.
fn nobody_sees_what_was_before(options: &str) {
    let b = mounted!();
    b.umount();
    b.ok(&["mount", "--log-file", "log", "-o", &format!("allow_other,{options}"), "a.img", "m"]);
    b.sh("mkdir -p m/t/a/b m/t/c; for i in $(seq 100); do echo $i > m/t/a/f$i; done; mkfifo m/t/pipe; ln -s x m/t/link
        echo text > m/t/c/other; ln m/t/a/f1 m/outside; chmod -R 755 m/t; cp /bin/true m/t/a/prog");
    let (t, one) = (b.path("m/t"), b.path("m/t/a/f7"));
    let check = |what: &str, wanted: &dyn Fn(&std::fs::Metadata) -> bool, fd: &File| {
        for (path, meta) in stats(&t) {
            assert!(wanted(&meta), "{what}: {}: {meta:?}", path.display());
        }
        assert!(wanted(&fd.metadata().unwrap()), "{what}: of an open file");
        assert!(wanted(&symlink_metadata(b.path("m/outside")).unwrap()), "{what}: another name");
    };
    let mut open = OpenOptions::new().read(true).write(true).open(&one).unwrap();
    let cwd = File::open(b.path("m/t/a/b")).unwrap();
    for round in 0..3 {
        // Warm, and dirty.
        stats(&t);
        open.write_all(b"written before").unwrap();
        let before: Vec<_> =
            stats(&t).into_iter().map(|(_, meta)| (meta.ctime(), meta.ctime_nsec())).collect();
        let size = open.metadata().unwrap().len();
        std::thread::sleep(std::time::Duration::from_millis(20));
        let mode = [0o751, 0o640, 0o707][round];
        b.ok(&["chmod", "-R", &format!("{mode:o}"), "m/t"]);
        check("chmod", &|m| m.is_symlink() || m.mode() & 0o7777 == mode, &open);
        for (old, new) in before.iter().zip(stats(&t)) {
            if new.1.is_symlink() {
                assert_eq!((new.1.ctime(), new.1.ctime_nsec()), *old, "a link is not changed");
                continue;
            }
            assert!((new.1.ctime(), new.1.ctime_nsec()) > *old, "change time of {}", new.0.display());
        }
        assert_eq!(open.metadata().unwrap().len(), size, "what was written");
        assert_eq!(cwd.metadata().unwrap().mode() & 0o7777, mode);
        let uid = 100 + round as u32;
        b.ok(&["chown", "-R", &format!("{uid}:7"), "m/t"]);
        check("chown", &|m| (m.uid(), m.gid()) == (uid, 7), &open);
        open.write_all(b"and again").unwrap();
        let seconds = 1_000_000_000 + round as i64;
        b.ok(&["touch", "-R", "-d", &format!("@{seconds}.5"), "m/t"]);
        check("touch", &|m| (m.mtime(), m.mtime_nsec(), m.atime()) == (seconds, 500_000_000, seconds), &open);
        // What programs do afterwards counts.
        open.write_all(b"later").unwrap();
        assert!(open.metadata().unwrap().mtime() > seconds);
        b.sh("touch -d @1234 m/t/c/other; chmod 600 m/t/c/other");
        let other = symlink_metadata(b.path("m/t/c/other")).unwrap();
        assert_eq!((other.mtime(), other.mode() & 0o7777), (1234, 0o600));
    }
    // Who may not run it any more cannot, though the kernel has let him before.
    b.ok(&["chmod", "-R", "755", "m/t"]);
    b.sh("chmod 755 .; setpriv --reuid 65534 --clear-groups sh -c m/t/a/prog");
    b.ok(&["chmod", "-R", "go=", "m/t"]);
    b.sh("! setpriv --reuid 65534 --clear-groups sh -c m/t/a/prog 2>/dev/null");
    let content = std::fs::read(&one).unwrap();
    b.ok(&["touch", "-R", "-d", "@1500000000", "m/t"]);
    // Nothing that the kernel keeps comes back later.
    open.sync_all().unwrap();
    drop((open, cwd));
    let seen: Vec<_> = stats(&t);
    b.umount();
    b.mount();
    for ((path, old), (_, new)) in seen.iter().zip(stats(&t)) {
        assert_eq!(
            (old.mode(), old.uid(), old.mtime()),
            (new.mode(), new.uid(), new.mtime()),
            "{}",
            path.display()
        );
        assert_eq!((old.ctime(), old.ctime_nsec()), (new.ctime(), new.ctime_nsec()), "{}", path.display());
        assert_eq!(new.mtime(), 1_500_000_000, "{}", path.display());
    }
    assert_eq!(std::fs::read(&one).unwrap(), content);
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn nobody_sees_what_was_before_where_the_kernel_keeps_what_is_written() {
    if is_root() {
        nobody_sees_what_was_before("writeback=on");
    }
}

#[test]
fn nobody_sees_what_was_before_where_it_is_written_through() {
    if is_root() {
        nobody_sees_what_was_before("writeback=off");
    }
}

/// What was written to a mapping before goes out before, so that it is no change after it.
#[test]
fn what_is_dirty_in_a_mapping_does_not_bring_a_time_back() {
    if !is_root() || !crate::common::has("python3") {
        return;
    }
    let b = mounted!();
    b.umount();
    b.ok(&["mount", "--log-file", "log", "-o", "writeback=off", "a.img", "m"]);
    b.sh("mkdir m/t; echo something > m/t/f");
    let mut program = std::process::Command::new("python3")
        .args(["-c", "import mmap,sys; f=open('m/t/f','r+b'); m=mmap.mmap(f.fileno(),0); m[0]=88; print('x',flush=True)
sys.stdin.read(); m.close(); f.close()"])
        .current_dir(b.path(""))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(program.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    b.ok(&["touch", "-R", "-d", "@77", "m/t"]);
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    b.sh("sync m/t/f");
    assert_eq!(symlink_metadata(b.path("m/t/f")).unwrap().mtime(), 77);
    assert_eq!(std::fs::read(b.path("m/t/f")).unwrap(), b"Xomething\n");
}

/// Calls that set attributes of the very files all the time: in the end the kernel shows what the file system has.
#[test]
fn beside_other_changes_the_kernel_shows_what_is_stored() {
    if !is_root() {
        return;
    }
    let b = mounted!();
    b.sh("mkdir m/t; for i in $(seq 20); do echo $i > m/t/f$i; done");
    let t = b.path("m/t");
    let ended = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|s| {
        for thread in 0..2u32 {
            let (t, ended) = (&t, &ended);
            s.spawn(move || {
                let mut n = 0;
                while !ended.load(relaxed) {
                    n += 1;
                    let file = File::options().write(true).open(t.join(format!("f{}", 1 + n % 20))).unwrap();
                    file.write_all_at(b"x", u64::from(n % 5)).unwrap();
                    let mode = rustix::fs::Mode::from_raw_mode(0o600 + (n + thread) % 64);
                    rustix::fs::fchmod(&file, mode).unwrap();
                }
            });
        }
        let all = || -> Vec<_> {
            let args = |round: u32| match round % 3 {
                0 => "chmod -R u+x,g=o m/t".to_owned(),
                1 => format!("chown -R {round} m/t"),
                _ => format!("touch -R -d @{round} m/t"),
            };
            (0..40).map(|round| b.run(&args(round).split(' ').collect::<Vec<_>>())).collect()
        };
        let all = all();
        // Not earlier, or the threads would go on.
        ended.store(true, relaxed);
        assert!(all.iter().all(|out| out.status.success()), "{all:?}");
    });
    let shown = stats(&t);
    b.remount();
    for ((path, old), (_, new)) in shown.iter().zip(stats(&t)) {
        let all =
            |m: &std::fs::Metadata| (m.mode(), m.uid(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
        assert_eq!(all(old), all(&new), "{}", path.display());
    }
}

#[test]
fn who_may_not_change_all_changes_what_he_may() {
    let Some(b) = Bench::shared("test") else { return };
    b.sh("mkdir -p m/t/mine m/t/theirs; echo x > m/t/mine/f; echo x > m/t/theirs/g; chown -R 65534 m/t/mine m/t
        chown -R 0 m/t/theirs; chmod 755 . m m/t");
    let mode = |path: &str| symlink_metadata(b.path(path)).unwrap().mode() & 0o7777;
    // An ordinary user: file by file, and each refusal is said.
    let out = b.sh("setpriv --reuid 65534 --clear-groups ./pando chmod -R o-rx m/t 2>&1 || echo refused");
    assert!(out.contains("refused") && out.contains("theirs") && !out.contains("mine"), "{out}");
    assert_eq!((mode("m/t/mine/f"), mode("m/t/theirs/g")), (0o640, 0o644));
    // Root without the capabilities of root.
    let out = b.sh(
        "setpriv --bounding-set -chown,-fowner --inh-caps -chown,-fowner ./pando chown -R 5 m/t 2>&1 || echo refused",
    );
    assert!(out.contains("refused"), "{out}");
    assert_eq!(symlink_metadata(b.path("m/t/theirs/g")).unwrap().uid(), 0);
    // In a mount that may not be written to.
    b.sh("mkdir ro; mount --bind m ro; mount -o remount,bind,ro ro");
    let out = b.sh("./pando chmod -R 777 ro/t 2>&1 || echo refused");
    b.sh("umount ro");
    assert!(out.contains("refused") && out.contains("Read-only"), "{out}");
    assert_eq!(mode("m/t/theirs/g"), 0o644);
    // A snapshot.
    b.ok(&["snapshot", "create", "m/t", "kept"]);
    let out = b.sh("./pando chmod -R 777 m/t/.snapshots/kept 2>&1 || echo refused");
    assert!(out.contains("refused"), "{out}");
    assert_eq!(mode("m/t/.snapshots/kept/theirs/g"), 0o644);
    // Elsewhere.
    b.sh("mkdir -p h/d; touch h/d/f; ./pando chmod -R u=rwx,go= h");
    assert_eq!((mode("h"), mode("h/d/f")), (0o700, 0o700));
}

/// As with coreutils: `chmod` changes a directory before what is in it, `chown` after that.
#[test]
fn a_directory_that_may_not_be_read_keeps_its_owner() {
    let Some(b) = Bench::shared("test") else { return };
    b.sh("mkdir m/a m/h; chmod 755 m m/a m/h");
    let make = "rm -rf t; mkdir -p t/shut t/in/shut t/deep/er; touch t/shut/f t/in/f t/deep/er/f
        chown -R 1702:1702 t; chmod 300 t/shut t/in/shut; chmod 700 t/deep t/deep/er";
    let show = "find t | sort | xargs stat -c '%n %u %g %a'";
    let user = "setpriv --reuid 1702 --regid 1702 --groups 1702,1703";
    // A user who may give files away loses a directory with the right to enter it.
    let giver = "setpriv --reuid 1702 --regid 1702 --clear-groups --inh-caps +chown --ambient-caps +chown";
    for (who, args) in [
        (user, "chown -R :1703 t"),
        (user, "chown -R :1703 t/shut"),
        (user, "chown -R :1703 t/in t/deep"),
        (user, "chmod -R g+w t"),
        (giver, "chown -R 1704 t"),
        ("", "chown -R 1704:1703 t"),
    ] {
        let run = |dir: &str, program: &str| {
            b.sh(&format!("cd m/{dir}; {make}; {who} {program}{args} 2>&1 || echo refused; {show}"))
        };
        let (own, theirs) = (run("a", "../../pando "), run("h", ""));
        let said = |text: &str| text.matches("cannot read directory").count();
        assert_eq!(said(&own), said(&theirs), "{who} {args}: {own}{theirs}");
        let state =
            |text: &str| text.lines().filter(|l| !l.contains(": ")).map(String::from).collect::<Vec<_>>();
        assert_eq!(state(&own), state(&theirs), "{who} {args}: {own}");
    }
    assert!(
        b.sh(&format!("cd m/a; {make}; {user} ../../pando chown -R :1703 t 2>&1 || {show}"))
            .contains("t/shut 1702 1702 300")
    );
}

#[test]
fn in_an_image_that_is_not_mounted() {
    let b = Bench::new();
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    b.sh("mkdir -p s/d; echo x > s/d/f; ln -s f s/d/l; chmod -R 700 s");
    b.ok(&["import", "s", "a.img:/t"]);
    b.ok(&["clone", "a.img:/t", "a.img:/u"]);
    b.ok(&["chmod", "-R", "a+rX", "a.img:/t"]);
    b.ok(&["chown", "-R", "5:6", "a.img:/t/d"]);
    b.ok(&["touch", "-R", "-m", "-d", "@99", "a.img:/u"]);
    b.ok(&["chmod", "600", "a.img:/u/d/f"]);
    let list = b.ok(&["ls", "-l", "a.img:/t/d"]) + &b.ok(&["ls", "-l", "a.img:/u/d"]);
    let f: Vec<&str> = list.lines().filter(|line| line.ends_with(" f") && !line.contains("->")).collect();
    assert!(f[0].starts_with("-rwxr-xr-x") && f[1].starts_with("-rw-------"), "{list}");
    assert!(f[1].contains("1970-01-01"), "{list}");
    b.fails(&["chown", "-R", "5", "a.img:/none"], 1, "no such file");
    // What fails does not keep the rest from being done.
    b.fails(&["chmod", "640", "a.img:/none", "a.img:/u/d/f"], 1, "a.img:/none");
    assert!(b.ok(&["ls", "-l", "a.img:/u/d"]).contains("-rw-r-----"));
    b.ok(&["check", "a.img"]);
}

#[test]
fn a_walk_goes_deeper_than_a_program_has_descriptors() {
    let b = Bench::new();
    let path = "d/".repeat(300);
    b.sh(&format!("mkdir -p {path}; touch {path}f"));
    b.sh(&format!("ulimit -Sn 200; {} chmod -R 700 d", env!("CARGO_BIN_EXE_pando")));
    assert_eq!(symlink_metadata(b.path(&path).join("f")).unwrap().mode() & 0o7777, 0o700);
}
