//! Many small files, one after the other, by one thread.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};

use crate::{data::text::Text, figure::Figure, run::Run};

/// Size of each file.
pub const FILE_BYTES: usize = 200;
const FILES: u64 = 30_000;
const FILES_A_DIRECTORY: u64 = 1000;

/// What stands in the file with this number: its number, and text.
pub fn content(text: &[u8], number: u64) -> Vec<u8> {
    let from = (number as usize * 37) % (text.len() - FILE_BYTES);
    let mut data = text[from..from + FILE_BYTES].to_vec();
    data[..20].copy_from_slice(format!("{number:>19}\n").as_bytes());
    data
}

/// Text for [`content`].
pub fn pool(seed: u64) -> Vec<u8> {
    Text::new().make(seed, 64 << 10)
}

fn path(root: &Path, number: u64) -> std::path::PathBuf {
    root.join(format!("d{}", number / FILES_A_DIRECTORY)).join(format!("file{number}"))
}

pub fn run(run: &mut Run) -> Result<()> {
    let (files, text) = (run.scaled(FILES, 50), pool(run.seed(1)));
    let root = run.make_tree("new")?;
    run.sync()?;
    let meter = run.meter();
    for number in 0..files {
        let path = path(&root, number);
        if number % FILES_A_DIRECTORY == 0
            && let Some(parent) = path.parent()
        {
            fs::create_dir(parent)?;
        }
        fs::write(&path, content(&text, number)).with_context(|| format!("writing {}", path.display()))?;
    }
    let mut created = meter.measured();
    run.sync()?;
    let mut synced = meter.measured();
    run.settle(&meter, &mut synced)?;
    (created.device, created.settled) = (synced.device, true);
    for number in 0..files {
        let path = path(&root, number);
        let found = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        ensure!(found == content(&text, number), "wrong data in {}", path.display());
    }
    let bytes = files * FILE_BYTES as u64;
    run.add(
        Figure::rate("create 200 B", "files", files as f64, created).wrote(bytes).with("files", files as f64),
    );
    run.add(Figure::seconds("create 200 B + sync", synced).wrote(bytes));
    Ok(())
}
