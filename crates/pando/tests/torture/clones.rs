//! Clones of clones of clones, edited in turn, with renames and deletes of originals in between:
//! each reads as if it were a plain copy, which is kept beside on the host's disk.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

use super::{
    bed::{Bed, ok, sh, str},
    random::{Deadline, Random},
    trees::{inodes, same},
};

const TREES: usize = 8;

/// The same edit in a tree on the mount and in its copy.
fn edit(trees: [&Path; 2], r: &mut Random) {
    let all = files(trees[1]);
    let file = r.pick(&all).clone();
    let (name, at) = (r.below(10_000), r.below(60_000));
    let len = 1 + r.below(9000) as usize;
    let data = r.bytes(len);
    let kind = r.below(9);
    for tree in trees {
        let path = tree.join(&file);
        match kind {
            0..=3 => OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&data, at).unwrap(),
            4 => OpenOptions::new().write(true).open(&path).unwrap().set_len(at).unwrap(),
            5 => fs::write(tree.join(format!("new{name}")), &data).unwrap(),
            6 => fs::rename(&path, tree.join(format!("moved{name}"))).unwrap(),
            7 => {
                let dir = tree.join(format!("dir{name}"));
                // The same number twice is the same directory.
                let _ = fs::create_dir(&dir);
                fs::rename(&path, dir.join("inside")).unwrap();
            }
            _ if all.len() > 20 => fs::remove_file(&path).unwrap(),
            _ => {}
        }
    }
}

/// All files below `dir`, relative to it.
fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let list = sh(dir, "find . -type f | sort");
    list.lines().map(Into::into).collect()
}

#[test]
fn clones_of_clones_are_like_copies_before_and_after_a_remount() {
    let Some(bed) = Bed::new(&["--size", "1G", "--node-size", "64K"], &["--cache", "64M"]) else { return };
    let mut r = Random::seeded("clones");
    let deadline = Deadline::after(10);
    let copies = bed.root.join("copies");
    fs::create_dir_all(copies.join("t0/sub/deeper")).unwrap();
    for i in 0..60 {
        let dir = ["", "sub/", "sub/deeper/"][i % 3];
        fs::write(copies.join(format!("t0/{dir}f{i}")), r.bytes((i * 977) % 50_000)).unwrap();
    }
    bed.sh("cp -a copies/t0 mnt/t0");
    let mut trees = vec!["t0".to_owned()];
    let (mut made, mut rounds) = (1, 0);
    while !deadline.passed() || rounds < 20 {
        rounds += 1;
        let source = r.pick(&trees).clone();
        let name = format!("t{made}");
        made += 1;
        let (on, beside) = (|t: &str| bed.mnt.join(t), |t: &str| copies.join(t));
        if r.chance(5) && trees.len() > 1 {
            // Over an existing one, atomically.
            let target = r.pick(&trees).clone();
            if target != source {
                ok(&["clone", "--replace", str(&on(&source)), str(&on(&target))]);
                bed.sh(&format!("rm -rf copies/{target}; cp -a copies/{source} copies/{target}"));
            }
        } else {
            ok(&["clone", str(&on(&source)), str(&on(&name))]);
            bed.sh(&format!("cp -a copies/{source} copies/{name}"));
            trees.push(name);
        }
        for _ in 0..12 {
            let tree = r.pick(&trees).clone();
            edit([&on(&tree), &beside(&tree)], &mut r);
        }
        if r.chance(3) {
            let i = r.below(trees.len() as u64) as usize;
            let name = format!("r{made}");
            if r.chance(2) {
                fs::rename(on(&trees[i]), on(&name)).unwrap();
            } else {
                ok(&["mv", str(&on(&trees[i])), str(&on(&name))]);
            }
            fs::rename(beside(&trees[i]), beside(&name)).unwrap();
            trees[i] = name;
        }
        while trees.len() > TREES {
            let gone = trees.remove(r.below(trees.len() as u64) as usize);
            if r.chance(2) {
                ok(&["rm", "-r", str(&on(&gone))]);
            } else {
                fs::remove_dir_all(on(&gone)).unwrap();
            }
            fs::remove_dir_all(beside(&gone)).unwrap();
        }
        if rounds % 10 == 0 {
            same(&copies, &bed.mnt, false);
            let before = inodes(&bed.mnt);
            bed.remount();
            same(&copies, &bed.mnt, false);
            assert_eq!(before, inodes(&bed.mnt), "inode numbers change over a remount");
        }
    }
    same(&copies, &bed.mnt, false);
    bed.umount();
    bed.check();
    eprintln!("clones: {rounds} rounds, {made} trees made");
}
