//! What a merge knows while it is planned.

use std::collections::{BTreeMap, HashSet, VecDeque};

use bytes::Bytes;

use crate::{
    diff::side::Identity,
    fork::{
        bounds::Merging,
        follow::Follow,
        step::{Dirs, PlannedChange, Step, Trees},
        text::TextBudget,
    },
};

/// Steps, by their place in the plan, that change attributes of a file with several names; by its data prefix.
pub(crate) type LinkedSteps = BTreeMap<Bytes, Vec<usize>>;

pub(crate) struct Planner<'a> {
    pub trees: &'a mut Trees,
    pub merging: Merging<'a>,
    /// Contents prefix of the fork: nothing around it is removed.
    pub fork: Vec<u8>,
    /// Contents prefix of what it is merged into, which need not be that of the tree that stands for it here.
    pub into: Vec<u8>,
    /// Whether there may be files with several names.
    pub links: bool,
    pub steps: Vec<Step>,
    pub planned: Vec<PlannedChange>,
    pub follow: Follow,
    /// Renames that cannot be made here, and count as removal and addition.
    pub undone: HashSet<Identity>,
    /// Directories that are still to be merged.
    pub jobs: VecDeque<Dirs>,
    /// Changes that `linked` decides on.
    pub linked: LinkedSteps,
    /// Directories of the origin that are missing here, for which a conflict was reported.
    pub missed: HashSet<Vec<u8>>,
    pub text: TextBudget,
}

impl<'a> Planner<'a> {
    pub(crate) fn new(
        trees: &'a mut Trees,
        merging: Merging<'a>,
        text: TextBudget,
        (fork, into): (Vec<u8>, Vec<u8>),
        links: bool,
    ) -> Self {
        let (linked, missed, undone) = (LinkedSteps::new(), HashSet::new(), HashSet::new());
        let (steps, planned, jobs, follow) = (Vec::new(), Vec::new(), VecDeque::new(), Follow::default());
        Self { trees, merging, fork, into, links, steps, planned, follow, undone, jobs, linked, missed, text }
    }
}
