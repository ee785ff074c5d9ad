//! A large file that does not compress: written in calls of several sizes, read cold.

use std::{
    fs::{self, File},
    io::{Read, Write},
};

use anyhow::{Result, ensure};

use crate::{data::content::Content, figure::Figure, run::Run};

const FILE_BYTES: u64 = 1 << 30;
const READ_BYTES: usize = 1 << 20;
const MIB: f64 = 1e6;

/// Sizes of the calls, their names, and by what the file is smaller for them.
const CALLS: [(usize, &str, u64); 5] = [
    (1000, "1,000 B", 8),
    (4 << 10, "4 KiB", 4),
    (10 << 10, "10 KiB", 4),
    (40 << 10, "40 KiB", 1),
    (1 << 20, "1 MiB", 1),
];

pub fn run(run: &mut Run) -> Result<()> {
    let content = Content::new(run.seed(2));
    let mut scratch = Vec::new();
    for (call, name, divisor) in CALLS {
        let bytes = run.scaled(FILE_BYTES / divisor, 1 << 20);
        let path = run.path("large");
        let mut piece = vec![0; call];
        let meter = run.meter();
        let mut file = File::create(&path)?;
        let mut at = 0;
        while at < bytes {
            let len = (bytes - at).min(call as u64) as usize;
            content.fill(at, &mut piece[..len]);
            file.write_all(&piece[..len])?;
            at += len as u64;
        }
        file.sync_all()?;
        let mut written = meter.measured();
        drop(file);
        run.settle(&meter, &mut written)?;
        let row = format!("write in calls of {name} + fsync");
        run.add(Figure::rate(row, "MB", bytes as f64 / MIB, written).wrote(bytes));

        let mut buffer = vec![0; READ_BYTES];
        let meter = run.meter();
        let mut file = File::open(&path)?;
        let mut at = 0;
        loop {
            let len = file.read(&mut buffer)?;
            if len == 0 {
                break;
            }
            content.check(at, &buffer[..len], &mut scratch)?;
            at += len as u64;
        }
        let read = meter.measured();
        drop(file);
        ensure!(at == bytes, "{at} bytes were read of {bytes}");
        if call == READ_BYTES {
            run.add(Figure::rate("sequential read, cold", "MB", bytes as f64 / MIB, read).read(bytes));
        }
        fs::remove_file(&path)?;
        run.sync()?;
    }
    Ok(())
}
