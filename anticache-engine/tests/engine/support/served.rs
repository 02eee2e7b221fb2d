//! A server in a process of its own, for tests.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A server that does not answer is killed after this time, so that the test that waits for it fails instead of waiting on.
pub const WATCHDOG: Duration = Duration::from_secs(60);

pub struct Served {
    pub child: Child,
    /// Held while the watchdog shall watch.
    _watched: Sender<()>,
    pub address: SocketAddr,
    pub directory: Arc<tempfile::TempDir>,
}

impl Drop for Served {
    fn drop(&mut self) {
        // Only a test that failed leaves it running.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn schema() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/schemas/ycsb.sql").display().to_string()
}

pub fn write_config(directory: &Path, changes: &serde_json::Value) -> std::path::PathBuf {
    let mut config = serde_json::json!({
        "schema": schema(), "data_dir": directory.join("data"), "listen": "127.0.0.1:0", "partitions": 2,
        "memory_budget_bytes": 2 << 20, "eviction_block_bytes": 16384, "log_segment_bytes": 1 << 20,
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    let path = directory.join("anticached.json");
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

/// `shell` is put before the server's command, to run it under a limit.
pub fn serve(shell: &str, changes: &serde_json::Value) -> Served {
    serve_in(Arc::new(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()), shell, changes)
}

/// As [`serve`], with what an earlier server has left in a directory.
pub fn serve_in(directory: Arc<tempfile::TempDir>, shell: &str, changes: &serde_json::Value) -> Served {
    let config = write_config(directory.path(), changes);
    let command = format!("{shell} exec \"$0\" serve --config \"$1\"");
    let mut child = Command::new("sh")
        .args(["-c", &command, env!("CARGO_BIN_EXE_anticached")])
        .arg(&config)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("anticached ready on ").expect("the ready line").parse().unwrap();
    let (watched, ended) = channel();
    let pid = Pid::from_child(&child);
    std::thread::spawn(move || {
        if ended.recv_timeout(WATCHDOG) == Err(RecvTimeoutError::Timeout) {
            eprintln!("the server has not ended within {WATCHDOG:?} and is killed");
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    Served { child, _watched: watched, address, directory }
}

pub fn stop(mut served: Served) {
    kill_process(Pid::from_child(&served.child), Signal::TERM).unwrap();
    assert!(served.child.wait().unwrap().success(), "a graceful stop exits with 0");
}
