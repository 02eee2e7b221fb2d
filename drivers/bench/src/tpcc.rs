//! TPC-C with its full mix on one partition in process, with and without anti-caching and a synced command log.
//!
//! Inputs are drawn beforehand and gone through again and again. The database grows: by about one order of ten lines for every two transactions.

use std::path::Path;
use std::time::{Duration, Instant};

use anticache_engine::catalog::Catalog;
use anticache_engine::config::{AntiCaching, Config, Log};
use anticache_engine::net::frame::{RequestHead, parse_requests, write_request};
use anticache_engine::partition::Partition;
use anticache_engine::procedure::ProcedureSet;
use anticache_engine::procedure::tpcc::generate::{
    Mix, Population, Scale, Seeds, Terminal, TpccTable, TransactionKind,
};

use crate::harness::{self, BATCH, Replies, Report, median, ratio, schema};

/// Inputs drawn; a run cycles through them.
const DRAWN: usize = 1 << 18;
const SEED: u64 = 1;
/// What a warehouse takes when loaded, and what a second of transactions adds at most, in bytes.
const WAREHOUSE_BYTES: u64 = 160 << 20;
const GROWTH_BYTES: f64 = 400e6;

#[derive(clap::Args)]
pub struct Arguments {
    /// Warehouses.
    #[arg(long, default_value_t = 1)]
    warehouses: i16,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Times that every variant has its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Draw inputs of one transaction only: new_order, payment, order_status, delivery or stock_level.
    #[arg(long)]
    only: Option<String>,
    /// Measure only the variants whose names contain this.
    #[arg(long, default_value = "")]
    variant: String,
}

fn config(arguments: &Arguments, anticaching: AntiCaching, log: Log, data_dir: &Path) -> Config {
    let growth_bytes = GROWTH_BYTES * arguments.seconds * (arguments.rounds + 1) as f64;
    let budget_bytes = arguments.warehouses as u64 * WAREHOUSE_BYTES + growth_bytes as u64;
    let defaults = Config::new(schema("tpcc.sql"), data_dir.to_owned(), budget_bytes);
    Config { anticaching, log, log_segment_bytes: 256 << 20, ..defaults }
}

/// Requests of ten terminals for each warehouse, taking turns.
fn draw(scale: Scale, only: Option<&str>, procedures: &ProcedureSet) -> anyhow::Result<Vec<u8>> {
    let count = u64::from(scale.warehouses.unsigned_abs()) * 10;
    let mut terminals: Vec<_> =
        (0..count).map(|index| Terminal::new(scale, Mix::HomeOnly, Seeds::both(SEED), index)).collect();
    let only = match only {
        None => None,
        Some(name) => {
            let is_it = |kind: &TransactionKind| kind.procedure().strip_prefix("tpcc_") == Some(name);
            let kind = TransactionKind::ALL.into_iter().find(is_it);
            Some(kind.ok_or_else(|| anyhow::anyhow!("--only {name}: there is no such transaction"))?)
        }
    };
    let (mut wire, mut params) = (Vec::new(), Vec::new());
    for at in 0..DRAWN {
        let terminal = &mut terminals[at % count as usize];
        let now_us = 1_400_000_000_000_000 + at as i64;
        let input = match only {
            None => terminal.next(now_us),
            Some(kind) => terminal.draw(kind, now_us),
        };
        params.clear();
        input.encode(&mut params);
        let procedure = procedures.number(input.kind().procedure());
        write_request(&mut wire, at as u64, procedure.unwrap_or_default(), &params);
    }
    Ok(wire)
}

struct Variant {
    name: &'static str,
    partition: Partition,
    heads: Vec<RequestHead>,
    at: usize,
    /// Transactions measured, and the seconds that the processor spent on them.
    done: f64,
    cpu_s: f64,
}

impl Variant {
    fn load(
        arguments: &Arguments,
        name: &'static str,
        anticaching: AntiCaching,
        log: Log,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let catalog = Catalog::from_file(&schema("tpcc.sql"))?;
        let procedures = ProcedureSet::for_catalog(&catalog)?;
        let load = procedures.number("tpcc_load").unwrap_or_default();
        let data = directory.join(name.replace([' ', ','], "-"));
        std::fs::create_dir_all(&data)?;
        let config = config(arguments, anticaching, log, &data);
        let mut partition = Partition::create(0, &config, &catalog, procedures, &data)?;
        let population = Population::new(&catalog, Scale::new(arguments.warehouses), SEED)?;
        let mut sink = Replies(Vec::new());
        for table in TpccTable::ALL {
            let warehouses = if table == TpccTable::Item { 1..=1 } else { 1..=arguments.warehouses };
            for w_id in warehouses {
                for params in population.load_calls(table, w_id, 200) {
                    let head = RequestHead { token: 0, procedure: load, start: 0, end: params.len() };
                    partition.execute_batch(0, 0, &params, &[head], &mut sink);
                    partition.poll(&mut sink);
                    sink.0.clear();
                }
            }
        }
        while !partition.is_idle() {
            partition.poll(&mut sink);
        }
        let counters = partition.counters();
        anyhow::ensure!(counters.aborted + counters.failed == 0, "loading failed: {counters:?}");
        Ok(Self { name, partition, heads: Vec::new(), at: 0, done: 0.0, cpu_s: 0.0 })
    }

    /// Transactions per second, rolled-back New-Orders included: requests are parsed and run in batches, as the server does. What the log owes at
    /// the end is waited for.
    fn measure(&mut self, wire: &[u8], duration: Duration) -> anyhow::Result<f64> {
        let mut sink = Replies(Vec::with_capacity(1 << 20));
        let before = *self.partition.counters();
        let (started, cpu_before_s) = (Instant::now(), cpu_s());
        while started.elapsed() < duration {
            for _ in 0..4 {
                self.heads.clear();
                let input = &wire[self.at..];
                let used = parse_requests(input, BATCH, &mut self.heads)?;
                self.partition.execute_batch(0, 0, input, &self.heads, &mut sink);
                self.at = if self.heads.len() < BATCH { 0 } else { self.at + used };
                self.partition.poll(&mut sink);
                std::hint::black_box(&sink.0);
                sink.0.clear();
            }
        }
        while !self.partition.is_idle() {
            self.partition.poll(&mut sink);
        }
        let elapsed = started.elapsed().as_secs_f64();
        let after = self.partition.counters();
        anyhow::ensure!(after.failed == 0, "transactions failed: {after:?}");
        let done = (after.committed + after.aborted - before.committed - before.aborted) as f64;
        self.done += done;
        self.cpu_s += cpu_s() - cpu_before_s;
        Ok(done / elapsed)
    }
}

/// Seconds that the processor has worked for this thread.
fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn variants(arguments: &Arguments, directory: &Path) -> anyhow::Result<Vec<Variant>> {
    let all = [
        ("anticache-off, log off", AntiCaching::Off, Log::Off),
        ("anticache-alru, log off", AntiCaching::Alru, Log::Off),
        ("anticache-off, log synced", AntiCaching::Off, Log::Sync),
        ("anticache-alru, log synced", AntiCaching::Alru, Log::Sync),
    ];
    let chosen = all.into_iter().filter(|(name, ..)| name.contains(&arguments.variant));
    chosen.map(|(name, anticaching, log)| Variant::load(arguments, name, anticaching, log, directory)).collect()
}

pub fn run(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    harness::bind_to_last();
    let procedures = ProcedureSet::for_catalog(&Catalog::from_file(&schema("tpcc.sql"))?)?;
    let wire = draw(Scale::new(arguments.warehouses), arguments.only.as_deref(), &procedures)?;
    let mut variants = variants(arguments, directory)?;
    anyhow::ensure!(!variants.is_empty(), "--variant {}: no variant's name contains it", arguments.variant);
    let mut rates = vec![Vec::new(); variants.len()];
    for round in 0..=arguments.rounds {
        for (variant, rates) in variants.iter_mut().zip(&mut rates) {
            let rate = variant.measure(&wire, Duration::from_secs_f64(arguments.seconds))?;
            if round > 0 || arguments.rounds == 0 {
                rates.push(rate);
            }
        }
    }
    show(arguments, &variants, &rates, report);
    Ok(())
}

fn show(arguments: &Arguments, variants: &[Variant], rates: &[Vec<f64>], report: &mut Report) {
    let mix = arguments.only.as_deref().unwrap_or("full mix");
    let settings = format!(
        "1 partition, 1 core, in process, {} warehouses, home warehouse only, in memory, batches of {BATCH}",
        arguments.warehouses
    );
    let peer = variants[0].name;
    for (variant, of) in variants.iter().zip(rates) {
        let name = format!("TPC-C in process, {mix}: {}", variant.name);
        report.add(&name, median(of), "txn/s", Some((peer, ratio(of, &rates[0]))), &settings);
    }
    for variant in variants {
        let gauges = variant.partition.gauges();
        let (per_cpu_s, megabytes) = (variant.done / variant.cpu_s, gauges.memory_total_bytes / 1_000_000);
        println!("{:<58} {per_cpu_s:>14.0} txn per second of CPU, {megabytes} MB in the end", variant.name);
    }
}
