//! What of a superblock is read, and what is refused.

#![allow(clippy::unwrap_used)]
use super::*;
use crate::device::{FailMode, MemDevice, SimDevice};

const DEVICE: u64 = 1 << 20;

fn sample(generation: u64) -> Superblock {
    Superblock {
        generation,
        compatible: 1 << 40,
        uuid: *b"0123456789abcdef",
        device_size: DEVICE,
        created: 1_700_000_000_000_000_000,
        node_size: 1 << 20,
        merge: "patch".into(),
        log_base: END,
        log_size: MIN_LOG,
        log_start: LogPos { pos: 808, chain: 0xfeed },
        next_msn: 17,
        next_node: 30,
        root: 29,
        table: TableRoot { offset: 1 << 19, len: 5000, checksum: 0xdead, depth: 2 },
        clean: true,
        label: "Grove ".repeat(10) + "äö",
        ..Superblock::default()
    }
}

/// Rewrites a slot by hand, with a right checksum.
fn forge(device: &MemDevice, slot: u64, change: impl FnOnce(&mut [u8; SIZE])) {
    let mut block = [0; SIZE];
    device.read_at(slot * BLOCK, &mut block).unwrap();
    change(&mut block);
    let checksum = xxh3_64(&block[..CHECKSUM_OFFSET]).to_le_bytes();
    block[CHECKSUM_OFFSET..].copy_from_slice(&checksum);
    device.write_at(slot * BLOCK, &block).unwrap();
}

#[test]
fn the_newest_of_two_is_read() {
    let device = MemDevice::new(DEVICE);
    for generation in [1, 2, 3, 4] {
        write(&device, &sample(generation)).unwrap();
        let slots = read(&device).unwrap();
        assert_eq!(slots.newest, sample(generation));
        // The first is alone on the device.
        assert_eq!(slots.damaged.is_some(), generation == 1);
    }
    device.write_at(50, b"rot").unwrap();
    let slots = read(&device).unwrap();
    assert_eq!((slots.newest.generation, slots.damaged.map(|d| d.0)), (3, Some(0)));
    device.write_at(BLOCK + 50, b"rot").unwrap();
    assert!(matches!(read(&device), Err(Error::Corrupt { .. })));
}

#[test]
fn what_is_no_store_is_said_so() {
    assert!(matches!(read(&MemDevice::new(100)), Err(Error::Format(_))));
    assert!(matches!(read(&MemDevice::new(DEVICE)), Err(Error::Format(_))));
}

#[test]
fn unknown_versions_and_features_are_named() {
    let device = MemDevice::new(DEVICE);
    // The version before is as unknown as one of the future.
    for version in [2, 77] {
        write(&device, &sample(2)).unwrap();
        forge(&device, 0, |block| block[8] = version);
        let message = read(&device).unwrap_err().to_string();
        assert!(message.contains(&format!("version {version}; this is 3")), "{message}");
    }
    write(&device, &sample(2)).unwrap();
    forge(&device, 0, |block| block[25] = 2);
    let message = read(&device).unwrap_err().to_string();
    assert!(message.contains("0x200"), "{message}");
}

#[test]
fn a_superblock_in_the_wrong_slot_does_not_count() {
    let device = MemDevice::new(DEVICE);
    write(&device, &sample(2)).unwrap();
    let mut block = [0; SIZE];
    device.read_at(0, &mut block).unwrap();
    device.write_at(BLOCK, &block).unwrap();
    device.write_at(0, &[0; SIZE]).unwrap();
    assert!(matches!(read(&device), Err(Error::Corrupt { .. })));
}

#[test]
fn senseless_fields_are_refused_by_both_ways() {
    let device = MemDevice::new(DEVICE);
    let changes: [fn(&mut Superblock); 20] = [
        |s| s.device_size = DEVICE + BLOCK,
        |s| s.device_size -= 1,
        |s| s.node_size = 4095,
        |s| s.node_size = (16 << 20) + 1,
        |s| s.merge = "x".repeat(33),
        |s| s.label = "a\0b".into(),
        |s| s.log_base = BLOCK,
        |s| s.log_base = u64::MAX - BLOCK + 1,
        |s| s.log_base += 8,
        |s| s.log_size = 0,
        |s| s.log_size = DEVICE,
        |s| s.log_start.pos = u64::MAX,
        |s| s.log_start.pos = 9,
        |s| s.root = 30,
        |s| s.table.offset = END,
        |s| s.table.offset = DEVICE - BLOCK,
        |s| s.table.len = u32::MAX,
        |s| s.table.depth = 200,
        |s| s.table.depth = MAX_DEPTH + 1,
        |s| s.table.len |= SCATTERED | (MAX_TABLE_PAGE + 1),
    ];
    for (index, change) in changes.iter().enumerate() {
        let mut bad = sample(2);
        change(&mut bad);
        assert!(matches!(write(&device, &bad), Err(Error::Invalid(_))), "{index}");
    }
    // The same through bytes: a shorter device, and a log pushed out of the store.
    write(&device, &sample(2)).unwrap();
    forge(&device, 0, |block| block[112 + 7] = 0xff);
    assert!(matches!(read(&device), Err(Error::Corrupt { .. })));
    let short = MemDevice::new(DEVICE / 2);
    let mut block = sample(2).encode();
    short.write_at(0, &block).unwrap();
    assert!(matches!(read(&short), Err(Error::Corrupt { .. })));
    block[192] = 0xff;
    device.write_at(0, &block).unwrap();
    forge(&device, 0, |_| ());
    assert!(matches!(read(&device), Err(Error::Corrupt { .. })), "the label is not UTF-8");
}

/// Of a table page that lies in several ranges, its list of them is a block at the offset.
#[test]
fn a_scattered_table_page_takes_a_block_where_it_is_listed() {
    let device = MemDevice::new(DEVICE);
    let at = |offset: u64, len: u32| {
        let table = TableRoot { offset, len, ..sample(2).table };
        Superblock { table, ..sample(2) }
    };
    // A page of two blocks does not fit into the last one, but its list does.
    let last = DEVICE - BLOCK;
    assert!(at(last, 5000).check(DEVICE).is_err());
    let scattered = at(last, 5000 | SCATTERED);
    write(&device, &scattered).unwrap();
    assert_eq!(read(&device).unwrap().newest, scattered);
    // Nor does it reach into the log, which lies behind the superblocks here.
    let behind = Superblock { log_base: last - MIN_LOG, ..at(last - MIN_LOG - BLOCK, 5000) };
    assert!(behind.check(DEVICE).is_err());
    let table = TableRoot { len: 5000 | SCATTERED, ..behind.table };
    assert_eq!(Superblock { table, ..behind }.check(DEVICE), Ok(()));
    for (offset, len) in [
        (DEVICE, 5000 | SCATTERED),
        (last + 8, 5000 | SCATTERED),
        (END, 5000 | SCATTERED),
        (last, (MAX_TABLE_PAGE + 1) | SCATTERED),
    ] {
        assert!(at(offset, len).check(DEVICE).is_err(), "{offset} {len:x}");
    }
}

/// Any single byte changed, with and without a repaired checksum: never a panic, and
/// without repair never a wrong superblock.
#[test]
fn hostile_bytes_never_panic() {
    let device = MemDevice::new(DEVICE);
    let good = sample(2).encode();
    for at in (0..300).chain(CHECKSUM_OFFSET..SIZE) {
        for flip in [1, 0x80, 0xff] {
            let mut block = good;
            block[at] ^= flip;
            device.write_at(0, &block).unwrap();
            assert!(read(&device).is_err());
            forge(&device, 0, |_| ());
            if let Ok(superblock) = read(&device) {
                superblock.newest.check(DEVICE).unwrap();
            }
        }
    }
}

/// Whichever slot rots once a superblock was committed, the other one says the same.
#[test]
fn either_slot_is_as_good_as_the_other() {
    for slot in 0..2 {
        let device = MemDevice::new(DEVICE);
        let mut superblock = sample(6);
        commit(&device, &mut superblock).unwrap();
        superblock.root -= 1;
        commit(&device, &mut superblock).unwrap();
        assert_eq!(read(&device).unwrap(), Slots { newest: superblock.clone(), damaged: None });
        device.write_at(slot * BLOCK + 150, &[0x5a]).unwrap();
        let slots = read(&device).unwrap();
        let same = Superblock { generation: superblock.generation, ..slots.newest };
        assert_eq!((same, slots.damaged.map(|d| d.0)), (superblock, Some(slot)));
    }
}

#[test]
fn a_crash_while_committing_leaves_the_old_or_the_new_one() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..200 {
        let device = SimDevice::new(DEVICE, seed);
        let mut superblock = sample(6);
        commit(&device, &mut superblock).unwrap();
        superblock.root -= 1;
        device.set_fail_at(Some(seed % 3), FailMode::Onwards);
        _ = commit(&device, &mut superblock.clone());
        device.set_fail_at(None, FailMode::Once);
        match read(&*device.reopen()).unwrap().newest.root {
            root if root == superblock.root => new += 1,
            root => {
                assert_eq!(root, superblock.root + 1);
                old += 1;
            }
        }
    }
    assert!(old > 10 && new > 10, "{old} {new}");
}

#[test]
fn a_crash_while_writing_leaves_the_old_or_the_new_one() {
    let (mut old, mut new) = (0, 0);
    for seed in 0..100 {
        let device = SimDevice::new(DEVICE, seed);
        write(&device, &sample(6)).unwrap();
        device.flush().unwrap();
        write(&device, &sample(7)).unwrap();
        match read(&*device.reopen()).unwrap().newest {
            found if found == sample(6) => old += 1,
            found if found == sample(7) => new += 1,
            found => panic!("{found:?}"),
        }
    }
    assert!(old > 10 && new > 10, "{old} {new}");
}

#[test]
fn an_unreadable_slot_is_an_error_and_not_an_old_state() {
    let device = SimDevice::new(DEVICE, 1);
    for generation in [6, 7] {
        write(&device, &sample(generation)).unwrap();
    }
    for slot in 0..2 {
        device.set_fail_at(Some(slot), FailMode::Once);
        assert!(matches!(read(&device), Err(Error::Io { .. })));
    }
}
