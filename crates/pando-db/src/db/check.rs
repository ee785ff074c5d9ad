//! Checking a whole store: the DAG, the table and the space between.

use std::fmt;

use bytes::Bytes;

use super::engine::Engine;
use crate::{dag, error::Result};

/// One thing that is wrong with a store.
#[derive(Debug, Clone)]
pub struct Finding {
    /// What is wrong, and where.
    pub what: String,
    /// A range of keys `[lo, hi)` that is affected, where it could be found. Others may be too, if the
    /// damaged node is shared.
    pub keys: Option<(Bytes, Option<Bytes>)>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        match &self.keys {
            Some((lo, Some(hi))) => write!(f, " (keys {lo:?} to {hi:?})"),
            Some((lo, None)) => write!(f, " (keys from {lo:?})"),
            None => Ok(()),
        }
    }
}

/// The result of [`crate::Db::check`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// Everything that is wrong; empty if the store is clean.
    pub findings: Vec<Finding>,
    /// Nodes read.
    pub nodes: u64,
    /// Pages read and verified.
    pub pages: u64,
    /// Raw bytes in these pages.
    pub bytes: u64,
}

pub(super) fn check(engine: &Engine) -> Result<CheckReport> {
    let view = engine.view();
    let report = dag::check::check(&view.tree, &engine.pager);
    let findings = report.problems.into_iter().map(|p| Finding { what: p.what, keys: p.keys }).collect();
    Ok(CheckReport { findings, nodes: report.nodes, pages: report.pages, bytes: report.bytes })
}
