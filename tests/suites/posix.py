#!/usr/bin/env python3
"""POSIX by difference: the same operations on a reference file system, on Pando and on a clone.

    posix.py REFERENCE-DIR PANDO-DIR PROGRAM [CASE...]

Each case prepares a directory, says `ready`, and goes on; every call is noted with its result or its error. Three runs
of a case are compared: on the reference (ext4 or tmpfs, the kernel's own), on Pando, and on Pando where `ready` clones
what was prepared and goes on in the clone, after which the original must be as it was. What differs is printed, one
difference a line, sorted; nothing else is, so that the output can be kept as what is expected. Needs root.
"""

import ctypes, errno, fcntl, itertools, json, mmap, os, shutil, socket, stat, struct, subprocess, sys, time

libc = ctypes.CDLL(None, use_errno=True)
CASES = []
ROOT, ALICE, BOB, CAROL = (0, 0, []), (1001, 1001, []), (1002, 1002, [1001]), (1003, 1003, [])
USERS = {"root": ROOT, "alice": ALICE, "bob": BOB, "carol": CAROL}
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
KINDS = ["file", "dir", "full", "link", "dangling", "loop", "fifo", "socket", "char", "block", "none"]


def case(function):
    CASES.append((function.__name__.replace("_", "-"), function))
    return function


def call(name, *args):
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)


def renameat2(old, new, flags):
    call("renameat2", -100, os.fsencode(old), -100, os.fsencode(new), flags)


def fallocate(fd, mode, at, length):
    call("fallocate", fd, mode, ctypes.c_long(at), ctypes.c_long(length))


def statx(path):
    """Mask and attributes as the kernel gives them."""
    buf = ctypes.create_string_buffer(256)
    call("statx", -100, os.fsencode(path), 0x100, 0xfff, buf)
    mask, _, attributes = struct.unpack_from("IIQ", buf)
    return {"btime": bool(mask & 0x800), "attributes": attributes & 0x34}


def seen(path):
    """What stat says that must be the same everywhere."""
    s = os.lstat(path)
    kind = stat.S_IFMT(s.st_mode)
    size = s.st_size if kind in (stat.S_IFREG, stat.S_IFLNK) else "-"
    links = s.st_nlink if kind != stat.S_IFDIR else "-"
    rdev = s.st_rdev if kind in (stat.S_IFCHR, stat.S_IFBLK) else 0
    return f"{s.st_mode:o} n{links} {s.st_uid}:{s.st_gid} {size} {rdev:x}"


def tree(path="."):
    """Everything below a path, with contents and attributes, in words."""
    out = []
    for root, dirs, files in os.walk(path):
        for name in sorted(dirs + files):
            at = os.path.join(root, name)
            line = f"{at} {seen(at)}"
            mode = os.lstat(at).st_mode
            if stat.S_ISREG(mode):
                with open(at, "rb") as f:
                    line += f" {hash(f.read()):x}"
            if stat.S_ISLNK(mode):
                line += " -> " + os.readlink(at)
            else:
                line += f" {sorted((n, os.getxattr(at, n)) for n in os.listxattr(at))}"
            out.append(line)
    return sorted(out)


class Run:
    """One run of a case in a directory of its own; it is the current directory."""

    def __init__(self, root, program=None):
        self.base, self.copy, self.program = root + ".base", root + ".copy", program
        self.log, self.kept = [], None
        os.makedirs(self.base)
        os.chmod(self.base, 0o777)
        os.chdir(self.base)

    def note(self, label, value):
        self.log.append(f"{label}: {value}")

    def do(self, label, function, *args, user="root", **kwargs):
        """Calls `function`, as a user, and notes what it gives."""
        def attempt():
            try:
                value = function(*args, **kwargs)
                return "ok" if value is None else str(value)
            except OSError as e:
                return errno.errorcode.get(e.errno, str(e.errno))
            except Exception as e:  # a wrong test is a difference, too
                return repr(e)
        value = attempt() if user == "root" else as_user(USERS[user], attempt)
        self.note(label if user == "root" else f"{label} by {user}", value)
        return value

    def see(self, *paths):
        for path in paths:
            self.do(f"see {path}", seen, path)

    def ready(self):
        """What was prepared is there; from here on in a clone, if that is the run."""
        # Looked at everywhere: that changes access times.
        kept = tree()
        if self.program:
            self.kept = kept
            subprocess.run([self.program, "clone", self.base, self.copy], check=True)
            os.chdir(self.copy)

    def end(self):
        if self.kept is not None:
            os.chdir(self.base)
            for line in set(self.kept) ^ set(tree()):
                self.note("the original changed", line)

    def times(self, label, paths, function, *args, user="root", **kwargs):
        """Does it, and notes which times of which files it changed."""
        def stamps():
            out = {}
            for p in paths:
                try:
                    s = os.lstat(p)
                    out[p] = (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)
                except OSError:
                    out[p] = None
            return out
        before = stamps()
        time.sleep(0.012)
        self.do(label, function, *args, user=user, **kwargs)
        for p, now in stamps().items():
            was = before[p]
            changed = "gone" if now is None else "new" if was is None else "".join(
                c for c, a, b in zip("amc", was, now) if a != b) or "-"
            self.note(f"{label} times of {p}", changed)


def as_user(user, function):
    """Runs `function` as a user in a process of its own, and gives back what it gives."""
    uid, gid, groups = user
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            os.write(w, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        data = f.read()
    os.waitpid(pid, 0)
    return json.loads(data) if data else "died"


def make(kind, path, mode=0o644):
    if kind == "file":
        with open(path, "w") as f:
            f.write("content")
        os.chmod(path, mode)
    elif kind in ("dir", "full"):
        os.mkdir(path)
        os.chmod(path, mode | 0o111)
        if kind == "full":
            make("file", path + "/inside")
    elif kind == "link":
        make("file", path + ".target", mode)
        os.symlink(path + ".target", path)
    elif kind == "dangling":
        os.symlink("nowhere", path)
    elif kind == "loop":
        os.symlink(path, path)
    elif kind == "fifo":
        os.mkfifo(path, mode)
    elif kind == "socket":
        s = socket.socket(socket.AF_UNIX)
        s.bind(path)
        s.close()
        os.chmod(path, mode)
    elif kind == "char":
        os.mknod(path, stat.S_IFCHR | mode, os.makedev(1, 3))
    elif kind == "block":
        os.mknod(path, stat.S_IFBLK | mode, os.makedev(7, 200))


def write(path, data, at=0, flags=os.O_WRONLY):
    fd = os.open(path, flags)
    try:
        return os.pwrite(fd, data, at)
    finally:
        os.close(fd)


def opened(path, flags, mode=0o666):
    fd = os.open(path, flags, mode)
    os.close(fd)


def dropped(path):
    """Out of the kernel's memory."""
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def content(path):
    with open(path, "rb") as f:
        data = f.read()
    return f"{len(data)} bytes, {sum(i * b for i, b in enumerate(data)) & 0xffffffff:x}"


# Names


@case
def every_call_on_every_kind(t):
    calls = {
        "open-r": lambda p: opened(p, os.O_RDONLY | os.O_NONBLOCK),
        "open-rw": lambda p: opened(p, os.O_RDWR | os.O_NONBLOCK),
        "open-creat": lambda p: opened(p, os.O_CREAT | os.O_RDWR | os.O_NONBLOCK),
        "open-excl": lambda p: opened(p, os.O_CREAT | os.O_EXCL | os.O_RDWR),
        "open-trunc": lambda p: opened(p, os.O_TRUNC | os.O_RDWR | os.O_NONBLOCK),
        "open-nofollow": lambda p: opened(p, os.O_NOFOLLOW | os.O_RDONLY | os.O_NONBLOCK),
        "open-directory": lambda p: opened(p, os.O_DIRECTORY | os.O_RDONLY),
        "open-path": lambda p: opened(p, os.O_PATH | os.O_NOFOLLOW),
        "mkdir": lambda p: os.mkdir(p), "mkfifo": lambda p: os.mkfifo(p),
        "symlink": lambda p: os.symlink("x", p), "readlink": lambda p: os.readlink(p),
        "unlink": os.unlink, "rmdir": os.rmdir, "chdir": lambda p: os.path.isdir(p) and os.listdir(p),
        "chmod": lambda p: os.chmod(p, 0o751), "chown": lambda p: os.chown(p, 5, 6), "lchown": lambda p: os.lchown(p, 5, 6),
        "truncate": lambda p: os.truncate(p, 3), "utime": lambda p: os.utime(p, (1, 2)),
        "lutime": lambda p: os.utime(p, (1, 2), follow_symlinks=False), "listdir": os.listdir,
        "link": lambda p: os.link(p, "other", follow_symlinks=False),
        "link-onto": lambda p: os.link("plain", p), "rename": lambda p: os.rename(p, "other"),
        "rename-onto": lambda p: os.rename("plain", p), "rename-dir-onto": lambda p: os.rename("plaindir", p),
        "exchange": lambda p: renameat2(p, "plain", EXCHANGE), "noreplace": lambda p: renameat2("plain", p, NOREPLACE),
        "whiteout": lambda p: renameat2(p, "other", WHITEOUT), "mkdir-below": lambda p: os.mkdir(p + "/x"),
        "stat-slash": lambda p: os.stat(p + "/") and None, "unlink-slash": lambda p: os.unlink(p + "/"),
        "rmdir-slash": lambda p: os.rmdir(p + "/"), "rmdir-dot": lambda p: os.rmdir(p + "/."), "mkdir-slash": lambda p: os.mkdir(p + "/"),
        "rename-slash": lambda p: os.rename(p + "/", "other"), "rename-to-slash": lambda p: os.rename("plaindir", p + "/"),
        "setxattr": lambda p: os.setxattr(p, "user.a", b"1"), "lsetxattr": lambda p: os.setxattr(p, "user.a", b"1", follow_symlinks=False),
        "trusted": lambda p: os.setxattr(p, "trusted.a", b"1", follow_symlinks=False),
        "listxattr": lambda p: os.listxattr(p, follow_symlinks=False), "statvfs": lambda p: os.statvfs(p) and None,
    }
    todo = []
    for kind in KINDS:
        for name in calls:
            for slash in ("",):
                d = f"{kind}.{name}"
                os.mkdir(d)
                make(kind, d + "/p")
                make("file", d + "/plain")
                os.mkdir(d + "/plaindir")
                todo.append((d, name))
    t.ready()
    for d, name in todo:
        os.chdir(d)
        t.do(f"{d}", calls[name], "p")
        for p in ("p", "other", "plain", "plaindir", "nowhere"):
            t.do(f"{d} see {p}", seen, p)
        os.chdir("..")


@case
def renames_of_every_pair(t):
    pairs = list(itertools.product(KINDS, KINDS, (0, NOREPLACE, EXCHANGE, WHITEOUT)))
    for a, b, flags in pairs:
        d = f"{a}.{b}.{flags}"
        os.mkdir(d)
        make(a, d + "/a")
        make(b, d + "/b")
    t.ready()
    for a, b, flags in pairs:
        d = f"{a}.{b}.{flags}"
        os.chdir(d)
        t.do(d, renameat2, "a", "b", flags)
        for p in ("a", "b"):
            t.do(f"{d} see {p}", seen, p)
        t.do(f"{d} list", lambda: sorted(os.listdir(".")))
        os.chdir("..")


@case
def renames_around(t):
    os.makedirs("a/b/c")
    os.makedirs("x/y")
    make("file", "a/f")
    make("file", "x/g")
    t.ready()
    for old, new, flags in [("a", "a/b/d", 0), ("a", "a/b", 0), ("a/b", "a", 0), ("a", "a", 0), ("a/b", "a/b", NOREPLACE), ("a", "a/b", EXCHANGE),
                            ("a/b", "a", EXCHANGE), ("a/.", "z", 0), ("a/..", "z", 0), ("x", "a/.", 0), ("x", "a/..", 0), ("a/f", "x/g", EXCHANGE),
                            ("a/f", "x/g", NOREPLACE), ("a/f", "x/g", NOREPLACE | EXCHANGE), ("a/f", "x/g", 64), ("a/b", "x/y", 0), ("x", "a/b/x", 0),
                            ("a/f", "n" * 256, 0), ("a/f", "n" * 255, 0), ("n" * 255, "a/f", 0), ("a/f/x", "b", 0), ("none/x", "b", 0), ("", "b", 0), ("a/f", "", 0)]:
        t.do(f"rename {old[:9]} {new[:9]} {flags}", renameat2, old, new, flags)
    t.note("tree", tree())


@case
def names(t):
    t.ready()
    for length in (1, 254, 255, 256, 1000):
        t.do(f"create {length}", opened, "n" * length, os.O_CREAT | os.O_WRONLY)
        t.do(f"stat {length}", lambda: os.stat("n" * length) and None)
    for name in [b"\x01", b"\xff\xfe", b"a b\n", b"\xc3\xa9", b"*?", b"..x", b"...", b"-", b"\x7f", "\u00e9".encode(), b".pando-proof-", b".pando-proof-00"]:
        t.do(f"create {name}", opened, name, os.O_CREAT | os.O_WRONLY)
    t.do("list", lambda: sorted(os.listdir(b".")))
    t.do("too long a path", lambda: os.stat("a/" * 2100))
    depth = 0
    top = os.getcwd()
    for _ in range(40):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
        depth += 1
    make("file", "deep")
    t.do("deep", content, "deep")
    os.chdir(top)
    t.do("remove deep", lambda: subprocess.run(["rm", "-r", "d" * 200], check=True) and None)


@case
def links(t):
    make("file", "f")
    os.mkdir("d")
    os.link("f", "d/g")
    make("link", "s")
    make("fifo", "p")
    t.ready()
    t.see("f", "d/g")
    t.do("same", lambda: os.stat("f").st_ino == os.stat("d/g").st_ino)
    t.do("link", os.link, "f", "h")
    t.do("link fifo", os.link, "p", "p2")
    t.do("link symlink", os.link, "s", "s2", follow_symlinks=False)
    t.do("link follow", lambda: call("linkat", -100, b"s", -100, b"s3", 0x400))
    t.do("link dir", os.link, "d", "d2")
    t.do("link exists", os.link, "f", "p")
    t.do("write", write, "h", b"through", 0)
    t.see("f", "d/g", "h", "p", "p2", "s", "s2", "s3")
    t.do("content", lambda: open("d/g").read())
    t.do("chmod", os.chmod, "d/g", 0o600)
    t.do("xattr", os.setxattr, "f", "user.a", b"1")
    t.do("xattr there", lambda: os.getxattr("h", "user.a"))
    t.times("unlink", ["d/g", ".", "d"], os.unlink, "f")
    t.see("d/g", "h")
    t.do("rename onto itself", os.rename, "d/g", "h")
    t.see("d/g", "h")
    t.do("rename", os.rename, "d/g", "d/i")
    t.do("rename over", os.rename, "p", "h")
    t.see("d/i", "h")
    os.mkdir("e")
    t.do("rename dir", os.rename, "d", "e/d")
    t.see("e/d/i")
    t.do("truncate", os.truncate, "e/d/i", 2)
    t.do("exchange", renameat2, "e/d/i", "p2", EXCHANGE)
    t.see("p2", "e/d/i", "h")
    fd = os.open("p2", os.O_RDWR)
    os.unlink("p2")
    t.do("nlink of the unlinked", lambda: os.fstat(fd).st_nlink)
    t.do("link of the unlinked", lambda: call("linkat", -100, f"/proc/self/fd/{fd}".encode(), -100, b"back", 0x400))
    os.close(fd)


@case
def links_to_many(t):
    make("file", "f")
    for i in range(200):
        os.link("f", f"l{i}")
    t.ready()
    t.see("f", "l199")
    for i in range(0, 200, 2):
        os.unlink(f"l{i}")
    t.see("f", "l1")
    t.do("rm", lambda: subprocess.run("rm l*", shell=True, check=True) and None)
    t.see("f")


@case
def tmpfiles(t):
    t.ready()
    O_TMPFILE = 0o20200000
    def tmp(flags=os.O_RDWR, mode=0o640):
        return os.open(".", O_TMPFILE | flags, mode)
    t.do("O_TMPFILE", lambda: os.close(tmp()))
    t.do("read-only", lambda: os.close(tmp(os.O_RDONLY)))
    def linked(name, flags=0, link=True):
        fd = tmp(os.O_RDWR | flags)
        os.write(fd, b"tmp")
        before = os.fstat(fd).st_nlink
        if link:
            call("linkat", -100, f"/proc/self/fd/{fd}".encode(), -100, name.encode(), 0x400)
        after = os.fstat(fd).st_nlink
        os.close(fd)
        return f"{before} {after}"
    t.do("linked", linked, "a")
    t.do("exclusive", linked, "b", os.O_EXCL)
    t.do("onto", linked, "a")
    t.see("a", "b")
    t.do("list", lambda: sorted(os.listdir(".")))


# Attributes


@case
def chmods(t):
    users = ["root", "alice", "bob", "carol"]
    modes = [0, 0o644, 0o755, 0o1777, 0o2755, 0o4755, 0o6777, 0o7777]
    for kind in ("file", "dir"):
        for user, mode in itertools.product(users, modes):
            p = f"{kind}.{user}.{mode:o}"
            make(kind, p)
            os.chown(p, 1001, 1001)
    make("file", "foreign")
    os.chown("foreign", 1002, 1003)
    os.mkdir("gdir")
    os.chown("gdir", 1002, 1003)
    t.ready()
    for kind in ("file", "dir"):
        for user, mode in itertools.product(users, modes):
            p = f"{kind}.{user}.{mode:o}"
            t.do(f"chmod {p}", os.chmod, p, mode, user=user)
            t.see(p)
    t.do("sgid of another group", os.chmod, "foreign", 0o2775, user="bob")
    t.do("sgid dir of another group", os.chmod, "gdir", 0o2775, user="bob")
    t.see("foreign", "gdir")
    t.times("chmod", ["foreign", "."], os.chmod, "foreign", 0o600)
    t.times("chmod to the same", ["foreign"], os.chmod, "foreign", 0o600)


@case
def chowns(t):
    users = ["root", "alice", "bob", "carol"]
    owners = [(-1, -1), (1001, -1), (-1, 1001), (1002, 1002), (0, 0), (1001, 1001), (-1, 1002), (2**31 + 5, 2**32 - 2)]
    for kind, mode in [("file", 0o6755), ("file", 0o2745), ("dir", 0o6755)]:
        for user, (n, _) in itertools.product(users, enumerate(owners)):
            p = f"{kind}.{mode:o}.{user}.{n}"
            make(kind, p)
            os.chown(p, 1002 if user == "bob" else 1001, 1001)
            os.chmod(p, mode)
    t.ready()
    for kind, mode in [("file", 0o6755), ("file", 0o2745), ("dir", 0o6755)]:
        for user, (n, (uid, gid)) in itertools.product(users, enumerate(owners)):
            p = f"{kind}.{mode:o}.{user}.{n}"
            t.do(f"chown {p}", os.chown, p, uid, gid, user=user)
            t.see(p)
    p = "file.6755.root.0"
    t.times("chown", [p, "."], os.chown, p, 7, 7)
    t.times("chown to nobody", [p], os.chown, p, -1, -1)


@case
def set_id_bits_go(t):
    ways = {
        "write": lambda p: write(p, b"x"), "pwrite-empty": lambda p: write(p, b""),
        "truncate": lambda p: os.truncate(p, 3), "truncate-same": lambda p: os.truncate(p, 7),
        "open-trunc": lambda p: opened(p, os.O_WRONLY | os.O_TRUNC), "fallocate": lambda p: fall(p),
        "mmap": lambda p: mapped(p), "append": lambda p: write(p, b"x", 0, os.O_WRONLY | os.O_APPEND),
        "link": lambda p: os.link(p, p + ".l"), "rename": lambda p: os.rename(p, p + ".r"), "utime": lambda p: os.utime(p, (1, 2)),
        "xattr": lambda p: os.setxattr(p, "user.a", b"1"), "read": lambda p: content(p),
        "copy": lambda p: copied(p),
    }
    def fall(p):
        fd = os.open(p, os.O_RDWR)
        try: os.posix_fallocate(fd, 0, 100)
        finally: os.close(fd)
    def mapped(p):
        fd = os.open(p, os.O_RDWR)
        with mmap.mmap(fd, 7) as m:
            m[0:1] = b"y"
            m.flush()
        os.close(fd)
    def copied(p):
        a, b = os.open("source", os.O_RDONLY), os.open(p, os.O_RDWR)
        os.copy_file_range(a, b, 7)
        os.close(a), os.close(b)
    make("file", "source", 0o666)
    for way, user, mode in itertools.product(ways, ("root", "carol"), (0o6777, 0o2767, 0o4666)):
        p = f"{way}.{user}.{mode:o}"
        make("file", p)
        os.chown(p, 1001, 1001)
        os.chmod(p, mode)
    t.ready()
    for way, user, mode in itertools.product(ways, ("root", "carol"), (0o6777, 0o2767, 0o4666)):
        p = f"{way}.{user}.{mode:o}"
        t.do(way, ways[way], p, user=user)
        t.see(p, p + ".l", p + ".r")


@case
def permissions(t):
    """Every call by every class of user on every mode of directory and file."""
    os.mkdir("w")
    grid = [(d, f) for d in (0o700, 0o070, 0o007, 0o500, 0o300, 0o100, 0o777, 0o1777, 0o755) for f in (0o600, 0o060, 0o006, 0o400, 0o200)]
    calls = {
        "read": lambda d: opened(d + "/f", os.O_RDONLY), "write": lambda d: opened(d + "/f", os.O_WRONLY),
        "both": lambda d: opened(d + "/f", os.O_RDWR), "trunc": lambda d: os.truncate(d + "/f", 1), "list": lambda d: len(os.listdir(d)),
        "stat": lambda d: os.stat(d + "/f") and None, "access": lambda d: [os.access(d + "/f", m) for m in (4, 2, 1)],
        "create": lambda d: opened(d + "/n", os.O_CREAT | os.O_WRONLY), "mkdir": lambda d: os.mkdir(d + "/k"),
        "symlink": lambda d: os.symlink("x", d + "/y"), "link": lambda d: os.link(d + "/f", d + "/fl"),
        "utime-now": lambda d: os.utime(d + "/f"), "utime": lambda d: os.utime(d + "/f", (1, 2)), "chmod": lambda d: os.chmod(d + "/f", 0o644),
        "getxattr": lambda d: os.getxattr(d + "/f", "user.a"), "setxattr": lambda d: os.setxattr(d + "/f", "user.b", b"1"),
        "rename": lambda d: os.rename(d + "/f", d + "/g"), "rename-out": lambda d: os.rename(d + "/g", "w/out"), "unlink": lambda d: os.unlink(d + "/o"),
        "rmdir": lambda d: os.rmdir(d + "/e"),
    }
    os.chmod("w", 0o777)
    for d, f in grid:
        for user in ("alice", "bob", "carol"):
            p = f"w/{d:o}.{f:o}.{user}"
            os.mkdir(p)
            make("file", p + "/f", f)
            make("file", p + "/o", f)
            os.mkdir(p + "/e")
            os.setxattr(p + "/f", "user.a", b"1")
            os.chown(p + "/f", 1001, 1001)
            os.chown(p, 1001, 1001)
            os.chmod(p, d)
    t.ready()
    for d, f in grid:
        for user in ("alice", "bob", "carol"):
            p = f"w/{d:o}.{f:o}.{user}"
            def all_of_them():
                out = {}
                for name, function in calls.items():
                    try:
                        out[name] = str(function(p))
                    except OSError as e:
                        out[name] = errno.errorcode[e.errno]
                return out
            for name, result in as_user(USERS[user], all_of_them).items():
                t.note(f"{p} {name}", result)
            if os.path.exists("w/out"):
                os.unlink("w/out")


@case
def sticky_directories(t):
    for owner, who, what in itertools.product((0, 1001, 1003), (1001, 1002), ("file", "dir")):
        d = f"{owner}.{who}.{what}"
        os.mkdir(d)
        make(what, d + "/x")
        make(what, d + "/y")
        make("file", d + "/z")
        for n in "xyz":
            os.chown(f"{d}/{n}", who, who)
        os.chown(d, owner, owner)
        os.chmod(d, 0o1777)
    t.ready()
    for owner, who, what in itertools.product((0, 1001, 1003), (1001, 1002), ("file", "dir")):
        d = f"{owner}.{who}.{what}"
        for user in ("carol", "bob", "alice"):
            t.do(f"{d} unlink", os.unlink if what == "file" else os.rmdir, d + "/x", user=user)
            t.do(f"{d} rename", os.rename, d + "/y", d + f"/{user}", user=user)
            t.do(f"{d} onto", os.rename, d + "/z", d + "/y", user=user)
        t.do(f"{d} list", lambda: sorted(os.listdir(d)))


@case
def group_inheritance(t):
    for mode in (0o777, 0o2777):
        d = f"{mode:o}"
        os.mkdir(d)
        os.chown(d, 1001, 1003)
        os.chmod(d, mode)
    t.ready()
    for mode, user in itertools.product(("777", "2777"), ("root", "alice", "bob", "carol")):
        p = f"{mode}/{user}"
        for umask in (0, 0o22, 0o77):
            def one():
                os.umask(umask)
                opened(f"{p}.f{umask}", os.O_CREAT | os.O_WRONLY, 0o2777)
                os.mkdir(f"{p}.d{umask}", 0o777)
                os.mkfifo(f"{p}.p{umask}", 0o666)
                os.symlink("x", f"{p}.s{umask}")
            t.do(f"{p} {umask}", one, user=user)
            os.umask(0o22)
            t.see(*(f"{p}.{k}{umask}" for k in "fdps"))


@case
def times(t):
    os.mkdir("d")
    make("file", "d/f")
    make("file", "d/g")
    os.mkdir("d/e")
    os.symlink("f", "d/s")
    for p in ("d/f", "d/g", "d/e", "d"):
        os.utime(p, (1000, 1000))
    # What is looked at within the tick of its last change looks changed since, to relatime: the next look sets the
    # access time again. And what is in memory is read without a word to a server.
    time.sleep(0.012)
    dropped("d/f")
    t.ready()
    watch = ["d", "d/f", "d/g", "d/e", "d/s", "d/new"]
    for label, function, *args in [
        ("read", content, "d/f"), ("read again", content, "d/f"), ("write", write, "d/f", b"x"), ("write nothing", write, "d/f", b""),
        ("list", lambda p: sorted(os.listdir(p)), "d"), ("readlink", os.readlink, "d/s"), ("truncate", os.truncate, "d/f", 3), ("truncate same", os.truncate, "d/f", 3),
        ("open trunc", opened, "d/g", os.O_WRONLY | os.O_TRUNC), ("open trunc empty", opened, "d/g", os.O_WRONLY | os.O_TRUNC),
        ("open creat", opened, "d/f", os.O_WRONLY | os.O_CREAT), ("create", opened, "d/new", os.O_WRONLY | os.O_CREAT),
        ("link", os.link, "d/f", "d/l"), ("unlink link", os.unlink, "d/l"), ("rename", os.rename, "d/new", "d/e/new"),
        ("rename back", os.rename, "d/e/new", "d/new"), ("replace", os.rename, "d/new", "d/g"), ("exchange", renameat2, "d/f", "d/g", EXCHANGE),
        ("mkdir", os.mkdir, "d/e/k"), ("rename dir", os.rename, "d/e/k", "d/k"), ("rmdir", os.rmdir, "d/k"),
        ("symlink", os.symlink, "x", "d/y"), ("unlink", os.unlink, "d/y"), ("xattr", os.setxattr, "d/f", "user.a", b"1"),
        ("xattr gone", os.removexattr, "d/f", "user.a"), ("chmod", os.chmod, "d/f", 0o600), ("utime", os.utime, "d/f", (5, 6)),
        ("utime now", os.utime, "d/f"), ("failed unlink", os.unlink, "d/none"), ("failed mkdir", os.mkdir, "d/e"), ("failed rename", os.rename, "d", "d/e/x"),
    ]:
        t.times(label, watch, function, *args)


@case
def utimes(t):
    make("file", "f")
    t.ready()
    def both():
        s = os.stat("f")
        return s.st_atime_ns, s.st_mtime_ns
    for ns in [(0, 0), (1, 999999999), (-1, -1000000001), (2**31 * 10**9, 2**32 * 10**9), (10**9 * 2**33, 1), (-(2**31) * 10**9, 5)]:
        t.do(f"utime {ns}", os.utime, "f", ns=ns)
        t.do("times", both)
    NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2
    def utimensat(a, m, user=None):
        ts = (ctypes.c_long * 4)(*a, *m)
        call("utimensat", -100, b"f", ts, 0)
    t.do("reset", os.utime, "f", ns=(7, 8))
    t.do("omit both", utimensat, (0, OMIT), (0, OMIT))
    t.do("times", both)
    t.do("omit one", utimensat, (0, OMIT), (9, 10))
    t.do("times", both)
    t.do("now and omit", utimensat, (0, NOW), (0, OMIT))
    t.do("later", lambda: os.stat("f").st_atime > 1e9)
    t.do("bad", utimensat, (0, 10**9), (0, 0))
    os.chmod("f", 0o666)
    for user in ("alice", "bob"):
        t.do("now", utimensat, (0, NOW), (0, NOW), user=user)
        t.do("now and omit", utimensat, (0, NOW), (0, OMIT), user=user)
        t.do("set", utimensat, (1, 1), (1, 1), user=user)
        t.do("omit", utimensat, (0, OMIT), (0, OMIT), user=user)
    t.do("statx", statx, "f")
    t.do("statx dir", statx, ".")


@case
def xattrs(t):
    make("file", "f")
    os.mkdir("d")
    os.setxattr("f", "user.kept", b"kept")
    os.setxattr("d", "trusted.kept", b"k" * 300)
    t.ready()
    for p in ("f", "d"):
        for name, value, flags in [("user.a", b"1", 0), ("user.a", b"2", os.XATTR_CREATE), ("user.a", b"3", os.XATTR_REPLACE), ("user.b", b"", os.XATTR_REPLACE),
                                   ("user.b", b"", 0), ("user.", b"x", 0), ("user", b"x", 0), ("bad.a", b"x", 0), ("trusted.t", b"t", 0), ("security.x", b"s", 0),
                                   ("system.x", b"s", 0), ("user." + "n" * 250, b"x", 0), ("user." + "n" * 251, b"x", 0), ("user.big", b"b" * 1500, 0),
                                   ("user.huge", b"b" * 65537, 0), ("system.posix_acl_access", b"rubbish", 0), ("system.posix_acl_access", b"", 0)]:
            t.do(f"set {p} {name[:20]} {len(value)} {flags}", os.setxattr, p, name, value, flags)
        t.do("list", lambda: sorted(os.listxattr(p)))
        for name in ("user.a", "user.b", "user.none", "trusted.t", "user.big", "user.kept", "trusted.kept", "bad.a", "system.posix_acl_access"):
            t.do(f"get {name}", lambda: len(os.getxattr(p, name)))
            t.do(f"get {name}", lambda: len(os.getxattr(p, name)), user="carol")
        for name in ("user.a", "user.a", "trusted.t", "bad.a"):
            t.do(f"remove {name}", os.removexattr, p, name)
        t.do("set", os.setxattr, p, "user.z", b"1", user="carol")
        t.do("list", lambda: sorted(os.listxattr(p)), user="carol")
        t.do("set trusted", os.setxattr, p, "trusted.z", b"1", user="carol")
    def small():
        buf = ctypes.create_string_buffer(2)
        n = libc.getxattr(b"f", b"user.big", buf, 2)
        return errno.errorcode[ctypes.get_errno()] if n < 0 else n
    t.do("too small a buffer", small)
    for kind in ("fifo", "char", "socket", "dangling"):
        make(kind, kind)
        t.do(f"user of {kind}", os.setxattr, kind, "user.a", b"1", follow_symlinks=False)
        t.do(f"trusted of {kind}", os.setxattr, kind, "trusted.a", b"1", follow_symlinks=False)
    os.mkdir("sticky")
    os.chmod("sticky", 0o1777)
    t.do("user of sticky", os.setxattr, "sticky", "user.a", b"1", user="carol")


@case
def access_lists(t):
    def facl(*args):
        r = subprocess.run(["setfacl", *args], capture_output=True, text=True)
        if r.returncode:
            raise OSError(errno.EIO, r.stderr)
    def acl(p):
        return subprocess.run(["getfacl", "-pcE", p], capture_output=True, text=True).stdout.split()
    make("file", "f", 0o640)
    facl("-m", "u:1002:rw,g:1003:r", "f")
    os.mkdir("d")
    facl("-m", "d:u:1002:rwx,d:g:1003:rx,d:m:rwx", "d")
    os.mkdir("plain")
    t.ready()
    t.do("acl", acl, "f")
    t.see("f")
    for user in ("alice", "bob", "carol"):
        t.do("read", opened, "f", os.O_RDONLY, user=user)
        t.do("write", opened, "f", os.O_WRONLY, user=user)
    for mode in (0o600, 0o660, 0o604, 0o777, 0o4750):
        t.do(f"chmod {mode:o}", os.chmod, "f", mode)
        t.do("acl", acl, "f")
        t.do("read", opened, "f", os.O_RDONLY, user="bob")
    for umask in (0, 0o22, 0o77):
        os.umask(umask)
        for name in ("d/f", "d/d", "d/p"):
            p = name + str(umask)
            t.do("make", {"f": lambda: opened(p, os.O_CREAT | os.O_WRONLY, 0o666), "d": lambda: os.mkdir(p), "p": lambda: os.mkfifo(p)}[name[2]])
            t.see(p)
            t.do("acl", acl, p)
    os.umask(0o22)
    t.do("create deep", opened, "d/d0/f", os.O_CREAT | os.O_WRONLY, 0o600)
    t.do("acl", acl, "d/d0/f")
    t.do("remove", facl, "-b", "f")
    t.do("acl", acl, "f")
    t.do("remove default", facl, "-k", "d")
    t.do("acl", acl, "d")
    t.do("not the owner", facl, "-m", "u:1001:rw", "f", user="bob")
    t.do("default of a file", facl, "-m", "d:u:1001:rw", "f")
    t.do("three entries", facl, "--set", "u::rw,g::r,o::-", "f")
    t.see("f")
    t.do("copy", lambda: subprocess.run(["cp", "-a", "d", "d2"], check=True) and None)
    t.do("acl", acl, "d2/d0")
    os.chown("f", 1001, 1003)
    os.chmod("f", 0o2770)
    t.do("sgid by acl", facl, "-m", "u:1002:rw", "f", user="alice")
    t.see("f")


# Content


@case
def sizes(t):
    make("file", "f")
    t.ready()
    for size in (0, 1, 4095, 4096, 4097, 65535, 65536, 131073, 1 << 32, 1 << 40, 3, -1, 1 << 62, 1 << 63):
        t.do(f"truncate {size}", lambda: call("truncate", b"f", ctypes.c_long(size if size < 1 << 63 else -size)))
        t.see("f")
    t.do("content", content, "f")
    t.do("write far", write, "f", b"x", 1 << 33)
    t.see("f")
    t.do("write at a negative place", write, "f", b"x", -1)
    t.do("truncate", os.truncate, "f", 10)
    t.do("truncate by carol", os.truncate, "f", 1, user="carol")
    t.do("truncate read-only", lambda: os.ftruncate(os.open("f", os.O_RDONLY), 1))
    t.do("write read-only", lambda: os.write(os.open("f", os.O_RDONLY), b"x"))
    t.do("read write-only", lambda: os.read(os.open("f", os.O_WRONLY), 1))
    def limited():
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        os.chdir(os.getcwd())
        fd = os.open("lim", os.O_CREAT | os.O_RDWR)
        out = [os.write(fd, b"x" * 150)]
        for f in (lambda: os.write(fd, b"y"), lambda: os.ftruncate(fd, 200), lambda: os.posix_fallocate(fd, 0, 300)):
            try: out.append(f())
            except OSError as e: out.append(errno.errorcode[e.errno])
        return str(out)
    os.chmod(".", 0o777)
    t.do("limit", limited, user="alice")


@case
def allocation(t):
    KEEP, PUNCH, COLLAPSE, ZERO, INSERT, UNSHARE = 1, 2, 8, 16, 32, 64
    with open("f", "wb") as f:
        f.write(bytes(range(256)) * 256)
    make("dir", "d")
    t.ready()
    fd = os.open("f", os.O_RDWR)
    for mode, at, length in [(0, 0, 100), (0, 70000, 5000), (KEEP, 80000, 1000), (PUNCH | KEEP, 1000, 9000), (PUNCH, 0, 100), (PUNCH | KEEP, 0, 1 << 20),
                             (ZERO, 4096, 8192), (ZERO | KEEP, 90000, 100), (ZERO, 100, 200000), (COLLAPSE, 0, 4096), (COLLAPSE, 1, 4096), (INSERT, 0, 4096),
                             (COLLAPSE, 0, 1 << 30), (0, 0, 0), (0, -1, 5), (0, 5, -1), (0, 1 << 62, 1 << 62), (KEEP, 5, 0), (128, 0, 5)]:
        t.do(f"fallocate {mode} {at} {length}", fallocate, fd, mode, at, length)
        t.do("content", content, "f")
    t.do("read-only", lambda: fallocate(os.open("f", os.O_RDONLY), 0, 0, 10))
    t.do("directory", lambda: fallocate(os.open("d", os.O_RDONLY), 0, 0, 10))
    t.do("posix", os.posix_fallocate, fd, 300000, 10)
    t.see("f")
    os.close(fd)


@case
def holes(t):
    fd = os.open("f", os.O_CREAT | os.O_RDWR)
    os.pwrite(fd, b"a" * 65536, 0)
    os.pwrite(fd, b"b" * 65536, 1 << 20)
    os.ftruncate(fd, 4 << 20)
    os.close(fd)
    t.ready()
    fd = os.open("f", os.O_RDWR)
    for whence, name in ((os.SEEK_DATA, "data"), (os.SEEK_HOLE, "hole")):
        for at in (0, 10, 65535, 65536, 1 << 19, 1 << 20, (1 << 20) + 65535, (1 << 20) + 65536, 2 << 20, (4 << 20) - 1, 4 << 20, 5 << 20, -1):
            t.do(f"{name} from {at}", os.lseek, fd, at, whence)
    fallocate(fd, 3, 0, 65536)
    t.do("after a punch", os.lseek, fd, 0, os.SEEK_DATA)
    t.do("sparse", lambda: os.stat("f").st_blocks * 512 < 1 << 20)
    t.do("content", content, "f")
    os.close(fd)
    t.do("terabytes", lambda: os.truncate("f", 3 << 40))
    t.do("written there", write, "f", b"end", (3 << 40) - 3)
    t.do("hole", lambda: os.lseek(os.open("f", os.O_RDONLY), 2 << 20, os.SEEK_DATA) >= (3 << 40) - 65536)


@case
def copies_of_ranges(t):
    with open("a", "wb") as f:
        f.write(bytes((i * 7) & 0xff for i in range(300000)))
    make("file", "b")
    os.mkdir("d")
    t.ready()
    a = os.open("a", os.O_RDWR)
    b = os.open("b", os.O_RDWR)
    for n, at, to in [(300000, 0, 0), (100, 0, 0), (70000, 1, 3), (131072, 65536, 0), (5, 299998, 10), (5, 400000, 0), (0, 0, 0), (65536, 0, 1 << 20)]:
        t.do(f"copy {n} {at} {to}", os.copy_file_range, a, b, n, at, to)
        t.do("content", content, "b")
    t.do("overlap", os.copy_file_range, a, a, 100, 0, 50)
    t.do("itself", os.copy_file_range, a, a, 100, 0, 1000)
    t.do("content", content, "a")
    t.do("append", lambda: os.copy_file_range(a, os.open("b", os.O_WRONLY | os.O_APPEND), 10))
    t.do("read-only", lambda: os.copy_file_range(a, os.open("b", os.O_RDONLY), 10))
    t.do("directory", lambda: os.copy_file_range(os.open("d", os.O_RDONLY), b, 10))
    t.do("cp", lambda: subprocess.run(["cp", "a", "c"], check=True) and None)
    t.do("content", content, "c")


@case
def appends_of_many(t):
    t.ready()
    def appends():
        pids = []
        for n in range(6):
            pid = os.fork()
            if pid == 0:
                fd = os.open("log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
                for i in range(300):
                    os.write(fd, f"{n} {i} {'x' * (n * 31)}\n".encode())
                os._exit(0)
            pids.append(pid)
        for pid in pids:
            os.waitpid(pid, 0)
        lines = open("log").read().splitlines()
        good = sum(1 for l in lines if len(l.split()) in (2, 3) and l.endswith("x" * (int(l.split()[0]) * 31)))
        ordered = all([int(l.split()[1]) for l in lines if l.startswith(f"{n} ")] == list(range(300)) for n in range(6))
        return len(lines), good, ordered
    t.do("append", appends)


@case
def mappings(t):
    with open("f", "wb") as f:
        f.write(b"a" * 10000)
    t.ready()
    fd = os.open("f", os.O_RDWR)
    m = mmap.mmap(fd, 10000)
    private = mmap.mmap(fd, 10000, flags=mmap.MAP_PRIVATE)
    os.pwrite(fd, b"written", 100)
    t.do("seen in the mapping", lambda: bytes(m[100:107]))
    m[200:206] = b"mapped"
    t.do("seen by read", os.pread, fd, 6, 200)
    private[300:303] = b"own"
    t.do("not seen", os.pread, fd, 3, 300)
    def other():
        with open("f", "r+b") as f:
            o = mmap.mmap(f.fileno(), 10000)
            o[400:405] = b"other"
            return bytes(o[200:206])
    t.do("another process", other, user="root")
    t.do("seen", lambda: bytes(m[400:405]))
    t.do("flush", m.flush)
    os.ftruncate(fd, 150)
    t.do("cut", content, "f")
    os.ftruncate(fd, 10000)
    t.do("zeros behind the cut", lambda: bytes(m[140:210]))
    m[5000:5003] = b"end"
    m.close()
    private.close()
    os.close(fd)
    t.do("content", content, "f")


@case
def locks(t):
    make("file", "f")
    t.ready()
    fd = os.open("f", os.O_RDWR)
    def attempt(kind, how, start=0, length=0):
        f = os.open("f", os.O_RDWR)
        try:
            if kind == "flock":
                fcntl.flock(f, how | fcntl.LOCK_NB)
            else:
                fcntl.lockf(f, how | fcntl.LOCK_NB, length, start)
        finally:
            os.close(f)
    def elsewhere(*args):
        return as_user(ROOT, lambda: result(*args))
    def result(*args):
        try: return str(attempt(*args))
        except OSError as e: return errno.errorcode[e.errno]
    fcntl.flock(fd, fcntl.LOCK_SH)
    t.do("shared beside shared", elsewhere, "flock", fcntl.LOCK_SH)
    t.do("exclusive beside shared", elsewhere, "flock", fcntl.LOCK_EX)
    fcntl.flock(fd, fcntl.LOCK_UN)
    t.do("free", elsewhere, "flock", fcntl.LOCK_EX)
    fcntl.lockf(fd, fcntl.LOCK_EX, 10, 0)
    t.do("range", elsewhere, "posix", fcntl.LOCK_EX, 5, 10)
    t.do("beside", elsewhere, "posix", fcntl.LOCK_EX, 10, 10)
    t.do("shared of exclusive", elsewhere, "posix", fcntl.LOCK_SH, 0, 1)
    F_OFD_SETLK = 37
    def ofd(kind):
        f = os.open("f", os.O_RDWR)
        fcntl.fcntl(f, F_OFD_SETLK, struct.pack("hhqqi4x", kind, 0, 0, 0, 0))
    t.do("ofd beside", ofd, fcntl.F_WRLCK)
    fcntl.lockf(fd, fcntl.LOCK_UN)
    t.do("ofd alone", ofd, fcntl.F_WRLCK)
    os.close(fd)


@case
def open_and_unlinked(t):
    make("file", "f")
    os.mkdir("d")
    t.ready()
    fd = os.open("f", os.O_RDWR)
    os.unlink("f")
    t.do("nlink", lambda: os.fstat(fd).st_nlink)
    t.do("read", os.pread, fd, 100, 0)
    t.do("write", os.pwrite, fd, b"more", 5)
    t.do("truncate", os.ftruncate, fd, 3)
    t.do("chmod", os.fchmod, fd, 0o600)
    t.do("xattr", lambda: os.setxattr(fd, "user.a", b"1"))
    t.do("size", lambda: os.fstat(fd).st_size)
    t.do("by proc", lambda: open(f"/proc/self/fd/{fd}").read())
    os.close(fd)
    d = os.open("d", os.O_RDONLY)
    os.rmdir("d")
    t.do("list", os.listdir, d)
    t.do("create in it", lambda: os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=d))
    t.do("stat", lambda: os.fstat(d).st_nlink)
    t.do("stat dot", lambda: os.stat(".", dir_fd=d) and None)
    t.do("fsync", os.fsync, d)
    os.close(d)
    os.makedirs("w/x")
    os.chdir("w/x")
    os.rmdir("../x")
    t.do("gone current directory", os.listdir, ".")
    t.do("mkdir there", os.mkdir, "y")
    t.do("cwd", os.getcwd)
    os.chdir("../..") if os.path.isdir("../..") else os.chdir(t.copy if t.program else t.base)


@case
def directories(t):
    os.mkdir("big")
    for i in range(3000):
        os.mkdir(f"big/{i}") if i % 7 == 0 else make("file", f"big/{i}")
    t.ready()
    t.do("list", lambda: len(set(os.listdir("big"))))
    def kinds():
        with os.scandir("big") as it:
            return sum(e.is_dir(follow_symlinks=False) for e in it)
    t.do("kinds", kinds)
    def while_removing():
        seen_names = set()
        with os.scandir("big") as it:
            for n, e in enumerate(it):
                seen_names.add(e.name)
                if n % 3 == 0:
                    (os.rmdir if e.is_dir() else os.unlink)(e.path)
        return len(seen_names)
    t.do("seen while removing", while_removing)
    t.do("left", lambda: len(os.listdir("big")))
    t.do("rmdir full", os.rmdir, "big")
    t.do("rm", lambda: shutil.rmtree("big"))
    t.do("dots", lambda: subprocess.run(["ls", "-a"], capture_output=True, text=True).stdout.split())
    t.do("read a directory", lambda: os.read(os.open(".", os.O_RDONLY), 10))
    t.do("write to a directory", lambda: os.write(os.open(".", os.O_RDONLY), b"x"))
    t.do("dot dot", lambda: os.stat("big2/../.") and None)


@case
def devices_and_pipes(t):
    for kind in ("fifo", "char", "block", "socket"):
        make(kind, kind)
    t.ready()
    for kind in ("fifo", "char", "block", "socket"):
        t.see(kind)
    def pipe():
        r = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
        w = os.open("fifo", os.O_WRONLY | os.O_NONBLOCK)
        os.write(w, b"through")
        return os.read(r, 10)
    t.do("pipe", pipe)
    t.do("no reader", opened, "fifo", os.O_WRONLY | os.O_NONBLOCK)
    for mode in (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFREG, stat.S_IFDIR, 0):
        t.do(f"mknod {mode:o}", os.mknod, f"n{mode:o}", mode | 0o640, os.makedev(0xfff, 0xfffff) if mode in (stat.S_IFCHR, stat.S_IFBLK) else 0)
        t.do(f"mknod {mode:o}", os.mknod, f"m{mode:o}", mode | 0o640, 0, user="alice")
        t.do(f"see {mode:o}", seen, f"n{mode:o}")
        t.do(f"see {mode:o}", seen, f"m{mode:o}")
    def listen():
        s = socket.socket(socket.AF_UNIX)
        s.bind("sock")
        s.listen()
        c = socket.socket(socket.AF_UNIX)
        c.connect("sock")
        return s.accept()[0] is not None
    t.do("socket", listen)
    t.do("dead socket", lambda: socket.socket(socket.AF_UNIX).connect("socket"))


@case
def direct_and_synchronous(t):
    t.ready()
    for name, flags in (("direct", os.O_DIRECT), ("sync", os.O_SYNC), ("dsync", os.O_DSYNC)):
        def one():
            fd = os.open(name, os.O_CREAT | os.O_RDWR | flags)
            buf = mmap.mmap(-1, 65536)
            buf.write(b"d" * 65536)
            out = [os.pwritev(fd, [buf], 0), os.preadv(fd, [buf], 4096)]
            os.fsync(fd), os.fdatasync(fd)
            os.close(fd)
            return out
        t.do(name, one)
        t.do("content", content, name)
    t.do("fsync dir", lambda: os.fsync(os.open(".", os.O_RDONLY)))
    t.do("syncfs", lambda: call("syncfs", os.open(".", os.O_RDONLY)))
    def rwf():
        fd = os.open("sync", os.O_RDWR)
        return os.pwritev(fd, [b"abc"], 3, os.RWF_DSYNC), os.pwritev(fd, [b"abc"], 9, os.RWF_SYNC), os.pwritev(fd, [b"app"], 0, 0x10), os.fstat(fd).st_size
    t.do("RWF", rwf)


@case
def handles(t):
    make("file", "f")
    os.mkdir("d")
    t.ready()
    def by_handle(path):
        handle = ctypes.create_string_buffer(8 + 128)
        struct.pack_into("I", handle, 0, 128)
        mount_id = ctypes.c_int()
        call("name_to_handle_at", -100, path, handle, ctypes.byref(mount_id), 0)
        root = os.open(".", os.O_RDONLY)
        fd = libc.open_by_handle_at(root, handle, os.O_RDONLY)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return os.fstat(fd).st_ino == os.stat(path).st_ino
    t.do("file", by_handle, b"f")
    t.do("dir", by_handle, b"d")


# The whole


def one(function, root, program):
    run = Run(root, program)
    os.umask(0o22)
    try:
        function(run)
    except Exception as e:
        run.note("the case ended", repr(e))
    os.umask(0o22)
    run.end()
    os.chdir("/")
    return run.log


def main():
    reference, pando, program, *chosen = sys.argv[1:]
    reference, pando, program = (os.path.abspath(p) for p in (reference, pando, program))
    count, differences = 0, []
    for name, function in CASES:
        if chosen and name not in chosen:
            continue
        begin = time.time()
        logs = [one(function, f"{d}/{name}{n}", p) for n, (d, p) in enumerate([(reference, None), (pando, None), (pando, program)])]
        clean = [[line.replace(f"/{name}0.base", "").replace(reference, "")
                  .replace(f"/{name}{n}.base", "").replace(f"/{name}{n}.copy", "").replace(pando, "") for line in log]
                 for n, log in enumerate(logs)]
        count += sum(map(len, clean))
        for where, log in (("mount", clean[1]), ("clone", clean[2])):
            if len(log) != len(clean[0]):
                differences.append(f"{name}: {where}: {len(log)} lines for {len(clean[0])}; last {log[-1] if log else ''}")
            differences += [f"{name}: {where}: {b} (reference: {a.split(': ', 1)[-1]})" for a, b in zip(clean[0], log) if a != b]
        print(f"{name}: {len(clean[0])} results, {time.time() - begin:.1f} s", file=sys.stderr)
    for line in sorted(differences):
        print(line)
    print(f"{count} results, {len(differences)} differences", file=sys.stderr)


main()
