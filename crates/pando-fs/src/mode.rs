//! Changes of modes as values: a mode in the language of chmod(1), applied to any old mode.
//!
//! A [`ModeChange`] is a function from the old mode bits of a directory, or of anything else, to the new ones. All
//! that can be asked of chmod (octal numbers, `u+x`, `g=u`, `a+X`, lists of these), and the clearing of set-id bits
//! by a change of owner, let each class of bits (read, write, execute) depend on that class only, and the set-id and
//! sticky bits on themselves and on the execute bits. So a table with a row for each of the eight settings of a class
//! describes any change, and two changes in turn are again one table ([`ModeChange::then`]): changes that wait for
//! the same files always combine to one. Pure functions; uses no other module.

/// All bits of a mode that can be changed.
pub(crate) const MODE_BITS: u16 = 0o7777;
pub(crate) const S_ISUID: u16 = 0o4000;
pub(crate) const S_ISGID: u16 = 0o2000;
pub(crate) const S_ISVTX: u16 = 0o1000;
pub(crate) const S_IXGRP: u16 = 0o010;
pub(crate) const S_IXOTH: u16 = 0o001;
/// The bits by which a program runs as the owner or group of its file.
const SET_ID: u16 = S_ISUID | S_ISGID;
/// The bits of the three classes of users, for reading, writing and executing.
const READ_BITS: u16 = 0o444;
const WRITE_BITS: u16 = 0o222;
const EXECUTE_BITS: u16 = 0o111;

/// Settings of three bits.
const ROWS: usize = 8;
/// Bytes of a row: nine bits in two, six in one.
const ROW_BYTES: usize = 3;
/// Bytes of an encoded change.
pub(crate) const MODE_CHANGE_BYTES: usize = 2 * ROWS * ROW_BYTES;

/// Spreads three bits, one for each class of users, over a mode.
fn spread(bits: u8) -> u16 {
    let bits = u16::from(bits);
    (bits & 4) << 4 | (bits & 2) << 2 | bits & 1
}

/// The reverse, of the lowest bit of each class.
fn gather(mode: u16) -> u8 {
    (mode >> 4 & 4 | mode >> 2 & 2 | mode & 1) as u8
}

/// What becomes of one setting of three bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Row {
    /// The result for the read bits; then those for the write and the execute bits.
    read: u8,
    write: u8,
    execute: u8,
    /// The results for the set-id and sticky bits of a file whose execute bits have this setting: for bits that were
    /// not set, and for bits that were.
    clear: u8,
    set: u8,
}

/// A function from old to new mode bits; see above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModeChange {
    /// By setting: of what is no directory, of directories.
    rows: [[Row; ROWS]; 2],
}

impl ModeChange {
    /// The change that makes `f(mode, whether it is of a directory)` of each mode. The header says what `f` may
    /// depend on.
    pub(crate) fn of(f: impl Fn(u16, bool) -> u16) -> Self {
        let row = |bits: usize, dir| {
            let old = spread(bits as u8) * 7;
            let (clear, set) = (f(old, dir), f(old | SET_ID | S_ISVTX, dir));
            Row {
                read: gather(clear >> 2),
                write: gather(clear >> 1),
                execute: gather(clear),
                clear: (clear >> 9 & 7) as u8,
                set: (set >> 9 & 7) as u8,
            }
        };
        let rows = |dir| std::array::from_fn(|bits| row(bits, dir));
        Self { rows: [rows(false), rows(true)] }
    }

    /// The mode bits after the change.
    pub fn apply(&self, mode: u16, dir: bool) -> u16 {
        let row = |bits: u16| self.rows[usize::from(dir)][usize::from(gather(bits))];
        let special = row(mode);
        let (set, clear) = (u16::from(special.set), u16::from(special.clear));
        let old = mode >> 9 & 7;
        spread(row(mode >> 2).read) << 2
            | spread(row(mode >> 1).write) << 1
            | spread(special.execute)
            | (old & set | !old & clear) << 9
    }

    /// The change that equals this one followed by `next`.
    pub(crate) fn then(&self, next: &Self) -> Self {
        Self::of(|mode, dir| next.apply(self.apply(mode, dir), dir))
    }

    /// What a change of owner does: it takes the set-id bits of programs.
    pub(crate) fn without_set_id(f: impl Fn(u16) -> u16) -> Self {
        Self::of(|mode, dir| if dir { mode } else { f(mode) })
    }

    /// The change as bytes.
    pub fn encode(&self) -> [u8; MODE_CHANGE_BYTES] {
        let mut out = [0; MODE_CHANGE_BYTES];
        let rows = self.rows.iter().flatten();
        for (row, bytes) in rows.zip(out.as_chunks_mut::<ROW_BYTES>().0) {
            let rwx = u16::from(row.read) | u16::from(row.write) << 3 | u16::from(row.execute) << 6;
            let [low, high] = rwx.to_le_bytes();
            *bytes = [low, high, row.clear | row.set << 3];
        }
        out
    }

    /// The change in `bytes`; `None` if they are none.
    pub fn decode(bytes: &[u8; MODE_CHANGE_BYTES]) -> Option<Self> {
        let mut rows = [[Row::default(); ROWS]; 2];
        for (row, [low, high, special]) in rows.iter_mut().flatten().zip(bytes.as_chunks::<ROW_BYTES>().0) {
            let rwx = u16::from_le_bytes([*low, *high]);
            if rwx >> 9 != 0 || special >> 6 != 0 {
                return None;
            }
            let part = |shift: u16| (rwx >> shift & 7) as u8;
            *row = Row {
                read: part(0),
                write: part(3),
                execute: part(6),
                clear: special & 7,
                set: special >> 3,
            };
        }
        Some(Self { rows })
    }

    /// The change that a mode of chmod(1) asks for: octal digits, or `[ugoa]*[-+=]...` with `rwxXst`, with one of
    /// `ugo`, or with octal digits; several of these with commas between. Without one of `ugoa`, the bits of `umask`
    /// stay as they are. As in GNU chmod, the set-id bits of directories change only if the mode names them. `None`
    /// if the text is no such mode.
    pub fn parse(text: &str, umask: u16) -> Option<Self> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let value = octal(text)?;
            // Five digits name all bits; fewer do not name those that are zero and mean something else for directories.
            let named = if text.len() > 4 { MODE_BITS } else { value | MODE_BITS & !SET_ID };
            let step = ModeOp { who: MODE_BITS, how: How::Set, what: What::Bits(value), named };
            return Some(Self::of(|mode, dir| step.apply(mode, dir, umask)));
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            clause_steps(clause, &mut steps)?;
        }
        Some(Self::of(|mode, dir| steps.iter().fold(mode, |mode, step| step.apply(mode, dir, umask))))
    }
}

/// Mode bits in octal digits.
fn octal(text: &str) -> Option<u16> {
    let valid = !text.is_empty() && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    u16::from_str_radix(text, 8).ok().filter(|value| valid && *value <= MODE_BITS)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// The given bits.
    Bits(u16),
    /// The given bits, and the execute bits of a directory or of a file that has one (`X`).
    BitsAndSearch(u16),
    /// What the class of users with these bits has.
    Like(u16),
}

/// One operator with the classes before it and the bits behind it.
#[derive(Clone, Copy)]
struct ModeOp {
    /// The bits of the users that are named; 0 if none are.
    who: u16,
    how: How,
    what: What,
    /// The bits that the text names.
    named: u16,
}

impl ModeOp {
    fn apply(&self, mode: u16, dir: bool, umask: u16) -> u16 {
        let kept = if dir { SET_ID & !self.named } else { 0 };
        let value = match self.what {
            What::Bits(bits) => bits,
            What::BitsAndSearch(bits) if dir || mode & EXECUTE_BITS != 0 => bits | EXECUTE_BITS,
            What::BitsAndSearch(bits) => bits,
            What::Like(class) => {
                let has = |bits: u16| if mode & class & bits != 0 { bits } else { 0 };
                has(READ_BITS) | has(WRITE_BITS) | has(EXECUTE_BITS)
            }
        };
        let reach = if self.who == 0 { MODE_BITS & !umask } else { self.who };
        let value = value & reach & !kept;
        match self.how {
            How::Add => mode | value,
            How::Remove => mode & !value,
            How::Set => mode & (if self.who == 0 { 0 } else { MODE_BITS & !self.who } | kept) | value,
        }
    }
}

/// Adds the steps of what stands between two commas.
fn clause_steps(clause: &str, steps: &mut Vec<ModeOp>) -> Option<()> {
    let users = clause.find(['-', '+', '=']).unwrap_or(clause.len());
    let (users, mut rest) = clause.split_at_checked(users)?;
    let mut who = 0;
    for user in users.chars() {
        who |= match user {
            'u' => S_ISUID | 0o700,
            'g' => S_ISGID | 0o070,
            'o' => S_ISVTX | 0o007,
            'a' => MODE_BITS,
            _ => return None,
        };
    }
    if rest.is_empty() {
        return None;
    }
    while let Some(operator) = rest.chars().next() {
        let how = match operator {
            '+' => How::Add,
            '-' => How::Remove,
            '=' => How::Set,
            _ => return None,
        };
        rest = rest.get(1..)?;
        let end = rest.find(['-', '+', '=']).unwrap_or(rest.len());
        let (what, left) = rest.split_at_checked(end)?;
        rest = left;
        steps.push(match what {
            "u" => ModeOp { who, how, what: What::Like(0o700), named: 0 },
            "g" => ModeOp { who, how, what: What::Like(0o070), named: 0 },
            "o" => ModeOp { who, how, what: What::Like(0o007), named: 0 },
            digits if digits.starts_with(|c: char| c.is_ascii_digit()) => {
                // Digits stand alone: they say what is meant of all users.
                if who != 0 || !rest.is_empty() {
                    return None;
                }
                ModeOp { who: MODE_BITS, how, what: What::Bits(octal(digits)?), named: MODE_BITS }
            }
            letters => {
                let (mut bits, mut search) = (0, false);
                for letter in letters.chars() {
                    bits |= match letter {
                        'r' => READ_BITS,
                        'w' => WRITE_BITS,
                        'x' => EXECUTE_BITS,
                        's' => SET_ID,
                        't' => S_ISVTX,
                        'X' => {
                            search = true;
                            0
                        }
                        _ => return None,
                    };
                }
                let what = if search { What::BitsAndSearch(bits) } else { What::Bits(bits) };
                ModeOp { who, how, what, named: bits }
            }
        });
    }
    Some(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TEXTS: &[&str] = &[
        "755",
        "0644",
        "4711",
        "02775",
        "00755",
        "7777",
        "0",
        "u+x",
        "a+X",
        "+X",
        "go-w",
        "u=rwx,go=rX",
        "g=u",
        "o=g,u-s",
        "u+s,g+s,+t",
        "a=",
        "u=s",
        "ug+rw-x",
        "-x",
        "=rw",
        "+1000",
        "=4755",
        "a-st",
        "o=u-w",
        "g+o,o=g,u=o",
        "X",
        "u+t,o+t",
    ];

    #[test]
    fn a_table_says_what_the_function_does() {
        for umask in [0, 0o022, 0o077] {
            for text in TEXTS.iter().filter(|text| **text != "X") {
                let change = ModeChange::parse(text, umask).unwrap();
                let steps = |mode, dir| match text.as_bytes() {
                    [b'0'..=b'9', ..] => change.apply(mode, dir),
                    _ => {
                        let mut steps = Vec::new();
                        text.split(',').for_each(|clause| clause_steps(clause, &mut steps).unwrap());
                        steps.iter().fold(mode, |mode, step| step.apply(mode, dir, umask))
                    }
                };
                for mode in 0..=MODE_BITS {
                    for dir in [false, true] {
                        assert_eq!(change.apply(mode, dir), steps(mode, dir), "{text} of {mode:o}, {dir}");
                    }
                }
                assert_eq!(ModeChange::decode(&change.encode()), Some(change));
            }
        }
    }

    #[test]
    fn two_changes_in_turn_are_one() {
        let changes: Vec<_> = TEXTS.iter().filter_map(|text| ModeChange::parse(text, 0o022)).collect();
        let drop = |mode: u16| mode & !S_ISUID & if mode & 0o010 != 0 { !S_ISGID } else { MODE_BITS };
        let changes: Vec<_> = changes.into_iter().chain([ModeChange::without_set_id(drop)]).collect();
        for a in &changes {
            for b in &changes {
                let both = a.then(b);
                for mode in (0..=MODE_BITS).step_by(3) {
                    for dir in [false, true] {
                        assert_eq!(both.apply(mode, dir), b.apply(a.apply(mode, dir), dir));
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for bad in ["", "8", "10000", "u", "z+x", "u+y", "u+x,", "u+ug", "u+7", "+7+7", "7,u+x", "7x"] {
            assert_eq!(ModeChange::parse(bad, 0), None, "{bad:?}");
        }
        let mut bytes = ModeChange::parse("755", 0).unwrap().encode();
        bytes[1] |= 2;
        assert_eq!(ModeChange::decode(&bytes), None);
    }

    #[test]
    fn some_modes_by_hand() {
        let after = |text, mode, dir| ModeChange::parse(text, 0o022).unwrap().apply(mode, dir);
        assert_eq!((after("755", 0o6644, false), after("755", 0o6644, true)), (0o755, 0o6755));
        assert_eq!((after("00755", 0o6644, true), after("a+X", 0o644, false)), (0o755, 0o644));
        assert_eq!((after("a+X", 0o644, true), after("a+X", 0o744, false)), (0o755, 0o755));
        assert_eq!((after("+w", 0o444, false), after("go=u-w", 0o750, false)), (0o644, 0o755));
        assert_eq!((after("u+s,g+s,o+t", 0, false), after("g=u", 0o2700, true)), (0o7000, 0o2770));
    }
}
