//! Flags of open(2), as Linux has them. Constants only.

pub(crate) const O_ACCMODE: i32 = 0o3;
pub(crate) const O_RDONLY: i32 = 0o0;
pub(crate) const O_WRONLY: i32 = 0o1;
pub(crate) const O_EXCL: i32 = 0o200;
pub(crate) const O_TRUNC: i32 = 0o1000;
pub(crate) const O_APPEND: i32 = 0o2000;
/// A bit that `O_SYNC` has, too.
pub(crate) const O_DSYNC: i32 = 0o10000;
