#!/usr/bin/env python3
"""The file tests of an installed LTP on ext4 and on a mount, at once, and where they come out in another way.

    ltp.py LTP REFERENCE MOUNT [TEST...]

LTP is where `make install` has put it. Each test runs with TMPDIR on either file system: those of the lists `fs` and
`fs_perms_simple`, and of `syscalls` those about files. (`fs_readonly` is about a device that it formats itself.) Tests
that make file systems of their own on loop devices do so with ext4 alone. A difference is a line on stdout; counts go
to stderr.
"""

import concurrent.futures
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

# The calls whose tests run.
CALLS = """access chdir chmod chown chroot close close_range copy_file_range creat dup dup2 dup3 execve execveat faccessat
faccessat2 fadvise fallocate fanotify fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr
flock fpathconf fremovexattr fsetxattr fstat fstatat fstatfs fsync ftruncate futimesat getcwd getdents getxattr inotify
inotify_init io_submit ioctl_ficlone ioctl_ficlonerange ioctl_fiemap lchown lgetxattr link linkat listxattr llistxattr
llseek lremovexattr lseek lstat madvise mincore mkdir mkdirat mknod mknodat mmap mremap msync munmap name_to_handle_at
nftw open open_by_handle_at openat openat2 pathconf posix_fadvise pread preadv preadv2 pwrite pwritev pwritev2 read
readahead readdir readlink readlinkat readv realpath removexattr rename renameat renameat2 rmdir sendfile setfsgid setfsuid
setxattr splice stat statfs statvfs statx symlink symlinkat sync sync_file_range syncfs tee truncate umask unlink unlinkat
utime utimensat utimes vmsplice write writev""".split()

# Not about the file system under TMPDIR, or without an end of its own.
LEFT_OUT = re.compile(r"proc01|read_all|quota_remount|isofs|binfmt_misc|squashfs|fs_fill")

# Seconds for one test on a machine that does other work too.
LIMIT = 400

# These make the same users or change the same settings of the machine, so one runs after the other.
ALONE = re.compile(r"acl_|fanotify(10|17|23)|fcntl3[0357]|inotify0[56]|madvise0[68]|splice0[456]")
LONELY = threading.Lock()

# What tests change of the machine, and leave so if they are killed: pipes of one page stall other programs.
SETTINGS = """fs/fanotify/max_queued_events fs/inotify/max_queued_events fs/inotify/max_user_instances
fs/lease-break-time fs/pipe-max-size kernel/core_pattern kernel/domainname user/max_fanotify_groups
user/max_fanotify_marks user/max_user_namespaces vm/max_map_count vm/swappiness vm/vfs_cache_pressure""".split()

# Tests at once, each on both file systems.
AT_ONCE = 4


# What exit codes mean, by bits: 1 failed, 2 broken, 4 warned, 32 cannot run here.
def meaning(code):
    if code is None:
        return "no end"
    if code < 0:
        return f"signal {-code}"
    if code & 3:
        return "failed"
    return "cannot run" if code & 32 else "passed"


def tests(ltp):
    for name in ["syscalls", "fs_perms_simple", "fs"]:
        with open(f"{ltp}/runtest/{name}") as lines:
            for line in lines:
                if line.startswith("#") or len(line.split(None, 1)) < 2:
                    continue
                test, command = line.split(None, 1)
                call = re.sub(r"\d+[A-Z]?(_\d+|_64|_16)*$", "", test)
                if LEFT_OUT.match(test) or name == "syscalls" and call not in CALLS and test not in CALLS:
                    continue
                program = command.replace("export LTPROOT;", "").split()[0]
                if shutil.which(program, path=path(ltp)) or program == "mkfifo":
                    yield test, command.strip()


def path(ltp):
    return f"{ltp}/testcases/bin:{os.environ['PATH']}"


def run(ltp, top, test, command):
    """What becomes of it, and what it says. Two tests may want the same free loop device: the loser tries again."""
    for attempt in range(6):
        with LONELY if ALONE.match(test) else contextlib.nullcontext():
            outcome, said = once(ltp, top, test, command)
        if "Failed to acquire device" not in said:
            break
        time.sleep(random.uniform(0, 2**attempt))
    return outcome, said


def end(where):
    """Ends what a test has left, or all tests below `where`: processes, then mounts, then loop devices."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/environ", "rb") as environ:
                values = environ.read().split(b"\0")
                if any((value + b"/").startswith(f"TMPDIR={where}/".encode()) for value in values):
                    os.kill(int(process), signal.SIGKILL)
        except OSError:
            pass
    with open("/proc/mounts") as mounts:
        for place in [line.split()[1] for line in mounts][::-1]:
            if place.startswith(where + "/"):
                subprocess.run(["umount", "-l", place])
    listed = subprocess.run(["losetup", "-nO", "NAME,BACK-FILE"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        if where + "/" in line:
            subprocess.run(["losetup", "-d", line.split()[0]])


def settings():
    values = {}
    for name in SETTINGS:
        with contextlib.suppress(OSError), open(f"/proc/sys/{name}") as file:
            values[name] = file.read()
    return values


def restore(before):
    now = settings()
    for name, value in before.items():
        if now.get(name) != value:
            with contextlib.suppress(OSError), open(f"/proc/sys/{name}", "w") as file:
                file.write(value)
                print(f"restored: {name}", file=sys.stderr)


def once(ltp, top, test, command):
    where = tempfile.mkdtemp(prefix="ltp-", dir=top)
    os.chmod(where, 0o777)
    env = {**os.environ, "LTPROOT": ltp, "TMPDIR": where, "PATH": path(ltp), "LTP_SINGLE_FS_TYPE": "ext4",
           "LTP_TIMEOUT_MUL": "4", "LTP_COLORIZE_OUTPUT": "n", "LTP_QUIET": "1", "KCONFIG_SKIP_CHECK": "1"}
    log = tempfile.TemporaryFile()
    child = subprocess.Popen(["sh", "-c", command], env=env, cwd=where, stdin=subprocess.DEVNULL, stdout=log,
                             stderr=log, start_new_session=True)
    try:
        code = child.wait(LIMIT)
    except subprocess.TimeoutExpired:
        code = None
    end(where)
    child.wait()
    log.seek(0)
    said = log.read().decode(errors="replace")
    # Whether it warned is of no account: it does so of what the machine lacks.
    shutil.rmtree(where, ignore_errors=True)
    return meaning(code), said


def main():
    ltp, *tops = sys.argv[1:4]
    chosen = [(test, command) for test, command in tests(ltp) if not sys.argv[4:] or test in sys.argv[4:]]
    keep = os.environ.get("KEEP")
    before = settings()

    # Tests are in sessions of their own, so what ends this does not end them.
    def stopped(number, _frame):
        for top in tops:
            end(top)
        restore(before)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopped)
    counts = [{}, {}]
    # Half of them wait most of the time, for a clock or for the disk.
    with concurrent.futures.ThreadPoolExecutor(2 * AT_ONCE) as pool:
        running = [(test, [pool.submit(run, ltp, top, test, command) for top in tops]) for test, command in chosen]
        for test, both in running:
            results, said = zip(*[ran.result() for ran in both])
            for count, result in zip(counts, results):
                count[result] = count.get(result, 0) + 1
            if keep:
                with open(f"{keep}/ltp.log", "a") as out:
                    out.write(f"== {test}: {results}\n" + (said[1] if results[1] != "passed" else ""))
            if results[0] != results[1]:
                print(f"{test}: {results[1]} (ext4: {results[0]})", flush=True)
                told = [line for line in said[1].splitlines() if re.search(r"T?(FAIL|BROK|CONF)", line)]
                print("".join(f"  {line}\n" for line in told[:5]), end="", file=sys.stderr)
    restore(before)
    for name, count in zip(["ext4", "mount"], counts):
        print(f"{name}: {sum(count.values())} tests, {count}", file=sys.stderr)


main()
