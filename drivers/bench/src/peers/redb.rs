//! redb.

use std::path::Path;

use ::redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use super::data::{Row, Value, loaded_row};
use super::store::{Embedded, Store, copy_row, set_field};
use super::{VERSIONS, locked_version};
use crate::harness::ycsb::ROW_BYTES;

const RECORDS: TableDefinition<u64, &[u8]> = TableDefinition::new("records");
/// Cache for a record: all of them fit, with room for the pages of transactions.
const RECORD_CACHE_BYTES: u64 = 4000;
const ROWS_PER_TRANSACTION: u64 = 100_000;

pub struct Redb {
    database: Database,
}

impl Redb {
    pub fn load(count: u64, directory: &Path) -> anyhow::Result<Embedded<Self>> {
        let cache_bytes = count * RECORD_CACHE_BYTES;
        let database = Database::builder().set_cache_size(cache_bytes as usize).create(directory.join("redb"))?;
        let store = Self { database };
        for first in (0..count).step_by(ROWS_PER_TRANSACTION as usize) {
            let transaction = store.begin_write()?;
            let mut records = transaction.open_table(RECORDS)?;
            for key in first..(first + ROWS_PER_TRANSACTION).min(count) {
                records.insert(key, loaded_row(key as i64).as_slice())?;
            }
            drop(records);
            transaction.commit()?;
        }
        let settings = format!(
            "redb {}, Durability::None, cache of {} MB, a transaction for each operation",
            locked_version(VERSIONS, "redb"),
            cache_bytes / 1_000_000
        );
        Ok(Embedded { store, settings })
    }

    fn begin_write(&self) -> anyhow::Result<WriteTransaction> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(Durability::None)?;
        Ok(transaction)
    }
}

impl Store for Redb {
    fn read(&mut self, key: i64, row: &mut Row) -> anyhow::Result<()> {
        let transaction = self.database.begin_read()?;
        let held = transaction.open_table(RECORDS)?.get(key as u64)?;
        copy_row(key, held.as_ref().map(|held| held.value()), row)
    }

    fn update(&mut self, key: i64, field: u16, value: &Value) -> anyhow::Result<()> {
        let transaction = self.begin_write()?;
        let mut records = transaction.open_table(RECORDS)?;
        let mut row = [0; ROW_BYTES];
        copy_row(key, records.get(key as u64)?.as_ref().map(|held| held.value()), &mut row)?;
        set_field(&mut row, field, value);
        records.insert(key as u64, row.as_slice())?;
        drop(records);
        Ok(transaction.commit()?)
    }
}
