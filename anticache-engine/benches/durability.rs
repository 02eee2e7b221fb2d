//! What durability costs, and how fast recovery is: in process, one partition, YCSB with half updates and Zipf 1.0 over records of 1000 bytes.
//!
//! `cargo bench -p anticache-engine --bench durability -- [--records N] [--memory-share S] [--seconds S] [--rounds R] [--directory DIR]`
//!
//! The same database takes turns, round by round, without a log, with the log, and with the log while snapshots are taken one after the other; ratios
//! are medians of the ratios within a round. Then the process "dies" and recovery is timed: with a snapshot of everything, and with a log behind it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anticache_engine::config::{Config, Log};
use anticache_engine::durability::recovery::{Opened, Site, read_schema};
use anticache_engine::durability::snapshot::Verdict;
use anticache_engine::durability::snapshot::keeper::Keeper;
use anticache_engine::io::files::{Files, KernelFiles};
use anticache_engine::net::frame::{RequestHead, parse_requests, write_request};
use anticache_engine::partition::{Partition, ReplySink};
use anticache_engine::procedure::ProcedureSet;
use clap::Parser;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Zipf};
use rand_pcg::Pcg64Mcg;

const FIELD_BYTES: usize = 100;
const ROW_BYTES: usize = 1000;
const DRAWN: usize = 1 << 19;
const BATCH: usize = 64;
/// Requests without a reply at any time.
const OUTSTANDING: usize = 16 << 10;

#[derive(Parser)]
struct Arguments {
    /// Records of 1000 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Memory budget, as a share of what all records need.
    #[arg(long, default_value_t = 1.5)]
    memory_share: f64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Times that every variant has its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Where to put the databases.
    #[arg(long, default_value = env!("CARGO_TARGET_TMPDIR"))]
    directory: PathBuf,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Default)]
struct Bytes(Vec<u8>);

impl ReplySink for Bytes {
    fn buffer(&mut self, _connection: u32, _epoch: u32) -> &mut Vec<u8> {
        &mut self.0
    }
}

fn config(log: Log, arguments: &Arguments, data_dir: &Path) -> Config {
    let budget_bytes = (arguments.records as f64 * 1100.0 * arguments.memory_share) as u64;
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/schemas/ycsb.sql");
    let defaults = Config::new(schema, data_dir.to_owned(), budget_bytes.max(64 << 20));
    Config { log, log_segment_bytes: 256 << 20, snapshot_interval_s: 300, snapshot_log_bytes: 0, ..defaults }
}

/// A database in this process.
struct Database {
    config: Config,
    keeper: Keeper,
    partition: Partition,
    sink: Bytes,
    replies: usize,
    sent: usize,
    heads: Vec<RequestHead>,
    at: usize,
    snapshots: u64,
    snapshot_seconds: f64,
    begun: Option<Instant>,
}

impl Database {
    fn open(config: Config, wire: &[u8]) -> anyhow::Result<Self> {
        let files: Arc<dyn Files> = Arc::new(KernelFiles::new());
        let (schema, catalog) = read_schema(&config.schema)?;
        let procedures = ProcedureSet::for_catalog(&catalog)?;
        let site = Site { files: &files, config: &config, catalog: &catalog, schema: &schema, procedures: &procedures };
        let Opened { keeper, mut partitions, .. } = site.open()?;
        let (partition, sink) = (partitions.remove(0), Bytes::default());
        let mut heads = Vec::new();
        parse_requests(wire, usize::MAX, &mut heads)?;
        let (replies, sent, at) = (0, 0, 0);
        let (snapshots, snapshot_seconds, begun) = (0, 0.0, None);
        Ok(Self { config, keeper, partition, sink, replies, sent, heads, at, snapshots, snapshot_seconds, begun })
    }

    fn poll(&mut self) {
        self.partition.poll(&mut self.sink);
        let mut at = 0;
        while let Some(length) = self.sink.0.get(at..at + 4).and_then(|bytes| bytes.first_chunk()) {
            assert_eq!(self.sink.0[at + 12], 0, "a transaction has failed");
            at += 4 + u32::from_le_bytes(*length) as usize;
            self.replies += 1;
        }
        self.sink.0.clear();
        if let Some(ended) = self.partition.snapshot_ended()
            && let Some(outcome) = self.keeper.part_ended(0, ended)
        {
            assert_eq!(outcome.verdict, Verdict::Durable, "{:?}", outcome.problem);
            self.partition.end_snapshot(outcome.generation, outcome.verdict);
            self.snapshots += 1;
            self.snapshot_seconds += self.begun.take().map_or(0.0, |begun| begun.elapsed().as_secs_f64());
        }
    }

    fn begin_snapshot(&mut self) -> anyhow::Result<()> {
        if self.keeper.is_busy() {
            return Ok(());
        }
        self.begun = Some(Instant::now());
        let mut begun = self.keeper.begin()?;
        self.partition.begin_snapshot(begun.generation, begun.files.remove(0));
        Ok(())
    }

    fn settle(&mut self) {
        while self.keeper.is_busy() || self.replies < self.sent || !self.partition.is_idle() {
            self.poll();
        }
    }

    fn load(&mut self, records: u64) -> anyhow::Result<()> {
        for first in (0..records).step_by(100) {
            let mut params = 100u32.to_le_bytes().to_vec();
            for key in first..first + 100 {
                params.extend_from_slice(&key.to_le_bytes());
                params.extend(std::iter::repeat_n(b'a' + (key % 26) as u8, ROW_BYTES));
            }
            let (mut wire, mut heads) = (Vec::new(), Vec::new());
            write_request(&mut wire, first, 2, &params);
            parse_requests(&wire, 1, &mut heads)?;
            self.partition.execute_batch(0, 0, &wire, &heads, &mut self.sink);
            self.sent += 1;
            while self.sent - self.replies >= 64 {
                self.poll();
            }
        }
        self.settle();
        Ok(())
    }

    /// Transactions per second.
    fn run(&mut self, wire: &[u8], seconds: f64, snapshots: bool) -> anyhow::Result<f64> {
        let (started, before) = (Instant::now(), self.replies);
        while started.elapsed() < Duration::from_secs_f64(seconds) {
            for _ in 0..4 {
                if snapshots {
                    self.begin_snapshot()?;
                }
                if self.sent - self.replies < OUTSTANDING {
                    let batch = &self.heads[self.at..self.at + BATCH];
                    self.partition.execute_batch(0, 0, wire, batch, &mut self.sink);
                    self.sent += BATCH;
                    self.at = (self.at + BATCH) % self.heads.len();
                }
                self.poll();
            }
        }
        let rate = (self.replies - before) as f64 / started.elapsed().as_secs_f64();
        self.settle();
        Ok(rate)
    }
}

fn draw(records: u64) -> anyhow::Result<Vec<u8>> {
    let mut rng = Pcg64Mcg::seed_from_u64(42);
    let zipf = Zipf::new(records as f64, 1.0)?;
    let mut wire = Vec::new();
    for token in 0..DRAWN {
        let key = records as i64 - zipf.sample(&mut rng) as i64;
        let mut params = key.to_le_bytes().to_vec();
        let read = rng.random_bool(0.5);
        if !read {
            params.extend_from_slice(&rng.random_range(0..10u16).to_le_bytes());
            params.extend_from_slice(&[b'x'; FIELD_BYTES]);
        }
        write_request(&mut wire, token as u64, u16::from(!read), &params);
    }
    Ok(wire)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let wire = draw(arguments.records)?;
    let directory = tempfile::tempdir_in(&arguments.directory)?;
    let mut unlogged = Database::open(config(Log::Off, &arguments, &directory.path().join("off")), &wire)?;
    let mut logged = Database::open(config(Log::Sync, &arguments, &directory.path().join("sync")), &wire)?;
    for database in [&mut unlogged, &mut logged] {
        let started = Instant::now();
        database.load(arguments.records)?;
        let log = if database.config.log == Log::Off { "without" } else { "with" };
        println!("loaded {} records {log} the log in {:.2} s", arguments.records, started.elapsed().as_secs_f64());
    }
    let mut rates: [Vec<f64>; 3] = Default::default();
    for _ in 0..arguments.rounds {
        rates[0].push(unlogged.run(&wire, arguments.seconds, false)?);
        rates[1].push(logged.run(&wire, arguments.seconds, false)?);
        rates[2].push(logged.run(&wire, arguments.seconds, true)?);
    }
    let ratio = |a: usize, b: usize| median(rates[a].iter().zip(&rates[b]).map(|(a, b)| a / b).collect());
    let (with_log, with_snapshots) = (ratio(1, 0), ratio(2, 1));
    for (name, rates) in ["log off", "log", "log and snapshots"].into_iter().zip(&rates) {
        println!("{name:>20}: {:>10.0} txn/s", median(rates.clone()));
    }
    println!("log / log off {with_log:.3}, with snapshots / without {with_snapshots:.3}");
    let counters = *logged.partition.counters();
    println!(
        "{} snapshots of {:.2} s and {:.0} MB each; longest step {} us; {} waits of {} us together",
        logged.snapshots,
        logged.snapshot_seconds / logged.snapshots.max(1) as f64,
        counters.snapshot_bytes as f64 / 1e6 / logged.snapshots.max(1) as f64,
        counters.snapshot_step_us_max,
        counters.snapshot_stalls,
        counters.snapshot_stall_us
    );
    drop(unlogged);
    for log_seconds in [0.0, 2.0 * arguments.seconds] {
        logged.begin_snapshot()?;
        logged.settle();
        let rate = logged.run(&wire, log_seconds, false)?;
        let config = logged.config.clone();
        drop(logged);
        logged = Database::open(config, &wire)?;
        let counters = logged.partition.counters();
        let seconds = counters.recovery_us as f64 / 1e6;
        println!(
            "recovery of {:.0} MB of snapshot, {} tuples, and {:.0} MB of log, {} transactions: {seconds:.2} s, {:.0} MB/s{}",
            counters.recovered_snapshot_bytes as f64 / 1e6,
            counters.recovered_tuples,
            counters.recovered_log_bytes as f64 / 1e6,
            counters.recovered_log_records,
            (counters.recovered_snapshot_bytes + counters.recovered_log_bytes) as f64 / 1e6 / seconds,
            if rate > 0.0 { format!(" (they were run at {rate:.0} txn/s)") } else { String::new() }
        );
    }
    Ok(())
}
