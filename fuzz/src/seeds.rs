//! Makes the first inputs of the target `receive`: streams of small trees, whole and as differences, as such and as
//! lists of blocks. `cargo run --manifest-path fuzz/Cargo.toml --bin seeds -- DIRECTORY`

use std::{error::Error, fs, path::Path};

use pando_fs::{
    Authority, DiffOptions, NewSnapshot, RENAME_EXCHANGE, SetAttr, SnapshotId, SnapshotInfo,
    send::{BlockReader, BlockWriter, FsTree, Header, Position, Sender},
};
use pando_fuzz::{BLOCKS, INTERRUPTED, STREAM, World};

/// Bytes of a block of a seed: several in each stream.
const BLOCK_BYTES: usize = 400;

type Res<T> = Result<T, Box<dyn Error>>;

fn snapshot(w: &World, name: &str) -> Res<SnapshotInfo> {
    let attr = w.fs.resolve(Path::new("/x"))?;
    let new = NewSnapshot { name: Some(name.into()), ..NewSnapshot::default() };
    let made = w.fs.snapshot(Authority::Caller(&w.me), attr.ino, &new)?;
    w.fs.forget(attr.ino, 1);
    Ok(made.0)
}

fn stream(w: &World, base: Option<&SnapshotInfo>, info: &SnapshotInfo) -> Res<Vec<u8>> {
    let id = |s: &SnapshotInfo| SnapshotId { store: w.fs.uuid(), number: s.number, created: s.created };
    let header = Header {
        snapshot: id(info),
        base: base.map(id),
        name: b"seed".to_vec(),
        source: b"/x".to_vec(),
        from: Position::default(),
    };
    let top = |s: &SnapshotInfo| {
        w.fs.resolve(Path::new(&format!("/x/.snapshots/{}", s.name.to_string_lossy()))).map(|a| a.ino)
    };
    let after = top(info)?;
    let source = FsTree::new(&w.fs, after);
    let mut out = BlockWriter::new(Vec::new(), &header, 1);
    let mut sink = |block: Vec<u8>, last| out.block(&block, last);
    let mut advance = |_| Ok(());
    let sender = Sender::new(&source, Some(&mut sink), &mut advance).with_blocks_of(BLOCK_BYTES);
    match base {
        None => sender.full()?,
        Some(base) => {
            let before = top(base)?;
            let options = DiffOptions { ranges: true, no_renames: false };
            let changes = w.fs.diff(None, before, after, options)?.collect::<Result<Vec<_>, _>>()?;
            sender.difference(&FsTree::new(&w.fs, before), changes, w.fs.has_links())?
        }
    };
    Ok(out.finish()?)
}

fn write(dir: &Path, name: &str, stream: &[u8]) -> Res<()> {
    fs::write(dir.join(name), [&[STREAM], stream].concat())?;
    for every in [0, 2] {
        let mut input = vec![BLOCKS];
        let mut reader = BlockReader::new(stream)?;
        let mut count = 0;
        while let Some(block) = reader.next_block()? {
            count += 1;
            let interrupted = if every > 0 && count % every == 0 { INTERRUPTED } else { 0 };
            for part in block.chunks(usize::from(INTERRUPTED - 1)) {
                input.extend((part.len() as u16 | interrupted).to_le_bytes());
                input.extend(part);
            }
        }
        fs::write(dir.join(format!("{name}-blocks-{every}")), input)?;
    }
    Ok(())
}

fn main() -> Res<()> {
    let dir = std::env::args_os().nth(1).ok_or("usage: seeds DIRECTORY")?;
    let dir = Path::new(&dir);
    fs::create_dir_all(dir)?;
    let w = World::with_a_tree()?;
    let one = snapshot(&w, "one")?;
    write(dir, "whole", &stream(&w, None, &one)?)?;
    let rename = |from: &str, to: &str, flags| {
        w.at(from, |d, n| w.at(to, |e, m| w.fs.rename(&w.me, d, n, e, m, flags)))
    };
    rename("/x/d/e", "/x/moved", 0)?;
    rename("/x/d", "/x/moved", RENAME_EXCHANGE)?;
    w.put("/x/new", &[1; 3000])?;
    w.at("/x/s", |d, n| w.fs.unlink(&w.me, d, n))?;
    w.link("/x/new", "/x/d/other")?;
    let attr = w.fs.resolve(Path::new("/x/a"))?;
    w.fs.setattr(
        &w.me,
        attr.ino,
        &SetAttr { mode: Some(0o4700), size: Some(1 << 30), ..SetAttr::default() },
    )?;
    w.fs.set_xattr(&w.me, attr.ino, "user.x".as_ref(), b"value", 0)?;
    w.fs.forget(attr.ino, 1);
    let two = snapshot(&w, "two")?;
    write(dir, "difference", &stream(&w, Some(&one), &two)?)?;
    println!("{} inputs in {}", fs::read_dir(dir)?.count(), dir.display());
    Ok(())
}
