//! Groups of prefixes by number, as runs: what many snapshots in succession share is shown by one run of numbers.
//! And sums for each group, to which something is added for a run at a time. Pure.

use std::{collections::BTreeMap, sync::Arc};

/// The number of all keys that are in no group. No other number is as high.
const OTHERS: u32 = u32::MAX - 1;

/// Groups of successive numbers, each of which shows something by so many paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupRun {
    pub first: u32,
    /// The number behind the last one.
    pub end: u32,
    pub times: u64,
}

/// The groups that show something, and by how many paths each: runs that ascend and do not overlap. If two of them
/// touch, their numbers of paths differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ShownBy(Option<Arc<[GroupRun]>>);

impl ShownBy {
    /// One group.
    pub fn of(group: u32, times: u64) -> ShownBy {
        ShownBy::from_runs(vec![GroupRun { first: group, end: group + 1, times }])
    }

    /// All that is in no group.
    pub fn others() -> ShownBy {
        ShownBy::of(OTHERS, 1)
    }

    fn from_runs(runs: Vec<GroupRun>) -> ShownBy {
        ShownBy((!runs.is_empty()).then(|| runs.into()))
    }

    pub fn runs(&self) -> &[GroupRun] {
        self.0.as_deref().unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The runs without that of the others.
    pub fn listed(&self) -> &[GroupRun] {
        match self.runs() {
            [front @ .., last] if last.first == OTHERS => front,
            runs => runs,
        }
    }

    /// The group, if there is only one and nothing else.
    pub fn only(&self) -> Option<u32> {
        match self.runs() {
            [one] if one.end - one.first == 1 && one.first != OTHERS => Some(one.first),
            _ => None,
        }
    }

    /// The number of paths of a group.
    pub fn times(&self, group: u32) -> u64 {
        let at = self.runs().partition_point(|run| run.end <= group);
        self.runs().get(at).filter(|run| run.first <= group).map_or(0, |run| run.times)
    }

    /// The groups, by how much the number of paths rises at each number.
    pub fn of_steps(steps: &BTreeMap<u32, i128>) -> ShownBy {
        let mut runs: Vec<GroupRun> = Vec::new();
        let (mut from, mut height) = (0, 0i128);
        for (&at, step) in steps {
            if height > 0 && at > from {
                let times = if from == OTHERS { 1 } else { u64::try_from(height).unwrap_or(u64::MAX) };
                push(&mut runs, GroupRun { first: from, end: at, times });
            }
            (from, height) = (at, height + step);
        }
        ShownBy::from_runs(runs)
    }

    /// For each group the larger number of paths, or the smaller one.
    pub fn merged(&self, other: &ShownBy, larger: bool) -> ShownBy {
        if self == other {
            return self.clone();
        }
        let (mut a, mut b) = (self.runs(), other.runs());
        let (mut runs, mut at) = (Vec::new(), 0);
        loop {
            // What each has from `at` on: a number of paths, and where that ends.
            let of = |runs: &mut &[GroupRun]| loop {
                match runs.first() {
                    Some(run) if run.end <= at => *runs = &runs[1..],
                    Some(run) if run.first <= at => break (run.times, run.end),
                    Some(run) => break (0, run.first),
                    None => break (0, u32::MAX),
                }
            };
            let ((x, x_end), (y, y_end)) = (of(&mut a), of(&mut b));
            let (end, times) = (x_end.min(y_end), if larger { x.max(y) } else { x.min(y) });
            if times > 0 {
                push(&mut runs, GroupRun { first: at, end, times });
            }
            at = end;
            if at == u32::MAX {
                return ShownBy::from_runs(runs);
            }
        }
    }

    /// These without those that `other` has.
    pub fn without(&self, other: &ShownBy) -> ShownBy {
        if other.is_empty() {
            return self.clone();
        }
        let mut runs = Vec::new();
        let mut cuts = other.runs();
        for run in self.runs() {
            let mut first = run.first;
            while first < run.end {
                match cuts.first() {
                    Some(cut) if cut.end <= first => cuts = &cuts[1..],
                    Some(cut) if cut.first <= first => first = cut.end,
                    next => {
                        let end = next.map_or(run.end, |cut| cut.first.min(run.end));
                        push(&mut runs, GroupRun { first, end, ..*run });
                        first = end;
                    }
                }
            }
        }
        ShownBy::from_runs(runs)
    }
}

fn push(runs: &mut Vec<GroupRun>, run: GroupRun) {
    match runs.last_mut() {
        Some(last) if last.end == run.first && last.times == run.times => last.end = run.end,
        _ => runs.push(run),
    }
}

/// A sum for each group.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// By how much the sum rises at each number.
    steps: BTreeMap<u32, i128>,
}

impl Sums {
    /// Adds as much to the sum of each of these groups.
    pub fn add(&mut self, groups: &ShownBy, more: u64) {
        self.add_runs(groups.listed(), |_| more);
    }

    /// Adds as much for each path of each of these groups.
    pub fn add_times(&mut self, groups: &ShownBy, more: u64) {
        self.add_runs(groups.listed(), |times| more.saturating_mul(times));
    }

    pub fn add_one(&mut self, group: u32, more: u64) {
        self.add_runs(&[GroupRun { first: group, end: group + 1, times: 1 }], |_| more);
    }

    pub fn add_run(&mut self, run: &GroupRun, more: u64) {
        self.add_runs(std::slice::from_ref(run), |_| more);
    }

    /// The sums as numbers of paths.
    pub fn groups(&self) -> ShownBy {
        ShownBy::of_steps(&self.steps)
    }

    fn add_runs(&mut self, runs: &[GroupRun], more: impl Fn(u64) -> u64) {
        for run in runs {
            let more = i128::from(more(run.times));
            if more > 0 {
                *self.steps.entry(run.first).or_default() += more;
                *self.steps.entry(run.end).or_default() -= more;
            }
        }
    }

    /// The sums of the first `count` groups. In a damaged store one may be too large for a number.
    pub fn each(&self, count: usize) -> Vec<u64> {
        let mut steps = self.steps.iter().peekable();
        let mut height = 0i128;
        let sums = (0..count as u64).map(|group| {
            while let Some((_, step)) = steps.next_if(|(at, _)| u64::from(**at) <= group) {
                height += step;
            }
            u64::try_from(height).unwrap_or(if height < 0 { 0 } else { u64::MAX })
        });
        sums.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn groups() -> impl Strategy<Value = ShownBy> {
        prop::collection::vec((0u32..12, 1u32..6, 1i128..3), 0..5).prop_map(|runs| {
            let mut steps = BTreeMap::new();
            for (first, len, times) in runs {
                *steps.entry(first).or_default() += times;
                *steps.entry(first + len).or_default() -= times;
            }
            ShownBy::of_steps(&steps)
        })
    }

    fn is_in_form(groups: &ShownBy) -> bool {
        groups.runs().iter().all(|run| run.first < run.end && run.times > 0)
            && groups.runs().windows(2).all(|two| match two {
                [a, b] => a.end < b.first || (a.end == b.first && a.times != b.times),
                _ => true,
            })
    }

    proptest! {
        #[test]
        fn runs_are_as_their_groups_one_by_one(a in groups(), b in groups(), more in 0u64..9) {
            let (most, least, rest) = (a.merged(&b, true), a.merged(&b, false), a.without(&b));
            prop_assert!([&a, &most, &least, &rest].into_iter().all(is_in_form));
            let mut sums = Sums::default();
            sums.add_times(&a, more);
            sums.add(&b, 1);
            let sums = sums.each(20);
            for group in 0..20u32 {
                let (x, y) = (a.times(group), b.times(group));
                prop_assert_eq!(most.times(group), x.max(y));
                prop_assert_eq!(least.times(group), x.min(y));
                prop_assert_eq!(rest.times(group), if y > 0 { 0 } else { x });
                prop_assert_eq!(sums[group as usize], x * more + u64::from(y > 0));
            }
        }
    }

    #[test]
    fn the_others_are_no_group() {
        let both = ShownBy::of(3, 2).merged(&ShownBy::others(), true);
        assert_eq!((both.only(), ShownBy::of(3, 2).only(), ShownBy::others().only()), (None, Some(3), None));
        assert_eq!((both.listed().len(), ShownBy::others().listed().len()), (1, 0));
        assert!(ShownBy::others().without(&both).is_empty());
    }
}
