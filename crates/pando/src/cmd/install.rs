//! `pando install`: makes this program part of a machine: itself, the helpers of mount(8) and its like, man pages,
//! completions and a udev rule, all from what the command line says of itself. `pando completions` prints one of them.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::{
    Man,
    roff::{Roff, roman},
};

/// A udev rule by which lsblk and /dev/disk show block devices with a Pando file system. Devices that blkid has
/// identified are left alone.
const UDEV_RULE: &str = "\
# Label and UUID of Pando file systems, which libblkid does not know.
SUBSYSTEM!=\"block\", GOTO=\"pando_end\"
ACTION==\"remove\", GOTO=\"pando_end\"
ENV{ID_FS_TYPE}!=\"\", GOTO=\"pando_end\"
IMPORT{program}=\"PROGRAM info --udev $devnode\"
ENV{ID_FS_TYPE}!=\"pando\", GOTO=\"pando_end\"
ENV{ID_FS_UUID_ENC}==\"?*\", SYMLINK+=\"disk/by-uuid/$env{ID_FS_UUID_ENC}\"
ENV{ID_FS_LABEL_ENC}==\"?*\", SYMLINK+=\"disk/by-label/$env{ID_FS_LABEL_ENC}\"
LABEL=\"pando_end\"
";

/// Install this program with its helpers for mount(8), fsck(8) and mkfs(8), man pages and completions
#[derive(clap::Args)]
#[command(
    after_help = "Puts under PREFIX: bin/pando, man pages, completions for bash, zsh and fish, and a udev rule; and
into SBIN, where mount(8) looks, the links mount.pando, mount.fuse.pando, umount.pando,
umount.fuse.pando, fsck.pando, fsck.fuse.pando and mkfs.pando. A line of /etc/fstab is then

  /srv/grove.img  /mnt/grove  pando  noatime,nofail  0  0

Examples: sudo pando install
          pando install --root \"$DESTDIR\" --prefix /usr    (for a package)
          sudo pando install --remove"
)]
pub struct Args {
    /// Where the program and its pages go
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Where mount(8) looks for helpers
    #[arg(long, value_name = "DIR", default_value = "/sbin")]
    sbin: PathBuf,
    /// Put everything below DIR, with contents as if DIR were /
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// Write and remove nothing; print each path that would be written or removed, one a line
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Remove what install has put there
    #[arg(long)]
    remove: bool,
}

/// Print completions for a shell
#[derive(clap::Args)]
#[command(after_help = "Example: pando completions bash > ~/.local/share/bash-completion/completions/pando")]
pub struct CompletionsArgs {
    /// Which shell
    shell: Shell,
}

/// What there is to install besides this file.
pub struct Parts {
    /// This program's command line.
    pub program: Command,
    /// Names of the helpers.
    pub helpers: Vec<&'static str>,
    /// The command lines of helpers that have a man page.
    pub helper_pages: Vec<Command>,
}

enum Content {
    Program,
    Link(PathBuf),
    Text(Vec<u8>),
}

pub fn run(args: &Args, parts: Parts) -> Result<()> {
    let mut done = String::new();
    for (path, content) in list(args, parts)? {
        let at = args.root.join(path.strip_prefix("/").unwrap_or(&path));
        let fail = || format!("{}", at.display());
        match (args.dry_run, args.remove) {
            (true, true) if at.symlink_metadata().is_err() => continue,
            (true, _) => {}
            (false, false) => write(&at, &content).with_context(fail)?,
            (false, true) => match fs::remove_file(&at) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                done => done.with_context(fail)?,
            },
        }
        done += &format!("{}\n", at.display());
    }
    super::print(&done)
}

/// Prints the completions of `program`.
pub fn completions(args: &CompletionsArgs, mut program: Command) -> Result<()> {
    super::print_bytes(&completion(args.shell, &mut program))
}

fn completion(shell: Shell, program: &mut Command) -> Vec<u8> {
    let mut out = Vec::new();
    clap_complete::generate(shell, program, "pando", &mut out);
    out
}

/// All files that are installed: their paths and their contents.
fn list(args: &Args, parts: Parts) -> Result<Vec<(PathBuf, Content)>> {
    let mut program = parts.program;
    let binary = args.prefix.join("bin/pando");
    let mut out = vec![(binary.clone(), Content::Program)];
    for name in parts.helpers {
        out.push((args.sbin.join(name), Content::Link(binary.clone())));
    }
    let share = args.prefix.join("share");
    for (shell, path) in [
        (Shell::Bash, "bash-completion/completions/pando"),
        (Shell::Zsh, "zsh/site-functions/_pando"),
        (Shell::Fish, "fish/vendor_completions.d/pando.fish"),
    ] {
        out.push((share.join(path), Content::Text(completion(shell, &mut program))));
    }
    program.build();
    for page in pages(&program, "1") {
        out.push((share.join("man/man1").join(page.0), Content::Text(page.1?)));
    }
    for helper in parts.helper_pages {
        for page in pages(&helper, "8") {
            out.push((share.join("man/man8").join(page.0), Content::Text(page.1?)));
        }
    }
    let rule = UDEV_RULE.replace("PROGRAM", &binary.display().to_string());
    out.push((args.prefix.join("lib/udev/rules.d/61-pando.rules"), Content::Text(rule.into())));
    Ok(out)
}

/// A page for `command` and for each command below it, with the names of their files.
fn pages(command: &Command, section: &str) -> Vec<(String, io::Result<Vec<u8>>)> {
    let mut out = Vec::new();
    add_pages(command, command.get_name(), section, &mut out);
    out
}

fn add_pages(command: &Command, name: &str, section: &str, pages: &mut Vec<(String, io::Result<Vec<u8>>)>) {
    let mut page = Vec::new();
    let man = Man::new(command.clone().name(name.to_owned()))
        .title(name.to_uppercase())
        .section(section)
        .source(concat!("pando ", env!("CARGO_PKG_VERSION")));
    let rendered = render(&man, command, &mut page).map(|()| page);
    pages.push((format!("{name}.{section}"), rendered));
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        add_pages(sub, &format!("{name}-{}", sub.get_name()), section, pages);
    }
}

/// The page. In the text behind the options paragraphs are filled, and indented lines and examples stay as they are.
fn render(man: &Man, command: &Command, out: &mut Vec<u8>) -> io::Result<()> {
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    if let Some(text) = command.get_after_help() {
        let mut roff = Roff::new();
        roff.control("SH", ["DETAILS"]);
        let mut is_filled = true;
        for line in text.to_string().lines() {
            let fill = !line.starts_with(' ') && !line.starts_with("Example");
            if fill != is_filled {
                roff.control(if fill { "fi" } else { "nf" }, []);
                is_filled = fill;
            }
            // An empty line would end a paragraph of another kind.
            match line {
                "" => roff.control("sp", []),
                line => roff.text([roman(line)]),
            };
        }
        roff.control("fi", []).to_writer(out)?;
    }
    Ok(())
}

/// Puts something at `path`, replacing what is there as a whole.
fn write(path: &Path, content: &Content) -> Result<()> {
    let dir = path.parent().context("no directory")?;
    fs::create_dir_all(dir)?;
    let name = path.file_name().context("no name")?.to_string_lossy().into_owned();
    let new = dir.join(format!(".{name}.new"));
    let _ = fs::remove_file(&new);
    match content {
        Content::Link(target) => symlink(target, &new)?,
        Content::Text(text) => fs::write(&new, text)?,
        Content::Program => {
            let program = std::env::current_exe().context("finding this program")?;
            if path.canonicalize().is_ok_and(|there| there == program) {
                return Ok(());
            }
            fs::copy(program, &new)?;
            fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        }
    }
    fs::rename(&new, path)?;
    Ok(())
}
