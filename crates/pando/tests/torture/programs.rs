//! Real programs on a mount: git, cargo, SQLite, tar, programs run from it.

use super::bed::{Bed, has, ok, str};

fn bed() -> Option<Bed> {
    Bed::new(&["--size", "1G"], &[])
}

const GIT: &str = "export HOME=$PWD GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
    export GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=e GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=e
    clean() { test -z \"$(git -C $1 status --porcelain)\"; git -C $1 fsck --strict; }\n";

#[test]
fn git_works_and_survives_clones_and_a_remount() {
    let Some(bed) = bed() else { return };
    if !has("git") {
        return;
    }
    let git = |script: &str| bed.sh(&format!("{GIT}{script}"));
    git("git init -q seed; cd seed
         for d in 1 2 3 4 5; do mkdir -p d$d/sub; for f in $(seq 30); do seq $((d * f * 7)) > d$d/sub/f$f; done; done
         git add .; git commit -qm one; git rm -rq d5; git commit -qm two; git gc -q");
    git("git clone -q seed mnt/one; clean mnt/one
         cd mnt/one; for i in $(seq 40); do echo $i > n$i; git add n$i; git commit -qm $i; done
         git mv d1 e1; git commit -qm moved; git checkout -qb side; git rm -rq d2; git commit -qm side
         git checkout -q -; git merge -q side; git gc -q --prune=now");
    git("clean mnt/one; git clone -q mnt/one mnt/two; clean mnt/two");
    ok(&["clone", str(&bed.mnt.join("one")), str(&bed.mnt.join("three"))]);
    // A clone has other inode numbers, so git looks at the files again, and finds them the same.
    git("clean mnt/three; cd mnt/three; git worktree add -q ../four; cd ../four; git rm -rq d3; git commit -qm less
         cd ../three; git reset -q --hard HEAD~5; git gc -q --aggressive --prune=now");
    bed.remount();
    git("for r in one two three four; do clean mnt/$r; done; test $(ls mnt/one | wc -l) = 43");
    bed.umount();
    bed.check();
}

#[test]
fn cargo_builds_and_builds_again_in_a_clone() {
    let Some(bed) = bed() else { return };
    if !has("cargo") {
        return;
    }
    let cargo =
        "export CARGO_NET_OFFLINE=true; unset CARGO_TARGET_DIR CARGO_BUILD_TARGET_DIR RUSTFLAGS || true\n";
    let sh = |script: &str| bed.sh(&format!("{cargo}{script}"));
    sh("cd mnt; cargo new -q --vcs none hello; cd hello; cargo build -q 2>&1; cargo test -q 2>&1");
    assert_eq!(sh("mnt/hello/target/debug/hello"), "Hello, world!\n");
    ok(&["clone", str(&bed.mnt.join("hello")), str(&bed.mnt.join("bye"))]);
    assert_eq!(sh("cd mnt/bye; sed -i s/Hello/Bye/ src/main.rs; cargo run -q 2>/dev/null"), "Bye, world!\n");
    assert_eq!(sh("cd mnt/hello; cargo run -q 2>/dev/null"), "Hello, world!\n");
    bed.remount();
    assert_eq!(
        sh(
            "mnt/hello/target/debug/hello; mnt/bye/target/debug/bye 2>/dev/null || mnt/bye/target/debug/hello"
        ),
        "Hello, world!\nBye, world!\n"
    );
    bed.umount();
    bed.check();
}

const SQLITE: &str = r#"
import os, sqlite3, sys, threading
path = sys.argv[1]
for mode in ("delete", "wal", "truncate"):
    c = sqlite3.connect(path, timeout=30)
    assert c.execute("pragma journal_mode=" + mode).fetchone() == (mode,)
    c.execute("pragma mmap_size=100000000")
    c.execute("create table if not exists t(a integer primary key, b blob)")
    before = c.execute("select count(*) from t").fetchone()[0]
    c.commit()
    def work():
        d = sqlite3.connect(path, timeout=30)
        for i in range(15):
            d.execute("insert into t(b) values (randomblob(3000))")
            d.commit()
        d.close()
    threads = [threading.Thread(target=work) for _ in range(3)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert c.execute("select count(*) from t").fetchone()[0] == before + 45
    c.execute("delete from t where a % 3 = 0")
    c.commit()
    c.execute("vacuum")
    assert c.execute("pragma integrity_check").fetchone() == ("ok",)
    c.close()
"#;

const MMAP: &str = r#"
import mmap, subprocess, sys
pando, top = sys.argv[1], sys.argv[2]
f = open(top + "/mapped", "w+b")
f.truncate(1 << 20)
m = mmap.mmap(f.fileno(), 1 << 20)
m[5000:5005] = b"hello"
m.flush()
assert open(top + "/mapped", "rb").read()[4998:5007] == b"\0\0hello\0\0"
m[9000:9003] = b"xyz"
# A clone has what was written to the mapping before it, synced or not, and nothing after it.
subprocess.check_call([pando, "clone", top + "/mapped", top + "/cloned"])
m[9000:9003] = b"XYZ"
assert open(top + "/cloned", "rb").read()[8998:9005] == b"\0\0xyz\0\0"
g = open(top + "/cloned", "r+b")
n = mmap.mmap(g.fileno(), 0)
n[0:1] = b"!"
n.flush()
assert m[0:1] == b"\0"
"#;

#[test]
fn sqlite_and_mappings_work() {
    let Some(bed) = bed() else { return };
    if !has("python3") {
        return;
    }
    std::fs::write(bed.root.join("db.py"), SQLITE).unwrap();
    std::fs::write(bed.root.join("mapped.py"), MMAP).unwrap();
    if bed.sh("python3 -c 'import sqlite3' 2>/dev/null && echo yes || true") == "yes\n" {
        bed.sh("python3 db.py mnt/db");
    } else {
        eprintln!("SKIPPED a part: python3 has no sqlite3");
    }
    bed.sh(&format!("python3 mapped.py {} mnt", env!("CARGO_BIN_EXE_pando")));
    bed.remount();
    bed.sh("python3 -c 'd = open(\"mnt/mapped\", \"rb\").read(); assert d[9000:9003] == b\"XYZ\" and len(d) == 1 << 20'");
    bed.umount();
    bed.check();
}

#[test]
fn programs_run_from_a_mount_and_unusual_files_work() {
    let Some(bed) = bed() else { return };
    bed.sh("cp /bin/ls mnt/list; printf '#!/bin/sh\necho from the mount\n' > mnt/script; chmod +x mnt/script
            test \"$(mnt/script)\" = 'from the mount'; mnt/list mnt | grep -q script
            mkfifo mnt/pipe; (echo through the pipe > mnt/pipe &); test \"$(cat mnt/pipe)\" = 'through the pipe'
            seq 1000 > mnt/f; exec 3< mnt/f; rm mnt/f; test \"$(wc -l <&3)\" = 1000; exec 3<&-
            seq 10 > mnt/log; for i in $(seq 50); do echo $i >> mnt/log & done; wait; test $(wc -l < mnt/log) = 60
            flock mnt/log true; mkdir mnt/d; ! rmdir mnt 2>/dev/null || exit 1; ln -s d mnt/s; test -d mnt/s/");
    // A program that runs may be replaced, but not written to.
    bed.sh("cp /bin/sleep mnt/sleep; mnt/sleep 2 & sleep 0.2; ! sh -c 'echo x >> mnt/sleep' 2>/dev/null || exit 1
            cp /bin/sleep mnt/other; mv mnt/other mnt/sleep; mnt/sleep 0; wait");
    bed.umount();
    bed.check();
}
