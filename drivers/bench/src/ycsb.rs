//! YCSB with Zipf 1.0 over records of 1000 bytes, all in memory, in process: what the LRU chain costs, and how much of the time is the memory's own.
//! Requests are drawn beforehand.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use anticache_engine::config::{AntiCaching, Config, Log};
use anticache_engine::storage::hash_index::hash_key;
use anticache_engine::storage::table::{Found, Table};
use anticache_engine::storage::tuples::NO_TUPLE;
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
    #[arg(long, default_value_t = 0.6)]
    seconds: f64,
    /// Times that every variant is loaded and has its turn.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
}

/// A database in which so many records are all in memory, and that takes no snapshots by itself.
pub fn in_memory(anticaching: AntiCaching, log: Log, records: u64, data_dir: &Path) -> Config {
    let defaults = Config::new(schema("ycsb.sql"), data_dir.to_owned(), (records * 1250).max(64 << 20));
    let no_snapshots = Config { snapshot_interval_s: 0, snapshot_log_bytes: 0, ..defaults };
    Config { anticaching, log, log_segment_bytes: 256 << 20, ..no_snapshots }
}

/// Keys whose memory is prefetched together: as many as the engine does.
const PREFETCHED: usize = 32;

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
                if let Some(id) = table.prefetch_tuple(hash) {
                    table.tuples().prefetch_columns(id, &columns);
                }
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

/// Links of LRU's chain that are followed.
const FOLLOWED: u32 = 400_000;

/// Follows a chain from its hot end, where the latest transactions have left the tuples in no order: what each link costs that has to be waited for, in
/// nanoseconds. Every transaction of LRU's meets three. `None` without a chain.
fn follow_chain(table: &Table) -> Option<f64> {
    let tuples = table.tuples();
    let mut at = table.chain()?.hottest()?;
    let mut followed = 0_u32;
    let started = Instant::now();
    while at != NO_TUPLE && followed < FOLLOWED {
        at = tuples.prev(at);
        followed += 1;
    }
    black_box(at);
    Some(started.elapsed().as_secs_f64() * 1e9 / f64::from(followed))
}

const KINDS: [(&str, AntiCaching); 3] =
    [("anticache-off", AntiCaching::Off), ("anticache-alru", AntiCaching::Alru), ("anticache-lru", AntiCaching::Lru)];
/// Mixes and their shares of reads.
const MIXES: [(&str, f64); 2] = [("read-only", 1.0), ("50/50", 0.5)];

/// Shares of the transactions that update the chain of one and the same database; none is one in a trillion, because 0 is refused as a setting.
const SHARES: [(&str, f64); 3] = [("none", 1e-12), ("1 %", 0.01), ("all", 1.0)];
/// Turns of each share in a round.
const TURNS: u32 = 3;

/// What one mix measured, a value for each round.
struct Measured {
    requests: Requests,
    /// The keys of the requests, in their order.
    keys: Vec<[u8; 8]>,
    at: usize,
    copies: Vec<f64>,
    /// What a link of LRU's chain takes, see [`follow_chain`].
    links_ns: Vec<f64>,
    rates: [Vec<f64>; KINDS.len()],
    /// By the shares of [`SHARES`].
    shares: [Vec<f64>; SHARES.len()],
    sums: [Done; KINDS.len()],
}

impl Measured {
    fn new(records: u64, read_share: f64) -> anyhow::Result<Self> {
        let drawn = draw(records, read_share, DRAWN)?;
        let keys = drawn.iter().filter_map(|(_, params)| params.first_chunk::<8>().copied()).collect();
        let requests = Requests::new(wire(&drawn));
        Ok(Self {
            requests,
            keys,
            at: 0,
            copies: Vec::new(),
            links_ns: Vec::new(),
            rates: Default::default(),
            shares: Default::default(),
            sums: Default::default(),
        })
    }

    /// Every variant's turn, the first time only to warm up.
    fn round(&mut self, variants: &mut [(usize, Driver)], duration: Duration, copies: bool) -> anyhow::Result<()> {
        for counts in [false, true] {
            for (kind, driver) in &mut *variants {
                let done = driver.run(&mut self.requests, PACE, if counts { duration } else { duration / 4 })?;
                if counts {
                    self.rates[*kind].push(done.per_s());
                    self.sums[*kind].add(done);
                }
            }
        }
        let lru = variants.iter().find(|(kind, _)| KINDS[*kind].1 == AntiCaching::Lru);
        self.links_ns.extend(lru.and_then(|(_, lru)| follow_chain(&lru.partition.tables()[0])));
        if let Some((_, off)) = variants.iter().find(|(kind, _)| copies && *kind == 0) {
            let table = &off.partition.tables()[0];
            self.copies.push(copy_out(table, &self.keys, &mut self.at, duration)?);
        }
        Ok(())
    }

    /// What updating the chain costs in one database, whose place in memory is the same for all shares.
    fn change_share(&mut self, database: &mut Driver, config: &Config, duration: Duration) -> anyhow::Result<()> {
        let mut sums = [Done::default(); SHARES.len()];
        for _ in 0..TURNS {
            for ((_, share), sum) in SHARES.iter().zip(&mut sums) {
                database.partition.change_settings(&Config { lru_sample_rate: *share, ..config.clone() });
                sum.add(database.run(&mut self.requests, PACE, duration / TURNS)?);
            }
        }
        self.shares.iter_mut().zip(&sums).for_each(|(rates, sum)| rates.push(sum.per_s()));
        Ok(())
    }

    fn show(&self, mix: &str, settings: &str, report: &mut Report) {
        let off = KINDS[0].0;
        if !self.copies.is_empty() {
            let name = format!("YCSB in process, {mix}: look-ups and copies without transactions");
            let peer = (off, ratio(&self.copies, &self.rates[0]));
            report.add(&name, median(&self.copies), "rows/s", Some(peer), settings);
        }
        for (((kind, _), rates), sum) in KINDS.iter().zip(&self.rates).zip(&self.sums) {
            let (name, peer) = (format!("YCSB in process, {mix}: {kind}"), (off, ratio(rates, &self.rates[0])));
            report.add(&name, median(rates), "txn/s", Some(peer), settings);
            sum.show_counts(&name, settings, report);
        }
        let name = format!("YCSB in process, {mix}: anticache-lru: a link of the chain, one after the other");
        report.add(&name, median(&self.links_ns), "ns", None, settings);
        for ((share, _), rates) in SHARES.iter().zip(&self.shares) {
            let name = format!("YCSB in process, {mix}, one database: {share} of the transactions update its chain");
            let peer = ("none of the transactions", ratio(rates, &self.shares[0]));
            report.add(&name, median(rates), "txn/s", Some(peer), settings);
        }
    }
}

/// The databases of a round, loaded anew and each time in another order: where one lies in memory decides about some percent of its speed, for as long as
/// it lives, and the first to be loaded is not better off every time.
fn load(records: u64, round: usize, parent: &Path) -> anyhow::Result<Vec<(usize, Driver)>> {
    let mut variants = Vec::new();
    for turn in 0..KINDS.len() {
        let kind = (round + turn) % KINDS.len();
        let (name, anticaching) = KINDS[kind];
        let config = in_memory(anticaching, Log::Off, records, &directory(parent, &format!("{name}-{round}"))?);
        let mut driver: Driver = Driver::open(&config)?;
        driver.call(load_calls(records, 100).map(|params| (LOAD, params)))?;
        variants.push((kind, driver));
    }
    Ok(variants)
}

pub fn run(arguments: &Arguments, parent: &Path, report: &mut Report) -> anyhow::Result<()> {
    harness::bind_to_last();
    let records = arguments.records;
    let duration = Duration::from_secs_f64(arguments.seconds);
    let mut measured = Vec::new();
    for (_, read_share) in MIXES {
        measured.push(Measured::new(records, read_share)?);
    }
    for round in 0..arguments.rounds {
        let mut variants = load(records, round, parent)?;
        for (of_mix, (_, read_share)) in measured.iter_mut().zip(MIXES) {
            of_mix.round(&mut variants, duration, read_share == 1.0)?;
        }
        let alru = variants.iter_mut().find(|(kind, _)| KINDS[*kind].1 == AntiCaching::Alru);
        let (_, alru) = alru.context("a round without aLRU")?;
        let config = in_memory(AntiCaching::Alru, Log::Off, records, parent);
        for of_mix in &mut measured {
            of_mix.change_share(alru, &config, duration)?;
        }
    }
    let settings = format!(
        "1 partition, 1 core, in process, {records} records x {ROW_BYTES} B, Zipf 1.0, in memory, log off, loaded anew for each of {} rounds",
        arguments.rounds
    );
    for (of_mix, (mix, _)) in measured.iter().zip(MIXES) {
        of_mix.show(mix, &settings, report);
    }
    Ok(())
}
