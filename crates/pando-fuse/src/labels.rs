//! Answers to GETXATTR for labels and access lists in a store that has none.
//!
//! `ls -l` asks for a label (`security.selinux`) and an access list of each entry, and the kernel caches none of the
//! answers: two requests for each entry, nearly the whole cost of a cached listing. After "no such attribute" `ls`
//! asks for the next entry, too; after "not supported" it stops asking. So the answer is "not supported" as long as
//! no attribute was ever set in the store: for a label always, and for an access list if the caller has just got this
//! answer for the label of the same file. Other programs, such as `setfacl`, ask for the list because they want to
//! change it, and would give up.
//!
//! Guarantees: an attribute that is set is returned, and once any was set, the answer for a missing one is "no such
//! attribute". If the kernel itself asks for lists, to check permissions, it never gets "not supported", because it
//! would refuse the caller. Memory is bounded by [`MAX_ANSWERS`].

use std::{
    collections::VecDeque,
    ffi::OsStr,
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::transport::{Context, Errno, Outcome};

const LABEL: &str = "security.selinux";
const ACCESS_LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];
/// Answers that are remembered until the access list is asked for, a count.
const MAX_ANSWERS: usize = 32;
/// How long an answer is remembered: programs that want both ask for one right after the other.
const SOON: Duration = Duration::from_millis(500);

/// Which callers were told of which file that labels are not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    thread: u32,
    ino: u64,
}

/// Callers that ask for labels.
pub(crate) struct Labels {
    /// The kernel obeys access lists, so it asks for them itself.
    lists_obeyed: bool,
    /// The last one at the end.
    told: Mutex<VecDeque<(Told, Instant)>>,
}

impl Labels {
    /// For a kernel that obeys access lists (`lists_obeyed`), or that does not.
    pub(crate) fn new(lists_obeyed: bool) -> Self {
        Self { lists_obeyed, told: Mutex::default() }
    }

    /// What to say where `outcome` is the value of the attribute `name` of `ino`. `any`: whether an attribute was ever
    /// set in this store.
    pub(crate) fn answer(
        &self,
        c: &Context,
        (ino, name): (u64, &OsStr),
        outcome: Outcome<Bytes>,
        any: impl FnOnce() -> bool,
    ) -> Outcome<Bytes> {
        match outcome {
            Err(Errno(libc::ENODATA)) if self.is_unsupported(Told { thread: c.pid, ino }, name, any) => {
                Err(Errno(libc::EOPNOTSUPP))
            }
            outcome => outcome,
        }
    }

    fn is_unsupported(&self, asks: Told, name: &OsStr, any: impl FnOnce() -> bool) -> bool {
        if name == LABEL {
            let unsupported = !any();
            if unsupported && !self.lists_obeyed {
                let mut told = self.told.lock();
                if told.len() >= MAX_ANSWERS {
                    told.pop_front();
                }
                told.push_back((asks, Instant::now()));
            }
            return unsupported;
        }
        if self.lists_obeyed || ACCESS_LISTS.iter().all(|list| name != *list) || any() {
            return false;
        }
        self.told.lock().iter().any(|(who, when)| *who == asks && when.elapsed() < SOON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(l: &Labels, thread: u32, ino: u64, name: &str, any: bool) -> i32 {
        let c = Context {
            uid: 0,
            gid: 0,
            pid: thread,
            unique: 0,
            keeps_group_bit: None,
            says_when_bits_go: true,
        };
        match l.answer(&c, (ino, name.as_ref()), Err(Errno(libc::ENODATA)), || any) {
            Err(Errno(e)) => e,
            Ok(_) => 0,
        }
    }

    #[test]
    fn a_list_is_not_supported_for_whoever_has_asked_for_the_label_only() {
        let l = Labels::new(false);
        let list = ACCESS_LISTS[0];
        assert_eq!(asked(&l, 7, 2, list, false), libc::ENODATA, "setfacl would give up");
        assert_eq!(asked(&l, 7, 2, LABEL, false), libc::EOPNOTSUPP);
        assert_eq!(asked(&l, 7, 2, list, false), libc::EOPNOTSUPP);
        assert_eq!(
            asked(&l, 7, 2, ACCESS_LISTS[1], false),
            libc::EOPNOTSUPP,
            "of a directory both are asked for"
        );
        for (thread, ino, name) in
            [(8, 2, list), (7, 3, list), (7, 2, "user.x"), (7, 2, "security.capability")]
        {
            assert_eq!(asked(&l, thread, ino, name, false), libc::ENODATA, "{thread} {ino} {name}");
        }
        // Others have asked since.
        (0..MAX_ANSWERS as u64).for_each(|i| _ = asked(&l, 9, i, LABEL, false));
        assert_eq!(asked(&l, 7, 2, list, false), libc::ENODATA);
        assert_eq!(l.told.lock().len(), MAX_ANSWERS);
    }

    #[test]
    fn where_an_attribute_was_set_or_the_kernel_asks_itself_the_truth_is_told() {
        let l = Labels::new(false);
        asked(&l, 7, 2, LABEL, false);
        for name in [LABEL, ACCESS_LISTS[0]] {
            assert_eq!(asked(&l, 7, 2, name, true), libc::ENODATA);
        }
        let l = Labels::new(true);
        assert_eq!(asked(&l, 7, 2, LABEL, false), libc::EOPNOTSUPP);
        assert_eq!(
            asked(&l, 7, 2, ACCESS_LISTS[0], false),
            libc::ENODATA,
            "the kernel would refuse the caller"
        );
        let c = Context { uid: 0, gid: 0, pid: 7, unique: 0, keeps_group_bit: None, says_when_bits_go: true };
        let value = l.answer(&c, (2, LABEL.as_ref()), Ok(Bytes::from_static(b"x")), || false);
        assert_eq!(value, Ok(Bytes::from_static(b"x")));
    }
}
