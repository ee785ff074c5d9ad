//! Tells in which snapshots of a directory a path leads to the same as in the one before.

use std::path::Path;

use crate::{
    asked,
    coherence::MountState,
    control::Response,
    interrupts::Stop,
    proof::ProvenRights,
    requests::{Done, caller},
    transport::Context,
};

/// Most snapshots that are compared for one answer, a count.
const MAX_COMPARED_SNAPSHOTS: usize = 1024;
/// Most names that are looked up for one answer, a count.
const MAX_NAMES: usize = 16 << 10;

impl MountState {
    /// Whoever may enter the directory may ask; others than root are told of what they may walk to.
    pub(super) fn alike(
        &self,
        c: &Context,
        shows: &ProvenRights,
        (from, path): (u32, &Path),
        stop: &Stop,
    ) -> Done {
        let all = self.sees_all(c, shows);
        if !all {
            self.may_enter(shows)?;
        }
        let caller = caller(c);
        let viewer = (!all).then_some(&caller);
        // Two are the least that can be compared.
        let most = (MAX_NAMES / (1 + path.components().count())).clamp(2, MAX_COMPARED_SNAPSHOTS);
        let range = (from, most);
        let found = self.fs.alike_snapshots_unless(viewer, shows.source, path, range, stop.shared())?;
        let (message, left) = asked::numbers_text(&found.numbers);
        let next = left.or(found.next).unwrap_or(0);
        Ok(Response { value: next.into(), message, ..Response::default() })
    }
}
