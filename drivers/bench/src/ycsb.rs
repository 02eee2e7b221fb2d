//! YCSB with Zipf 1.0 over records of 1000 bytes, all in memory, in process: what the LRU chain costs, and how much of the time is the memory's own.
//! Requests are drawn beforehand.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use anticache_engine::config::{AntiCaching, Config, Log};
use anticache_engine::storage::hash_index::hash_key;
use anticache_engine::storage::table::{Found, Table};
use anyhow::{Context, bail};

use crate::driver::{Done, Driver, Pace, Requests, directory};
use crate::harness::ycsb::{LOAD, ROW_BYTES, draw, load_calls, wire};
use crate::harness::{self, BATCH, Report, median, ratio, schema};

/// Requests drawn for each mix; a run cycles through them.
const DRAWN: usize = 1 << 20;
/// Without a log and with everything in memory each batch ends before the next begins.
const PACE: Pace = Pace { outstanding: BATCH, batch: BATCH };

#[derive(clap::Args)]
pub struct Arguments {
    /// Records of 1000 bytes.
    #[arg(long, default_value_t = 2_000_000)]
    records: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Times that every variant has its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// A database in which so many records are all in memory, and that takes no snapshots by itself.
pub fn in_memory(anticaching: AntiCaching, log: Log, records: u64, data_dir: &Path) -> Config {
    let defaults = Config::new(schema("ycsb.sql"), data_dir.to_owned(), (records * 1250).max(64 << 20));
    let no_snapshots = Config { snapshot_interval_s: 0, snapshot_log_bytes: 0, ..defaults };
    Config { anticaching, log, log_segment_bytes: 256 << 20, ..no_snapshots }
}

/// Keys whose memory is prefetched together, and cache lines of a tuple that are: as many as the engine does.
const PREFETCHED: usize = 16;
const PREFETCHED_LINES: usize = 4;

/// Looks records up and copies them out as the engine's read does, without a transaction, a request or a reply around it: what one core and its
/// memory allow with these structures. Goes on behind `at`; records per second.
fn copy_out(table: &Table, keys: &[[u8; 8]], at: &mut usize, duration: Duration) -> anyhow::Result<f64> {
    let columns = size_of::<i64>()..size_of::<i64>() + ROW_BYTES;
    let (mut out, mut hashes) = (Vec::with_capacity(BATCH * ROW_BYTES), [0; PREFETCHED]);
    let (started, mut copied) = (Instant::now(), 0);
    while started.elapsed() < duration {
        for _ in 0..BATCH {
            if *at + PREFETCHED > keys.len() {
                *at = 0;
            }
            let window = &keys[*at..*at + PREFETCHED];
            *at += PREFETCHED;
            for (key, hash) in window.iter().zip(&mut hashes) {
                *hash = hash_key(key);
                table.prefetch_bucket(*hash);
            }
            for &hash in &hashes {
                table.prefetch_tuple(hash, PREFETCHED_LINES);
            }
            if out.len() >= BATCH * ROW_BYTES {
                black_box(&out);
                out.clear();
            }
            for (key, &hash) in window.iter().zip(&hashes) {
                let Found::Resident(id) = table.find_hashed(hash, key).context("a record is missing")? else {
                    bail!("a record is evicted")
                };
                out.extend_from_slice(&table.tuples().row(id)[columns.clone()]);
            }
            copied += PREFETCHED;
        }
    }
    Ok(copied as f64 / started.elapsed().as_secs_f64())
}

pub fn run(arguments: &Arguments, parent: &Path, report: &mut Report) -> anyhow::Result<()> {
    harness::bind_to_last();
    let records = arguments.records;
    let kinds = [
        ("anticache-off", AntiCaching::Off),
        ("anticache-alru", AntiCaching::Alru),
        ("anticache-lru", AntiCaching::Lru),
    ];
    let mut variants = Vec::new();
    for (name, anticaching) in kinds {
        let config = in_memory(anticaching, Log::Off, records, &directory(parent, name)?);
        let mut driver: Driver = Driver::open(&config)?;
        driver.call(load_calls(records, 100).map(|params| (LOAD, params)))?;
        variants.push((name, driver));
    }
    let duration = Duration::from_secs_f64(arguments.seconds);
    let settings =
        format!("1 partition, 1 core, in process, {records} records x {ROW_BYTES} B, Zipf 1.0, in memory, log off");
    for (mix, read_share) in [("read-only", 1.0), ("50/50", 0.5)] {
        let drawn = draw(records, read_share, DRAWN)?;
        let mut requests = Requests::new(wire(&drawn));
        let (mut rates, mut sums) = (vec![Vec::new(); variants.len()], vec![Done::default(); variants.len()]);
        let keys: Vec<_> = drawn.iter().filter_map(|(_, params)| params.first_chunk::<8>().copied()).collect();
        let (mut copies, mut at) = (Vec::new(), 0);
        for round in 0..=arguments.rounds {
            for (((_, driver), rates), sum) in variants.iter_mut().zip(&mut rates).zip(&mut sums) {
                let done = driver.run(&mut requests, PACE, duration)?;
                if round > 0 {
                    sum.add(done);
                    rates.push(done.per_s());
                }
            }
            if read_share == 1.0 {
                let rate = copy_out(&variants[0].1.partition.tables()[0], &keys, &mut at, duration)?;
                if round > 0 {
                    copies.push(rate);
                }
            }
        }
        if read_share == 1.0 {
            let name = "YCSB in process, read-only: look-ups and copies without transactions";
            report.add(name, median(&copies), "rows/s", Some((kinds[0].0, ratio(&copies, &rates[0]))), &settings);
        }
        for (((name, _), of), sum) in variants.iter().zip(&rates).zip(&sums) {
            let (name, peer) = (format!("YCSB in process, {mix}: {name}"), (kinds[0].0, ratio(of, &rates[0])));
            report.add(&name, median(of), "txn/s", Some(peer), &settings);
            sum.show_counts(&name, &settings, report);
        }
    }
    Ok(())
}
