//! Whether this side has left something of the origin as it was, so that a merge may remove or replace it.

use bytes::Bytes;

use crate::{
    diff::{
        links::LinkScan,
        side::{DirPair, Identity, contents_of, identity},
        stream::{DiffStream, Spot},
    },
    error::Result,
    fork::{
        follow::in_dir,
        planner::Planner,
        step::{EntryPaths, differ, kind, without_times},
    },
    path,
    types::FileKind,
};

impl Planner<'_> {
    /// Whether this side has an entry of the origin unchanged. Of a directory some entries may have been removed, but
    /// none that would come back with another directory.
    pub(crate) fn is_as_it_was(&mut self, paths: &EntryPaths, base: &Bytes, ours: &Bytes) -> Result<bool> {
        let (b, o) = (self.trees.base.found(&paths.base, base)?, self.trees.ours.found(&paths.ours, ours)?);
        if b.record.kind != o.record.kind
            || !without_times(differ(&self.trees.base, &b, &self.trees.ours, &o)?).is_empty()
        {
            return Ok(false);
        }
        if b.record.kind != FileKind::Directory {
            return Ok(true);
        }
        let (was, is) = (contents_of(&paths.base), contents_of(&paths.ours));
        let places = (self.trees.base.place(&was), self.trees.ours.place(&is));
        let mut stream = DiffStream::new(&self.trees.base.view, (&places.0, &places.1), true)?;
        let mut roots = vec![Vec::new()];
        while let Some(spot) = stream.next()? {
            self.merging.bounds.go_on()?;
            let path = match spot {
                Spot::Entry { path, .. } => path,
                Spot::Links(root) => {
                    roots.push(root.to_vec());
                    continue;
                }
            };
            if let Some(out) = self.moved_out(&was, path::directory_of(&path))? {
                stream.skip(&out);
                continue;
            }
            let (a, b) = ([&was[..], &path].concat(), [&is[..], &path].concat());
            let (base, ours) = (self.trees.base.value(&a)?, self.trees.ours.value(&b)?);
            let id = base.as_ref().map(|base| identity(&a, base)).transpose()?;
            if let Some(id) = id {
                let goes = self.follow.leaves(id, &a);
                // An entry that this side has moved out was not removed by it.
                if !goes && self.follow.left_here(id, &a) {
                    return Ok(false);
                }
                if goes && id.1 == FileKind::Directory {
                    stream.skip(&contents_of(&path));
                }
                // An entry that the fork has moved out is merged at its path in the fork.
                if goes && ours.as_ref().map(|ours| identity(&b, ours)).transpose()?.is_none_or(|o| o == id) {
                    continue;
                }
            }
            let Some(ours) = ours else {
                match id {
                    Some(id) if self.comes_back(id, &a)? => return Ok(false),
                    _ => continue,
                }
            };
            let Some(base) = base else { return Ok(false) };
            let (x, y) = (self.trees.base.found(&a, &base)?, self.trees.ours.found(&b, &ours)?);
            if x.record.kind != y.record.kind
                || !without_times(differ(&self.trees.base, &x, &self.trees.ours, &y)?).is_empty()
            {
                return Ok(false);
            }
        }
        if !self.links {
            return Ok(true);
        }
        for root in roots {
            let pair = DirPair { before: [&was[..], &root].concat(), after: [&is[..], &root].concat() };
            let trees = &mut *self.trees;
            let Some(mut scan) = LinkScan::new(pair.clone(), &mut trees.base, &mut trees.ours)? else {
                continue;
            };
            while let Some((name, base)) = scan.next(&self.trees.base)? {
                let (a, b) = ([&pair.before[..], &name].concat(), [&pair.after[..], &name].concat());
                let Some(ours) = self.trees.ours.value(&b)? else { continue };
                let (b, o) = (self.trees.base.found(&a, &base)?, self.trees.ours.found(&b, &ours)?);
                if !without_times(differ(&self.trees.base, &b, &self.trees.ours, &o)?).is_empty() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The topmost directory that the fork has moved, of those from the directory `from` of the origin down to `dir` in
    /// it: its contents prefix, from there.
    fn moved_out(&self, from: &[u8], dir: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut at = 0;
        while let Some((entry, contents)) = path::next_level(dir, at) {
            let entry = [from, &entry].concat();
            if let Some(value) = self.trees.base.value(&entry)?
                && self.follow.leaves(identity(&entry, &value)?, &entry)
            {
                return Ok(Some(contents.to_vec()));
            }
            at = contents.len();
        }
        Ok(None)
    }

    /// Whether an entry that this side has deleted comes back with a directory that the fork has moved, perhaps with
    /// other content.
    fn comes_back(&mut self, id: Identity, entry: &[u8]) -> Result<bool> {
        if !self.follow.has_aside_there() {
            return Ok(false);
        }
        let dir = self.follow.ever_dir(self.trees, path::directory_of(entry))?;
        let place = in_dir(&dir, entry);
        match self.trees.theirs.value(&place)? {
            Some(value) => Ok(kind(&place, &value)? == id.1),
            None => Ok(false),
        }
    }
}
