//! What each of the snapshots of a directory takes, as the tool asks for that.

use std::{collections::BTreeMap, os::fd::AsFd, path::Path};

use crate::{
    client::{self, ControlError},
    control::{ControlRequest, Usage, decode_usage},
    tool::{own_dir, show_entering, show_root, whole},
};

/// What each of the snapshots of the directory at `path` takes, by number; `None` if the caller may not see all that is
/// in it. One walk over all of them: as fast as a question about one with all that they have. An error where a daemon
/// of an earlier version does not tell.
pub fn usage_of_each_snapshot(path: &Path) -> Result<BTreeMap<u32, Option<Usage>>, ControlError> {
    let (dir, token, _) = own_dir(path)?;
    show_entering(&dir, &token);
    if rustix::process::geteuid().is_root() {
        // Where it cannot be shown, what ordinary users may see is counted.
        let _ = show_root(&dir, &token);
    }
    let (piece, more) = client::piece(dir.as_fd(), &ControlRequest::Space { token })?;
    let text = whole(&dir, piece, more)?;
    let read = |line: &str| {
        let (number, usage) = line.split_once('\t')?;
        let usage = if usage == "-" { None } else { Some(decode_usage(usage)?) };
        Some((number.parse().ok()?, usage))
    };
    text.lines().map(read).collect::<Option<_>>().ok_or(ControlError::Version)
}
