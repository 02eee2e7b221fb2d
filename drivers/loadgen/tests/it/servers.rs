//! Real servers for a test, on loopback and ports of their own: the mysqld of `make setup`, configured as
//! `ansible/roles/mysql` does where it matters for what is tested, and Debian's memcached.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

const START_LIMIT: Duration = Duration::from_secs(60);

/// A server that is ended with the test.
struct Daemon {
    child: Child,
    directory: TempDir,
    port: u16,
}

impl Daemon {
    fn start(command: &mut Command, directory: TempDir, port: u16) -> Daemon {
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let command = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let mut daemon = Daemon { child: command.spawn().expect("the server starts"), directory, port };
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = || fs::read_to_string(daemon.directory.path().join("log")).unwrap_or_default();
            assert!(daemon.child.try_wait().unwrap().is_none(), "{command:?} ended: {}", log());
            assert!(begun.elapsed() < START_LIMIT, "{command:?} does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
        daemon
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // By pid; the data are thrown away, so there is nothing to shut down for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Where the test's servers keep their files: on a disk, because InnoDB uses direct I/O.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Directory of the MySQL that `make setup` has unpacked.
fn mysql_home() -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools");
    let entries = fs::read_dir(&tools).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_mysql = |path: &PathBuf| path.join("bin/mysqld").is_file();
    let found = entries.into_iter().find(is_mysql);
    found.unwrap_or_else(|| panic!("{}: no mysql-*/bin/mysqld: run `make setup`", tools.display()))
}

/// A data directory with system tables and no accounts.
fn initialise(home: &Path, data: &Path) {
    fs::create_dir(data).unwrap();
    let script = |name| fs::read_to_string(home.join("share").join(name)).unwrap();
    let mut sql = "CREATE DATABASE mysql;\nUSE mysql;\n".to_owned();
    sql += &script("mysql_system_tables.sql");
    sql += &script("mysql_system_tables_data.sql");
    sql += "DELETE FROM user;\nDELETE FROM db;\n";
    let input = data.with_extension("sql");
    fs::write(&input, sql).unwrap();
    let done = Command::new(home.join("bin/mysqld"))
        .args(["--no-defaults", "--bootstrap", "--innodb-log-file-size=4M", "--explicit-defaults-for-timestamp"])
        .arg(format!("--basedir={}", home.display()))
        .arg(format!("--lc-messages-dir={}/share", home.display()))
        .arg(format!("--datadir={}", data.display()))
        .arg(temporary_tables(data))
        .arg(format!("--user={}", user()))
        .stdin(fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    assert!(done.status.success(), "mysqld --bootstrap: {}", String::from_utf8_lossy(&done.stderr));
}

/// Every mysqld that starts removes the temporary tables in its tmpdir, also those of another test's server.
fn temporary_tables(directory: &Path) -> String {
    format!("--tmpdir={}", directory.display())
}

/// Both servers refuse to run as root without being told so.
fn user() -> String {
    let done = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

/// A fresh mysqld.
pub struct Mysqld(Daemon);

impl Mysqld {
    pub fn start() -> Mysqld {
        let (home, directory, port) = (mysql_home(), directory(), free_port());
        let data = directory.path().join("data");
        initialise(&home, &data);
        let accounts = directory.path().join("accounts.sql");
        fs::write(&accounts, "GRANT ALL PRIVILEGES ON *.* TO 'terminals'@'127.0.0.1' IDENTIFIED BY 'of the test';\n")
            .unwrap();
        let settings = [
            "--transaction-isolation=SERIALIZABLE",
            "--bind-address=127.0.0.1",
            "--skip-name-resolve",
            "--character-set-server=latin1",
            "--performance-schema=OFF",
            "--explicit-defaults-for-timestamp",
            "--sql-mode=STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION",
            "--query-cache-type=ON",
            "--query-cache-size=10M",
            "--innodb-log-file-size=4M",
            "--innodb-buffer-pool-size=64M",
            "--innodb-flush-method=O_DIRECT",
            "--innodb-flush-log-at-trx-commit=1",
        ];
        let mut command = Command::new(home.join("bin/mysqld"));
        command.arg("--no-defaults").args(settings);
        command.arg(format!("--basedir={}", home.display()));
        command.arg(format!("--lc-messages-dir={}/share", home.display()));
        command.arg(temporary_tables(directory.path()));
        command.arg(format!("--datadir={}", data.display())).arg(format!("--init-file={}", accounts.display()));
        command.arg(format!("--port={port}")).args(["--socket=mysqld.sock", "--user"]).arg(user());
        Mysqld(Daemon::start(&mut command, directory, port))
    }

    /// As an endpoint file has it.
    pub fn endpoint(&self) -> Value {
        json!({"mysql_address": self.0.address(), "mysql_user": "terminals", "mysql_password": "of the test"})
    }
}

/// A fresh memcached.
pub struct Memcached(Daemon);

impl Memcached {
    pub fn start(memory_mib: u32) -> Memcached {
        let port = free_port();
        let mut command = Command::new("memcached");
        command.args(["--listen=127.0.0.1", "--udp-port=0", "--threads=1", "--slab-growth-factor=1.08"]);
        command.arg(format!("--port={port}")).arg(format!("--memory-limit={memory_mib}"));
        command.arg(format!("--user={}", user()));
        Memcached(Daemon::start(&mut command, directory(), port))
    }

    pub fn address(&self) -> String {
        self.0.address()
    }
}
