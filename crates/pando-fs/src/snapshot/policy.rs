//! Which snapshots a policy keeps: a pure function of the policy, the time and what there is.
//!
//! For hours, days, weeks (from Monday), months and years, all in UTC, the newest snapshot of each of the last so many
//! that have one is kept; and so many of the newest whatever their age. What no count keeps goes, but for one of every
//! so many, by number, so that it is the same one each time. A snapshot that is valid for a stated time is kept as
//! long as that lasts and goes then, whatever the counts say; one that is kept never goes. A policy without any
//! count lets only those go whose time is over.

use crate::types::{DAY_SECONDS, SnapshotInfo, SnapshotPolicy, Time};

const HOUR_SECONDS: i64 = 60 * 60;
/// A count of days: from 0000-03-01 to 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;
/// A count of days: those of 400 years.
const ERA_DAYS: i64 = 146_097;

/// Year, month (1 to 12) and day (1 to 31) of a day since 1970, in the Gregorian calendar.
fn civil(day: i64) -> (i64, i64, i64) {
    // Years begin with March, so that the day that leap years have more is their last.
    let day = day + EPOCH_DAYS;
    let (era, of_era) = (day.div_euclid(ERA_DAYS), day.rem_euclid(ERA_DAYS));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// A moment as text, to the second: `2026-11-24T13:45:00Z`.
pub(crate) fn utc_text(t: Time) -> String {
    let (day, second) = (t.secs.div_euclid(DAY_SECONDS), t.secs.rem_euclid(DAY_SECONDS));
    let (year, month, day) = civil(day);
    let (hour, minute, second) = (second / HOUR_SECONDS, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

impl Time {
    /// The moment as text in UTC, to the second: `2026-11-24T13:45:00Z`.
    pub fn to_utc(self) -> String {
        utc_text(self)
    }
}

/// Times and numbers of snapshots at the time `now`, the newest first.
///
/// A clock that was ahead has made snapshots of the future. They count as no newer than the next one that was made when
/// the clock was right: else they would be the newest until their time comes, and each new one would go at once.
pub(crate) fn newest_first<'a>(
    now: Time,
    snapshots: impl IntoIterator<Item = &'a SnapshotInfo>,
) -> Vec<(Time, u32)> {
    let mut by_number: Vec<(Time, u32)> = snapshots.into_iter().map(|s| (s.created, s.number)).collect();
    by_number.sort_unstable_by_key(|(_, number)| std::cmp::Reverse(*number));
    let mut next = now;
    for (created, _) in &mut by_number {
        match *created > now {
            true => *created = next,
            false => next = *created,
        }
    }
    by_number.sort_unstable_by_key(|newest| std::cmp::Reverse(*newest));
    by_number
}

impl SnapshotInfo {
    /// When its period of validity ends, in seconds since 1970, if it has one. Until then it goes for no other reason.
    pub fn valid_until(&self) -> Option<i64> {
        self.valid_for_secs.map(|secs| self.created.secs.saturating_add_unsigned(secs))
    }
}

impl SnapshotPolicy {
    fn has_counts(&self) -> bool {
        let counts = [self.last, self.hourly, self.daily, self.weekly, self.monthly, self.yearly];
        counts.iter().any(|count| *count > 0) || self.one_of > 0
    }

    /// The numbers of those of `snapshots` that go at the time `now`, ascending.
    pub fn expired(&self, now: Time, snapshots: &[SnapshotInfo]) -> Vec<u32> {
        let newest_first = newest_first(now, snapshots);
        let mut counted: Vec<u32> =
            newest_first.iter().take(self.last as usize).map(|(_, number)| *number).collect();
        let day = |t: Time| t.secs.div_euclid(DAY_SECONDS);
        let month = |t: Time| {
            let (year, month, _) = civil(day(t));
            year * 12 + month
        };
        let mut keep = |most: u32, bucket: &dyn Fn(Time) -> i64| {
            let mut last = None;
            let mut left = most;
            for (created, number) in &newest_first {
                let this = bucket(*created);
                if left > 0 && last != Some(this) {
                    counted.push(*number);
                    left -= 1;
                }
                last = Some(this);
            }
        };
        keep(self.hourly, &|t| t.secs.div_euclid(HOUR_SECONDS));
        keep(self.daily, &day);
        // 1970-01-01 was a Thursday.
        keep(self.weekly, &|t| (day(t) + 3).div_euclid(7));
        keep(self.monthly, &month);
        keep(self.yearly, &|t| civil(day(t)).0);
        counted.sort_unstable();
        let goes = |s: &SnapshotInfo| {
            if s.keep {
                return false;
            }
            if let Some(until) = s.valid_until() {
                return until <= now.secs;
            }
            let rest = self.one_of > 0 && s.number.is_multiple_of(self.one_of);
            self.has_counts() && !rest && counted.binary_search(&s.number).is_err()
        };
        let mut gone: Vec<u32> = snapshots.iter().filter(|s| goes(s)).map(|s| s.number).collect();
        gone.sort_unstable();
        gone
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(text: &str) -> Time {
        // The tests' own way back: search, as years are few.
        let wanted = format!("{text}Z");
        let days = (-40_000..80_000).find(|d| {
            let midnight = utc_text(Time { secs: d * DAY_SECONDS, nanos: 0 });
            midnight[..10] == wanted[..10]
        });
        let n = |from: usize| wanted[from..from + 2].parse::<i64>().unwrap();
        Time { secs: days.unwrap() * DAY_SECONDS + n(11) * 3600 + n(14) * 60 + n(17), nanos: 0 }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (1_795_527_900, "2026-11-24T13:45:00Z"),
        ] {
            assert_eq!(utc_text(Time { secs, nanos: 7 }), text);
        }
        let mut last = civil(-1_000_001);
        for day in -1_000_000..1_000_000 {
            let next = civil(day);
            let follows = match next {
                (year, 1, 1) => last == (year - 1, 12, 31),
                (year, month, 1) => last.0 == year && last.1 == month - 1 && (28..=31).contains(&last.2),
                (year, month, day) => last == (year, month, day - 1),
            };
            assert!(follows, "{last:?} {next:?}");
            last = next;
        }
    }

    fn snapshots(times: &[&str]) -> Vec<SnapshotInfo> {
        let numbered = (1u32..).zip(times);
        let info = |(number, text): (u32, &&str)| SnapshotInfo {
            number,
            name: text.into(),
            source: "/".into(),
            note: String::new(),
            created: at(text),
            keep: false,
            valid_for_secs: None,
            uid: 0,
            received: None,
            automatic: false,
        };
        numbered.map(info).collect()
    }

    const NONE: SnapshotPolicy =
        SnapshotPolicy { last: 0, hourly: 0, daily: 0, weekly: 0, monthly: 0, yearly: 0, one_of: 0 };

    /// What a policy leaves of the same snapshots: the reference table.
    #[test]
    fn policies_keep_what_the_table_says() {
        let times = [
            "2025-06-30T12:00:00", // 1
            "2025-12-31T23:59:59", // 2: Wednesday
            "2026-01-01T00:00:00", // 3: Thursday of the same week
            "2026-10-31T10:00:00", // 4
            "2026-11-01T10:00:00", // 5: Sunday
            "2026-11-02T09:00:00", // 6: Monday
            "2026-11-23T08:10:00", // 7
            "2026-11-23T22:00:00", // 8
            "2026-11-24T12:05:00", // 9
            "2026-11-24T12:55:00", // 10
            "2026-11-24T13:01:00", // 11
        ];
        let all = snapshots(&times);
        let now = at("2026-11-24T13:45:00");
        let p = |change: &dyn Fn(&mut SnapshotPolicy)| {
            let mut policy = NONE;
            change(&mut policy);
            policy
        };
        let table: [(&str, SnapshotPolicy, &[u32]); 11] = [
            ("none", NONE, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
            ("last 2", p(&|p| p.last = 2), &[10, 11]),
            ("hourly 1", p(&|p| p.hourly = 1), &[11]),
            ("hourly 3", p(&|p| p.hourly = 3), &[8, 10, 11]),
            ("daily 2", p(&|p| p.daily = 2), &[8, 11]),
            ("daily 4", p(&|p| p.daily = 4), &[5, 6, 8, 11]),
            ("weekly 4", p(&|p| p.weekly = 4), &[3, 5, 6, 11]),
            ("monthly 3", p(&|p| p.monthly = 3), &[3, 4, 11]),
            ("yearly 9", p(&|p| p.yearly = 9), &[2, 11]),
            ("daily 1, one of 5", p(&|p| (p.daily, p.one_of) = (1, 5)), &[5, 10, 11]),
            ("hourly 2, monthly 2", p(&|p| (p.hourly, p.monthly) = (2, 2)), &[4, 10, 11]),
        ];
        for (name, policy, left) in table {
            let gone = policy.expired(now, &all);
            let kept: Vec<u32> = all.iter().map(|s| s.number).filter(|n| !gone.contains(n)).collect();
            assert_eq!(kept, left, "{name}");
            // What is left is left again.
            let rest: Vec<SnapshotInfo> = all.iter().filter(|s| !gone.contains(&s.number)).cloned().collect();
            assert_eq!(policy.expired(now, &rest), Vec::<u32>::new(), "{name}, again");
        }
    }

    /// They were the newest until their time came, so that each new one was deleted as soon as it was made.
    #[test]
    fn snapshots_of_a_clock_that_was_ahead_give_way_to_new_ones() {
        let future = ["2026-11-25T12:00:00", "2026-11-25T12:00:02", "2026-11-25T12:00:04"];
        let new: Vec<String> = (0..6).map(|i| format!("2026-11-24T13:{:02}:00", 5 * i)).collect();
        let all: Vec<&str> = future.into_iter().chain(new.iter().map(String::as_str)).collect();
        for (name, policy) in [
            ("last 3", SnapshotPolicy { last: 3, ..NONE }),
            ("last 1", SnapshotPolicy { last: 1, ..NONE }),
            ("hourly 2", SnapshotPolicy { hourly: 2, ..NONE }),
        ] {
            let mut left = snapshots(&future);
            for (i, made) in new.iter().enumerate() {
                left.push(snapshots(&all)[future.len() + i].clone());
                let gone = policy.expired(at(made), &left);
                left.retain(|s| !gone.contains(&s.number));
                let newest = (future.len() + i) as u32 + 1;
                assert!(left.iter().any(|s| s.number == newest), "{name}: {newest} went at once");
            }
            assert!(left.iter().all(|s| s.number > 3), "{name}: those of the future stay");
        }
        let short = [snapshots(&all)[0].clone(), snapshots(&all)[5].clone(), snapshots(&all)[6].clone()];
        let order: Vec<u32> = newest_first(at(&new[5]), &short).iter().map(|(_, number)| *number).collect();
        assert_eq!(order, [7, 6, 1], "the oldest goes first where space is short");
    }

    #[test]
    fn validity_and_the_keep_flag_come_before_counts() {
        let mut all = snapshots(&["2026-11-20T00:00:00", "2026-11-21T00:00:00", "2026-11-22T00:00:00"]);
        all[0].keep = true;
        all[0].valid_for_secs = Some(1);
        all[1].valid_for_secs = Some(3 * DAY_SECONDS as u64);
        all[2].valid_for_secs = Some(DAY_SECONDS as u64);
        assert_eq!(NONE.expired(at("2026-11-22T23:59:59"), &all), []);
        assert_eq!(NONE.expired(at("2026-11-23T00:00:00"), &all), [3]);
        let last = SnapshotPolicy { last: 1, ..NONE };
        assert_eq!(last.expired(at("2026-11-23T12:00:00"), &all), [3], "2 is valid, 1 kept");
        assert_eq!(last.expired(at("2026-11-24T00:00:00"), &all), [2, 3]);
        all[2].valid_for_secs = Some(u64::MAX);
        assert_eq!(last.expired(at("2026-11-24T00:00:00"), &all), [2]);
    }
}
