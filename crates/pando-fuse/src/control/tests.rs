//! Tests of control requests.
#![allow(clippy::unwrap_used)]

use pando_fs::{NewSnapshot, StoredPolicy};
use proptest::prelude::*;

use super::*;
use crate::forked::MAX_ORIGIN_PATH_BYTES;

const TOKEN: Token = Token(*b"0123456789abcdef");

fn clone(name: &str, replace: bool) -> ControlRequest {
    ControlRequest::Clone {
        token: TOKEN,
        name: name.into(),
        replace,
        track: replace,
        exclude: vec!["a/b".into(), "c".into()],
    }
}

/// One of each kind.
fn requests() -> Vec<ControlRequest> {
    let long = "x".repeat(MAX_NAME_BYTES);
    vec![
        ControlRequest::Probe,
        ControlRequest::Token,
        ControlRequest::Sync,
        ControlRequest::Stats,
        ControlRequest::Grow { token: TOKEN, size: u64::MAX },
        ControlRequest::Usage { token: TOKEN },
        ControlRequest::Policies { token: TOKEN },
        ControlRequest::Gone { token: TOKEN },
        ControlRequest::Space { token: TOKEN },
        ControlRequest::Snapshot { token: TOKEN, asked: Asked::Rename(7, "x".into()) },
        ControlRequest::Remove { token: TOKEN, fork: true },
        ControlRequest::Quota { token: TOKEN, asked: QuotaAsked::Set(Some(1 << 40)) },
        ControlRequest::Change { token: TOKEN, change: TreeChange { uid: Some(3), ..TreeChange::default() } },
        ControlRequest::DiffNext,
        ControlRequest::Diff { before: TOKEN, after: Token([7; 16]), ranges: true, no_renames: false },
        ControlRequest::Diff { before: TOKEN, after: Token([7; 16]), ranges: false, no_renames: true },
        clone(&long, true),
        clone("a b\nc", false),
        ControlRequest::Identity,
        ControlRequest::Snapshot { token: TOKEN, asked: Asked::Create(NewSnapshot::default()) },
        ControlRequest::Snapshot {
            token: TOKEN,
            asked: Asked::SetPolicy(Some(StoredPolicy { every_secs: 60, ..StoredPolicy::default() })),
        },
        ControlRequest::Fork { token: TOKEN, into: Token([7; 16]), asked: ForkAsked::List },
        ControlRequest::Fork {
            token: TOKEN,
            into: TOKEN,
            asked: ForkAsked::Origin(u32::MAX, "src/a\n\u{e9}".into()),
        },
        ControlRequest::Fork {
            token: TOKEN,
            into: TOKEN,
            asked: ForkAsked::Origin(u32::MAX, "x".repeat(1900).into()),
        },
    ]
}

#[test]
fn requests_come_back_as_they_were() {
    for request in requests() {
        let bytes = request.encode().unwrap();
        assert!(ControlRequest::is_ours(request.command()), "{request:?}");
        assert_eq!(ControlRequest::decode(request.command(), &bytes[..]), Some(request));
    }
}

#[test]
fn names_that_are_no_names_are_refused() {
    for bad in ["", ".", "..", "a/b", "nul\0", &"x".repeat(MAX_NAME_BYTES + 1)] {
        assert_eq!(clone(bad, false).encode(), None, "{bad:?}");
        assert!(!is_plain_name(OsStr::new(bad)), "{bad:?}");
    }
}

#[test]
fn paths_that_are_none_are_refused() {
    let token = TOKEN;
    for bad in ["", "nul\0", &"x".repeat(MAX_ORIGIN_PATH_BYTES + 1), &"x".repeat(70_000)] {
        let asked = ForkAsked::Origin(7, bad.into());
        assert_eq!(ControlRequest::Fork { token, into: token, asked }.encode(), None, "{} bytes", bad.len());
    }
}

#[test]
fn garbage_is_refused_at_every_length() {
    let bytes = clone("s", false).encode().unwrap();
    for n in 0..HEADER_BYTES + 16 + 5 {
        assert_eq!(ControlRequest::decode(command::CLONE, &bytes[..n]), None, "{n} bytes");
    }
    for at in 0..HEADER_BYTES - 4 {
        let mut bent = bytes.clone();
        bent[at] ^= 0x80;
        assert_eq!(ControlRequest::decode(command::CLONE, &bent[..]), None, "bent at {at}");
    }
    assert_eq!(ControlRequest::decode(0x1234, &bytes[..]), None);
}

#[test]
fn answers_come_back_and_long_messages_are_cut_at_a_character() {
    let mut answer = Response { status: 17, value: 5, message: "exists".into() };
    assert_eq!(Response::decode(&answer.encode()), Some(answer.clone()));
    answer.message = "é".repeat(CONTROL_BYTES);
    let back = Response::decode(&answer.encode()).unwrap();
    assert!(answer.message.starts_with(&back.message) && back.message.len() > CONTROL_BYTES - 64);
    let usage = Usage { visible: 1, stored: u64::MAX, exclusive: 3, shared: 4, estimated: 5 };
    assert_eq!(decode_usage(&encode_usage(&usage)), Some(usage));
    for bad in ["", "1 2 3 4", "1 2 3 4 5 6", "1 2 3 4 x", "1 2 3 4 -5"] {
        assert_eq!(decode_usage(bad), None, "{bad}");
    }
    let response = Response { value: 1, ..Response::default() };
    let piece = vec![0xff; DIFF_PIECE_BYTES];
    assert_eq!(decode_piece(&encode_piece(&response, &piece, 7)), Some((response, piece, 7)));
    let refused = Response { status: 2, value: 0, message: "gone".into() };
    assert_eq!(decode_piece(&encode_piece(&refused, b"x", 7)), Some((refused, Vec::new(), 0)));
    assert_eq!(decode_stats(&encode_stats("{}").unwrap()).as_deref(), Some("{}"));
    assert_eq!(encode_stats(&"x".repeat(LONG_BYTES)), None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) })]

    /// Requests come from any process that can open a directory: changed, cut and invented bytes are refused, or
    /// decode to another request that encodes to the same bytes.
    #[test]
    fn bent_requests_are_refused_or_are_others(
        kind in any::<prop::sample::Index>(),
        as_another in prop::option::of(any::<prop::sample::Index>()),
        bends in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        cut in prop::option::of(0..CONTROL_BYTES),
    ) {
        let all = requests();
        let request = kind.get(&all);
        let mut bytes = request.encode().unwrap().to_vec();
        for (at, byte) in bends {
            // Most of the struct is not used.
            let at = at.index(if byte & 1 == 0 { 80 } else { bytes.len() });
            bytes[at] = byte;
        }
        bytes.truncate(cut.unwrap_or(bytes.len()));
        let command = as_another.map_or(request, |another| another.get(&all)).command();
        if let Some(found) = ControlRequest::decode(command, &bytes)
            && let Some(again) = found.encode()
        {
            prop_assert_eq!(ControlRequest::decode(found.command(), &again[..]), Some(found));
        }
    }
}
