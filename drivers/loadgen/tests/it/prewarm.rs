//! Prewarming the engine, served in this process.

use std::net::SocketAddr;
use std::path::Path;

use anticache_engine::client::Client;
use anticache_engine::config::Config;
use anticache_engine::net::server::Server;
use loadgen::ycsb::{Ycsb, YcsbSpec};
use serde_json::json;

use crate::common::{Bench, stderr};

const RECORDS: u64 = 8000;

/// A trial of an engine with memory for about a quarter of the records; they are loaded.
fn serve_loaded(key_order: &str) -> (Server, Bench, tempfile::TempDir) {
    // Not in memory: the engine insists on direct I/O.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/schemas/ycsb.sql");
    let config = json!({
        "schema": schema, "data_dir": directory.path().join("data"), "listen": "127.0.0.1:0", "partitions": 2,
        "memory_budget_bytes": 3 << 20, "anticaching": "lru", "eviction_block_bytes": 16384, "log": "off",
    });
    let config: Config = serde_json::from_value(config).unwrap();
    let server = Server::start(&config).unwrap();
    let mut bench = Bench::new();
    bench.set("/system", json!("anticache-lru"));
    bench.set("/endpoint", json!({"anticache_address": server.address().to_string()}));
    bench.set("/ycsb/records", json!(RECORDS));
    bench.set("/ycsb/key_order", json!(key_order));
    bench.set("/schema", json!(schema));
    succeed(&bench, "load");
    (server, bench, directory)
}

fn succeed(bench: &Bench, command: &str) {
    let output = bench.call(command);
    assert_eq!(output.status.code(), Some(0), "{command}: {}", stderr(&output));
}

fn counter(address: SocketAddr, name: &str) -> u64 {
    Client::connect(address).unwrap().stats().unwrap()[name].as_u64().unwrap()
}

/// How many of the `hottest` hottest records are not in memory, found by reading them.
fn evicted_of(address: SocketAddr, bench: &Bench, hottest: u64) -> u64 {
    let spec: YcsbSpec = serde_json::from_value(bench.spec["ycsb"].clone()).unwrap();
    let ycsb = Ycsb::new(&spec, 42);
    let mut client = Client::connect(address).unwrap();
    let read = client.procedure("ycsb_read").unwrap();
    let before = counter(address, "merged_wanted");
    for key in (1..=hottest).map(|rank| ycsb.key_of_rank(rank)) {
        client.call(client.partition_of(key), read, &key.to_le_bytes()).unwrap();
    }
    counter(address, "merged_wanted") - before
}

#[test]
fn scattered_hot_records_are_brought_into_the_engines_memory() {
    let (server, bench, _directory) = serve_loaded("scattered");
    let address = server.address();
    let resident = counter(address, "tuples_resident");
    assert!((1000..RECORDS / 2).contains(&resident), "{resident} of {RECORDS} in memory");
    succeed(&bench, "prewarm");
    let after = counter(address, "tuples_resident");
    assert!(after > resident * 9 / 10, "{resident}, then {after}");
    let evicted = evicted_of(address, &bench, resident * 9 / 10);
    assert!(evicted <= resident / 100, "{evicted} of the {resident} hottest are not in memory");
    server.stop();
}

#[test]
fn clustered_hot_records_are_left_as_loading_left_them() {
    let (server, bench, _directory) = serve_loaded("clustered");
    let address = server.address();
    let committed = counter(address, "committed");
    succeed(&bench, "prewarm");
    assert_eq!(counter(address, "committed"), committed, "nothing has to be read");
    server.stop();
}
