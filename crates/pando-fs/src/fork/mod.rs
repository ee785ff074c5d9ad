//! Forks as their makers see them: listed, compared with their origin, merged and thrown away.
//!
//! See `forks` for what is stored, and `docs/versions.md`.

mod allowed;
mod apply;
mod arrange;
mod aside;
mod aspects;
mod bounds;
mod brought;
mod change;
mod coming;
mod exchange;
mod fits;
mod follow;
mod hidden;
mod intend;
mod landing;
mod large;
mod lines;
mod linked;
mod merge;
mod origin_file;
mod perform;
mod places;
mod plan;
mod planner;
mod relocate;
mod relocated;
mod replay;
mod report;
mod step;
mod text;
mod unchanged;
mod watched;
mod works;

use std::ffi::OsStr;

use crate::{
    diff::{DiffOptions, TreeDiff, side::Side},
    error::{Error, Result},
    forks::{Fork, damaged},
    inode::InodeRef,
    key_text::directory_path,
    lock::Obstacle,
    path::{self, system},
    rights::may_list,
    types::{Caller, ForkInfo, Ino},
    volume::Fs,
};

pub use origin_file::OriginFile;
pub use report::{MergeChange, MergeConflict, MergeKind, MergeOptions, MergeReport, MergeSide};

fn no_fork(name: String) -> Error {
    Error::Invalid(format!("{name}: not a fork; pando fork makes them"))
}

impl Fs {
    fn fork_info(&self, contents: &[u8], fork: &Fork) -> Result<ForkInfo> {
        let source = self.source_of(fork.number)?;
        Ok(ForkInfo {
            number: fork.number,
            path: directory_path(contents),
            source: source.map(|contents| directory_path(&contents)),
            created: fork.created,
            since: fork.since,
            uid: fork.uid,
        })
    }

    /// All forks, or those of the directory `source`, in the order of their paths. Reads the records of all forks.
    pub fn forks(&self, source: Option<Ino>) -> Result<Vec<ForkInfo>> {
        let of = match source {
            Some(ino) => Some(self.hold_dir(&self.dir(ino)?)?.contents.clone()),
            None => None,
        };
        let view = self.db.snapshot();
        let mut sources = std::collections::HashMap::new();
        let mut pairs = view.prefix(&system::forked_below(of.as_deref().unwrap_or_default()));
        while let Some((key, _)) = pairs.next_ref()? {
            let (contents, number) = system::forked_parts(key).ok_or_else(|| damaged("impossible key"))?;
            if of.as_deref().is_none_or(|of| of == contents) {
                sources.insert(number, directory_path(contents));
            }
        }
        drop(pairs);
        let mut out = Vec::new();
        let mut pairs = view.prefix(&system::forks());
        while let Some((key, value)) = pairs.next_ref()? {
            let fork = Fork::decode(value).map_err(damaged)?;
            let source = sources.remove(&fork.number);
            if of.is_some() && source.is_none() {
                continue;
            }
            let Fork { number, created, since, uid } = fork;
            let path = directory_path(system::fork_contents(key).unwrap_or_default());
            out.push(ForkInfo { number, path, source, created, since, uid });
        }
        Ok(out)
    }

    /// The record of the fork that this directory is; EINVAL if it is none.
    pub fn fork_of(&self, fork: Ino) -> Result<ForkInfo> {
        let dir = self.dir(fork)?;
        let at = self.hold_dir(&dir)?;
        let found = self.fork_at(&at.contents)?.ok_or_else(|| no_fork(dir.label()))?;
        self.fork_info(&at.contents, &found)
    }

    /// What the fork has changed since it was made, or merged last, in the form of [`Fs::diff`]. EACCES if `viewer`
    /// may not read the first state of the fork.
    pub fn diff_fork(&self, viewer: Option<&Caller>, fork: Ino, options: DiffOptions) -> Result<TreeDiff> {
        let dir = self.dir(fork)?;
        let (_, before, after) = self.with_attempts(|_| self.sides_of_fork(viewer, &dir))?;
        Ok(TreeDiff::new(before, after, options, true, self.has_links()))
    }

    /// Its record, its origin and itself, of one moment.
    fn sides_of_fork(&self, viewer: Option<&Caller>, dir: &InodeRef) -> Result<(Fork, Side, Side), Obstacle> {
        let at = self.attempt_dir(dir)?;
        let fork = self.fork_at(&at.contents)?.ok_or_else(|| no_fork(dir.label()))?;
        let view = self.db.snapshot();
        let mark = path::snapshot(fork.number);
        let before = Side::of_place(&view, viewer, (&mark, &mark), mark.clone());
        // The fork may be open by now to those to whom what it was made of never was.
        if let Some(c) = viewer {
            let top = before.top()?;
            if !may_list(c, (&view, &top.data, &top.record)) {
                return Err(Error::Access(dir.label()).into());
            }
        }
        Ok((fork, before, Side::of_dir(&view, viewer, &at, self.domain(&at).contents)))
    }

    /// Removes the fork `name` of `parent`, with everything below it and its origin, in one batch. EINVAL if it is no
    /// fork.
    pub fn discard(&self, c: &Caller, parent: Ino, name: &OsStr) -> Result<crate::types::RemoveReport> {
        self.remove_by(crate::rights::Rights::Of(c), parent, name, true)
    }
}
