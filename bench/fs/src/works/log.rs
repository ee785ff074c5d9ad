//! A log: short lines, each by one call with O_APPEND.

use std::{
    fs::{self, File},
    io::Write,
};

use anyhow::{Result, ensure};

use crate::{figure::Figure, run::Run};

const LINES: u64 = 100_000;

fn line(number: u64) -> String {
    format!(
        "{number:012} the service has answered request {:08x} without an error, again.\n",
        number * 7919 % 0xffff_ffff
    )
}

pub fn run(run: &mut Run) -> Result<()> {
    let (lines, path) = (run.scaled(LINES, 100), run.path("log"));
    let meter = run.meter();
    let mut file = File::options().create(true).append(true).open(&path)?;
    for number in 0..lines {
        file.write_all(line(number).as_bytes())?;
    }
    drop(file);
    let mut measured = meter.measured();
    run.settle(&meter, &mut measured)?;
    let wanted: String = (0..lines).map(line).collect();
    ensure!(fs::read(&path)? == wanted.as_bytes(), "the log is not what was written");
    run.add(
        Figure::seconds("log lines of 80 B", measured).wrote(wanted.len() as u64).with("lines", lines as f64),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    /// What the name of the row says.
    const LINE_BYTES: usize = 80;

    #[test]
    fn lines_have_their_length() {
        for number in [0, 1, 99_999] {
            assert_eq!(super::line(number).len(), LINE_BYTES);
        }
    }
}
