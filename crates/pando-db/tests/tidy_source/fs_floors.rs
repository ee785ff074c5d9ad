//! What the files of the file system may import.

use crate::source::Floors;

/// The floors of `pando-fs`: one file or folder each.
pub const FS: Floors = &[
    ("error", &[]),
    ("limits", &[]),
    ("mode", &[]),
    ("stats", &[]),
    ("types", &[]),
    ("readahead", &[]),
    ("path", &["error", "limits"]),
    ("scanned", &[]),
    ("key_text", &["limits", "path"]),
    ("acl", &[]),
    ("attrs", &["path"]),
    ("account", &[]),
    ("record", &["limits", "types", "attrs", "account"]),
    ("blockmap", &["error", "limits", "path"]),
    ("merge", &["limits", "mode", "types", "attrs", "record", "blockmap", "account"]),
    ("sums", &["error", "types", "path", "scanned", "key_text", "account", "record", "blockmap"]),
    ("counter", &["error", "path"]),
    ("position", &["limits", "path"]),
    ("children", &["types"]),
    ("inode", &["error", "limits", "types", "record", "blockmap", "merge", "children"]),
    ("lineage", &["error", "types", "path", "key_text", "record", "counter", "inode"]),
    ("handle", &["error", "readahead", "position", "inode"]),
    ("counting", &["types", "inode"]),
    ("ledger", &["types", "inode"]),
    ("mount_points", &["types"]),
    ("lock", &["error"]),
    ("path_cache", &["types", "inode", "lock"]),
    ("file_runs", &["path"]),
    (
        "volume",
        &[
            "error",
            "limits",
            "stats",
            "types",
            "readahead",
            "path",
            "record",
            "merge",
            "counter",
            "counting",
            "position",
            "inode",
            "lineage",
            "handle",
            "path_cache",
            "file_runs",
            "ledger",
            "mount_points",
        ],
    ),
    ("place", &["error", "types", "path", "inode", "lock", "path_cache", "volume"]),
    ("domain", &["error", "types", "path", "record", "inode", "sums", "volume", "place"]),
    ("bill", &["error", "path", "account", "merge", "inode", "ledger", "volume", "place"]),
    ("family", &["error", "types", "path", "record", "inode", "lineage", "volume"]),
    ("frozen", &["error", "path", "record", "volume"]),
    ("staying", &["error", "volume"]),
    ("forks", &["error", "types", "path", "record", "volume", "frozen", "staying"]),
    ("policies", &["error", "types", "path", "volume", "staying"]),
    ("snapshotted", &["error", "types", "path", "volume", "staying"]),
    ("by_place", &["error", "volume", "staying"]),
    ("directories", &["error", "types", "path", "record", "lineage", "volume", "scanned"]),
    (
        "check",
        &[
            "error",
            "limits",
            "types",
            "path",
            "key_text",
            "attrs",
            "record",
            "blockmap",
            "lineage",
            "volume",
            "directories",
            "family",
            "forks",
            "policies",
            "scanned",
            "sums",
            "snapshotted",
        ],
    ),
    (
        "data",
        &[
            "error", "limits", "types", "path", "record", "blockmap", "merge", "inode", "handle", "volume",
            "place", "sums", "bill",
        ],
    ),
    (
        "copy",
        &[
            "error", "limits", "types", "path", "blockmap", "merge", "inode", "volume", "place", "data",
            "sums",
        ],
    ),
    (
        "allocate",
        &[
            "error", "limits", "types", "path", "blockmap", "merge", "inode", "volume", "place", "data",
            "sums",
        ],
    ),
    ("below", &["types", "inode", "volume"]),
    ("orphan", &["error", "types", "path", "merge", "inode", "volume", "data", "below"]),
    ("xattr", &["error", "types", "path", "attrs", "acl", "record", "merge", "inode", "volume", "place"]),
    (
        "file",
        &[
            "error", "limits", "types", "merge", "inode", "handle", "volume", "place", "data", "orphan",
            "bill",
        ],
    ),
    (
        "name",
        &[
            "error", "types", "path", "record", "inode", "lineage", "volume", "place", "domain", "family",
            "data", "file",
        ],
    ),
    (
        "quota",
        &[
            "error", "types", "path", "account", "record", "merge", "inode", "sums", "lock", "volume",
            "place", "domain", "bill", "name",
        ],
    ),
    (
        "entry",
        &[
            "error", "limits", "types", "path", "record", "merge", "inode", "lineage", "handle", "lock",
            "volume", "place", "domain", "forks", "data", "orphan", "name", "xattr", "bill", "quota",
            "staying",
        ],
    ),
    (
        "recursive",
        &[
            "error", "types", "mode", "path", "record", "merge", "inode", "lock", "volume", "place",
            "domain", "data",
        ],
    ),
    (
        "dir",
        &[
            "error", "types", "path", "record", "blockmap", "position", "inode", "handle", "volume", "place",
            "domain", "family", "data", "name",
        ],
    ),
    (
        "rename",
        &[
            "error", "types", "path", "record", "merge", "inode", "lineage", "lock", "volume", "place",
            "domain", "forks", "orphan", "name", "entry", "bill", "quota", "staying",
        ],
    ),
    (
        "link",
        &[
            "error", "types", "path", "record", "merge", "inode", "lineage", "lock", "counting", "volume",
            "place", "domain", "orphan", "name", "rename", "bill",
        ],
    ),
    (
        "census",
        &[
            "error", "types", "path", "record", "merge", "inode", "lineage", "lock", "counting", "volume",
            "place", "domain", "orphan", "name", "entry", "rename", "sums", "bill",
        ],
    ),
    ("exclude", &["error", "types", "path", "record", "inode", "sums", "volume", "bill", "quota", "rename"]),
    ("rights", &["error", "types", "path", "key_text", "acl", "record", "inode", "volume", "place", "entry"]),
    ("mounted", &["error", "types", "path", "inode", "volume", "family", "name", "mount_points"]),
    (
        "clone",
        &[
            "mounted", "error", "types", "path", "record", "merge", "inode", "lock", "volume", "place",
            "domain", "forks", "orphan", "name", "entry", "rename", "census", "rights", "account", "sums",
            "bill", "quota", "exclude", "staying",
        ],
    ),
    (
        "snapshot",
        &[
            "mounted", "error", "types", "path", "key_text", "record", "merge", "inode", "lineage", "lock",
            "volume", "place", "domain", "family", "frozen", "policies", "name", "entry", "rename", "census",
            "rights", "clone", "account", "bill", "forks", "staying",
        ],
    ),
    ("usage", &["error", "types", "path", "record", "volume", "place", "domain", "name"]),
    (
        "diff",
        &[
            "error", "limits", "types", "path", "key_text", "attrs", "record", "lock", "volume", "place",
            "domain", "rights",
        ],
    ),
    ("send", &["error", "limits", "types", "path", "volume", "family", "allocate", "rename", "diff"]),
    (
        "fork",
        &[
            "mounted", "error", "limits", "types", "path", "key_text", "attrs", "record", "merge", "inode",
            "lineage", "lock", "volume", "place", "domain", "forks", "orphan", "name", "entry", "census",
            "rights", "clone", "diff", "data", "account", "sums", "bill", "staying", "family",
        ],
    ),
];
