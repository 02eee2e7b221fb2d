//! MySQL with Memcached in front, as the paper sets it up (§4.2): results of queries are cached as
//! serialised JSON, reads look in the cache first, writes go through to both, and the cache is filled
//! before the measurement. Policy (the paper's own code is not public; design §6): `ycsb`, [`tpcc`].
//!
//! **The window.** Between the commit and `set` a reader still gets the previous version from the
//! cache, and of two writers of one record the first to commit may be the second to `set`: then its
//! older document stays until the next update or eviction. A reader that missed before an update and
//! fills after the new document was evicted again can do the same. So the combination is durable but
//! not serializable through the cache; the paper's architecture has this property, and closing it
//! (compare-and-set, or holding the row lock across `set`) would make the system slower than the one
//! that the paper measured. YCSB's versions carry checksums, so reads stay verifiable.
//!
//! **A lost Memcached** loses no data: MySQL has every committed update. But a server that is gone
//! for a while and comes back with its memory misses the updates of that time. So this client never
//! carries on without it: the trial fails with the reason, and the next deployment starts empty and
//! is prewarmed. A document that Memcached refuses to store (out of memory in its slab class) is
//! deleted instead, so that no older version survives, and counted.

pub mod cache;
mod link;
pub mod tpcc;
mod wire;
mod ycsb;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anticache_engine::catalog::{Catalog, TableId};
use serde_json::{Map, Value};

use crate::interrupt::Interrupt;
use crate::spec::Spec;
use crate::system::{Adapter, BulkWork, ByServer, CacheDifferences, Connection, System, SystemError};
use crate::systems::mysql::tpcc::TpccConnection;
use crate::systems::mysql::{self, MysqlSystem};
use crate::systems::terminals::Terminals;
use crate::workload::Workload;

use cache::Cache;
use tpcc::CachedRows;
use ycsb::CachedTerminal;

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
        CacheCounters::add_many(counter, 1);
    }

    fn add_many(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
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

/// How the adapter is found by its systems' names.
pub static ADAPTER: Adapter = Adapter {
    name: "mysql-memcached",
    systems: &["mysql-memcached"],
    addresses: &[mysql::ADDRESS, cache::ADDRESS],
    open: |spec, workload| Ok(Box::new(MysqlMemcachedSystem::open(spec, workload)?)),
};

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

    /// MySQL without the cache.
    pub fn mysql(&self) -> &MysqlSystem {
        &self.mysql
    }

    /// A terminal's copies of TPC-C's rows.
    ///
    /// # Errors
    /// [`SystemError::Connect`] when Memcached does not answer.
    pub fn cached_rows(&self, catalog: &Arc<Catalog>) -> Result<CachedRows, SystemError> {
        let cache = Cache::connect(&self.memcached_address)?;
        Ok(CachedRows::new(cache, Arc::clone(catalog), Arc::clone(&self.counters)))
    }
}

impl System for MysqlMemcachedSystem {
    fn create_schema(&self, ddl: &str) -> Result<(), SystemError> {
        self.mysql.create_schema(ddl)
    }

    /// Documents of rows that were there before would outlive them.
    fn load(&self, work: BulkWork<'_>) -> Result<u64, SystemError> {
        cache::clear(&self.memcached_address)?;
        self.mysql.load(work)
    }

    fn prewarm(&self, work: BulkWork<'_>) -> Result<String, SystemError> {
        let pool = self.mysql.prewarm(work)?;
        let cache = match &self.mysql.workload {
            Workload::Ycsb(ycsb) => ycsb::prewarm_cache(self, ycsb, work)?,
            Workload::Tpcc(tpcc) => tpcc::prewarm::prewarm_cache(self, tpcc, work)?,
        };
        Ok(format!("{pool}; {cache}"))
    }

    /// Memcached puts nothing off.
    fn quiesce(&self, interrupt: &Interrupt) -> Result<String, SystemError> {
        self.mysql.quiesce(interrupt)
    }

    fn terminal_groups(&self, terminals: u32, cpus: usize) -> Vec<Range<u32>> {
        self.mysql.terminal_groups(terminals, cpus)
    }

    fn connect(&self, terminals: Range<u32>) -> Result<Box<dyn Connection>, SystemError> {
        Ok(match &self.mysql.workload {
            Workload::Ycsb(ycsb) => {
                let cache = ycsb::shared_cache(&self.memcached_address)?;
                Box::new(Terminals::open(terminals, Some(cache), || CachedTerminal::open(self, ycsb))?)
            }
            Workload::Tpcc(tpcc) => {
                let session = self.mysql.transaction_session()?;
                Box::new(TpccConnection::open(session, tpcc, self.cached_rows(&tpcc.catalog)?)?)
            }
        })
    }

    /// Of MySQL, which has every committed row.
    fn scan(&self, catalog: &Catalog, table: TableId, on_row: &mut dyn FnMut(&[u8])) -> Result<(), SystemError> {
        self.mysql.scan(catalog, table, on_row)
    }

    fn cache_differences(&self, catalog: &Catalog) -> Result<Option<CacheDifferences>, SystemError> {
        match &self.mysql.workload {
            Workload::Ycsb(_) => Ok(None),
            Workload::Tpcc(_) => tpcc::differences::count(self, catalog).map(Some),
        }
    }

    fn counters(&self) -> Result<ByServer, SystemError> {
        let mut counters = self.mysql.counters()?;
        counters.insert(cache::SERVER, cache::counters(&self.memcached_address)?);
        counters.insert("loadgen", self.counters.report());
        Ok(counters)
    }

    fn settings(&self) -> Result<ByServer, SystemError> {
        let mut settings = self.mysql.settings()?;
        settings.insert(cache::SERVER, cache::settings(&self.memcached_address)?);
        Ok(settings)
    }

    fn versions(&self) -> Result<BTreeMap<&'static str, String>, SystemError> {
        let mut versions = self.mysql.versions()?;
        versions.insert(cache::SERVER, cache::version(&self.memcached_address)?);
        Ok(versions)
    }
}

/// What Memcached holds after prewarming, as words.
fn contents(address: &str) -> Result<String, SystemError> {
    let stats = cache::stats(address)?;
    let count = |name: &str| stats.get(name).and_then(Value::as_u64).unwrap_or(0);
    if count("curr_items") == 0 {
        let message = "memcached holds nothing after prewarming: is its memory large enough?";
        return Err(SystemError::Data(message.to_owned()));
    }
    Ok(format!("it holds {} and evicted {}", count("curr_items"), count("evictions")))
}
