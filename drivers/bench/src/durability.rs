//! What durability costs, and how fast recovery is: one partition in process, YCSB with half updates and Zipf 1.0 over records of 1000 bytes.
//!
//! Without a log, with the log, and with the log while snapshots are taken one after the other.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anticache_engine::config::{Config, Log};
use anticache_engine::durability::recovery::{Opened, Site, read_schema};
use anticache_engine::durability::snapshot::Verdict;
use anticache_engine::durability::snapshot::keeper::Keeper;
use anticache_engine::io::files::{Files, KernelFiles};
use anticache_engine::net::frame::{RequestHead, parse_requests};
use anticache_engine::partition::Partition;
use anticache_engine::procedure::ProcedureSet;

use crate::harness::ycsb::{draw, load_calls, wire};
use crate::harness::{BATCH, Replies, Report, median, ratio, schema};

const DRAWN: usize = 1 << 19;
/// Requests without a reply at any time.
const OUTSTANDING: usize = 16 << 10;

#[derive(clap::Args)]
pub struct Arguments {
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
}

fn config(log: Log, arguments: &Arguments, data_dir: &Path) -> Config {
    let budget_bytes = (arguments.records as f64 * 1100.0 * arguments.memory_share) as u64;
    let defaults = Config::new(schema("ycsb.sql"), data_dir.to_owned(), budget_bytes.max(64 << 20));
    Config { log, log_segment_bytes: 256 << 20, snapshot_interval_s: 300, snapshot_log_bytes: 0, ..defaults }
}

/// A database in this process.
struct Database {
    config: Config,
    keeper: Keeper,
    partition: Partition,
    sink: Replies,
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
        let (partition, sink) = (partitions.remove(0), Replies::default());
        let mut heads = Vec::new();
        parse_requests(wire, usize::MAX, &mut heads)?;
        let (replies, sent, at) = (0, 0, 0);
        let (snapshots, snapshot_seconds, begun) = (0, 0.0, None);
        Ok(Self { config, keeper, partition, sink, replies, sent, heads, at, snapshots, snapshot_seconds, begun })
    }

    fn poll(&mut self) {
        self.partition.poll(&mut self.sink);
        self.replies += self.sink.take();
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
        for params in load_calls(records, 100) {
            let head = RequestHead { token: 0, procedure: 2, start: 0, end: params.len() };
            self.partition.execute_batch(0, 0, &params, &[head], &mut self.sink);
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

pub fn run(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let wire = wire(&draw(arguments.records, 0.5, DRAWN)?);
    let settings = format!(
        "1 partition, in process, {} records x 1000 B, Zipf 1.0, 50/50, aLRU, budget {} times the data",
        arguments.records, arguments.memory_share
    );
    let mut unlogged = Database::open(config(Log::Off, arguments, &directory.join("off")), &wire)?;
    let mut logged = Database::open(config(Log::Sync, arguments, &directory.join("sync")), &wire)?;
    for (name, database) in [("load, log off", &mut unlogged), ("load, log synced", &mut logged)] {
        let started = Instant::now();
        database.load(arguments.records)?;
        let rate = arguments.records as f64 / started.elapsed().as_secs_f64();
        report.add(&format!("durability: {name}"), rate, "rows/s", None, &settings);
    }
    let mut rates: [Vec<f64>; 3] = Default::default();
    for _ in 0..arguments.rounds {
        rates[0].push(unlogged.run(&wire, arguments.seconds, false)?);
        rates[1].push(logged.run(&wire, arguments.seconds, false)?);
        rates[2].push(logged.run(&wire, arguments.seconds, true)?);
    }
    for ((name, peer), of) in
        [("log off", 0), ("log synced", 0), ("log synced, snapshot running", 1)].into_iter().zip(&rates)
    {
        let peer = (["log off", "log synced"][peer], ratio(of, &rates[peer]));
        report.add(&format!("durability: {name}"), median(of), "txn/s", Some(peer), &settings);
    }
    let counters = *logged.partition.counters();
    println!(
        "{} snapshots of {:.2} s and {:.0} MB each; {} waits of {} us together",
        logged.snapshots,
        logged.snapshot_seconds / logged.snapshots.max(1) as f64,
        counters.snapshot_bytes as f64 / 1e6 / logged.snapshots.max(1) as f64,
        counters.snapshot_stalls,
        counters.snapshot_stall_us
    );
    report.add("durability: longest snapshot step", counters.snapshot_step_us_max as f64, "us", None, &settings);
    drop(unlogged);
    recovery(arguments, logged, &wire, &settings, report)
}

/// The process "dies", and starts again: with a snapshot of everything, and with a log behind it.
fn recovery(
    arguments: &Arguments,
    mut logged: Database,
    wire: &[u8],
    settings: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    for (name, log_seconds) in [("snapshot", 0.0), ("snapshot and log", 2.0 * arguments.seconds)] {
        logged.begin_snapshot()?;
        logged.settle();
        logged.run(wire, log_seconds, false)?;
        let config = logged.config.clone();
        drop(logged);
        logged = Database::open(config, wire)?;
        let counters = logged.partition.counters();
        let seconds = counters.recovery_us as f64 / 1e6;
        println!(
            "recovery of {:.0} MB of snapshot, {} tuples, and {:.0} MB of log, {} transactions: {seconds:.2} s",
            counters.recovered_snapshot_bytes as f64 / 1e6,
            counters.recovered_tuples,
            counters.recovered_log_bytes as f64 / 1e6,
            counters.recovered_log_records,
        );
        let bytes = (counters.recovered_snapshot_bytes + counters.recovered_log_bytes) as f64;
        report.add(&format!("durability: recovery, {name}"), bytes / 1e6 / seconds, "MB/s", None, settings);
    }
    Ok(())
}
