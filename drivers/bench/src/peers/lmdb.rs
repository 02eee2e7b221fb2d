//! LMDB, through the crate `heed`.

use std::path::Path;

use heed::byteorder::NativeEndian;
use heed::types::{Bytes, U64};
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, IntegerComparator, PutFlags};

use super::data::{Row, Value, loaded_row};
use super::store::{Embedded, Store, copy_row, set_field};
use super::{VERSIONS, locked_version};
use crate::harness::ycsb::ROW_BYTES;

/// Address space of a record: four fit a page, and a page is written anew by each transaction.
const RECORD_MAP_BYTES: u64 = 2000;
const LEAST_MAP_BYTES: u64 = 64 << 20;
const ROWS_PER_TRANSACTION: usize = 10_000;

pub struct Lmdb {
    environment: Env,
    records: Records,
}

type Records = Database<'static, U64<NativeEndian>, Bytes, IntegerComparator>;

/// Opens an environment that belongs to this process alone.
fn open(map_bytes: u64, directory: &Path) -> heed::Result<Env> {
    let mut options = EnvOpenOptions::new();
    options.map_size(map_bytes as usize);
    // SAFETY: the directory is new and this process's own, so nobody else maps or changes the file, and it is opened once. Without syncing, a crash
    // of the machine loses the file, which is thrown away in any case; nothing here writes through references into the map.
    unsafe {
        options.flags(EnvFlags::WRITE_MAP | EnvFlags::NO_SYNC);
        options.open(directory)
    }
}

impl Lmdb {
    pub fn load(count: u64, directory: &Path) -> anyhow::Result<Embedded<Self>> {
        let map_bytes = (count * RECORD_MAP_BYTES).max(LEAST_MAP_BYTES).next_multiple_of(1 << 20);
        let environment = open(map_bytes, directory)?;
        let created = environment.create_databases_and_commit(environment.write_txn()?, |opener, transaction| {
            let options = opener.database_options().types().key_comparator();
            options.create(transaction).map(CommitOrAbort::<_, ()>::Commit)
        })?;
        let records: Records = created.unwrap_commit();
        let mut transaction = environment.write_txn()?;
        for key in 0..count {
            records.put_with_flags(&mut transaction, PutFlags::APPEND, &key, &loaded_row(key as i64))?;
            if (key as usize).is_multiple_of(ROWS_PER_TRANSACTION) {
                transaction.commit()?;
                transaction = environment.write_txn()?;
            }
        }
        transaction.commit()?;
        let settings = format!(
            "LMDB {} (heed {}), MDB_WRITEMAP, MDB_NOSYNC, integer keys, a transaction for each operation",
            heed::lmdb_version().string,
            locked_version(VERSIONS, "heed")
        );
        Ok(Embedded { store: Self { environment, records }, settings })
    }
}

impl Store for Lmdb {
    fn read(&mut self, key: i64, row: &mut Row) -> anyhow::Result<()> {
        let transaction = self.environment.read_txn()?;
        copy_row(key, self.records.get(&transaction, &(key as u64))?, row)
    }

    fn update(&mut self, key: i64, field: u16, value: &Value) -> anyhow::Result<()> {
        let mut transaction = self.environment.write_txn()?;
        let mut row = [0; ROW_BYTES];
        copy_row(key, self.records.get(&transaction, &(key as u64))?, &mut row)?;
        set_field(&mut row, field, value);
        self.records.put(&mut transaction, &(key as u64), &row)?;
        Ok(transaction.commit()?)
    }
}
