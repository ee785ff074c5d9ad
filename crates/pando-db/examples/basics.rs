//! The basics: open a store in a file, write batches, read keys and ranges.
//!
//! `cargo run -p pando-db --example basics`

use pando_db::{Batch, CreateOptions, Db, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("trees.pando");
    Db::create(&path, &CreateOptions::default().size(64 << 20), &Options::default())?;
    let db = Db::open(&path, Options::default())?;

    // A batch is applied wholly or not at all, also if the machine crashes.
    let mut batch = Batch::new();
    batch.put("tree/aspen", "47000 trunks").put("tree/oak", "one trunk").put("moss/cushion", "no trunk");
    db.write(batch)?;
    db.put("tree/yew", "two trunks")?;
    db.delete("tree/oak")?;
    // What was written is durable from here on.
    db.sync()?;

    for pair in db.prefix(b"tree/") {
        let (key, value) = pair?;
        println!("{} has {}", key.escape_ascii(), value.escape_ascii());
    }
    assert_eq!(db.prefix(b"tree/").count(), 2);

    // A snapshot goes on showing what there was.
    let before = db.snapshot();
    db.delete_prefix("tree/")?;
    assert_eq!(db.get(b"tree/aspen")?, None);
    assert_eq!(before.get(b"tree/aspen")?.as_deref(), Some(&b"47000 trunks"[..]));
    db.close()?;
    Ok(())
}
