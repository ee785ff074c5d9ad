//! Several processes at once. Each is this program again, with its role as JSON, and begins when it is told to.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::create::{FILE_BYTES, content, pool};
use crate::{data::check::Tree, figure::Figure, run::Run};

/// The first argument of a member.
pub const MEMBER: &str = "--member";

const PROCESSES: u64 = 8;
const FILES_EACH: u64 = 8_000;
/// Crowds in which each member creates, reads and stats.
const SIZES: [u64; 4] = [1, 2, 8, 32];
/// Files of all members of such a crowd together.
const FILES_OF_ALL: u64 = 16_000;

/// What a member does.
#[derive(Debug, Serialize, Deserialize)]
pub enum Role {
    /// Makes files in a directory of its own.
    Create { dir: PathBuf, files: u64, seed: u64 },
    /// Makes files, reads each of them, and asks for the attributes of each.
    All { dir: PathBuf, files: u64, seed: u64 },
    /// Reads a tree.
    Read { dir: PathBuf, tree: Tree, times: u32 },
}

/// Processes that wait for each other.
#[derive(Default)]
pub struct Crowd(Vec<Child>);

impl Crowd {
    /// One more.
    pub fn add(&mut self, role: &Role) -> Result<()> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(MEMBER).arg(serde_json::to_string(role)?);
        self.0.push(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        Ok(())
    }

    /// Returns when all are ready.
    pub fn gather(&mut self) -> Result<()> {
        for child in &mut self.0 {
            let mut byte = [0];
            let output = child.stdout.as_mut().context("no way to hear a member")?;
            output.read_exact(&mut byte).context("a member has ended early")?;
        }
        Ok(())
    }

    /// Lets all begin; returns when the last has ended.
    pub fn go(mut self) -> Result<()> {
        for child in &mut self.0 {
            drop(child.stdin.take());
        }
        for mut child in self.0 {
            let mut said = String::new();
            if let Some(output) = child.stdout.take() {
                BufReader::new(output).read_line(&mut said)?;
            }
            let status = child.wait()?;
            ensure!(status.success(), "a member has ended with {status}: {said}");
        }
        Ok(())
    }
}

/// The whole life of a member.
pub fn serve_member(words: &[String]) -> Result<()> {
    let role: Role = serde_json::from_str(words.first().context("no role")?)?;
    print!("r");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    match role {
        Role::Create { dir, files, seed } => {
            create(&dir, files, &pool(seed))?;
        }
        Role::All { dir, files, seed } => {
            let text = pool(seed);
            create(&dir, files, &text)?;
            for number in 0..files {
                let found = fs::read(dir.join(format!("file{number}")))?;
                ensure!(found == content(&text, number), "wrong data in file {number}");
            }
            for number in 0..files {
                let len = fs::metadata(dir.join(format!("file{number}")))?.len();
                ensure!(len == FILE_BYTES as u64, "file {number} has {len} bytes");
            }
        }
        Role::Read { dir, tree, times } => {
            for _ in 0..times {
                tree.expect(&dir, None)?;
            }
        }
    }
    Ok(())
}

fn create(dir: &std::path::Path, files: u64, text: &[u8]) -> Result<()> {
    fs::create_dir(dir)?;
    for number in 0..files {
        fs::write(dir.join(format!("file{number}")), content(text, number))?;
    }
    Ok(())
}

fn check(dir: &std::path::Path, files: u64, text: &[u8]) -> Result<()> {
    for number in 0..files {
        let found = fs::read(dir.join(format!("file{number}")))?;
        if found != content(text, number) {
            bail!("wrong data in {}/file{number}", dir.display());
        }
    }
    Ok(())
}

pub fn run(run: &mut Run) -> Result<()> {
    let files = run.scaled(FILES_EACH, 20);
    let (mut crowd, dirs) = (Crowd::default(), (0..PROCESSES).map(|n| run.path(&format!("crowd{n}"))));
    let dirs: Vec<PathBuf> = dirs.collect();
    for (number, dir) in (0..).zip(&dirs) {
        crowd.add(&Role::Create { dir: dir.clone(), files, seed: run.seed(number) })?;
    }
    crowd.gather()?;
    let meter = run.meter();
    crowd.go()?;
    let mut measured = meter.measured();
    run.settle(&meter, &mut measured)?;
    for (number, dir) in (0..).zip(&dirs) {
        check(dir, files, &pool(run.seed(number)))?;
    }
    let bytes = PROCESSES * files * FILE_BYTES as u64;
    run.add(
        Figure::seconds("8 processes create files", measured).wrote(bytes).with("files_each", files as f64),
    );
    for size in SIZES {
        let files = run.scaled(FILES_OF_ALL, 64) / size;
        let mut crowd = Crowd::default();
        for number in 0..size {
            let dir = run.path(&format!("size{size}-{number}"));
            crowd.add(&Role::All { dir, files, seed: run.seed(number) })?;
        }
        crowd.gather()?;
        let meter = run.meter();
        crowd.go()?;
        let measured = meter.measured();
        let plural = if size == 1 { "process creates, reads, stats" } else { "processes create, read, stat" };
        run.add(Figure::rate(format!("{size} {plural}"), "files", (files * size) as f64, measured));
    }
    Ok(())
}
