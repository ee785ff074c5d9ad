//! The account of a directory: what the tree below it takes, and how much it may.
//!
//! An account is stored in the record of its directory. It is changed without being read, by operations that are part
//! of a change of the record ([`crate::merge::Change`]). Guarantees: two such operations combine to one that has the
//! effect of both in turn. Pure functions; uses no other module.

use bytes::{Buf, BufMut, BytesMut};

/// The stored account of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Account {
    /// Most bytes that the tree may take.
    pub limit: Option<u64>,
    /// Bytes that the tree takes; below zero only while it is stale.
    pub used: i64,
    /// `used` of this account, and of all accounts of directories below, may be wrong.
    pub stale: bool,
}

/// A change of an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AccountChange {
    /// Replaces the account by this one, or removes it.
    Set(Option<Account>),
    /// Sets whether the account is stale, if there is one.
    Stale(bool),
}

const NONE: u8 = 0;
const EXACT: u8 = 1;
const STALE: u8 = 2;
const NO_ACCOUNT: u8 = 3;
const BECOMES_EXACT: u8 = 4;
const BECOMES_STALE: u8 = 5;

impl Account {
    /// Most bytes of an encoded account.
    pub(crate) const MAX_BYTES: usize = 18;

    /// State (u8: 1 exact, 2 stale), bytes used (i64), whether there is a limit (u8), and the limit (u64) if so.
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        out.put_u8(if self.stale { STALE } else { EXACT });
        out.put_i64_le(self.used);
        out.put_u8(u8::from(self.limit.is_some()));
        if let Some(limit) = self.limit {
            out.put_u64_le(limit);
        }
    }

    /// Takes an account from the front of `bytes`.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let stale = match bytes.try_get_u8().ok()? {
            EXACT => false,
            STALE => true,
            _ => return None,
        };
        let used = bytes.try_get_i64_le().ok()?;
        let limit = match bytes.try_get_u8().ok()? {
            NONE => None,
            1 => Some(bytes.try_get_u64_le().ok()?),
            _ => return None,
        };
        Some(Self { limit, used, stale })
    }

    /// Whether so many bytes may be added.
    pub(crate) fn has_room(&self, bytes: i64) -> bool {
        self.left().is_none_or(|left| u64::try_from(bytes).map_or(true, |bytes| bytes <= left))
    }

    /// Bytes that may be added, if that is limited.
    pub(crate) fn left(&self) -> Option<u64> {
        let used = u64::try_from(self.used).unwrap_or(0);
        self.limit.map(|limit| limit.saturating_sub(used))
    }
}

impl AccountChange {
    /// Applies the change to an account.
    pub(crate) fn apply(self, account: &mut Option<Account>) {
        match (self, account) {
            (AccountChange::Set(new), account) => *account = new,
            (AccountChange::Stale(stale), Some(account)) => account.stale = stale,
            (AccountChange::Stale(_), None) => {}
        }
    }

    /// The change that equals this one followed by `next`.
    pub(crate) fn then(self, next: Self) -> Self {
        match (self, next) {
            (AccountChange::Set(Some(first)), AccountChange::Stale(stale)) => {
                AccountChange::Set(Some(Account { stale, ..first }))
            }
            (AccountChange::Set(None), AccountChange::Stale(_)) => self,
            _ => next,
        }
    }

    /// The change as bytes: an account, or one byte for each other change.
    pub(crate) fn encode(&self, out: &mut BytesMut) {
        match self {
            AccountChange::Set(Some(account)) => account.encode(out),
            AccountChange::Set(None) => out.put_u8(NO_ACCOUNT),
            AccountChange::Stale(false) => out.put_u8(BECOMES_EXACT),
            AccountChange::Stale(true) => out.put_u8(BECOMES_STALE),
        }
    }

    /// Takes a change from the front of `bytes`.
    pub(crate) fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let change = match *bytes.first()? {
            NO_ACCOUNT => AccountChange::Set(None),
            BECOMES_EXACT => AccountChange::Stale(false),
            BECOMES_STALE => AccountChange::Stale(true),
            _ => return Account::decode(bytes).map(|account| AccountChange::Set(Some(account))),
        };
        bytes.advance(1);
        Some(change)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn changes() -> Vec<AccountChange> {
        let account = Account { limit: Some(7), used: -3, stale: true };
        let exact = Account { limit: None, used: 1 << 40, stale: false };
        vec![
            AccountChange::Set(None),
            AccountChange::Set(Some(account)),
            AccountChange::Set(Some(exact)),
            AccountChange::Stale(false),
            AccountChange::Stale(true),
        ]
    }

    #[test]
    fn changes_come_back_and_cut_ones_are_none() {
        for change in changes() {
            let mut out = BytesMut::new();
            change.encode(&mut out);
            assert!(out.len() <= Account::MAX_BYTES);
            let mut rest = &out[..];
            assert_eq!(AccountChange::decode(&mut rest), Some(change));
            assert!(rest.is_empty());
            for cut in 0..out.len() {
                assert_eq!(AccountChange::decode(&mut &out[..cut]), None, "{change:?} cut to {cut}");
            }
        }
        assert_eq!(Account::decode(&mut &[9; Account::MAX_BYTES][..]), None);
    }

    #[test]
    fn two_changes_are_one() {
        let accounts = [None, Some(Account { limit: None, used: 5, stale: false })];
        for (first, second) in changes().into_iter().flat_map(|a| changes().into_iter().map(move |b| (a, b)))
        {
            for account in accounts {
                let (mut once, mut twice) = (account, account);
                first.apply(&mut twice);
                second.apply(&mut twice);
                first.then(second).apply(&mut once);
                assert_eq!(once, twice, "{first:?}, {second:?}");
            }
        }
    }

    #[test]
    fn what_is_left_is_never_negative() {
        let left = |limit, used| Account { limit, used, stale: false }.left();
        assert_eq!((left(None, 9), left(Some(10), 9), left(Some(10), 11)), (None, Some(1), Some(0)));
        assert_eq!(left(Some(10), -4), Some(10));
    }
}
