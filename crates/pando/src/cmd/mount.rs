//! `pando mount`: puts a file system on a directory and serves it.
//!
//! Without `--foreground` the program starts itself again as a daemon and
//! waits for one line on a pipe, which comes when the mount is usable; what
//! goes wrong before that is printed by the daemon itself, which still has
//! the terminal then, and its exit code is passed on.

use std::{
    ffi::OsString,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use pando_fs::{Fs, MountOptions};
use pando_fuse::{How, Mount, Settings, mountinfo, unmount};
use sd_notify::NotifyState;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    closing::Record,
    exit::{self, Coded},
    guard, idle_memory, image, inherited, logging, memory,
    one_version::{self, Version},
    place, report, session_nice,
    size::Size,
};

/// Mount a file system: a daemon serves it in the background
#[derive(clap::Args, Clone)]
#[command(after_help = "Options for -o, separated by commas, with the default in parentheses:
  ro, rw             refuse changes, or not (rw); mount -i -o remount,rw DIR
                     allows them later
  norecovery         with ro: never write to the image, not even to recover it
                     after a crash
  allow_other        let other users in; needs root, or user_allow_other in
                     /etc/fuse.conf
  default_permissions, no_default_permissions
                     whether the kernel checks permissions (it does, unless
                     root mounts without allow_other)
  noatime, relatime, strictatime
                     when reading a file changes its access time (relatime)
  commit=SECONDS     flush the log unasked after so long (1)
  compress=none|lz4|zstd[:LEVEL]
                     how data is compressed when it is written (lz4); LEVEL is
                     1 to 19 (3)
  salvage            open an image whose log is damaged beyond repair, without
                     what is lost
  discard, nodiscard
                     give freed space back to the file system or device under
                     the image, soon after a checkpoint and at the end
                     (discard); some is kept for the next writes
  cache=SIZE, log_file=FILE
                     the same as --cache and --log-file, for fstab
  readahead=on|off   read ahead in files that are read in order (on), within
                     the memory of --cache
  direct_io=auto|on|off
                     bypass the page cache of the host, so that the daemon
                     takes no memory beyond --cache (auto: where that is
                     possible; on: fail where it is not)
  writeback=on|off   let the kernel keep what is written until close, fsync or
                     30 seconds later (on). Off: a crash takes at most the last
                     second of what was written, but many small writes are slow
  snapshot=NAME, snapshot=DIR@NAME
                     mount only this snapshot of the file system, or of a
                     directory in it, read-only; NAME may be its number. The
                     image may be mounted already: then its daemon serves the
                     snapshot (root only, and not with --foreground). Write a
                     comma as \\, and a backslash as \\\\; any byte may be \\ooo, in
                     octal digits, as pando snapshot list -H shows it
  snapdir=hidden|visible
                     whether .snapshots is listed in directories that have
                     snapshots (hidden, so that find and du do not descend into
                     it); it can be opened by its name anyway. Where it is
                     visible, rm -rf of such a directory fails in .snapshots,
                     and cp -a copies all snapshots as well
  suid, dev, noexec  as for every file system (nosuid and nodev are on)
  io_uring=auto|on|off
                     take requests over io_uring, where the kernel offers it
                     (off)
  threads=N          threads that read requests (1, the fastest on few CPUs)
  poll=MICROSECONDS  while requests come at shorter intervals than this, look
                     for the next one for so long before sleeping (200; 0:
                     never). Faster for many small files, but takes CPU time;
                     only with threads=1, on more than one CPU, and while no
                     other program wants the CPU
  halt_poll=auto|on|off
                     keep idle CPUs from halting meanwhile, because waking them
                     takes longer than a request in a virtual machine (auto: if
                     root mounts in a guest with the haltpoll driver and at
                     most 16 CPUs)
  session_nice=N     nice value, -20 to 19, of the daemon's session: how much of
                     the CPUs the daemon gets while others keep them busy (-10
                     where it may, as root; else 0); see sched(7). With
                     --foreground only as a session of its own, as a service

The daemon ends when the file system is unmounted. SIZE is as for pando mkfs.

Examples: pando mount -o noatime --cache 1G grove.img /mnt/grove
          pando mount -o snapshot=project@monday grove.img /mnt/monday")]
pub struct Args {
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTS")]
    options: Vec<String>,
    /// Stay in the foreground and log to the terminal; Ctrl-C unmounts. Tells a service manager when it is
    /// ready (Type=notify)
    #[arg(long, short = 'f')]
    foreground: bool,
    /// Memory for cached and unwritten data. Default: an eighth of the memory that there is, or that the
    /// control group (container) may have, but at least 64M and at most 4G
    #[arg(long, value_name = "SIZE")]
    cache: Option<Size>,
    /// Log to this file instead of syslog
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Pass over mount options that are not known
    #[arg(long, short = 's', hide = true)]
    sloppy: bool,
    /// Set by the program itself: be the daemon, say "ready" on stdout
    #[arg(long, hide = true)]
    daemon: bool,
    /// A file or block device made by mkfs
    image: PathBuf,
    /// An existing directory, where it is mounted
    dir: PathBuf,
}

impl Args {
    /// Those of a mount with nothing but `-o`.
    pub fn plain(image: PathBuf, dir: PathBuf, options: String, sloppy: bool) -> Args {
        Args {
            options: vec![options],
            foreground: false,
            cache: None,
            log_file: None,
            sloppy,
            daemon: false,
            image,
            dir,
        }
    }
}

/// What the options of `-o` say: to the mount, and to this program.
pub struct Options {
    /// The options for the kernel and the file system.
    pub settings: Settings,
    cache: Option<Size>,
    log_file: Option<PathBuf>,
    session_nice: Option<i32>,
    version: Option<Version>,
}

impl Options {
    /// The options in `list`, separated by commas; later ones win. What is not known is passed over if `sloppy`.
    pub fn parse(list: &str, sloppy: bool) -> Result<Options> {
        let mut options = Options {
            settings: Settings::default(),
            cache: None,
            log_file: None,
            session_nice: None,
            version: None,
        };
        for option in one_version::options(list) {
            match option.split_once('=') {
                Some(("cache", size)) => {
                    let size = size.parse().map_err(|e| Coded(exit::USAGE, format!("cache: {e}")))?;
                    options.cache = Some(size);
                }
                Some(("log_file", file)) => options.log_file = Some(file.into()),
                Some(("session_nice", nice)) => {
                    let nice = nice.parse().ok().filter(|nice| (-20..=19).contains(nice));
                    let wrong = || Coded(exit::USAGE, format!("{option}: is a whole number from -20 to 19"));
                    options.session_nice = Some(nice.ok_or_else(wrong)?);
                }
                Some(("snapshot", version)) => options.version = Some(version.parse()?),
                _ => match options.settings.apply(option) {
                    Err(pando_fuse::Error::Option(_)) if sloppy => {}
                    done => done?,
                },
            }
        }
        Ok(options)
    }
}

pub fn run(args: &Args) -> Result<()> {
    inherited::expect_children();
    let options = Options::parse(&args.options.join(","), args.sloppy)?;
    let args = &Args {
        cache: args.cache.or(options.cache),
        log_file: args.log_file.clone().or(options.log_file),
        ..args.clone()
    };
    let settings = options.settings;
    if settings.allow_other && settings.default_permissions == Some(false) && !args.daemon {
        crate::exit::tell!(
            "pando: warning: allow_other without permission checks: every user may read and change everything"
        );
    }
    let image = image::canonical(&args.image)?;
    let dir = place::absolute_mount_point(&args.dir)?;
    remove_dead_mounts(&dir)?;
    if let Err(e) = dir.metadata() {
        return Err(e).with_context(|| format!("{}", args.dir.display()));
    }
    if !dir.is_dir() {
        bail!("{}: is not a directory; a file system needs one to be mounted on", args.dir.display());
    }
    match options.version {
        // The program that has started the daemon sees to the version.
        Some(version) if !args.daemon => mount_version(args, &version, &image, &dir),
        _ if args.foreground || args.daemon => serve(args, settings, options.session_nice, &image, &dir),
        _ => start_daemon(args, &image, &dir),
    }
}

/// Shows `version` of the image on `dir`, by the daemon that has the image, or else by a new one.
fn mount_version(args: &Args, version: &Version, image: &Path, dir: &Path) -> Result<()> {
    if args.foreground {
        let text = "snapshot=: does not go with --foreground; mount the image so, and the version beside it";
        return Err(Coded(exit::USAGE, text.into()).into());
    }
    one_version::allowed()?;
    if let Some(mounted) = one_version::mounted(image)? {
        return one_version::bind(version, &mounted, dir);
    }
    let options = args.options.iter().cloned().chain(["ro".into()]).collect();
    start_daemon(&Args { options, ..args.clone() }, image, dir)?;
    one_version::narrow(version, dir)
}

/// Removes mounts of ours from `dir` whose daemon was killed.
fn remove_dead_mounts(dir: &Path) -> Result<()> {
    while let Some(mount) = mountinfo::at(dir)?
        && mount.fstype == mountinfo::FSTYPE
        && mountinfo::is_dead(dir)
    {
        unmount(dir, How::Lazy)?;
        let (dir, image) = (dir.display(), mount.source.display());
        crate::exit::tell!(
            "pando: {dir}: removed a mount of {image} whose daemon had been killed or had crashed"
        );
    }
    Ok(())
}

fn start_daemon(args: &Args, image: &Path, dir: &Path) -> Result<()> {
    let mut line: Vec<OsString> = vec!["mount".into(), "--daemon".into()];
    for list in &args.options {
        line.extend(["-o".into(), list.into()]);
    }
    if let Some(cache) = args.cache {
        line.extend(["--cache".into(), cache.0.to_string().into()]);
    }
    if args.sloppy {
        line.push("--sloppy".into());
    }
    if let Some(file) = &args.log_file {
        line.extend(["--log-file".into(), std::path::absolute(file)?.into()]);
    }
    line.extend(["--".into(), image.into(), dir.into()]);
    let program = std::env::current_exe().context("finding this program")?;
    let mut daemon = Command::new(&program)
        .args(line)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let mut answer = String::new();
    if let Some(pipe) = daemon.stdout.take() {
        BufReader::new(pipe).read_line(&mut answer)?;
    }
    if answer == "ready\n" {
        return Ok(());
    }
    // The daemon has printed the reason, or has died without one.
    let status = daemon.wait()?;
    match status.code() {
        Some(code) => Err(Coded(u8::try_from(code).unwrap_or(exit::FAILURE), String::new()).into()),
        None => bail!("the daemon died before the mount was ready: {status}"),
    }
}

fn serve(args: &Args, settings: Settings, session_nice: Option<i32>, image: &Path, dir: &Path) -> Result<()> {
    if args.daemon {
        let inherited = inherited::descriptors();
        // One of them may be the log.
        logging::to_daemon_log(args.log_file.as_deref()).context("opening the log")?;
        inherited::close(inherited);
        std::env::set_current_dir("/")?;
    } else {
        logging::to_terminal();
    }
    idle_memory::give_back_when_idle();
    // Until the daemon has a session of its own, what its caller ignores does not unmount it (nohup(1), and what a
    // script starts in the background).
    let ignored = if args.daemon { inherited::ignored_signals() } else { 0 };
    let (late, early): (Vec<i32>, Vec<i32>) =
        [SIGTERM, SIGINT, SIGHUP].into_iter().partition(|signal| ignored >> (signal - 1) & 1 == 1);
    let mut caught = Signals::new(early)?;
    let options = MountOptions::default()
        .cache_bytes(args.cache.map_or_else(memory::mount_cache_bytes, |c| c.0))
        .read_only(settings.read_only)
        .atime(settings.atime)
        .codec(settings.compress)
        .discard(settings.discard)
        .tick_times(settings.writeback)
        .kept_above(settings.writeback)
        .snapshots_visible(settings.snapshots_visible)
        .readahead_bytes(if settings.readahead { u64::MAX } else { 0 })
        .salvage(settings.salvage)
        .sync_interval(settings.commit.unwrap_or(MountOptions::default().sync_interval));
    if settings.no_recovery && !settings.read_only {
        bail!("norecovery: goes only with ro");
    }
    let fs = open(image, &settings, options)?;
    for warning in fs.db().warnings() {
        log::warn!("{}: {warning}", image.display());
    }
    let record = Record::open(image);
    // A name with a comma or backslash is escaped where that is needed.
    let fsname = image.to_string_lossy().into_owned();
    let settings = Settings { fsname: Some(settings.fsname.clone().unwrap_or(fsname)), ..settings };
    let stats = Box::new(|fs: &Fs, requests: &pando_fuse::Counters| {
        let stats = report::Stats::of(fs, Some(requests)).map_err(|e| e.to_string())?;
        serde_json::to_string(&stats).map_err(|e| e.to_string())
    });
    let mount = match Mount::new(fs.clone(), dir, &settings, Some(stats)) {
        Ok(mount) => mount,
        Err(e) => {
            close(&fs, image, record)?;
            return Err(e.into());
        }
    };
    if args.daemon {
        // The parent's terminal must not end it. Fails only for a group leader, which a child is not. Not before the
        // mount is there: automount(8) knows by the process group who may look for the directory.
        let _ = rustix::process::setsid();
    }
    guard::post(mount.abort_file());
    let (at, ender, ends) = (mount.dir().to_owned(), mount.ender(), mount.ender());
    let handle = caught.handle();
    let mut watcher = None;
    // From here on what fails has to unmount.
    let begin = || -> Result<()> {
        if args.daemon {
            late.into_iter().try_for_each(|signal| caught.add_signal(signal))?;
        }
        if let Some(signal) = caught.pending().next() {
            bail!("{}: signal {signal} came before the mount was ready; it is unmounted", dir.display());
        }
        let watch = move || {
            for signal in caught.forever() {
                tell_manager(&[NotifyState::Stopping]);
                log::warn!("signal {signal}: unmounting {}", at.display());
                // Unmounts as umount would, and by force if the mount is in use.
                ends.end();
            }
        };
        let thread = std::thread::Builder::new().name("pando-signals".into());
        watcher = Some(thread.spawn(watch).context("a thread that waits for signals")?);
        session_nice::set(session_nice)?;
        if args.daemon {
            announce()?;
        } else {
            let status = format!("{} on {}", image.display(), dir.display());
            tell_manager(&[NotifyState::Ready, NotifyState::Status(&status)]);
        }
        Ok(())
    };
    let ready = begin();
    // At once, as the program that started it waits for that.
    let refused = ready.err().map(|e| exit::report(&e));
    if refused.is_some() {
        // That program is gone, or expects no mount.
        let _ = ender.unmount(How::Lazy);
    }
    let served = mount.serve();
    if !args.daemon {
        tell_manager(&[NotifyState::Stopping]);
    }
    handle.close();
    if let Some(watcher) = watcher {
        let _ = watcher.join();
    }
    if let Err(e) = &served {
        log::error!("{}: {e}", dir.display());
    }
    let result =
        close(&fs, image, record).and_then(|()| served.with_context(|| format!("{}", dir.display())));
    // `pando umount` waits until this process ends. Freeing a large cache piece by piece would take longer than
    // closing did; the system frees all of it at once.
    let code = result.as_ref().map_or_else(exit::report, |()| exit::OK);
    pando_fuse::exit(i32::from(refused.unwrap_or(code)))
}

/// Tells the manager of services that started this program, where one did and wants to know (NOTIFY_SOCKET).
fn tell_manager(state: &[NotifyState<'_>]) {
    if let Err(e) = sd_notify::notify(state) {
        log::warn!("NOTIFY_SOCKET: {e}");
    }
}

/// Opens the image, for writing where that can be: what begins read-only may be remounted, and a FUSE server is
/// not asked about that.
fn open(image: &Path, settings: &Settings, options: MountOptions) -> Result<Fs> {
    if !settings.read_only || settings.no_recovery {
        return image::open_as(image, options, settings.direct_io);
    }
    // Nothing is written unless there is something to recover, or changes are allowed later.
    let ready = options.clone().read_only(false).changes_suspended(true).discard(false);
    image::open_as(image, ready, settings.direct_io).or_else(|e| match exit::code(&e) {
        exit::BUSY => Err(e),
        _ => {
            log::info!("{e:#}: opened for reading only");
            image::open_as(image, options, settings.direct_io)
        }
    })
}

/// Closes the image, and says how that went for `pando umount` to find.
fn close(fs: &Fs, image: &Path, record: Record) -> Result<()> {
    let closed = fs.close();
    record.closed(&closed.as_ref().copied().map_err(ToString::to_string));
    closed.with_context(|| format!("closing {}", image.display())).inspect_err(|e| log::error!("{e:#}"))
}

/// Tells the parent that the mount is usable, and detaches from its terminal.
fn announce() -> Result<()> {
    let mut out = std::io::stdout();
    out.write_all(b"ready\n").and_then(|()| out.flush()).context("telling that the mount is ready")?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Mounts by starting this program again, as `pando mount` would be started by a user.
pub fn by_command(image: &Path, dir: &Path, options: &[&str]) -> Result<()> {
    inherited::expect_children();
    let program = std::env::current_exe().context("finding this program")?;
    let output = Command::new(program)
        .arg("mount")
        .args(options)
        .args(["--".as_ref(), image.as_os_str(), dir.as_os_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    // This has only the output of the mount command: the daemon closes stderr when it is ready.
    let output = output.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().trim_start_matches("pando: ").to_owned();
    let code = output.status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(exit::FAILURE);
    Err(Coded(code, text).into())
}
