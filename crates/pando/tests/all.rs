//! The tests of the program, in one program: linking one for each file took longer than most of them run. A new file
//! becomes a line here.

// First, for its macro.
#[macro_use]
mod common;

mod closing;
mod cp;
mod daemon;
mod diff;
mod direct_io;
mod faithful;
mod forks;
mod images;
mod killed;
mod looking;
mod machine;
mod mounted;
mod odd_arguments;
mod offline;
mod pictures;
mod policies;
mod posing;
mod quotas;
mod recursive;
mod rights;
mod send;
mod send_again;
mod snapshots;
mod snapshots_beside;
mod synced;
mod told;
mod r#try;
mod versions;
mod views;
