//! Reading: a consistent view of the memtables over a version of the
//! DAG, and point queries on it.
//!
//! A view never changes and takes no latch: everything it can reach is
//! immutable and lives as long as it does. Query cost: one header a level that
//! is not cached, and a page per layer on the way whose range may hold the key.

use std::{
    borrow::Cow,
    sync::{Arc, OnceLock},
};

use crate::{
    dag::{
        memtable::{Memtable, filter::KeyMark},
        tree::{Tree, child_node, out_of_node},
    },
    error::Result,
    key::{Spans, common_prefix_len},
    merge::Merge,
    node::{
        Body, Layer, NodeId, Target, UpdateMsg,
        message::{Msg, Value},
    },
    store::pager::{Handle, Pager},
};

/// A frozen state of the whole store.
#[derive(Clone)]
pub(crate) struct View {
    /// Memtables, newest first.
    pub tables: Vec<Arc<Memtable>>,
    pub tree: Arc<Tree>,
    /// The newest batch in it.
    pub msn: u64,
    /// Ranges that are known to be empty in it, if any are.
    pub skip_ranges: Option<Arc<Spans>>,
    /// The root, once it was needed: all readers begin with it, and would all count that they use it.
    root: OnceLock<Handle>,
}

/// Upserts collected during the descent, newest first, until the value that they apply to is found.
#[derive(Default)]
struct Pending(Vec<Msg>);

impl Pending {
    /// Takes a message in; the value, if nothing older matters.
    fn meet(&mut self, msg: Msg, merge: &dyn Merge) -> Option<Value> {
        if msg.is_final() {
            return Some(self.over(msg.into_value(merge), merge));
        }
        self.0.push(msg);
        None
    }

    /// Takes in what an update says about a key.
    fn update(&mut self, update: Option<&UpdateMsg>) {
        self.0.extend(update.map(UpdateMsg::msg));
    }

    fn over(&mut self, base: Value, merge: &dyn Merge) -> Value {
        self.0.drain(..).rev().fold(base, |value, msg| msg.resolve(value, merge))
    }
}

/// The key in the keys of a node: a part of the one asked for, as long as nothing has been put on.
type Local<'k> = Cow<'k, [u8]>;

/// What one source says about a key.
enum Word<'k> {
    Value(Value),
    /// A range message covers the key: go on there, if anywhere.
    Jump(Option<(NodeId, Local<'k>)>),
    Nothing,
}

impl View {
    /// `tables` are newest first.
    pub fn new(
        tables: Vec<Arc<Memtable>>,
        tree: Arc<Tree>,
        msn: u64,
        skip_ranges: Option<Arc<Spans>>,
    ) -> Self {
        Self { tables, tree, msn, skip_ranges, root: OnceLock::new() }
    }

    fn root(&self, pager: &Pager) -> Result<&Handle> {
        match self.root.get() {
            Some(root) => Ok(root),
            None => {
                let root = child_node(pager, &self.tree.table, self.tree.root, None)?;
                Ok(self.root.get_or_init(|| root))
            }
        }
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8], pager: &Pager, merge: &dyn Merge) -> Result<Value> {
        let mut pending = Pending::default();
        let mut key = Local::Borrowed(key);
        let mut mark = KeyMark::of(&key);
        for table in &self.tables {
            // A point includes what the updates of its table say.
            match table.point(&key, mark) {
                Some(msg) => {
                    if let Some(value) = pending.meet(msg.clone(), merge) {
                        return Ok(value);
                    }
                }
                None => pending.update(table.update_at(&key)),
            }
            if let Some(range) = table.range_at(&key) {
                // Below a clone the key is that of the source.
                let Some(origin) = &range.origin else { return Ok(pending.over(None, merge)) };
                key = translated(range.span.common_prefix_len(), origin, &key);
                mark = KeyMark::of(&key);
            }
        }
        let mut at = (self.tree.root, key);
        let mut above = None;
        loop {
            let (id, key) = at;
            let child;
            let handle = if above.is_none() && id == self.tree.root {
                self.root(pager)?
            } else {
                child = child_node(pager, &self.tree.table, id, above)?;
                &child
            };
            above = Some(handle.node.height);
            if !handle.node.span.contains(&key) {
                return Err(out_of_node(id, &handle.node, &key));
            }
            match query_node(handle, &key, &mut pending, pager, merge)? {
                Word::Value(value) => return Ok(value),
                Word::Jump(Some(next)) => at = next,
                Word::Jump(None) | Word::Nothing => return Ok(pending.over(None, merge)),
            }
        }
    }
}

fn query_node<'k>(
    handle: &Handle,
    key: &Local<'k>,
    pending: &mut Pending,
    pager: &Pager,
    merge: &dyn Merge,
) -> Result<Word<'k>> {
    let node = &handle.node;
    let home = handle.home.as_ref();
    let find = |page: &_, key: &_| pager.find(home, page, key, || ());
    let edges = match &node.body {
        Body::Leaf(run) => {
            // A program that reads leaves in order will want the following pages as well.
            let missed = || pager.follow(home, run, run.page_from(key));
            let find = |page: &_, key: &_| pager.find(home, page, key, missed);
            let base = run.get(key, find)?.and_then(|msg| msg.into_value(merge));
            return Ok(Word::Value(pending.over(base, merge)));
        }
        Body::Interior(edges) => edges,
    };
    let i = node.edge_at(key);
    for layer in edges[i].layers.iter().rev() {
        match layer.run.get(key, find)? {
            Some(msg) => {
                if let Some(value) = pending.meet(msg, merge) {
                    return Ok(Word::Value(value));
                }
            }
            None => pending.update(layer.update_at(key)),
        }
        if let Some(jump) = range_jump(layer, key) {
            return Ok(Word::Jump(jump));
        }
    }
    Ok(match &edges[i].child {
        Some(target) => {
            let hi = edges.get(i + 1).map(|next| &next.lo).or(node.span.hi.as_ref());
            let strip = common_prefix_len(&edges[i].lo, hi.map(|hi| &hi[..]));
            Word::Jump(Some(step(strip, target, key)))
        }
        None => Word::Nothing,
    })
}

fn range_jump<'k>(layer: &Layer, key: &Local<'k>) -> Option<Option<(NodeId, Local<'k>)>> {
    let range = layer.range_at(key)?;
    Some(range.target.as_ref().map(|target| step(range.span.common_prefix_len(), target, key)))
}

/// Follows an edge or Goto that takes `strip` bytes off.
fn step<'k>(strip: usize, target: &Target, key: &Local<'k>) -> (NodeId, Local<'k>) {
    (target.id, translated(strip, &target.prepend, key))
}

/// The key with `strip` bytes taken off and `prepend` put on.
fn translated<'k>(strip: usize, prepend: &[u8], key: &Local<'k>) -> Local<'k> {
    match key {
        Cow::Borrowed(key) if prepend.is_empty() => Cow::Borrowed(&key[strip..]),
        key => Cow::Owned([prepend, &key[strip..]].concat()),
    }
}
