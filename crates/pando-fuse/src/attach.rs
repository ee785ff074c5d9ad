//! Attaching to the kernel and detaching: `/dev/fuse` opened and mounted by mount(2) or by `fusermount3`, and
//! unmounted.
//!
//! Nothing is unmounted when a session ends: what was mounted may have been
//! unmounted before, and something else be mounted there since.

use std::{
    ffi::{CString, OsString},
    fs::{File, OpenOptions},
    io::{self, IoSliceMut, Read},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{fs::MetadataExt, net::UnixStream},
    },
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    io::Errno,
    mount::{MountFlags, UnmountFlags},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};

use crate::{error::Error, mountinfo::FSTYPE, settings::Settings};

/// Mounts on `dir` (absolute, without symlinks) and returns the descriptor to serve it by.
pub(crate) fn attach(dir: &Path, settings: &Settings) -> Result<OwnedFd, Error> {
    let source = settings.fsname.as_deref().unwrap_or("pando");
    let device = match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(device) => device,
        // Where the device is closed to this user the helper may still open it.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            return mount_by_helper(dir, settings, source);
        }
        Err(e) => return Err(Error::NoDevice(e)),
    };
    let mode = std::fs::metadata(dir).map_err(|e| at(dir, e))?.mode();
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={}",
        device.as_raw_fd(),
        mode & libc::S_IFMT,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    for option in kernel_options(settings) {
        data = data + "," + option;
    }
    let data = CString::new(data).map_err(|e| at(dir, e.into()))?;
    match rustix::mount::mount(source, dir, FSTYPE, flags(settings), data.as_c_str()) {
        Ok(()) => Ok(device.into()),
        Err(Errno::PERM) => {
            drop(device);
            mount_by_helper(dir, settings, source)
        }
        Err(Errno::NODEV) => Err(Error::NoDevice(Errno::NODEV.into())),
        Err(e) => Err(at(dir, e.into())),
    }
}

fn at(dir: &Path, source: io::Error) -> Error {
    Error::Io { path: dir.to_owned(), source }
}

fn kernel_options(settings: &Settings) -> impl Iterator<Item = &'static str> {
    let permissions = settings.checks_permissions().then_some("default_permissions");
    permissions.into_iter().chain(settings.allow_other.then_some("allow_other"))
}

fn flags(settings: &Settings) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, settings.read_only);
    flags.set(MountFlags::NODEV, !settings.dev);
    flags.set(MountFlags::NOSUID, !settings.suid);
    flags.set(MountFlags::NOEXEC, !settings.exec);
    flags.set(MountFlags::SYNCHRONOUS, settings.sync);
    flags.set(MountFlags::DIRSYNC, settings.dirsync);
    flags.set(MountFlags::from_bits_retain(libc::MS_NOSYMFOLLOW as _), settings.no_symlinks);
    flags
}

/// `fusermount3` opens the device, mounts it as root and sends the descriptor over a socket.
fn mount_by_helper(dir: &Path, settings: &Settings, source: &str) -> Result<OwnedFd, Error> {
    let mut options = String::from(if settings.read_only { "ro" } else { "rw" });
    options += ",nodev,nosuid";
    for (set, option) in
        [(!settings.exec, ",noexec"), (settings.sync, ",sync"), (settings.dirsync, ",dirsync")]
    {
        if set {
            options += option;
        }
    }
    for option in kernel_options(settings) {
        options = options + "," + option;
    }
    // The helper splits the list at commas that no backslash protects.
    let source = source.replace('\\', "\\\\").replace(',', "\\,");
    let options = OsString::from(format!("{options},subtype=pando,fsname={source}"));

    let (ours, theirs) = UnixStream::pair().map_err(|e| at(dir, e))?;
    // The socket is the standard input of the program, because that stays open over the exec.
    let spawned = Command::new("fusermount3")
        .arg("-o")
        .arg(options)
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut helper = match spawned {
        Ok(helper) => helper,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::NoHelper),
        Err(e) => return Err(at(dir, e)),
    };
    let received = receive(&ours);
    let mut text = String::new();
    if let Some(mut err) = helper.stderr.take() {
        let _ = err.read_to_string(&mut text);
    }
    let status = helper.wait().map_err(|e| at(dir, e))?;
    match received {
        Ok(Some(fd)) if status.success() => Ok(fd),
        _ if text.contains("open /dev/fuse") => {
            Err(Error::NoDevice(io::Error::other(text.trim().to_owned())))
        }
        _ if text.contains("user_allow_other") => Err(Error::NoAllowOther),
        Err(e) => Err(at(dir, e)),
        Ok(_) => Err(at(dir, io::Error::other(text.trim().to_owned()))),
    }
}

/// The descriptor that comes over `socket`; `None` if the other end closes it before.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut data = [IoSliceMut::new(&mut byte)];
    loop {
        match recvmsg(socket.as_fd(), &mut data, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
            Ok(_) => break,
        }
    }
    let fd = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    // Anything but a character device is not what was asked for.
    match fd {
        Some(fd) => {
            use std::os::unix::fs::FileTypeExt;
            let file = File::from(fd);
            let is_device = file.metadata()?.file_type().is_char_device();
            Ok(is_device.then(|| file.into()))
        }
        None => Ok(None),
    }
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Fail if it is in use.
    Plain,
    /// Detach it now; it ends when the last file is closed.
    Lazy,
    /// Detach the mount and cut its connection, for a daemon that must end or is dead. Dirty pages of mappings that
    /// cannot be written any more are lost.
    Force,
}

/// Changes the flags of the mount on exactly `dir` (absolute, without symlinks): whether it is read-only, and whether
/// device nodes, set-id bits and programs work there. Only root may do this.
pub fn remount(dir: &Path, settings: &Settings) -> Result<(), Error> {
    match rustix::mount::mount_remount(dir, flags(settings), "") {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(Error::Busy(dir.to_owned())),
        Err(Errno::INVAL) => Err(Error::NotMounted(dir.to_owned())),
        Err(e) => Err(at(dir, e.into())),
    }
}

/// Unmounts what is mounted on exactly `dir` (absolute, without symlinks).
pub fn unmount(dir: &Path, how: How) -> Result<(), Error> {
    let flags = match how {
        How::Plain => UnmountFlags::empty(),
        How::Lazy => UnmountFlags::DETACH,
        How::Force => UnmountFlags::DETACH | UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(Error::Busy(dir.to_owned())),
        Err(rustix::io::Errno::INVAL) => Err(Error::NotMounted(dir.to_owned())),
        Err(rustix::io::Errno::PERM) => unmount_by_helper(dir, how),
        Err(e) => Err(at(dir, e.into())),
    }
}

fn unmount_by_helper(dir: &Path, how: How) -> Result<(), Error> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if how != How::Plain {
        command.arg("-z");
    }
    let output = match command.arg("--").arg(dir).output() {
        Ok(output) => output,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::NoHelper),
        Err(e) => return Err(at(dir, e)),
    };
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if text.contains("busy") {
        Err(Error::Busy(dir.to_owned()))
    } else if text.contains("not found in") {
        Err(Error::NotMounted(dir.to_owned()))
    } else {
        Err(at(dir, io::Error::other(text)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn unmounting_what_is_not_mounted_says_so() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(unmount(dir.path(), How::Plain), Err(Error::NotMounted(_) | Error::Io { .. })));
    }
}
