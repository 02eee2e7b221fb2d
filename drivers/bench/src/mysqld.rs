//! MySQL 5.6, the server that set-up installs, on a core of its own: nothing synced, nobody asked for a password.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::server::{Server, free_port};

/// Where set-up puts the server; the newest when there are several.
fn installed() -> anyhow::Result<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools");
    let servers =
        std::fs::read_dir(&tools).into_iter().flatten().flatten().map(|entry| entry.path().join("bin/mysqld"));
    let servers = servers.filter(|mysqld| mysqld.is_file());
    servers.max().with_context(|| {
        format!(
            "there is no mysql-*/bin/mysqld in {}: run make setup, or leave MySQL out (drivers: --without-mysql, peers: --without mysql)",
            tools.display()
        )
    })
}

fn arguments(mysqld: &Path, port: u16, pool_bytes: u64) -> anyhow::Result<Vec<String>> {
    let home = mysqld.ancestors().nth(2).context("mysqld is not in a directory bin")?.display();
    let pool_mib = pool_bytes.div_ceil(1 << 20);
    let mut arguments = format!(
        "--no-defaults --basedir={home} --lc-messages-dir={home}/share --datadir=. --tmpdir=. --socket=mysqld.sock --pid-file=mysqld.pid \
         --bind-address=127.0.0.1 --port={port} --skip-grant-tables --skip-name-resolve --max-connections=256 \
         --character-set-server=latin1 --explicit-defaults-for-timestamp --performance-schema=OFF --query-cache-type=OFF \
         --query-cache-size=0 --innodb-buffer-pool-size={pool_mib}M --innodb-buffer-pool-instances=1 \
         --innodb-log-file-size=512M --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=OFF \
         --innodb-flush-method=O_DIRECT --innodb-flush-neighbors=0 --innodb-stats-persistent=OFF"
    );
    if rustix::process::geteuid().is_root() {
        arguments.push_str(" --user=root");
    }
    Ok(arguments.split_whitespace().map(str::to_owned).collect())
}

/// Starts a server (`None`: the installed one) with an empty data directory in `directory`; returns it and its port, at which it will answer.
///
/// # Errors
/// When there is none, or it cannot be started.
pub fn start(mysqld: Option<&Path>, pool_bytes: u64, directory: &Path) -> anyhow::Result<(Server, u16)> {
    let mysqld = std::path::absolute(mysqld.map_or_else(installed, |mysqld| Ok(mysqld.to_owned()))?)?;
    let port = free_port()?;
    Ok((Server::start(&mysqld, &arguments(&mysqld, port, pool_bytes)?, directory)?, port))
}
