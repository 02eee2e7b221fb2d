//! Load, prewarm and short trials of YCSB on MySQL, MySQL + Memcached and Memcached alone, and on a deployed system: of the
//! endpoint file that `ANTICACHE_EVAL_ENDPOINT` names. Without the variable that one is left out; with it, a server that does not
//! answer is a failure.

use std::path::Path;

use crate::common::{Bench, read_json, stderr};
use crate::servers::{Memcached, Mysqld};
use loadgen::systems::mysql_memcached::cache::{Cache, Stored};
use serde_json::{Value, json};

fn succeed(bench: &Bench, command: &str) -> Value {
    let output = bench.call(command);
    assert_eq!(output.status.code(), Some(0), "{command}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
}

fn trial(bench: &Bench) -> Value {
    succeed(bench, "run");
    let result = bench.result();
    let status = result["status"].as_str().unwrap_or_default();
    // The tests run as a debug build, perhaps beside others: slow is not wrong.
    let harmless = |flag: &Value| flag == "debug_build" || flag == "client_saturated";
    let flags = result["flags"].as_array().cloned().unwrap_or_default();
    assert!(status == "ok" || status == "invalid" && flags.iter().all(harmless), "{result:#}");
    result
}

#[test]
fn a_deployed_system_is_loaded_and_driven() {
    let Ok(endpoint) = std::env::var("ANTICACHE_EVAL_ENDPOINT") else {
        return;
    };
    load_and_drive(&read_json(Path::new(&endpoint)));
}

#[test]
fn mysql_with_memcached_is_loaded_and_driven() {
    let (server, cache) = (Mysqld::start(), Memcached::start(64));
    let mut endpoint = server.endpoint();
    endpoint["memcached_address"] = json!(cache.address());
    for system in ["mysql", "mysql-memcached"] {
        endpoint["system"] = json!(system);
        endpoint["adapter"] = json!(system);
        load_and_drive(&endpoint);
    }
}

#[test]
fn memcached_alone_is_loaded_and_driven() {
    let cache = Memcached::start(64);
    let alone = "memcached-alone";
    load_and_drive(&json!({"system": alone, "adapter": alone, "memcached_address": cache.address()}));
}

#[test]
fn memcached_alone_refuses_what_it_cannot_hold_or_run() {
    let cache = Memcached::start(2);
    let mut bench = Bench::new();
    bench.set("/system", json!("memcached-alone"));
    bench.set("/endpoint", json!({"memcached_address": cache.address()}));
    bench.set("/ycsb/records", json!(20_000));
    bench.set("/schema", json!(Bench::schema("ycsb.sql")));
    let output = bench.call("load");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("of 20000 records while they were loaded"), "{}", stderr(&output));

    let mut bench = Bench::tpcc();
    bench.set("/system", json!("memcached-alone"));
    bench.set("/endpoint", json!({"memcached_address": cache.address()}));
    let output = bench.call("load");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("system memcached-alone runs ycsb only"), "{}", stderr(&output));
}

#[test]
fn a_version_is_replaced_by_one_of_its_readers_only() {
    let server = Memcached::start(64);
    let (mut one, mut other) = (Cache::connect(&server.address()).unwrap(), Cache::connect(&server.address()).unwrap());
    one.set("key", b"first").unwrap();
    let (value, version) = one.get_with_version("key").unwrap().unwrap();
    assert_eq!(value, b"first");
    assert_eq!(other.get_with_version("key").unwrap(), Some((value, version)));
    assert_eq!(other.replace("key", b"other's", version).unwrap(), Stored::Yes);
    assert_eq!(one.replace("key", b"one's", version).unwrap(), Stored::No);
    assert_eq!(one.get("key").unwrap().unwrap(), b"other's");

    let (_, version) = one.get_with_version("key").unwrap().unwrap();
    other.delete("key").unwrap();
    assert_eq!(one.replace("key", b"one's", version).unwrap(), Stored::No);
    assert_eq!(one.get_with_version("key").unwrap(), None);
}

fn load_and_drive(endpoint: &Value) {
    let mut bench = Bench::new();
    bench.set("/system", endpoint["system"].clone());
    bench.set("/endpoint", endpoint.clone());
    bench.set("/ycsb/records", json!(5000));
    bench.set("/ycsb/verify_share", json!(1.0));
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/schemas/ycsb.sql");
    bench.set("/schema", json!(schema));

    assert_eq!(succeed(&bench, "load")["records"], 5000);
    succeed(&bench, "prewarm");
    for (transaction, order, read_share) in
        [("explicit", "clustered", 0.5), ("autocommit", "scattered", 0.9), ("explicit", "clustered", 1.0)]
    {
        bench.set("/mysql_transaction", json!(transaction));
        bench.set("/ycsb/key_order", json!(order));
        bench.set("/ycsb/read_share", json!(read_share));
        let result = trial(&bench);
        assert!(result["committed"].as_u64() > Some(0));
        assert!(result["verified"].as_u64() > Some(0));
        assert_eq!(result["verify_failed"], 0);
        if endpoint["adapter"] == "mysql-memcached" && read_share == 1.0 {
            let hits = |when: &str| result[when]["loadgen"]["cache_hits"].as_u64().unwrap_or(0);
            assert!(hits("counters_after") > hits("counters_before"), "{result:#}");
        }
    }
}
