//! Life on a machine: helpers of mount(8) and its like, service managers, what an image says of itself, and what
//! install puts where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    os::unix::{fs::symlink, net::UnixDatagram, process::CommandExt},
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use crate::common::{Bench, LET_GO, has, have_fuse, text};

/// Runs the program by another name.
fn helper(b: &Bench, name: &str, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pando"))
        .arg0(name)
        .args(args)
        .current_dir(b.path(""))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[track_caller]
fn exits(b: &Bench, name: &str, args: &[&str], code: i32, says: &str) {
    let out = helper(b, name, args);
    let err = text(&out.stderr) + &text(&out.stdout);
    assert_eq!(out.status.code(), Some(code), "{name} {args:?}: {err}");
    assert!(err.contains(says), "{name} {args:?} said {err:?}, not {says:?}");
}

/// An image `a.img` and a directory `m` to mount it on; `None` unless run by root, where there is FUSE.
fn for_root() -> Option<Bench> {
    if !have_fuse() || !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root and FUSE");
        return None;
    }
    let b = Bench::new();
    fs::create_dir(b.path("m")).unwrap();
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    Some(b)
}

#[test]
fn an_image_tells_label_uuid_and_state() {
    let b = Bench::new();
    let uuid = "123e4567-e89b-42d3-a456-426614174000";
    b.ok(&["mkfs", "-L", "my grove", "-U", uuid, "--size", "64M", "a.img"]);
    let info = b.json(&["info", "--json", "a.img"]);
    assert_eq!((info["label"].as_str(), info["uuid"].as_str()), (Some("my grove"), Some(uuid)));
    assert_eq!((info["state"].as_str(), info["size"].as_u64()), (Some("closed"), Some(64 << 20)));
    let udev = b.ok(&["info", "--udev", "a.img"]);
    for line in ["ID_FS_TYPE=pando", "ID_FS_LABEL=my_grove", "ID_FS_LABEL_ENC=my\\x20grove"] {
        assert!(udev.lines().any(|l| l == line), "{udev}");
    }
    assert!(udev.contains(&format!("ID_FS_UUID={uuid}")));
    for bad in [&["-U", "123"][..], &["-L", &"x".repeat(65)], &["-L", "a\nb"]] {
        let out = b.run(&[&["mkfs"], bad, &["--size", "64M", "b.img"]].concat());
        assert_eq!(out.status.code(), Some(2), "{bad:?}");
        assert!(!b.path("b.img").exists());
    }
    fs::write(b.path("text"), "no image").unwrap();
    b.fails(&["info", "text"], 2, "not a usable store");
    b.fails(&["check", "text"], 2, "not a usable store");
    b.fails(&["info", "none"], 1, "none");
    // A name that only the file system knows, as in images of before: the field of the superblock is made empty.
    let stats = b.json(&["stats", "--json", "a.img"]);
    assert_eq!(stats["label"].as_str(), Some("my grove"));
    if !have_fuse() {
        return;
    }
    fs::create_dir(b.path("m")).unwrap();
    b.mount();
    let info = b.json(&["info", "--json", "m"]);
    assert_eq!((info["label"].as_str(), info["state"].as_str()), (Some("my grove"), Some("mounted")));
    assert!(b.ok(&["info", "a.img"]).contains("mounted on"));
    b.umount();
}

/// The rule for udev makes a link of this name: it is to be one name, in one directory.
#[test]
fn a_label_with_slashes_is_one_name_for_udev() {
    let b = Bench::new();
    for (i, (label, encoded)) in [
        ("../../../etc/motd", r"..\x2f..\x2f..\x2fetc\x2fmotd"),
        ("a\\b \"c\"$d,e", r"a\x5cb\x20\x22c\x22\x24d\x2ce"),
        ("wäldchen 森", r"wäldchen\x20森"),
    ]
    .into_iter()
    .enumerate()
    {
        let image = format!("{i}.img");
        b.ok(&["mkfs", "--size", "64M", "-L", label, &image]);
        let udev = b.ok(&["info", "--udev", &image]);
        let line = format!("ID_FS_LABEL_ENC={encoded}");
        assert!(udev.lines().any(|l| l == line), "{udev}");
    }
}

#[test]
fn helpers_take_what_mount_and_umount_give_them() {
    if !have_fuse() {
        return;
    }
    let b = Bench::new();
    fs::create_dir(b.path("m")).unwrap();
    exits(&b, "/sbin/mkfs.pando", &["-L", "x", "--size", "64M", "a.img"], 0, "nodes");
    let options = "rw,nosuid,nodev,user=me,nofail,_netdev,x-systemd.automount,noatime,cache=64M,log_file=log";
    exits(&b, "/sbin/mount.fuse.pando", &["a.img", "m", "-v", "-o", options, "-t", "fuse.pando"], 0, "");
    fs::write(b.path("m/f"), "x").unwrap();
    exits(&b, "mount.pando", &["a.img", "m"], 32, "is mounted on");
    if rustix::process::geteuid().is_root() {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let line = mounts.lines().find(|l| l.contains(b.path("m").to_str().unwrap())).unwrap();
        assert!(line.contains("allow_other") && line.contains("default_permissions"), "{line}");
        // As mount(8) does it: with what the kernel shows.
        exits(&b, "mount.pando", &["a.img", "m", "-o", "user_id=0,remount,ro"], 0, "");
        assert!(fs::write(b.path("m/g"), "x").is_err());
        exits(&b, "mount.pando", &["a.img", "m", "-o", "remount,rw"], 0, "");
        fs::write(b.path("m/g"), "x").unwrap();
    }
    exits(&b, "umount.fuse.pando", &["m", "-v"], 0, "");
    exits(&b, "umount.pando", &["m"], 32, "no file system");
    // Closed, not only unmounted.
    exits(&b, "fsck.pando", &["-a", "-C0", "a.img"], 0, "clean");
    exits(&b, "mount.pando", &["a.img", "m", "-o", "frobnicate"], 1, "frobnicate");
    exits(&b, "mount.pando", &["a.img"], 1, "Usage");
    exits(&b, "mount.pando", &["none.img", "m"], 32, "none.img");
    exits(&b, "mount.pando", &["-f", "a.img", "m"], 0, "");
    exits(&b, "umount.pando", &["m"], 32, "no file system");
    exits(&b, "mount.pando", &["-s", "-n", "a.img", "m", "-o", "frobnicate,ro"], 0, "");
    assert!(fs::write(b.path("m/h"), "x").is_err());
    // By what is mounted, as umount(8) may say it.
    exits(&b, "umount.pando", &["a.img"], 0, "");
}

#[test]
fn device_nodes_and_set_id_bits_count_on_what_root_mounts_by_fstab() {
    let Some(b) = for_root() else { return };
    exits(&b, "mount.pando", &["a.img", "m", "-o", "rw"], 0, "");
    b.sh("mknod m/null c 1 3; chmod 666 m/null; echo x > m/null");
    exits(&b, "mount.pando", &["a.img", "m", "-o", "user_id=0,remount,rw"], 0, "");
    b.sh("echo x > m/null");
    // A program with its set-user-id bit runs as its owner.
    b.sh("cp $(command -v id) m/id; chown 1:1 m/id; chmod 4755 m/id; [ $(m/id -u) = 1 ]");
    exits(&b, "umount.pando", &["m"], 0, "");
    // As mount(8) gives it where fstab says `user`.
    exits(&b, "mount.pando", &["a.img", "m", "-o", "rw,noexec,nosuid,nodev,user"], 0, "");
    b.sh("! echo x > m/null || exit 1; ! m/id || exit 1; [ $(stat -c %a m/id) = 4755 ]");
    exits(&b, "umount.pando", &["m"], 0, "");
    exits(&b, "mount.pando", &["a.img", "m", "-o", "rw,nosuid,nodev,user"], 0, "");
    b.sh("! echo x > m/null || exit 1; [ $(m/id -u) = 0 ]");
    exits(&b, "umount.pando", &["m"], 0, "");
}

#[test]
fn what_is_remounted_read_only_is_durable() {
    let Some(b) = for_root() else { return };
    // Nothing becomes durable by itself before the daemon ends.
    exits(&b, "mount.pando", &["a.img", "m", "-o", "commit=60"], 0, "");
    b.sh("mkdir m/d; echo x > m/d/f");
    exits(&b, "mount.pando", &["a.img", "m", "-o", "remount,ro"], 0, "");
    b.sh(&format!("kill -9 {}", b.daemon()));
    exits(&b, "mount.pando", &["a.img", "m"], 0, "");
    assert_eq!(fs::read_to_string(b.path("m/d/f")).unwrap(), "x\n");
    exits(&b, "umount.pando", &["m"], 0, "");
}

#[test]
fn a_file_that_is_bound_to_another_place_is_unmounted_there() {
    let Some(b) = for_root() else { return };
    exits(&b, "mount.pando", &["a.img", "m"], 0, "");
    b.sh("echo inside > m/f; echo outside > g; mount --bind m/f g; [ $(cat g) = inside ]");
    let unmounted = helper(&b, "umount.fuse.pando", &["g"]);
    b.sh("umount -i g 2>/dev/null || true");
    assert!(unmounted.status.success(), "{}", text(&unmounted.stderr));
    b.sh("[ $(cat g) = outside ]");
    exits(&b, "umount.pando", &["a.img"], 0, "");
}

#[test]
fn a_write_protected_device_is_mounted_read_only() {
    if !has("blockdev") || !have_fuse() {
        return eprintln!("SKIPPED: needs blockdev and FUSE");
    }
    let b = Bench::new();
    fs::create_dir(b.path("m")).unwrap();
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    let Some(loop_device) = b.loop_device("a.img") else { return };
    let device = &loop_device.path;
    b.sh(&format!("blockdev --setro {device}"));
    // Linux opens it for writing, and refuses each write later: when it is too late to tell the writer.
    b.fails(&["mount", device, "m"], 1, "Read-only file system");
    exits(&b, "mount.pando", &[device, "m", "-o", "rw"], 0, "source write-protected, mounted read-only");
    let refused = fs::write(b.path("m/f"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    exits(&b, "umount.pando", &["m"], 0, "");
    b.sh(&format!("blockdev --setrw {device}"));
    exits(&b, "mount.pando", &[device, "m"], 0, "");
    fs::write(b.path("m/f"), "x").unwrap();
    exits(&b, "umount.pando", &["m"], 0, "");
}

/// By whatever name: two daemons that write to one image lose what was synced.
#[test]
fn an_image_in_use_is_in_use_through_a_loop_device_too() {
    let b = mounted!();
    let Some(loop_device) = b.loop_device("a.img") else { return };
    let device = loop_device.path.as_str();
    fs::create_dir(b.path("second")).unwrap();
    let on_m = format!("is mounted on {}", b.path("m").display());
    b.fails(&["mount", device, "second"], 4, &on_m);
    b.fails(&["mkfs", "--force", device], 4, "mounted");
    b.umount();
    b.ok(&["check", device]);
    b.ok(&["mount", device, "m"]);
    b.fails(&["mount", "a.img", "second"], 4, &on_m);
    b.fails(&["check", "a.img"], 4, &on_m);
    b.umount();
    b.ok(&["check", "a.img"]);
    // What begins elsewhere in the file is another image.
    b.sh("truncate -s 96M disk");
    let Some(whole) = b.loop_device("disk") else { return };
    b.ok(&["mkfs", &whole.path]);
    b.ok(&["mount", &whole.path, "m"]);
    let part = b.sh("losetup -f --show -o 64M disk");
    let made = b.run(&["mkfs", "--force", part.trim()]);
    b.sh(&format!("losetup -d {part}"));
    b.umount();
    assert!(made.status.success(), "{made:?}");
}

#[test]
fn fsck_answers_with_the_codes_of_fsck() {
    let b = Bench::new();
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    b.tree("t");
    b.ok(&["import", "t", "a.img:/t"]);
    exits(&b, "fsck.pando", &["-f", "a.img"], 0, "clean");
    exits(&b, "fsck.fuse.pando", &["-p", "a.img"], 0, "clean");
    exits(&b, "fsck.pando", &["-z", "a.img"], 16, "unknown option");
    exits(&b, "fsck.pando", &[], 16, "give an image");
    exits(&b, "fsck.pando", &["none"], 8, "none");
    fs::write(b.path("text"), "no image").unwrap();
    exits(&b, "fsck.pando", &["text"], 8, "not a usable store");
    exits(&b, "fsck.pando", &["-V"], 0, env!("CARGO_PKG_VERSION"));
    // Everything behind the log.
    let mut bytes = fs::read(b.path("a.img")).unwrap();
    let from = 8192 + (4 << 20);
    let spoilt = bytes[from..].iter_mut().filter(|byte| **byte != 0).map(|byte| *byte ^= 0xff).count();
    assert!(spoilt > 100_000);
    fs::write(b.path("a.img"), &bytes).unwrap();
    exits(&b, "fsck.pando", &["-y", "a.img"], 4, "errors");
    // And the superblocks.
    bytes[100] ^= 1;
    bytes[4196] ^= 1;
    fs::write(b.path("a.img"), &bytes).unwrap();
    exits(&b, "fsck.pando", &["-a", "a.img"], 4, "superblock");
}

/// mount(8), umount(8) and fsck(8) themselves, by a line of fstab; in a mount namespace in which /sbin has the links.
#[test]
fn mount_and_umount_find_the_helpers() {
    if !have_fuse() || !rustix::process::geteuid().is_root() || !has("unshare") {
        return;
    }
    let b = Bench::new();
    fs::create_dir(b.path("m")).unwrap();
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    b.ok(&["install", "--root", "root", "--sbin", "/usr/sbin"]);
    let (image, m) = (b.path("a.img"), b.path("m"));
    let line = format!("{} {} pando noatime,nofail,x-test 0 2\n", image.display(), m.display());
    fs::write(b.path("fstab"), line).unwrap();
    let root = b.path("root");
    let script = format!(
        "{LET_GO} mount -t overlay none -o lowerdir={0}/usr/sbin:/usr/sbin /usr/sbin || {{ echo no overlay; exit 0; }}
         mkdir -p /usr/local/bin; mount --bind {0}/usr/local/bin /usr/local/bin
         mount -T fstab m; echo x > m/f; mount -o remount,ro m; ! touch m/g 2>/dev/null || exit 1
         umount m; pando info a.img | grep closed
         fsck -T -t pando -a a.img
         mount -t fuse.pando -o ro a.img m; cat m/f; umount m
         mount -T fstab m; kill -9 $(pando stats --json m | sed -n 's/.*\"pid\": //p' | tr -d ,); sleep 0.2
         mount -T fstab m; cat m/f; umount m; echo all",
        root.display()
    );
    let out = Command::new("unshare")
        .args(["-m", "sh", "-ec", &script])
        .current_dir(b.path(""))
        .env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap();
    let said = text(&out.stdout);
    if said.contains("no overlay") {
        eprintln!("SKIPPED: overlayfs is missing: {}", text(&out.stderr));
        return;
    }
    assert!(said.ends_with("all\n"), "{said}{}", text(&out.stderr));
}

#[test]
fn unmounting_waits_over_a_moment_of_use() {
    let Some(b) = Bench::mounted() else { return };
    b.sh("echo x > m/f");
    let mut user = Command::new("sleep").arg("0.5").current_dir(b.path("m")).spawn().unwrap();
    b.ok(&["umount", "m"]);
    assert!(user.try_wait().unwrap().is_some(), "it was still in use");
    b.mount();
    let mut user = Command::new("sleep").arg("60").current_dir(b.path("m")).spawn().unwrap();
    let begin = Instant::now();
    b.fails(&["umount", "m"], 4, "in use");
    assert!(begin.elapsed() > Duration::from_secs(1));
    user.kill().unwrap();
    user.wait().unwrap();
    b.umount();
}

#[test]
fn a_service_manager_is_told_when_the_mount_is_usable() {
    if !have_fuse() {
        return;
    }
    let b = Bench::new();
    fs::create_dir(b.path("m")).unwrap();
    b.ok(&["mkfs", "--size", "64M", "a.img"]);
    let socket = UnixDatagram::bind(b.path("notify")).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut daemon = b
        .command(&["mount", "--foreground", "a.img", "m"])
        .env("NOTIFY_SOCKET", b.path("notify"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let told = || {
        let mut buf = [0; 4096];
        let n = socket.recv(&mut buf).unwrap();
        text(&buf[..n])
    };
    let first = told();
    assert!(first.contains("READY=1") && first.contains("a.img"), "{first}");
    fs::write(b.path("m/f"), "x").unwrap();
    let pid = rustix::process::Pid::from_child(&daemon);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(told().contains("STOPPING=1"));
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn install_puts_everything_in_its_place_and_takes_it_away() {
    let b = Bench::new();
    let listed = b.ok(&["install", "--root", "dest", "--prefix", "/usr", "-n"]);
    assert!(!b.path("dest").exists());
    assert_eq!(b.ok(&["install", "--root", "dest", "--prefix", "/usr"]), listed);
    for path in listed.lines() {
        assert!(b.path(path).symlink_metadata().is_ok(), "{path}");
    }
    assert_eq!(fs::read_link(b.path("dest/sbin/mount.pando")).unwrap(), Path::new("/usr/bin/pando"));
    let help = b.ok(&["--help"]);
    let complete = fs::read_to_string(b.path("dest/usr/share/bash-completion/completions/pando")).unwrap();
    for command in ["mkfs", "mount", "clone", "cp", "info", "install", "snapshot-create", "quota-set"] {
        let words: Vec<&str> = command.split('-').collect();
        assert!(help.contains(words[0]) && words.iter().all(|word| complete.contains(word)), "{command}");
        let page = fs::read_to_string(b.path(&format!("dest/usr/share/man/man1/pando-{command}.1"))).unwrap();
        let (_, details) = page.split_once("DETAILS").unwrap();
        assert!(details.contains("Example"), "{command}");
        assert!(!details.contains("\n\n"), "{command}: man would show an empty line between any two");
    }
    if has("man") {
        b.sh("man --warnings -l dest/usr/share/man/man1/pando-mount.1 2>&1 | grep -q 'commit=SECONDS'");
    }
    assert_eq!(b.ok(&["completions", "bash"]), complete);
    // The installed program works, and by the names of its links.
    symlink(b.path("dest/usr/bin/pando"), b.path("fsck.pando")).unwrap();
    b.sh("./fsck.pando -V");
    b.ok(&["install", "--root", "dest", "--prefix", "/usr", "--remove"]);
    assert_eq!(b.sh("find dest ! -type d"), "");
}

/// A check of a large image takes minutes, and most of its work is done by the engine in one piece.
#[test]
fn a_check_ends_at_once_when_it_is_interrupted() {
    let Some(b) = Bench::mounted() else { return };
    b.sh("mkdir m/d; for i in $(seq 3000); do echo $i > m/d/$i; done; head -c 64M /dev/urandom > m/large");
    b.umount();
    let mut interrupted = 0;
    for millis in [5, 10, 20, 40, 60, 80, 100, 150, 200] {
        for (name, args, code) in [("pando", ["check", "a.img"], 130), ("fsck.pando", ["-f", "a.img"], 32)] {
            let mut check = Command::new(env!("CARGO_BIN_EXE_pando"));
            let check = check.arg0(name).args(args).current_dir(b.path("")).stdout(Stdio::null());
            let mut check = check.spawn().unwrap();
            std::thread::sleep(Duration::from_millis(millis));
            let begun = Instant::now();
            let pid = rustix::process::Pid::from_child(&check);
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
            let status = check.wait().unwrap();
            assert!(begun.elapsed() < Duration::from_secs(5));
            // Before it is set up it ends by the signal, and a small image may be done.
            interrupted += usize::from(status.code() == Some(code));
            assert!(matches!(status.code(), None | Some(0)) || status.code() == Some(code), "{status}");
        }
    }
    assert!(interrupted > 0, "all ended before they were interrupted");
}
