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
    /// Memory for each engine, in bytes.
    pub cache: u64,
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
    /// Whether only the small or only the large data set is used: times the cache.
    pub sets: Vec<(&'static str, f64)>,
}

/// The data sets: name and size as a multiple of the cache.
const SETS: [(&str, f64); 3] = [("cache/4", 0.25), ("4*cache", 4.0), ("16*cache", 16.0)];
/// How many of them are used unless others are named: the last is for a machine with too little memory for it.
const USUAL: usize = 2;

fn usage() -> String {
    let names = |names: Vec<&str>| names.join(",");
    format!(
        "usage: pando-bench [options]\n\
         --scale N         factor on cache and data (default 1)\n\
         --cache MIB       memory for each engine (default 64)\n\
         --only WORKS      some of {}\n\
         --engines LIST    some of {}\n\
         --sets LIST       some of {} (default: all but the last)\n\
         --cap SECONDS     when a work of single operations stops early (default 6)\n\
         --copy-keys N     keys of the prefix that is copied (default 1000000, times scale)\n\
         --dir DIR         where stores are made (default: the directory for temporary files)\n\
         --json FILE       the figures as JSON\n\
         --html FILE       the plots as one page",
        names(works::all().iter().map(|w| w.name).collect()),
        names(engines::all().iter().map(|e| e.name).collect()),
        names(SETS.iter().map(|s| s.0).collect()),
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
            cache: 64 << 20,
            works: works::all(),
            engines: engines::all(),
            dir: std::env::temp_dir(),
            json: None,
            html: None,
            cap: 6.0,
            copy_keys: 1_000_000,
            sets: SETS[..USUAL].to_vec(),
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if matches!(word.as_str(), "-h" | "--help") {
                println!("{}", usage());
                return Ok(None);
            }
            let value = words.next().with_context(|| format!("{word} needs a value\n{}", usage()))?;
            match word.as_str() {
                "--scale" => args.scale = value.parse().context("--scale")?,
                "--cache" => args.cache = value.parse::<u64>().context("--cache")? << 20,
                "--only" => args.works = chosen(&value, &works::all(), |work| work.name)?,
                "--engines" => args.engines = chosen(&value, &engines::all(), |kind| kind.name)?,
                "--sets" => args.sets = chosen(&value, &SETS, |set| set.0)?,
                "--cap" => args.cap = value.parse().context("--cap")?,
                "--copy-keys" => args.copy_keys = value.parse().context("--copy-keys")?,
                "--dir" => args.dir = value.into(),
                "--json" => args.json = Some(value.into()),
                "--html" => args.html = Some(value.into()),
                _ => bail!("{word} is not known\n{}", usage()),
            }
        }
        ensure!(args.scale > 0.0 && args.scale.is_finite(), "--scale must be above 0");
        args.cache = ((args.cache as f64 * args.scale) as u64).max(8 << 20);
        args.copy_keys = ((args.copy_keys as f64 * args.scale) as u64).max(1000);
        Ok(Some(args))
    }
}
