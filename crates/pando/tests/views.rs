//! Snapshots that are mounted (`pando mount -o snapshot=`): how they are named, and that they stay while they are.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use crate::common::{Bench, LET_GO, text};

/// A mounted image, unless the caller may not mount snapshots.
fn for_root() -> Option<Bench> {
    rustix::process::geteuid().is_root().then(Bench::mounted).flatten()
}

fn names(b: &Bench, dir: &str) -> Vec<String> {
    let list = b.ok(&["snapshot", "list", "-H", dir]);
    list.lines().map(|line| line.split('\t').nth(1).unwrap().to_owned()).collect()
}

/// Deleting a snapshot that was mounted succeeded, and who worked in it got ESTALE.
#[test]
fn a_snapshot_that_is_mounted_is_not_deleted() {
    let Some(b) = for_root() else { return };
    b.sh("mkdir -p m/p/in v w; echo one > m/p/in/f");
    for name in ["a", "b", "c", "d"] {
        b.ok(&["snapshot", "create", "m/p", name]);
    }
    b.sh("echo two > m/p/in/f");
    b.ok(&["mount", "-o", "snapshot=p@b", "a.img", "v"]);
    // What an administrator shows by a bind mount counts too, and a part of one as well.
    b.sh("mount --bind m/p/.snapshots/c/in w");
    let at = b.path("v").display().to_string();
    let says = format!("is mounted on {at}; unmount it first");
    b.fails(&["snapshot", "delete", "m/p", "b"], 4, &says);
    b.fails(&["snapshot", "delete", "m/p", "c"], 4, "/w; unmount it first");
    // The others of a range go.
    b.fails(&["snapshot", "delete", "m/p", "a..d"], 4, &says);
    assert_eq!((names(&b, "m/p").join(" "), b.sh("cat v/in/f w/f")), ("b c".into(), "one\none\n".into()));
    // A dry run says so, and prune leaves it.
    let told = b.ok(&["snapshot", "delete", "-n", "m/p", "1.."]);
    assert!(told.contains("would leave 2 b: it is mounted on") && !told.contains("together"), "{told}");
    b.ok(&["snapshot", "create", "m/p", "e"]);
    b.ok(&["snapshot", "create", "m/p", "f"]);
    let out = b.run(&["snapshot", "prune", "m/p", "--keep-last", "1"]);
    let said = text(&out.stderr);
    assert!(out.status.success() && said.contains(&at) && said.contains("was left"), "{said}");
    assert_eq!(names(&b, "m/p").join(" "), "b c f");
    // Whatever becomes of its name and of its directory.
    b.ok(&["snapshot", "rename", "m/p", "b", "renamed"]);
    b.fails(&["snapshot", "delete", "m/p", "renamed"], 4, &says);
    b.ok(&["rollback", "--discard", "m/p", "f"]);
    b.sh("mv m/p m/q");
    b.fails(&["snapshot", "delete", "m/q", "renamed"], 4, &says);
    assert_eq!(b.sh("cat v/in/f w/f m/q/in/f"), "one\none\ntwo\n");
    b.ok(&["rm", "-r", "m/q"]);
    let out = b.run(&["snapshot", "orphans", "--delete", "m"]);
    assert!(out.status.code() == Some(4) && text(&out.stderr).contains(&says), "{}", text(&out.stderr));
    assert_eq!(b.sh("cat v/in/f w/f"), "one\none\n");
    // Once nobody has it mounted it goes.
    b.ok(&["umount", "v"]);
    b.sh("umount w");
    assert!(b.ok(&["snapshot", "orphans", "--delete", "m"]).contains("deleted 2 renamed\n"));
    assert_eq!(b.ok(&["snapshot", "orphans", "-H", "m"]), "");
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// On a read-only mount it said of those that were mounted, too, that it would delete them.
#[test]
fn a_dry_run_on_a_read_only_mount_knows_what_is_mounted() {
    let Some(b) = for_root() else { return };
    b.sh("mkdir -p m/p m/gone v w");
    for (dir, name) in [("m/p", "a"), ("m/p", "b"), ("m/gone", "c"), ("m/gone", "d")] {
        b.ok(&["snapshot", "create", dir, name]);
    }
    b.ok(&["mount", "-o", "snapshot=p@a", "a.img", "v"]);
    b.ok(&["mount", "-o", "snapshot=gone@c", "a.img", "w"]);
    b.sh("rmdir m/gone");
    let check = |read_only: &str, gone: bool| {
        let tells = |args: &[&str], leaves: &str, deletes: &str| {
            let told = b.ok(args);
            let is_right = told.contains(&format!("would leave {leaves}: it is mounted on"))
                && told.contains(&format!("would delete {deletes}:"));
            assert!(is_right, "{read_only}: {told}");
        };
        tells(&["snapshot", "delete", "-n", "m/p", "1.."], "1 a", "2 b");
        if gone {
            tells(&["snapshot", "orphans", "--delete", "-n", "m"], "3 c", "4 d");
        }
        let told = b.ok(&["snapshot", "prune", "-n", "m/p", "--keep-last", "1"]);
        assert!(told.contains("would leave 1 a: it is mounted on"), "{read_only}: {told}");
    };
    check("writable", true);
    b.sh("mount -o remount,bind,ro m");
    check("a mount that may not be written to", false);
    b.sh("mount -o remount,bind,rw m");
    b.ok(&["umount", "v"]);
    b.ok(&["umount", "w"]);
    b.umount();
    b.ok(&["mount", "-o", "ro", "a.img", "m"]);
    b.ok(&["mount", "-o", "snapshot=p@a", "a.img", "v"]);
    check("a read-only file system", false);
    b.ok(&["umount", "v"]);
}

#[test]
fn a_policy_leaves_a_snapshot_that_is_mounted_and_goes_on_with_others() {
    let Some(b) = for_root() else { return };
    b.sh("mkdir -p m/p v; echo one > m/p/f");
    b.ok(&["snapshot", "policy", "m/p", "--every", "1s", "--keep-last", "2"]);
    let until = |what: &str, done: &dyn Fn(&[String]) -> bool| {
        let begin = Instant::now();
        while !done(&names(&b, "m/p")) {
            assert!(begin.elapsed() < Duration::from_secs(60), "{what}: {:?}", names(&b, "m/p"));
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    until("none is made", &|all| !all.is_empty());
    let first = names(&b, "m/p").pop().unwrap();
    b.ok(&["mount", "-o", &format!("snapshot=p@{first}"), "a.img", "v"]);
    let other = |all: &[String]| all.iter().find(|name| **name != first).cloned();
    until("no other is made", &|all| other(all).is_some());
    let second = other(&names(&b, "m/p")).unwrap();
    until("no other goes", &|all| !all.contains(&second));
    assert!(names(&b, "m/p").contains(&first));
    assert_eq!(b.sh("cat v/f"), "one\n");
    b.ok(&["umount", "v"]);
    until("it does not go", &|all| !all.contains(&first));
}

/// Snapshots that mounts show are known by paths, and the path of one that is mounted led to another one.
#[test]
fn a_snapshot_with_the_name_of_a_mounted_one_of_a_directory_that_is_gone_can_be_deleted() {
    let Some(b) = for_root() else { return };
    b.sh("mkdir m/p m/q v w");
    for (dir, at, replaced) in [("p", "v", "rmdir m/p; mkdir m/p"), ("q", "w", "mkdir m/r; mv -T m/r m/q")] {
        let path = format!("m/{dir}");
        b.sh(&format!("echo old > {path}/f"));
        b.ok(&["snapshot", "create", &path, "a"]);
        b.ok(&["mount", "-o", &format!("snapshot={dir}@a"), "a.img", at]);
        b.sh(&format!("rm {path}/f; {replaced}; echo new > {path}/f"));
        b.ok(&["snapshot", "create", &path, "a"]);
        // The kernel knows both.
        assert_eq!(b.sh(&format!("cat {path}/.snapshots/a/f {at}/f")), "new\nold\n");
        let told = b.ok(&["snapshot", "delete", "-n", &path, "a"]);
        assert!(told.contains("would delete"), "{told}");
        assert!(b.ok(&["snapshot", "delete", &path, "a"]).starts_with("deleted "));
        assert_eq!(b.sh(&format!("cat {at}/f")), "old\n");
    }
    // The older ones are mounted, and stay, which a dry run says too.
    let told = b.ok(&["snapshot", "orphans", "--delete", "-n", "m"]);
    for (number, at) in [(1, "v"), (3, "w")] {
        let at = b.path(at).display().to_string();
        assert!(told.contains(&format!("would leave {number} a: it is mounted on {at}\n")), "{told}");
        b.fails(&["snapshot", "orphans", "--delete", "m"], 4, &format!("is mounted on {at}"));
    }
    let json = b.json(&["snapshot", "orphans", "--delete", "-n", "--json", "m"]);
    assert_eq!(json["snapshots"][0]["why"], "mounted", "{json}");
    // A new mount on the same place is another one.
    b.ok(&["umount", "v"]);
    b.ok(&["snapshot", "create", "m/p", "a"]);
    b.ok(&["mount", "-o", "snapshot=p@a", "a.img", "v"]);
    b.fails(&["snapshot", "delete", "m/p", "a"], 4, "is mounted on");
    assert_eq!(b.ok(&["snapshot", "orphans", "--delete", "-n", "m"]).matches("would delete").count(), 1);
    b.ok(&["umount", "v"]);
    b.ok(&["umount", "w"]);
    assert_eq!(b.ok(&["snapshot", "orphans", "--delete", "m"]), "deleted 1 a\ndeleted 3 a\n");
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// A process that keeps a mount namespace, and is ended whatever happens.
struct Holder(std::process::Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What was seen of the mounts of a container was forgotten by the next call of somebody else.
#[test]
fn a_mount_in_a_namespace_of_its_own_is_remembered_through_calls_from_others() {
    let Some(b) = for_root() else { return };
    b.sh("mkdir -p m/p v; echo one > m/p/f");
    for name in ["a", "b", "c", "d"] {
        b.ok(&["snapshot", "create", "m/p", name]);
    }
    let mut holder = std::process::Command::new("unshare");
    let script = format!("{LET_GO} mount --bind m/p/.snapshots/a v; echo ready; exec sleep 300");
    let holder = holder.args(["-m", "sh", "-ec", &script, "sh"]).arg(b.path("m")).current_dir(b.path("."));
    let mut holder = Holder(holder.stdout(std::process::Stdio::piped()).spawn().unwrap());
    let mut ready = [0; 6];
    std::io::Read::read_exact(holder.0.stdout.as_mut().unwrap(), &mut ready).unwrap();
    let program = env!("CARGO_BIN_EXE_pando");
    let inside =
        |args: &str| b.sh(&format!("nsenter -t {} -m -- {program} {args} 2>&1 || true", holder.0.id()));
    let at = |name: &str| b.path(name).display().to_string();
    // Nobody has looked at the mounts there when the path that the kernel has of this one leads nowhere.
    b.ok(&["snapshot", "rename", "m/p", "a", "renamed"]);
    let first = inside(&format!("snapshot delete {} renamed", at("m/p")));
    let told = inside(&format!("snapshot delete {} b", at("m/p")));
    b.ok(&["snapshot", "delete", "m/p", "c"]);
    // Then it leads to another one.
    b.ok(&["snapshot", "rename", "m/p", "d", "a"]);
    let other = inside(&format!("snapshot delete {} a", at("m/p")));
    let renamed = inside(&format!("snapshot delete {} renamed", at("m/p")));
    let read = b.sh(&format!("nsenter -t {} -m -- cat {}/f", holder.0.id(), at("v")));
    drop(holder);
    assert_eq!((&told[..], &read[..]), ("deleted 2 b\n", "one\n"));
    for said in [first, renamed] {
        assert!(said.contains(&format!("is mounted on {}", at("v"))), "{said}");
    }
    assert_eq!(other, "deleted 4 a\n");
    assert_eq!(b.ok(&["snapshot", "delete", "m/p", "renamed"]), "deleted 1 renamed\n");
    b.umount();
}

/// It went with the next look at its policy, which came a minute later.
#[test]
fn a_snapshot_that_is_over_goes_soon_after_it_is_unmounted() {
    let Some(b) = for_root() else { return };
    b.sh("mkdir -p m/p v; echo one > m/p/f");
    b.ok(&["snapshot", "create", "m/p", "a", "--valid-for", "2s"]);
    b.ok(&["mount", "-o", "snapshot=p@a", "a.img", "v"]);
    b.ok(&["snapshot", "policy", "m/p", "--every", "1d"]);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(b.sh("cat v/f"), "one\n");
    assert!(names(&b, "m/p").contains(&"a".into()));
    b.ok(&["umount", "v"]);
    let begin = Instant::now();
    while names(&b, "m/p").contains(&"a".into()) {
        assert!(begin.elapsed() < Duration::from_secs(25));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_mount_of_a_snapshot_that_has_died_is_in_nobody_s_way() {
    let Some(b) = for_root() else { return };
    b.sh("mkdir -p m/p v w; echo one > m/p/f");
    b.ok(&["snapshot", "create", "m/p", "a"]);
    b.ok(&["mount", "-o", "snapshot=p@a", "a.img", "v"]);
    b.ok(&["sync", "m"]);
    b.sh(&format!("kill -9 {}", b.daemon()));
    // The daemon's end is waited for by the mount: it removes the dead one on `m`, and leaves that on `v`.
    let begin = Instant::now();
    while b.sh("stat -f v 2>&1 || true").contains("Block size") {
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
    while !b.run(&["mount", "--log-file", "log", "a.img", "m"]).status.success() {
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(b.sh("grep -c \"$PWD/v \" /proc/self/mountinfo"), "1\n");
    b.ok(&["mount", "-o", "snapshot=p@a", "a.img", "w"]);
    b.fails(&["snapshot", "delete", "m/p", "a"], 4, "/w; unmount it first");
    // One that is unmounted, and still used by a program, has nobody's attention.
    let mut child = std::process::Command::new("sleep").arg("30").current_dir(b.path("w")).spawn().unwrap();
    b.sh("umount -l w");
    let told = b.ok(&["snapshot", "delete", "m/p", "a"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(told, "deleted 1 a\n");
    b.sh("umount -l v");
    b.umount();
}

/// A name with a comma ended at it, and one that is no UTF-8 could not be written.
#[test]
fn a_snapshot_of_any_name_can_be_mounted() {
    let Some(b) = for_root() else { return };
    b.sh("mkdir -p m/p 'm/a,b@c' v; echo f > m/p/f; echo f > 'm/a,b@c/f'");
    let odd = ["a,b", r"back\slash", "@at", "x@y", "#12", " blank ", r"\,"];
    for name in odd {
        b.ok(&["snapshot", "create", "m/p", name]);
        b.ok(&["snapshot", "create", "m/a,b@c", name]);
    }
    let seen = |option: &str| {
        b.ok(&["mount", "-o", option, "a.img", "v"]);
        let root = b.sh("awk -v at=\"$PWD/v\" '$5 == at { print $4 }' /proc/self/mountinfo; cat v/f");
        b.ok(&["umount", "v"]);
        root
    };
    for name in odd {
        let escaped = name.replace('\\', r"\\").replace(',', r"\,");
        let shown = name.replace('\\', r"\134").replace(' ', r"\040");
        assert_eq!(seen(&format!("snapshot=p@{escaped}")), format!("/p/.snapshots/{shown}\nf\n"));
        let of_other = format!(r"noatime,snapshot=/a\,b@c@{escaped},ro");
        assert_eq!(seen(&of_other), format!("/a,b@c/.snapshots/{shown}\nf\n"));
    }
    // By its number, as with all commands; and by bytes as lists show them.
    assert_eq!(seen("snapshot=p@1"), "/p/.snapshots/a,b\nf\n");
    assert_eq!(seen(r"snapshot=p@a\054b"), "/p/.snapshots/a,b\nf\n");
    b.sh("mkdir m/$(printf 'n\\377'); echo f > m/$(printf 'n\\377')/f");
    b.sh(&format!("{} snapshot create m/n* s", env!("CARGO_BIN_EXE_pando")));
    assert!(seen(r"snapshot=n\377@s").ends_with("/.snapshots/s\nf\n"));
    // Errors say what is wrong.
    for (wrong, says) in [
        (r"snapshot=p@a\b", r"a backslash stands before"),
        (r"snapshot=p@a\", r"a backslash stands before"),
        (r"snapshot=p@\777", r"a backslash stands before"),
        (r"snapshot=p@a\057b", "NAME or DIR@NAME"),
    ] {
        b.fails(&["mount", "-o", wrong, "a.img", "v"], 2, says);
    }
    b.fails(&["mount", "-o", "snapshot=p@99", "a.img", "v"], 1, "has no snapshot 99");
    b.fails(&["mount", "-o", r"snapshot=p@no\,ne", "a.img", "v"], 1, "has no snapshot no,ne");
    b.fails(&["mount", "-o", "snapshot=p@a,b", "a.img", "v"], 2, "");
    b.umount();
    assert_eq!(seen(r"snapshot=p@a\,b"), "/a,b\nf\n".replace("/a,b", "/p/.snapshots/a,b"));
    b.ok(&["check", "a.img"]);
}
