//! `pando log`: in which snapshots a file or directory changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{self, Metadata},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Component, Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use pando_fs::{DiffOptions, Time};
use pando_fuse::tool;
use serde::Serialize;

use crate::{
    below::attrs_at,
    cmd::snapshot::{show_age, snapshots_if_allowed},
    place,
    report::VERSION,
    size,
};

/// Snapshots of a directory, a count, of which each is looked at without asking before which are alike.
const FEW_SNAPSHOTS: usize = 3;
/// Attempts that follow a failure although all snapshots still seem to be there, a count.
const MAX_RETRIES: usize = 5;
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Show the snapshots in which a file or directory changed
#[derive(clap::Args)]
#[command(
    after_help = "The snapshots of all directories above PATH are compared, the oldest first. A line is printed for each
in which PATH is not what it was in the one before:
  +  it is there
  -  it is not there any more
  M  it has changed: content, mode, owner, time of modification, attributes;
     or something below a directory has
The last line is what is there now, if that is not what the last snapshot holds. PATH need not be
there now. A file that was moved is not followed. The cost is in proportion to what differs, and some
microseconds for each other snapshot. The versions themselves are DIR/.snapshots/NAME/...; see also
pando restore-file.

Examples: pando log /mnt/grove/project/src/main.rs
          pando log --json project/notes.txt
          pando diff -u project/.snapshots/monday/notes.txt project/notes.txt"
)]
pub struct Args {
    /// No header, and fields with one tab between, for scripts; '-' is what is not known or not there, and control
    /// characters and backslashes of names are written as \ooo
    #[arg(short = 'H')]
    script: bool,
    /// Print JSON, with a version of its format
    #[arg(long, conflicts_with = "script")]
    json: bool,
    /// A file or directory in a mounted Pando file system, or one that was there
    path: PathBuf,
}

/// A moment of which a path is known.
pub struct Moment {
    /// The time of the snapshot; `None` for the present state.
    pub taken: Option<Time>,
    pub number: u32,
    pub name: String,
    /// Its name as it is, which need not be text.
    pub named: OsString,
    /// The directory that the snapshot is of.
    pub dir: PathBuf,
    /// The snapshot itself, where it is seen.
    pub top: PathBuf,
    /// Where the path is found as it was.
    pub path: PathBuf,
}

impl Moment {
    /// The order of snapshots: by time, and by number if they were made in the same tick of the clock.
    fn order(&self) -> (Option<(i64, u32)>, u32) {
        (self.taken.map(|time| (time.secs, time.nanos)), self.number)
    }
}

#[derive(Serialize)]
struct LogReport {
    version: u32,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    changes: Vec<LogLine>,
}

#[derive(Serialize)]
struct LogLine {
    change: &'static str,
    created: Option<String>,
    created_seconds: Option<i64>,
    snapshot: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot_hex: Option<String>,
    dir: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dir_hex: Option<String>,
    path: super::ReportName,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    size: Option<u64>,
}

pub fn run(args: &Args) -> Result<()> {
    let now = absolute(&args.path)?;
    let (mut missed, mut tries) = (Vec::new(), 0);
    let lines = loop {
        let moments = moments(&args.path)?;
        let alike = alike(&moments, &now);
        let lines = changes(&moments, &alike, &now);
        // Where a snapshot was deleted meanwhile, that looks like a removal, or fails.
        let is_gone = |moment: &Moment| matches!(there(&moment.top), Ok(None));
        let seen = moments.iter().zip(&alike).filter(|(_, alike)| !**alike).map(|(moment, _)| moment);
        let gone: Vec<PathBuf> = seen.filter(|m| is_gone(m)).map(|m| m.top.clone()).collect();
        // The kernel shows a snapshot for a moment after the server has deleted it.
        if gone.is_empty() && lines.is_err() && tries < MAX_RETRIES {
            tries += 1;
            thread::sleep(RETRY_PAUSE);
            continue;
        }
        // Those that are still listed are not deleted: something is mounted over them.
        if gone.is_empty() || gone == missed {
            break lines?;
        }
        missed = gone;
    };
    if lines.is_empty() {
        bail!("{}: is not there, nor in a snapshot of a directory above it", args.path.display());
    }
    match args.json {
        true => {
            let (path, path_hex) = (now.to_string_lossy().into_owned(), super::hex_unless_text(&now));
            super::print_json(&LogReport { version: VERSION, path, path_hex, changes: lines })
        }
        false => super::print(&text(&lines, args.script)),
    }
}

/// Of which of these moments the daemon knows that what is at `now` was as in the one before. It tells that of many
/// snapshots of one directory at once; what it does not tell, because it does not know this request for instance, is
/// looked at one by one.
fn alike(moments: &[Moment], now: &Path) -> Vec<bool> {
    let mut of_dirs: BTreeMap<&Path, BTreeSet<u32>> = BTreeMap::new();
    for moment in moments {
        of_dirs.entry(&moment.dir).or_default().insert(moment.number);
    }
    let mut known: BTreeSet<(&Path, u32)> = BTreeSet::new();
    for (dir, numbers) in &of_dirs {
        let inside = now.strip_prefix(dir).unwrap_or(Path::new(""));
        if numbers.len() > FEW_SNAPSHOTS
            && let Ok(found) = tool::alike_snapshots(dir, inside)
        {
            known.extend(found.into_iter().map(|number| (*dir, number)));
        }
    }
    let is_alike = |(i, moment): (usize, &Moment)| {
        let before = i.checked_sub(1).and_then(|i| moments.get(i)).filter(|before| before.dir == moment.dir);
        let last = of_dirs.get(&*moment.dir).and_then(|all| all.range(..moment.number).next_back().copied());
        // The daemon compares it with the one that has the next lower number.
        before.is_some_and(|before| last == Some(before.number))
            && known.contains(&(&*moment.dir, moment.number))
    };
    moments.iter().enumerate().map(is_alike).collect()
}

/// What is not the same from one of these moments to the next, and from the last to what is at `now`. Those that are
/// `alike` are not looked at.
fn changes(moments: &[Moment], alike: &[bool], now: &Path) -> Result<Vec<LogLine>> {
    let path = now.to_owned();
    let live = Moment {
        taken: None,
        number: 0,
        name: "".into(),
        named: "".into(),
        dir: "".into(),
        top: "".into(),
        path,
    };
    let mut lines = Vec::new();
    let mut before: Option<(PathBuf, Metadata)> = None;
    let looked_at = moments.iter().zip(alike).filter(|(_, alike)| !**alike).map(|(moment, _)| moment);
    for moment in looked_at.chain([&live]) {
        let found = there(&moment.path)?;
        let change = match (&before, &found) {
            (None, None) => None,
            (None, Some(_)) => Some("+"),
            (Some(_), None) => Some("-"),
            (Some((path, old)), Some(new)) => differ((path, old), (&moment.path, new))?.then_some("M"),
        };
        if let Some(change) = change {
            let of_snapshot = moment.taken.is_some().then_some(moment);
            lines.push(LogLine {
                change,
                created: moment.taken.map(|time| time.to_utc()),
                created_seconds: moment.taken.map(|time| time.secs),
                snapshot: of_snapshot.map(|moment| moment.name.clone()),
                snapshot_hex: of_snapshot.and_then(|moment| super::hex_unless_text(&moment.named)),
                dir: of_snapshot.map(|moment| moment.dir.to_string_lossy().into_owned()),
                dir_hex: of_snapshot.and_then(|moment| super::hex_unless_text(&moment.dir)),
                path: moment.path.clone().into(),
                path_hex: super::hex_unless_text(&moment.path),
                size: found.as_ref().filter(|found| found.is_file()).map(MetadataExt::size),
            });
        }
        before = found.map(|found| (moment.path.clone(), found));
    }
    Ok(lines)
}

/// The path from the root, of something that need not be there, and whose directories need not be there either.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    let (parent, name) = place::split(path)?;
    let (mut dir, mut rest) = (&*parent, PathBuf::from(name));
    loop {
        let failed = match dir.canonicalize() {
            Ok(found) => return Ok(found.join(rest)),
            Err(failed) => failed,
        };
        let gone = matches!(failed.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR));
        let (Some(up), Some(Component::Normal(last)), true) =
            (dir.parent(), dir.components().next_back(), gone)
        else {
            return Err(failed).with_context(|| format!("{}", dir.display()));
        };
        rest = Path::new(last).join(rest);
        dir = if up.as_os_str().is_empty() { Path::new(".") } else { up };
    }
}

/// The snapshots of the directories above `path`, and of itself, oldest first.
pub fn moments(path: &Path) -> Result<Vec<Moment>> {
    let path = absolute(path)?;
    if path.components().any(|part| part.as_os_str() == ".snapshots") {
        bail!("{}: lies in a snapshot; name what is live", path.display());
    }
    let mut found = Vec::new();
    let mut device = None;
    for dir in path.ancestors() {
        let meta = match fs::symlink_metadata(dir) {
            Ok(meta) => meta,
            // What was removed has no snapshots of its own that could be found.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => continue,
            Err(e) => return Err(e).with_context(|| format!("{}", dir.display())),
        };
        if !meta.is_dir() {
            continue;
        }
        if *device.get_or_insert(meta.dev()) != meta.dev() {
            break;
        }
        let rest = path.strip_prefix(dir).unwrap_or(Path::new(""));
        for info in snapshots_if_allowed(dir)? {
            let top = dir.join(".snapshots").join(&info.name);
            let mut at = top.clone();
            if !rest.as_os_str().is_empty() {
                at.push(rest);
            }
            found.push(Moment {
                taken: Some(info.created),
                number: info.number,
                name: info.name.to_string_lossy().into_owned(),
                named: info.name,
                dir: dir.to_owned(),
                top,
                path: at,
            });
        }
    }
    found.sort_by_key(Moment::order);
    Ok(found)
}

/// What is at a path, not followed; `None` if nothing is.
pub fn there(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(meta) => Ok(Some(meta)),
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(None),
        Err(e) => Err(e).with_context(|| format!("{}", path.display())),
    }
}

fn differ(before: (&Path, &Metadata), after: (&Path, &Metadata)) -> Result<bool> {
    let ((old, x), (new, y)) = (before, after);
    let about = || format!("{} and {}", old.display(), new.display());
    if x.file_type() != y.file_type() {
        return Ok(true);
    }
    if x.is_file() || x.is_dir() {
        let options = DiffOptions { ranges: false, no_renames: true };
        let mut all = tool::diff(old, new, options, &|| true).with_context(about)?;
        return Ok(all.next().transpose().with_context(about)?.is_some());
    }
    let facts = |meta: &Metadata| (meta.mode(), meta.uid(), meta.gid(), meta.mtime(), meta.mtime_nsec());
    let device = |meta: &Metadata| {
        let kind = meta.file_type();
        (kind.is_char_device() || kind.is_block_device()).then(|| meta.rdev())
    };
    let target = |path: &Path| fs::read_link(path).ok();
    if facts(x) != facts(y) || device(x) != device(y) || target(old) != target(new) {
        return Ok(true);
    }
    let attrs = |path: &Path| attrs_at(path).with_context(|| format!("{}", path.display()));
    Ok(attrs(old)? != attrs(new)?)
}

/// The table: for people in columns, for scripts with tabs.
fn text(lines: &[LogLine], script: bool) -> String {
    let now = Time::now();
    let mut out = String::new();
    for line in lines {
        let when = match (line.created_seconds, &line.created) {
            (Some(_), Some(created)) if script => created.clone(),
            (Some(secs), _) => show_age(u64::try_from(now.secs.saturating_sub(secs)).unwrap_or(0)),
            _ => "now".into(),
        };
        let size = match line.size {
            Some(bytes) if script => bytes.to_string(),
            Some(bytes) => size::show(bytes),
            None => "-".into(),
        };
        let (change, path) = (line.change, super::field(&line.path.0, script));
        out += &match script {
            true => format!("{change}\t{when}\t{size}\t{path}\n"),
            false => format!("{change}  {when:>5}  {size:>9}  {path}\n"),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_of_one_tick_are_in_the_order_of_their_numbers() {
        let moment = |secs, number| Moment {
            taken: Some(Time { secs, nanos: 7 }),
            number,
            name: String::new(),
            named: "".into(),
            dir: PathBuf::new(),
            top: PathBuf::new(),
            path: PathBuf::new(),
        };
        let mut found = [moment(5, 3), moment(4, 9), moment(5, 2), moment(5, 1)];
        found.sort_by_key(Moment::order);
        assert_eq!(found.map(|moment| moment.number), [9, 1, 2, 3]);
    }
}
