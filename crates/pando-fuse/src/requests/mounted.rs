//! Tells which snapshots are mounted, by what a deletion would go by.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{Path, PathBuf},
};

use pando_fs::{Authority, Error};

use crate::{
    asked::{MAX_TEXT_BYTES, mounted_line},
    coherence::MountState,
    control::Response,
    proof::ProvenRights,
    requests::Done,
    transport::Context,
};

impl MountState {
    /// Those of the source, or of directories that are gone. Whoever may delete them may ask, or could if the file
    /// system were not read-only.
    pub(super) fn mounted_snapshots(
        &self,
        c: &Context,
        shows: &ProvenRights,
        (from, gone): (u32, bool),
    ) -> Done {
        if gone {
            if !self.is_root(c, shows) {
                let why = "only root may see those of directories that are gone";
                return Err(Error::NotPermitted { name: "snapshots".into(), why }.into());
            }
            self.has_it_whole(shows)?;
        } else {
            let rights = shows.about(0, OsStr::new(""));
            self.fs.may_delete_snapshots(Authority::Verified(&rights), shows.source)?;
        }
        let (_, views) = self.mounts_for(c.pid);
        let mut mounted: BTreeMap<u32, PathBuf> = BTreeMap::new();
        for view in views {
            let number = self.fs.snapshot_of(view.root).filter(|number| *number >= from);
            mounted.extend(number.map(|number| (number, view.dir)));
        }
        let mut answer = Response::default();
        for (number, dir) in mounted {
            if !gone && self.fs.snapshots_of(shows.source, number, 1)?.iter().all(|s| s.number != number) {
                continue;
            }
            let mut line = mounted_line(number, &dir);
            if line.len() > MAX_TEXT_BYTES {
                line = mounted_line(number, Path::new(""));
            }
            if answer.message.len() + line.len() > MAX_TEXT_BYTES {
                answer.value = number.into();
                break;
            }
            answer.message += &line;
        }
        Ok(answer)
    }
}
