//! Tests of differences that are being sent.
#![allow(clippy::unwrap_used)]

use super::*;

#[test]
fn one_that_nobody_asks_about_ends() {
    let diffs = Diffs::default();
    assert!(diffs.begin_bytes(7, (1, 1), vec![0; 9]));
    std::thread::sleep(Duration::from_millis(20));
    assert!(diffs.begin_bytes(7, (1, 2), vec![0; 9]));
    let patience = |idle: u64| Patience { idle: Duration::from_millis(idle), ..DIFF_PATIENCE };
    let left = diffs.end_idle(&patience(20)).unwrap();
    assert!(left <= Duration::from_millis(20));
    assert!(diffs.next(7, (1, 1), 4).is_none() && diffs.next(7, (1, 2), 4).is_some());
    assert_eq!(diffs.end_idle(&patience(0)), None);
    assert!(diffs.next(7, (1, 2), 4).is_none());
}

/// Who takes a piece now and then holds deleted space no longer than who takes none; what is taken quickly may be
/// long.
#[test]
fn one_that_is_taken_slowly_ends() {
    let diffs = Diffs::default();
    assert!(diffs.begin_bytes(7, (1, 1), vec![0; 10_000]));
    assert!(diffs.begin_bytes(7, (1, 2), vec![0; 500_000]));
    let patience = Patience { idle: Duration::from_millis(500), bytes_per_second: 1000, ..DIFF_PATIENCE };
    let (begin, mut longest) = (Instant::now(), Duration::ZERO);
    let is_left = |handle: u64| diffs.sessions.lock().contains_key(&(1, handle));
    while is_left(1) {
        assert!(diffs.next(7, (1, 1), 1).is_some() && diffs.next(7, (1, 2), 500).is_some());
        let since = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        diffs.end_idle(&patience);
        longest = longest.max(since.elapsed());
        assert!(begin.elapsed() < Duration::from_secs(20), "it is kept for ever");
    }
    assert!(is_left(2) || longest > Duration::from_millis(250), "much was taken of it");
    let patience = Patience { lifetime: Duration::from_millis(1), ..DIFF_PATIENCE };
    assert_eq!(diffs.end_idle(&patience), None);
}

/// The threads of differences that were ended run as long as the device keeps them waiting: they count.
#[test]
fn threads_of_ended_differences_are_bounded() {
    let diffs = Diffs::default();
    let (go, gate) = std::sync::mpsc::channel::<()>();
    let gate = Arc::new(Mutex::new(gate));
    let mut handle = 0;
    let mut begin = |uid: u32| {
        handle += 1;
        let gate = gate.clone();
        let hangs = std::iter::once_with(move || {
            let _ = gate.lock().recv();
            Ok(Vec::new())
        });
        let begun = diffs.begin_encoded(uid, (1, handle), hangs, Arc::default());
        diffs.closed(1, handle);
        begun
    };
    assert_eq!((0..100).filter(|_| begin(7)).count(), MAX_DIFF_THREADS_OF_USER);
    assert_eq!((100..300).filter(|uid| begin(*uid)).count(), MAX_DIFF_THREADS - MAX_DIFF_THREADS_OF_USER);
    assert!(begin(0), "root is not kept from it by others");
    drop(go);
    let since = Instant::now();
    while !begin(7) {
        assert!(since.elapsed() < Duration::from_secs(20), "they are counted for ever");
        std::thread::sleep(Duration::from_millis(5));
    }
    diffs.end();
}

/// Who has a descriptor from another user has not what that user was told by it.
#[test]
fn one_is_told_to_the_user_who_has_asked() {
    let diffs = Diffs::default();
    assert!(diffs.begin_bytes(7, (1, 1), vec![0; 9]));
    assert!(diffs.next(8, (1, 1), 4).is_none());
    let piece = diffs.next(7, (1, 1), 4).unwrap().unwrap();
    assert_eq!((piece.bytes.len(), piece.last), (4, false));
    assert!(diffs.next(0, (1, 1), 4).is_none());
}

#[test]
fn no_user_keeps_another_from_asking() {
    let diffs = Diffs::default();
    let mut handle = 0;
    let mut begin = |uid: u32| {
        handle += 1;
        diffs.begin_bytes(uid, (1, handle), vec![0; 9]).then_some((1, handle))
    };
    // Eight users with eight each, and then one with one and root.
    let firsts: Vec<_> =
        (100..108).map(|uid| (0..MAX_DIFFS_OF_USER).map(|_| begin(uid).unwrap()).min()).collect();
    let (one, root) = (begin(7).unwrap(), begin(0).unwrap());
    assert!(diffs.next(7, one, 4).is_some() && diffs.next(0, root, 4).is_some());
    let gone = (100..).zip(&firsts).filter(|(uid, first)| diffs.next(*uid, first.unwrap(), 4).is_none());
    assert_eq!(gone.count(), 1, "one of those with most has lost the one that was used least lately");
    // If each user has one, none loses it; root is not refused.
    for uid in 200..400 {
        begin(uid);
    }
    assert!(begin(500).is_none());
    assert!(begin(0).is_some());
    assert!(diffs.next(7, one, 4).is_some());
    assert!(diffs.sessions.lock().len() <= MAX_DIFFS + MAX_DIFFS_OF_ROOT);
}

#[test]
fn differences_come_back_from_pieces_of_any_size_and_nonsense_is_an_error() {
    let full = FileChange {
        kind: ChangeKind::Renamed,
        file: FileKind::Socket,
        path: OsString::from_vec(b"a/\xff\n".to_vec()),
        from: Some("b".into()),
        aspects: Aspects(5),
        size_before: u64::MAX,
        size_after: 7,
        ranges: vec![(1, 2), (3, u64::MAX)],
    };
    let plain = FileChange { from: None, path: OsString::new(), ranges: Vec::new(), ..full.clone() };
    let all = [full.clone(), plain, full];
    let bytes: Vec<u8> = all.iter().flat_map(encode).collect();
    for size in [1, 3, 50, 1000] {
        let (mut reader, mut found) = (DiffDecoder::default(), Vec::new());
        for piece in bytes.chunks(size) {
            reader.add(piece);
            while let Some(change) = reader.next().unwrap() {
                found.push(change);
            }
        }
        assert!(found == all && reader.is_empty());
    }
    let one = encode(&all[1]);
    for (at, value) in [(0, 3), (4, 9), (5, 9), (24, 200)] {
        let mut bad = one.clone();
        bad[at] = value;
        let mut reader = DiffDecoder::default();
        reader.add(&bad);
        reader.add(&[0; 300]);
        assert_eq!(reader.next(), Err(()), "byte {at}");
    }
}
