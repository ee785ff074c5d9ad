//! A file system in memory: format it, make files, clone a tree, read the copy.
//!
//! `cargo run -p pando-fs --example tree_clone`

use std::{ffi::OsStr, path::Path, sync::Arc};

use pando_db::device::MemDevice;
use pando_fs::{Caller, FormatOptions, Fs, MountOptions, ROOT};

/// Flag of open(2): for reading and writing.
const O_RDWR: i32 = 2;

fn main() -> pando_fs::Result<()> {
    let device = Arc::new(MemDevice::new(256 << 20));
    Fs::format(device.clone(), &FormatOptions::default().label("example"))?;
    let fs = Fs::open(device, MountOptions::default())?;
    let me = Caller::root();

    let project = fs.mkdir(&me, ROOT, OsStr::new("project"), 0o755)?;
    for i in 0..1000 {
        let name = format!("file-{i:04}");
        let (file, handle) = fs.create(&me, project.ino, OsStr::new(&name), 0o644, O_RDWR)?;
        fs.write(handle, file.ino, 0, format!("contents of {name}").as_bytes(), false)?;
        fs.release(file.ino, handle);
        fs.forget(file.ino, 1);
    }

    let report = fs.clone_tree(&me, (ROOT, OsStr::new("project")), (ROOT, OsStr::new("copy")), false)?;
    println!("a clone of 1,000 files took {} microseconds", report.micros);

    // Both trees are whole, and each is its own.
    let copy = fs.resolve(Path::new("/copy/file-0007"))?;
    let handle = fs.open_file(&me, copy.ino, O_RDWR)?;
    assert_eq!(&fs.read(handle, copy.ino, 0, 100)?[..], b"contents of file-0007");
    fs.write(handle, copy.ino, 0, b"CHANGED", false)?;
    fs.release(copy.ino, handle);
    let original = fs.resolve(Path::new("/project/file-0007"))?;
    let handle = fs.open_file(&me, original.ino, 0)?;
    assert_eq!(&fs.read(handle, original.ino, 0, 100)?[..], b"contents of file-0007");
    fs.release(original.ino, handle);
    fs.close()
}
