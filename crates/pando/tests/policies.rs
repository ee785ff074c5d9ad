//! Policies for snapshots as a user has them: `pando snapshot policy`, and what the daemon of a mount does by itself.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::common::Bench;
use serde_json::Value;

/// Longest that anything may take that is to happen by itself. A machine may be slow.
const PATIENCE: Duration = Duration::from_secs(60);

fn snapshots(b: &Bench, dir: &str) -> Vec<Value> {
    b.json(&["snapshot", "list", "--json", dir])["snapshots"].as_array().unwrap().clone()
}

/// Waits until the snapshots of a directory are as wanted.
fn wait(b: &Bench, dir: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let begun = Instant::now();
    loop {
        let found = snapshots(b, dir);
        if wanted(&found) {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "still {found:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_daemon_makes_and_deletes_snapshots() {
    let b = mounted!();
    b.sh("mkdir m/d m/other; echo 1 > m/d/f");
    assert_eq!(b.ok(&["snapshot", "policy", "m/d"]), "none\n");
    b.ok(&["snapshot", "create", "m/d", "mine"]);
    b.ok(&["snapshot", "policy", "m/d", "--every", "1s", "--keep-last", "2"]);
    let shown = b.ok(&["snapshot", "policy", "m/d"]);
    assert!(shown.contains("every") && shown.contains("1s") && shown.contains("keep-last"), "{shown}");
    // The first is made at once. What the kernel still keeps of the file is in it.
    let first = wait(&b, "m/d", |all| all.len() > 1).pop().unwrap();
    let name = first["name"].as_str().unwrap();
    assert_eq!(fs::read(b.path(&format!("m/d/.snapshots/{name}/f"))).unwrap(), b"1\n");
    assert_eq!((first["automatic"].as_bool(), first["uid"].as_u64()), (Some(true), Some(0)));
    // The others come and go; two stay, and that which the daemon has not made.
    let last = first["number"].as_u64().unwrap() + 4;
    let found =
        wait(&b, "m/d", |all| all.last().unwrap()["number"].as_u64().unwrap() >= last && all.len() == 3);
    assert_eq!(found[0]["name"], "mine");
    assert!(b.ok(&["snapshot", "list", "m/d"]).contains("auto"));
    assert!(b.ok(&["snapshot", "list", "m/other"]).lines().count() <= 1);
    // It goes on after a remount, and where the directory is then.
    b.sh("mv m/d m/other/d");
    b.remount();
    let last = snapshots(&b, "m/other/d").last().unwrap()["number"].as_u64().unwrap();
    wait(&b, "m/other/d", |all| all.last().unwrap()["number"].as_u64().unwrap() > last + 1);
    let set = b.json(&["snapshot", "policy", "m/other/d", "--every", "1s", "--keep-last", "3", "--json"]);
    assert_eq!((&set["policy"]["every_seconds"], &set["policy"]["keep_last"]), (&1.into(), &3.into()));
    let off = b.json(&["snapshot", "policy", "m/other/d", "--off", "--json"]);
    assert!(off["policy"].is_null() && off["version"].is_u64(), "{off}");
    assert_eq!(b.ok(&["snapshot", "policy", "-H", "m/other/d"]), "");
    let left = snapshots(&b, "m/other/d").len();
    thread::sleep(Duration::from_secs(3));
    assert!(snapshots(&b, "m/other/d").len() <= left + 1, "it goes on without a policy");
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// The kernel does not tell the daemon of it.
#[test]
fn a_mount_that_was_made_read_only_gets_no_snapshots() {
    let b = mounted!();
    b.sh("mkdir m/d; echo 1 > m/d/f");
    b.ok(&["snapshot", "policy", "m/d", "--every", "1s", "--keep-last", "100"]);
    wait(&b, "m/d", |all| all.len() > 1);
    b.sh("mount -i -o remount,ro m");
    // What had begun ends.
    thread::sleep(Duration::from_secs(2));
    let before = snapshots(&b, "m/d").len();
    thread::sleep(Duration::from_secs(3));
    assert_eq!(snapshots(&b, "m/d").len(), before);
    b.sh("mount -i -o remount,rw m");
    wait(&b, "m/d", |all| all.len() > before);
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn an_fsync_makes_a_snapshot_that_has_what_was_synced() {
    let b = mounted!();
    b.sh("mkdir -p m/d/sub m/other; touch m/d/sub/f m/other/f");
    b.ok(&["snapshot", "policy", "m/d", "--on-fsync", "1s", "--valid-for", "1h"]);
    let json = b.json(&["snapshot", "policy", "--json", "m/d"]);
    assert_eq!(
        (json["policy"]["on_fsync_seconds"].as_u64(), json["policy"]["path"].as_str()),
        (Some(1), b.path("m/d").to_str())
    );
    let sync = |path: &str, text: &str| {
        let mut file = fs::File::options().write(true).truncate(true).open(b.path(path)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.sync_all().unwrap();
    };
    // The daemon knows of the policy before it is told of a sync.
    thread::sleep(Duration::from_millis(500));
    sync("m/other/f", "elsewhere");
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(snapshots(&b, "m/d").len(), 0, "a sync elsewhere is none of it");
    sync("m/d/sub/f", "one");
    let first = wait(&b, "m/d", |all| all.len() == 1).pop().unwrap();
    let read = |name: &Value| {
        let path = format!("m/d/.snapshots/{}/sub/f", name["name"].as_str().unwrap());
        String::from_utf8(fs::read(b.path(&path)).unwrap()).unwrap()
    };
    assert_eq!(read(&first), "one");
    // A burst is one a second, and the last state is in the last.
    let begun = Instant::now();
    (0..200).for_each(|i| sync("m/d/sub/f", &format!("{i}")));
    let last = wait(&b, "m/d", |all| all.last().is_some_and(|s| read(s) == "199"));
    let most = begun.elapsed().as_secs() as usize + 4;
    assert!(last.len() <= most, "{} snapshots of a burst, where {most} are a second apart", last.len());
    // So is each write of a file that is open for synchronous writes, past the page cache of the kernel or not.
    b.sh("head -c 200000 /dev/zero > m/d/large");
    for flag in [libc::O_SYNC, libc::O_DSYNC] {
        // By then all is made that earlier syncs have asked for.
        thread::sleep(Duration::from_millis(2500));
        let before = snapshots(&b, "m/d").len();
        let mut file = fs::File::options().write(true).custom_flags(flag).open(b.path("m/d/large")).unwrap();
        file.write_all(b"durable").unwrap();
        wait(&b, "m/d", |all| all.len() > before);
    }
    // A sync of everything is one of this, too.
    b.sh("echo all > m/d/sub/f");
    thread::sleep(Duration::from_millis(1200));
    b.ok(&["sync", "m"]);
    wait(&b, "m/d", |all| read(all.last().unwrap()) == "all\n");
}

#[test]
fn root_sees_all_policies_in_a_tree() {
    let b = mounted!();
    b.sh("mkdir -p m/a/sub 'm/a b' m/c");
    assert_eq!(b.ok(&["snapshot", "policies", "-H", "m"]), "");
    b.ok(&["snapshot", "policy", "m/a", "--every", "1w", "--keep-last", "2"]);
    b.ok(&["snapshot", "policy", "m/a/sub", "--on-fsync", "1w", "--valid-for", "1h"]);
    b.ok(&["snapshot", "policy", "m/a b", "--every", "1w", "--min-free", "10%", "--keep-daily", "3"]);
    let mount = b.path("m");
    let path = |name: &str| format!("{}/{name}", mount.display());
    let of_sub = format!("{}\t0\ton-fsync=604800\tvalid-for=3600\n", path("a/sub"));
    let of_a = format!("{}\t0\tevery=604800\tkeep-last=2\n{of_sub}", path("a"));
    let of_b = format!("{}\t0\tevery=604800\tmin-free=10\tkeep-daily=3\n", path("a b"));
    assert_eq!(b.ok(&["snapshot", "policies", "-H", "m"]), of_a.clone() + &of_b);
    assert_eq!(b.ok(&["snapshot", "policies", "-H", "m/a"]), of_a);
    assert_eq!(b.ok(&["snapshot", "policies", "-H", "m/a/sub"]), of_sub);
    let json = b.json(&["snapshot", "policies", "--json", "m"]);
    assert_eq!(json["policies"][2]["path"].as_str(), Some(&path("a b")[..]));
    assert_eq!(json["policies"][1]["valid_for_seconds"].as_u64(), Some(3600));
    // A clone has no policy, and that of what goes goes too.
    b.ok(&["clone", "m/a", "m/copy"]);
    b.ok(&["rm", "-r", "m/a"]);
    assert_eq!(b.ok(&["snapshot", "policies", "-H", "m"]), of_b);
    b.fails(&["snapshot", "policies", "m/missing"], 1, "missing");
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn room_is_made_and_nonsense_is_refused() {
    let b = mounted!();
    b.sh("mkdir m/d");
    for name in ["s1", "s2", "s3"] {
        b.sh("head -c 20000000 /dev/urandom > m/d/f");
        b.ok(&["snapshot", "create", "m/d", name]);
    }
    b.ok(&["snapshot", "keep", "m/d", "s2"]);
    for (args, says) in
        [(&["--valid-for", "1h"][..], "--every or --on-fsync"), (&["--every", "0s"], "at least a second")]
    {
        b.fails(&[&["snapshot", "policy", "m/d"], args].concat(), 1, says);
    }
    b.fails(&["snapshot", "policy", "m/d", "--every", "1h", "--min-free", "60%"], 2, "at most 50%");
    b.fails(&["snapshot", "policy", "m/d", "--off", "--every", "1h"], 2, "cannot be used with");
    b.fails(&["snapshot", "policy", "m/d", "--min-free", "x"], 2, "not a percentage");
    b.fails(&["snapshot", "policy", "m/d/.snapshots/s2", "--every", "1h"], 1, "in a snapshot");
    let out = b.command(&["snapshot", "policy", "m/d", "--every", "1h"]).output().unwrap();
    assert!(out.status.success() && crate::common::text(&out.stderr).contains("note: nothing says"));
    // The policy makes its first snapshot when its thread comes to that, on a busy machine also after all were pruned,
    // and then another. So its first is waited for, and goes as the others do, and no policy makes a second.
    wait(&b, "m/d", |all| all.len() == 4);
    b.ok(&["snapshot", "policy", "m/d", "--off"]);
    // All that may go goes, and the command says that it was not enough.
    b.fails(&["snapshot", "prune", "m/d", "--min-free", "100%"], 1, "no snapshot is left");
    let left = snapshots(&b, "m/d");
    assert!(left.iter().all(|s| s["name"] == "s2"), "{left:?}");
    b.ok(&["snapshot", "prune", "m/d", "--min-free", "1"]);
}

/// What is free in the file system, not what is left of a quota, to which snapshots do not count.
#[test]
fn prune_deletes_nothing_because_a_quota_is_full() {
    let b = mounted!();
    b.sh("mkdir -p m/d/e");
    b.ok(&["quota", "set", "m/d", "2M"]);
    b.sh("head -c 1900000 /dev/urandom > m/d/e/f");
    for dir in ["m/d", "m/d/e"] {
        b.ok(&["snapshot", "create", dir, "a"]);
        b.ok(&["snapshot", "create", dir, "b"]);
        assert_eq!(b.ok(&["snapshot", "prune", dir, "--min-free", "20%"]), "", "{dir}");
        assert_eq!(snapshots(&b, dir).len(), 2, "{dir}");
    }
}

/// One whose validity is not over stays, as the help says; and no more go than are needed, whatever is written beside.
#[test]
fn prune_for_space_deletes_what_may_go_and_no_more_than_is_needed() {
    let b = mounted!();
    b.sh("mkdir m/d; head -c 40M /dev/urandom > m/d/large");
    b.ok(&["snapshot", "create", "m/d", "valid", "--valid-for", "30d"]);
    b.ok(&["snapshot", "create", "m/d", "large"]);
    let number = |format: &str| -> u64 { b.sh(&format!("stat -f -c {format} m")).trim().parse().unwrap() };
    b.sh("rm m/d/large; echo x > m/d/f");
    b.ok(&["snapshot", "delete", "m/d", "valid"]);
    b.ok(&["snapshot", "create", "m/d", "valid", "--valid-for", "30d"]);
    for i in 0..5 {
        b.sh("head -c 100K /dev/urandom > m/d/f");
        b.ok(&["snapshot", "create", "m/d", &format!("s{i}")]);
    }
    // What comes back is 40 MB: half of them are enough.
    let wanted = (number("%f") + (20 << 20) / number("%S")) * 100 / number("%b");
    let writer = "while [ ! -e stop ]; do head -c 2M /dev/urandom > m/x; sync m/x; rm m/x; done";
    let mut beside = Command::new("sh").args(["-c", writer]).current_dir(b.path("")).spawn().unwrap();
    let said = b.ok(&["snapshot", "prune", "m/d", "--min-free", &wanted.to_string()]);
    b.sh("touch stop");
    beside.wait().unwrap();
    assert!(said.lines().count() == 1 && said.contains("large"), "{wanted}%: {said}");
    b.fails(&["snapshot", "prune", "m/d", "--min-free", "100%"], 1, "no snapshot is left");
    let left = snapshots(&b, "m/d");
    assert!(left.len() == 1 && left[0]["name"] == "valid", "{left:?}");
}

/// It was the path as it was typed, with `..` and links, where a list of policies has that from the root.
#[test]
fn a_policy_names_its_directory_as_a_list_of_policies_does() {
    let b = mounted!();
    b.sh("mkdir -p m/d; ln -s m/d link");
    b.ok(&["snapshot", "policy", "m/d", "--every", "1h", "--keep-last", "2"]);
    let path = b.path("m/d").display().to_string();
    for typed in ["m/d", "m/../m/d/", "link"] {
        assert_eq!(b.json(&["snapshot", "policy", "--json", typed])["policy"]["path"], path);
    }
    if rustix::process::geteuid().is_root() {
        assert_eq!(b.json(&["snapshot", "policies", "--json", "m"])["policies"][0]["path"], path);
    }
}
