//! Proofs: what the kernel has shown of a caller's rights.
//!
//! A control request is an ioctl, for which the kernel checks only that the caller has the descriptor. So
//! the request carries a [`Token`], and before it is sent the caller has let the kernel show, under that
//! token, what it needs (`docs/fuse.md` has the table):
//!
//! - the *source*: the token is fetched on a descriptor of it;
//! - *reading a file* that is the source: that descriptor is one for reading;
//! - *entering a directory*: a lookup in it of the token's name, which finds nothing;
//! - *ownership* of the source: the descriptor was opened with `O_NOATIME`, which the kernel allows to
//!   the owner and to who has `CAP_FOWNER` over the file, whatever user namespace that is in;
//! - *writing to a directory*, through a mount that may be written to: an attempt to make, by mkdir(2)
//!   or link(2), an entry there whose name is the token's;
//! - *removing* an entry: an attempt to rename it to the token's name;
//! - being *root*, not in a user namespace: an attempt to make a device node of the token's name
//!   (other than 0:0, which is a whiteout, and needs no privilege).
//!
//! The attempts reach the server only if the kernel allows them, and all but lookups are refused with `ECANCELED`,
//! which says that the proof is noted. No entry ever has such a name.
//!
//! Guarantees: only the process that fetched a token knows it; a token is valid for one request of the same user and
//! process, and for ten seconds; a caller has few of them, so the memory is bounded.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    control::Token,
    transport::{Context, Errno, Outcome},
};

/// How long a token is good for.
const LIFETIME: Duration = Duration::from_secs(10);
/// Tokens of one user at a time, a count; a further one ends the oldest.
const MAX_TOKENS_OF_USER: usize = 64;
/// Tokens of all users at a time, a count. Beyond it a new token removes the oldest of the user who has most.
const MAX_TOKENS: usize = 4096;

/// What was shown is noted; the attempt that showed it is refused.
pub const NOTED: i32 = libc::ECANCELED;
/// No such token: it was used, is too old, or another caller's.
pub const LAPSED: i32 = libc::EKEYEXPIRED;

/// What has been shown under a token.
#[derive(Debug, Clone)]
pub(crate) struct ProvenRights {
    pub uid: u32,
    pub pid: u32,
    born: Instant,
    /// The file or directory that the kernel has walked to.
    pub source: u64,
    /// The caller has shown that it owns `source`, or may act as its owner.
    pub owns_source: bool,
    /// The kernel has let `source`, a file, be opened for reading, by a descriptor that the caller has.
    pub reads_source: bool,
    /// A directory that the caller may search.
    enters: Option<u64>,
    /// A directory that the caller may write to, through a mount that may be written to.
    pub adds_to: Option<u64>,
    /// What the caller may remove: directory, name, inode.
    pub removes: Option<(u64, OsString, u64)>,
    /// The caller is root.
    pub root: bool,
}

impl ProvenRights {
    /// Whether the caller may search the directory that is the source.
    pub(crate) fn enters_source(&self) -> bool {
        self.enters == Some(self.source)
    }

    /// Whether the caller may write to the directory that is the source, by the path that it has shown.
    pub(crate) fn adds_to_source(&self) -> bool {
        self.adds_to == Some(self.source)
    }

    /// For a call that puts something at, or takes it from, `name` in the directory `dir`.
    pub(crate) fn about(&self, dir: u64, name: &OsStr) -> pando_fs::VerifiedRights {
        let removes = self.removes.as_ref().filter(|(at, called, _)| *at == dir && called == name);
        pando_fs::VerifiedRights {
            uid: self.uid,
            owns_source: self.owns_source,
            adds_to: self.adds_to,
            removes: removes.map(|(.., ino)| *ino),
            root: self.root,
        }
    }
}

/// A proof: what the kernel shows by letting an attempt pass.
#[derive(Debug)]
pub(crate) enum Fact<'a> {
    /// The caller may write to this directory.
    Adds { dir: u64 },
    /// The same, and has `CAP_MKNOD` in the first user namespace.
    AddsDevices { dir: u64 },
    /// The same, and the kernel has walked to this file.
    Links { source: u64, dir: u64 },
    /// The caller may rename this entry inside its directory.
    Renames { dir: u64, name: &'a OsStr, ino: u64 },
}

impl Fact<'_> {
    /// What the kernel shows by letting a caller make a node of this mode, with this device number, in `dir`. A
    /// character device 0:0 is a whiteout, which anybody may make (Linux 5.8 on).
    pub(crate) fn of_node(dir: u64, mode: u32, rdev: u32) -> Self {
        match mode & libc::S_IFMT {
            libc::S_IFCHR | libc::S_IFBLK if rdev != 0 => Fact::AddsDevices { dir },
            _ => Fact::Adds { dir },
        }
    }
}

/// The tokens and what was shown under them.
#[derive(Default)]
pub(crate) struct Proofs {
    tokens: Mutex<HashMap<Token, ProvenRights>>,
    /// The user of each handle that was opened with `O_NOATIME`, by inode and handle.
    owned: Mutex<HashMap<(u64, u64), u32>>,
    /// Length of `owned`, so that closing other handles takes no lock.
    owned_len: AtomicUsize,
}

impl Proofs {
    /// A file or directory was opened.
    pub(crate) fn opened(&self, c: &Context, ino: u64, handle: u64, flags: i32) {
        if flags & libc::O_NOATIME != 0 {
            let mut owned = self.owned.lock();
            owned.insert((ino, handle), c.uid);
            self.owned_len.store(owned.len(), Ordering::Release);
        }
    }

    /// And closed.
    pub(crate) fn closed(&self, ino: u64, handle: u64) {
        if self.owned_len.load(Ordering::Acquire) > 0 {
            let mut owned = self.owned.lock();
            owned.remove(&(ino, handle));
            self.owned_len.store(owned.len(), Ordering::Release);
        }
    }

    /// A token for the caller, fetched on an open file or directory; `reads`: what is written there can be read by it.
    pub(crate) fn issue(&self, c: &Context, ino: u64, handle: u64, reads: bool) -> Outcome<Token> {
        self.issue_at(Instant::now(), c, (ino, handle, reads))
    }

    fn issue_at(&self, now: Instant, c: &Context, (ino, handle, reads): (u64, u64, bool)) -> Outcome<Token> {
        let mut bytes = [0; 16];
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(n) if n == bytes.len() => {}
            _ => return Err(Errno(libc::EAGAIN)),
        }
        let owns_source = self.owned.lock().get(&(ino, handle)) == Some(&c.uid);
        let shows = ProvenRights {
            uid: c.uid,
            pid: c.pid,
            born: now,
            source: ino,
            owns_source,
            reads_source: reads,
            enters: None,
            adds_to: None,
            removes: None,
            root: false,
        };
        let mut tokens = self.tokens.lock();
        tokens.retain(|_, s| now.duration_since(s.born) < LIFETIME);
        let of_user = |uid: u32| tokens.iter().filter(move |(_, s)| s.uid == uid);
        let goes = if of_user(c.uid).count() >= MAX_TOKENS_OF_USER {
            Some(c.uid)
        } else if tokens.len() >= MAX_TOKENS {
            // No user is refused because of the tokens of others: the user with most of them loses one.
            let mut counts = HashMap::new();
            tokens.values().for_each(|s| *counts.entry(s.uid).or_insert(0) += 1);
            counts.into_iter().max_by_key(|(_, count)| *count).map(|(uid, _)| uid)
        } else {
            None
        };
        let oldest = goes.and_then(|uid| of_user(uid).min_by_key(|(_, s)| s.born).map(|(token, _)| *token));
        oldest.map(|token| tokens.remove(&token));
        let token = Token(bytes);
        tokens.insert(token, shows);
        Ok(token)
    }

    /// Notes that a name was looked up in a directory, which shows that the caller may search it. Returns whether it
    /// is the name of a token; no entry has such a name.
    pub(crate) fn looked_up(&self, c: &Context, dir: u64, name: &OsStr) -> bool {
        let Some(token) = Token::of_name(name) else { return false };
        if let Some(shows) = self.tokens.lock().get_mut(&token).filter(|s| s.is_good_for(c)) {
            shows.enters = Some(dir);
        }
        true
    }

    /// Refuses to make an entry with a token's name.
    pub(crate) fn free(&self, name: &OsStr) -> Outcome<()> {
        match Token::of_name(name) {
            None => Ok(()),
            Some(_) => Err(Errno(LAPSED)),
        }
    }

    /// Notes a fact if `name`, that of the entry to be made, is a token's; then it must not be made.
    pub(crate) fn note<'a>(
        &self,
        c: &Context,
        name: &OsStr,
        fact: impl FnOnce() -> Outcome<Fact<'a>>,
    ) -> Outcome<()> {
        let Some(token) = Token::of_name(name) else { return Ok(()) };
        // Looked up before the lock is taken; it comes from the same caller.
        let fact = fact()?;
        let mut tokens = self.tokens.lock();
        let Some(shows) = tokens.get_mut(&token).filter(|s| s.is_good_for(c)) else {
            return Err(Errno(LAPSED));
        };
        match fact {
            Fact::Adds { dir } => shows.adds_to = Some(dir),
            Fact::AddsDevices { dir } => {
                shows.adds_to = Some(dir);
                shows.root = c.uid == 0;
            }
            Fact::Links { source, dir } => {
                shows.adds_to = Some(dir);
                shows.source = source;
                shows.owns_source = false;
                shows.reads_source = false;
            }
            Fact::Renames { dir, name, ino } => {
                shows.adds_to = Some(dir);
                shows.removes = Some((dir, name.to_owned(), ino));
            }
        }
        Err(Errno(NOTED))
    }

    /// What was shown under the token, which is used up.
    pub(crate) fn take(&self, c: &Context, token: &Token) -> Option<ProvenRights> {
        let mut tokens = self.tokens.lock();
        // Another caller's attempt must not end it.
        tokens.get(token).filter(|s| s.is_good_for(c))?;
        tokens.remove(token)
    }
}

impl ProvenRights {
    fn is_good_for(&self, c: &Context) -> bool {
        (self.uid, self.pid) == (c.uid, c.pid) && self.born.elapsed() < LIFETIME
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const ME: Context =
        Context { uid: 10, gid: 10, pid: 77, unique: 0, keeps_group_bit: None, says_when_bits_go: true };

    fn adds(proofs: &Proofs, c: &Context, token: &Token, dir: u64) -> i32 {
        proofs.note(c, &token.name(), || Ok(Fact::Adds { dir })).unwrap_err().0
    }

    #[test]
    fn a_token_is_good_for_one_request_of_who_fetched_it() {
        let proofs = Proofs::default();
        let token = proofs.issue(&ME, 5, 1, true).unwrap();
        let others = [Context { uid: 11, ..ME }, Context { pid: 78, ..ME }];
        for other in &others {
            assert_eq!(adds(&proofs, other, &token, 9), LAPSED);
            assert!(proofs.take(other, &token).is_none());
        }
        assert_eq!(adds(&proofs, &ME, &token, 7), NOTED);
        let shows = proofs.take(&ME, &token).unwrap();
        assert_eq!((shows.source, shows.adds_to, shows.owns_source, shows.root), (5, Some(7), false, false));
        assert!(proofs.take(&ME, &token).is_none(), "used");
        assert_eq!(adds(&proofs, &ME, &token, 7), LAPSED);
        assert!(proofs.take(&ME, &Token([0; 16])).is_none());
        assert_eq!(proofs.free(&token.name()), Err(Errno(LAPSED)));
        assert_eq!(proofs.free("token".as_ref()), Ok(()));
    }

    #[test]
    fn to_enter_a_directory_is_shown_by_a_lookup_in_it() {
        let proofs = Proofs::default();
        let token = proofs.issue(&ME, 5, 1, true).unwrap();
        assert!(!proofs.looked_up(&ME, 5, "token".as_ref()), "a name as any other");
        for (c, dir) in [(&Context { pid: 78, ..ME }, 5), (&ME, 6)] {
            assert!(proofs.looked_up(c, dir, &token.name()));
            assert!(!proofs.tokens.lock()[&token].enters_source(), "another caller, or another directory");
        }
        assert!(proofs.looked_up(&ME, 5, &token.name()));
        assert!(proofs.take(&ME, &token).unwrap().enters_source());
    }

    #[test]
    fn a_token_ages() {
        let proofs = Proofs::default();
        let token = proofs.issue(&ME, 5, 1, true).unwrap();
        proofs.tokens.lock().get_mut(&token).unwrap().born = Instant::now().checked_sub(LIFETIME).unwrap();
        assert!(proofs.take(&ME, &token).is_none());
        proofs.issue(&ME, 5, 1, true).unwrap();
        assert_eq!(proofs.tokens.lock().len(), 1);
    }

    #[test]
    fn what_a_token_shows_is_about_one_entry() {
        let proofs = Proofs::default();
        let token = proofs.issue(&ME, 5, 1, true).unwrap();
        let renames = || Ok(Fact::Renames { dir: 3, name: "old".as_ref(), ino: 8 });
        assert_eq!(proofs.note(&ME, &token.name(), renames), Err(Errno(NOTED)));
        let shows = proofs.take(&ME, &token).unwrap();
        assert_eq!(shows.about(3, "old".as_ref()).removes, Some(8));
        assert_eq!(shows.about(3, "new".as_ref()).removes, None);
        assert_eq!(shows.about(4, "old".as_ref()).removes, None);
    }

    #[test]
    fn to_read_a_file_is_shown_by_a_descriptor_for_reading() {
        let proofs = Proofs::default();
        for reads in [true, false] {
            let token = proofs.issue(&ME, 5, 1, reads).unwrap();
            assert_eq!(proofs.take(&ME, &token).unwrap().reads_source, reads);
        }
        // A link shows another file, of which nothing is known.
        let token = proofs.issue(&ME, 5, 1, true).unwrap();
        let _ = proofs.note(&ME, &token.name(), || Ok(Fact::Links { source: 6, dir: 2 }));
        assert!(!proofs.take(&ME, &token).unwrap().reads_source);
    }

    #[test]
    fn ownership_is_shown_by_the_handle_of_the_same_user() {
        let proofs = Proofs::default();
        proofs.opened(&ME, 5, 1, libc::O_NOATIME);
        proofs.opened(&ME, 5, 2, 0);
        let owns = |c: &Context, ino, handle| {
            let token = proofs.issue(c, ino, handle, true).unwrap();
            proofs.take(c, &token).unwrap().owns_source
        };
        assert!(owns(&ME, 5, 1));
        assert!(!owns(&ME, 5, 2) && !owns(&ME, 6, 1) && !owns(&Context { uid: 0, ..ME }, 5, 1));
        // A link shows another source, of which nothing is known.
        let token = proofs.issue(&ME, 5, 1, true).unwrap();
        let _ = proofs.note(&ME, &token.name(), || Ok(Fact::Links { source: 6, dir: 2 }));
        let shows = proofs.take(&ME, &token).unwrap();
        assert_eq!((shows.source, shows.owns_source, shows.adds_to), (6, false, Some(2)));
        proofs.closed(5, 1);
        assert!(!owns(&ME, 5, 1));
        assert_eq!(proofs.owned_len.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn only_root_is_root() {
        let proofs = Proofs::default();
        for (uid, root) in [(10, false), (0, true)] {
            let c = Context { uid, ..ME };
            let token = proofs.issue(&c, 5, 1, true).unwrap();
            let _ = proofs.note(&c, &token.name(), || Ok(Fact::AddsDevices { dir: 2 }));
            assert_eq!(proofs.take(&c, &token).unwrap().root, root);
        }
    }

    #[test]
    fn a_user_has_few_tokens_and_takes_none_from_others() {
        let proofs = Proofs::default();
        // On a busy machine, making thousands of tokens takes longer than a token is valid. So their times are an
        // hour in the future, each later than the one before.
        let mut born = Instant::now() + Duration::from_secs(3600);
        let mut issue = |c: &Context| {
            born += Duration::from_nanos(1);
            proofs.issue_at(born, c, (5, 1, true)).unwrap()
        };
        let other = Context { uid: 11, ..ME };
        let theirs = issue(&other);
        let first = issue(&ME);
        for _ in 0..MAX_TOKENS_OF_USER {
            issue(&ME);
        }
        assert!(proofs.take(&ME, &first).is_none());
        assert!(proofs.take(&other, &theirs).is_some());
        assert_eq!(proofs.tokens.lock().len(), MAX_TOKENS_OF_USER);
        // A user with many user numbers keeps no other user out, and removes no token of users with few.
        let mine = issue(&other);
        for uid in 100..300 {
            let c = Context { uid, ..ME };
            (0..MAX_TOKENS_OF_USER).for_each(|_| _ = issue(&c));
        }
        assert_eq!(proofs.tokens.lock().len(), MAX_TOKENS);
        assert!(proofs.take(&other, &mine).is_some());
    }
}
