//! `fsck.pando [-anpyf...] IMAGE`, as fsck(8) calls it, with its exit codes.
//!
//! Nothing is ever repaired here: what a crash leaves is recovered by the next mount, and what is damaged is lost
//! (`pando export` saves the rest). So at boot (`-a` or `-p`) a look at the superblock is enough, as fsck.xfs and
//! fsck.btrfs hold it; `-f`, `-n`, `-y` or no option at all check everything.

use std::{ffi::OsString, os::unix::ffi::OsStrExt, path::PathBuf};

use crate::{
    cmd::{self, check},
    exit,
    helper::answer,
    image,
};

/// Errors were left uncorrected, by fsck(8).
const UNCORRECTED: u8 = 4;
/// The image could not be checked (an operational error, by fsck(8)).
const OPERATIONAL: u8 = 8;
/// Wrong usage, by fsck(8).
const FSCK_USAGE: u8 = 16;
/// Stopped by the user, by fsck(8).
const CANCELED: u8 = 32;

const FSCK_HELP: &str = "Check a Pando file system: the helper of fsck(8)

Usage: fsck.pando [OPTIONS] IMAGE

  -a, -p   at boot: look at the superblock only; what a crash left is recovered by the mount
  -f       check everything, at boot too
  -n, -y   check everything; nothing is ever repaired
  -V       print the version
  -C[FD], -r, -t, -v, -A, -M, -P, -R, -T, -N   accepted

Exit codes: 0 clean, 4 damage was found, 8 could not be checked, 16 wrong usage, 32 stopped
";

/// The command line, as far as a man page tells it.
pub fn command() -> clap::Command {
    let about = "Check a Pando file system: the helper of fsck(8)";
    clap::Command::new("fsck.pando").about(about).after_help(FSCK_HELP)
}

/// What is asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    boot: bool,
    force: bool,
    version: bool,
    help: bool,
    image: Option<PathBuf>,
}

/// `-C` has a number behind it or not, and letters stand together: so not by clap.
fn parse(args: &[OsString]) -> Result<Asked, String> {
    let mut asked = Asked::default();
    let mut only_names = false;
    for arg in args {
        let bytes = arg.as_bytes();
        match bytes.strip_prefix(b"-").filter(|letters| !letters.is_empty() && !only_names) {
            None if asked.image.is_some() => return Err("give one image".into()),
            None => asked.image = Some(arg.into()),
            Some(b"-") => only_names = true,
            Some(b"-help") => asked.help = true,
            Some(b"-version") => asked.version = true,
            Some(letters) => {
                for letter in letters {
                    match letter {
                        b'a' | b'p' => asked.boot = true,
                        b'f' => asked.force = true,
                        b'h' => asked.help = true,
                        b'V' => asked.version = true,
                        b'C' => break,
                        b'n' | b'y' | b'r' | b't' | b'v' | b'A' | b'M' | b'P' | b'R' | b'T' | b'N' => {}
                        other => return Err(format!("-{}: unknown option", char::from(*other))),
                    }
                }
            }
        }
    }
    Ok(asked)
}

pub fn run(args: Vec<OsString>) -> u8 {
    answer::begin();
    let asked = match parse(&args) {
        Ok(asked) => asked,
        Err(why) => {
            eprint!("fsck.pando: {why}\n\n{FSCK_HELP}");
            return FSCK_USAGE;
        }
    };
    if asked.help || asked.version {
        let text =
            if asked.help { FSCK_HELP } else { concat!("fsck.pando ", env!("CARGO_PKG_VERSION"), "\n") };
        return answer::report("fsck.pando", cmd::print(text), |_| OPERATIONAL);
    }
    let Some(path) = asked.image else {
        eprint!("fsck.pando: give an image\n\n{FSCK_HELP}");
        return FSCK_USAGE;
    };
    let done = if asked.boot && !asked.force { look(&path) } else { check::image(&path, false, CANCELED) };
    answer::report("fsck.pando", done, |code| match code {
        exit::DAMAGE => UNCORRECTED,
        _ => OPERATIONAL,
    })
}

/// The superblock alone.
fn look(path: &std::path::Path) -> anyhow::Result<()> {
    let image = image::canonical(path)?;
    let damage = |e: anyhow::Error| match e.downcast_ref() {
        Some(pando_db::Error::Corrupt { .. }) => exit::Coded(exit::DAMAGE, exit::message(&e)).into(),
        _ => e,
    };
    let identity = cmd::info::identify(&image).map_err(damage)?;
    let state = match identity.clean {
        true => "clean",
        false => "was not closed in order, or is in use; the mount recovers it",
    };
    cmd::print(&format!("{}: {state}\n", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn asked(line: &str) -> Result<Asked, String> {
        parse(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_of_fsck_are_understood() {
        let all = asked("-fvy a.img").unwrap();
        assert_eq!((all.boot, all.force, all.image), (false, true, Some("a.img".into())));
        let boot = asked("-a -C5 -T -M /dev/x").unwrap();
        assert_eq!((boot.boot, boot.force, boot.image), (true, false, Some("/dev/x".into())));
        assert_eq!(asked("-- -a").unwrap().image, Some("-a".into()));
        assert!(asked("-z a").is_err() && asked("a b").is_err());
        assert!(asked("-V").unwrap().version && asked("--help").unwrap().help);
    }
}
