//! Watches for the next request while the thread that reads requests waits for something else.
//!
//! A thread sleeps in [`Watch::wait`] and is woken only if a request comes, or is there already, while the connection
//! is watched. To begin and to end this costs the reading thread a system call each, and wakes no thread. At other
//! times requests do not wake the sleeping thread. Guarantees: no request that comes between [`Watch::begin`] and
//! [`Watch::end`] is missed; each call of `begin` wakes at most once. This module does not read requests. Uses
//! epoll(7) and eventfd(2).

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, Timespec, epoll, eventfd},
    io::Errno,
};

/// What kind of event it is.
const REQUEST: u64 = 0;
/// The other kind of event: watching ends for good.
const CLOSED: u64 = 1;

/// Watches one connection.
pub(super) struct Watch {
    epoll: OwnedFd,
    /// Readable when watching has ended for good.
    closed: OwnedFd,
}

/// Why a wait has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// A request came, or the connection has ended.
    Request,
    /// [`Watch::close`] was called.
    Closed,
    /// Nothing happened for as long as was asked.
    Nothing,
}

impl Watch {
    /// Watches nothing yet.
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let closed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &closed, epoll::EventData::new_u64(CLOSED), epoll::EventFlags::IN)?;
        Ok(Self { epoll, closed })
    }

    /// From now on the next request wakes the waiting thread, once. Not to be called twice without [`Watch::end`] in
    /// between.
    pub(super) fn begin(&self, connection: BorrowedFd<'_>) -> io::Result<()> {
        let wanted = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        Ok(epoll::add(&self.epoll, connection, epoll::EventData::new_u64(REQUEST), wanted)?)
    }

    /// From now on requests wake no thread. (The connection is removed from the epoll set: with an empty event mask
    /// it would still wake for each request, because epoll always waits for errors, and the wake-up by a request does
    /// not say that it is none.)
    pub(super) fn end(&self, connection: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, connection)?)
    }

    /// Waits for a request while the connection is watched, `most` at most. For one thread at a time.
    pub(super) fn wait(&self, most: Option<Duration>) -> io::Result<Seen> {
        let most = most.map(|most| Timespec {
            tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: most.subsec_nanos().into(),
        });
        let mut room =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 2];
        let seen = match epoll::wait(&self.epoll, &mut room, most.as_ref()) {
            Ok(n) => room.get(..n).unwrap_or_default(),
            Err(Errno::INTR) => &[],
            Err(e) => return Err(e.into()),
        };
        let about = |what: u64| seen.iter().any(|event| event.data.u64() == what);
        Ok(match (about(CLOSED), about(REQUEST)) {
            (true, _) => Seen::Closed,
            (_, true) => Seen::Request,
            _ => Seen::Nothing,
        })
    }

    /// Every wait ends, from now on at once.
    pub(super) fn close(&self) -> io::Result<()> {
        rustix::io::write(&self.closed, &1u64.to_ne_bytes())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::{io::Write, os::fd::AsFd, os::unix::net::UnixStream};

    use super::*;

    const SHORT: Option<Duration> = Some(Duration::from_millis(20));

    #[test]
    fn a_request_wakes_only_while_the_connection_is_watched_and_once() {
        let (connection, mut kernel) = UnixStream::pair().unwrap();
        let watch = Watch::new().unwrap();
        kernel.write_all(b"request").unwrap();
        assert_eq!(watch.wait(SHORT).unwrap(), Seen::Nothing, "nobody watches yet");
        // The request is there already.
        watch.begin(connection.as_fd()).unwrap();
        assert_eq!(watch.wait(None).unwrap(), Seen::Request);
        kernel.write_all(b"another").unwrap();
        assert_eq!(watch.wait(SHORT).unwrap(), Seen::Nothing, "it wakes once");
        watch.end(connection.as_fd()).unwrap();
        watch.begin(connection.as_fd()).unwrap();
        watch.end(connection.as_fd()).unwrap();
        assert_eq!(watch.wait(SHORT).unwrap(), Seen::Nothing, "it was taken back");
    }

    #[test]
    fn one_that_comes_later_and_the_end_wake_a_sleeper() {
        let (connection, mut kernel) = UnixStream::pair().unwrap();
        let watch = Watch::new().unwrap();
        std::thread::scope(|s| {
            watch.begin(connection.as_fd()).unwrap();
            let sleeper = s.spawn(|| watch.wait(None).unwrap());
            std::thread::sleep(Duration::from_millis(20));
            kernel.write_all(b"request").unwrap();
            assert_eq!(sleeper.join().unwrap(), Seen::Request);
            watch.end(connection.as_fd()).unwrap();
            let sleeper = s.spawn(|| watch.wait(None).unwrap());
            std::thread::sleep(Duration::from_millis(20));
            watch.close().unwrap();
            assert_eq!(sleeper.join().unwrap(), Seen::Closed);
        });
        assert_eq!(watch.wait(None).unwrap(), Seen::Closed);
    }
}
