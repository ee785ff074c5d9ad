//! How to mount: the settings of a mount, and the options of `mount -o` that set them.
//!
//! Plain data; uses `error`, `transport` and the options of `pando-fs`.

use std::time::Duration;

use pando_fs::{AtimePolicy, Codec};

use crate::{error::Error, transport::HaltPoll};

/// Whether requests come over io_uring instead of `/dev/fuse`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoUring {
    /// Where the kernel offers it.
    Auto,
    /// Always; the mount fails where the kernel does not offer it.
    On,
    /// Never.
    Off,
}

/// Whether requests to the image go past the page cache of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectIo {
    /// Where what holds the image offers it.
    Auto,
    /// Always; opening fails where it is not offered.
    On,
    /// Never.
    Off,
}

/// How to mount.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Users other than the one who mounts may use the mount.
    pub allow_other: bool,
    /// Whether the kernel checks permissions. By default it does, except if root mounts without `allow_other`: every
    /// check would pass then, at the price of a request for each change of a directory.
    pub default_permissions: Option<bool>,
    /// Refuse every change.
    pub read_only: bool,
    /// With `read_only`: do not even recover the image, and never write to it.
    pub no_recovery: bool,
    /// Honour device nodes.
    pub dev: bool,
    /// Honour set-user-id bits.
    pub suid: bool,
    /// Allow programs to be run.
    pub exec: bool,
    /// Every write is durable when it returns (the kernel asks for it then).
    pub sync: bool,
    /// The mount has the flag that asks for durable changes of directories.
    pub dirsync: bool,
    /// Symbolic links are not followed.
    pub no_symlinks: bool,
    /// Access times.
    pub atime: AtimePolicy,
    /// Interval after which the log is flushed unasked.
    pub commit: Option<Duration>,
    /// How data is compressed when it is written.
    pub compress: Codec,
    /// Read ahead of files that are read in order.
    pub readahead: bool,
    /// The kernel keeps what is written for a while, and the size and times of files with it (its write-back cache).
    pub writeback: bool,
    /// `.snapshots` shows in listings of directories that have snapshots.
    pub snapshots_visible: bool,
    /// Give freed space back to what the image lies on.
    pub discard: bool,
    /// Whether requests to the image go past the page cache of the host.
    pub direct_io: DirectIo,
    /// Mount an image whose log is damaged beyond repair, without what is lost.
    pub salvage: bool,
    /// What `mount` and `findmnt` show as the source.
    pub fsname: Option<String>,
    /// Threads that read requests.
    pub threads: usize,
    /// How long to poll for the next request before sleeping, while requests come densely; zero for never. Only one
    /// thread polls, so with several threads it gains nothing and is off.
    pub poll: Duration,
    /// Go on polling even if other programs want the CPU: for tests and measurements.
    pub poll_always: bool,
    /// Whether idle CPUs are kept from halting while polling.
    pub halt_poll: HaltPoll,
    /// Whether requests come over io_uring; `threads` and `poll` are then of no account.
    pub io_uring: IoUring,
}

/// Longest time to poll, which is also how dense requests must be; a second would be no polling
/// between requests any more.
const MAX_POLL_MICROS: u64 = 100_000;

impl Settings {
    /// Whether the kernel is asked to check permissions.
    pub(crate) fn checks_permissions(&self) -> bool {
        let only_root = !self.allow_other && rustix::process::geteuid().is_root();
        self.default_permissions.unwrap_or(!only_root)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            allow_other: false,
            default_permissions: None,
            read_only: false,
            no_recovery: false,
            dev: false,
            suid: false,
            exec: true,
            sync: false,
            dirsync: false,
            no_symlinks: false,
            atime: AtimePolicy::default(),
            commit: None,
            compress: Codec::default(),
            readahead: true,
            writeback: true,
            snapshots_visible: false,
            discard: true,
            direct_io: DirectIo::Auto,
            salvage: false,
            fsname: None,
            threads: 1,
            poll: Duration::from_micros(200),
            poll_always: false,
            halt_poll: HaltPoll::Auto,
            io_uring: IoUring::Off,
        }
    }
}

impl Settings {
    /// Applies a comma-separated list of options as `mount -o` takes them; later ones win.
    /// Options that only matter to `fstab` or to other file systems are accepted.
    pub fn apply(&mut self, list: &str) -> Result<(), Error> {
        for option in list.split(',').filter(|o| !o.is_empty()) {
            let unknown = || Error::Option(option.to_owned());
            match option {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "norecovery" => self.no_recovery = true,
                "recovery" => self.no_recovery = false,
                "allow_other" => self.allow_other = true,
                "default_permissions" => self.default_permissions = Some(true),
                "no_default_permissions" => self.default_permissions = Some(false),
                "dev" => self.dev = true,
                "nodev" => self.dev = false,
                "suid" => self.suid = true,
                "nosuid" => self.suid = false,
                "exec" => self.exec = true,
                "noexec" => self.exec = false,
                "atime" | "relatime" => self.atime = AtimePolicy::Relatime,
                "noatime" => self.atime = AtimePolicy::Noatime,
                "strictatime" => self.atime = AtimePolicy::Strict,
                "discard" => self.discard = true,
                "salvage" => self.salvage = true,
                "nodiscard" => self.discard = false,
                "poll_always" => self.poll_always = true,
                "no_allow_other" => self.allow_other = false,
                "sync" => self.sync = true,
                "async" => self.sync = false,
                "dirsync" => self.dirsync = true,
                "nosymfollow" => self.no_symlinks = true,
                "symfollow" => self.no_symlinks = false,
                option if is_for_others(option) => {}
                _ => match option.split_once('=') {
                    Some(("fsname", name)) => self.fsname = Some(name.to_owned()),
                    Some(("compress", name)) => {
                        self.compress = codec(name).ok_or_else(unknown)?;
                    }
                    Some(("commit", seconds)) => {
                        let seconds: u32 = seconds.parse().map_err(|_| unknown())?;
                        self.commit = Some(Duration::from_secs(u64::from(seconds.max(1))));
                    }
                    Some(("threads", n)) => {
                        let n = n.parse().ok().filter(|n| (1..=64).contains(n));
                        self.threads = n.ok_or_else(unknown)?;
                    }
                    Some(("readahead", "on")) => self.readahead = true,
                    Some(("readahead", "off")) => self.readahead = false,
                    Some(("direct_io", "auto")) => self.direct_io = DirectIo::Auto,
                    Some(("direct_io", "on")) => self.direct_io = DirectIo::On,
                    Some(("direct_io", "off")) => self.direct_io = DirectIo::Off,
                    Some(("writeback", "on")) => self.writeback = true,
                    Some(("writeback", "off")) => self.writeback = false,
                    Some(("snapdir", "visible")) => self.snapshots_visible = true,
                    Some(("snapdir", "hidden")) => self.snapshots_visible = false,
                    Some(("io_uring", "auto")) => self.io_uring = IoUring::Auto,
                    Some(("io_uring", "on")) => self.io_uring = IoUring::On,
                    Some(("io_uring", "off")) => self.io_uring = IoUring::Off,
                    Some(("halt_poll", "auto")) => self.halt_poll = HaltPoll::Auto,
                    Some(("halt_poll", "on")) => self.halt_poll = HaltPoll::On,
                    Some(("halt_poll", "off")) => self.halt_poll = HaltPoll::Off,
                    Some(("poll", micros)) => {
                        let micros = micros.parse().ok().filter(|n| *n <= MAX_POLL_MICROS);
                        self.poll = Duration::from_micros(micros.ok_or_else(unknown)?);
                    }
                    _ => return Err(unknown()),
                },
            }
        }
        Ok(())
    }
}

/// Whether an option is for mount(8) or systemd, or has no meaning here: fstab may have such options for every file
/// system.
fn is_for_others(option: &str) -> bool {
    let (name, _) = option.split_once('=').unwrap_or((option, ""));
    matches!(
        name,
        "defaults"
            | "auto"
            | "noauto"
            | "user"
            | "nouser"
            | "users"
            | "nousers"
            | "owner"
            | "noowner"
            | "group"
            | "nogroup"
            | "nofail"
            | "_netdev"
            | "comment"
            | "diratime"
            | "nodiratime"
            | "norelatime"
            | "nostrictatime"
            | "lazytime"
            | "nolazytime"
            | "iversion"
            | "noiversion"
            | "silent"
            | "loud"
            | "subtype"
            | "uhelper"
            | "helper"
    ) || name.starts_with("x-")
        || name.starts_with("X-")
}

/// `none`, `lz4`, `zstd` or `zstd:LEVEL`.
fn codec(name: &str) -> Option<Codec> {
    match name.split_once(':').unwrap_or((name, "")) {
        ("none", "") => Some(Codec::None),
        ("lz4", "") => Some(Codec::Lz4),
        ("zstd", "") => Some(Codec::Zstd(3)),
        ("zstd", level) => level.parse().ok().filter(|level| (1..=19).contains(level)).map(Codec::Zstd),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn options_are_understood_and_unknown_ones_refused() {
        let mut s = Settings::default();
        s.apply("rw,noatime,allow_other,dev,suid,,defaults,commit=5,x-systemd.automount").unwrap();
        assert!(s.discard);
        s.apply("ro,nosuid,nodiscard").unwrap();
        assert!(!s.discard);
        s.apply("discard").unwrap();
        assert!(s.discard);
        assert!(s.allow_other && s.dev && s.read_only && !s.suid && s.checks_permissions());
        assert_eq!((s.atime, s.commit), (AtimePolicy::Noatime, Some(Duration::from_secs(5))));
        s.apply("nofail,_netdev,x-systemd.device-timeout=9,X-mount.mkdir,user=me,comment=x,lazytime,owner")
            .unwrap();
        s.apply("allow_other,no_allow_other,sync,nosymfollow").unwrap();
        assert!(!s.allow_other && s.sync && s.no_symlinks);
        s.apply("poll=50").unwrap();
        assert_eq!((s.poll, s.poll_always), (Duration::from_micros(50), false));
        s.apply("poll=0,poll_always").unwrap();
        assert!(s.poll.is_zero() && s.poll_always);
        for (name, is) in [("auto", IoUring::Auto), ("on", IoUring::On), ("off", IoUring::Off)] {
            s.apply(&format!("io_uring={name}")).unwrap();
            assert_eq!(s.io_uring, is);
        }
        for (name, is) in [("auto", DirectIo::Auto), ("on", DirectIo::On), ("off", DirectIo::Off)] {
            s.apply(&format!("direct_io={name}")).unwrap();
            assert_eq!(s.direct_io, is);
        }
        for (name, is) in [("auto", HaltPoll::Auto), ("on", HaltPoll::On), ("off", HaltPoll::Off)] {
            s.apply(&format!("halt_poll={name}")).unwrap();
            assert_eq!(s.halt_poll, is);
        }
        for (name, is) in [("off", false), ("on", true)] {
            s.apply(&format!("readahead={name}")).unwrap();
            assert_eq!(s.readahead, is);
            s.apply(&format!("writeback={name}")).unwrap();
            assert_eq!(s.writeback, is);
        }
        s.apply("compress=zstd:9").unwrap();
        assert_eq!(s.compress, Codec::Zstd(9));
        s.apply("compress=none").unwrap();
        assert_eq!(s.compress, Codec::None);
        for bad in [
            "frobnicate",
            "commit=x",
            "compress=zip",
            "compress=zstd:20",
            "compress=lz4:1",
            "threads=0",
            "readahead=1",
            "writeback=perhaps",
            "snapdir=perhaps",
            "poll=",
            "poll=-1",
            "poll=100001",
            "io_uring=perhaps",
            "direct_io=",
            "halt_poll=1",
        ] {
            assert!(matches!(s.apply(bad), Err(Error::Option(o)) if o == bad), "{bad}");
        }
    }
}
