//! The allocator against a bitmap, and on media that refuse.

#![allow(clippy::unwrap_used)]

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::device::{FailMode, MemDevice, SimDevice};

const START: u64 = 3 * BLOCK;

fn space(blocks: u64) -> Arc<Space> {
    Space::new(Arc::new(MemDevice::new(1 << 40)), START, START + blocks * BLOCK)
}

#[derive(Debug, Clone)]
enum Act {
    Allocate(u64),
    Adopt(u64, u64),
    Free(usize),
    Grow(u64),
    Back(u64),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (1..9 * BLOCK).prop_map(Act::Allocate),
        1 => (1..60 * BLOCK).prop_map(Act::Allocate),
        2 => (0..210u64, 1..9u64).prop_map(|(at, len)| Act::Adopt(START + at * BLOCK, len * BLOCK)),
        6 => any::<usize>().prop_map(Act::Free),
        1 => (0..9u64).prop_map(Act::Grow),
        1 => (0..90u64).prop_map(|blocks| Act::Back(blocks * BLOCK)),
    ]
}

/// The naive model: one flag a block.
struct Bitmap(Vec<bool>);

impl Bitmap {
    fn runs(&self, owned: bool) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (index, _) in self.0.iter().enumerate().filter(|(_, flag)| **flag == owned) {
            let offset = START + index as u64 * BLOCK;
            match runs.last_mut() {
                Some((start, len)) if *start + *len == offset => *len += BLOCK,
                _ => runs.push((offset, BLOCK)),
            }
        }
        runs
    }

    fn longest(&self) -> u64 {
        self.runs(false).iter().map(|run| run.1).max().unwrap_or(0)
    }

    fn set(&mut self, offset: u64, len: u64, owned: bool) {
        let first = ((offset - START) / BLOCK) as usize;
        for flag in &mut self.0[first..first + (len / BLOCK) as usize] {
            assert_ne!(*flag, owned, "at {offset}");
            *flag = owned;
        }
    }

    fn is_free(&self, offset: u64, len: u64) -> bool {
        self.runs(false).iter().any(|&(start, size)| start <= offset && offset + len <= start + size)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn behaves_like_a_bitmap(acts in vec(act(), 1..150)) {
        let space = space(200);
        let mut model = Bitmap(vec![false; 200]);
        let mut held: Vec<Arc<Extent>> = Vec::new();
        for act in acts {
            match act {
                Act::Allocate(len) => {
                    let blocks = len.next_multiple_of(BLOCK);
                    match space.allocate(len) {
                        Ok(extent) => {
                            prop_assert_eq!(extent.len, blocks);
                            model.set(extent.offset, extent.len, true);
                            held.push(extent);
                        }
                        Err(error) => {
                            prop_assert!(matches!(error, Error::NoSpace));
                            prop_assert!(model.longest() < blocks);
                        }
                    }
                }
                Act::Adopt(offset, len) => {
                    let fits = model.is_free(offset, len);
                    match space.adopt(offset, len) {
                        Ok(extent) => {
                            prop_assert!(fits);
                            model.set(offset, len, true);
                            held.push(extent);
                        }
                        Err(error) => {
                            let corrupt = matches!(error, Error::Corrupt { .. });
                            prop_assert!(corrupt && !fits);
                        }
                    }
                }
                Act::Free(index) if !held.is_empty() => {
                    let extent = held.swap_remove(index % held.len());
                    model.set(extent.offset, extent.len, false);
                }
                Act::Free(_) => (),
                Act::Grow(blocks) => {
                    model.0.resize(model.0.len() + blocks as usize, false);
                    space.grow(START + model.0.len() as u64 * BLOCK);
                }
                Act::Back(bytes) => {
                    let free: u64 = model.runs(false).iter().map(|run| run.1).sum();
                    prop_assert_eq!(space.ensure_backed(bytes).unwrap(), bytes <= free);
                }
            }
            let free: u64 = model.runs(false).iter().map(|run| run.1).sum();
            prop_assert_eq!(space.free_bytes(), free);
            prop_assert_eq!(space.used_bytes(), model.0.len() as u64 * BLOCK - free);
            prop_assert_eq!(space.largest_free(), model.longest());
            prop_assert_eq!(space.owned_ranges(), model.runs(true));
        }
        drop(held);
        prop_assert_eq!(space.owned_ranges(), vec![]);
    }
}

#[test]
fn allocations_follow_each_other_and_then_fill_the_lowest_hole() {
    let space = space(64);
    let extents: Vec<_> = (0..4).map(|_| space.allocate(BLOCK).unwrap()).collect();
    let offsets: Vec<_> = extents.iter().map(|extent| extent.offset).collect();
    assert_eq!(offsets, [0, 1, 2, 3].map(|i| START + i * BLOCK));
    // The step is 4 blocks here: the mark is reached, and low holes are preferred to raising it.
    let mut extents = extents.into_iter();
    drop(extents.next());
    assert_eq!(space.allocate(BLOCK).unwrap().offset, START);
    let ids = [space.allocate(1).unwrap().id, space.allocate(1).unwrap().id];
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn hostile_ranges_are_corrupt() {
    let space = space(10);
    let end = START + 10 * BLOCK;
    let _held = space.adopt(START + BLOCK, BLOCK).unwrap();
    for (offset, len) in [
        (START, 0),
        (START, 100),
        (START + 1, BLOCK),
        (0, BLOCK),
        (START, 2 * BLOCK),
        (end, BLOCK),
        (end - BLOCK, 2 * BLOCK),
        (u64::MAX - BLOCK + 1, BLOCK),
        (START, u64::MAX - BLOCK + 1),
    ] {
        assert!(matches!(space.adopt(offset, len), Err(Error::Corrupt { .. })), "{offset} {len}");
    }
    assert!(matches!(space.allocate(u64::MAX), Err(Error::NoSpace)));
    assert_eq!(space.used_bytes(), BLOCK);
}

/// What was allocated on a nearly full host can be written; the rest is refused up front.
#[test]
fn a_full_host_refuses_allocations_not_writes() {
    for limit in [0, 1, 7, 40, 100] {
        let device = Arc::new(SimDevice::new(START + 1000 * BLOCK, 1));
        device.set_space_limit(Some(limit * BLOCK));
        let space = Space::new(device.clone(), START, START + 1000 * BLOCK);
        assert_eq!(space.free_bytes(), 1000 * BLOCK);
        let mut held = Vec::new();
        let error = loop {
            match space.allocate(3 * BLOCK) {
                Ok(extent) => held.push(extent),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::NoSpace));
        assert_eq!(held.len() as u64, limit / 3, "every block that the host has is used");
        for extent in &held {
            device.write_at(extent.offset, &vec![1; extent.len as usize]).unwrap();
        }
        assert!(space.free_bytes() < 3 * BLOCK, "raw bytes no longer count");
        // A smaller request is worth a try even now.
        while let Ok(extent) = space.allocate(BLOCK) {
            held.push(extent);
        }
        assert_eq!(space.used_bytes(), limit * BLOCK);
        // Freed bytes are backed and come back at once.
        if held.pop().is_some() {
            assert!(space.allocate(BLOCK).is_ok());
        }
        // The host gets room: found out after a second at the latest.
        device.set_space_limit(None);
        assert!(!space.ensure_backed(100 * BLOCK).unwrap());
        std::thread::sleep(PATIENCE);
        assert!(space.ensure_backed(100 * BLOCK).unwrap());
        assert_eq!(space.free_bytes(), 1000 * BLOCK - space.used_bytes());
        assert!(space.allocate(200 * BLOCK).is_ok());
    }
}

#[test]
fn a_failing_device_is_an_io_error_and_changes_nothing() {
    let device = Arc::new(SimDevice::new(START + 1000 * BLOCK, 1));
    let space = Space::new(device.clone(), START, START + 1000 * BLOCK);
    device.set_fail_at(Some(0), FailMode::Once);
    assert!(matches!(space.allocate(BLOCK), Err(Error::Io { .. })));
    assert!(space.allocate(BLOCK).is_ok());
    device.set_fail_at(Some(0), FailMode::Onwards);
    assert!(matches!(space.ensure_backed(500 * BLOCK), Err(Error::Io { .. })));
    assert!(space.allocate(BLOCK).is_ok(), "what is backed needs no device");
    assert_eq!(space.used_bytes(), 0);
}

/// A badly fragmented space: a hundred thousand holes, none of which fits.
#[test]
fn fragmentation_does_not_make_allocation_slow() {
    let space = space(400_000);
    let mut extents: Vec<_> =
        (0..200_000).map(|i| Some(space.allocate((1 + i % 2) * BLOCK).unwrap())).collect();
    for extent in extents.iter_mut().step_by(2) {
        *extent = None;
    }
    let begun = Instant::now();
    let more: Vec<_> = (0..20_000).map(|_| space.allocate(2 * BLOCK).unwrap()).collect();
    // A scan over the holes would take twenty thousand times a hundred thousand steps.
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert!(more.windows(2).all(|pair| pair[0].offset + pair[0].len == pair[1].offset));
}

#[test]
fn threads_never_get_the_same_bytes() {
    let space = space(5000);
    std::thread::scope(|scope| {
        for seed in 0..4u64 {
            let space = &space;
            scope.spawn(move || {
                let mut held: Vec<Arc<Extent>> = Vec::new();
                for i in 0..5000u64 {
                    if i.wrapping_mul(seed * 2 + 7) % 5 < 3 {
                        // Two extents over the same bytes would trip the double-free assertion.
                        held.extend(space.allocate((1 + i % 4) * BLOCK));
                    } else if !held.is_empty() {
                        held.swap_remove(i as usize % held.len());
                    }
                }
            });
        }
    });
    assert_eq!(space.used_bytes(), 0);
}
