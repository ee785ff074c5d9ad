//! The B-epsilon-DAG: reading, flushing, cloning and healing of nodes.
//!
//! A lifted B-epsilon-DAG (FAST'20): nodes buffer messages for their children
//! and may be shared; range messages move whole subtrees. Everything works on
//! immutable versions: a [`view::View`] reads one, an [`edit::Edit`] builds the
//! next. Uses `key`, `format`, `merge` and the pager and table of
//! `store`; knows nothing of logs, checkpoints or threads.

pub(crate) mod absorb;
pub(crate) mod ahead;
pub(crate) mod block;
pub(crate) mod check;
pub(crate) mod clone;
pub(crate) mod damage;
pub(crate) mod deferred;
pub(crate) mod edit;
mod feed;
pub(crate) mod filter;
pub(crate) mod flatten;
pub(crate) mod flush;
pub(crate) mod join;
pub(crate) mod layer;
pub(crate) mod memtable;
mod opened;
pub(crate) mod pour;
pub(crate) mod run;
pub(crate) mod scan;
pub(crate) mod simplify;
pub(crate) mod sink;
pub(crate) mod split;
pub(crate) mod stretch;
pub(crate) mod tree;
pub(crate) mod trim;
pub(crate) mod update;
pub(crate) mod view;
mod visible;
