//! Deleted space comes back.
#![allow(clippy::unwrap_used)]
use pando_db::{CreateOptions, Db, Error, Options, device::MemDevice};
use std::sync::Arc;

#[test]
fn a_full_store_that_is_emptied_takes_as_much_again() {
    let device = Arc::new(MemDevice::new(64 << 20));
    let options = Options::default().background(false);
    Db::create(device.clone(), &CreateOptions::default().node_size(64 << 10), &options).unwrap();
    let db = Db::open(device, options).unwrap();
    let mut state = 1u64;
    let mut noise = || -> Vec<u8> {
        (0..16_000)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect()
    };
    let mut first = 0;
    for round in 0..4 {
        let mut count = 0;
        loop {
            match db.put(format!("d/{count:05}"), noise()) {
                Ok(()) => count += 1,
                Err(Error::NoSpace) => break,
                Err(other) => panic!("{other}"),
            }
        }
        if round == 0 {
            first = count;
        }
        assert!(count * 10 >= first * 9, "{count} values after {round} rounds, {first} at first");
        db.delete_prefix("d/").unwrap();
        db.checkpoint().unwrap();
    }
}
