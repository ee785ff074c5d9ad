//! Whether the kernel offers FUSE over io_uring, and how to switch it on.

use std::io;

use io_uring::{IoUring, cqueue, squeue};

/// The switch, a parameter of the kernel's module.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Why there is no FUSE over io_uring here, with what can be done about it.
#[derive(Debug, thiserror::Error)]
pub enum Missing {
    /// The kernel does not know it.
    #[error("this kernel has no FUSE over io_uring (Linux 6.14 and later have it)")]
    Kernel,
    /// The kernel knows it, but it is off.
    #[error("FUSE over io_uring is switched off in this kernel: as root, echo 1 > {SWITCH}")]
    Off,
    /// No ring can be made.
    #[error("io_uring cannot be used: {0} (see the sysctl kernel.io_uring_disabled)")]
    Refused(io::Error),
}

/// Looks whether it can be used.
pub(crate) fn check() -> Result<(), Missing> {
    match std::fs::read_to_string(SWITCH).as_deref().map(str::trim) {
        Ok("Y") => {}
        Ok(_) => return Err(Missing::Off),
        Err(_) => return Err(Missing::Kernel),
    }
    new_ring().map(drop).map_err(Missing::Refused)
}

/// A ring for one request at a time, to be used only by the thread that makes it.
///
/// What the kernel has to do for a request in the name of that thread waits until the thread
/// asks for it, so that a request costs no interrupt of a running thread.
pub(super) fn new_ring() -> io::Result<IoUring<squeue::Entry128, cqueue::Entry>> {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(2)
}
