//! A mail server: folders with a file for each message, four threads, half of the operations reads.
//!
//! Of the other half, half are deliveries (written under another name, fsync, renamed), a quarter marks
//! (renamed in the folder), an eighth moves to another folder and an eighth deletions.

use std::{
    fs::{self, File},
    io::Write,
    path::PathBuf,
    thread,
};

use anyhow::{Context, Result, anyhow, ensure};
use pando_bench_common::Random;

use crate::{data::mix, data::text::Text, figure::Figure, run::Run};

const FOLDERS: u64 = 10;
const MESSAGES_A_FOLDER: u64 = 2_500;
const THREADS: u64 = 4;
const OPERATIONS_A_THREAD: u64 = 5_000;
const MOST_BYTES: u64 = 12 << 10;

/// A message of a thread: nobody else touches it.
#[derive(Debug, Clone, Copy)]
struct Message {
    number: u64,
    folder: u64,
    marks: u64,
}

impl Message {
    fn path(&self, root: &std::path::Path) -> PathBuf {
        root.join(format!("folder{}", self.folder)).join(format!("{}.{}", self.number, self.marks))
    }

    /// From `pool`, as long as its number says, and with its number.
    fn content<'a>(&self, pool: &'a [u8], seed: u64) -> (String, &'a [u8]) {
        let mut random = Random::new(mix(seed, self.number));
        let len = 500 + random.below(MOST_BYTES - 500) as usize;
        let from = random.below((pool.len() - len) as u64) as usize;
        (format!("Message-ID: {}\n", self.number), &pool[from..from + len])
    }

    fn check(&self, root: &std::path::Path, pool: &[u8], seed: u64) -> Result<()> {
        let path = self.path(root);
        let found = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let (head, body) = self.content(pool, seed);
        let is_same = found.strip_prefix(head.as_bytes()).is_some_and(|rest| rest == body);
        ensure!(is_same, "wrong data in {}", path.display());
        Ok(())
    }
}

struct Client {
    root: PathBuf,
    number: u64,
    messages: Vec<Message>,
    next: u64,
    seed: u64,
}

impl Client {
    fn deliver(&mut self, pool: &[u8], folder: u64, durable: bool) -> Result<u64> {
        let message = Message { number: self.next * THREADS + self.number, folder, marks: 0 };
        self.next += 1;
        let (head, body) = message.content(pool, self.seed);
        let path = self.root.join(format!("folder{folder}/tmp.{}", self.number));
        let mut file = File::create(&path)?;
        file.write_all(&[head.as_bytes(), body].concat())?;
        if durable {
            file.sync_all()?;
        }
        drop(file);
        fs::rename(path, message.path(&self.root))?;
        self.messages.push(message);
        Ok((head.len() + body.len()) as u64)
    }

    /// Returns how many bytes were delivered.
    fn work(&mut self, pool: &[u8], operations: u64) -> Result<u64> {
        let mut random = Random::new(mix(self.seed, 1 << 40 | self.number));
        let mut bytes = 0;
        for _ in 0..operations {
            let place = random.below(self.messages.len() as u64) as usize;
            let message = self.messages[place];
            match random.below(16) {
                0..8 => message.check(&self.root, pool, self.seed)?,
                8..12 => bytes += self.deliver(pool, random.below(FOLDERS), true)?,
                12..14 => {
                    let marked = Message { marks: message.marks + 1, ..message };
                    fs::rename(message.path(&self.root), marked.path(&self.root))?;
                    self.messages[place] = marked;
                }
                14 => {
                    let moved = Message { folder: random.below(FOLDERS), ..message };
                    fs::rename(message.path(&self.root), moved.path(&self.root))?;
                    self.messages[place] = moved;
                }
                _ if self.messages.len() > 1 => {
                    fs::remove_file(message.path(&self.root))?;
                    self.messages.swap_remove(place);
                }
                _ => {}
            }
        }
        Ok(bytes)
    }
}

pub fn run(run: &mut Run) -> Result<()> {
    let (root, seed) = (run.make_tree("mail")?, run.seed(9));
    let pool = Text::new().make(seed, 1 << 20);
    for folder in 0..FOLDERS {
        fs::create_dir(root.join(format!("folder{folder}")))?;
    }
    let messages = run.scaled(MESSAGES_A_FOLDER, 8);
    let mut clients: Vec<Client> = (0..THREADS)
        .map(|number| Client { root: root.clone(), number, messages: Vec::new(), next: 0, seed })
        .collect();
    for client in &mut clients {
        for number in 0..messages * FOLDERS / THREADS {
            client.deliver(&pool, number % FOLDERS, false)?;
        }
    }
    run.sync()?;
    run.cold()?;
    let operations = run.scaled(OPERATIONS_A_THREAD, 50);
    let meter = run.meter();
    let bytes: u64 = thread::scope(|scope| {
        let works: Vec<_> =
            clients.iter_mut().map(|client| scope.spawn(|| client.work(&pool, operations))).collect();
        let done = works.into_iter().map(|work| work.join().map_err(|_| anyhow!("a thread has panicked"))?);
        done.sum::<Result<u64>>()
    })?;
    let mut measured = meter.measured();
    run.settle(&meter, &mut measured)?;
    let left: usize = clients.iter().map(|client| client.messages.len()).sum();
    let mut found = 0;
    for folder in 0..FOLDERS {
        found += fs::read_dir(root.join(format!("folder{folder}")))?.count();
    }
    ensure!(found == left, "{found} messages are there, not {left}");
    for client in &clients {
        for message in &client.messages {
            message.check(&root, &pool, seed)?;
        }
    }
    run.add(
        Figure::rate("mail server, 4 threads", "operations", (operations * THREADS) as f64, measured)
            .wrote(bytes),
    );
    Ok(())
}
