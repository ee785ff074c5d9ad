//! What each of several snapshots takes, found in one walk over all of them.

use std::{ffi::OsStr, sync::atomic::Ordering};

use pando_fs::SnapshotInfo;

use crate::{
    coherence::MountState,
    control::{self, Token},
    interrupts::Stop,
    requests::{Refusal, caller},
    transport::Context,
};

impl MountState {
    /// Begins to tell what each of the snapshots of a directory takes: a line with number and sizes, which are `-` of
    /// one that the caller may not see all of. One that cannot be read is left out: who asks for it by itself is told
    /// why.
    pub(super) fn begin_space(
        &self,
        c: &Context,
        on: (u64, u64),
        token: &Token,
        stop: &Stop,
    ) -> Result<(), Refusal> {
        let shows = self.shown(c, token)?;
        let mut all = self.fs.snapshots_of(shows.source, 0, usize::MAX)?;
        let mut text = String::new();
        if !self.sees_all(c, &shows) && !all.is_empty() {
            self.may_enter(&shows)?;
            let caller = caller(c);
            let top = self.fs.lookup(shows.source, OsStr::new(".snapshots"))?.ino;
            all.retain(|info| {
                let sees = !stop.flag().load(Ordering::Relaxed)
                    && self.fs.lookup(top, &info.name).is_ok_and(|attr| {
                        let seen = self.fs.may_see_all(&caller, attr.ino);
                        self.fs.forget(attr.ino, 1);
                        seen.is_ok()
                    });
                if !sees {
                    text += &format!("{}\t-\n", info.number);
                }
                sees
            });
            self.fs.forget(top, 1);
        }
        for (info, usage) in all.iter().zip(self.spent_by_each(&all, stop)?) {
            if usage != "-" {
                text += &format!("{}\t{usage}\n", info.number);
            }
        }
        self.begin_text(c, on, text)
    }

    /// What each of these snapshots takes, as text of an answer: `-` if it cannot be told.
    pub(super) fn spent_by_each(&self, infos: &[SnapshotInfo], stop: &Stop) -> Result<Vec<String>, Refusal> {
        let numbers: Vec<u32> = infos.iter().map(|info| info.number).collect();
        if let Ok(usages) = self.fs.usage_of_each_snapshot(&numbers) {
            return Ok(usages.iter().map(|usage| control::encode_usage(&usage.into())).collect());
        }
        // A damaged snapshot does not hide the others.
        let mut told = Vec::new();
        for number in numbers {
            if stop.flag().load(Ordering::Relaxed) {
                return Err(Refusal(libc::EINTR, "interrupted".into()));
            }
            let usage = self.fs.usage_of_snapshot(number);
            told.push(usage.map_or("-".into(), |usage| control::encode_usage(&(&usage).into())));
        }
        Ok(told)
    }
}
