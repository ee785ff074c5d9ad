//! Failures that a caller gets as EIO only, and that the log explains.
//!
//! A program that continues after a failure repeats it, and a damaged store has many failures. So the same failure is
//! logged once a minute, and different ones once a second.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long the same failure is not logged again.
const SAME: Duration = Duration::from_secs(60);
/// How long no other one is.
const OTHER: Duration = Duration::from_secs(1);

/// What was logged last, and when.
static LAST: Mutex<Option<(String, Instant)>> = Mutex::new(None);

/// Logs why a request is answered with EIO.
pub(crate) fn log(error: &pando_fs::Error) {
    let (text, now) = (error.to_string(), Instant::now());
    let news = {
        let mut last = LAST.lock();
        let news = is_news(&last, &text, now);
        if news {
            *last = Some((text.clone(), now));
        }
        news
    };
    // Logged without the lock, because the reader of the log may be slow.
    let level = if news { log::Level::Error } else { log::Level::Debug };
    log::log!(level, "{text}");
}

fn is_news(last: &Option<(String, Instant)>, text: &str, now: Instant) -> bool {
    let Some((known, at)) = last else { return true };
    now.duration_since(*at) >= if known == text { SAME } else { OTHER }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_failure_is_logged_once_a_minute() {
        let begin = Instant::now();
        let last = Some(("a disk is broken".to_owned(), begin));
        let news = |text, seconds| is_news(&last, text, begin + Duration::from_secs(seconds));
        assert!(is_news(&None, "a disk is broken", begin));
        assert!(!news("a disk is broken", 59) && news("a disk is broken", 60));
        assert!(!news("another one", 0) && news("another one", 1));
    }
}
