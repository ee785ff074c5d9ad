//! What is mounted where, from `/proc/self/mountinfo`, and in other mount namespaces.
//!
//! Asks no mounted file system anything (but for [`is_dead`], and where an image itself lies), so it works when a
//! daemon hangs or is dead. Octal escapes of the kernel are undone.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStringExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, open, openat2, statx};

/// The file-system type that our mounts carry.
pub const FSTYPE: &str = "fuse.pando";

/// Types of file systems in which a name is looked up without asking a server or a program.
const KEEPS_NAMES: [&str; 9] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "ramfs", "rootfs"];

/// One mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its number in the kernel.
    pub id: u64,
    /// The number of the mount in which the directory lies that it is mounted on.
    pub parent: u64,
    /// Device number as `major:minor`.
    pub device: String,
    /// Directory inside the file system that is mounted here; `/` unless it is a bind mount.
    pub root: PathBuf,
    /// Where it is mounted.
    pub dir: PathBuf,
    /// File-system type.
    pub fstype: String,
    /// What is mounted: for our mounts the image.
    pub source: PathBuf,
    /// For FUSE mounts the user who mounted it.
    pub user: Option<u32>,
    /// The file system may not be written to, wherever it is mounted.
    pub read_only: bool,
}

impl Entry {
    /// Whether what the mount says of itself is to be believed about an image of the user `owner`: it is one of ours
    /// by its type, and root, the caller or that user has mounted it. Anybody else can mount a server of his own that
    /// carries any type and any name (fusermount3), and need not answer.
    pub fn is_pando_of(&self, owner: Option<u32>) -> bool {
        let user = Some(self.user.unwrap_or(0));
        let believed = [Some(0), Some(rustix::process::geteuid().as_raw()), owner];
        self.fstype == FSTYPE && believed.contains(&user)
    }
}

/// All mounts of this process's namespace, in the order in which they were made.
pub fn all() -> io::Result<Vec<Entry>> {
    Ok(parse(&fs::read("/proc/self/mountinfo")?))
}

/// The topmost mount on exactly `dir` (an absolute path without symlinks).
pub fn at(dir: &Path) -> io::Result<Option<Entry>> {
    Ok(all()?.into_iter().rfind(|e| e.dir == dir))
}

/// Whether the daemon of the mount on `dir` is gone, so that every call on it fails. Asks the daemon.
pub fn is_dead(dir: &Path) -> bool {
    use rustix::io::Errno;
    // Attributes the kernel may still know; figures of the file system it always asks for.
    matches!(rustix::fs::statfs(dir), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// The mount that `path` (absolute, without symlinks) lies in.
pub fn containing(path: &Path) -> io::Result<Option<Entry>> {
    Ok(around(path)?.into_iter().next())
}

/// The mount that `path` (absolute, without symlinks) lies in, and behind it others of the same file system.
pub fn around(path: &Path) -> io::Result<Vec<Entry>> {
    let mut all = all()?;
    let depth = |(_, e): &(usize, &Entry)| e.dir.components().count();
    // If several are equally deep, the topmost one counts, which was made last.
    let own = all.iter().enumerate().filter(|(_, e)| path.starts_with(&e.dir)).max_by_key(depth);
    let Some((own, _)) = own else { return Ok(Vec::new()) };
    let own = all.remove(own);
    all.retain(|e| e.device == own.device && e.dir != own.dir);
    all.insert(0, own);
    Ok(all)
}

/// Pando mounts of the image at `image` (absolute, without symlinks), bind mounts included. Only mounts by root, the
/// caller or the owner of the image count.
pub fn of_image(image: &Path) -> io::Result<Vec<Entry>> {
    let mut mounts = all()?;
    mounts.retain(|e| e.fstype == FSTYPE && e.source == image);
    if !mounts.is_empty() {
        let owner = image.metadata().ok().map(|found| found.uid());
        mounts.retain(|e| e.is_pando_of(owner));
    }
    Ok(mounts)
}

/// Whether the file system with this device number (`major:minor`) was mounted or remounted read-only. A read-only
/// bind mount of it does not count.
pub fn is_read_only(device: &str) -> io::Result<bool> {
    Ok(all()?.into_iter().any(|e| e.device == device && e.read_only))
}

/// The mounts of one file system, and those in it.
#[derive(Debug, Default)]
pub struct MountsOf {
    /// The paths, from the root of the file system, on which something is mounted.
    pub points: Vec<PathBuf>,
    /// The mounts that show it, or a part of it.
    pub shown: Vec<Shown>,
    /// The mount namespaces that were looked at.
    pub namespaces: Vec<PathBuf>,
}

/// A mount that shows the file system, or a part of it.
#[derive(Debug)]
pub struct Shown {
    /// Its mount namespace.
    pub namespace: PathBuf,
    /// What the kernel says of it.
    pub mount: Entry,
    /// The inode number of what it shows, if that is in a snapshot by its path, and can be told.
    pub ino: Option<u64>,
}

/// What is mounted of, and in, the file system with this device number (`major:minor`), for this process or the
/// process `pid`.
pub fn mounts_of(device: &str, pid: u32) -> io::Result<MountsOf> {
    let mut mounts = MountsOf::default();
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let (own, its) = (namespace("self").unwrap_or_default(), namespace(&pid.to_string()));
    // The process may be hidden from the caller, or have no number in this namespace.
    if let Some(its) = its.filter(|its| *its != own)
        && let Ok(text) = fs::read(format!("/proc/{pid}/mountinfo"))
    {
        mounts.add(its, parse(&text), device, &pid.to_string());
    }
    mounts.add(own, all()?, device, "self");
    mounts.points.sort_unstable();
    mounts.points.dedup();
    Ok(mounts)
}

impl MountsOf {
    /// Adds those of a namespace, in which the process `process` is.
    fn add(&mut self, namespace: PathBuf, all: Vec<Entry>, device: &str, process: &str) {
        self.points.extend(mounted_in(&all, device));
        let types: HashMap<u64, String> = match all.iter().any(|e| e.device == device && in_snapshot(e)) {
            true => all.iter().map(|e| (e.id, e.fstype.clone())).collect(),
            false => HashMap::new(),
        };
        for mount in all.into_iter().filter(|e| e.device == device) {
            let around = types.get(&mount.parent).map_or("", String::as_str);
            let shown = in_snapshot(&mount).then(|| inode_shown(&mount, around, process));
            let ino = shown.and_then(Result::ok).flatten();
            self.shown.push(Shown { namespace: namespace.clone(), mount, ino });
        }
        self.namespaces.push(namespace);
    }
}

/// Whether a path from the root of the file system may lead into a snapshot: nearly all mounts show something else, and
/// no name of such a path is looked up.
pub(crate) fn may_be_in_snapshot(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == ".snapshots")
}

fn in_snapshot(mount: &Entry) -> bool {
    may_be_in_snapshot(&mount.root)
}

/// The inode number of what a mount shows to a process: `None` if it is hidden by another mount. The way from the root
/// of the process is followed without a request to any file system: an error if the kernel does not have it in memory.
///
/// `around` is the type of the file system with the directory that it is mounted on. If that asks nobody for a name,
/// the mount is not opened, because an unmount by somebody else fails (EBUSY) as long as a descriptor of it is open.
fn inode_shown(mount: &Entry, around: &str, process: &str) -> rustix::io::Result<Option<u64>> {
    let root = open(format!("/proc/{process}/root"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let way = mount.dir.strip_prefix("/").ok().filter(|way| !way.as_os_str().is_empty());
    let asked = StatxFlags::INO | StatxFlags::MNT_ID;
    let open_cached = |way: &Path, more: ResolveFlags| {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::CACHED | more;
        openat2(&root, way, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
    };
    let stat_open = |file: &OwnedFd| statx(file, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, asked);
    let by_name = match way.and_then(|way| way.file_name().zip(way.parent())) {
        Some((name, above)) if KEEPS_NAMES.contains(&around) => {
            let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
            let above = open_cached(above, ResolveFlags::NO_SYMLINKS)?;
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
            // A mount on the root of another one is not below that directory's mount.
            let is_around = stat_open(&above)?.stx_mnt_id == mount.parent;
            is_around.then(|| statx(&above, name, flags, asked)).transpose()?
        }
        _ => None,
    };
    let found = match by_name {
        Some(found) => found,
        None => stat_open(&open_cached(way.unwrap_or(Path::new(".")), ResolveFlags::empty())?)?,
    };
    Ok((found.stx_mnt_id == mount.id).then_some(found.stx_ino))
}

fn mounted_in(all: &[Entry], device: &str) -> Vec<PathBuf> {
    let mounts: HashMap<u64, &Entry> = all.iter().filter(|e| e.device == device).map(|e| (e.id, e)).collect();
    let inside = |e: &Entry| {
        let around = mounts.get(&e.parent)?;
        Some(around.root.join(e.dir.strip_prefix(&around.dir).ok()?))
    };
    all.iter().filter_map(inside).collect()
}

/// A process that sees a mount in a namespace other than ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elsewhere {
    /// Its number.
    pub pid: u32,
    /// The name of its program, cut to 15 bytes by the kernel.
    pub name: String,
    /// Where the mount is for it.
    pub dir: PathBuf,
}

/// Some process in another mount namespace (a container, `unshare -m`) for which a mount that `is_meant` exists. Such a
/// namespace began as a copy of ours, and keeps what is unmounted here afterwards. Only processes that the caller may
/// look at are seen: to root, all. Cost: reads `/proc` of each process.
pub fn elsewhere(is_meant: impl Fn(&Entry) -> bool) -> io::Result<Option<Elsewhere>> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace("self").into_iter().collect();
    for process in fs::read_dir("/proc")? {
        let file_name = process?.file_name();
        let Some((pid, text)) = file_name.to_str().and_then(|text| Some((text.parse().ok()?, text))) else {
            continue;
        };
        // Processes that are hidden from the caller, or have just ended, are skipped.
        let Some(true) = namespace(text).map(|namespace| seen.insert(namespace)) else { continue };
        let mounts = fs::read(format!("/proc/{text}/mountinfo")).unwrap_or_default();
        if let Some(mount) = parse(&mounts).into_iter().find(&is_meant) {
            let name = fs::read_to_string(format!("/proc/{text}/comm")).unwrap_or_default();
            return Ok(Some(Elsewhere { pid, name: name.trim_end().into(), dir: mount.dir }));
        }
    }
    Ok(None)
}

fn parse(text: &[u8]) -> Vec<Entry> {
    text.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse_line(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|&b| b == b' ');
    let mut number = || str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let device = String::from_utf8(fields.next()?.to_vec()).ok()?;
    let root = unescape(fields.next()?);
    let dir = unescape(fields.next()?);
    let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
    let fstype = unescape(fields.next()?).into_os_string().into_string().ok()?;
    let source = unescape(fields.next()?);
    let options = fields.next().and_then(|o| str::from_utf8(o).ok()).unwrap_or_default();
    let user = options.split(',').find_map(|o| o.strip_prefix("user_id=")).and_then(|n| n.parse().ok());
    let read_only = options.split(',').any(|option| option == "ro");
    Some(Entry { id, parent, device, root, dir, fstype, source, user, read_only })
}

fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&b, tail)) = rest.split_first() {
        let octal = |d: &u8| (b'0'..=b'7').contains(d).then(|| u32::from(d - b'0'));
        let code = match tail {
            [x, y, z, ..] if b == b'\\' => match (octal(x), octal(y), octal(z)) {
                (Some(x), Some(y), Some(z)) => u8::try_from(x * 64 + y * 8 + z).ok(),
                _ => None,
            },
            _ => None,
        };
        match (code, tail.get(3..)) {
            (Some(code), Some(after)) => {
                out.push(code);
                rest = after;
            }
            _ => {
                out.push(b);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_apart() {
        let text = b"25 30 0:23 / /sys rw,nosuid shared:7 master:2 - sysfs sysfs rw\n\
            90 30 0:50 / /mnt/a\\040b rw - fuse.pando /img/x\\134y rw,user_id=7,group_id=0\n\
            91 30 0:50 / /bind ro - fuse.pando /img/x rw,user_id=7,group_id=0\n\
            92 30 0:51 / /ro ro - fuse.pando /img/y ro,user_id=7,group_id=0\n\
            broken\n";
        let all = parse(text);
        assert_eq!(all.len(), 4);
        assert_eq!(all[1].dir, Path::new("/mnt/a b"));
        assert_eq!(all[1].source, Path::new("/img/x\\y"));
        assert_eq!((all[1].fstype.as_str(), all[1].device.as_str()), (FSTYPE, "0:50"));
        assert_eq!((all[0].user, all[1].user), (None, Some(7)));
        assert_eq!((all[2].read_only, all[3].read_only), (false, true));
        // Whom to believe.
        let mount = |user| Entry { user, ..all[1].clone() };
        let caller = rustix::process::geteuid().as_raw();
        for (user, owner, believed) in
            [(0, None, true), (caller, None, true), (7, Some(7), true), (7, Some(8), caller == 7)]
        {
            assert_eq!(mount(Some(user)).is_pando_of(owner), believed, "{user} {owner:?}");
        }
        assert!(!all[0].is_pando_of(None), "another type");
    }

    #[test]
    fn what_is_mounted_on_a_file_system_is_found_through_each_of_its_mounts() {
        let all = parse(
            b"30 1 8:1 / / rw - ext4 /dev/a rw\n\
            90 30 0:50 / /mnt/a rw - fuse.pando /img/x rw,user_id=7,group_id=0\n\
            91 30 0:50 /sub /bind rw - fuse.pando /img/x rw,user_id=7,group_id=0\n\
            92 90 0:60 / /mnt/a/d/e rw - tmpfs tmpfs rw\n\
            93 91 0:50 /other /bind/f rw - fuse.pando /img/x rw,user_id=7,group_id=0\n\
            94 92 0:61 / /mnt/a/d/e/deeper rw - tmpfs tmpfs rw\n\
            95 90 0:62 / /mnt/a rw - tmpfs tmpfs rw\n",
        );
        let paths: Vec<PathBuf> = ["/d/e", "/sub/f", "/"].map(PathBuf::from).into();
        assert_eq!(mounted_in(&all, "0:50"), paths);
        assert_eq!(mounted_in(&all, "8:1"), [PathBuf::from("/mnt/a"), "/bind".into()]);
        assert!(mounted_in(&all, "0:99").is_empty());
    }

    /// A look at the mounts opened each snapshot that was mounted, and who unmounted one at that moment heard that it
    /// was busy.
    #[test]
    fn a_mount_is_not_busy_because_somebody_looks_at_it() {
        use rustix::mount::{UnmountFlags, mount_bind, unmount};
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
        const ROUNDS: u64 = 200;
        let dir = std::env::temp_dir().join(format!("pando-looks-{}", std::process::id()));
        let (shown, at) = (dir.join("shown"), dir.join("at"));
        fs::create_dir_all(&shown).unwrap();
        fs::create_dir_all(&at).unwrap();
        let at = at.canonicalize().unwrap();
        let mounted = mount_bind(&shown, &at).is_ok();
        let around = containing(&dir.canonicalize().unwrap()).unwrap().unwrap().fstype;
        if !mounted || !KEEPS_NAMES.contains(&&*around) {
            println!("mounted: {mounted}, on {around}: skipped");
            _ = (unmount(&at, UnmountFlags::DETACH), fs::remove_dir_all(&dir));
            return;
        }
        let wanted = fs::metadata(&shown).unwrap().ino();
        let refusals = |around: &str| {
            let (looks, stop, mut refused) = (AtomicU64::new(0), AtomicBool::new(false), 0);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        let Some(entry) = super::at(&at).unwrap() else { continue };
                        for _ in 0..1000 {
                            // It may be unmounted by now.
                            let Ok(Some(ino)) = inode_shown(&entry, around, "self") else { break };
                            assert_eq!(ino, wanted);
                            looks.fetch_add(1, Relaxed);
                        }
                    }
                });
                for _ in 0..ROUNDS {
                    // Somebody looks at each of them.
                    let (before, begin) = (looks.load(Relaxed), std::time::Instant::now());
                    while looks.load(Relaxed) == before {
                        if begin.elapsed().as_secs() >= 60 {
                            stop.store(true, Relaxed);
                            panic!("nobody looked");
                        }
                        std::thread::yield_now();
                    }
                    if unmount(&at, UnmountFlags::empty()).is_err() {
                        refused += 1;
                        unmount(&at, UnmountFlags::DETACH).unwrap();
                    }
                    mount_bind(&shown, &at).unwrap();
                }
                stop.store(true, Relaxed);
            });
            refused
        };
        let (opened, named) = (refusals(""), refusals(&around));
        // Also of a mount that lies on another one.
        mount_bind(&dir, &at).unwrap();
        mount_bind(&shown, &at).unwrap();
        let top = super::at(&at).unwrap().unwrap();
        assert_eq!(inode_shown(&top, &around, "self"), Ok(Some(wanted)), "on the root of another mount");
        for _ in 0..3 {
            unmount(&at, UnmountFlags::DETACH).unwrap();
        }
        fs::remove_dir_all(&dir).unwrap();
        println!(
            "refused unmounts of {ROUNDS}: {opened} where looks open the mount, {named} where they do not"
        );
        // The kernel itself holds a mount while it tells of it.
        assert!(named < ROUNDS / 20, "the mount was busy {named} times");
    }

    #[test]
    fn broken_escapes_stay_as_they_are() {
        assert_eq!(unescape(b"a\\04"), Path::new("a\\04"));
        assert_eq!(unescape(b"\\999\\777"), Path::new("\\999\\777"));
        assert_eq!(unescape(b"\\"), Path::new("\\"));
    }
}
