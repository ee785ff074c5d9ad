//! A limit on memory, page cache included: a memory control group of the kernel. And one on requests to a device.
//!
//! Both versions of control groups will do. Under the first, the group is made
//! in the one that this process is in; under the second, which allows no
//! groups in one that has processes, beside it. A process puts itself into the
//! group before it does anything else; from then on its allocations, and the
//! pages of files that it is the first to read or write, count against the
//! limit. Pages that were in the page cache before do not: they must be
//! evicted first.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, ensure};

const WAY_OUT: &str = "--memory needs a memory control group, and so root or a delegated group; \
    without it, limit the whole run from outside, for instance by systemd-run --scope -p MemoryMax=...";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Most that a group may ask of a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests a second.
    pub requests: u64,
    /// Bytes a second.
    pub bytes: u64,
}

/// A memory control group; removed when it is dropped.
#[derive(Debug)]
pub struct Group {
    dir: PathBuf,
    version: Version,
}

impl Group {
    /// Makes a group whose processes and page cache have `limit` bytes, and no swap. `u64::MAX` is no limit.
    pub fn new(name: &str, limit: u64) -> Result<Self> {
        Self::make(name, limit).context(WAY_OUT)
    }

    fn make(name: &str, limit: u64) -> Result<Self> {
        let (version, own) = find("memory")?;
        let parent = match version {
            Version::One => own,
            // A group that has limits of its own lies in one that may hand them out.
            Version::Two if own.join("memory.max").exists() => own.parent().map(PathBuf::from).unwrap_or(own),
            Version::Two => own,
        };
        if version == Version::Two {
            write(&parent.join("cgroup.subtree_control"), "+memory")?;
        }
        let dir = parent.join(name);
        // A run that was killed may have left one of this name. Only one without processes can be removed.
        let _left = fs::remove_dir(&dir);
        fs::create_dir(&dir).with_context(|| format!("making {}", dir.display()))?;
        // Made before the limit is set, so that it is removed if that fails.
        let group = Self { dir, version };
        let limit = limit.to_string();
        match version {
            _ if limit == u64::MAX.to_string() => {}
            Version::One => {
                write(&group.dir.join("memory.limit_in_bytes"), &limit)?;
                no_swap(&group.dir.join("memory.memsw.limit_in_bytes"), &limit)?;
            }
            Version::Two => {
                write(&group.dir.join("memory.max"), &limit)?;
                no_swap(&group.dir.join("memory.swap.max"), "0")?;
            }
        }
        Ok(group)
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How many of its processes the kernel has killed for want of memory.
    pub fn kills(&self) -> u64 {
        let file = match self.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        let kills = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Pages that still count for it would keep it alive in the kernel. What cannot be freed
        // (dirty pages of files that still exist) goes some time later, and so no error is one.
        let _best_effort = match self.version {
            Version::One => fs::write(self.dir.join("memory.force_empty"), "0"),
            Version::Two => fs::write(self.dir.join("memory.reclaim"), "1T"),
        };
        if let Err(error) = fs::remove_dir(&self.dir) {
            eprintln!("removing {}: {error}", self.dir.display());
        }
    }
}

/// A limit on what processes may ask of a device; taken back when it is dropped.
///
/// Under the first version of control groups it is set where this process is, and at the root,
/// to which the kernel counts what it writes back: for this device it holds for everybody. Under the second
/// it is set for one group, to which what is written back counts too, but not what the journals of
/// file systems write of themselves.
#[derive(Debug)]
pub struct Throttle {
    /// Files, and what is written to them at the end.
    undo: Vec<(PathBuf, String)>,
}

impl Throttle {
    /// Limits reads and writes of the device `major:minor`, to `rate` each. `group` is needed under the second version.
    pub fn new(device: &str, rate: Rate, group: Option<&Group>) -> Result<Self> {
        let mut throttle = Self { undo: Vec::new() };
        let own = find("blkio").or_else(|_| find("io"))?;
        if own.0 == Version::One {
            let root =
                own.1.ancestors().take_while(|dir| dir.join("blkio.throttle.read_bps_device").exists());
            let dirs: Vec<PathBuf> = root.map(PathBuf::from).collect();
            ensure!(!dirs.is_empty(), "this kernel does not limit devices (blkio.throttle)");
            for dir in dirs {
                for (name, value) in [
                    ("read_bps", rate.bytes),
                    ("write_bps", rate.bytes),
                    ("read_iops", rate.requests),
                    ("write_iops", rate.requests),
                ] {
                    let file = dir.join(format!("blkio.throttle.{name}_device"));
                    write(&file, &format!("{device} {value}"))?;
                    throttle.undo.push((file, format!("{device} 0")));
                }
            }
            return Ok(throttle);
        }
        let group = group.context("a device is limited for a group")?;
        if let Some(parent) = group.dir.parent() {
            write(&parent.join("cgroup.subtree_control"), "+io")?;
        }
        let (bytes, requests) = (rate.bytes, rate.requests);
        let file = group.dir.join("io.max");
        write(&file, &format!("{device} rbps={bytes} wbps={bytes} riops={requests} wiops={requests}"))?;
        throttle.undo.push((file, format!("{device} rbps=max wbps=max riops=max wiops=max")));
        Ok(throttle)
    }

    /// Whether a limit is set for a group, which processes must then be in.
    pub fn needs_group() -> bool {
        !matches!(find("blkio"), Ok((Version::One, _)))
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        for (file, text) in &self.undo {
            if let Err(error) = fs::write(file, text) {
                eprintln!("taking back the limit in {}: {error}", file.display());
            }
        }
    }
}

/// The group of this process that has this controller.
fn find(controller: &str) -> Result<(Version, PathBuf)> {
    let (groups, mounts) =
        (fs::read_to_string("/proc/self/cgroup")?, fs::read_to_string("/proc/self/mountinfo")?);
    own_group(&groups, &mounts, controller)
        .ok_or_else(|| anyhow!("this system has no control groups for {controller} mounted"))
}

/// Puts this process into the group of `dir`.
pub fn join(dir: &Path) -> Result<()> {
    // Zero is whoever writes it.
    write(&dir.join("cgroup.procs"), "0")
}

/// Sets the limit on swap. Where the kernel does not account for it there is none, and there must be no swap.
fn no_swap(limit: &Path, value: &str) -> Result<()> {
    if limit.exists() {
        return write(limit, value);
    }
    // A line of headings, and one for each.
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    ensure!(swaps.lines().count() <= 1, "the kernel does not limit the swap of groups: turn swap off");
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {text} to {}", path.display()))
}

/// The directory of the group with this controller that the process with these files in `/proc` is in.
fn own_group(cgroup: &str, mountinfo: &str, controller: &str) -> Option<(Version, PathBuf)> {
    // Lines are `number:controllers:path`; the second version has no controllers there.
    let groups = || cgroup.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let (version, path) = groups()
        .find(|(controllers, _)| controllers.split(',').any(|name| name == controller))
        .map(|(_, path)| (Version::One, path))
        .or_else(|| groups().find(|g| g.0.is_empty()).map(|(_, path)| (Version::Two, path)))?;
    mountinfo.lines().find_map(|line| {
        // `id parent device root mount-point options tags... - type source options`
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, point) = (mount.next()?, mount.next()?);
        let mut file_system = file_system.split(' ');
        let (kind, options) = (file_system.next()?, file_system.nth(1)?);
        let is_it = match version {
            Version::One => kind == "cgroup" && options.split(',').any(|option| option == controller),
            Version::Two => kind == "cgroup2",
        };
        // In a container, the root of the mount may be a group below the root of all.
        let below = path.strip_prefix(root.trim_end_matches('/')).unwrap_or(path);
        is_it.then(|| (version, Path::new(point).join(below.trim_start_matches('/'))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_group_of_the_first_version() {
        let cgroup = "9:name=systemd:/\n4:memory:/a/b\n0::/\n";
        let mounts = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n";
        let found = own_group(cgroup, mounts, "memory");
        assert_eq!(found, Some((Version::One, "/sys/fs/cgroup/memory/a/b".into())));
        let mounts = "35 31 0:32 /a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let found = own_group(cgroup, mounts, "memory");
        assert_eq!(found, Some((Version::One, "/sys/fs/cgroup/memory/b".into())));
    }

    #[test]
    fn finds_the_group_of_the_second_version() {
        let mounts = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let found = own_group("0::/user.slice/run.scope\n", mounts, "memory");
        assert_eq!(found, Some((Version::Two, "/sys/fs/cgroup/user.slice/run.scope".into())));
        assert_eq!(own_group("0::/\n", mounts, "memory"), Some((Version::Two, "/sys/fs/cgroup/".into())));
    }

    #[test]
    fn finds_nothing_where_nothing_is() {
        assert_eq!(own_group("0::/\n", "24 1 8:1 / / rw - ext4 /dev/root rw\n", "memory"), None);
        assert_eq!(own_group("", "", "memory"), None);
    }
}
