//! The commands, one file each: arguments with their help, and `run`.

pub mod backup;
pub mod cat;
pub mod check;
pub mod chmod;
pub mod chown;
pub mod clone;
pub mod cp;
pub mod diff;
pub mod du;
pub mod export;
pub mod fork;
pub mod grow;
pub mod import;
pub mod info;
pub mod inspect;
pub mod install;
pub mod log;
pub mod ls;
pub mod merge;
pub mod mkfs;
pub mod mount;
pub mod mv;
pub mod past;
pub mod quota;
pub mod receive;
pub mod restore;
pub mod restore_file;
pub mod rm;
pub mod rollback;
pub mod send;
pub mod snapshot;
pub mod stats;
pub mod sync;
pub mod touch;
pub mod r#try;
pub mod umount;

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use anyhow::{Context, Result};
use serde::Serialize;

/// A flag that Ctrl-C and SIGTERM raise; a second Ctrl-C ends the program at once.
pub fn interrupt_flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    raise_when_interrupted(&flag)?;
    Ok(flag)
}

/// Has Ctrl-C and SIGTERM raise a flag; a second Ctrl-C ends the program at once.
pub fn raise_when_interrupted(flag: &Arc<AtomicBool>) -> Result<()> {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(signal, INTERRUPTED.into(), flag.clone())?;
        signal_hook::flag::register(signal, flag.clone())?;
    }
    Ok(())
}

/// Exit code of a command that was interrupted.
pub const INTERRUPTED: u8 = 130;

/// Has Ctrl-C and SIGTERM end the program at once with this exit code: for one that only reads.
pub fn end_when_interrupted(code: u8) -> Result<()> {
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register_conditional_shutdown(
            signal,
            code.into(),
            Arc::new(AtomicBool::new(true)),
        )?;
    }
    Ok(())
}

/// Writes to stdout; a reader that has gone away is no failure.
pub fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// The same, of bytes that may be no text.
pub fn print_bytes(bytes: &[u8]) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("write error"),
    }
}

/// A name or path as one field of a line. For scripts it is [`escaped()`], so that a name can be told from every other;
/// people see a question mark where a terminal would obey.
pub fn field(name: impl AsRef<OsStr>, script: bool) -> String {
    match script {
        true => escaped(name.as_ref()),
        false => name.as_ref().to_string_lossy().replace(char::is_control, "?"),
    }
}

/// A name or path with the bytes of control characters and backslashes, and those that are no UTF-8, as \ooo.
pub fn escaped(path: &OsStr) -> String {
    let mut out = String::new();
    let escape = |out: &mut String, bytes: &[u8]| bytes.iter().for_each(|b| *out += &format!("\\{b:03o}"));
    for chunk in path.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c.is_control() || c == '\\' {
                true => escape(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()),
                false => out.push(c),
            }
        }
        escape(&mut out, chunk.invalid());
    }
    out
}

/// A name or path in a report: as JSON, which is text, what is no UTF-8 is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportName(pub OsString);

impl Serialize for ReportName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_string_lossy())
    }
}

impl<T: Into<OsString>> From<T> for ReportName {
    fn from(name: T) -> Self {
        ReportName(name.into())
    }
}

/// Says how many files below `src` have data that the kernel shows and the store has no room for: a copy lacks it.
pub fn warn_unstored(files: u64, src: &Path) {
    warn_lacking(files, &src.display().to_string(), "is not in the copy");
}

/// The same of a directory with snapshots: it is in none of them, however old.
pub fn warn_in_no_snapshot(files: u64, dir: &Path) {
    warn_lacking(files, &dir.display().to_string(), "is in no snapshot");
}

/// The same of what a difference lacks.
pub fn warn_undiffed(files: u64, trees: &str) {
    warn_lacking(files, trees, "is in no difference");
}

fn warn_lacking(files: u64, src: &str, lacks: &str) {
    if files > 0 {
        let files = counted(usize::try_from(files).unwrap_or(usize::MAX), "file", "files");
        crate::exit::tell!(
            "pando: warning: data of {files} below {src} did not fit in the store and {lacks}"
        );
    }
}

/// A number of things, in words.
pub fn counted(number: usize, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// Of each column of a table, how many characters its longest cell has.
pub fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let mut widths = Vec::new();
    for row in rows {
        widths.resize(row.len().max(widths.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    widths
}

/// The bytes of a name or path that is no UTF-8, in hexadecimal digits: JSON has them beside the text, in which they
/// are replaced. A script finds the file by them.
pub fn hex_unless_text(path: impl AsRef<OsStr>) -> Option<String> {
    let path = path.as_ref();
    match path.to_str() {
        Some(_) => None,
        None => Some(path.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect()),
    }
}

/// Writes a value as JSON to stdout.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_on_their_line_and_nothing_is_lost_for_scripts() {
        assert_eq!(escaped(OsStr::from_bytes(b"a b\n\\\xff\t")), "a b\\012\\134\\377\\011");
        assert_eq!(escaped("\u{9b}1m\u{e9}".as_ref()), "\\302\\2331m\u{e9}");
        assert_eq!(field("a\tb", true), "a\\011b");
        assert_eq!(field("a\tb\\", false), "a?b\\");
    }

    #[test]
    fn one_thing_is_one() {
        assert_eq!(counted(1, "conflict", "conflicts"), "1 conflict");
        assert_eq!(counted(0, "conflict", "conflicts"), "0 conflicts");
    }
}
