//! Backups: all pairs of one moment as a stream of bytes, written while the store changes, and a store from it.
//!
//! `cargo run -p pando-db --example backup`

use std::sync::Arc;

use pando_db::{Backup, CreateOptions, Db, Options, device::MemDevice};

fn main() -> pando_db::Result<()> {
    let device = Arc::new(MemDevice::new(256 << 20));
    Db::create(device.clone(), &CreateOptions::default(), &Options::default())?;
    let db = Db::open(device, Options::default())?;
    for i in 0..20_000 {
        db.put(format!("user/{i:06}"), format!("balance {}", i * 7))?;
    }
    db.clone_prefix("user/", "archive/")?;

    // A file or a pipe does as well: anything that can be written to.
    let snapshot = db.snapshot();
    db.put("user/000042", "written after the snapshot")?;
    let mut stream = Vec::new();
    let written = snapshot.backup(&mut stream)?;
    println!("{} pairs of {} bytes in {} bytes", written.pairs, written.bytes, written.stream_bytes);
    db.close()?;

    // The stream is checked as it is read. What clones shared is there for each of them.
    let device = Arc::new(MemDevice::new(256 << 20));
    let backup = Backup::open(&stream[..])?;
    let restored = backup.restore(device.clone(), &CreateOptions::default(), &Options::default())?;
    assert_eq!((written.pairs, restored.pairs), (40_000, 40_000));
    let db = Db::open(device, Options::default())?;
    assert_eq!(db.get(b"user/000042")?.as_deref(), Some(&b"balance 294"[..]));
    assert_eq!(db.prefix(b"archive/").count(), 20_000);
    db.close()?;

    // A stream that is cut short makes no store.
    let device = Arc::new(MemDevice::new(256 << 20));
    let cut = &stream[..stream.len() / 2];
    let half = Backup::open(cut)?;
    let refused = half.restore(device.clone(), &CreateOptions::default(), &Options::default());
    println!("half of it: {refused:?}");
    assert!(refused.is_err() && Db::open(device, Options::default()).is_err());
    Ok(())
}
