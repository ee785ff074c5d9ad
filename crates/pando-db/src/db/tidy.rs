//! Giving space back: deletes that wait in the DAG are carried to where they free something, what nothing
//! shows any more is taken out of nodes, and checkpoints free what that has replaced.
//!
//! In bounded steps, each published like every structural change. Guarantees: where readers hold old versions,
//! so that steps give nothing back, they leave checkpoints and deletes most of the space that is kept for them.

use super::{engine::Engine, maintain::contain};
use crate::{dag::edit::Edit, error::Result};

/// Whether tidying is worth its space where that is short.
#[derive(Default)]
pub(crate) struct Worth {
    /// Number of the newest batch.
    msn: u64,
    /// Most bytes that were free since.
    most: u64,
}

impl Worth {
    /// With so much `free` and nothing newer than `msn`; not, if steps have used up more than `spare`.
    fn goes_on(&mut self, msn: u64, free: u64, spare: u64) -> bool {
        if self.msn != msn {
            *self = Worth { msn, most: free };
        }
        self.most = self.most.max(free);
        free + spare >= self.most
    }
}

impl Engine {
    /// Flushes deletes down, reclaims and checkpoints until there is `enough` space, or nothing more
    /// can be given back; whether there is.
    pub fn settle(&self, enough: &dyn Fn() -> Result<bool>) -> Result<bool> {
        self.seal();
        self.flush_all()?;
        loop {
            while self.reclaim_step()? {}
            self.checkpoint()?;
            // What the former checkpoint held may be given back only by the next.
            if enough()? || !self.tidy_step()? {
                while self.reclaim_step()? {}
                self.checkpoint()?;
                return enough();
            }
        }
    }

    /// Carries deletes to where they free something, or takes out what nothing shows any more, by one bounded
    /// step; `false` if there was nothing, or if readers hold what such steps replace, so that they would cost
    /// the space that deletes and checkpoints need.
    pub fn tidy_step(&self) -> Result<bool> {
        if self.is_short() {
            // Frees what the last step has replaced, if nobody holds it.
            self.checkpoint()?;
            let (newest, free) = (self.log.appended_msn(), self.space.free_bytes());
            if !self.worth.lock().goes_on(newest, free, self.reserve() / 8) {
                return Ok(false);
            }
        }
        Ok(self.sink_step()? || self.trim_step()?)
    }

    /// Takes out of nodes what nothing shows any more, until space is short for doing more; `false` if
    /// there was nothing.
    pub fn trim_step(&self) -> Result<bool> {
        if self.is_tight()? {
            self.checkpoint()?;
        }
        let _turn = self.flushing.lock();
        let cx = self.context();
        let base = self.front.read().tree.clone();
        let found = {
            let found = std::cell::RefCell::new(Vec::new());
            contain(|| {
                *found.borrow_mut() = Edit::new(&cx, &base).invisible()?;
                Ok(())
            })?;
            found.into_inner()
        };
        // Nothing else changes the tree meanwhile, and trimming changes nothing that can be seen.
        for some in found.chunks(self.limits.edit_nodes) {
            self.edit(|edit| some.iter().try_for_each(|trimming| edit.trim(trimming)), |_| ())?;
            if self.is_tight()? {
                break;
            }
        }
        Ok(!found.is_empty())
    }

    /// Moves some deletes that wait in the DAG to where they free something; `false` if none wait.
    pub fn sink_step(&self) -> Result<bool> {
        if self.is_tight()? {
            self.checkpoint()?;
        }
        let _turn = self.flushing.lock();
        let any = std::cell::Cell::new(false);
        self.edit(|edit| edit.sink_deletes().map(|a| any.set(a)), |_| ())?;
        Ok(any.get())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use crate::{CreateOptions, Db, Options, device::MemDevice};

    /// A Goto that rested, low below a tall root, over an edge with nothing below, and a delete beside it:
    /// the flush made a child for them, which had so few edges that the root took them back. A full store
    /// looked for space for ever, and an idle one never came to rest.
    #[test]
    fn sinking_comes_to_an_end_beside_a_resting_goto() {
        let device = Arc::new(MemDevice::new(64 << 20));
        let create = CreateOptions { node_size: 4096, log_size: Some(1 << 20), ..Default::default() };
        let options = Options { background: false, memtable_bytes: 1 << 12, ..Options::default() };
        Db::create(device.clone(), &create, &options).unwrap();
        let db = Db::open(device, options).unwrap();
        for directory in 0..200 {
            for file in 0..60 {
                for tree in ["a", "m"] {
                    db.put(format!("{tree}/{directory:03}/{file:02}"), vec![7; 100]).unwrap();
                }
            }
        }
        // Whole edges of the root are empty now.
        db.delete_prefix("m").unwrap();
        db.checkpoint().unwrap();
        for directory in (0..200).step_by(7) {
            db.clone_prefix(format!("a/{directory:03}/"), format!("m/{directory:03}/x/")).unwrap();
            db.delete_prefix(format!("m/{directory:03}/y")).unwrap();
            db.checkpoint().unwrap();
            let steps = (0..1000).take_while(|_| db.engine().sink_step().unwrap()).count();
            assert!(steps < 1000, "deletes sink for ever");
        }
        let findings = db.check().unwrap().findings;
        assert!(findings.is_empty(), "{findings:?}");
    }
}
