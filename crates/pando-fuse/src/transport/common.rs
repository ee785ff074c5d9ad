//! What both ways to the kernel decide alike: limits, lifetimes and the meaning of single fields.
//!
//! Plain numbers and pure functions.

/// Largest write request, and read, bytes; the kernel caps a request at 256 pages by default.
pub(super) const MAX_WRITE_BYTES: u32 = 1 << 20;
/// Requests for readahead and asynchronous I/O that the kernel may have in flight, a count.
pub(super) const MAX_BACKGROUND_REQUESTS: u16 = 64;
/// Threads for answers that wait, a count of those that do not wait for the device just now.
pub(super) const MAX_WORKERS: usize = 16;
/// How long the kernel may rely on a name or on attributes, seconds. The server is the only one
/// that changes them behind the kernel's back, and then it notifies.
pub(super) const VALID_SECS: u64 = 86_400;
/// Most bytes of one copy_file_range: its older form has 32 bits for the answer. After a short copy the caller calls
/// again.
pub(super) const MAX_COPY_BYTES: u64 = 0xfff0_0000;

/// An offset or length in bytes of a notification, which has signed fields.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Whether a write comes from a caller's buffer: the kernel names the owner of locks there, and not
/// where it sends pages of its cache.
pub(super) fn is_direct_write(names_lock_owner: bool, writeback: bool) -> bool {
    names_lock_owner && !writeback
}
