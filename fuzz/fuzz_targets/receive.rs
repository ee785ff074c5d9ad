//! A hostile stream: an error or not, but no panic, no memory without bound, nothing outside of the tree that is
//! received, and a file system that is whole.
//!
//! `docs/testing.md` says how to run it; `pando_fuzz` says what an input is.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use pando_fs::{
    Ino,
    send::{BlockReader, FsTree, Position, Receiver, StreamError},
};
use pando_fuzz::{BLOCKS, INTERRUPTED, World};

/// Name of the directory for what is put aside.
const ASIDE: &[u8] = b".aside";
/// Blocks after which a list is cut, a count.
const MOST_BLOCKS: usize = 64;

/// As `pando receive` does it with what comes from a pipe.
fn stream(w: &World, top: Ino, bytes: &[u8]) -> Result<(), StreamError> {
    let mut reader = BlockReader::new(bytes)?;
    let mut tree = FsTree::new(&w.fs, top);
    let mut receiver = Receiver::new(&mut tree, ASIDE.to_vec());
    loop {
        let (at, byte) = (reader.position(), reader.bytes());
        let Some(block) = reader.next_block()? else { return Ok(()) };
        receiver.block(&block, at, byte)?;
    }
}

/// Blocks whose checksums would be right, with interruptions.
fn blocks(w: &World, top: Ino, mut bytes: &[u8]) -> Result<(), StreamError> {
    let mut tree = FsTree::new(&w.fs, top);
    let (mut current, mut totals) = (None, Default::default());
    let mut interrupted = false;
    let mut left = MOST_BLOCKS;
    while left > 0 {
        let mut receiver = match interrupted {
            true => Receiver::resumed(&mut tree, ASIDE.to_vec(), current.clone(), totals)?,
            false => Receiver::new(&mut tree, ASIDE.to_vec()),
        };
        loop {
            let Some((len, rest)) = bytes.split_first_chunk::<2>() else { return Ok(()) };
            let len = u16::from_le_bytes(*len);
            if len & INTERRUPTED != 0 && !interrupted {
                interrupted = true;
                let (file, counted) = receiver.state();
                (current, totals) = (file.map(<[u8]>::to_vec), counted);
                break;
            }
            interrupted = false;
            let (block, behind) = rest.split_at(usize::from(len & !INTERRUPTED).min(rest.len()));
            bytes = behind;
            receiver.block(block, Position::default(), 0)?;
            left = left.saturating_sub(1);
            if left == 0 {
                return Ok(());
            }
        }
    }
    Ok(())
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else { return };
    let w = World::with_a_tree().expect("a file system in memory");
    let top = w.fs.resolve(Path::new("/x")).expect("the tree").ino;
    // What a stream says wrong is an error; only what it does besides is looked at.
    let _ = match kind & 1 == BLOCKS {
        true => blocks(&w, top, rest),
        false => stream(&w, top, rest),
    };
    // What is in memory for its sake would keep all of the file system there.
    w.fs.forget(top, 1);
    assert_eq!(w.get("/beside/file").expect("the file beside"), b"not to be changed");
    assert_eq!(w.problem().expect("a check"), None);
});
