//! Carries a plan out: all its steps go into one batch, or into several on a hidden tree (`hidden`).

use bytes::Bytes;

use crate::{
    error::Result,
    fork::{apply::Apply, bounds::Bounds, change::ContentOf, follow::in_dir, step::Step},
    merge::Change,
    path,
};

impl Apply<'_> {
    /// Adds all steps to the batch, and finds out all that [`Apply::done`] has to know: behind the batch nothing may
    /// fail.
    pub(crate) fn steps(&mut self, steps: &[Step]) -> Result<()> {
        self.load_targets(steps)?;
        // Nothing has been moved yet.
        for step in steps {
            self.bounds.map_or(Ok(()), Bounds::go_on)?;
            match step {
                Step::Change { from, to, aspects, alone } => {
                    let content = match step.makes_file() {
                        true if *alone => ContentOf::Copy,
                        true => ContentOf::Fork,
                        false => ContentOf::Here,
                    };
                    self.change((from, to), *aspects, content, None)?;
                }
                Step::Write { from, to, aspects, text } => {
                    self.change((from, to), *aspects, ContentOf::Both, Some(text))?;
                }
                Step::Remove(entry) => self.entry_changes(entry),
                Step::Take { from, dir, .. } => self.entry_changes(&in_dir(dir, from)),
                Step::Move { from, dir, name } => {
                    self.entry_changes(from);
                    self.entry_changes(&path::entry(dir, name)?);
                }
            }
            self.flush()?;
        }
        let touched = Change::modified(self.now).encode();
        for dir in std::mem::take(&mut self.touched) {
            let key = path::meta_of(&self.data_of_dir(&dir));
            self.batch.upsert(key, touched.clone());
            if let Some(inode) = self.directory(&dir)? {
                self.touched_inodes.insert(dir, inode);
            }
            self.flush()?;
        }
        self.relocate(steps)
    }

    /// Data prefix of the directory with this contents prefix from the top.
    fn data_of_dir(&self, dir: &[u8]) -> Bytes {
        match dir.is_empty() {
            true => self.trees.ours.own_data(),
            false => {
                let entry = path::entry_of_contents(dir).unwrap_or_default();
                path::data(&self.trees.ours.place(&entry))
            }
        }
    }
}
