//! `pando send` and `pando receive`, as a user has them: through mounts and on images, whole and as differences.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    io::Write,
    process::{Output, Stdio},
};

use crate::common::{Bench, same, text};
use pando_fs::{
    SnapshotId, Time,
    send::{BlockWriter, Header, Position, StreamRecord, Totals},
};

/// Sends into a file.
fn send(b: &Bench, args: &[&str], to: &str) {
    let mut all = vec!["send"];
    all.extend(args);
    let out = b.command(&all).stdout(fs::File::create(b.path(to)).unwrap()).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
}

/// Receives these bytes.
fn receive_bytes(b: &Bench, args: &[&str], stream: &[u8]) -> Output {
    let mut all = vec!["receive"];
    all.extend(args);
    let mut child =
        b.command(&all).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // One that refuses the stream does not read all of it.
    let _ = child.stdin.take().unwrap().write_all(stream);
    child.wait_with_output().unwrap()
}

fn receive(b: &Bench, args: &[&str], from: &str) {
    let out = receive_bytes(b, args, &fs::read(b.path(from)).unwrap());
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
}

fn refused(b: &Bench, args: &[&str], stream: &[u8], says: &str) {
    let out = receive_bytes(b, args, stream);
    let err = text(&out.stderr);
    assert!(!out.status.success() && err.contains(says), "{args:?} said {err:?}, not {says:?}");
}

/// Makes a tree with all that there is.
fn all_kinds(b: &Bench, dir: &str) {
    b.sh(&format!(
        "cp -a t {dir}; cd {dir}; ln src/f1 src/same; ln -s f1 src/soft; mkfifo pipe; chmod 1770 empty
         mkdir -p src/.snapshots/daily; echo own > src/.snapshots/daily/file
         mknod dev c 1 3 || true; chown 7:8 src/f2 || true; chmod 4711 src/f2
         truncate -s 3M sparse; printf end >> sparse; setfattr -n user.what -v ever src/f3 2>/dev/null || true
         touch -d 2001-02-03T04:05:06.789 src"
    ));
}

#[test]
fn snapshots_travel_whole_and_as_differences_between_mounts_and_images() {
    let b = mounted!();
    let tree = b.tree("t");
    all_kinds(&b, "m/p");
    b.ok(&["snapshot", "create", "m/p", "one"]);
    send(&b, &["m/p@one"], "one.s");
    b.sh("mkdir m/in");
    receive(&b, &["m/in", "q"], "one.s");
    same(b.path("m/p/.snapshots/one"), b.path("m/in/q"));
    let ino = |path: &str| b.sh(&format!("stat -c %i {path}"));
    assert_eq!(ino("m/in/q/src/f1"), ino("m/in/q/src/same"), "linked");
    let blocks = |path: &str| b.sh(&format!("stat -c '%b %s' {path}"));
    assert_eq!(blocks("m/in/q/sparse"), blocks("m/p/sparse"), "a hole stays one");
    assert!(blocks("m/in/q/sparse").split(' ').next().unwrap().parse::<u64>().unwrap() <= 32);
    assert_eq!(b.sh("ls -A m/in").trim(), "q");
    assert_eq!(b.json(&["snapshot", "list", "--json", "m/in/q"])["snapshots"][0]["source"], "/in/q");

    b.sh("cd m/p; mv src was; rm -r was/deep; echo more >> was/f1; mkdir src; mv was/f3 src/; ln -f was/f2 src/f2
          printf x | dd of=sparse bs=1 seek=2000000 conv=notrunc 2>/dev/null; rmdir empty; touch -d 2002-01-01 .");
    b.ok(&["snapshot", "create", "m/p", "two"]);
    send(&b, &["-i", "@one", "m/p/.snapshots/two"], "two.s");
    receive(&b, &["m/in", "q"], "two.s");
    same(b.path("m/p/.snapshots/two"), b.path("m/in/q"));
    same(b.path("m/p/.snapshots/one"), b.path("m/in/q/.snapshots/one"));
    assert_eq!(b.sh("ls m/in/q/.snapshots").trim(), "one\ntwo");
    assert_eq!(ino("m/in/q/was/f2"), ino("m/in/q/src/f2"), "linked");
    assert_eq!(ino("m/in/q/was/f1"), ino("m/in/q/was/same"), "still linked");

    // What was received can be sent on, from either side.
    b.sh("echo three > m/p/three");
    b.ok(&["snapshot", "create", "m/p", "three"]);
    send(&b, &["-i", "@two", "m/p@three"], "three.s");
    send(&b, &["m/in/q@two"], "relayed.s");
    b.ok(&["mkfs", "--size", "256M", "--node-size", "256K", "b.img"]);
    receive(&b, &["b.img", "r"], "relayed.s");
    receive(&b, &["b.img", "r"], "three.s");
    b.ok(&["check", "b.img"]);
    b.ok(&["export", "b.img:/r", "out"]);
    same(b.path("m/p/.snapshots/three"), b.path("out"));
    // And from the image back.
    send(&b, &["-i", "@two", "b.img:/r@three"], "back.s");
    receive(&b, &["m/in", "q"], "back.s");
    same(b.path("m/p"), b.path("m/in/q"));
    assert!(tree.exists());
    assert_eq!(b.sh("cat m/in/q/was/.snapshots/daily/file").trim(), "own");
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let b = mounted!();
    b.tree("t");
    b.sh("cp -a t m/p");
    b.ok(&["snapshot", "create", "m/p", "one"]);
    b.sh("echo two > m/p/two");
    b.ok(&["snapshot", "create", "m/p", "two"]);
    b.sh("echo three > m/p/three");
    b.ok(&["snapshot", "create", "m/p", "three"]);
    send(&b, &["m/p@one"], "one.s");
    send(&b, &["-i", "@two", "m/p@three"], "wrong.s");
    send(&b, &["-i", "@one", "m/p@two"], "two.s");
    let bytes = |name: &str| fs::read(b.path(name)).unwrap();
    b.sh("mkdir m/in");
    refused(&b, &["m/in", "q"], &bytes("two.s"), "receive its base there first");
    receive(&b, &["m/in", "q"], "one.s");
    refused(&b, &["m/in", "q"], &bytes("wrong.s"), "no snapshot that is the base of this stream");
    refused(&b, &["m/in", "q"], &bytes("one.s"), "becomes a new directory");
    refused(&b, &["m/in", "../q"], &bytes("one.s"), "PATH is a path inside of");
    refused(&b, &["m/in", "x"], b"not a stream at all, but long enough", "no stream of pando send");
    refused(&b, &["t", "x"], &bytes("one.s"), "not");
    let mut bad = bytes("two.s");
    let middle = bad.len() / 2;
    bad[middle] ^= 4;
    refused(&b, &["m/in", "q"], &bad, "the stream is damaged at byte");
    // What came right before is kept for one that is whole.
    b.ok(&["receive", "--abort", &token_of(&b, &["m/in", "q"], &bad), "m/in", "q"]);
    let twice = [bytes("two.s"), bytes("two.s")].concat();
    refused(&b, &["m/in", "q"], &twice, "something follows its end");
    assert_eq!(b.sh("ls -A m/in").trim(), "q");
    same(b.path("m/p/.snapshots/one"), b.path("m/in/q"));
    assert_eq!(b.sh("ls m/in/q/.snapshots").trim(), "one");
    // What was changed since the base is kept.
    b.sh("echo mine > m/in/q/mine");
    receive(&b, &["m/in", "q"], "two.s");
    refused(&b, &["m/in", "q"], &bytes("two.s"), "has received this already");
    same(b.path("m/p/.snapshots/two"), b.path("m/in/q"));
    assert_eq!(b.sh("cat m/in/q/.snapshots/*/mine").trim(), "mine");
}

#[test]
fn an_interrupted_receive_shows_nothing_and_goes_on() {
    let b = mounted!();
    let whole = sent_once(&b, "mkdir m/in; head -c 9000000 /dev/urandom > m/p/big; ln m/p/big m/p/linked");
    for cut in [whole.len() / 3, whole.len() - 1] {
        let out = receive_bytes(&b, &["m/in", "q"], &whole[..cut]);
        let err = text(&out.stderr);
        assert!(err.contains("the stream ends early"), "{err}");
        assert!(!b.path("m/in/q").exists());
        let word = |before: &str| {
            err.split_once(before)
                .unwrap()
                .1
                .split_whitespace()
                .next()
                .unwrap()
                .trim_end_matches(')')
                .to_owned()
        };
        let (token, from) = (word("--resume "), word("--from "));
        refused(&b, &["m/in", "q"], &whole, "--resume");
        b.umount();
        b.ok(&["check", "a.img"]);
        b.mount();
        if cut < whole.len() / 2 {
            // Only the rest is sent.
            send(&b, &["--from", &from, "m/p@one"], "rest.s");
            assert!(fs::metadata(b.path("rest.s")).unwrap().len() < whole.len() as u64 * 3 / 4);
            receive(&b, &["--resume", &token, "m/in", "q"], "rest.s");
        } else {
            receive(&b, &["--resume", &token, "m/in", "q"], "one.s");
        }
        same(b.path("m/p/.snapshots/one"), b.path("m/in/q"));
        assert_eq!(b.sh("ls -A m/in").trim(), "q");
        b.ok(&["rm", "-r", "m/in/q"]);
    }
    let out = receive_bytes(&b, &["m/in", "q"], &whole[..whole.len() / 2]);
    let err = text(&out.stderr);
    let token = err.split_once("--abort ").unwrap().1.split_whitespace().next().unwrap().to_owned();
    b.ok(&["receive", "--abort", &token, "m/in", "q"]);
    assert_eq!(b.sh("ls -A m/in").trim(), "");
    b.fails(&["receive", "--abort", &token, "m/in", "q"], 1, "was begun here");
    // The same in an image.
    b.ok(&["mkfs", "--size", "256M", "b.img"]);
    for resumed in [false, true] {
        let out = receive_bytes(&b, &["b.img", "in"], &whole[..whole.len() / 2]);
        let err = text(&out.stderr);
        let token = err.split_once("--abort ").unwrap().1.split_whitespace().next().unwrap().to_owned();
        assert!(b.ok(&["ls", "b.img:/"]).contains(".pando-receive-"));
        match resumed {
            true => receive(&b, &["--resume", &token, "b.img", "in"], "one.s"),
            false => drop(b.ok(&["receive", "--abort", &token, "b.img"])),
        }
        assert_eq!(b.ok(&["ls", "b.img:/"]).trim(), if resumed { "in" } else { "" });
    }
    b.ok(&["check", "b.img"]);
    b.ok(&["export", "b.img:/in", "out"]);
    same(b.path("m/p/.snapshots/one"), b.path("out"));
}

#[test]
fn a_dry_run_says_how_much_it_would_be() {
    let b = mounted!();
    b.tree("t");
    b.sh("cp -a t m/p; head -c 3000000 /dev/urandom > m/p/big");
    b.ok(&["snapshot", "create", "m/p", "one"]);
    b.sh("printf x | dd of=m/p/big bs=1 seek=1000000 conv=notrunc 2>/dev/null");
    b.ok(&["snapshot", "create", "m/p", "two"]);
    let said = |args: &[&str]| -> u64 {
        let text = b.ok(args);
        text.split_once('(').unwrap().1.split_whitespace().next().unwrap().parse().unwrap()
    };
    send(&b, &["--level", "0", "m/p@one"], "one.s");
    let whole = said(&["send", "-n", "m/p@one"]);
    let real = fs::metadata(b.path("one.s")).unwrap().len();
    assert!(whole > 3_000_000 && whole <= real && real < whole + whole / 50 + 2000, "{whole} and {real}");
    let little = said(&["send", "-n", "-i", "@one", "m/p@two"]);
    assert!(little < 2000, "{little}");
    send(&b, &["-i", "@one", "m/p@two"], "two.s");
    assert!(fs::metadata(b.path("two.s")).unwrap().len() < 2000);
}

/// A tree in `m/p`, prepared by `script`, and its snapshot `one`, sent to `one.s`: that stream.
fn sent_once(b: &Bench, script: &str) -> Vec<u8> {
    b.tree("t");
    b.sh(&format!("cp -a t m/p; {script}"));
    b.ok(&["snapshot", "create", "m/p", "one"]);
    send(b, &["m/p@one"], "one.s");
    fs::read(b.path("one.s")).unwrap()
}

/// The token that somebody is told who has to go on with `--resume`.
fn told_token(err: &str) -> String {
    let (_, rest) = err.split_once("--resume ").unwrap_or_else(|| panic!("{err}"));
    rest.split([',', ' ', '\n']).next().unwrap().to_owned()
}

/// The token of the receive of this stream that was begun and not ended.
fn token_of(b: &Bench, args: &[&str], stream: &[u8]) -> String {
    let err = text(&receive_bytes(b, args, stream).stderr);
    told_token(&err)
}

#[test]
fn a_receiver_or_a_daemon_that_is_killed_leaves_what_can_go_on() {
    let b = mounted!();
    b.tree("t");
    b.sh("cp -a t m/p; head -c 5000000 /dev/urandom > m/p/big");
    b.ok(&["snapshot", "create", "m/p", "one"]);
    b.sh("mkdir m/in; cd m/p; mv src was; mkdir src; mv was/f1 src; cp -a was/deep src; rm -r was/deep empty; ln src/f1 l
          head -c 7000000 /dev/urandom > big2");
    b.ok(&["snapshot", "create", "m/p", "two"]);
    send(&b, &["m/p@one"], "one.s");
    send(&b, &["-i", "@one", "m/p@two"], "two.s");
    b.ok(&["sync", "m"]);
    for (name, part) in [("one", 0.5), ("two", 0.05), ("two", 0.9)] {
        let whole = fs::read(b.path(&format!("{name}.s"))).unwrap();
        let mut child =
            b.command(&["receive", "m/in", "q"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(&whole[..(whole.len() as f64 * part) as usize]).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(400));
        if part > 0.8 {
            let daemon = b.daemon();
            b.sh(&format!("kill -9 {daemon}"));
            drop(pipe);
            child.wait().unwrap();
            let _ = b.run(&["umount", "m"]);
            b.ok(&["mount", "--log-file", "log", "a.img", "m"]);
        } else {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(b.path("m/in/q").exists(), name == "two", "{name} {part}");
        if name == "two" {
            same(b.path("m/p/.snapshots/one"), b.path("m/in/q"));
        }
        let token = token_of(&b, &["m/in", "q"], &whole);
        receive(&b, &["--resume", &token, "m/in", "q"], &format!("{name}.s"));
        same(b.path(&format!("m/p/.snapshots/{name}")), b.path("m/in/q"));
        assert_eq!(b.sh("ls -A m/in").trim(), "q");
        if part < 0.1 {
            b.ok(&["rollback", "--discard", "m/in/q", "one"]);
            b.ok(&["snapshot", "delete", "m/in/q", "two"]);
        }
    }
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn what_was_received_is_durable_when_the_command_ends() {
    let b = mounted!();
    b.umount();
    // Nothing becomes durable unasked.
    let mount = || b.ok(&["mount", "--log-file", "log", "-o", "commit=300", "a.img", "m"]);
    mount();
    sent_once(&b, "mkdir m/in");
    b.sh("echo two > m/p/two");
    b.ok(&["snapshot", "create", "m/p", "two"]);
    send(&b, &["-i", "@one", "m/p@two"], "two.s");
    b.ok(&["sync", "m"]);
    for name in ["one", "two"] {
        receive(&b, &["m/in", "q"], &format!("{name}.s"));
        let daemon = b.daemon();
        b.sh(&format!("kill -9 {daemon}"));
        let _ = b.run(&["umount", "m"]);
        mount();
        same(b.path(&format!("m/p/.snapshots/{name}")), b.path("m/in/q"));
    }
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// Two snapshots of `m/p`, the first of them received as `m/in/q`, and streams `one.s` and `two.s`.
fn received_once(b: &Bench) {
    sent_once(b, "mkdir m/in");
    b.sh("echo two > m/p/two");
    b.ok(&["snapshot", "create", "m/p", "two"]);
    send(b, &["-i", "@one", "m/p@two"], "two.s");
    receive(b, &["m/in", "q"], "one.s");
}

/// A program writes as soon as the received snapshot is there: when it is compared what was changed, and replaced.
#[test]
fn what_is_written_while_a_receive_ends_is_kept() {
    let b = mounted!();
    received_once(&b);
    let (seen, at) = (b.path("m/in/q/.snapshots/two"), b.path("m/in/q"));
    let mut late = 0;
    for round in 0..25u32 {
        let (seen, at) = (seen.clone(), at.clone());
        let writer = std::thread::spawn(move || {
            let begin = std::time::Instant::now();
            while !seen.exists() && begin.elapsed().as_secs() < 20 {}
            let mut written = Vec::new();
            for i in 0..40 {
                std::thread::sleep(std::time::Duration::from_micros(u64::from(round) * 20));
                let name = format!("late-{round}-{i}");
                if fs::File::create_new(at.join(&name)).is_ok() {
                    written.push(name);
                }
            }
            written
        });
        receive(&b, &["m/in", "q"], "two.s");
        let written = writer.join().unwrap();
        let there = b.sh("ls -A m/in/q; for s in m/in/q/.snapshots/*; do ls -A $s; done");
        for name in &written {
            assert!(there.lines().any(|line| line == name), "{name} is gone");
        }
        late += written.len();
        b.ok(&["rollback", "--discard", "m/in/q", "one"]);
        for info in b.json(&["snapshot", "list", "--json", "m/in/q"])["snapshots"].as_array().unwrap() {
            if info["name"] != "one" {
                b.ok(&["snapshot", "delete", "m/in/q", info["name"].as_str().unwrap()]);
            }
        }
    }
    assert!(late > 25, "{late} files were written meanwhile");
    // Without a writer nothing is kept.
    receive(&b, &["m/in", "q"], "two.s");
    assert_eq!(b.sh("ls m/in/q/.snapshots").trim(), "one\ntwo");
}

#[test]
fn a_receive_interrupted_behind_the_last_block_goes_on() {
    let b = mounted!();
    let whole = sent_once(&b, "mkdir m/in");
    let mut child = b
        .interruptible(&["receive", "m/in", "q"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // All comes, but the sender does not hang up: whether something follows is not known.
    pipe.write_all(&whole).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    b.sh(&format!("kill -INT {}", child.id()));
    let out = child.wait_with_output().unwrap();
    drop(pipe);
    let err = text(&out.stderr);
    let token = told_token(&err);
    assert!(!b.path("m/in/q").exists());
    receive(&b, &["--resume", &token, "m/in", "q"], "one.s");
    same(b.path("m/p"), b.path("m/in/q"));
    assert_eq!(b.sh("ls -A m/in").trim(), "q");
}

/// All was received, and the program was killed before it had cleaned up. What has happened since stays.
#[test]
fn going_on_behind_the_end_rolls_nothing_back_that_was_changed() {
    let b = mounted!();
    received_once(&b);
    let two = fs::read(b.path("two.s")).unwrap();
    let err = text(&receive_bytes(&b, &["m/in", "q"], &two[..two.len() - 1]).stderr);
    let token = told_token(&err);
    let resume = ["--resume", &token, "m/in", "q"];
    receive(&b, &resume, "two.s");
    let left = || b.sh(&format!("mkdir -m 700 m/in/.pando-receive-{token}"));
    let snapshots = || b.sh("ls -m m/in/q/.snapshots").trim().to_owned();
    left();
    receive(&b, &resume, "two.s");
    assert_eq!((snapshots(), b.sh("ls -A m/in")), ("one, two".into(), "q\n".into()), "only cleaned");
    left();
    b.sh("echo mine > m/in/q/mine");
    refused(&b, &resume, &two, "was left as it is");
    assert_eq!((snapshots(), b.sh("ls -A m/in")), ("one, two".into(), "q\n".into()));
    assert_eq!(b.sh("cat m/in/q/mine").trim(), "mine");
    // Before it had become what was sent.
    b.ok(&["rollback", "--discard", "m/in/q", "one"]);
    left();
    receive(&b, &resume, "two.s");
    assert_eq!((snapshots(), b.sh("ls -A m/in")), ("one, two".into(), "q\n".into()));
    same(b.path("m/p"), b.path("m/in/q"));
    // One who holds it keeps others off.
    left();
    let held = fs::File::open(b.path(&format!("m/in/.pando-receive-{token}"))).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    refused(&b, &resume, &two, "another process is receiving this");
    drop(held);
    b.ok(&["receive", "--abort", &token, "m/in", "q"]);
}

#[test]
fn what_cannot_take_its_place_is_not_lost() {
    let b = mounted!();
    let whole = sent_once(&b, "mkdir m/in");
    let (most, last) = whole.split_at(whole.len() - 20);
    let mut child =
        b.command(&["receive", "m/in", "q"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(most).unwrap();
    while b.sh("ls -A m/in").is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    b.sh("mkdir m/in/q");
    pipe.write_all(last).unwrap();
    drop(pipe);
    let err = text(&child.wait_with_output().unwrap().stderr);
    assert!(err.contains("File exists"), "{err}");
    let token = told_token(&err);
    b.sh("rmdir m/in/q");
    receive(&b, &["--resume", &token, "m/in", "q"], "one.s");
    same(b.path("m/p"), b.path("m/in/q"));
    assert_eq!(b.sh("ls -A m/in").trim(), "q");
}

/// What no place here takes is refused for good: to go on would end at the same entry again.
#[test]
fn a_stream_that_can_never_be_received_is_not_to_be_gone_on_with() {
    let b = mounted!();
    b.sh("mkdir m/in");
    let header = Header {
        snapshot: SnapshotId { store: [5; 16], number: 1, created: Time { secs: 1, nanos: 0 } },
        base: None,
        name: b"one".to_vec(),
        source: b"t".to_vec(),
        from: Position::default(),
    };
    let (dir, big) = (&b"d"[..], vec![7; 100_000]);
    let attr =
        |value| [StreamRecord::Dir { path: dir }, StreamRecord::Xattr { path: dir, name: b"user.a", value }];
    for (records, says) in [
        (&attr(&big)[..], "this stream cannot be received here; nothing was changed: d: "),
        (&[StreamRecord::Dir { path: b".snapshots" }][..], "it can be received nowhere"),
        (&[StreamRecord::Symlink { path: b".snapshots", target: dir }][..], "it can be received nowhere"),
    ] {
        let (mut block, mut totals) = (Vec::new(), Totals::default());
        for record in records {
            record.encode(&mut block);
            totals.records += 1;
            totals.made += u64::from(!matches!(record, StreamRecord::Xattr { .. }));
        }
        StreamRecord::End(totals).encode(&mut block);
        let mut out = BlockWriter::new(Vec::new(), &header, 1);
        out.block(&block, true).unwrap();
        let stream = out.finish().unwrap();
        b.ok(&["mkfs", "--force", "--size", "64M", "b.img"]);
        for to in ["m/in", "b.img"] {
            let out = receive_bytes(&b, &[to, "q"], &stream);
            let err = text(&out.stderr);
            assert!(out.status.code() == Some(1) && err.contains(says), "{to}: {err}");
            assert!(!err.contains("--resume"), "{to}: {err}");
        }
        assert_eq!(b.sh("ls -A m/in"), "");
    }
    // The largest value that there may be is received.
    let (mut block, records) = (Vec::new(), attr(&big[..65_536]));
    records.iter().for_each(|record| record.encode(&mut block));
    StreamRecord::End(Totals { records: 2, made: 1, bytes: 0 }).encode(&mut block);
    let mut out = BlockWriter::new(Vec::new(), &header, 1);
    out.block(&block, true).unwrap();
    let out = receive_bytes(&b, &["m/in", "q"], &out.finish().unwrap());
    assert!(out.status.success(), "{}", text(&out.stderr));
}

#[test]
fn a_point_behind_the_end_is_refused_and_nothing_is_sent() {
    let b = mounted!();
    let whole = sent_once(&b, "true");
    assert!(whole.len() > 1000);
    for point in ["99:0123456789abcdef", "1:0123456789abcdef", "1000000:0"] {
        let out = b.run(&["send", "--from", point, "m/p@one"]);
        assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0), "{point}: {}", text(&out.stderr));
    }
}

/// Runs a line of the shell in a mount namespace of its own, so that what it mounts is gone behind it.
fn alone(b: &Bench, line: &str) -> Output {
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-ec", line]).current_dir(b.path("")).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn what_is_mounted_in_a_snapshot_is_not_sent_for_what_is_in_it() {
    if !rustix::process::geteuid().is_root() || !crate::common::has("unshare") {
        return;
    }
    let b = mounted!();
    b.sh("mkdir -p m/p/src/mnt/deep m/else; echo in > m/p/src/mnt/deep/x; echo f > m/p/f; echo foreign > m/else/x
          mkfifo m/p/pipe m/else/pipe");
    b.ok(&["snapshot", "create", "m/p", "one"]);
    b.sh("echo more >> m/p/src/mnt/deep/x");
    b.ok(&["snapshot", "create", "m/p", "two"]);
    let pando = env!("CARGO_BIN_EXE_pando");
    for (mount, at) in [
        ("mount -t tmpfs none", "src/mnt"),
        ("mount --bind m/else", "src/mnt"),
        ("mount --bind m/else/x", "f"),
        ("mount --bind m/else/pipe", "pipe"),
        ("mount --bind m/else", ""),
        ("mount -t tmpfs none", ""),
    ] {
        for (of, args) in [("one", "m/p@one"), ("two", "-i @one m/p@two"), ("one", "-i @one m/p@two")] {
            if args.starts_with("-i") && !at.is_empty() && at != "src/mnt" {
                continue; // nothing is read of what did not change
            }
            let line = format!("{mount} m/p/.snapshots/{of}/{at}; {pando} send {args} > stream");
            let out = alone(&b, &line);
            let said = text(&out.stderr);
            let names = said.contains(&format!("{at}: something is mounted on it"));
            assert!(
                out.status.code() == Some(1) && names && said.contains("unmount it first"),
                "{line}: {said}"
            );
        }
    }
    // What is mounted elsewhere is in nobody's way, nor is the mount that is the way to it.
    let line = format!(
        "mount -t tmpfs none m/p/src/mnt; mkdir way; mount --bind m/p way; mount -t tmpfs none way/.snapshots/two
         cd way; {pando} send .@one > ../one.s; {pando} send .snapshots/one > ../again.s; cmp ../one.s ../again.s"
    );
    let out = alone(&b, &line);
    assert!(out.status.success(), "{}", text(&out.stderr));
    receive(&b, &["m", "q"], "one.s");
    same(b.path("m/p/.snapshots/one"), b.path("m/q"));
}

/// Nothing is said of the file behind its content, so no other call hears what became of it in the kernel's pages.
#[test]
fn content_that_did_not_fit_is_no_received_file() {
    let b = mounted!();
    b.umount();
    b.ok(&["mkfs", "--force", "--size", "48M", "--node-size", "64K", "a.img"]);
    b.mount();
    let mut content = vec![0; 40 << 20];
    let mut random = 1u64;
    for part in content.chunks_mut(8) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        part.copy_from_slice(&random.to_le_bytes());
    }
    let header = Header {
        snapshot: SnapshotId { store: [5; 16], number: 1, created: Time { secs: 1, nanos: 0 } },
        base: None,
        name: b"one".to_vec(),
        source: b"t".to_vec(),
        from: Position::default(),
    };
    let mut totals = Totals { records: 1, made: 1, bytes: content.len() as u64 };
    let (mut block, mut out) = (Vec::new(), BlockWriter::new(Vec::new(), &header, 0));
    StreamRecord::File { path: b"f" }.encode(&mut block);
    for (i, bytes) in content.chunks(64 << 10).enumerate() {
        StreamRecord::Data { offset: (i << 16) as u64, bytes }.encode(&mut block);
        totals.records += 1;
        if block.len() > 512 << 10 {
            out.block(&std::mem::take(&mut block), false).unwrap();
        }
    }
    StreamRecord::End(totals).encode(&mut block);
    out.block(&block, true).unwrap();
    let out = receive_bytes(&b, &["m", "q"], &out.finish().unwrap());
    let said = text(&out.stderr);
    if out.status.success() {
        let there = fs::read(b.path("m/q/f")).is_ok_and(|there| there == content);
        assert!(there && b.run(&["sync", "m"]).status.success(), "it says that all is received: {said}");
        panic!("all fits: the test does not show anything");
    }
    assert!(said.contains("--resume"), "{said}");
    assert!(!b.path("m/q").exists(), "{said}");
}
