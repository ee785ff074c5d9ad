//! Attributes of files with several names in a merge.
//!
//! A merge compares paths, but the names of one file share its attributes. They are changed in place if all names in
//! the tree get the same attributes, as after a `chmod` in the fork. Otherwise each name that changes becomes a file of
//! its own. Guarantees that no name in the tree gets attributes that the plan does not give it. Names outside of the
//! tree, in the same lineage, follow a change in place, as they do when a program changes the file.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::{
    diff::change::Aspects,
    error::Result,
    fork::{
        follow::upwards,
        planner::Planner,
        step::{Step, differ},
    },
    path,
    record::Stored,
};

/// Linked files of a lineage by their number, and their names in the tree, from its top.
type NamesOf = HashMap<u64, Vec<Vec<u8>>>;

/// A change of attributes in a plan: where in the fork, where here, and what.
type NameChange = (Vec<u8>, Vec<u8>, Aspects);

impl Planner<'_> {
    /// Decides which changes are made in place, once for all names. If there are such files, this reads the index of
    /// names of their lineages below the top.
    pub(crate) fn decide_linked(&mut self) -> Result<()> {
        let linked = std::mem::take(&mut self.linked);
        if linked.is_empty() {
            return Ok(());
        }
        let mut names: BTreeMap<Vec<u8>, NamesOf> = BTreeMap::new();
        let mut files = Vec::new();
        for steps in linked.into_values() {
            let Some((_, to, _)) = steps.first().and_then(|at| self.attribute_change(*at)) else { continue };
            let Some(value) = self.trees.ours.value(&to)? else { continue };
            let Ok(Stored::Name(name)) = Stored::decode(&value) else { continue };
            let Some(level) = self.trees.ours.level(path::directory_of(&to))? else { continue };
            let root = level.root.clone();
            names.entry(root.clone()).or_default().insert(name.id, Vec::new());
            files.push((root, name.id, steps));
        }
        for (root, names) in &mut names {
            self.find_names(root, names)?;
        }
        let renewed = self.renewed();
        let (mut in_place, mut once) = (Vec::new(), HashSet::new());
        for (root, id, steps) in files {
            let names = names.get(&root).and_then(|names| names.get(&id)).map_or(&[][..], Vec::as_slice);
            if self.all_alike(names, &steps, &renewed)? {
                in_place.extend(steps.first().and_then(|at| self.steps.get(*at)).cloned());
                once.extend(steps);
                continue;
            }
            for at in steps {
                if let Some(Step::Change { alone, .. }) = self.steps.get_mut(at) {
                    *alone = true;
                }
            }
        }
        let mut at = 0..;
        self.steps.retain(|_| at.next().is_none_or(|at| !once.contains(&at)));
        // Changes in place come last: a name that becomes a file of its own copies the attributes that it keeps before
        // they change.
        self.steps.append(&mut in_place);
        Ok(())
    }

    fn attribute_change(&self, at: usize) -> Option<NameChange> {
        match self.steps.get(at) {
            Some(Step::Change { from, to, aspects, .. }) => Some((from.clone(), to.clone(), *aspects)),
            _ => None,
        }
    }

    /// Finds the names in the tree of the files in `names`, which are in the lineage with this root.
    fn find_names(&mut self, root: &[u8], names: &mut NamesOf) -> Result<()> {
        let ours = &self.trees.ours;
        // The root is around the tree, or in it.
        let inside = root.strip_prefix(&ours.place(b"")[..]).unwrap_or_default();
        let index = path::meta(&ours.link_name(root, inside));
        let mut found = ours.view.prefix(&index);
        while let Some((key, value)) = found.next_ref()? {
            let Ok(Stored::Indexed(id)) = Stored::decode(value) else { continue };
            if let Some(names) = names.get_mut(&id) {
                names.push([inside, key.get(index.len()..).unwrap_or_default()].concat());
            }
        }
        Ok(())
    }

    /// Paths at which the plan removes an entry or puts another file.
    pub(crate) fn renewed(&self) -> BTreeSet<Vec<u8>> {
        let at = |step: &Step| match step {
            Step::Remove(to) => Some(to.clone()),
            Step::Change { to, .. } | Step::Write { to, .. } if step.makes_file() => Some(to.clone()),
            _ => None,
        };
        self.steps.iter().filter_map(at).collect()
    }

    /// Whether all remaining names of a file are changed by `steps`, and all get the same attributes.
    fn all_alike(&mut self, names: &[Vec<u8>], steps: &[usize], renewed: &BTreeSet<Vec<u8>>) -> Result<bool> {
        let changes: Vec<NameChange> = steps.iter().filter_map(|at| self.attribute_change(*at)).collect();
        let goes = |name: &Vec<u8>| {
            let above = upwards(path::directory_of(name)).filter_map(path::entry_of_contents);
            renewed.contains(name) || above.into_iter().any(|dir| renewed.contains(&dir))
        };
        let changed: HashSet<&Vec<u8>> = changes.iter().map(|(_, to, _)| to).collect();
        if !names.iter().all(|name| changed.contains(name) || goes(name)) {
            return Ok(false);
        }
        let theirs = &mut self.trees.theirs;
        let mut first = None;
        for (from, _, aspects) in &changes {
            let Some(value) = theirs.value(from)? else { return Ok(false) };
            let found = theirs.found(from, &value)?;
            let Some((one, same)) = &first else {
                first = Some((found, aspects.0));
                continue;
            };
            if *same != aspects.0
                || one.data != found.data && differ(theirs, one, theirs, &found)?.0 & aspects.0 != 0
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
