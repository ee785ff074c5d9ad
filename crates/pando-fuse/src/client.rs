//! The tool's side of a control request: one ioctl on a directory of the mount.
//!
//! One of the three modules of the crate with `unsafe` (the others are `own_mount` and `transport::own::ring`): an
//! ioctl cannot be made without.

#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    io,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

use crate::asked::Asked;
use crate::control::{self, ControlRequest, Response, Token, Usage};

/// An ioctl that replaces the `N` bytes it is given.
struct Exchange<const N: usize> {
    command: u32,
    bytes: Box<[u8; N]>,
}

// SAFETY: `as_ptr` points to N initialised bytes that live as long as `self`, and by `command` the kernel reads and
// writes no more than those: `exchange` has looked at the size that it says.
unsafe impl<const N: usize> Ioctl for Exchange<N> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.command as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.bytes.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Why a control request got no answer, or a refusal.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The directory is not in a Pando mount.
    #[error("not in a mounted Pando file system")]
    NotPando,
    /// A name cannot be sent: too long, `.`, `..`, or with a slash.
    #[error("the name is '.' or '..', has a slash, or is longer than 255 bytes")]
    Name,
    /// The daemon refused; its message says why.
    #[error("{message}")]
    Refused {
        /// Error number.
        errno: i32,
        /// Message of the daemon.
        message: String,
    },
    /// The daemon does not understand this program's requests.
    #[error("the daemon is of another version than this program; mount it again")]
    Version,
    /// The kernel refused, or the daemon is gone.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl ControlError {
    /// The error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            ControlError::NotPando => Some(libc::ENOTTY),
            ControlError::Name | ControlError::Version => Some(libc::EINVAL),
            ControlError::Refused { errno, .. } => Some(*errno),
            ControlError::Io(e) => e.raw_os_error(),
        }
    }
}

fn exchange<const N: usize>(
    dir: BorrowedFd<'_>,
    command: u32,
    bytes: Box<[u8; N]>,
) -> Result<Box<[u8; N]>, ControlError> {
    /// Bits of a command that say how many bytes the kernel takes and gives.
    const SIZE_SHIFT: u32 = 16;
    /// The highest number that these bits can be.
    const SIZE_MASK: u32 = (1 << 14) - 1;
    if (command >> SIZE_SHIFT & SIZE_MASK) as usize > N {
        let text = "the answer to this request is longer than what was made for it";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text).into());
    }
    let mut call = Exchange { command, bytes };
    let pointer: &mut Exchange<N> = &mut call;
    // SAFETY: see `Exchange`; our opcodes mean the same on every file system that knows them,
    // and others answer ENOTTY.
    match unsafe { rustix::ioctl::ioctl(dir, ByRef(pointer)) } {
        Ok(()) => Ok(call.bytes),
        Err(rustix::io::Errno::NOTTY | rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            Err(ControlError::NotPando)
        }
        Err(rustix::io::Errno::INVAL) => Err(ControlError::Version),
        Err(e) => Err(ControlError::Io(e.into())),
    }
}

/// Lends an [`Exchange`] to a call that consumes its argument.
struct ByRef<'a, const N: usize>(&'a mut Exchange<N>);

// SAFETY: as for `Exchange`, to which everything is passed on.
unsafe impl<const N: usize> Ioctl for ByRef<'_, N> {
    type Output = ();
    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.0.opcode()
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.0.as_ptr()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Sends `request` by `dir`, an open directory of the mount, and returns when it is done. The value is that of
/// [`Response::value`]. EINVAL for [`ControlRequest::Stats`], and what is answered in pieces.
pub fn send(dir: impl AsFd, request: &ControlRequest) -> Result<u64, ControlError> {
    ask(dir.as_fd(), request).map(|answer| answer.value)
}

/// The result of a clone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClonedTree {
    /// The microseconds that it took inside the daemon.
    pub micros: u64,
    /// How many files of the source have data that the kernel shows and for which there was no room: it is in no clone.
    pub unstored: u64,
}

/// Sends a request for a clone.
pub(crate) fn send_clone(dir: impl AsFd, request: &ControlRequest) -> Result<ClonedTree, ControlError> {
    let answer = ask(dir.as_fd(), request)?;
    Ok(ClonedTree { micros: answer.value, unstored: answer.message.parse().unwrap_or(0) })
}

/// A token whose source is `file`, an open file or directory of the mount.
pub fn token(file: impl AsFd) -> Result<Token, ControlError> {
    token_and_writeback(file).map(|(token, _)| token)
}

/// Fetches a token, and whether the mount has a write-back cache.
pub(crate) fn token_and_writeback(file: impl AsFd) -> Result<(Token, bool), ControlError> {
    let answer = ask(file.as_fd(), &ControlRequest::Token)?;
    let token = Token::from_hex(answer.message.as_bytes()).ok_or(ControlError::NotPando)?;
    Ok((token, answer.value != 0))
}

/// The UUID of the file system, and whether a file in it has, or had, several names.
pub fn identity(file: impl AsFd) -> Result<([u8; 16], bool), ControlError> {
    let answer = ask(file.as_fd(), &ControlRequest::Identity)?;
    let number = u128::from_str_radix(&answer.message, 16).map_err(|_| ControlError::NotPando)?;
    Ok((number.to_be_bytes(), answer.value != 0))
}

/// What the source of the token takes.
pub fn usage(file: impl AsFd, token: Token) -> Result<Usage, ControlError> {
    let answer = ask(file.as_fd(), &ControlRequest::Usage { token })?;
    control::decode_usage(&answer.message).ok_or(ControlError::NotPando)
}

/// Sends these bytes as the ioctl `command` of [`control::command`], and returns the answer: for tests of a daemon
/// with requests that no tool sends.
pub fn raw(
    file: impl AsFd,
    command: u32,
    bytes: Box<control::RequestBytes>,
) -> Result<Box<control::RequestBytes>, ControlError> {
    exchange(file.as_fd(), command, bytes)
}

/// What is asked about the snapshots of the source of the token: those that the answer names, and its value.
pub(crate) fn snapshots(
    file: impl AsFd,
    token: Token,
    asked: Asked,
) -> Result<(Vec<pando_fs::SnapshotInfo>, u64), ControlError> {
    let answer = ask(file.as_fd(), &ControlRequest::Snapshot { token, asked })?;
    let named = crate::asked::read_lines(&answer.message).ok_or(ControlError::NotPando)?;
    Ok((named, answer.value))
}

/// What several snapshots of the source of the token take together.
pub(crate) fn usage_together(file: impl AsFd, token: Token, asked: Asked) -> Result<Usage, ControlError> {
    let answer = ask(file.as_fd(), &ControlRequest::Snapshot { token, asked })?;
    control::decode_usage(&answer.message).ok_or(ControlError::NotPando)
}

/// The snapshots of the source of the token in which a path leads to the same as in the one before, from a number on,
/// and where to go on.
pub(crate) fn alike(file: impl AsFd, token: Token, asked: Asked) -> Result<(Vec<u32>, u64), ControlError> {
    let answer = ask(file.as_fd(), &ControlRequest::Snapshot { token, asked })?;
    let numbers = crate::asked::read_numbers(&answer.message).ok_or(ControlError::NotPando)?;
    Ok((numbers, answer.value))
}

/// The snapshots that are mounted, from a number on, and where, and the number to go on with.
pub(crate) fn mounted(
    file: impl AsFd,
    token: Token,
    asked: Asked,
) -> Result<(Vec<(u32, PathBuf)>, u64), ControlError> {
    let answer = ask(file.as_fd(), &ControlRequest::Snapshot { token, asked })?;
    let mounted = crate::asked::read_mounted(&answer.message).ok_or(ControlError::NotPando)?;
    Ok((mounted, answer.value))
}

/// The policy for snapshots of the source of the token, if it has one.
pub(crate) fn policy(
    file: impl AsFd,
    token: Token,
) -> Result<Option<(u32, pando_fs::StoredPolicy)>, ControlError> {
    let answer = ask(file.as_fd(), &ControlRequest::Snapshot { token, asked: Asked::Policy })?;
    match &answer.message[..] {
        "" => Ok(None),
        line => crate::asked::read_policy(line).map(Some).ok_or(ControlError::NotPando),
    }
}

fn ask(dir: BorrowedFd<'_>, request: &ControlRequest) -> Result<Response, ControlError> {
    let bytes = request.encode().ok_or(ControlError::Name)?;
    let answer = exchange(dir, request.command(), bytes)?;
    let answer = Response::decode(&answer[..]).ok_or(ControlError::NotPando)?;
    match answer.status {
        0 => Ok(answer),
        errno => Err(ControlError::Refused { errno, message: answer.message }),
    }
}

/// Sends a request that is answered in pieces, or asks for the next piece: its bytes, and whether more follows.
pub fn piece(file: impl AsFd, request: &ControlRequest) -> Result<(Vec<u8>, bool), ControlError> {
    piece_and_unstored(file, request).map(|(piece, more, _)| (piece, more))
}

/// The same, and the number of files with data that the kernel shows and that could not be stored for lack of space.
pub(crate) fn piece_and_unstored(
    file: impl AsFd,
    request: &ControlRequest,
) -> Result<(Vec<u8>, bool, u64), ControlError> {
    let head = request.encode().ok_or(ControlError::Name)?;
    let mut bytes = Box::new([0; control::LONG_BYTES]);
    bytes[..head.len()].copy_from_slice(&head[..]);
    let answer = exchange(file.as_fd(), request.command(), bytes)?;
    let (answer, piece, unstored) = control::decode_piece(&answer[..]).ok_or(ControlError::NotPando)?;
    match answer.status {
        0 => Ok((piece, answer.value != 0, unstored)),
        errno => Err(ControlError::Refused { errno, message: answer.message }),
    }
}

/// Statistics as JSON text, by an open directory of the mount.
pub fn stats(dir: impl AsFd) -> Result<String, ControlError> {
    let head = ControlRequest::Stats.encode().ok_or(ControlError::Name)?;
    let mut bytes = Box::new([0; control::LONG_BYTES]);
    bytes[..head.len()].copy_from_slice(&head[..]);
    let answer = exchange(dir.as_fd(), ControlRequest::Stats.command(), bytes)?;
    control::decode_stats(&answer[..]).ok_or(ControlError::NotPando)
}
