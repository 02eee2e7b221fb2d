//! RocksDB.
//!
//! Its calls, not its transactions: with one thread nothing comes between the read and the write of an update, so that a `WriteBatch`, or here a
//! single put, is all that a transaction needs, and `TransactionDB` would only add its locks.

use std::path::Path;

use ::rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, DataBlockIndexType, Options, ReadOptions, WriteOptions,
};

use super::data::{Row, Value, loaded_row};
use super::store::{Embedded, Store, copy_row, set_field};
use super::{VERSIONS, locked_version};
use crate::harness::ycsb::ROW_BYTES;

/// Block cache for a record: all of them fit.
const RECORD_CACHE_BYTES: u64 = 2000;
const LEAST_CACHE_BYTES: u64 = 64 << 20;
const WRITE_BUFFER_BYTES: usize = 256 << 20;
const BLOCK_BYTES: usize = 4096;
const BLOOM_BITS: f64 = 10.0;

pub struct Rocks {
    database: DB,
    read: ReadOptions,
    write: WriteOptions,
}

fn options(cache_bytes: u64) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_hyper_clock_cache(cache_bytes as usize, BLOCK_BYTES));
    table.set_block_size(BLOCK_BYTES);
    table.set_data_block_index_type(DataBlockIndexType::BinaryAndHash);
    table.set_bloom_filter(BLOOM_BITS, false);
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    options.set_max_write_buffer_number(4);
    options.set_memtable_whole_key_filtering(true);
    options.set_memtable_prefix_bloom_ratio(0.02);
    options.set_allow_concurrent_memtable_write(false);
    options
}

/// Keys in the order of their bytes.
fn key_bytes(key: i64) -> [u8; 8] {
    key.to_be_bytes()
}

impl Rocks {
    pub fn load(count: u64, directory: &Path) -> anyhow::Result<Embedded<Self>> {
        let cache_bytes = (count * RECORD_CACHE_BYTES).max(LEAST_CACHE_BYTES);
        let database = DB::open(&options(cache_bytes), directory)?;
        let (mut read, mut write) = (ReadOptions::default(), WriteOptions::default());
        read.set_verify_checksums(false);
        write.disable_wal(true);
        let mut store = Self { database, read, write };
        for key in 0..count as i64 {
            store.database.put_opt(key_bytes(key), loaded_row(key), &store.write)?;
        }
        // As it would be after a while: one sorted run, its blocks in the cache.
        store.database.flush()?;
        store.database.compact_range(None::<&[u8]>, None::<&[u8]>);
        let mut row = [0; ROW_BYTES];
        (0..count as i64).try_for_each(|key| store.read(key, &mut row))?;
        let settings = format!(
            "RocksDB {}, get and put, no write-ahead log, no compression, block cache of {} MB, memtables of {} MB, \
             blocks of {BLOCK_BYTES} B with a hash index, bloom filters, compaction on the same core",
            locked_version(VERSIONS, "librocksdb-sys").split('+').next_back().unwrap_or_default(),
            cache_bytes / 1_000_000,
            WRITE_BUFFER_BYTES >> 20
        );
        Ok(Embedded { store, settings })
    }
}

impl Store for Rocks {
    fn read(&mut self, key: i64, row: &mut Row) -> anyhow::Result<()> {
        let held = self.database.get_pinned_opt(key_bytes(key), &self.read)?;
        copy_row(key, held.as_deref(), row)
    }

    fn update(&mut self, key: i64, field: u16, value: &Value) -> anyhow::Result<()> {
        let mut row = [0; ROW_BYTES];
        self.read(key, &mut row)?;
        set_field(&mut row, field, value);
        Ok(self.database.put_opt(key_bytes(key), row, &self.write)?)
    }
}
