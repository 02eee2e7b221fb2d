//! What eviction, merges and compaction cost the transactions: YCSB, Zipf 1.0, records of 1000 bytes, a budget of a half or an eighth of them.
//!
//! One thread keeps `--outstanding` transactions under way, as a server with so many terminals does. Every call of the executor is timed from
//! outside: what a call takes beyond its transactions is a pause. `--set` changes any key of the configuration. Prints all counters as JSON, too.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anticache_engine::catalog::Catalog;
use anticache_engine::config::Config;
use anticache_engine::net::frame::{RequestHead, parse_requests, write_request};
use anticache_engine::partition::Partition;
use anticache_engine::procedure::ProcedureSet;
use rand::RngExt;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use rand_distr::{Distribution, Zipf};

use crate::harness::ycsb::{FIELDS, encode, load_calls};
use crate::harness::{self, Replies, Report, schema};

/// Memory that a record takes, with its share of the index.
const STORED_BYTES: f64 = 1250.0;
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
    /// Seconds of warming up, and again of measuring.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// Share of reads; the others update a field.
    #[arg(long, default_value_t = 0.5)]
    reads: f64,
    /// Records whose ranks are neighbours are neighbours in the file, instead of scattered.
    #[arg(long)]
    clustered: bool,
    /// Transactions under way.
    #[arg(long, default_value_t = 64)]
    outstanding: usize,
    /// A key of the configuration and its value, as JSON or a word.
    #[arg(long = "set")]
    settings: Vec<String>,
}

fn config(arguments: &Arguments, data_dir: &Path) -> anyhow::Result<Config> {
    let mut json = serde_json::json!({
        "schema": schema("ycsb.sql"), "data_dir": data_dir, "listen": "127.0.0.1:0", "log": "off",
        "memory_budget_bytes": (arguments.records as f64 * STORED_BYTES / arguments.ratio) as u64,
    });
    harness::apply(&mut json, &arguments.settings)?;
    let config: Config = serde_json::from_value(json)?;
    config.check()?;
    Ok(config)
}

/// How long single calls took.
#[derive(Default)]
struct Times(Vec<u32>);

impl Times {
    fn add(&mut self, since: Instant) {
        self.0.push(since.elapsed().as_micros().min(u128::from(u32::MAX)) as u32);
    }

    fn report(&mut self) -> serde_json::Value {
        self.0.sort_unstable();
        let at = |share: f64| self.0.get((self.0.len() as f64 * share) as usize).copied();
        let over = |us: u32| self.0.len() - self.0.partition_point(|&time| time <= us);
        serde_json::json!({"calls": self.0.len(), "p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "p9999": at(0.9999),
            "max": self.0.last(), "over_1000": over(1000), "over_2000": over(2000), "over_4000": over(4000)})
    }
}

struct Driver {
    partition: Partition,
    sink: Replies,
    heads: Vec<RequestHead>,
    wire: Vec<u8>,
    under_way: usize,
}

impl Driver {
    fn load(&mut self, records: u64, calls: &mut BTreeMap<&str, Times>) {
        for params in load_calls(records, BATCH as u64) {
            let head = RequestHead { token: 0, procedure: 2, start: 0, end: params.len() };
            let before = Instant::now();
            self.partition.execute_batch(0, 0, &params, &[head], &mut self.sink);
            calls.entry("load: batch").or_default().add(before);
            let before = Instant::now();
            self.partition.poll(&mut self.sink);
            calls.entry("load: poll").or_default().add(before);
            self.sink.0.clear();
        }
        while !self.partition.is_idle() {
            self.partition.poll(&mut self.sink);
        }
        self.sink.0.clear();
    }

    /// Transactions a second, and the times of the calls, by kind.
    fn run(
        &mut self,
        arguments: &Arguments,
        mut key: impl FnMut() -> (i64, bool),
        calls: &mut BTreeMap<&str, Times>,
    ) -> f64 {
        let (started, mut done) = (Instant::now(), 0);
        while started.elapsed() < Duration::from_secs_f64(arguments.seconds) {
            let count = (arguments.outstanding - self.under_way).min(BATCH);
            self.wire.clear();
            for _ in 0..count {
                let (key, read) = key();
                let mut params = Vec::new();
                encode(key, (!read).then_some((key % i64::from(FIELDS)) as u16), &mut params);
                write_request(&mut self.wire, 0, u16::from(!read), &params);
            }
            self.heads.clear();
            parse_requests(&self.wire, BATCH, &mut self.heads).expect("well-formed requests");
            let before = Instant::now();
            self.partition.execute_batch(0, 0, &self.wire, &self.heads, &mut self.sink);
            calls.entry("batch").or_default().add(before);
            let before = Instant::now();
            self.partition.poll(&mut self.sink);
            calls.entry("poll").or_default().add(before);
            let ended = self.sink.take();
            done += ended;
            self.under_way = self.under_way + count - ended;
        }
        done as f64 / started.elapsed().as_secs_f64()
    }
}

pub fn run(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    let config = config(arguments, directory)?;
    let catalog = Catalog::from_file(&config.schema)?;
    let procedures = ProcedureSet::for_catalog(&catalog)?;
    let partition = Partition::create(0, &config, &catalog, procedures, directory)?;
    let mut driver = Driver { partition, sink: Replies::default(), heads: Vec::new(), wire: Vec::new(), under_way: 0 };
    let mut calls = BTreeMap::new();
    driver.load(arguments.records, &mut calls);
    let loaded = driver.partition.stats();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
    let zipf = Zipf::new(arguments.records as f64, 1.0)?;
    let records = arguments.records;
    let mut key = || {
        let rank = zipf.sample(&mut rng) as u64 - 1;
        let place = if arguments.clustered { rank } else { rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % records };
        ((records - 1 - place) as i64, rng.random_bool(arguments.reads))
    };
    driver.run(arguments, &mut key, &mut BTreeMap::new());
    let before = driver.partition.stats();
    let rate = driver.run(arguments, &mut key, &mut calls);
    let after = driver.partition.stats();
    let counted: serde_json::Map<_, _> = after
        .iter()
        .map(|(name, value)| {
            let since = |before: &serde_json::Value| value.as_u64()?.checked_sub(before.as_u64()?);
            let counter = before.get(name).and_then(since).filter(|_| !is_level(name));
            (name.clone(), counter.map_or_else(|| value.clone(), Into::into))
        })
        .collect();
    let calls: BTreeMap<_, _> = calls.iter_mut().map(|(kind, times)| (*kind, times.report())).collect();
    let settings = format!(
        "1 partition, in process, {records} records x 1000 B, Zipf 1.0, {:.0} % reads, {} times the budget, {} outstanding{}",
        100.0 * arguments.reads,
        arguments.ratio,
        arguments.outstanding,
        arguments.settings.iter().map(|setting| format!(", {setting}")).collect::<String>()
    );
    report.add("larger than memory", rate, "txn/s", None, &settings);
    for kind in ["batch", "poll"] {
        for share in ["p50", "p99", "p9999", "max"] {
            let time_us = calls[kind][share].as_f64().unwrap_or_default();
            report.add(&format!("larger than memory: {kind}, {share}"), time_us, "us", None, &settings);
        }
    }
    println!("{}", serde_json::json!({"call_us": calls, "loaded": loaded, "counted": counted}));
    Ok(())
}

/// Whether a statistic is a state and not a count.
fn is_level(name: &str) -> bool {
    ["memory_", "tuples_", "blocks_", "block_holes", "waiting"].iter().any(|prefix| name.starts_with(prefix))
        || ["_max", "_p50", "_p99", "_p999"].iter().any(|suffix| name.ends_with(suffix))
}
