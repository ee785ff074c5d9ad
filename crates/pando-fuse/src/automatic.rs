//! The thread that applies policies for snapshots: when it runs, and which files were synced since its last run.
//!
//! Guarantees: a change of a policy or a sync only leaves a note and waits for nothing. While the thread rests and no
//! policy waits for syncs, a note costs one load. While the thread works, and from a change of a policy until it has
//! seen that change, all syncs are noted: a snapshot may have been made before the sync, or a new policy may wait for
//! it. Files are noted up to a bound; beyond it all files count as synced. The thread takes notes at most every
//! [`GATHER_SYNCS_FOR`]. Its work is a callback, given to [`Automatic::start`].

use std::{
    collections::HashSet,
    io, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};

use crate::ending::{PATIENCE_AT_END, join_within};

/// Most files that are noted one by one, a count.
const MAX_NOTED_FILES: usize = 1024;
/// How long notes are gathered before they are looked at.
const GATHER_SYNCS_FOR: Duration = Duration::from_millis(100);

/// What was synced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Synced {
    /// These files and directories, possibly none.
    Some(HashSet<u64>),
    /// All files and directories.
    All,
}

impl Default for Synced {
    fn default() -> Self {
        Synced::Some(HashSet::new())
    }
}

impl Synced {
    fn add(&mut self, ino: u64) {
        if let Synced::Some(noted) = self {
            noted.insert(ino);
            if noted.len() > MAX_NOTED_FILES {
                *self = Synced::All;
            }
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Synced::Some(noted) if noted.is_empty())
    }
}

/// When the work is to be done next, if nothing is noted before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NextRound {
    /// After this time; `None`: never.
    pub after: Option<Duration>,
    /// Syncs are to be noted.
    pub on_syncs: bool,
}

#[derive(Default)]
struct AutomaticState {
    synced: Synced,
    changed: bool,
    ended: bool,
    thread: Option<JoinHandle<()>>,
}

/// Notes for the thread, and the thread.
#[derive(Default)]
pub(crate) struct Automatic {
    state: Mutex<AutomaticState>,
    noted: Condvar,
    ended: Condvar,
    on_syncs: AtomicBool,
}

impl Automatic {
    /// Starts the thread, for once: it calls `work` with what was synced since the last call.
    pub(crate) fn start(
        self: &Arc<Self>,
        mut work: impl FnMut(Synced) -> NextRound + Send + 'static,
    ) -> io::Result<()> {
        let automatic = self.clone();
        // Whatever is synced before the first look may lie in a directory with a policy.
        self.on_syncs.store(true, Ordering::Release);
        let thread = std::thread::Builder::new().name("pando-policies".into()).spawn(move || {
            while let Some(synced) = automatic.take() {
                let next = work(synced);
                if !next.on_syncs {
                    automatic.pass_over_syncs();
                }
                automatic.wait(next.after);
            }
        })?;
        let before = self.state.lock().thread.replace(thread);
        assert!(before.is_none(), "a mount has one thread for policies");
        Ok(())
    }

    /// Notes that a policy has changed.
    pub(crate) fn changed(&self) {
        let mut state = self.state.lock();
        state.changed = true;
        self.on_syncs.store(true, Ordering::Release);
        drop(state);
        self.noted.notify_all();
    }

    /// Notes that a file or directory was synced.
    pub(crate) fn synced(&self, ino: u64) {
        self.note(|synced| synced.add(ino));
    }

    /// Notes that everything was.
    pub(crate) fn synced_all(&self) {
        self.note(|synced| *synced = Synced::All);
    }

    fn note(&self, add: impl FnOnce(&mut Synced)) {
        if self.on_syncs.load(Ordering::Acquire) {
            add(&mut self.state.lock().synced);
            self.noted.notify_all();
        }
    }

    /// Ends the thread, and waits for that as `ending` says.
    pub(crate) fn end(&self) {
        let thread = {
            let mut state = self.state.lock();
            state.ended = true;
            state.thread.take()
        };
        self.noted.notify_all();
        self.ended.notify_all();
        join_within(PATIENCE_AT_END, "policies", thread);
    }

    /// What was noted; `None` at the end.
    fn take(&self) -> Option<Synced> {
        let mut state = self.state.lock();
        state.changed = false;
        self.on_syncs.store(true, Ordering::Release);
        (!state.ended).then(|| mem::take(&mut state.synced))
    }

    /// Nobody waits for syncs, nor for those that were noted since the last look, unless a policy has changed since.
    fn pass_over_syncs(&self) {
        let mut state = self.state.lock();
        if !state.changed {
            self.on_syncs.store(false, Ordering::Release);
            state.synced = Synced::default();
        }
    }

    /// Waits until something is noted, or for so long.
    fn wait(&self, after: Option<Duration>) {
        let mut state = self.state.lock();
        let idle = |state: &mut AutomaticState| !state.changed && !state.ended && state.synced.is_empty();
        match after {
            Some(after) => _ = self.noted.wait_while_for(&mut state, idle, after),
            None => self.noted.wait_while(&mut state, idle),
        }
        // A burst of syncs is one.
        if !state.changed && !state.synced.is_empty() {
            self.ended.wait_while_for(&mut state, |state| !state.ended, GATHER_SYNCS_FOR);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn notes_wake_the_thread_and_many_files_are_all() {
        let automatic = Arc::new(Automatic::default());
        let (tell, told) = mpsc::channel();
        automatic.synced(1); // nobody waits for it
        automatic
            .start(move |synced| {
                tell.send(synced).unwrap();
                NextRound { after: None, on_syncs: true }
            })
            .unwrap();
        let none = Synced::default();
        assert_eq!(told.recv_timeout(LONG).unwrap(), none);
        automatic.changed();
        assert_eq!(told.recv_timeout(LONG).unwrap(), none);
        automatic.synced(7);
        automatic.synced(8);
        let mut noted = HashSet::new();
        while noted.len() < 2 {
            match told.recv_timeout(LONG).unwrap() {
                Synced::Some(some) => noted.extend(some),
                Synced::All => panic!("two files are not all"),
            }
        }
        assert_eq!(noted, HashSet::from([7, 8]));
        let mut many = Synced::default();
        (0..=MAX_NOTED_FILES as u64).for_each(|ino| many.add(ino));
        assert_eq!(many, Synced::All);
        automatic.synced_all();
        assert_eq!(told.recv_timeout(LONG).unwrap(), Synced::All);
        automatic.end();
        assert!(told.recv_timeout(LONG).is_err(), "the thread goes on");
    }

    #[test]
    fn what_is_synced_while_snapshots_are_made_is_in_the_next_round() {
        let automatic = Arc::new(Automatic::default());
        let (tell, told) = mpsc::channel();
        let syncs = automatic.clone();
        let mut first = true;
        automatic
            .start(move |synced| {
                if std::mem::take(&mut first) {
                    syncs.synced(7);
                }
                tell.send(synced).unwrap();
                NextRound { after: None, on_syncs: true }
            })
            .unwrap();
        assert_eq!(told.recv_timeout(LONG).unwrap(), Synced::default());
        assert_eq!(told.recv_timeout(LONG).unwrap(), Synced::Some(HashSet::from([7])));
        automatic.end();
    }

    #[test]
    fn what_is_synced_right_behind_a_new_policy_is_noted() {
        let automatic = Arc::new(Automatic::default());
        let (tell, told) = mpsc::channel();
        let mut on_syncs = false;
        automatic
            .start(move |synced| {
                tell.send(synced).unwrap();
                NextRound { after: None, on_syncs: std::mem::replace(&mut on_syncs, true) }
            })
            .unwrap();
        told.recv_timeout(LONG).unwrap();
        std::thread::sleep(Duration::from_millis(50)); // then it has found no policy
        automatic.synced(6);
        automatic.changed();
        automatic.synced(7);
        let mut rounds = std::iter::from_fn(|| told.recv_timeout(LONG).ok());
        let noted = rounds.find(|synced| !synced.is_empty());
        assert_eq!(noted, Some(Synced::Some(HashSet::from([7]))));
        automatic.end();
    }
}
