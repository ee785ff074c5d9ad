//! What a file or a tree takes.
//!
//! The engine counts by prefix of keys; here a path becomes its prefixes: its own
//! record, and the records and data of what is in it; files with several names count once.

use std::{collections::BTreeSet, path::Path};

use bytes::Bytes;
pub use pando_db::Usage;

use crate::{error::Result, path, place::DirAt, record::Stored, types::Ino, volume::Fs};

/// Most linked files that are counted one by one, a count.
const MAX_LINKED_FILES: usize = 1 << 14;

impl Fs {
    /// The space that `ino` and everything below it takes on the device, and how much of that its removal would free:
    /// see [`Usage`]. Data that the kernel has not sent yet does not count. For a directory with names of more than
    /// 16,384 linked files, all linked files of its clone are counted. Cost: the headers of all interior nodes, and
    /// of the leaves that the tree reaches.
    pub fn usage(&self, ino: Ino) -> Result<Usage> {
        let inode = self.table.get(ino)?;
        // Held only while the prefixes are found: the engine counts a frozen state.
        let prefixes = {
            let at = self.hold(&inode, false)?;
            let mut prefixes = at.prefixes();
            if let Some(dir) = at.dir().filter(|dir| dir.dir.peek(|s| s.record.clone_id == 0)) {
                self.add_linked_below(dir, &mut prefixes)?;
            }
            prefixes
        };
        Ok(self.db.usage_of(&prefixes)?)
    }

    /// Adds the prefixes of the linked files that have names below a directory which is no root itself, each once.
    fn add_linked_below(&self, at: &DirAt, prefixes: &mut Vec<Bytes>) -> Result<()> {
        if at.contents.is_empty() {
            return Ok(());
        }
        let Some(domain) = self.links_below(at, &at.contents)? else { return Ok(()) };
        let mut ids = BTreeSet::new();
        let mut names = self.db.prefix(&domain.index(&at.contents)?);
        while let Some((_, value)) = names.next_ref()? {
            if let Ok(Stored::Indexed(id)) = Stored::decode(value) {
                ids.insert(id);
            }
            if ids.len() > MAX_LINKED_FILES {
                let area = path::all_linked(&domain.contents);
                prefixes.extend([path::meta(&area), path::data(&area)]);
                return Ok(());
            }
        }
        for id in ids {
            let file = domain.linked(id);
            prefixes.extend([path::meta(&file), path::data(&file)]);
        }
        Ok(())
    }

    /// The usage of a snapshot by its number, also if its directory was removed; zero if there is no such snapshot.
    /// Only the volume of the snapshot is read.
    pub fn usage_of_snapshot(&self, number: u32) -> Result<Usage> {
        self.usage_of_snapshots(&[number])
    }

    /// The usage of several together: what they share with each other alone is exclusive.
    pub fn usage_of_snapshots(&self, numbers: &[u32]) -> Result<Usage> {
        let prefixes: Vec<_> = numbers.iter().map(|number| path::volume(*number)).collect();
        Ok(self.db.usage_of(&prefixes)?)
    }

    /// The usage of each of several snapshots, as if it alone were deleted. Cost: as of one with all that they have, so
    /// that many are looked at together much faster than one after the other.
    pub fn usage_of_each_snapshot(&self, numbers: &[u32]) -> Result<Vec<Usage>> {
        let volumes: Vec<_> = numbers.iter().map(|number| vec![path::volume(*number)]).collect();
        Ok(self.db.usage_of_each(&volumes)?)
    }

    /// The usage of what lies at a path, relative to the root.
    pub fn usage_of_path(&self, path: &Path) -> Result<Usage> {
        let attr = self.resolve(path)?;
        let usage = self.usage(attr.ino);
        self.forget(attr.ino, 1);
        usage
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use pando_db::device::MemDevice;

    use crate::{Caller, FormatOptions, MountOptions, ROOT, error::Error};

    use super::*;

    #[test]
    fn paths_are_counted_with_all_that_is_below() {
        let device = Arc::new(MemDevice::new(64 << 20));
        Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
        let fs = Fs::open(device, MountOptions::default().background(false)).unwrap();
        let me = Caller::root();
        let mut noise = 1u64;
        for name in ["a", "b"] {
            let dir = fs.mkdir(&me, ROOT, name.as_ref(), 0o755).unwrap();
            for file in 0..4 {
                let (attr, handle) = fs.create(&me, dir.ino, format!("f{file}").as_ref(), 0o644, 2).unwrap();
                let data: Vec<u8> = (0..200_000)
                    .map(|_| {
                        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        (noise >> 33) as u8
                    })
                    .collect();
                fs.write(handle, attr.ino, 0, &data, false).unwrap();
                fs.release(attr.ino, handle);
                fs.forget(attr.ino, 1);
            }
        }
        fs.db().settle().unwrap();
        let of = |path: &str| fs.usage_of_path(Path::new(path)).unwrap();
        let near = |bytes: u64, wanted: u64| bytes.abs_diff(wanted) < wanted / 8 + 70_000;
        // Where nodes are as small as here, a piece of a file has an extent to itself: 16 KiB and a key in
        // five blocks.
        assert!(near(of("/a").exclusive_bytes, 1_000_000), "{:?}", of("/a"));
        assert!(near(of("/").exclusive_bytes, 2_000_000), "{:?}", of("/"));
        assert!(near(of("/a/f1").visible_bytes, 200_000), "{:?}", of("/a/f1"));
        assert!(near(of("/a/f1").exclusive_bytes, 250_000), "{:?}", of("/a/f1"));
        fs.clone_tree(&me, (ROOT, "a".as_ref()), (ROOT, "c".as_ref()), false).unwrap();
        fs.db().settle().unwrap();
        for path in ["/a", "/c"] {
            let usage = of(path);
            assert!(usage.exclusive_bytes < 150_000 && near(usage.shared_bytes, 1_000_000), "{usage:?}");
        }
        assert!(near(of("/").visible_bytes, 2_400_000), "{:?}", of("/"));
        assert!(matches!(fs.usage_of_path(Path::new("/none")), Err(Error::NotFound(_))));
    }

    /// Random bytes of a file in a directory, which has a second name in the other directory if `linked`.
    fn fill(fs: &Fs, dirs: [u64; 2], name: &str, len: usize, linked: bool) {
        let me = Caller::root();
        let (attr, handle) = fs.create(&me, dirs[0], name.as_ref(), 0o644, 2).unwrap();
        let mut noise = attr.ino;
        let data: Vec<u8> = (0..len)
            .map(|_| {
                noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (noise >> 33) as u8
            })
            .collect();
        fs.write(handle, attr.ino, 0, &data, false).unwrap();
        if linked {
            fs.link(&me, attr.ino, dirs[1], name.as_ref()).unwrap();
            fs.forget(attr.ino, 1);
        }
        fs.release(attr.ino, handle);
        fs.forget(attr.ino, 1);
    }

    /// Linked files lie in the root of their lineage. Those of one directory are distinguished from others up to a
    /// number of them; if there are more, all are counted, as the call says.
    #[test]
    fn of_very_many_linked_files_those_of_the_whole_clone_are_counted() {
        let device = Arc::new(MemDevice::new(256 << 20));
        Fs::format(device.clone(), &FormatOptions::default().node_size(64 << 10)).unwrap();
        let fs = Fs::open(device, MountOptions::default().background(false)).unwrap();
        let me = Caller::root();
        let make = |name: &str| fs.mkdir(&me, ROOT, name.as_ref(), 0o755).unwrap().ino;
        let (many, other) = (make("many"), make("other"));
        fill(&fs, [other, ROOT], "large", 20_000_000, true);
        for i in 0..MAX_LINKED_FILES {
            fill(&fs, [many, other], &format!("f{i}"), 1, true);
        }
        fs.db().settle().unwrap();
        let at_most = fs.usage(many).unwrap().visible_bytes;
        assert!(at_most < 20_000_000, "what others have was counted: {at_most}");
        fill(&fs, [many, other], "one more", 1, true);
        fs.db().settle().unwrap();
        let beyond = fs.usage(many).unwrap().visible_bytes;
        assert!(beyond > at_most + 20_000_000, "{beyond} and {at_most}");
        // One file less, and it is told again.
        fs.unlink(&me, many, "one more".as_ref()).unwrap();
        fs.db().settle().unwrap();
        assert!(fs.usage(many).unwrap().visible_bytes < 20_000_000);
    }
}
