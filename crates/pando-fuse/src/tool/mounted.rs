//! Which snapshots are mounted, as the tool asks for that.

use std::path::{Path, PathBuf};

use crate::{
    asked::Asked,
    client::{self, ControlError},
    tool::{own_dir, show_adding, top_around},
};

/// The snapshots that are mounted, by number, and where: of those of the directory at `path`, or, if `gone`, of those
/// of directories that are gone from the file system that it is in. The daemon goes by the same when it is to delete
/// them. Where nothing may be written, as on a read-only mount, it tells its owner of a directory, and root of all.
/// A daemon of an earlier version does not tell (EINVAL), or not there (EROFS).
pub fn mounted_snapshots(path: &Path, gone: bool) -> Result<Vec<(u32, PathBuf)>, ControlError> {
    let path = if gone { top_around(path)? } else { path.to_owned() };
    let mut all: Vec<(u32, PathBuf)> = Vec::new();
    let mut from = 0;
    loop {
        let (dir, token, _) = own_dir(&path)?;
        // Nothing is to be changed, so that nothing can be is no refusal.
        let read_only = match show_adding(&dir, &token) {
            Err(e) if e.errno() == Some(libc::EROFS) => Some(e),
            shown => shown.map(|()| None)?,
        };
        let told = client::mounted(&dir, token, Asked::Mounted(from, gone));
        let (mounted, next) = match (told, read_only) {
            // As where no daemon tells.
            (Err(e), Some(read_only)) if matches!(e.errno(), Some(libc::EACCES | libc::EPERM)) => {
                return Err(read_only);
            }
            (told, _) => told?,
        };
        all.extend(mounted);
        match u32::try_from(next) {
            Ok(next) if next > from => from = next,
            _ => return Ok(all),
        }
    }
}
