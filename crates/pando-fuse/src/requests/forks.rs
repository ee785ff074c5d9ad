//! Answers what is asked about forks: which there are, what one has changed, what was in it; and merges one.

use pando_fs::{DiffOptions, ForkInfo, Ino};

use crate::{
    coherence::MountState,
    control::Token,
    forked::{self, ForkAsked},
    interrupts::Stop,
    requests::{Refusal, caller},
    transport::Context,
};

impl MountState {
    /// Begins to answer something about forks.
    pub(super) fn begin_fork(
        &self,
        c: &Context,
        on: (u64, u64),
        (token, into): (&Token, &Token),
        asked: ForkAsked,
        stop: &Stop,
    ) -> Result<u64, Refusal> {
        let shows = self.shown(c, token)?;
        let mut unstored = 0;
        let root = match asked {
            ForkAsked::Diff { .. } | ForkAsked::Merge(_) | ForkAsked::Origin(..) => self.sees_all(c, &shows),
            ForkAsked::List | ForkAsked::Info => self.is_root(c, &shows),
        };
        let told = match asked {
            ForkAsked::Diff { ranges, no_renames } => {
                if !root {
                    self.may_enter(&shows)?;
                }
                self.write_out_below(shows.source);
                let caller = caller(c);
                let viewer = (!root).then_some(&caller);
                unstored = self.unstored_below(shows.source);
                let options = DiffOptions { ranges, no_renames };
                self.diffs.begin(c.uid, on, self.fs.diff_fork(viewer, shows.source, options)?)
            }
            ForkAsked::Origin(number, path) => {
                if !root {
                    self.may_enter(&shows)?;
                    self.may_know_origin(c, shows.source)?;
                }
                let caller = caller(c);
                let viewer = (!root).then_some(&caller);
                self.diffs.begin_content(
                    c.uid,
                    on,
                    self.fs.origin_file(viewer, (shows.source, number), &path)?,
                )
            }
            ForkAsked::List => {
                let of = Some(shows.source).filter(|ino| *ino != pando_fs::ROOT);
                let forks = self.fs.forks(of)?;
                let seen = forks.iter().filter(|fork| root || fork.uid == c.uid);
                let text: String = seen.map(forked::line).collect();
                self.diffs.begin_bytes(c.uid, on, text.into())
            }
            ForkAsked::Merge(options) => {
                let to = self.shown(c, into)?;
                // This shows that the mount may be written to, and the directory by the caller.
                if !options.dry_run && !to.adds_to_source() {
                    return Err(pando_fs::Error::Access("merge".into()).into());
                }
                self.write_out_below(shows.source);
                self.write_out_below(to.source);
                let mounted = self.keep_mounted(c.pid);
                let all = if options.dry_run { root } else { shows.root && to.root };
                let owner = (!all).then_some(c.uid);
                let (told, cache) =
                    self.fs.merge_unless(owner, shows.source, to.source, options, stop.flag())?;
                drop(mounted);
                self.drop_stale(&cache);
                self.diffs.begin_bytes(c.uid, on, forked::report(&told).into())
            }
            ForkAsked::Info => {
                let info = match root {
                    true => self.fs.fork_of(shows.source)?,
                    false => self.may_know_origin(c, shows.source)?,
                };
                self.diffs.begin_bytes(c.uid, on, forked::line(&info).into())
            }
        };
        match told {
            true => Ok(unstored),
            false => Err(Refusal(libc::EAGAIN, "too much is being told; try again".into())),
        }
    }

    /// The fork; error unless the caller owns it or has made it. Others may be able to enter it now, who could not when
    /// it was made: where it was, or what was in it, may have been closed to them.
    fn may_know_origin(&self, c: &Context, fork: Ino) -> Result<ForkInfo, Refusal> {
        let info = self.fs.fork_of(fork)?;
        if info.uid != c.uid && self.fs.getattr(fork)?.uid != c.uid {
            let why = "only its owner, who made it, or root may know what it was made of";
            return Err(pando_fs::Error::NotPermitted { name: "fork".into(), why }.into());
        }
        Ok(info)
    }
}
