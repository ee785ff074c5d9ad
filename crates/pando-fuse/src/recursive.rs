//! Changes of whole trees, and how the kernel comes to know of them.
//!
//! The file system changes all records by one message, and says which of the inodes that the kernel knows were
//! changed. Of those the kernel has attributes, which may be valid for a day, and of regular files times that it
//! owns, if it keeps what is written. So the server has it set a time of each, as a program would: the kernel takes
//! all attributes from the answer then, its own change time is the present one, and whatever else sets attributes of
//! that inode comes before or after it, because the kernel holds a lock on the inode meanwhile. The server takes such
//! a request for what it is ([`OwnThreads`](crate::own_threads)): it sets only what was to be set.
//!
//! Guarantees that nobody sees an attribute from before once the call has returned. An answer to a lookup that was
//! given before the change and is not with the kernel yet is waited for, for [`PATIENCE`] at most. Uses `coherence`,
//! `inside`, `proof`.

use std::{
    io,
    time::{Duration, Instant},
};

use pando_fs::{Attr, Caller, FileKind, SetAttr, TreeChange, TreeChangeReport};

use crate::{
    caller::may_change_all,
    coherence::MountState,
    inside::{Inside, apart},
    proof::ProvenRights,
    transport::{Context, Outcome},
};

/// How long answers are waited for that the kernel has not taken in yet.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long between looks whether it has.
const PAUSE: Duration = Duration::from_millis(1);

impl MountState {
    /// Changes the tree that the token shows, and gives the microseconds of the change. Only for workers.
    pub(crate) fn change_tree(
        &self,
        c: &Context,
        shows: &ProvenRights,
        change: &TreeChange,
    ) -> pando_fs::Result<u64> {
        // Root of a container may lack what it takes to change what others own.
        if !shows.root || !may_change_all(c) {
            let why = "only root may change whole trees at once";
            return Err(pando_fs::Error::NotPermitted { name: "tree".into(), why });
        }
        // That the mount may be written to by which the tree was opened, and not just any.
        if !shows.adds_to_source() {
            return Err(pando_fs::Error::Access("tree".into()));
        }
        let Some(way) = self.way_in.get() else {
            return Err(pando_fs::Error::Unsupported("trees at once, without a way into the mount"));
        };
        // What was written before must not be taken for a change after it.
        self.write_out_below(shows.source);
        let report = self.fs.change_tree(shows.source, change)?;
        for (ino, _) in &report.known {
            // It may have left the kernel's memory.
            let _gone = self.notify.get().map(|notify| notify.forget_attributes(*ino));
        }
        match apart(|_| self.have_all_taken(way, &report)) {
            Ok(Ok(())) => {}
            Ok(Err(e)) | Err(e) => log::error!("the kernel was not given what a change of a tree made: {e}"),
        }
        Ok(report.micros)
    }

    /// Has the kernel take the attributes of all these inodes. In a thread apart, which cannot write to the log.
    fn have_all_taken(&self, way: &Inside, report: &TreeChangeReport) -> io::Result<()> {
        if report.known.is_empty() {
            return Ok(());
        }
        let _own = self.own_threads.enter();
        let root = way.root()?;
        let until = Instant::now() + PATIENCE;
        let mut left: Vec<(u64, FileKind)> = report.known.clone();
        let mut failed = None;
        loop {
            left.retain(|(ino, kind)| {
                let Ok(file) = Inside::open_path(&root, *ino) else {
                    // It has been forgotten; or the answer that tells of it is on its way.
                    return self.fs.is_known(*ino);
                };
                // In case it is taken for another's: then the access time stays as it is.
                let Ok(now) = self.fs.getattr(*ino) else { return false };
                let mtime = report.times.1.filter(|_| *kind == FileKind::Regular && self.caches.writeback());
                if let Err(e) = Inside::set_times(&file, now.atime, mtime)
                    && e.raw_os_error() != Some(libc::ESTALE)
                {
                    failed = Some(e);
                }
                false
            });
            if left.is_empty() || Instant::now() > until {
                return failed.map_or(Ok(()), Err);
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The answer to a request of a thread that has the kernel take attributes: only times that the kernel itself owns
    /// are set.
    pub(crate) fn have_taken(&self, c: &Context, ino: u64, change: SetAttr) -> Outcome<Attr> {
        let mut times = SetAttr { mtime: change.mtime, ctime: change.ctime, ..SetAttr::default() };
        if times == SetAttr::default() {
            return Ok(self.fs.getattr(ino)?);
        }
        if times.mtime.is_some() {
            // With its access time, so that it is no time that the kernel tells by the way.
            let mut whole = change;
            self.settle_time(c, ino, &mut whole)?;
            times.mtime = whole.mtime;
        }
        Ok(self.fs.setattr(&Caller::root(), ino, &times)?)
    }
}
