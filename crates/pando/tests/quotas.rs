//! `pando quota` as a user has it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::common::text;

/// The exit code and what was said.
fn said(b: &crate::common::Bench, script: &str) -> String {
    b.sh(&format!("{{ {script}; }} 2>&1 && echo code 0 || echo code $?"))
}

#[test]
fn a_quota_is_set_told_met_and_ended() {
    let b = mounted!();
    b.sh("mkdir -p m/q/sub m/other; head -c 1000000 /dev/urandom > m/q/sub/old");
    b.fails(&["quota", "set", "m/q", "much"], 2, "is not a size");
    b.fails(&["quota", "set", "m/q/sub/old", "1M"], 1, "Not a directory");
    b.ok(&["quota", "set", "m/q", "3M"]);
    let list = b.ok(&["quota", "list", "m"]);
    assert!(list.starts_with("      USED      LIMIT  USE%  DIRECTORY\n"), "{list}");
    assert!(list.contains("3.0 MiB   32%") && list.ends_with("/m/q\n"), "{list}");
    let report = b.json(&["quota", "list", "--json", "m/q"]);
    let quota = &report["quotas"][0];
    assert_eq!((&quota["limit"], &quota["exact"]), (&(3 << 20).into(), &true.into()), "{quota}");
    assert_eq!(quota["used"], 1_000_448, "what du counts: {quota}");
    // What is left is told by df, at every place below.
    let df = |path: &str| b.sh(&format!("df -B1 --output=size,avail {path} | tail -1"));
    let sizes = df("m/q/sub/old");
    let mut sizes = sizes.split_whitespace().map(|n| n.parse::<u64>().unwrap());
    assert_eq!(sizes.next(), Some(3 << 20));
    assert!(sizes.next().unwrap().abs_diff((3 << 20) - 1_000_448) < 4096);
    assert_ne!(df("m/other").split_whitespace().next(), Some("3145728"));
    // Programs that write without more ado, those that ask for it, and copies.
    let full = "Disk quota exceeded";
    let told = said(&b, "head -c 4000000 /dev/urandom > m/q/new");
    assert!(told.contains(full) && !told.contains("code 0"), "{told}");
    b.sh("rm m/q/new; sync");
    let told = said(&b, "cp m/q/sub/old m/q/a && cp m/q/sub/old m/q/b && cp m/q/sub/old m/q/c");
    assert!(told.contains(full) && !told.contains("code 0"), "{told}");
    b.sh("rm m/q/a m/q/b m/q/c");
    b.sh("head -c 3000000 /dev/urandom > m/other/big");
    let told = said(&b, "mv m/other/big m/q/big");
    assert!(told.contains(full) && !told.contains("code 0"), "{told}");
    b.sh("test -s m/other/big");
    b.fails(&["clone", "m/other", "m/q/other"], 1, "quota");
    // Pages that the kernel keeps: a mapping is told when it is synced, as of a full disk.
    let told = said(&b, "dd if=/dev/zero of=m/q/kept bs=1M count=8 conv=notrunc,fsync oflag=append");
    assert!(!told.contains("code 0"), "{told}");
    b.sh("rm -f m/q/kept");
    // It holds over a remount, and ends.
    b.remount();
    b.sh("head -c 1000000 /dev/urandom > m/q/more");
    assert!(said(&b, "head -c 2000000 /dev/urandom > m/q/most").contains(full));
    b.ok(&["quota", "set", "m/q", "none"]);
    assert_eq!(b.ok(&["quota", "list", "-H", "m"]), "");
    b.sh("head -c 5000000 /dev/urandom > m/q/most");
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn clones_carry_quotas_and_links_stay_inside() {
    let b = mounted!();
    b.sh("mkdir -p m/q/base; head -c 1000000 /dev/urandom > m/q/base/f; ln m/q/base/f m/q/base/g");
    b.fails(&["quota", "set", "m/q", "10M"], 1, "several names");
    b.ok(&["clone", "m/q", "m/c"]);
    b.ok(&["quota", "set", "m/c", "2500K"]);
    b.ok(&["clone", "m/c", "m/d"]);
    let list = b.ok(&["quota", "list", "-H", "m"]);
    let ends = |line: &str| line.split_once("/m/").map(|(_, end)| end.to_owned()).unwrap();
    let lines: Vec<String> = list.lines().map(ends).collect();
    assert_eq!(lines, ["c\t1000448\t2560000\texact", "d\t1000448\t2560000\texact"]);
    b.sh("head -c 1000000 /dev/urandom > m/d/more");
    assert!(said(&b, "head -c 1000000 /dev/urandom > m/d/most").contains("quota"));
    b.sh("head -c 1000000 /dev/urandom > m/c/more");
    assert!(said(&b, "ln m/c/more m/outside").contains("cross-device"));
    b.sh("ln m/c/more m/c/again");
    // A copy inside of it counts as much as what it is a copy of.
    b.sh("rm m/d/more m/d/most; mkdir m/d/part; head -c 1000000 /dev/urandom > m/d/part/f");
    b.fails(&["clone", "m/d/part", "m/d/copy"], 1, "quota");
    b.sh("truncate -s 400K m/d/part/f");
    b.ok(&["clone", "m/d/part", "m/d/copy"]);
    assert!(b.ok(&["quota", "list", "-H", "m/d"]).contains("\t1819648\t"), "base and twice the part");
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn only_root_sets_quotas() {
    let Some(b) = crate::common::Bench::shared("quotas") else { return };
    b.sh("mkdir m/q; chown 12345:12345 m/q");
    let pando = "./pando";
    for args in ["quota set m/q 1M", "quota set m/q none", "quota list m/q"] {
        let told = said(&b, &format!("setpriv --reuid 12345 --regid 12345 --clear-groups {pando} {args}"));
        assert!(told.contains("only root") && !told.contains("code 0"), "{args}: {told}");
    }
    b.umount();
}

/// What the kernel shows and the store has no room for is in no copy, and that is said.
#[test]
fn copies_say_what_did_not_fit() {
    let b = mounted!();
    b.sh("mkdir -p m/q/in m/other; echo x > m/q/f; echo y > m/other/f");
    b.ok(&["quota", "set", "m/q", "3M"]);
    // Open for both, so the kernel keeps it.
    b.sh("head -c 6000000 /dev/urandom 1<> m/q/in/large 2> /dev/null || true");
    b.fails(&["sync", "m"], 1, "data of 1 file");
    let said = |args: &[&str]| {
        let out = b.run(args);
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
        text(&out.stderr)
    };
    let warning = |src: &str| {
        format!(
            "pando: warning: data of 1 file below {src} did not fit in the store and is not in the copy\n"
        )
    };
    assert_eq!(said(&["snapshot", "create", "m/q", "s"]), warning("m/q"));
    assert_eq!(said(&["clone", "m/q/in", "m/copy"]), warning("m/q/in"));
    assert_eq!(said(&["clone", "m/q/in/large", "m/large"]), warning("m/q/in/large"));
    assert_eq!(said(&["fork", "m/q", "m/fork"]), warning("m/q"));
    // Nor does a difference have it, or a stream.
    let of = |trees: &str| warning(trees).replace("not in the copy", "in no difference");
    assert_eq!(said(&["diff", "m/q", "m/copy"]), of("m/q and m/copy"));
    assert_eq!(said(&["diff", "m/copy", "m/q/in"]), of("m/copy and m/q/in"));
    assert_eq!(said(&["diff", "m/q", "m/q/in"]), of("m/q and m/q/in"));
    assert_eq!(said(&["diff", "m/fork"]), "");
    let no_snapshot = warning("m/q").replace("not in the copy", "in no snapshot");
    assert_eq!(said(&["send", "-n", "m/q@s"]), no_snapshot);
    b.ok(&["snapshot", "create", "m/other", "sent"]);
    assert_eq!(said(&["send", "-n", "m/other@sent"]), "");
    for args in [
        &["clone", "m/other", "m/c"][..],
        &["snapshot", "create", "m/other", "s"],
        &["clone", "m/q/f", "m/f"],
    ] {
        assert_eq!(said(args), "", "{args:?}");
    }
    b.ok(&["quota", "set", "m/q", "none"]);
    // It is tried again soon.
    let begun = std::time::Instant::now();
    while !b.run(&["sync", "m"]).status.success() {
        assert!(begun.elapsed().as_secs() < 30, "what did not fit is not tried again");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(said(&["snapshot", "create", "m/q", "t"]), "");
    b.sh("cmp m/q/in/large m/q/.snapshots/t/in/large");
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// It ended in a slash, as that of no other directory did.
#[test]
fn the_quota_of_the_root_is_listed_under_the_path_of_its_mount() {
    let b = mounted!();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    b.ok(&["quota", "set", "m", "100M"]);
    let path = b.path("m").display().to_string();
    assert_eq!(b.ok(&["quota", "list", "-H", "m"]).split('\t').next().unwrap(), path);
    assert_eq!(b.json(&["quota", "list", "--json", "m"])["quotas"][0]["path"], path);
}
