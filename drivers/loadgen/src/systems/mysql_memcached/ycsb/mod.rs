//! YCSB through the cache.
//!
//! - A document holds a whole record, `usertable:<key>` → `{"field0":"…",…}`.
//! - A read takes the document from the cache. On a miss it reads MySQL and fills the cache with
//!   `add`, which gives way to a document that a writer has put there meanwhile.
//! - An update is `UPDATE`, then `SELECT *` of the same record; then the whole new document is `set`.
//!   Writing only the changed field would replace the document by a fragment. With
//!   `mysql_transaction: autocommit` that is two round trips: the row read is the own write or a newer
//!   one. With `explicit` both are one transaction, so that the row lock spans them.

mod document;

use std::ops::Range;
use std::sync::Arc;

use mysql::Row;
use mysql::prelude::Queryable;
use serde_json::Value;

use super::cache::{self, Cache, Stored};
use super::{CacheCounters, ITEM_HEADER_BYTES, MysqlMemcachedSystem};
use crate::parallel::{ChunkWorker, Chunks, Order, for_each_chunk};
use crate::progress::Progress;
use crate::system::{BulkWork, Completion, Connection, SystemError};
use crate::systems::mysql::session::{Ended, Session, Use};
use crate::systems::mysql::ycsb::bulk::keys_of;
use crate::systems::mysql::ycsb::{KeyResult, YcsbStatements, field_of, verify_row};
use crate::workload::Transaction;
use crate::ycsb::{RecordLayout, YCSB_KEY, YCSB_TABLE, Ycsb, YcsbTransaction};

/// Keys of one prewarming query.
const PREWARM_KEYS: u64 = 128;

/// One terminal's connections.
pub struct CachedConnection {
    session: Session,
    statements: YcsbStatements,
    cache: Cache,
    layout: RecordLayout,
    counters: Arc<CacheCounters>,
    document: Vec<u8>,
    record: Vec<u8>,
    completed: Option<Completion>,
}

impl CachedConnection {
    /// The connection of a terminal of a system that runs YCSB.
    pub fn open(system: &MysqlMemcachedSystem, ycsb: &Ycsb) -> Result<CachedConnection, SystemError> {
        let mut session = system.mysql.transaction_session()?;
        Ok(CachedConnection {
            statements: YcsbStatements::prepare(&mut session, ycsb)?,
            session,
            cache: Cache::connect(&system.memcached_address)?,
            layout: ycsb.layout,
            counters: Arc::clone(&system.counters),
            document: Vec::new(),
            record: Vec::new(),
            completed: None,
        })
    }

    fn read(&mut self, key: i64, verify: bool, retries: &mut Vec<&'static str>) -> Result<KeyResult, SystemError> {
        let cache_key = cache_key(key);
        if let Some(document) = self.cache.get(&cache_key)? {
            CacheCounters::add(&self.counters.hits);
            // Every reader parses the document, as an application would; a damaged one always fails.
            let intact = document::decode(self.layout, &document, &mut self.record).is_ok();
            let verified = (verify || !intact).then(|| intact && self.layout.verify_record(key, &self.record));
            return Ok(KeyResult::Done { verified });
        }
        CacheCounters::add(&self.counters.misses);
        let statements = &self.statements;
        let read = self.session.transaction(retries, |connection| statements.read(connection, key))?;
        let Ended::Committed(Some(row)) = read else {
            return Ok(KeyResult::NoSuchKey);
        };
        encode_row(self.layout, &row, &mut self.document)?;
        match self.cache.add(&cache_key, &self.document)? {
            Stored::Yes => CacheCounters::add(&self.counters.fills),
            Stored::No => {}
            Stored::Refused => CacheCounters::add(&self.counters.refused),
        }
        let verified = verify.then(|| verify_row(self.layout, key, &row));
        Ok(KeyResult::Done { verified })
    }

    fn update(
        &mut self,
        (key, field, value): (i64, u16, &[u8]),
        retries: &mut Vec<&'static str>,
    ) -> Result<KeyResult, SystemError> {
        let update = self.statements.update_statement(&mut self.session, field)?;
        let statements = &self.statements;
        let updated = self.session.transaction(retries, |connection| {
            connection.exec_drop(&update, (value, key))?;
            if connection.affected_rows() == 0 { Ok(None) } else { statements.read(connection, key) }
        })?;
        let Ended::Committed(Some(row)) = updated else {
            return Ok(KeyResult::NoSuchKey);
        };
        encode_row(self.layout, &row, &mut self.document)?;
        let cache_key = cache_key(key);
        if self.cache.set(&cache_key, &self.document)? != Stored::Yes {
            CacheCounters::add(&self.counters.refused);
            self.cache.delete(&cache_key)?;
        }
        Ok(KeyResult::Done { verified: None })
    }
}

impl Connection for CachedConnection {
    fn submit(&mut self, terminal: u32, transaction: &Transaction<'_>) -> Result<(), SystemError> {
        let mut retries = Vec::new();
        let result = match *transaction {
            Transaction::Ycsb(YcsbTransaction::Read { key, verify }) => self.read(key, verify, &mut retries)?,
            Transaction::Ycsb(YcsbTransaction::Update { key, field, value }) => {
                self.update((key, field, value), &mut retries)?
            }
            Transaction::Tpcc(_) => {
                let message = "a transaction of another benchmark on a connection for YCSB";
                return Err(SystemError::Data(message.to_owned()));
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

fn cache_key(key: i64) -> String {
    format!("{YCSB_TABLE}:{key}")
}

fn encode_row(layout: RecordLayout, row: &Row, document: &mut Vec<u8>) -> Result<(), SystemError> {
    let fields = (0..layout.fields).map(|field| field_of(row, field));
    document::encode(fields, document).map_err(|error| SystemError::Data(format!("{YCSB_TABLE}: {error}")))
}

/// Fills the cache with the hottest records, coldest first, so that the hottest are the most recent.
/// The rows come from MySQL, since their values may have changed after loading.
pub fn prewarm_cache(system: &MysqlMemcachedSystem, ycsb: &Ycsb, work: BulkWork<'_>) -> Result<String, SystemError> {
    let records = records_in_cache(system, ycsb)?;
    let progress = Progress::start("prewarm memcached", records, "records");
    let chunks = Chunks { order: Order::Shared, total: records, chunk: PREWARM_KEYS, threads: work.threads };
    for_each_chunk(chunks, work.interrupt, || {
        Ok(CacheWarmer {
            session: system.mysql.server.connect(Use::Bulk)?,
            cache: Cache::connect(&system.memcached_address)?,
            ycsb,
            records,
            document: Vec::new(),
            progress: &progress,
        })
    })?;
    let summary = format!("sent the {records} hottest records in {:.1} s", progress.elapsed_s());
    progress.finish(&summary);
    let held = super::contents(&system.memcached_address)?;
    Ok(format!("memcached: {summary}, {held}"))
}

/// An upper bound on the records that fit: too many only push out the coldest, which came first.
fn records_in_cache(system: &MysqlMemcachedSystem, ycsb: &Ycsb) -> Result<u64, SystemError> {
    let stats = cache::stats(&system.memcached_address)?;
    let limit_bytes = stats.get("limit_maxbytes").and_then(Value::as_u64).unwrap_or(0);
    let newest = ycsb.key_of_rank(1);
    let (mut record, mut document) = (Vec::new(), Vec::new());
    ycsb.push_initial_record(newest, &mut record);
    document::encode(record.chunks_exact(ycsb.layout.field_bytes), &mut document)
        .map_err(|error| SystemError::Data(error.to_string()))?;
    let item_bytes = (document.len() + cache_key(newest).len()) as u64 + ITEM_HEADER_BYTES;
    Ok(ycsb.spec.records.min(limit_bytes / item_bytes + 1))
}

struct CacheWarmer<'a> {
    session: Session,
    cache: Cache,
    ycsb: &'a Ycsb,
    records: u64,
    document: Vec<u8>,
    progress: &'a Progress,
}

impl ChunkWorker for CacheWarmer<'_> {
    fn work(&mut self, chunk: Range<u64>) -> Result<(), SystemError> {
        let count = chunk.end - chunk.start;
        let keys = keys_of(self.ycsb, self.records, chunk);
        let query = format!("SELECT SQL_NO_CACHE * FROM {YCSB_TABLE} WHERE {YCSB_KEY} IN ({keys})");
        let rows: Vec<Row> = self.session.run(|connection| connection.query(&query))?;
        if rows.len() as u64 != count {
            let message = format!("{YCSB_TABLE} has {} of {count} records: load the data set first", rows.len());
            return Err(SystemError::Data(message));
        }
        for row in &rows {
            let key: Option<i64> = row.get(0);
            let Some(key) = key else {
                return Err(SystemError::Data(format!("{YCSB_TABLE}: a row without {YCSB_KEY}")));
            };
            encode_row(self.ycsb.layout, row, &mut self.document)?;
            let cache_key = cache_key(key);
            if self.cache.set(&cache_key, &self.document)? != Stored::Yes {
                // Only here is it no error: a tiny cache may have no page for the items' slab class yet.
                self.cache.delete(&cache_key)?;
            }
        }
        self.progress.add(count);
        Ok(())
    }
}
