//! fallocate and lseek against plain bytes and a list of blocks that exist.
//!
//! `PANDO_SEED` and `PANDO_STEPS` replay or prolong a run.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::common::*;
use pando_fs::*;

const ENXIO: i32 = 6;
const ENOSPC: i32 = 28;
const EOPNOTSUPP: i32 = 95;
const KEEP: i32 = 1;
const PUNCH: i32 = 2;
const COLLAPSE: i32 = 8;
const ZERO: i32 = 16;
const INSERT: i32 = 32;
const BLOCK: usize = BLOCK_SIZE as usize;

impl World {
    fn allocate(&self, path: &str, offset: u64, len: u64, mode: i32) -> Result<()> {
        self.on(path, |a| self.fs.fallocate(&self.me, a.ino, offset, len, mode))
    }

    fn seek(&self, path: &str, offset: u64, what: Seek) -> Result<u64> {
        self.on(path, |a| self.fs.seek(a.ino, offset, what))
    }

    /// Beginnings and ends of data, as copying programs find them.
    fn extents(&self, path: &str) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let mut at = 0;
        loop {
            match self.seek(path, at, Seek::Data) {
                Ok(from) => {
                    at = self.seek(path, from, Seek::Hole).unwrap();
                    found.push((from, at));
                }
                Err(e) => {
                    assert_eq!(e.errno(), ENXIO);
                    return found;
                }
            }
        }
    }
}

#[test]
fn allocation_makes_files_long_and_reserves_nothing() {
    let mut w = World::new();
    w.put("/f", b"begin");
    w.allocate("/f", 0, 1 << 20, 0).unwrap();
    let attr = w.attr("/f");
    assert_eq!((attr.size, attr.blocks), (1 << 20, 32), "no block is made");
    w.allocate("/f", 0, 2 << 20, KEEP).unwrap();
    assert_eq!(w.attr("/f").size, 1 << 20);
    w.allocate("/f", 3, 9, 0).unwrap();
    let mut expected = b"begin".to_vec();
    expected.resize(1 << 20, 0);
    assert!(w.get("/f").unwrap() == expected);
    assert_eq!(errno(w.allocate("/f", 0, 1 << 40, 0)), ENOSPC);
    assert_eq!(errno(w.allocate("/f", 0, 1 << 40, KEEP)), ENOSPC);
    assert_eq!(w.attr("/f").size, 1 << 20);
    assert_eq!(errno(w.allocate("/f", 0, 0, 0)), EINVAL);
    assert_eq!(errno(w.allocate("/f", MAX_FILE_SIZE, 1, 0)), EFBIG);
    for mode in [PUNCH, COLLAPSE, INSERT, PUNCH | ZERO | KEEP, 64] {
        assert_eq!(errno(w.allocate("/f", 0, 1 << 16, mode)), EOPNOTSUPP, "{mode}");
    }
    w.mkdir("/d");
    assert_eq!(errno(w.allocate("/d", 0, 1, 0)), EISDIR);
    w.remount();
    assert!(w.get("/f").unwrap() == expected);
    check_keys(&w);
}

#[test]
fn a_hole_in_a_large_file_costs_a_few_messages() {
    let w = World::new();
    w.create("/f").unwrap();
    // A file that is long, of which most was never there, and one whose blocks are all there as far as is known.
    w.write_at("/f", 1 << 40, b"end").unwrap();
    w.write_at("/f", 0, &pattern(100_000, 1)).unwrap();
    let messages = |w: &World| w.fs.stats().unwrap().engine.log_used;
    let before = messages(&w);
    w.allocate("/f", 10, 1 << 40, PUNCH | KEEP).unwrap();
    // The zeros of a block, and a few messages.
    assert!(messages(&w) - before < BLOCK_SIZE + 2_000, "{}", messages(&w) - before);
    assert_eq!(w.extents("/f"), [(0, BLOCK_SIZE)]);
    assert_eq!(w.attr("/f").blocks, 32);
    let mut head = [0; 20];
    head[..10].copy_from_slice(&pattern(100_000, 1)[..10]);
    assert_eq!(&w.on("/f", |a| w.fs.read(NONE, a.ino, 0, 20)).unwrap()[..], head);
    check_keys(&w);
}

/// In small nodes too, where the headers of leaves are mostly keys, and a leaf was cut off key by key.
#[test]
fn a_hole_in_a_file_without_holes_gives_it_a_map_in_several_batches() {
    for node in [64 << 10, 1 << 20] {
        hole_at_a_long_path(node);
    }
}

fn hole_at_a_long_path(node: u32) {
    // So deep that the messages of a map are long and few fit a batch.
    let device = std::sync::Arc::new(pando_db::device::MemDevice::new(1 << 30));
    Fs::format(device.clone(), &FormatOptions::default().node_size(node)).unwrap();
    let fs = Fs::open(device.clone(), options()).unwrap();
    let mut w = World { device, fs, me: Caller::root() };
    let mut dir = String::new();
    for _ in 0..20 {
        dir += &format!("/{}", "n".repeat(200));
        w.mkdir(&dir);
    }
    let file = format!("{dir}/f");
    let blocks = 17_000;
    w.create(&file).unwrap();
    for block in 0..blocks {
        w.write_at(&file, block * BLOCK_SIZE, b"x").unwrap();
    }
    w.allocate(&file, BLOCK_SIZE, BLOCK_SIZE, PUNCH | KEEP).unwrap();
    assert_eq!(w.extents(&file), [(0, BLOCK_SIZE), (2 * BLOCK_SIZE, (blocks - 1) * BLOCK_SIZE + 1)]);
    check_keys(&w);
    w.remount();
    assert_eq!(w.attr(&file).blocks, (blocks - 2) * 32 + 1);
    w.truncate(&file, 16_000 * BLOCK_SIZE).unwrap();
    assert_eq!(w.attr(&file).blocks, 15_999 * 32);
    check_keys(&w);
}

fn run(seed: u64, steps: usize) {
    println!("PANDO_SEED={seed} PANDO_STEPS={steps}");
    let mut w = World::new();
    let mut r = Random::new(seed);
    w.create("/f").unwrap();
    let mut bytes: Vec<u8> = Vec::new();
    // Which blocks exist.
    let mut exists: Vec<bool> = Vec::new();
    let most = *r.pick(&[200_000, 3_000_000, 20_000_000]);
    let mut counts = [0; 7];
    for step in 0..steps {
        let aligned = r.below(2) == 0;
        let mut place = |most: usize| match aligned {
            true => r.below(most / BLOCK + 2) * BLOCK,
            false => r.below(most + 10),
        };
        let (from, len) = (place(most), place(most / 4) + 1);
        let end = from + len;
        let call = r.below(7);
        counts[call] += 1;
        let grow = |bytes: &mut Vec<u8>, exists: &mut Vec<bool>, to: usize| {
            bytes.resize(bytes.len().max(to), 0);
            exists.resize(bytes.len().div_ceil(BLOCK), false);
        };
        match call {
            0 | 1 => {
                let data = pattern(len.min(40_000), step as u8);
                w.write_at("/f", from as u64, &data).unwrap();
                grow(&mut bytes, &mut exists, from + data.len());
                bytes[from..from + data.len()].copy_from_slice(&data);
                exists[from / BLOCK..(from + data.len()).div_ceil(BLOCK)].fill(true);
            }
            2 => {
                let size = if r.below(5) == 0 { 0 } else { from };
                w.truncate("/f", size as u64).unwrap();
                bytes.resize(size, 0);
                exists.resize(size.div_ceil(BLOCK), false);
            }
            3 | 4 => {
                let mode = *r.pick(&[PUNCH | KEEP, ZERO, ZERO | KEEP]);
                w.allocate("/f", from as u64, len as u64, mode).unwrap();
                let size = bytes.len();
                if from < size {
                    let to = end.min(size);
                    bytes[from..to].fill(0);
                    let last = if to == size { to.div_ceil(BLOCK) } else { to / BLOCK };
                    let first = from.div_ceil(BLOCK);
                    if first < last {
                        exists[first..last].fill(false);
                    }
                }
                if mode == ZERO {
                    grow(&mut bytes, &mut exists, end);
                }
            }
            5 => {
                let keep = r.below(2) == 0;
                w.allocate("/f", from as u64, len as u64, if keep { KEEP } else { 0 }).unwrap();
                if !keep {
                    grow(&mut bytes, &mut exists, end);
                }
            }
            _ => match r.below(3) {
                0 => w.remount(),
                // What a clone shares, changes of either leave alone.
                1 => {
                    w.clone_tree("/f", "/g", true).unwrap();
                    w.rename("/g", "/f", 0).unwrap();
                }
                _ => {
                    w.put("/h", b"");
                    w.on("/f", |a| w.on("/h", |b| w.fs.copy_file_range(&w.me, a.ino, 0, b.ino, 0, 1 << 40)))
                        .unwrap();
                    assert_eq!(w.extents("/h"), w.extents("/f"));
                }
            },
        }
        let mut extents: Vec<(u64, u64)> = Vec::new();
        for block in (0..exists.len()).filter(|b| exists[*b]) {
            let (a, b) = (block * BLOCK, ((block + 1) * BLOCK).min(bytes.len()));
            match extents.last_mut() {
                Some(last) if last.1 == a as u64 => last.1 = b as u64,
                _ => extents.push((a as u64, b as u64)),
            }
        }
        assert_eq!(w.extents("/f"), extents, "step {step}");
        let units = extents.iter().map(|(a, b)| (b - a).div_ceil(512)).sum::<u64>();
        assert_eq!((w.attr("/f").size, w.attr("/f").blocks), (bytes.len() as u64, units), "step {step}");
        if step % 25 == 24 {
            assert!(w.get("/f").unwrap() == bytes, "step {step}");
            check_keys(&w);
        }
    }
    assert!(counts.iter().all(|n| *n > 0), "{counts:?}");
}

#[test]
fn random_calls_do_what_bytes_with_holes_do() {
    random_runs(8, 250, run);
}
