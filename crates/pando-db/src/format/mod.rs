//! The bytes of a node: its header, and the stored form of its pages.
//!
//! A node on the device is a header (edges, page directory) and the pages that hold its messages or pairs,
//! each compressed and checked on its own, so that a lookup reads a header and one page. Decoding is total:
//! any bytes give a value or an error, never a panic and never an allocation larger than the input justifies.
//! No I/O.

pub(crate) mod node_codec;
