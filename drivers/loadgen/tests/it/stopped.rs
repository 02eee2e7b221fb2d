//! A load generator that is stopped and goes on, as Ctrl-Z and `fg`, a debugger or a frozen container do: the kernel then ends waits that have a time limit
//! with an error, which is no broken connection.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Bench, signal, stderr};
use crate::served::Served;
use crate::servers::{Memcached, Mysqld};

const RUNS: Duration = Duration::from_millis(3);
const STOPPED: Duration = Duration::from_millis(2);

/// Calls loadgen and stops it again and again; how often.
fn call_with_stops(bench: &Bench, command: &str) -> u32 {
    let mut call = bench.command(command);
    let mut child = call.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("loadgen starts");
    let mut stops = 0;
    while child.try_wait().unwrap().is_none() {
        std::thread::sleep(RUNS);
        signal(&child, Signal::STOP);
        std::thread::sleep(STOPPED);
        signal(&child, Signal::CONT);
        stops += 1;
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{command} {}: {}", bench.spec["system"], stderr(&output));
    stops
}

fn loads_and_runs(bench: &mut Bench, system: &str, endpoint: &Value) {
    bench.set("/system", json!(system));
    bench.set("/endpoint", endpoint.clone());
    for command in ["load", "prewarm", "run"] {
        let stops = call_with_stops(bench, command);
        // A load of so few records may be over first where the machine is busy with others.
        assert!(stops > 2 || command != "run", "{system}: {stops}");
    }
    let result = bench.result();
    assert!(result["committed"].as_u64() > Some(0), "{result:#}");
    assert_eq!((&result["verify_failed"], &result["errors"]), (&json!(0), &json!({})), "{result:#}");
}

fn ycsb() -> Bench {
    let mut bench = Bench::new();
    bench.set("/schema", json!(Bench::schema("ycsb.sql")));
    bench.set("/ycsb/verify_share", json!(1.0));
    bench
}

#[test]
fn no_connection_to_mysql_or_memcached_breaks() {
    let (server, cache) = (Mysqld::start(), Memcached::start(64));
    let mut endpoint = server.endpoint();
    endpoint["memcached_address"] = json!(cache.address());
    for system in ["mysql", "mysql-memcached", "memcached-alone"] {
        loads_and_runs(&mut ycsb(), system, &endpoint);
    }
    for system in ["mysql", "mysql-memcached"] {
        loads_and_runs(&mut Bench::tpcc(), system, &endpoint);
    }
}

#[test]
fn no_connection_to_the_engine_breaks() {
    let settings = json!({"partitions": 2, "memory_budget_bytes": 64 << 20});
    for (bench, schema) in [(ycsb(), "ycsb.sql"), (Bench::tpcc(), "tpcc.sql")] {
        let mut served = Served::start(bench, schema, &settings);
        let endpoint = served.bench.spec["endpoint"].clone();
        loads_and_runs(&mut served.bench, "anticache-lru", &endpoint);
        served.stop();
    }
}
