//! TPC-C with its full mix on one partition in process, all in memory, with and without anti-caching and a synced command log.
//!
//! Inputs are drawn beforehand and gone through again and again. The database grows: by about one order of ten lines for every two transactions.

use std::path::Path;
use std::time::Duration;

use anticache_engine::catalog::Catalog;
use anticache_engine::config::{AntiCaching, Config, Log};
use anticache_engine::net::frame::write_request;
use anticache_engine::procedure::ProcedureSet;
use anticache_engine::procedure::tpcc::DISTRICTS;
use anticache_engine::procedure::tpcc::generate::{
    Mix, Population, Scale, Seeds, Terminal, TpccTable, TransactionKind,
};
use anticache_engine::procedure::tpcc::params::Load;
use anyhow::Context;

use crate::driver::{Done, Driver, Pace, Requests, directory};
use crate::harness::{self, BATCH, Report, median, ratio, schema};

/// Inputs drawn; a run cycles through them.
pub const DRAWN: usize = 1 << 18;
const SEED: u64 = 1;
/// What a warehouse takes when loaded, and what a second of transactions adds at most, in bytes.
const WAREHOUSE_BYTES: u64 = 160 << 20;
const GROWTH_BYTES: f64 = 400e6;
/// Orders of a district that are loaded before it is the next one's turn.
const ORDERS_PER_TURN: usize = 10;
/// With a log, so many may wait for their group.
const PACE: Pace = Pace { outstanding: 16 << 10, batch: BATCH };

#[derive(clap::Args)]
pub struct Arguments {
    /// Warehouses, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1,10")]
    warehouses: Vec<i16>,
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

/// Requests of so many terminals, taking turns; of one transaction `only`, or of the full mix.
pub fn draw(scale: Scale, terminals: u64, only: Option<&str>) -> anyhow::Result<Requests> {
    let procedures = ProcedureSet::for_catalog(&Catalog::from_file(&schema("tpcc.sql"))?)?;
    let mut terminals: Vec<_> =
        (0..terminals).map(|index| Terminal::new(scale, Mix::HomeOnly, Seeds::both(SEED), index)).collect();
    let kind_of = |name: &str| {
        let is_it = |kind: &TransactionKind| kind.procedure().strip_prefix("tpcc_") == Some(name);
        let kind = TransactionKind::ALL.into_iter().find(is_it);
        kind.with_context(|| format!("--only {name}: there is no such transaction"))
    };
    let only = only.map(kind_of).transpose()?;
    let (mut wire, mut params) = (Vec::new(), Vec::new());
    let count = terminals.len();
    for at in 0..DRAWN {
        let terminal = &mut terminals[at % count];
        let now_us = 1_400_000_000_000_000 + at as i64;
        let input = match only {
            None => terminal.next(now_us),
            Some(kind) => terminal.draw(kind, now_us),
        };
        params.clear();
        input.encode(&mut params);
        let procedure = procedures.number(input.kind().procedure()).context("a procedure that the engine lacks")?;
        write_request(&mut wire, at as u64, procedure, &params);
    }
    Ok(Requests::new(wire))
}

/// Loads the tables; those that grow in the order of age over all districts, as if they had been filled by transactions.
pub fn load(driver: &mut Driver, scale: Scale) -> anyhow::Result<()> {
    let catalog = Catalog::from_file(&schema("tpcc.sql"))?;
    let procedure = ProcedureSet::for_catalog(&catalog)?.number("tpcc_load").context("the engine loads no TPC-C")?;
    let population = Population::new(&catalog, scale, SEED)?;
    let growing = [TpccTable::History, TpccTable::Orders, TpccTable::OrderLine];
    for table in TpccTable::ALL.into_iter().filter(|table| !growing.contains(table)) {
        let warehouses = if table == TpccTable::Item { 1..=1 } else { 1..=scale.warehouses };
        let calls = warehouses.flat_map(|w_id| population.load_calls(table, w_id, 200));
        driver.call(calls.map(|params| (procedure, params)))?;
    }
    let ids = (1..=scale.warehouses).flat_map(|w_id| (1..=DISTRICTS).map(move |d_id| (w_id, d_id)));
    let mut districts: Vec<_> = ids.map(|(w_id, d_id)| population.by_age(w_id, d_id)).collect();
    for _ in 0..(scale.orders_per_district as usize).div_ceil(ORDERS_PER_TURN) {
        let mut calls = Vec::new();
        for district in &mut districts {
            let rows: Vec<_> = district.by_ref().take(ORDERS_PER_TURN).flatten().collect();
            for table in growing {
                let mut call = Load::begin(population.table_id(table));
                rows.iter().filter(|(other, _)| *other == table).for_each(|(_, row)| Load::append(&mut call, row));
                calls.push((procedure, call));
            }
        }
        driver.call(calls)?;
    }
    let counters = driver.partition.counters();
    anyhow::ensure!(counters.aborted == 0, "loading failed: {counters:?}");
    Ok(())
}

struct Variant {
    name: &'static str,
    driver: Driver,
    done: Done,
    rates: Vec<f64>,
}

impl Variant {
    fn measure(&mut self, requests: &mut Requests, duration: Duration) -> anyhow::Result<f64> {
        let done = self.driver.run(requests, PACE, duration)?;
        self.driver.settle()?;
        self.done.add(done);
        Ok(done.per_s())
    }
}

fn variants(arguments: &Arguments, warehouses: i16, parent: &Path) -> anyhow::Result<Vec<Variant>> {
    let growth_bytes = GROWTH_BYTES * arguments.seconds * (arguments.rounds + 1) as f64;
    let budget_bytes = u64::from(warehouses.unsigned_abs()) * WAREHOUSE_BYTES + growth_bytes as u64;
    let all = [
        ("anticache-off, log off", AntiCaching::Off, Log::Off),
        ("anticache-alru, log off", AntiCaching::Alru, Log::Off),
        ("anticache-off, log synced", AntiCaching::Off, Log::Sync),
        ("anticache-alru, log synced", AntiCaching::Alru, Log::Sync),
    ];
    let mut variants = Vec::new();
    for (name, anticaching, log) in all.into_iter().filter(|(name, ..)| name.contains(&arguments.variant)) {
        let defaults = Config::new(schema("tpcc.sql"), directory(parent, name)?, budget_bytes);
        let config = Config { anticaching, log, log_segment_bytes: 256 << 20, ..defaults };
        let mut driver = Driver::open(&config)?;
        load(&mut driver, Scale::new(warehouses))?;
        variants.push(Variant { name, driver, done: Done::default(), rates: Vec::new() });
    }
    anyhow::ensure!(!variants.is_empty(), "--variant {}: no variant's name contains it", arguments.variant);
    Ok(variants)
}

pub fn run(arguments: &Arguments, parent: &Path, report: &mut Report) -> anyhow::Result<()> {
    harness::bind_to_last();
    for &warehouses in &arguments.warehouses {
        let own = tempfile::tempdir_in(parent)?;
        let terminals = u64::from(warehouses.unsigned_abs()) * 10;
        let mut requests = draw(Scale::new(warehouses), terminals, arguments.only.as_deref())?;
        let mut variants = variants(arguments, warehouses, own.path())?;
        for round in 0..=arguments.rounds {
            for variant in &mut variants {
                let rate = variant.measure(&mut requests, Duration::from_secs_f64(arguments.seconds))?;
                if round > 0 || arguments.rounds == 0 {
                    variant.rates.push(rate);
                }
            }
        }
        show(arguments, warehouses, &variants, report);
    }
    Ok(())
}

fn show(arguments: &Arguments, warehouses: i16, variants: &[Variant], report: &mut Report) {
    let mix = arguments.only.as_deref().unwrap_or("full mix");
    let settings = format!(
        "1 partition, 1 core, in process, {warehouses} warehouses, home warehouse only, in memory, batches of {BATCH}, at most {} outstanding",
        PACE.outstanding
    );
    let peer = &variants[0];
    for variant in variants {
        let name = format!("TPC-C in process, {warehouses} warehouses, {mix}: {}", variant.name);
        let peer = (peer.name, ratio(&variant.rates, &peer.rates));
        report.add(&name, median(&variant.rates), "txn/s", Some(peer), &settings);
        variant.done.show_counts(&name, &settings, report);
    }
    for variant in variants {
        let gauges = variant.driver.partition.gauges();
        let per_cpu_s = variant.done.transactions as f64 / variant.done.cpu_s;
        let megabytes = gauges.memory_total_bytes / 1_000_000;
        println!("{:<74} {per_cpu_s:>13.0} txn per second of CPU, {megabytes} MB in the end", variant.name);
    }
}
