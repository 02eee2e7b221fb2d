//! What a system has put off is done before the next trial.

use serde_json::{Value, json};

use crate::common::{Bench, read_json, stderr};
use crate::served::Served;
use crate::servers::Mysqld;

/// About 1500 pages.
const RECORDS: u64 = 20_000;

fn succeed(bench: &Bench, command: &str) -> Value {
    let output = bench.call(command);
    assert_eq!(output.status.code(), Some(0), "{command}: {}", stderr(&output));
    read_json(&bench.path(&format!("{}.json", if command == "run" { "result" } else { command })))
}

#[test]
fn mysql_writes_back_its_dirty_pages_and_keeps_its_settings() {
    let server = Mysqld::start();
    let mut bench = Bench::new();
    bench.set("/system", json!("mysql"));
    bench.set("/endpoint", server.endpoint());
    bench.set("/schema", json!(Bench::schema("ycsb.sql")));
    bench.set("/ycsb/records", json!(RECORDS));
    bench.set("/ycsb/read_share", json!(0.0));
    succeed(&bench, "load");
    assert_ne!(succeed(&bench, "run")["status"], "failed");
    let dirty = |state: &Value| state["counters"]["mysqld"]["Innodb_buffer_pool_pages_dirty"].as_u64().unwrap();
    let before = succeed(&bench, "counters");
    assert!(dirty(&before) > 20, "{} dirty pages after updates", dirty(&before));
    let done = succeed(&bench, "quiesce");
    assert!(done["summary"].as_str().unwrap().contains("dirty pages written back"), "{done}");
    let after = succeed(&bench, "counters");
    assert_eq!(dirty(&after), 0);
    for name in ["innodb_io_capacity", "innodb_io_capacity_max"] {
        assert_eq!(after["settings"]["mysqld"][name], before["settings"]["mysqld"][name], "{name}");
    }
    assert_eq!(succeed(&bench, "quiesce")["summary"], "mysqld: no dirty page");
}

#[test]
fn the_engine_takes_a_snapshot() {
    let settings =
        json!({"memory_budget_bytes": 8 << 20, "log": "sync", "snapshot_interval_s": 0, "snapshot_log_bytes": 0});
    let served = Served::start(Bench::new(), "ycsb.sql", &settings);
    served.succeed("load");
    let snapshots = || served.client().stats().unwrap()["snapshots"].as_u64().unwrap();
    assert_eq!(snapshots(), 0);
    let done = served.succeed("quiesce");
    assert_eq!((done["summary"].as_str(), snapshots()), (Some("anticached: snapshot 1"), 1));
    served.stop();
}

#[test]
fn a_system_that_puts_nothing_off_has_nothing_to_do() {
    assert_eq!(succeed(&Bench::new(), "quiesce")["summary"], "nothing was put off");
}
