//! Filling the cache with the rows that transactions read from it everywhere, then with the newest orders.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use anticache_engine::catalog::TableDef;
use anticache_engine::procedure::tpcc::DISTRICTS;
use mysql::prelude::Queryable;
use serde_json::Value;

use super::document;
use crate::parallel::{ChunkWorker, Chunks, Order, for_each_chunk};
use crate::progress::Progress;
use crate::system::{BulkWork, SystemError};
use crate::systems::mysql::rows::{Cell, cells};
use crate::systems::mysql::session::{Session, Use};
use crate::systems::mysql_memcached::cache::{Cache, Change, stats};
use crate::systems::mysql_memcached::{ITEM_HEADER_BYTES, MysqlMemcachedSystem, contents};
use crate::tpcc::Tpcc;

/// Documents of one request.
const BATCH: usize = 128;
/// An item takes a slot of its slab class; on average so much of it.
const SLOT_SHARE: f64 = 0.96;
/// An order has so many lines on average.
const LINES: u64 = 10;

/// Rows of one table: all of a warehouse, or a district's newest orders.
struct Part {
    table: &'static str,
    condition: String,
}

/// What transactions read from the cache, and nothing else: documents of STOCK, DISTRICT and NEW_ORDER are only ever
/// written, and those of STOCK alone would leave no room for the orders.
fn parts_that_do_not_grow(warehouses: i16) -> Vec<Part> {
    let of_warehouses = |table: &'static str, column: &'static str| {
        (1..=warehouses).map(move |w_id| Part { table, condition: format!("{column} = {w_id}") })
    };
    let tables = [("warehouse", "w_id"), ("customer", "c_w_id")];
    let mut parts = vec![Part { table: "item", condition: "TRUE".to_owned() }];
    parts.extend(tables.into_iter().flat_map(|(table, column)| of_warehouses(table, column)));
    parts
}

/// The newest `orders` orders of each district, with their lines.
fn newest_orders(tpcc: &Tpcc, orders: u64) -> Vec<Part> {
    let mut parts = Vec::new();
    for (w_id, d_id) in (1..=tpcc.scale.warehouses).flat_map(|w_id| (1..=DISTRICTS).map(move |d_id| (w_id, d_id))) {
        for (table, prefix) in [("orders", "o"), ("order_line", "ol")] {
            let id = format!("{prefix}{}", if prefix == "o" { "_id" } else { "_o_id" });
            let newest =
                format!("(SELECT d_next_o_id FROM district WHERE d_w_id = {w_id} AND d_id = {d_id}) - {orders}");
            let district = format!("{prefix}_w_id = {w_id} AND {prefix}_d_id = {d_id}");
            parts.push(Part { table, condition: format!("{district} AND {id} >= {newest}") });
        }
    }
    parts
}

/// Fills the cache, as far as its memory reaches. The rows come from MySQL, since they may have changed after loading.
///
/// # Errors
/// When one of the servers refuses; [`SystemError::Data`] when the cache is empty afterwards.
pub fn prewarm_cache(system: &MysqlMemcachedSystem, tpcc: &Tpcc, work: BulkWork<'_>) -> Result<String, SystemError> {
    let limit = stats(&system.memcached_address)?.get("limit_maxbytes").and_then(Value::as_u64).unwrap_or(0);
    let limit_bytes = (limit as f64 * SLOT_SHARE) as u64;
    let (sent_bytes, sent) = (AtomicU64::new(0), AtomicU64::new(0));
    let warm = |parts: &[Part]| {
        let progress = Progress::start("prewarm memcached", parts.len() as u64, "parts of tables");
        let chunks = Chunks { order: Order::Shared, total: parts.len() as u64, chunk: 1, threads: work.threads };
        for_each_chunk(chunks, work.interrupt, || {
            let session = system.mysql.server.connect(Use::Bulk)?;
            let cache = Cache::connect(&system.memcached_address)?;
            let (sent, sent_bytes, progress) = (&sent, &sent_bytes, &progress);
            Ok(Warmer { session, cache, tpcc, parts, limit_bytes, sent, sent_bytes, progress })
        })?;
        let elapsed_s = progress.elapsed_s();
        progress.finish(format!("{} documents so far, in {elapsed_s:.1} s", sent.load(Ordering::Relaxed)));
        Ok::<_, SystemError>(())
    };
    warm(&parts_that_do_not_grow(tpcc.scale.warehouses))?;
    let left_bytes = limit_bytes.saturating_sub(sent_bytes.load(Ordering::Relaxed));
    let districts = tpcc.scale.warehouses as u64 * DISTRICTS as u64;
    let newest = (left_bytes / districts / order_bytes(tpcc)).min(i32::MAX as u64);
    if newest > 0 {
        warm(&newest_orders(tpcc, newest))?;
    }
    let sent = sent.load(Ordering::Relaxed);
    let held = contents(&system.memcached_address)?;
    Ok(format!(
        "memcached: sent {sent} documents, with room for {newest} orders of each district, newest first; {held}"
    ))
}

/// Memory that an order's documents take: itself and its lines.
fn order_bytes(tpcc: &Tpcc) -> u64 {
    let document = |name: &str| {
        let table = tpcc.catalog.table_id(name).map(|id| tpcc.catalog.table(id));
        // Names and punctuation of each column, and its value; a text of 24 is the only long one.
        table.map_or(0, |table| table.columns.iter().map(|column| column.name.len() as u64 + 10).sum::<u64>())
    };
    let item = |name: &str| document(name) + ITEM_HEADER_BYTES + 30;
    item("orders") + LINES * item("order_line")
}

struct Warmer<'a> {
    session: Session,
    cache: Cache,
    tpcc: &'a Tpcc,
    parts: &'a [Part],
    limit_bytes: u64,
    sent: &'a AtomicU64,
    sent_bytes: &'a AtomicU64,
    progress: &'a Progress,
}

impl ChunkWorker for Warmer<'_> {
    fn work(&mut self, chunk: Range<u64>) -> Result<(), SystemError> {
        for part in &self.parts[chunk.start as usize..chunk.end as usize] {
            self.warm(part)?;
            self.progress.add(1);
        }
        Ok(())
    }
}

impl Warmer<'_> {
    fn warm(&mut self, part: &Part) -> Result<(), SystemError> {
        let catalog = &self.tpcc.catalog;
        let no_table = || SystemError::Data(format!("the schema lacks table {}, which TPC-C needs", part.table));
        let table = catalog.table_id(part.table).map(|id| catalog.table(id)).ok_or_else(no_table)?;
        let query = format!("SELECT SQL_NO_CACHE * FROM {} WHERE {}", part.table, part.condition);
        let statement = self.session.prepare(&query)?;
        let (cache, limit_bytes, sent, sent_bytes) = (&mut self.cache, self.limit_bytes, self.sent, self.sent_bytes);
        let mut batch = Vec::new();
        let mut outcome = Ok(());
        self.session.run(|connection| {
            for row in connection.exec_iter(&statement, ())? {
                let types = table.columns.iter().map(|column| column.column_type);
                outcome = cells(types, row?).and_then(|cells| change(table, &cells)).and_then(|change| {
                    batch.extend(change);
                    if batch.len() < BATCH { Ok(()) } else { send(cache, &mut batch, sent, sent_bytes) }
                });
                if outcome.is_err() || sent_bytes.load(Ordering::Relaxed) >= limit_bytes {
                    break;
                }
            }
            Ok(())
        })?;
        outcome.and_then(|()| send(&mut self.cache, &mut batch, sent, sent_bytes))
    }
}

fn change(table: &TableDef, cells: &[Cell]) -> Result<Option<Change>, SystemError> {
    let Some(key) = document::key_of_row(table, cells) else {
        return Ok(None);
    };
    let document = document::encode(table, cells).map_err(|error| SystemError::Data(format!("{key}: {error}")))?;
    Ok(Some(Change::Set(key, document)))
}

/// Sends documents. Refused ones are no error: a tiny cache may have no page for a slab class.
fn send(
    cache: &mut Cache,
    batch: &mut Vec<Change>,
    sent: &AtomicU64,
    sent_bytes: &AtomicU64,
) -> Result<(), SystemError> {
    let size = |change: &Change| match change {
        Change::Set(key, document) | Change::Add(key, document) => {
            (key.len() + document.len()) as u64 + ITEM_HEADER_BYTES
        }
        Change::Delete(_) => 0,
    };
    sent_bytes.fetch_add(batch.iter().map(size).sum(), Ordering::Relaxed);
    sent.fetch_add(batch.len() as u64, Ordering::Relaxed);
    if !batch.is_empty() {
        cache.change(batch)?;
    }
    batch.clear();
    Ok(())
}
