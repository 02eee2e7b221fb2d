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

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use mysql::prelude::Queryable;
use mysql::{Row, Value as Field};
use serde_json::Value;

use super::cache::{self, Cache, Stored};
use super::wire::{self, Answer, Mode};
use super::{CacheCounters, ITEM_HEADER_BYTES, MysqlMemcachedSystem};
use crate::parallel::{ChunkWorker, Chunks, Order, for_each_chunk};
use crate::progress::Progress;
use crate::system::{BulkWork, SystemError};
use crate::systems::mysql::session::{Session, Use, io_reason};
use crate::systems::mysql::ycsb::bulk::keys_of;
use crate::systems::mysql::ycsb::{KeyResult, YcsbSession};
use crate::systems::sockets::Socket;
use crate::systems::terminals::{Shared, Terminal};
use crate::ycsb::{RecordLayout, YCSB_KEY, YCSB_TABLE, Ycsb, YcsbTransaction};

/// Keys of one prewarming query.
const PREWARM_KEYS: u64 = 128;

/// What a terminal waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Idle,
    /// The document of the record to be read.
    Get,
    /// MySQL's record, because there is no document.
    Read,
    /// MySQL's new record.
    Update,
    /// The cache takes the document of a record that was missed.
    Fill,
    /// The cache takes the document of a record that was written.
    Set,
    /// The cache forgets what it could not replace.
    Delete,
}

/// The connection to Memcached that the terminals of a thread have in common, as the clients of its libraries have: a connection for each of 64
/// terminals cost two calls of the kernel for every request, and the client had no CPU time left before the server.
///
/// # Errors
/// [`SystemError::Connect`] when the server does not answer.
pub fn shared_cache(address: &str) -> Result<Shared, SystemError> {
    let socket = Socket::new(cache::stream(address)?).map_err(|error| broken(address, &error))?;
    let answer_bytes = |received: &[u8]| match wire::answer(received) {
        Ok(answer) => Ok(answer.map(|(_, bytes)| bytes)),
        Err(error) => Err(error.to_string()),
    };
    Ok(Shared::new(socket, cache::SERVER, address, answer_bytes))
}

/// A terminal: a connection to MySQL, and its part of one to Memcached ([`shared_cache`]).
pub struct CachedTerminal {
    mysql: YcsbSession,
    cache_address: String,
    layout: RecordLayout,
    counters: Arc<CacheCounters>,
    step: Step,
    key: i64,
    /// Whether the record is to be checked.
    verify: bool,
    document: Vec<u8>,
    record: Vec<u8>,
}

impl CachedTerminal {
    /// A terminal of a system that runs YCSB.
    ///
    /// # Errors
    /// [`SystemError::Connect`] when a server does not answer.
    pub fn open(system: &MysqlMemcachedSystem, ycsb: &Ycsb) -> Result<CachedTerminal, SystemError> {
        Ok(CachedTerminal {
            mysql: YcsbSession::open(&system.mysql, ycsb)?,
            cache_address: system.memcached_address.clone(),
            layout: ycsb.layout,
            counters: Arc::clone(&system.counters),
            step: Step::Idle,
            key: 0,
            verify: false,
            document: Vec::new(),
            record: Vec::new(),
        })
    }

    fn ask_cache(&mut self, step: Step, cache: &mut Vec<u8>) {
        let (cache_key, document) = (cache_key(self.key), &self.document);
        match step {
            Step::Fill => wire::store(&cache_key, document, Mode::Add, cache),
            Step::Set => wire::store(&cache_key, document, Mode::Set, cache),
            Step::Delete => wire::delete(&cache_key, cache),
            _ => wire::get(&cache_key, cache),
        }
        self.step = step;
    }

    /// MySQL's part of the transaction is over: its record goes to the cache.
    fn mysql_ended(&mut self, found: bool, cache: &mut Vec<u8>) -> Result<Option<KeyResult>, SystemError> {
        if !found {
            self.step = Step::Idle;
            return Ok(Some(KeyResult::NoSuchKey));
        }
        let record = self.mysql.record();
        if record.len() != self.layout.record_bytes() {
            let (bytes, expected, key) = (record.len(), self.layout.record_bytes(), self.key);
            return Err(SystemError::Data(format!("{YCSB_TABLE}: record {key} has {bytes} bytes, not {expected}")));
        }
        encode(record.chunks_exact(self.layout.field_bytes), &mut self.document)?;
        self.ask_cache(if self.step == Step::Update { Step::Set } else { Step::Fill }, cache);
        Ok(None)
    }

    fn cache_answered(&mut self, answer: Answer<'_>, cache: &mut Vec<u8>) -> Result<Option<KeyResult>, SystemError> {
        let address = &self.cache_address;
        let mut verified = None;
        let next = match (self.step, answer) {
            (Step::Get, Answer::Value(document)) => {
                CacheCounters::add(&self.counters.hits);
                // Every reader parses the document, as an application would; a damaged one always fails.
                let intact = document::decode(self.layout, document, &mut self.record).is_ok();
                verified =
                    (self.verify || !intact).then(|| intact && self.layout.verify_record(self.key, &self.record));
                Step::Idle
            }
            (Step::Get, Answer::Absent) => {
                CacheCounters::add(&self.counters.misses);
                Step::Read
            }
            (Step::Fill, answer @ (Answer::Done | Answer::NotStored | Answer::Refused(_))) => {
                match answer {
                    Answer::Done => CacheCounters::add(&self.counters.fills),
                    Answer::Refused(_) => CacheCounters::add(&self.counters.refused),
                    _ => {}
                }
                verified = self.verify.then(|| self.layout.verify_record(self.key, self.mysql.record()));
                Step::Idle
            }
            (Step::Set, Answer::Done) | (Step::Delete, Answer::Done | Answer::Absent) => Step::Idle,
            (Step::Set, Answer::NotStored | Answer::Refused(_)) => {
                CacheCounters::add(&self.counters.refused);
                Step::Delete
            }
            (_, Answer::Refused(message)) => {
                return Err(SystemError::Server {
                    server: cache::SERVER,
                    address: address.clone(),
                    code: "SERVER_ERROR".to_owned(),
                    message: String::from_utf8_lossy(message).into_owned(),
                });
            }
            (step, answer) => return Err(lost(address, format!("no answer to {step:?}: {answer:?}"))),
        };
        match next {
            Step::Idle => {
                self.step = Step::Idle;
                return Ok(Some(KeyResult::Done { verified }));
            }
            Step::Read => {
                self.step = Step::Read;
                self.mysql.begin_read(self.key)?;
            }
            step => self.ask_cache(step, cache),
        }
        Ok(None)
    }
}

impl Terminal for CachedTerminal {
    fn socket(&self) -> &Socket {
        self.mysql.socket()
    }

    fn begin(&mut self, transaction: &YcsbTransaction<'_>, cache: &mut Vec<u8>) -> Result<(), SystemError> {
        match *transaction {
            YcsbTransaction::Read { key, verify } => {
                (self.key, self.verify) = (key, verify);
                self.ask_cache(Step::Get, cache);
                Ok(())
            }
            YcsbTransaction::Update { key, field, value } => {
                (self.key, self.step) = (key, Step::Update);
                self.mysql.begin_update(key, field, value, true)
            }
        }
    }

    fn go_on(&mut self, cache: &mut Vec<u8>) -> Result<Option<KeyResult>, SystemError> {
        match self.mysql.go_on()? {
            Some(found) => self.mysql_ended(found, cache),
            None => Ok(None),
        }
    }

    fn go_on_with(&mut self, answer: &[u8], cache: &mut Vec<u8>) -> Result<Option<KeyResult>, SystemError> {
        match wire::answer(answer) {
            Ok(Some((answer, _))) => self.cache_answered(answer, cache),
            Ok(None) => Err(lost(&self.cache_address, "half an answer was taken for a whole one".to_owned())),
            Err(error) => Err(lost(&self.cache_address, error.to_string())),
        }
    }

    fn take_retries(&mut self) -> Vec<&'static str> {
        self.mysql.take_retries()
    }

    fn overdue(&self, waited: Duration) -> Option<SystemError> {
        match self.step {
            Step::Idle => None,
            Step::Read | Step::Update => self.mysql.overdue(waited),
            _ => (waited > cache::ANSWER_TIMEOUT).then(|| broken(&self.cache_address, &ErrorKind::TimedOut.into())),
        }
    }
}

fn broken(address: &str, error: &io::Error) -> SystemError {
    lost(address, io_reason(error))
}

fn lost(address: &str, reason: String) -> SystemError {
    SystemError::Lost { server: cache::SERVER, address: address.to_owned(), reason }
}

fn cache_key(key: i64) -> String {
    format!("{YCSB_TABLE}:{key}")
}

/// Writes the document of a record.
fn encode<'a>(fields: impl Iterator<Item = &'a [u8]>, document: &mut Vec<u8>) -> Result<(), SystemError> {
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
            encode((0..self.ycsb.layout.fields).map(|field| field_of(row, field)), &mut self.document)?;
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

/// The bytes of a field, which stands behind the key; empty when the column holds something else than text.
fn field_of(row: &Row, field: usize) -> &[u8] {
    match row.as_ref(field + 1) {
        Some(Field::Bytes(bytes)) => bytes,
        _ => &[],
    }
}
