//! What a seed decides before its first step: the store and the kind of trouble it gets into.

use std::sync::Arc;

use pando_db::{CreateOptions, Options};

use super::{merge::ModelMerge, rng::Rng, step::OpenWith};

/// Which kind of trouble a campaign makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// All operations; crashes, but a device that works until then.
    Crashes,
    /// Requests fail as well.
    Faults,
    /// The device is small, or the disk under it fills up.
    Space,
    /// Flushes lie: what was synced may be lost, but it must not be mixed up.
    Lies,
}

/// The store of one run. Sizes are bytes.
#[derive(Debug, Clone)]
pub struct Config {
    pub seed: u64,
    pub profile: Profile,
    /// The engine's own threads run, so that a seed does not decide everything.
    pub threads: bool,
    pub device_size: u64,
    pub node_size: u32,
    pub log_size: u64,
    pub first: OpenWith,
    pub steps: usize,
    /// Above this many keys or bytes, clones become deletes.
    pub max_keys: usize,
    pub max_bytes: usize,
}

impl Config {
    pub fn new(seed: u64, profile: Profile) -> Self {
        let rng = &mut Rng(seed ^ 0xC0FF_EE00);
        let node_size = *rng.pick(&[4096, 4096, 16384, 8192]);
        let tight = profile == Profile::Space;
        let small = *rng.pick(&[60, 600, 2500]);
        Self {
            seed,
            profile,
            threads: false,
            // Half of them so small that a few hundred values fill them.
            device_size: if tight { *rng.pick(&[12, 13, 14, 16, 24, 40]) * (64 << 10) } else { 64 << 20 },
            // With nodes of one block every reserve would be too small: each takes several times its bytes.
            node_size: if tight { 16 << 10 } else { node_size },
            log_size: (64 << 10) * if tight { 1 } else { rng.between(1, 5) },
            first: open_with(rng),
            steps: *rng.pick(&[60, 300, 300, 1500]),
            max_keys: if tight { small.max(600) } else { small },
            max_bytes: if tight { usize::MAX } else { *rng.pick(&[100_000, 500_000, 1_000_000]) },
        }
    }

    pub fn create_options(&self) -> CreateOptions {
        CreateOptions::default().node_size(self.node_size).log_size(self.log_size)
    }

    pub fn options(&self, with: &OpenWith) -> Options {
        let mut options = Options::default()
            .background(self.threads)
            .memtable_bytes(with.memtable)
            .cache_bytes(with.cache)
            // Half the seeds: what is freed is garbage at once; and in all, after a while.
            .discard_eagerly(self.seed % 2 == 1)
            .merge(Arc::new(ModelMerge));
        options.abundant_bytes = with.abundant;
        options
    }

    pub fn tight(&self) -> bool {
        self.profile == Profile::Space
    }
}

/// Tiny tables, so that structure grows quickly; now and then a roomy one.
pub fn open_with(rng: &mut Rng) -> OpenWith {
    OpenWith {
        memtable: *rng.pick(&[1 << 10, 1 << 10, 2 << 10, 4 << 10, 16 << 10]),
        cache: *rng.pick(&[256 << 10, 1 << 20, 8 << 20]),
        abundant: *rng.pick(&[None, None, Some(64), Some(1000), Some(8000)]),
    }
}
