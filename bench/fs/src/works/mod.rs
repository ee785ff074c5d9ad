//! The works. Each is a function that has a fresh file system to itself,
//! measures what it names, and checks what it has read or written.

mod clones;
mod company;
mod container;
mod create;
mod crowd;
mod dooku;
mod fsync;
pub mod git;
mod large;
mod log;
mod mail;
mod random;
mod rename;
mod sequential;
mod slow;
mod sqlite;
mod tokubench;
mod tree;
mod warm;

use anyhow::Result;

pub use crowd::{MEMBER, serve_member};

use crate::{contender::Kind, run::Run};

/// What a work asks of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clones {
    /// It clones nothing. Snapshots of subvolumes have no part in it.
    No,
    /// It clones trees. Who cannot is left out.
    Yes,
    /// It clones trees. Who cannot copies them.
    OrCopies,
}

/// A work.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Its name in options.
    pub name: &'static str,
    /// Programs that it calls, which must be there.
    pub programs: &'static [&'static str],
    /// What it asks of a file system.
    pub clones: Clones,
    /// Does it.
    pub run: fn(&mut Run) -> Result<()>,
}

impl Work {
    /// Whether this file system has a part in it.
    pub fn suits(&self, kind: Kind) -> bool {
        match self.clones {
            Clones::No => kind != Kind::BtrfsSvol,
            Clones::Yes => kind != Kind::Ext4,
            Clones::OrCopies => true,
        }
    }
}

const fn work(
    name: &'static str,
    programs: &'static [&'static str],
    clones: Clones,
    run: fn(&mut Run) -> Result<()>,
) -> Work {
    Work { name, programs, clones, run }
}

/// All works, in the order of the table.
pub const fn all() -> &'static [Work] {
    const ALL: &[Work] = &[
        work("create", &[], Clones::No, create::run),
        work("untar", &["tar"], Clones::No, tree::untar),
        work("cp", &["tar", "cp"], Clones::No, tree::cp),
        work("rsync", &["tar", "rsync"], Clones::No, tree::rsync),
        work("rm", &["tar", "rm"], Clones::No, tree::rm),
        work("find", &["tar", "find"], Clones::No, tree::find),
        work("tar", &["tar"], Clones::No, tree::tar),
        work("git", &["git"], Clones::No, git::run),
        work("sequential", &[], Clones::No, sequential::run),
        work("random-read", &[], Clones::No, random::reads),
        work("random-write", &[], Clones::No, random::writes),
        work("grep-clone", &["grep", "cp"], Clones::Yes, dooku::grep_after_edits),
        work("mail", &[], Clones::No, mail::run),
        work("sqlite", &[], Clones::No, sqlite::run),
        work("log", &[], Clones::No, log::run),
        work("grep-new", &["tar", "grep"], Clones::No, warm::grep_new),
        work("readers", &["tar"], Clones::No, warm::readers),
        work("ls", &["tar", "ls"], Clones::No, warm::ls),
        work("crowd", &[], Clones::No, crowd::run),
        work("fsync", &[], Clones::No, fsync::run),
        work("slow-reader", &[], Clones::No, slow::run),
        work("large-tree", &[], Clones::No, large::run),
        work("dooku", &["grep", "cp"], Clones::Yes, dooku::original),
        work("dooku-chain", &["grep", "cp"], Clones::Yes, dooku::chained),
        work("tokubench", &[], Clones::No, tokubench::run),
        work("clone-size", &["cp"], Clones::Yes, clones::run),
        work("clone-beside", &["cp"], Clones::Yes, company::run),
        work("container", &["tar", "cp"], Clones::OrCopies, container::run),
        work("rename", &["tar"], Clones::No, rename::run),
    ];
    ALL
}
