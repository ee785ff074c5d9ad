//! Commands on a mounted image, and what ordinary programs make of it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::common::{Bench, has, same};
use pando_fs::NewSnapshot;
use pando_fuse::asked::Asked;

#[test]
fn ordinary_programs_copy_trees_in_and_they_last() {
    let b = mounted!();
    let tree = b.tree("t");
    b.sh("cp -a t m/cp");
    b.sh("mkdir m/tar; tar -C t --format=pax -cf - . | tar -C m/tar -xpf - ; touch -r t m/tar");
    let rsync = has("rsync");
    if rsync {
        b.sh("rsync -aH t/ m/rsync");
    }
    b.sh(
        "tar -C m/cp --format=pax -cf back.tar .; mkdir back; tar -C back -xpf back.tar; touch -r m/cp back",
    );
    same(&tree, b.path("back"));
    for _ in 0..2 {
        same(&tree, b.path("m/cp"));
        same(&tree, b.path("m/tar"));
        if rsync {
            same(&tree, b.path("m/rsync"));
        }
        b.remount();
    }
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn a_clone_is_a_copy_and_stays_one() {
    let b = mounted!();
    let tree = b.tree("t");
    b.sh("cp -a t m/original");
    b.ok(&["clone", "m/original", "m/clone"]);
    b.ok(&["clone", "m/clone", "m/original/../second"]);
    same(&tree, b.path("m/clone"));
    // Edits of one are not edits of another.
    fs::write(b.path("m/clone/src/f1"), "edited").unwrap();
    fs::remove_file(b.path("m/original/src/f5")).unwrap();
    fs::rename(b.path("m/second/src/deep"), b.path("m/second/moved")).unwrap();
    b.ok(&["clone", "m/second", "m/third"]);
    b.ok(&["rm", "-r", "m/second"]);
    for _ in 0..2 {
        assert_eq!(fs::read(b.path("m/original/src/f1")).unwrap(), b"file 1\n");
        assert_eq!(fs::read(b.path("m/clone/src/f1")).unwrap(), b"edited");
        assert_eq!(fs::read(b.path("m/clone/src/f5")).unwrap(), b"file 5\n");
        assert!(!b.path("m/original/src/f5").exists());
        assert!(!b.path("m/second").exists());
        assert!(
            fs::read(b.path("m/third/moved/large")).unwrap()
                == fs::read(tree.join("src/deep/large")).unwrap()
        );
        b.remount();
    }
    // A single file, and one that is a link.
    b.ok(&["clone", "m/clone/src/f2", "m/f2"]);
    assert_eq!(fs::metadata(b.path("m/f2")).unwrap().mode() & 0o7777, 0o4711);
    b.ok(&["clone", "m/clone/link", "m/link2"]);
    assert_eq!(fs::read_link(b.path("m/link2")).unwrap(), Path::new("src/f1"));
    let stats = b.json(&["stats", "--json", "m"]);
    assert!(stats["clones"]["count"].as_u64().unwrap() >= 2);
    let histogram = stats["clones"]["latency"].as_array().unwrap();
    assert_eq!(histogram.iter().map(|x| x["count"].as_u64().unwrap()).sum::<u64>(), 2);
}

#[test]
fn inode_numbers_differ_between_clones_and_last() {
    let b = mounted!();
    b.tree("t");
    b.sh("cp -a t m/original");
    b.ok(&["clone", "m/original", "m/clone"]);
    let numbers = || -> BTreeMap<String, u64> {
        let out = b.sh("cd m; find . -printf '%i %p\\0'");
        out.split_terminator('\0')
            .map(|l| l.split_once(' ').unwrap())
            .map(|(ino, path)| (path.to_owned(), ino.parse().unwrap()))
            .collect()
    };
    let before = numbers();
    let mut all: Vec<u64> = before.values().copied().collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), before.len(), "two files share a number");
    b.remount();
    assert_eq!(numbers(), before);
}

#[test]
fn clones_that_make_no_sense_say_why() {
    let b = mounted!();
    b.fails(&["rm", "-r", "m"], 1, "m: is the root of a mounted file system");
    b.sh("mkdir -p m/d/e host; echo x > m/f; echo y > m/g");
    b.fails(&["clone", "m/d/e", "m/d", "--replace"], 1, "inside");
    b.fails(&["clone", "m/f", "m/g"], 1, "--replace");
    b.fails(&["clone", "m/none", "m/x"], 1, "m/none");
    b.fails(&["clone", "m/f", "m/none/x"], 1, "m/none");
    b.fails(&["clone", "m/f", "host/x"], 1, "one mounted");
    b.fails(&["clone", "host", "host2"], 1, "not in a mounted Pando");
    b.fails(&["clone", "m", "m/x"], 1, "root");
    b.ok(&["clone", "--replace", "m/f", "m/g"]);
    assert_eq!(fs::read(b.path("m/g")).unwrap(), b"x\n");
    // Into itself, without what is not wanted.
    b.sh("mkdir m/d/w; echo z > m/d/e/z");
    b.ok(&["clone", "m/d", "m/d/w/1", "--exclude", "w"]);
    b.ok(&["clone", "m/d", "m/d/w/2", "--exclude", "w", "--exclude", "e/z"]);
    b.sh("test -f m/d/w/1/e/z -a ! -e m/d/w/1/w -a -d m/d/w/2/e -a ! -e m/d/w/2/e/z && rm -r m/d/w m/d/e/z");
    b.fails(&["clone", "m/d", "m/x", "--exclude", "../f"], 1, "not a path inside");
    // From inside, by relative paths.
    let mut clone = b.command(&["clone", ".", "../d2"]);
    assert!(clone.current_dir(b.path("m/d")).status().unwrap().success());
    assert!(b.path("m/d2/e").is_dir());
}

#[test]
fn clones_work_through_bind_mounts_and_unreadable_directories() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can make bind mounts");
        return;
    }
    let b = mounted!();
    b.sh("mkdir -p m/a/b bound; echo x > m/a/b/f; mount --bind m/a bound");
    b.ok(&["clone", "bound/b", "bound/c"]);
    assert_eq!(fs::read(b.path("m/a/c/f")).unwrap(), b"x\n");
    b.ok(&["clone", "m/a/c", "m/a/d"]);
    assert_eq!(fs::read(b.path("bound/d/f")).unwrap(), b"x\n");
    b.sh("umount bound");
}

/// What is listed is where the caller finds it: through the mount point that was named, or another one, or in the image.
#[test]
fn paths_that_are_listed_are_there_through_bind_mounts_too() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can make bind mounts");
        return;
    }
    let b = mounted!();
    b.sh("mkdir -p m/a/b m/out bound; echo x > m/a/b/f; mount --bind m/a bound");
    b.ok(&["quota", "set", "m/a/b", "1M"]);
    b.ok(&["snapshot", "policy", "m/a/b", "--every", "1h", "--keep-hourly", "2"]);
    b.ok(&["fork", "m/a/b", "m/a/fork"]);
    b.ok(&["fork", "m/a/b", "m/out/fork"]);
    b.ok(&["fork", "m/out", "m/a/of-out"]);
    let at = |name: &str| b.path(name).canonicalize().unwrap().display().to_string();
    let listed = |args: &[&str]| b.ok(args).lines().map(str::to_owned).collect::<Vec<_>>();
    let quotas = listed(&["quota", "list", "-H", "bound"]);
    assert!(quotas[0].starts_with(&format!("{}\t", at("bound/b"))), "{quotas:?}");
    let policies = listed(&["snapshot", "policies", "-H", "bound"]).join("\n");
    assert!(policies.contains(&at("bound/b")), "{policies}");
    let forks = listed(&["forks", "-H", "bound/b"]).join("\n");
    for path in ["bound/fork", "bound/b", "m/out/fork"] {
        assert!(forks.contains(&at(path)), "{path}: {forks}");
    }
    // Into what another mount point shows, and what none shows.
    b.sh("echo y > bound/of-out/g");
    b.ok(&["merge", "bound/of-out"]);
    assert_eq!(fs::read(b.path("m/out/g")).unwrap(), b"y\n");
    let pando = env!("CARGO_BIN_EXE_pando");
    let alone = |script: &str| b.sh(&format!("unshare -m sh -c 'umount -l m; {script}' 2>&1"));
    let forks = alone(&format!("{pando} forks -H bound/b"));
    assert!(forks.contains("a.img:/out/fork") && forks.contains(&at("bound/fork")), "{forks}");
    let refused = alone(&format!("echo z > bound/of-out/g; {pando} merge bound/of-out || echo refused"));
    assert!(
        refused.contains("a.img:/out, which no mount point shows") && refused.contains("refused"),
        "{refused}"
    );
    b.sh("umount bound");
}

/// There was no such option, which every script has.
#[test]
fn rm_with_force_is_content_with_what_is_not_there() {
    let b = mounted!();
    b.sh("mkdir m/d; echo f > m/d/f; ln -s nowhere m/l");
    b.fails(&["rm", "m/none"], 1, "No such file");
    b.fails(&["rm"], 2, "PATH");
    b.ok(&["rm", "-f"]);
    b.ok(&["rm", "-rf", "m/none", "none", "m/none/x", "m/d/f/x", "m/d", "m/l"]);
    assert_eq!(b.sh("ls -A m"), "");
    b.sh("mkdir m/d");
    b.fails(&["rm", "-f", "m/d"], 1, "give -r");
    b.fails(&["rm", "-rf", "m/none", "m/.."], 1, "ends in . or ..");
    b.ok(&["snapshot", "create", "m/d", "s"]);
    b.fails(&["rm", "-rf", "m/d/.snapshots/s"], 1, "pando snapshot delete");
    b.umount();
    b.fails(&["rm", "a.img:/none"], 1, "none");
    b.ok(&["rm", "-rf", "a.img:/none", "a.img:/d/x/y", "a.img:/d"]);
    assert_eq!(b.ok(&["ls", "a.img:/"]), "");
}

#[test]
fn mv_and_rm_work_on_whole_trees() {
    let b = mounted!();
    b.tree("t");
    b.sh("cp -a t m/a; mkdir -p m/full/x host");
    b.ok(&["mv", "m/a", "m/b"]);
    same(b.path("t"), b.path("m/b"));
    b.fails(&["mv", "m/b", "m/full"], 1, "--replace");
    b.fails(&["mv", "--replace", "m/b", "m/full"], 1, "rm -r");
    b.fails(&["mv", "m/b", "m/b/x"], 1, "inside");
    b.fails(&["mv", "m/b", "host/x"], 1, "one mounted");
    b.fails(&["mv", "m/none", "m/x"], 1, "m/none");
    b.fails(&["rm", "m/b"], 1, "-r");
    // What a link points to does not go with the link, and what has no name of its own is not removed.
    b.sh("mkdir m/k m/k/in; ln -s k m/lk");
    b.fails(&["rm", "-r", "m/lk/"], 1, "is a symbolic link, not a directory");
    for dots in ["m/k/.", "m/lk/.", "m/k/in/..", "m/lk/./"] {
        b.fails(&["rm", "-r", dots], 1, "ends in . or ..");
    }
    assert_eq!(b.sh("ls -d m/k/in m/lk"), "m/k/in\nm/lk\n");
    b.ok(&["rm", "-r", "m/lk", "m/k/"]);
    // The directory of snapshots is no tree: whoever asked for a clone of it waited for ever, and then everybody.
    b.sh("mkdir m/snapped; echo a > m/snapped/a");
    b.ok(&["snapshot", "create", "m/snapped", "s"]);
    for (command, what) in [("clone", "one of the snapshots"), ("fork", "snapshot")] {
        b.fails(&[command, "m/snapped/.snapshots", "m/all"], 1, what);
    }
    b.fails(&["diff", "m/snapped/.snapshots", "m/snapped"], 1, "one of the snapshots");
    assert!(
        b.sh("mkdir m/more; mv -T m/more m/snapped/.snapshots 2>&1 || true").contains("xists"),
        "it was hidden"
    );
    b.sh("rmdir m/more; cat m/snapped/.snapshots/s/a");
    b.ok(&["rm", "-r", "m/snapped"]);
    b.fails(&["rm", "-r", "m/none"], 1, "m/none");
    b.ok(&["rm", "-r", "m/b", "m/full"]);
    b.sh("echo x > m/f; ln -s f m/l");
    b.ok(&["rm", "m/l"]);
    assert!(b.path("m/f").exists() && !b.path("m/l").is_symlink());
    b.ok(&["rm", "m/f"]);
    assert_eq!(fs::read_dir(b.path("m")).unwrap().count(), 0);
}

#[test]
fn one_image_is_mounted_once() {
    let b = mounted!();
    b.sh("mkdir other");
    b.fails(&["mount", "a.img", "other"], 4, "is mounted on");
    b.fails(&["check", "a.img"], 4, "is mounted on");
    b.fails(&["mkfs", "--force", "a.img"], 4, "is mounted on");
    b.fails(&["import", "other", "a.img:/x"], 4, "is mounted on");
    b.sh("ln -s a.img alias.img");
    b.fails(&["mount", "alias.img", "other"], 4, "is mounted on");
    fs::write(b.path("m/f"), "x").unwrap();
    let line = fs::read_to_string("/proc/mounts").unwrap();
    let line = line.lines().find(|l| l.contains(b.path("m").to_str().unwrap())).unwrap().to_owned();
    assert!(line.starts_with(b.path("a.img").to_str().unwrap()) && line.contains("fuse.pando"), "{line}");
}

/// With a small cache an edit that takes in many clones is full, and nothing was lowered behind it: 200 levels after 380
/// rounds, and then each rename failed (EIO).
#[test]
fn renames_of_directories_between_snapshots_leave_the_store_low() {
    let b = mounted!();
    b.umount();
    b.ok(&["mkfs", "--force", "--size", "1G", "a.img"]);
    b.ok(&["mount", "--cache", "64M", "--log-file", "log", "a.img", "m"]);
    let top = b.path("m/t");
    fs::create_dir(&top).unwrap();
    let dirs: Vec<_> = [top.clone()].into_iter().chain((0..4).map(|i| top.join(format!("d{i}")))).collect();
    let files = dirs.iter().flat_map(|dir| (0..5).map(move |i| dir.join(format!("n{i}"))));
    let names: Vec<_> = files.chain(dirs.iter().skip(1).cloned()).collect();
    let mut state = 88172645463325252u64;
    let mut random = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % n
    };
    let (mut renamed, mut most) = (0, 0);
    for round in 0..300 {
        for _ in 0..20 {
            let (from, to) = (&names[random(names.len())], &names[random(names.len())]);
            match random(4) {
                0 => {
                    let opened = fs::OpenOptions::new().write(true).create(true).truncate(false).open(from);
                    let bytes = vec![b'A'; random(3000)];
                    // What has become a directory, or is in one that is not there, is passed over.
                    let _ = opened.map(|file| file.write_all_at(&bytes, random(50_000) as u64).unwrap());
                }
                1 => _ = fs::create_dir(&dirs[random(dirs.len())]),
                _ => match fs::rename(from, to) {
                    Ok(()) => renamed += 1,
                    Err(e) => assert_ne!(e.raw_os_error(), Some(libc::EIO), "round {round}: {e}"),
                },
            }
        }
        pando_fuse::tool::snapshot(&top, Asked::Create(NewSnapshot::default())).unwrap();
        if round % 20 == 19 {
            let stats = b.json(&["stats", "--json", "m"]);
            most = most.max(stats["nodes"]["by_height"].as_array().unwrap().len());
        }
    }
    println!("{renamed} renames, {most} levels at most");
    assert!(renamed > 500 && most <= 30, "{renamed} renames, {most} levels");
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn every_way_to_unmount_leaves_a_clean_image_that_can_be_mounted_at_once() {
    let b = mounted!();
    let mut ways = vec!["umount m"];
    if has("fusermount3") {
        ways.push("fusermount3 -u m");
    }
    for (i, way) in ways.iter().cycle().take(6).enumerate() {
        fs::write(b.path(&format!("m/{i}")), vec![b'x'; 1 << 20]).unwrap();
        // Not by `Bench::umount`: the next mount must wait for the daemon by itself.
        let begin = Instant::now();
        loop {
            let done =
                Command::new("sh").args(["-c", way]).current_dir(b.path("")).stderr(Stdio::null()).status();
            if done.unwrap().success() {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "{way}");
        }
        b.mount();
        assert_eq!(fs::read_dir(b.path("m")).unwrap().count(), i + 1);
    }
    for signal in ["TERM", "INT", "HUP"] {
        let pid = b.daemon();
        b.sh(&format!("kill -{signal} {pid}; while grep -q \" $PWD/m \" /proc/mounts; do sleep 0.01; done"));
        b.mount();
    }
    b.umount();
    b.fails(&["umount", "m"], 1, "no file system is mounted");
    b.ok(&["check", "a.img"]);
}

/// As under nohup(1): the daemon is not in the session of the terminal any more when it is there, and can be told to end.
#[test]
fn what_its_caller_ignores_ends_a_daemon_all_the_same() {
    let b = mounted!();
    for signal in ["INT", "HUP"] {
        b.umount();
        let program = b.command(&[]).get_program().to_str().unwrap().to_owned();
        b.sh(&format!("trap '' {signal}; {program} mount a.img m"));
        let pid = b.daemon();
        b.sh(&format!("kill -{signal} {pid}"));
        b.sh(&format!("n=0; while [ -e /proc/{pid} ]; do n=$((n+1)); [ $n -lt 2000 ]; sleep 0.01; done"));
        b.mount();
    }
}

/// The daemon does the work of all programs that use the mount, and gets more of busy CPUs than one of them.
#[test]
fn the_session_of_a_daemon_has_the_nice_value_that_was_asked_for() {
    let b = mounted!();
    let nice = || {
        let group = fs::read_to_string(format!("/proc/{}/autogroup", b.daemon())).ok()?;
        Some(group.trim_end().rsplit_once(' ')?.1.parse::<i32>().unwrap())
    };
    if nice().is_none() || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: no autogroups in this kernel, or not root");
        return;
    }
    let own = fs::read_to_string("/proc/self/autogroup").unwrap();
    let first = nice();
    b.umount();
    if !b.run(&["mount", "-o", "session_nice=-1", "a.img", "m"]).status.success() {
        eprintln!("SKIPPED: this root may not ask for more");
        return;
    }
    assert_eq!((first, nice()), (Some(-10), Some(-1)));
    for (option, want) in [("session_nice=0", 0), ("session_nice=-3", -3), ("session_nice=19", 19)] {
        b.umount();
        b.ok(&["mount", "-o", option, "a.img", "m"]);
        assert_eq!(nice(), Some(want));
    }
    b.umount();
    for wrong in ["session_nice=20", "session_nice=-21", "session_nice=", "session_nice=much"] {
        b.fails(&["mount", "-o", wrong, "a.img", "m"], 2, "a whole number from -20 to 19");
    }
    b.fails(
        &["mount", "-f", "-o", "session_nice=1", "a.img", "m"],
        1,
        "other programs belong to this session",
    );
    // As a service is started.
    let mut service = Command::new("setsid");
    service.arg(b.command(&[]).get_program()).args(["mount", "-f", "a.img", "m"]).current_dir(b.path(""));
    let mut service = service.spawn().unwrap();
    b.sh("n=0; until grep -q \" $PWD/m \" /proc/mounts; do n=$((n+1)); [ $n -lt 2000 ]; sleep 0.01; done");
    assert_eq!((nice(), b.daemon()), (Some(-10), service.id()));
    b.umount();
    assert!(service.wait().unwrap().success());
    assert_eq!(fs::read_to_string("/proc/self/autogroup").unwrap(), own, "the session of the caller");
}

#[test]
fn a_busy_mount_is_not_unmounted_unless_asked_for_force() {
    let b = mounted!();
    let file = fs::File::create(b.path("m/f")).unwrap();
    b.fails(&["umount", "m"], 4, "in use");
    assert!(b.path("m/f").exists());
    let pid = b.daemon();
    // A signal ends it all the same, with everything that was written.
    std::io::Write::write_all(&mut &file, b"kept").unwrap();
    b.sh(&format!("kill {pid}; while [ -e /proc/{pid} ]; do sleep 0.01; done"));
    drop(file);
    b.mount();
    assert_eq!(fs::read(b.path("m/f")).unwrap(), b"kept");
}

#[test]
fn a_killed_daemon_leaves_what_was_synced_and_can_be_unmounted() {
    let b = mounted!();
    fs::write(b.path("m/synced"), "here").unwrap();
    b.ok(&["clone", "m/synced", "m/clone"]);
    b.ok(&["sync", "m"]);
    fs::write(b.path("m/later"), "perhaps").unwrap();
    let pid = b.daemon();
    b.sh(&format!("kill -9 {pid}; while [ -e /proc/{pid} ]; do sleep 0.01; done"));
    let gone = fs::read(b.path("m/synced")).unwrap_err().raw_os_error();
    assert!(matches!(gone, Some(libc::ENOTCONN | libc::ECONNABORTED)), "{gone:?}");
    b.umount();
    b.mount();
    assert_eq!(fs::read(b.path("m/synced")).unwrap(), b"here");
    assert_eq!(fs::read(b.path("m/clone")).unwrap(), b"here");
    if let Ok(later) = fs::read(b.path("m/later")) {
        assert!(b"perhaps".starts_with(&later[..]));
    }
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn fsync_is_a_full_sync() {
    let b = mounted!();
    b.sh("echo 1 > m/a; echo 2 > m/b");
    fs::File::open(b.path("m")).unwrap().sync_all().unwrap();
    let pid = b.daemon();
    b.sh(&format!("kill -9 {pid}; while [ -e /proc/{pid} ]; do sleep 0.01; done"));
    b.umount();
    b.mount();
    assert_eq!(
        (fs::read(b.path("m/a")).unwrap(), fs::read(b.path("m/b")).unwrap()),
        (b"1\n".into(), b"2\n".into())
    );
}

#[test]
fn stats_and_grow_work_mounted() {
    let b = mounted!();
    let stats = b.json(&["stats", "--json", "m"]);
    assert_eq!((stats["version"].as_u64(), stats["mounted"].as_bool()), (Some(1), Some(true)));
    // By the image's name it is the same file system.
    assert_eq!(b.json(&["stats", "--json", "a.img"])["pid"], stats["pid"]);
    assert!(b.ok(&["stats", "m"]).contains("device written"));
    b.ok(&["grow", "--size", "512M", "m"]);
    assert_eq!(fs::metadata(b.path("a.img")).unwrap().len(), 512 << 20);
    assert_eq!(b.json(&["stats", "--json", "m"])["size"]["device"].as_u64(), Some(512 << 20));
    b.fails(&["grow", "--size", "64M", "m"], 1, "grow m");
    b.remount();
    assert_eq!(b.json(&["stats", "--json", "m"])["size"]["device"].as_u64(), Some(512 << 20));
}

#[test]
fn mounts_that_cannot_be_say_why() {
    if !crate::common::have_fuse() {
        return;
    }
    let b = Bench::new();
    b.sh("mkdir m; echo text > f; truncate -s 64M zeros");
    b.fails(&["mount", "none.img", "m"], 1, "none.img");
    b.fails(&["mount", "f", "m"], 1, "mkfs");
    b.fails(&["mount", "zeros", "m"], 1, "mkfs");
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    b.fails(&["mount", "a.img", "none"], 1, "none");
    b.fails(&["mount", "a.img", "f"], 1, "directory");
    b.fails(&["mount", "-o", "frobnicate", "a.img", "m"], 2, "frobnicate");
    assert!(!fs::read_to_string("/proc/mounts").unwrap().contains(b.path("m").to_str().unwrap()));
    b.ok(&["mount", "-o", "ro,noatime", "a.img", "m"]);
    assert_eq!(fs::write(b.path("m/x"), "").unwrap_err().raw_os_error(), Some(libc::EROFS));
    b.umount();
}

#[test]
fn ordinary_users_mount_too() {
    use std::os::unix::process::CommandExt;
    if !crate::common::have_fuse() || !has("fusermount3") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: the other tests have mounted as an ordinary user already");
        return;
    }
    let b = Bench::new();
    // The program must be where an ordinary user can reach it.
    b.sh(&format!(
        "chmod 755 .; mkdir home; cp {} home/pando; chown -R 65534:65534 home",
        env!("CARGO_BIN_EXE_pando")
    ));
    let run = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", script]).current_dir(b.path("home")).uid(65_534).gid(65_534);
        let out = command.output().unwrap();
        assert!(out.status.success(), "{script}: {}", crate::common::text(&out.stderr));
        crate::common::text(&out.stdout)
    };
    let mode = fs::metadata("/dev/fuse").unwrap().mode();
    if mode & 0o006 != 0o006 {
        eprintln!("NOTE: /dev/fuse has mode {:o}: ordinary users cannot mount here at all", mode & 0o777);
        run("./pando mkfs --size 64M a.img; mkdir m; ./pando mount a.img m || test $? = 5");
        // Then `try` goes through the library.
        run("mkdir t w; echo x > t/f; ./pando try --work-dir w t | grep -q 'opened by the library'");
        return;
    }
    run("./pando mkfs --size 64M a.img; mkdir m; ./pando mount -o noatime a.img m");
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let line = mounts.lines().find(|l| l.contains(b.path("home/m").to_str().unwrap())).unwrap();
    assert!(line.starts_with(b.path("home/a.img").to_str().unwrap()), "{line}");
    assert!(line.contains(" fuse.pando ") && line.contains("user_id=65534"), "{line}");
    run("mkdir m/d; echo x > m/d/f; ./pando clone m/d m/e; cat m/e/f; ./pando sync m; ./pando umount m");
    run("./pando mount a.img m; test \"$(cat m/e/f)\" = x; fusermount3 -u m; ./pando check a.img");
}

#[test]
fn what_is_mounted_over_an_ended_mount_stays() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can mount over a mount");
        return;
    }
    let b = mounted!();
    let pid = b.daemon();
    b.sh(&format!(
        "kill -STOP {pid}; umount -l m; mount -t tmpfs none m; touch m/mine; kill -CONT {pid}
         while [ -e /proc/{pid} ]; do sleep 0.01; done; test -e m/mine; umount m"
    ));
    b.mount();
}

/// Waits until a process has ended.
const ENDS: &str = "
    ends() { n=0; while [ -e /proc/$1 ]; do n=$((n+1)); [ $n -lt 2000 ]; sleep 0.01; done; }
    ";

#[test]
fn a_signal_to_a_daemon_leaves_what_is_mounted_there_instead() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can mount over a mount");
        return;
    }
    let b = mounted!();
    let pid = b.daemon();
    b.sh(&format!(
        "{ENDS} echo kept > m/f; exec 3>> m/f; umount -l m; mount -t tmpfs none m; echo mine > m/mine
         exec 4< m/mine; kill -TERM {pid}; ends {pid}; test $(cat m/mine) = mine; exec 4<&-; umount m"
    ));
    b.mount();
    assert_eq!(fs::read(b.path("m/f")).unwrap(), b"kept\n", "what was written had been stored");
}

#[test]
fn a_signal_to_a_daemon_ends_its_mount_where_that_was_moved() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can move a mount");
        return;
    }
    let b = mounted!();
    let pid = b.daemon();
    // Only what lies in a mount that is shared with no other namespace can be moved.
    b.sh(&format!(
        "{ENDS} mkdir p; mount -t tmpfs --make-private none p; mkdir p/from p/to; mount --bind m p/from; umount m
         mount --move p/from p/to; mount -t tmpfs none m; echo mine > m/mine; echo kept > p/to/f
         kill -TERM {pid}; ends {pid}; test $(cat m/mine) = mine; umount m; ls p/to; umount p"
    ));
    assert_eq!(b.ok(&["cat", "a.img:/f"]), "kept\n");
    b.mount();
}

#[test]
fn a_signal_to_the_daemon_of_a_covered_mount_leaves_the_mount_above() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can mount over a mount");
        return;
    }
    let b = mounted!();
    let pid = b.daemon();
    b.ok(&["mkfs", "--size", "64M", "b.img"]);
    b.sh("echo kept > m/f");
    b.ok(&["mount", "b.img", "m"]);
    let upper = b.daemon();
    b.sh(&format!(
        "{ENDS} exec 3> m/g; kill -TERM {pid}; ends {pid}; echo more >&3; exec 3>&-; test $(cat m/g) = more"
    ));
    assert_eq!(b.daemon(), upper);
    assert!(b.ok(&["cat", "a.img:/f"]) == "kept\n", "the lower image is free again, and whole");
    b.umount();
    b.sh("umount m");
    b.mount();
}

#[test]
fn a_foreground_mount_ends_with_its_mount() {
    if !crate::common::have_fuse() {
        return;
    }
    let b = Bench::new();
    b.sh("mkdir m");
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    let mut mount = b.command(&["mount", "--foreground", "a.img", "m"]).spawn().unwrap();
    let begin = Instant::now();
    while !fs::read_to_string("/proc/mounts").unwrap().contains(b.path("m").to_str().unwrap()) {
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::write(b.path("m/f"), "x").unwrap();
    b.umount();
    assert!(mount.wait().unwrap().success());
}

#[test]
fn du_tells_what_a_clone_shares() {
    let Some(b) = Bench::mounted() else { return };
    b.sh("mkdir m/t; for i in 1 2 3 4; do head -c 1000000 /dev/urandom > m/t/f$i; done");
    b.ok(&["sync", "m"]);
    let line = |path: &str| b.json(&["du", "--json", path])["paths"][0].clone();
    let number = |path: &str, name: &str| line(path)[name].as_u64().unwrap();
    assert!(number("m/t", "exclusive") > 3_500_000, "{}", line("m/t"));
    b.ok(&["clone", "m/t", "m/c"]);
    for path in ["m/t", "m/c"] {
        let (exclusive, shared) = (number(path, "exclusive"), number(path, "shared"));
        assert!(exclusive < 400_000 && shared > 3_500_000, "{}", line(path));
    }
    b.sh("head -c 1000000 /dev/urandom > m/c/f2");
    b.ok(&["sync", "m"]);
    assert!(number("m/c", "exclusive") > 800_000, "{}", line("m/c"));
    assert!(number("m", "visible") > 7_500_000, "{}", line("m"));
    assert!(number("m/c/f2", "visible").abs_diff(1_000_000) < 200_000, "{}", line("m/c/f2"));
    let text = b.ok(&["du", "m/t", "m/c"]);
    assert_eq!(text.lines().count(), 3, "{text}");
}
