//! The DAG as an indented tree, for people.
//!
//! Depth first; a node that has been shown is named when it is reached again.
//! Paths descend strictly (the engine's walk sees to that), so the recursion is
//! no deeper than a DAG can be high.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write,
};

use pando_db::{
    EdgeInfo, Inspection, LayerInfo, MessageInfo, NodeInfo, OperationInfo, PageInfo, PathInfo, RangeInfo,
    TargetInfo,
};

use crate::cmd::inspect::keys::{Keys, bytes, count};
use crate::size::show;

/// Longest value that is shown in whole, in bytes.
const VALUE_BYTES: usize = 48;

struct NodePrinter<'a> {
    keys: Keys,
    nodes: HashMap<u64, &'a NodeInfo>,
    done: HashSet<u64>,
    out: String,
}

/// The tree, several lines.
pub fn text(seen: &Inspection, keys: Keys) -> String {
    let nodes = seen.nodes.iter().map(|node| (node.id, node)).collect();
    let mut printer = NodePrinter { keys, nodes, done: HashSet::new(), out: String::new() };
    printer.line(
        "",
        &format!(
            "{}, root {}, up to batch {}, nodes of {}",
            count(seen.nodes_in_all, "node"),
            seen.root,
            seen.batch,
            show(seen.node_size)
        ),
    );
    for table in &seen.memory {
        printer.line("", "in memory:");
        printer.layer("    ", None, table);
    }
    if !seen.reclaimable.is_empty() {
        let some: Vec<String> = seen.reclaimable.iter().take(20).map(u64::to_string).collect();
        let more = if seen.reclaimable.len() > some.len() { ", …" } else { "" };
        printer.line("", &format!("waiting to be reclaimed: {}{more}", some.join(", ")));
    }
    let order: Vec<u64> = seen.nodes.iter().map(|node| node.id).collect();
    for id in order {
        // First of all the start; after it only what no shown edge leads to.
        if printer.done.insert(id) {
            printer.node("", id);
        }
    }
    if seen.omitted > 0 {
        printer.line("", &format!("... and {}", count(seen.omitted, "more node")));
    }
    printer.out
}

impl NodePrinter<'_> {
    fn line(&mut self, indent: &str, text: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.out, "{indent}{text}");
    }

    fn node(&mut self, indent: &str, id: u64) {
        let Some(node) = self.nodes.get(&id).copied() else { return };
        let title = title(node, self.keys);
        self.line(indent, &title);
        let indent = format!("{indent}    ");
        let path = node.path.as_ref();
        match &node.content {
            Err(why) => self.line(&indent, &format!("CANNOT BE READ: {why}")),
            Ok(content) => {
                self.pages(&indent, path, &content.pages, "pair");
                for edge in &content.edges {
                    self.edge(&indent, path, edge);
                }
            }
        }
    }

    fn edge(&mut self, indent: &str, path: Option<&PathInfo>, edge: &EdgeInfo) {
        let range = self.keys.range(path, &edge.range);
        let loose = if edge.loose { " (a part)" } else { "" };
        let to = match &edge.child {
            Some(child) => format!("{}{loose}", self.arrow(child)),
            None => "nothing below".into(),
        };
        self.line(indent, &format!("edge {range} {to}"));
        let indent = format!("{indent}    ");
        for layer in edge.layers.iter().rev() {
            self.layer(&indent, path, layer);
        }
        let ranges = edge.layers.iter().flat_map(|layer| &layer.ranges);
        for target in edge.child.iter().chain(ranges.filter_map(|range| range.target.as_ref())) {
            self.below(&indent, target);
        }
    }

    /// The node that a target names, unless it stands above already.
    fn below(&mut self, indent: &str, target: &TargetInfo) {
        if self.nodes.contains_key(&target.node) && self.done.insert(target.node) {
            self.node(indent, target.node);
        }
    }

    fn layer(&mut self, indent: &str, path: Option<&PathInfo>, layer: &LayerInfo) {
        self.line(indent, &format!("waiting, up to batch {}:", layer.newest));
        let indent = format!("{indent}  ");
        self.pages(&indent, path, &layer.pages, "message");
        for update in &layer.updates {
            let keys = self.keys.range(path, &update.range);
            let ops: Vec<String> = update.operations.iter().map(|op| value(op)).collect();
            self.line(&indent, &format!("change {keys} by {}", ops.join(", then ")));
        }
        for range in &layer.ranges {
            self.range(&indent, path, range);
        }
    }

    fn range(&mut self, indent: &str, path: Option<&PathInfo>, range: &RangeInfo) {
        let keys = self.keys.range(path, &range.range);
        match &range.target {
            None => self.line(indent, &format!("delete {keys}")),
            Some(target) => {
                let arrow = self.arrow(target);
                self.line(indent, &format!("Goto {keys} {arrow}"));
            }
        }
    }

    fn arrow(&self, target: &TargetInfo) -> String {
        let map = self.keys.map(target);
        let map = if map.is_empty() { map } else { format!(" [{map}]") };
        let known = match (self.done.contains(&target.node), self.nodes.contains_key(&target.node)) {
            (true, _) => " (shown above)",
            (_, false) => " (not shown)",
            _ => "",
        };
        format!("-> node {}{map}{known}", target.node)
    }

    fn pages(&mut self, indent: &str, path: Option<&PathInfo>, pages: &[PageInfo], what: &str) {
        for page in pages {
            let (first, last) = (self.keys.local(path, &page.first), self.keys.local(path, &page.last));
            let keys = if page.entries == 1 { first } else { format!("{first} … {last}") };
            let size = match page.stored {
                Some(stored) => format!("{}, stored as {}", show(page.raw.into()), show(stored.into())),
                None => format!("{}, in memory", show(page.raw.into())),
            };
            self.line(indent, &format!("page {keys}: {}, {size}", count(page.entries, what)));
            let indent = format!("{indent}    ");
            match &page.messages {
                None => {}
                Some(Err(why)) => self.line(&indent, &format!("CANNOT BE READ: {why}")),
                Some(Ok(entries)) => {
                    for entry in entries {
                        let key = self.keys.local(path, &entry.key);
                        self.line(&indent, &format!("{key} {}", message(&entry.message)));
                    }
                }
            }
        }
    }
}

/// What a node is, in a line.
fn title(node: &NodeInfo, keys: Keys) -> String {
    let mut title = format!("node {}: height {}", node.id, node.height);
    if node.references != 1 {
        title += &format!(", {}", count(node.references, "reference"));
    }
    title += &match node.extents.first() {
        Some(extent) => format!(", {} at byte {}", show(node.bytes), extent.offset),
        None => format!(", about {} in memory", show(node.bytes)),
    };
    match &node.path {
        Some(path) if path.take_off != path.put_on => {
            let (off, on) = (keys.piece(&path.take_off), keys.piece(&path.put_on));
            title += &format!(", here {off} stands for its {on}");
        }
        Some(_) => {}
        None => title += ", nothing of it is seen by this path",
    }
    title
}

/// A value or operation, if need be its beginning.
fn value(value: &[u8]) -> String {
    match value.get(..VALUE_BYTES) {
        Some(start) if value.len() > VALUE_BYTES => {
            format!("{}… ({})", bytes(start), show(value.len() as u64))
        }
        _ => bytes(value),
    }
}

fn message(message: &MessageInfo) -> String {
    match message {
        MessageInfo::Put(v) => format!("= {}", value(v)),
        MessageInfo::Delete => "deleted".into(),
        MessageInfo::Upsert(ops) => {
            let condition = |op: &OperationInfo| if op.if_present { " if present" } else { "" };
            let words = |op: &OperationInfo| format!("{}{}", value(&op.operation), condition(op));
            let ops: Vec<String> = ops.iter().map(words).collect();
            format!("changed by {}", ops.join(", then "))
        }
    }
}
