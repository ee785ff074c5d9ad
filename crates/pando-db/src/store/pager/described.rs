//! Checks that a page found in memory is the one that a reference describes.
//!
//! A page that is read is checked against its reference, but a cached page may have been read for another reference:
//! the cache knows places, and several nodes may name one place in an extent that they share. In a sound store all
//! these references describe the same page. A forged image may violate that, and an edit that took a page with
//! deletes for one of a leaf would panic. May use: pages and extents. No I/O.

use std::sync::Arc;

use crate::{
    error::Result,
    format::node_codec,
    node::{PageRef, Segment, page::Page, stored::Stored},
    space::Extent,
    store::page_id::place,
};

/// A page that was found in memory, for this reference. Where one node alone may name it nothing is looked at.
#[inline]
pub(super) fn as_described(
    page: &PageRef,
    extent: &Extent,
    segment: Segment,
    found: Arc<Page>,
) -> Result<Arc<Page>> {
    if extent.shared {
        let at = extent.place(segment.offset.into(), 1).unwrap_or(extent.offset);
        node_codec::check_described(page, &found, at)?;
    }
    Ok(found)
}

/// A page that was read ahead, if it is the described one; otherwise `None`, and the pager reports the damage.
pub(crate) fn if_described(
    home: Option<&Arc<Stored>>,
    page: &PageRef,
    found: Arc<Page>,
) -> Option<Arc<Page>> {
    match place(home, page) {
        Some((extent, segment)) => as_described(page, extent, segment, found).ok(),
        None => Some(found),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use bytes::Bytes;

    use crate::{
        device::{Device, MemDevice},
        format::node_codec,
        node::{PageLoc, PageRef, Segment, message::Msg, page::Builder},
        options::Codec,
        space::Space,
        store::pager::{Keep, Pager},
    };

    /// Two nodes may name one page of an extent that they share. What was verified as the page of one was given to
    /// the other, whatever its header said of it: a leaf came to hold a delete, and the next edit panicked.
    #[test]
    fn a_page_that_was_read_for_another_reference_is_checked_against_this_one() {
        let device = Arc::new(MemDevice::new(1 << 20));
        let space = Space::new(device.clone(), 0, 1 << 20);
        let extent = space.allocate_shared(8 << 10).unwrap();
        let mut offset = 0;
        let mut stored = |keys: [&'static str; 2]| {
            let mut builder = Builder::default();
            builder.push(keys[0].into(), Msg::Delete);
            builder.push(keys[1].into(), Msg::Put(Bytes::from(vec![7; 100])));
            let built = PageRef::from_built(builder.finish().unwrap());
            let PageLoc::Mem(memory) = &built.loc else { panic!("in memory") };
            let (segment, bytes) = node_codec::pack(memory, Codec::None);
            device.write_at(extent.offset + u64::from(offset), &bytes).unwrap();
            let segment = Segment { part: 0, offset, ..segment };
            offset += segment.len;
            PageRef { loc: PageLoc::Foreign(extent.clone(), segment), ..built }
        };
        let pages = [stored(["a", "b"]), stored(["c", "d"])];
        let page = &pages[0];
        let wrong = [
            PageRef { pure: true, ..page.clone() },
            PageRef { count: 3, ..page.clone() },
            PageRef { first: "0".into(), ..page.clone() },
            PageRef { last: "z".into(), ..page.clone() },
        ];
        for ahead in [false, true] {
            for wrong in &wrong {
                let pager = Pager::new(device.clone(), 1 << 20, 4096, Codec::None);
                if ahead {
                    assert_eq!(pager.read_side_by_side(None, pages.iter(), 1 << 20, Keep::Ahead).len(), 2);
                } else {
                    pager.page(None, page).unwrap();
                }
                assert!(pager.page(None, wrong).is_err_and(|error| error.is_damage()), "{ahead}: {wrong:?}");
                assert!(pager.find(None, wrong, b"b", || ()).is_err_and(|error| error.is_damage()));
                assert!(pager.page(None, page).unwrap().len() == 2 && !pager.knows_damage());
                assert!(pager.find(None, page, b"b", || ()).unwrap().is_some());
            }
        }
    }
}
