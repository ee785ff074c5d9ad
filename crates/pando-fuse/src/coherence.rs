//! What all requests share, and the kernel's caches kept right.
//!
//! Guarantees: what a call here was told to drop (pages, names, attributes), the kernel has dropped when the call
//! returns; dirty pages of shared mappings are in the file system then. Notifications may wait for other requests, so
//! they are sent from answers that are worked out later ([`Answer::Later`](crate::transport::Answer)), never from the
//! thread that reads requests. Uses `cache`, `proof` and `counters`.

use std::sync::{Arc, OnceLock};

use pando_fs::{Fs, SetAttr};

use crate::{
    cache::Caches,
    caller::caller,
    counters::Counters,
    proof::Proofs,
    transport::{Context, Notify, Outcome},
};

/// Renders statistics for `pando stats`.
pub type StatsText = Box<dyn Fn(&Fs, &Counters) -> Result<String, String> + Send + Sync>;

/// What the requests of a mount share.
pub(crate) struct MountState {
    pub(crate) fs: Fs,
    pub(crate) caches: Caches,
    pub(crate) proofs: Proofs,
    pub(crate) counters: Arc<Counters>,
    pub(crate) notify: OnceLock<Arc<dyn Notify>>,
    pub(crate) stats: Option<StatsText>,
    /// User who may grow the file system besides root: the one who mounted it.
    pub(crate) owner: u32,
}

impl MountState {
    /// Sends the notification `what`; a failure leaves stale pages behind and is logged.
    pub(crate) fn tell(&self, what: impl Fn(&dyn Notify) -> std::io::Result<()>) {
        match self.notify.get() {
            Some(notify) => {
                if let Err(e) = what(&**notify) {
                    log::error!("the kernel refused to drop cached data: {e}");
                }
            }
            None => debug_assert!(false, "a request came before the transport was ready"),
        }
    }

    /// Brings dirty pages of shared mappings into the file system. Only for workers.
    ///
    /// Dropping the pages of an inode writes dirty ones first and waits for that, which syncfs
    /// does not promise for FUSE. Only inodes open for reading and writing can have any.
    pub(crate) fn flush_mappings(&self) {
        for ino in self.caches.perhaps_dirty() {
            self.tell(|n| n.forget_pages(ino, 0, 0));
        }
    }

    /// The same for those of `top` and what is below it.
    pub(crate) fn flush_mappings_in(&self, top: u64) {
        for ino in self.caches.perhaps_dirty() {
            if self.fs.lies_in(ino, top) {
                self.tell(|n| n.forget_pages(ino, 0, 0));
            }
        }
    }

    /// Drops what a change behind the kernel's back made stale. Only for workers.
    pub(crate) fn settle(&self, report: &pando_fs::CloneReport) {
        for (dir, name) in &report.entries {
            self.tell(|n| n.forget_entry(*dir, name));
            self.tell(|n| n.forget_attributes(*dir));
        }
        for &ino in &report.replaced {
            self.tell(|n| n.forget_pages(ino, 0, 0));
        }
    }

    /// Set-user-id and set-group-id of the mode as it is now; none if there is no such file.
    pub(crate) fn set_id_bits(&self, ino: u64) -> u16 {
        self.fs.perm(ino).unwrap_or_default() & 0o6000
    }

    /// Clears set-user-id and set-group-id where they are set.
    pub(crate) fn drop_privileges(&self, c: &Context, ino: u64) -> Outcome<()> {
        if self.set_id_bits(ino) != 0 {
            let change = SetAttr { kill_suidgid: true, ..SetAttr::default() };
            self.fs.setattr(&caller(c, 0), ino, &change)?;
        }
        Ok(())
    }
}
