//! How much memory there is for this process: of the machine, and of the control groups that it is in.
//!
//! A daemon in a container that takes the machine's memory for its own is killed by the kernel. Reads `/proc` and
//! `/sys/fs/cgroup` (versions 1 and 2); what cannot be read limits nothing.

use std::path::{Path, PathBuf};

/// Where control groups are seen.
const GROUPS: &str = "/sys/fs/cgroup";
/// The part of the memory that is the default for caches: one in so many.
const CACHE_SHARE: u64 = 8;
const MIN_CACHE_BYTES: u64 = 64 << 20;
const MAX_CACHE_BYTES: u64 = 4 << 30;
/// What a command takes that opens an image by itself, and of how much memory it may be a part.
const COMMAND_CACHE_BYTES: u64 = 256 << 20;
const COMMAND_SHARE: u64 = 4;

/// An eighth of the memory, 64 MiB to 4 GiB: the default of a mount.
pub fn mount_cache_bytes() -> u64 {
    (bytes() / CACHE_SHARE).clamp(MIN_CACHE_BYTES, MAX_CACHE_BYTES)
}

/// The cache of a command: 256 MiB, or a quarter of the memory if that is less.
pub fn command_cache_bytes() -> u64 {
    COMMAND_CACHE_BYTES.min(bytes() / COMMAND_SHARE)
}

/// The memory of the machine, or the lowest limit of a control group if that is less, bytes.
fn bytes() -> u64 {
    let info = rustix::system::sysinfo();
    let machine = (info.totalram as u64).saturating_mul(u64::from(info.mem_unit.max(1)));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits(&groups).filter_map(|file| limit(&std::fs::read_to_string(file).ok()?)).fold(machine, u64::min)
}

/// The files that say the limits of these groups (`/proc/self/cgroup`) and of all above them.
fn limits(groups: &str) -> impl Iterator<Item = PathBuf> {
    groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':')).flat_map(
        |(controllers, group)| {
            let place = match controllers {
                "" => Some((PathBuf::from(GROUPS), "memory.max")),
                all if all.split(',').any(|name| name == "memory") => {
                    Some((Path::new(GROUPS).join("memory"), "memory.limit_in_bytes"))
                }
                _ => None,
            };
            let group = PathBuf::from(group.trim_start_matches('/'));
            let files = |(root, file): (PathBuf, &str)| {
                group.ancestors().map(|above| root.join(above).join(file)).collect::<Vec<_>>()
            };
            place.map(files).unwrap_or_default()
        },
    )
}

/// The limit that a file says; `None` if there is none. (Version 1 says a number of the size of the address space.)
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|limit| *limit > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_all_groups_around_are_found() {
        let files = |text| limits(text).map(|file| file.display().to_string()).collect::<Vec<_>>();
        assert_eq!(
            files("0::/a/b\n"),
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup/memory.max"]
        );
        assert_eq!(
            files("12:cpu,cpuacct:/x\n5:memory:/pod\n"),
            [
                "/sys/fs/cgroup/memory/pod/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes"
            ]
        );
        assert_eq!(files("1:name=systemd:/\nnonsense\n"), Vec::<String>::new());
    }

    #[test]
    fn a_limit_is_a_number_and_max_is_none() {
        assert_eq!(
            (limit("314572800\n"), limit("max\n"), limit("0"), limit("")),
            (Some(314_572_800), None, None, None)
        );
        assert!((MIN_CACHE_BYTES..=MAX_CACHE_BYTES).contains(&mount_cache_bytes()));
    }
}
