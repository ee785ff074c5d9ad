//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};

use crate::{
    engine::Kind,
    engines,
    works::{self, Work},
};

/// What to do.
pub struct Args {
    /// Factor on all sizes.
    pub scale: f64,
    /// Memory for what each engine caches and buffers, in bytes.
    pub cache: u64,
    /// Memory for the process of each engine and its page cache, in bytes, if that is limited.
    pub memory: Option<u64>,
    /// Keys that are inserted and upserted, as a share of those of the data set.
    pub share: f64,
    /// Works to be done.
    pub works: Vec<Work>,
    /// Engines that do them.
    pub engines: Vec<Kind>,
    /// Where stores are made; a directory that is made in it and removed at the end.
    pub dir: PathBuf,
    /// File for the figures as JSON.
    pub json: Option<PathBuf>,
    /// File for the plots as HTML.
    pub html: Option<PathBuf>,
    /// Seconds after which a work stops early.
    pub cap: f64,
    /// Keys of the prefix that is copied.
    pub copy_keys: u64,
    /// The data sets.
    pub sets: Vec<Set>,
}

/// What the size of a data set is a multiple of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    Cache,
    Memory,
}

/// A data set.
#[derive(Debug, Clone, Copy)]
pub struct Set {
    /// Its name, as given to `--sets`.
    pub name: &'static str,
    base: Base,
    factor: f64,
    /// Whether it is used when none is named, with a limit if it derives from that and without if not.
    is_usual: bool,
}

impl Set {
    /// Its size. An error if it derives from a limit and there is none.
    pub fn bytes(&self, args: &Args) -> Result<u64> {
        let base = match self.base {
            Base::Cache => args.cache,
            Base::Memory => args.memory.with_context(|| format!("{} needs --memory", self.name))?,
        };
        Ok((base as f64 * self.factor) as u64)
    }
}

const fn set(name: &'static str, base: Base, factor: f64, is_usual: bool) -> Set {
    Set { name, base, factor, is_usual }
}

/// The data sets. `16*cache` is not usual, since it may find the machine with too little memory for it.
const SETS: [Set; 5] = [
    set("cache/4", Base::Cache, 0.25, true),
    set("4*cache", Base::Cache, 4.0, true),
    set("16*cache", Base::Cache, 16.0, false),
    set("memory/4", Base::Memory, 0.25, true),
    set("4*memory", Base::Memory, 4.0, true),
];
/// The cache if nothing is said, in MiB.
const USUAL_CACHE: u64 = 64;
/// The share of inserts and upserts if nothing is said.
pub const USUAL_SHARE: f64 = 0.25;
/// The least memory with which a process can be expected to do anything, in MiB.
const LEAST_MEMORY: u64 = 16;

fn usage() -> String {
    let names = |names: Vec<&str>| names.join(",");
    format!(
        "usage: pando-bench [options]\n\
         --scale N         factor on cache, memory and data (default 1)\n\
         --cache MIB       memory for what each engine caches and buffers (default 64, or a quarter of --memory)\n\
         --memory MIB      limit for the process of each engine and its page cache (default: none)\n\
         --only WORKS      some of {}\n\
         --engines LIST    some of {} (default: all, lmdb-random only with --memory)\n\
         --sets LIST       some of {} (default: the first two, or with --memory the last two)\n\
         --share N         inserts and upserts as a share of the keys (default 0.25)\n\
         --cap SECONDS     when a work of single operations stops early (default 6)\n\
         --copy-keys N     keys of the prefix that is copied (default 1000000, times scale)\n\
         --dir DIR         where stores are made (default: the directory for temporary files)\n\
         --json FILE       the figures as JSON\n\
         --html FILE       the plots as one page",
        names(works::all().iter().map(|w| w.name).collect()),
        names(engines::all().iter().map(|e| e.name).collect()),
        names(SETS.iter().map(|s| s.name).collect()),
    )
}

/// Those of `all` that `list` names, in the order of `all`.
fn chosen<T: Copy>(list: &str, all: &[T], name: impl Fn(&T) -> &'static str) -> Result<Vec<T>> {
    for wanted in list.split(',') {
        ensure!(all.iter().any(|one| name(one) == wanted), "`{wanted}` is not known\n{}", usage());
    }
    Ok(all.iter().filter(|one| list.split(',').any(|wanted| wanted == name(one))).copied().collect())
}

impl Args {
    /// Reads the command line. `None`: help was asked for and given.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Option<Args>> {
        let mut args = Args {
            scale: 1.0,
            cache: 0,
            memory: None,
            share: USUAL_SHARE,
            works: works::all(),
            engines: Vec::new(),
            dir: std::env::temp_dir(),
            json: None,
            html: None,
            cap: 6.0,
            copy_keys: 1_000_000,
            sets: Vec::new(),
        };
        let (mut cache, mut memory) = (None, None);
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if matches!(word.as_str(), "-h" | "--help") {
                println!("{}", usage());
                return Ok(None);
            }
            let value = words.next().with_context(|| format!("{word} needs a value\n{}", usage()))?;
            match word.as_str() {
                "--scale" => args.scale = value.parse().context("--scale")?,
                "--cache" => cache = Some(value.parse::<u64>().context("--cache")?),
                "--memory" => memory = Some(value.parse::<u64>().context("--memory")?),
                "--share" => args.share = value.parse().context("--share")?,
                "--only" => args.works = chosen(&value, &works::all(), |work| work.name)?,
                "--engines" => args.engines = chosen(&value, &engines::all(), |kind| kind.name)?,
                "--sets" => args.sets = chosen(&value, &SETS, |set| set.name)?,
                "--cap" => args.cap = value.parse().context("--cap")?,
                "--copy-keys" => args.copy_keys = value.parse().context("--copy-keys")?,
                "--dir" => args.dir = value.into(),
                "--json" => args.json = Some(value.into()),
                "--html" => args.html = Some(value.into()),
                _ => bail!("{word} is not known\n{}", usage()),
            }
        }
        ensure!(args.scale > 0.0 && args.scale.is_finite(), "--scale must be above 0");
        ensure!(args.cap > 0.0 && args.cap.is_finite(), "--cap must be above 0");
        ensure!(args.dir.to_str().is_some(), "--dir must be named in UTF-8");
        ensure!(args.share > 0.0 && args.share.is_finite(), "--share must be above 0");
        let scaled = |mib: u64| (mib as f64 * args.scale * f64::from(1 << 20)) as u64;
        // The rest is for the page cache, and for what an engine needs beyond its budget: some take twice as much again.
        let cache = cache.or(memory.map(|limit| limit / 4)).unwrap_or(USUAL_CACHE);
        (args.cache, args.memory) = (scaled(cache).max(8 << 20), memory.map(scaled));
        ensure!(
            args.memory.is_none_or(|limit| limit >= LEAST_MEMORY << 20),
            "--memory must be {LEAST_MEMORY} MiB or more"
        );
        if args.engines.is_empty() {
            args.engines = engines::all();
            args.engines.retain(|kind| args.memory.is_some() || kind.name != engines::LMDB_RANDOM);
        }
        if args.sets.is_empty() {
            let base = if args.memory.is_some() { Base::Memory } else { Base::Cache };
            args.sets = SETS.iter().filter(|set| set.base == base && set.is_usual).copied().collect();
        }
        for set in &args.sets {
            set.bytes(&args)?;
        }
        args.copy_keys = ((args.copy_keys as f64 * args.scale) as u64).max(1000);
        Ok(Some(args))
    }
}
