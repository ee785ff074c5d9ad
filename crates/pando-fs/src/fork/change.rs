//! The part of a merge that gives files the attributes and the content that the plan says.
//!
//! Content is cloned. A file with new content is a new file, as when a program writes one and renames it to its place.
//! Guarantees that no file gets a privilege from one side and content from the other.

use bytes::Bytes;

use crate::{
    attrs::CAPABILITY,
    data::without_set_id,
    diff::{change::Aspects, side::Found},
    error::Result,
    fork::{apply::Apply, hidden::AttributeChange, step::differ},
    limits::BLOCK_SIZE,
    path,
    record::{Record, Stored},
    types::FileKind,
};

/// The content that a file gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentOf {
    /// The file keeps its own content.
    Here,
    /// The file keeps its own content, in a new file.
    Copy,
    Fork,
    Both,
}

impl Apply<'_> {
    fn found(&mut self, (from, to): (&[u8], &[u8])) -> Result<Option<(Found, Found)>> {
        if to.is_empty() {
            return Ok(Some((self.trees.ours.top()?, self.trees.theirs.top()?)));
        }
        let (ours, theirs) = (self.trees.ours.value(to)?, self.trees.theirs.value(from)?);
        let (Some(ours), Some(theirs)) = (ours, theirs) else { return Ok(None) };
        Ok(Some((self.trees.ours.found(to, &ours)?, self.trees.theirs.found(from, &theirs)?)))
    }

    /// Whether an entry is a linked file of the lineage around the hidden tree, so that it changes at the end. A linked
    /// file of another lineage changes now, and this notes that there is a change in that lineage.
    fn defer_linked(&mut self, entry: &[u8]) -> Result<bool> {
        let is_name = |value: &Bytes| matches!(Stored::decode(value), Ok(Stored::Name(_)));
        if self.hidden.is_none() || !self.trees.ours.value(entry)?.as_ref().is_some_and(is_name) {
            return Ok(false);
        }
        let root = self.root_of(entry)?;
        let Some(hidden) = &mut self.hidden else { return Ok(false) };
        let around = hidden.root == root;
        if !around {
            hidden.areas.insert(root);
        }
        Ok(around)
    }

    /// Gives `entry` the aspects of the entry `from` of the fork; `text` is content that was merged from both sides.
    pub(crate) fn change(
        &mut self,
        (from, entry): (&[u8], &[u8]),
        aspects: Aspects,
        content: ContentOf,
        text: Option<&Bytes>,
    ) -> Result<()> {
        let Some((ours, theirs)) = self.found((from, entry))? else { return Ok(()) };
        let has = |one: Aspects| aspects.0 & one.0 != 0;
        let mut record = ours.record.clone();
        record.ctime = self.now;
        if has(Aspects::XATTRS) {
            record.attrs = theirs.record.attrs.clone();
        }
        if has(Aspects::MODE) {
            record.perm = theirs.record.perm;
        }
        if has(Aspects::OWNER) {
            (record.uid, record.gid) = (theirs.record.uid, theirs.record.gid);
        }
        self.drop_mixed_privileges(&mut record, (&ours, &theirs), content)?;
        if matches!(content, ContentOf::Fork | ContentOf::Both) {
            return self.change_content(entry, (&ours, &theirs), record, has(Aspects::XATTRS), text);
        }
        if content == ContentOf::Copy {
            self.entry_changes(entry);
            self.remove_for(entry, true)?;
            self.relocated.replaced(entry);
        }
        let outside = ours.record.has_outside() || theirs.record.has_outside();
        let change = AttributeChange {
            entry: entry.to_vec(),
            before: ours.record,
            after: record,
            attrs: (has(Aspects::XATTRS) && outside).then_some(theirs.data),
            alone: if content == ContentOf::Copy { Some(self.fs.fresh_file()?) } else { None },
        };
        if self.defer_linked(entry)?
            && let Some(hidden) = &mut self.hidden
        {
            if change.attrs.is_some() {
                hidden.watched.gets_attributes(change.before.fileno);
            }
            hidden.linked.push(change);
            return Ok(());
        }
        if change.alone.is_some() {
            change.put_copy(&mut self.batch, &ours.data, &self.trees.ours.place(entry), &change.after);
            return Ok(());
        }
        change.put(&mut self.batch, &ours.data, &change.after);
        if let Some(inode) = self.inode(entry, &change.before)? {
            self.changed.push((inode, change.after));
        }
        Ok(())
    }

    /// Content of one side must not get privileges that only the other side gave: set-id bits and capabilities stay
    /// only if content, mode, owner and capabilities are all those of one side.
    fn drop_mixed_privileges(
        &self,
        record: &mut Record,
        (ours, theirs): (&Found, &Found),
        content: ContentOf,
    ) -> Result<()> {
        let perm = without_set_id(record.perm);
        let capable = record.attrs.get(CAPABILITY).is_some();
        if record.kind != FileKind::Regular || perm.is_none() && !capable {
            return Ok(());
        }
        let all_of = |side: &Found| {
            let r = &side.record;
            (r.perm, r.uid, r.gid) == (record.perm, record.uid, record.gid)
                && r.attrs.get(CAPABILITY) == record.attrs.get(CAPABILITY)
        };
        let one_side = match content {
            ContentOf::Both => false,
            ContentOf::Fork => all_of(theirs),
            ContentOf::Here | ContentOf::Copy if all_of(ours) => true,
            ContentOf::Here | ContentOf::Copy => {
                let apart = differ(&self.trees.theirs, theirs, &self.trees.ours, ours)?;
                all_of(theirs) && apart.0 & (Aspects::CONTENT.0 | Aspects::SIZE.0) == 0
            }
        };
        if !one_side {
            record.perm = perm.unwrap_or(record.perm);
            if capable {
                record.attrs = record.attrs.without(CAPABILITY);
            }
        }
        Ok(())
    }

    /// Replaces a file by a new one with the content of the fork or with the merged `text`, like a program that writes
    /// a new file and renames it: a program that has the old file open keeps it, and a kernel that keeps sizes itself
    /// gets a new inode number.
    fn change_content(
        &mut self,
        entry: &[u8],
        (ours, theirs): (&Found, &Found),
        attributes: Record,
        attrs: bool,
        text: Option<&Bytes>,
    ) -> Result<()> {
        let (from, to) = (&theirs.record, path::data(&self.trees.ours.place(entry)));
        let stay = !attrs && ours.record.has_outside();
        if stay {
            self.batch.clone_prefix(path::attrs_under(&ours.data), self.aside(u32::MAX, 0));
        }
        self.entry_changes(entry);
        self.remove(entry)?;
        self.relocated.replaced(entry);
        let record = Record {
            fileno: self.fs.fresh_file()?,
            pin: None,
            nlink: 1,
            size: text.map_or(from.size, |text| text.len() as u64),
            dense: if text.is_some() { None } else { from.dense },
            symlink: from.symlink.clone(),
            rdev: from.rdev,
            // Build tools compare it: files that were built here since the fork wrote the file have to count as older
            // than the new content.
            mtime: self.now,
            crtime: self.now,
            ..attributes
        };
        // Extended attributes lie beside the blocks.
        if let Some(text) = text {
            for (block, bytes) in (0..).zip(text.chunks(BLOCK_SIZE as usize)) {
                self.batch.put(path::block(&to, block), text.slice_ref(bytes));
            }
            if attrs && from.has_outside() {
                self.batch.clone_prefix(path::attrs_under(&theirs.data), path::attrs_under(&to));
            }
        } else {
            if from.has_data() {
                self.batch.clone_prefix(theirs.data.clone(), to.clone());
            }
            if !attrs && from.has_outside() {
                self.batch.delete_prefix(path::attrs_under(&to));
            }
        }
        if stay {
            self.batch.rename_prefix(self.aside(u32::MAX, 0), path::attrs_under(&to));
        }
        self.batch.put(path::meta(&self.trees.ours.place(entry)), record.encode());
        Ok(())
    }
}
