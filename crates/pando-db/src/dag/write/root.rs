//! The root: applying a memtable, growing by a level, and shrinking again.
//!
//! All messages enter the DAG here: the oldest sealed memtable, with its clones placed below its other messages,
//! becomes a layer of the root, and the limits of all nodes on the way down are restored. Works on an [`Edit`]; the
//! caller publishes. I/O: headers, and what the flushes take.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    dag::{
        edit::Edit,
        memtable::{Memtable, range::TableRange},
        share::place::PlacedClones,
        write::flush::pending,
    },
    error::{Error, Result, or_if_damaged},
    key::{Lens, Span},
    node::{Body, Edge, Layer, MAX_HEIGHT, Node, NodeId, Target},
};

/// Up to this many bytes of pending messages for its source are copied by a clone, whatever the node size.
const MIN_COPIED_BYTES: usize = 4 << 10;

impl Edit<'_> {
    /// Applies the oldest memtable: its clones get the nodes of their sources, and are placed below its other
    /// messages, which are `layer`.
    pub fn apply_table(&mut self, table: &Memtable, layer: Layer) -> Result<PlacedClones> {
        let placed = match table.has_clones() {
            true => {
                let pushed_down = self.push_down_sources(table)?;
                let (clones, placed) = self.place_clones(table)?;
                self.apply_to_root(layer.over(&clones, self.cx.pager, self.cx.merge)?)?;
                PlacedClones { pushed_down, ..placed }
            }
            false => {
                self.apply_to_root(layer)?;
                PlacedClones::default()
            }
        };
        self.lower_too_tall()?;
        Ok(placed)
    }

    /// Lowers a DAG that is much too tall, until the edit is large. Returns whether any node was lowered.
    pub fn lower_too_tall(&mut self) -> Result<bool> {
        let any = self.lower_tallest()?;
        while any && self.shrink_root()? {}
        Ok(any)
    }

    /// Adds a layer to the root, and restores the limits of all nodes on the way down.
    pub fn apply_to_root(&mut self, layer: Layer) -> Result<()> {
        let root = self.root_for(layer)?;
        self.fit_root(root)
    }

    /// Adds the oldest memtable to the root and flushes nothing: used if nodes below cannot be read.
    pub fn keep_table(&mut self, table: &Memtable, layer: Layer) -> Result<PlacedClones> {
        let (clones, placed) = match table.has_clones() {
            true => self.place_clones(table)?,
            false => Default::default(),
        };
        let layer = layer.over(&clones, self.cx.pager, self.cx.merge)?;
        let root = self.root_for(layer)?;
        self.put(self.root, root)?;
        Ok(placed)
    }

    /// Adds the oldest memtable to a new root above the present one: used if the present root cannot be read, or
    /// would have to be split inside an unreadable page. I/O: only for sources of clones.
    pub fn keep_table_above(&mut self, table: &Memtable, layer: Layer) -> Result<PlacedClones> {
        // A clone may show all that the root holds, and a Goto rests two levels above its target.
        self.grow_root()?;
        self.grow_root()?;
        self.keep_table(table, layer)
    }

    /// The root with `layer` added; a new root if the targets of Gotos in the layer need more height.
    fn root_for(&mut self, layer: Layer) -> Result<Node> {
        let mut wanted = 1;
        for target in layer.ranges.iter().filter_map(|r| r.target.as_ref()) {
            wanted = wanted.max(self.height(target.id)? + 1);
        }
        while self.height(self.root)? < wanted {
            self.grow_root()?;
        }
        self.absorb(self.load(self.root)?, layer)
    }

    /// Continues flushing from a root that an earlier edit has left above its limit, because the edit had become
    /// large. Returns whether anything was flushed.
    pub fn relieve_root(&mut self) -> Result<bool> {
        // This is called often, and mostly there is nothing to flush.
        let root = self.peek(self.root)?;
        let before = pending(&root);
        if self.edge_to_flush(&root)?.is_none() {
            return Ok(false);
        }
        self.fit_root(self.load(self.root)?)?;
        Ok(pending(&*self.peek(self.root)?) < before)
    }

    /// Puts a new root above the present one.
    fn grow_root(&mut self) -> Result<()> {
        let old = self.root;
        let height = self.height(old)?.saturating_add(1);
        if height > MAX_HEIGHT {
            let detail = format!("the root has {MAX_HEIGHT} levels already: no more are possible");
            return Err(Error::corrupt("root node", 0, detail));
        }
        let edge = Edge { child: Some(Target::plain(old)), ..Default::default() };
        let id = self.create(Node { height, span: Span::all(), body: Body::Interior(vec![edge]) });
        self.set_root(id);
        Ok(())
    }

    /// Replaces the root by `root`, within all limits: under as many levels as its width needs, and without levels of
    /// a single edge.
    fn fit_root(&mut self, root: Node) -> Result<()> {
        // No Goto rests above the root, so it may become lower.
        let mut parts = self.within_limits(Some(self.root), root)?;
        while parts.len() > 1 {
            self.grow_root()?;
            let mut top = self.load(self.root)?;
            // Some parts may be lower than others.
            top.height = top.height.max(parts.iter().map(|(_, part)| part.height).max().unwrap_or(0) + 1);
            let before = parts.len();
            let top = self.attach(top, 0, parts)?;
            parts = self.parts(Some(self.root), top)?;
            assert!(parts.len() < before, "a level above the root does not make it narrower");
        }
        if let Some((_, root)) = parts.pop() {
            self.put(self.root, root)?;
        }
        while self.shrink_root()? {}
        Ok(())
    }

    /// Makes the only child of the root the new root, if no message waits at its edge. Returns whether it did. I/O:
    /// the child's header.
    fn shrink_root(&mut self) -> Result<bool> {
        let root = self.load(self.root)?;
        let [edge] = root.edges() else { return Ok(false) };
        let Some(target) = edge.child.clone().filter(|_| edge.layers.is_empty()) else { return Ok(false) };
        if self.height(target.id)? == 0 || !self.is_private(target.id) {
            return Ok(false);
        }
        let child = self.load(target.id)?.simple(&Span::all(), &target, self.cx.pager).map(Some);
        let Some(child) = or_if_damaged(child, None)? else { return Ok(false) };
        let old = self.root;
        self.put(target.id, child)?;
        self.set_root(target.id);
        self.remove(old)?;
        Ok(true)
    }

    /// Removes edges and levels below the root that clones and deletes have left. Returns whether there were any. Each
    /// step removes an edge, a reference or a node, or moves messages down, so this ends. I/O: headers of children of
    /// the root, and of some nodes below those that show little; what a flush of less than a node takes.
    pub fn heal_root(&mut self) -> Result<bool> {
        let (mut i, mut any) = (0, false);
        while i < self.peek(self.root)?.edges().len() {
            let next = self.heal_edge(i)?;
            any |= next.is_some();
            i = next.unwrap_or(i + 1);
        }
        let root = self.load(self.root)?;
        let high = root.height;
        let mut root = self.lowest(root)?;
        any |= root.height < high;
        if any {
            let (height, span) = (root.height, root.span.clone());
            if let Body::Interior(edges) = &mut root.body {
                *edges = self.joined(std::mem::take(edges), &span, height)?;
            }
            self.put(self.root, root)?;
        }
        while self.shrink_root()? {
            any = true;
        }
        Ok(any)
    }

    /// Does for edge `i` of the root what its child needs: one that shows nothing is let go, and a private one of few
    /// edges is replaced by its edges. If the root shows nothing but this child, the messages above it are flushed, and
    /// if it has too many edges for taking the place of the root beside empty ranges, its edge is widened over these.
    /// Returns the edge to go on with, which may be a new one; `None` if nothing was to be done.
    fn heal_edge(&mut self, i: usize) -> Result<Option<usize>> {
        let root = self.peek(self.root)?;
        let Some(Edge { child: Some(target), layers, .. }) = root.edges().get(i) else { return Ok(None) };
        let (target, waits, live) = (target.clone(), !layers.is_empty(), root.edge_span(i));
        if !waits && self.shows_nothing(&live, &target, root.height)? {
            let mut root = self.load(self.root)?;
            if let Body::Interior(edges) = &mut root.body
                && let Some(edge) = edges.get_mut(i)
            {
                (edge.child, edge.loose) = (None, false);
            }
            self.put(self.root, root)?;
            return Ok(Some(i));
        }
        let alone = root.edges().iter().enumerate().all(|(at, edge)| at == i || edge.is_void());
        if self.height(target.id)? == 0 || !self.is_private(target.id) || (waits && !alone) {
            return Ok(None);
        }
        let child = self.load_below(target.id, root.height)?.simple(&live, &target, self.cx.pager);
        let Some(child) = or_if_damaged(child.map(Some), None)? else { return Ok(None) };
        let limits = self.cx.limits;
        let alone =
            alone && child.edges().len() <= limits.fanout && pending(&root) + pending(&child) <= limits.node;
        // The empty edges below become one, and so do those above.
        let beside = usize::from(i > 0) + usize::from(i + 1 < root.edges().len());
        let fits = child.edges().len() + beside <= limits.fanout;
        if alone && !fits {
            // Before the flush, which does nothing for the height if this is not possible.
            let Some(wider) = self.widened_over_void(self.load(self.root)?, i)? else { return Ok(None) };
            self.put(self.root, wider)?;
            return Ok(Some(0));
        }
        if waits {
            let flushed = alone && !self.is_unreadable_at(self.root, i)?;
            if flushed {
                self.flush_edge(self.root, i)?;
                self.fit_root(self.load(self.root)?)?;
            }
            return Ok(flushed.then_some(0));
        }
        if !alone && !self.fits_inside(&root, &child) {
            return Ok(None);
        }
        self.put(self.root, self.load(self.root)?.with_edges_of(i, child))?;
        self.remove(target.id)?;
        Ok(Some(i))
    }

    /// Flushes the messages for the sources of clones in `table` down to the nodes of the sources, if there are more
    /// than should be copied. Returns the number of such sources.
    pub fn push_down_sources(&mut self, table: &Memtable) -> Result<u64> {
        let mut times: BTreeMap<(Bytes, Option<Bytes>), usize> = BTreeMap::new();
        for (_, image) in table.clones().filter_map(TableRange::source) {
            *times.entry((image.lo, image.hi)).or_default() += 1;
        }
        let each = self.cx.limits.abundant.max(MIN_COPIED_BYTES);
        let (mut copied, mut pushed_down) = (0, 0);
        for ((lo, hi), times) in times {
            let image = Span { lo, hi };
            let bytes = self.source_of(&image)?.bytes;
            let all = bytes.saturating_mul(times);
            let much = bytes > each || (bytes > 0 && copied + all > self.cx.limits.node.max(each));
            // If the edit has become large, the messages are copied instead of flushed: their pages are shared, and
            // not written.
            if much && !self.is_large() {
                self.push_down(&image)?;
                pushed_down += 1;
            } else {
                copied += all;
            }
        }
        Ok(pushed_down)
    }

    /// Flushes all messages for `image` down to the lowest node that contains the whole range, with private copies of
    /// shared nodes on the path; these nodes are then lowered if possible. Cost: one flush for each level.
    fn push_down(&mut self, image: &Span) -> Result<()> {
        let mut path = Vec::new();
        self.push_down_through(image, &mut path)?;
        self.lower_path(&path)
    }

    /// The flushes of [`Edit::push_down`]. Adds the nodes whose edges it flushes to `path`.
    fn push_down_through(&mut self, image: &Span, path: &mut Vec<NodeId>) -> Result<()> {
        let mut id = self.root;
        let mut wanted = image.clone();
        loop {
            let covering = |node: &Node| {
                let i = node.edge_at(&wanted.lo);
                (node.height > 0 && node.edge_span(i).covers(&wanted)).then_some(i)
            };
            let node = self.peek(id)?;
            let Some(i) = covering(&node) else { return Ok(()) };
            if self.is_unreadable_at(id, i)? {
                return Ok(());
            }
            path.push(id);
            self.flush_edge(id, i)?;
            // The flush may have split the child, or merged it with its neighbour.
            let node = self.peek(id)?;
            let Some(i) = covering(&node) else { return Ok(()) };
            let Some(target) = &node.edges()[i].child else { return Ok(()) };
            wanted = Lens::of_edge(&node.edge_span(i), &target.prepend).apply_span(&wanted);
            assert!(self.height(target.id)? < node.height, "a way down leads to a node that is not below");
            id = target.id;
            if !self.is_private(id) {
                return Ok(());
            }
        }
    }
}
