//! What durability costs, and how fast recovery is: one partition in process, YCSB with half updates and Zipf 1.0 over records of 1000 bytes.
//!
//! Without a log, with the log, and with the log while snapshots are taken one after the other.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anticache_engine::config::{Config, Log};

use crate::counters::{Counters, Counts};
use crate::disk::direct::bytes_per_s_through;
use crate::driver::{Driver, Pace, Requests};
use crate::harness::ycsb::{LOAD, draw, load_calls, wire};
use crate::harness::{self, BATCH, Report, median, ratio, schema, thread_cpu_s};

const DRAWN: usize = 1 << 19;
/// Requests without a reply at any time.
const PACE: Pace = Pace { outstanding: 16 << 10, batch: BATCH };
const SNAPSHOT_READS: &str = "own disk: the snapshot's file by direct reads of 1 MiB, 4 in flight";

#[derive(clap::Args)]
pub struct Arguments {
    /// Records of 1000 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Memory budget, as a share of what all records need.
    #[arg(long, default_value_t = 1.5)]
    memory_share: f64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1.5)]
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

/// A database, and where it is in its requests.
struct Database {
    config: Config,
    driver: Driver,
    requests: Requests,
}

impl Database {
    fn open(config: Config, wire: &[u8]) -> anyhow::Result<Self> {
        Ok(Self { driver: Driver::open(&config)?, config, requests: Requests::new(wire.to_vec()) })
    }

    /// Transactions per second, while snapshots follow each other or without any.
    fn run(&mut self, seconds: f64, snapshots: bool) -> anyhow::Result<f64> {
        self.driver.snapshots_follow = snapshots;
        let done = self.driver.run(&mut self.requests, PACE, Duration::from_secs_f64(seconds))?;
        self.driver.snapshots_follow = false;
        self.driver.settle()?;
        Ok(done.per_s())
    }
}

pub fn run(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let wire = wire(&draw(arguments.records, 0.5, DRAWN)?);
    let settings = format!(
        "1 partition, in process, {} records x 1000 B, Zipf 1.0, 50/50, aLRU, budget {} times the data",
        arguments.records, arguments.memory_share
    );
    harness::bind_to_last();
    let mut unlogged = Database::open(config(Log::Off, arguments, &directory.join("off")), &wire)?;
    let mut logged = Database::open(config(Log::Sync, arguments, &directory.join("sync")), &wire)?;
    for (name, database) in [("load, log off", &mut unlogged), ("load, log synced", &mut logged)] {
        let started = Instant::now();
        database.driver.call(load_calls(arguments.records, 100).map(|params| (LOAD, params)))?;
        let rate = arguments.records as f64 / started.elapsed().as_secs_f64();
        report.add(&format!("durability: {name}"), rate, "rows/s", None, &settings);
    }
    let mut rates: [Vec<f64>; 3] = Default::default();
    for _ in 0..arguments.rounds {
        rates[0].push(unlogged.run(arguments.seconds, false)?);
        rates[1].push(logged.run(arguments.seconds, false)?);
        rates[2].push(logged.run(arguments.seconds, true)?);
    }
    drop(unlogged);
    for ((name, peer), of) in
        [("log off", 0), ("log synced", 0), ("log synced, snapshot after snapshot", 1)].into_iter().zip(&rates)
    {
        let peer = (["log off", "log synced"][peer], ratio(of, &rates[peer]));
        report.add(&format!("durability: {name}"), median(of), "txn/s", Some(peer), &settings);
    }
    let counters = *logged.driver.partition.counters();
    let snapshots = logged.driver.snapshots.max(1) as f64;
    println!(
        "{} snapshots of {:.2} s and {:.0} MB each; {} waits of {} us together",
        logged.driver.snapshots,
        logged.driver.snapshots_s / snapshots,
        counters.snapshot_bytes as f64 / 1e6 / snapshots,
        counters.snapshot_stalls,
        counters.snapshot_stall_us
    );
    report.add("durability: longest snapshot step", counters.snapshot_step_us_max as f64, "us", None, &settings);
    recovery(arguments, logged, &wire, &settings, report)
}

/// The process "dies", and starts again: with a snapshot of everything, and with a log behind it. The disk's own speed is measured beside it.
fn recovery(
    arguments: &Arguments,
    mut logged: Database,
    wire: &[u8],
    settings: &str,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut counters = Counters::of_this_thread();
    for (name, log_seconds) in [("snapshot", 0.0), ("snapshot and log", 2.0 * arguments.seconds)] {
        logged.driver.begin_snapshot()?;
        logged.driver.settle()?;
        logged.run(log_seconds, false)?;
        let config = logged.config.clone();
        let (mut seconds, mut cpu_s, mut disk, mut counts) = (Vec::new(), Vec::new(), Vec::new(), Counts::default());
        let snapshot = snapshot_in(&config.data_dir)?;
        for _ in 0..arguments.rounds {
            // The same bytes right before: some disks give more for a second than for longer, or to other files.
            disk.extend(bytes_per_s_through(&snapshot)?);
            // Just before the start: what the host of a virtual machine takes back of its free memory is given again at half a gigabyte in a second.
            drop(logged);
            let (before, before_s) = (counters.read(), thread_cpu_s());
            logged = harness::unbound(|| Database::open(config.clone(), wire))?;
            cpu_s.push(thread_cpu_s() - before_s);
            counts.add(counters.read().since(before));
            seconds.push(logged.driver.partition.counters().recovery_us as f64 / 1e6);
        }
        let recovered = logged.driver.partition.counters();
        let bytes = (recovered.recovered_snapshot_bytes + recovered.recovered_log_bytes) as f64;
        let settings = format!(
            "{settings}; {:.0} MB of snapshot, {} tuples, {:.0} MB of log, {} transactions",
            recovered.recovered_snapshot_bytes as f64 / 1e6,
            recovered.recovered_tuples,
            recovered.recovered_log_bytes as f64 / 1e6,
            recovered.recovered_log_records,
        );
        report.add(&format!("recovery, {name}: time"), median(&seconds), "s", None, &settings);
        report.add(&format!("recovery, {name}: CPU time of its thread"), median(&cpu_s), "s", None, &settings);
        let rates: Vec<_> = seconds.iter().map(|seconds| bytes / seconds).collect();
        let peer = (!disk.is_empty()).then(|| (SNAPSHOT_READS, ratio(&rates, &disk)));
        report.add(&format!("recovery, {name}"), median(&rates) / 1e6, "MB/s", peer, &settings);
        for (what, count) in counts.named() {
            let per_mb = count / arguments.rounds as f64 / (bytes / 1e6);
            report.add(&format!("recovery, {name}: {what}"), per_mb, "/MB", None, &settings);
        }
    }
    Ok(())
}

/// The file of the one snapshot that is kept.
fn snapshot_in(directory: &Path) -> anyhow::Result<PathBuf> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("snapshot-") {
            return Ok(entry.path());
        }
    }
    anyhow::bail!("{} has no snapshot", directory.display())
}
