//! Where a store lies, as callers say it: a path or a device.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    device::{Device, FileDevice},
    error::{Error, Result},
};

/// Size in bytes of a new file for a store if nothing else is said. It is sparse.
const DEFAULT_FILE_SIZE: u64 = 16 << 30;

/// What [`crate::Db::create`] and [`crate::Db::open`] take: the path of a file or block device (`&str`, `String`,
/// `&Path`, `PathBuf`), or a device (`Arc` of anything that is a [`Device`]).
///
/// A path is opened as a [`FileDevice`], with its lock. A caller that wants to keep the device, or to wrap it, makes
/// it first.
pub trait Medium: sealed::OpenDevice {}

impl<M: sealed::OpenDevice> Medium for M {}

/// A device for a new store.
pub struct New {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The file that was made for it, to be removed again if no store comes to be.
    pub made: Option<PathBuf>,
}

pub(crate) mod sealed {
    use std::path::PathBuf;

    use super::{Arc, Device, New, Result};

    pub trait OpenDevice {
        /// For a new store of `size` bytes, if that is said. A file that holds something is refused.
        fn for_new(self, size: Option<u64>) -> Result<New>;
        /// For a store that is there.
        fn for_old(self, read_only: bool) -> Result<Arc<dyn Device>>;
        /// The path, if it is one.
        fn path(&self) -> Option<PathBuf>;
    }
}

impl sealed::OpenDevice for &Path {
    fn for_new(self, size: Option<u64>) -> Result<New> {
        let (size, made) = match self.metadata() {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                (size.unwrap_or(DEFAULT_FILE_SIZE), Some(self.to_owned()))
            }
            Err(e) => return Err(Error::io("open", 0, e)),
            // Of a block device it must be below its own, and 0 is all of it.
            Ok(old) if !old.is_file() => (size.unwrap_or(0), None),
            Ok(old) if old.len() == 0 => (size.unwrap_or(DEFAULT_FILE_SIZE), None),
            Ok(old) => (size.unwrap_or(old.len()), None),
        };
        if i64::try_from(size).is_err() {
            return Err(Error::Invalid(format!("{size} bytes; no file can be that long")));
        }
        let device = FileDevice::create(self, size, false).inspect_err(|_| {
            if made.is_some() {
                // The error that led here is the one to tell.
                let _ = std::fs::remove_file(self);
            }
        })?;
        Ok(New { device: Arc::new(device), made })
    }

    fn for_old(self, read_only: bool) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(FileDevice::open(self, read_only)?))
    }

    fn path(&self) -> Option<PathBuf> {
        Some(self.to_path_buf())
    }
}

macro_rules! like_paths {
    ($($type:ty)*) => {$(
        impl sealed::OpenDevice for $type {
            fn for_new(self, size: Option<u64>) -> Result<New> {
                Path::new(&self).for_new(size)
            }

            fn for_old(self, read_only: bool) -> Result<Arc<dyn Device>> {
                Path::new(&self).for_old(read_only)
            }

            fn path(&self) -> Option<PathBuf> {
                Some(Path::new(self).to_path_buf())
            }
        }
    )*};
}

like_paths! { &str String &String PathBuf &PathBuf }

impl sealed::OpenDevice for Arc<dyn Device> {
    fn for_new(self, _: Option<u64>) -> Result<New> {
        Ok(New { device: self, made: None })
    }

    fn for_old(self, _: bool) -> Result<Arc<dyn Device>> {
        Ok(self)
    }

    fn path(&self) -> Option<PathBuf> {
        None
    }
}

impl<D: Device> sealed::OpenDevice for Arc<D> {
    fn for_new(self, _: Option<u64>) -> Result<New> {
        Ok(New { device: self, made: None })
    }

    fn for_old(self, _: bool) -> Result<Arc<dyn Device>> {
        Ok(self)
    }

    fn path(&self) -> Option<PathBuf> {
        None
    }
}
