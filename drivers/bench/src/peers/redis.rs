//! Redis, through the crate `redis`: a server on a core of its own, one connection, commands sent without waiting for the answers.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::redis::{Client, Cmd, Connection, Value as Answer, cmd};
use anyhow::{Context, anyhow, bail, ensure};

use super::data::{Mix, Row, Value, loaded_row};
use super::store::{LOADS_OUTSTANDING, Peer, copy_row};
use super::{VERSIONS, locked_version};
use crate::harness::ycsb::{FIELD_BYTES, ROW_BYTES};
use crate::server::{Server, free_port};

pub struct Redis {
    connection: Connection,
    settings: String,
    outstanding: usize,
    commands: Vec<u8>,
    /// Stopped when this is dropped.
    server: Server,
}

/// A program's path, as a shell would find it.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|program| program.is_file())
}

/// The server's program under its own name. Debian has it in `redis-tools` as `redis-check-rdb`: one program that is what its name says. The package
/// `redis-server` adds a link to it and a service, which nobody needs here.
fn program(directory: &Path) -> anyhow::Result<PathBuf> {
    if let Some(program) = find_program("redis-server") {
        return Ok(program);
    }
    let program = find_program("redis-check-rdb")
        .context("there is no redis-server: install Debian's redis-tools (PEERS=1 make bench does), or leave it out with --without redis")?;
    let link = directory.join("redis-server");
    std::os::unix::fs::symlink(program, &link)?;
    Ok(link)
}

fn set(key: i64) -> Cmd {
    let mut command = cmd("SET");
    command.arg(key).arg(loaded_row(key).as_slice());
    command
}

impl Redis {
    pub fn load(records: u64, directory: &Path) -> anyhow::Result<Self> {
        let program = std::path::absolute(program(directory)?)?;
        let port = free_port()?;
        let arguments = format!("--bind 127.0.0.1 --port {port} --appendonly no --databases 1 --io-threads 1 --dir .");
        // No snapshots: an empty argument, which the splitting would lose.
        let no_snapshots = ["--save", ""].map(str::to_owned);
        let arguments: Vec<_> = arguments.split(' ').map(str::to_owned).chain(no_snapshots).collect();
        let mut server = Server::start(&program, &arguments, directory)?;
        let client = Client::open(format!("redis://127.0.0.1:{port}"))?;
        let mut connection = server.wait_for(|| client.get_connection())?;
        let information: String = cmd("INFO").arg("server").query(&mut connection)?;
        let version = information.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("?");
        let settings = format!(
            "Redis {version} (crate redis {}), a string for each record, GET and SETRANGE, no snapshots, no log, \
             1 connection",
            locked_version(VERSIONS, "redis"),
        );
        let mut redis = Self { connection, settings, outstanding: 1, commands: Vec::new(), server };
        let keys: Vec<_> = (0..records as i64).collect();
        for keys in keys.chunks(LOADS_OUTSTANDING) {
            keys.iter().for_each(|&key| redis.commands.extend(set(key).get_packed_command()));
            redis.send()?;
            (0..keys.len()).try_for_each(|_| redis.receive(None))?;
        }
        Ok(redis)
    }

    fn send(&mut self) -> anyhow::Result<()> {
        let sent = self.connection.send_packed_command(&self.commands);
        self.commands.clear();
        sent.with_context(|| self.server.last_words())
    }

    fn submit(&mut self, key: i64, update: Option<(u16, &Value)>) {
        let command = match update {
            None => cmd("GET").arg(key).get_packed_command(),
            Some((field, value)) => {
                let offset = usize::from(field) * FIELD_BYTES;
                cmd("SETRANGE").arg(key).arg(offset).arg(value.as_slice()).get_packed_command()
            }
        };
        self.commands.extend_from_slice(&command);
    }

    /// Waits for one answer; a record is copied out to where one is expected.
    fn receive(&mut self, row: Option<(i64, &mut Row)>) -> anyhow::Result<()> {
        match (self.connection.recv_response()?, row) {
            (Answer::BulkString(held), Some((key, row))) => copy_row(key, Some(&held), row),
            (Answer::Okay, None) => Ok(()),
            (Answer::Int(length), None) => {
                ensure!(length == ROW_BYTES as i64, "a record has {length} bytes after an update");
                Ok(())
            }
            (Answer::ServerError(error), _) => Err(anyhow!("{error:?}")),
            (answer, _) => bail!("an answer that does not fit: {answer:?}"),
        }
    }

    /// Waits for the answers to `count` operations.
    fn receive_all(&mut self, mix: &Mix, done: &mut usize, count: usize, row: &mut Row) -> anyhow::Result<()> {
        for _ in 0..count {
            let operation = mix.operation(*done);
            self.receive(operation.field.is_none().then_some((operation.key, &mut *row)))?;
            black_box(&row);
            *done += 1;
        }
        Ok(())
    }
}

impl Peer for Redis {
    fn settings(&self) -> String {
        format!("{}, {} outstanding, sent by halves", self.settings, self.outstanding)
    }

    fn set_outstanding(&mut self, outstanding: usize) -> bool {
        self.outstanding = outstanding;
        true
    }

    fn run(&mut self, mix: &Mix, done: &mut [usize], duration: Duration) -> anyhow::Result<()> {
        let (started, mut row) = (Instant::now(), [0; ROW_BYTES]);
        let half = (self.outstanding / 2).max(1);
        let mut sent = done[0];
        while started.elapsed() < duration {
            for _ in 0..half {
                let operation = mix.operation(sent);
                self.submit(operation.key, operation.field.map(|field| (field, mix.value(operation))));
                sent += 1;
            }
            self.send()?;
            let owed = sent - done[0];
            self.receive_all(mix, &mut done[0], owed.saturating_sub(half), &mut row)?;
        }
        let owed = sent - done[0];
        self.receive_all(mix, &mut done[0], owed, &mut row)
    }

    fn read(&mut self, key: i64, row: &mut Row) -> anyhow::Result<()> {
        self.submit(key, None);
        self.send()?;
        self.receive(Some((key, row)))
    }
}
