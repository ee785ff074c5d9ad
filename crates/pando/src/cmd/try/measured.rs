//! What `pando try` measures, and the table that it prints.
//!
//! A step of the store is timed until its call returns, and until it is durable; a copy by `cp` likewise.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::{
    cmd::r#try::{
        edits::Edits,
        figures::{Figures, Times, grown, seconds},
        host_copy::HostCopy,
        store::Store,
    },
    size::show,
    tree::Count,
};

/// A step of the store, and what it left there.
pub(super) struct Step {
    pub(super) times: Times,
    pub(super) after: Figures,
}

impl Step {
    /// Does `work`, makes it durable, and looks at the store then.
    pub(super) fn measure<T>(store: &Store, work: impl FnOnce() -> Result<T>) -> Result<(Step, T)> {
        let begin = Instant::now();
        let outcome = work()?;
        let done = begin.elapsed();
        store.sync()?;
        let times = Times { done, durable: begin.elapsed() };
        Ok((Step { times, after: store.figures()? }, outcome))
    }
}

/// All measurements.
pub(super) struct Measured {
    pub(super) import: Step,
    pub(super) clone: Step,
    /// How much of the clone the daemon took, if there is one.
    pub(super) inside_daemon: Option<Duration>,
    pub(super) edit: Step,
    /// Bytes that the sparse image takes on the disk.
    pub(super) image_on_disk: u64,
    pub(super) copies: Vec<HostCopy>,
}

impl Measured {
    /// A row for each step, for a tree of this size.
    pub(super) fn table(&self, total: &Count, edits: &Edits) -> String {
        let [imported, cloned, edited] = [&self.import, &self.clone, &self.edit].map(|step| step.after);
        let inside = self.inside_daemon.map(|d| format!(" ({} inside the daemon)", seconds(d)));
        let clone = self.clone.times;
        let mut rows = vec![
            ("files", format!("{} and {} directories", total.files, total.dirs)),
            ("bytes", format!("{} ({})", total.bytes, show(total.bytes))),
            ("import", self.import.times.show()),
            (
                "pando clone",
                format!(
                    "{}{}, durable after {}",
                    seconds(clone.done),
                    inside.unwrap_or_default(),
                    seconds(clone.durable)
                ),
            ),
        ];
        rows.extend(self.copies.iter().map(|copy| (copy.command, copy.show())));
        rows.extend([
            ("space: import", show(imported.used)),
            (
                "space: clone",
                format!(
                    "{} more, {} written to the device",
                    grown(imported.used, cloned.used),
                    show(cloned.written.saturating_sub(imported.written))
                ),
            ),
            (
                "space: edits",
                format!(
                    "{} more for {} edits, {} written, in {}",
                    grown(cloned.used, edited.used),
                    edits.count(),
                    show(edited.written.saturating_sub(cloned.written)),
                    self.edit.times.show()
                ),
            ),
            ("image on disk", show(self.image_on_disk)),
        ]);
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        rows.iter().map(|(name, value)| format!("\n  {name:<width$}  {value}")).collect()
    }
}
