//! The built program: each measurement by itself and through a server, and what it refuses. Sizes are tiny and no time is judged.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_anticache-micro");

struct Bench {
    /// On a file system with direct I/O, which /tmp need not have.
    directory: TempDir,
}

/// A program that is ended, by its id, when the test is over.
struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("the server runs");
        assert!(self.child.wait().expect("the server ends").success());
    }
}

impl Bench {
    fn new() -> Self {
        Self { directory: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, spec: &Value) -> Command {
        std::fs::write(self.path("spec.json"), spec.to_string()).expect("the specification can be written");
        let mut call = Command::new(PROGRAM);
        call.arg("run").arg("--spec").arg(self.path("spec.json")).arg("--out").arg(self.directory.path());
        call
    }

    /// Runs a trial in the program itself.
    fn run(&self, micro: Value) -> Value {
        let mut call = self.command(&spec(micro));
        self.result(call.arg("--directory").arg(self.path("data")).output().expect("it starts"))
    }

    fn result(&self, output: Output) -> Value {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&std::fs::read(self.path("result.json")).expect("a result")).expect("JSON")
    }

    fn serve(&self) -> Server {
        let mut child = Command::new(PROGRAM)
            .args(["serve", "--listen", "127.0.0.1:0", "--memory-budget-bytes", "268435456", "--directory"])
            .arg(self.path("served"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut ready = String::new();
        BufReader::new(child.stdout.take().expect("its output")).read_line(&mut ready).expect("its ready line");
        let address = ready.trim().strip_prefix("anticache-micro ready on ").expect("a ready line").to_owned();
        Server { child, address }
    }
}

fn spec(micro: Value) -> Value {
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/schemas/ycsb.sql");
    json!({
        "format": 1, "system": "anticache-lru", "benchmark": "micro", "micro": micro, "schema": schema,
        "measure_s": 0.05, "seed": 7, "warmup_s": 0.0, "terminals": 1, "client_cpus": "", "loading_threads": 4,
        "mysql_transaction": "autocommit"
    })
}

fn lru_chain(chain: &str) -> Value {
    json!({"measure": "lru_chain", "tuples": 300, "updates": 2000, "skew": 1.0, "chain": chain, "limit_s": 60.0})
}

fn eviction_steps(block_bytes: u64, merged: &str) -> Value {
    json!({"measure": "eviction_steps", "tuples": 100, "block_bytes": block_bytes, "merged": merged, "limit_s": 60.0})
}

fn index_update(indexes: u32, kind: &str) -> Value {
    json!({"measure": "index_update", "tuples": 500, "updates": 100, "indexes": indexes, "index_kind": kind, "limit_s": 60.0})
}

/// The status of a trial that went well: these tests are debug builds, unless somebody builds them otherwise.
fn assert_measured(result: &Value) {
    let (status, flags) = if cfg!(debug_assertions) { ("invalid", json!(["debug_build"])) } else { ("ok", json!([])) };
    assert_eq!((&result["status"], &result["flags"]), (&json!(status), &flags), "{result}");
    assert!(result["elapsed_ms"].as_f64().is_some_and(|elapsed| elapsed > 0.0), "{result}");
    assert!(result["repetitions"].as_u64().is_some_and(|repetitions| repetitions >= 1));
}

#[test]
fn every_chain_is_measured_and_only_one_is_walked() {
    let bench = Bench::new();
    for chain in ["none", "double", "single"] {
        let result = bench.run(lru_chain(chain));
        assert_measured(&result);
        let walked = result["walked_per_update"].as_f64();
        assert_eq!(walked.is_some(), chain == "single", "{result}");
        // Most of the updated tuples are at the far end from where the walk begins.
        assert!(walked.is_none_or(|walked| (150.0..300.0).contains(&walked)), "{result}");
    }
}

#[test]
fn a_block_goes_out_and_comes_back_in_steps_that_add_up() {
    let bench = Bench::new();
    for (block_bytes, merged) in [(65_536, "block"), (65_536, "tuple"), (1 << 20, "block")] {
        let result = bench.run(eviction_steps(block_bytes, merged));
        assert_measured(&result);
        let steps = ["construct_ms", "write_ms", "fetch_ms", "merge_ms"].map(|step| result[step].as_f64());
        assert!(steps.iter().all(|step| step.is_some_and(|ms| ms > 0.0)), "{result}");
        assert!(result["sync_ms"].as_f64().is_some(), "{result}");
        // Each takes 1020 bytes, so that a sector has four.
        assert_eq!(result["tuples_per_block"], (block_bytes / 4096 * 4) as f64);
        assert!(!bench.path("data/blocks.db").exists(), "the block file is removed");
    }
}

#[test]
fn indexes_are_updated_for_every_number_and_kind() {
    let bench = Bench::new();
    for (indexes, kind) in [(0, "hash"), (1, "hash"), (8, "hash"), (1, "ordered"), (8, "ordered")] {
        assert_measured(&bench.run(index_update(indexes, kind)));
    }
}

#[test]
fn what_takes_too_long_fails_and_says_how_far_it_came() {
    let bench = Bench::new();
    let endless = json!({"measure": "lru_chain", "tuples": 100_000, "updates": 1_000_000, "skew": 0.5,
        "chain": "single", "limit_s": 2.0});
    let result = bench.run(endless);
    assert_eq!(result["status"], "failed");
    let reason = result["reason"].as_str().expect("a reason");
    assert!(reason.contains("micro.limit_s = 2 s") && reason.contains("of 1000000 updates"), "{reason}");
    assert_eq!(result["elapsed_ms"], Value::Null, "a part of the work is no measurement");
}

#[test]
fn a_table_beyond_the_budget_and_a_disk_without_direct_io_are_named() {
    let bench = Bench::new();
    let mut call = bench.command(&spec(eviction_steps(16 << 20, "block")));
    call.arg("--directory").arg(bench.path("data")).args(["--memory-budget-bytes", "16777216"]);
    let result = bench.result(call.output().expect("it starts"));
    assert_eq!(result["status"], "failed");
    let reason = result["reason"].as_str().expect("a reason");
    assert!(reason.contains("memory budget of 16777216 bytes"), "{reason}");
    // A pseudo file system takes no file at all; what it says is passed on with the path.
    let mut call = bench.command(&spec(eviction_steps(65_536, "block")));
    let result = bench.result(call.arg("--directory").arg("/proc/self").output().expect("it starts"));
    let reason = result["reason"].as_str().expect("a reason");
    assert!(reason.contains("cannot create the block file /proc/self/blocks.db"), "{reason}");
}

#[test]
fn a_server_runs_one_trial_after_another() {
    let bench = Bench::new();
    let server = bench.serve();
    std::fs::write(bench.path("endpoint.json"), json!({"micro_address": server.address, "pids": {}}).to_string())
        .expect("an endpoint");
    for micro in [lru_chain("double"), eviction_steps(65_536, "tuple"), index_update(2, "hash")] {
        let mut call = bench.command(&spec(micro));
        let result = bench.result(call.arg("--endpoint").arg(bench.path("endpoint.json")).output().expect("it starts"));
        assert_measured(&result);
        assert_eq!(result["server_settings"]["anticache-micro"]["memory_budget_bytes"], 268_435_456);
    }
}

#[test]
fn a_server_gives_up_a_trial_that_nobody_waits_for() {
    let bench = Bench::new();
    let server = bench.serve();
    std::fs::write(bench.path("endpoint.json"), json!({"micro_address": server.address}).to_string()).expect("written");
    let endless = json!({"measure": "lru_chain", "tuples": 100_000, "updates": 1_000_000, "skew": 0.5,
        "chain": "single", "limit_s": 3600.0});
    let mut call = bench.command(&spec(endless));
    let mut asking =
        call.arg("--endpoint").arg(bench.path("endpoint.json")).stderr(Stdio::null()).spawn().expect("it starts");
    std::thread::sleep(std::time::Duration::from_millis(300));
    let pid = rustix::process::Pid::from_child(&asking);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it runs");
    assert_eq!(asking.wait().expect("it ends").code(), Some(130));
    let result: Value =
        serde_json::from_slice(&std::fs::read(bench.path("result.json")).expect("a result")).expect("JSON");
    assert_eq!((&result["status"], &result["reason"]), (&json!("failed"), &json!("interrupted")));
    let mut call = bench.command(&spec(index_update(1, "ordered")));
    assert_measured(
        &bench.result(call.arg("--endpoint").arg(bench.path("endpoint.json")).output().expect("it starts")),
    );
}

#[test]
fn without_a_server_the_trial_has_failed() {
    let bench = Bench::new();
    std::fs::write(bench.path("endpoint.json"), json!({"micro_address": "127.0.0.1:1"}).to_string()).expect("written");
    let mut call = bench.command(&spec(lru_chain("none")));
    let result = bench.result(call.arg("--endpoint").arg(bench.path("endpoint.json")).output().expect("it starts"));
    let reason = result["reason"].as_str().expect("a reason");
    assert!(reason.contains("127.0.0.1:1: cannot connect"), "{reason}");
}

#[test]
fn impossible_values_end_with_one_line_that_names_them() {
    let with = |mut micro: Value, key: &str, value: Value| {
        micro[key] = value;
        spec(micro)
    };
    let mut of_ycsb = spec(lru_chain("none"));
    of_ycsb["benchmark"] = json!("ycsb");
    let cases = [
        (with(lru_chain("none"), "chain", json!("triple")), vec!["`triple`", "`none`", "`double`", "`single`"]),
        (with(lru_chain("none"), "tuples", json!(0)), vec!["micro.tuples = 0", "allowed: 1 to"]),
        (with(lru_chain("none"), "updates", json!(0)), vec!["micro.updates = 0", "allowed: 1 to"]),
        (with(lru_chain("none"), "skew", json!(-1)), vec!["micro.skew = -1", "allowed: 0 to 5"]),
        (with(lru_chain("none"), "limit_s", json!(0)), vec!["micro.limit_s = 0"]),
        (with(lru_chain("none"), "colour", json!("red")), vec!["unknown field `colour`"]),
        (with(eviction_steps(0, "block"), "measure", json!("nothing")), vec!["`nothing`", "`lru_chain`"]),
        (spec(eviction_steps(1000, "block")), vec!["micro.block_bytes = 1000", "allowed: 4096 to"]),
        (spec(eviction_steps(5000, "block")), vec!["micro.block_bytes = 5000", "a multiple of 4096"]),
        (spec(index_update(9, "hash")), vec!["micro.indexes = 9", "allowed: 0 to 8"]),
        (with(index_update(1, "hash"), "updates", json!(501)), vec!["micro.tuples = 500", "allowed: 501 to"]),
        (of_ycsb, vec!["benchmark = ycsb", "allowed: micro"]),
    ];
    for (spec, parts) in cases {
        let bench = Bench::new();
        let output = bench.command(&spec).arg("--directory").arg(bench.path("data")).output().expect("it starts");
        let said: String = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<&str> = said.lines().filter(|line| !line.contains("debug build")).collect();
        assert_eq!((output.status.code(), lines.len()), (Some(2), 1), "{said}");
        for part in parts {
            assert!(lines[0].contains(part), "{part:?} is not in: {said}");
        }
        assert!(!bench.path("result.json").exists());
    }
}
