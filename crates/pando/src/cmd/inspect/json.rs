//! The DAG as JSON.
//!
//! Keys stand as objects: `bytes` in hexadecimal, and `text` for people. Those of
//! a node are its own ("local") ones; `path` says what they are for a reader.
//! `version` grows when a field changes its meaning or goes.

use pando_db::{
    Content, EdgeInfo, EntryInfo, ExtentInfo, Inspection, KeyRange, LayerInfo, MessageInfo, NodeInfo,
    PageInfo, PathInfo, RangeInfo, TargetInfo, UpdateInfo,
};
use serde_json::{Value, json};

use crate::cmd::inspect::keys::Keys;
use crate::report::VERSION;

/// Everything that was seen.
pub fn value(seen: &Inspection, keys: Keys) -> Value {
    let form = Form { keys };
    json!({
        "version": VERSION,
        "root": seen.root,
        "start": seen.start,
        "batch": seen.batch,
        "node_size": seen.node_size,
        "nodes_in_all": seen.nodes_in_all,
        "reclaimable": seen.reclaimable,
        "memory": list(&seen.memory, |layer| form.layer(layer)),
        "nodes": list(&seen.nodes, |node| form.node(node)),
        "omitted": seen.omitted,
    })
}

fn extent(e: &ExtentInfo) -> Value {
    json!({ "offset": e.offset, "len": e.len, "shared": e.shared })
}

fn list<T>(items: &[T], form: impl Fn(&T) -> Value) -> Value {
    items.iter().map(form).collect()
}

struct Form {
    keys: Keys,
}

impl Form {
    fn key(&self, key: &[u8]) -> Value {
        json!({ "bytes": hex(key), "text": self.keys.piece(key) })
    }

    fn range(&self, range: &KeyRange) -> Value {
        json!({ "lo": self.key(&range.lo), "hi": range.hi.as_ref().map(|hi| self.key(hi)) })
    }

    fn node(&self, node: &NodeInfo) -> Value {
        let (content, error) = match &node.content {
            Ok(content) => (Some(self.content(content)), None),
            Err(why) => (None, Some(why)),
        };
        json!({
            "id": node.id,
            "height": node.height,
            "references": node.references,
            "distance": node.distance,
            "path": node.path.as_ref().map(|path| self.path(path)),
            "extents": list(&node.extents, extent),
            "bytes": node.bytes,
            "header_bytes": node.header_bytes,
            "content": content,
            "error": error,
        })
    }

    fn path(&self, path: &PathInfo) -> Value {
        json!({
            "shown": self.range(&path.shown),
            "take_off": self.key(&path.take_off),
            "put_on": self.key(&path.put_on),
        })
    }

    fn content(&self, content: &Content) -> Value {
        json!({
            "range": self.range(&content.range),
            "edges": list(&content.edges, |edge| self.edge(edge)),
            "pages": list(&content.pages, |page| self.page(page)),
        })
    }

    fn edge(&self, edge: &EdgeInfo) -> Value {
        json!({
            "range": self.range(&edge.range),
            "child": edge.child.as_ref().map(|child| self.target(child)),
            "loose": edge.loose,
            "layers": list(&edge.layers, |layer| self.layer(layer)),
        })
    }

    fn target(&self, target: &TargetInfo) -> Value {
        json!({
            "node": target.node,
            "take_off": self.key(&target.take_off),
            "put_on": self.key(&target.put_on),
        })
    }

    fn layer(&self, layer: &LayerInfo) -> Value {
        json!({
            "newest": layer.newest,
            "ranges": list(&layer.ranges, |range: &RangeInfo| json!({
                "kind": if range.target.is_some() { "goto" } else { "delete" },
                "range": self.range(&range.range),
                "target": range.target.as_ref().map(|target| self.target(target)),
            })),
            "updates": list(&layer.updates, |update: &UpdateInfo| json!({
                "range": self.range(&update.range),
                "operations": list(&update.operations, |op| hex(op).into()),
            })),
            "pages": list(&layer.pages, |page| self.page(page)),
        })
    }

    fn page(&self, page: &PageInfo) -> Value {
        let (messages, error) = match &page.messages {
            None => (None, None),
            Some(Ok(entries)) => (Some(list(entries, |entry| self.entry(entry))), None),
            Some(Err(why)) => (None, Some(why)),
        };
        json!({
            "first": self.key(&page.first),
            "last": self.key(&page.last),
            "prefix": self.key(&page.prefix),
            "entries": page.entries,
            "raw": page.raw,
            "stored": page.stored,
            "messages": messages,
            "error": error,
        })
    }

    fn entry(&self, entry: &EntryInfo) -> Value {
        let key = self.key(&entry.key);
        match &entry.message {
            MessageInfo::Put(value) => json!({ "key": key, "kind": "put", "value": hex(value) }),
            MessageInfo::Delete => json!({ "key": key, "kind": "delete" }),
            MessageInfo::Upsert(operations) => {
                let conditions = list(operations, |op| op.if_present.into());
                let operations = list(operations, |op| hex(&op.operation).into());
                json!({
                    "key": key, "kind": "upsert", "operations": operations, "if_present": conditions,
                })
            }
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
