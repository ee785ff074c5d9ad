//! The names to which a merge brings entries.
//!
//! Guarantees that a merge hides no snapshots: where a directory has some, nothing comes to the name under which they
//! are seen. A plan is checked when it is made, so that a dry run tells of it, and its steps are checked while the
//! trees are held, because a snapshot may be younger than the plan.

use crate::{
    diff::change::shown,
    error::{Error, Result},
    family::SNAPSHOTS,
    fork::{follow::in_dir, step::Step},
    path::{self, system},
    volume::Fs,
};

/// EEXIST if an entry would take the name under which snapshots of its directory are seen. Its path begins in the
/// directory with the contents prefix `into`; `has` tells if there is a key.
pub(crate) fn may_bring(into: &[u8], entry: &[u8], has: impl Fn(&[u8]) -> Result<bool>) -> Result<()> {
    let dir = path::directory_of(entry);
    let is_name = path::entry(dir, SNAPSHOTS)? == entry;
    match is_name && has(&system::snapshotted(&[into, dir].concat()))? {
        true => Err(Error::Exists(shown(entry).display().to_string())),
        false => Ok(()),
    }
}

impl Fs {
    /// EEXIST if one of the steps brings an entry to the name under which snapshots of its directory are seen. `into`
    /// is the contents prefix of what is merged into, and nobody makes snapshots in there meanwhile.
    pub(crate) fn may_bring_steps(&self, into: &[u8], steps: &[Step]) -> Result<()> {
        let has = |key: &[u8]| Ok(self.db.get(key)?.is_some());
        steps.iter().try_for_each(|step| match step {
            Step::Take { from, dir, .. } => may_bring(into, &in_dir(dir, from), has),
            Step::Move { dir, name, .. } => may_bring(into, &path::entry(dir, name)?, has),
            Step::Remove(_) | Step::Change { .. } | Step::Write { .. } => Ok(()),
        })
    }
}
