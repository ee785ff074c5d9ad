//! The three-way merge of lines.
//!
//! The rule is that of diff3 (Khanna, Kunal and Pierce, "A Formal Investigation of Diff3", 2007). A difference
//! between the origin and a side tells what the side changed, and changes of both sides that overlap or touch are
//! one region. A region that one side left as it was is taken from the other side, one that is equal on both sides
//! is taken once, and any other is a conflict. It is written here because the crates that have it either lose
//! changes next to runs of equal lines (diffy 0.5) or bring about a hundred further crates (gix-merge 0.23). The
//! differences are by imara-diff, which has the algorithm of git with its bound on the work. Where a change may lie
//! at several places in a run of equal lines, it takes the same place as git does.

use std::{iter::Peekable, ops::Range, vec::IntoIter};

use imara_diff::{Algorithm, Diff, Hunk, InternedInput, sources::byte_lines};

/// A text, and where its lines begin.
struct Lines<'a> {
    bytes: &'a [u8],
    /// The last one is the end of the text.
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let mut starts = vec![0];
        let mut end = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            end += line.len();
            starts.push(end);
        }
        Self { bytes, starts }
    }

    fn count(&self) -> usize {
        self.starts.len() - 1
    }

    fn get(&self, lines: Range<usize>) -> Option<&'a [u8]> {
        self.bytes.get(*self.starts.get(lines.start)?..*self.starts.get(lines.end)?)
    }
}

/// One side while the origin is gone through.
struct Changed<'a> {
    lines: Lines<'a>,
    hunks: Peekable<IntoIter<Hunk>>,
    /// A place in the origin behind the hunks that were taken, and the same place in this side.
    aligned: (usize, usize),
    /// Lines of this side before this one are dealt with.
    done: usize,
}

impl<'a> Changed<'a> {
    fn new(bytes: &'a [u8], hunks: Vec<Hunk>) -> Self {
        Self { lines: Lines::new(bytes), hunks: hunks.into_iter().peekable(), aligned: (0, 0), done: 0 }
    }

    /// Where the next hunk begins in the origin.
    fn next(&mut self) -> Option<usize> {
        self.hunks.peek().map(|hunk| hunk.before.start as usize)
    }

    /// Takes the hunks that begin within a region or at its end, which moves to the end of the last one.
    fn take(&mut self, end: &mut usize) -> bool {
        let mut taken = false;
        while let Some(hunk) = self.hunks.next_if(|hunk| hunk.before.start as usize <= *end) {
            self.aligned = (hunk.before.end as usize, hunk.after.end as usize);
            *end = (*end).max(self.aligned.0);
            taken = true;
        }
        taken
    }

    /// The lines up to a place in the origin that is in no hunk.
    fn up_to(&mut self, place: usize) -> Option<&'a [u8]> {
        let end = self.aligned.1 + place.checked_sub(self.aligned.0)?;
        let lines = self.lines.get(self.done..end);
        self.done = end;
        lines
    }
}

/// What is written of a conflict: the markers of git in its style "diff3", each on a line of its own.
fn mark(out: &mut Vec<u8>, base: &[u8], ours: &[u8], theirs: &[u8]) {
    for (marker, lines) in
        [("<<<<<<< ours", ours), ("||||||| original", base), ("=======", theirs), (">>>>>>> theirs", b"")]
    {
        out.extend_from_slice(marker.as_bytes());
        out.push(b'\n');
        out.extend_from_slice(lines);
        if !lines.is_empty() && !lines.ends_with(b"\n") {
            out.push(b'\n');
        }
    }
}

/// Goes through the origin. `None` if the hunks do not tell all that differs.
fn combine(base: &[u8], mut ours: Changed, mut theirs: Changed) -> Option<Result<Vec<u8>, Vec<u8>>> {
    let base = Lines::new(base);
    let mut out = Vec::with_capacity(base.bytes.len());
    let (mut done, mut conflicts) = (0, false);
    loop {
        let next = ours.next().into_iter().chain(theirs.next()).min();
        let start = next.unwrap_or(base.count());
        let unchanged = base.get(done..start)?;
        if ours.up_to(start)? != unchanged || theirs.up_to(start)? != unchanged {
            return None;
        }
        out.extend_from_slice(unchanged);
        if next.is_none() {
            let whole = ours.done == ours.lines.count() && theirs.done == theirs.lines.count();
            return whole.then_some(if conflicts { Err(out) } else { Ok(out) });
        }
        let mut end = start;
        while ours.take(&mut end) | theirs.take(&mut end) {}
        let (origin, of_ours, of_theirs) = (base.get(start..end)?, ours.up_to(end)?, theirs.up_to(end)?);
        if of_theirs == origin || of_theirs == of_ours {
            out.extend_from_slice(of_ours);
        } else if of_ours == origin {
            out.extend_from_slice(of_theirs);
        } else {
            conflicts = true;
            mark(&mut out, origin, of_ours, of_theirs);
        }
        done = end;
    }
}

/// Merges with these differences of the sides from the origin. Whole texts are a conflict if a difference is wrong.
fn merge_hunks(
    base: &[u8],
    ours: (&[u8], Vec<Hunk>),
    theirs: (&[u8], Vec<Hunk>),
) -> Result<Vec<u8>, Vec<u8>> {
    let combined = combine(base, Changed::new(ours.0, ours.1), Changed::new(theirs.0, theirs.1));
    combined.unwrap_or_else(|| {
        let mut out = Vec::new();
        mark(&mut out, base, ours.0, theirs.0);
        Err(out)
    })
}

fn hunks(base: &[u8], side: &[u8]) -> Vec<Hunk> {
    let input = InternedInput::new(byte_lines(base), byte_lines(side));
    // git merges with this algorithm. The shortest difference costs more, and the histogram's has other regions.
    let mut diff = Diff::compute(Algorithm::Myers, &input);
    diff.postprocess_no_heuristic(&input);
    diff.hunks().collect()
}

/// The lines of both sides, or an error with what conflicts between markers, each on a line of its own.
pub(super) fn merge(base: &[u8], ours: &[u8], theirs: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
    merge_hunks(base, (ours, hunks(base, ours)), (theirs, hunks(base, theirs)))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, process::Command};

    use super::*;
    use crate::fork::text::MAX_TEXT_LINES;

    /// Merges texts of which each word is a line, and `_` an empty one; `None` is a conflict.
    fn merged(base: &str, ours: &str, theirs: &str) -> Option<String> {
        let bytes = |words: &str| -> Vec<u8> {
            words.split(' ').filter(|word| !word.is_empty()).fold(Vec::new(), |mut out, word| {
                out.extend_from_slice(if word == "_" { b"" } else { word.as_bytes() });
                out.push(b'\n');
                out
            })
        };
        let line = |line: &str| (if line.is_empty() { "_" } else { line }).to_owned();
        let out = merge(&bytes(base), &bytes(ours), &bytes(theirs)).ok()?;
        let lines: Vec<String> = String::from_utf8(out).unwrap().lines().map(line).collect();
        Some(lines.join(" "))
    }

    #[test]
    fn a_line_deleted_from_a_run_of_equal_ones_stays_deleted() {
        for (base, ours, theirs, wanted) in [
            ("} } } foo", "X } } foo", "} } foo", "X } foo"),
            ("A A A l q", "A A l q", "X A A l q", "X A l q"),
            ("} } }", "X } }", "} }", "X }"),
            ("a b } } } foo z", "a b X } } foo z", "a b } } foo z", "a b X } foo z"),
        ] {
            assert_eq!(merged(base, ours, theirs).as_deref(), Some(wanted), "{base}: {ours} and {theirs}");
            assert_eq!(merged(base, theirs, ours).as_deref(), Some(wanted), "{base}: {theirs} and {ours}");
        }
    }

    #[test]
    fn a_line_added_to_a_run_of_equal_ones_is_there() {
        assert_eq!(merged("_ } u2", "} } u2", "_ } } u2").as_deref(), Some("} } } u2"));
        assert_eq!(merged("_ } u2", "_ } } u2", "} } u2").as_deref(), Some("} } } u2"));
    }

    /// Which of the equal lines was deleted cannot be seen, so it may be the one that the other side changed.
    #[test]
    fn a_blank_line_deleted_by_one_side_and_changed_by_the_other_is_a_conflict() {
        let base = "fn_a { } _ _ fn_b { }";
        let (fewer, changed) = ("fn_a { } _ fn_b { }", "fn_a { } // _ fn_b { }");
        let last = "fn_a { } _ // fn_b { }";
        assert_eq!(merged(base, last, fewer), None);
        assert_eq!(merged(base, fewer, last), None);
        assert_eq!(merged(base, changed, fewer), None);
        assert_eq!(merged(base, fewer, changed), None);
    }

    #[test]
    fn changes_that_touch_are_a_conflict_and_equal_ones_are_there_once() {
        assert_eq!(merged("a b c", "X b c", "a Y c"), None);
        assert_eq!(merged("a b c", "X b c", "a b Y").as_deref(), Some("X b Y"));
        assert_eq!(merged("a b c", "a X b c", "a Y b c"), None);
        assert_eq!(merged("a b c", "a X b c", "a X b c d").as_deref(), Some("a X b c d"));
        assert_eq!(merged("", "a", "a").as_deref(), Some("a"));
        assert_eq!(merged("", "a", "b"), None);
        assert_eq!(merged("a", "", "b"), None);
        assert_eq!(merged("a b", "", "").as_deref(), Some(""));
    }

    /// A difference that does not tell all that a side changed must not let the other side win.
    #[test]
    fn a_wrong_difference_is_a_conflict_of_the_whole_text() {
        let hunk = |before, after| Hunk { before, after };
        let (base, ours, theirs) = (b"a\nb\nc\n", b"X\nb\nc\n", b"a\nb\nY\n");
        let right = || (hunk(0..1, 0..1), hunk(2..3, 2..3));
        let merge = |of_ours, of_theirs| {
            merge_hunks(base, (ours.as_slice(), of_ours), (theirs.as_slice(), of_theirs))
        };
        assert_eq!(merge(vec![right().0], vec![right().1]), Ok(b"X\nb\nY\n".to_vec()));
        let marked = "<<<<<<< ours\nX\nb\nc\n||||||| original\na\nb\nc\n=======\na\nb\nY\n>>>>>>> theirs\n";
        for wrong in [vec![], vec![hunk(1..2, 1..2)], vec![hunk(2..3, 2..9)], vec![hunk(9..10, 2..3)]] {
            assert_eq!(merge(vec![right().0], wrong), Err(marked.as_bytes().to_vec()));
        }
    }

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut x = self.0;
            x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((x ^ x >> 31) % n as u64) as usize
        }
    }

    /// What a random side does with the lines of the origin.
    #[derive(Clone, Copy, PartialEq)]
    enum Edits {
        Any,
        Insertions,
        Deletions,
        /// Lines become others that are nowhere else.
        Replacements,
    }

    const FEW_LINES: [&str; 3] = ["}\n", "\n", "x\n"];

    fn origin(random: &mut Random) -> Vec<String> {
        let distinct = 1 + random.below(FEW_LINES.len());
        let count = [2, 3, 5, 8, 30][random.below(5)];
        let own = 1 + random.below(4);
        let line = |i| match random.below(own) {
            0 | 1 => FEW_LINES[random.below(distinct)].to_owned(),
            _ => format!("u{i}\n"),
        };
        (0..count).map(line).collect()
    }

    fn edited(random: &mut Random, origin: &[String], name: &str, edits: Edits) -> Vec<String> {
        let mut lines = origin.to_vec();
        let distinct = 1 + random.below(FEW_LINES.len());
        for i in 0..1 + random.below(3) {
            let line = match random.below(3) {
                _ if edits == Edits::Replacements => format!("{name}{i}\n"),
                0 => format!("{name}{i}\n"),
                _ => FEW_LINES[random.below(distinct)].to_owned(),
            };
            let at = random.below(lines.len() + 1);
            let kind = match edits {
                Edits::Any => random.below(3),
                Edits::Insertions => 0,
                Edits::Deletions => 1,
                Edits::Replacements => 2,
            };
            let most = if edits == Edits::Replacements { 1 } else { 1 + random.below(2) };
            let end = (at + most).min(lines.len());
            match kind {
                0 => lines.insert(at, line),
                1 => drop(lines.drain(at..end)),
                _ => drop(lines.splice(at..end, [line])),
            }
        }
        lines
    }

    /// Seeds of random cases: that of `PANDO_SEED`, or many, or very many with `PANDO_FULL`.
    fn seeds(full: u64, few: u64) -> std::ops::RangeInclusive<u64> {
        let set = std::env::var("PANDO_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
        let many = if std::env::var_os("PANDO_FULL").is_some() { full } else { few };
        set.map_or(1..=many, |seed| seed..=seed)
    }

    fn show(lines: &[u8]) -> String {
        String::from_utf8_lossy(lines).replace('\n', "|")
    }

    /// How many more of each line there are than in the origin.
    fn growth(origin: &[String], lines: &[u8]) -> BTreeMap<String, i64> {
        let mut counts = BTreeMap::new();
        for line in std::str::from_utf8(lines).unwrap().split_inclusive('\n') {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
        for line in origin {
            *counts.entry(line.clone()).or_default() -= 1;
        }
        counts
    }

    #[test]
    fn random_merges_lose_no_line_of_either_side() {
        use Edits::{Any, Deletions, Insertions, Replacements};
        let (mut clean_cases, mut ambiguous) = (0, 0);
        let seeds = seeds(1_000_000, 20_000);
        for seed in seeds.clone() {
            let mut random = Random(seed << 20);
            let lines = origin(&mut random);
            let kinds = [
                (Any, Any),
                (Insertions, Insertions),
                (Deletions, Deletions),
                (Insertions, Deletions),
                (Replacements, Deletions),
                (Replacements, Insertions),
            ];
            let (ours_do, theirs_do) = kinds[random.below(kinds.len())];
            let base = lines.concat().into_bytes();
            let ours = edited(&mut random, &lines, "ours", ours_do).concat().into_bytes();
            let theirs = edited(&mut random, &lines, "theirs", theirs_do).concat().into_bytes();
            let told = format!("PANDO_SEED={seed}: {}: {} and {}", show(&base), show(&ours), show(&theirs));
            for side in [&ours, &theirs] {
                assert_eq!(merge(&base, side, &base).as_ref(), Ok(side), "{told}");
                assert_eq!(merge(&base, &base, side).as_ref(), Ok(side), "{told}");
                assert_eq!(merge(&base, side, side).as_ref(), Ok(side), "{told}");
            }
            let merged = merge(&base, &ours, &theirs);
            assert_eq!(merged.clone().ok(), merge(&base, &theirs, &ours).ok(), "{told}");
            let Ok(merged) = merged else { continue };
            clean_cases += 1;
            let (all, of_ours, of_theirs) =
                (growth(&lines, &merged), growth(&lines, &ours), growth(&lines, &theirs));
            let mut exact = true;
            for name in all.keys().chain(of_ours.keys()).chain(of_theirs.keys()) {
                let of = |counts: &BTreeMap<String, i64>| counts.get(name).copied().unwrap_or_default();
                let (both, a, b) = (of(&all), of(&of_ours), of(&of_theirs));
                let right = match (ours_do, theirs_do) {
                    // The same change of both sides is there once.
                    (Insertions, Insertions) => (a.max(b)..=a + b).contains(&both),
                    (Deletions, Deletions) => (a + b..=a.min(b)).contains(&both),
                    (Insertions, Deletions) => both == a + b,
                    (Replacements, _) => {
                        exact &= both == a + b;
                        true
                    }
                    // A line of a name that only one side uses is new in it.
                    _ => !name.contains("ours") && !name.contains("theirs") || both == a + b,
                };
                assert!(right, "{name:?} is wrong in {}; {told}", show(&merged));
            }
            if !exact {
                println!("ambiguous: {told}: {}", show(&merged));
                ambiguous += 1;
            }
        }
        println!("{clean_cases} without a conflict, {ambiguous} of them ambiguous");
        // A side with replaced lines may look as if it had deleted the very line that the other one deleted: `a x a`
        // comes of `a a a` in two ways. That is rare, and lost changes are not.
        let most = if seeds.start() == seeds.end() { 1 } else { clean_cases / 1000 };
        assert!(ambiguous <= most, "{ambiguous} of {clean_cases} are ambiguous");
    }

    /// git is another program with the same rule, so it is asked where it is there.
    #[test]
    fn random_merges_are_those_of_git() {
        if !Command::new("git").arg("--version").output().is_ok_and(|out| out.status.success()) {
            println!("skipped: there is no git here");
            return;
        }
        let dir = std::env::temp_dir().join(format!("pando-lines-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (mut clean_cases, mut conflicts, mut conflicts_of_one) = (0, 0, 0);
        let seeds = seeds(20_000, 300);
        for seed in seeds.clone() {
            let mut random = Random(seed << 20 | 1);
            let lines = origin(&mut random);
            let base = lines.concat().into_bytes();
            let ours = edited(&mut random, &lines, "ours", Edits::Any).concat().into_bytes();
            let theirs = edited(&mut random, &lines, "theirs", Edits::Any).concat().into_bytes();
            let named = [("ours", &ours), ("original", &base), ("theirs", &theirs)];
            let mut git = Command::new("git");
            git.current_dir(&dir).args(["merge-file", "-p", "--diff3"]);
            git.args(named.iter().flat_map(|(name, _)| ["-L", *name]));
            for (name, bytes) in named {
                fs::write(dir.join(name), bytes).unwrap();
                git.arg(name);
            }
            let out = git.output().unwrap();
            let wanted = match out.status.code() {
                Some(0) => Ok(out.stdout),
                Some(1..128) => Err(out.stdout),
                _ => panic!("PANDO_SEED={seed}: {out:?}"),
            };
            *(if wanted.is_ok() { &mut clean_cases } else { &mut conflicts }) += 1;
            let merged = merge(&base, &ours, &theirs);
            // Several differences may be the shortest, and the two do not always choose the same one. Then only one
            // of them may have a conflict, or both between other lines, but what is merged is the same.
            match (&merged, &wanted) {
                (Ok(merged), Ok(wanted)) => assert_eq!(show(merged), show(wanted), "PANDO_SEED={seed}"),
                (Err(_), Err(_)) => {}
                (Err(merged), Ok(wanted)) | (Ok(merged), Err(wanted)) => {
                    println!("one has a conflict: PANDO_SEED={seed}: {} and {}", show(merged), show(wanted));
                    conflicts_of_one += 1;
                }
            }
        }
        fs::remove_dir_all(&dir).unwrap();
        println!(
            "git: {clean_cases} without and {conflicts} with a conflict; {conflicts_of_one} of one only"
        );
        let most = if seeds.start() == seeds.end() { 1 } else { (clean_cases + conflicts) / 100 };
        assert!(conflicts_of_one <= most, "{conflicts_of_one} conflicts of one only");
    }

    /// The longest texts that are merged: without a line in common, with few different lines, and in another order.
    #[test]
    fn the_worst_texts_take_seconds_at_most() {
        let named = |name: &str| -> Vec<u8> {
            (0..MAX_TEXT_LINES).flat_map(|i| format!("{name}{i}\n").into_bytes()).collect()
        };
        let of_few = |seed: u64, few: usize| -> Vec<u8> {
            let mut random = Random(seed);
            (0..MAX_TEXT_LINES).flat_map(|_| format!("{}\n", random.below(few)).into_bytes()).collect()
        };
        let shuffled = |seed: u64| -> Vec<u8> {
            let mut random = Random(seed);
            let mut all: Vec<usize> = (0..MAX_TEXT_LINES).collect();
            (1..all.len()).for_each(|i| all.swap(i, random.below(i + 1)));
            all.iter().flat_map(|i| format!("{i}\n").into_bytes()).collect()
        };
        let reversed: Vec<u8> =
            (0..MAX_TEXT_LINES).rev().flat_map(|i| format!("base{i}\n").into_bytes()).collect();
        // Processor time of this thread is measured, because other threads may keep the machine busy.
        let now = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
        };
        for (what, [base, ours, theirs]) in [
            ("nothing in common", ["base", "ours", "theirs"].map(named)),
            ("2 lines", [1, 2, 3].map(|seed| of_few(seed, 2))),
            ("50 lines", [1, 2, 3].map(|seed| of_few(seed, 50))),
            ("1,000 lines", [1, 2, 3].map(|seed| of_few(seed, 1000))),
            ("shuffled", [1, 2, 3].map(shuffled)),
            ("reversed", [named("base"), reversed, named("theirs")]),
        ] {
            let begun = now();
            let result = merge(&base, &ours, &theirs);
            let seconds = now() - begun;
            println!("{what}: {seconds:.3} s, conflict {}", result.is_err());
            assert!(seconds < 5.0, "{what}: {seconds} s");
        }
    }
}
