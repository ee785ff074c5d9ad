//! What a receive that did not end leaves, and how it goes on: streams that are damaged, signals, names that are taken.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs,
    io::Write,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use crate::common::{Bench, same, text};

/// A tree in `m/p` whose snapshot `one` is `one.s`, of some blocks: that stream.
fn sent(b: &Bench) -> Vec<u8> {
    b.tree("t");
    b.sh("cp -a t m/p; head -c 9000000 /dev/urandom > m/p/big; seq 400000 > m/p/text; mkdir m/in");
    b.ok(&["snapshot", "create", "m/p", "one"]);
    send(b, &["m/p@one"], "one.s")
}

fn send(b: &Bench, args: &[&str], to: &str) -> Vec<u8> {
    let out = b.run(&[&["send"][..], args].concat());
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    fs::write(b.path(to), &out.stdout).unwrap();
    out.stdout
}

fn receive(b: &Bench, args: &[&str], stream: &[u8]) -> Output {
    let mut command = b.command(&[&["receive"][..], args].concat());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(stream);
    child.wait_with_output().unwrap()
}

fn received(b: &Bench, args: &[&str], stream: &[u8]) -> String {
    let out = receive(b, args, stream);
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    text(&out.stderr)
}

fn refused(b: &Bench, args: &[&str], stream: &[u8], says: &str) -> String {
    let out = receive(b, args, stream);
    let err = text(&out.stderr);
    assert!(out.status.code() == Some(1) && err.contains(says), "{args:?} said {err:?}, not {says:?}");
    err
}

/// The word behind another one.
fn word(said: &str, before: &str) -> String {
    let (_, rest) = said.split_once(before).unwrap_or_else(|| panic!("{said}"));
    rest.split([',', ' ', '\n', ')']).next().unwrap().to_owned()
}

/// A bit that flips on the way, an hour into a stream, cost all that had come.
#[test]
fn a_stream_that_is_damaged_late_goes_on_where_it_was_right() {
    let b = mounted!();
    let whole = sent(&b);
    b.ok(&["mkfs", "--size", "256M", "b.img"]);
    let mut bad = whole.clone();
    let at = whole.len() * 2 / 3;
    bad[at] ^= 16;
    for to in ["m/in", "b.img"] {
        let said = refused(&b, &[to, "q"], &bad, "the stream is damaged at byte");
        let (token, point) = (word(&said, "--resume "), word(&said, "--from "));
        assert!(point.split_once(':').unwrap().0.parse::<u64>().unwrap() >= 5, "{said}");
        // The same damage again ends at the same place, and keeps what had come.
        let again = refused(&b, &["--resume", &token, to, "q"], &bad, "the stream is damaged at byte");
        assert_eq!(word(&again, "--from "), point);
        match to {
            // Only what is missing is sent.
            "m/in" => {
                assert!(!b.path("m/in/q").exists());
                let rest = send(&b, &["--from", &point, "m/p@one"], "rest.s");
                assert!(rest.len() < whole.len() / 2);
                received(&b, &["--resume", &token, to, "q"], &rest);
                same(b.path("m/p/.snapshots/one"), b.path("m/in/q"));
                assert_eq!(b.sh("ls -A m/in").trim(), "q");
            }
            _ => {
                received(&b, &["--resume", &token, to, "q"], &whole);
                assert_eq!(b.ok(&["ls", "b.img:/"]).trim(), "q");
                b.ok(&["export", "b.img:/q", "out"]);
                same(b.path("m/p/.snapshots/one"), b.path("out"));
            }
        }
    }
    // Blocks that are missing, repeated or in another order are damage too, and what follows the end is none.
    b.ok(&["rm", "-r", "m/in/q"]);
    let swapped = [&whole[..at], &whole[..at]].concat();
    let said = refused(&b, &["m/in", "q"], &swapped, "the stream is damaged at byte");
    received(&b, &["--resume", &word(&said, "--resume "), "m/in", "q"], &whole);
    same(b.path("m/p/.snapshots/one"), b.path("m/in/q"));
    b.ok(&["rm", "-r", "m/in/q"]);
    // Where nothing right has come, nothing is left.
    let mut early = whole.clone();
    early[3000] ^= 1;
    let said = refused(&b, &["m/in", "q"], &early, "the stream is damaged at byte");
    assert!(said.contains("nothing was changed") && b.sh("ls -A m/in").is_empty(), "{said}");
    // What is right but never to be received leaves nothing either: see what_does_not_fit.
    b.umount();
    b.ok(&["check", "a.img"]);
    b.ok(&["check", "b.img"]);
}

/// A stream that goes on otherwise than it began was another one from that point on, or is forged.
#[test]
fn a_damaged_stream_is_gone_on_with_by_itself_only() {
    let b = mounted!();
    let whole = sent(&b);
    let mut bad = whole.clone();
    bad[whole.len() * 2 / 3] ^= 16;
    let said = refused(&b, &["m/in", "q"], &bad, "the stream is damaged at byte");
    let token = word(&said, "--resume ");
    // Another level of compression has the same content in each block.
    let other = send(&b, &["--level", "0", "m/p@one"], "other.s");
    assert!(other.len() > whole.len());
    received(&b, &["--resume", &token, "m/in", "q"], &other);
    same(b.path("m/p/.snapshots/one"), b.path("m/in/q"));
    // A difference too: its base stays as it is until all has come.
    b.sh("head -c 5000000 /dev/urandom > m/p/more; rm m/p/big");
    b.ok(&["snapshot", "create", "m/p", "two"]);
    let two = send(&b, &["-i", "@one", "m/p@two"], "two.s");
    let mut bad = two.clone();
    let end = bad.len() - 30;
    bad[end] ^= 1;
    let said = refused(&b, &["m/in", "q"], &bad, "the stream is damaged at byte");
    same(b.path("m/p/.snapshots/one"), b.path("m/in/q"));
    received(&b, &["--resume", &word(&said, "--resume "), "m/in", "q"], &two);
    same(b.path("m/p/.snapshots/two"), b.path("m/in/q"));
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// It said the size of the whole stream.
#[test]
fn a_dry_run_from_a_point_says_how_much_the_rest_would_be() {
    let b = mounted!();
    let whole = sent(&b);
    let said = refused(&b, &["m/in", "q"], &whole[..whole.len() / 2], "the stream ends early");
    let point = word(&said, "--from ");
    let told = |args: &[&str]| -> u64 {
        let out = b.run(&[&["send", "-n"][..], args].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        word(&text(&out.stdout), "(").parse().unwrap()
    };
    let (all, rest) = (told(&["m/p@one"]), told(&["--from", &point, "m/p@one"]));
    let real = send(&b, &["--level", "0", "--from", &point, "m/p@one"], "rest.s").len() as u64;
    assert!(rest < all * 2 / 3 && rest <= real && real < rest + rest / 50 + 2000, "{rest} of {all}, {real}");
    assert_eq!(told(&["--from", "0:0000000000000000", "m/p@one"]), all);
    for wrong in ["2:0123456789abcdef", "99:0123456789abcdef"] {
        b.fails(&["send", "-n", "--from", wrong, "m/p@one"], 1, "");
        b.fails(&["send", "--from", wrong, "m/p@one"], 1, "");
    }
}

/// Begins a receive to `q` in `to` that has most of this stream and waits for more, and interrupts it.
fn interrupted(b: &Bench, to: &str, stream: &[u8], signal: &str) -> Output {
    let mut command = b.interruptible(&["receive", to, "q"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(stream).unwrap();
    // It has written what came when the kernel has no more of it.
    std::thread::sleep(Duration::from_millis(500));
    b.sh(&format!("kill -{signal} {}", child.id()));
    let begin = Instant::now();
    let out = child.wait_with_output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(10), "it goes on for {:?}", begin.elapsed());
    drop(pipe);
    out
}

#[test]
fn an_interrupted_receive_leaves_nothing_visible_and_tells_its_token() {
    let b = mounted!();
    let whole = sent(&b);
    b.ok(&["mkfs", "--size", "256M", "b.img"]);
    let most = &whole[..whole.len() * 3 / 4];
    for signal in ["INT", "TERM", "HUP"] {
        let out = interrupted(&b, "m/in", most, signal);
        let said = text(&out.stderr);
        assert!(
            out.status.code() != Some(0) && said.contains("interrupted"),
            "{signal}: {:?} {said}",
            out.status
        );
        // What a user sees in the directory is nothing, and what is there is the receiver's own.
        assert!(!b.path("m/in/q").exists(), "{signal}");
        let (token, point) = (word(&said, "--resume "), word(&said, "--from "));
        assert_eq!(b.sh("ls m/in; stat -c %a m/in/.pando-receive-*"), "700\n");
        assert!(point.split_once(':').unwrap().0.parse::<u64>().unwrap() >= 2, "{said}");
        received(&b, &["--resume", &token, "m/in", "q"], &whole);
        same(b.path("m/p/.snapshots/one"), b.path("m/in/q"));
        b.ok(&["rm", "-r", "m/in/q"]);
        assert_eq!(b.sh("ls -A m/in"), "");
    }
    // An image is closed, and holds nothing that is to be seen.
    let out = interrupted(&b, "b.img", most, "INT");
    let said = text(&out.stderr);
    b.ok(&["check", "b.img"]);
    assert!(!b.ok(&["ls", "b.img:/"]).lines().any(|name| name == "q"));
    received(&b, &["--resume", &word(&said, "--resume "), "b.img", "q"], &whole);
    b.ok(&["export", "b.img:/q", "out"]);
    same(b.path("m/p/.snapshots/one"), b.path("out"));
    // Before anything has come, nothing is left to go on with.
    let out = interrupted(&b, "m/in", &whole[..40], "INT");
    assert!(!out.status.success());
    assert_eq!(b.sh("ls -A m/in"), "");
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// Both sides name snapshots by the second in which they are made, so a difference was refused because of a snapshot
/// that the receiver had made in the same second.
#[test]
fn snapshots_of_the_same_second_on_both_sides_do_not_keep_a_difference_off() {
    let b = mounted!();
    b.sh("mkdir m/p m/in; echo one > m/p/f");
    let made = |dir: &str| b.ok(&["snapshot", "create", dir]).trim().to_owned();
    // Several within a second have names of their own, and travel under these.
    let first: Vec<String> = (0..3).map(|_| made("m/p")).collect();
    received(&b, &["m/in", "q"], &send(&b, &[&format!("m/p@{}", first[0])], "s"));
    for pair in first.windows(2) {
        let (base, of) = (format!("@{}", pair[0]), format!("m/p@{}", pair[1]));
        received(&b, &["m/in", "q"], &send(&b, &["-i", &base, &of], "s"));
    }
    assert_eq!(b.sh("ls -m m/in/q/.snapshots").trim(), first.join(", "));
    // The receiver has one of that second already.
    b.sh("echo two > m/p/f");
    let sent = made("m/p");
    b.ok(&["snapshot", "create", "m/in/q", &sent]);
    let stream = send(&b, &["-i", &format!("@{}", first[2]), &format!("m/p@{sent}")], "s");
    let said = received(&b, &["m/in", "q"], &stream);
    let there = word(&said, "what was sent is ");
    assert!(said.contains(&format!("has a snapshot {sent} of its own")), "{said}");
    assert!(there.starts_with(sent.split_once("Z").unwrap().0) && there != sent, "{said}");
    assert_eq!(b.sh(&format!("cat m/in/q/f m/in/q/.snapshots/{there}/f")), "two\ntwo\n");
    assert_eq!(b.sh(&format!("cat m/in/q/.snapshots/{sent}/f")), "one\n");
    // The next one finds its base, which is known by its identity.
    b.sh("echo three > m/p/f");
    b.ok(&["snapshot", "create", "m/p", "named"]);
    let stream = send(&b, &["-i", &format!("@{sent}"), "m/p@named"], "s");
    // A name that somebody has given means something, and is not changed.
    b.ok(&["snapshot", "create", "m/in/q", "named"]);
    refused(&b, &["m/in", "q"], &stream, "has another snapshot of the name named; rename it first");
    b.ok(&["snapshot", "rename", "m/in/q", "named", "other"]);
    received(&b, &["m/in", "q"], &stream);
    same(b.path("m/p"), b.path("m/in/q"));
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// What was removed at the end was so in the memory of the daemon only.
#[test]
fn what_a_receive_needed_does_not_come_back_after_kill_9() {
    let b = mounted!();
    let whole = sent(&b);
    b.ok(&["snapshot", "create", "m/p", "two"]);
    let more = send(&b, &["-i", "@one", "m/p@two"], "two.s");
    let said = refused(&b, &["m/in", "r"], &whole[..whole.len() / 2], "--resume ");
    let token = word(&said, "--resume ");
    let ends: [(&str, &dyn Fn()); 3] = [
        ("whole", &|| drop(received(&b, &["m/in", "q"], &whole))),
        ("difference", &|| drop(received(&b, &["m/in", "q"], &more))),
        ("abort", &|| drop(b.ok(&["receive", "--abort", &token, "m/in", "r"]))),
    ];
    for (name, end) in ends {
        b.umount();
        // Nothing becomes durable by itself before the daemon ends.
        b.ok(&["mount", "-o", "commit=60", "--log-file", "log", "a.img", "m"]);
        end();
        b.sh(&format!("kill -9 {}", b.daemon()));
        b.run(&["umount", "m"]); // which fails, or says that the daemon was dead
        b.mount();
        let left = b.sh("ls -A m/in");
        let begun = left.matches(".pando-receive-").count();
        assert_eq!(begun, usize::from(name != "abort"), "{name}: {left}");
        assert!(left.lines().any(|line| line == "q"), "{name}: {left}");
    }
    assert_eq!(b.json(&["snapshot", "list", "--json", "m/in/q"])["snapshots"].as_array().unwrap().len(), 2);
    same(b.path("m/p/.snapshots/two"), b.path("m/in/q"));
}

/// Who is told that a receive was interrupted, and throws it away, would take it from the one that goes on.
#[test]
fn a_receive_beside_the_same_one_says_that_it_runs() {
    let b = mounted!();
    let whole = sent(&b);
    let mut first = b.command(&["receive", "m/in", "q"]);
    let mut first = first.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stream = first.stdin.take().unwrap();
    stream.write_all(&whole[..whole.len() / 2]).unwrap();
    let waiting = Instant::now();
    // With its tree in it, it has the lock or gets it soon.
    while b.sh("ls -d m/in/.pando-receive-*/q 2> /dev/null || true").is_empty() {
        assert!(waiting.elapsed() < Duration::from_secs(60), "nothing was begun");
    }
    std::thread::sleep(Duration::from_millis(300));
    refused(&b, &["m/in", "q"], &whole, "another process is receiving this");
    stream.write_all(&whole[whole.len() / 2..]).unwrap();
    drop(stream);
    let out = first.wait_with_output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    same(b.path("m/p/.snapshots/one"), b.path("m/in/q"));
    assert_eq!(b.sh("ls -A m/in").trim(), "q");
}
