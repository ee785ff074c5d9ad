//! Exit codes: what a script can tell from one.

use std::{
    fmt,
    io::{self, Write},
};

use anyhow::Result;

/// Done.
pub const OK: u8 = 0;
/// Failed; the message says why.
pub const FAILURE: u8 = 1;
/// The command does not work on such a thing: the same code as for a wrong command line.
pub const USAGE: u8 = 2;
/// `check` or `inspect` found damage, or `backup`, `export` or `diff` could not read all.
pub const DAMAGE: u8 = 3;
/// In use: locked by another process, mounted already, or busy.
pub const BUSY: u8 = 4;
/// Mounting is not possible here: no /dev/fuse, or fusermount3 is not installed.
pub const NO_FUSE: u8 = 5;
/// Unmounted, but the daemon has not closed the image as it should.
pub const NOT_CLOSED: u8 = 6;
/// `merge` left conflicts: it has merged nothing, or with --text marked them in the files.
pub const CONFLICTS: u8 = 7;
/// `import` or `export` has copied all, but not all that belongs to it: owners, attributes, links or device nodes.
pub const NOT_KEPT: u8 = 8;

/// The list for `--help`.
pub const EXIT_CODES_HELP: &str = "Exit codes:
  0  done
  1  failed; the message says why (if that begins with 'write error', all is
     done but that its output could not be written; that nobody reads any more
     is no failure)
  2  wrong usage; check: not an image at all
  3  check or inspect found damage; backup, export or diff could not read all
  4  in use: locked by another process, mounted already, or files open
  5  mounting is not possible here: no /dev/fuse, or fusermount3 missing
  6  umount: unmounted, but closing the image failed; what was not synced may
     be lost
  7  merge: conflicts; nothing was merged, or with --text they are marked in the
     files
  8  import, export: copied, but some owners, attributes, links or device nodes
     could not be kept";

/// An error with a code of its own.
#[derive(Debug)]
pub struct Coded(pub u8, pub String);

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.1)
    }
}

impl std::error::Error for Coded {}

/// `error` and its causes in one line. A cause that the line before has quoted is not repeated.
pub fn message(error: &anyhow::Error) -> String {
    let mut out = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if out.ends_with(&text) {
            continue;
        }
        if !out.is_empty() {
            out += ": ";
        }
        out += &text;
    }
    out
}

/// Prints `error` on stderr, and returns its code. An error without a text was printed by another process.
pub fn report(error: &anyhow::Error) -> u8 {
    say("pando", error);
    code(error)
}

/// Calls `work` for each of the `items`. A failure is printed, and the work continues with the next item, as in
/// coreutils. If the last item fails, its error is returned; otherwise the code of the last failure, if there was
/// any.
pub fn each<T>(items: &[T], work: impl FnMut(&T) -> Result<()>) -> Result<()> {
    each_unless(items, |_| false, work)
}

/// [`each()`], but a failure that `ends` it is returned at once.
pub fn each_unless<T>(
    items: &[T],
    ends: impl Fn(&anyhow::Error) -> bool,
    mut work: impl FnMut(&T) -> Result<()>,
) -> Result<()> {
    let Some((last, rest)) = items.split_last() else { return Ok(()) };
    let mut failed = None;
    for item in rest {
        match work(item) {
            Err(error) if ends(&error) => return Err(error),
            Err(error) => failed = Some(report(&error)),
            Ok(()) => {}
        }
    }
    work(last)?;
    match failed {
        Some(code) => Err(Coded(code, String::new()).into()),
        None => Ok(()),
    }
}

/// Prints a line on stderr. If that fails, the program continues, and the exit code stays what it is.
pub fn tell_line(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{}", one_line(&line.to_string()));
}

/// A line that has nothing that a terminal would obey, whatever the names in it have: a question mark for each control
/// character, as in listings.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// [`tell_line()`] of a format and its arguments. Unlike `eprintln!` it does not end the program if stderr is closed.
macro_rules! tell {
    ($($what:tt)*) => {
        $crate::exit::tell_line(format_args!($($what)*))
    };
}
pub(crate) use tell;

/// Says `error` on stderr as the program `name`.
pub fn say(name: &str, error: &anyhow::Error) {
    let text = message(error);
    if !text.is_empty() {
        tell!("{name}: {text}");
    }
}

/// The code for `error`, by the most telling of its causes.
pub fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(Coded(code, _)) = cause.downcast_ref() {
            return *code;
        }
        let locked = matches!(cause.downcast_ref(), Some(pando_fs::Error::Engine(pando_db::Error::Locked)))
            || matches!(cause.downcast_ref(), Some(pando_db::Error::Locked));
        if locked {
            return BUSY;
        }
        match cause.downcast_ref() {
            Some(pando_fuse::Error::Busy(_)) => return BUSY,
            Some(pando_fuse::Error::Option(_)) => return USAGE,
            Some(pando_fuse::Error::NoDevice(_) | pando_fuse::Error::NoHelper) => return NO_FUSE,
            _ => {}
        }
        if let Some(pando_fuse::client::ControlError::Refused { errno: libc::EBUSY, .. }) =
            cause.downcast_ref()
        {
            return BUSY;
        }
    }
    FAILURE
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use anyhow::Context;

    use super::*;

    #[test]
    fn causes_are_said_once() {
        let io = std::io::Error::from_raw_os_error(libc::EIO);
        let text = io.to_string();
        let error = anyhow::Error::from(pando_db::Error::io("read", 7, io)).context("a.img");
        assert_eq!(message(&error), format!("a.img: read at byte 7: {text}"));
    }

    #[test]
    fn a_terminal_obeys_no_name() {
        assert_eq!(one_line("pando: a\n\tb\u{1b}[31m\u{9b}\\c\u{fc}"), "pando: a??b?[31m?\\c\u{fc}");
    }

    #[test]
    fn the_cause_decides_however_deep_it_is() {
        let locked =
            || Err::<(), _>(pando_fs::Error::from(pando_db::Error::Locked)).context("a").context("b");
        assert_eq!(code(&locked().unwrap_err()), BUSY);
        assert_eq!(code(&anyhow::Error::from(Coded(DAMAGE, String::new())).context("c")), DAMAGE);
        assert_eq!(code(&anyhow::anyhow!("x")), FAILURE);
        assert_eq!(code(&pando_fuse::Error::NoHelper.into()), NO_FUSE);
    }
}
