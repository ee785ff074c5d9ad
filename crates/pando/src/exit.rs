//! Exit codes: what a script can tell from one.

use std::fmt;

/// Done.
pub const OK: u8 = 0;
/// Failed; the message says why.
pub const FAILURE: u8 = 1;
/// The command line makes no sense (clap's own code).
pub const USAGE: u8 = 2;
/// `check` found damage.
pub const DAMAGE: u8 = 3;
/// In use: locked by another process, mounted already, or busy.
pub const BUSY: u8 = 4;
/// Mounting is not possible here: no /dev/fuse, or fusermount3 is not installed.
pub const NO_FUSE: u8 = 5;

/// The list for `--help`.
pub const HELP: &str = "Exit codes:
  0  done
  1  failed; the message says why
  2  wrong usage
  3  check found damage
  4  in use: locked by another process, mounted already, or files open
  5  mounting is not possible here: no /dev/fuse, or fusermount3 missing";

/// An error with a code of its own.
#[derive(Debug)]
pub struct Coded(pub u8, pub String);

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.1)
    }
}

impl std::error::Error for Coded {}

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
            Some(pando_fuse::Error::NoDevice(_) | pando_fuse::Error::NoHelper) => return NO_FUSE,
            _ => {}
        }
        if let Some(pando_fuse::client::Error::Refused { errno: libc::EBUSY, .. }) = cause.downcast_ref() {
            return BUSY;
        }
    }
    FAILURE
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

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
