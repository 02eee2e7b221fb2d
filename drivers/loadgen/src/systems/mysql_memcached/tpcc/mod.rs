//! TPC-C through the cache. Rows are documents by their primary key, `customer:1:2:3` → `{"c_w_id":1,…}` ([`document`]); HISTORY has no key and is
//! not cached.
//!
//! **Reads.** The cache serves what a serializable transaction may read from an older version, and the one transaction that changes nothing:
//!
//! | transaction | from the cache, with MySQL on a miss | at MySQL, as without a cache |
//! |---|---|---|
//! | New-Order | ITEM; of WAREHOUSE the tax; of CUSTOMER discount, name and credit: nothing changes them after loading | DISTRICT (next order, tax), STOCK: read to be changed |
//! | Payment | | WAREHOUSE, DISTRICT, CUSTOMER: all are changed, and the new rows have to be known whole |
//! | Order-Status | CUSTOMER, ORDERS, ORDER_LINE by key | the keys: customers of a name, the customer's newest order |
//! | Delivery | | all: read to be changed |
//! | Stock-Level | | all: a count over two tables is no row, and stock changes with every order |
//!
//! An order's items, the warehouse and the customer are one request for many keys; so are the lines of an order. Misses are filled with `add` after
//! the commit.
//!
//! **Writes** go to MySQL, and after the commit through to the cache: of New-Order the district, the order, the new order, its lines and the stock of
//! each; of Payment warehouse, district and customer; of Delivery in each district the order, its lines, the customer, and the new order's document
//! is deleted. A transaction's documents are sent together, without waiting for each answer. To know the new rows whole, queries select all columns
//! where MySQL alone selects some; Delivery has one more query for each customer. This synchronisation is what makes the pair slower than MySQL alone
//! (paper §4.3).
//!
//! **What is not serializable.** Order-Status, and nothing else: it sees rows as they were before the window of the parent module closed, some of a
//! transaction's and not yet others, because several keys are not set at once; and a newest order whose customer's document is older. What is read to
//! be written is always MySQL's, so MySQL's rows are those of a serializable execution, whatever the cache holds. When two transactions change one
//! row, the earlier one's document may come last and stay; [`differences`] counts such documents after a trial.

pub mod differences;
pub mod document;
pub mod prewarm;

use std::collections::HashMap;
use std::sync::Arc;

use anticache_engine::catalog::{Catalog, TableId};

use super::CacheCounters;
use super::cache::{Cache, Change};
use crate::system::SystemError;
use crate::systems::mysql::rows::Cell;
use crate::systems::mysql::tpcc::Copies;

/// A terminal's copies of rows, in Memcached.
pub struct CachedRows {
    cache: Cache,
    catalog: Arc<Catalog>,
    counters: Arc<CacheCounters>,
    /// Rows that were looked up and found.
    found: HashMap<(TableId, Vec<i64>), Vec<Cell>>,
    /// Rows to be added, and rows that the transaction wrote or removed; encoded when it has committed.
    noted: Vec<Note>,
}

enum Note {
    Fill(TableId, Vec<Cell>),
    Write(TableId, Vec<Cell>),
    Delete(TableId, Vec<i64>),
}

impl CachedRows {
    pub(super) fn new(cache: Cache, catalog: Arc<Catalog>, counters: Arc<CacheCounters>) -> CachedRows {
        CachedRows { cache, catalog, counters, found: HashMap::new(), noted: Vec::new() }
    }

    fn change(&self, note: &Note) -> Result<Option<Change>, SystemError> {
        let (table, cells) = match note {
            Note::Delete(table, key) => {
                return Ok(Some(Change::Delete(document::key_of(self.catalog.table(*table), key))));
            }
            Note::Fill(table, cells) | Note::Write(table, cells) => (self.catalog.table(*table), cells),
        };
        let Some(key) = document::key_of_row(table, cells) else {
            return Ok(None);
        };
        let document = document::encode(table, cells).map_err(|error| damaged(&key, &error))?;
        Ok(Some(if matches!(note, Note::Fill(..)) { Change::Add(key, document) } else { Change::Set(key, document) }))
    }
}

fn damaged(key: &str, error: &document::DocumentError) -> SystemError {
    SystemError::Data(format!("{key}: {error}"))
}

impl Copies for CachedRows {
    const WHOLE_ROWS: bool = true;

    fn begin(&mut self) {
        self.found.clear();
        self.noted.clear();
    }

    fn look_up(&mut self, rows: &[(TableId, Vec<i64>)]) -> Result<(), SystemError> {
        let keys: Vec<_> = rows.iter().map(|(table, key)| document::key_of(self.catalog.table(*table), key)).collect();
        for ((row, name), document) in rows.iter().zip(&keys).zip(self.cache.get_many(&keys)?) {
            let Some(document) = document else {
                CacheCounters::add(&self.counters.misses);
                continue;
            };
            CacheCounters::add(&self.counters.hits);
            let table = self.catalog.table(row.0);
            let cells = document::decode(table, &document).map_err(|error| damaged(name, &error))?;
            self.found.insert(row.clone(), cells);
        }
        Ok(())
    }

    fn take(&mut self, table: TableId, key: &[i64]) -> Option<Vec<Cell>> {
        self.found.remove(&(table, key.to_vec()))
    }

    fn fill(&mut self, table: TableId, cells: &[Cell]) {
        self.noted.push(Note::Fill(table, cells.to_vec()));
    }

    fn write(&mut self, table: TableId, cells: Vec<Cell>) {
        self.noted.push(Note::Write(table, cells));
    }

    fn delete(&mut self, table: TableId, key: &[i64]) {
        self.noted.push(Note::Delete(table, key.to_vec()));
    }

    fn publish(&mut self) -> Result<(), SystemError> {
        let changes: Vec<Option<Change>> = self.noted.iter().map(|note| self.change(note)).collect::<Result<_, _>>()?;
        let changes: Vec<Change> = changes.into_iter().flatten().collect();
        if changes.is_empty() {
            return Ok(());
        }
        let changed = self.cache.change(&changes)?;
        CacheCounters::add_many(&self.counters.fills, changed.filled);
        CacheCounters::add_many(&self.counters.refused, changed.refused);
        Ok(())
    }
}
