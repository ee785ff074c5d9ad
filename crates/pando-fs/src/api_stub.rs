//! The agreed signatures, without bodies yet: replaced by the commits that follow.
#![allow(clippy::todo, missing_docs, unused_variables)]
use crate::*;
use bytes::Bytes;
use pando_db::device::Device;
use std::{
    ffi::{OsStr, OsString},
    path::Path,
    sync::Arc,
};

#[derive(Clone)]
pub struct Fs {}

#[allow(clippy::too_many_arguments)]
impl Fs {
    pub fn format(device: Arc<dyn Device>, o: &FormatOptions) -> Result<()> {
        todo!()
    }
    pub fn open(device: Arc<dyn Device>, o: MountOptions) -> Result<Fs> {
        todo!()
    }
    pub fn db(&self) -> &pando_db::Db {
        todo!()
    }
    pub fn label(&self) -> &str {
        todo!()
    }
    pub fn close(&self) -> Result<()> {
        todo!()
    }
    pub fn sync(&self) -> Result<()> {
        todo!()
    }
    pub fn grow(&self, size: u64) -> Result<()> {
        todo!()
    }
    pub fn statfs(&self) -> Result<StatFs> {
        todo!()
    }
    pub fn stats(&self) -> Result<FsStats> {
        todo!()
    }
    pub fn lookup(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        todo!()
    }
    pub fn forget(&self, ino: Ino, n: u64) {
        todo!()
    }
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        todo!()
    }
    pub fn setattr(&self, c: &Caller, ino: Ino, s: &SetAttr) -> Result<Attr> {
        todo!()
    }
    pub fn readlink(&self, ino: Ino) -> Result<Bytes> {
        todo!()
    }
    pub fn mknod(&self, c: &Caller, parent: Ino, name: &OsStr, mode: u32, rdev: u32) -> Result<Attr> {
        todo!()
    }
    pub fn mkdir(&self, c: &Caller, parent: Ino, name: &OsStr, mode: u32) -> Result<Attr> {
        todo!()
    }
    pub fn symlink(&self, c: &Caller, parent: Ino, name: &OsStr, target: &OsStr) -> Result<Attr> {
        todo!()
    }
    pub fn create(
        &self,
        c: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> Result<(Attr, FileHandle)> {
        todo!()
    }
    pub fn unlink(&self, c: &Caller, parent: Ino, name: &OsStr) -> Result<()> {
        todo!()
    }
    pub fn rmdir(&self, c: &Caller, parent: Ino, name: &OsStr) -> Result<()> {
        todo!()
    }
    pub fn rename(
        &self,
        c: &Caller,
        parent: Ino,
        name: &OsStr,
        newparent: Ino,
        newname: &OsStr,
        flags: u32,
    ) -> Result<()> {
        todo!()
    }
    pub fn open_file(&self, c: &Caller, ino: Ino, flags: i32) -> Result<FileHandle> {
        todo!()
    }
    pub fn read(&self, fh: FileHandle, ino: Ino, offset: u64, size: u32) -> Result<Bytes> {
        todo!()
    }
    pub fn write(&self, fh: FileHandle, ino: Ino, offset: u64, data: &[u8], append: bool) -> Result<u32> {
        todo!()
    }
    pub fn release(&self, ino: Ino, fh: FileHandle) {
        todo!()
    }
    pub fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        todo!()
    }
    pub fn opendir(&self, ino: Ino) -> Result<DirHandle> {
        todo!()
    }
    pub fn readdir(&self, dh: DirHandle, ino: Ino, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        todo!()
    }
    /// Like `readdir`, and takes one kernel reference of every entry but "." and "..": forget those not delivered.
    pub fn readdir_plus(&self, dh: DirHandle, ino: Ino, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        todo!()
    }
    /// Takes the kernel reference of an entry just listed (the same as `lookup`).
    pub fn reference(&self, parent: Ino, name: &OsStr) -> Result<Attr> {
        todo!()
    }
    pub fn releasedir(&self, dh: DirHandle) {
        todo!()
    }
    pub fn copy_file_range(
        &self,
        c: &Caller,
        ino_in: Ino,
        off_in: u64,
        ino_out: Ino,
        off_out: u64,
        len: u64,
    ) -> Result<u64> {
        todo!()
    }
    pub fn clone_tree(
        &self,
        c: &Caller,
        src: (Ino, &OsStr),
        dst: (Ino, &OsStr),
        replace: bool,
    ) -> Result<CloneReport> {
        todo!()
    }
    pub fn remove_tree(&self, c: &Caller, parent: Ino, name: &OsStr) -> Result<RemoveReport> {
        todo!()
    }
    /// Takes a reference; forget it.
    pub fn resolve(&self, path: &Path) -> Result<Attr> {
        todo!()
    }
    /// Takes a reference of the directory; forget it.
    pub fn resolve_parent(&self, path: &Path) -> Result<(Ino, OsString)> {
        todo!()
    }
}
