//! The order in which differences are sent, and which files with several names are made anew.
//!
//! A difference says what has changed at a name, and not which names are one file. So a file that has, or had,
//! several names is changed in place only if the difference has all its names, before and after, they are one file on
//! both sides, and the file can be changed (it is no symbolic link or device). Otherwise its names are removed and
//! made again, as links to one of them or to a name that did not change. The only I/O: entries of both trees are
//! looked up.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    os::unix::ffi::OsStrExt,
};

use crate::{
    diff::{Aspects, ChangeKind, FileChange},
    send::{
        StreamError,
        tree::{FileMeta, SourceTree},
    },
    types::FileKind,
};

/// The path of an entry of a directory.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

/// The path of the directory of an entry.
pub(crate) fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|b| *b == b'/').and_then(|at| path.get(..at)).unwrap_or_default()
}

fn bytes(path: &std::ffi::OsStr) -> Vec<u8> {
    path.as_bytes().to_vec()
}

/// The path of the first tree that is `path` in the second, by what was renamed.
fn former(renamed: &HashMap<Vec<u8>, Vec<u8>>, path: &[u8]) -> Vec<u8> {
    let mut at = path;
    loop {
        if let Some(from) = renamed.get(at) {
            return [from, path.get(at.len()..).unwrap_or_default()].concat();
        }
        if at.is_empty() {
            return path.to_vec();
        }
        at = parent(at);
    }
}

/// The names of one file in the difference.
#[derive(Default)]
struct Group {
    told: u64,
    names: u64,
    /// The files that its names, those that are on both sides, are on the other side.
    others: HashSet<u64>,
}

/// What a name is, before and now.
struct BeforeAfter {
    before: Option<FileMeta>,
    now: Option<FileMeta>,
}

/// The names of a tree whose files have several, with their files.
fn linked_names(tree: &dyn SourceTree) -> Result<HashMap<Vec<u8>, FileMeta>, StreamError> {
    let mut out = HashMap::new();
    let mut todo = vec![Vec::new()];
    while let Some(dir) = todo.pop() {
        for (name, meta) in tree.list(&dir).map_err(StreamError::at(&dir))? {
            let path = join(&dir, name.as_bytes());
            match meta.kind {
                FileKind::Directory => todo.push(path),
                _ if meta.nlink > 1 => _ = out.insert(path, meta),
                _ => {}
            }
        }
    }
    Ok(out)
}

/// The same differences, and those that are none of content: names that are one file on one side only. They have gone
/// and come. Both trees are walked.
pub(crate) fn relinked(
    before: &dyn SourceTree,
    now: &dyn SourceTree,
    mut changes: Vec<FileChange>,
) -> Result<Vec<FileChange>, StreamError> {
    let (old, new) = (linked_names(before)?, linked_names(now)?);
    let renamed: HashMap<Vec<u8>, Vec<u8>> = changes
        .iter()
        .filter_map(|change| Some((bytes(&change.path), bytes(change.from.as_deref()?))))
        .collect();
    let gone = |change: &FileChange| change.kind == ChangeKind::Removed;
    let told: HashSet<Vec<u8>> = changes.iter().filter(|c| !gone(c)).map(|c| bytes(&c.path)).collect();
    let places = places(&changes);
    // Names on both sides that nothing was told of.
    let mut names: BTreeSet<(Vec<u8>, Vec<u8>)> = BTreeSet::new();
    names.extend(new.keys().map(|path| (former(&renamed, path), path.clone())));
    names.extend(old.keys().filter_map(|path| Some((path.clone(), place(&places, path)?))));
    names.retain(|(_, path)| !told.contains(path));
    // A file with one name is a group of its own.
    let group = |tree: &HashMap<Vec<u8>, FileMeta>, path: &Vec<u8>| match tree.get(path) {
        Some(meta) => Ok(meta.ino),
        None => Err(path.clone()),
    };
    let (mut across, mut back): (HashMap<_, HashSet<_>>, HashMap<_, HashSet<_>>) = Default::default();
    for (from, path) in &names {
        let (x, y) = (group(&old, from), group(&new, path));
        across.entry(x.clone()).or_default().insert(y.clone());
        back.entry(y).or_default().insert(x);
    }
    let one = |set: Option<&HashSet<_>>| set.is_none_or(|set| set.len() == 1);
    for (from, path) in &names {
        let (x, y) = (group(&old, from), group(&new, path));
        if one(across.get(&x)) && one(back.get(&y)) {
            continue;
        }
        let meta = now.meta(path).map_err(StreamError::at(path))?;
        let change = |kind, path: &[u8]| FileChange {
            kind,
            file: meta.kind,
            path: std::os::unix::ffi::OsStringExt::from_vec(path.to_vec()),
            from: None,
            aspects: Aspects::default(),
            size_before: 0,
            size_after: meta.size,
            ranges: Vec::new(),
        };
        changes.extend([change(ChangeKind::Removed, from), change(ChangeKind::Added, path)]);
    }
    Ok(changes)
}

/// Where entries of the first tree are in the second; `None` if they are gone.
fn places(changes: &[FileChange]) -> HashMap<Vec<u8>, Option<Vec<u8>>> {
    let mut out = HashMap::new();
    for change in changes {
        match (change.kind, &change.from) {
            (ChangeKind::Removed, _) => _ = out.insert(bytes(&change.path), None),
            (ChangeKind::Renamed, Some(from)) => _ = out.insert(bytes(from), Some(bytes(&change.path))),
            _ => {}
        }
    }
    out
}

/// Where something of the first tree is in the second.
fn place(places: &HashMap<Vec<u8>, Option<Vec<u8>>>, path: &[u8]) -> Option<Vec<u8>> {
    let mut at = path;
    loop {
        if let Some(found) = places.get(at) {
            let rest = path.get(at.len()..).unwrap_or_default();
            return found.as_ref().map(|found| [found, rest].concat());
        }
        if at.is_empty() {
            return Some(path.to_vec());
        }
        at = parent(at);
    }
}

/// The same differences, in which names of linked files that cannot be changed where they are have gone and come.
pub(crate) fn untangled(
    before: &dyn SourceTree,
    now: &dyn SourceTree,
    changes: Vec<FileChange>,
) -> Result<Vec<FileChange>, StreamError> {
    let renamed: HashMap<Vec<u8>, Vec<u8>> = changes
        .iter()
        .filter_map(|change| Some((bytes(&change.path), bytes(change.from.as_deref()?))))
        .collect();
    let mut all = Vec::with_capacity(changes.len());
    let (mut old, mut new): (HashMap<u64, Group>, HashMap<u64, Group>) = Default::default();
    for change in changes {
        let path = bytes(&change.path);
        let mut both = BeforeAfter { before: None, now: None };
        if change.file != FileKind::Directory && change.kind != ChangeKind::Unreadable {
            let there =
                |tree: &dyn SourceTree, path: &[u8]| tree.meta(path).map_err(StreamError::at(path)).map(Some);
            if change.kind != ChangeKind::Added {
                let from =
                    if change.kind == ChangeKind::Removed { path.clone() } else { former(&renamed, &path) };
                both.before = there(before, &from)?;
            }
            if change.kind != ChangeKind::Removed {
                both.now = there(now, &path)?;
            }
            for (meta, other, groups) in
                [(&both.before, &both.now, &mut old), (&both.now, &both.before, &mut new)]
            {
                if let Some(meta) = meta {
                    let group = groups.entry(meta.ino).or_default();
                    (group.told, group.names) = (group.told + 1, meta.nlink);
                    group.others.extend(other.as_ref().map(|other| other.ino));
                }
            }
        }
        all.push((change, both));
    }
    let whole = |groups: &HashMap<u64, Group>, ino| {
        groups.get(&ino).is_some_and(|g| g.told == g.names && g.others.len() == 1)
    };
    let mut out = Vec::with_capacity(all.len());
    for (change, both) in all {
        let tangled = match (&both.before, &both.now) {
            (Some(x), Some(y)) if x.nlink > 1 || y.nlink > 1 => {
                is_made_anew(&change) || !(whole(&old, x.ino) && whole(&new, y.ino))
            }
            _ => false,
        };
        if !tangled {
            out.push(change);
            continue;
        }
        let from = former(&renamed, &bytes(&change.path));
        let gone = FileChange {
            kind: ChangeKind::Removed,
            path: std::os::unix::ffi::OsStringExt::from_vec(from),
            from: None,
            aspects: Aspects::default(),
            ranges: Vec::new(),
            ..change.clone()
        };
        let come = FileChange { kind: ChangeKind::Added, from: None, aspects: Aspects::default(), ..change };
        out.extend([gone, come]);
    }
    Ok(out)
}

/// Whether a receiver cannot change what it has, but has to remove it and make it again.
pub(crate) fn is_made_anew(change: &FileChange) -> bool {
    change.aspects.contains(Aspects::TARGET) || change.aspects.contains(Aspects::DEVICE)
}

/// Differences in the order in which a receiver can do them.
pub(crate) struct SendPlan<'a> {
    /// By path in the first tree, children before their directory.
    pub leaving: Vec<(Vec<u8>, &'a FileChange)>,
    /// By path in the second tree, directories before what is in them.
    pub coming: Vec<(Vec<u8>, &'a FileChange)>,
    /// Where what was put aside comes to.
    pub arrives: HashMap<Vec<u8>, u64>,
    /// What is new in the second tree.
    pub added: HashSet<Vec<u8>>,
    /// From the first tree to the second; `None` if it is gone.
    places: HashMap<Vec<u8>, Option<Vec<u8>>>,
}

impl<'a> SendPlan<'a> {
    pub fn new(changes: &'a [FileChange]) -> Result<Self, StreamError> {
        let mut plan = SendPlan {
            leaving: Vec::new(),
            coming: Vec::new(),
            arrives: HashMap::new(),
            added: HashSet::new(),
            places: places(changes),
        };
        for change in changes {
            let path = bytes(&change.path);
            match change.kind {
                ChangeKind::Unreadable => {
                    let text =
                        format!("{}: something differs in it, and you may not look", change.path.display());
                    return Err(StreamError::Refused(text));
                }
                ChangeKind::Removed => {
                    plan.leaving.push((path, change));
                }
                ChangeKind::Added => {
                    plan.added.insert(path.clone());
                    plan.coming.push((path, change));
                }
                ChangeKind::Modified => plan.coming.push((path, change)),
                ChangeKind::Renamed => {
                    let from = bytes(change.from.as_deref().unwrap_or_default());
                    plan.leaving.push((from, change));
                    plan.coming.push((path, change));
                }
            }
        }
        plan.leaving.sort_unstable_by(|a, b| b.0.cmp(&a.0));
        plan.coming.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (number, (_, change)) in plan.leaving.iter().enumerate() {
            if change.kind == ChangeKind::Renamed {
                plan.arrives.insert(bytes(&change.path), number as u64);
            }
        }
        Ok(plan)
    }

    /// The directories of the second tree in which something comes, or went away.
    pub fn touched(&self) -> BTreeSet<Vec<u8>> {
        let gone = self.leaving.iter().filter_map(|(path, _)| place(&self.places, parent(path)));
        let comes = |change: &FileChange| change.kind != ChangeKind::Modified || is_made_anew(change);
        let come = self.coming.iter().filter(|(_, change)| comes(change));
        // What is put aside is put into the top meanwhile.
        let top = self.arrives.keys().next().map(|_| Vec::new());
        gone.chain(come.map(|(path, _)| parent(path).to_vec())).chain(top).collect()
    }
}
