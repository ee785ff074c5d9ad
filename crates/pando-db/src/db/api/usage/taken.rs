//! Predicts from which of the nodes that stay the collector removes what only a deleted group showed. Pure.
//!
//! A node that one path shows, and each node of which on the way from the root one path shows, is flushed into: all
//! that the path does not show goes. A node of several paths is pruned (`dag/gc/prune.rs`): pages of a leaf go if they
//! are a large part of it, and of an interior node only whole edges and children.
//!
//! Whether several paths are left depends on the group that is deleted. So the references to a node are noted by the
//! group that alone sees something through each ([`Refs`]), and what follows is the groups without which one path is
//! left ([`OnePath`]).

/// The groups without which one path alone leads to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OnePath {
    /// Whatever group is deleted, or none.
    Always,
    /// If one of these is deleted; at most two.
    Without(Vec<u32>),
}

impl OnePath {
    pub fn never() -> OnePath {
        OnePath::Without(Vec::new())
    }

    pub fn without(&self, group: u32) -> bool {
        match self {
            OnePath::Always => true,
            OnePath::Without(groups) => groups.contains(&group),
        }
    }

    fn both(&self, other: &OnePath) -> OnePath {
        match (self, other) {
            (OnePath::Always, which) | (which, OnePath::Always) => which.clone(),
            (OnePath::Without(groups), other) => {
                OnePath::Without(groups.iter().copied().filter(|group| other.without(*group)).collect())
            }
        }
    }
}

/// References through which a node is shown, of which the same is known.
#[derive(Debug)]
struct RefClass {
    /// The group that alone sees something through them, if it is one.
    only: Option<u32>,
    count: u64,
    /// Of the nodes that have them.
    above: OnePath,
}

/// The references through which a node is shown: as few as can matter.
#[derive(Debug, Default)]
pub(super) struct Refs {
    classes: Vec<RefClass>,
    /// Whether several paths lead to the node whatever group is deleted.
    many: bool,
}

impl Refs {
    /// Notes a reference through which something is shown, to group `only` alone if to any. `above` is of the node that
    /// has it.
    pub fn add(&mut self, only: Option<u32>, above: &OnePath) {
        let known = self.classes.iter().position(|class| only.is_some() && class.only == only);
        if let Some(class) = known.and_then(|at| self.classes.get_mut(at)) {
            class.count += 1;
            class.above = class.above.both(above);
        } else if self.classes.len() < 2 {
            self.classes.push(RefClass { only, count: 1, above: above.clone() });
        } else {
            // Of three kinds two stay whatever is deleted.
            self.many = true;
        }
    }

    /// The groups without which one path leads to the node.
    pub fn one_path(&self) -> OnePath {
        match &self.classes[..] {
            _ if self.many => OnePath::never(),
            [one] if one.count == 1 => one.above.clone(),
            [a, b] => {
                let left = |stays: &RefClass, goes: &RefClass| {
                    goes.only.filter(|group| stays.count == 1 && stays.above.without(*group))
                };
                OnePath::Without([left(a, b), left(b, a)].into_iter().flatten().collect())
            }
            _ => OnePath::never(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_is_left_without_the_group_that_has_all_others() {
        let of = |refs: &[(Option<u32>, OnePath)]| {
            let mut all = Refs::default();
            refs.iter().for_each(|(only, above)| all.add(*only, above));
            all.one_path()
        };
        let (always, some) = (OnePath::Always, |groups: &[u32]| OnePath::Without(groups.to_vec()));
        assert_eq!(of(&[(None, always.clone())]), always);
        assert_eq!(of(&[(Some(1), some(&[3]))]), some(&[3]));
        assert_eq!(of(&[(Some(1), always.clone()), (None, always.clone())]), some(&[1]));
        assert_eq!(of(&[(Some(1), always.clone()), (Some(2), always.clone())]), some(&[2, 1]));
        assert_eq!(
            of(&[(Some(1), always.clone()), (Some(1), always.clone()), (None, some(&[1]))]),
            some(&[1])
        );
        // Two stay, or the node above has several paths.
        assert_eq!(
            of(&[(Some(1), always.clone()), (None, always.clone()), (None, always.clone())]),
            some(&[])
        );
        assert_eq!(of(&[(None, always.clone()), (None, always.clone())]), some(&[]));
        assert_eq!(of(&[(Some(1), always.clone()), (None, some(&[2]))]), some(&[]));
        assert_eq!(of(&[]), some(&[]));
    }
}
