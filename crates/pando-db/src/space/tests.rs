//! The allocator against a bitmap, and on media that refuse.

#![allow(clippy::unwrap_used)]

use proptest::{collection::vec, prelude::*};

use super::*;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use crate::device::{DeviceStats, FailMode, HookedDevice, MemDevice, SimDevice};

const START: u64 = 3 * BLOCK;

fn space(blocks: u64) -> Arc<Space> {
    Space::new(Arc::new(MemDevice::new(1 << 40)), START, START + blocks * BLOCK)
}

impl Space {
    /// Asserts that the lists of free bytes agree, while nothing is under discard.
    pub(super) fn check_lists(&self) {
        let state = self.state();
        assert_eq!(state.discarding, 0);
        assert_eq!(state.free.total(), state.backed.total() + state.raw.total());
        let parts = state.backed.iter().chain(state.raw.iter());
        assert!(parts.into_iter().all(|(offset, len)| state.free.contains(offset, len)));
        let apart = |(offset, len)| state.raw.next_from(offset).is_none_or(|r| r.0 >= offset + len);
        assert!(state.backed.iter().all(apart));
        assert!(state.stale.iter().all(|(offset, len)| state.raw.contains(offset, len)));
    }
}

/// A host that remembers what it has promised, and for whom; contents do not matter.
#[derive(Default)]
struct Host {
    /// Blocks by number.
    promised: Mutex<BTreeSet<u64>>,
    owned: Mutex<BTreeSet<u64>>,
    /// Blocks that it can promise at all.
    limit: AtomicU64,
    punched: AtomicU64,
}

fn blocks(offset: u64, len: u64) -> std::ops::Range<u64> {
    assert!(offset.is_multiple_of(BLOCK) && len.is_multiple_of(BLOCK));
    offset / BLOCK..(offset + len) / BLOCK
}

impl Host {
    fn owns(&self, extent: &Extent, owned: bool) {
        let mut known = self.owned.lock();
        for block in blocks(extent.offset, extent.len) {
            assert!(if owned { known.insert(block) } else { known.remove(&block) });
        }
    }
}

impl Device for Host {
    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Ok(())
    }
    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn size(&self) -> u64 {
        u64::MAX
    }
    fn grow(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut promised = self.promised.lock();
        let new: Vec<u64> = blocks(offset, len).filter(|block| !promised.contains(block)).collect();
        if promised.len() as u64 + new.len() as u64 > self.limit.load(Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        promised.extend(new);
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> io::Result<bool> {
        let (mut promised, owned) = (self.promised.lock(), self.owned.lock());
        for block in blocks(offset, len) {
            assert!(!owned.contains(&block), "block {block} is in use and discarded");
            promised.remove(&block);
        }
        self.punched.fetch_add(len / BLOCK, Relaxed);
        Ok(true)
    }
    fn is_sparse(&self) -> bool {
        true
    }
    fn stats(&self) -> DeviceStats {
        DeviceStats::default()
    }
}

#[derive(Debug, Clone)]
enum Act {
    Allocate(u64),
    Adopt(u64, u64),
    Free(usize),
    Grow(u64),
    Back(u64),
    Discard { keep: u64, expect_more: bool, eager: bool },
    Round,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (1..9 * BLOCK).prop_map(Act::Allocate),
        1 => (1..60 * BLOCK).prop_map(Act::Allocate),
        2 => (0..210u64, 1..9u64).prop_map(|(at, len)| Act::Adopt(START + at * BLOCK, len * BLOCK)),
        6 => any::<usize>().prop_map(Act::Free),
        1 => (0..9u64).prop_map(Act::Grow),
        1 => (0..90u64).prop_map(|blocks| Act::Back(blocks * BLOCK)),
        4 => (0..60u64, any::<bool>(), any::<bool>())
            .prop_map(|(keep, expect_more, eager)| Act::Discard { keep: keep * BLOCK, expect_more, eager }),
        1 => Just(Act::Round),
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
    fn behaves_like_a_bitmap(acts in vec(act(), 1..150), room in prop_oneof![Just(None), (0..220u64).prop_map(Some)]) {
        let host = Arc::new(Host { limit: room.unwrap_or(u64::MAX).into(), ..Host::default() });
        let space = Space::new(host.clone(), START, START + 200 * BLOCK);
        let mut model = Bitmap(vec![false; 200]);
        let mut held: Vec<Arc<Extent>> = Vec::new();
        for act in acts {
            match act {
                Act::Allocate(len) => {
                    let blocks_long = len.next_multiple_of(BLOCK);
                    match space.allocate(len) {
                        Ok(extent) => {
                            prop_assert_eq!(extent.len, blocks_long);
                            let promised = host.promised.lock();
                            prop_assert!(blocks(extent.offset, extent.len).all(|block| promised.contains(&block)));
                            drop(promised);
                            model.set(extent.offset, extent.len, true);
                            host.owns(&extent, true);
                            held.push(extent);
                        }
                        Err(error) => {
                            prop_assert!(matches!(error, Error::NoSpace));
                            prop_assert!(room.is_some() || model.longest() < blocks_long);
                        }
                    }
                }
                Act::Adopt(offset, len) => {
                    let fits = model.is_free(offset, len);
                    match space.adopt(offset, len) {
                        Ok(extent) => {
                            prop_assert!(fits);
                            model.set(offset, len, true);
                            host.owns(&extent, true);
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
                    host.owns(&extent, false);
                }
                Act::Free(_) => (),
                Act::Grow(blocks) => {
                    model.0.resize(model.0.len() + blocks as usize, false);
                    space.grow(START + model.0.len() as u64 * BLOCK);
                }
                Act::Back(bytes) => {
                    let free: u64 = model.runs(false).iter().map(|run| run.1).sum();
                    let backed = space.ensure_backed(bytes).unwrap();
                    let right = if room.is_some() { !backed || bytes <= free } else { backed == (bytes <= free) };
                    prop_assert!(right);
                    prop_assert_eq!(backed, space.backed_bytes() >= bytes);
                }
                Act::Discard { keep, expect_more, eager } => {
                    let before = host.punched.load(Relaxed);
                    let some = space.discard_step(Discarding { keep, expect_more, eager }).unwrap();
                    prop_assert_eq!(some, host.punched.load(Relaxed) > before);
                    prop_assert!(!some || space.backed_bytes() >= keep);
                }
                Act::Round => {
                    space.begin_discards();
                }
            }
            let free: u64 = model.runs(false).iter().map(|run| run.1).sum();
            if room.is_none() {
                prop_assert_eq!(space.free_bytes(), free);
            } else {
                prop_assert!(space.free_bytes() <= free && space.backed_bytes() <= free);
            }
            prop_assert_eq!(space.used_bytes(), model.0.len() as u64 * BLOCK - free);
            prop_assert_eq!(space.largest_free(), model.longest());
            prop_assert_eq!(space.owned_ranges(), model.runs(true));
            space.check_lists();
            // Every free backed byte is promised: whoever gets it can write.
            prop_assert!(space.backed_bytes() / BLOCK <= host.promised.lock().len() as u64);
        }
        drop(held);
        host.owned.lock().clear();
        prop_assert_eq!(space.owned_ranges(), vec![]);
        // What is left goes back to the last block, whoever had it.
        let all = Discarding { keep: 0, expect_more: false, eager: true };
        let mut steps = 0;
        while space.discard_step(all).unwrap() {
            steps += 1;
            prop_assert!(steps < 2000);
        }
        // On a host that refuses, a short piece in which only some blocks are held is left to the next
        // sweep of all; such a piece exists only if what was adopted was not on the host.
        prop_assert!(room.is_some() || host.promised.lock().is_empty());
    }
}

const QUIET: Discarding = Discarding { keep: 0, expect_more: true, eager: false };

#[test]
fn what_is_in_demand_is_not_discarded_until_it_is_quiet() {
    let host = Arc::new(Host { limit: u64::MAX.into(), ..Host::default() });
    let space = Space::new(host.clone(), START, START + 10_000 * BLOCK);
    space.begin_discards();
    for _ in 0..50 {
        drop(space.allocate(100 * BLOCK).unwrap());
    }
    let mut rounds = 0;
    while space.begin_discards() > 0 {
        while space.discard_step(QUIET).unwrap() {}
        let promised = host.promised.lock().len();
        assert!(promised >= 100, "{promised} blocks after {rounds} quiet rounds");
        rounds += 1;
    }
    assert!((5..20).contains(&rounds), "{rounds}");
    while space.discard_step(QUIET).unwrap() {}
    assert_eq!(host.promised.lock().len(), 0);
    // And it can be had again.
    assert_eq!(space.allocate(10_000 * BLOCK).unwrap().len, 10_000 * BLOCK);
}

/// A full host would not give it again.
#[test]
fn on_a_full_host_what_is_to_be_kept_is_kept() {
    let host = Arc::new(Host { limit: 100.into(), ..Host::default() });
    let space = Space::new(host.clone(), START, START + 10_000 * BLOCK);
    // Extents of an earlier life, which the host holds.
    let old: Vec<_> = (0..4).map(|i| space.adopt(START + i * 2000 * BLOCK, 20 * BLOCK).unwrap()).collect();
    old.iter().for_each(|extent| host.promised.lock().extend(blocks(extent.offset, extent.len)));
    let others = space.allocate(20 * BLOCK).unwrap();
    assert_eq!(host.promised.lock().len(), 100);
    let how = |keep| Discarding { keep: keep * BLOCK, expect_more: false, eager: false };
    assert!(!space.discard_step(how(16)).unwrap(), "there is nothing");
    drop(old);
    assert!(!space.discard_step(how(81)).unwrap(), "and not enough to keep");
    assert_eq!((space.backed_bytes(), host.promised.lock().len()), (80 * BLOCK, 100));
    while space.discard_step(how(50)).unwrap() {}
    assert_eq!(space.backed_bytes(), 60 * BLOCK, "in pieces of 64 KiB or more");
    assert!(space.ensure_backed(50 * BLOCK).unwrap());
    drop(others);
    assert!(space.allocate(20 * BLOCK).is_ok());
}

/// What an image holds when it is opened on a full host can be used, wherever it is.
#[test]
fn a_full_host_gives_what_it_gave_before() {
    let device = Arc::new(SimDevice::new(START + 10_000 * BLOCK, 1));
    let used = (START + 100 * BLOCK, 50 * BLOCK);
    // Written once and free now, reserved behind what is used, and a hole before both.
    let (written, reserved) = ((START + 5000 * BLOCK, 40 * BLOCK), (used.0 + used.1, 30 * BLOCK));
    for (offset, len) in [used, written, reserved] {
        device.reserve(offset, len).unwrap();
    }
    device.set_space_limit(Some(device.space_used()));
    let space = Space::new(device.clone(), START, START + 10_000 * BLOCK);
    let _used = space.adopt(used.0, used.1).unwrap();
    space.loaded();
    assert!(space.ensure_backed(70 * BLOCK).unwrap());
    assert!(!space.ensure_backed(71 * BLOCK).unwrap());
    space.check_lists();
    let mut held = Vec::new();
    for len in [40, 20, 10] {
        let extent = space.allocate(len * BLOCK).unwrap();
        device.write_at(extent.offset, &vec![1; extent.len as usize]).unwrap();
        held.push(extent);
    }
    assert!(matches!(space.allocate(BLOCK), Err(Error::NoSpace)));
}

#[test]
fn discards_that_fail_or_cannot_be_end() {
    let device = Arc::new(SimDevice::new(START + 1000 * BLOCK, 1));
    let space = Space::new(device.clone(), START, START + 1000 * BLOCK);
    drop(space.allocate(100 * BLOCK).unwrap());
    device.set_fail_at(Some(0), FailMode::Once);
    assert!(matches!(space.discard_step(QUIET), Err(Error::Io { action: "discard", .. })));
    assert_eq!(space.backed_bytes(), 0, "what a discard that failed was about is reserved again");
    space.check_lists();
    let requests = device.requests();
    assert!(!space.discard_step(QUIET).unwrap());
    assert_eq!(device.requests(), requests, "it is not tried again");
    let extent = space.allocate(1000 * BLOCK).unwrap();
    device.write_at(extent.offset, &[1]).unwrap();

    // One that cannot.
    let plain = HookedDevice::new(Arc::new(MemDevice::new(1 << 30)), false, |_| Ok(()));
    let space = Space::new(Arc::new(plain), START, START + 1000 * BLOCK);
    drop(space.allocate(100 * BLOCK).unwrap());
    let backed = space.backed_bytes();
    assert!(!space.discard_step(QUIET).unwrap());
    assert_eq!(space.backed_bytes(), backed);
    space.check_lists();
}

/// One thread discards all it can while others write, and read before they let go.
#[test]
fn nobody_loses_what_he_owns_to_a_discard() {
    let device = Arc::new(MemDevice::new(1 << 40));
    let space = Space::new(device.clone(), START, START + 3000 * BLOCK);
    let (over, began) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        let discarder = scope.spawn(|| {
            while !over.load(Relaxed) {
                let how = Discarding { keep: 8 * BLOCK, expect_more: false, eager: true };
                if !space.discard_step(how).unwrap() {
                    std::thread::yield_now();
                }
            }
        });
        let workers = [1u64, 2, 3].map(|seed| {
            let (space, device) = (&space, &device);
            scope.spawn(move || {
                let mut held: Vec<Arc<Extent>> = Vec::new();
                for i in 0u64.. {
                    // On a busy machine the discarder may come late.
                    let enough = device.stats().discards > 100 || began.elapsed() > Duration::from_secs(60);
                    if i >= 4000 && enough {
                        break;
                    }
                    if i.wrapping_mul(seed * 2 + 7) % 5 < 3 && held.len() < 200 {
                        // Less than a third is ever owned, in pieces of four blocks at most.
                        let extent = space.allocate((1 + i % 4) * BLOCK).unwrap();
                        device
                            .write_at(extent.offset, &vec![extent.id as u8 | 1; extent.len as usize])
                            .unwrap();
                        held.push(extent);
                    } else if !held.is_empty() {
                        let extent = held.swap_remove(i as usize % held.len());
                        let mut bytes = vec![0; extent.len as usize];
                        device.read_at(extent.offset, &mut bytes).unwrap();
                        assert!(bytes.iter().all(|&byte| byte == extent.id as u8 | 1), "{extent:?}");
                    }
                }
            })
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        over.store(true, Relaxed);
        discarder.join().unwrap();
    });
    assert!(device.stats().discards > 100, "{:?}", device.stats());
    assert_eq!(space.used_bytes(), 0);
    space.check_lists();
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

/// Nodes that name one extent of pages name the same bytes of it.
#[test]
fn pages_that_are_adopted_again_are_the_same_bytes() {
    let space = space(10);
    let adopt = |at, len| space.adopt_shared(START + at * BLOCK, len * BLOCK);
    let pages = adopt(5, 2).unwrap();
    assert!(Arc::ptr_eq(&pages, &adopt(5, 2).unwrap()));
    for (at, len) in [(5, 1), (5, 3), (6, 1), (4, 2)] {
        assert!(adopt(at, len).is_err_and(|e| e.is_damage()), "{len} blocks at {at}");
    }
    assert_eq!(space.used_bytes(), 2 * BLOCK);
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

#[test]
#[should_panic(expected = "were freed twice")]
fn bytes_are_freed_once() {
    let mut free = FreeRanges::default();
    free.insert(0, 2 * BLOCK);
    free.insert(BLOCK, BLOCK);
}

#[test]
#[should_panic(expected = "were freed twice")]
fn bytes_are_freed_once_from_below_too() {
    let mut free = FreeRanges::default();
    free.insert(BLOCK, BLOCK);
    free.insert(0, 2 * BLOCK);
}

#[test]
#[should_panic(expected = "are taken but not free")]
fn bytes_in_use_are_not_taken() {
    let mut free = FreeRanges::default();
    free.insert(0, BLOCK);
    free.remove(0, 2 * BLOCK);
}

#[test]
#[should_panic(expected = "the data region cannot shrink")]
fn space_does_not_shrink() {
    space(8).grow(START + 4 * BLOCK);
}

#[test]
#[should_panic(expected = "space beside the data region is taken")]
fn space_is_taken_inside_the_data_region() {
    let space = space(8);
    // As if something behind the end had been freed.
    let end = space.end();
    space.state().backed.insert(end, 8 * BLOCK);
    space.state().cursor = end;
    _ = space.allocate(BLOCK);
}

#[test]
#[should_panic(expected = "more space is free than there is")]
fn no_more_is_free_than_there_is() {
    let space = space(8);
    space.state().discarding = BLOCK;
    _ = space.used_bytes();
}
