//! The destination of a daemon's messages: syslog, a file, or the terminal.
//!
//! syslog is one datagram per message to `/dev/log` (RFC 3164); without a syslog daemon the message is lost, which is
//! why `--log-file` exists.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::net::UnixDatagram,
    path::Path,
    sync::Mutex,
    time::{SystemTime, UNIX_EPOCH},
};

use log::{Level, LevelFilter, Log, Metadata, Record};

enum LogTarget {
    Terminal,
    Syslog(Option<UnixDatagram>),
    File(File),
}

struct Logger {
    target: Mutex<LogTarget>,
}

/// Messages of `--foreground` and of short commands: to the terminal.
pub fn to_terminal() {
    install(LogTarget::Terminal);
}

/// Messages of a daemon: to `file` or to syslog.
pub fn to_daemon_log(file: Option<&Path>) -> std::io::Result<()> {
    let target = match file {
        Some(path) => LogTarget::File(OpenOptions::new().create(true).append(true).open(path)?),
        None => LogTarget::Syslog(connect()),
    };
    install(target);
    // A panic would otherwise speak to a closed terminal.
    std::panic::set_hook(Box::new(|info| log::error!("{info}")));
    Ok(())
}

fn install(target: LogTarget) {
    let level = match std::env::var("PANDO_LOG").ok().and_then(|l| l.parse().ok()) {
        Some(level) => level,
        None => LevelFilter::Warn,
    };
    if log::set_boxed_logger(Box::new(Logger { target: Mutex::new(target) })).is_ok() {
        log::set_max_level(level);
    }
}

fn connect() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect("/dev/log").ok()?;
    // A stuck syslog daemon must not stop the file system.
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

fn severity(level: Level) -> u8 {
    match level {
        Level::Error => 3,
        Level::Warn => 4,
        Level::Info => 6,
        Level::Debug | Level::Trace => 7,
    }
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let Ok(mut target) = self.target.lock() else { return };
        let pid = std::process::id();
        // A message that could not be delivered cannot be reported.
        let _ = match &mut *target {
            LogTarget::Terminal => writeln!(std::io::stderr(), "pando: {}", record.args()),
            LogTarget::File(file) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                writeln!(
                    file,
                    "{}.{:03} pando[{pid}] {}: {}",
                    now.as_secs(),
                    now.subsec_millis(),
                    record.level(),
                    record.args()
                )
            }
            LogTarget::Syslog(socket) => {
                const DAEMON: u8 = 3 << 3;
                let text = format!("<{}>pando[{pid}]: {}", DAEMON | severity(record.level()), record.args());
                let sent = |s: &UnixDatagram| s.send(text.as_bytes()).map(|_| ());
                match socket.as_ref().map(sent) {
                    Some(Ok(())) => Ok(()),
                    // syslog was restarted: try once on a new socket.
                    _ => {
                        *socket = connect();
                        socket.as_ref().map_or(Ok(()), sent)
                    }
                }
            }
        };
    }

    fn flush(&self) {}
}
