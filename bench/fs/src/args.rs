//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use pando_bench_common::cgroup::Rate;

use crate::{
    contender::{self, Kind},
    works::{self, Work},
};

/// What to do.
#[derive(Debug)]
pub struct Args {
    /// Factor on the size of every work.
    pub scale: f64,
    /// How often all is done.
    pub rounds: usize,
    /// Works to be done.
    pub works: Vec<Work>,
    /// File systems that do them.
    pub contenders: Vec<Kind>,
    /// Limit on requests and bytes of the device.
    pub throttle: Option<Rate>,
    /// Limit on the memory of client, daemon and page cache together, in bytes.
    pub memory: Option<u64>,
    /// Memory for Pando's cache, in bytes, if it is not what Pando chooses.
    pub cache: Option<u64>,
    /// Mount options for Pando besides `nodiscard`.
    pub pando_options: Option<String>,
    /// Pando's program, if it is not to be built.
    pub pando: Option<PathBuf>,
    /// Where the image is made.
    pub dir: PathBuf,
    /// Where the results go.
    pub out: PathBuf,
    /// Size of the image in bytes.
    pub image: u64,
    /// The seed of all data and choices.
    pub seed: u64,
    /// Seconds after which a work is given up.
    pub limit: u64,
    /// Whether Pando is mounted from an image file, without a loop device.
    pub no_loop: bool,
}

const GIB: u64 = 1 << 30;
/// The kernel's file systems need some room even for little data.
const LEAST_IMAGE: u64 = 2 * GIB;
/// Without a loop device the image is a sparse file, which may be small.
const SMALL_IMAGE: u64 = 256 << 20;
/// The size of the image at scale 1.
const USUAL_IMAGE: u64 = 16 * GIB;
/// The least memory with which a work can be expected to do anything.
const LEAST_MEMORY: u64 = 64 << 20;

/// What `--help` prints.
pub fn usage() -> String {
    format!(
        "usage: pando-bench-fs [options]\n\
         --scale F            factor on the size of every work (default 1; 0.1 takes minutes)\n\
         --rounds N           how often everything is done, in another order (default 3; 1 up to a scale of 0.1)\n\
         --only NAMES         some of {}\n\
         --contenders NAMES   some of {} (default: all that this system has)\n\
         --throttle N:MBPS    limit the device to N requests and MBPS megabytes (10^6) a second, reads and writes each\n\
         --memory SIZE        limit for client, daemon and their page cache together (such as 512M)\n\
         --cache SIZE         memory for Pando's cache (default: what `pando mount` chooses, or a quarter of --memory)\n\
         --pando FILE         Pando's program (default: built from this checkout, optimised)\n\
         --pando-options OPTS mount options for Pando\n\
         --image-size SIZE    size of the image, which is written in full first (default 16G times scale, at least 2G)\n\
         --dir DIR            where the image is made (default: the directory for temporary files)\n\
         --out DIR            where table.md, results.json and the plots go (default: bench-fs-results)\n\
         --seed N             seed of all data and choices (default 1)\n\
         --limit SECONDS      when a work is given up (default 900)\n\
         --no-loop            Pando alone on an image file: no loop device, no device figures",
        works::all().iter().map(|work| work.name).collect::<Vec<_>>().join(","),
        contender::ALL.map(Kind::name).join(","),
    )
}

/// Those of `all` that `list` names, in the order of `all`.
fn chosen<T: Copy>(list: &str, all: &[T], name: impl Fn(&T) -> &'static str) -> Result<Vec<T>> {
    for wanted in list.split(',') {
        ensure!(all.iter().any(|one| name(one) == wanted), "`{wanted}` is not known\n{}", usage());
    }
    Ok(all.iter().filter(|one| list.split(',').any(|wanted| wanted == name(one))).copied().collect())
}

/// A number of bytes: `512M`, `2G`, `4096`.
fn size(text: &str) -> Result<u64> {
    let (number, shift) = match text.as_bytes().last() {
        Some(b'K' | b'k') => (&text[..text.len() - 1], 10),
        Some(b'M' | b'm') => (&text[..text.len() - 1], 20),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 = number.parse().with_context(|| format!("`{text}` is not a size"))?;
    number.checked_mul(1 << shift).with_context(|| format!("`{text}` is too large"))
}

/// A limit as `IOPS:MBPS`.
fn rate(text: &str) -> Result<Rate> {
    let (requests, megabytes) = text.split_once(':').context("--throttle is IOPS:MBPS")?;
    let rate = Rate {
        requests: requests.parse().context("--throttle IOPS")?,
        bytes: megabytes.parse::<u64>().context("--throttle MBPS")?.saturating_mul(1_000_000),
    };
    ensure!(rate.requests > 0 && rate.bytes > 0, "--throttle: both limits must be above 0");
    Ok(rate)
}

impl Args {
    /// Reads the command line. `None`: help was asked for and given.
    pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Option<Args>> {
        let mut args = Args {
            scale: 1.0,
            rounds: 0,
            works: works::all().to_vec(),
            contenders: contender::ALL.to_vec(),
            throttle: None,
            memory: None,
            cache: None,
            pando_options: None,
            pando: None,
            dir: std::env::temp_dir(),
            out: "bench-fs-results".into(),
            image: 0,
            seed: 1,
            limit: 900,
            no_loop: false,
        };
        let mut image = None;
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "-h" | "--help" => {
                    println!("{}", usage());
                    return Ok(None);
                }
                "--no-loop" => {
                    args.no_loop = true;
                    continue;
                }
                _ => {}
            }
            let value = words.next().with_context(|| format!("{word} needs a value\n{}", usage()))?;
            match word.as_str() {
                "--scale" => args.scale = value.parse().context("--scale")?,
                "--rounds" => args.rounds = value.parse().context("--rounds")?,
                "--only" => args.works = chosen(&value, works::all(), |work| work.name)?,
                "--contenders" => args.contenders = chosen(&value, &contender::ALL, |kind| kind.name())?,
                "--throttle" => args.throttle = Some(rate(&value)?),
                "--memory" => args.memory = Some(size(&value).context("--memory")?),
                "--cache" => args.cache = Some(size(&value).context("--cache")?),
                "--pando" => args.pando = Some(value.into()),
                "--pando-options" => args.pando_options = Some(value),
                "--image-size" => image = Some(size(&value).context("--image-size")?),
                "--dir" => args.dir = value.into(),
                "--out" => args.out = value.into(),
                "--seed" => args.seed = value.parse().context("--seed")?,
                "--limit" => args.limit = value.parse().context("--limit")?,
                _ => bail!("{word} is not known\n{}", usage()),
            }
        }
        ensure!(args.scale > 0.0 && args.scale.is_finite(), "--scale must be above 0");
        ensure!(args.limit > 0, "--limit must be above 0");
        ensure!(args.memory.is_none_or(|memory| memory >= LEAST_MEMORY), "--memory must be 64M or more");
        if args.rounds == 0 {
            args.rounds = if args.scale <= 0.1 { 1 } else { 3 };
        }
        if args.no_loop {
            args.contenders.retain(|&kind| kind == Kind::Pando);
            ensure!(!args.contenders.is_empty(), "without a loop device there is only Pando");
            ensure!(args.throttle.is_none(), "--throttle limits a loop device");
        }
        let least = if args.no_loop { SMALL_IMAGE } else { LEAST_IMAGE };
        args.image = image.unwrap_or(((USUAL_IMAGE as f64 * args.scale) as u64).max(least));
        // Devices have whole sectors, and some file systems whole MiB.
        args.image = args.image.next_multiple_of(1 << 20);
        args.cache = args.cache.or(args.memory.map(|memory| memory / 4));
        Ok(Some(args))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<Args>> {
        Args::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn options_are_read() {
        let args =
            parse("--throttle 3000:125 --memory 512M --scale 0.1 --only untar,create").unwrap().unwrap();
        assert_eq!(args.throttle, Some(Rate { requests: 3000, bytes: 125_000_000 }));
        assert_eq!((args.memory, args.cache), (Some(512 << 20), Some(128 << 20)));
        assert_eq!((args.rounds, args.image), (1, 2 << 30));
        assert_eq!(args.works.iter().map(|work| work.name).collect::<Vec<_>>(), ["create", "untar"]);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in
            ["--scale 0", "--only x", "--throttle 5", "--throttle 0:1", "--memory 1K", "--x 1", "--seed"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse("--no-loop --contenders ext4").is_err());
    }
}
