//! Does each step to the store and to the oracle, and compares.
//!
//! While all goes well there is one world that the store may be in. An
//! operation that fails because the device failed may or may not have taken
//! effect: then there are two, until a read tells. What a crash may leave is
//! any world since the last successful sync, and no other.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use pando_db::{
    Db, Error, MAX_KEY, Op, Snapshot,
    device::{Device, FailMode, SimDevice},
};

use super::{
    config::{Config, Profile},
    coverage::Coverage,
    oracle::{self, Pair, Refusal, World},
    reading::{HeldCursor, compare_transcript, seek, sought, take_from},
    step::{How, OpenWith, Step},
};

/// What was found to be wrong.
pub type Outcome<T = ()> = Result<T, String>;

pub struct Runner {
    config: Config,
    device: Arc<SimDevice>,
    /// `None` only while it is being reopened, and after the end of a run on a lying device.
    db: Option<Db>,
    /// What the store may hold now: one world, unless operations failed.
    worlds: Vec<World>,
    /// What a crash may leave, oldest first; begins with what is durable.
    history: Vec<World>,
    snapshots: BTreeMap<u8, (Snapshot, Vec<World>)>,
    cursors: BTreeMap<u8, HeldCursor>,
    /// Whether a fault was armed since the store was opened.
    disturbed: bool,
    lying: bool,
    /// Whether a batch was accepted since the store was opened.
    has_written: bool,
    steps: u64,
    /// What the next batch expects.
    expected: Vec<(Bytes, Option<Bytes>)>,
    /// Of devices that were given up.
    asked: Asked,
    pub coverage: Coverage,
}

/// Reads, writes, bytes written and flushes.
pub type Asked = (u64, u64, u64, u64);

impl Runner {
    pub fn new(config: &Config) -> Outcome<Self> {
        let device = Arc::new(SimDevice::new(config.device_size, config.seed));
        let options = config.options(&config.first);
        Db::create(device.clone(), &config.create_options(), &options).map_err(|e| format!("create: {e}"))?;
        let db = Db::open(device.clone(), options).map_err(|e| format!("open of a new store: {e}"))?;
        Ok(Self {
            config: config.clone(),
            device,
            db: Some(db),
            worlds: vec![World::default()],
            history: vec![World::default()],
            snapshots: BTreeMap::new(),
            cursors: BTreeMap::new(),
            disturbed: false,
            lying: false,
            has_written: false,
            steps: 0,
            expected: Vec::new(),
            asked: (0, 0, 0, 0),
            coverage: Coverage::default(),
        })
    }

    /// What the store should hold (one of the possible worlds).
    pub fn world(&self) -> &World {
        &self.worlds[0]
    }

    /// Requests that the device has seen since it was last reopened.
    pub fn requests(&self) -> u64 {
        self.device.requests()
    }

    /// What was asked of the device so far, and of those before it.
    pub fn asked(&self) -> Asked {
        let stats = self.device.stats();
        let (reads, writes, bytes, flushes) = self.asked;
        (reads + stats.reads, writes + stats.writes, bytes + stats.write_bytes, flushes + stats.flushes)
    }

    /// True when there is nothing left to do: a lying device has lost the store.
    pub fn over(&self) -> bool {
        self.db.is_none()
    }

    fn db(&self) -> &Db {
        self.db.as_ref().expect("the store is open between steps")
    }

    pub fn step(&mut self, step: &Step) -> Outcome {
        if self.over() {
            return Ok(());
        }
        self.steps += 1;
        if self.steps.is_multiple_of(16) {
            self.observe_structure()?;
        }
        match step {
            Step::Write(ops) => {
                let expected = std::mem::take(&mut self.expected);
                self.write_if(&expected, ops)
            }
            Step::Expect(expected) => {
                self.expected.clone_from(expected);
                Ok(())
            }
            Step::Get(key) => self.get(key),
            Step::Scan { lo, hi, ends, take } => self.scan(lo, hi.as_deref(), *ends, *take),
            Step::Verify => self.verify(),
            Step::Snapshot(slot) => {
                self.compare_snapshot(*slot)?;
                self.snapshots.insert(*slot, (self.db().snapshot(), self.worlds.clone()));
                Ok(())
            }
            Step::CompareSnapshot(slot) => self.compare_snapshot(*slot),
            Step::OpenCursor { slot, lo, hi } => {
                self.open_cursor(*slot, lo.clone(), hi.clone());
                Ok(())
            }
            Step::Advance { slot, ends, take } => self.advance(*slot, *ends, *take),
            Step::Seek { slot, key, back } => {
                if let Some(held) = self.cursors.get_mut(slot) {
                    seek(&mut held.cursor, key, *back);
                    held.shown = sought(&held.range, key, *back);
                    held.seen.clear();
                    self.coverage.add("held cursors moved", 1);
                }
                Ok(())
            }
            Step::Sync => self.make_durable("sync", Db::sync),
            Step::Checkpoint => self.make_durable("checkpoint", Db::checkpoint),
            Step::Settle => self.make_durable("settle", Db::settle),
            Step::Fault { after, onwards } => {
                let mode = if *onwards { FailMode::Onwards } else { FailMode::Once };
                self.device.set_fail_at(Some(*after), mode);
                self.disturbed = true;
                Ok(())
            }
            Step::Heal => {
                self.device.set_fail_at(None, FailMode::Once);
                Ok(())
            }
            // The store takes its reserve from the disk at its first write; before, it promises nothing.
            Step::LimitSpace(_) if !self.has_written => Ok(()),
            Step::LimitSpace(more) => {
                self.device.set_space_limit(Some(self.device.space_used() + more));
                Ok(())
            }
            Step::Lie => {
                self.device.set_lying(true);
                self.lying = true;
                Ok(())
            }
            Step::MakeRoom => self.make_room(),
            Step::Reopen { how, with } => self.reopen(*how, with),
        }?;
        // What nobody can read cannot be told apart for ever: enough is enough.
        if self.worlds.len() > 64 {
            self.reopen(How::Crash, &self.config.first.clone())?;
        }
        Ok(())
    }

    /// The end of every run: everything compared, closed, opened and compared again.
    pub fn finish(&mut self) -> Outcome {
        if self.over() {
            return Ok(());
        }
        self.step(&Step::Heal)?;
        self.compare_held()?;
        self.verify()?;
        let how = match (self.lying, self.disturbed) {
            (true, _) => How::Crash,
            (_, true) => How::CrashTwice,
            _ => How::CloseThenCrash,
        };
        self.reopen(how, &self.config.first.clone())?;
        if self.over() {
            return Ok(());
        }
        self.make_durable("checkpoint", Db::checkpoint)?;
        self.verify()
    }

    // ---- writing ----

    fn write(&mut self, ops: &[Op]) -> Outcome {
        self.write_if(&[], ops)
    }

    fn write_if(&mut self, expected: &[(Bytes, Option<Bytes>)], ops: &[Op]) -> Outcome {
        let holds = |world: &World| expected.iter().all(|(key, value)| world.get(key) == value.as_ref());
        let mut batch = pando_db::Batch::new();
        // In runs, so that several are made one, and long enough apart that others are not.
        if self.coverage.get("batches") / 16 % 2 == 1 {
            batch.may_coalesce();
        }
        ops.iter().for_each(|op| {
            batch.push(op.clone());
        });
        expected.iter().for_each(|(key, value)| _ = batch.expect(key.clone(), value.clone()));
        let result = self.db().write(batch);
        // Only one of a copy that makes a key too long depends on the world.
        let refused = |world: &World| world.refusal(ops);
        let must_refuse = match self.worlds.iter().all(|world| refused(world).is_some()) {
            true => refused(self.world()),
            false => None,
        };
        match (result, must_refuse) {
            (Err(Error::Conflict { key, found }), None) => {
                self.worlds.retain(|world| !holds(world) && world.get(&key) == found.as_ref());
                if self.worlds.is_empty() {
                    return Err(format!("a conflict at {} that there is not", oracle::show(&key)));
                }
                self.coverage.add("conflicts", 1);
                Ok(())
            }
            (Ok(()), None) => {
                self.worlds.retain(|world| holds(world) && refused(world).is_none());
                if self.worlds.is_empty() {
                    return Err(format!("a batch was accepted that must conflict: {expected:?}"));
                }
                if !expected.is_empty() {
                    self.coverage.add("batches that expect", 1);
                }
                if ops.iter().any(is_copy_at_the_limit) {
                    self.coverage.add("copies near the longest key", 1);
                }
                self.coverage.add("batches", 1);
                // (Deletes are let into the reserve.)
                self.has_written |= !ops.is_empty()
                    && !ops.iter().any(|op| matches!(op, Op::Delete(_) | Op::DeleteRange(..)));
                self.worlds.iter_mut().for_each(|world| *world = world.after(ops));
                self.history.extend(self.worlds.iter().cloned());
                self.coverage.reach("keys", self.world().len() as u64);
                Ok(())
            }
            (Ok(()), Some(refusal)) => Err(format!("a batch was accepted that must be refused: {refusal:?}")),
            (Err(Error::Overlap), Some(Refusal::Overlap)) => {
                self.coverage.add("overlaps refused", 1);
                Ok(())
            }
            (Err(Error::TooLarge { .. }), Some(Refusal::TooLarge)) => {
                if ops.iter().any(is_copy_at_the_limit) && !self.too_long(ops) {
                    self.coverage.add("copies of keys too long refused", 1);
                }
                Ok(())
            }
            // A batch with two faults may be refused for either.
            (Err(Error::TooLarge { .. } | Error::Overlap), Some(_)) => Ok(()),
            (Err(Error::Conflict { .. }), Some(_)) if !self.worlds.iter().any(holds) => Ok(()),
            (Err(Error::TooLarge { .. }), None) if self.too_long(ops) => {
                self.coverage.add("batches too long", 1);
                Ok(())
            }
            (Err(Error::TooLarge { .. }), None)
                if self.worlds.iter().any(|world| refused(world).is_some()) =>
            {
                self.worlds.retain(|world| refused(world).is_some());
                Ok(())
            }
            (Err(Error::NoSpace), _) if self.config.tight() => {
                self.coverage.add("no space", 1);
                if !ops.iter().all(|op| matches!(op, Op::Delete(_) | Op::DeleteRange(..))) {
                    return Ok(());
                }
                // Readers keep what was deleted; without them a delete must go through.
                if self.snapshots.is_empty() && self.cursors.is_empty() {
                    return Err(format!("no space to delete; {}", self.space_report()));
                }
                self.compare_held()?;
                self.write_if(expected, ops)
            }
            (Err(error), _) => {
                let stopped = matches!(error, Error::Stopped { .. });
                self.tolerate("write", error)?;
                // A device that failed may have failed before or after the batch took effect.
                if must_refuse.is_none() && !stopped {
                    let after: Vec<World> = self
                        .worlds
                        .iter()
                        .filter(|world| holds(world) && refused(world).is_none())
                        .map(|world| world.after(ops))
                        .collect();
                    self.history.extend(after.iter().cloned());
                    self.worlds.extend(after);
                    self.settle_worlds();
                }
                Ok(())
            }
        }
    }

    /// Whether a batch may be over the limit of the log, a quarter of its size.
    fn too_long(&self, ops: &[Op]) -> bool {
        let bytes: usize = ops
            .iter()
            .map(|op| match op {
                Op::Put(a, b)
                | Op::Upsert(a, b)
                | Op::UpsertPrefix(a, b)
                | Op::ClonePrefix(a, b)
                | Op::RenamePrefix(a, b) => a.len() + b.len(),
                Op::Delete(a) => a.len(),
                Op::DeleteRange(a, b) => a.len() + b.as_ref().map_or(0, Bytes::len),
                _ => unreachable!("an operation that the model does not know"),
            })
            .sum();
        bytes + 32 * ops.len() + 128 > self.config.log_size as usize / 4
    }

    /// An error is fine only where a fault was injected, and only as what such a fault is.
    fn tolerate(&mut self, during: &str, error: Error) -> Outcome {
        if self.lying && is_damage(&error.to_string()) {
            self.coverage.add("lies found out", 1);
            return Ok(());
        }
        match error {
            // What the device does wrong now is no corruption and breaks no invariant.
            Error::Stopped { reason } if reason.contains("corrupt") || reason.contains("panic") => {
                Err(format!("{during}: stopped: {reason}"))
            }
            Error::Io { .. } | Error::Stopped { .. } if self.disturbed => {
                self.coverage.add("failures met", 1);
                Ok(())
            }
            error => Err(format!("{during}: {error}")),
        }
    }

    /// Finds out which of the possible worlds it is, if the store can be read.
    fn settle_worlds(&mut self) {
        self.worlds.dedup_by_key(|world| world.digest());
        if self.worlds.len() > 1
            && let Ok(pairs) = read_all(self.db().range(&[], None))
        {
            let digest = oracle::digest(&pairs);
            if self.worlds.iter().any(|world| world.digest() == digest) {
                self.worlds.retain(|world| world.digest() == digest);
                self.worlds.truncate(1);
            }
        }
    }

    fn make_durable(&mut self, what: &str, call: fn(&Db) -> pando_db::Result<()>) -> Outcome {
        match call(self.db()) {
            Ok(()) => {
                self.coverage.add("syncs and checkpoints", 1);
                self.forget_history();
                Ok(())
            }
            Err(error) => self.tolerate(what, error),
        }
    }

    /// What is durable now cannot be undone, unless the device lied (or will: a lie may destroy both of
    /// the newest checkpoints, and an older one is all that is left).
    fn forget_history(&mut self) {
        if self.config.profile != Profile::Lies {
            self.history = self.worlds.clone();
        }
    }

    /// Where the space is, for people.
    pub fn space_report(&self) -> String {
        let Some(Ok(stats)) = self.db.as_ref().map(Db::stats) else { return "no figures".into() };
        format!(
            "device holds {}, size {}, used {}, available {}, dirty {}, nodes {:?}, shared {}, reclaimable {}",
            self.device.space_used(),
            stats.device_size,
            stats.used,
            stats.available,
            stats.dirty,
            stats.nodes_by_height,
            stats.shared_nodes,
            stats.reclaimable_nodes
        )
    }

    fn make_room(&mut self) -> Outcome {
        self.compare_held()?;
        self.write(&[Op::DeleteRange(Bytes::new(), None)])?;
        let small = Op::Put("room".into(), vec![7; 1000].into());
        let refused = self.coverage.get("no space");
        self.write(&[small])?;
        if self.coverage.get("no space") > refused {
            return Err(format!("no space for a small value in an empty store; {}", self.space_report()));
        }
        Ok(())
    }

    // ---- reading ----

    fn get(&mut self, key: &[u8]) -> Outcome {
        match self.db().get(key) {
            Ok(value) => self.expect_worlds(|world| {
                let expected = world.get(key);
                if expected == value.as_ref() {
                    return Ok(());
                }
                let show = |value: Option<&Bytes>| value.map_or("nothing".into(), |v| oracle::show(v));
                let (want, have) = (show(expected), show(value.as_ref()));
                Err(format!("get {}: expected {want}, got {have}", oracle::show(key)))
            }),
            Err(error) => self.tolerate("get", error),
        }
    }

    fn scan(&mut self, lo: &[u8], hi: Option<&[u8]>, ends: u64, take: usize) -> Outcome {
        let mut cursor = self.db().range(lo, hi);
        let (seen, failed) = take_from(&mut cursor, ends, take);
        self.expect_worlds(|world| compare_transcript(world, lo, hi, &seen))?;
        if let Some(error) = failed {
            return self.tolerate("scan", error);
        }
        let found: Vec<&Bytes> = seen.iter().filter_map(|(_, found)| Some(&found.as_ref()?.0)).collect();
        let Some(key) = found.get(ends as usize % found.len().max(1)).copied() else { return Ok(()) };
        let back = ends.count_ones() % 2 == 1;
        seek(&mut cursor, key, back);
        let range = (Bytes::copy_from_slice(lo), hi.map(Bytes::copy_from_slice));
        let (lo, hi) = sought(&range, key, back);
        let (seen, failed) = take_from(&mut cursor, ends.rotate_left(7), take);
        self.expect_worlds(|world| compare_transcript(world, &lo, hi.as_deref(), &seen))
            .map_err(|e| format!("after seeking {} (back: {back}): {e}", oracle::show(key)))?;
        failed.map_or(Ok(()), |error| self.tolerate("scan", error))
    }

    fn open_cursor(&mut self, slot: u8, lo: Bytes, hi: Option<Bytes>) {
        let cursor = self.db().range(&lo, hi.as_deref());
        let worlds = self.worlds.clone();
        let range = (lo, hi);
        let shown = range.clone();
        self.cursors.insert(slot, HeldCursor { cursor, worlds, range, shown, seen: Vec::new() });
    }

    fn advance(&mut self, slot: u8, ends: u64, take: usize) -> Outcome {
        let Some(mut held) = self.cursors.remove(&slot) else { return Ok(()) };
        let (seen, failed) = take_from(&mut held.cursor, ends, take);
        held.seen.extend(seen);
        let (lo, hi) = &held.shown;
        let compare = |world: &World| compare_transcript(world, lo, hi.as_deref(), &held.seen);
        some_world(&held.worlds, compare).map_err(|e| format!("held cursor {slot}: {e}"))?;
        self.coverage.add("held cursors compared", 1);
        match failed {
            Some(error) => self.tolerate("held cursor", error),
            None => {
                self.cursors.insert(slot, held);
                Ok(())
            }
        }
    }

    fn compare_snapshot(&mut self, slot: u8) -> Outcome {
        let Some((snapshot, worlds)) = self.snapshots.remove(&slot) else { return Ok(()) };
        self.coverage.add("snapshots compared", 1);
        match read_all(snapshot.range(&[], None)) {
            Ok(pairs) => {
                some_world(&worlds, |world| world.compare(&pairs))
                    .map_err(|e| format!("snapshot {slot}: {e}"))?;
                let Some((key, value)) = pairs.get(self.steps as usize % pairs.len().max(1)) else {
                    return Ok(());
                };
                match snapshot.get(key) {
                    Ok(Some(got)) if got == value => Ok(()),
                    Ok(got) => Err(format!("snapshot {slot}: get {} gives {got:?}", oracle::show(key))),
                    Err(error) => self.tolerate("snapshot get", error),
                }
            }
            Err(error) => self.tolerate("snapshot", error),
        }
    }

    /// Compares all snapshots and cursors and lets them go.
    fn compare_held(&mut self) -> Outcome {
        for slot in self.snapshots.keys().copied().collect::<Vec<_>>() {
            self.compare_snapshot(slot)?;
        }
        for slot in self.cursors.keys().copied().collect::<Vec<_>>() {
            self.advance(slot, self.steps, usize::MAX)?;
        }
        self.cursors.clear();
        Ok(())
    }

    /// Everything, in both directions, and the checker.
    fn verify(&mut self) -> Outcome {
        match read_all(self.db().range(&[], None)) {
            Ok(pairs) => self.expect_worlds(|world| world.compare(&pairs))?,
            Err(error) => return self.tolerate("scan of everything", error),
        }
        match read_all(self.db().range(&[], None).rev()) {
            Ok(mut pairs) => {
                pairs.reverse();
                self.expect_worlds(|world| world.compare(&pairs)).map_err(|e| format!("backward: {e}"))?;
            }
            Err(error) => return self.tolerate("backward scan of everything", error),
        }
        match check(self.db()) {
            Ok(findings) if findings.is_empty() => Ok(()),
            // What the device refuses to read is a finding, and what cannot be counted then others.
            Ok(findings) if self.disturbed && findings.iter().any(|f| f.contains("os error")) => Ok(()),
            // What a lie has destroyed may lie where no scan sees it.
            Ok(findings) if self.lying && only_damage(&findings) => {
                self.coverage.add("lies found by the checker alone", 1);
                Ok(())
            }
            Ok(findings) => Err(format!("the checker found:\n    {}", findings.join("\n    "))),
            Err(error) => self.tolerate("check", error),
        }
    }

    /// Keeps the worlds that agree with what was read; there must be one.
    fn expect_worlds(&mut self, agrees: impl Fn(&World) -> Outcome) -> Outcome {
        some_world(&self.worlds, &agrees)?;
        self.worlds.retain(|world| agrees(world).is_ok());
        Ok(())
    }

    fn observe_structure(&mut self) -> Outcome {
        let stats = match self.db().stats() {
            Ok(stats) => stats,
            Err(error) => return self.tolerate("stats", error),
        };
        self.coverage.reach("heights", stats.nodes_by_height.len() as u64);
        self.coverage.reach("nodes", stats.nodes_by_height.iter().sum());
        self.coverage.add("seen: shared nodes", u64::from(stats.shared_nodes > 0));
        self.coverage.add("seen: pending Gotos", u64::from(stats.gotos_pending > 0));
        self.coverage.add("seen: pending range-upserts", u64::from(stats.updates_pending > 0));
        self.coverage.reach("pending range-upserts", stats.updates_pending);
        self.coverage.add("seen: reclaimable nodes", u64::from(stats.reclaimable_nodes > 0));
        self.coverage.reach("checkpoints of one run", stats.checkpoints);
        self.coverage.reach("batches coalesced since open", stats.batches_coalesced);
        Ok(())
    }

    // ---- opening again ----

    fn reopen(&mut self, how: How, with: &OpenWith) -> Outcome {
        self.compare_held()?;
        let mut exact = false;
        match how {
            How::Close | How::CloseThenCrash => match self.db().close() {
                Ok(()) => {
                    exact = !self.lying;
                    self.forget_history();
                }
                Err(error) => self.tolerate("close", error)?,
            },
            How::Abandon => (),
            How::Crash | How::CrashTwice | How::CrashInRecovery(_) => {
                self.device.crash();
                self.poke_the_dead()?;
            }
        }
        self.db = None;
        self.device.set_fail_at(None, FailMode::Once);
        // Without a crash the device goes on with what it has, unless a flush failed: then what it shows
        // may be lost already, and nobody who opens the store again could know.
        let goes_on = matches!(how, How::Close | How::Abandon) && !self.disturbed;
        if !goes_on {
            self.power_on();
        }
        if let How::CrashInRecovery(after) = how {
            self.device.set_fail_at(Some(after), FailMode::Onwards);
            match Db::open(self.device.clone(), self.config.options(with)) {
                Ok(_) => self.coverage.add("recoveries that were fast enough", 1),
                Err(Error::Io { .. } | Error::Stopped { .. }) => {
                    self.coverage.add("recoveries that failed", 1);
                }
                Err(error) if self.lying && is_damage(&error.to_string()) => {
                    self.coverage.add("lies found out", 1);
                }
                Err(error) => return Err(format!("open on a failing device: {error}")),
            }
            self.power_on();
        }
        self.disturbed = false;
        self.has_written = false;
        self.look_read_only(with)?;
        self.open(with)?;
        let Some(at) = self.recovered_to(exact)? else { return Ok(()) };
        self.coverage.add("batches lost by crashes", (self.history.len() - 1 - at) as u64);
        self.worlds = vec![self.history[at].clone()];
        // What a crash left was durable; what an abandoned store had written need not be.
        let keep = if goes_on && !exact || self.config.profile == Profile::Lies { 0 } else { at };
        self.history.truncate(at + 1);
        self.history.drain(..keep);
        self.verify()?;
        if how == How::CrashTwice && self.db.is_some() {
            self.coverage.add("second crashes", 1);
            return self.reopen(How::Crash, with);
        }
        Ok(())
    }

    /// Goes on with what a crash leaves of the device.
    fn power_on(&mut self) {
        self.asked = self.asked();
        self.coverage.add("blocks discarded", self.device.forgotten());
        self.device = self.device.reopen();
    }

    /// A check before recovery has changed anything also verifies what stands beside the records of the log: whatever a
    /// crash has left of that, it is no damage.
    fn look_read_only(&mut self, with: &OpenWith) -> Outcome {
        if self.lying {
            return Ok(());
        }
        let db = Db::open(self.device.clone(), self.config.options(with).read_only(true));
        let report = db.and_then(|db| db.check()).map_err(|e| format!("check before recovery: {e}"))?;
        self.coverage.add("notes before recovery", report.notes.len() as u64);
        match report.findings.first() {
            None => Ok(()),
            Some(found) => Err(format!("check before recovery: {found}")),
        }
    }

    fn open(&mut self, with: &OpenWith) -> Outcome {
        match Db::open(self.device.clone(), self.config.options(with)) {
            Ok(db) => {
                self.coverage.add("reopened", 1);
                self.db = Some(db);
                Ok(())
            }
            Err(error) if self.lying && is_damage(&error.to_string()) => {
                self.coverage.add("lies found out", 1);
                Ok(())
            }
            Err(error) => Err(format!("open: {error}")),
        }
    }

    /// Which state of the history the store is in; `None` if a lying device has lost it.
    fn recovered_to(&mut self, exact: bool) -> Outcome<Option<usize>> {
        let Some(db) = &self.db else { return Ok(None) };
        let pairs = match read_all(db.range(&[], None)) {
            Ok(pairs) => pairs,
            Err(error) => {
                self.tolerate("scan after open", error)?;
                self.db = None;
                return Ok(None);
            }
        };
        let digest = oracle::digest(&pairs);
        if let Some(at) = self.history.iter().rposition(|world| world.digest() == digest) {
            self.history[at].compare(&pairs).map_err(|e| format!("a digest was wrong: {e}"))?;
            return Ok(Some(at));
        }
        let (oldest, newest) =
            (&self.history[0], self.history.last().expect("it begins with what is durable"));
        let differs = |world: &World| world.compare(&pairs).err().unwrap_or_default();
        Err(match exact {
            true => format!("not what was there when it was closed: {}", differs(newest)),
            false => format!(
                "the state is none of the {} since the last sync.\n    Against the newest: {}\n    Against what was synced: {}",
                self.history.len(),
                differs(newest),
                differs(oldest)
            ),
        })
    }

    /// A store without its device gives errors or what it has in memory, and does not panic.
    fn poke_the_dead(&mut self) -> Outcome {
        let before = std::mem::replace(&mut self.disturbed, true);
        let key = self.world().range(&[], None).nth(3).map(|(key, _)| key.clone()).unwrap_or_default();
        self.get(&key)?;
        if self.config.profile == Profile::Faults {
            let accepted = self.coverage.get("batches");
            self.write(&[Op::Put(key, "written when dead".into())])?;
            // A sync that claims success must have made it durable, which it cannot have.
            if self.coverage.get("batches") > accepted && self.db().sync().is_ok() {
                return Err("sync claims success on a dead device".into());
            }
        }
        self.disturbed = before;
        Ok(())
    }
}

/// Whether an error or finding says that something is not what was written. After lost writes nothing
/// else can be wrong: from the superblock down to the pages whoever refers to something holds its checksum.
fn is_damage(what: &str) -> bool {
    // Or something in the log says that more of it was durable than there is.
    ["checksum", "were durable", "damage"].iter().any(|word| what.contains(word))
}

/// Whether the checker found damage and what follows from it: references from a node that cannot be
/// read are not counted.
fn only_damage(findings: &[String]) -> bool {
    let follows = |finding: &String| finding.contains("references, the table says");
    findings.iter().any(|f| is_damage(f)) && findings.iter().all(|f| is_damage(f) || follows(f))
}

/// Everything the checker has to say about a store.
fn check(db: &Db) -> pando_db::Result<Vec<String>> {
    Ok(db.check()?.findings.iter().map(ToString::to_string).collect())
}

fn read_all(cursor: impl Iterator<Item = pando_db::Result<Pair>>) -> pando_db::Result<Vec<Pair>> {
    cursor.collect()
}

/// `Ok` if one of the worlds agrees; otherwise what the newest says.
fn some_world(worlds: &[World], agrees: impl Fn(&World) -> Outcome) -> Outcome {
    let mut last = Ok(());
    for world in worlds {
        last = agrees(world);
        if last.is_ok() {
            return Ok(());
        }
    }
    last
}

/// True of a copy that makes keys of nearly the greatest length, or beyond it.
fn is_copy_at_the_limit(op: &Op) -> bool {
    matches!(op, Op::ClonePrefix(_, dst) | Op::RenamePrefix(_, dst) if dst.len() > MAX_KEY / 2)
}
