//! Documents that are not their row's.

use anticache_engine::catalog::{Catalog, TableDef};

use super::document;
use crate::system::{CacheDifferences, SystemError};
use crate::systems::mysql::rows::{Cell, scan_cells};
use crate::systems::mysql_memcached::MysqlMemcachedSystem;
use crate::systems::mysql_memcached::cache::Cache;

/// Keys of one request.
const BATCH: usize = 128;

/// Compares every row's document, where the cache has one, with the row. A delivered order must have no document of a new order.
///
/// # Errors
/// When one of the servers does not answer. A document that cannot be read is a difference.
pub fn count(system: &MysqlMemcachedSystem, catalog: &Catalog) -> Result<CacheDifferences, SystemError> {
    let mut comparison = Comparison {
        cache: Cache::connect(&system.memcached_address)?,
        pending: Vec::new(),
        found: CacheDifferences::default(),
    };
    let new_order = catalog.table_id("new_order").map(|id| catalog.table(id));
    for table in catalog.tables() {
        let carrier = new_order.zip(table.column("o_carrier_id"));
        scan_cells(&system.mysql.server, table, &mut |cells| {
            let Some(key) = document::key_of_row(table, &cells) else {
                return Ok(());
            };
            if let Some((new_order, carrier)) = carrier
                && cells[carrier] != Cell::Null
                && let Some((_, order)) = key.split_once(':')
            {
                comparison.expect(format!("{}:{order}", new_order.name), new_order, None)?;
            }
            comparison.expect(key, table, Some(cells))
        })?;
        comparison.compare()?;
    }
    Ok(comparison.found)
}

/// A key, and the row that its document should be of; `None`: it should have no document.
type Expected<'a> = (String, &'a TableDef, Option<Vec<Cell>>);

struct Comparison<'a> {
    cache: Cache,
    pending: Vec<Expected<'a>>,
    found: CacheDifferences,
}

impl<'a> Comparison<'a> {
    fn expect(&mut self, key: String, table: &'a TableDef, row: Option<Vec<Cell>>) -> Result<(), SystemError> {
        self.pending.push((key, table, row));
        if self.pending.len() < BATCH { Ok(()) } else { self.compare() }
    }

    fn compare(&mut self) -> Result<(), SystemError> {
        let keys: Vec<String> = self.pending.iter().map(|(key, ..)| key.clone()).collect();
        for ((_, table, row), document) in self.pending.drain(..).zip(self.cache.get_many(&keys)?) {
            if let Some(document) = document {
                self.found.compared += 1;
                let is_the_rows = document::decode(table, &document).is_ok_and(|cells| Some(cells) == row);
                self.found.different += u64::from(!is_the_rows);
            }
        }
        Ok(())
    }
}
