//! What the program and the process that does a part say to each other: lines of JSON.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{contender::Kind, data::check::Tree, figure::Figure};

/// Things that are made once for all, outside of the file systems.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Sources {
    /// An archive of a tree of source files.
    pub tar: PathBuf,
    /// What is in it.
    pub tree: Tree,
    /// A git repository of the same tree, if any work needs it.
    pub repository: Option<PathBuf>,
}

/// What is to be done.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Part {
    /// Name of the work.
    pub work: String,
    /// File system.
    pub kind: Kind,
    /// Where it is mounted.
    pub dir: PathBuf,
    /// Pando's program.
    pub pando: PathBuf,
    /// Factor on sizes.
    pub scale: f64,
    /// Seed of data and choices.
    pub seed: u64,
    /// The file with the kernel's counts of the device, if there is one.
    pub statistics: Option<PathBuf>,
    /// Pando's cache in bytes, if it does not choose.
    pub cache: Option<u64>,
    /// What is there for all.
    pub sources: Sources,
}

/// What the process asks for.
#[derive(Debug, Serialize, Deserialize)]
pub enum Ask {
    /// To have the file system unmounted, caches dropped, and it mounted again.
    Cold,
    /// To have the device limited, if there are no limits anyway; `None` takes that back.
    Throttle(Option<(u64, u64)>),
    /// Nothing more: what came of it.
    Done(Result<Vec<Figure>, String>),
}

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It is mounted; the daemon, if it has one.
    Mounted(Option<u32>),
    /// Done; or not, because there is nothing to limit.
    Throttled(bool),
    /// It could not be done.
    Failed(String),
}
