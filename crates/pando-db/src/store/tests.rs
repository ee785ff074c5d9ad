//! The invariants of the translation table and of extents, each broken on purpose: an assertion fails, in release
//! builds too. `docs/invariants.md` names them; those of the log are broken in `log/buffer.rs`, those of free space in
//! `space/tests.rs`.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    device::{BLOCK, Device, MemDevice},
    key::{Longest, Span},
    node::{Body, Edge, Node, stored::Stored},
    options::Codec,
    space::Space,
    store::{
        layout::store_node,
        pager::Pager,
        scattered,
        table::{Entry, Loc, Table},
    },
};

fn entry(height: u8, of_node: u8) -> Entry {
    let node = Node { height: of_node, span: Span::all(), body: Body::Interior(vec![Edge::default()]) };
    Entry { count: 1, height, longest: Longest::NONE, loc: Loc::Dirty(Arc::new(node)) }
}

fn table(count: u64) -> Table {
    let mut table = Table::default();
    (1..=count).for_each(|id| table.set(id, Some(entry(1, 1))));
    table
}

fn device() -> (Arc<dyn Device>, Arc<Space>) {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(1 << 20));
    (device.clone(), Space::new(device, 0, 1 << 20))
}

/// Writes a table whose nodes are stored as `change` says of what is right.
fn written(nodes: u64, change: impl Fn(&mut Stored)) {
    let (device, space) = device();
    let pager = Pager::new(device, 1 << 20, 4096, Codec::None);
    let mut store = |_, node: &Arc<Node>| {
        let right = store_node(&pager, &space, node, &|_| true)?;
        let Stored { header_len, header_sum, .. } = *right;
        let mut stored = Stored { parts: right.parts.clone(), header_len, header_sum };
        change(&mut stored);
        Ok(Arc::new(stored))
    };
    // A block for each page, whatever its length.
    let written = table(nodes).persist(&mut store, &mut |_: Bytes| space.allocate(BLOCK));
    assert!(written.is_ok_and(|table| table.home().is_some()));
}

#[test]
fn a_table_as_it_should_be_is_written() {
    written(3, |_| ());
}

#[test]
#[should_panic(expected = "the table has another height for node 1 than it has")]
fn the_table_has_the_heights_of_nodes() {
    Table::default().set(1, Some(entry(2, 1)));
}

#[test]
#[should_panic(expected = "a checkpoint has written another table than was frozen")]
fn a_checkpoint_writes_what_was_frozen() {
    table(1).adopt_stored(&table(1), &Table::default());
}

#[test]
#[should_panic(expected = "a node whose header is not in its first extent")]
fn a_stored_node_has_an_extent() {
    written(1, |stored| stored.parts.clear());
}

#[test]
#[should_panic(expected = "a node whose header is not in its first extent")]
fn a_header_fits_in_its_extent() {
    written(1, |stored| stored.header_len = stored.parts[0].len as u32 + 1);
}

#[test]
#[should_panic(expected = "a node in too many pieces")]
fn a_node_has_no_more_extents_than_the_table_names() {
    written(1, |stored| stored.parts = vec![stored.parts[0].clone(); 256]);
}

#[test]
#[should_panic(expected = "a table page reaches beyond its extent")]
fn a_table_page_lies_within_its_extent() {
    written(30, |stored| stored.parts = vec![stored.parts[0].clone(); 100]);
}

#[test]
#[should_panic(expected = "bytes that do not fill an extent")]
fn an_extent_is_written_whole() {
    let (device, space) = device();
    let extent = space.allocate(2 * BLOCK).unwrap();
    _ = scattered::write(&*device, &extent, &[1; BLOCK as usize]);
}
