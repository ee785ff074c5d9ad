//! `kill -9` of the daemon at any moment: afterwards there is a prefix of what was done, with
//! everything that was synced.

use std::{fs::File, process::Command, time::Duration};

use super::{
    bed::{Bed, ok, str},
    model::{Model, Op},
    random::{Deadline, Random, within},
    trees::inodes,
};

/// What a writer has seen of one life of the daemon.
struct Life {
    ops: Vec<Op>,
    /// So many of them were done when the last sync that returned was begun.
    synced: usize,
}

/// Works on the mount until the daemon dies.
fn work(bed: &Bed, start: &Model, r: &mut Random) -> Life {
    let (mut now, mut life) = (start.clone(), Life { ops: Vec::new(), synced: 0 });
    loop {
        let op = now.next(r);
        // Noted before it is tried: what fails because the daemon died may have been done.
        life.ops.push(op.clone());
        if let Err(e) = op.perform(&bed.mnt) {
            let gone = std::fs::read_dir(&bed.mnt).is_err();
            assert!(gone, "{op:?} failed although the daemon lives: {e}");
            return life;
        }
        now.apply(&op);
        if r.chance(30) {
            let dirs_and_files: Vec<&String> = now.0.keys().collect();
            let path = if dirs_and_files.is_empty() { "" } else { r.pick(&dirs_and_files) };
            let done = life.ops.len();
            let path = bed.mnt.join(path.trim_start_matches('/'));
            // A link's target need not exist; then the root will do.
            let file = File::open(path).or_else(|_| File::open(&bed.mnt));
            if file.is_ok_and(|f| f.sync_all().is_ok()) {
                life.synced = done;
            }
        }
    }
}

/// The state that `found` is, as the number of operations done; panics if it is none.
fn prefix(start: &Model, life: &Life, found: &Model) -> usize {
    let mut now = start.clone();
    let mut last = None;
    let mut nearest = String::new();
    for done in 0..=life.ops.len() {
        if done > 0 {
            now.apply(&life.ops[done - 1]);
        }
        match now.differs(found) {
            None => last = Some(done),
            Some(what) if done == life.synced => nearest = what,
            Some(_) => {}
        }
    }
    match last {
        Some(done) if done >= life.synced => done,
        Some(done) => panic!("{} operations were synced, only {done} are there", life.synced),
        None => panic!(
            "no prefix of {} operations, {} of them synced; after those: {nearest}",
            life.ops.len(),
            life.synced
        ),
    }
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Takes the dead mount away; returns when the dead process has let go of the image.
fn bury(bed: &Bed) {
    bed.detach();
    let freed = || Command::new("flock").args(["-n", str(&bed.image), "true"]).status().unwrap().success();
    assert!(within(5, freed), "the image stays locked");
}

fn torture(name: &str, mkfs: &[&str], seconds: u64) {
    let Some(bed) = Bed::new(mkfs, &["--cache", "64M"]) else { return };
    let mut r = Random::seeded(name);
    let deadline = Deadline::after(seconds);
    let (mut state, mut rounds, mut kept) = (Model::default(), 0, 0);
    while !deadline.passed() || rounds < 3 {
        let pid = bed.pid();
        let longest = *r.pick(&[50, 300, 1500, 2500]);
        let delay = Duration::from_millis(r.below(longest));
        let killer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            kill(pid);
        });
        let life = work(&bed, &state, &mut r);
        killer.join().unwrap();
        bury(&bed);
        bed.check();
        bed.mount();
        let found = Model::scan(&bed.mnt).unwrap();
        let done = prefix(&state, &life, &found);
        inodes(&bed.mnt);
        (state, rounds, kept) = (found, rounds + 1, kept + done);
    }
    eprintln!("{name}: {rounds} lives, {kept} operations kept, {} entries", state.0.len());
    bed.umount();
    bed.check();
    ok(&["stats", str(&bed.image)]);
}

#[test]
fn after_kill_9_there_is_a_prefix_with_all_that_was_synced() {
    torture("kill", &["--size", "512M", "--node-size", "16K"], 10);
}

#[test]
fn after_kill_9_also_with_nodes_of_the_usual_size() {
    torture("kill-large", &["--size", "1G", "--node-size", "256K"], 6);
}

/// Replaying clones flushes; for a reader that must not need anything of the device.
#[test]
fn a_killed_image_with_clones_in_its_log_can_be_read_without_being_written() {
    let Some(bed) = Bed::new(&["--size", "512M", "--node-size", "64K"], &[]) else { return };
    let mut r = Random::new(1);
    let dir = bed.mnt.join("t0");
    std::fs::create_dir(&dir).unwrap();
    for i in 1..6 {
        for f in 0..40 {
            std::fs::write(dir.join(format!("f{f}")), r.bytes(20_000)).unwrap();
        }
        ok(&["clone", str(&dir), str(&bed.mnt.join(format!("t{i}")))]);
    }
    File::open(&bed.mnt).unwrap().sync_all().unwrap();
    let before = Model::scan(&bed.mnt).unwrap();
    kill(bed.pid());
    bury(&bed);
    let bytes = std::fs::read(&bed.image).unwrap();
    bed.check();
    ok(&["mount", "-o", "ro,norecovery", str(&bed.image), str(&bed.mnt)]);
    assert_eq!(before.differs(&Model::scan(&bed.mnt).unwrap()), None);
    bed.umount();
    assert!(bytes == std::fs::read(&bed.image).unwrap(), "a reader has written to the image");
    bed.mount();
    assert_eq!(before.differs(&Model::scan(&bed.mnt).unwrap()), None);
}
