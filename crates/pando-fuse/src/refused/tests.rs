//! Tests of refused pages.
#![allow(clippy::unwrap_used)]

use super::*;

fn kept(refused: &Refused, ino: u64) -> Vec<(u64, u64)> {
    let file = refused.of(ino).unwrap();
    let file = file.lock();
    file.kept.0.iter().map(|(start, end)| (*start, *end)).collect()
}

#[test]
fn ranges_join_and_are_cut_and_the_count_is_theirs() {
    let refused = Refused::default();
    for (start, end) in [(10, 20), (30, 40), (20, 25), (50, 60)] {
        refused.note(7, &(start..end), libc::ENOSPC);
    }
    assert_eq!(kept(&refused, 7), [(10, 25), (30, 40), (50, 60)]);
    let done = |range| refused.around(7, range, || Ok::<_, ()>(()));
    done(12..35).unwrap();
    assert_eq!(kept(&refused, 7), [(10, 12), (35, 40), (50, 60)]);
    refused.around(7, 0..100, || Err::<(), _>(())).unwrap_err();
    assert_eq!(refused.ranges.load(Ordering::Relaxed), 3);
    done(40..u64::MAX).unwrap();
    assert_eq!(kept(&refused, 7), [(10, 12), (35, 40)]);
    assert!(refused.may_sync(7) == Err(Errno(libc::ENOSPC)) && refused.may_sync(8).is_ok());
    assert_eq!(refused.count(), 1);
    done(0..u64::MAX).unwrap();
    assert!(refused.may_sync(7).is_ok() && refused.count() == 0);
    assert_eq!(refused.ranges.load(Ordering::Relaxed), 0);
    assert!(!refused.tidy());
    assert!(refused.of(7).is_none());
}

#[test]
fn what_was_refused_is_stored_when_there_is_room_and_never_over_what_is_newer() {
    let refused = Refused::default();
    refused.note(1, &(0..3 << 20), libc::ENOSPC);
    refused.note(2, &(5..9), libc::ENOSPC);
    refused.note(3, &(5..9), libc::ENOSPC);
    let mut stored = Vec::new();
    let mut room = 2 << 20;
    let mut read = |ino: u64, range: &Range<u64>| match ino {
        3 => Err(io::Error::from_raw_os_error(libc::ESTALE)),
        _ => Ok(vec![ino as u8; (range.end - range.start) as usize]),
    };
    let mut write = |ino, offset, data: &[u8]| {
        if ino == 1 && room < data.len() {
            return Err(Errno(libc::EDQUOT));
        }
        room -= if ino == 1 { data.len() } else { 0 };
        stored.push((ino, offset, data.len()));
        Ok(())
    };
    refused.round(&mut read, &mut write);
    assert_eq!(refused.may_sync(1), Err(Errno(libc::EDQUOT)));
    assert!(refused.may_sync(2).is_ok() && refused.may_sync(3).is_ok());
    assert!(refused.tidy());
    stored.sort_unstable();
    assert_eq!(stored, [(1, 0, 1 << 20), (1, 1 << 20, 1 << 20), (2, 5, 4)]);
    // Others write there between the reading and the storing.
    let mut read = |ino: u64, range: &Range<u64>| {
        refused.around(ino, range.end..range.end, || Ok::<_, ()>(())).unwrap();
        Ok(vec![0; (range.end - range.start) as usize])
    };
    refused.round(&mut read, |_, _, _| panic!("what was read is old"));
    assert_eq!(kept(&refused, 1), [(2 << 20, 3 << 20)]);
}

/// One user's files over a quota kept those of others from being tried at all.
#[test]
fn files_without_space_leave_the_others_their_turn() {
    let refused = Refused::default();
    let (many, last) = (4 * MAX_REFUSED_FILES as u64, 1000);
    (1..=many).chain([last]).for_each(|ino| refused.note(ino, &(0..4), libc::EDQUOT));
    let read = |_: u64, _: &Range<u64>| Ok(vec![0; 4]);
    let write = |ino, _: u64, _: &[u8]| if ino == last { Ok(()) } else { Err(Errno(libc::EDQUOT)) };
    for _ in 0..5 {
        refused.round(read, write);
    }
    assert!(refused.may_sync(last).is_ok() && refused.count() == many as usize);
}

#[test]
fn what_the_kernel_asks_for_is_gone_and_not_tried_again() {
    let refused = Refused::default();
    let ranges = || refused.ranges.load(Ordering::Relaxed);
    refused.note(1, &(10..40), libc::ENOSPC);
    refused.asked_for(2, &(0..100));
    refused.asked_for(1, &(40..100));
    assert_eq!(kept(&refused, 1), [(10, 40)]);
    // The server's own read of what it tries again.
    let read = |ino: u64, range: &Range<u64>| {
        if range.end == 40 && range.start == 10 {
            refused.asked_for(ino, &(20..25));
        }
        Ok(vec![0; (range.end - range.start) as usize])
    };
    let mut stored = Vec::new();
    refused.round(read, |_, offset, data| {
        stored.push((offset, data.len()));
        Ok(())
    });
    assert_eq!(stored, [(10, 10), (25, 15)]);
    assert_eq!((refused.may_sync(1), refused.count(), ranges()), (Err(Errno(libc::EIO)), 1, 1));
    assert!(!refused.may_wait(1) && refused.why_it_waits(1).is_none());
    // The page of which a part is gone is changed, and refused again, and then stored: as it is to be, or not.
    refused.note(1, &(18..30), libc::ENOSPC);
    assert_eq!((kept(&refused, 1), ranges()), (vec![(18, 30)], 2));
    let write = |of_pages| refused.around_part(1, 18, of_pages, || Ok::<u32, ()>(12)).unwrap();
    write(true);
    assert_eq!((refused.may_sync(1), refused.count(), ranges()), (Err(Errno(libc::EIO)), 1, 1));
    refused.note(1, &(18..30), libc::ENOSPC);
    refused.round(|_, _| Ok(vec![1; 12]), |_, _, _| Ok(()));
    assert_eq!((refused.may_sync(1), refused.count(), ranges()), (Err(Errno(libc::EIO)), 1, 1));
    // Bytes of a program's.
    write(false);
    assert!(refused.may_sync(1).is_ok() && refused.count() == 0 && ranges() == 0);
    // Somebody closes it, and then the last one; what the kernel still has is kept.
    refused.note(1, &(10..40), libc::ENOSPC);
    refused.asked_for(1, &(0..20));
    refused.closed(1, || true);
    assert_eq!((refused.may_sync(1), ranges()), (Err(Errno(libc::EIO)), 2));
    refused.closed(1, || false);
    assert_eq!((refused.may_sync(1), ranges()), (Err(Errno(libc::ENOSPC)), 1));
    refused.around(1, 0..u64::MAX, || Ok::<_, ()>(())).unwrap();
    // The kernel forgets it.
    refused.note(1, &(10..40), libc::ENOSPC);
    refused.asked_for(1, &(0..20));
    refused.forgotten(1, || true);
    assert!(refused.may_sync(1).is_err());
    refused.forgotten(1, || false);
    assert!(refused.may_sync(1).is_ok() && !refused.tidy() && ranges() == 0);
}

/// Of a file of which 10 to 40 and 60 on are stored, up to 80.
#[test]
fn what_waits_to_be_stored_is_no_hole() {
    let stored = |at: u64, what: Seek| match what {
        _ if at >= 80 => Err(Errno(libc::ENXIO)),
        Seek::Data => Ok(if at < 40 { at.max(10) } else { at.max(60) }),
        Seek::Hole if (10..40).contains(&at) => Ok(40),
        Seek::Hole => Ok(if at >= 60 { 80 } else { at }),
    };
    let refused = Refused::default();
    let find = |at: u64, what: Seek| refused.seek(1, at, what, stored).map_err(|e| e.0);
    let all = |what| [0, 10, 45, 70, 80, 95, 130].map(|at| find(at, what));
    let none = Err(libc::ENXIO);
    assert_eq!(all(Seek::Data), [Ok(10), Ok(10), Ok(60), Ok(70), none, none, none]);
    assert_eq!(all(Seek::Hole), [Ok(0), Ok(40), Ok(45), Ok(80), none, none, none]);
    refused.note(1, &(0..5), libc::ENOSPC);
    refused.note(1, &(30..50), libc::ENOSPC);
    refused.note(1, &(80..90), libc::ENOSPC);
    refused.note(1, &(100..120), libc::ENOSPC);
    assert_eq!(all(Seek::Data), [Ok(0), Ok(10), Ok(45), Ok(70), Ok(80), Ok(100), none]);
    assert_eq!(all(Seek::Hole), [Ok(5), Ok(50), Ok(50), Ok(90), Ok(90), Ok(95), none]);
}

#[test]
fn more_than_there_is_room_for_is_not_forgotten() {
    let refused = Refused::default();
    for i in 0..=MAX_RANGES as u64 {
        refused.note(1, &(2 * i..2 * i + 1), libc::ENOSPC);
    }
    refused.round(|_, _| Ok(vec![1]), |_, _, _| Ok(()));
    assert!(refused.may_sync(1).is_err(), "the last is stored nowhere");
    assert_eq!(refused.seek(1, 0, Seek::Hole, |at, _| Ok(at)), Err(Errno(libc::ENOSPC)));
    refused.round(|_, _| Err(io::ErrorKind::Other.into()), |_, _, _| Ok(()));
    assert!(refused.tidy());
    refused.around(1, 0..u64::MAX, || Ok::<_, ()>(())).unwrap();
    assert!(!refused.tidy());
}
