//! YCSB with Zipf 1.0 over records of 1000 bytes, all in memory: in process and over loopback TCP. Requests are drawn beforehand.

use std::path::Path;
use std::time::{Duration, Instant};

use anticache_engine::catalog::Catalog;
use anticache_engine::client::Client;
use anticache_engine::config::{AntiCaching, Config, Log};
use anticache_engine::net::frame::{RequestHead, parse_requests};
use anticache_engine::net::server::Server;
use anticache_engine::partition::Partition;
use anticache_engine::procedure::ProcedureSet;

use crate::harness::ycsb::{ROW_BYTES, draw, load_calls, wire};
use crate::harness::{self, BATCH, Replies, Report, median, ratio, schema};

/// Requests drawn for each mix; a run cycles through them.
const DRAWN: usize = 1 << 20;

#[derive(clap::Args)]
pub struct Arguments {
    /// Records of 1000 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Times that every variant has its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

fn config(anticaching: AntiCaching, log: Log, records: u64, data_dir: &Path) -> Config {
    let defaults = Config::new(schema("ycsb.sql"), data_dir.to_owned(), (records * 1250).max(64 << 20));
    let no_snapshots = Config { snapshot_interval_s: 0, snapshot_log_bytes: 0, ..defaults };
    Config { anticaching, log, log_segment_bytes: 256 << 20, ..no_snapshots }
}

struct InProcess {
    name: &'static str,
    partition: Partition,
    heads: Vec<RequestHead>,
    at: usize,
}

impl InProcess {
    fn new(
        name: &'static str,
        anticaching: AntiCaching,
        log: Log,
        records: u64,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let catalog = Catalog::from_file(&schema("ycsb.sql"))?;
        let procedures = ProcedureSet::for_catalog(&catalog)?;
        let data = directory.join(name.replace(' ', "-"));
        std::fs::create_dir_all(&data)?;
        let config = config(anticaching, log, records, &data);
        let mut partition = Partition::create(0, &config, &catalog, procedures, &data)?;
        let mut sink = Replies(Vec::new());
        for params in load_calls(records, 100) {
            let head = RequestHead { token: 0, procedure: 2, start: 0, end: params.len() };
            partition.execute_batch(0, 0, &params, &[head], &mut sink);
            partition.poll(&mut sink);
            sink.0.clear();
        }
        while !partition.is_idle() {
            partition.poll(&mut sink);
        }
        Ok(Self { name, partition, heads: Vec::new(), at: 0 })
    }

    /// Transactions per second: requests are parsed and run in batches, as the server does.
    fn measure(&mut self, wire: &[u8], duration: Duration) -> f64 {
        let mut sink = Replies(Vec::with_capacity(1 << 20));
        let before = self.partition.counters().committed;
        let started = Instant::now();
        while started.elapsed() < duration {
            for _ in 0..16 {
                self.heads.clear();
                let input = &wire[self.at..];
                let used = parse_requests(input, BATCH, &mut self.heads).expect("well-formed requests");
                self.partition.execute_batch(0, 0, input, &self.heads, &mut sink);
                self.at = if self.heads.len() < BATCH { 0 } else { self.at + used };
                self.partition.poll(&mut sink);
                std::hint::black_box(&sink.0);
                sink.0.clear();
            }
        }
        let done = self.partition.counters().committed - before;
        done as f64 / started.elapsed().as_secs_f64()
    }
}

fn in_process(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let duration = Duration::from_secs_f64(arguments.seconds);
    let records = arguments.records;
    for (mix, read_share, log) in [("read-only", 1.0, Log::Off), ("write-heavy (50/50), log off", 0.5, Log::Off)] {
        let requests = wire(&draw(records, read_share, DRAWN)?);
        let mut variants = vec![
            InProcess::new("anticache-off", AntiCaching::Off, log, records, directory)?,
            InProcess::new("anticache-alru", AntiCaching::Alru, log, records, directory)?,
            InProcess::new("anticache-lru", AntiCaching::Lru, log, records, directory)?,
        ];
        let mut rates = vec![Vec::new(); variants.len()];
        for round in 0..=arguments.rounds {
            for (variant, rates) in variants.iter_mut().zip(&mut rates) {
                let rate = variant.measure(&requests, duration);
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
        let settings =
            format!("1 partition, 1 core, in process, {records} records x {ROW_BYTES} B, Zipf 1.0, in memory, log off");
        for (variant, of) in variants.iter().zip(&rates) {
            let name = format!("in process, {mix}: {}", variant.name);
            report.add(&name, median(of), "txn/s", Some(("anticache-off", ratio(of, &rates[0]))), &settings);
        }
        drop(variants);
        std::fs::remove_dir_all(directory)?;
        std::fs::create_dir_all(directory)?;
    }
    Ok(())
}

fn over_tcp(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let mut config = config(AntiCaching::Alru, Log::Sync, arguments.records, &directory.join("tcp"));
    config.cpus = vec![0];
    let server = Server::start(&config)?;
    let mut client = Client::connect(server.address())?;
    let started = Instant::now();
    let load = client.procedure("ycsb_load")?;
    for params in load_calls(arguments.records, 100) {
        client.submit(0, 0, load, &params);
        while client.outstanding() >= 16 {
            client.wait(&mut |_, _| ())?;
        }
    }
    while client.wait(&mut |_, _| ())? > 0 {}
    let settings = format!(
        "server and client on one core each, loopback, {} records x {ROW_BYTES} B, Zipf 1.0, aLRU, log synced",
        arguments.records
    );
    let rate = arguments.records as f64 / started.elapsed().as_secs_f64();
    report.add("over TCP, load", rate, "rows/s", None, &settings);
    for (mix, read_share) in [("read-only", 1.0), ("write-heavy (50/50)", 0.5)] {
        let requests = draw(arguments.records, read_share, DRAWN)?;
        for outstanding in [1, 16, 64, 1024] {
            let mut rates: Vec<f64> = Vec::new();
            for _ in 0..arguments.rounds {
                rates.push(measure_client(&mut client, &requests, outstanding, arguments.seconds)?);
            }
            let name = format!("over TCP, {mix}: {outstanding} outstanding");
            report.add(&name, median(&rates), "txn/s", None, &settings);
        }
    }
    server.stop();
    Ok(())
}

fn measure_client(
    client: &mut Client,
    requests: &[(u16, Vec<u8>)],
    outstanding: usize,
    seconds: f64,
) -> anyhow::Result<f64> {
    let mut next = requests.iter().cycle();
    let mut submit = |client: &mut Client, count: usize| {
        for (procedure, params) in next.by_ref().take(count) {
            client.submit(0, 0, *procedure, params);
        }
    };
    submit(client, outstanding);
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed().as_secs_f64() < seconds {
        let arrived = client.wait(&mut |_, reply| {
            std::hint::black_box(reply);
        })?;
        done += arrived;
        submit(client, arrived);
    }
    let rate = done as f64 / started.elapsed().as_secs_f64();
    while client.wait(&mut |_, _| ())? > 0 {}
    Ok(rate)
}

pub fn run(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    harness::bind_to_last();
    in_process(arguments, &directory.join("in-process"), report)?;
    over_tcp(arguments, directory, report)
}
