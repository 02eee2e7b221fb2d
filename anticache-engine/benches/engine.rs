//! The engine measured: in process and over loopback TCP, YCSB with Zipf 1.0 over records of 1000 bytes.
//!
//! `cargo bench -p anticache-engine --bench engine -- [--records N] [--seconds S] [--rounds R] [--json FILE]`
//!
//! The variants take turns in one run (round by round), so that the machine's drift meets all of them; the median over rounds is shown, and
//! ratios are medians of the ratios within a round. Requests are drawn beforehand. Prints a table; `--json` writes the list described in the
//! project's README under "Benchmarks".

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anticache_engine::catalog::Catalog;
use anticache_engine::client::Client;
use anticache_engine::config::{AntiCaching, Config, Log, Merge};
use anticache_engine::net::frame::{RequestHead, parse_requests, write_request};
use anticache_engine::net::server::Server;
use anticache_engine::partition::{Partition, ReplySink};
use anticache_engine::procedure::ProcedureSet;
use clap::Parser;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use rand_pcg::Pcg64Mcg;

const FIELDS: usize = 10;
const FIELD_BYTES: usize = 100;
const ROW_BYTES: usize = FIELDS * FIELD_BYTES;
/// Requests drawn for each mix; a run cycles through them.
const DRAWN: usize = 1 << 20;
const BATCH: usize = 64;

#[derive(Parser)]
struct Arguments {
    /// Records of 1000 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Times that every variant has its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Where to write the results as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

struct Bytes(Vec<u8>);

impl ReplySink for Bytes {
    fn buffer(&mut self, _connection: u32, _epoch: u32) -> &mut Vec<u8> {
        &mut self.0
    }
}

fn schema() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/schemas/ycsb.sql")
}

fn config(anticaching: AntiCaching, log: Log, records: u64, data_dir: &Path) -> Config {
    Config {
        schema: schema(),
        data_dir: data_dir.to_owned(),
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        secret_file: None,
        partitions: 1,
        cpus: Vec::new(),
        memory_budget_bytes: (records * 1250).max(64 << 20),
        anticaching,
        lru_sample_rate: 0.01,
        eviction_block_bytes: 1 << 20,
        merge: Merge::Tuple,
        hole_threshold: 0.5,
        huge_pages: true,
        log,
        log_segment_bytes: 256 << 20,
        log_group_interval_us: 0,
        log_group_bytes: 1 << 20,
        seed: 1,
    }
}

/// Requests of a mix, drawn with Zipf 1.0 over the records, newest hottest; reads are procedure 0, updates procedure 1.
fn draw(records: u64, read_share: f64) -> Vec<(u16, Vec<u8>)> {
    let mut rng = Pcg64Mcg::seed_from_u64(42);
    let zipf = Zipf::new(records as f64, 1.0).expect("a valid exponent");
    let mut requests = Vec::with_capacity(DRAWN);
    for _ in 0..DRAWN {
        let key = records as i64 - zipf.sample(&mut rng) as i64;
        let mut params = key.to_le_bytes().to_vec();
        let read = rng.random_bool(read_share);
        if !read {
            params.extend_from_slice(&rng.random_range(0..FIELDS as u16).to_le_bytes());
            params.extend_from_slice(&[b'x'; FIELD_BYTES]);
        }
        requests.push((u16::from(!read), params));
    }
    requests
}

fn wire(requests: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let mut wire = Vec::new();
    for (token, (procedure, params)) in requests.iter().enumerate() {
        write_request(&mut wire, token as u64, *procedure, params);
    }
    wire
}

fn load_batches(records: u64) -> impl Iterator<Item = Vec<u8>> {
    (0..records).step_by(100).map(move |first| {
        let last = (first + 100).min(records);
        let mut params = ((last - first) as u32).to_le_bytes().to_vec();
        for key in first..last {
            params.extend_from_slice(&key.to_le_bytes());
            params.extend(std::iter::repeat_n(b'a' + (key % 26) as u8, ROW_BYTES));
        }
        params
    })
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
        let catalog = Catalog::from_file(&schema())?;
        let procedures = ProcedureSet::for_catalog(&catalog)?;
        let data = directory.join(name.replace(' ', "-"));
        std::fs::create_dir_all(&data)?;
        let config = config(anticaching, log, records, &data);
        let mut partition = Partition::create(0, &config, &catalog, procedures, &data)?;
        let mut sink = Bytes(Vec::new());
        for params in load_batches(records) {
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
        let mut sink = Bytes(Vec::with_capacity(1 << 20));
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

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[derive(Default)]
struct Report(Vec<serde_json::Value>);

impl Report {
    /// `ratio` is against `peer`, measured in the same rounds.
    fn add(&mut self, name: &str, value: f64, unit: &str, peer: &str, ratio: Option<f64>, settings: &str) {
        let shown = ratio.map_or(String::new(), |ratio| format!("{ratio:6.3} of {peer}"));
        println!("{name:<58} {value:>14.0} {unit:<8} {shown}");
        self.0.push(serde_json::json!({"name": name, "value": value, "unit": unit, "better": "higher",
            "peer": if ratio.is_some() { serde_json::json!(peer) } else { serde_json::Value::Null }, "ratio": ratio, "settings": settings}));
    }
}

fn in_process(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let duration = Duration::from_secs_f64(arguments.seconds);
    let records = arguments.records;
    for (mix, read_share, log) in [("read-only", 1.0, Log::Off), ("write-heavy (50/50), log off", 0.5, Log::Off)] {
        let requests = wire(&draw(records, read_share));
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
            let ratios: Vec<f64> = of.iter().zip(&rates[0]).map(|(rate, off)| rate / off).collect();
            report.add(
                &format!("in process, {mix}: {}", variant.name),
                median(of),
                "txn/s",
                "anticache-off",
                Some(median(&ratios)),
                &settings,
            );
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
    for params in load_batches(arguments.records) {
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
    report.add("over TCP, load", rate, "rows/s", "", None, &settings);
    for (mix, read_share) in [("read-only", 1.0), ("write-heavy (50/50)", 0.5)] {
        let requests = draw(arguments.records, read_share);
        for outstanding in [1, 16, 64, 1024] {
            let mut rates: Vec<f64> = Vec::new();
            for _ in 0..arguments.rounds {
                rates.push(measure_client(&mut client, &requests, outstanding, arguments.seconds)?);
            }
            report.add(
                &format!("over TCP, {mix}: {outstanding} outstanding"),
                median(&rates),
                "txn/s",
                "",
                None,
                &settings,
            );
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

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if cfg!(debug_assertions) {
        eprintln!("warning: debug assertions are on; these figures mean nothing");
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(std::thread::available_parallelism()?.get() - 1);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        eprintln!("warning: not bound to one CPU ({error}): expect noise");
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let mut report = Report::default();
    in_process(&arguments, &directory.path().join("in-process"), &mut report)?;
    over_tcp(&arguments, directory.path(), &mut report)?;
    if let Some(path) = &arguments.json {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, serde_json::to_string_pretty(&report.0)?)?;
        println!("written to {}", path.display());
    }
    Ok(())
}
