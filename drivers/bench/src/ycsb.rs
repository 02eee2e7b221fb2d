//! YCSB with Zipf 1.0 over records of 1000 bytes, all in memory, in process: what the LRU chain costs. Requests are drawn beforehand.

use std::path::Path;
use std::time::Duration;

use anticache_engine::config::{AntiCaching, Config, Log};

use crate::driver::{Driver, Pace, Requests, directory};
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
        let wire = wire(&draw(records, read_share, DRAWN)?);
        let mut requests = Requests::new(wire);
        let mut rates = vec![Vec::new(); variants.len()];
        for round in 0..=arguments.rounds {
            for ((_, driver), rates) in variants.iter_mut().zip(&mut rates) {
                let rate = driver.run(&mut requests, PACE, duration)?.per_s();
                if round > 0 {
                    rates.push(rate);
                }
            }
        }
        for ((name, _), of) in variants.iter().zip(&rates) {
            let peer = (kinds[0].0, ratio(of, &rates[0]));
            report.add(&format!("YCSB in process, {mix}: {name}"), median(of), "txn/s", Some(peer), &settings);
        }
    }
    Ok(())
}
