//! Branches of a database: a clone of a prefix costs a small write, whatever lies below it.
//!
//! `cargo run -p pando-db --example branches`

use std::sync::Arc;

use pando_db::{CreateOptions, Db, Options, device::MemDevice};

fn main() -> pando_db::Result<()> {
    let device = Arc::new(MemDevice::new(256 << 20));
    Db::create(device.clone(), &CreateOptions::default(), &Options::default())?;
    let db = Db::open(device, Options::default())?;
    for i in 0..50_000 {
        db.put(format!("main/user/{i:06}"), format!("balance {}", i * 7))?;
    }

    // The branch shares all pairs with the trunk until one of the two changes them.
    let begin = std::time::Instant::now();
    db.clone_prefix("main/", "trial/")?;
    println!("a branch of 50,000 pairs took {:?}", begin.elapsed());

    db.put("trial/user/000042", "balance 0")?;
    db.delete("trial/user/000043")?;
    assert_eq!(db.get(b"main/user/000042")?.as_deref(), Some(&b"balance 294"[..]));
    assert_eq!(db.get(b"trial/user/000042")?.as_deref(), Some(&b"balance 0"[..]));
    assert_eq!(db.prefix(b"main/").count(), 50_000);
    assert_eq!(db.prefix(b"trial/").count(), 49_999);

    // The branch is kept by moving it, or dropped.
    db.delete_prefix("trial/")?;
    assert_eq!(db.prefix(b"trial/").count(), 0);
    db.close()
}
