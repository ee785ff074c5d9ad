//! Invents steps from a seed: few letters, nested prefixes, all depths, so that things collide.
//!
//! Every seed also draws its own taste (which operations are common, which
//! shape keys have): uniform choice would never show the states that need a
//! hundred of one kind and none of another.

use std::collections::VecDeque;

use bytes::Bytes;
use pando_db::{MAX_KEY, MAX_PREFIX_UPSERT, Op, patch};

use super::{
    config::{Config, Profile, open_with},
    merge,
    oracle::{World, successor},
    rng::Rng,
    step::{How, Step},
};

/// Longest key that clones may make, in bytes.
const LONG: usize = 1500;

const SHAPES: usize = 5;

/// Weights of the operations, in the order of [`Generator::op`].
const OPS: [u64; 8] = [30, 8, 12, 4, 4, 12, 6, 8];
/// Weights of the steps, in the order of [`Generator::step`].
const STEPS: [u64; 16] = [60, 10, 10, 1, 8, 8, 1, 2, 2, 2, 3, 3, 2, 2, 1, 1];

pub struct Generator {
    rng: Rng,
    config: Config,
    ops: Vec<u64>,
    steps: Vec<u64>,
    shapes: Vec<u64>,
    big_values: bool,
    counter: u64,
    /// Decides what batches expect: a stream of its own, so that what a seed does otherwise stays the same.
    expecting: Rng,
    /// Steps that come before others are made.
    next: VecDeque<Step>,
}

impl Generator {
    pub fn new(config: &Config) -> Self {
        let mut rng = Rng(config.seed);
        let mut taste = |base: &[u64]| -> Vec<u64> {
            base.iter().map(|weight| weight * rng.pick(&[0, 1, 2, 2, 2, 6])).collect()
        };
        let (mut ops, mut steps, mut shapes) = (taste(&OPS), taste(&STEPS), taste(&[2; SHAPES]));
        // A store that nothing is put into is soon exhausted.
        ops[0] = ops[0].max(20);
        steps[0] = steps[0].max(30);
        shapes[0] = shapes[0].max(1);
        let big_values = rng.chance(if config.tight() { 700 } else { 300 });
        let mut generator = Self {
            rng,
            config: config.clone(),
            ops,
            steps,
            shapes,
            big_values,
            counter: 0,
            expecting: Rng(config.seed ^ 0xE89E_C7ED),
            next: VecDeque::new(),
        };
        generator.profile_weights();
        generator
    }

    fn profile_weights(&mut self) {
        let profile = self.config.profile;
        let faults = profile == Profile::Faults;
        self.steps[14] = if faults { self.steps[14].max(1) } else { 0 };
        self.steps[15] = match profile {
            Profile::Space => self.steps[15].max(1),
            _ => 0,
        };
    }

    /// The next step, given what the store should hold.
    pub fn step(&mut self, world: &World) -> Step {
        if let Some(next) = self.next.pop_front() {
            return next;
        }
        match self.fresh_step(world) {
            Step::Write(_) if self.expecting.chance(12) => Step::Write(self.at_the_limit(world)),
            Step::Write(ops) if self.expecting.chance(120) => self.conditional(world, ops),
            step => step,
        }
    }

    /// Steps that write `ops` if what they expect is true; half the time after a try that expects something false.
    fn conditional(&mut self, world: &World, ops: Vec<Op>) -> Step {
        let rng = &mut self.expecting;
        let mut keys: Vec<Bytes> = ops.iter().take(3).map(op_key).collect();
        for _ in 0..rng.below(3) {
            let at = rng.below(world.len() as u64 + 1) as usize;
            keys.extend(world.range(&[], None).nth(at).map(|(key, _)| key.clone()));
        }
        let truth = |key: &Bytes| (key.clone(), world.get(key).cloned());
        let expected: Vec<_> = keys.iter().map(truth).collect();
        if rng.chance(500) {
            let mut wrong = expected.clone();
            let at = rng.below(wrong.len() as u64) as usize;
            wrong[at].1 = match &wrong[at].1 {
                Some(value) if rng.chance(500) => Some([&value[..], b"+"].concat().into()),
                Some(_) => None,
                None => Some(Bytes::new()),
            };
            let ops = if rng.chance(100) { Vec::new() } else { ops.clone() };
            self.next.extend([Step::Expect(wrong), Step::Write(ops)]);
        }
        self.next.extend([Step::Expect(expected), Step::Write(ops)]);
        self.next.pop_front().expect("two steps at least")
    }

    fn fresh_step(&mut self, world: &World) -> Step {
        match self.rng.weighted(&self.steps) {
            0 => Step::Write(vec![self.op(world)]),
            1 => Step::Write(self.fill()),
            2 => Step::Write(self.mixture(world)),
            3 => Step::Write(self.invalid(world)),
            4 => Step::Get(self.key(world)),
            5 => {
                let (lo, hi) = self.range(world);
                let (ends, take) = self.ends();
                Step::Scan { lo, hi, ends, take }
            }
            6 => Step::Verify,
            7 => Step::Snapshot(self.slot()),
            8 => Step::CompareSnapshot(self.slot()),
            9 => {
                let (lo, hi) = self.range(world);
                Step::OpenCursor { slot: self.slot(), lo, hi }
            }
            10 if self.rng.chance(300) => {
                Step::Seek { slot: self.slot(), key: self.key(world), back: self.rng.chance(400) }
            }
            10 => {
                let (ends, take) = self.ends();
                Step::Advance { slot: self.slot(), ends, take }
            }
            11 => Step::Sync,
            12 if self.rng.chance(300) => Step::Settle,
            12 => Step::Checkpoint,
            13 => Step::Reopen { how: self.how(), with: open_with(&mut self.rng) },
            14 => self.fault(),
            _ => self.shortage(),
        }
    }

    fn slot(&mut self) -> u8 {
        self.rng.below(4) as u8
    }

    fn how(&mut self) -> How {
        match self.rng.below(8) {
            0 => How::Close,
            1 => How::CloseThenCrash,
            2 => How::Abandon,
            3 => How::CrashTwice,
            4 => How::CrashInRecovery(self.rng.below(60)),
            _ => How::Crash,
        }
    }

    fn fault(&mut self) -> Step {
        match self.rng.below(3) {
            0 => Step::Heal,
            _ => {
                let most = *self.rng.pick(&[3, 30, 300]);
                Step::Fault { after: self.rng.below(most), onwards: self.rng.chance(400) }
            }
        }
    }

    fn shortage(&mut self) -> Step {
        match self.rng.below(3) {
            0 => {
                let most = *self.rng.pick(&[64 << 10, 512 << 10]);
                Step::LimitSpace(self.rng.below(most))
            }
            _ => Step::MakeRoom,
        }
    }

    /// Which ends a scan takes from (forward, backward, in turn, at random), and how many pairs.
    fn ends(&mut self) -> (u64, usize) {
        let random = self.rng.next();
        let ends = *self.rng.pick(&[0, u64::MAX, 0xAAAA_AAAA_AAAA_AAAA, random, random]);
        let take = *self.rng.pick(&[1, 3, 20, 100, usize::MAX]);
        (ends, take)
    }

    fn range(&mut self, world: &World) -> (Bytes, Option<Bytes>) {
        match self.rng.below(6) {
            0 => (Bytes::new(), None),
            1 | 2 => {
                let prefix = self.prefix(world);
                (prefix.clone(), successor(&prefix))
            }
            3 => (self.key(world), None),
            _ => {
                let (a, b) = (self.key(world), self.key(world));
                // Now and then the wrong way round: an empty range.
                let swap = b < a && !self.rng.chance(50);
                if swap { (b, Some(a)) } else { (a, Some(b)) }
            }
        }
    }

    /// One operation that the engine must accept.
    fn op(&mut self, world: &World) -> Op {
        match self.rng.weighted(&self.ops) {
            0 => Op::Put(self.key(world), self.value()),
            1 => Op::Delete(self.key(world)),
            2 => Op::Upsert(self.key(world), self.change()),
            3 => self.delete_range(world),
            4 => self.delete_prefix(world),
            7 => self.upsert_prefix(world),
            kind => self.copy(world, kind == 6),
        }
    }

    /// A change of all that is under a prefix; one that lets values grow only if the store may.
    fn upsert_prefix(&mut self, world: &World) -> Op {
        let prefix = self.prefix(world);
        let values = world.prefix(&prefix).count();
        // What makes many values short at once is rare, or no store would fill; in those that are to fill, very.
        let (few, some, often) = if self.config.tight() { (2, 4, 2) } else { (12, 50, 30) };
        let change = match self.rng.below(12) {
            0 if values < few || self.rng.chance(often / 2) => merge::DELETE.into(),
            1 if values < some || self.rng.chance(often) => patch::truncate(self.rng.below(300) as u32),
            2..6 if !self.config.tight() => {
                let (offset, len) = (self.rng.below(20), self.rng.below(30));
                let fits = world.bytes() + values * (offset + len) as usize <= self.config.max_bytes;
                let len = if fits { len as usize } else { 0 };
                patch::write(if fits { offset as u32 } else { 0 }, &self.bytes(len))
            }
            6 => self.bytes(3),
            _ => merge::add(self.rng.below(256) as u8),
        };
        Op::UpsertPrefix(prefix, change)
    }

    fn delete_range(&mut self, world: &World) -> Op {
        let lo = self.key(world);
        // Mostly short ranges, or nothing would live long.
        let hi = match self.rng.below(20) {
            0 => None,
            1..4 => Some(self.key(world)),
            _ => {
                let steps = self.rng.below(12) as usize;
                world.range(&lo, None).nth(steps).map(|(key, _)| key.clone()).or(Some(lo.clone()))
            }
        };
        Op::DeleteRange(lo, hi)
    }

    fn delete_prefix(&mut self, world: &World) -> Op {
        let mut prefix = self.prefix(world);
        if prefix.len() < 3 && !self.rng.chance(100) {
            prefix = self.key(world);
        }
        let hi = successor(&prefix);
        Op::DeleteRange(prefix, hi)
    }

    /// A clone or rename of something that exists, as a rule; a delete where the copy would be too much.
    fn copy(&mut self, world: &World, rename: bool) -> Op {
        let src = self.prefix(world);
        let dst = if self.rng.chance(600) {
            let fresh = self.fresh_key();
            self.cut(fresh)
        } else {
            self.prefix(world)
        };
        if src.starts_with(&dst) || dst.starts_with(&src) {
            return Op::Put(self.key(world), self.value());
        }
        let (mut keys, mut bytes, mut longest) = (0, 0, 0);
        for (key, value) in world.prefix(&src) {
            keys += 1;
            bytes += key.len() + value.len() + dst.len();
            longest = longest.max(key.len() - src.len() + dst.len());
        }
        let long = if self.config.tight() { LONG / 4 } else { LONG };
        let fits = world.len() + keys <= self.config.max_keys
            && world.bytes() + bytes <= self.config.max_bytes
            && longest <= long;
        match (fits || rename && longest <= long, rename) {
            (true, true) => Op::RenamePrefix(src, dst),
            (true, false) => Op::ClonePrefix(src, dst),
            (false, _) => {
                let hi = successor(&src);
                Op::DeleteRange(src, hi)
            }
        }
    }

    /// A batch that copies something to so long a prefix that its longest key becomes as long as a key may be, or a
    /// little shorter, or too long; behind other operations, which may have made or deleted that key.
    fn at_the_limit(&mut self, world: &World) -> Vec<Op> {
        let mut ops = if self.rng.chance(500) { self.mixture(world) } else { Vec::new() };
        let after = world.after(&ops);
        let src = self.prefix(&after);
        let mut suffixes: Vec<(usize, Bytes)> =
            after.prefix(&src).map(|(key, _)| (key.len() - src.len(), key.clone())).collect();
        suffixes.sort();
        if self.rng.chance(300)
            && suffixes.len() > 1
            && let Some((_, longest)) = suffixes.pop()
        {
            ops.push(Op::Delete(longest));
        }
        let longest = suffixes.last().map_or(0, |(len, _)| *len);
        // Much that is long makes runs slow, and a log or device that is small has no room for it.
        let few =
            suffixes.len() <= 4 && world.bytes() < 4 * MAX_KEY && self.config.log_size >= 6 * MAX_KEY as u64;
        let longest_copy = match self.rng.below(4) {
            0 if few && !self.config.tight() => MAX_KEY,
            1 if few && !self.config.tight() => MAX_KEY - self.rng.below(50) as usize,
            _ => MAX_KEY + 1 + self.rng.below(3) as usize,
        };
        let mut dst = self.fresh_key().to_vec();
        let len = longest_copy.saturating_sub(longest).clamp(dst.len() + 1, MAX_KEY);
        dst.resize(len, *self.rng.pick(&[b'l', 0xff, 0]));
        let dst = Bytes::from(dst);
        if src.starts_with(&dst) || dst.starts_with(&src) {
            return ops;
        }
        ops.push(if self.rng.chance(300) { Op::RenamePrefix(src, dst) } else { Op::ClonePrefix(src, dst) });
        ops
    }

    /// Several operations of all kinds, each made for the state that those before it leave.
    fn mixture(&mut self, world: &World) -> Vec<Op> {
        let mut after = world.clone();
        let count = self.rng.between(2, 9);
        (0..count)
            .map(|_| {
                let op = self.op(&after);
                after.apply(&op);
                op
            })
            .collect()
    }

    /// Neighbouring keys, as a tree of files would give.
    fn fill(&mut self) -> Vec<Op> {
        let fresh = self.fresh_key();
        let prefix = self.cut(fresh);
        let count = self.rng.between(3, 30);
        (0..count)
            .map(|number| {
                let key = [&prefix[..], format!("/f{number:02}").as_bytes()].concat();
                let len = self.rng.below(250) as usize;
                Op::Put(key.into(), self.bytes(len))
            })
            .collect()
    }

    /// A batch that must be refused as a whole, for its last operation or one in the middle.
    fn invalid(&mut self, world: &World) -> Vec<Op> {
        let mut ops = if self.rng.chance(500) { self.mixture(world) } else { Vec::new() };
        let prefix = self.prefix(world);
        let longer = Bytes::from([&prefix[..], b"x"].concat());
        let bad = match self.rng.below(7) {
            0 => Op::ClonePrefix(prefix.clone(), longer),
            1 => Op::RenamePrefix(longer, prefix.clone()),
            2 => Op::ClonePrefix(prefix.clone(), prefix.clone()),
            3 => Op::RenamePrefix(prefix.clone(), Bytes::new()),
            4 => Op::UpsertPrefix(prefix, vec![9; MAX_PREFIX_UPSERT + 1].into()),
            5 => Op::Put(vec![b'k'; MAX_KEY + 1].into(), Bytes::new()),
            _ => Op::Upsert(vec![0xff; MAX_KEY + 1].into(), patch::truncate(0)),
        };
        let at = self.rng.below(ops.len() as u64 + 1) as usize;
        ops.insert(at, bad);
        ops
    }

    /// A prefix of something: of all depths, mostly one that has keys under it.
    fn prefix(&mut self, world: &World) -> Bytes {
        if self.rng.chance(15) {
            return Bytes::new();
        }
        let key = self.key(world);
        self.cut(key)
    }

    /// Some beginning of a key: at a separator, or anywhere.
    fn cut(&mut self, key: Bytes) -> Bytes {
        let borders: Vec<usize> =
            (1..key.len()).filter(|&at| key[at] == b'/' || key[at - 1] == b'/' || key[at - 1] == 0).collect();
        let at = match self.rng.below(8) {
            0 => key.len(),
            1 | 2 => self.rng.below(key.len() as u64 + 1) as usize,
            _ if borders.is_empty() => self.rng.below(key.len() as u64 + 1) as usize,
            _ => *self.rng.pick(&borders),
        };
        key.slice(..at)
    }

    /// A key: one that exists, one close to it, or a new one.
    fn key(&mut self, world: &World) -> Bytes {
        let fresh = self.fresh_key();
        if world.len() == 0 || self.rng.chance(450) {
            return fresh;
        }
        let near = match self.rng.below(3) {
            0 => world.range(&fresh, None).next(),
            1 => world.range(&[], Some(&fresh)).next_back(),
            _ => {
                let at = self.rng.below(world.len() as u64) as usize;
                world.range(&[], None).nth(at)
            }
        };
        let Some((key, _)) = near else { return fresh };
        let mut key = key.to_vec();
        match self.rng.below(20) {
            0 => key.push(*self.rng.pick(&[0, b'a', 0xff])),
            1 => {
                key.pop();
            }
            2 => {
                if let Some(last) = key.last_mut() {
                    *last = last.wrapping_add(1);
                }
            }
            _ => (),
        }
        key.into()
    }

    fn fresh_key(&mut self) -> Bytes {
        match self.rng.weighted(&self.shapes) {
            0 => self.path(),
            1 => self.raw_key(),
            2 => self.file_system_key(),
            3 => {
                self.counter += 1;
                let number = if self.rng.chance(700) { self.counter } else { self.rng.below(3000) };
                format!("/s/{number:05}").into_bytes().into()
            }
            _ => {
                let mut key = self.path().to_vec();
                // Keys near the size of a node make a node of each; a reserve of some nodes is not meant
                // for that.
                let len = if self.rng.chance(20) && !self.config.tight() { 5000 } else { 300 };
                let len = self.rng.below(len) as usize;
                let fill = *self.rng.pick(&[b'l', 0xff, 0]);
                key.resize(key.len() + len, fill);
                key.push(*self.rng.pick(b"xyz"));
                key.into()
            }
        }
    }

    fn word<'a>(&mut self, words: &[&'a [u8]]) -> &'a [u8] {
        words[self.rng.below(words.len() as u64) as usize]
    }

    fn path(&mut self) -> Bytes {
        let mut key = Vec::new();
        for _ in 0..self.rng.between(1, 7) {
            key.push(b'/');
            key.extend_from_slice(self.word(&[b"a", b"b", b"c", b"aa", b"ab", b"\xff"]));
        }
        if self.rng.chance(500) {
            key.extend_from_slice(format!("/f{:02}", self.rng.below(40)).as_bytes());
        }
        key.into()
    }

    /// Bytes from both ends of the order, short enough to collide; the empty key is one of them.
    fn raw_key(&mut self) -> Bytes {
        let len = self.rng.below(8);
        (0..len).map(|_| *self.rng.pick(&[0, 1, b'a', b'b', 0xfe, 0xff, 0xff])).collect::<Vec<_>>().into()
    }

    /// The shape that a file system on top uses: entries, subtrees, blocks.
    fn file_system_key(&mut self) -> Bytes {
        let data = self.rng.chance(400);
        let mut key = vec![if data { b'D' } else { b'M' }];
        for _ in 0..self.rng.below(5) {
            key.push(2);
            key.extend_from_slice(self.word(&[b"src", b"lib", b"a", b"b"]));
            key.push(0);
        }
        key.push(1);
        key.extend_from_slice(self.word(&[b"x.rs", b"y", b"z", b"a"]));
        key.push(0);
        if data {
            key.extend_from_slice(&(self.rng.below(6) as u32).to_be_bytes());
        }
        key.into()
    }

    fn value(&mut self) -> Bytes {
        let len = match self.rng.below(100) {
            0..10 => 0,
            10..60 => self.rng.below(40),
            60..85 => self.rng.below(300),
            85..98 => self.rng.below(1500),
            _ if self.big_values => self.rng.below(12_000),
            _ => self.rng.below(3000),
        };
        self.bytes(len as usize)
    }

    /// Bytes that occur nowhere else, so that a value in the wrong place is noticed.
    fn bytes(&mut self, len: usize) -> Bytes {
        let mut rng = Rng(self.rng.next());
        let compressible = rng.chance(500);
        let number = rng.next();
        let mut value = Vec::with_capacity(len + 8);
        while value.len() < len {
            let word = if compressible { number } else { rng.next() };
            value.extend_from_slice(&word.to_le_bytes());
        }
        value.truncate(len);
        value.into()
    }

    fn change(&mut self) -> Bytes {
        let offset = match self.rng.below(20) {
            0 if !self.config.tight() => self.rng.below(10_000),
            1 if !self.config.tight() && self.rng.chance(20) => 1 << 20,
            0..4 => self.rng.below(500),
            _ => self.rng.below(40),
        } as u32;
        match self.rng.below(6) {
            0 => patch::truncate(offset),
            1 => vec![self.rng.below(256) as u8; self.rng.below(7) as usize].into(),
            _ => {
                let len = self.rng.below(50) as usize;
                patch::write(offset, &self.bytes(len))
            }
        }
    }
}

/// A key that `op` changes, or near which it does.
fn op_key(op: &Op) -> Bytes {
    match op {
        Op::Put(key, _)
        | Op::Delete(key)
        | Op::Upsert(key, _)
        | Op::UpsertPrefix(key, _)
        | Op::DeleteRange(key, _)
        | Op::ClonePrefix(_, key)
        | Op::RenamePrefix(key, _) => key.clone(),
        _ => unreachable!("an operation that the model does not know"),
    }
}
