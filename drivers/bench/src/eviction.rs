//! YCSB larger than memory, on the machine's own disk: how fast it is and what a miss costs, with the sectors of a tuple fetched and with whole blocks;
//! and with sectors in a database of its own whose merged tuples are on probation first, as the paper's are not.
//!
//! One thread keeps `--outstanding` transactions under way, as a server with so many terminals does. Mixes, fetch units, the same with all data in memory
//! and the disk by itself take turns. `--set` changes any key of the configuration.

use std::path::Path;
use std::time::Duration;

use anticache_engine::config::{Config, FetchUnit};
use anticache_engine::stats::Counters;

use crate::disk::direct::{PAGE, Reads, Scratch};
use crate::disk::{DEPTH, RANDOM_READS};
use crate::driver::{Done, Driver, Pace, Requests, directory};
use crate::harness::ycsb::{Endless, LOAD, ROW_BYTES, SKEW, ideal_miss_share, load_calls};
use crate::harness::{self, BATCH, Report, median, ratio, schema};

/// Memory that a record takes, with its share of the index and of what else grows.
pub const STORED_BYTES: f64 = 1250.0;
/// Requests that are drawn while the clock stands still.
const DRAWN: usize = 1 << 16;
const SCRATCH_BYTES: u64 = 1 << 30;
const IN_MEMORY: &str = "all in memory";
/// Tuples of a block. As many are evicted as are merged, so the disk takes a block for so many reads of one.
const READS_OF_A_BLOCK: u64 = (1 << 20) / ROW_BYTES as u64;

#[derive(clap::Args)]
pub struct Arguments {
    /// Records of 1000 bytes.
    #[arg(long, default_value_t = 2_000_000)]
    records: u64,
    /// How many times the budget the data are, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "2,8")]
    ratios: Vec<f64>,
    /// Shares of reads; the other transactions update a field.
    #[arg(long, value_delimiter = ',', default_value = "1,0.5")]
    reads: Vec<f64>,
    /// Exponent of the Zipf distribution.
    #[arg(long, default_value_t = SKEW)]
    skew: f64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Seconds before the first turn, with sectors fetched.
    #[arg(long, default_value_t = 5.0)]
    warm_up: f64,
    /// Share of the tuples in memory that are on probation, in the database that has such; 0 = there is none.
    #[arg(long, default_value_t = 0.2)]
    probation: f64,
    /// Seconds before its first turn: until what was loaded into it first has left it.
    #[arg(long, default_value_t = 40.0)]
    probation_warm_up: f64,
    /// Times that every variant has its turn, after one that does not count.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Records whose ranks are neighbours are neighbours in the file, instead of scattered.
    #[arg(long)]
    clustered: bool,
    /// Transactions under way.
    #[arg(long, default_value_t = 1024)]
    outstanding: usize,
    /// Requests that come at once, at most: what is done once for all of them, as a system call, costs each miss less the more they are.
    #[arg(long, default_value_t = BATCH)]
    batch: usize,
    /// A key of the configuration and its value, as JSON or a word.
    #[arg(long = "set")]
    settings: Vec<String>,
    /// Prints the engine's statistics, too.
    #[arg(long)]
    statistics: bool,
}

/// The configuration of a database with so many times as many data as memory; below 1: all of it is in memory.
pub fn config(records: u64, ratio: f64, settings: &[String], data_dir: &Path) -> anyhow::Result<Config> {
    let budget_bytes = (records as f64 * STORED_BYTES / ratio) as u64;
    let mut json = serde_json::json!({
        "schema": schema("ycsb.sql"), "data_dir": data_dir, "listen": "127.0.0.1:0", "log": "off",
        "memory_budget_bytes": budget_bytes,
    });
    harness::apply(&mut json, settings)?;
    Ok(serde_json::from_value(json)?)
}

/// What was counted in the measured times.
#[derive(Default)]
struct Tally {
    rates: Vec<f64>,
    done: Done,
    fetched: u64,
    /// Transactions that met an evicted tuple.
    restarted: u64,
    eviction_us: u64,
    system_calls_disk: u64,
    /// Tuples in memory in the end.
    resident: u64,
}

impl Tally {
    fn add(&mut self, done: Done, (before, calls_before): (&Counters, u64), driver: &Driver) {
        let (after, gauges) = (driver.partition.counters(), driver.partition.gauges());
        self.rates.push(done.per_s());
        self.done.add(done);
        self.fetched += after.fetched_blocks - before.fetched_blocks;
        self.restarted += after.restarted - before.restarted;
        self.eviction_us += after.eviction_us - before.eviction_us;
        self.system_calls_disk += gauges.system_calls_disk - calls_before;
        self.resident = gauges.tuples_resident;
    }
}

/// Which database.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Memory,
    Larger,
    LargerOnProbation,
}

/// A database with a mix and a fetch unit.
struct Variant {
    of: Of,
    reads: f64,
    fetch: FetchUnit,
    tally: Tally,
}

struct Bench<'a> {
    arguments: &'a Arguments,
    endless: Endless,
    requests: Requests,
    scratch: Option<Scratch>,
}

impl Bench<'_> {
    fn load(&self, ratio: f64, probation_share: Option<f64>, parent: &Path) -> anyhow::Result<(Config, Driver)> {
        let arguments = self.arguments;
        let data_dir = directory(parent, &format!("{ratio}x"))?;
        let mut config = config(arguments.records, ratio, &arguments.settings, &data_dir)?;
        config.probation_share = probation_share.unwrap_or(config.probation_share);
        let mut driver = Driver::open(&config)?;
        driver.call(load_calls(arguments.records, 16).map(|params| (LOAD, params)))?;
        Ok((config, driver))
    }

    /// A database that is larger than memory, run read-only with sectors fetched for `warm_up` seconds.
    fn load_larger(
        &mut self,
        ratio: f64,
        probation_share: Option<f64>,
        warm_up: f64,
        parent: &Path,
    ) -> anyhow::Result<(Config, Driver)> {
        let (config, mut driver) = self.load(ratio, probation_share, parent)?;
        driver.partition.change_settings(&Config { fetch: FetchUnit::Sectors, ..config.clone() });
        self.run(&mut driver, 1.0, warm_up)?;
        Ok((config, driver))
    }

    /// Goes on for so long, drawing requests between times.
    fn run(&mut self, driver: &mut Driver, reads: f64, seconds: f64) -> anyhow::Result<Done> {
        let pace = Pace { outstanding: self.arguments.outstanding, batch: self.arguments.batch };
        let mut done = Done::default();
        while done.seconds < seconds {
            self.requests.renew(|wire| self.endless.draw(reads, DRAWN, wire));
            done.add(driver.run_once(&mut self.requests, pace, Duration::from_secs_f64(seconds - done.seconds))?);
        }
        Ok(done)
    }

    /// A variant's turn: a while to get used to its settings, then what counts.
    fn measure(
        &mut self,
        (config, driver): &mut (Config, Driver),
        variant: &mut Variant,
        counts: bool,
    ) -> anyhow::Result<()> {
        let seconds = self.arguments.seconds;
        driver.partition.change_settings(&Config { fetch: variant.fetch, ..config.clone() });
        self.run(driver, variant.reads, seconds / 4.0)?;
        let before = *driver.partition.counters();
        let calls_before = driver.partition.gauges().system_calls_disk;
        let done = self.run(driver, variant.reads, seconds)?;
        if counts {
            variant.tally.add(done, (&before, calls_before), driver);
        }
        Ok(())
    }
}

pub fn run(arguments: &Arguments, parent: &Path, report: &mut Report) -> anyhow::Result<()> {
    let share = arguments.probation;
    anyhow::ensure!((0.0..=1.0).contains(&share), "--probation {share}: a share, 0 to 1");
    harness::bind_to_last();
    let scratch = Scratch::create(parent, SCRATCH_BYTES)?;
    let endless = Endless::new(arguments.records, arguments.skew, arguments.clustered)?;
    let mut bench = Bench { arguments, endless, requests: Requests::new(Vec::new()), scratch };
    let mut in_memory = bench.load(0.8, None, parent)?;
    for &ratio in &arguments.ratios {
        let own = [tempfile::tempdir_in(parent)?, tempfile::tempdir_in(parent)?];
        let mut larger = bench.load_larger(ratio, None, arguments.warm_up, own[0].path())?;
        let share = Some(arguments.probation).filter(|&share| share > 0.0);
        let mut probation = (share.is_some())
            .then(|| bench.load_larger(ratio, share, arguments.probation_warm_up, own[1].path()))
            .transpose()?;
        let mut variants = Vec::new();
        for &reads in &arguments.reads {
            let variant = |of, fetch| Variant { of, reads, fetch, tally: Tally::default() };
            variants.push(variant(Of::Memory, FetchUnit::Block));
            variants.push(variant(Of::Larger, FetchUnit::Sectors));
            variants.extend(share.map(|_| variant(Of::LargerOnProbation, FetchUnit::Sectors)));
            variants.push(variant(Of::Larger, FetchUnit::Block));
        }
        let (mut disk, mut with_writes, mut beside_work) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=arguments.rounds {
            for variant in &mut variants {
                let database = match variant.of {
                    Of::Memory => Some(&mut in_memory),
                    Of::Larger => Some(&mut larger),
                    Of::LargerOnProbation => probation.as_mut(),
                };
                if let Some(database) = database {
                    bench.measure(database, variant, round > 0)?;
                }
            }
            if let Some(scratch) = &bench.scratch {
                larger.1.settle()?;
                probation.iter_mut().try_for_each(|(_, driver)| driver.settle())?;
                let duration = Duration::from_secs_f64(arguments.seconds / 2.0);
                disk.push(scratch.random_reads(PAGE, DEPTH, duration)?);
                beside_work.push(scratch.random_reads_beside_work(PAGE, DEPTH, duration)?);
                with_writes.push(scratch.random_reads_and_writes(PAGE, DEPTH, READS_OF_A_BLOCK, duration)?);
            }
        }
        let disk = Disk { reads: disk, with_writes, beside_work };
        show(arguments, ratio, &variants, &disk, report);
        if arguments.statistics {
            println!("{}", serde_json::Value::Object(larger.1.partition.stats()));
        }
    }
    Ok(())
}

/// What the disk did by itself, turn by turn; nothing where it cannot be measured.
struct Disk {
    reads: Vec<Reads>,
    with_writes: Vec<Reads>,
    beside_work: Vec<Reads>,
}

fn show(arguments: &Arguments, times: f64, variants: &[Variant], disk: &Disk, report: &mut Report) {
    let settings = format!(
        "1 partition, in process, {} records x {ROW_BYTES} B, Zipf {:?}, {}, {times} times the budget, log off, {} outstanding, {} at once{}",
        arguments.records,
        arguments.skew,
        if arguments.clustered { "clustered" } else { "scattered" },
        arguments.outstanding,
        arguments.batch,
        arguments.settings.iter().map(|setting| format!(", {setting}")).collect::<String>()
    );
    let disk_settings = format!("O_DIRECT, io_uring, one thread, file of {} MB", SCRATCH_BYTES / 1_000_000);
    let per_s = |reads: &[Reads]| reads.iter().map(|reads| reads.per_s).collect::<Vec<_>>();
    let disk_per_s = per_s(&disk.reads);
    if !disk.reads.is_empty() {
        report.add(&format!("{RANDOM_READS} (beside {times}x)"), median(&disk_per_s), "IOPS", None, &disk_settings);
        let name = format!("{RANDOM_READS}, 1 MiB written for each {READS_OF_A_BLOCK} (beside {times}x)");
        let with_writes = per_s(&disk.with_writes);
        let peer = ("the reads alone", ratio(&with_writes, &disk_per_s));
        report.add(&name, median(&with_writes), "IOPS", Some(peer), &disk_settings);
        let name = format!("{RANDOM_READS}, by a thread with other work (beside {times}x)");
        report.add(&name, median(&per_s(&disk.beside_work)), "IOPS", None, &disk_settings);
    }
    for of_a_mix in variants.chunk_by(|_, next| next.of != Of::Memory) {
        let [in_memory, larger @ ..] = of_a_mix else { continue };
        let mix = if in_memory.reads == 1.0 {
            "read-only".to_owned()
        } else {
            format!("{:.0} % reads", 100.0 * in_memory.reads)
        };
        let rates = &in_memory.tally.rates;
        let name = format!("YCSB {IN_MEMORY}, {mix} (beside {times}x)");
        report.add(&name, median(rates), "txn/s", None, &settings);
        in_memory.tally.done.show_counts(&name, &settings, report);
        for variant in larger {
            let tally = &variant.tally;
            let unit = if variant.fetch == FetchUnit::Sectors { "sectors" } else { "blocks" };
            let probation = if variant.of == Of::LargerOnProbation { ", probation" } else { "" };
            let name = format!("YCSB {times}x memory, {mix}, {unit} fetched{probation}");
            let settings = &match variant.of {
                Of::LargerOnProbation => format!("{settings}, probation_share={}", arguments.probation),
                _ => settings.clone(),
            };
            report.add(&name, median(&tally.rates), "txn/s", Some((IN_MEMORY, ratio(&tally.rates, rates))), settings);
            tally.done.show_counts(&name, settings, report);
            let per_thousand = |count: u64| 1000.0 * count as f64 / tally.done.transactions as f64;
            let misses = per_thousand(tally.restarted);
            let ideal = 1000.0 * ideal_miss_share(arguments.records, arguments.skew, tally.resident);
            let peer = ("misses with the hottest tuples in memory", misses / ideal);
            report.add(&format!("{name}: misses"), misses, "/1000txn", Some(peer), settings);
            // Misses share a fetch when their tuples lie in one block.
            report.add(&format!("{name}: fetches"), per_thousand(tally.fetched), "/1000txn", None, settings);
            let per_s = tally.fetched as f64 / tally.done.seconds;
            let peer =
                (!disk_per_s.is_empty()).then(|| ("the disk's direct random reads", per_s / median(&disk_per_s)));
            report.add(&format!("{name}: fetches in a second"), per_s, "IOPS", peer, settings);
            if in_memory.reads == 1.0 && !disk_per_s.is_empty() {
                show_cost(&name, in_memory, tally, disk, settings, report);
            }
        }
    }
}

/// What a miss costs the executor: its CPU time for a transaction, less that of one in memory and what it spent on constructing blocks, for each
/// transaction that met an evicted tuple. The disk's read by itself costs it what a direct read of a page takes from a thread that has other work.
fn show_cost(name: &str, in_memory: &Variant, tally: &Tally, disk: &Disk, settings: &str, report: &mut Report) {
    let transactions = tally.done.transactions as f64;
    let misses = tally.restarted as f64 / transactions;
    let beyond_us = tally.done.busy_us() - in_memory.tally.done.busy_us();
    let eviction_us = tally.eviction_us as f64 / transactions;
    let miss_us = (beyond_us - eviction_us) / misses;
    let cpu_us = |reads: &[Reads]| median(&reads.iter().map(|reads| reads.cpu_us).collect::<Vec<_>>());
    let read_us = cpu_us(&disk.beside_work);
    let idle = 1.0 - (tally.done.cpu_s - tally.done.idle_s) / tally.done.seconds;
    report.add(&format!("{name}: executor idle"), idle, "of time", None, settings);
    report.add(&format!("{name}: constructing blocks, for each miss"), eviction_us / misses, "us", None, settings);
    let calls = tally.system_calls_disk as f64 / tally.restarted as f64;
    report.add(&format!("{name}: system calls for the disk, for each miss"), calls, "calls", None, settings);
    report.add(&format!("{name}: fetch, merge and second run, for each miss"), miss_us, "us", None, settings);
    report.add(&format!("{name}: a direct read, by a thread with other work"), read_us, "us", None, settings);
    report.add(&format!("{name}: a direct read, by one that sleeps"), cpu_us(&disk.reads), "us", None, settings);
    let peer = ("what a direct read takes from other work", (miss_us - read_us) / read_us);
    report.add(&format!("{name}: the same without the read itself"), miss_us - read_us, "us", Some(peer), settings);
}
