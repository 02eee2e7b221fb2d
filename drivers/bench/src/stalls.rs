//! How long the executor stalls: the time from the beginning of one transaction to the beginning of the next, under eviction, merges and snapshots, with
//! blocks of 1 MiB. Measured from outside, where the engine asks for the buffer of a transaction's reply, and beside it what the engine says of its own
//! pauses.

use std::path::Path;
use std::time::{Duration, Instant};

use anticache_engine::config::{Config, FetchUnit, Merge};
use anticache_engine::partition::ReplySink;
use hdrhistogram::Histogram;

use crate::driver::{Driver, Pace, Requests, Sink, directory};
use crate::eviction::config;
use crate::harness::ycsb::{Endless, LOAD, ROW_BYTES, SKEW, load_calls};
use crate::harness::{self, Replies, Report};

/// A turn without a transaction is an idle one, and no stall, when it is shorter.
const IDLE_NS: u64 = 20_000;
/// Requests that are drawn while the clock stands still.
const DRAWN: usize = 1 << 14;
/// Most requests that arrive at once.
const BATCH: usize = 16;

#[derive(clap::Args)]
pub struct Arguments {
    /// Records of 1000 bytes.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// How many times the budget the data are.
    #[arg(long, default_value_t = 2.0)]
    ratio: f64,
    /// Share of reads; the other transactions update a field.
    #[arg(long, default_value_t = 0.5)]
    reads: f64,
    /// Seconds of each measurement, after a quarter of it that does not count.
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// Transactions under way.
    #[arg(long, default_value_t = 64)]
    outstanding: usize,
    /// A key of the configuration and its value, as JSON or a word.
    #[arg(long = "set")]
    settings: Vec<String>,
}

/// Takes the time whenever a transaction begins.
pub struct Clocked {
    replies: Replies,
    gaps_ns: Histogram<u64>,
    /// When the last transaction began, or the executor was last seen with nothing to do.
    last: Instant,
}

impl Default for Clocked {
    fn default() -> Self {
        let gaps_ns = Histogram::new(3).expect("three digits are allowed");
        Self { replies: Replies::default(), gaps_ns, last: Instant::now() }
    }
}

impl ReplySink for Clocked {
    fn buffer(&mut self, _connection: u32, _epoch: u32) -> &mut Vec<u8> {
        let now = Instant::now();
        self.gaps_ns += now.duration_since(self.last).as_nanos() as u64;
        self.last = now;
        &mut self.replies.0
    }
}

impl Sink for Clocked {
    fn replies(&mut self) -> &mut Replies {
        &mut self.replies
    }

    fn idle(&mut self) {
        let now = Instant::now();
        let gap_ns = now.duration_since(self.last).as_nanos() as u64;
        if gap_ns >= IDLE_NS {
            self.gaps_ns += gap_ns;
        }
        self.last = now;
    }

    fn excuse(&mut self) {
        self.last = Instant::now();
    }
}

/// What goes on beside the transactions.
struct Variant {
    name: &'static str,
    merge: Merge,
    fetch: FetchUnit,
    snapshots: bool,
}

const VARIANTS: [Variant; 4] = [
    Variant {
        name: "eviction, tuple-merge, sectors fetched",
        merge: Merge::Tuple,
        fetch: FetchUnit::Sectors,
        snapshots: false,
    },
    Variant {
        name: "eviction, tuple-merge, blocks fetched",
        merge: Merge::Tuple,
        fetch: FetchUnit::Block,
        snapshots: false,
    },
    Variant { name: "eviction, block-merge", merge: Merge::Block, fetch: FetchUnit::Block, snapshots: false },
    Variant {
        name: "eviction, tuple-merge, snapshot after snapshot",
        merge: Merge::Tuple,
        fetch: FetchUnit::Block,
        snapshots: true,
    },
];

pub fn run(arguments: &Arguments, parent: &Path, report: &mut Report) -> anyhow::Result<()> {
    harness::bind_to_last();
    for variant in &VARIANTS {
        let config =
            config(arguments.records, arguments.ratio, &arguments.settings, &directory(parent, variant.name)?)?;
        let config = Config { merge: variant.merge, fetch: variant.fetch, ..config };
        let mut driver: Driver<Clocked> = Driver::open(&config)?;
        driver.call(load_calls(arguments.records, 16).map(|params| (LOAD, params)))?;
        driver.snapshots_follow = variant.snapshots;
        let mut endless = Endless::new(arguments.records, SKEW, false)?;
        run_for(&mut driver, &mut endless, arguments, arguments.seconds / 4.0)?;
        driver.sink.gaps_ns.reset();
        let snapshots = driver.snapshots;
        run_for(&mut driver, &mut endless, arguments, arguments.seconds)?;
        let settings = format!(
            "1 partition, in process, {} records x {ROW_BYTES} B, Zipf 1.0, {:.0} % reads, {} times the budget, blocks of {} KiB, log off, {} outstanding, {} snapshots{}",
            arguments.records,
            100.0 * arguments.reads,
            arguments.ratio,
            config.eviction_block_bytes >> 10,
            arguments.outstanding,
            driver.snapshots - snapshots,
            arguments.settings.iter().map(|setting| format!(", {setting}")).collect::<String>()
        );
        show(variant.name, &driver, &settings, report);
        drop(driver);
        std::fs::remove_dir_all(&config.data_dir)?;
    }
    Ok(())
}

fn run_for(
    driver: &mut Driver<Clocked>,
    endless: &mut Endless,
    arguments: &Arguments,
    seconds: f64,
) -> anyhow::Result<()> {
    let pace = Pace { outstanding: arguments.outstanding, batch: BATCH };
    let mut requests = Requests::new(Vec::new());
    let mut passed_s = 0.0;
    while passed_s < seconds {
        requests.renew(|wire| endless.draw(arguments.reads, DRAWN, wire));
        driver.sink.excuse();
        let left = Duration::from_secs_f64(seconds - passed_s);
        passed_s += driver.run_once(&mut requests, pace, left)?.seconds;
    }
    Ok(())
}

fn show(name: &str, driver: &Driver<Clocked>, settings: &str, report: &mut Report) {
    let gaps_ns = &driver.sink.gaps_ns;
    let shares = [("p50", 0.5), ("p99", 0.99), ("p99.99", 0.9999), ("max", 1.0)];
    for (share_name, share) in shares {
        let us = gaps_ns.value_at_quantile(share) as f64 / 1e3;
        report.add(&format!("between two transactions, {name}: {share_name}"), us, "us", None, settings);
    }
    let pauses = driver.partition.pauses().report();
    for kind in ["eviction", "merge", "compaction", "stall", "snapshot", "turn"] {
        if pauses[&format!("{kind}_pauses")].as_u64().unwrap_or_default() == 0 {
            continue;
        }
        for share in ["p50", "p99", "p999", "p9999", "max"] {
            let us = pauses[&format!("{kind}_pause_us_{share}")].as_f64().unwrap_or_default();
            let kind = format!("{kind} by the engine's account, loading included");
            report.add(&format!("{kind}, {name}: {share}"), us, "us", None, settings);
        }
    }
    let counters = driver.partition.counters();
    if counters.snapshot_stalls > 0 {
        println!(
            "{} waits of {} us together until the disk had taken something of a snapshot",
            counters.snapshot_stalls, counters.snapshot_stall_us
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_turns_are_no_stalls_unless_they_are_long() {
        let mut sink = Clocked::default();
        sink.buffer(0, 0);
        sink.gaps_ns.reset();
        std::thread::sleep(Duration::from_millis(2));
        // The executor was busy with something although no transaction could be run.
        sink.idle();
        assert_eq!((sink.gaps_ns.len(), sink.gaps_ns.max() >= 2_000_000), (1, true));
        std::thread::sleep(Duration::from_millis(2));
        sink.excuse();
        sink.buffer(0, 0);
        // Only what came behind the excuse counts.
        assert_eq!(sink.gaps_ns.len(), 2);
        assert!(sink.gaps_ns.min() < sink.gaps_ns.max());
    }
}
