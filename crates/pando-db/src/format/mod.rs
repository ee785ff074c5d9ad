//! The bytes of nodes: what is encoded, decoded and checked, and nothing else.
//!
//! A node on disk is one extent: a header (edges, page directory) and behind
//! it the pages that hold messages or pairs, each compressed and checked on
//! its own so that a lookup reads a header and one page. Decoding is total:
//! any bytes give a value or an error, never a panic and never an allocation
//! larger than the input justifies. Uses `key` and `error` only, and the
//! extents of `store::space` as opaque owners of bytes.

pub(crate) mod codec;
pub(crate) mod message;
pub(crate) mod node;
pub(crate) mod node_codec;
pub(crate) mod page;
mod prefetch;
