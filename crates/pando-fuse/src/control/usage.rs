//! What a tree takes, as text in an answer. Pure.

/// What a tree takes, in bytes: seen by readers, kept for it, and of that its own, shared and estimated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)] // see the fields of the same names of `pando_fs::Usage`
pub struct Usage {
    pub visible: u64,
    pub stored: u64,
    pub exclusive: u64,
    pub shared: u64,
    pub estimated: u64,
}

impl From<&pando_fs::Usage> for Usage {
    fn from(usage: &pando_fs::Usage) -> Self {
        Self {
            visible: usage.visible_bytes,
            stored: usage.stored_bytes,
            exclusive: usage.exclusive_bytes,
            shared: usage.shared_bytes,
            estimated: usage.estimated_bytes,
        }
    }
}

/// The message of the answer to [`ControlRequest::Usage`](super::ControlRequest::Usage).
pub fn encode_usage(u: &Usage) -> String {
    format!("{} {} {} {} {}", u.visible, u.stored, u.exclusive, u.shared, u.estimated)
}

/// The reverse of [`encode_usage`]; `None` if it makes no sense.
pub fn decode_usage(text: &str) -> Option<Usage> {
    let mut numbers = text.split(' ').map(|number| number.parse().ok());
    let mut next = || numbers.next().flatten();
    let usage =
        Usage { visible: next()?, stored: next()?, exclusive: next()?, shared: next()?, estimated: next()? };
    numbers.next().is_none().then_some(usage)
}
