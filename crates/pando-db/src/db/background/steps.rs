//! Flushing all of something, with checkpoints between the steps if these find no space.

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
    /// Takes the lock `flushing` for an edit. If there is no space for the nodes that an edit makes dirty, this first
    /// makes a checkpoint of those that are dirty. The caller holds neither this lock nor `checkpointing`.
    pub(super) fn lock_for_edit(&self) -> Result<MutexGuard<'_, ()>> {
        loop {
            let guard = waiting::take(|| self.flushing.try_lock(), || self.flushing.lock());
            if !self.is_tight()? {
                return Ok(guard);
            }
            drop(guard);
            self.checkpoint_nodes(|_| true)?;
        }
    }

    /// To be called before more nodes are made dirty: makes a checkpoint if they could fill the device, or if dirty
    /// nodes have all the memory that they may have.
    pub fn make_way(&self) -> Result<()> {
        if self.is_tight()? {
            self.checkpoint()?;
        }
        if self.is_full_of_dirt() {
            match self.checkpoint_nodes(Engine::is_full_of_dirt) {
                // Without space for a checkpoint, flushing goes on in memory as far as possible.
                Ok(()) | Err(Error::NoSpace) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Flushes messages of the memtables and of the root by one bounded step. Messages that an edit had to leave in
    /// the root go first: they would become more with every memtable.
    pub fn flush_messages(&self) -> Result<FlushStep> {
        match self.relieve_step()? {
            FlushStep::Nothing => self.flush_step(),
            other => Ok(other),
        }
    }

    /// Whether there may be more to do after a step. Makes the checkpoint that the step asks for.
    pub fn goes_on(&self, step: FlushStep) -> Result<bool> {
        if step == FlushStep::NeedsCheckpoint {
            self.checkpoint_nodes(|_| true)?;
        }
        Ok(step != FlushStep::Nothing)
    }

    /// Flushes all sealed memtables, with the checkpoints that this needs.
    pub fn flush_all(&self) -> Result<()> {
        loop {
            self.make_way()?;
            let step = self.or_given_back(self.flush_messages())?;
            if !self.goes_on(step)? {
                return Ok(());
            }
        }
    }

    /// Flushes all memtables, the active one too. Returns the number of the newest batch in them.
    pub fn flush_what_is_written(&self) -> Result<u64> {
        let until = self.change(|superversion| {
            superversion.seal();
            superversion.active.msn
        });
        self.flush_until(until)?;
        Ok(until)
    }

    /// Flushes sealed memtables, with the checkpoints that this needs, until the tree has all batches up to `msn`.
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

    /// The maintenance behind a write: asks the threads for it, or does it if there are none.
    pub fn after_write(&self) -> Result<()> {
        if self.options.background {
            if self.memtable_sizes.sealed() > 0 {
                self.signal.ask(Work::Flush);
            }
            return Ok(());
        }
        let result = self.maintain_inline();
        if let Err(error) = &result {
            // The batch itself was applied; only maintenance has failed.
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
