//! Which snapshots are mounted, as the tool asks for that.

use std::path::{Path, PathBuf};

use crate::{
    asked::Asked,
    client::{self, ControlError},
    tool::{own_dir, show_adding, top_around},
};

/// The snapshots that are mounted, by number, and where: of those of the directory at `path`, or, if `gone`, of those
/// of directories that are gone from the file system that it is in. The daemon goes by the same when it is to delete
/// them. A daemon of an earlier version does not tell (EINVAL).
pub fn mounted_snapshots(path: &Path, gone: bool) -> Result<Vec<(u32, PathBuf)>, ControlError> {
    let path = if gone { top_around(path)? } else { path.to_owned() };
    let mut all: Vec<(u32, PathBuf)> = Vec::new();
    let mut from = 0;
    loop {
        let (dir, token, _) = own_dir(&path)?;
        show_adding(&dir, &token)?;
        let (mounted, next) = client::mounted(&dir, token, Asked::Mounted(from, gone))?;
        all.extend(mounted);
        match u32::try_from(next) {
            Ok(next) if next > from => from = next,
            _ => return Ok(all),
        }
    }
}
