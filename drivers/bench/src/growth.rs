//! TPC-C whose orders have outgrown the memory, and the same with all its data in memory. Full mix, home warehouse only, in process.
//!
//! The database has so many orders that its rows take `--ratio` times the memory for rows; the budget is that memory and the keys of the orders beyond
//! it, as in the project's Figure 7; with whole blocks fetched, and with the sectors of a tuple. As many orders all in memory tell what of the difference
//! is larger tables and indexes, and what is eviction. One thread keeps `--outstanding` transactions under way.
//! Prints where the tuples of each table are in the end.

use std::path::Path;
use std::time::Duration;

use anticache_engine::config::{Config, FetchUnit};
use anticache_engine::procedure::tpcc::DISTRICTS;
use anticache_engine::procedure::tpcc::generate::Scale;
use anticache_engine::stats::Counters;

use crate::driver::{Done, Driver, Pace, Requests, directory};
use crate::harness::{self, Report, median, ratio, schema};
use crate::tpcc;

/// Most requests that arrive at once.
const BATCH: usize = 16;
/// Memory that a row takes with its keys, as the workload of Figure 7 says.
const ITEM_BYTES: f64 = 140.0;
const STOCK_BYTES: f64 = 400.0;
/// With a row of HISTORY.
const CUSTOMER_BYTES: f64 = 1000.0;
/// With its lines; and what stays when all of them are evicted.
const ORDER_BYTES: f64 = 1000.0;
const EVICTED_ORDER_BYTES: f64 = 400.0;
/// Memory for what transactions add in a second, where nothing is to be evicted.
const GROWTH_BYTES: f64 = 400e6;

/// How large the database is at ratio 1.
#[derive(clap::Args)]
pub struct Dimensions {
    /// Warehouses.
    #[arg(long, default_value_t = 10)]
    pub warehouses: i16,
    /// Items, and rows of STOCK in a warehouse.
    #[arg(long, default_value_t = 20_000)]
    pub items: i32,
    /// Customers of a district.
    #[arg(long, default_value_t = 600)]
    pub customers: i32,
    /// Orders of a district at ratio 1.
    #[arg(long, default_value_t = 3000)]
    pub orders: i32,
}

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    dimensions: Dimensions,
    /// Rows as a multiple of the memory for rows.
    #[arg(long, default_value_t = 8.0)]
    ratio: f64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Times that each has its turn.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Transactions under way.
    #[arg(long, default_value_t = 64)]
    outstanding: usize,
    /// A key of the configuration and its value, as JSON or a word.
    #[arg(long = "set")]
    settings: Vec<String>,
}

impl Dimensions {
    /// Scale and budget in bytes of a database that has grown to so many times its memory.
    pub fn size(&self, ratio: f64) -> (Scale, u64) {
        let (warehouses, districts) = (f64::from(self.warehouses), f64::from(self.warehouses) * f64::from(DISTRICTS));
        let static_bytes = f64::from(self.items) * (ITEM_BYTES + warehouses * STOCK_BYTES)
            + districts * f64::from(self.customers) * CUSTOMER_BYTES;
        let row_bytes = static_bytes + districts * f64::from(self.orders) * ORDER_BYTES;
        let beyond = ((ratio - 1.0) * row_bytes / ORDER_BYTES / districts).round();
        let scale = Scale {
            warehouses: self.warehouses,
            items: self.items,
            customers_per_district: self.customers,
            orders_per_district: self.orders + beyond as i32,
        };
        (scale, (row_bytes + beyond * districts * EVICTED_ORDER_BYTES) as u64)
    }
}

impl Arguments {
    fn config(&self, budget_bytes: u64, fetch: FetchUnit, data_dir: &Path) -> anyhow::Result<Config> {
        let sets_fetch = self.settings.iter().any(|setting| setting.starts_with("fetch="));
        anyhow::ensure!(!sets_fetch, "--set fetch: blocks and sectors are both measured");
        let mut json = serde_json::json!({
            "schema": schema("tpcc.sql"), "data_dir": data_dir, "listen": "127.0.0.1:0", "log": "off",
            "memory_budget_bytes": budget_bytes,
        });
        harness::apply(&mut json, &self.settings)?;
        Ok(Config { fetch, ..serde_json::from_value(json)? })
    }
}

struct Variant {
    name: String,
    driver: Driver,
    requests: Requests,
    done: Done,
    rates: Vec<f64>,
    /// The engine's counters before what is counted.
    before: Counters,
}

impl Variant {
    fn new(
        arguments: &Arguments,
        name: String,
        (scale, budget_bytes): (Scale, u64),
        fetch: FetchUnit,
        parent: &Path,
    ) -> anyhow::Result<Self> {
        let mut driver = Driver::open(&arguments.config(budget_bytes, fetch, &directory(parent, &name)?)?)?;
        tpcc::load(&mut driver, scale)?;
        let terminals = arguments.outstanding.max(usize::from(arguments.dimensions.warehouses.unsigned_abs()));
        let requests = tpcc::draw(scale, terminals as u64, None)?;
        let (done, before) = (Done::default(), Counters::default());
        Ok(Self { name, driver, requests, done, rates: Vec::new(), before })
    }
}

pub fn run(arguments: &Arguments, parent: &Path, report: &mut Report) -> anyhow::Result<()> {
    harness::bind_to_last();
    let (scale, memory_bytes) = arguments.dimensions.size(1.0);
    let growth_bytes = GROWTH_BYTES * arguments.seconds * (arguments.rounds + 1) as f64;
    let in_memory_bytes = 2 * memory_bytes + growth_bytes as u64;
    let grown = arguments.dimensions.size(arguments.ratio);
    let as_many_bytes = (2.0 * arguments.ratio * memory_bytes as f64 + growth_bytes) as u64;
    let as_many = format!("{}x as many orders, all in memory", arguments.ratio);
    let name = |fetched: &str| format!("{}x the memory, {fetched} fetched", arguments.ratio);
    let mut variants = [
        Variant::new(arguments, "all in memory".to_owned(), (scale, in_memory_bytes), FetchUnit::Block, parent)?,
        Variant::new(arguments, as_many, (grown.0, as_many_bytes), FetchUnit::Block, parent)?,
        Variant::new(arguments, name("blocks"), grown, FetchUnit::Block, parent)?,
        Variant::new(arguments, name("sectors"), grown, FetchUnit::Sectors, parent)?,
    ];
    let pace = Pace { outstanding: arguments.outstanding, batch: BATCH };
    for round in 0..=arguments.rounds {
        for variant in &mut variants {
            let duration = Duration::from_secs_f64(arguments.seconds);
            let done = variant.driver.run(&mut variant.requests, pace, duration)?;
            if round > 0 {
                variant.done.add(done);
                variant.rates.push(done.per_s());
            } else {
                variant.before = *variant.driver.partition.counters();
            }
        }
    }
    show(arguments, &variants, report);
    Ok(())
}

fn show(arguments: &Arguments, variants: &[Variant; 4], report: &mut Report) {
    let settings = format!(
        "1 partition, in process, {} warehouses, {} items, {} customers and {} orders of a district at 1x, home warehouse only, log off, {} outstanding{}",
        arguments.dimensions.warehouses,
        arguments.dimensions.items,
        arguments.dimensions.customers,
        arguments.dimensions.orders,
        arguments.outstanding,
        arguments.settings.iter().map(|setting| format!(", {setting}")).collect::<String>()
    );
    let [in_memory, larger @ ..] = variants;
    let name = |variant: &Variant| format!("TPC-C grown in process, full mix: {}", variant.name);
    report.add(&name(in_memory), median(&in_memory.rates), "txn/s", None, &settings);
    in_memory.done.show_counts(&name(in_memory), &settings, report);
    for grown in larger {
        let name = name(grown);
        let peer = (in_memory.name.as_str(), ratio(&grown.rates, &in_memory.rates));
        report.add(&name, median(&grown.rates), "txn/s", Some(peer), &settings);
        grown.done.show_counts(&name, &settings, report);
        let counters = grown.driver.partition.counters();
        let since = |count: fn(&Counters) -> u64| (count(counters) - count(&grown.before)) as f64;
        let transactions = since(|of| of.committed + of.aborted);
        let counts = [
            ("restarts", since(|of| of.restarted)),
            ("fetches", since(|of| of.fetched_blocks)),
            ("blocks evicted", since(|of| of.evicted_blocks)),
        ];
        for (what, count) in counts {
            report.add(&format!("{name}: {what}"), 1000.0 * count / transactions, "/1000txn", None, &settings);
        }
        let eviction_us = since(|of| of.eviction_us) / transactions;
        report.add(&format!("{name}: constructing blocks"), eviction_us, "us/txn", None, &settings);
        println!("{}:", grown.name);
        for table in grown.driver.partition.tables().iter().filter(|table| table.chain().is_some()) {
            let (def, live, evicted) = (table.def(), table.tuples().live(), table.evicted().live());
            println!("{:<20} {live:>10} tuples in memory, {evicted:>10} evicted", def.name);
        }
    }
}
