//! Pruning: removing from nodes, shared ones included, what no path shows.
//!
//! After clones and deletes a shared node may have several edges that each show a part of it, and together not all of
//! it. The node cannot be rewritten for one of the edges, because the others need it. But entries that no edge shows
//! can be removed from the node itself, because no reader sees the difference. Without this, deleting both a tree and
//! its clone could free nothing.
//!
//! [`PruneSurvey`] finds such nodes in one walk from the top: all nodes that refer to a node are higher, so all paths
//! to a node are known when the walk reaches it. A reference that the walk has not met (from a node that waits to be
//! reclaimed, or that could not be read) counts as showing everything. The result for a node stays true as long as it
//! has the same version and the same number of references, because no change makes hidden entries visible. So the
//! survey walks one version, in steps of any size and without a lock. I/O: headers of interior nodes, and of leaves
//! that are not seen whole.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, VecDeque},
};

use crate::{
    dag::{edit::Edit, gc::survey::Survey, share::join::join_empty},
    error::{Error, Result, or_if_damaged},
    key::{Lens, Span, Spans},
    node::{
        Body, Edge, Node, NodeId, PageRef, Target,
        ranged::{are_apart, clip, cut},
    },
    store::table::Table,
};

/// A leaf is pruned if that frees at least 1/n of it.
const PRUNE_FRACTION: usize = 8;

/// A node and the local keys that some path shows, ascending and apart.
pub(crate) type Prunable = (NodeId, Vec<Span>);

/// What the walk knows of a node before it reaches the node.
#[derive(Default)]
struct Visibility {
    references: u64,
    shown: VisibleParts,
}

enum VisibleParts {
    /// The whole node is shown, or may be.
    All,
    Parts(Vec<Span>),
}

impl Default for VisibleParts {
    fn default() -> Self {
        VisibleParts::Parts(Vec::new())
    }
}

type SurveyQueue = BTreeMap<(Reverse<u8>, NodeId), Visibility>;

/// A walk over one version.
#[derive(Default)]
pub(crate) struct PruneSurvey {
    queue: SurveyQueue,
    found: VecDeque<Prunable>,
}

impl Survey for PruneSurvey {
    type Found = Prunable;

    fn go_on(&mut self, edit: &Edit<'_>, nodes: usize) -> Result<bool> {
        for _ in 0..nodes {
            if !edit.survey_next(self)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn found(&mut self) -> &mut VecDeque<Prunable> {
        &mut self.found
    }

    fn change(edit: &mut Edit<'_>, found: &Prunable, surveyed: &Table) -> Result<bool> {
        edit.prune(found, surveyed)
    }
}

impl Edit<'_> {
    /// Begins a walk over the version of this edit, which must be empty.
    pub fn survey(&self) -> Result<PruneSurvey> {
        let mut survey = PruneSurvey::default();
        let root = (Reverse(self.height(self.root)?), self.root);
        survey.queue.insert(root, Visibility { references: 1, shown: VisibleParts::All });
        Ok(survey)
    }

    /// Looks at the next node; false if there is none.
    fn survey_next(&self, PruneSurvey { queue, found }: &mut PruneSurvey) -> Result<bool> {
        let Some(((Reverse(height), id), seen)) = queue.pop_first() else { return Ok(false) };
        let all = seen.references != self.count(id).unsigned_abs();
        let shown = match seen.shown {
            VisibleParts::Parts(parts) if !all => Some(merged(parts)),
            _ => None,
        };
        if height == 0 && shown.is_none() {
            return Ok(true);
        }
        // What an unreadable node refers to is not known, so all of its possible targets count as shown.
        let Some(node) = or_if_damaged(self.peek(id).map(Some), None)? else { return Ok(true) };
        if let Some(shown) = &shown
            && hides_much(&node, shown)
        {
            found.push_back((id, shown.clone()));
        }
        for i in 0..node.edges().len() {
            self.pass_on(&node, i, shown.as_deref(), queue)?;
        }
        Ok(true)
    }

    /// Notes what edge `i` of `node`, of which `shown` can be seen (`None`: all), shows of its targets.
    fn pass_on(&self, node: &Node, i: usize, shown: Option<&[Span]>, queue: &mut SurveyQueue) -> Result<()> {
        let Some(edge) = node.edges().get(i) else { return Ok(()) };
        let live = node.edge_span(i);
        let mut seen = visible(&live, shown);
        // Newest first: a range message hides what is older.
        for layer in edge.layers.iter().rev() {
            for range in &layer.ranges {
                if let Some(target) = &range.target {
                    self.refer(node.height, &range.span, target, clip(&seen, &range.span), queue)?;
                }
            }
            seen = cut(&seen, &layer.ranges);
        }
        let Some(target) = &edge.child else { return Ok(()) };
        let whole = !edge.loose && seen == [live.clone()];
        if whole && self.count(target.id) == 1 {
            // Shown whole by its only reference: a leaf needs no look.
            let height = self.below(node.height, target)?;
            if height > 0 {
                queue.insert(
                    (Reverse(height), target.id),
                    Visibility { references: 1, shown: VisibleParts::All },
                );
            }
            return Ok(());
        }
        self.refer(node.height, &live, target, seen, queue)
    }

    fn refer(
        &self,
        above: u8,
        live: &Span,
        target: &Target,
        parts: Vec<Span>,
        queue: &mut SurveyQueue,
    ) -> Result<()> {
        let lens = Lens::of_edge(live, &target.prepend);
        let seen = queue.entry((Reverse(self.below(above, target)?), target.id)).or_default();
        seen.references += 1;
        if let VisibleParts::Parts(known) = &mut seen.shown {
            known.extend(parts.iter().map(|part| lens.apply_span(part)));
        }
        Ok(())
    }

    fn below(&self, above: u8, target: &Target) -> Result<u8> {
        let height = self.height(target.id)?;
        if height >= above {
            return Err(Error::corrupt("edge", 0, format!("node {} is not below its parent", target.id)));
        }
        Ok(height)
    }

    /// Takes out of a node all that `shown` does not need, as was found in the version of `surveyed`; whether
    /// it did. Does nothing to one that has changed since. I/O: its header.
    fn prune(&mut self, (id, shown): &Prunable, surveyed: &Table) -> Result<bool> {
        if !self.is_as_in(surveyed, *id) {
            return Ok(false);
        }
        let Some(mut node) = or_if_damaged(self.load(*id).map(Some), None)? else { return Ok(false) };
        let old = self.peek(*id)?;
        let spans: Vec<Span> = (0..node.edges().len()).map(|i| node.edge_span(i)).collect();
        match &mut node.body {
            Body::Leaf(run) => run.pages.retain(|page| is_seen(page, shown)),
            Body::Interior(edges) => {
                for (edge, live) in edges.iter_mut().zip(&spans) {
                    match needs(edge, live, shown) {
                        Need::All => {}
                        Need::Messages => {
                            (edge.child, edge.loose) = (None, false);
                            edge.drop_idle();
                        }
                        Need::Nothing => *edge = Edge { lo: edge.lo.clone(), ..Edge::default() },
                    }
                }
                join_empty(edges);
            }
        }
        assert!(node.bytes() <= old.bytes(), "a node is larger than before it was pruned");
        assert!(are_apart(shown), "parts of a node that are shown overlap");
        if cfg!(debug_assertions) {
            assert_shows_the_same(&old, &node, shown);
        }
        self.put_pruned(*id, node).map(|()| true)
    }
}

/// Asserts that `new` shows what `old` shows in the parts `shown`, judging by headers: every page that may have such a
/// key, and every edge that leads to one, unless range messages at the edge hide all of it. Otherwise all paths to a
/// shared node would lose keys at once. Cost: a pass over both headers.
fn assert_shows_the_same(old: &Node, new: &Node, shown: &[Span]) {
    assert!(
        old.span == new.span && old.height == new.height,
        "pruning changes the range or height of a node"
    );
    if let (Body::Leaf(old), Body::Leaf(new)) = (&old.body, &new.body) {
        let mut kept = new.pages.iter().peekable();
        for page in &old.pages {
            let is_kept = |kept: &&PageRef| (&kept.prefix, &kept.first) == (&page.prefix, &page.first);
            if kept.next_if(is_kept).is_none() {
                assert!(!shown.iter().any(|part| page.meets(part)), "a page that some path shows is pruned");
            }
        }
        assert!(kept.next().is_none(), "pruning adds a page");
    }
    for (i, edge) in old.edges().iter().enumerate() {
        for part in clip(shown, &old.edge_span(i)) {
            let Some(kept) = new.edges().get(new.edge_at(&part.lo)) else { continue };
            if kept.child == edge.child {
                // Above no child, messages that have nothing left to delete may go.
                let same = edge.child.is_none() || kept.layers.len() == edge.layers.len();
                assert!(same, "messages that some path shows are pruned");
            } else {
                let hidden = edge.layers.iter().flat_map(|layer| &layer.ranges).map(|range| &range.span);
                assert!(kept.child.is_none(), "pruning changes the child of an edge");
                assert!(part.without_all(hidden).is_empty(), "a child that some path shows is pruned");
            }
        }
    }
}

/// Whether so much of a node is not shown that the node is written anew without it.
fn hides_much(node: &Node, shown: &[Span]) -> bool {
    match &node.body {
        Body::Leaf(run) => {
            let unseen = run.pages.iter().filter(|page| !is_seen(page, shown));
            is_much_of_leaf(unseen.map(|page| page.raw as usize).sum(), run.bytes())
        }
        Body::Interior(edges) => {
            let idle = |(i, edge): (usize, &Edge)| match needs(edge, &node.edge_span(i), shown) {
                Need::All => false,
                Need::Messages => edge.child.is_some(),
                Need::Nothing => edge.child.is_some() || !edge.layers.is_empty(),
            };
            edges.iter().enumerate().any(idle)
        }
    }
}

/// Whether a leaf with pages of `all` bytes, `unseen` of which no path shows, is written anew without these.
pub(crate) fn is_much_of_leaf(unseen: usize, all: usize) -> bool {
    unseen > 0 && unseen >= all / PRUNE_FRACTION
}

/// What of an edge is needed for what is shown.
enum Need {
    All,
    /// The messages hide the whole child.
    Messages,
    Nothing,
}

fn needs(edge: &Edge, live: &Span, shown: &[Span]) -> Need {
    let seen = visible(live, Some(shown));
    if seen.is_empty() {
        return Need::Nothing;
    }
    let hidden = || edge.layers.iter().flat_map(|layer| &layer.ranges).map(|range| &range.span);
    match seen.iter().all(|part| part.without_all(hidden()).is_empty()) {
        true => Need::Messages,
        false => Need::All,
    }
}

fn is_seen(page: &PageRef, shown: &[Span]) -> bool {
    shown.iter().any(|part| page.meets(part))
}

/// The parts of `live` that are shown, ascending.
fn visible(live: &Span, shown: Option<&[Span]>) -> Vec<Span> {
    match shown {
        None => vec![live.clone()],
        Some(parts) => clip(parts, live),
    }
}

/// The keys of `parts` as ascending ranges that neither overlap nor touch.
fn merged(parts: Vec<Span>) -> Vec<Span> {
    let mut all = Spans::default();
    parts.into_iter().for_each(|part| all.insert(part));
    all.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dag::tests::{edge, interior, leaf, ranges};

    fn span(lo: &str, hi: Option<&str>) -> Span {
        Span::new(lo.to_string(), hi.map(|hi| hi.to_string().into()))
    }

    /// What is taken out of the sound root, and of a leaf, while paths show the keys from "c" to "n".
    fn pruned(change: impl FnOnce(&mut Vec<Edge>), leaf_to: Node) {
        let shown = [span("c", Some("n"))];
        assert_shows_the_same(&leaf("", "m", &["b", "d"]), &leaf_to, &shown);
        let deleted = |lo, hi| ranges(&[(lo, hi, None)]);
        let edges = vec![
            edge("", Some(2), vec![]),
            edge("c", Some(3), vec![deleted("c", "e")]),
            edge("e", Some(4), vec![]),
            edge("n", Some(5), vec![]),
        ];
        let mut new = edges.clone();
        change(&mut new);
        assert_shows_the_same(&interior(1, edges), &interior(1, new), &shown);
    }

    fn whole() -> Node {
        leaf("", "m", &["b", "d"])
    }

    #[test]
    fn what_no_path_shows_may_be_pruned() {
        pruned(|_| (), whole());
        pruned(|edges| edges[0].child = None, whole());
        pruned(|edges| edges[1].child = None, whole());
        pruned(|edges| edges[3] = edge("n", None, vec![]), whole());
    }

    #[test]
    #[should_panic(expected = "a child that some path shows is pruned")]
    fn a_child_that_is_shown_is_not_pruned() {
        pruned(|edges| edges[2].child = None, whole());
    }

    #[test]
    #[should_panic(expected = "messages that some path shows are pruned")]
    fn messages_that_are_shown_are_not_pruned() {
        pruned(|edges| edges[1].layers.clear(), whole());
    }

    #[test]
    #[should_panic(expected = "pruning changes the child of an edge")]
    fn an_edge_keeps_its_child() {
        pruned(|edges| edges[2].child = edges[0].child.clone(), whole());
    }

    #[test]
    #[should_panic(expected = "a page that some path shows is pruned")]
    fn a_page_that_is_shown_is_not_pruned() {
        pruned(|_| (), leaf("", "m", &[]));
    }

    #[test]
    #[should_panic(expected = "pruning changes the range or height of a node")]
    fn pruning_keeps_the_range_of_a_node() {
        pruned(|_| (), leaf("", "l", &["b", "d"]));
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let parts = vec![span("f", None), span("a", Some("b")), span("b", Some("d")), span("c", Some("cc"))];
        assert_eq!(merged(parts), [span("a", Some("d")), span("f", None)]);
        let parts = vec![span("g", Some("h")), span("f", None)];
        assert_eq!(merged(parts), [span("f", None)]);
    }
}
