//! An engine served in this process, and a trial of it.

use std::net::SocketAddr;

use anticache_engine::client::Client;
use anticache_engine::config::Config;
use anticache_engine::net::server::Server;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Bench, read_json, stderr};

pub struct Served {
    server: Server,
    pub bench: Bench,
    _directory: TempDir,
}

impl Served {
    /// Serves the tables of a schema with these settings; the trial's specification is that of `bench`, for this server.
    pub fn start(mut bench: Bench, schema: &str, settings: &Value) -> Served {
        // Not in memory: the engine insists on direct I/O.
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let schema = Bench::schema(schema);
        let mut config = json!({
            "schema": schema, "data_dir": directory.path().join("data"), "listen": "127.0.0.1:0", "log": "off",
            "anticaching": "lru", "eviction_block_bytes": 16384, "lru_sample_rate": 1.0,
        });
        for (key, value) in settings.as_object().unwrap() {
            config[key] = value.clone();
        }
        let config: Config = serde_json::from_value(config).unwrap();
        let server = Server::start(&config).unwrap();
        bench.set("/system", json!("anticache-lru"));
        bench.set("/endpoint", json!({"anticache_address": server.address().to_string()}));
        bench.set("/schema", json!(schema));
        Served { server, bench, _directory: directory }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address()).unwrap()
    }

    /// Calls loadgen; what it has printed.
    pub fn succeed(&self, command: &str) -> Value {
        let (code, said) = self.call(command);
        assert_eq!(code, Some(0), "{command}: {said}");
        read_json(&self.bench.path(&format!("{}.json", if command == "run" { "result" } else { command })))
    }

    /// Exit code, and what it has said on stderr.
    pub fn call(&self, command: &str) -> (Option<i32>, String) {
        let output = self.bench.call(command);
        (output.status.code(), stderr(&output))
    }

    pub fn stop(self) {
        self.server.stop();
    }
}
