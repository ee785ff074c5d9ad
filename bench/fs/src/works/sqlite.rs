//! SQLite: one large transaction with the rollback journal, and many durable ones with the write-ahead log.

use anyhow::{Result, ensure};
use pando_bench_common::Random;
use rusqlite::{Connection, params};

use crate::{data::mix, figure::Figure, run::Run};

const ROWS: u64 = 300_000;
const ROW_BYTES: usize = 100;
const TRANSACTIONS: u64 = 1_000;

fn value(seed: u64, key: i64) -> Vec<u8> {
    Random::new(mix(seed, key as u64)).bytes(ROW_BYTES)
}

fn open(path: &std::path::Path, journal: &str) -> Result<Connection> {
    let base = Connection::open(path)?;
    let mode: String = base.query_row(&format!("pragma journal_mode={journal}"), [], |row| row.get(0))?;
    ensure!(mode == journal, "the journal is {mode}");
    base.execute_batch("pragma synchronous=full")?;
    Ok(base)
}

fn check(path: &std::path::Path, seed: u64, rows: u64) -> Result<()> {
    let base = Connection::open(path)?;
    let verdict: String = base.query_row("pragma integrity_check", [], |row| row.get(0))?;
    ensure!(verdict == "ok", "SQLite finds damage: {verdict}");
    let mut statement = base.prepare("select k, v from t")?;
    let mut found = statement.query([])?;
    let mut count = 0;
    while let Some(row) = found.next()? {
        let (key, data): (i64, Vec<u8>) = (row.get(0)?, row.get(1)?);
        ensure!(data == value(seed, key), "wrong data in row {key}");
        count += 1;
    }
    ensure!(count == rows, "{count} rows of {rows}");
    Ok(())
}

pub fn run(run: &mut Run) -> Result<()> {
    let (rows, seed) = (run.scaled(ROWS, 100), run.seed(8));
    let path = run.path("large.db");
    let meter = run.meter();
    let mut base = open(&path, "delete")?;
    base.execute_batch("create table t(k integer primary key, v blob)")?;
    let all = base.transaction()?;
    let mut keys = 0;
    {
        let mut insert = all.prepare("insert or ignore into t values(?, ?)")?;
        let mut random = Random::new(seed);
        while keys < rows {
            let key = (random.bits() >> 1) as i64;
            keys += insert.execute(params![key, value(seed, key)])? as u64;
        }
    }
    all.commit()?;
    drop(base);
    let mut measured = meter.measured();
    run.settle(&meter, &mut measured)?;
    check(&path, seed, rows)?;
    run.add(
        Figure::seconds("SQLite, random rows in one transaction", measured)
            .wrote(rows * (ROW_BYTES as u64 + 8))
            .with("rows", rows as f64),
    );

    let (count, path) = (run.scaled(TRANSACTIONS, 20), run.path("wal.db"));
    let base = open(&path, "wal")?;
    base.execute_batch("create table t(k integer primary key, v blob)")?;
    run.sync()?;
    let meter = run.meter();
    {
        let mut insert = base.prepare("insert into t values(?, ?)")?;
        for key in 0..count as i64 {
            insert.execute(params![key, value(seed, key)])?;
        }
    }
    let measured = meter.measured();
    drop(base);
    run.cold()?;
    check(&path, seed, count)?;
    run.add(
        Figure::seconds("SQLite, durable transactions, WAL", measured).with("transactions", count as f64),
    );
    Ok(())
}
