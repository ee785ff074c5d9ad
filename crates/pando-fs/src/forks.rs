//! Forks: clones that remember what they were cloned from.
//!
//! A fork has a record under the contents prefix of its directory, and an *origin*: a read-only clone of what it was
//! at first, in a volume of its own, like that of a snapshot. Another key, under the contents prefix of the directory
//! that it was forked from, says that the fork is one of that directory. A batch that moves or removes a directory
//! moves or removes these keys, by prefix, so there are no forks without a directory, and no origins without a fork.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pando_db::Batch;

use crate::{
    error::{Error, Result},
    format::FEATURE_FORKS,
    path::{self, system},
    record::{Record, get_time, put_time},
    staying::Staying,
    types::Time,
    volume::Fs,
};

/// Version of the record of a fork.
const FORK_VERSION: u8 = 1;
/// Bytes of the record.
const RECORD_BYTES: usize = 1 + 4 + 12 + 12 + 4;

/// What is stored of a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fork {
    /// Number of the volume of its origin, which is the number of the fork as well.
    pub number: u32,
    pub created: Time,
    /// When its origin became what it is: when it was made, or merged last.
    pub since: Time,
    /// The user that made it.
    pub uid: u32,
}

impl Fork {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(RECORD_BYTES);
        out.put_u8(FORK_VERSION);
        out.put_u32_le(self.number);
        put_time(&mut out, self.created);
        put_time(&mut out, self.since);
        out.put_u32_le(self.uid);
        out.freeze()
    }

    pub(crate) fn decode(mut value: &[u8]) -> Result<Self, &'static str> {
        if value.len() != RECORD_BYTES || value.get_u8() != FORK_VERSION {
            return Err("not the record of a fork");
        }
        let number = value.get_u32_le();
        let created = get_time(&mut value).ok_or("impossible time")?;
        let since = get_time(&mut value).ok_or("impossible time")?;
        if number == path::LIVE || number >= path::SNAPSHOTS_END {
            return Err("impossible number of a fork");
        }
        Ok(Self { number, created, since, uid: value.get_u32_le() })
    }
}

pub(crate) fn damaged(detail: &'static str) -> Error {
    Error::Damaged { what: "forks".into(), detail }
}

impl Fs {
    /// Whether there is, or was, any fork. No I/O.
    pub(crate) fn has_forks(&self) -> bool {
        self.has_feature(FEATURE_FORKS)
    }

    /// The fork whose directory has this contents prefix. One point query, if there ever was a fork.
    pub(crate) fn fork_at(&self, contents: &[u8]) -> Result<Option<Fork>> {
        if !self.has_forks() {
            return Ok(None);
        }
        let value = self.db.get(&system::fork(contents))?;
        value.map(|value| Fork::decode(&value).map_err(damaged)).transpose()
    }

    /// Whether the fork was made of the directory with this contents prefix. One point query.
    pub(crate) fn is_source_of(&self, contents: &[u8], number: u32) -> Result<bool> {
        Ok(self.db.get(&system::forked(contents, number))?.is_some())
    }

    /// The contents prefix of the directory that a fork was made of, and that is there still. Looks at what is said of
    /// every fork.
    pub(crate) fn source_of(&self, number: u32) -> Result<Option<Vec<u8>>> {
        let mut pairs = self.db.prefix(&system::forked_below(b""));
        while let Some((key, _)) = pairs.next_ref()? {
            match system::forked_parts(key).ok_or_else(|| damaged("impossible key"))? {
                (contents, found) if found == number => return Ok(Some(contents.to_vec())),
                _ => {}
            }
        }
        Ok(None)
    }

    /// Adds that the directory with the contents prefix `contents`, whose entry has the path `entry`, is a fork of
    /// that with the contents prefix `source`, and of what it is itself at this place of the batch. The record is
    /// that which it gets. `around`: the linked files of a lineage around the source come along.
    pub(crate) fn add_fork(
        &self,
        batch: &mut Batch,
        (entry, contents): (&[u8], &[u8]),
        record: &Record,
        (source, around): (&[u8], bool),
        (uid, now): (u32, Time),
    ) -> Result<u32> {
        let number = self.fresh_volume()?;
        self.freeze(batch, number, (entry, contents), record)?;
        self.strip_later(batch, number, source, around)?;
        let fork = Fork { number, created: now, since: now, uid };
        batch.put(system::fork(contents), fork.encode());
        batch.put(system::forked(source, number), Bytes::new());
        Ok(number)
    }

    /// What moves with a directory: prefixes of keys, from and to, by the contents prefix that it has and will have.
    /// Two cursor steps, if there ever was a fork.
    pub(crate) fn moves_of_forks(&self, from: &[u8], to: &[u8]) -> Result<Vec<(Bytes, Bytes)>> {
        let mut moves = Vec::new();
        if self.has_forks() {
            for of in [system::fork, system::forked_below] {
                if self.db.prefix(&of(from)).next().transpose()?.is_some() {
                    moves.push((of(from), of(to)));
                }
            }
        }
        Ok(moves)
    }

    /// Adds what goes with the directory that has this contents prefix, but for what is `staying`: that it, and all
    /// below, are forks or were forked, and the origins. Two cursor steps; where forks go, as much as all that is said
    /// of forks.
    pub(crate) fn drop_forks(&self, batch: &mut Batch, contents: &[u8], staying: &Staying) -> Result<()> {
        if !self.has_forks() {
            return Ok(());
        }
        let mut gone = Vec::new();
        let mut pairs = self.db.prefix(&system::fork(contents));
        while let Some((key, value)) = pairs.next_ref()? {
            if staying.contains(key) {
                continue;
            }
            let fork = Fork::decode(value).map_err(damaged)?;
            batch.delete(key.to_vec()).delete_prefix(path::volume(fork.number));
            gone.push(fork.number);
        }
        drop(pairs);
        if !gone.is_empty() {
            // The origins hold what was deleted in the forks.
            batch.releases();
        }
        let below = system::forked_below(contents);
        let all = if gone.is_empty() { below.clone() } else { system::forked_below(b"") };
        let mut pairs = self.db.prefix(&all);
        while let Some((key, _)) = pairs.next_ref()? {
            let (_, number) = system::forked_parts(key).ok_or_else(|| damaged("impossible key"))?;
            let lost = key.starts_with(&below) && !staying.contains(key);
            if lost || gone.contains(&number) {
                batch.delete(key.to_vec());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn records_and_keys_come_back_and_damage_is_an_error() {
        let times = (Time { secs: -1, nanos: 5 }, Time { secs: 7, nanos: 0 });
        let fork = Fork { number: 9, created: times.0, since: times.1, uid: 1000 };
        let bytes = fork.encode();
        assert_eq!(Fork::decode(&bytes), Ok(fork));
        for cut in 0..bytes.len() {
            assert!(Fork::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        for number in [0, u32::MAX] {
            assert!(Fork::decode(&Fork { number, ..fork }.encode()).is_err());
        }
        let contents = path::contents(b"", b"a").unwrap();
        assert_eq!(system::fork_contents(&system::fork(&contents)), Some(&contents[..]));
        assert_eq!(system::forked_parts(&system::forked(&contents, 9)), Some((&contents[..], 9)));
    }
}
