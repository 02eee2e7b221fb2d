//! The engine's shared secret: used, and found in nothing that is written.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anticache_engine::config::Config;
use anticache_engine::net::server::Server;
use serde_json::{Value, json};

use crate::common::{Bench, stderr};

const SECRET: &str = "kJq7nWz2mXb9TfRc4LpD";
const WRONG: &str = "Xb9TfRc4LpDkJq7nWz2m";

/// Every file of the directory, with names and contents in one text.
fn everything_in(directory: &Path) -> String {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| format!("{}\n{}\n", path.display(), String::from_utf8_lossy(&std::fs::read(&path).unwrap())))
        .collect()
}

#[test]
fn a_trial_uses_the_secret_and_leaves_it_nowhere() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let secret_file = directory.path().join("secret");
    std::fs::write(&secret_file, SECRET).unwrap();
    std::fs::set_permissions(&secret_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads/schemas/ycsb.sql");
    let config = json!({
        "schema": schema, "data_dir": directory.path().join("data"), "listen": "127.0.0.1:0", "log": "off",
        "memory_budget_bytes": 8 << 20, "anticaching": "lru", "eviction_block_bytes": 16384, "secret_file": secret_file,
    });
    let config: Config = serde_json::from_value(config).unwrap();
    let server = Server::start(&config).unwrap();

    let mut bench = Bench::new();
    bench.set("/system", json!("anticache-lru"));
    bench.set("/schema", json!(schema));
    let endpoint =
        |secret: Value| json!({"anticache_address": server.address().to_string(), "anticache_secret": secret});
    let given = directory.path().join("endpoint.json");
    let call = |command: &str, secret: Value| {
        std::fs::write(&given, endpoint(secret).to_string()).unwrap();
        let output = bench.command(command).arg("--endpoint").arg(&given).output().unwrap();
        let left = everything_in(bench.path("spec.json").parent().unwrap());
        let said = format!("{}{}{left}", stderr(&output), String::from_utf8_lossy(&output.stdout));
        assert!(!said.contains(SECRET) && !said.contains(WRONG), "{command}: {said}");
        (output.status.code(), said)
    };
    assert_eq!(call("load", json!(SECRET)).0, Some(0));
    let (_, said) = call("run", json!(SECRET));
    assert!(said.contains("txn/s") && !said.contains("\"committed\": 0,"), "{said}");
    for (secret, reason) in [
        (json!(WRONG), "it refuses this secret"),
        (json!(null), "it wants a secret, and none is given here"),
        (json!("short"), "the secret has 5 bytes"),
    ] {
        let (code, said) = call("counters", secret);
        assert_eq!(code, Some(1));
        assert!(said.contains(reason), "{said}");
    }
    server.stop();
}
