//! Flushing until something is done: with checkpoints between the steps where these have no room.

use parking_lot::MutexGuard;

use crate::{
    db::{
        engine::{Engine, signal::Work},
        flush::FlushStep,
    },
    error::{Error, Result},
    waiting,
};

impl Engine {
    /// The turn to change the DAG, with room for what an edit makes dirty: makes a checkpoint of what is dirty first
    /// where that is short. The caller holds neither this nor `checkpointing`.
    pub(super) fn turn_with_room(&self) -> Result<MutexGuard<'_, ()>> {
        loop {
            let turn = waiting::take(|| self.flushing.try_lock(), || self.flushing.lock());
            if !self.is_tight()? {
                return Ok(turn);
            }
            drop(turn);
            self.checkpoint_nodes(|_| true)?;
        }
    }

    /// Before more is made dirty: makes a checkpoint where that could fill the device, or where dirty nodes
    /// have as much memory as they may.
    pub fn make_way(&self) -> Result<()> {
        if self.is_tight()? {
            self.checkpoint()?;
        }
        if self.is_full_of_dirt() {
            match self.checkpoint_nodes(Engine::is_full_of_dirt) {
                // What can be flushed in memory is.
                Ok(()) | Err(Error::NoSpace) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Brings the messages of memory and root further down by one bounded step. What an edit had to leave in the root
    /// goes first: it would grow with every table.
    pub fn flush_messages(&self) -> Result<FlushStep> {
        match self.relieve_step()? {
            FlushStep::Nothing => self.flush_step(),
            other => Ok(other),
        }
    }

    /// Whether there may be more to do after a step. Where it had no room, what is dirty is written.
    pub fn goes_on(&self, step: FlushStep) -> Result<bool> {
        if step == FlushStep::NoRoom {
            self.checkpoint_nodes(|_| true)?;
        }
        Ok(step != FlushStep::Nothing)
    }

    /// Applies all sealed tables, with checkpoints between where they have to be.
    pub fn flush_all(&self) -> Result<()> {
        loop {
            self.make_way()?;
            let step = self.or_given_back(self.flush_messages())?;
            if !self.goes_on(step)? {
                return Ok(());
            }
        }
    }

    /// Applies all that is in memory now; the number of the newest batch among that.
    pub fn flush_what_is_written(&self) -> Result<u64> {
        let until = self.change(|superversion| {
            superversion.seal();
            superversion.active.msn
        });
        self.flush_until(until)?;
        Ok(until)
    }

    /// Applies sealed tables in the same way until all batches up to `msn` are in the tree, or there are no more.
    pub fn flush_until(&self, msn: u64) -> Result<()> {
        loop {
            self.make_way()?;
            let mut step = self.relieve_step()?;
            if step == FlushStep::Nothing && self.superversion.read().tree.msn < msn {
                step = self.or_given_back(self.flush_step())?;
            }
            if !self.goes_on(step)? {
                return Ok(());
            }
        }
    }

    /// What a write leaves to do where no threads do it.
    pub fn after_write(&self) -> Result<()> {
        if self.options.background {
            if self.memtable_sizes.sealed() > 0 {
                self.signal.ask(Work::Flush);
            }
            return Ok(());
        }
        let result = self.maintain_inline();
        if let Err(error) = &result {
            // The batch itself is in; what failed is the store's own work.
            self.fail("flush", error);
        }
        Ok(())
    }

    fn maintain_inline(&self) -> Result<()> {
        self.flush_all()?;
        self.reclaim_step()?;
        if self.wants_checkpoint() {
            self.checkpoint()?;
        }
        Ok(())
    }
}
