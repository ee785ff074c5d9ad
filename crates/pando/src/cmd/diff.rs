//! `pando diff`: what differs between two trees, or two files, of one file system.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, BufWriter, Seek, Write},
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        process::ExitStatusExt,
    },
    path::{Component, Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, anyhow, bail};
use pando_fs::{Aspects, ChangeKind, DiffOptions, FileChange, FileKind, Ino};
use pando_fuse::tool;
use serde::Serialize;

use crate::{
    cmd::past,
    exit::{self, Coded},
    image::ImagePath,
    offline,
    report::VERSION,
    size,
};

/// Show what differs between two trees or files, whatever their size
#[derive(clap::Args)]
#[command(
    after_help = "A and B are any two directories, or two files, of one file system: live ones, clones, or
in snapshots: PATH@SNAPSHOT, by the name or number of a snapshot of PATH or of a directory above it, as
in pando restore-file; as B, @SNAPSHOT is A in that snapshot; DIR/.snapshots/NAME is the same. What
exists is meant itself. Only what differs is read. A line is printed for each difference:
  +  only in B
  -  only in A
  M  differs: content, size, mode, owner, time of modification, target,
     attributes
  R  renamed or moved in B: OLD -> NEW (by file number); it may also differ
If only A is given, it must be a fork (pando fork --help): it is compared with what it was when it was
made, or merged last. -u, which is for who owns or made the fork, and for root, calls that A@origin.
Paths are from A and from B; the two themselves are '.'. Lines are in no particular order, and
control characters and backslashes of names are written as \\ooo. Directories that you may not
list, if something differs in them, and files that you may not read, if they were changed, are
named on stderr; then the exit code is 3. So it is if with -u files could not be read, as diff says.
With -u, of what was renamed there are two lines, as git writes and quotes them, before the lines that
differ in it, if any: 'rename from OLD' and 'rename to NEW'.

Examples: pando diff /mnt/grove/project@before /mnt/grove/project
          pando diff /mnt/grove/project@before @after
          pando diff -u /mnt/grove/project@before /mnt/grove/project src/main.rs
          pando diff -u /mnt/grove/notes.txt@monday /mnt/grove/notes.txt
          pando diff --stat /mnt/grove/project /mnt/grove/experiment
          pando diff -u /mnt/grove/project /mnt/grove/experiment src
          pando diff -u /mnt/grove/task
          pando diff --name-only project fork | head
          pando diff --json grove.img:/project grove.img:/experiment"
)]
pub struct Args {
    /// For scripts: one tab between fields, and the old path of what moved before the new one
    #[arg(short = 'H', group = "form")]
    script: bool,
    /// Print a JSON object a line, with a version of its format, and which bytes differ
    #[arg(long, group = "form")]
    json: bool,
    /// How many bytes came, went or differ, of each file and of all
    #[arg(long, group = "form")]
    stat: bool,
    /// Only the paths, of what moved the new one
    #[arg(long, group = "form")]
    name_only: bool,
    /// What differs in files, by the system's diff -u, and what was renamed, as git says it; in a mounted file system
    /// only
    #[arg(short, long, group = "form")]
    unified: bool,
    /// Show what moved as removed and added
    #[arg(long)]
    no_renames: bool,
    /// The first: a path in a mounted file system, or IMAGE:/PATH in one that is not mounted; with @SNAPSHOT behind it,
    /// as it was then
    #[arg(value_name = "A")]
    before: PathBuf,
    /// The second, in the same file system; @SNAPSHOT alone is A in that snapshot
    #[arg(value_name = "B")]
    after: Option<PathBuf>,
    /// Compare only A/PATH and B/PATH
    path: Option<PathBuf>,
}

#[derive(Serialize)]
struct DiffLine {
    version: u32,
    kind: &'static str,
    path: String,
    /// The bytes of a path that is no UTF-8, in hexadecimal digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from_hex: Option<String>,
    file: &'static str,
    changed: Vec<&'static str>,
    size_before: u64,
    size_after: u64,
    ranges: Vec<(u64, u64)>,
}

/// Sums for `--stat`.
#[derive(Default)]
struct Sums {
    added: u64,
    removed: u64,
    modified: u64,
    renamed: u64,
    bytes: u64,
}

/// Where files of the first of the two are, for `-u`.
enum Before {
    At(PathBuf),
    /// In the origin of the second, which is the fork with this number: nowhere that a path leads to.
    Origin(u32),
}

/// Where differences are written.
struct DiffPrinter<'a> {
    args: &'a Args,
    before: Before,
    after: PathBuf,
    out: BufWriter<io::Stdout>,
    sums: Sums,
    unreadable: u64,
    /// Files of which the system's diff could not show what differs.
    failed: u64,
}

pub fn run(args: &Args) -> Result<()> {
    let inside = |top: &Path| match &args.path {
        Some(path) => {
            if path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
                bail!("{}: PATH is a path in A and in B, from there", path.display());
            }
            Ok(top.join(path))
        }
        None => Ok(top.to_owned()),
    };
    let Some(after) = &args.after else { return of_fork(args) };
    let after = past::beside(&args.before, after);
    let (before, after) = match offline::pair(&args.before, &after)? {
        // These are looked for in the image.
        Some(_) => (args.before.clone(), after),
        None => (past::place(&args.before)?, past::place(&after)?),
    };
    let (before, after) = (inside(&before)?, inside(&after)?);
    let options = DiffOptions { ranges: args.json || args.stat, no_renames: args.no_renames };
    let mut printer = DiffPrinter {
        args,
        before: Before::At(before.clone()),
        after: after.clone(),
        out: BufWriter::new(io::stdout()),
        sums: Sums::default(),
        unreadable: 0,
        failed: 0,
    };
    let about = || format!("{} and {}", before.display(), after.display());
    match offline::pair(&before, &after)? {
        Some(_) if args.unified => bail!("-u wants a mounted file system"),
        Some((a, b)) => offline::with(&a, true, |fs| {
            let of = |place: &ImagePath| -> Result<Ino> {
                let path = past::place_inside(fs, &place.path)?;
                Ok(fs.resolve(&path).with_context(|| path.display().to_string())?.ino)
            };
            let (x, y): (Ino, Ino) = (of(&a)?, of(&b)?);
            for change in fs.diff(None, x, y, options).with_context(about)? {
                if !printer.print(&change.with_context(about)?)? {
                    break;
                }
            }
            Ok(())
        })?,
        None => {
            for path in [&before, &after] {
                path.metadata().with_context(|| path.display().to_string())?;
            }
            let changes = tool::diff(&before, &after, options, &|| true).with_context(about)?;
            super::warn_undiffed(changes.unstored(), &about());
            for change in changes.fetched_ahead().with_context(about)? {
                if !printer.print(&change.with_context(about)?)? {
                    break;
                }
            }
        }
    }
    printer.finish()
}

/// What a fork has changed.
fn of_fork(args: &Args) -> Result<()> {
    let fork = &args.before;
    if offline::place(fork).is_some() {
        bail!("{}: give A and B; what a fork has changed is shown in a mounted file system", fork.display());
    }
    let options = DiffOptions { ranges: args.json || args.stat, no_renames: args.no_renames };
    // Asked for first: a merge that comes between makes another fork of it, and not another difference.
    let before = match args.unified {
        true => Before::Origin(tool::fork_of(fork).with_context(|| fork.display().to_string())?.number),
        false => Before::At(fork.clone()),
    };
    let (after, out) = (fork.clone(), BufWriter::new(io::stdout()));
    let mut printer =
        DiffPrinter { args, before, after, out, sums: Sums::default(), unreadable: 0, failed: 0 };
    let about = || format!("{}", fork.display());
    let changes = tool::diff_fork(fork, options, &|| true).with_context(about)?;
    super::warn_undiffed(changes.unstored(), &about());
    for change in changes.fetched_ahead().with_context(about)? {
        if !printer.print(&change.with_context(about)?)? {
            break;
        }
    }
    printer.finish()
}

fn sign(kind: ChangeKind) -> char {
    match kind {
        ChangeKind::Added => '+',
        ChangeKind::Removed => '-',
        ChangeKind::Modified => 'M',
        ChangeKind::Renamed => 'R',
        ChangeKind::Unreadable => '!',
    }
}

/// A path as one field of a line.
fn field(path: &OsStr) -> String {
    if path.is_empty() { ".".into() } else { super::escaped(path) }
}

fn kind_name(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "added",
        ChangeKind::Removed => "removed",
        ChangeKind::Modified => "modified",
        ChangeKind::Renamed => "renamed",
        ChangeKind::Unreadable => "unreadable",
    }
}

fn file_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::CharDevice => "char-device",
        FileKind::BlockDevice => "block-device",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

fn line(change: &FileChange) -> DiffLine {
    let text = |path: &OsStr| path.to_string_lossy().into_owned();
    let names = Aspects::NAMES.iter().filter(|(aspect, _)| change.aspects.contains(*aspect));
    DiffLine {
        version: VERSION,
        kind: kind_name(change.kind),
        path: if change.path.is_empty() { ".".into() } else { text(&change.path) },
        path_hex: super::hex_unless_text(&change.path),
        from: change.from.as_deref().map(text),
        from_hex: change.from.as_ref().and_then(super::hex_unless_text),
        file: file_name(change.file),
        changed: names.map(|(_, name)| *name).collect(),
        size_before: change.size_before,
        size_after: change.size_after,
        ranges: change.ranges.clone(),
    }
}

/// Bytes that came, went or differ.
pub fn bytes(change: &FileChange) -> u64 {
    match change.kind {
        _ if change.file != FileKind::Regular => 0,
        ChangeKind::Added => change.size_after,
        ChangeKind::Removed => change.size_before,
        _ => change.ranges.iter().map(|(from, to)| to.saturating_sub(*from)).sum(),
    }
}

/// The file on the side on which there is none.
const NOTHING: &str = "/dev/null";

/// A file as it was before.
enum OldFile {
    At(PathBuf),
    /// It has no path: a copy, without a name as well, and what the system's diff is to call it.
    Copied(File, OsString),
}

/// A path in one of the two, which may be that itself.
fn below(top: &Path, path: &OsStr) -> PathBuf {
    if path.is_empty() { top.to_owned() } else { top.join(path) }
}

impl DiffPrinter<'_> {
    /// Prints a difference; false if the reader of the output has gone.
    fn print(&mut self, change: &FileChange) -> Result<bool> {
        if change.kind == ChangeKind::Unreadable {
            self.unreadable += 1;
            if !self.args.json {
                let path = field(&change.path);
                let what = match change.file {
                    FileKind::Directory => "something differs in it, and you may not look into it",
                    _ => "its content may differ, and you may not read it",
                };
                crate::exit::tell!("pando: {path}: {what}");
                return Ok(true);
            }
        }
        match self.write(change) {
            Ok(()) => Ok(true),
            Err(e) => match e.downcast_ref::<io::Error>() {
                Some(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
                // An error of standard output: those of other files are no `io::Error` any more.
                Some(_) => Err(e.context("write error")),
                None => Err(e),
            },
        }
    }

    fn write(&mut self, change: &FileChange) -> Result<()> {
        if self.args.json {
            serde_json::to_writer(&mut self.out, &line(change)).map_err(io::Error::from)?;
            return Ok(self.out.write_all(b"\n")?);
        }
        if self.args.unified {
            return self.unified(change);
        }
        let path = field(&change.path);
        let from = change.from.as_deref().map(field);
        let mut text = Vec::new();
        if !self.args.name_only {
            text.extend([sign(change.kind) as u8, b'\t']);
            if self.args.stat {
                let bytes = bytes(change);
                self.count(change.kind, bytes);
                text.extend(format!("{:>9}\t", size::show(bytes)).into_bytes());
            }
            if let (Some(from), ChangeKind::Renamed) = (from, change.kind) {
                text.extend(from.into_bytes());
                text.extend(if self.args.script { &b"\t"[..] } else { b" -> " });
            }
        }
        text.extend(path.into_bytes());
        text.push(b'\n');
        Ok(self.out.write_all(&text)?)
    }

    fn count(&mut self, kind: ChangeKind, bytes: u64) {
        let sums = &mut self.sums;
        sums.bytes += bytes;
        *match kind {
            ChangeKind::Added => &mut sums.added,
            ChangeKind::Removed => &mut sums.removed,
            ChangeKind::Renamed => &mut sums.renamed,
            ChangeKind::Modified | ChangeKind::Unreadable => &mut sums.modified,
        } += 1;
    }

    /// What differs in a file, by the system's diff.
    fn unified(&mut self, change: &FileChange) -> Result<()> {
        if let (Some(from), ChangeKind::Renamed) = (&change.from, change.kind) {
            for (word, path) in [("from", from), ("to", &change.path)] {
                let line = [b"rename ", word.as_bytes(), b" ", &quoted(path)[..], b"\n"].concat();
                self.out.write_all(&line)?;
            }
        }
        if change.file != FileKind::Regular {
            return Ok(());
        }
        let is_on_one_side = matches!(change.kind, ChangeKind::Added | ChangeKind::Removed);
        if !is_on_one_side && !change.aspects.contains(Aspects::CONTENT) {
            return Ok(());
        }
        let old_path = change.from.as_deref().unwrap_or(&change.path);
        let Some(old) = self.old(change.kind, old_path)? else { return Ok(()) };
        let new = match change.kind {
            ChangeKind::Removed => PathBuf::from(NOTHING),
            _ => below(&self.after, &change.path),
        };
        self.out.flush()?;
        let mut diff = Command::new("diff");
        diff.arg("-u");
        match old {
            OldFile::At(old) => diff.arg("--").arg(old),
            OldFile::Copied(copy, label) => diff.arg("-L").arg(label).args(["--", "-"]).stdin(copy),
        };
        let diff = diff.arg(new).stderr(Stdio::piped()).spawn();
        let ended = diff.and_then(Child::wait_with_output).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => {
                anyhow!("-u needs the program 'diff', and there is none (install diffutils)")
            }
            _ => anyhow!("the system's diff: {e}"),
        })?;
        // Where that cannot be said, the exit code says it.
        let _ = io::stderr().write_all(&ended.stderr);
        match ended.status.code() {
            Some(0 | 1) => {}
            // For files that are no text some versions print a message on stdout, and nothing else.
            Some(2) if ended.stderr.is_empty() => {}
            None if ended.status.signal() == Some(libc::SIGPIPE) => {
                return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
            }
            // The program has printed the reason, or was killed; later differences can still be shown.
            _ => self.failed += 1,
        }
        Ok(())
    }

    /// What a file was before, where the system's diff can read it. `None` if it cannot be read; the reason is printed.
    fn old(&mut self, kind: ChangeKind, path: &OsStr) -> Result<Option<OldFile>> {
        let (fork, number) = match &self.before {
            _ if kind == ChangeKind::Added => return Ok(Some(OldFile::At(NOTHING.into()))),
            Before::At(top) => return Ok(Some(OldFile::At(below(top, path)))),
            Before::Origin(number) => (&self.after, *number),
        };
        let no_file = |e: io::Error| anyhow!("a temporary file: {e}");
        let mut copy = tempfile::tempfile().map_err(no_file)?;
        let label = [fork.as_os_str(), OsStr::new("@origin/"), path].join(OsStr::new(""));
        match tool::write_origin((fork, number), Path::new(path), &mut copy) {
            Ok(()) => {
                copy.rewind().map_err(no_file)?;
                let mut text = quoted(&label);
                // A program that applies a patch reads a name with spaces to the next tab.
                text.extend(text.contains(&b' ').then_some(b'\t'));
                Ok(Some(OldFile::Copied(copy, OsString::from_vec(text))))
            }
            Err(e) => {
                crate::exit::tell!("pando: {}: {e}", field(&label));
                self.failed += 1;
                Ok(None)
            }
        }
    }

    fn finish(mut self) -> Result<()> {
        if self.args.stat {
            let s = &self.sums;
            let text = format!(
                "{} added, {} removed, {} modified, {} renamed, {} of content\n",
                s.added,
                s.removed,
                s.modified,
                s.renamed,
                size::show(s.bytes)
            );
            self.out.write_all(text.as_bytes()).or_else(gone).context("write error")?;
        }
        self.out.flush().or_else(gone).context("write error")?;
        let what = match (self.failed, self.unreadable) {
            (0, 0) => return Ok(()),
            (0, n) => format!("directories and files that could not be looked into: {n}"),
            (n, _) => format!("files that the system's diff could not compare: {n}"),
        };
        Err(Coded(exit::DAMAGE, what).into())
    }
}

/// A path in a patch, as git reads it: between quotes, with escapes as in C, if it has a byte that is no character of
/// text, a quote or a backslash. Letters that are not ASCII stay, as with git's core.quotePath=off.
fn quoted(path: &OsStr) -> Vec<u8> {
    let mut out = vec![b'"'];
    for chunk in path.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            let escape = match c {
                '"' | '\\' => c,
                '\x07' => 'a',
                '\x08' => 'b',
                '\t' => 't',
                '\n' => 'n',
                '\x0b' => 'v',
                '\x0c' => 'f',
                '\r' => 'r',
                _ => '\0',
            };
            let mut utf8 = [0; 4];
            let utf8 = c.encode_utf8(&mut utf8).as_bytes();
            match c.is_control() {
                _ if escape != '\0' => out.extend(format!("\\{escape}").bytes()),
                true => out.extend(utf8.iter().flat_map(|byte| format!("\\{byte:03o}").into_bytes())),
                false => out.extend(utf8),
            }
        }
        out.extend(chunk.invalid().iter().flat_map(|byte| format!("\\{byte:03o}").into_bytes()));
    }
    out.push(b'"');
    match out.contains(&b'\\') {
        true => out,
        false => path.as_bytes().to_vec(),
    }
}

/// A reader that has gone away is no failure.
fn gone(e: io::Error) -> io::Result<()> {
    match e.kind() {
        io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_renames_are_quoted_as_git_does() {
        let shown = |path: &[u8]| String::from_utf8(quoted(OsStr::from_bytes(path))).unwrap_or_default();
        assert_eq!(shown(b"a b/c"), "a b/c");
        assert_eq!(shown("\u{e9}".as_bytes()), "\u{e9}");
        assert_eq!(shown(b"r\nn\x01"), r#""r\nn\001""#);
        assert_eq!(shown(b"a\"b\\c\xff"), r#""a\"b\\c\377""#);
    }

    #[test]
    fn the_top_is_a_dot() {
        assert_eq!((field(OsStr::new("")), field(OsStr::new("a\t"))), (".".to_owned(), "a\\011".to_owned()));
    }
}
