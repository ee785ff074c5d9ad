//! What a node that stays loses if a group is deleted, and where the rest of its pages goes then: by the rules of the
//! collector (`dag/gc/prune.rs`) and of the writer (`store/layout.rs`). Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use crate::{
    dag::gc::prune::is_much_of_leaf,
    db::api::{
        inspect::stored_len,
        usage::{
            extents,
            groups::ShownBy,
            paths::{ShownSpan, only_group},
            taken::OnePath,
        },
    },
    key::{Span, behind},
    node::{
        Body, PageRef, Segment,
        ranged::{clip, cut},
    },
    space::Extent,
    store::{layout::kept_of, pager::Handle},
};

/// A page of a node that stays.
pub(super) struct ShownPage<'a> {
    /// Where it lies, if in an extent of pages.
    place: Option<(&'a Arc<Extent>, Segment)>,
    pub bytes: u64,
    /// The same without compression.
    raw: u32,
    /// All that show something of it.
    pub by: ShownBy,
    /// The groups that alone show a part of it, where others show another part.
    cut: BTreeSet<u32>,
    /// The number of its edge; 0 in a leaf.
    edge: usize,
}

/// The pages of a node that stays.
pub(super) struct NodePages<'a> {
    pub all: Vec<ShownPage<'a>>,
    height: u8,
    /// Of a leaf: the bytes of its pages, as the collector counts them.
    leaf_bytes: usize,
    /// By edge, the group that alone shows anything of it; and whether nothing shows anything.
    edges: Vec<(Option<u32>, bool)>,
    /// The groups without which an edge, or its child, would be taken out.
    idle: BTreeSet<u32>,
}

/// What becomes of a node without a group.
#[derive(Default)]
pub(super) struct Rewritten {
    /// Bytes of pages in its own space that go.
    pub own: u64,
    /// The extents of pages that it goes on using.
    pub kept: BTreeSet<u64>,
    /// Bytes that it copies out of the others, by extent.
    pub copied: BTreeMap<u64, u64>,
}

impl<'a> NodePages<'a> {
    pub fn of(handle: &'a Handle, shown: &[ShownSpan]) -> Self {
        let node = &handle.node;
        let page = |page: &'a PageRef, edge: usize| {
            // The range ends at the least key above the last one.
            let keys = Span::new(page.first_key(), Some(behind(&page.last_key())));
            let parts = clip(shown, &keys);
            let by = parts.iter().fold(ShownBy::default(), |by, part| by.merged(&part.by, true));
            let cut = match by.only() {
                None if parts.len() > 1 => parts.iter().filter_map(|part| part.by.only()).collect(),
                _ => BTreeSet::new(),
            };
            let bytes = u64::from(stored_len(page).unwrap_or(page.raw));
            ShownPage { place: extents::of_page(handle, page), bytes, raw: page.raw, by, cut, edge }
        };
        let mut pages = NodePages {
            all: Vec::new(),
            height: node.height,
            leaf_bytes: 0,
            edges: Vec::new(),
            idle: BTreeSet::new(),
        };
        match &node.body {
            Body::Leaf(run) => {
                pages.leaf_bytes = run.bytes();
                pages.all.extend(run.pages.iter().map(|one| page(one, 0)));
            }
            Body::Interior(edges) => {
                for (i, edge) in edges.iter().enumerate() {
                    let seen = clip(shown, &node.edge_span(i));
                    let only = only_group(&seen);
                    pages.edges.push((only, seen.is_empty()));
                    let idle = match only {
                        Some(_) => only.filter(|_| edge.child.is_some() || !edge.layers.is_empty()),
                        // Range messages hide the child from the others.
                        None => only_group(&edge.layers.iter().fold(seen, |seen, l| cut(&seen, &l.ranges)))
                            .filter(|_| edge.child.is_some()),
                    };
                    pages.idle.extend(idle);
                    let of_edge = edge.layers.iter().flat_map(|layer| &layer.run.pages);
                    pages.all.extend(of_edge.map(|one| page(one, i)));
                }
            }
        }
        pages
    }

    /// Those in the space of the node itself.
    pub fn own(&self) -> impl Iterator<Item = &ShownPage<'a>> {
        self.all.iter().filter(|page| page.place.is_none())
    }

    pub fn in_extent(&self, id: u64) -> impl Iterator<Item = &ShownPage<'a>> {
        self.all.iter().filter(move |page| page.place.is_some_and(|(extent, _)| extent.id == id))
    }

    /// What becomes of the node without each of the groups for which it is rewritten. O(pages) for each.
    pub fn rewritten(&self, one_path: &OnePath, node_size: usize) -> Vec<(u32, Rewritten)> {
        let mut groups = self.idle.clone();
        for page in &self.all {
            groups.extend(page.by.only());
            groups.extend(&page.cut);
        }
        let mut found = Vec::new();
        for group in groups {
            let one = one_path.without(group);
            if one || self.is_pruned(group) {
                found.push((group, self.without(group, one, node_size)));
            }
        }
        found
    }

    /// Whether the collector prunes the node, which several paths show, without a group.
    fn is_pruned(&self, group: u32) -> bool {
        if self.height > 0 {
            return self.idle.contains(&group);
        }
        let hidden = self.all.iter().filter(|page| page.by.is_empty() || page.by.only() == Some(group));
        is_much_of_leaf(hidden.map(|page| page.raw as usize).sum(), self.leaf_bytes)
    }

    fn without(&self, group: u32, one_path: bool, node_size: usize) -> Rewritten {
        let mut rewritten = Rewritten::default();
        let stays = |page: &&ShownPage<'_>| {
            let is_hidden = page.by.is_empty() || page.by.only() == Some(group);
            match self.edges.get(page.edge) {
                // Only whole edges are taken out.
                Some((only, is_dead)) if self.height > 0 && !one_path => !is_dead && *only != Some(group),
                _ => !is_hidden,
            }
        };
        // A page of which a part is taken out is written anew.
        let is_new = |page: &ShownPage<'_>| one_path && page.cut.contains(&group);
        let gone = self.own().filter(|page| !stays(page) && page.by.only() == Some(group));
        rewritten.own = gone.map(|page| page.bytes).sum();
        let places = self.all.iter().filter(stays).map(|page| {
            page.place.filter(|_| !is_new(page)).map(|(extent, segment)| (extent, segment, page.raw))
        });
        rewritten.kept = kept_of(places, self.height, node_size).iter().map(|extent| extent.id).collect();
        for page in self.all.iter().filter(stays) {
            if let Some((extent, _)) = page.place
                && !rewritten.kept.contains(&extent.id)
            {
                *rewritten.copied.entry(extent.id).or_default() += page.bytes;
            }
        }
        rewritten
    }
}
