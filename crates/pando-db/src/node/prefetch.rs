//! Asking the processor for memory before it is needed.
//!
//! A plain read in advance does not do: a read that waits for memory holds up
//! all that comes behind it as soon as it is the oldest one under way. A hint
//! is done with at once. Where Rust has no such instruction (it has that of x86
//! only), nothing is done.

/// Bytes that the processor fetches at once.
const LINE_BYTES: usize = 64;

/// Asks for the bytes of `data` from `at` on, `len` of them, as far as they are there.
#[inline]
pub(crate) fn prefetch(data: &[u8], at: usize, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (at..at.saturating_add(len)).step_by(LINE_BYTES) {
        match data.get(at) {
            Some(byte) => safe_arch::prefetch_t0(byte),
            None => break,
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (data, at, len, LINE_BYTES);
}
