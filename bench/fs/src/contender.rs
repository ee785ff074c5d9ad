//! The file systems: how each is made and mounted.

use std::{fs, path::Path, process::Command};

use serde::{Deserialize, Serialize};

/// A file system, or a way to use one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Ours.
    Pando,
    /// ext4, which cannot clone.
    Ext4,
    /// XFS, which clones files.
    Xfs,
    /// Btrfs, cloning files.
    Btrfs,
    /// Btrfs, where the tree is a subvolume and is cloned as a snapshot. It does only works that clone trees: in
    /// others it would be Btrfs once more.
    BtrfsSvol,
}

/// All, ours first.
pub const ALL: [Kind; 5] = [Kind::Pando, Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::BtrfsSvol];

impl Kind {
    /// Its name in options and tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Pando => "pando",
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            Kind::BtrfsSvol => "btrfs-svol",
        }
    }

    /// The type that mount(8) knows; Pando is not mounted by it.
    pub fn mount_type(self) -> &'static str {
        match self {
            Kind::Pando => "fuse",
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs | Kind::BtrfsSvol => "btrfs",
        }
    }

    /// The command that makes it on a device. What was on the device is neither looked at nor discarded: a
    /// discarded range of the image would become a hole, which is slower to write than the rest.
    pub fn mkfs(self, pando: &Path, device: &Path) -> Command {
        let mut command;
        match self {
            Kind::Pando => {
                command = Command::new(pando);
                command.args(["mkfs", "--force"]);
            }
            Kind::Ext4 => {
                command = Command::new("mkfs.ext4");
                // Otherwise a thread of the kernel would go on writing inode tables while the work is measured.
                // With one inode for 8 KiB there are enough for a million small files.
                command.args(["-q", "-F", "-i", "8192", "-E"]);
                command.arg("nodiscard,lazy_itable_init=0,lazy_journal_init=0");
            }
            Kind::Xfs => {
                command = Command::new("mkfs.xfs");
                command.args(["-q", "-f", "-K", "-m", "reflink=1"]);
            }
            Kind::Btrfs | Kind::BtrfsSvol => {
                command = Command::new("mkfs.btrfs");
                command.args(["-q", "-f", "-K"]);
            }
        }
        command.arg(device);
        command
    }

    /// Mount options: the usual ones, and no discards.
    pub fn options(self) -> &'static str {
        match self {
            Kind::Xfs => "",
            Kind::Pando | Kind::Ext4 | Kind::Btrfs | Kind::BtrfsSvol => "nodiscard",
        }
    }

    /// Why it cannot take part here, if it cannot.
    pub fn missing(self) -> Option<String> {
        let programs: &[&str] = match self {
            Kind::Pando => &[],
            Kind::Ext4 => &["mkfs.ext4"],
            Kind::Xfs => &["mkfs.xfs"],
            Kind::Btrfs => &["mkfs.btrfs"],
            Kind::BtrfsSvol => &["mkfs.btrfs", "btrfs"],
        };
        if let Some(program) = programs.iter().find(|program| !on_path(program)) {
            return Some(format!("there is no {program}"));
        }
        if self == Kind::Pando {
            return (!Path::new("/dev/fuse").exists()).then(|| "there is no /dev/fuse".into());
        }
        let known = || {
            let list = fs::read_to_string("/proc/filesystems").unwrap_or_default();
            list.lines().any(|line| line.split_whitespace().last() == Some(self.mount_type()))
        };
        if !known() {
            // It may be a module that nobody has needed yet. Whether this helped is looked at next.
            let _tried = Command::new("modprobe").args(["-q", self.mount_type()]).status();
        }
        (!known()).then(|| format!("the kernel has no {}", self.mount_type()))
    }
}

/// Whether a program of this name can be started.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(program).is_file())
}
