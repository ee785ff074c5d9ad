//! Executes control requests.
//!
//! Rights come from what the kernel has shown under the request's token (`proof`), never from what the request says.
//! Guarantee: the kernel's caches are right before the answer is sent. All of this runs on workers.

use std::{ffi::OsStr, path::PathBuf, sync::Arc};

use pando_fs::{Authority, Caller, DiffOptions, FileKind, SnapshotInfo};

use crate::{
    asked::{self, Asked, MAX_TEXT_BYTES},
    caller::may_see_all,
    coherence::MountState,
    control::{self, ControlRequest, Response, Token},
    diffs,
    interrupts::Stop,
    proof::{LAPSED, ProvenRights},
    quotas::{self, QuotaAsked},
    transport::{Context, Errno, Outcome},
};

mod alike;
mod forks;
mod mounted;
mod space;

/// Most snapshots that are looked at for one answer, a count.
const MAX_LISTED_SNAPSHOTS: usize = 64;

/// A request that is refused here: error number and message.
struct Refusal(i32, String);

impl From<pando_fs::Error> for Refusal {
    fn from(e: pando_fs::Error) -> Self {
        let text = e.to_string();
        Refusal(Errno::from(e).0, text)
    }
}

/// Who has sent a request, with the one group that the request names.
fn caller(c: &Context) -> Caller {
    Caller { uid: c.uid, gid: c.gid, ..Caller::default() }
}

type Done = Result<Response, Refusal>;

fn done(value: u64) -> Done {
    Ok(Response { value, ..Response::default() })
}

/// Answers a request, which came by the inode and handle `on`.
pub(crate) fn answer(
    shared: &Arc<MountState>,
    c: &Context,
    on: (u64, u64),
    request: ControlRequest,
    stop: &Stop,
) -> Outcome<Vec<u8>> {
    shared.control(c, on, request, stop)
}

impl MountState {
    fn control(
        self: &Arc<Self>,
        c: &Context,
        on: (u64, u64),
        request: ControlRequest,
        stop: &Stop,
    ) -> Outcome<Vec<u8>> {
        let result = match request {
            ControlRequest::Probe => done(u64::from(std::process::id())),
            ControlRequest::Token => return Err(Errno(libc::EINVAL)), // answered before
            ControlRequest::Stats => return self.statistics(),
            ControlRequest::Diff { before, after, ranges, no_renames } => {
                let options = DiffOptions { ranges, no_renames };
                return Ok(self.pieces(c, on, || self.begin_diff(c, on, (&before, &after), options)));
            }
            ControlRequest::DiffNext => return Ok(self.pieces(c, on, || Ok(0))),
            ControlRequest::Identity => {
                let message = format!("{:032x}", u128::from_be_bytes(self.fs.uuid()));
                Ok(Response { message, value: self.fs.has_links().into(), ..Response::default() })
            }
            ControlRequest::Fork { token, into, asked } => {
                return Ok(self.pieces(c, on, || self.begin_fork(c, on, (&token, &into), asked, stop)));
            }
            ControlRequest::Quota { token, asked } => {
                return Ok(self.pieces(c, on, || self.begin_quota(c, on, &token, asked).map(|()| 0)));
            }
            ControlRequest::Policies { token } => {
                return Ok(self.pieces(c, on, || self.begin_policies(c, on, &token).map(|()| 0)));
            }
            ControlRequest::Gone { token } => {
                return Ok(self.pieces(c, on, || self.begin_gone(c, on, &token, stop).map(|()| 0)));
            }
            ControlRequest::Space { token } => {
                return Ok(self.pieces(c, on, || self.begin_space(c, on, &token, stop).map(|()| 0)));
            }
            ControlRequest::Sync => {
                self.store_all().map_err(Refusal::from).and_then(|()| done(self.refused.count() as u64))
            }
            ControlRequest::Usage { token } => self.shown(c, &token).and_then(|shows| self.usage(c, &shows)),
            ControlRequest::Grow { token, size } => {
                self.shown(c, &token).and_then(|shows| self.grow(&shows, size))
            }
            ControlRequest::Clone { token, name, replace, track, exclude } => self
                .shown(c, &token)
                .and_then(|shows| self.clone_tree(c, &shows, &name, (replace, track), &exclude)),
            ControlRequest::Snapshot { token, asked } => {
                self.shown(c, &token).and_then(|shows| self.snapshots(c, &shows, asked, stop))
            }
            ControlRequest::Change { token, change } => self
                .shown(c, &token)
                .and_then(|shows| self.change_tree(c, &shows, &change).map_err(Refusal::from))
                .and_then(done),
            ControlRequest::Remove { token, fork } => {
                self.shown(c, &token).and_then(|shows| self.remove_tree(c, &shows, fork))
            }
        };
        let response =
            result.unwrap_or_else(|Refusal(status, message)| Response { status, value: 0, message });
        Ok(response.encode())
    }

    /// Makes everything durable that was written, dirty pages of the kernel included. Not for threads that read
    /// requests.
    pub(crate) fn store_all(&self) -> pando_fs::Result<()> {
        self.write_out_all();
        self.fs.sync().inspect(|()| self.automatic.synced_all())
    }

    fn shown(&self, c: &Context, token: &Token) -> Result<ProvenRights, Refusal> {
        let lapsed = || Refusal(LAPSED, "took too long, or is another's; try again".into());
        self.proofs.take(c, token).ok_or_else(lapsed)
    }

    /// Whether the caller is root and so may see the whole tree that it has opened, and what is reported with it
    /// (such as the origin of a fork). The kernel shows that if an entry could be made; if not, as through a
    /// read-only mount, `/proc` is asked. This says nothing about what the caller may change.
    fn sees_all(&self, c: &Context, shows: &ProvenRights) -> bool {
        shows.root || may_see_all(c)
    }

    /// Whether the caller is root, who may see everything. In a read-only file system the kernel cannot show that, so
    /// `/proc` is asked. This says nothing about what the caller may change.
    fn is_root(&self, c: &Context, shows: &ProvenRights) -> bool {
        shows.root || self.fs.is_read_only() && may_see_all(c)
    }

    /// Error unless the caller is root, and has the source by a path that may be written to.
    fn may_change_as_root(&self, shows: &ProvenRights, what: &str) -> pando_fs::Result<()> {
        match shows.root && shows.adds_to_source() {
            true => Ok(()),
            false => Err(pando_fs::Error::Access(what.into())),
        }
    }

    /// Error unless the caller has walked to the root of the file system: what belongs to no directory is behind no
    /// door that a chroot or a bind mount of a part could close.
    fn has_it_whole(&self, shows: &ProvenRights) -> pando_fs::Result<()> {
        match shows.source == pando_fs::ROOT {
            true => Ok(()),
            false => Err(pando_fs::Error::Access("snapshots of directories that are gone".into())),
        }
    }

    /// Error if the source is a directory that the caller has not shown to be open to him: that it is open tells only
    /// that its names may be read.
    fn may_enter(&self, shows: &ProvenRights) -> pando_fs::Result<()> {
        match shows.enters_source() || self.fs.getattr(shows.source)?.kind != FileKind::Directory {
            true => Ok(()),
            false => Err(pando_fs::Error::Access("what is in it".into())),
        }
    }

    /// Error if the source may not be compared with another: a directory as above, a file unless it was opened for
    /// reading, by whatever right that was.
    fn may_compare(&self, shows: &ProvenRights) -> pando_fs::Result<()> {
        let may = shows.reads_source || self.fs.getattr(shows.source)?.kind == FileKind::Directory;
        if may { self.may_enter(shows) } else { Err(pando_fs::Error::Access("what is in it".into())) }
    }

    fn statistics(&self) -> Outcome<Vec<u8>> {
        let Some(stats) = &self.stats else { return Err(Errno(libc::EOPNOTSUPP)) };
        let text = stats(&self.fs, &self.counters).map_err(|e| {
            log::error!("statistics: {e}");
            Errno(libc::EIO)
        })?;
        control::encode_stats(&text).ok_or(Errno(libc::EOVERFLOW))
    }

    /// The next piece of the difference on this handle, begun if there is none, and the number of files with data
    /// that is stored nowhere.
    fn pieces(&self, c: &Context, on: (u64, u64), begin: impl FnOnce() -> Result<u64, Refusal>) -> Vec<u8> {
        let piece = || {
            let unstored = begin()?;
            let ended = "this difference has ended: nobody read on for a minute, or too slowly, or its user has too \
                         many; ask again";
            let none = || Refusal(LAPSED, ended.into());
            let next = self.diffs.next(c.uid, on, control::DIFF_PIECE_BYTES);
            Ok((next.ok_or_else(none)??, unstored))
        };
        match piece() {
            Ok((diffs::Piece { bytes, last }, unstored)) => {
                if !last {
                    // The thread of `automatic` ends the difference if no more pieces are requested.
                    self.automatic.changed();
                }
                let response = Response { value: u64::from(!last), ..Response::default() };
                control::encode_piece(&response, &bytes, unstored)
            }
            Err(Refusal(status, message)) => {
                control::encode_piece(&Response { status, value: 0, message }, &[], 0)
            }
        }
    }

    fn begin_diff(
        &self,
        c: &Context,
        on: (u64, u64),
        (before, after): (&Token, &Token),
        options: DiffOptions,
    ) -> Result<u64, Refusal> {
        let (before, after) = (self.shown(c, before)?, self.shown(c, after)?);
        let root = self.sees_all(c, &before);
        let caller = caller(c);
        if !root {
            self.may_compare(&before)?;
            self.may_compare(&after)?;
        }
        self.write_out_below(before.source);
        self.write_out_below(after.source);
        let viewer = (!root).then_some(&caller);
        let unstored = self.unstored_in(&[before.source, after.source]);
        let diff = self.fs.diff(viewer, before.source, after.source, options)?;
        match self.diffs.begin(c.uid, on, diff) {
            true => Ok(unstored),
            false => Err(Refusal(libc::EAGAIN, "too many differences are being told; try again".into())),
        }
    }

    /// Does something about quotas, and begins to answer.
    fn begin_quota(
        &self,
        c: &Context,
        on: (u64, u64),
        token: &Token,
        asked: QuotaAsked,
    ) -> Result<(), Refusal> {
        let shows = self.shown(c, token)?;
        if !self.is_root(c, &shows) {
            let why = "only root may set quotas, and see them";
            return Err(pando_fs::Error::NotPermitted { name: "quota".into(), why }.into());
        }
        let text = match asked {
            QuotaAsked::List => self.fs.quotas(shows.source)?.iter().map(quotas::line).collect(),
            QuotaAsked::Set(limit) => {
                self.may_change_as_root(&shows, "quota")?;
                // What the kernel keeps is part of what there is.
                self.write_out_below(shows.source);
                self.fs.set_quota(shows.source, limit)?;
                String::new()
            }
        };
        self.begin_text(c, on, text)
    }

    /// Begins to name the policies in a tree.
    fn begin_policies(&self, c: &Context, on: (u64, u64), token: &Token) -> Result<(), Refusal> {
        let shows = self.shown(c, token)?;
        if !self.is_root(c, &shows) {
            let why = "only root may see the policies of others; that of a directory is shown by its path";
            return Err(pando_fs::Error::NotPermitted { name: "policies".into(), why }.into());
        }
        let found = self.fs.policies_in(shows.source)?;
        self.begin_text(c, on, found.iter().map(asked::listed_policy).collect())
    }

    /// Begins to name the snapshots of directories that are gone.
    fn begin_gone(&self, c: &Context, on: (u64, u64), token: &Token, stop: &Stop) -> Result<(), Refusal> {
        let shows = self.shown(c, token)?;
        if !self.is_root(c, &shows) {
            let why = "only root may see those of directories that are gone";
            return Err(pando_fs::Error::NotPermitted { name: "snapshots".into(), why }.into());
        }
        self.has_it_whole(&shows)?;
        let gone = self.fs.snapshots_of_gone_unless(stop.flag())?;
        let told = self.spent_by_each(&gone, stop)?;
        let text = gone.iter().zip(&told).map(|(info, used)| asked::gone_line(info, used)).collect();
        self.begin_text(c, on, text)
    }

    /// Begins an answer that is text.
    fn begin_text(&self, c: &Context, on: (u64, u64), text: String) -> Result<(), Refusal> {
        match self.diffs.begin_bytes(c.uid, on, text.into()) {
            true => Ok(()),
            false => Err(Refusal(libc::EAGAIN, "too much is being told; try again".into())),
        }
    }

    fn usage(&self, c: &Context, shows: &ProvenRights) -> Done {
        let root = self.sees_all(c, shows);
        if !root {
            self.may_enter(shows)?;
            let caller = caller(c);
            self.fs.may_see_all(&caller, shows.source)?;
        }
        self.write_out_below(shows.source);
        let usage = self.fs.usage(shows.source)?;
        Ok(Response { message: control::encode_usage(&(&usage).into()), ..Response::default() })
    }

    /// What several snapshots take together. As of one alone, the caller must be allowed to see all that is in them.
    fn usage_together(
        &self,
        c: &Context,
        shows: &ProvenRights,
        ranges: &[(u32, u32)],
        gone: bool,
    ) -> Result<pando_fs::Usage, Refusal> {
        let all = if gone {
            if !self.is_root(c, shows) {
                let why = "only root may see those of directories that are gone";
                return Err(pando_fs::Error::NotPermitted { name: "snapshots".into(), why }.into());
            }
            self.has_it_whole(shows)?;
            self.fs.snapshots_of_gone()?
        } else {
            self.fs.snapshots_of(shows.source, 0, usize::MAX)?
        };
        let meant = |number| ranges.iter().any(|(first, last)| (*first..=*last).contains(&number));
        let meant: Vec<_> = all.iter().filter(|info| meant(info.number)).collect();
        if !gone && !self.sees_all(c, shows) {
            self.may_enter(shows)?;
            let caller = caller(c);
            let top = self.fs.lookup(shows.source, OsStr::new(".snapshots"))?.ino;
            let may_see = |info: &&SnapshotInfo| {
                let ino = self.fs.lookup(top, &info.name)?.ino;
                let seen = self.fs.may_see_all(&caller, ino);
                self.fs.forget(ino, 1);
                seen
            };
            let seen = meant.iter().try_for_each(may_see);
            self.fs.forget(top, 1);
            seen?;
        }
        let numbers: Vec<u32> = meant.iter().map(|info| info.number).collect();
        Ok(self.fs.usage_of_snapshots(&numbers)?)
    }

    fn grow(&self, shows: &ProvenRights, size: u64) -> Done {
        if !shows.root && shows.uid != self.owner {
            return Err(pando_fs::Error::NotPermitted {
                name: "grow".into(),
                why: "only root and the user who mounted it may make a file system larger",
            }
            .into());
        }
        if shows.adds_to.is_none() {
            return Err(pando_fs::Error::Access("grow".into()).into());
        }
        self.fs.grow(size)?;
        done(0)
    }

    fn clone_tree(
        &self,
        c: &Context,
        shows: &ProvenRights,
        name: &OsStr,
        (replace, track): (bool, bool),
        exclude: &[PathBuf],
    ) -> Done {
        let Some(dir) = shows.adds_to.filter(|_| Token::of_name(name).is_none()) else {
            return Err(pando_fs::Error::Access(name.to_string_lossy().into_owned()).into());
        };
        let begun = std::time::Instant::now();
        // Other files have nothing in the clone.
        self.write_out_below(shows.source);
        let unstored = self.unstored_below(shows.source);
        let rights = shows.about(dir, name);
        let mounted = replace.then(|| self.keep_mounted(c.pid));
        let report = match self.fs.snapshot_of(shows.source) {
            Some(_) if !exclude.is_empty() => {
                let text = "what is excluded is left out of clones of directories, not of snapshots";
                return Err(pando_fs::Error::Invalid(text.into()).into());
            }
            Some(_) if track => {
                let text = "a fork is made of a live directory; make a clone of the snapshot, and fork that";
                return Err(pando_fs::Error::Invalid(text.into()).into());
            }
            Some(_) => {
                self.fs.clone_snapshot(Authority::Verified(&rights), shows.source, (dir, name), replace)?
            }
            None if track => self.fs.fork_verified(&rights, shows.source, (dir, name), replace, exclude)?,
            None => self.fs.clone_verified(&rights, shows.source, (dir, name), replace, exclude)?,
        };
        drop(mounted);
        self.drop_stale(&report);
        let message = if unstored > 0 { unstored.to_string() } else { String::new() };
        let took = begun.elapsed();
        self.fs.clone_took(&report, took);
        Ok(Response { value: took.as_micros() as u64, message, ..Response::default() })
    }

    fn snapshots(&self, c: &Context, shows: &ProvenRights, asked: Asked, stop: &Stop) -> Done {
        let source = shows.source;
        let entry = shows.removes.as_ref().filter(|(.., ino)| *ino == source);
        let rights = match entry {
            Some((dir, name, _)) => shows.about(*dir, name),
            None => shows.about(0, OsStr::new("")),
        };
        // This shows that the mount may be written to, and the directory by the caller. (A rollback shows a removal.)
        let reads = matches!(
            asked,
            Asked::List(_)
                | Asked::Rollback(..)
                | Asked::Policy
                | Asked::Unstored
                | Asked::Together(..)
                | Asked::Alike(..)
                | Asked::Mounted(..)
        );
        if !reads && !shows.adds_to_source() {
            return Err(pando_fs::Error::Access("snapshots".into()).into());
        }
        let by = Authority::Verified(&rights);
        let named = |infos: &[SnapshotInfo]| infos.iter().map(asked::line).collect::<String>();
        let mut answer = Response::default();
        match asked {
            Asked::List(from) => {
                let knows_path = shows.owns_source || self.is_root(c, shows);
                for mut info in self.fs.snapshots_of(source, from, MAX_LISTED_SNAPSHOTS)? {
                    if !knows_path {
                        info.source.clear(); // may lie behind what the caller can reach
                    }
                    let line = asked::line(&info);
                    if answer.message.len() + line.len() > MAX_TEXT_BYTES {
                        answer.value = info.number.into();
                        return Ok(answer);
                    }
                    answer.message += &line;
                    answer.value = u64::from(info.number) + 1;
                }
                if self.fs.snapshots_of(source, answer.value as u32, 1)?.is_empty() {
                    answer.value = 0;
                }
            }
            Asked::Create(new) => {
                self.write_out_below(source);
                answer.value = self.unstored_below(source);
                let (info, report) = self.fs.snapshot(by, source, &new)?;
                self.drop_stale(&report);
                answer.message = named(&[info]);
            }
            Asked::Take(new, token) => {
                let tree = self.shown(c, &Token(token))?;
                self.write_out_below(tree.source);
                let tree_rights = tree.about(0, OsStr::new(""));
                let tree = (Authority::Verified(&tree_rights), tree.source);
                let (info, report) = self.fs.snapshot_of_tree(by, source, tree, &new)?;
                self.drop_stale(&report);
                answer.message = named(&[info]);
            }
            Asked::Delete(number) => {
                let mounted = self.keep_mounted(c.pid);
                let report = self.fs.delete_snapshot(by, source, number)?;
                drop(mounted);
                self.drop_stale(&report);
            }
            Asked::Rename(number, name) => {
                let mounted = self.keep_mounted(c.pid);
                let report = self.fs.rename_snapshot(by, source, number, &name)?;
                drop(mounted);
                self.drop_stale(&report);
            }
            Asked::Keep(number, keep) => self.drop_stale(&self.fs.keep_snapshot(by, source, number, keep)?),
            Asked::Together(ranges, gone) => {
                let usage = self.usage_together(c, shows, &ranges, gone)?;
                answer.message = control::encode_usage(&(&usage).into());
            }
            Asked::Mounted(from, gone) => return self.mounted_snapshots(c, shows, (from, gone)),
            Asked::Alike(from, path) => return self.alike(c, shows, (from, &path), stop),
            Asked::DeleteGone(number) => {
                self.has_it_whole(shows)?;
                let mounted = self.keep_mounted(c.pid);
                let report = self.fs.delete_gone_snapshot(by, number)?;
                drop(mounted);
                self.drop_stale(&report);
            }
            Asked::Adopt(number, top) => {
                self.has_it_whole(&self.shown(c, &Token(top))?)?;
                self.drop_stale(&self.fs.adopt_snapshots(by, source, number)?);
            }
            Asked::Policy => {
                let policy = self.fs.policy_of(source)?;
                answer.message = policy.as_ref().map(asked::policy_line).unwrap_or_default();
            }
            Asked::Free(percent) => answer.value = self.fs.becomes_free(percent, stop.flag())?.into(),
            Asked::Unstored => answer.value = self.unstored_below(source),
            Asked::SetPolicy(policy) => {
                self.fs.set_policy(by, source, policy.as_ref())?;
                self.automatic.changed();
            }
            Asked::Rollback(number, discard) => {
                self.write_out_below(source);
                let mounted = self.keep_mounted(c.pid);
                let (report, before) = self.fs.rollback(by, source, number, discard)?;
                drop(mounted);
                self.drop_stale(&report);
                answer.message = named(before.as_slice());
            }
        }
        Ok(answer)
    }

    fn remove_tree(&self, c: &Context, shows: &ProvenRights, fork: bool) -> Done {
        let Some((dir, name, _)) = &shows.removes else {
            return Err(pando_fs::Error::Access("remove".into()).into());
        };
        let rights = shows.about(*dir, name);
        let mounted = self.keep_mounted(c.pid);
        let report = match fork {
            true => self.fs.discard_verified(&rights, *dir, name)?,
            false => self.fs.remove_verified(&rights, *dir, name)?,
        };
        drop(mounted);
        self.drop_stale(&report);
        done(report.micros)
    }
}
