//! An image and its mount in a temporary directory; whatever is mounted is unmounted at the end.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::Value;

use super::random::within;

pub struct Bed {
    _tmp: Option<tempfile::TempDir>,
    pub root: PathBuf,
    pub image: PathBuf,
    pub mnt: PathBuf,
    options: Vec<String>,
}

/// Whether there is FUSE here; says so if not.
pub fn have_fuse() -> bool {
    let have = Path::new("/dev/fuse").exists();
    if !have {
        eprintln!("SKIPPED: /dev/fuse is absent");
    }
    have
}

/// Whether a program is installed; says so if not.
pub fn has(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths).any(|dir| dir.join(program).is_file());
    if !found {
        eprintln!("SKIPPED a part: {program} is not installed");
    }
    found
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a shell script in `dir`; it must succeed. Its output.
pub fn sh(dir: &Path, script: &str) -> String {
    let out =
        Command::new("sh").args(["-ec", script]).current_dir(dir).stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{script}\n{}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

pub fn pando(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pando")).args(args).stdin(Stdio::null()).output().unwrap()
}

/// Runs the program, which must succeed; its output.
pub fn ok(args: &[&str]) -> String {
    let out = pando(args);
    assert!(out.status.success(), "pando {args:?}: {}{}", text(&out.stdout), text(&out.stderr));
    text(&out.stdout)
}

pub fn str(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

impl Bed {
    /// A mounted new image; `None` where there is no FUSE.
    pub fn new(mkfs: &[&str], mount: &[&str]) -> Option<Bed> {
        if !have_fuse() {
            return None;
        }
        let tmp = tempfile::Builder::new().prefix("pando-torture-").tempdir().unwrap();
        let root = tmp.path().canonicalize().unwrap();
        let image = root.join("image");
        Some(Self::with(Some(tmp), root, image, mkfs, mount))
    }

    /// A mounted new image at `image`; all else in `root`.
    pub fn with(
        tmp: Option<tempfile::TempDir>,
        root: PathBuf,
        image: PathBuf,
        mkfs: &[&str],
        mount: &[&str],
    ) -> Bed {
        let mnt = root.join("mnt");
        std::fs::create_dir(&mnt).unwrap();
        let log = root.join("log");
        let options = mount.iter().map(|s| s.to_string()).chain(["--log-file".into(), str(&log).into()]);
        let bed = Bed { _tmp: tmp, root, image, mnt, options: options.collect() };
        ok(&[&["mkfs"], mkfs, &[str(&bed.image)]].concat());
        bed.mount();
        bed
    }

    pub fn mount(&self) {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        ok(&[&["mount"], &options[..], &[str(&self.image), str(&self.mnt)]].concat());
    }

    /// Unmounts; tried again while a process that another test starts still holds a descriptor.
    pub fn umount(&self) {
        let mut said = String::new();
        let done = within(5, || {
            let out = pando(&["umount", str(&self.mnt)]);
            said = text(&out.stderr);
            out.status.success()
        });
        assert!(done, "{said}");
    }

    /// Verifies the image, which is not mounted.
    pub fn check(&self) {
        let out = pando(&["check", "--json", str(&self.image)]);
        let report = text(&out.stdout);
        assert!(out.status.success(), "{}{report}\nlog: {}", text(&out.stderr), self.log());
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["clean"], true, "{report}");
    }

    /// Unmounts, verifies the image and mounts it again.
    pub fn remount(&self) {
        self.umount();
        self.check();
        self.mount();
    }

    pub fn stats(&self) -> Value {
        serde_json::from_str(&ok(&["stats", "--json", str(&self.mnt)])).unwrap()
    }

    pub fn pid(&self) -> i32 {
        self.stats()["pid"].as_i64().unwrap() as i32
    }

    /// Bytes that `statfs` says can still be written.
    pub fn available(&self) -> u64 {
        let s = rustix::fs::statvfs(&self.mnt).unwrap();
        s.f_bavail * s.f_frsize
    }

    pub fn sh(&self, script: &str) -> String {
        sh(&self.root, script)
    }

    /// What the daemon has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.root.join("log")).unwrap_or_default()
    }

    /// Detaches a mount whose daemon is dead.
    pub fn detach(&self) {
        let status = Command::new("umount").arg("-l").arg(&self.mnt).stderr(Stdio::null()).status();
        if !status.is_ok_and(|s| s.success()) {
            let _ = Command::new("fusermount3").arg("-uz").arg(&self.mnt).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let mounted = mounts.lines().any(|l| l.split(' ').nth(1) == Some(str(&self.mnt)));
        if mounted && !pando(&["umount", str(&self.mnt)]).status.success() {
            self.detach();
        }
        if std::thread::panicking() && !self.log().is_empty() {
            eprintln!("the daemon's log: {}", self.log());
        }
    }
}
