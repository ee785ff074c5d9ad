//! Who gets what by control requests: from chroots, through bind mounts, in user namespaces, as other users,
//! and with requests that no tool of ours would send.
//!
//! Only root can set these scenes; for others the tests are skipped, and say so.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    fs::{self, File},
    os::unix::{
        fs::{MetadataExt, chown, symlink},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{Bench, has, text};
use pando_fuse::{
    asked::Asked,
    client::{self, ControlError},
    control::{CONTROL_BYTES, ControlRequest, Token, command},
    quotas::QuotaAsked,
    tool::{self, EntryPath},
};
use rustix::fs::{FileType, Mode, RenameFlags, makedev, mkdirat, mknodat, renameat_with};

/// Two ordinary users.
const ANN: u32 = 41_001;
const BOB: u32 = 41_002;

/// A mount that others may use, below a directory that they may enter.
fn scene() -> Option<Bench> {
    let b = Bench::shared("attacker")?;
    b.sh(&format!(
        "for u in {ANN} {BOB}; do mkdir -p m/$u/d/e m/$u/open; echo secret of $u > m/$u/d/e/f; chown -R $u:$u m/$u; chmod 700 m/$u; done"
    ));
    Some(b)
}

/// Runs `program` of the scene's directory with arguments, as a user without further groups.
fn as_user(b: &Bench, uid: u32, line: &[&str]) -> (i32, String) {
    let mut command = Command::new(b.path(line[0]));
    let out = command.args(&line[1..]).current_dir(b.path("")).uid(uid).gid(uid).output().unwrap();
    (out.status.code().unwrap_or(-1), text(&out.stdout) + &text(&out.stderr))
}

fn refused(b: &Bench, uid: u32, line: &[&str], says: &str) {
    let (code, said) = as_user(b, uid, line);
    assert!(code == 1 && said.contains(says), "{line:?} as {uid}: {code}: {said}");
}

fn allowed(b: &Bench, uid: u32, line: &[&str]) {
    let (code, said) = as_user(b, uid, line);
    assert!(code == 0, "{line:?} as {uid}: {code}: {said}");
}

/// Lets a process of its own play `scene` with `args`, started by `wrap` (a program with arguments) as `uid`.
/// What it did comes back: name and error number, 0 for success.
fn attack(b: &Bench, wrap: &[&str], uid: u32, scene: &str, args: &[String]) -> Vec<(String, i32)> {
    let attacker = b.path("attacker");
    let mut command = match wrap {
        [] => Command::new(attacker),
        [program, more @ ..] => {
            let mut command = Command::new(program);
            command.args(more).arg(attacker);
            command
        }
    };
    command.args(["--exact", "rights::attacker", "--nocapture"]).current_dir(b.path(""));
    command.env("PANDO_ATTACK", scene).env("PANDO_ATTACK_ARGS", args.join("\n"));
    let out = command.uid(uid).gid(uid).output().unwrap();
    let said = text(&out.stdout);
    assert!(out.status.success(), "{scene}: {said}{}", text(&out.stderr));
    let result = |line: &str| {
        let (name, errno) = line.strip_prefix("ATTACK ")?.split_once('=')?;
        Some((name.to_owned(), errno.parse().unwrap()))
    };
    let results: Vec<_> = said.lines().filter_map(result).collect();
    assert!(!results.is_empty(), "{scene}: {said}");
    results
}

fn all_refused(results: &[(String, i32)]) {
    for (name, errno) in results {
        assert_ne!(*errno, 0, "{name} went through: {results:?}");
    }
}

fn tell<T, E: std::fmt::Display>(name: &str, result: Result<T, E>, errno: impl Fn(&E) -> Option<i32>) {
    match result {
        Ok(_) => println!("\nATTACK {name}=0"),
        Err(e) => {
            eprintln!("{name}: {e}");
            println!("\nATTACK {name}={}", errno(&e).unwrap_or(-1));
        }
    }
}

/// A request of the first version, which named directories by number and nothing else.
fn by_number(
    magic: &[u8],
    flags: u32,
    names: &[(u64, &str)],
    number: Option<u64>,
) -> Box<[u8; CONTROL_BYTES]> {
    let mut bytes = magic.to_vec();
    bytes.extend_from_slice(&flags.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    for (ino, name) in names {
        bytes.extend_from_slice(&ino.to_le_bytes());
        bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
    }
    bytes.extend_from_slice(&number.unwrap_or(0).to_le_bytes());
    bytes.resize(CONTROL_BYTES, 0);
    let bytes: Box<[u8]> = bytes.into();
    bytes.try_into().unwrap()
}

/// Tries every request that names what the kernel has not walked to: the tree `name` in the directory numbered
/// `there`, into `here`, on a descriptor of `own`; then `own/plant` into `there`.
fn forge(own: &Path, here: u64, there: u64, name: &str, ino: u64) {
    let fd = File::open(own).unwrap();
    let send = |what: &str, command, bytes| {
        let answer = client::raw(&fd, command, bytes);
        // The answer of a daemon that understood carries its own error number.
        let status = answer.as_ref().map_or(-1, |a| i32::from_le_bytes([a[8], a[9], a[10], a[11]]));
        let refusal = answer.and(if status == 0 { Ok(()) } else { Err(client::ControlError::NotPando) });
        tell(what, refusal, |_| Some(status));
    };
    for magic in [b"PANDOct1", b"PANDOct2"] {
        let version = magic[7] as char;
        let at = |names: &[(u64, &str)], number| by_number(magic, 0, names, number);
        let stolen = format!("stolen{version}");
        send("clone in", command::CLONE, at(&[(there, name), (here, &stolen)], None));
        send("plant", command::CLONE, at(&[(here, "plant"), (there, "planted")], None));
        send("usage", command::USAGE, at(&[], Some(ino)));
        send("remove", command::REMOVE, at(&[(there, name)], None));
    }
    // In the language of this version: a token that shows too little.
    let token = || client::token(&fd).unwrap();
    let ask =
        |what, request: ControlRequest| tell(what, client::send(&fd, &request), client::ControlError::errno);
    ask(
        "clone nowhere",
        ControlRequest::Clone {
            token: token(),
            name: "x".into(),
            replace: true,
            track: false,
            exclude: Vec::new(),
        },
    );
    ask("remove nothing", ControlRequest::Remove { token: token(), fork: false });
    // To write to one's own directory makes nobody root, who alone may change what is in it by one message.
    let owner = token();
    let _ = mkdirat(&fd, owner.name(), Mode::RWXU);
    let change = pando_fs::TreeChange { mode: pando_fs::ModeChange::parse("6777", 0), ..Default::default() };
    ask("change a tree", ControlRequest::Change { token: owner, change });
    // A whiteout, which anybody may make, is a device node that makes nobody root either.
    for kind in [FileType::CharacterDevice, FileType::BlockDevice] {
        let whiteout = || {
            let token = token();
            let _ = mknodat(&fd, token.name(), kind, Mode::empty(), 0);
            token
        };
        ask("change by whiteout", ControlRequest::Change { token: whiteout(), change });
        let quotas = ControlRequest::Quota { token: whiteout(), asked: QuotaAsked::List };
        tell("quotas by whiteout", client::piece(&fd, &quotas), client::ControlError::errno);
        let token = whiteout();
        let _ = renameat_with(&fd, "shared", &fd, token.name(), RenameFlags::empty());
        ask("remove by whiteout", ControlRequest::Remove { token, fork: false });
    }
    ask("grow", ControlRequest::Grow { token: token(), size: 1 << 40 });
    for made_up in [Token([0; 16]), Token([255; 16])] {
        ask("made up", ControlRequest::Usage { token: made_up });
    }
    let used = token();
    let _ = client::send(&fd, &ControlRequest::Usage { token: used });
    ask("used", ControlRequest::Usage { token: used });
}

/// Tries what root may do with the snapshot `number` of a directory that is gone, from where its file system is not seen
/// as a whole.
fn of_gone(number: u32) {
    let here = File::open("/").unwrap();
    let errno = ControlError::errno;
    let token = || {
        let token = client::token(&here).unwrap();
        let _root = mknodat(&here, token.name(), FileType::CharacterDevice, Mode::empty(), makedev(1, 3));
        token
    };
    tell("orphans", client::piece(&here, &ControlRequest::Gone { token: token() }), errno);
    for asked in [Asked::Adopt(number, token().0), Asked::DeleteGone(number)] {
        let request = ControlRequest::Snapshot { token: token(), asked };
        tell("of what is gone", client::send(&here, &request), errno);
    }
    tell("orphans by the tool", tool::gone_snapshots(Path::new("/")), errno);
}

/// Not a test: what [`attack`] runs in a process of its own.
#[test]
fn attacker() {
    let Ok(scene) = std::env::var("PANDO_ATTACK") else { return };
    let args = std::env::var("PANDO_ATTACK_ARGS").unwrap();
    let args: Vec<&str> = args.lines().collect();
    let number = |i: usize| args[i].parse::<u64>().unwrap();
    match scene.as_str() {
        "forge" => forge(Path::new(args[0]), number(1), number(2), args[3], number(4)),
        "chroot" => {
            rustix::process::chroot(args[0]).unwrap();
            std::env::set_current_dir("/").unwrap();
            forge(Path::new("/"), number(1), number(2), args[3], number(4));
            of_gone(number(5) as u32);
            // What is inside may be worked with.
            let entry_path = |name: &str| EntryPath::new(Path::new("/"), name.as_ref()).unwrap();
            tool::clone(&entry_path("plant"), &entry_path("inside"), false).unwrap();
            tool::remove(&entry_path("inside"), true).unwrap();
            assert!(tool::usage(Path::new("/plant")).unwrap().visible > 0);
        }
        // Tokens that another process fetched, for which much was shown.
        "token" => {
            let fd = File::open(args[0]).unwrap();
            for hex in &args[1..] {
                let token = Token::from_hex(hex.as_bytes()).unwrap();
                let ask =
                    |what, request| tell(what, client::send(&fd, &request), client::ControlError::errno);
                let shown = mkdirat(&fd, token.name(), Mode::RWXU);
                tell("show", shown, |e| Some(e.raw_os_error()).filter(|e| *e != libc::ECANCELED).or(Some(0)));
                ask(
                    "clone",
                    ControlRequest::Clone {
                        token,
                        name: "x".into(),
                        replace: false,
                        track: false,
                        exclude: Vec::new(),
                    },
                );
                ask("remove", ControlRequest::Remove { token, fork: false });
                ask("usage", ControlRequest::Usage { token });
            }
        }
        "race" => race(Path::new(args[0]), Path::new(args[1])),
        other => panic!("no scene {other}"),
    }
}

/// Clones into a directory that turns into a link to somebody else's and back, all the time.
fn race(own: &Path, secret: &Path) {
    for (name, target) in [("real", own.join("there")), ("away", secret.to_owned())] {
        symlink(target, own.join(name)).unwrap();
    }
    fs::create_dir(own.join("there")).unwrap();
    fs::rename(own.join("real"), own.join("way")).unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let dir = File::open(own).unwrap();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                renameat_with(&dir, "way", &dir, "away", RenameFlags::EXCHANGE).unwrap();
            }
        });
        let (mut done, mut failed) = (0, 0);
        for i in 0..400 {
            let name = format!("clone{i}");
            let attempt = || -> Result<(), client::ControlError> {
                let source = EntryPath::new(&own.join("way"), "d".as_ref())?;
                tool::clone(&source, &EntryPath::new(&own.join("open"), name.as_ref())?, false)?;
                Ok(())
            };
            let source = attempt().is_ok();
            let attempt = || -> Result<(), client::ControlError> {
                let destination = EntryPath::new(&own.join("way"), name.as_ref())?;
                tool::clone(&EntryPath::new(own, "d".as_ref())?, &destination, false)?;
                tool::remove(&destination, true)?;
                Ok(())
            };
            match attempt() {
                Ok(()) => done += 1,
                Err(_) => failed += 1,
            }
            assert!(!source, "a tree was cloned out of another's directory");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        eprintln!("{done} clones, {failed} refused");
        assert!(done > 0, "no clone ever went where it may");
        println!("\nATTACK race={}", i32::from(failed > 0));
    });
}

fn ino(path: PathBuf) -> u64 {
    fs::symlink_metadata(path).unwrap().ino()
}

fn names(path: PathBuf) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn from_a_chroot_on_a_bind_mount_nothing_outside_is_reached() {
    let Some(b) = scene() else { return };
    b.sh("mkdir -p m/jail m/outside/t m/outside/gone jail; echo x > m/outside/t/f; mkdir m/jail/plant; echo y > m/jail/plant/f
          mount --bind m/jail jail; echo z > m/outside/gone/f");
    b.ok(&["snapshot", "create", "m/outside/gone", "s"]);
    b.ok(&["rm", "-r", "m/outside/gone"]);
    let orphans = || b.ok(&["snapshot", "orphans", "-H", "m"]);
    let before = orphans();
    let gone = before.split('\t').next().unwrap().to_owned();
    assert_eq!((before.lines().count(), gone.parse().ok()), (1, Some(1)), "{before}");
    let args = [
        b.path("jail").display().to_string(),
        ino(b.path("m/jail")).to_string(),
        ino(b.path("m/outside")).to_string(),
        "t".to_owned(),
        ino(b.path("m/outside/t")).to_string(),
        gone.clone(),
    ];
    all_refused(&attack(&b, &[], 0, "chroot", &args));
    assert_eq!(names(b.path("m/outside")), ["t"]);
    assert_eq!(names(b.path("m/jail")), ["plant"]);
    assert_eq!(orphans(), before);
    assert!(!b.path("m/jail/.snapshots").exists());
    // Who sees the file system as a whole may name it by a part.
    assert_eq!(b.ok(&["snapshot", "orphans", "-H", "jail"]).lines().count(), 1);
    b.ok(&["snapshot", "adopt", "jail/plant", &gone]);
    assert_eq!(b.sh("cat m/jail/plant/.snapshots/s/f"), "z\n");
    b.ok(&["rm", "-r", "m/jail/plant"]);
    b.ok(&["snapshot", "orphans", "--delete", "jail"]);
    assert_eq!(orphans(), "");
    b.sh("umount jail");
}

#[test]
fn through_a_read_only_bind_mount_nothing_is_changed() {
    let Some(b) = scene() else { return };
    b.sh(
        "mkdir -p ro m/t/d m/jail/plant; echo x > m/t/d/f; mount --bind m/t ro; mount -o remount,bind,ro ro",
    );
    for line in [
        &["clone", "ro/d", "ro/e"][..],
        &["clone", "--replace", "ro/d/f", "ro/d"],
        &["clone", "m/jail", "ro/jail"],
        &["rm", "-r", "ro/d"],
        &["rm", "ro/d/f"],
        &["grow", "--size", "512M", "ro"],
    ] {
        b.fails(line, 1, "ead-only");
    }
    let args = [
        b.path("ro").display().to_string(),
        ino(b.path("m/jail")).to_string(),
        ino(b.path("m/t")).to_string(),
        "d".to_owned(),
        ino(b.path("m/t/d")).to_string(),
    ];
    all_refused(&attack(&b, &[], 0, "forge", &args));
    assert_eq!((names(b.path("m/t")), names(b.path("m/jail"))), (vec!["d".into()], vec!["plant".into()]));
    // Reading is no change.
    b.ok(&["clone", "ro/d", "m/copy"]);
    b.ok(&["du", "ro/d"]);
    assert_eq!(fs::read(b.path("m/copy/f")).unwrap(), b"x\n");
    b.sh("umount ro");
}

#[test]
fn an_ordinary_user_gets_nothing_that_the_kernel_would_refuse() {
    let Some(b) = scene() else { return };
    let (ann, bob) = (format!("m/{ANN}"), format!("m/{BOB}"));
    b.sh(&format!("mkdir {ann}/plant; chown {ANN}:{ANN} {ann}/plant"));
    let args = [
        b.path(&ann).display().to_string(),
        ino(b.path(&ann)).to_string(),
        ino(b.path(&bob)).to_string(),
        "d".to_owned(),
        ino(b.path(&format!("{bob}/d"))).to_string(),
    ];
    all_refused(&attack(&b, &[], ANN, "forge", &args));
    assert_eq!(names(b.path(&bob)), ["d", "open"]);
    assert_eq!(names(b.path(&ann)), ["d", "open", "plant"]);
    // By paths: another's tree, into another's directory, out of it, what it takes.
    let below = |path: &str| format!("{bob}/{path}");
    refused(&b, ANN, &["pando", "clone", &below("d"), "m/x"], "ermission denied");
    refused(&b, ANN, &["pando", "clone", &format!("{ann}/d"), &below("x")], "ermission denied");
    refused(&b, ANN, &["pando", "clone", &bob, "m/x"], "ermission denied");
    refused(&b, ANN, &["pando", "rm", "-r", &below("d")], "ermission denied");
    refused(&b, ANN, &["pando", "du", &below("d")], "ermission denied");
    refused(&b, ANN, &["pando", "du", "m"], "may not look into");
    // What may be read may not be cloned: that is for owners.
    b.sh(&format!("chmod 755 {bob} {bob}/d"));
    refused(&b, ANN, &["pando", "clone", &below("d"), "m/x"], "only its owner");
    refused(&b, ANN, &["pando", "clone", &below("d/e/f"), "m/x"], "only its owner");
    allowed(&b, ANN, &["pando", "du", &below("d")]);
    // The sticky bit, and directories of others inside.
    refused(&b, ANN, &["pando", "rm", "-r", &bob], "not permitted");
    refused(&b, ANN, &["pando", "clone", "--replace", &format!("{ann}/d"), &bob], "not permitted");
    b.sh(&format!(
        "mkdir -p m/mixed/a/b; echo x > m/mixed/a/b/f; chown -R {ANN} m/mixed; chown {BOB} m/mixed/a/b"
    ));
    refused(&b, ANN, &["pando", "rm", "-r", "m/mixed"], "mixed/a/b: holds entries");
    refused(&b, ANN, &["pando", "clone", "--replace", &format!("{ann}/d"), "m/mixed"], "mixed/a/b: holds");
    refused(&b, ANN, &["pando", "grow", "--size", "512M", "m"], "only root");
    assert!(b.path("m/mixed/a/b/f").exists() && b.path(&below("d/e/f")).exists());
    // And what is allowed works: also by those who may only search a directory on the way.
    allowed(&b, ANN, &["pando", "clone", &format!("{ann}/d"), "m/by-ann"]);
    allowed(&b, ANN, &["pando", "clone", "--replace", &format!("{ann}/open"), "m/by-ann"]);
    allowed(&b, ANN, &["pando", "rm", "-r", "m/by-ann"]);
    b.sh(&format!(
        "mkdir m/search; ln -s target m/search/l; mkdir m/search/mine; mkfifo m/search/p; echo x > m/search/f
         chown -h {ANN} m/search/*; chmod 000 m/search/f; chmod 711 m/search; mkdir m/drop; chmod 733 m/drop"
    ));
    for name in ["l", "p", "mine", "f"] {
        allowed(&b, ANN, &["pando", "clone", &format!("m/search/{name}"), &format!("m/drop/{name}")]);
    }
    assert_eq!(fs::read_link(b.path("m/drop/l")).unwrap(), Path::new("target"));
    assert_eq!(fs::read(b.path("m/drop/f")).unwrap(), b"x\n");
    refused(&b, BOB, &["pando", "clone", "m/search/p", "m/drop/theirs"], "not permitted");
    refused(&b, ANN, &["pando", "rm", "-r", "m/search/mine"], "ermission denied");
    allowed(&b, ANN, &["pando", "rm", "-r", "m/drop/mine"]);
}

#[test]
fn who_is_root_in_a_user_namespace_only_is_no_root() {
    let Some(b) = scene() else { return };
    if !has("unshare") || !Command::new("unshare").args(["-U", "true"]).status().unwrap().success() {
        eprintln!("SKIPPED: no user namespaces here");
        return;
    }
    let bob = format!("m/{BOB}");
    b.sh(&format!("mkdir m/shared; chmod 777 m/shared; cp -a m/{BOB}/d m/shared/theirs; chmod 755 m/shared/theirs
                   mkdir -p m/shared/mine/a; mkdir m/shared/mine/a/b; echo x > m/shared/mine/a/b/f; chown {BOB} m/shared/mine/a/b"));
    let pando = b.path("pando").display().to_string();
    for flags in [&["-U"][..], &["-U", "-r"]] {
        let run = |line: &[&str]| {
            let out = Command::new("unshare")
                .args(flags)
                .arg(&pando)
                .args(line)
                .current_dir(b.path(""))
                .output()
                .unwrap();
            (out.status.code(), text(&out.stderr))
        };
        for line in [
            &["clone", "m/shared/theirs", "m/shared/x"][..],
            &["clone", "m/shared/theirs/e/f", "m/shared/x"],
            &["clone", &bob, "m/shared/x"],
            &["rm", "-r", &format!("{bob}/d")],
            &["rm", "-r", "m/shared/mine"],
            &["rm", "-r", &bob],
            &["clone", "--replace", "m/shared/mine", &bob],
            &["du", "m"],
            &["du", &bob],
        ] {
            let (code, said) = run(line);
            assert_eq!(code, Some(1), "unshare {flags:?} pando {line:?}: {said}");
        }
        // As its own user it may still do what that user may.
        assert_eq!(run(&["clone", "m/shared/mine", "m/shared/x"]), (Some(0), String::new()));
        b.ok(&["rm", "-r", "m/shared/x"]);
        let args = [
            b.path("m").display().to_string(),
            ino(b.path("m")).to_string(),
            ino(b.path(&bob)).to_string(),
            "d".to_owned(),
            ino(b.path(&format!("{bob}/d"))).to_string(),
        ];
        let wrap: Vec<&str> = ["unshare"].iter().chain(flags).copied().collect();
        all_refused(&attack(&b, &wrap, 0, "forge", &args));
    }
    assert_eq!(names(b.path(&bob)), ["d", "open"]);
    assert_eq!(names(b.path("m/shared")), ["mine", "theirs"]);
    // And true root may do all of it.
    b.ok(&["clone", "m/shared/theirs", "m/shared/x"]);
    b.ok(&["du", "m"]);
    b.ok(&["rm", "-r", "m/shared/mine", &bob]);
}

#[test]
fn a_token_is_worth_nothing_to_others() {
    let Some(b) = scene() else { return };
    let own = b.path(&format!("m/{ANN}"));
    let fd = File::open(b.path("m")).unwrap();
    let tokens: Vec<Token> = (0..3).map(|_| client::token(&fd).unwrap()).collect();
    for token in &tokens {
        let e = mkdirat(&fd, token.name(), Mode::RWXU).unwrap_err();
        assert_eq!(e.raw_os_error(), libc::ECANCELED);
    }
    let mut args = vec![own.display().to_string()];
    args.extend(tokens.iter().map(Token::hex));
    all_refused(&attack(&b, &[], ANN, "token", &args));
    args[0] = b.path("m").display().to_string();
    all_refused(&attack(&b, &[], 0, "token", &args));
    // Names of tokens exist for nobody.
    for token in &tokens {
        let path = b.path("m").join(token.name());
        assert_eq!(fs::symlink_metadata(&path).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
    let stale = b.path("m").join(Token([7; 16]).name());
    assert_eq!(fs::create_dir(&stale).unwrap_err().raw_os_error(), Some(libc::EKEYEXPIRED));
    assert!(fs::write(&stale, "").is_err() && symlink("x", &stale).is_err());
    assert!(fs::rename(b.path(&format!("m/{ANN}")), &stale).is_err());
    assert_eq!(names(b.path("m")), [ANN.to_string(), BOB.to_string()]);
}

#[test]
fn what_is_swapped_between_proof_and_request_stays() {
    let Some(b) = scene() else { return };
    b.sh("mkdir -p m/d m/precious m/src; echo x > m/d/f; echo y > m/precious/f; echo z > m/src/f");
    let fd = File::open(b.path("m/src")).unwrap();
    let dir = File::open(b.path("m")).unwrap();
    let shown = || {
        let token = client::token(&fd).unwrap();
        let e = renameat_with(&dir, "d", &dir, token.name(), RenameFlags::NOREPLACE).unwrap_err();
        assert_eq!(e.raw_os_error(), libc::ECANCELED);
        token
    };
    for request in [
        |token| ControlRequest::Remove { token, fork: false },
        |token| ControlRequest::Clone {
            token,
            name: "d".into(),
            replace: true,
            track: false,
            exclude: Vec::new(),
        },
    ] {
        let token = shown();
        b.sh("mv m/d m/away; mv m/precious m/d");
        let e = client::send(&fd, &request(token)).unwrap_err();
        assert_eq!(e.errno(), Some(libc::ESTALE), "{e}");
        b.sh("mv m/d m/precious; mv m/away m/d; test $(cat m/precious/f) = y; test $(cat m/d/f) = x");
    }
    // The source is the one that was opened, wherever it is by then.
    let token = client::token(&fd).unwrap();
    assert!(mkdirat(&dir, token.name(), Mode::RWXU).is_err());
    b.sh("mv m/src m/d/moved; mkdir m/src; echo wrong > m/src/f");
    client::send(
        &fd,
        &ControlRequest::Clone {
            token,
            name: "copy".into(),
            replace: false,
            track: false,
            exclude: Vec::new(),
        },
    )
    .unwrap();
    assert_eq!(fs::read(b.path("m/copy/f")).unwrap(), b"z\n");
    drop((fd, dir));
}

#[test]
fn a_link_put_in_the_way_leads_nobody_in() {
    let Some(b) = scene() else { return };
    let (ann, bob) = (b.path(&format!("m/{ANN}")), b.path(&format!("m/{BOB}")));
    chown(ann.join("open"), Some(ANN), Some(ANN)).unwrap();
    let args = [ann.display().to_string(), bob.display().to_string()];
    let results = attack(&b, &[], ANN, "race", &args);
    assert_eq!(results, [("race".to_owned(), 1)], "the link was never in the way");
    assert_eq!(names(bob), ["d", "open"]);
    assert_eq!(names(ann.join("open")), Vec::<String>::new());
}

#[test]
fn an_ordinary_user_sends_and_receives_what_is_his() {
    let Some(b) = scene() else { return };
    let sh = |uid: u32, script: &str| {
        let out = Command::new("sh")
            .args(["-c", script])
            .current_dir(b.path(""))
            .uid(uid)
            .gid(uid)
            .output()
            .unwrap();
        (out.status.success(), text(&out.stdout) + &text(&out.stderr))
    };
    let fine = |uid, script: &str| {
        let (done, said) = sh(uid, script);
        assert!(done, "{script}: {said}");
    };
    let fails = |uid, script: &str, says: &str| {
        let (done, said) = sh(uid, script);
        assert!(!done && said.contains(says), "{script}: {said}");
    };
    b.sh("mkdir -m 1777 out");
    fine(ANN, &format!("./pando snapshot create m/{ANN}/d one; ./pando send m/{ANN}/d@one > out/one"));
    fine(ANN, &format!("./pando receive m/{ANN} copy < out/one && cmp m/{ANN}/d/e/f m/{ANN}/copy/e/f"));
    // What somebody else owns he cannot make, and what he may not look into he cannot send.
    fails(BOB, &format!("./pando receive m/{BOB} copy < out/one"), "not permitted");
    assert_eq!(b.sh(&format!("ls -A m/{BOB}")).trim(), "d\nopen", "nothing is left");
    fails(BOB, &format!("./pando receive m/{ANN} other < out/one"), "ermission denied");
    fails(BOB, &format!("./pando send m/{ANN}/d@one > out/bob"), "ermission denied");
    b.sh(&format!("./pando snapshot create m/{ANN}/d two"));
    fails(ANN, &format!("./pando send -i @one m/{ANN}/d@two > out/ann"), "-i needs root");
    b.sh(&format!("./pando send -i @one m/{ANN}/d@two > out/two; ./pando receive m/{ANN} copy < out/two"));
    b.sh(&format!(
        "mkdir m/{ANN}/d/closed; chmod 0 m/{ANN}/d/closed; ./pando snapshot create m/{ANN}/d three"
    ));
    fails(ANN, &format!("./pando send m/{ANN}/d@three > out/three"), "closed");
}

/// Runs a line of the shell as a user.
fn sh_as(b: &Bench, uid: u32, line: &str) -> (i32, String) {
    let mut command = Command::new("sh");
    let out = command.args(["-c", line]).current_dir(b.path("")).uid(uid).gid(uid).output().unwrap();
    (out.status.code().unwrap_or(-1), text(&out.stdout) + &text(&out.stderr))
}

fn token_in(said: &str) -> String {
    let (_, rest) = said.split_once("--resume ").unwrap_or_else(|| panic!("{said}"));
    rest.split_whitespace().next().unwrap().to_owned()
}

/// A stream `one.s` of `m/p`, a tree of Ann's in which all files and directories are read-only.
fn read_only_tree(b: &Bench) {
    b.sh(&format!(
        "mkdir m/p; for d in a b c d e f; do mkdir -p m/p/$d/in
           for i in 1 2 3 4; do head -c 300000 /dev/urandom > m/p/$d/f$i; ln m/p/$d/f$i m/p/$d/in/l$i; done
           ln -s f1 m/p/$d/soft; mkfifo m/p/$d/pipe
           setfattr -n user.what -v ever m/p/$d m/p/$d/f1 2>/dev/null || true; done
         find m/p -type f -exec chmod 444 {{}} +; find m/p -mindepth 1 -type d -exec chmod 555 {{}} +
         chown -hR {ANN}:{ANN} m/p"
    ));
    b.ok(&["snapshot", "create", "m/p", "one"]);
    b.sh("./pando send --level 0 m/p@one > one.s; chmod 644 one.s");
}

/// What was done behind the last note is done again, over files and directories that are finished, so read-only.
#[test]
fn an_ordinary_user_goes_on_over_read_only_files_and_directories() {
    let Some(b) = scene() else { return };
    read_only_tree(&b);
    let size = fs::metadata(b.path("one.s")).unwrap().len();
    let part = |n: u64| size * n / 10;
    let (code, said) = sh_as(&b, ANN, &format!("head -c {} one.s | ./pando receive m/{ANN} q", part(3)));
    assert_eq!(code, 1, "{said}");
    let token = token_in(&said);
    for n in [6, 9] {
        // Killed when it has done more than is noted.
        let line = format!(
            "(head -c {} one.s; sleep 2) | (./pando receive --resume {token} m/{ANN} q & p=$!; sleep 1; kill -9 $p; wait $p)",
            part(n)
        );
        // A background job has no input of its own in a script, so it is given this one.
        let line = line.replace(" q &", " q <&3 &").replace("| (", "| (exec 3<&0; ");
        let (code, said) = sh_as(&b, ANN, &line);
        assert_eq!(code, 137, "{said}");
    }
    let (code, said) = sh_as(&b, ANN, &format!("./pando receive --resume {token} m/{ANN} q < one.s"));
    assert_eq!(code, 0, "{said}");
    let q = format!("m/{ANN}/q");
    crate::common::same(b.path("m/p"), b.path(&q));
    assert_eq!(b.sh(&format!("stat -c %h {q}/c/f1 {q}/f/in/l4")), "2\n2\n", "linked");

    // A difference changes what is in them.
    b.sh(&format!(
        "cd m/p; echo more >> a/f1; echo new > b/new; rm c/f2 d/soft; mv e/f3 f/moved; mkdir a/in/dir
         setfattr -n user.what -v other b b/f1 2>/dev/null || true; chmod 444 b/new; chmod 555 a/in/dir; chown -hR {ANN}:{ANN} ."
    ));
    b.ok(&["snapshot", "create", "m/p", "two"]);
    b.sh("./pando send -i @one m/p@two > two.s; chmod 644 two.s");
    let (code, said) = sh_as(&b, ANN, &format!("./pando receive m/{ANN} q < two.s"));
    assert_eq!(code, 0, "{said}");
    crate::common::same(b.path("m/p"), b.path(&q));
    assert_eq!(b.sh(&format!("ls -A m/{ANN}")), "d\nopen\nq\n");
}

/// Root goes on in a directory of others: what they have put where it works is not followed.
#[test]
fn a_receive_does_not_follow_what_others_have_planted() {
    let Some(b) = scene() else { return };
    read_only_tree(&b);
    let size = fs::metadata(b.path("one.s")).unwrap().len();
    let dir = format!("m/{BOB}/open");
    let part = format!("head -c {} one.s", size / 2);
    let (_, said) = sh_as(&b, 0, &format!("{part} | ./pando receive {dir} q"));
    let token = token_in(&said);
    let begun = format!("{dir}/.pando-receive-{token}");
    fs::write(b.path("precious"), "precious").unwrap();
    let precious = b.path("precious");
    b.sh(&format!("ln -s {} {begun}/.pando-note-new", precious.display()));
    let more = format!("head -c {} one.s | ./pando receive --resume {token} {dir} q", size * 3 / 4);
    for (plant, back) in [
        (format!("chown {BOB} {begun}"), format!("chown 0 {begun}")),
        (format!("chmod 777 {begun}"), format!("chmod 700 {begun}")),
        (format!("mv {begun} {dir}/x; ln -s x {begun}"), format!("rm {begun}; mv {dir}/x {begun}")),
    ] {
        b.sh(&plant);
        let before = b.sh(&format!("find {dir} -printf '%P %l %U %m %s %T@\\n'"));
        let (code, said) = sh_as(&b, 0, &more);
        assert!(code == 1 && !said.contains("--from"), "{plant}: {said}");
        let (code, _) = sh_as(&b, 0, &format!("./pando receive --abort {token} {dir} q"));
        assert_eq!(code, 1, "{plant}");
        assert_eq!(b.sh(&format!("find {dir} -printf '%P %l %U %m %s %T@\\n'")), before);
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious", "{plant}");
        b.sh(&back);
    }
    // A link in a place that is its own leads nowhere either.
    let (_, said) = sh_as(&b, 0, &more);
    assert!(said.contains("--from"), "{said}");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    let (code, said) = sh_as(&b, 0, &format!("./pando receive --resume {token} {dir} q < one.s"));
    assert_eq!(code, 0, "{said}");
    crate::common::same(b.path("m/p"), b.path(&format!("{dir}/q")));
}

#[test]
fn a_receive_that_cannot_begin_leaves_nothing() {
    let Some(b) = scene() else { return };
    read_only_tree(&b);
    // The directory is hers now, but she may not look into what it was.
    b.sh("chown -hR 0:0 m/p; chmod 700 m/p");
    b.ok(&["snapshot", "create", "m/p", "base"]);
    b.sh("echo new > m/p/new");
    b.ok(&["snapshot", "create", "m/p", "two"]);
    b.sh(&format!(
        "./pando send m/p@base | ./pando receive m/{ANN} q; chown {ANN} m/{ANN}/q; ./pando send -i @base m/p@two > two.s; chmod 644 two.s"
    ));
    let (code, said) = sh_as(&b, ANN, &format!("./pando receive m/{ANN} q < two.s"));
    assert_eq!(code, 1, "{said}");
    assert_eq!(b.sh(&format!("ls -A m/{ANN}")), "d\nopen\nq\n", "{said}");
}

/// As on other file systems: the kernel knows which set-group-id bits root of a container may give and keep.
#[test]
fn root_of_a_container_keeps_set_group_id_bits() {
    let Some(b) = scene() else { return };
    let has_all = ["unshare", "nsenter", "setpriv", "setfacl", "perl"].into_iter().all(has);
    if !has_all || !Command::new("unshare").args(["-U", "true"]).status().unwrap().success() {
        eprintln!("SKIPPED: needs user namespaces, setfacl and perl");
        return;
    }
    b.sh("mkdir m/c; chown 100000:100000 m/c");
    let inside =
        "cd m/c; umask 0; mkdir d e; touch f; chown 0:1000 d e f; chmod 2775 d; chmod 2777 e; chmod 6775 f;
        setfacl -m u:7:rwx d f;
        perl -e \"use Fcntl; sysopen(F, q(e/g), O_CREAT|O_WRONLY, 02755) or die\";
        setfacl -d -m u:7:rwx e;
        perl -e \"use Fcntl; sysopen(F, q(e/h), O_CREAT|O_WRONLY, 02755) or die\";
        stat -c %a d f e/g e/h";
    let modes = b.sh(&format!(
        "unshare -U sleep 60 & pid=$!; trap 'kill $pid' EXIT
         until [ \"$(readlink /proc/$pid/ns/user)\" != \"$(readlink /proc/self/ns/user)\" ]; do sleep 0.05; done
         echo 0 100000 65536 > /proc/$pid/uid_map; echo 0 100000 65536 > /proc/$pid/gid_map
         nsenter -U -t $pid -S 0 -G 0 sh -ec '{inside}'"
    ));
    assert_eq!(modes.split_whitespace().collect::<Vec<_>>(), ["2775", "6775", "2755", "2755"]);
    // Who is no member of the group does not.
    b.sh(&format!("touch m/open; chown {BOB}:1000 m/open; chmod 2755 m/open"));
    b.sh(&format!("setpriv --reuid {BOB} --regid {BOB} --clear-groups setfacl -m u:7:rwx m/open"));
    assert_eq!(b.sh("stat -c %a m/open").trim(), "775");
}

#[test]
fn what_is_mounted_in_a_tree_stays_mounted() {
    let Some(b) = scene() else { return };
    let at = |name: &str| format!("m/{ANN}/{name}");
    let (w, fork, open) = (at("w"), at("fork"), at("open"));
    b.sh(&format!("mkdir -p {w}/in/mnt {w}/in/else; chown -R {ANN}:{ANN} {w}"));
    allowed(&b, ANN, &["pando", "snapshot", "create", &w, "s"]);
    allowed(&b, ANN, &["pando", "fork", &w, &fork]);
    b.sh(&format!("rm -r {fork}/in; touch {fork}/new; chown {ANN}:{ANN} {fork}/new"));
    let calls: [&[&str]; 4] = [
        &["pando", "rollback", &w, "s"],
        &["pando", "clone", "--replace", &open, &w],
        &["pando", "merge", &fork],
        &["pando", "rm", "-r", &w],
    ];
    let says = "in/mnt: something is mounted on it";
    b.sh(&format!("mount -t tmpfs kept {w}/in/mnt && touch {w}/in/mnt/there"));
    for call in calls {
        let (code, said) = as_user(&b, ANN, call);
        assert!(code == 4 && said.contains(says), "{call:?}: {code}: {said}");
        b.sh(&format!("mountpoint -q {w}/in/mnt && test -e {w}/in/mnt/there"));
    }
    b.sh(&format!("umount {w}/in/mnt"));
    // One that only the caller sees, in a namespace of its own, through another mount of the file system.
    let own = format!(
        "mount --bind m/{ANN} open && mount -t tmpfs kept open/w/in/mnt && ./pando rm -r open/w 2> said || cat said
         mountpoint -q open/w/in/mnt && echo stays"
    );
    let said = b.sh(&format!("mkdir open; unshare -m sh -ec '{own}'"));
    assert!(said.contains(says) && said.contains("stays"), "{said}");
    // Beside it all is as before, and so it is afterwards.
    b.sh(&format!("mount -t tmpfs kept {open}"));
    for call in calls.iter().filter(|call| call[1] != "clone") {
        allowed(&b, ANN, call);
    }
    b.sh(&format!("umount {open}"));
    assert!(!b.path(&w).exists());
}

/// He was told that no file system is mounted there.
#[test]
fn who_may_not_unmount_is_told_that() {
    let Some(b) = scene() else { return };
    for more in [&[][..], &["-l"]] {
        let line = [&["pando", "umount"], more, &["m"]].concat();
        refused(&b, ANN, &line, "it is mounted, but only root may unmount it");
        assert!(!as_user(&b, ANN, &line).1.contains("no file system"));
    }
    assert_eq!(b.sh(&format!("cat m/{ANN}/d/e/f")), format!("secret of {ANN}\n"));
    b.umount();
    refused(&b, ANN, &["pando", "umount", "m"], "no file system is mounted there");
}
