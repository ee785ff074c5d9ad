//! A small versioned key-value tool: a working state, versions of it, what differs between them, and backups.
//!
//! The working state lies under `now/`, each version under `version/NAME/`. Making a version, and bringing one back, is
//! a clone of a prefix: it costs a small write, however much lies below. A list of the versions lies under `made/`.
//!
//! `cargo run -p pando-db --example versions -- STORE COMMAND...`, with the commands below; without arguments it works
//! through all of them on a temporary store.

use std::{fs::File, path::Path};

use pando_db::{Backup, Batch, CreateOptions, Db, Error, Options};

const USAGE: &str =
    "versions STORE get KEY | set KEY VALUE | swap KEY OLD NEW | list [PREFIX] | save NAME | versions
    | back NAME | diff NAME NAME | stats | backup FILE | restore FILE";

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [store, command @ ..] = &words[..] else { return all_commands() };
    print!("{}", run(Path::new(store), command)?);
    Ok(())
}

/// Runs one command, and gives what it prints.
fn run(store: &Path, command: &[&str]) -> Outcome<String> {
    if let ["restore", file] = command {
        let restored = Backup::open(File::open(file)?)?.restore(
            store,
            &CreateOptions::default(),
            &Options::default(),
        )?;
        return Ok(format!("{} pairs\n", restored.pairs));
    }
    if !store.exists() {
        Db::create(store, &CreateOptions::default().size(1 << 30), &Options::default())?;
    }
    let db = Db::open(store, Options::default().cache_bytes(32 << 20))?;
    let output = on(&db, command);
    // A last checkpoint, so that the next command has nothing to recover. It is made after a failure as well.
    db.close()?;
    output
}

fn on(db: &Db, command: &[&str]) -> Outcome<String> {
    match command {
        ["get", key] => match db.get(format!("now/{key}").as_bytes())? {
            Some(value) => Ok(format!("{}\n", value.escape_ascii())),
            None => Err(format!("{key}: there is no such key").into()),
        },
        ["set", key, value] => {
            db.put(format!("now/{key}"), value.to_string())?;
            db.sync()?;
            Ok(String::new())
        }
        // Compare-and-set: the check and the change are one step, whatever other threads do.
        ["swap", key, old, new] => {
            let mut batch = Batch::new();
            let key = format!("now/{key}");
            batch.expect(key.clone(), Some(old.to_string().into())).put(key, new.to_string());
            match db.write(batch) {
                Ok(()) => Ok(String::new()),
                Err(Error::Conflict { found, .. }) => {
                    let found = found.map_or("nothing".into(), |found| found.escape_ascii().to_string());
                    Err(format!("not {old} but {found} is there").into())
                }
                Err(error) => Err(error.into()),
            }
        }
        ["list"] => list(db, "now/", ""),
        ["list", prefix] => list(db, "now/", prefix),
        ["save", name] => {
            let mut batch = Batch::new();
            // `None`: a version of that name is a conflict.
            batch.expect(format!("made/{name}"), None);
            batch.put(format!("made/{name}"), "").clone_prefix("now/", format!("version/{name}/"));
            db.write(batch)?;
            db.sync()?;
            Ok(String::new())
        }
        ["versions"] => list(db, "made/", ""),
        ["back", name] => {
            let mut batch = Batch::new();
            // A version that was never made would bring back nothing at all.
            batch.expect(format!("made/{name}"), Some("".into()));
            batch.clone_prefix(format!("version/{name}/"), "now/");
            db.write(batch)?;
            db.sync()?;
            Ok(String::new())
        }
        // Reads what differs, and nothing that both versions share.
        ["diff", before, after] => {
            let [before, after] = [before, after].map(|name| format!("version/{name}/"));
            let mut lines = String::new();
            for change in db.diff(before.as_bytes(), after.as_bytes())? {
                let change = change?;
                let show = |value: Option<&[u8]>| value.map_or("-".into(), |v| v.escape_ascii().to_string());
                let (old, new) = (show(change.before.as_deref()), show(change.after.as_deref()));
                lines += &format!("{}: {old} -> {new}\n", change.key.escape_ascii());
            }
            Ok(lines)
        }
        ["stats"] => {
            let (stats, (free, all)) = (db.stats()?, db.space());
            let nodes: u64 = stats.nodes_by_height.iter().sum();
            Ok(format!("{nodes} nodes, {} shared; {free} of {all} bytes free\n", stats.shared_nodes))
        }
        // A snapshot is one moment, also while others write.
        ["backup", file] => {
            let stream = File::create(file)?;
            let report = db.snapshot().backup(&stream)?;
            stream.sync_all()?;
            Ok(format!("{} pairs in {} bytes\n", report.pairs, report.stream_bytes))
        }
        _ => Err(USAGE.into()),
    }
}

/// The pairs under `region` whose keys begin with `prefix` there, a line for each.
fn list(db: &Db, region: &str, prefix: &str) -> Outcome<String> {
    let mut lines = String::new();
    for pair in db.prefix(format!("{region}{prefix}").as_bytes()) {
        let (key, value) = pair?;
        let key = key.get(region.len()..).unwrap_or_default();
        lines += &format!("{} {}\n", key.escape_ascii(), value.escape_ascii());
    }
    Ok(lines)
}

/// Works through all commands on a temporary store.
fn all_commands() -> Outcome<()> {
    let dir = tempfile::tempdir()?;
    let (store, other, stream) =
        (dir.path().join("trees.pando"), dir.path().join("other.pando"), dir.path().join("trees.backup"));
    let at = |store: &Path, command: &str| {
        let command = command.replace("FILE", &stream.display().to_string());
        let output = run(store, &command.split(' ').collect::<Vec<_>>());
        match &output {
            Ok(text) => print!("$ {command}\n{text}"),
            Err(error) => println!("$ {command}\nerror: {error}"),
        }
        output
    };
    let ok = |command| at(&store, command);

    ok("set tree/aspen 47000")?;
    ok("set tree/oak 1")?;
    ok("save first")?;
    ok("swap tree/oak 1 2")?;
    assert!(ok("swap tree/oak 1 3").is_err(), "another value is there");
    ok("set moss/cushion 0")?;
    ok("save second")?;
    assert!(ok("save second").is_err(), "that version is there");
    assert_eq!(ok("diff first second")?, "moss/cushion: - -> 0\ntree/oak: 1 -> 2\n");
    assert_eq!(ok("list tree/")?, "tree/aspen 47000\ntree/oak 2\n");
    ok("back first")?;
    assert!(ok("back third").is_err(), "there is no such version");
    assert_eq!(ok("list")?, "tree/aspen 47000\ntree/oak 1\n");
    assert_eq!(ok("versions")?, "first \nsecond \n");
    ok("stats")?;
    ok("backup FILE")?;
    at(&other, "restore FILE")?;
    assert_eq!(at(&other, "get tree/oak")?, "1\n");
    assert_eq!(at(&other, "diff first second")?, ok("diff first second")?);
    Ok(())
}
