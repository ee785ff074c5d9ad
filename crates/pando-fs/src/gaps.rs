//! Removes linked files that have no name in a snapshot, or in the origin of a fork, from that volume.
//!
//! The snapshot of a directory below the root of its lineage gets all linked files of the lineage, because that is one
//! message. Files that have no name in it are seen by no reader, and would keep their space until it is deleted. The
//! names in a volume never change, so it takes no lock to find out which files those are: in the order of their
//! numbers, the files with names leave gaps, and a gap is removed by two range deletes. Only gaps are removed that are
//! worth these, and the largest ones if there are many. An interrupted removal begins again. Guarantee: what is read of
//! a volume is the same before, meanwhile and afterwards. Reads in proportion to the names in the volume.

use bytes::Bytes;
use pando_db::{Batch, Snapshot};

use crate::{
    error::{Error, Result},
    format::FEATURE_ACCOUNTS,
    path::{self, system},
    record::{Record, Stored},
    volume::Fs,
};

/// Files of a gap that are looked at, a count: if there are so many, it is removed whatever they take. Otherwise
/// [`crate::MountOptions::nameless_bytes`] says how much they have to take.
const MANY_FILES: u32 = 64;
/// Most gaps of a volume that are removed, a count.
const MOST_GAPS: usize = 1024;
/// Bytes of keys in a batch that removes gaps, roughly: a full store takes small batches only. They are no releases
/// ([`Batch::releases`]): each changes many places, and the room kept for those is for the deletion of a whole volume.
const BATCH_BYTES: usize = 6 << 10;
/// Bytes that extended attributes outside of a record may take.
const OUTSIDE_BYTES: u64 = 64 << 10;

/// The files without a name between two files with names, by number.
#[derive(Debug, Clone, Default)]
struct LinkGap {
    /// The one before; `None` if there is none.
    after: Option<u64>,
    /// The one behind it.
    until: Option<u64>,
    /// What was found in it: bytes, and files, a count.
    bytes: u64,
    files: u32,
}

impl LinkGap {
    fn add(&mut self, record: &Record, value: &[u8]) {
        let outside = if record.has_outside() { OUTSIDE_BYTES } else { 0 };
        let bytes = record.size.saturating_add(value.len() as u64 + outside);
        self.bytes = self.bytes.saturating_add(bytes);
        self.files += 1;
    }

    /// Its keys in a region, in the area of the root with this contents prefix.
    fn keys(&self, root: &[u8], region: fn(&[u8]) -> Bytes) -> (Bytes, Option<Bytes>) {
        let (area, key) = (region(&path::all_linked(root)), |id| region(&path::linked(root, id)));
        let lo = self.after.and_then(|id| path::behind(&key(id)));
        let hi = self.until.map_or_else(|| path::behind(&area), |id| Some(key(id)));
        (lo.unwrap_or(area), hi)
    }
}

/// The gaps that are removed.
struct LinkGaps {
    /// Bytes that are worth a removal.
    least: u64,
    largest: Vec<LinkGap>,
}

impl LinkGaps {
    fn add(&mut self, gap: LinkGap) {
        if gap.files >= MANY_FILES || gap.files > 0 && gap.bytes >= self.least {
            self.largest.push(gap);
            if self.largest.len() >= 2 * MOST_GAPS {
                self.keep_largest();
            }
        }
    }

    fn keep_largest(&mut self) {
        self.largest.sort_unstable_by_key(|gap| std::cmp::Reverse((gap.bytes, gap.files)));
        self.largest.truncate(MOST_GAPS);
    }

    fn done(mut self) -> Vec<LinkGap> {
        self.keep_largest();
        self.largest.sort_unstable_by_key(|gap| gap.after);
        self.largest
    }
}

fn damaged(detail: &'static str) -> Error {
    Error::Damaged { what: "link area of a snapshot".into(), detail }
}

/// The numbers of the files that have names in the lineage with the root `root`, ascending; `None` if `go_on` says no.
/// An entry of the index that cannot be read is an error, because its file would go.
fn named(view: &Snapshot, root: &[u8], go_on: &mut dyn FnMut() -> bool) -> Result<Option<Vec<u64>>> {
    let index = path::meta(&path::link_name(root, root).unwrap_or_default());
    let (mut ids, mut names) = (Vec::new(), view.prefix(&index));
    while let Some((_, value)) = names.next_ref()? {
        match Stored::decode(value).map_err(damaged)? {
            Stored::Indexed(id) => ids.push(id),
            _ => return Err(damaged("not an entry of the index of names")),
        }
        if !go_on() {
            return Ok(None);
        }
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(Some(ids))
}

/// The gaps between the files `ids`, ascending, that have at least so many bytes, or many files; `None` if `go_on` says
/// no.
fn gaps(
    view: &Snapshot,
    root: &[u8],
    (ids, least): (&[u64], u64),
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Option<Vec<LinkGap>>> {
    let area = path::meta(&path::all_linked(root));
    let (mut found, mut gap) = (LinkGaps { least, largest: Vec::new() }, LinkGap::default());
    let mut ids = ids.iter().copied().peekable();
    let mut files = view.prefix(&area);
    while let Some((key, value)) = files.next_ref()? {
        if !go_on() {
            return Ok(None);
        }
        let id = path::link_id_of(&area, key).ok_or_else(|| damaged("impossible key"))?;
        while let Some(named) = ids.next_if(|named| *named <= id) {
            let next = LinkGap { after: Some(named), ..LinkGap::default() };
            found.add(LinkGap { until: Some(named), ..std::mem::replace(&mut gap, next) });
        }
        if gap.after == Some(id) {
            continue;
        }
        gap.add(&Record::decode(value).map_err(damaged)?, value);
        if gap.files == MANY_FILES {
            match ids.peek() {
                Some(named) => files.seek(&path::meta(&path::linked(root, *named))),
                None => break,
            }
        }
    }
    found.add(LinkGap { until: ids.next(), ..gap });
    Ok(Some(found.done()))
}

impl Fs {
    /// Removes files without a name from the volumes that wait for it. What cannot be done in one of them waits until
    /// this is called again.
    pub(crate) fn strip_volumes(&self, mut go_on: impl FnMut() -> bool) -> Result<()> {
        let mut after = system::all_to_strip();
        // Those that are made meanwhile have higher numbers, and wait for the next call.
        let Some((last, _)) = self.db.prefix(&after).next_back().transpose()? else { return Ok(()) };
        let behind = path::behind(&last);
        let mut done = Ok(());
        while let Some((key, _)) = self.db.range(&after, behind.as_deref()).next().transpose()? {
            match self.strip_volume(&key, &mut go_on) {
                Ok(true) => {}
                Ok(false) => break,
                // Another volume may be good.
                Err(e) => done = done.and(Err(e)),
            }
            after = Bytes::from([&key[..], &[0]].concat());
        }
        done
    }

    /// Removes files without a name from the volume that a key of the queue names, and the key; false if `go_on` has
    /// said no. If the volume has been deleted meanwhile, this removes nothing: no other volume gets its number.
    ///
    /// Nothing is removed from a tree in the directory of the snapshot if there are quotas: an account in the snapshot
    /// may count the files, and would be wrong in what is made of it.
    fn strip_volume(&self, key: &Bytes, go_on: &mut dyn FnMut() -> bool) -> Result<bool> {
        let (number, inside) = system::strip_parts(key).ok_or_else(|| damaged("impossible key"))?;
        if !inside.is_empty() && self.has_feature(FEATURE_ACCOUNTS) {
            self.db.delete(key.clone())?;
            return Ok(true);
        }
        let root = [&path::snapshot(number)[..], inside].concat();
        // Held while the names and the gaps are looked at, not while these are removed.
        let found = {
            let view = self.db.snapshot();
            let Some(ids) = named(&view, &root, go_on)? else { return Ok(false) };
            let Some(gaps) = gaps(&view, &root, (&ids, self.nameless_bytes), go_on)? else {
                return Ok(false);
            };
            if !gaps.is_empty() && (ids.is_empty() || !inside.is_empty()) {
                self.ledger.note_stripped(number);
            }
            gaps
        };
        let (mut batch, mut bytes) = (Batch::new(), 0);
        for gap in found {
            for region in [path::meta, path::data] {
                let (lo, hi) = gap.keys(&root, region);
                bytes += lo.len() + hi.as_ref().map_or(0, Bytes::len);
                batch.delete_range(lo, hi);
            }
            if bytes >= BATCH_BYTES {
                self.db.write(std::mem::take(&mut batch))?;
                bytes = 0;
                if !go_on() {
                    return Ok(false);
                }
            }
        }
        batch.delete(key.clone());
        self.db.write(batch)?;
        self.ledger.forget_frozen(&path::snapshot(number));
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{ffi::OsStr, sync::Arc};

    use pando_db::device::SimDevice;

    use super::*;
    use crate::{
        domain::linked_record,
        types::{Authority, Caller, FormatOptions, MountOptions, NewSnapshot, ROOT},
    };

    fn open(device: &Arc<SimDevice>) -> Fs {
        let options = MountOptions::default().background(false).nameless_bytes(0);
        Fs::open(device.clone(), options).unwrap()
    }

    /// Ends the removal behind each of its batches, by the power.
    #[test]
    fn a_removal_that_was_cut_off_between_two_batches_is_made_again() {
        const FILES: u64 = 300;
        let (mut cut, mut asked) = (0, u64::MAX);
        for back in 0..6 {
            let device = Arc::new(SimDevice::new(64 << 20, back));
            Fs::format(device.clone(), &FormatOptions::default().node_size(16 << 10)).unwrap();
            let (fs, me) = (open(&device), Caller::root());
            let [s, o] = ["s", "o"].map(|name| fs.mkdir(&me, ROOT, name.as_ref(), 0o755).unwrap().ino);
            for i in 0..2 * FILES {
                let dir = [s, o][(i % 2) as usize];
                let file = fs.mknod(&me, dir, format!("f{i}").as_ref(), 0o100_644, 0).unwrap().ino;
                fs.link(&me, file, dir, format!("g{i}").as_ref()).unwrap();
            }
            let by = Authority::Caller(&me);
            let number = fs.snapshot(by, s, &NewSnapshot::default()).unwrap().0.number;
            let root = path::snapshot(number);
            // The last questions whether to go on are asked behind the batches.
            let mut questions = 0;
            fs.strip_volumes(|| {
                questions += 1;
                questions + back < asked
            })
            .unwrap();
            asked = asked.min(questions + 1);
            fs.sync().unwrap();
            device.crash();
            drop(fs);
            let device = device.reopen();
            let fs = open(&device);
            fs.check(|p| panic!("{back}: {p}")).unwrap();
            let left = |fs: &Fs| fs.db.prefix(&path::meta(&path::all_linked(&root))).count() as u64;
            cut += u64::from((FILES + 1..2 * FILES).contains(&left(&fs)));
            fs.count_links().unwrap();
            assert_eq!(left(&fs), FILES, "{back}");
            for id in named(&fs.db.snapshot(), &root, &mut || true).unwrap().unwrap() {
                linked_record(&fs.db.snapshot(), &root, id).unwrap();
            }
            assert!(fs.db.prefix(&system::all_to_strip()).next().is_none());
            assert!(fs.lookup(ROOT, OsStr::new("s")).is_ok());
            fs.check(|p| panic!("{back}, removed: {p}")).unwrap();
        }
        assert!(cut > 0, "vacuous");
    }

    #[test]
    fn of_very_many_gaps_the_largest_are_removed() {
        let mut gaps = LinkGaps { least: 10, largest: Vec::new() };
        for id in 0..5 * MOST_GAPS as u64 {
            // Each fifth has much.
            let bytes = if id % 5 == 0 { 1000 + id } else { id % 20 };
            gaps.add(LinkGap { after: Some(id), until: Some(id + 2), bytes, files: 1 });
        }
        let kept = gaps.done();
        assert_eq!(kept.len(), MOST_GAPS);
        assert!(kept.iter().all(|gap| gap.bytes >= 1000));
        assert!(kept.is_sorted_by_key(|gap| gap.after));
    }

    #[test]
    fn the_keys_of_a_gap_are_those_between_two_files() {
        let root = path::snapshot(7);
        let key = |id| path::block(&path::data(&path::linked(&root, id)), 3);
        let all = [0, 4, 5, 6, 9, u64::MAX].map(key);
        let inside = |after, until| {
            let (lo, hi) = LinkGap { after, until, ..LinkGap::default() }.keys(&root, path::data);
            let is_in = |key: &Bytes| lo <= *key && hi.as_ref().is_none_or(|hi| key < hi);
            all.iter().map(is_in).collect::<Vec<_>>()
        };
        assert_eq!(inside(Some(4), Some(9)), [false, false, true, true, false, false]);
        assert_eq!(inside(None, Some(4)), [true, false, false, false, false, false]);
        assert_eq!(inside(Some(6), None), [false, false, false, false, true, true]);
        assert_eq!(inside(None, None), [true; 6]);
        assert!(path::meta(&root) < path::meta(&path::all_linked(&root)));
    }
}
