//! Tests of the simulated device: which writes survive a crash, and which may be lost.

#![allow(clippy::unwrap_used)]
use super::*;

const SIZE: u64 = 1 << 20;

fn byte(device: &SimDevice, offset: u64) -> u8 {
    let mut buf = [0];
    device.read_at(offset, &mut buf).unwrap();
    buf[0]
}

#[test]
fn reads_see_unflushed_writes_and_flushed_ones_survive() {
    for seed in 0..50 {
        let device = SimDevice::new(SIZE, seed);
        device.write_at(100, &[1; 9000]).unwrap();
        device.flush().unwrap();
        device.write_at(20_000, &[2; 9000]).unwrap();
        assert_eq!((byte(&device, 100), byte(&device, 28_999)), (1, 2));
        device.crash();
        assert!(device.read_at(0, &mut [0]).is_err());
        assert!(device.write_at(0, &[0]).is_err());
        assert!(device.flush().is_err());
        let device = device.reopen();
        let mut buf = vec![0; 9000];
        device.read_at(100, &mut buf).unwrap();
        assert_eq!(buf, [1; 9000]);
    }
}

/// Over many seeds each fate of a sector occurs, and the same seed repeats its fates.
#[test]
fn a_crash_keeps_drops_and_tears_by_the_seed() {
    let run = |seed| {
        let device = SimDevice::new(SIZE, seed);
        device.write_at(0, &[1; 4096]).unwrap();
        device.flush().unwrap();
        device.write_at(0, &[2; 2048]).unwrap();
        device.write_at(1024, &[3; 2048]).unwrap();
        let mut buf = vec![0; 4096];
        device.reopen().read_at(0, &mut buf).unwrap();
        buf
    };
    let (mut kept, mut dropped, mut torn, mut reordered) = (0, 0, 0, 0);
    for seed in 0..200 {
        let content = run(seed);
        assert_eq!(content, run(seed));
        assert!(content[3072..].iter().all(|&byte| byte == 1));
        let overlap = &content[1024..1536];
        kept += overlap.iter().all(|&byte| byte == 3) as u32;
        reordered += overlap.iter().all(|&byte| byte == 2) as u32;
        dropped += overlap.iter().all(|&byte| byte == 1) as u32;
        torn += overlap.windows(2).any(|pair| pair[0] != pair[1]) as u32;
    }
    assert!([kept, dropped, torn, reordered].iter().all(|&n| n > 5), "{kept} {dropped} {torn} {reordered}");
}

#[test]
fn the_chosen_request_fails() {
    let device = SimDevice::new(SIZE, 1);
    device.set_fail_at(Some(2), FailMode::Once);
    device.write_at(0, &[1]).unwrap();
    device.flush().unwrap();
    assert_eq!(device.reserve(0, 1).unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    device.reserve(0, 1).unwrap();
    device.set_fail_at(Some(0), FailMode::Onwards);
    assert!(device.read_at(0, &mut [0]).is_err());
    assert!(device.flush().is_err());
    device.set_fail_at(None, FailMode::Once);
    device.flush().unwrap();
    assert_eq!(device.requests(), 7);
    device.set_fail_at(Some(1), FailMode::Flush);
    device.flush().unwrap();
    device.write_at(0, &[1]).unwrap();
    assert!(device.flush().is_err());
    device.flush().unwrap();
}

#[test]
fn a_failed_flush_can_lose_writes_for_good() {
    let mut lost = 0;
    for seed in 0..100 {
        let device = SimDevice::new(SIZE, seed);
        device.write_at(0, &[7; 512]).unwrap();
        device.set_fail_at(Some(0), FailMode::Once);
        assert!(device.flush().is_err());
        device.flush().unwrap();
        assert_eq!(byte(&device, 0), 7, "the cache still shows it");
        lost += (byte(&device.reopen(), 0) != 7) as u32;
    }
    assert!((10..90).contains(&lost), "{lost}");
}

#[test]
fn a_lying_flush_makes_nothing_durable() {
    let mut lost = 0;
    for seed in 0..100 {
        let device = SimDevice::new(SIZE, seed);
        device.set_lying(true);
        device.write_at(0, &[7; 512]).unwrap();
        device.flush().unwrap();
        lost += (byte(&device.reopen(), 0) != 7) as u32;
    }
    assert!(lost > 10, "{lost}");
}

#[test]
fn a_full_host_refuses_new_blocks_only() {
    let device = SimDevice::new(1 << 40, 1);
    device.set_space_limit(Some(10 * BLOCK));
    device.write_at(1 << 30, &[1; 4096 * 4]).unwrap();
    device.reserve((1 << 30) + BLOCK, 7 * BLOCK).unwrap();
    assert_eq!(device.space_used(), 8 * BLOCK);
    let full = device.reserve(0, 3 * BLOCK).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    assert!(device.write_at(BLOCK - 1, &[1; 4098]).is_err(), "needs three blocks");
    device.write_at(BLOCK - 1, &[1; 2]).unwrap();
    assert!(device.write_at(900 * BLOCK, &[1]).is_err());
    device.write_at((1 << 30) + 9, &[1; 4096 * 7]).unwrap();
    assert_eq!(device.space_used(), 10 * BLOCK);
    device.set_space_limit(None);
    device.reserve(0, 1 << 30).unwrap();
    assert_eq!(device.space_used(), (1 << 30) + 8 * BLOCK);
}

#[test]
fn a_discard_leaves_anything_and_gives_the_blocks_back() {
    let (mut zero, mut old, mut garbage, mut undone) = (0, 0, 0, 0);
    for seed in 0..100 {
        let device = SimDevice::new(SIZE, seed);
        device.set_space_limit(Some(100 * BLOCK));
        device.write_at(0, &[7; 100 * BLOCK as usize]).unwrap();
        device.flush().unwrap();
        assert!(device.write_at(200 * BLOCK, &[1]).is_err());
        assert!(device.discard(10 * BLOCK + 1, 20 * BLOCK).unwrap());
        assert_eq!(device.space_used(), 81 * BLOCK, "only whole blocks");
        assert_eq!(device.forgotten(), 19);
        let now = byte(&device, 15 * BLOCK);
        zero += (now == 0) as u32;
        old += (now == 7) as u32;
        garbage += (now != 0 && now != 7) as u32;
        assert_eq!((byte(&device, 10 * BLOCK), byte(&device, 30 * BLOCK)), (7, 7));
        device.write_at(200 * BLOCK, &[1]).unwrap();
        // Written after it was discarded, and flushed: that stays.
        device.write_at(20 * BLOCK, &[8; 4096]).unwrap();
        device.flush().unwrap();
        device.discard(40 * BLOCK, BLOCK).unwrap();
        let now = byte(&device, 40 * BLOCK);
        let device = device.reopen();
        assert_eq!(byte(&device, 20 * BLOCK), 8);
        undone += (byte(&device, 40 * BLOCK) == 7 && now != 7) as u32;
    }
    assert!([zero, old, garbage, undone].iter().all(|&n| n > 5), "{zero} {old} {garbage} {undone}");
}

#[test]
fn corruption_changes_every_byte() {
    let device = SimDevice::new(SIZE, 1);
    device.write_at(0, &[5; 100]).unwrap();
    device.flush().unwrap();
    device.corrupt(10, 20);
    let mut buf = [0; 100];
    device.read_at(0, &mut buf).unwrap();
    let changed: Vec<usize> = (0..100).filter(|&i| buf[i] != 5).collect();
    assert_eq!(changed, (10..30).collect::<Vec<_>>());
    assert_ne!(byte(&device.reopen(), 10), 5);
}

#[test]
fn a_durable_write_survives_alone_and_over_what_was_written_before() {
    for seed in 0..200 {
        let device = SimDevice::new(1 << 20, seed);
        device.write_at(4000, &[1; 1000]).unwrap();
        assert!(device.write_durably(4096, &[2; 100]).unwrap());
        device.write_at(8192, &[3; 100]).unwrap();
        device.crash();
        let device = device.reopen();
        let mut found = [0; 100];
        device.read_at(4096, &mut found).unwrap();
        assert_eq!(found, [2; 100], "seed {seed}");
    }
}

#[test]
fn a_failed_durable_write_may_be_shown_and_lost_and_takes_no_other_with_it() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..200 {
        let device = SimDevice::new(1 << 20, seed);
        device.write_at(0, &[1; 512]).unwrap();
        device.set_fail_at(Some(0), FailMode::Once);
        assert!(device.write_durably(4096, &[2; 512]).is_err());
        let read = |device: &SimDevice, at| {
            let mut found = [0; 512];
            device.read_at(at, &mut found).unwrap();
            found
        };
        let shown = read(&device, 4096) == [2; 512];
        device.flush().unwrap();
        device.crash();
        let device = device.reopen();
        assert_eq!(read(&device, 0), [1; 512], "seed {seed}");
        let there = read(&device, 4096) == [2; 512];
        lost += u32::from(shown && !there);
        kept += u32::from(there);
    }
    assert!(lost > 10 && kept > 10, "{lost} {kept}");
}
