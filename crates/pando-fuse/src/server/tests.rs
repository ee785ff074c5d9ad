//! What the server keeps of files that the kernel has forgotten.
#![allow(clippy::unwrap_used)]

use std::io;

use pando_db::device::MemDevice;
use pando_fs::{FormatOptions, MountOptions, ROOT};

use super::*;

/// A kernel that does what it is told.
struct Obedient;

impl Notify for Obedient {
    fn forget_entry(&self, _: u64, _: &OsStr) -> io::Result<()> {
        Ok(())
    }
    fn forget_pages(&self, _: u64, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn forget_attributes(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn give_pages(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

fn server() -> Server {
    let device = Arc::new(MemDevice::new(64 << 20));
    Fs::format(device.clone(), &FormatOptions::default()).unwrap();
    let fs = Fs::open(device, MountOptions::default()).unwrap();
    let keeps = KernelKeeps { writeback: true, listings: true, access_lists: false };
    let server = Server::new(fs, Arc::default(), None, keeps);
    server.start(Arc::new(Obedient));
    server
}

fn wait<T>(answer: Answer<T>) -> Outcome<T> {
    match answer {
        Answer::Now(outcome) => outcome,
        Answer::Later(work) | Answer::Here(work) => work(),
    }
}

/// Makes a set-user-id file and writes to it as one who may not keep that bit.
fn bared(server: &Server, c: &Context, name: &OsStr) -> (u64, u64) {
    let (attr, opened) = server.create(c, ROOT, name, 0o4755, 0, libc::O_RDWR).unwrap();
    let (ino, handle) = (attr.ino, opened.handle);
    let write = Write {
        handle,
        ino,
        offset: 0,
        data: b"x",
        writeback: false,
        direct: false,
        kill_suidgid: true,
        flags: libc::O_RDWR,
    };
    assert_eq!(wait(server.write(c, write)).unwrap(), 1);
    assert_eq!(server.shared.set_id_bits(ino), 0, "vacuous: the bit is kept");
    (ino, handle)
}

#[test]
fn of_files_that_lost_set_id_bits_nothing_is_kept_when_they_are_forgotten() {
    let server = server();
    let c = Context { uid: 1000, gid: 1000, pid: 1, unique: 0, keeps_group_bit: None };
    let name = OsStr::new("f");
    for _ in 0..1000 {
        let (ino, handle) = bared(&server, &c, name);
        server.unlink(&c, ROOT, name).unwrap();
        drop(server.release(ino, handle, libc::O_RDWR));
        server.forget(ino, 1);
    }
    assert_eq!(server.shared.bare.lock().len(), 0);
    // One that the kernel still knows is not told of, whatever of the references it gives back.
    let (ino, _) = bared(&server, &c, name);
    wait(server.lookup(&c, ROOT, name)).unwrap();
    server.forget(ino, 1);
    assert!(server.shared.bare.lock().contains(&ino));
    server.forget(ino, 1);
    assert!(server.shared.bare.lock().is_empty());
}
