//! An engine in a run: what lasts from one of its works to the next.
//!
//! That is the limit on its memory, and whether it has a data set to work on.

use std::{path::Path, time::Instant};

use anyhow::Result;
use pando_bench_common::cgroup::Group;

use crate::{
    args::{Args, USUAL_SHARE},
    engine::{Kind, Settings},
    part::Part,
    report::Row,
    works::{FILL, Work},
};

/// An engine in a run.
pub struct Contender {
    /// The engine.
    pub kind: Kind,
    /// What limits its memory.
    group: Option<Group>,
    /// Whether its data set is whole.
    has_set: bool,
}

impl Contender {
    /// With a limit on its memory, if there is to be one.
    pub fn new(kind: Kind, args: &Args) -> Result<Self> {
        let name = format!("pando-bench-{}-{}", std::process::id(), kind.name);
        let group = args.memory.map(|limit| Group::new(&name, limit)).transpose()?;
        Ok(Self { kind, group, has_set: false })
    }

    /// Its part in one work.
    pub fn work(&mut self, work: Work, set: (&str, u64), dir: &Path, args: &Args) -> Vec<Row> {
        let (label, bytes) = set;
        // What is inserted needs room too; the usual share is in the reserve that engines add.
        let room = (bytes as f64 * (1.0 + args.share - USUAL_SHARE).max(1.0)) as u64;
        let part = Part {
            work: work.name.into(),
            engine: self.kind.name.into(),
            dir: dir.into(),
            settings: Settings { cache: args.cache, room: room.max(args.copy_keys.saturating_mul(128)) },
            bytes,
            copy_keys: args.copy_keys,
            cap: args.cap,
            share: args.share,
            memory: args.memory,
        };
        let label = if work.once { format!("{} keys", args.copy_keys) } else { label.to_string() };
        let start = Instant::now();
        let is_fill = work.name == FILL;
        let answer = if work.on_set && !is_fill && !self.has_set {
            Err("the data set could not be made".into())
        } else {
            part.start(self.group.as_ref())
        };
        if is_fill {
            self.has_set = answer.is_ok();
        }
        eprintln!(
            "{:>13} {label:>8} {:>8} {:6.1} s",
            work.name,
            self.kind.name,
            start.elapsed().as_secs_f64()
        );
        let row = |part: &str, outcome| {
            let name = [work.name, part].join(" ").trim_end().to_string();
            Row { work: name, set: label.clone(), engine: self.kind.name, outcome }
        };
        match answer {
            Ok(outcomes) => outcomes.into_iter().map(|o| row(&o.part.clone(), Ok(o))).collect(),
            Err(error) => vec![row("", Err(error))],
        }
    }
}
