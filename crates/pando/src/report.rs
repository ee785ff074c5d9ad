//! Statistics: the JSON that `pando stats` prints, and the text for people.
//!
//! The daemon of a mounted file system makes the JSON and `pando stats` reads
//! it, so the struct is the format. `version` grows when a field changes its
//! meaning or goes; new fields alone do not change it.

use std::{collections::BTreeMap, fmt::Write};

use pando_fs::{Fs, FsStats};
use pando_fuse::Counters;
use serde::{Deserialize, Serialize};

use crate::size::show;

/// Version of all JSON that this program prints.
pub const VERSION: u32 = 1;

/// Everything that `pando stats` tells. Sizes are bytes; times end in their unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the documentation, and part of the format
pub struct Stats {
    pub version: u32,
    pub mounted: bool,
    /// Process id of the daemon of a mounted file system.
    pub pid: Option<u32>,
    pub label: String,
    /// Why no change is taken any more.
    #[serde(default)]
    pub stopped: Option<String>,
    pub size: Sizes,
    pub nodes: Nodes,
    pub log: Log,
    pub cache: Cache,
    /// Requests and bytes since the image was opened (for a mounted one: since mount).
    pub device: Device,
    pub checkpoints: u64,
    pub msn: u64,
    pub clones: Clones,
    pub inodes: Inodes,
    /// Requests of the kernel since mount, by kind.
    pub requests: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Sizes {
    pub device: u64,
    pub used: u64,
    pub available: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Nodes {
    pub target_size: u64,
    /// Nodes at each height, leaves first.
    pub by_height: Vec<u64>,
    pub shared: u64,
    pub reclaimable: u64,
    pub gotos_pending: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Log {
    pub size: u64,
    pub used: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Cache {
    pub budget: u64,
    pub used: u64,
    pub dirty: u64,
    /// Part of `dirty`: changes that only the log has.
    #[serde(default)]
    pub tables: u64,
    /// Memory of the process in its pool of buffers for pages, dirty ones too, and how much of it is in use.
    #[serde(default)]
    pub pool: u64,
    #[serde(default)]
    pub pool_used: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Device {
    pub reads: u64,
    pub read_bytes: u64,
    pub read_seeks: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    /// Past the page cache of the host. Absent from what older programs printed.
    #[serde(default)]
    pub direct: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Clones {
    pub count: u64,
    /// Upper bound of the bucket that holds the median, microseconds.
    pub median_us: Option<u64>,
    /// The same for the slowest.
    pub max_us: Option<u64>,
    /// How many took less than `below_us` and not less than the bucket before.
    pub latency: Vec<Bucket>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Bucket {
    pub below_us: u64,
    pub count: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Inodes {
    pub in_memory: u64,
    pub bytes_each: u64,
    pub open_files: u64,
    pub open_directories: u64,
}

impl Stats {
    /// The figures of `fs`; `requests` where it is mounted.
    pub fn of(fs: &Fs, requests: Option<&Counters>) -> pando_fs::Result<Stats> {
        let s: FsStats = fs.stats()?;
        let e = &s.engine;
        let latency = &s.clone_latency;
        Ok(Stats {
            version: VERSION,
            mounted: requests.is_some(),
            pid: requests.map(|_| std::process::id()),
            label: fs.label().to_owned(),
            stopped: e.stopped.clone(),
            size: Sizes { device: e.device_size, used: e.used, available: e.available },
            nodes: Nodes {
                target_size: e.node_size,
                by_height: e.nodes_by_height.clone(),
                shared: e.shared_nodes,
                reclaimable: e.reclaimable_nodes,
                gotos_pending: e.gotos_pending,
            },
            log: Log { size: e.log_size, used: e.log_used },
            cache: Cache {
                budget: e.cache_budget,
                used: e.cache_used,
                dirty: e.dirty,
                tables: e.tables,
                pool: e.page_memory,
                pool_used: e.page_memory_in_use,
            },
            device: Device {
                reads: e.device.reads,
                read_bytes: e.device.read_bytes,
                read_seeks: e.device.read_seeks,
                writes: e.device.writes,
                write_bytes: e.device.write_bytes,
                flushes: e.device.flushes,
                direct: e.direct_io,
            },
            checkpoints: e.checkpoints,
            msn: e.msn,
            clones: Clones {
                count: s.clones,
                median_us: latency.quantile(0.5),
                max_us: latency.quantile(1.0),
                latency: latency
                    .buckets
                    .iter()
                    .map(|&(below_us, count)| Bucket { below_us, count })
                    .collect(),
            },
            inodes: Inodes {
                in_memory: s.inodes_in_memory,
                bytes_each: s.inode_bytes,
                open_files: s.open_handles,
                open_directories: s.open_dirs,
            },
            requests: requests
                .map(|r| r.all().into_iter().map(|(name, n)| (name.to_owned(), n)).collect())
                .unwrap_or_default(),
        })
    }

    /// The figures for people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{name:<16} {value}");
        };
        if !self.label.is_empty() {
            line("label", self.label.clone());
        }
        if let Some(reason) = &self.stopped {
            line("STOPPED", format!("no change is taken any more: {reason}"));
            line("", "unmount, see to the device, and mount again; what was synced is there".into());
        }
        line(
            "size",
            format!(
                "{}, used {}, available {}",
                show(self.size.device),
                show(self.size.used),
                show(self.size.available)
            ),
        );
        let heights: Vec<String> =
            self.nodes.by_height.iter().enumerate().map(|(h, n)| format!("{n} at height {h}")).collect();
        let n = &self.nodes;
        line("nodes", format!("{} (of {} each)", heights.join(", "), show(n.target_size)));
        line(
            "",
            format!("{} shared, {} to reclaim, {} Gotos pending", n.shared, n.reclaimable, n.gotos_pending),
        );
        line("log", format!("{} of {}", show(self.log.used), show(self.log.size)));
        line(
            "cache",
            format!(
                "{} of {}, dirty {}",
                show(self.cache.used),
                show(self.cache.budget),
                show(self.cache.dirty)
            ),
        );
        line("", format!("pool {}, in use {}", show(self.cache.pool), show(self.cache.pool_used)));
        let d = &self.device;
        line(
            "device read",
            format!("{} in {} requests, {} seeks", show(d.read_bytes), d.reads, d.read_seeks),
        );
        line(
            "device written",
            format!("{} in {} requests, {} flushes", show(d.write_bytes), d.writes, d.flushes),
        );
        line("device I/O", if d.direct { "direct" } else { "through the page cache" }.into());
        line("checkpoints", format!("{}, batch {}", self.checkpoints, self.msn));
        if self.mounted {
            let c = &self.clones;
            let below = |us: Option<u64>| us.map_or_else(|| "-".into(), |us| format!("below {us} us"));
            line(
                "clones",
                format!("{}, median {}, slowest {}", c.count, below(c.median_us), below(c.max_us)),
            );
            for b in c.latency.iter().filter(|b| b.count > 0) {
                line("", format!("{:>8} below {} us", b.count, b.below_us));
            }
            let i = &self.inodes;
            line(
                "inodes",
                format!(
                    "{} in memory at {} B, {} files and {} directories open",
                    i.in_memory, i.bytes_each, i.open_files, i.open_directories
                ),
            );
            let requests: Vec<String> = self
                .requests
                .iter()
                .filter(|(_, n)| **n > 0)
                .map(|(name, n)| format!("{n} {name}"))
                .collect();
            line("requests", requests.join(", "));
            if let Some(pid) = self.pid {
                line("daemon", format!("process {pid}"));
            }
        }
        out
    }
}
