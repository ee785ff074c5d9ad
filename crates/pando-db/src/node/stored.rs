//! Where a node lies on the device, and how a new version of it takes over pages from there.
//!
//! A page of a stored node names its extent by a number of that node ([`PageLoc::Home`]). A *detached* page
//! names the extent itself ([`PageLoc::Foreign`]), so that it can belong to another node. May use: extents.
//! No I/O.

use std::sync::Arc;

use crate::{
    error::{Error, Result},
    node::{Node, PageLoc, PageRef, Segment},
    space::Extent,
};

/// A node on the device.
#[derive(Debug)]
pub(crate) struct Stored {
    /// Where its pages are; the first begins with the header and is the node's own.
    pub parts: Vec<Arc<Extent>>,
    pub header_len: u32,
    pub header_sum: u64,
}

impl Stored {
    /// The extent that a page of this node lies in.
    pub fn part(&self, segment: Segment) -> Result<&Arc<Extent>> {
        let missing = || Error::corrupt("node page", 0, "it lies in an extent that its node does not have");
        self.parts.get(usize::from(segment.part)).ok_or_else(missing)
    }

    /// The extent of the header.
    pub fn head(&self) -> Result<&Arc<Extent>> {
        self.parts.first().ok_or_else(|| Error::corrupt("node header", 0, "it has no place"))
    }
}

/// The node with pages that name their extent, so that a new version can take them over.
pub(crate) fn detach(node: &Node, home: &Stored) -> Result<Node> {
    let mut node = node.clone();
    for page in node.pages_mut() {
        detach_page(page, home)?;
    }
    Ok(node)
}

/// Makes one page name its extent.
pub(crate) fn detach_page(page: &mut PageRef, home: &Stored) -> Result<()> {
    if let PageLoc::Home(segment) = page.loc {
        page.loc = PageLoc::Foreign(home.part(segment)?.clone(), Segment { part: 0, ..segment });
    }
    Ok(())
}
