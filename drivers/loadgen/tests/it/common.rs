//! Helpers of the integration tests, which call the built binary.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A directory for one test with a specification in it.
pub struct Bench {
    directory: TempDir,
    pub spec: Value,
}

impl Bench {
    /// A short trial of the null system.
    pub fn new() -> Bench {
        let spec = json!({
            "format": 1, "system": "null", "endpoint": {}, "benchmark": "ycsb",
            "ycsb": {
                "records": 1000, "fields": 10, "field_bytes": 100, "mix": "read-heavy", "read_share": 0.9,
                "skew": 1.0, "key_order": "clustered", "update_fields": 1, "verify_share": 0.01
            },
            "terminals": 8, "warmup_s": 0.2, "measure_s": 0.5, "seed": 42,
        });
        Bench { directory: TempDir::new().expect("a temporary directory"), spec }
    }

    /// A short trial of TPC-C at a small scale, of the null system.
    pub fn tpcc() -> Bench {
        let mut bench = Bench::new();
        bench.spec.as_object_mut().expect("an object").remove("ycsb");
        bench.set("/benchmark", json!("tpcc"));
        bench.set("/schema", json!(Bench::schema("tpcc.sql")));
        let tpcc = json!({
            "warehouses": 2, "items": 100, "customers_per_district": 30, "orders_per_district": 30,
            "population_seed": 3, "access": "home-warehouse", "wait_factor": 0.0
        });
        bench.set("/tpcc", tpcc);
        bench
    }

    /// A file of `workloads/schemas`.
    pub fn schema(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/schemas").join(name)
    }

    /// Replaces the value at a JSON pointer.
    pub fn set(&mut self, pointer: &str, value: Value) {
        let (parent, key) = pointer.rsplit_once('/').expect("a JSON pointer");
        let parent = self.spec.pointer_mut(parent).expect("the parent exists");
        parent[key] = value;
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn write_spec(&self) -> PathBuf {
        let path = self.path("spec.json");
        std::fs::write(&path, self.spec.to_string()).expect("the specification can be written");
        path
    }

    /// `loadgen <command> --spec … --out …`, not yet started.
    pub fn command(&self, command: &str) -> Command {
        let mut call = Command::new(env!("CARGO_BIN_EXE_loadgen"));
        call.arg(command).arg("--spec").arg(self.write_spec()).arg("--out").arg(self.directory.path());
        call
    }

    pub fn call(&self, command: &str) -> Output {
        self.command(command).output().expect("loadgen starts")
    }

    pub fn result(&self) -> Value {
        read_json(&self.path("result.json"))
    }
}

pub fn read_json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("valid JSON")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Signals a process that has not been waited for.
pub fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id() as i32).expect("a process id");
    kill_process(pid, signal).expect("the child can be signalled");
}
