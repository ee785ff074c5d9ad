//! What comes of a work: one figure for each row of the table.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::meter::Measured;

/// The unit of values that are space on the device.
pub const SPACE: &str = "KiB";

/// Which of two values is the better one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Better {
    /// The smaller one: a time.
    Less,
    /// The larger one: a rate.
    More,
}

/// Bytes of the device that are put beside those of the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Traffic {
    /// What it read.
    Read,
    /// What it wrote.
    Written,
}

/// A row of one contender in one round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the row.
    pub row: String,
    /// Unit of `value`.
    pub unit: String,
    /// The figure.
    pub value: f64,
    /// How it is compared.
    pub better: Better,
    /// How it was measured.
    pub measured: Measured,
    /// Bytes that the user read or wrote, and what of the device to compare with.
    pub user_bytes: Option<(Traffic, u64)>,
    /// More of it, by name.
    pub extra: BTreeMap<String, f64>,
    /// How it developed: what it is over, and points.
    pub series: Option<(String, Vec<(f64, f64)>)>,
}

impl Figure {
    /// A value in a unit.
    pub fn new(row: impl Into<String>, unit: &str, value: f64, better: Better, measured: Measured) -> Self {
        Self {
            row: row.into(),
            unit: unit.into(),
            value,
            better,
            measured,
            user_bytes: None,
            extra: BTreeMap::new(),
            series: None,
        }
    }

    /// The time that it took, in seconds.
    pub fn seconds(row: impl Into<String>, measured: Measured) -> Self {
        Self::new(row, "s", measured.seconds, Better::Less, measured)
    }

    /// So many units a second.
    pub fn rate(row: impl Into<String>, unit: &str, count: f64, measured: Measured) -> Self {
        let rate = count / measured.seconds.max(1e-9);
        Self::new(row, &format!("{unit}/s"), rate, Better::More, measured)
    }

    /// A time in milliseconds.
    pub fn milliseconds(row: impl Into<String>, seconds: f64, measured: Measured) -> Self {
        Self::new(row, "ms", seconds * 1e3, Better::Less, measured)
    }

    /// The user wrote so much.
    pub fn wrote(mut self, bytes: u64) -> Self {
        self.user_bytes = Some((Traffic::Written, bytes));
        self
    }

    /// The user read so much.
    pub fn read(mut self, bytes: u64) -> Self {
        self.user_bytes = Some((Traffic::Read, bytes));
        self
    }

    /// And this.
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.extra.insert(name.into(), value);
        self
    }

    /// How it developed over what `over` names.
    pub fn over(mut self, over: &str, points: Vec<(f64, f64)>) -> Self {
        self.series = Some((over.into(), points));
        self
    }

    /// Bytes of the device for each of the user; `None` where nobody counted.
    pub fn per_byte(&self) -> Option<f64> {
        let (traffic, bytes) = self.user_bytes?;
        let device = &self.measured.device;
        if bytes == 0 || *device == Default::default() {
            return None;
        }
        let of_device = match traffic {
            Traffic::Read => device.read_bytes,
            Traffic::Written => device.written_bytes,
        };
        Some(of_device as f64 / bytes as f64)
    }
}
