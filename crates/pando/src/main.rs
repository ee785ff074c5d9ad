//! `pando`: a file system that clones any tree for the price of a small write.
//!
//! One file a command under `cmd`; this one only chooses among them and turns
//! errors into messages and exit codes (see `exit`). Commands on a mounted
//! file system speak to its daemon by `pando_fuse::client`; commands on an
//! image open it by `image`, which takes the lock.
//!
//! Called by another name it is a helper of mount(8) and its like: see `helper`.
//!
//! From the ground up: `exit`, `size`, `uuid`, `closing`, `logging`, `idle_memory`, `session_nice`, `place`,
//! `below`; `image`, `offline`, `change`, `report`, `tree`, `stream`; `cmd`; `help`, `helper`.

mod below;
mod change;
mod closing;
mod cmd;
mod divided;
mod exit;
mod guard;
mod help;
mod helper;
mod idle_memory;
mod image;
mod inherited;
mod logging;
mod memory;
mod offline;
mod one_version;
mod place;
mod report;
mod session_nice;
mod size;
mod stream;
mod tree;
mod uuid;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// A file system that clones any file or directory tree for the price of a small write.
#[derive(Parser)]
#[command(name = "pando", version, after_help = exit::EXIT_CODES_HELP, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Mkfs(cmd::mkfs::Args),
    Mount(cmd::mount::Args),
    Umount(cmd::umount::Args),
    Clone(cmd::clone::Args),
    Fork(cmd::fork::Args),
    Forks(cmd::fork::ForkListArgs),
    Merge(cmd::merge::Args),
    Discard(cmd::fork::DiscardArgs),
    #[command(subcommand)]
    Quota(cmd::quota::QuotaCommand),
    Cp(cmd::cp::Args),
    Sync(cmd::sync::Args),
    Mv(cmd::mv::Args),
    Rm(cmd::rm::Args),
    Chmod(cmd::chmod::Args),
    Chown(cmd::chown::Args),
    Touch(cmd::touch::Args),
    Snapshot(cmd::snapshot::Args),
    Diff(cmd::diff::Args),
    Log(cmd::log::Args),
    RestoreFile(cmd::restore_file::Args),
    Rollback(cmd::rollback::Args),
    Send(cmd::send::Args),
    Receive(cmd::receive::Args),
    Ls(cmd::ls::Args),
    Cat(cmd::cat::Args),
    Info(cmd::info::Args),
    Check(cmd::check::Args),
    Import(cmd::import::Args),
    Export(cmd::export::Args),
    Grow(cmd::grow::Args),
    Stats(cmd::stats::Args),
    Inspect(cmd::inspect::Args),
    Restore(cmd::restore::Args),
    Backup(cmd::backup::Args),
    Du(cmd::du::Args),
    Try(cmd::r#try::Args),
    Install(cmd::install::Args),
    Completions(cmd::install::CompletionsArgs),
}

/// The command line.
fn program() -> clap::Command {
    help::flowing(Cli::command())
}

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if std::env::args_os().next().as_ref().is_some_and(guard::is_name) {
        let args: Vec<_> = args.skip(1).collect();
        return ExitCode::from(guard::run(&args).map_or(exit::FAILURE, |()| exit::OK));
    }
    if let Some(helper) = args.next().as_ref().and_then(helper::of_name) {
        return ExitCode::from(helper.run(args.collect()));
    }
    let cli = Cli::from_arg_matches(&program().get_matches()).unwrap_or_else(|e| e.exit());
    let wants_mount = cli.command.wants_mount();
    let result = match cli.command {
        Command::Mkfs(args) => cmd::mkfs::run(&args),
        Command::Mount(args) => cmd::mount::run(&args),
        Command::Umount(args) => cmd::umount::run(&args),
        Command::Clone(args) => cmd::clone::run(&args),
        Command::Fork(args) => cmd::fork::run(&args),
        Command::Forks(args) => cmd::fork::list(&args),
        Command::Merge(args) => cmd::merge::run(&args),
        Command::Discard(args) => cmd::fork::discard(&args),
        Command::Quota(command) => cmd::quota::run(&command),
        Command::Cp(args) => cmd::cp::run(&args),
        Command::Sync(args) => cmd::sync::run(&args),
        Command::Mv(args) => cmd::mv::run(&args),
        Command::Rm(args) => cmd::rm::run(&args),
        Command::Chmod(args) => cmd::chmod::run(&args),
        Command::Chown(args) => cmd::chown::run(&args),
        Command::Touch(args) => cmd::touch::run(&args),
        Command::Snapshot(args) => cmd::snapshot::run(&args),
        Command::Diff(args) => cmd::diff::run(&args),
        Command::Log(args) => cmd::log::run(&args),
        Command::RestoreFile(args) => cmd::restore_file::run(&args),
        Command::Rollback(args) => cmd::rollback::run(&args),
        Command::Send(args) => cmd::send::run(&args),
        Command::Receive(args) => cmd::receive::run(&args),
        Command::Ls(args) => cmd::ls::run(&args),
        Command::Cat(args) => cmd::cat::run(&args),
        Command::Info(args) => cmd::info::run(&args),
        Command::Check(args) => cmd::check::run(&args),
        Command::Import(args) => cmd::import::run(&args),
        Command::Export(args) => cmd::export::run(&args),
        Command::Grow(args) => cmd::grow::run(&args),
        Command::Stats(args) => cmd::stats::run(&args),
        Command::Inspect(args) => cmd::inspect::run(&args),
        Command::Restore(args) => cmd::restore::run(&args),
        Command::Backup(args) => cmd::backup::run(&args),
        Command::Du(args) => cmd::du::run(&args),
        Command::Try(args) => cmd::r#try::run(&args),
        Command::Install(args) => cmd::install::run(
            &args,
            cmd::install::Parts {
                program: program(),
                helpers: helper::LINK_NAMES.iter().map(|(name, _)| *name).collect(),
                helper_pages: helper::pages().into_iter().map(help::flowing).collect(),
            },
        ),
        Command::Completions(args) => cmd::install::completions(&args, program()),
    };
    match result {
        Ok(()) => ExitCode::from(exit::OK),
        Err(e) => {
            let code = exit::report(&e);
            let inside = std::env::args_os().skip(2).find_map(|arg| offline::place(arg.as_ref()));
            if let Some(place) = inside.filter(|_| wants_mount) {
                let image = place.image.display();
                exit::tell!(
                    "pando: {place}: this command wants a mounted file system: pando mount {image} DIR"
                );
            }
            ExitCode::from(code)
        }
    }
}

impl Command {
    /// Whether its paths are only looked for in mounted file systems, never as `IMAGE:/PATH`.
    fn wants_mount(&self) -> bool {
        matches!(
            self,
            Command::Fork(_)
                | Command::Forks(_)
                | Command::Merge(_)
                | Command::Discard(_)
                | Command::Quota(_)
                | Command::Sync(_)
                | Command::Chmod(_)
                | Command::Chown(_)
                | Command::Touch(_)
                | Command::Snapshot(_)
                | Command::Log(_)
                | Command::RestoreFile(_)
                | Command::Rollback(_)
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The commands below `command`, each with its words behind `pando`, those with commands of their own left out.
    fn leaves(command: &clap::Command, words: &str, out: &mut Vec<(String, clap::Command)>) {
        for sub in command.get_subcommands() {
            let words = format!("{words} {}", sub.get_name());
            match sub.has_subcommands() {
                true => leaves(sub, &words, out),
                false => out.push((words, sub.clone())),
            }
        }
    }

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_an_example() {
        program().debug_assert();
        let mut commands = Vec::new();
        leaves(&program(), "pando", &mut commands);
        assert!(commands.len() > 45, "only {} commands", commands.len());
        for (words, command) in commands {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example") && help.contains(&words), "{words}");
        }
    }

    /// A list in a help text is set by hand, for a terminal of 80 columns.
    #[test]
    fn lines_that_do_not_flow_fit_a_terminal() {
        let mut commands = Vec::new();
        leaves(&program(), "pando", &mut commands);
        for (words, command) in commands {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in help.lines().filter(|line| line.starts_with("  ") && !line.contains("pando ")) {
                assert!(line.chars().count() <= 80, "{words}: {line}");
            }
        }
    }
}
