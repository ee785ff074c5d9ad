//! Images of stores, and how to damage them.
//!
//! An independent reader of the on-disk format, written from
//! `docs/format.md` alone: it finds where the checksums of an image stand, so
//! that damage can be *sealed*, that is, get checksums that fit. Sealed
//! damage reaches the decoders and the algorithms behind them, which no
//! accident of a medium would. Panics where the format is not what the
//! document says: that is a finding too.

#![allow(dead_code, clippy::unwrap_used)]

pub mod damage;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub const BLOCK: usize = 4096;
const SUPERBLOCK_SUM: usize = BLOCK - 8;
const FOOTER: usize = 64;
const FOOTER_MAGIC: u32 = 0x6775_6172;

/// The bytes of a store, and where what in them is.
#[derive(Clone)]
pub struct Image {
    pub bytes: Vec<u8>,
    /// In the order in which checksums must be computed: what is referred to comes before what refers.
    seals: Vec<Seal>,
    /// Start and length of each part that has content, for damage to hit.
    pub parts: Vec<Part>,
}

/// A checksum: of which bytes, and where it stands.
#[derive(Clone)]
struct Seal {
    from: usize,
    len: usize,
    at: usize,
}

/// A part of the image that means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub kind: Kind,
    pub from: usize,
    pub len: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Superblock,
    Record,
    Footer,
    TablePage,
    Header,
    Page,
}

impl Image {
    /// Reads an image whose every checksum fits.
    pub fn new(bytes: Vec<u8>) -> Self {
        let mut image = Self { bytes, seals: Vec::new(), parts: Vec::new() };
        let slot = image.newest_slot();
        image.part(Kind::Superblock, slot, BLOCK);
        image.log(slot);
        let table = image.u64(slot + 168) as usize;
        let (len, depth) = (image.u32(slot + 184) as usize, image.bytes[slot + 188]);
        image.table_page(table, len, depth, slot + 176);
        image.seals.push(Seal { from: slot, len: SUPERBLOCK_SUM, at: slot + SUPERBLOCK_SUM });
        for seal in &image.seals {
            let sum = xxh3_64(&image.bytes[seal.from..seal.from + seal.len]);
            assert_eq!(
                sum,
                image.u64(seal.at),
                "the checksum at byte {} is not what docs/format.md says",
                seal.at
            );
        }
        image
    }

    /// Whether the other image differs in a few bytes beside each other at most.
    pub fn is_alike(&self, other: &Image) -> bool {
        let differs = |&i: &usize| self.bytes[i] != other.bytes[i];
        if self.bytes.len() != other.bytes.len() {
            return false;
        }
        let first = (0..self.bytes.len()).find(differs);
        let last = (0..self.bytes.len()).rev().find(differs);
        first.zip(last).is_none_or(|(first, last)| last - first < 8)
    }

    /// Makes every checksum fit again, the log's chain included.
    pub fn seal(&mut self) {
        for Seal { from, len, at } in self.seals.clone() {
            let sum = xxh3_64(&self.bytes[from..from + len]);
            self.bytes[at..at + 8].copy_from_slice(&sum.to_le_bytes());
        }
        let mut chain = self.u64(self.newest_slot() + 136);
        let records: Vec<Part> = self.parts.iter().filter(|p| p.kind == Kind::Record).copied().collect();
        for Part { from, .. } in records {
            let len = self.u32(from + 4) as usize;
            if from + 32 + len > self.bytes.len() {
                return;
            }
            chain = self.chain(from, len, chain);
            self.bytes[from + 24..from + 32].copy_from_slice(&chain.to_le_bytes());
        }
        let footers: Vec<Part> = self.parts.iter().filter(|p| p.kind == Kind::Footer).copied().collect();
        for Part { from, .. } in footers {
            let sum = self.footer_sum(from);
            self.bytes[from + FOOTER - 8..from + FOOTER].copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// The checksum of the footer at `from`, seeded with the number of the store.
    fn footer_sum(&self, from: usize) -> u64 {
        let slot = self.newest_slot();
        let store = [&self.bytes[slot + 40..slot + 56], &self.bytes[slot + 64..slot + 72]].concat();
        xxh3_64_with_seed(&self.bytes[from..from + FOOTER - 8], xxh3_64(&store))
    }

    fn part(&mut self, kind: Kind, from: usize, len: usize) {
        self.parts.push(Part { kind, from, len });
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().unwrap())
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }

    fn newest_slot(&self) -> usize {
        if self.u64(16) > self.u64(BLOCK + 16) { 0 } else { BLOCK }
    }

    /// The checksum of the record at `from`, which is also the chain behind it.
    fn chain(&self, from: usize, len: usize, chain: u64) -> u64 {
        let mut head = self.bytes[from..from + 32].to_vec();
        let payload = xxh3_64(&self.bytes[from + 32..from + 32 + len]);
        head[24..].copy_from_slice(&payload.to_le_bytes());
        xxh3_64_with_seed(&head, chain)
    }

    /// The records to be replayed, as far as they do not wrap around the ring.
    fn log(&mut self, slot: usize) {
        let (base, size) = (self.u64(slot + 112) as usize, self.u64(slot + 120) as usize);
        let start = self.u64(slot + 128) as usize;
        let (mut pos, mut chain) = (start, self.u64(slot + 136));
        for block in (base..base + size).step_by(BLOCK) {
            let from = block + BLOCK - FOOTER;
            if self.u32(from) == FOOTER_MAGIC && self.footer_sum(from) == self.u64(from + FOOTER - 8) {
                self.part(Kind::Footer, from, FOOTER);
            }
        }
        let end = start / BLOCK * BLOCK + size;
        loop {
            let blocks = (pos.next_multiple_of(BLOCK)..end).step_by(BLOCK);
            let here = std::iter::once(pos).chain(blocks).find(|pos| {
                let from = base + pos % size;
                let room = size - pos % size;
                room >= 32 && (self.u32(from + 4) as usize) <= room - 32 && {
                    self.chain(from, self.u32(from + 4) as usize, chain) == self.u64(from + 24)
                }
            });
            let Some(here) = here else { return };
            let from = base + here % size;
            let len = self.u32(from + 4) as usize;
            self.part(Kind::Record, from, 32 + len);
            chain = self.u64(from + 24);
            pos = here + (32 + len).next_multiple_of(8);
        }
    }

    /// A page of the translation table, whose checksum stands at `sum_at`.
    fn table_page(&mut self, from: usize, len: usize, depth: u8, sum_at: usize) {
        self.part(Kind::TablePage, from, len);
        let present = self.u64(from + 4);
        let mut at = from + 12;
        for _ in 0..present.count_ones() {
            if depth > 1 {
                assert_eq!(&self.bytes[from..from + 4], b"PTBI");
                let len = self.u32(at + 16) as usize;
                self.table_page(self.u64(at) as usize, len, depth - 1, at + 8);
                at += 20;
            } else {
                assert_eq!(&self.bytes[from..from + 4], b"PTBK");
                let (header, count) = (self.u32(at + 9) as usize, usize::from(self.bytes[at + 21]));
                let parts: Vec<_> = (0..count).map(|i| self.u64(at + 22 + 12 * i) as usize).collect();
                self.node(header, &parts);
                self.seals.push(Seal { from: parts[0], len: header, at: at + 13 });
                at += 22 + 12 * count;
            }
        }
        self.seals.push(Seal { from, len, at: sum_at });
    }

    fn node(&mut self, header: usize, parts: &[usize]) {
        let from = parts[0];
        self.part(Kind::Header, from, header);
        assert_eq!(&self.bytes[from..from + 4], b"PNOD");
        let height = self.bytes[from + 5];
        let mut reader = HeaderReader { image: self, at: from + 6, end: from + header, parts };
        reader.bytes();
        reader.upper();
        if height == 0 {
            reader.run();
        } else {
            for _ in 0..reader.varint() {
                reader.bytes();
                reader.target();
                reader.u8();
                for _ in 0..reader.varint() {
                    reader.varint();
                    for _ in 0..reader.varint() {
                        reader.bytes();
                        reader.upper();
                        reader.target();
                    }
                    for _ in 0..reader.varint() {
                        reader.bytes();
                        reader.upper();
                        (0..reader.varint()).for_each(|_| reader.bytes());
                    }
                    reader.run();
                }
            }
        }
        assert_eq!(reader.at, reader.end, "a header of another length than the table says");
    }
}

struct HeaderReader<'a> {
    image: &'a mut Image,
    at: usize,
    end: usize,
    parts: &'a [usize],
}

impl HeaderReader<'_> {
    fn u8(&mut self) -> u8 {
        self.at += 1;
        self.image.bytes[self.at - 1]
    }

    fn varint(&mut self) -> usize {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.u8();
            value |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }

    fn bytes(&mut self) {
        self.at += self.varint();
    }

    fn upper(&mut self) {
        if self.u8() == 1 {
            self.bytes();
        }
    }

    fn target(&mut self) {
        if self.u8() == 1 {
            self.varint();
            self.bytes();
        }
    }

    fn run(&mut self) {
        for _ in 0..self.varint() {
            (0..3).for_each(|_| self.bytes());
            (0..2).for_each(|_| _ = self.varint());
            if self.u8() & 4 != 0 {
                self.varint();
            }
            let part = usize::from(self.u8());
            let from = self.parts[part] + self.image.u32(self.at) as usize;
            let len = self.image.u32(self.at + 4) as usize;
            self.image.part(Kind::Page, from, len);
            self.image.seals.push(Seal { from, len, at: self.at + 8 });
            self.at += 17;
        }
    }
}
