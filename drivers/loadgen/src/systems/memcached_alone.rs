//! Memcached without a database behind it: the smallest system to read, and the example of CONTRIBUTING.md.
//!
//! An item is one record of YCSB, `usertable:<key>` → its fields one after another. It is in no figure, because it is no
//! database: nothing is kept when the server ends, and it forgets records that its memory does not hold. A trial that
//! meets a forgotten one is invalid.

use std::collections::BTreeMap;
use std::ops::Range;

use anticache_engine::catalog::{Catalog, TableId};
use serde_json::Value;

use crate::parallel::{ChunkWorker, Chunks, Order, for_each_chunk};
use crate::progress::Progress;
use crate::spec::Spec;
use crate::system::{Adapter, BulkWork, ByServer, Completion, Connection, System, SystemError, one_terminal_each};
use crate::systems::mysql::ycsb::KeyResult;
use crate::systems::mysql_memcached::cache::{self, Cache, SERVER, Stored};
use crate::workload::{Transaction, Workload};
use crate::ycsb::{RecordLayout, YCSB_TABLE, Ycsb, YcsbTransaction};

/// How the adapter is found by its system's name.
pub static ADAPTER: Adapter = Adapter {
    name: "memcached-alone",
    systems: &["memcached-alone"],
    addresses: &[cache::ADDRESS],
    open: |spec, workload| Ok(Box::new(MemcachedAlone::open(spec, workload)?)),
};

/// Records that a loading thread takes at a time.
const LOAD_RECORDS: u64 = 256;
/// Type under which an update is counted that another terminal was faster with, and that is repeated.
const OTHER_VERSION: &str = "other_version";

/// A deployed server.
pub struct MemcachedAlone {
    address: String,
    ycsb: Ycsb,
}

impl MemcachedAlone {
    /// # Errors
    /// [`SystemError::Connect`] when the server does not answer; [`SystemError::Data`] for another benchmark than YCSB.
    pub fn open(spec: &Spec, workload: Workload) -> Result<MemcachedAlone, SystemError> {
        let Workload::Ycsb(ycsb) = workload else {
            return Err(SystemError::Data(format!("system {} runs ycsb only", spec.system)));
        };
        let address = spec.endpoint.memcached_address.clone().unwrap_or_default();
        Cache::connect(&address)?;
        Ok(MemcachedAlone { address, ycsb })
    }

    /// Records that the server has forgotten for want of memory since it started.
    fn forgotten(&self) -> Result<u64, SystemError> {
        Ok(cache::stats(&self.address)?.get("evictions").and_then(Value::as_u64).unwrap_or(0))
    }
}

impl System for MemcachedAlone {
    /// It has no schema; what it held is forgotten.
    fn create_schema(&self, _ddl: &str) -> Result<(), SystemError> {
        cache::clear(&self.address)
    }

    fn load(&self, work: BulkWork<'_>) -> Result<u64, SystemError> {
        let records = self.ycsb.spec.records;
        let before = self.forgotten()?;
        let progress = Progress::start("load memcached", records, "records");
        let chunks = Chunks { order: Order::Shared, total: records, chunk: LOAD_RECORDS, threads: work.threads };
        for_each_chunk(chunks, work.interrupt, || {
            let cache = Cache::connect(&self.address)?;
            Ok(Loader { cache, ycsb: &self.ycsb, progress: &progress, record: Vec::new() })
        })?;
        let elapsed_s = progress.elapsed_s();
        progress.finish(format!("{records} records in {elapsed_s:.1} s"));
        match self.forgotten()? - before {
            0 => Ok(records),
            lost => Err(SystemError::Data(format!(
                "{SERVER} at {}: forgot {lost} of {records} records while they were loaded: give it more memory",
                self.address
            ))),
        }
    }

    fn prewarm(&self, _work: BulkWork<'_>) -> Result<String, SystemError> {
        Ok(format!("{SERVER}: all records are in memory"))
    }

    fn terminal_groups(&self, terminals: u32, _cpus: usize) -> Vec<Range<u32>> {
        one_terminal_each(terminals)
    }

    fn connect(&self, _terminals: Range<u32>) -> Result<Box<dyn Connection>, SystemError> {
        let cache = Cache::connect(&self.address)?;
        Ok(Box::new(Terminal { cache, layout: self.ycsb.layout, completed: None }))
    }

    fn scan(&self, _catalog: &Catalog, _table: TableId, _on_row: &mut dyn FnMut(&[u8])) -> Result<(), SystemError> {
        Err(SystemError::Data(format!("{SERVER} cannot list what it holds")))
    }

    fn counters(&self) -> Result<ByServer, SystemError> {
        Ok(ByServer::from([(SERVER, cache::counters(&self.address)?)]))
    }

    fn settings(&self) -> Result<ByServer, SystemError> {
        Ok(ByServer::from([(SERVER, cache::settings(&self.address)?)]))
    }

    fn versions(&self) -> Result<BTreeMap<&'static str, String>, SystemError> {
        Ok(BTreeMap::from([(SERVER, cache::version(&self.address)?)]))
    }
}

/// One loading thread.
struct Loader<'a> {
    cache: Cache,
    ycsb: &'a Ycsb,
    progress: &'a Progress,
    record: Vec<u8>,
}

impl ChunkWorker for Loader<'_> {
    fn work(&mut self, keys: Range<u64>) -> Result<(), SystemError> {
        let count = keys.end - keys.start;
        for key in keys {
            let key = key as i64;
            self.record.clear();
            self.ycsb.push_initial_record(key, &mut self.record);
            if self.cache.set(&item_key(key), &self.record)? != Stored::Yes {
                return Err(refused(key));
            }
        }
        self.progress.add(count);
        Ok(())
    }
}

/// The connection of one terminal; it waits for each answer.
struct Terminal {
    cache: Cache,
    layout: RecordLayout,
    completed: Option<Completion>,
}

impl Terminal {
    fn read(&mut self, key: i64, verify: bool) -> Result<KeyResult, SystemError> {
        Ok(match self.cache.get(&item_key(key))? {
            Some(record) => KeyResult::Done { verified: verify.then(|| self.layout.verify_record(key, &record)) },
            None => KeyResult::NoSuchKey,
        })
    }

    /// Stores the record with the new field, unless somebody has stored another version of it since it was read: then
    /// once more, or that update would be lost.
    fn update(
        &mut self,
        (key, field, value): (i64, u16, &[u8]),
        retries: &mut Vec<&'static str>,
    ) -> Result<KeyResult, SystemError> {
        let (item_key, start) = (item_key(key), usize::from(field) * self.layout.field_bytes);
        while let Some((mut record, version)) = self.cache.get_with_version(&item_key)? {
            let Some(place) = record.get_mut(start..start + value.len()) else {
                return Err(SystemError::Data(format!("record {key} has {} bytes only", record.len())));
            };
            place.copy_from_slice(value);
            match self.cache.replace(&item_key, &record, version)? {
                Stored::Yes => return Ok(KeyResult::Done { verified: None }),
                Stored::No => retries.push(OTHER_VERSION),
                Stored::Refused => return Err(refused(key)),
            }
        }
        Ok(KeyResult::NoSuchKey)
    }
}

impl Connection for Terminal {
    fn submit(&mut self, terminal: u32, transaction: &Transaction<'_>) -> Result<(), SystemError> {
        let mut retries = Vec::new();
        let result = match *transaction {
            Transaction::Ycsb(YcsbTransaction::Read { key, verify }) => self.read(key, verify)?,
            Transaction::Ycsb(YcsbTransaction::Update { key, field, value }) => {
                self.update((key, field, value), &mut retries)?
            }
            Transaction::Tpcc(_) => {
                return Err(SystemError::Data(format!("{SERVER}: a transaction of another benchmark than YCSB")));
            }
        };
        self.completed = Some(result.completion(terminal, retries));
        Ok(())
    }

    fn wait(&mut self, completions: &mut Vec<Completion>) -> Result<(), SystemError> {
        completions.extend(self.completed.take());
        Ok(())
    }
}

fn item_key(key: i64) -> String {
    format!("{YCSB_TABLE}:{key}")
}

fn refused(key: i64) -> SystemError {
    SystemError::Data(format!("{SERVER} has no memory for record {key}"))
}
