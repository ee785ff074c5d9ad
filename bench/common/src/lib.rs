//! What the benchmarks of the engine and of the file system share: random
//! numbers, limits on memory, figures as text, plots.
//!
//! It knows neither engines nor file systems.

pub mod cgroup;
pub mod number;
pub mod plot;
mod random;

pub use random::Random;
