//! What `cp -a`, `tar` and `rsync` bring in and out again is the same, also after a remount.

use super::{
    bed::{Bed, has, text},
    random::Random,
    trees::{inodes, odd, same},
};
use std::process::Command;

#[test]
fn copies_in_and_out_are_identical_after_a_remount() {
    let Some(bed) = Bed::new(&["--size", "2G"], &[]) else { return };
    let mut r = Random::seeded("identity");
    let source = bed.root.join("source");
    odd(&source, &mut r);
    bed.sh("cp -a source mnt/cp");
    let mut ways = vec!["cp"];
    if has("tar") {
        bed.sh("mkdir mnt/tar; tar --format=pax -C source -cf t.tar . 2>/dev/null; tar -C mnt/tar -xpf t.tar 2>/dev/null");
        ways.push("tar");
    }
    if has("rsync") {
        bed.sh("rsync -a source/ mnt/rsync/");
        ways.push("rsync");
    }
    for way in &ways {
        assert!(same(&source, &bed.mnt.join(way), true) > 600);
    }
    let before = inodes(&bed.mnt);
    bed.remount();
    assert_eq!(before, inodes(&bed.mnt), "inode numbers change over a remount");
    std::fs::create_dir(bed.root.join("out")).unwrap();
    for way in &ways {
        same(&source, &bed.mnt.join(way), true);
        match *way {
            "cp" => bed.sh("cp -a mnt/cp out/cp"),
            "tar" => bed.sh(
                "mkdir out/tar; tar --format=pax -C mnt/tar -cf t.tar . 2>/dev/null; tar -C out/tar -xpf t.tar 2>/dev/null",
            ),
            _ => bed.sh("rsync -a mnt/rsync/ out/rsync/"),
        };
        same(&source, &bed.root.join("out").join(way), true);
    }
    bed.umount();
    bed.check();
}

/// Hard links cannot be made yet. Whoever copies some must be told so, and lose nothing else.
#[test]
fn copying_hard_links_fails_aloud_and_keeps_the_rest() {
    let Some(bed) = Bed::new(&["--size", "256M"], &[]) else { return };
    bed.sh("mkdir source; echo linked > source/a; ln source/a source/b; echo alone > source/c");
    let run = |program: &str, args: &[&str]| {
        Command::new(program).args(args).current_dir(&bed.root).output().unwrap()
    };
    let copied = run("cp", &["-a", "source", "mnt/cp"]);
    let refused = "Operation not permitted";
    assert!(!copied.status.success() && text(&copied.stderr).contains(refused), "{copied:?}");
    assert_eq!(bed.sh("cat mnt/cp/c; cat mnt/cp/[ab]"), "alone\nlinked\n");
    if has("rsync") {
        let copied = run("rsync", &["-aH", "source/", "mnt/rsync/"]);
        assert!(!copied.status.success() && text(&copied.stderr).contains(refused), "{copied:?}");
        assert_eq!(bed.sh("cat mnt/rsync/c; cat mnt/rsync/[ab]"), "alone\nlinked\n");
        // Without asking for links, each name becomes a file.
        bed.sh("rsync -a source/ mnt/files/");
    } else {
        bed.sh("cp -r source mnt/files");
    }
    assert_eq!(bed.sh("cat mnt/files/*"), "linked\nlinked\nalone\n");
    bed.umount();
    bed.check();
}
