//! The program on real images in a temporary directory; whatever is mounted is unmounted.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// For a shell in a mount namespace of its own, which began with the mounts of all tests: lets go of all but `$1`.
pub const LET_GO: &str = "
    awk -v kept=\"$1\" '$3 == \"fuse.pando\" && $2 != kept { print $2 }' /proc/self/mounts |
        xargs -r umount -l 2> /dev/null || true
    ";

pub struct Bench {
    tmp: tempfile::TempDir,
    root: PathBuf,
}

/// A mounted image; where there is no FUSE, the test ends.
#[allow(unused_macros)]
macro_rules! mounted {
    () => {
        match $crate::common::Bench::mounted() {
            Some(bench) => bench,
            None => return,
        }
    };
}

/// Whether there is FUSE here; says so if not.
pub fn have_fuse() -> bool {
    let have = Path::new("/dev/fuse").exists();
    if !have {
        eprintln!("SKIPPED: /dev/fuse is absent");
    }
    have
}

/// A loop device over a file of a bench. When it is dropped, what is mounted on `m` is unmounted, and it is detached.
pub struct LoopDevice<'a> {
    bench: &'a Bench,
    pub path: String,
}

impl Drop for LoopDevice<'_> {
    fn drop(&mut self) {
        let dir = self.bench.path("m");
        let _ = Command::new("umount").arg("-lf").arg(dir).stderr(Stdio::null()).status();
        let _ = Command::new("losetup").args(["-d", &self.path]).status();
    }
}

impl Bench {
    /// An empty directory.
    pub fn new() -> Bench {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path().canonicalize().unwrap();
        Bench { tmp, root }
    }

    /// With a mounted image `a.img` on `m`; `None` where there is no FUSE.
    pub fn mounted() -> Option<Bench> {
        if !have_fuse() {
            return None;
        }
        let bench = Self::new();
        std::fs::create_dir(bench.path("m")).unwrap();
        bench.ok(&["mkfs", "--size", "256M", "--node-size", "64K", "a.img"]);
        bench.mount();
        Some(bench)
    }

    /// A loop device over `file`; `None` where there are none, or for others than root.
    pub fn loop_device(&self, file: &str) -> Option<LoopDevice<'_>> {
        if !rustix::process::geteuid().is_root() || !has("losetup") {
            eprintln!("SKIPPED: needs root and losetup");
            return None;
        }
        let made = Command::new("losetup").args(["-f", "--show"]).arg(self.path(file)).output().unwrap();
        if !made.status.success() {
            eprintln!("SKIPPED: no loop device: {}", text(&made.stderr));
            return None;
        }
        Some(LoopDevice { bench: self, path: text(&made.stdout).trim().to_owned() })
    }

    /// The same, mounted so that other users may use it and make entries in it, and enter the directory above; `None`
    /// unless run by root. Copies of the program and, as `test`, of the test are beside the mount.
    pub fn shared(test: &str) -> Option<Bench> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can set the scene");
            return None;
        }
        if !have_fuse() {
            return None;
        }
        let b = Self::new();
        b.sh("chmod 755 . && mkdir m");
        b.ok(&["mkfs", "--size", "256M", "--node-size", "64K", "a.img"]);
        b.ok(&["mount", "-o", "allow_other", "--log-file", "log", "a.img", "m"]);
        b.copy_program(env!("CARGO_BIN_EXE_pando"), "pando");
        b.copy_program(std::env::current_exe().unwrap(), test);
        b.sh("chmod 1777 m");
        Some(b)
    }

    pub fn mount(&self) {
        self.ok(&["mount", "--log-file", "log", "a.img", "m"]);
    }

    /// Unmounts, retrying while some process that another test is starting holds a descriptor, or the mount in a
    /// namespace of its own.
    pub fn umount(&self) {
        let begin = std::time::Instant::now();
        let mut kept = false;
        loop {
            let out = self.run(&["umount", "m"]);
            let (code, said) = (out.status.code(), text(&out.stderr));
            let gone = kept && said.contains("no file system is mounted there");
            if code == Some(0) || gone && self.run(&["check", "a.img"]).status.code() != Some(4) {
                return;
            }
            kept |= code == Some(4);
            assert!((gone || code == Some(4)) && begin.elapsed().as_secs() < 20, "{said}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    pub fn remount(&self) {
        self.umount();
        self.mount();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Copies a program into the scene, to be started from there. Another process writes it: a descriptor of this one
    /// would also be held by what other tests are just starting, and the kernel starts no program that is being written.
    pub fn copy_program(&self, from: impl AsRef<Path>, name: &str) {
        let copied = Command::new("cp").arg(from.as_ref()).arg(self.path(name)).status().unwrap();
        assert!(copied.success(), "{}", from.as_ref().display());
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pando"));
        command.args(args).current_dir(&self.root).stdin(Stdio::null());
        command
    }

    /// A command that signals end, also where the tests run with signals ignored: in the background of a shell, or under
    /// nohup(1). The process has the number of the child.
    pub fn interruptible(&self, args: &[&str]) -> Command {
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP,INT,QUIT,TERM", env!("CARGO_BIN_EXE_pando")]);
        command.args(args).current_dir(&self.root).stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed; its stdout.
    pub fn ok(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert!(out.status.success(), "pando {args:?}: {}", text(&out.stderr));
        text(&out.stdout)
    }

    /// Runs a command that must fail with `code` and say `says`.
    pub fn fails(&self, args: &[&str], code: i32, says: &str) {
        let out = self.run(args);
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "pando {args:?}: {err}");
        assert!(err.contains(says), "pando {args:?} said {err:?}, not {says:?}");
    }

    /// Runs a script in the directory; it must succeed. A `!` does not end it, but as the last command: that one must
    /// fail is said by `! command || exit 1`.
    pub fn sh(&self, script: &str) -> String {
        let out = Command::new("sh").args(["-ec", script]).current_dir(&self.root).output().unwrap();
        assert!(out.status.success(), "{script}: {}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    }

    /// Process id of the daemon behind `m`.
    pub fn daemon(&self) -> u32 {
        let stats = self.json(&["stats", "--json", "m"]);
        u32::try_from(stats["pid"].as_u64().unwrap()).unwrap()
    }

    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(args)).unwrap()
    }

    /// A small tree with a bit of everything in `name`. Its large file is noise without an X, which tests put there.
    pub fn tree(&self, name: &str) -> PathBuf {
        let dir = self.path(name);
        self.sh(&format!(
            "mkdir -p {name}/src/deep/deeper {name}/empty
             for i in $(seq 60); do echo \"file $i\" > {name}/src/f$i; done
             head -c 3000000 /dev/urandom | tr X x > {name}/src/deep/large
             truncate -s 5M {name}/src/sparse; printf x | dd of={name}/src/sparse bs=1 seek=3000000 conv=notrunc status=none
             ln -s src/f1 {name}/link; ln -s /nowhere {name}/dangling
             mkfifo {name}/fifo
             chmod 4711 {name}/src/f2; chmod 700 {name}/src/deep; chmod 1777 {name}/empty
             printf '' > '{name}/a name with
             a newline'
             find {name} -exec touch -h -d '2002-03-04 05:06:07.080910111' {{}} +
             touch -d '2001-02-03 04:05:06.123456789' {name}/src/f3 {name}/src/deep"
        ));
        dir
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for line in mounts.lines() {
            let dir = line.split(' ').nth(1).unwrap_or_default();
            if Path::new(dir).starts_with(&self.root) {
                let done = self.run(&["umount", dir]).status.success();
                if !done {
                    let _ = Command::new("umount").args(["-lf", dir]).status();
                }
            }
        }
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Everything about the trees at `a` and `b` that a copy must keep, compared.
pub fn same(a: impl AsRef<Path>, b: impl AsRef<Path>) {
    let list = |dir: &Path| {
        let out = Command::new("find")
            .args(["-printf", "%P\\0%y\\0%m\\0%U:%G\\0%T@\\0%l\\0\\n"])
            .current_dir(dir)
            .output()
            .unwrap();
        let mut lines: Vec<String> = text(&out.stdout).split("\0\n").map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let (a, b) = (a.as_ref(), b.as_ref());
    let (la, lb) = (list(a), list(b));
    assert!(la.len() > 1);
    for (x, y) in la.iter().zip(&lb) {
        assert_eq!(x, y, "{} and {}", a.display(), b.display());
    }
    assert_eq!(la.len(), lb.len());
    for line in la {
        let mut fields = line.split('\0');
        if let (Some(path), Some("f")) = (fields.next(), fields.next()) {
            let read = |dir: &Path| std::fs::read(dir.join(path)).unwrap();
            assert!(read(a) == read(b), "{path} differs");
        }
    }
}

pub fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let found = found.is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("SKIPPED a part: {program} is not installed");
    }
    found
}

pub fn os(s: &str) -> &OsStr {
    OsStr::new(s)
}
