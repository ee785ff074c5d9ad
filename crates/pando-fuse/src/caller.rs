//! Callers: from the process that the kernel names to the caller that `pando-fs` checks rights of.
//!
//! Uses `transport`, and `/proc` for groups, capabilities and user namespaces. What is asked about the caller of a
//! write must not wait for the caller.

use std::{ffi::OsStr, path::Path};

use pando_fs::Caller;

use crate::transport::Context;

/// The caller without supplementary groups: for calls whose permission the kernel has checked.
pub(crate) fn caller(c: &Context, umask: u32) -> Caller {
    let (keeps_group_bit, told_when_set_id_goes) = (c.keeps_group_bit, c.says_when_bits_go);
    let (uid, gid, pid) = (c.uid, c.gid, c.pid);
    Caller { uid, gid, pid, umask, keeps_group_bit, told_when_set_id_goes, ..Caller::default() }
}

/// The caller of a request that makes an entry with this mode. Its supplementary groups are read only if the mode has
/// a set-group-id bit of an executable, about which the kernel has not decided: they say whether the caller may set
/// it.
pub(crate) fn maker(c: &Context, umask: u32, mode: u32) -> Caller {
    match mode & 0o2010 {
        0o2010 if c.keeps_group_bit.is_none() => Caller { umask, ..caller_with_groups(c, 0) },
        _ => caller(c, umask),
    }
}

/// The caller of a request that changes the content of a file with this mode. If the file has set-id bits, the
/// capabilities and supplementary groups of the caller say which of them stay.
pub(crate) fn changer(c: &Context, mode: u16) -> Caller {
    match mode & 0o6000 {
        0 => caller(c, 0),
        _ => caller_with_groups(c, mode),
    }
}

/// Whether all these capabilities are among the effective ones of the caller, in its own user namespace; `None` if the
/// caller is hidden from this process. A thread that acts as somebody else, as a server in the kernel does, is
/// said to have none: `/proc` has those of its own.
fn has_capabilities(c: &Context, wanted: u64) -> Option<bool> {
    // The process waits for this answer, so it is still there.
    let status = std::fs::read_to_string(format!("/proc/{}/status", c.pid)).ok()?;
    let line = |name: &str| status.lines().find_map(|l| l.strip_prefix(name));
    // Real, effective, saved, and that of the file system, which a request carries.
    let acts_as = line("Uid:")?.split_whitespace().nth(3)?.parse::<u32>().ok()?;
    let caps = u64::from_str_radix(line("CapEff:")?.trim(), 16).ok()?;
    Some(acts_as == c.uid && caps & wanted == wanted)
}

/// The caller of a request about the attribute `name`. Of attributes `trusted.` the kernel asks only for callers with
/// CAP_SYS_ADMIN in the initial user namespace, whatever their user ids: not for the root of a container.
pub(crate) fn of_attribute(c: &Context, name: &OsStr) -> Caller {
    let trusted = name.as_encoded_bytes().starts_with(b"trusted.");
    Caller { trusted_attrs: trusted.then_some(true), ..caller(c, 0) }
}

/// Whether the kernel would show the caller attributes `trusted.` one by one: of lists it does not say. Where the
/// caller or its user namespace is hidden from this process, root is believed to be in the initial one.
pub(crate) fn sees_trusted(c: &Context) -> bool {
    /// Bit of CAP_SYS_ADMIN.
    const SYS_ADMIN: u64 = 1 << 21;
    /// The number that the kernel gives the initial one.
    const INITIAL: &str = "user:[4026531837]";
    if c.pid == 0 {
        return c.uid == 0;
    }
    let namespace = std::fs::read_link(format!("/proc/{}/ns/user", c.pid));
    match (has_capabilities(c, SYS_ADMIN), namespace) {
        (Some(may), Ok(namespace)) => may && namespace == Path::new(INITIAL),
        (may, _) => c.uid == 0 && may != Some(false),
    }
}

/// Whether the caller, which has shown that it is root outside of user namespaces, has all the capabilities by which
/// root may change the attributes of any file.
pub(crate) fn may_change_all(c: &Context) -> bool {
    /// Bits of CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER and CAP_FSETID.
    const CAPABILITY_BITS: u64 = 0b1_1111;
    has_capabilities(c, CAPABILITY_BITS) == Some(true) && is_in_own_namespace(c)
}

/// Whether the caller is root in the user namespace of this process, and may read any directory. Used where nothing
/// can be made, so that the kernel cannot show this.
pub(crate) fn may_see_all(c: &Context) -> bool {
    /// Bit of CAP_DAC_READ_SEARCH.
    const READ_SEARCH: u64 = 0b100;
    c.uid == 0 && c.pid != 0 && has_capabilities(c, READ_SEARCH) == Some(true) && is_in_own_namespace(c)
}

/// Whether the user namespace of the caller is that of this process. Not to be asked about the caller of a write: a
/// program that starts another one drops its mappings, and has their pages written, while it holds the lock that the
/// kernel takes to answer this.
fn is_in_own_namespace(c: &Context) -> bool {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    namespace("self").is_some_and(|own| namespace(&c.pid.to_string()) == Some(own))
}

/// Whether the caller's user namespace maps all user ids as that of this process does. It may be another one, then, but
/// only root can make such a one, and its root may do to all files what root may. The answer waits for nothing.
fn has_own_ids(c: &Context) -> bool {
    let map = |pid: &str| std::fs::read(format!("/proc/{pid}/uid_map")).ok();
    map("self").is_some_and(|own| map(&c.pid.to_string()) == Some(own))
}

/// The caller of a request that changes a file with this mode, with its supplementary groups, and, if the file has
/// set-id bits, with its right to keep them: what the kernel does not check.
pub(crate) fn caller_with_groups(c: &Context, mode: u16) -> Caller {
    /// Bit of CAP_FSETID.
    const FSETID: u64 = 0b1_0000;
    let mut caller = caller(c, 0);
    if mode & 0o6000 != 0 {
        caller.fsetid = Some(has_capabilities(c, FSETID) == Some(true) && has_own_ids(c));
    }
    if caller.keeps_set_id() {
        return caller;
    }
    // Reading /proc races with the end of the process, which is waiting for this answer.
    if c.pid != 0
        && let Ok(status) = std::fs::read_to_string(format!("/proc/{}/status", c.pid))
        && let Some(line) = status.lines().find_map(|l| l.strip_prefix("Groups:"))
    {
        caller.groups = line.split_whitespace().filter_map(|g| g.parse().ok()).collect();
    }
    caller
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server in the kernel that acts for a user has capabilities of its own, which are not those of that user.
    #[test]
    fn capabilities_count_only_for_whom_the_thread_acts_as() {
        let me = rustix::process::geteuid().as_raw();
        let request = |uid| Context {
            uid,
            gid: 0,
            pid: std::process::id(),
            unique: 0,
            keeps_group_bit: None,
            says_when_bits_go: true,
        };
        assert_eq!(has_capabilities(&request(me), 0), Some(true));
        assert_eq!(has_capabilities(&request(me + 1), 0), Some(false));
        let other = caller_with_groups(&request(me + 1), 0o4755);
        assert!(!other.keeps_set_id(), "{other:?}");
        if me == 0 && has_capabilities(&request(0), 1 << 4) == Some(true) {
            assert!(caller_with_groups(&request(0), 0o4755).keeps_set_id());
        }
    }
}
