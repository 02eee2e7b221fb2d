//! MySQL with Memcached in front, as the paper sets it up (§4.2): results of queries are cached as
//! serialised JSON, reads look in the cache first, writes go through to both, and the cache is filled
//! before the measurement.
//!
//! Policy (the paper's own code is not public; design §6):
//! - A document holds a whole record, `usertable:<key>` → `{"field0":"…",…}`.
//! - A read takes the document from the cache. On a miss it reads MySQL and fills the cache with
//!   `add`, which gives way to a document that a writer has put there meanwhile.
//! - An update is `UPDATE`, then `SELECT *` of the same record; then the whole new document is `set`.
//!   Writing only the changed field would replace the document by a fragment. With
//!   `mysql_transaction: autocommit` that is two round trips: the row read is the own write or a newer
//!   one. With `explicit` both are one transaction, so that the row lock spans them.
//!
//! **The window.** Between the commit and `set` a reader still gets the previous version from the
//! cache, and of two writers of one record the first to commit may be the second to `set`: then its
//! older document stays until the next update or eviction. A reader that missed before an update and
//! fills after the new document was evicted again can do the same. So the combination is durable but
//! not serializable through the cache; the paper's architecture has this property, and closing it
//! (compare-and-set, or holding the row lock across `set`) would make the system slower than the one
//! that the paper measured. Every version carries checksums, so reads stay verifiable.
//!
//! **A lost Memcached** loses no data: MySQL has every committed update. But a server that is gone
//! for a while and comes back with its memory misses the updates of that time. So this client never
//! carries on without it: the trial fails with the reason, and the next deployment starts empty and
//! is prewarmed. A document that Memcached refuses to store (out of memory in its slab class) is
//! deleted instead, so that no older version survives, and counted.

mod cache;
mod document;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mysql::Row;
use mysql::prelude::Queryable;
use serde_json::{Map, Value};

use crate::parallel::{ChunkWorker, Chunks, Order, for_each_chunk};
use crate::progress::Progress;
use crate::spec::Spec;
use crate::system::{BulkWork, ByServer, Completion, Connection, System, SystemError};
use crate::systems::mysql::bulk::keys_of;
use crate::systems::mysql::session::{Session, Use};
use crate::systems::mysql::ycsb::{YcsbStatements, field_of};
use crate::systems::mysql::{KeyResult, MysqlSystem};
use crate::workload::{Transaction, Workload};
use crate::ycsb::{RecordLayout, YCSB_KEY, YCSB_TABLE, Ycsb, YcsbTransaction};
use anticache_engine::catalog::{Catalog, TableId};

use cache::{Cache, Stored};

/// Keys of one prewarming query.
const PREWARM_KEYS: u64 = 128;
/// Least that Memcached 1.6 adds to an item's key and value.
const ITEM_HEADER_BYTES: u64 = 48;

/// What the clients saw of the cache; reported as counters of `loadgen`.
#[derive(Debug, Default)]
struct CacheCounters {
    hits: AtomicU64,
    misses: AtomicU64,
    fills: AtomicU64,
    refused: AtomicU64,
}

impl CacheCounters {
    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn report(&self) -> Map<String, Value> {
        let named = [
            ("cache_hits", &self.hits),
            ("cache_misses", &self.misses),
            ("cache_fills", &self.fills),
            ("cache_refused", &self.refused),
        ];
        named.into_iter().map(|(name, counter)| (name.to_owned(), counter.load(Ordering::Relaxed).into())).collect()
    }
}

/// A deployed pair of servers.
pub struct MysqlMemcachedSystem {
    mysql: MysqlSystem,
    memcached_address: String,
    counters: Arc<CacheCounters>,
}

impl MysqlMemcachedSystem {
    /// # Errors
    /// [`SystemError::Connect`] when one of the servers does not answer.
    pub fn open(spec: &Spec, workload: Workload) -> Result<MysqlMemcachedSystem, SystemError> {
        let memcached_address = spec.endpoint.memcached_address.clone().unwrap_or_default();
        Cache::connect(&memcached_address)?;
        let mysql = MysqlSystem::open(spec, workload)?;
        Ok(MysqlMemcachedSystem { mysql, memcached_address, counters: Arc::default() })
    }
}

impl System for MysqlMemcachedSystem {
    fn create_schema(&self, ddl: &str) -> Result<(), SystemError> {
        self.mysql.create_schema(ddl)
    }

    fn load(&self, work: BulkWork<'_>) -> Result<u64, SystemError> {
        self.mysql.load(work)
    }

    fn prewarm(&self, work: BulkWork<'_>) -> Result<String, SystemError> {
        let pool = self.mysql.prewarm(work)?;
        let cache = prewarm_cache(self, work)?;
        Ok(format!("{pool}; {cache}"))
    }

    fn terminal_groups(&self, terminals: u32, cpus: usize) -> Vec<Range<u32>> {
        self.mysql.terminal_groups(terminals, cpus)
    }

    fn connect(&self, _terminals: Range<u32>) -> Result<Box<dyn Connection>, SystemError> {
        let mut session = self.mysql.transaction_session()?;
        let Workload::Ycsb(ycsb) = &self.mysql.workload else {
            return Err(SystemError::Data("this system does not run TPC-C yet".to_owned()));
        };
        Ok(Box::new(CachedConnection {
            statements: YcsbStatements::prepare(&mut session, ycsb)?,
            session,
            cache: Cache::connect(&self.memcached_address)?,
            layout: ycsb.layout,
            counters: Arc::clone(&self.counters),
            document: Vec::new(),
            record: Vec::new(),
            completed: None,
        }))
    }

    fn scan(&self, _catalog: &Catalog, _table: TableId, _on_row: &mut dyn FnMut(&[u8])) -> Result<(), SystemError> {
        Err(SystemError::Data("this system does not scan yet".to_owned()))
    }

    fn counters(&self) -> Result<ByServer, SystemError> {
        let mut counters = self.mysql.counters()?;
        let mut stats = cache::stats(&self.memcached_address)?;
        stats.retain(|_, value| value.is_u64());
        counters.insert(cache::SERVER, stats);
        counters.insert("loadgen", self.counters.report());
        Ok(counters)
    }

    fn settings(&self) -> Result<ByServer, SystemError> {
        let mut settings = self.mysql.settings()?;
        let mut stats = cache::stats(&self.memcached_address)?;
        stats.retain(|name, _| ["limit_maxbytes", "max_connections", "threads", "version"].contains(&name.as_str()));
        settings.insert(cache::SERVER, stats);
        Ok(settings)
    }

    fn versions(&self) -> Result<BTreeMap<&'static str, String>, SystemError> {
        let mut versions = self.mysql.versions()?;
        let stats = cache::stats(&self.memcached_address)?;
        let version = stats.get("version").and_then(Value::as_str).unwrap_or_default();
        versions.insert(cache::SERVER, version.to_owned());
        Ok(versions)
    }
}

/// One terminal's connections.
struct CachedConnection {
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
        let Some(row) = self.session.transaction(retries, |connection| statements.read(connection, key))? else {
            return Ok(KeyResult::NoSuchKey);
        };
        encode_row(self.layout, &row, &mut self.document)?;
        match self.cache.add(&cache_key, &self.document)? {
            Stored::Yes => CacheCounters::add(&self.counters.fills),
            Stored::No => {}
            Stored::Refused => CacheCounters::add(&self.counters.refused),
        }
        let verified = verify.then(|| crate::systems::mysql::ycsb::verify_row(self.layout, key, &row));
        Ok(KeyResult::Done { verified })
    }

    fn update(
        &mut self,
        (key, field, value): (i64, u16, &[u8]),
        retries: &mut Vec<&'static str>,
    ) -> Result<KeyResult, SystemError> {
        let update = self.statements.update_statement(&mut self.session, field)?;
        let statements = &self.statements;
        let row = self.session.transaction(retries, |connection| {
            connection.exec_drop(&update, (value, key))?;
            if connection.affected_rows() == 0 { Ok(None) } else { statements.read(connection, key) }
        })?;
        let Some(row) = row else {
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
                return Err(SystemError::Data("this system does not run TPC-C yet".to_owned()));
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
fn prewarm_cache(system: &MysqlMemcachedSystem, work: BulkWork<'_>) -> Result<String, SystemError> {
    let Workload::Ycsb(ycsb) = &system.mysql.workload else {
        return Err(SystemError::Data("this system does not run TPC-C yet".to_owned()));
    };
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
    let stats = cache::stats(&system.memcached_address)?;
    let count = |name: &str| stats.get(name).and_then(Value::as_u64).unwrap_or(0);
    if count("curr_items") == 0 {
        return Err(SystemError::Data(
            "memcached holds nothing after prewarming: is its memory large enough?".to_owned(),
        ));
    }
    Ok(format!("memcached: {summary}, it holds {} and evicted {}", count("curr_items"), count("evictions")))
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
