//! `pando snapshot policy`: show, set and take back the policy of a directory; and the options that say what is kept.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use pando_fs::{MAX_FREE_PERCENT, SnapshotPolicy, StoredPolicy};
use pando_fuse::{asked::Asked, tool};
use serde::Serialize;

use crate::cmd::snapshot::select::{Age, about, show_age};
use crate::report::VERSION;

/// Show, set or remove the policy by which the mounted file system makes and deletes snapshots of a directory
#[derive(clap::Args)]
#[command(
    after_help = "Without options the policy of DIR is shown. With any, it becomes what they say. It is stored in the
file system, and goes with DIR when that is renamed; a clone of DIR has none. While the file system
is mounted its daemon makes the snapshots, named after the UTC time, with the rights of the user
who has set the policy. Of these alone it deletes those that no --keep-* option and no --valid-for keeps;
snapshots that you make are deleted only when their own --valid-for is over, and what is kept by
pando snapshot keep never is. Without --keep-* and --valid-for all stay. How much is free is looked at
every 5 seconds, and what a deleted snapshot had is given back in the background, so --min-free is no
promise: who writes faster may find the file system full. AGE is a number with s, m, h, d, w or y
behind it: seconds to years.

Examples: pando snapshot policy /mnt/grove/project --every 1h --keep-hourly 24 --keep-daily 7
          pando snapshot policy /mnt/grove/db --on-fsync 10m --valid-for 2d --min-free 10%
          pando snapshot policy /mnt/grove/project
          pando snapshot policy /mnt/grove/project --off"
)]
pub struct Args {
    /// A directory in a mounted Pando file system
    dir: PathBuf,
    /// Make a snapshot at this interval, like 15m, 1h or 1d. Default: never
    #[arg(long, value_name = "AGE")]
    every: Option<Age>,
    /// Make one after an fsync of something in DIR, or a sync of the file system, but not more often than this.
    /// Default: never
    #[arg(long, value_name = "AGE")]
    on_fsync: Option<Age>,
    /// Delete each at this age, like 12h, 7d or 2w. Default: at no age
    #[arg(long, value_name = "AGE")]
    valid_for: Option<Age>,
    /// While less than this is free in the file system, delete the oldest, one by one; the newest stays. At most 50%.
    /// Default: 0%
    #[arg(long, value_name = "PERCENT", value_parser = demanded_percent)]
    min_free: Option<u8>,
    #[command(flatten)]
    keep: Keep,
    /// Remove the policy; the snapshots stay
    #[arg(long, conflicts_with_all = ["every", "on_fsync", "valid_for", "min_free", "Keep"])]
    off: bool,
    /// Print fields with a tab between, for scripts
    #[arg(short = 'H')]
    script: bool,
    /// Print JSON, with a version of its format
    #[arg(long, conflicts_with = "script")]
    json: bool,
}

/// Which snapshots are kept.
#[derive(clap::Args)]
pub struct Keep {
    /// Keep the N newest. Default of all --keep options: 0
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_last: u32,
    /// Keep the newest of each of the last N hours that have one, in UTC
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, alias = "hourly")]
    keep_hourly: u32,
    /// The same for days
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, alias = "daily")]
    keep_daily: u32,
    /// The same for weeks
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, alias = "weekly")]
    keep_weekly: u32,
    /// The same for months
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, alias = "monthly")]
    keep_monthly: u32,
    /// The same for years
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, alias = "yearly")]
    keep_yearly: u32,
    /// Of those that would be deleted, keep one in N: if N divides its number
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    keep_one_of: u32,
}

impl From<&Keep> for SnapshotPolicy {
    fn from(k: &Keep) -> Self {
        SnapshotPolicy {
            last: k.keep_last,
            hourly: k.keep_hourly,
            daily: k.keep_daily,
            weekly: k.keep_weekly,
            monthly: k.keep_monthly,
            yearly: k.keep_yearly,
            one_of: k.keep_one_of,
        }
    }
}

/// A percentage, with or without its sign.
pub fn percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<u8>();
    number.ok().filter(|n| *n <= 100).ok_or_else(|| "not a percentage, like 10%".into())
}

fn demanded_percent(text: &str) -> Result<u8, String> {
    let too_much = || format!("a policy can demand at most {MAX_FREE_PERCENT}%");
    percent(text).and_then(|n| (n <= MAX_FREE_PERCENT).then_some(n).ok_or_else(too_much))
}

pub fn run(args: &Args) -> Result<()> {
    let dir = &args.dir;
    let seconds = |age: Option<Age>, name: &str| match age.map_or(Ok(0), |age| u32::try_from(age.0)) {
        Ok(0) if age.is_some() => bail!("{name} 0: give at least a second"),
        Ok(seconds) => Ok(seconds),
        Err(_) => bail!("{name}: give at most {}", show_age(u32::MAX.into())),
    };
    let policy = StoredPolicy {
        every_secs: seconds(args.every, "--every")?,
        on_sync_secs: seconds(args.on_fsync, "--on-fsync")?,
        valid_for_secs: args.valid_for.map(|age| age.0),
        min_free_percent: args.min_free.unwrap_or(0),
        keep: (&args.keep).into(),
    };
    if policy.valid_for_secs == Some(0) {
        bail!("--valid-for 0: give at least a second");
    }
    if args.off {
        tool::snapshot(dir, Asked::SetPolicy(None)).with_context(|| about(dir))?;
        return if args.json { show(dir, args.script, true) } else { Ok(()) };
    }
    if policy == StoredPolicy::default() {
        return show(dir, args.script, args.json);
    }
    if (StoredPolicy { valid_for_secs: None, ..policy }) == StoredPolicy::default() {
        bail!("--valid-for alone makes no snapshots; say when, by --every or --on-fsync");
    }
    tool::snapshot(dir, Asked::SetPolicy(Some(policy))).with_context(|| about(dir))?;
    let makes = policy.every_secs > 0 || policy.on_sync_secs > 0;
    let deletes = policy.keep != SnapshotPolicy::default() || policy.valid_for_secs.is_some();
    if makes && !deletes && policy.min_free_percent == 0 {
        crate::exit::tell!(
            "pando: note: nothing says which of these snapshots go; see --keep-* and --valid-for"
        );
    }
    if args.json { show(dir, args.script, true) } else { Ok(()) }
}

#[derive(Serialize)]
struct PolicyReport<'a> {
    version: u32,
    policy: Option<Shown<'a>>,
}

/// A policy as JSON.
#[derive(Serialize)]
pub struct Shown<'a> {
    path: std::borrow::Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    uid: u32,
    every_seconds: u32,
    on_fsync_seconds: u32,
    valid_for_seconds: Option<u64>,
    min_free_percent: u8,
    keep_last: u32,
    keep_hourly: u32,
    keep_daily: u32,
    keep_weekly: u32,
    keep_monthly: u32,
    keep_yearly: u32,
    keep_one_of: u32,
}

fn show(dir: &Path, script: bool, json: bool) -> Result<()> {
    let found = tool::policy(dir).with_context(|| about(dir))?;
    if json {
        // As a list of policies names it, wherever this process is.
        let dir = dir.canonicalize().with_context(|| about(dir))?;
        let policy = found.map(|(uid, policy)| shown(&dir, uid, &policy));
        return crate::cmd::print_json(&PolicyReport { version: VERSION, policy });
    }
    let Some((uid, policy)) = found else {
        return match script {
            true => Ok(()),
            false => crate::cmd::print("none\n"),
        };
    };
    let lines: String = fields(uid, &policy, script)
        .into_iter()
        .map(|(name, value)| match script {
            true => format!("{name}\t{value}\n"),
            false => format!("{name:<13}  {value}\n"),
        })
        .collect();
    crate::cmd::print(&lines)
}

pub fn shown<'a>(dir: &'a Path, uid: u32, policy: &StoredPolicy) -> Shown<'a> {
    let keep = &policy.keep;
    Shown {
        path: dir.to_string_lossy(),
        path_hex: crate::cmd::hex_unless_text(dir),
        uid,
        every_seconds: policy.every_secs,
        on_fsync_seconds: policy.on_sync_secs,
        valid_for_seconds: policy.valid_for_secs,
        min_free_percent: policy.min_free_percent,
        keep_last: keep.last,
        keep_hourly: keep.hourly,
        keep_daily: keep.daily,
        keep_weekly: keep.weekly,
        keep_monthly: keep.monthly,
        keep_yearly: keep.yearly,
        keep_one_of: keep.one_of,
    }
}

/// What a policy says, by the names of the options; what it does not say is left out.
pub fn fields(uid: u32, policy: &StoredPolicy, script: bool) -> Vec<(&'static str, String)> {
    let age = |secs: u64| if script { secs.to_string() } else { show_age(secs) };
    let percent = |n: u8| if script { n.to_string() } else { format!("{n}%") };
    let mut out = vec![("set-by", uid.to_string())];
    let mut add = |name, given: bool, value: String| out.extend(given.then_some((name, value)));
    add("every", policy.every_secs > 0, age(policy.every_secs.into()));
    add("on-fsync", policy.on_sync_secs > 0, age(policy.on_sync_secs.into()));
    add("valid-for", policy.valid_for_secs.is_some(), age(policy.valid_for_secs.unwrap_or(0)));
    add("min-free", policy.min_free_percent > 0, percent(policy.min_free_percent));
    let k = &policy.keep;
    for (name, count) in [
        ("keep-last", k.last),
        ("keep-hourly", k.hourly),
        ("keep-daily", k.daily),
        ("keep-weekly", k.weekly),
        ("keep-monthly", k.monthly),
        ("keep-yearly", k.yearly),
        ("keep-one-of", k.one_of),
    ] {
        add(name, count > 0, count.to_string());
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::percent;

    #[test]
    fn percentages_are_read_with_and_without_sign() {
        assert_eq!((percent("10%"), percent("0"), percent("100%")), (Ok(10), Ok(0), Ok(100)));
        for bad in ["", "%", "101", "-1", "10%%", "x"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
