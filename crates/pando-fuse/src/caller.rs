//! Who made a request, as `pando-fs` wants to know it.
//!
//! Uses `transport`, and `/proc` for groups.

use pando_fs::Caller;

use crate::transport::Context;

/// The caller without supplementary groups: for calls whose permission the kernel has checked.
pub(crate) fn caller(c: &Context, umask: u32) -> Caller {
    Caller { uid: c.uid, gid: c.gid, pid: c.pid, umask, groups: Vec::new() }
}

/// The caller who makes an entry with this mode. Only its groups say whether it may give away a
/// set-group-id bit; everybody else is spared the look.
pub(crate) fn maker(c: &Context, umask: u32, mode: u32) -> Caller {
    match mode & 0o2010 {
        0o2010 => Caller { umask, ..caller_with_groups(c) },
        _ => caller(c, umask),
    }
}

/// The caller who changes the content of a file with this mode. As for [`maker`].
pub(crate) fn changer(c: &Context, mode: u16) -> Caller {
    match mode & 0o2010 {
        0o2000 => caller_with_groups(c),
        _ => caller(c, 0),
    }
}

/// Whether the caller, which has shown that it is root outside of user namespaces, has all the capabilities by which
/// root may change the attributes of any file.
pub(crate) fn may_change_all(c: &Context) -> bool {
    /// Bits of CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER and CAP_FSETID.
    const ALL: u64 = 0b1_1111;
    // The process waits for this answer, so it is still there.
    let status = std::fs::read_to_string(format!("/proc/{}/status", c.pid)).unwrap_or_default();
    let effective = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    effective.is_some_and(|caps| u64::from_str_radix(caps.trim(), 16).is_ok_and(|caps| caps & ALL == ALL))
}

/// The caller with its supplementary groups: for what the kernel cannot check.
pub(crate) fn caller_with_groups(c: &Context) -> Caller {
    let mut caller = caller(c, 0);
    // Reading /proc races with the end of the process, which is waiting for this answer.
    if c.uid != 0
        && c.pid != 0
        && let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", c.pid))
        && let Some(line) = status.lines().find_map(|l| l.strip_prefix("Groups:"))
    {
        caller.groups = line.split_whitespace().filter_map(|g| g.parse().ok()).collect();
    }
    caller
}
