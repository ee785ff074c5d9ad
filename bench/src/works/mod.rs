//! The works, one file each, and what they share: the data set and the measure of a run.

mod copy;
mod delete;
mod fill;
mod insert;
mod load;
mod mixed;
mod reads;
mod scan;
mod upsert;

use std::path::Path;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use crate::{
    data::TREE,
    engine::{Engine, Kind, Op, Settings},
    meter::Meter,
};

/// Changes that one durable batch of the random works holds.
pub const BATCH: usize = 1000;
/// Keys that a reader reads before it takes a newer view.
pub const READ_BATCH: usize = 100;

/// What a work works on.
pub struct Run<'a> {
    /// The engine.
    pub kind: Kind,
    /// The directory of the store.
    pub dir: &'a Path,
    /// How to open it.
    pub settings: Settings,
    /// Bytes of the data set.
    pub bytes: u64,
    /// Keys of the data set.
    pub keys: u64,
    /// Keys of a prefix to be copied.
    pub copy_keys: u64,
    /// Seconds after which a work of single operations stops early.
    pub cap: f64,
    /// Keys that are inserted and upserted, as a share of those of the data set.
    pub share: f64,
    /// Whether the memory is limited, and so the files of the store begin out of the page cache.
    pub limited: bool,
}

impl Run<'_> {
    /// Opens the store.
    pub fn open(&self) -> Result<Box<dyn Engine>> {
        (self.kind.open)(self.dir, self.settings)
    }

    /// Opens the store. Where its files begin out of the page cache, reads all pairs once, so that a data set
    /// which fits into the memory is in memory, as it is without a limit, where the work before has left it there.
    pub fn open_warm(&self) -> Result<Box<dyn Engine>> {
        let engine = self.open()?;
        if self.limited {
            engine.scan(&[TREE], &mut |_, _| Ok(()))?;
        }
        Ok(engine)
    }

    /// Keys that are inserted and upserted.
    pub fn share_keys(&self) -> u64 {
        ((self.keys as f64 * self.share) as u64).max(1)
    }

    /// Keys that are read while hot: so many that they fit into the cache of every engine.
    pub fn hot_keys(&self) -> u64 {
        self.keys.min(crate::data::keys_in(self.settings.cache / 4))
    }
}

/// What came of a work.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Which part of the work, if it has several.
    pub part: String,
    /// What is counted.
    pub unit: String,
    /// How many of them were done.
    pub count: f64,
    /// In how many seconds.
    pub seconds: f64,
    /// Seconds that the engine then took to finish what it had put off.
    pub settle: f64,
    /// Bytes that the caller gave to be written.
    pub user: u64,
    /// Bytes written to files, settling included.
    pub written: u64,
    /// Bytes fetched from storage.
    pub read: u64,
    /// Most memory that the process ever had, in bytes, mapped files included and page cache not.
    pub peak: u64,
    /// Remarks on this outcome.
    pub note: String,
}

/// Does `work`, which returns how much it did of `unit` and the bytes it gave to be written, and then
/// lets the engine settle.
pub fn measure(
    engine: &dyn Engine,
    unit: &str,
    work: impl FnOnce(&Meter) -> Result<(f64, u64)>,
) -> Result<Outcome> {
    let meter = Meter::start();
    let (count, user) = work(&meter)?;
    let seconds = meter.seconds();
    if user > 0 {
        engine.settle()?;
    }
    let io = meter.io();
    let settle = if user > 0 { meter.seconds() - seconds } else { 0.0 };
    Ok(Outcome {
        unit: unit.into(),
        count,
        seconds,
        settle,
        user,
        written: io.written,
        read: io.read,
        ..Outcome::default()
    })
}

/// Writes `count` changes in batches of `size`; `op` makes the `i`th one of what `make` drew.
/// Stops early when `until` says so. Returns how many were made.
pub fn in_batches<T>(
    engine: &dyn Engine,
    (count, size): (u64, usize),
    mut make: impl FnMut(u64) -> T,
    op: impl for<'a> Fn(&'a T) -> Op<'a>,
    until: impl Fn() -> bool,
) -> Result<u64> {
    let mut done = 0;
    while done < count && !until() {
        let drawn: Vec<T> = (done..count.min(done + size as u64)).map(&mut make).collect();
        let ops: Vec<Op<'_>> = drawn.iter().map(&op).collect();
        engine.write(&ops, true)?;
        done += ops.len() as u64;
    }
    ensure!(done > 0, "no change was made");
    Ok(done)
}

/// Says so where fewer changes were made than wanted.
pub fn stopped_early(done: f64, wanted: u64) -> String {
    if done < wanted as f64 { format!("stopped after {done:.0} of {wanted}") } else { String::new() }
}

/// A work.
#[derive(Clone, Copy)]
pub struct Work {
    /// Its name, as given to `--only`.
    pub name: &'static str,
    /// Whether it works on the data set; otherwise on a store of its own.
    pub on_set: bool,
    /// Whether it is done once and not for every size of the data set.
    pub once: bool,
    /// Does it.
    pub run: fn(&Run<'_>) -> Result<Vec<Outcome>>,
}

/// All works, in the order in which they are done: those that change the data set come last.
pub fn all() -> Vec<Work> {
    let on_set = |name, run| Work { name, on_set: true, once: false, run };
    let alone = |name, once, run| Work { name, on_set: false, once, run };
    vec![
        on_set(FILL, fill::run),
        on_set("get-hot", reads::hot),
        on_set("scan", scan::full),
        on_set("scan-prefix", scan::prefixes),
        on_set("get-cold", reads::cold),
        on_set("insert", insert::run),
        on_set("upsert", upsert::run),
        on_set("mixed", mixed::run),
        on_set("delete-range", delete::run),
        alone("load-4k", false, load::small),
        alone("load-1m", false, load::large),
        alone("copy", true, copy::run),
    ]
}

/// The work that makes the data set; done whenever another one needs it.
pub const FILL: &str = "fill";
