//! A whole tree gets another name in another directory.

use std::{
    fs::{self, File},
    time::Instant,
};

use anyhow::{Result, ensure};

use crate::{figure::Figure, report::median, run::Run};

/// Back and forth, so an odd number leaves the tree in the other place.
const RENAMES: usize = 21;

pub fn run(run: &mut Run) -> Result<()> {
    run.unpack("src")?;
    let places = [run.make_tree("a")?, run.make_tree("b")?];
    let mut at = run.path("src");
    run.sync()?;
    run.cold()?;
    let (mut calls, mut durable) = (Vec::new(), Vec::new());
    let meter = run.meter();
    for number in 0..RENAMES {
        let to = places[number % 2].join("tree");
        let start = Instant::now();
        fs::rename(&at, &to)?;
        calls.push(start.elapsed().as_secs_f64());
        File::open(&places[number % 2])?.sync_all()?;
        durable.push(start.elapsed().as_secs_f64());
        at = to;
    }
    let measured = meter.measured();
    run.cold()?;
    run.part.sources.tree.expect(&at, None)?;
    ensure!(
        !run.path("src").exists() && !places[1].join("tree").exists(),
        "the tree is still in another place"
    );
    let (calls, durable) = (median(&mut calls), median(&mut durable));
    run.add(Figure::milliseconds("rename a tree", calls, measured));
    run.add(Figure::milliseconds("rename a tree + fsync", durable, measured));
    Ok(())
}
