//! The engine itself: its partition called in this process, and its server over TCP.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use anticache_engine::catalog::Catalog;
use anticache_engine::client::{Client, Reply};
use anticache_engine::config::{AntiCaching, Config, Log};
use anticache_engine::net::frame::{REPLY_HEADER_BYTES, RequestHead, parse_requests, write_request};
use anticache_engine::net::server::Server;
use anticache_engine::partition::Partition;
use anticache_engine::procedure::ProcedureSet;
use anyhow::{anyhow, ensure};

use super::data::{Mix, Row, Value, loaded_row};
use super::store::{LOADS_OUTSTANDING, Peer, copy_row};
use crate::harness::ycsb::ROW_BYTES;
use crate::harness::{BATCH, Replies, schema};

/// Memory that a record may take, so that nothing is evicted.
const RECORD_BUDGET_BYTES: u64 = 1250;
const LEAST_BUDGET_BYTES: u64 = 64 << 20;
const ROWS_PER_LOAD: u64 = 100;
/// Batches between two looks at the clock.
const BETWEEN_LOOKS: usize = 16;
const SERVER_CPU: usize = 0;

fn config(anticaching: AntiCaching, records: u64, data_dir: &Path) -> Config {
    let budget_bytes = (records * RECORD_BUDGET_BYTES).max(LEAST_BUDGET_BYTES);
    let defaults = Config::new(schema("ycsb.sql"), data_dir.to_owned(), budget_bytes);
    Config { anticaching, log: Log::Off, snapshot_interval_s: 0, snapshot_log_bytes: 0, ..defaults }
}

fn describe(config: &Config, how: &str) -> String {
    let anticaching = format!("{:?}", config.anticaching).to_lowercase();
    format!("anticache-engine, anti-caching {anticaching}, log off, memory for all records, {how}")
}

/// Parameters of the procedure `ycsb_load`.
fn load_calls(records: u64) -> impl Iterator<Item = Vec<u8>> {
    (0..records).step_by(ROWS_PER_LOAD as usize).map(move |first| {
        let keys = first..(first + ROWS_PER_LOAD).min(records);
        let mut params = ((keys.end - keys.start) as u32).to_le_bytes().to_vec();
        for key in keys {
            params.extend_from_slice(&key.to_le_bytes());
            params.extend_from_slice(&loaded_row(key as i64));
        }
        params
    })
}

/// A partition that this thread calls as a server's thread does: with the requests that have arrived, [`BATCH`] at a time.
pub struct InProcess {
    partition: Partition,
    settings: String,
    heads: Vec<RequestHead>,
    replies: Replies,
}

impl InProcess {
    pub fn load(anticaching: AntiCaching, records: u64, directory: &Path) -> anyhow::Result<Self> {
        let config = config(anticaching, records, directory);
        let catalog = Catalog::from_file(&config.schema)?;
        let procedures = ProcedureSet::for_catalog(&catalog)?;
        let partition = Partition::create(0, &config, &catalog, procedures, directory)?;
        let settings = describe(&config, &format!("{BATCH} requests at a time"));
        let mut engine = Self { partition, settings, heads: Vec::new(), replies: Replies::default() };
        for params in load_calls(records) {
            engine.call(2, &params);
            engine.replies.take();
        }
        Ok(engine)
    }

    /// Runs one procedure; its reply is in `replies`.
    fn call(&mut self, procedure: u16, params: &[u8]) {
        let mut request = Vec::new();
        write_request(&mut request, 0, procedure, params);
        self.execute(&request);
        while !self.partition.is_idle() {
            self.partition.poll(&mut self.replies);
        }
    }

    fn execute(&mut self, requests: &[u8]) {
        self.heads.clear();
        parse_requests(requests, BATCH, &mut self.heads).expect("well-formed requests");
        self.partition.execute_batch(0, 0, requests, &self.heads, &mut self.replies);
        self.partition.poll(&mut self.replies);
    }
}

impl Peer for InProcess {
    fn settings(&self) -> String {
        self.settings.clone()
    }

    fn run(&mut self, mix: &Mix, done: &mut [usize], duration: Duration) -> anyhow::Result<()> {
        let (started, before) = (Instant::now(), self.partition.counters().committed);
        let mut sent = 0;
        while started.elapsed() < duration {
            for _ in 0..BETWEEN_LOOKS {
                self.execute(mix.batch(done[0] + sent));
                black_box(&self.replies.0);
                self.replies.0.clear();
                sent += BATCH;
            }
        }
        while !self.partition.is_idle() {
            self.partition.poll(&mut self.replies);
        }
        self.replies.take();
        done[0] += sent;
        let committed = self.partition.counters().committed - before;
        ensure!(committed == sent as u64, "{committed} of {sent} transactions were committed");
        Ok(())
    }

    fn read(&mut self, key: i64, row: &mut Row) -> anyhow::Result<()> {
        self.call(0, &key.to_le_bytes());
        let held = copy_row(key, self.replies.0.get(REPLY_HEADER_BYTES..), row);
        self.replies.0.clear();
        held
    }
}

/// A server with one partition on a core of its own, and one connection to it.
pub struct OverTcp {
    client: Client,
    settings: String,
    outstanding: usize,
    /// There until this is dropped.
    server: Option<Server>,
}

impl Drop for OverTcp {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

impl OverTcp {
    /// With aLRU; `sleeps_at_once` = without looking for work before (`idle_poll_us` = 0).
    pub fn load(sleeps_at_once: bool, records: u64, directory: &Path) -> anyhow::Result<Self> {
        let defaults = config(AntiCaching::Alru, records, directory);
        let idle_poll_us = if sleeps_at_once { 0 } else { defaults.idle_poll_us };
        let config = Config { cpus: vec![SERVER_CPU], idle_poll_us, ..defaults };
        let server = Server::start(&config)?;
        let mut client = Client::connect(server.address())?;
        let load = client.procedure("ycsb_load")?;
        for params in load_calls(records) {
            client.submit(0, 0, load, &params);
            while client.outstanding() >= LOADS_OUTSTANDING {
                client.wait(&mut |_, _| ())?;
            }
        }
        while client.wait(&mut |_, _| ())? > 0 {}
        let settings =
            describe(&config, &format!("looks for work for {idle_poll_us} us before it sleeps, 1 connection"));
        Ok(Self { client, settings, outstanding: 1, server: Some(server) })
    }

    fn submit(&mut self, key: i64, update: Option<(u16, &Value)>) {
        let mut params = [0; 8 + 2 + size_of::<Value>()];
        params[..8].copy_from_slice(&key.to_le_bytes());
        match update {
            None => self.client.submit(0, 0, 0, &params[..8]),
            Some((field, value)) => {
                params[8..10].copy_from_slice(&field.to_le_bytes());
                params[10..].copy_from_slice(value);
                self.client.submit(0, 0, 1, &params);
            }
        }
    }

    /// Waits for answers; a record that one carries is copied out. Returns their number.
    fn wait(&mut self, row: &mut Row) -> anyhow::Result<usize> {
        let mut failed = None;
        let arrived = self.client.wait(&mut |_, reply| match reply {
            Reply::Committed(held) if held.len() == ROW_BYTES => {
                row.copy_from_slice(held);
                black_box(&row);
            }
            Reply::Committed(_) => {}
            Reply::Aborted(reason) | Reply::Failed(reason) => failed = Some(reason.to_owned()),
        })?;
        failed.map_or(Ok(arrived), |reason| Err(anyhow!("a transaction has failed: {reason}")))
    }
}

impl Peer for OverTcp {
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
        self.client.send_every(half);
        while started.elapsed() < duration {
            for _ in 0..half {
                let operation = mix.operation(done[0]);
                let update = operation.field.map(|field| (field, mix.value(operation)));
                self.submit(operation.key, update);
                done[0] += 1;
            }
            while self.client.outstanding() > self.outstanding - half {
                self.wait(&mut row)?;
            }
        }
        while self.client.outstanding() > 0 {
            self.wait(&mut row)?;
        }
        Ok(())
    }

    fn read(&mut self, key: i64, row: &mut Row) -> anyhow::Result<()> {
        self.submit(key, None);
        // An answer that carries no record leaves the zeros, which no record consists of.
        row.fill(0);
        while self.client.outstanding() > 0 {
            self.wait(row)?;
        }
        Ok(())
    }
}
