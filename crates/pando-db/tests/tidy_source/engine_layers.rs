//! What the modules of the engine may import.

use crate::source::Layers;

/// The modules from the lowest layer up, and what each may import besides itself. A module may name only modules above
/// it in this list, so there can be no circle of modules.
pub const ENGINE: Layers = &[
    ("error", &[]),
    ("limits", &[]),
    ("locks", &[]),
    ("thread", &[]),
    ("waiting", &[]),
    ("key", &[]),
    ("merge", &[]),
    ("pool", &["locks"]),
    ("codec", &["error"]),
    ("options", &["merge"]),
    ("batch", &["key", "pool"]),
    ("device", &["error", "locks", "waiting"]),
    ("stats", &["device"]),
    ("space", &["error", "locks", "waiting", "device"]),
    ("node", &["error", "limits", "key", "merge", "pool", "codec", "space"]),
    ("format", &["error", "key", "pool", "codec", "options", "node"]),
    (
        "store",
        &[
            "error", "locks", "thread", "waiting", "key", "pool", "codec", "options", "device", "space",
            "node", "format",
        ],
    ),
    ("dag", &["error", "limits", "key", "merge", "node", "store"]),
    (
        "db",
        &[
            "error", "limits", "locks", "thread", "waiting", "key", "merge", "pool", "codec", "options",
            "batch", "device", "stats", "space", "node", "store", "dag",
        ],
    ),
];

/// The same inside `dag` and `db`: modules and files from the lowest layer up.
pub const DAG: Layers = &[
    ("tree", &[]),
    ("layer", &[]),
    ("edit", &["tree"]),
    ("damage", &["layer", "edit"]),
    ("check", &["tree"]),
    ("memtable", &["layer"]),
    ("read", &["tree", "layer", "memtable"]),
    ("longest", &["tree", "layer", "memtable", "read"]),
    ("share", &["tree", "layer", "edit", "memtable"]),
    ("write", &["damage", "layer", "edit", "memtable", "share"]),
    ("gc", &["damage", "layer", "edit", "share", "write"]),
];

pub const DB: Layers = &[
    ("engine", &[]),
    ("record", &[]),
    ("budget", &["engine"]),
    ("flush", &["engine", "budget"]),
    ("checkpoint", &["engine", "budget", "flush"]),
    ("background", &["engine", "budget", "flush", "checkpoint"]),
    ("admission", &["engine", "record", "budget", "flush", "checkpoint", "background"]),
    ("write", &["engine", "record", "budget", "background", "admission"]),
    ("recover", &["engine", "record", "budget", "flush", "checkpoint", "write"]),
    ("cursor", &["engine"]),
    ("handle", &["engine", "budget", "checkpoint", "background", "write", "recover", "cursor"]),
    ("diff", &["cursor", "handle"]),
    ("api", &["engine", "budget", "background", "write", "cursor", "handle"]),
];

/// The same inside `device`.
pub const DEVICE: Layers = &[
    ("counters", &[]),
    ("direct", &["counters"]),
    ("fail_stop", &[]),
    ("hooked", &[]),
    ("in_use", &[]),
    ("lock", &[]),
    ("probe", &[]),
    ("file", &["counters", "direct", "lock", "probe"]),
    ("medium", &["file"]),
    ("sparse", &[]),
    ("memory", &["counters", "sparse"]),
    ("sim", &["counters", "sparse"]),
];

/// The same inside `store`.
pub const STORE: Layers = &[
    ("cache_key", &[]),
    ("cached", &["cache_key"]),
    ("ghost", &[]),
    ("inflight", &["cache_key"]),
    ("log", &[]),
    ("page_id", &["cache_key"]),
    ("lent", &["page_id"]),
    ("row_cache", &["cache_key"]),
    ("scattered", &[]),
    ("sequence", &[]),
    ("sharded", &[]),
    ("table", &["scattered"]),
    ("superblock", &["log", "scattered", "table"]),
    ("unreadable", &[]),
    ("written", &["cache_key"]),
    (
        "pager",
        &[
            "cache_key",
            "cached",
            "ghost",
            "inflight",
            "page_id",
            "lent",
            "row_cache",
            "scattered",
            "sequence",
            "sharded",
            "table",
            "unreadable",
            "written",
        ],
    ),
    ("bulk", &["log", "pager"]),
    ("layout", &["scattered", "table", "pager"]),
];
