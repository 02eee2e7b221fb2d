//! TPC-C on the engine: loading by age, terminals.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anticache_engine::catalog::Catalog;
use anticache_engine::client::Client;
use anticache_engine::procedure::tpcc::generate::{Input, Population, TpccTable, TransactionKind};
use anticache_engine::procedure::tpcc::params::Load;
use anticache_engine::procedure::tpcc::{DISTRICTS, load, partition_of};

use super::{AnticacheSystem, BulkClient, LOAD_OUTSTANDING, SERVER, complete, count, system_error};
use crate::parallel::{ChunkWorker, Chunks, Order, for_each_chunk};
use crate::progress::Progress;
use crate::system::{BulkWork, Completion, Connection, SystemError};
use crate::tpcc::Tpcc;
use crate::tpcc::data_set::DataSet;
use crate::workload::Transaction;

/// Rows of one call that loads a static table.
const ROWS_PER_CALL: usize = 200;
/// Orders of a district that are loaded before it is the next district's turn: so the LRU chain of a loaded database is in the order of age, not of
/// warehouses, but for as many.
const ORDERS_PER_TURN: u64 = 10;
/// Tables that grow by age; the others are loaded before them, the largest first so that the threads end together.
const GROWING: [TpccTable; 3] = [TpccTable::History, TpccTable::Orders, TpccTable::OrderLine];
const STATIC: [TpccTable; 6] = [
    TpccTable::Stock,
    TpccTable::Customer,
    TpccTable::Item,
    TpccTable::NewOrder,
    TpccTable::District,
    TpccTable::Warehouse,
];

/// What the loading threads share.
struct Loading<'a> {
    system: &'a AnticacheSystem,
    population: &'a Population,
    progress: Progress,
    partitions: u32,
    /// Rows sent, by table ([`TpccTable::ALL`]); replicas of ITEM count.
    rows: [AtomicU64; TpccTable::ALL.len()],
}

impl Loading<'_> {
    fn count(&self, table: TpccTable, rows: u64) {
        let at = TpccTable::ALL.iter().position(|other| *other == table).unwrap_or_default();
        self.rows[at].fetch_add(rows, Ordering::Relaxed);
        self.progress.add(rows);
    }
}

/// Loads all tables, counts what the server holds of each, and writes last what was loaded. Returns the rows of the nine tables, ITEM once.
pub(super) fn load(system: &AnticacheSystem, tpcc: &Tpcc, work: BulkWork<'_>) -> Result<u64, SystemError> {
    system.check_empty()?;
    let mut client = system.client()?;
    system.check_tables(&mut client, &tpcc.catalog)?;
    let population = population(tpcc)?;
    let partitions = client.partitions();
    let loading = Loading {
        system,
        population: &population,
        progress: Progress::start("load anticached", expected_rows(tpcc, partitions), "rows"),
        partitions,
        rows: Default::default(),
    };
    load_static(&loading, tpcc, work).map_err(|error| explained(error, &loading, tpcc, &mut client))?;
    load_growing(&loading, tpcc, work)?;
    check_counts(&loading, &mut client)?;
    write_data_set(system, tpcc, &mut client)?;
    let rows = loading.rows.iter().map(|rows| rows.load(Ordering::Relaxed)).sum::<u64>();
    let rows = rows - u64::from(partitions - 1) * u64::from(tpcc.spec.items);
    let elapsed_s = loading.progress.elapsed_s();
    loading.progress.finish(format!("{rows} rows in {elapsed_s:.1} s, counted"));
    Ok(rows)
}

fn population(tpcc: &Tpcc) -> Result<Population, SystemError> {
    Population::new(&tpcc.catalog, tpcc.scale, tpcc.spec.population_seed)
        .map_err(|error| SystemError::Data(error.to_string()))
}

/// Rows that will be sent; lines are ten of an order on average.
fn expected_rows(tpcc: &Tpcc, partitions: u32) -> u64 {
    let [items, customers, orders] =
        [tpcc.spec.items, tpcc.spec.customers_per_district, tpcc.spec.orders_per_district].map(u64::from);
    let of_district = 1 + 2 * customers + 11 * orders + orders * 3 / 10;
    u64::from(tpcc.spec.warehouses) * (1 + items + DISTRICTS as u64 * of_district) + u64::from(partitions) * items
}

/// Loads what transactions only look up and update.
fn load_static(loading: &Loading<'_>, tpcc: &Tpcc, work: BulkWork<'_>) -> Result<(), SystemError> {
    let places = |table| -> Vec<(TpccTable, i16, u32)> {
        match table {
            TpccTable::Item => (0..loading.partitions).map(|partition| (table, 1, partition)).collect(),
            _ => {
                let partition = |w_id| partition_of(w_id, loading.partitions);
                (1..=tpcc.scale.warehouses).map(|w_id| (table, w_id, partition(w_id))).collect()
            }
        }
    };
    let pieces: Vec<_> = STATIC.into_iter().flat_map(places).collect();
    let chunks = Chunks { order: Order::Shared, total: pieces.len() as u64, chunk: 1, threads: work.threads };
    for_each_chunk(chunks, work.interrupt, || {
        let (bulk, procedure) = BulkClient::open(loading.system, load::NAME)?;
        Ok(StaticLoader { loading, pieces: &pieces, work, bulk, procedure })
    })
}

/// Says how much memory the static tables need, when that was the reason.
fn explained(error: SystemError, loading: &Loading<'_>, tpcc: &Tpcc, client: &mut Client) -> SystemError {
    let SystemError::Server { message, .. } = &error else {
        return error;
    };
    let state = (loading.system.stats(), loading.system.tuples_by_table(client));
    let ((Ok(stats), Ok(held)), true) = (state, message.contains("memory budget")) else {
        return error;
    };
    // What the rows that are there take, with their indexes, is what the others will take. Warehouses are alike.
    let (mut wanted_bytes, mut held_bytes) = (0.0, 0.0);
    for table in STATIC {
        let (mut rows, mut bytes) = (0.0, 0.0);
        for row in loading.population.rows(table, 1) {
            (rows, bytes) = (rows + 1.0, bytes + row.len() as f64);
        }
        let times = if table == TpccTable::Item { loading.partitions } else { tpcc.spec.warehouses };
        let tuples = held.iter().find(|(name, _)| name == table.name()).map_or(0, |(_, tuples)| *tuples);
        wanted_bytes += bytes * f64::from(times);
        held_bytes += bytes * tuples as f64 / f64::max(rows, 1.0);
    }
    let staging_bytes = count(&stats, "memory_staging_bytes");
    let taken_bytes = count(&stats, "memory_total_bytes").saturating_sub(staging_bytes);
    let needed_bytes = staging_bytes + (wanted_bytes * taken_bytes as f64 / f64::max(held_bytes, 1.0)) as u64;
    let budget_bytes = count(&stats, "memory_budget_bytes");
    SystemError::Data(format!(
        "{SERVER}: {message}: tables that are not evictable need about {needed_bytes} bytes with indexes and block buffers, its budget is \
         {budget_bytes}: give it more, and some for what is evictable"
    ))
}

/// One thread that loads static tables, a table of a warehouse after the other.
struct StaticLoader<'a> {
    loading: &'a Loading<'a>,
    pieces: &'a [(TpccTable, i16, u32)],
    work: BulkWork<'a>,
    bulk: BulkClient,
    procedure: u16,
}

impl ChunkWorker for StaticLoader<'_> {
    fn work(&mut self, chunk: Range<u64>) -> Result<(), SystemError> {
        for &(table, w_id, partition) in &self.pieces[chunk.start as usize..chunk.end as usize] {
            let mut rows = self.loading.population.rows(table, w_id).peekable();
            while rows.peek().is_some() {
                if self.work.interrupt.requested() {
                    return Err(SystemError::Interrupted);
                }
                let mut call = Load::begin(self.loading.population.table_id(table));
                let mut count = 0;
                for row in rows.by_ref().take(ROWS_PER_CALL) {
                    Load::append(&mut call, &row);
                    count += 1;
                }
                self.bulk.client.submit(0, partition, self.procedure, &call);
                self.bulk.wait_until_at_most(LOAD_OUTSTANDING)?;
                self.loading.count(table, count);
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SystemError> {
        self.bulk.wait_until_at_most(0)
    }
}

type Steps<'a> = Box<dyn Iterator<Item = Vec<(TpccTable, Vec<u8>)>> + Send + 'a>;

/// A district that grows: its warehouse's partition, and what is left of its history. Whoever has the lock loads the next orders of it.
type District<'a> = (u32, Mutex<Steps<'a>>);

/// Loads what is evictable, all districts side by side in ascending order of their orders.
fn load_growing(loading: &Loading<'_>, tpcc: &Tpcc, work: BulkWork<'_>) -> Result<(), SystemError> {
    let ids = (1..=tpcc.scale.warehouses).flat_map(|w_id| (1..=DISTRICTS).map(move |d_id| (w_id, d_id)));
    let districts: Vec<District<'_>> = ids
        .map(|(w_id, d_id)| {
            let steps: Steps<'_> = Box::new(loading.population.by_age(w_id, d_id));
            (partition_of(w_id, loading.partitions), Mutex::new(steps))
        })
        .collect();
    let steps = u64::from(tpcc.spec.orders_per_district.max(tpcc.spec.customers_per_district));
    let turns = steps.div_ceil(ORDERS_PER_TURN) * districts.len() as u64;
    let chunks = Chunks { order: Order::Shared, total: turns, chunk: 1, threads: work.threads };
    for_each_chunk(chunks, work.interrupt, || {
        let (bulk, procedure) = BulkClient::open(loading.system, load::NAME)?;
        Ok(GrowingLoader { loading, districts: &districts, bulk, procedure })
    })
}

/// One thread that loads what is evictable.
struct GrowingLoader<'a, 'rows> {
    loading: &'a Loading<'a>,
    districts: &'a [District<'rows>],
    bulk: BulkClient,
    procedure: u16,
}

impl ChunkWorker for GrowingLoader<'_, '_> {
    fn work(&mut self, turns: Range<u64>) -> Result<(), SystemError> {
        for turn in turns {
            let (partition, steps) = &self.districts[(turn % self.districts.len() as u64) as usize];
            let mut calls = GROWING.map(|table| (table, 0, Load::begin(self.loading.population.table_id(table))));
            let mut steps = steps.lock().unwrap_or_else(PoisonError::into_inner);
            for (table, row) in steps.by_ref().take(ORDERS_PER_TURN as usize).flatten() {
                if let Some((_, rows, call)) = calls.iter_mut().find(|(other, ..)| *other == table) {
                    *rows += 1;
                    Load::append(call, &row);
                }
            }
            drop(steps);
            for (table, rows, call) in calls.iter().filter(|(_, rows, _)| *rows > 0) {
                self.bulk.client.submit(0, *partition, self.procedure, call);
                self.loading.count(*table, *rows);
            }
            self.bulk.wait_until_at_most(LOAD_OUTSTANDING)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), SystemError> {
        self.bulk.wait_until_at_most(0)
    }
}

/// Compares what was sent with what the server says that it holds, table by table.
fn check_counts(loading: &Loading<'_>, client: &mut Client) -> Result<(), SystemError> {
    let held = loading.system.tuples_by_table(client)?;
    for (table, sent) in TpccTable::ALL.iter().zip(&loading.rows) {
        let sent = sent.load(Ordering::Relaxed);
        let found = held.iter().find(|(name, _)| name == table.name()).map_or(0, |(_, tuples)| *tuples);
        if found != sent {
            let name = table.name();
            return Err(SystemError::Data(format!(
                "{SERVER} holds {found} tuples of {name} after loading, not {sent}"
            )));
        }
    }
    Ok(())
}

/// To all partitions, and to the first last: a load that is cut off here has not ended.
fn write_data_set(system: &AnticacheSystem, tpcc: &Tpcc, client: &mut Client) -> Result<(), SystemError> {
    let catalog: &Catalog = &tpcc.catalog;
    let row = DataSet::wanted(&tpcc.spec, catalog).row(catalog);
    let (table, row) = row.map_err(|error| SystemError::Data(error.to_string()))?;
    let mut call = Load::begin(table);
    Load::append(&mut call, &row);
    let procedure = client.procedure(load::NAME).map_err(|error| system_error(system.address, &error))?;
    for partition in (0..client.partitions()).rev() {
        client.call(partition, procedure, &call).map_err(|error| system_error(system.address, &error))?;
    }
    Ok(())
}

/// The connection of a group of terminals; a request's token is its terminal.
pub(super) struct TpccConnection {
    address: SocketAddr,
    client: Client,
    tpcc: Tpcc,
    /// By [`TransactionKind`].
    procedures: [u16; TransactionKind::ALL.len()],
    first_terminal: u32,
    /// What each terminal has submitted.
    pending: Vec<Option<Input>>,
    parameters: Vec<u8>,
}

impl TpccConnection {
    pub(super) fn open(
        system: &AnticacheSystem,
        tpcc: &Tpcc,
        terminals: Range<u32>,
    ) -> Result<TpccConnection, SystemError> {
        let client = system.terminals_client(terminals.len())?;
        let mut procedures = [0; TransactionKind::ALL.len()];
        for (kind, number) in TransactionKind::ALL.into_iter().zip(&mut procedures) {
            *number = client.procedure(kind.procedure()).map_err(|error| system_error(system.address, &error))?;
        }
        Ok(TpccConnection {
            address: system.address,
            client,
            tpcc: tpcc.clone(),
            procedures,
            first_terminal: terminals.start,
            pending: vec![None; terminals.len()],
            parameters: Vec::new(),
        })
    }
}

impl TpccConnection {
    fn complete(&mut self, limit: Option<Duration>, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        let (pending, tpcc, first_terminal) = (&self.pending, &self.tpcc, self.first_terminal);
        complete(&mut self.client, self.address, limit, completions, |terminal, ended| {
            let input = pending[(terminal - first_terminal) as usize].as_ref();
            let input = input.ok_or_else(|| format!("an answer to terminal {terminal}, which asked for nothing"))?;
            tpcc.verify(input, ended)
        })
    }
}

impl Connection for TpccConnection {
    fn submit(&mut self, terminal: u32, transaction: &Transaction<'_>) -> Result<(), SystemError> {
        let Transaction::Tpcc(input) = *transaction else {
            return Err(SystemError::Data(format!("{SERVER}: a transaction of another benchmark than TPC-C")));
        };
        self.parameters.clear();
        input.encode(&mut self.parameters);
        self.pending[(terminal - self.first_terminal) as usize] = Some(*input);
        let partition = partition_of(input.home(), self.client.partitions());
        let procedure = self.procedures[input.kind() as usize];
        self.client.submit(u64::from(terminal), partition, procedure, &self.parameters);
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        self.complete(None, completions)
    }

    fn wait_for(&mut self, limit: Duration, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        self.complete(Some(limit), completions)
    }
}
