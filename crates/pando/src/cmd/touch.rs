//! `pando touch`: sets times, of a whole tree as one operation.

use std::path::PathBuf;

use anyhow::{Result, bail};
use jiff::{Timestamp, Zoned, civil::DateTime, tz::TimeZone};
use pando_fs::{SetTime, Time, TreeChange};

use crate::change::Wanted;

/// Set access and modification times of files, with -R of a whole tree as one operation
#[derive(clap::Args)]
#[command(
    after_help = "TIME is like 2026-11-24T19:30:00Z, 2026-11-24 19:30 (local time), or @SECONDS since 1970; the
default is now. Files that do not exist are not made. With -R symbolic links in the tree themselves are changed; one
that is named is followed. For root, in a mounted Pando file system, -R is one small write, however
large the tree is; otherwise every file is changed by itself. The one write does not change what is
mounted inside the tree, but it changes what such a mount hides.
PATH may also be IMAGE:/PATH, in an image that is not mounted.

Examples: pando touch -R -d @1700000000 /mnt/grove/release
          pando touch -m grove.img:/project/Makefile"
)]
pub struct Args {
    /// Go down into directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// The access time only
    #[arg(short = 'a')]
    access: bool,
    /// The modification time only
    #[arg(short = 'm')]
    modification: bool,
    /// This time in place of now
    #[arg(short = 'd', long, value_name = "TIME", allow_hyphen_values = true)]
    date: Option<String>,
    /// Files and directories
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let time = match &args.date {
        None => SetTime::Now,
        Some(text) => match time(text) {
            Some(time) => SetTime::At(time),
            None => bail!("{text}: no time; give one like 2026-11-24T19:30:00Z or @1700000000"),
        },
    };
    let both = args.access == args.modification;
    let change = TreeChange {
        atime: (both || args.access).then_some(time),
        mtime: (both || args.modification).then_some(time),
        ..TreeChange::default()
    };
    Wanted { name: "touch", change: &change, recursive: args.recursive, follow: true }.run(&args.paths)
}

/// The moment that a text means.
fn time(text: &str) -> Option<Time> {
    if let Some(seconds) = text.strip_prefix('@') {
        let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
        let digits =
            !whole.starts_with('+') && fraction.len() <= 9 && fraction.bytes().all(|b| b.is_ascii_digit());
        let nanos: u32 = format!("{fraction:0<9}").parse().ok()?;
        let secs: i64 = whole.parse().ok().filter(|_| digits)?;
        // The fraction extends the number, so below zero it counts downwards.
        return Some(match whole.starts_with('-') && nanos > 0 {
            true => Time { secs: secs.checked_sub(1)?, nanos: 1_000_000_000 - nanos },
            false => Time { secs, nanos },
        });
    }
    let moment =
        text.parse::<Timestamp>().ok().or_else(|| text.parse::<Zoned>().ok().map(|at| at.timestamp()));
    let moment = moment.or_else(|| {
        let here = text.parse::<DateTime>().ok()?;
        TimeZone::system().to_timestamp(here).ok()
    })?;
    Some(std::time::SystemTime::from(moment).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let at = |secs, nanos| Some(Time { secs, nanos });
        assert_eq!(time("@5"), at(5, 0));
        assert_eq!(time("@-5.25"), at(-6, 750_000_000));
        assert_eq!(time("1970-01-02T00:00:00.5Z"), at(86_400, 500_000_000));
        assert_eq!(time("1970-01-01 02:00:00+02:00"), at(0, 0));
        assert!(time("2026-11-24 19:30").is_some() && time("2026-11-24").is_some());
        for bad in ["", "@", "@x", "@1.x", "@+1", "@1.1234567890", "tomorrow", "2026-13-01"] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }
}
