//! `pando chown`: changes owners and groups, of a whole tree as one operation.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use nix::unistd::{Group, User};
use pando_fs::TreeChange;

use crate::change::Wanted;

/// Change owner and group of files, with -R of a whole tree as one operation
#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "OWNER and GROUP are names or numbers. OWNER: also sets the group to that of the owner, :GROUP leaves
the owner as it is. With -R symbolic
links themselves are changed, never what they point to. Set-id bits of programs are cleared, as by
chown. For root, in a mounted Pando file system, -R is one small write, however large the tree
is; otherwise every file is changed by itself. The one write does not change what is mounted inside
the tree, but it changes what such a mount hides.
PATH may also be IMAGE:/PATH, in an image that is not mounted.

Examples: pando chown -R build:build /mnt/grove/project
          pando chown -h 1000 grove.img:/project/link"
)]
pub struct Args {
    /// Go down into directories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change a symbolic link that is named, not what it points to
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// OWNER, OWNER:GROUP, OWNER: or :GROUP
    owner: String,
    /// Files and directories
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let (uid, gid) = ids(&args.owner)?;
    let change = TreeChange { uid, gid, ..TreeChange::default() };
    let follow = !args.recursive && !args.no_dereference;
    Wanted { name: "chown", change: &change, recursive: args.recursive, follow }.run(&args.paths)
}

/// The numbers of owner and group.
fn ids(text: &str) -> Result<(Option<u32>, Option<u32>)> {
    let (owner, group) = match text.split_once(':') {
        Some((owner, group)) => (owner, Some(group)),
        None => (text, None),
    };
    let number = |text: &str| text.parse().ok().filter(|id: &u32| *id != u32::MAX);
    let mut own_group = None;
    let uid = match owner {
        "" => None,
        name => match User::from_name(name).with_context(|| format!("user {name}"))? {
            Some(user) => {
                own_group = Some(user.gid.as_raw());
                Some(user.uid.as_raw())
            }
            None => Some(number(name).with_context(|| format!("{name}: no such user"))?),
        },
    };
    let gid = match group {
        None => None,
        Some("") if owner.is_empty() => None,
        Some("") => Some(own_group.with_context(|| format!("{text}: whose group is not known"))?),
        Some(name) => match Group::from_name(name).with_context(|| format!("group {name}"))? {
            Some(group) => Some(group.gid.as_raw()),
            None => Some(number(name).with_context(|| format!("{name}: no such group"))?),
        },
    };
    if uid.is_none() && gid.is_none() {
        bail!("{text:?}: names neither an owner nor a group");
    }
    Ok((uid, gid))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn owners_and_groups_by_name_and_number() {
        assert_eq!(ids("root").unwrap(), (Some(0), None));
        assert_eq!(ids("root:").unwrap(), (Some(0), Some(0)));
        assert_eq!(ids(":7").unwrap(), (None, Some(7)));
        assert_eq!(ids("123456:7").unwrap(), (Some(123_456), Some(7)));
        for bad in ["", ":", "4294967295", "no-such-user-here", "root:no-such-group", "123456:", "-1"] {
            assert!(ids(bad).is_err(), "{bad}");
        }
    }
}
