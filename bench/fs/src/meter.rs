//! Time, processor time and device traffic of a piece of work.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The unit of times in `/proc`, the same on every Linux that programs see.
const TICKS_A_SECOND: f64 = 100.0;
/// The unit of the kernel's counts of sectors, whatever sectors the device has.
const SECTOR_BYTES: u64 = 512;
/// The flag of threads of the kernel in `/proc/PID/stat`.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// What a device has done so far, or in a piece of work.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Requests to read.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Requests to write.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests to flush its cache.
    pub flushes: u64,
}

impl Device {
    /// Reads the kernel's counts.
    pub fn read(file: &Path) -> Device {
        Self::parse(&fs::read_to_string(file).unwrap_or_default())
    }

    fn parse(text: &str) -> Device {
        let field: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
        let field = |index: usize| field.get(index).copied().unwrap_or(0);
        Device {
            reads: field(0),
            read_bytes: field(2) * SECTOR_BYTES,
            writes: field(4),
            written_bytes: field(6) * SECTOR_BYTES,
            flushes: field(15),
        }
    }

    /// What has been done since `before`.
    pub fn since(&self, before: &Device) -> Device {
        Device {
            reads: self.reads.saturating_sub(before.reads),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            writes: self.writes.saturating_sub(before.writes),
            written_bytes: self.written_bytes.saturating_sub(before.written_bytes),
            flushes: self.flushes.saturating_sub(before.flushes),
        }
    }
}

/// Processor time in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Cpu {
    /// Of the programs that do the work, with what the kernel does in their calls.
    pub client: f64,
    /// Of Pando's daemon.
    pub daemon: f64,
    /// Of the kernel's own threads: writeback, journals, loop device. Those of others on the machine are in it.
    pub kernel: f64,
}

impl Cpu {
    fn now(daemon: Option<u32>) -> Cpu {
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let children = stat("/proc/self/stat").map_or(0.0, |stat| stat.children);
        let daemon = daemon.and_then(|id| stat(&format!("/proc/{id}/stat"))).map_or(0.0, |stat| stat.own);
        let client = own.tv_sec as f64 + own.tv_nsec as f64 / 1e9 + children;
        Cpu { client, daemon, kernel: kernel_threads() }
    }

    fn since(&self, before: &Cpu) -> Cpu {
        Cpu {
            client: (self.client - before.client).max(0.0),
            daemon: (self.daemon - before.daemon).max(0.0),
            kernel: (self.kernel - before.kernel).max(0.0),
        }
    }

    /// All of it.
    pub fn all(&self) -> f64 {
        self.client + self.daemon + self.kernel
    }
}

/// Parts of a line of `/proc/PID/stat`; times in seconds.
struct Stat {
    flags: u64,
    own: f64,
    children: f64,
}

fn stat(file: &str) -> Option<Stat> {
    let text = fs::read_to_string(file).ok()?;
    // The name, in parentheses, may contain anything. The third field comes behind it.
    let field: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_whitespace().collect();
    let number = |index: usize| field.get(index - 3)?.parse::<u64>().ok();
    let seconds = |a, b| Some((number(a)? + number(b)?) as f64 / TICKS_A_SECOND);
    Some(Stat { flags: number(9)?, own: seconds(14, 15)?, children: seconds(16, 17)? })
}

fn kernel_threads() -> f64 {
    let Ok(entries) = fs::read_dir("/proc") else { return 0.0 };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let ids = ids.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let all = ids.filter_map(|id| stat(&format!("/proc/{id}/stat")));
    all.filter(|stat| stat.flags & KERNEL_THREAD != 0).map(|stat| stat.own).sum()
}

/// A piece of work, measured.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Measured {
    /// Seconds that it took.
    pub seconds: f64,
    /// Processor time meanwhile.
    pub cpu: Cpu,
    /// Device traffic meanwhile; with `settled`, until the file system was unmounted.
    pub device: Device,
    /// Whether `device` includes what was put off until the file system was unmounted.
    pub settled: bool,
}

/// The begin of a measurement.
pub struct Meter {
    device: Option<PathBuf>,
    before: Device,
    cpu: Cpu,
    daemon: Option<u32>,
    start: Instant,
}

impl Meter {
    /// Begins. `device` is the file with the kernel's counts.
    pub fn start(device: Option<&Path>, daemon: Option<u32>) -> Self {
        let before = device.map(Device::read).unwrap_or_default();
        let cpu = Cpu::now(daemon);
        Self { device: device.map(PathBuf::from), before, cpu, daemon, start: Instant::now() }
    }

    /// The work so far.
    pub fn measured(&self) -> Measured {
        let seconds = self.start.elapsed().as_secs_f64();
        let device = self.traffic();
        Measured { seconds, cpu: Cpu::now(self.daemon).since(&self.cpu), device, settled: false }
    }

    /// Device traffic since the begin.
    pub fn traffic(&self) -> Device {
        self.device.as_deref().map(Device::read).unwrap_or_default().since(&self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_the_kernel_are_read() {
        let text = "   11    0   16    1   22    0   48    2    0    3    3    0    0    0    0    5    1\n";
        let device = Device::parse(text);
        let wanted = Device { reads: 11, read_bytes: 8192, writes: 22, written_bytes: 24_576, flushes: 5 };
        assert_eq!(device, wanted);
        assert_eq!(Device::parse(""), Device::default());
        assert_eq!(wanted.since(&Device::default()), wanted);
    }

    #[test]
    fn processor_time_grows_with_work() {
        let meter = Meter::start(None, None);
        let mut sum = 0_u64;
        while meter.start.elapsed().as_millis() < 50 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(meter.measured().cpu.client > 0.001);
    }
}
