//! The server process, killed in the middle of a load from clients again and again: what it acknowledged is there after each restart.

use std::collections::HashMap;
use std::time::Duration;

use anticache_engine::client::{Client, ClientError, Reply};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::served::{WATCHDOG, serve, serve_in, stop};

const RECORDS: i64 = 6000;
const KILLS: u64 = 14;
const OUTSTANDING: usize = 200;

fn settings() -> serde_json::Value {
    serde_json::json!({"memory_budget_bytes": 4 << 20, "snapshot_log_bytes": 512 << 10, "snapshot_interval_s": 1, "secret_file": null})
}

/// A row whose first field holds a version.
fn row(key: i64, version: u64) -> Vec<u8> {
    let mut row = key.to_le_bytes().to_vec();
    row.extend_from_slice(&field(version));
    row.resize(8 + 1000, b'a' + (key % 26) as u8);
    row
}

fn field(version: u64) -> Vec<u8> {
    format!("{version:0100}").into_bytes()
}

/// What is known of a key: the last version acknowledged, and the one on its way, if any.
#[derive(Debug, Default, Clone, Copy)]
struct Known {
    acknowledged: Option<u64>,
    pending: Option<u64>,
}

struct Load {
    known: HashMap<i64, Known>,
    next_version: u64,
    next_key: i64,
    random: Pcg64Mcg,
}

impl Load {
    fn submit(&mut self, client: &mut Client) {
        let inserts = self.next_key < RECORDS && self.random.random_bool(0.5) || self.next_key < 10;
        let key = if inserts { self.next_key } else { self.random.random_range(0..self.next_key) };
        let known = self.known.entry(key).or_default();
        if known.pending.is_some() || (!inserts && known.acknowledged.is_none()) {
            return;
        }
        self.next_version += 1;
        known.pending = Some(self.next_version);
        let mut params = Vec::new();
        let name = if inserts {
            self.next_key += 1;
            params.extend_from_slice(&1u32.to_le_bytes());
            params.extend(row(key, self.next_version));
            "ycsb_load"
        } else {
            params.extend_from_slice(&key.to_le_bytes());
            params.extend_from_slice(&0u16.to_le_bytes());
            params.extend(field(self.next_version));
            "ycsb_update"
        };
        let procedure = client.procedure(name).unwrap();
        client.submit(key as u64, client.partition_of(key), procedure, &params);
    }

    /// Works until the server is gone.
    fn work(&mut self, client: &mut Client) -> ClientError {
        loop {
            while client.outstanding() < OUTSTANDING {
                self.submit(client);
            }
            let known = &mut self.known;
            let mut on_reply = |key: u64, reply: Reply<'_>| {
                assert_eq!(reply, Reply::Committed(&[]), "key {key}");
                let known = known.get_mut(&(key as i64)).unwrap();
                known.acknowledged = known.pending.take();
            };
            if let Err(error) = client.wait(&mut on_reply) {
                return error;
            }
        }
    }

    /// Reads everything; each key has its last acknowledged version or the one that was on its way.
    fn check(&mut self, client: &mut Client) {
        let read = client.procedure("ycsb_read").unwrap();
        for &key in self.known.keys() {
            client.submit(key as u64, client.partition_of(key), read, &key.to_le_bytes());
        }
        let known = &mut self.known;
        let mut found = |key: u64, reply: Reply<'_>| {
            let key = key as i64;
            let Known { acknowledged, pending } = known[&key];
            let version = match reply {
                Reply::Committed(columns) => {
                    let version = std::str::from_utf8(&columns[..100]).unwrap().parse().unwrap();
                    assert_eq!(columns, &row(key, version)[8..], "key {key}");
                    Some(version)
                }
                Reply::Aborted("no such key") => None,
                other => panic!("key {key}: {other:?}"),
            };
            let allowed = version == acknowledged || (pending.is_some() && version == pending);
            assert!(allowed, "key {key} has version {version:?}, expected {acknowledged:?} or {pending:?}");
            known.insert(key, Known { acknowledged: version, pending: None });
        };
        while client.wait(&mut found).unwrap() > 0 {}
        // A row that did not survive is not inserted again.
        known.retain(|_, known| known.acknowledged.is_some());
    }
}

#[test]
fn what_was_acknowledged_survives_every_kill() {
    let random = Pcg64Mcg::seed_from_u64(3);
    let mut load = Load { known: HashMap::new(), next_version: 0, next_key: 0, random };
    let mut served = serve("", &settings());
    let (mut snapshots, mut replayed) = (0, 0);
    for kill in 0..KILLS {
        let mut client = Client::connect(served.address).unwrap();
        client.set_timeout(Some(WATCHDOG / 2)).unwrap();
        load.check(&mut client);
        let stats = client.stats().unwrap();
        snapshots += u64::from(stats["recovered_snapshot_bytes"].as_u64().unwrap() > 0);
        replayed += stats["recovered_log_records"].as_u64().unwrap();
        let pid = Pid::from_child(&served.child);
        let after = Duration::from_millis(load.random.random_range(5..250));
        // How many come due in so short a life depends on the machine: in every third life one is asked for.
        let mut asker = (kill % 3 == 0).then(|| Client::connect(served.address).unwrap());
        let killer = std::thread::spawn(move || {
            if let Some(asker) = &mut asker {
                asker.snapshot().unwrap();
            }
            std::thread::sleep(after);
            kill_process(pid, Signal::KILL).unwrap();
        });
        load.work(&mut client);
        killer.join().unwrap();
        served.child.wait().unwrap();
        served = serve_in(std::sync::Arc::clone(&served.directory), "", &settings());
    }
    let mut client = Client::connect(served.address).unwrap();
    load.check(&mut client);
    assert!(
        snapshots > KILLS / 3 && replayed > 0,
        "{snapshots} recoveries from snapshots, {replayed} transactions replayed"
    );
    // One on demand; then nothing is left to replay.
    let generation = client.snapshot().unwrap();
    assert!(generation > 0);
    drop(client);
    let directory = std::sync::Arc::clone(&served.directory);
    stop(served);
    let served = serve_in(directory, "", &settings());
    let mut client = Client::connect(served.address).unwrap();
    load.check(&mut client);
    assert_eq!(client.stats().unwrap()["recovered_log_records"], 0);
    stop(served);
}
