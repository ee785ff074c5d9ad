//! Merges what is of one kind on all sides, aspect by aspect: what only the fork has changed is taken, what both sides
//! have changed differently is a conflict.

use crate::{
    diff::{change::Aspects, side::Found},
    error::Result,
    fork::{
        planner::Planner,
        report::{MergeConflict, MergeKind},
        step::{EntryPaths, Step, differ},
        text::MergedText,
    },
    path,
    types::FileKind,
};

/// What is content of a file.
pub(crate) const CONTENT_AND_SIZE: Aspects = Aspects(Aspects::CONTENT.0 | Aspects::SIZE.0);

/// What of a file is merged on its own.
const GROUPS: [Aspects; 6] =
    [CONTENT_AND_SIZE, Aspects::MODE, Aspects::OWNER, Aspects::TARGET, Aspects::DEVICE, Aspects::XATTRS];

impl Planner<'_> {
    /// Merges what is of one kind on all sides, aspect by aspect.
    pub(crate) fn merge_found(
        &mut self,
        paths: &EntryPaths,
        base: Option<&Found>,
        theirs: &Found,
        ours: &Found,
    ) -> Result<()> {
        let trees = &*self.trees;
        let apart = differ(&trees.theirs, theirs, &trees.ours, ours)?;
        let (there, here) = match base {
            Some(base) => {
                let there = differ(&trees.base, base, &trees.theirs, theirs)?;
                match there.is_empty() {
                    true => return Ok(()),
                    false => (there, differ(&trees.base, base, &trees.ours, ours)?),
                }
            }
            None => (apart, apart),
        };
        let (mut take, mut clash) = (Aspects::default(), Aspects::default());
        for group in GROUPS {
            let has = |aspects: Aspects| aspects.0 & group.0 != 0;
            if has(there) && has(apart) {
                let to = if has(here) { &mut clash } else { &mut take };
                to.0 |= group.0;
            }
        }
        if take.is_empty() && clash.is_empty() {
            return Ok(());
        }
        let mut lines = None;
        if let Some(base) = base
            && clash.contains(Aspects::CONTENT)
        {
            lines = self.lines(base, theirs, ours)?;
        }
        if lines.is_some() {
            clash.0 &= !CONTENT_AND_SIZE.0;
        }
        if !clash.is_empty() {
            if self.conflict(paths, MergeConflict::Changed, Aspects(clash.0 & (there.0 | apart.0)))? {
                take.0 |= clash.0;
            }
        } else {
            let (kind, content) = match &lines {
                None => (MergeKind::Modified, 0),
                Some(text) if text.marked => (MergeKind::Marked, CONTENT_AND_SIZE.0),
                Some(_) => (MergeKind::Lines, CONTENT_AND_SIZE.0),
            };
            self.tell(paths, kind, Aspects((take.0 | content) & there.0))?;
        }
        if take.is_empty() && lines.is_none() {
            return Ok(());
        }
        self.owned(&paths.ours, ours.record.uid)?;
        self.owned(&paths.ours, theirs.record.uid)?;
        let (from, to, aspects) = (paths.theirs.clone(), paths.ours.clone(), take);
        if let Some(text) = lines {
            self.add_step(Step::Write { from, to, aspects, text: text.bytes })?;
            return Ok(());
        }
        let step = Step::Change { from, to, aspects, alone: false };
        let is_linked = ours.record.kind != FileKind::Directory
            && ours.data != path::data(&self.trees.ours.place(&paths.ours));
        if is_linked && !step.makes_file() {
            self.linked.entry(ours.data.clone()).or_default().push(self.steps.len());
        }
        self.add_step(step)
    }

    /// The lines of both sides, if they are wanted and can be had; with markers only if no side is preferred.
    fn lines(&mut self, base: &Found, theirs: &Found, ours: &Found) -> Result<Option<MergedText>> {
        // The merged file shows its user lines of all three versions, and the origin may have another owner.
        let may_read = |found: &Found| self.merging.owner.is_none_or(|owner| owner == found.record.uid);
        if !self.merging.options.text || ![base, theirs, ours].into_iter().all(may_read) {
            return Ok(None);
        }
        let t = &*self.trees;
        let merged = self.text.merge_lines((&t.base, base), (&t.theirs, theirs), (&t.ours, ours))?;
        Ok(merged.filter(|text| !text.marked || self.merging.options.prefer.is_none()))
    }
}
