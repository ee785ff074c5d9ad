use pando_db::{Batch, CreateOptions, Db, Options, device::SimDevice, patch};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{collections::BTreeMap, sync::Arc};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
fn key(r: &mut StdRng) -> Vec<u8> {
    let mut k = Vec::new();
    for _ in 0..r.random_range(1..5) {
        k.push(b'/');
        k.push(b'a' + r.random_range(0..3u8));
        if r.random_range(0..4) == 0 {
            k.push(0xff)
        }
    }
    k.push(b'.');
    k.extend(format!("{}", r.random_range(0..20)).bytes());
    k
}
fn prefix(r: &mut StdRng) -> Vec<u8> {
    let k = key(r);
    let n = r.random_range(1..=k.len());
    k[..n].to_vec()
}
fn under(m: &Map, p: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    m.range(p.to_vec()..).take_while(|(k, _)| k.starts_with(p)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn run(seed: u64, steps: usize) {
    if std::env::var("V").is_ok() {
        println!("seed {seed}");
    }
    let r = &mut StdRng::seed_from_u64(seed);
    let mut dev = Arc::new(SimDevice::new(16 << 20, seed));
    let opts =
        Options { background: false, memtable_bytes: 2000, cache_bytes: 4 << 20, ..Default::default() };
    Db::create(
        dev.clone(),
        &CreateOptions { node_size: 4096, log_size: Some(256 << 10), ..Default::default() },
        &opts,
    )
    .unwrap();
    let mut db = Db::open(dev.clone(), opts.clone()).unwrap();
    let mut m = Map::new();
    let mut log: Vec<Map> = vec![];
    for step in 0..steps {
        match r.random_range(0..100) {
            0..50 => {
                let k = key(r);
                let n = r.random_range(0..300);
                let v: Vec<u8> = (0..n).map(|i| (i as u8) ^ step as u8).collect();
                m.insert(k.clone(), v.clone());
                db.put(k, v).unwrap();
            }
            50..58 => {
                let k = key(r);
                m.remove(&k);
                db.delete(k).unwrap();
            }
            58..70 => {
                let k = key(r);
                let off = r.random_range(0..100);
                let op = patch::write(off, b"xyz");
                let n = pando_db::Merge::apply(&pando_db::PatchMerge, m.get(&k).map(|v| &v[..]), &op)
                    .unwrap()
                    .to_vec();
                m.insert(k.clone(), n);
                db.upsert(k, op).unwrap();
            }
            70..73 => {
                let p = prefix(r);
                for (k, _) in under(&m, &p) {
                    m.remove(&k);
                }
                db.delete_prefix(p).unwrap();
            }
            73..85 => {
                let (s, d) = (prefix(r), prefix(r));
                if s.starts_with(&d) || d.starts_with(&s) {
                    assert!(db.clone_prefix(s, d).is_err());
                    continue;
                }
                let mv = r.random_range(0..3) == 0;
                if under(&m, &s).len() > 2000 {
                    continue;
                }
                let src = under(&m, &s);
                for (k, _) in under(&m, &d) {
                    m.remove(&k);
                }
                for (k, v) in src {
                    if mv {
                        m.remove(&k);
                    }
                    m.insert([&d[..], &k[s.len()..]].concat(), v);
                }
                if mv { db.rename_prefix(s, d).unwrap() } else { db.clone_prefix(s, d).unwrap() }
            }
            85..95 => {
                let k = key(r);
                assert_eq!(
                    db.get(&k).unwrap().map(|b| b.to_vec()),
                    m.get(&k).cloned(),
                    "seed {seed} step {step} get {k:?}"
                );
            }
            95..97 => db.checkpoint().unwrap(),
            97 => {
                let c = db.check().unwrap();
                assert!(c.findings.is_empty(), "seed {seed} step {step}: {:?}", c.findings);
            }
            98 => {
                let got: Map = db
                    .range(b"", None)
                    .map(|x| x.map(|(k, v)| (k.to_vec(), v.to_vec())))
                    .collect::<Result<_, _>>()
                    .unwrap();
                cmp(&got, &m, seed, step);
                let mut back: Vec<_> = db.range(b"", None).rev().map(|x| x.unwrap().0.to_vec()).collect();
                back.reverse();
                assert_eq!(back, m.keys().cloned().collect::<Vec<_>>(), "seed {seed} step {step} back");
            }
            _ => {
                if r.random_range(0..2) == 0 {
                    db.close().unwrap();
                    drop(db);
                } else {
                    db.sync().unwrap();
                    drop(db);
                    dev.crash();
                }
                dev = dev.reopen();
                db = Db::open(dev.clone(), opts.clone()).unwrap();
                let got: Map = db
                    .range(b"", None)
                    .map(|x| x.map(|(k, v)| (k.to_vec(), v.to_vec())))
                    .collect::<Result<_, _>>()
                    .unwrap();
                cmp(&got, &m, seed, step);
                let c = db.check().unwrap();
                assert!(c.findings.is_empty(), "seed {seed} step {step}: {:?}", c.findings);
            }
        }
        if std::env::var("CHK").is_ok() {
            let c = db.check().unwrap();
            assert!(c.findings.is_empty(), "seed {seed} step {step}: {:?} {:?}", c.findings, db.stats());
        }
        let _ = &mut log;
        let _ = Batch::new();
    }
    let s = db.stats().unwrap();
    if seed % 20 == 0 {
        println!("seed {seed}: keys {} {:?}", m.len(), s);
    }
}
fn cmp(got: &Map, m: &Map, seed: u64, step: usize) {
    for (k, v) in m {
        assert_eq!(
            got.get(k),
            Some(v),
            "seed {seed} step {step} key {:?} missing or wrong",
            String::from_utf8_lossy(k)
        );
    }
    for k in got.keys() {
        assert!(m.contains_key(k), "seed {seed} step {step} extra key {:?}", String::from_utf8_lossy(k));
    }
}
#[test]
fn smoke() {
    if let Ok(s) = std::env::var("SEED") {
        return run(s.parse().unwrap(), 3000);
    }
    for seed in 0..60 {
        run(seed, 3000);
    }
}
