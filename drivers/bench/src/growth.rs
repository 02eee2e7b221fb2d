//! TPC-C whose orders have outgrown the memory: what the choice of tables to evict from costs. Full mix, home warehouse only, in process.
//!
//! The database has so many orders that its rows take `--ratio` times the memory for rows; the budget is that memory and the keys of the orders beyond
//! it, as in the project's Figure 7. One thread keeps `--outstanding` transactions under way. Prints where the tuples of each table are in the end.

use std::path::Path;
use std::time::Instant;

use anticache_engine::catalog::Catalog;
use anticache_engine::config::Config;
use anticache_engine::net::frame::{RequestHead, parse_requests, write_request};
use anticache_engine::partition::Partition;
use anticache_engine::procedure::ProcedureSet;
use anticache_engine::procedure::tpcc::DISTRICTS;
use anticache_engine::procedure::tpcc::generate::{Mix, Population, Scale, Seeds, Terminal, TpccTable};
use anticache_engine::procedure::tpcc::params::Load;
use anticache_engine::stats::Counters;

use crate::harness::{self, Replies, Report, schema};

/// Most requests that arrive at once.
const BATCH: usize = 16;
/// Orders of a district that are loaded before it is the next one's turn.
const ORDERS_PER_TURN: usize = 10;
/// Memory that a row takes with its keys, as the workload of Figure 7 says.
const ITEM_BYTES: f64 = 140.0;
const STOCK_BYTES: f64 = 400.0;
/// With a row of HISTORY.
const CUSTOMER_BYTES: f64 = 1000.0;
/// With its lines; and what stays when all of them are evicted.
const ORDER_BYTES: f64 = 1000.0;
const EVICTED_ORDER_BYTES: f64 = 400.0;
const SEED: u64 = 1;

#[derive(clap::Args)]
pub struct Arguments {
    /// Warehouses.
    #[arg(long, default_value_t = 10)]
    warehouses: i16,
    /// Items, and rows of STOCK in a warehouse.
    #[arg(long, default_value_t = 10_000)]
    items: i32,
    /// Customers of a district.
    #[arg(long, default_value_t = 300)]
    customers: i32,
    /// Orders of a district at ratio 1.
    #[arg(long, default_value_t = 1200)]
    orders: i32,
    /// Rows as a multiple of the memory for rows.
    #[arg(long, default_value_t = 4.0)]
    ratio: f64,
    /// Transactions run before counting, and counted.
    #[arg(long, default_value_t = 100_000)]
    transactions: usize,
    /// Transactions under way.
    #[arg(long, default_value_t = 64)]
    outstanding: usize,
    /// A key of the configuration and its value, as JSON or a word.
    #[arg(long = "set")]
    settings: Vec<String>,
}

impl Arguments {
    /// Scale and budget in bytes.
    fn size(&self) -> (Scale, u64) {
        let (warehouses, districts) = (f64::from(self.warehouses), f64::from(self.warehouses) * f64::from(DISTRICTS));
        let static_bytes = f64::from(self.items) * (ITEM_BYTES + warehouses * STOCK_BYTES)
            + districts * f64::from(self.customers) * CUSTOMER_BYTES;
        let row_bytes = static_bytes + districts * f64::from(self.orders) * ORDER_BYTES;
        let beyond = ((self.ratio - 1.0) * row_bytes / ORDER_BYTES / districts).round();
        let scale = Scale {
            warehouses: self.warehouses,
            items: self.items,
            customers_per_district: self.customers,
            orders_per_district: self.orders + beyond as i32,
        };
        (scale, (row_bytes + beyond * districts * EVICTED_ORDER_BYTES) as u64)
    }
}

struct Driver {
    partition: Partition,
    sink: Replies,
    heads: Vec<RequestHead>,
    under_way: usize,
}

impl Driver {
    /// Begins what is in `wire`, and counts what has ended.
    fn turn(&mut self, wire: &[u8]) -> anyhow::Result<usize> {
        self.heads.clear();
        parse_requests(wire, usize::MAX, &mut self.heads)?;
        self.under_way += self.heads.len();
        self.partition.execute_batch(0, 0, wire, &self.heads, &mut self.sink);
        self.partition.poll(&mut self.sink);
        let ended = self.sink.take();
        self.under_way -= ended;
        Ok(ended)
    }

    fn load(&mut self, scale: Scale, catalog: &Catalog, procedure: u16) -> anyhow::Result<()> {
        let (population, mut wire) = (Population::new(catalog, scale, SEED)?, Vec::new());
        let growing = [TpccTable::History, TpccTable::Orders, TpccTable::OrderLine];
        for table in TpccTable::ALL.into_iter().filter(|table| !growing.contains(table)) {
            let warehouses = if table == TpccTable::Item { 1..=1 } else { 1..=scale.warehouses };
            for params in warehouses.flat_map(|w_id| population.load_calls(table, w_id, 200)) {
                wire.clear();
                write_request(&mut wire, 0, procedure, &params);
                self.turn(&wire)?;
            }
        }
        let ids = (1..=scale.warehouses).flat_map(|w_id| (1..=DISTRICTS).map(move |d_id| (w_id, d_id)));
        let mut districts: Vec<_> = ids.map(|(w_id, d_id)| population.by_age(w_id, d_id)).collect();
        for _ in 0..(scale.orders_per_district as usize).div_ceil(ORDERS_PER_TURN) {
            for district in &mut districts {
                let rows: Vec<_> = district.by_ref().take(ORDERS_PER_TURN).flatten().collect();
                wire.clear();
                for table in growing {
                    let mut call = Load::begin(population.table_id(table));
                    rows.iter().filter(|(other, _)| *other == table).for_each(|(_, row)| Load::append(&mut call, row));
                    write_request(&mut wire, 0, procedure, &call);
                }
                self.turn(&wire)?;
            }
        }
        while self.under_way > 0 {
            self.turn(&[])?;
        }
        Ok(())
    }

    /// Runs requests until so many transactions have ended; returns how many ended in a second.
    fn execute(&mut self, drawn: &mut Drawn, arguments: &Arguments) -> anyhow::Result<f64> {
        let (started, mut done) = (Instant::now(), 0);
        while done < arguments.transactions {
            done += self.turn(drawn.take((arguments.outstanding - self.under_way).min(BATCH)))?;
        }
        Ok(done as f64 / started.elapsed().as_secs_f64())
    }
}

/// Requests that were drawn beforehand: the measurement is of the engine.
struct Drawn {
    wire: Vec<u8>,
    /// Where each request ends; the first number is 0.
    ends: Vec<usize>,
    taken: usize,
}

impl Drawn {
    /// Of so many terminals, taking turns.
    fn draw(scale: Scale, terminals: usize, requests: usize, procedures: &ProcedureSet) -> anyhow::Result<Self> {
        let mut terminals: Vec<_> =
            (0..terminals as u64).map(|index| Terminal::new(scale, Mix::HomeOnly, Seeds::both(SEED), index)).collect();
        let (mut wire, mut ends, mut params) = (Vec::new(), vec![0], Vec::new());
        let count = terminals.len();
        for at in 0..requests {
            let input = terminals[at % count].next(1_400_000_000_000_000 + at as i64);
            params.clear();
            input.encode(&mut params);
            write_request(&mut wire, 0, number(procedures, input.kind().procedure())?, &params);
            ends.push(wire.len());
        }
        Ok(Self { wire, ends, taken: 0 })
    }

    /// The next ones.
    fn take(&mut self, count: usize) -> &[u8] {
        let first = self.taken;
        self.taken += count;
        &self.wire[self.ends[first]..self.ends[self.taken]]
    }
}

fn number(procedures: &ProcedureSet, name: &str) -> anyhow::Result<u16> {
    procedures.number(name).ok_or_else(|| anyhow::anyhow!("no procedure {name}"))
}

pub fn run(arguments: &Arguments, directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    harness::bind_to_last();
    let (scale, budget_bytes) = arguments.size();
    let config = config(arguments, budget_bytes, directory)?;
    let catalog = Catalog::from_file(&config.schema)?;
    let procedures = ProcedureSet::for_catalog(&catalog)?;
    let load = number(&procedures, "tpcc_load")?;
    let partition = Partition::create(0, &config, &catalog, ProcedureSet::for_catalog(&catalog)?, directory)?;
    let mut driver = Driver { partition, sink: Replies::default(), heads: Vec::new(), under_way: 0 };
    driver.load(scale, &catalog, load)?;
    let terminals = arguments.outstanding.max(usize::from(arguments.warehouses.unsigned_abs()));
    // Of those that are begun, at most the outstanding ones are not counted.
    let requests = 2 * (arguments.transactions + arguments.outstanding);
    let mut drawn = Drawn::draw(scale, terminals, requests, &procedures)?;
    driver.execute(&mut drawn, arguments)?;
    let before = *driver.partition.counters();
    let rate = driver.execute(&mut drawn, arguments)?;
    show(arguments, &driver.partition, &before, rate, report);
    Ok(())
}

fn config(arguments: &Arguments, budget_bytes: u64, data_dir: &Path) -> anyhow::Result<Config> {
    let mut json = serde_json::json!({
        "schema": schema("tpcc.sql"), "data_dir": data_dir, "listen": "127.0.0.1:0", "log": "off", "memory_budget_bytes": budget_bytes,
    });
    harness::apply(&mut json, &arguments.settings)?;
    let config: Config = serde_json::from_value(json)?;
    config.check()?;
    Ok(config)
}

fn show(arguments: &Arguments, partition: &Partition, before: &Counters, rate: f64, report: &mut Report) {
    let settings = format!(
        "1 partition, in process, {} warehouses, home warehouse only, rows {} times the memory for rows, {} outstanding{}",
        arguments.warehouses,
        arguments.ratio,
        arguments.outstanding,
        arguments.settings.iter().map(|setting| format!(", {setting}")).collect::<String>()
    );
    let after = partition.counters();
    let per_thousand =
        |count: fn(&Counters) -> u64| 1000.0 * (count(after) - count(before)) as f64 / arguments.transactions as f64;
    report.add("TPC-C larger than memory", rate, "txn/s", None, &settings);
    report.add("TPC-C larger than memory: restarts", per_thousand(|of| of.restarted), "/1000txn", None, &settings);
    report.add(
        "TPC-C larger than memory: blocks fetched",
        per_thousand(|of| of.fetched_blocks),
        "/1000txn",
        None,
        &settings,
    );
    report.add(
        "TPC-C larger than memory: blocks evicted",
        per_thousand(|of| of.evicted_blocks),
        "/1000txn",
        None,
        &settings,
    );
    for table in partition.tables().iter().filter(|table| table.chain().is_some()) {
        println!(
            "{:<20} {:>10} tuples in memory, {:>10} evicted",
            table.def().name,
            table.tuples().live(),
            table.evicted().live()
        );
    }
}
