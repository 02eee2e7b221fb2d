//! Bad specifications end with one clear line and exit code 2, before anything is touched.

use std::io::Write;
use std::process::Stdio;

use crate::common::{Bench, stderr};
use serde_json::{Value, json};

/// Asserts exit code 2 and a single line that holds all the parts.
fn assert_refused(bench: &Bench, command: &str, parts: &[&str]) {
    let output = bench.call(command);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert_eq!(message.trim_end().lines().count(), 1, "{message}");
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
    assert!(!bench.path("result.json").exists(), "a result of a refused specification");
}

#[test]
fn impossible_values_are_named_with_what_is_allowed() {
    let cases: &[(&str, Value, &[&str])] = &[
        ("/ycsb/skew", json!(-1), &["ycsb.skew = -1", "allowed: 0 to 5"]),
        ("/ycsb/records", json!(0), &["ycsb.records = 0", "allowed: 1 to"]),
        ("/ycsb/read_share", json!(1.5), &["ycsb.read_share = 1.5", "allowed: 0 to 1"]),
        ("/ycsb/field_bytes", json!(8), &["ycsb.field_bytes = 8", "allowed: 9 to 255"]),
        ("/ycsb/update_fields", json!(2), &["ycsb.update_fields = 2", "allowed: 1"]),
        ("/ycsb/verify_share", json!(-0.1), &["ycsb.verify_share = -0.1"]),
        ("/ycsb/key_order", json!("random"), &["`random`", "`clustered`", "`scattered`", "line 1"]),
        ("/terminals", json!(0), &["terminals = 0", "allowed: 1 to 4096"]),
        ("/terminals", json!(-1), &["-1", "u32"]),
        ("/measure_s", json!(0), &["measure_s = 0", "allowed: 0.1 to"]),
        ("/warmup_s", json!(-1), &["warmup_s = -1"]),
        ("/loading_threads", json!(0), &["loading_threads = 0"]),
        ("/format", json!(2), &["format = 2", "allowed: 1"]),
        ("/system", json!("oracle"), &["system = oracle", "allowed: mysql, mysql-memcached, anticache-lru", "null"]),
        ("/benchmark", json!("tpch"), &["benchmark = tpch", "allowed: ycsb"]),
        ("/mysql_transaction", json!("none"), &["`none`", "`explicit`", "`autocommit`"]),
        ("/record_transactions", json!(100_000_001_u64), &["record_transactions = 100000001", "0 to 100000000"]),
        ("/arrival", json!("regular"), &["`regular`", "`closed`", "`fixed`", "`poisson`"]),
        ("/arrival", json!("fixed"), &["offered_txn_s = absent", "needed when arrival is fixed or poisson"]),
        (
            "/arrival",
            json!("poisson"),
            &["offered_txn_s = absent", "allowed: 0.001 to 10000000 transactions per second"],
        ),
        ("/offered_txn_s", json!(100), &["offered_txn_s = 100", "arrival is closed", "absent, or arrival fixed"]),
        ("/engine_settings", json!({"merge": "block"}), &["engine_settings = present", "is not the engine", "absent"]),
        ("/client_cpus", json!("7-3"), &["client_cpus = 7-3", "backwards", "0-1,3"]),
        ("/client_cpus", json!("1000"), &["client_cpus = 1000", "not available"]),
        ("/schema", json!("/nonexistent/ycsb.sql"), &["schema = /nonexistent/ycsb.sql", "No such file"]),
    ];
    for (pointer, value, parts) in cases {
        let mut bench = Bench::new();
        bench.set(pointer, value.clone());
        assert_refused(&bench, "run", parts);
    }
}

#[test]
fn impossible_rates_are_named_with_what_is_allowed() {
    for (rate, shown) in [(json!(0), "0"), (json!(-5), "-5"), (json!(1e12), "1000000000000")] {
        let mut bench = Bench::new();
        bench.set("/arrival", json!("poisson"));
        bench.set("/offered_txn_s", rate);
        let found = format!("offered_txn_s = {shown}: out of range");
        assert_refused(&bench, "run", &[&found, "allowed: 0.001 to 10000000"]);
    }
    // JSON has no such number: serde writes null for it, and whoever writes NaN writes no JSON.
    let mut bench = Bench::new();
    bench.set("/arrival", json!("fixed"));
    bench.set("/offered_txn_s", json!(f64::NAN));
    assert_refused(&bench, "run", &["offered_txn_s = absent"]);
    let text = bench.spec.to_string().replace("\"offered_txn_s\":null", "\"offered_txn_s\":NaN");
    std::fs::write(bench.path("nan.json"), text).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_loadgen"))
        .args(["run", "--spec", bench.path("nan.json").to_str().unwrap(), "--out"])
        .arg(bench.path(""))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("nan.json: line 1"), "{}", stderr(&output));

    let mut bench = Bench::tpcc();
    bench.set("/tpcc/wait_factor", json!(0.5));
    bench.set("/arrival", json!("fixed"));
    bench.set("/offered_txn_s", json!(10));
    assert_refused(&bench, "run", &["tpcc.wait_factor = 0.5", "do not pause in an open loop", "0, or arrival closed"]);
}

#[test]
fn impossible_tpcc_databases_are_named_with_what_is_allowed() {
    let cases: &[(&str, Value, &[&str])] = &[
        ("/tpcc/warehouses", json!(0), &["tpcc.warehouses = 0", "allowed: 1 to 32767"]),
        ("/tpcc/warehouses", json!(32_768), &["tpcc.warehouses = 32768", "allowed: 1 to 32767"]),
        ("/tpcc/items", json!(0), &["tpcc.items = 0", "allowed: 1 to 100000"]),
        ("/tpcc/customers_per_district", json!(3001), &["customers_per_district = 3001", "allowed: 1 to 3000"]),
        ("/tpcc/orders_per_district", json!(29), &["tpcc.orders_per_district = 29", "allowed: 30 to 10000000"]),
        ("/tpcc/wait_factor", json!(-0.5), &["tpcc.wait_factor = -0.5", "allowed: 0 to 10"]),
        ("/tpcc/access", json!("far"), &["`far`", "`home-warehouse`", "`remote`"]),
        ("/tpcc/population_seed", json!(-1), &["-1", "u64"]),
        ("/tpcc/mix", json!(1), &["unknown field `mix`", "`access`"]),
        ("/schema", Value::Null, &["schema = absent", "needed when benchmark is tpcc"]),
        ("/schema", json!("/nonexistent.sql"), &["schema = /nonexistent.sql", "No such file"]),
        ("/benchmark", json!("ycsb"), &["tpcc = present", "benchmark is ycsb", "allowed: absent"]),
    ];
    for (pointer, value, parts) in cases {
        let mut bench = Bench::tpcc();
        bench.set(pointer, value.clone());
        assert_refused(&bench, "run", parts);
    }
    let mut bench = Bench::tpcc();
    bench.set("/schema", json!(Bench::schema("ycsb.sql")));
    assert_refused(&bench, "run", &["ycsb.sql", "`warehouse`", "TPC-C needs it"]);
}

#[test]
fn unknown_and_missing_keys_are_named() {
    let mut bench = Bench::new();
    bench.set("/warm_up_s", json!(1));
    assert_refused(&bench, "run", &["spec.json", "line 1", "unknown field `warm_up_s`", "`warmup_s`"]);

    let mut bench = Bench::new();
    bench.set("/ycsb/zipf", json!(1));
    assert_refused(&bench, "run", &["unknown field `zipf`", "`skew`"]);

    let mut bench = Bench::new();
    bench.spec.as_object_mut().unwrap().remove("seed");
    assert_refused(&bench, "run", &["missing field `seed`"]);

    let mut bench = Bench::new();
    bench.spec.as_object_mut().unwrap().remove("ycsb");
    assert_refused(&bench, "run", &["ycsb = absent", "needed when benchmark is ycsb"]);
}

/// Neither the file of an endpoint nor its secrets' values are repeated when they are malformed.
#[test]
fn a_malformed_secret_is_not_repeated() {
    for key in ["mysql_password", "anticache_secret"] {
        let mut bench = Bench::new();
        bench.set("/endpoint", json!({key: 7_214_033}));
        let output = bench.call("run");
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains("a password or secret that is no text") && !text.contains("7214033"), "{text}");
    }
}

/// `--endpoint` stands for the specification's endpoint, and may be a pipe.
#[test]
fn an_endpoint_given_apart_replaces_the_specifications() {
    let mut bench = Bench::new();
    bench.set("/system", json!("mysql"));
    bench.set("/endpoint", json!({"mysql_address": "127.0.0.1:1"}));
    let mut command = bench.command("run");
    let mut child =
        command.args(["--endpoint", "/dev/stdin"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(br#"{"mysql_address": "nowhere"}"#).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("endpoint.mysql_address = nowhere"), "{}", stderr(&output));
}

#[test]
fn endpoints_must_fit_the_system() {
    let mut bench = Bench::new();
    bench.set("/system", json!("mysql-memcached"));
    bench.set("/endpoint", json!({"mysql_address": "127.0.0.1:33061"}));
    assert_refused(&bench, "run", &["endpoint.memcached_address = absent", "HOST:PORT"]);

    bench.set("/system", json!("mysql"));
    bench.set("/endpoint", json!({"mysql_address": "127.0.0.1"}));
    assert_refused(&bench, "run", &["endpoint.mysql_address = 127.0.0.1", "HOST:PORT"]);

    bench.set("/endpoint", json!({"mysql_address": "127.0.0.1:1", "adapter": "anticache"}));
    assert_refused(&bench, "run", &["endpoint.adapter = anticache", "does not fit system mysql"]);

    bench.set("/endpoint", json!({"mysql_address": "127.0.0.1:1", "mysql_database": "a`b"}));
    assert_refused(&bench, "run", &["endpoint.mysql_database = a`b"]);
}

#[test]
fn missing_and_malformed_files_are_named() {
    let bench = Bench::new();
    let call = |arguments: &[&str]| {
        std::process::Command::new(env!("CARGO_BIN_EXE_loadgen")).args(arguments).output().unwrap()
    };
    let output = call(&["run", "--spec", "/nonexistent/spec.json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("/nonexistent/spec.json"), "{}", stderr(&output));

    let malformed = bench.path("malformed.json");
    std::fs::write(&malformed, "{\"format\": 1,\n  \"system\" \"null\"}").unwrap();
    let output = call(&["run", "--spec", malformed.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("malformed.json: line 2, column"), "{}", stderr(&output));

    let spec = bench.write_spec();
    let output = call(&["run", "--spec", spec.to_str().unwrap(), "--out", "/nonexistent/out"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--out = /nonexistent/out"), "{}", stderr(&output));

    let output = call(&["run", "--spec", spec.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "run without --out");
    assert_refused(&bench, "load", &["schema = absent", "needed by load"]);
}
