//! `pando cp` beside `cp -a`: names of one file stay names of one file, and what fails stops nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt};

use crate::common::{Bench, has, text};

/// Which names below a directory are of one file, and how many names each has.
fn names(b: &Bench, dir: &str) -> Vec<(Vec<String>, u64)> {
    let found = b.sh(&format!("cd {dir}; find . -type f | sort"));
    let mut groups: BTreeMap<u64, (Vec<String>, u64)> = BTreeMap::new();
    for name in found.lines() {
        let meta = fs::symlink_metadata(b.path(dir).join(name)).unwrap();
        let group = groups.entry(meta.ino()).or_insert((Vec::new(), meta.nlink()));
        group.0.push(name.to_owned());
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort();
    groups
}

#[test]
fn names_of_one_file_are_names_of_one_file_in_the_copy() {
    let b = mounted!();
    b.sh("cd m; mkdir -p src/d/e src/deep/in other; echo a > src/f; ln src/f src/g; ln src/f src/d/h; echo b > src/single
        echo c > other/x; ln other/x other/y; touch -d @5 src/f; mkdir -p l1/a/b l1/whole l2/c
        echo d > l1/a/b/x; ln l1/a/b/x l2/c/y; ln l1/a/b/x l1/z; echo e > l1/whole/1; ln l1/whole/1 l1/whole/2
        ln l1/a/b/x outside; mkfifo l1/a/p; ln -s x l2/l; chmod 2751 l1/a; chown 7:8 l1/a 2> /dev/null || true
        find l1 l2 src other -depth -exec touch -h -d @4 {} +");
    let pando = env!("CARGO_BIN_EXE_pando");
    // Into an empty directory, into one that has the directory, and over files that are there, one of them linked.
    for (number, line) in [
        "cp -a src/f src/g src/single TO",
        "mkdir TO/d; cp -a src/. TO/",
        "mkdir TO/d; (cd src; cp -a f g d single ../TO)",
        "mkdir TO/d; echo old > TO/g; echo old > TO/d/h; ln TO/g TO/z; touch -d @6 TO/z; cp -a src/. other/x other/y TO",
        "mkdir TO/d; cp -a src/f src/d TO; cp -a src/f src/g TO",
        "cp -a src/f TO; cp -an src/f src/g TO",
        "cp -a src/f src/d src/g TO",
        "cp -a l1 l2 TO",
        "cp -a l2 l1 TO",
        "cp -a l1/a l1/z l1/whole TO",
        "cp -a l1/. TO; cp -a l2/. TO",
        "mkdir -p TO/l2/c; echo old > TO/l2/c/y; cp -a l1 l2 TO",
        "mkdir -p TO/l1; cp -a l1 TO",
        "ln src/f src/e; cp -a src/e src/f TO; cp -a src/f src/e TO; rm src/e",
    ]
    .iter()
    .enumerate()
    {
        for (name, program) in [("cp", "cp"), ("pando", &format!("{pando} cp"))] {
            let to = format!("{name}{number}");
            let line = line.replace("cp -a", &format!("{program} -a")).replace("TO", &to);
            b.sh(&format!("cd m; mkdir {to}; {line}; touch -d @3 {to}"));
        }
        let (theirs, ours) = (format!("m/cp{number}"), format!("m/pando{number}"));
        crate::common::same(b.path(&theirs), b.path(&ours));
        let told = names(&b, &ours);
        assert_eq!(told, names(&b, &theirs), "{line}");
    }
    // Nor is a copy that another argument has replaced taken for it.
    b.sh(&format!(
        "cd m; mkdir -p re/d p/d q/d; echo a > p/d/f; ln p/d/f p/g; echo other > q/d/f
        {pando} cp -a p/d q/d p/g re"
    ));
    assert_eq!(b.sh("cat m/re/d/f m/re/g"), "other\na\n");
    let out = b.run(&["cp", "-a", "m/src", "m/other"]);
    assert!(out.status.success() && out.stderr.is_empty(), "{}", text(&out.stderr));
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// What is between the names of a file is made anew, with all that belongs to it, and the rest is cloned.
#[test]
fn directories_between_the_names_of_a_file_are_as_they_were() {
    let b = mounted!();
    if !has("setfattr") || !has("setfacl") {
        return;
    }
    b.sh("cd m; mkdir -p a/in a/big b to; echo x > a/in/f; ln a/in/f b/f; seq 100 > a/big/f
        setfattr -n user.long -v \"$(head -c 3000 /dev/zero | tr '\\0' x)\" a/in; setfattr -n user.a -v 1 a
        setfacl -d -m u:7:rwx to; setfacl -m u:8:rx,d:u:9:rwx a/in; touch -d @5 a/in a b; mkdir to/empty; touch -d @5 to");
    let out = b.run(&["cp", "-av", "m/a", "m/b", "m/to"]);
    assert!(out.status.success() && out.stderr.is_empty(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("m/a/big -> m/to/a/big\n"), "{}", text(&out.stdout));
    crate::common::same(b.path("m/a"), b.path("m/to/a"));
    let all = |top: &str| b.sh(&format!("cd {top}; getfattr -dm - a a/in b; getfacl a a/in a/big b a/in/f"));
    assert_eq!(all("m"), all("m/to"));
    let (a, z) = (b.path("m/to/a/in/f"), b.path("m/to/b/f"));
    let number = |path| fs::symlink_metadata(path).map(|meta| (meta.ino(), meta.nlink())).unwrap();
    assert!(number(a) == number(z));
    b.umount();
    b.ok(&["check", "a.img"]);
}

#[test]
fn what_cannot_be_copied_keeps_nothing_else_from_being_copied() {
    let b = mounted!();
    b.sh(
        "cd m; mkdir -p s/sub/x; echo f > s/x; echo g > s/y; echo g > s/z; echo h > s/sub/a; echo h > s/sub/z
        touch -d @5 s s/sub",
    );
    let pando = env!("CARGO_BIN_EXE_pando");
    for (number, line) in [
        "cp -a missing s/y TO",
        "cp -a s/y missing TO",
        "cp -a s/. TO",
        "cp -a s/x s/sub s/z TO",
        "cp -an s/. TO",
        "cp -an s/x s/y s/sub TO",
        "cp -aT s/x TO",
        "cp -anT s/x TO",
    ]
    .iter()
    .enumerate()
    {
        let mut codes = Vec::new();
        for (name, program) in [("cp", "cp"), ("pando", &format!("{pando} cp"))] {
            let to = format!("{name}{number}");
            let line = line.replace("cp -a", &format!("{program} -a")).replace("TO", &to);
            // A directory where a file is to go, and a file where a directory is to go.
            b.sh(&format!("cd m; mkdir -p {to}/x {to}/sub; echo old > {to}/sub/x; touch -d @9 {to}/sub {to}/sub/x {to}/x"));
            codes.push(b.sh(&format!("cd m; {line} 2> said && echo 0 || echo $?; touch -d @3 {to}")));
            if line.contains(" -an") {
                // Where cp gives a directory that was there the times of the source, and this leaves it alone.
                b.sh(&format!("touch -d @3 m/{to}/sub"));
            }
            let said = fs::read_to_string(b.path("m/said")).unwrap();
            assert_eq!(said.is_empty(), codes[0] == "0\n", "{line}: {said}");
        }
        assert_eq!(codes[0], codes[1], "{line}");
        crate::common::same(b.path(&format!("m/cp{number}")), b.path(&format!("m/pando{number}")));
    }
}

#[test]
fn output_that_cannot_be_written_keeps_nothing_from_being_copied() {
    let b = mounted!();
    b.sh("cd m; mkdir -p a/in b to; echo x > a/in/f; ln a/in/f b/f; echo y > b/g; chmod 711 a");
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let out = b.command(&["cp", "-av", "m/a", "m/b", "m/to"]).stdout(full).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    assert_eq!(text(&out.stderr).matches("write error").count(), 1, "{}", text(&out.stderr));
    for dir in ["a", "b"] {
        crate::common::same(b.path(&format!("m/{dir}")), b.path(&format!("m/to/{dir}")));
    }
}

/// A directory whose owner may clone it with what others have in it is one clone then, and links out of it are lost.
#[test]
fn what_only_a_clone_may_copy_is_cloned() {
    /// An ordinary user.
    const ANN: u32 = 41_021;
    let Some(b) = Bench::shared("copier") else { return };
    b.sh(&format!(
        "cd m; mkdir -p t/in u to; echo x > t/in/f; ln t/in/f u/f; echo root > t/in/other; mkdir -p v w
         echo z > v/f; ln v/f w/f; chown -R {ANN}:{ANN} t u to v w; chown 0:0 t/in/other
         chgrp 0 v; chmod 2770 v; chmod 3711 w"
    ));
    let ann = |line: &str| {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new("sh");
        command.args(["-c", line]).current_dir(b.path("")).uid(ANN).gid(ANN).output().unwrap()
    };
    let out = ann("./pando cp -a m/t m/u m/to");
    let said = text(&out.stderr);
    assert!(out.status.success() && said.contains("pando: cp: m/t: not all in it is yours"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    crate::common::same(b.path("m/t"), b.path("m/to/t"));
    assert_eq!(b.sh("cat m/to/u/f"), "x\n");
    // No set-id bit for a group that the directory was not of.
    let out = ann("./pando cp -a m/v m/w m/to");
    assert!(out.status.success() && out.stderr.is_empty(), "{}", text(&out.stderr));
    let modes = b.sh("stat -c '%a %u:%g' m/to/v m/to/w; stat -c %h m/to/v/f");
    assert_eq!(modes, format!("770 {ANN}:{ANN}\n3711 {ANN}:{ANN}\n2\n"));
    // Nor does a link lead root elsewhere.
    b.sh("mkdir -p m/dst m/else; ln -s ../else m/dst/v");
    let out = b.run(&["cp", "-a", "m/v", "m/w", "m/dst"]);
    assert!(
        !out.status.success() && text(&out.stderr).contains("dst/v: is not a directory"),
        "{}",
        text(&out.stderr)
    );
    assert_eq!(b.sh("ls m/else"), "");
    b.umount();
    b.ok(&["check", "a.img"]);
}

/// The link itself became the copy, and what it led to stayed as it was.
#[test]
fn a_file_goes_through_a_link_that_is_named_as_cp_has_it() {
    let b = mounted!();
    let make = "rm -rf t; mkdir -p t/dir t/in; echo new > t/f; echo old > t/to; echo two > t/names; ln t/names t/name2
        ln -s to t/link; ln -s link t/far; ln -s names t/linked; ln -s nowhere t/dangling; ln -s dir t/at
        ln -s f t/own; ln -s /elsewhere t/sym; ln -s ../to t/in/f; chmod 640 t/f";
    let show =
        "cd t && find . -printf '%p %y %m %n %l\n' | sort && cat to names name2 f && cat link far linked";
    let cases = [
        "t/f t/link",
        "t/f t/far",
        "t/f t/linked",
        "t/f t/at",
        "t/sym t/link",
        "t/f t/dangling",
        "t/f t/own",
        "t/dir t/link",
        "-T t/f t/link",
    ];
    for case in cases {
        b.sh(&format!("cd m; {make}"));
        b.sh(make);
        let args = case.split(' ');
        let own = args.clone().map(|arg| arg.replace("t/", "m/t/"));
        let own: Vec<String> = ["cp", "-a"].map(String::from).into_iter().chain(own).collect();
        let out = b.run(&own.iter().map(|arg| &arg[..]).collect::<Vec<_>>());
        let theirs = b.sh(&format!("cp -a {case} 2> /dev/null && echo done || echo failed"));
        assert_eq!(theirs == "done\n", out.status.success(), "{case}: {}", text(&out.stderr));
        let shown = |dir: &str| b.sh(&format!("cd {dir} && ({show}) 2>&1 || true")).replace(" 1 ", " ");
        // A directory counts its subdirectories elsewhere.
        let lines =
            |text: String| text.lines().filter(|l| !l.contains(" d ")).map(String::from).collect::<Vec<_>>();
        assert_eq!(lines(shown("m")), lines(shown(".")), "{case}");
    }
    b.sh(&format!("cd m; {make}"));
    b.ok(&["cp", "-an", "m/t/f", "m/t/link"]);
    assert_eq!(b.sh("cat m/t/to; readlink m/t/link"), "old\nto\n");
    // A link that lies in the directory is another's, perhaps: it does not lead the copy elsewhere.
    b.sh(&format!("cd m; {make}"));
    b.ok(&["cp", "-a", "m/t/f", "m/t/in"]);
    assert_eq!(b.sh("cat m/t/to m/t/in/f; test ! -L m/t/in/f"), "old\nnew\n");
    assert!(b.ok(&["cp", "--help"]).contains("lead the copy elsewhere"));
}

/// The access list and the default list that it had before stayed, and gave rights to whom the source gave none.
#[test]
fn a_directory_that_is_merged_into_gets_the_attributes_of_the_source_as_cp_has_it() {
    let b = mounted!();
    if !has("setfacl") || !has("setfattr") {
        eprintln!("SKIPPED: no setfacl or setfattr");
        return;
    }
    let make = "mkdir -p src/none/sub src/lists src/bits dst/none/sub dst/lists dst/bits/keeps
        setfacl -m u:1702:rwx,d:u:1702:rwx dst/none dst/none/sub dst/lists
        setfacl -m u:1702:rwx,g::rwx dst/bits; setfacl -m u:1702:rwx dst/bits/keeps
        setfacl -m u:1703:rx,d:u:1703:r,g::- src/lists; chmod 2750 src/none src/bits; chmod 770 dst/bits
        for d in src dst; do setfattr -n user.both -v $d $d/none; setfattr -n user.$d -v 1 $d/none; done";
    // Each tree was made in a directory of its own, and lists do not tell its name.
    let show =
        "getfacl -Rcn . 2> /dev/null; find . | sort | xargs stat -c '%n %a %U %G'; getfattr -Rd dst | sort";
    for case in ["src/none src/lists src/bits dst", "-T src/none dst/none", "src/. dst"] {
        b.sh(&format!(
            "rm -rf m/own m/theirs; mkdir m/own m/theirs; for t in own theirs; do (cd m/$t; {make}); done"
        ));
        let args: Vec<&str> = case.split(' ').collect();
        let own =
            b.command(&[&["cp", "-a"], &args[..]].concat()).current_dir(b.path("m/own")).output().unwrap();
        assert!(own.status.success(), "{case}: {}", text(&own.stderr));
        b.sh(&format!("cd m/theirs; cp -a {case}"));
        let shown = |tree: &str| b.sh(&format!("cd m/{tree}; {show}"));
        assert_eq!(shown("own"), shown("theirs"), "{case}");
        let lists = b.sh("getfacl -cn m/own/dst/none");
        assert!(!lists.contains("1702") && !lists.contains("default"), "{case}: {lists}");
        let bits = b.sh("getfattr -d --only-values -n user.both m/own/dst/none");
        assert!(bits.ends_with("src"), "{case}: {bits}");
        b.sh("getfattr -n user.dst m/own/dst/none; getfacl -cn m/own/dst/bits/keeps | grep -q 1702");
    }
}
