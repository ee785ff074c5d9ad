//! Byte-string arithmetic of ordered keys: successor of a prefix, common prefixes.
use bytes::Bytes;
/// The least key above every key that begins with `prefix`; `None` where there is none.
pub fn successor(prefix: &[u8]) -> Option<Bytes> {
    let end = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut next = prefix[..=end].to_vec();
    next[end] += 1;
    Some(next.into())
}
