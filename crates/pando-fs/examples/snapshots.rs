//! Snapshots and forks of a directory: what changed since, a change brought back, and a trial merged.
//!
//! `cargo run -p pando-fs --example snapshots`

use std::{ffi::OsStr, path::Path, sync::Arc};

use pando_db::device::MemDevice;
use pando_fs::{
    Authority, Caller, ChangeKind, DiffOptions, FormatOptions, Fs, Ino, MergeOptions, MountOptions,
    NewSnapshot, ROOT, Result, TreeDiff,
};

/// Flags of open(2): for reading, and for writing.
const O_RDONLY: i32 = 0;
const O_WRONLY: i32 = 1;

fn main() -> Result<()> {
    let device = Arc::new(MemDevice::new(256 << 20));
    Fs::format(device.clone(), &FormatOptions::default())?;
    let fs = Fs::open(device, MountOptions::default())?;
    let me = Caller::root();
    let project = fs.mkdir(&me, ROOT, OsStr::new("project"), 0o755)?.ino;
    for (name, text) in [("notes", "one"), ("plan", "two"), ("todo", "three")] {
        write(&fs, &me, project, name, text)?;
    }

    // A snapshot is a clone that never changes: one small batch, whatever lies below.
    let new = NewSnapshot { name: Some("monday".into()), ..NewSnapshot::default() };
    let (monday, _) = fs.snapshot(Authority::Caller(&me), project, &new)?;
    write(&fs, &me, project, "plan", "TWO")?;
    fs.unlink(&me, project, OsStr::new("todo"))?;
    let before = fs.resolve(Path::new("/project/.snapshots/monday"))?.ino;
    let changes = told(fs.diff(None, before, project, DiffOptions::default())?)?;
    assert_eq!(changes, ["modified plan", "removed todo"]);

    // One file of it comes back as a clone; or the whole directory, whose state is kept as another snapshot.
    fs.clone_tree(&me, (before, OsStr::new("todo")), (project, OsStr::new("todo")), false)?;
    assert_eq!(read(&fs, &me, "/project/todo")?, "three");
    let (_, kept) = fs.rollback(Authority::Caller(&me), project, monday.number, false)?;
    println!("what was there is snapshot {:?} now", kept.map(|info| info.name));
    assert_eq!(read(&fs, &me, "/project/plan")?, "two");
    // A rollback puts a new directory in the place of the old one.
    let project = fs.resolve(Path::new("/project"))?.ino;

    // A fork is a clone that remembers what it was made of, so that its changes can be merged.
    fs.fork_tree(&me, (ROOT, OsStr::new("project")), (ROOT, OsStr::new("trial")), false, &[])?;
    let trial = fs.resolve(Path::new("/trial"))?.ino;
    write(&fs, &me, trial, "plan", "better")?;
    write(&fs, &me, project, "notes", "uno")?;
    assert_eq!(told(fs.diff_fork(None, trial, DiffOptions::default())?)?, ["modified plan"]);
    let (report, _) = fs.merge(None, trial, project, MergeOptions::default())?;
    assert!(report.merged, "each side has changed a file of its own");
    assert_eq!(read(&fs, &me, "/project/plan")?, "better");
    assert_eq!(read(&fs, &me, "/project/notes")?, "uno");
    fs.discard(&me, ROOT, OsStr::new("trial"))?;

    let names: Vec<_> = fs.snapshots(project)?.into_iter().map(|info| info.name).collect();
    println!("snapshots of the project: {names:?}");
    fs.close()
}

/// Makes a file, or gives it other contents.
fn write(fs: &Fs, me: &Caller, dir: Ino, name: &str, text: &str) -> Result<()> {
    let (ino, handle) = match fs.lookup(dir, OsStr::new(name)) {
        Ok(found) => (found.ino, fs.open_file(me, found.ino, O_WRONLY)?),
        Err(_) => {
            let (made, handle) = fs.create(me, dir, OsStr::new(name), 0o644, O_WRONLY)?;
            (made.ino, handle)
        }
    };
    let written = fs.write(handle, ino, 0, text.as_bytes(), false);
    // An open file is closed, and an inode that a call has given is let go of, as a kernel does both.
    fs.release(ino, handle);
    fs.forget(ino, 1);
    written.map(drop)
}

fn read(fs: &Fs, me: &Caller, path: &str) -> Result<String> {
    let found = fs.resolve(Path::new(path))?;
    let handle = fs.open_file(me, found.ino, O_RDONLY)?;
    let text = fs.read(handle, found.ino, 0, found.size as u32);
    fs.release(found.ino, handle);
    fs.forget(found.ino, 1);
    text.map(|bytes| bytes.escape_ascii().to_string())
}

/// The differences as lines, in the order of their paths. (They come in no particular order.)
fn told(changes: TreeDiff) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for change in changes {
        let change = change?;
        let kind = match change.kind {
            ChangeKind::Added => "added",
            ChangeKind::Removed => "removed",
            ChangeKind::Modified => "modified",
            ChangeKind::Renamed => "renamed",
            _ => "hidden",
        };
        // Of the directory itself only the time has changed.
        if !change.path.is_empty() {
            lines.push(format!("{kind} {}", change.path.display()));
        }
    }
    lines.sort();
    Ok(lines)
}
